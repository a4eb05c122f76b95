package torch

// Snapshots that are cut, damaged or hostile.

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

// TestTorchCut: a snapshot cut anywhere is an error with a place, and so is one
// cut inside gzip; a whole one with something behind it is read.
func TestTorchCut(t *testing.T) {
	for _, name := range snapshots {
		data, err := os.ReadFile(filepath.Join("..", "..", "trace", "testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		for n := range data {
			_, err := readString(string(data[:n]))
			if !tracetest.IsInput(err) {
				t.Fatalf("%s cut to %d bytes: %v", name, n, err)
			}
		}
		z := tracetest.Zipped(data)
		for n := 10; n < len(z); n++ { // the sums at the end count, too
			_, err := readString(string(z[:n]))
			var e *tape.Error
			if !errors.As(err, &e) || !strings.Contains(e.Msg, "cut short") {
				t.Fatalf("%s.gz cut to %d bytes: %v", name, n, err)
			}
		}
		tr := mustRead(t, append(data, "tail"...), tape.Options{})
		if tr.Notes[0] != "what follows the end of the pickle was not read" {
			t.Errorf("notes %q", tr.Notes)
		}
	}
}

func TestTorchCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, tree := range []any{d("segments", l(seg(0, blk(1, 1)))), d("device_traces", l(l(ev("alloc", 1, 1))))} {
		_, err := readTrees(ctx, tree, tape.Options{})
		if !errors.Is(err, context.Canceled) || tracetest.IsInput(err) {
			t.Errorf("got %v", err)
		}
	}
}

// FuzzTorch: any data pickle gives a consistent trace or an *Error.
func FuzzTorch(f *testing.F) {
	for _, name := range snapshots {
		data, err := os.ReadFile(filepath.Join("..", "..", "trace", "testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	// One block that "list `hist`" keeps.
	f.Add("\x80\x02}q\x00(X\x08\x00\x00\x00segmentsq\x01]q\x02}q\x03(X\x06\x00\x00\x00deviceq\x04K\x00X\x07\x00\x00\x00ad" +
		"dressq\x05M\x00\x01X\x0a\x00\x00\x00total_sizeq\x06M\x00\x02X\x06\x00\x00\x00streamq\x07K\x00X\x0c\x00\x00\x00" +
		"segment_typeq\x08X\x05\x00\x00\x00smallq\x09X\x06\x00\x00\x00blocksq\x0a]q\x0b}q\x0c(h\x05M\x00\x01X\x04\x00" +
		"\x00\x00sizeq\x0dM\x00\x02X\x0e\x00\x00\x00requested_sizeq\x0eK\x05X\x05\x00\x00\x00stateq\x0fX\x10\x00\x00" +
		"\x00active_allocatedq\x10uauaX\x0d\x00\x00\x00device_tracesq\x11]q\x12]q\x13}q\x14(X\x06\x00\x00\x00actionq" +
		"\x15X\x05\x00\x00\x00allocq\x16X\x04\x00\x00\x00addrq\x17M\x00\x01h\x0dK\x05h\x07K\x00uaaX\x0e\x00\x00\x00gpum" +
		"em_keepersq\x18]q\x19}q\x1a(X\x09\x00\x00\x00containerq\x1bX\x0b\x00\x00\x00list `hist`q\x1cX\x04\x00\x00\x00l" +
		"ineq\x1dX\x06\x00\x00\x00t.py:8q\x1eh\x04K\x00h\x0a]q\x1fM\x00\x01aX\x05\x00\x00\x00bytesq K\x05uau.")
	f.Fuzz(func(t *testing.T, in string) {
		tr, err := formats.Read(context.Background(), strings.NewReader(in), "in", tape.Options{Format: "torch"})
		if err != nil {
			if !tracetest.IsInput(err) {
				t.Fatalf("%v is not an *Error", err)
			}
			return
		}
		defer tr.Close()
		if err := tracetest.CheckTrace(tr); err != nil {
			t.Fatal(err)
		}
		for _, p := range tr.Pools {
			for n := range min(p.Events, 1000) {
				if k, _ := p.Keeper(n + 1); len(k.Container) > maxKeeperText+len("...") || strings.ContainsFunc(k.Container+k.Line, unicode.IsControl) {
					t.Fatalf("event %d is kept by %q", n+1, k)
				}
			}
		}
		for i := range tr.Sites() {
			if s := tr.Site(i); strings.Count(s, "\n") >= tape.MaxFrames {
				t.Fatalf("site %d has more than %d frames", i, tape.MaxFrames)
			}
		}
	})
}

func TestFieldKinds(t *testing.T) {
	for _, c := range []struct {
		v       any
		size    uint64
		isSize  bool
		address uint64
		isAddr  bool
	}{
		{int64(5), 5, true, 5, true},
		{int64(-1), 0, false, math.MaxUint64, true},
		{uint64(1 << 63), 1 << 63, true, 1 << 63, true},
		{wideInt{}, 0, false, 0, false},
		{"5", 0, false, 0, false},
		{true, 0, false, 0, false},
		{5.0, 0, false, 0, false},
		{nil, 0, false, 0, false},
	} {
		d := &dict{items: []item{{"k", c.v}}}
		size, ok := sizeField(d, "k")
		if ok != c.isSize || ok && size != c.size {
			t.Errorf("%v as a size: %d %v", c.v, size, ok)
		}
		addr, ok := addressField(d, "k")
		if ok != c.isAddr || addr != c.address {
			t.Errorf("%v as an address: %d %v", c.v, addr, ok)
		}
	}
}
