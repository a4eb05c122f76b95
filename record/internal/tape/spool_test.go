package tape

// The spool and its cursors: memory and file give the same
// events, nothing is left behind, and many may read at once.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"gpumem/record/internal/spool"
)

func TestSpoolPlaces(t *testing.T) {
	data := generated(200_000, decimalID)
	want := events(t, mustRead(t, data, Options{}).Pools[0], 1000)
	for _, c := range []struct {
		name   string
		limit  int
		file   bool
		memory bool
	}{
		{"memory", 0, false, true},
		{"file", -1, true, false},
		{"both", 3 * blockBytes, true, true},
		{"less than one block", 1, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			tr := mustRead(t, data, Options{SpoolLimit: c.limit, TempDir: dir})
			if got := *inside[*os.File](tr.spool, "file") != nil; got != c.file {
				t.Errorf("a file: %v, want %v", got, c.file)
			}
			if inMem := *inside[int](tr.spool, "inMem"); c.limit > 0 && inMem > c.limit || inMem > 0 != c.memory {
				t.Errorf("%d bytes in memory with a limit of %d", inMem, c.limit)
			}
			if got := left(t, dir); runtime.GOOS != "windows" && len(got) > 0 {
				t.Errorf("the temporary file has a name while it is open: %v", got)
			}
			if got := events(t, tr.Pools[0], 777); !slices.Equal(got, want) {
				t.Error("the events differ")
			}
			if err := checkTrace(tr); err != nil {
				t.Error(err)
			}
			if err := errors.Join(tr.Close(), tr.Close()); err != nil {
				t.Error(err)
			}
			if got := left(t, dir); len(got) > 0 {
				t.Errorf("left behind: %v", got)
			}
			_, err := eventsOf(tr.Pools[0], 10)
			if c.file && !errors.Is(err, spool.ErrClosed) {
				t.Errorf("reading a closed trace: %v", err)
			}
		})
	}
}

// inside returns a field of a spool, which has no other way to look at it or to break it.
func inside[T any](s *spool.Spool, name string) *T {
	return (*T)(unsafe.Pointer(reflect.ValueOf(s).Elem().FieldByName(name).UnsafeAddr()))
}

func TestSpoolFails(t *testing.T) {
	t.Run("no directory", func(t *testing.T) {
		_, err := Read(context.Background(), strings.NewReader("a 0 1\n"), "in",
			Options{SpoolLimit: -1, TempDir: filepath.Join(t.TempDir(), "none")})
		if err == nil || isInput(err) || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "TMPDIR") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("cannot be written", func(t *testing.T) {
		f, err := os.Open(os.DevNull) // for reading only
		if err != nil {
			t.Fatal(err)
		}
		b := testBuilder("text", Options{SpoolLimit: -1})
		*inside[*os.File](b.trace.spool, "file") = f
		defer b.trace.Close()
		p := b.Pool("")
		_, err = p.alloc(1, 0, 0, false)
		if err = errors.Join(err, b.finish()); err == nil || isInput(err) || !strings.Contains(err.Error(), "TMPDIR") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("file cut short", func(t *testing.T) {
		tr := mustRead(t, []byte("a 0 1\nf 0\n"), Options{SpoolLimit: -1, TempDir: t.TempDir()})
		if err := (*inside[*os.File](tr.spool, "file")).Truncate(3); err != nil {
			t.Fatal(err)
		}
		c := tr.Pools[0].Cursor()
		_, err := c.Next(make([]Event, 2))
		_, again := c.Next(make([]Event, 2))
		if !errors.Is(err, io.EOF) || err == io.EOF || again != err {
			t.Errorf("got %v, then %v", err, again)
		}
	})
	t.Run("file overwritten", func(t *testing.T) {
		tr := mustRead(t, []byte("a 0 1\nf 0\n"), Options{SpoolLimit: -1, TempDir: t.TempDir()})
		if _, err := (*inside[*os.File](tr.spool, "file")).WriteAt([]byte{0xff, 0xff, 0xff}, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := eventsOf(tr.Pools[0], 10); !errors.Is(err, spool.ErrDamaged) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("events do not fill the block", func(t *testing.T) {
		tr := mustRead(t, []byte("a 0 1\nf 0\n"), Options{})
		tr.Pools[0].blocks[0].events--
		if _, err := eventsOf(tr.Pools[0], 10); !errors.Is(err, spool.ErrDamaged) {
			t.Errorf("got %v", err)
		}
	})
}

func TestCursor(t *testing.T) {
	tr := mustRead(t, []byte("a 0 1\nf 0\na 1 2\n"), Options{})
	c := tr.Pools[0].Cursor()
	if n, err := c.Next(nil); n != 0 || err != nil {
		t.Errorf("an empty slice: %d, %v", n, err)
	}
	dst := make([]Event, 2)
	for i, want := range []struct {
		n   int
		err error
	}{{2, nil}, {1, nil}, {0, io.EOF}, {0, io.EOF}} {
		if n, err := c.Next(dst); n != want.n || err != want.err {
			t.Errorf("call %d: %d, %v; want %d, %v", i, n, err, want.n, want.err)
		}
	}
}

// TestCursorsAtOnce reads the same pool from several goroutines, each at its own
// pace.
func TestCursorsAtOnce(t *testing.T) {
	tr := mustRead(t, generated(100_000, decimalID), Options{SpoolLimit: 2 * blockBytes, TempDir: t.TempDir()})
	want := events(t, tr.Pools[0], 1<<20)
	var wg sync.WaitGroup
	for _, batch := range []int{1, 13, 4096, 1 << 20} {
		wg.Go(func() {
			got, err := eventsOf(tr.Pools[0], batch)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("batch %d: %d events, %v", batch, len(got), err)
			}
		})
	}
	wg.Wait()
}

// TestCursorAllocates: replaying makes no garbage, from memory or file.
func TestCursorAllocates(t *testing.T) {
	for _, limit := range []int{0, -1} {
		tr := mustRead(t, generated(50_000, decimalID), Options{SpoolLimit: limit, TempDir: t.TempDir()})
		c := tr.Pools[0].Cursor()
		dst := make([]Event, 100)
		if _, err := c.Next(dst); err != nil { // the file's buffer
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(300, func() { c.Next(dst) }); n > 0 {
			t.Errorf("limit %d: %v allocations a batch", limit, n)
		}
	}
}

// TestMemoryIsPerLiveBlock: a recording ten times as long takes no more memory
// once the spool is in its file.
func TestMemoryIsPerLiveBlock(t *testing.T) {
	size := func(n int) uint64 {
		data := bytes.Repeat([]byte("a 1 100\na 2 200\nf 1\nf 2\n"), n)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		tr := mustRead(t, data, Options{SpoolLimit: -1, TempDir: t.TempDir()})
		runtime.ReadMemStats(&after)
		if tr.Events != uint64(4*n) {
			t.Fatalf("%d events", tr.Events)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	short, long := size(10_000), size(100_000)
	if long > short+64<<10 { // a few more block entries
		t.Errorf("40,000 events allocate %d bytes, 400,000 allocate %d", short, long)
	}
}
