package input

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

// zeros reads as n zero bytes.
func zeros(n int64) io.Reader { return io.LimitReader(zero{}, n) }

type zero struct{}

func (zero) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func packed(t *testing.T, r io.Reader) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(z, r); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(t *testing.T, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestContentIsReadBehindGzip(t *testing.T) {
	const text = "some text"
	once := packed(t, strings.NewReader(text))
	for name, b := range map[string][]byte{"plain": []byte(text), "gzip": once, "twice": packed(t, bytes.NewReader(once))} {
		t.Run(name, func(t *testing.T) {
			r, err := Open(t.Context(), file(t, b), Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if got, err := r.Text(); got != text || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

func TestReadAllGivesAllPieces(t *testing.T) {
	for _, n := range []int{0, 1, bufferBytes - 1, bufferBytes, bufferBytes + 1, 10 << 20} {
		want := bytes.Repeat([]byte("abcdefg"), n/7+1)[:n]
		r, err := New(t.Context(), iotest.HalfReader(bytes.NewReader(want)), "in", Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.ReadAll()
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes of %d, %v", len(got), n, err)
		}
		r.Close()
	}
}

// A file of 300 KB that unpacks to 300 MB is refused, in little memory.
func TestMuchGzipIsRefused(t *testing.T) {
	path := file(t, packed(t, zeros(300<<20)))
	r, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	n, err := io.Copy(io.Discard, r)
	runtime.ReadMemStats(&after)
	var e *Error
	if !errors.Is(err, ErrTooMuch) || !errors.As(err, &e) || !strings.HasPrefix(err.Error(), path+": unpacks to more than ") || !strings.HasSuffix(err.Error(), "unpack it with gzip -d and name the result") {
		t.Errorf("error %v", err)
	}
	if n > floorUnpacked+maxUnpacked*r.total {
		t.Errorf("%d bytes of a file of %d", n, r.total)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 10<<20 {
		t.Errorf("%d bytes of memory", took)
	}
}

// Twice packed, 3 KB stand for gigabytes.
func TestMuchGzipInGzipIsRefused(t *testing.T) {
	r, err := Open(t.Context(), file(t, packed(t, bytes.NewReader(packed(t, zeros(200<<20))))), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := io.Copy(io.Discard, r); !errors.Is(err, ErrTooMuch) || n > floorUnpacked+1<<20 {
		t.Errorf("%d bytes, error %v", n, err)
	}
}

func TestPlainFileOfAnySizeIsRead(t *testing.T) {
	r, err := New(t.Context(), zeros(200<<20), "in", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := io.Copy(io.Discard, r); n != 200<<20 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

func TestMemoryIsInProportionToTheFile(t *testing.T) {
	for _, size := range []int{0, 1 << 20} {
		r, err := Open(t.Context(), file(t, make([]byte, size)), Options{})
		if err != nil {
			t.Fatal(err)
		}
		limit := int64(floorHeld + maxHeld*size)
		if err := r.Take(limit); err != nil {
			t.Errorf("file of %d: %v", size, err)
		}
		if err := r.Take(1); !errors.Is(err, ErrTooMuch) || !strings.Contains(err.Error(), "cannot be held in ") || strings.Contains(err.Error(), "gzip") {
			t.Errorf("file of %d: %v", size, err)
		}
		if err := r.Take(-1); err != nil {
			t.Errorf("file of %d, after some was released: %v", size, err)
		}
		r.Close()
	}
}

// What a reader needs that holds everything, is no more than is counted.
func TestReadAllOfMuchGzipIsRefused(t *testing.T) {
	r, err := Open(t.Context(), file(t, packed(t, zeros(100<<20))), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.held = floorHeld - 1<<20 // all but 1 MiB, and what the file gives
	if _, err := r.ReadAll(); !errors.Is(err, ErrTooMuch) {
		t.Errorf("error %v", err)
	}
	if r.held > floorHeld+maxHeld*r.total+4<<20 {
		t.Errorf("%d bytes are held", r.held)
	}
}

func TestErrorsNameFileAndPlace(t *testing.T) {
	whole := packed(t, strings.NewReader(strings.Repeat("text ", 100000)))
	damaged := bytes.Clone(whole)
	damaged[len(damaged)-8] ^= 1
	broken := errors.New("the disk is on fire")
	for _, c := range []struct {
		name string
		r    io.Reader
		want string
		is   error
	}{
		{"cut", bytes.NewReader(whole[:len(whole)-9]), "in: byte 500000: the gzip data is cut short; copy the file again", io.ErrUnexpectedEOF},
		{"head", bytes.NewReader(whole[:5]), "in: the gzip data is cut short; copy the file again", io.ErrUnexpectedEOF},
		{"sum", bytes.NewReader(damaged), "in: byte 500000: the gzip data is damaged (gzip: invalid checksum); copy the file again", gzip.ErrChecksum},
		{"disk", io.MultiReader(strings.NewReader("text"), iotest.ErrReader(broken)), "in: reading failed after 4 bytes: the disk is on fire", broken},
		{"idle", io.MultiReader(strings.NewReader("text"), idle{}), "in: reading failed after 4 bytes: " + io.ErrNoProgress.Error(), io.ErrNoProgress},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := New(t.Context(), c.r, "in", Options{})
			if err == nil {
				_, err = io.Copy(io.Discard, r)
				r.Close()
			}
			if err == nil || err.Error() != c.want || !errors.Is(err, c.is) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
	dir := t.TempDir()
	if _, err := Open(t.Context(), dir, Options{Kind: "a log"}); err == nil || err.Error() != dir+": is a directory; name the file of a log" {
		t.Error(err)
	}
	none := filepath.Join(dir, "none")
	if _, err := Open(t.Context(), none, Options{}); !errors.Is(err, os.ErrNotExist) || err.Error() != none+": cannot be opened: no such file or directory" {
		t.Error(err)
	}
}

// idle is a reader that is allowed by io.Reader's contract and useless.
type idle struct{}

func (idle) Read([]byte) (int, error) { return 0, nil }

func TestEndOfContextEndsReading(t *testing.T) {
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	r, err := Open(ctx, file(t, packed(t, zeros(1<<20))), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cancel(why)
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, why) || !strings.HasSuffix(err.Error(), ": reading was stopped: enough") {
		t.Error(err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("text"))
	f.Add([]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := New(t.Context(), bytes.NewReader(b), "in", Options{})
		if err == nil {
			var n int64
			n, err = io.Copy(io.Discard, r)
			if n > floorUnpacked+maxUnpacked*int64(len(b))+bufferBytes {
				t.Errorf("%d bytes of %d", n, len(b))
			}
			r.Close()
		}
		var e *Error
		if err != nil && (!errors.As(err, &e) || !strings.HasPrefix(err.Error(), "in: ")) {
			t.Errorf("%v", err)
		}
	})
}
