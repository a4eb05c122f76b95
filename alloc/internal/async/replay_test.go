package async_test

import (
	"errors"
	"testing"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/internal/async"
	"gpumem/alloc/internal/bfc"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/internal/invariants"
	"gpumem/internal/test/golden"
)

func trace(t testing.TB, name string) []golden.Op {
	t.Helper()
	ops, err := golden.Trace(name)
	if err != nil {
		t.Fatal(err)
	}
	return ops
}

// run replays a trace, which may end with live blocks, and says which event was
// refused first; -1: none.
func run(t testing.TB, a alloc.Allocator, ops []golden.Op) (refused int) {
	t.Helper()
	refused = -1
	blocks := map[int32]alloc.Block{}
	for i, op := range ops {
		if op.Free {
			if err := a.Free(blocks[op.Block]); err != nil {
				t.Fatal(err)
			}
			continue
		}
		b, err := a.Alloc(alloc.Request{Bytes: op.Bytes})
		if err != nil && !errors.Is(err, alloc.ErrNoMemory) {
			t.Fatal(err)
		}
		if err != nil && refused < 0 {
			refused = i
		}
		blocks[op.Block] = b
	}
	return refused
}

// TestFirstStepIsSlow: the same step five times, with a synchronise after each,
// as training loops do that look at their loss. A pool that keeps its memory
// grows in the first step alone; one that keeps nothing grows in every one.
func TestFirstStepIsSlow(t *testing.T) {
	step := trace(t, "peers/minimalloc_A") // 154 blocks, 1 GiB, all freed
	for _, tc := range []struct {
		name     string
		cfg      async.Config
		sync     bool
		everyone bool // all steps are slow
	}{
		{"kept", async.Config{Reserve: 2 * gib}, true, false},
		{"preallocated", async.Config{Reserve: 2 * gib, Preallocate: 2 * gib}, true, false},
		{"nothing kept", async.Config{}, true, true},
		{"nothing kept, never synchronised", async.Config{}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, 4*gib, tc.cfg)
			var took []time.Duration
			for range 5 {
				before := w.dev.Counters().Time
				run(t, w.a, step)
				if tc.sync {
					w.ok(w.dev.StreamSynchronize(0))
				}
				took = append(took, w.dev.Counters().Time-before)
			}
			t.Log(took)
			for _, later := range took[1:] {
				if slow := later > took[0]/2; slow != tc.everyone {
					t.Errorf("a later step took %v, the first %v", later, took[0])
				}
			}
			if nothing := w.held() == 0; nothing != tc.everyone {
				t.Errorf("%d MiB are held at the end", w.held()/mib)
			}
			if _, err := w.a.Trim(0); err != nil || w.held() != 0 {
				t.Errorf("%d MiB are held after a trim, %v", w.held()/mib, err)
			}
		})
	}
}

// TestBreaksElsewhere: where memory is short the pool fragments in another way
// than bfc on the same device, and something else is refused first: sooner in
// one program, later in another.
func TestBreaksElsewhere(t *testing.T) {
	for _, tc := range []struct {
		trace        string
		total        uint64 // MiB
		ours, theirs int    // event first refused
	}{
		{"bfc/tiny", 24, 4869, 4752},
		{"peers/minimalloc_D", 982, 91, 114},
	} {
		t.Run(tc.trace, func(t *testing.T) {
			ops := trace(t, tc.trace)
			w := newWorld(t, tc.total*mib, async.Config{})
			dev, err := sim.New(sim.Config{Total: tc.total * mib})
			w.ok(err)
			pool, err := bfc.New(dev, bfc.Config{Limit: tc.total * mib})
			w.ok(err)
			if ours, theirs := run(t, w.a, ops), run(t, pool, ops); ours != tc.ours || theirs != tc.theirs {
				t.Errorf("first refused: event %d by the driver's pool, %d by bfc; want %d and %d", ours, theirs, tc.ours, tc.theirs)
			}
			w.ok(w.a.Check())
			if s := w.a.Stats(); s.PoolBytes != w.held() {
				t.Errorf("%+v; %d held", s, w.held())
			}
		})
	}
}

// quiet is a driver that takes no garbage, to see what the allocator's own side
// takes.
type quiet struct {
	*sim.Device
	next uint64
}

func (q *quiet) AllocAsync(_ device.Pool, bytes uint64, _ device.Stream) (device.Range, error) {
	q.next += 1 << 20
	return device.Range{Addr: q.next, Bytes: bytes}, nil
}
func (q *quiet) FreeAsync(uint64, device.Stream) error             { return nil }
func (q *quiet) EventRecord(device.Event, device.Stream) error     { return nil }
func (q *quiet) StreamWaitEvent(device.Stream, device.Event) error { return nil }

func newQuiet(t testing.TB) *async.Allocator {
	dev, err := sim.New(sim.Config{Total: gib})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := dev.StreamCreate(); err != nil {
			t.Fatal(err)
		}
	}
	a, err := async.New(&quiet{Device: dev}, async.Config{Streams: streams.Of(dev, func(n uint32) (device.Stream, error) { return device.Stream(n), nil })})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestNoGarbage: in the steady state the allocator's side of an operation
// allocates nothing on the Go heap. The simulated device's does, and with Record
// the list of streams.
func TestNoGarbage(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the checks of an invariants build allocate")
	}
	a := newQuiet(t)
	var blocks [64]alloc.Block
	turn := func() {
		for i := range blocks {
			var err error
			if blocks[i], err = a.Alloc(alloc.Request{Bytes: uint64(i*i*50 + 1), Stream: uint32(i % 4)}); err != nil {
				t.Fatal(err)
			}
		}
		for _, b := range blocks {
			_ = a.Free(b)
		}
	}
	turn()
	if n := testing.AllocsPerRun(100, turn); n != 0 {
		t.Errorf("%v allocations on the Go heap for %d operations", n, 2*len(blocks))
	}
}

// BenchmarkOwnSide is one Alloc and one Free without the device's part.
func BenchmarkOwnSide(b *testing.B) {
	a := newQuiet(b)
	for b.Loop() {
		blk, err := a.Alloc(alloc.Request{Bytes: 1000})
		if err != nil {
			b.Fatal(err)
		}
		if err := a.Free(blk); err != nil {
			b.Fatal(err)
		}
	}
}
