package dump_test

// The recording that rebuilds a pool.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpumem/alloc"
	"gpumem/internal/test/bfcdump"
	"gpumem/record/formats"
	"gpumem/record/trace"
)

// TestTrace: a dump's trace brings a fresh pool to the same chunks, from text
// and from binary, even where blocks fill the pool to its end.
func TestTrace(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		cfg := config{Limit: 1 << 20}
		largest := rapid.Uint64Range(1, 600_000).Draw(r, "largest")
		a := fill(t, cfg, rapid.IntRange(0, 60).Draw(r, "requests"), rapid.Uint64().Draw(r, "seed"),
			func(rnd *rand.Rand) uint64 { return 1 + rnd.Uint64N(largest) })
		chunks, inUse, _ := want(a)
		if len(chunks) == 0 || inUse == 0 {
			return // nothing to rebuild
		}
		for _, text := range []string{a.Report(alloc.Request{Bytes: 1 << 30}).String(), string(bfcdump.Marshal(a))} {
			b := replayed(t, read(t, text), cfg)
			got, _, _ := want(b)
			for i := range got {
				got[i].Requested = 0
			}
			plain := append(chunks[:0:0], chunks...)
			for i := range plain {
				plain[i].Requested = 0
			}
			if diff := cmp.Diff(plain, got); diff != "" {
				r.Fatalf("(-dumped +rebuilt)\n%s", diff)
			}
		}
	})
}

// A pool gives a request all of a chunk that is less than twice as large. So a block that
// leaves little behind it must be cut off by other blocks first.
func TestTraceOfBlocksThatLeaveLittle(t *testing.T) {
	d := read(t, `Next region of size 256000
InUse at 7f0000000000 of size 153600 next 2
Free  at 7f0000025800 of size 25600 next 3
InUse at 7f000002bc00 of size 76800 next 18446744073709551615
Sum Total of in-use chunks: 225.0KiB
`)
	got, inUse, largest := want(replayed(t, d, config{Limit: 256000}))
	var sizes []uint64
	for _, c := range got {
		sizes = append(sizes, c.Size)
	}
	if diff := cmp.Diff([]uint64{153600, 25600, 76800}, sizes); diff != "" || inUse != 153600+76800 || largest != 25600 {
		t.Errorf("%d bytes in use, the largest free chunk has %d (-dumped +rebuilt)\n%s", inUse, largest, diff)
	}
}

// TestTracePartitioned: both ends keep their bytes.
func TestTracePartitioned(t *testing.T) {
	cfg := config{Limit: 1 << 24, Spatial: true}
	a := fill(t, cfg, 400, 5, small)
	chunks, _, _ := want(a)
	got, _, _ := want(replayed(t, read(t, a.Report(alloc.Request{Bytes: 1 << 30}).String()), cfg))
	for i := range chunks {
		chunks[i].Requested = 0
	}
	for i := range got {
		got[i].Requested = 0
	}
	if diff := cmp.Diff(chunks, got); diff != "" {
		t.Errorf("(-dumped +rebuilt)\n%s", diff)
	}
}

// TestTraceGrown: a pool of many regions comes out in one, with the same bytes.
func TestTraceGrown(t *testing.T) {
	a := fill(t, config{Limit: 1 << 26, Growth: true}, 8000, 7, small)
	d := read(t, a.Report(alloc.Request{Bytes: 1 << 30}).String())
	if len(d.Regions) < 2 {
		t.Fatalf("%d regions", len(d.Regions))
	}
	_, inUse, _ := want(a)
	b := replayed(t, d, config{Limit: d.Pool})
	if got := b.Stats().BytesInUse; got != inUse {
		t.Errorf("%d bytes in use, want %d", got, inUse)
	}
}

// TestTraceReads: package trace reads it.
func TestTraceReads(t *testing.T) {
	d := read(t, string(goldenFile(t, "oom_small.prealloc.log")))
	var text bytes.Buffer
	if err := d.Trace(&text); err != nil {
		t.Fatal(err)
	}
	tr, err := formats.Read(context.Background(), &text, "dump.txt", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	// Five live blocks and three holes; the fourth hole is what remains.
	if tr.Events != 8+3 {
		t.Errorf("%d events", tr.Events)
	}
	broken := errors.New("full")
	if err := d.Trace(&full{broken}); !errors.Is(err, broken) {
		t.Error(err)
	}
}

type full struct{ err error }

func (f *full) Write([]byte) (int, error) { return 0, f.err }

var _ io.Writer = (*full)(nil)
