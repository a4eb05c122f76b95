package tape

// Open and Read: files, stdin, gzip, formats, and a context
// that ends.

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

const small = "a 0 100\na 1 200\nf 0\n"

func writeFile(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rec")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpen(t *testing.T) {
	path := writeFile(t, []byte(small))
	tr, err := Open(context.Background(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if tr.Source != path || tr.Events != 3 {
		t.Errorf("%+v", tr)
	}
}

func TestOpenErrors(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	_, err := Open(context.Background(), none, Options{})
	wantInputError(t, err, none+": cannot be opened: no such file or directory")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error("not fs.ErrNotExist")
	}
	dir := t.TempDir()
	_, err = Open(context.Background(), dir, Options{})
	wantInputError(t, err, dir+": is a directory; name the file of one recording")

	broken := errors.New("the disk is on fire")
	_, err = Read(context.Background(), io.MultiReader(strings.NewReader(small), iotest.ErrReader(broken)), "in", Options{})
	wantInputError(t, err, "in: reading failed after 20 bytes: the disk is on fire")
	if !errors.Is(err, broken) {
		t.Error("the cause is lost")
	}
	_, err = Read(context.Background(), idle{}, "in", Options{})
	if !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a reader that never gives a byte: %v", err)
	}
}

// idle is a reader that is allowed by io.Reader's contract and useless.
type idle struct{}

func (idle) Read([]byte) (int, error) { return 0, nil }

// TestReaders: the way the bytes arrive does not matter.
func TestReaders(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // a context that can end puts the pump in the way
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader,
		"halves": iotest.HalfReader, "data with EOF": iotest.DataErrReader,
	} {
		for _, data := range [][]byte{[]byte(small), zipped([]byte(small)), zipped(zipped([]byte(small)))} {
			for _, ctx := range []context.Context{context.Background(), ctx} {
				tr, err := Read(ctx, wrap(bytes.NewReader(data)), "in", Options{})
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if got := listEvents(events(t, tr.Pools[0], 5)); got != "a 0 100\na 1 200\nf 0\n" {
					t.Errorf("%s: %s", name, got)
				}
				tr.Close()
			}
		}
	}
}

func TestStdin(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdin := os.Stdin
	defer func() { os.Stdin = stdin; r.Close() }()
	os.Stdin = r
	go func() {
		w.Write(zipped([]byte(small)))
		w.Close()
	}()
	tr, err := Open(context.Background(), "-", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if tr.Source != "stdin" || tr.Events != 3 {
		t.Errorf("%+v", tr)
	}
}

func TestGzip(t *testing.T) {
	t.Run("several members", func(t *testing.T) {
		data := append(zipped([]byte("a 0 1\na 1")), zipped([]byte(" 2\nf 0\n"))...)
		tr := mustRead(t, data, Options{})
		if tr.Events != 3 {
			t.Errorf("%d events", tr.Events)
		}
	})
	t.Run("empty content", func(t *testing.T) {
		_, err := Read(context.Background(), bytes.NewReader(zipped(nil)), "in", Options{})
		wantInputError(t, err, "in: the recording is empty: no events")
	})
	whole := zipped(generated(3000, decimalID))
	t.Run("cut", func(t *testing.T) {
		for n := 2; n < len(whole); n += 61 {
			_, err := Read(context.Background(), bytes.NewReader(whole[:n]), "in", Options{})
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(e.Msg, "the gzip data is cut short") || !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("cut to %d bytes: %v", n, err)
			}
		}
	})
	t.Run("damaged", func(t *testing.T) {
		for n := 10; n < len(whole); n += 67 {
			bad := append([]byte(nil), whole...)
			bad[n] ^= 0x10
			_, err := Read(context.Background(), bytes.NewReader(bad), "in", Options{})
			if !isInput(err) {
				t.Fatalf("byte %d changed: %v", n, err)
			}
		}
	})
	t.Run("wrong sum", func(t *testing.T) {
		bad := append([]byte(nil), whole...)
		bad[len(bad)-8] ^= 1
		_, err := Read(context.Background(), bytes.NewReader(bad), "in", Options{})
		if !errors.Is(err, gzip.ErrChecksum) || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("something after the end", func(t *testing.T) {
		_, err := Read(context.Background(), bytes.NewReader(append(zipped([]byte(small)), "junk and more junk"...)), "in", Options{})
		wantInputError(t, err, "in: byte 20: the gzip data is damaged (gzip: invalid header); copy the file again")
	})
}

func TestCancel(t *testing.T) {
	why := errors.New("enough")
	t.Run("before", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(why)
		_, err := Read(ctx, strings.NewReader(small), "in", Options{})
		if !errors.Is(err, why) || isInput(err) || err.Error() != "in: reading was stopped: enough" {
			t.Errorf("got %v", err)
		}
		_, err = Open(ctx, writeFile(t, []byte(small)), Options{})
		if !errors.Is(err, why) {
			t.Errorf("got %v", err)
		}
	})
	for name, head := range map[string][]byte{"text": []byte("a 0 1\n"), "gzip": zipped([]byte(small))[:12], "nothing": nil} {
		t.Run("waiting for more after "+name, func(t *testing.T) {
			r, w := io.Pipe() // a reader that blocks until the test ends
			defer w.Close()
			ctx, cancel := context.WithCancelCause(context.Background())
			go func() {
				w.Write(head)
				cancel(why)
			}()
			_, err := Read(ctx, r, "in", Options{TempDir: t.TempDir(), SpoolLimit: -1})
			if !errors.Is(err, why) || isInput(err) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("in the middle", func(t *testing.T) {
		data := generated(300_000, decimalID) // over 1 MiB, also zipped
		for _, data := range [][]byte{data, zipped(data)} {
			dir := t.TempDir()
			ctx, cancel := context.WithCancelCause(context.Background())
			opt := Options{TempDir: dir, SpoolLimit: -1, Progress: func(n, _ int64) { cancel(why) }}
			_, err := Open(ctx, writeFile(t, data), opt)
			if !errors.Is(err, why) || isInput(err) {
				t.Errorf("got %v", err)
			}
			if got := left(t, dir); len(got) > 0 {
				t.Errorf("left behind: %v", got)
			}
		}
	})
}

func TestProgress(t *testing.T) {
	data := generated(300_000, decimalID)
	var last, total int64
	calls := 0
	opt := Options{Progress: func(n, of int64) {
		if n < last || of != int64(len(data)) {
			t.Errorf("%d of %d after %d", n, of, last)
		}
		last, total = n, of
		calls++
	}}
	tr, err := Open(context.Background(), writeFile(t, data), opt)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if last != int64(len(data)) || total != last || calls < 2 || calls > 2+len(data)>>20 {
		t.Errorf("%d calls, the last %d of %d; the file has %d bytes", calls, last, total, len(data))
	}
	opt.Progress = func(n, of int64) {
		if of != 0 {
			t.Errorf("the size of a reader is %d", of)
		}
	}
	mustRead(t, data, opt)
}
