package tape

// Writer, which records a live program.

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func newTestWriter(t *testing.T, out *bytes.Buffer) *Writer {
	t.Helper()
	w, err := NewWriter(out)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWriter(t *testing.T) {
	var out bytes.Buffer
	w := newTestWriter(t, &out)
	const stack = "alloc (a.c:1)\nmain (m.c:2)"
	for _, err := range []error{
		w.Alloc(Call{Pool: "gpu", ID: 0x7f00, Bytes: 1000, Time: 5_000_000, Site: stack}),
		w.Alloc(Call{Pool: "gpu", ID: 0x7f01, Bytes: 0, Time: 5_000_007, Stream: 3, Upper: true}),
		w.Alloc(Call{Pool: "host", ID: 0x7f00, Bytes: 50, Time: 5_002_000, Site: "main (m.c:2)"}),
		w.Free(Call{Pool: "gpu", ID: 0x7f00, Bytes: 77, Time: 5_001_000, Site: stack}), // a clock of its own
		w.Flush(),
		w.Flush(),
		w.Alloc(Call{Pool: "gpu", ID: 0x7f00, Bytes: math.MaxUint64, Time: 4_000_000}), // set back
		w.Free(Call{Pool: "host", ID: 0x7f00, Time: 6_000_000, Site: strings.Repeat("x\n", 100)}),
		w.Flush(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	tr := mustRead(t, out.Bytes(), Options{})
	const want = `gpu: 0 seeds, 4 streams, peak 18446744073709551615, end 18446744073709551615 in 2
a 0 1000 site=1
a 1 0 upper stream=3 at=7
f 0 site=1 at=1000
a 0 18446744073709551615 at=1000
host: 0 seeds, 1 streams, peak 50, end 0 in 0
a 0 50 site=2 at=2000
f 0 site=3 at=1000000
`
	if d := cmp.Diff(want, Given.ShowPools(t, tr)); d != "" {
		t.Error(d)
	}
	if tr.Site(1) != stack || tr.Site(2) != "main (m.c:2)" || strings.Count(tr.Site(3), "\n") != MaxFrames-1 {
		t.Errorf("sites %q, %q, %q", tr.Site(1), tr.Site(2), tr.Site(3))
	}
	if len(tr.Notes) > 0 || !tr.Timed {
		t.Errorf("notes %q, timed %v", tr.Notes, tr.Timed)
	}
	if err := checkTrace(tr); err != nil {
		t.Error(err)
	}
}

func TestWriterErrors(t *testing.T) {
	var out bytes.Buffer
	w := newTestWriter(t, &out)
	if err := w.Alloc(Call{Pool: "p", ID: 1, Bytes: 5}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{w.Alloc(Call{Pool: "p", ID: 1, Bytes: 5}), `trace: block 0x1 of pool "p" is already live; record its free first`},
		{w.Free(Call{Pool: "p", ID: 2}), `trace: block 0x2 of pool "p" is not live; record its allocation first`},
		{w.Free(Call{Pool: "q", ID: 1}), `trace: block 0x1 of pool "q" is not live; record its allocation first`},
		{w.Alloc(Call{Pool: "p", ID: 2, Stream: math.MaxUint32}), "trace: stream 4294967295 is one too many"},
	} {
		if fmt.Sprint(c.err) != c.want {
			t.Errorf("got %v, want %s", c.err, c.want)
		}
	}
	for i := range maxPools {
		err := w.Alloc(Call{Pool: fmt.Sprint("pool", i), ID: 1})
		if last := i >= maxPools-2; last != (err != nil) {
			t.Fatalf("pool %d: %v", i, err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	// What was refused left no trace.
	if tr := mustRead(t, out.Bytes(), Options{}); tr.Events != maxPools-1 || tr.Timed {
		t.Errorf("%d events, timed %v", tr.Events, tr.Timed)
	}

	if _, err := NewWriter(&fullDisk{3}); !errors.Is(err, errFull) {
		t.Errorf("got %v", err)
	}
	full, err := NewWriter(&fullDisk{100})
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(100_000) {
		if err = full.Alloc(Call{ID: i}); err != nil {
			break
		}
	}
	if !errors.Is(err, errFull) || !errors.Is(full.Flush(), errFull) || !errors.Is(full.Free(Call{ID: 1}), errFull) {
		t.Errorf("got %v", err)
	}
}

// TestWriterLosesLittle: a crash at any call loses at most one block, and nothing
// that is more than flushAfter older than the last call.
func TestWriterLosesLittle(t *testing.T) {
	var out bytes.Buffer
	w := newTestWriter(t, &out)
	now := time.Unix(1000, 0)
	w.now = func() time.Time { return now }
	written := func() uint64 { // events that a crash would leave
		tr, err := readString(out.String())
		if err != nil {
			return 0
		}
		defer tr.Close()
		return tr.Events
	}
	for i := range uint64(100) {
		if err := w.Alloc(Call{ID: i, Bytes: i, Time: i}); err != nil {
			t.Fatal(err)
		}
		if got := written(); got+10 < i+1 { // ten calls a second
			t.Fatalf("%d events of %d written", got, i+1)
		}
		now = now.Add(flushAfter / 10)
	}
	if written() == 100 {
		t.Error("each call writes")
	}
	before := out.Len()
	for i := range uint64(100_000) { // no time passes
		if err := w.Alloc(Call{ID: 1000 + i, Bytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		if pending := len(w.out.buf); pending > frameBytes+maxPayload {
			t.Fatalf("%d bytes are not written", pending)
		}
	}
	if out.Len()-before < 100_000*3 {
		t.Errorf("%d bytes written of 100,000 events", out.Len()-before)
	}
}

// TestWriterAtOnce: many goroutines, one file.
func TestWriterAtOnce(t *testing.T) {
	var out bytes.Buffer
	w := newTestWriter(t, &out)
	var wg sync.WaitGroup
	for g := range uint64(8) {
		wg.Go(func() {
			for i := range uint64(2000) {
				c := Call{Pool: fmt.Sprint(g % 3), ID: g<<32 | i, Bytes: i, Site: fmt.Sprint("site", i%7), Time: 1 + i}
				err := w.Alloc(c)
				if i%3 > 0 && err == nil {
					err = w.Free(c)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	tr := mustRead(t, out.Bytes(), Options{})
	if err := checkTrace(tr); err != nil {
		t.Error(err)
	}
	if tr.Events != 8*(2000+1333) || len(tr.Pools) != 3 || tr.Sites() != 8 {
		t.Errorf("%d events, %d pools, %d sites", tr.Events, len(tr.Pools), tr.Sites())
	}
}

// TestLongTexts: they are cut, and the file stays one that can be read.
func TestLongTexts(t *testing.T) {
	var out bytes.Buffer
	w := newTestWriter(t, &out)
	long := strings.Repeat("é", 100_000)
	if err := errors.Join(w.Alloc(Call{Pool: long, ID: 1, Site: long + "\n" + long}), w.Flush()); err != nil {
		t.Fatal(err)
	}
	tr := mustRead(t, out.Bytes(), Options{})
	if n := len(tr.Pools[0].Name); n > maxNameBytes+3 {
		t.Errorf("a name of %d bytes", n)
	}
	if n := len(tr.Site(1)); n > 2*(maxFrameBytes+3)+1 {
		t.Errorf("a site of %d bytes", n)
	}
	b := testBuilder("text", Options{})
	b.Note("%s", long)
	if _, err := b.Pool("").alloc(1, 0, 0, false); err != nil {
		t.Fatal(err)
	}
	if err := b.finish(); err != nil {
		t.Fatal(err)
	}
	if tr := mustRead(t, saved(t, b.trace), Options{}); len(tr.Notes) != 1 || len(tr.Notes[0]) > maxText {
		t.Errorf("%d notes", len(tr.Notes))
	}
}

// TestWriterAcrossBlocks: each block of the file stands alone, so what is relative to the
// record before, the pool and the address, begins anew in it.
func TestWriterAcrossBlocks(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	var out bytes.Buffer
	w := newTestWriter(t, &out)
	want := map[string][]Call{}
	for i := range 50_000 { // of 5 bytes and more
		c := Call{Pool: string(rune('a' + rnd.IntN(3))), ID: uint64(i), Bytes: rnd.Uint64N(1 << 20), Addr: rnd.Uint64()}
		if err := w.Alloc(c); err != nil {
			t.Fatal(err)
		}
		want[c.Pool] = append(want[c.Pool], c)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := len(blockStarts(out.Bytes())); n < 10 {
		t.Fatalf("the file has only %d blocks", n)
	}
	tr := mustRead(t, out.Bytes(), Options{})
	again := mustRead(t, saved(t, tr), Options{})
	for _, tr := range []*Trace{tr, again} {
		for _, p := range tr.Pools {
			places := p.Places()
			evs := events(t, p, 1000)
			if len(evs) != len(want[p.Name]) {
				t.Fatalf("%s has %d events, want %d", p.Name, len(evs), len(want[p.Name]))
			}
			for i, c := range want[p.Name] {
				addr, err := places.Of(&evs[i])
				if err != nil || addr != c.Addr || evs[i].Bytes != c.Bytes {
					t.Fatalf("%s, event %d: %d bytes at %#x, want %d at %#x, %v", p.Name, i, evs[i].Bytes, addr, c.Bytes, c.Addr, err)
				}
			}
		}
	}
}

// TestWriterLosesNothing: with a FlushAfter of 0 nothing is lost where the program just ends.
func TestWriterLosesNothing(t *testing.T) {
	var out bytes.Buffer
	w := newTestWriter(t, &out)
	w.FlushAfter = 0
	for i := range uint64(3) {
		if err := w.Alloc(Call{Pool: "gpu", ID: i, Bytes: 100, Site: "main (m.c:2)"}); err != nil {
			t.Fatal(err)
		}
		if tr := mustRead(t, out.Bytes(), Options{}); tr.Allocs != i+1 || len(tr.Notes) > 0 {
			t.Errorf("%d of %d allocations, notes %q", tr.Allocs, i+1, tr.Notes)
		}
	}
	if err := errors.Join(w.Free(Call{Pool: "gpu", ID: 1}), w.Refuse(Call{Pool: "gpu", Bytes: 7})); err != nil {
		t.Fatal(err)
	}
	if tr := mustRead(t, out.Bytes(), Options{}); tr.Events != 5 || tr.Refused != 1 {
		t.Errorf("%d events, %d refused", tr.Events, tr.Refused)
	}
}
