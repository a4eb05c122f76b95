package streams_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/internal/bfc"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/device/sim"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// world is a pool on a device with four streams, numbers 0 to 3, and a guard.
type world struct {
	t       testing.TB
	dev     *sim.Device
	pool    alloc.Allocator
	guard   *streams.Guard // nil: without
	tracker *streams.Tracker
	streams [4]device.Stream
}

func newWorld(t testing.TB, guarded bool) *world {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: 64 * mib})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dev: dev}
	for i := 1; i < len(w.streams); i++ {
		if w.streams[i], err = dev.StreamCreate(); err != nil {
			t.Fatal(err)
		}
	}
	if w.pool, err = bfc.New(dev, bfc.Config{Limit: 16 * mib}); err != nil {
		t.Fatal(err)
	}
	if guarded {
		w.tracker = streams.Of(dev, func(n uint32) (device.Stream, error) { return w.streams[n], nil })
		w.guard = streams.NewGuard(w.tracker)
	}
	return w
}

func (w *world) alloc(n uint64, stream uint32) alloc.Block {
	w.t.Helper()
	b, err := w.pool.Alloc(alloc.Request{Bytes: n, Stream: stream})
	if err == nil && w.guard != nil {
		err = w.guard.Alloc(b, stream)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

func (w *world) free(b alloc.Block) error {
	if w.guard == nil {
		return w.pool.Free(b)
	}
	return w.guard.Free(b, func() error { return w.pool.Free(b) })
}

// work is a kernel that writes the block for long.
func (w *world) work(b alloc.Block, stream uint32) error {
	return w.dev.Work(w.streams[stream], time.Millisecond, nil, []device.Range{{Addr: b.Addr, Bytes: b.Size}})
}

// TestCases: who has to wait for whom. Each case uses one block, frees it, and
// works on the next one at the same address.
func TestCases(t *testing.T) {
	for _, tc := range []struct {
		name   string
		own    uint32
		also   []uint32
		next   uint32
		unsafe bool // without the guard this is a hazard
	}{
		{"the same stream", 1, nil, 1, false},
		{"another stream", 1, nil, 2, true},
		{"to the zero stream", 1, nil, 0, true},
		{"from the zero stream", 0, nil, 3, true},
		{"used in a second stream, back to the first", 1, []uint32{2}, 1, true},
		{"used in a second stream, on to that", 1, []uint32{2}, 2, false}, /* which had waited for the first */
		{"used in two more, on to a fourth", 1, []uint32{2, 3}, 0, true},
		{"used twice in a second stream", 1, []uint32{2, 2}, 1, true},
		{"used in its own stream", 1, []uint32{1}, 1, false},
	} {
		for _, guarded := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, guarded %v", tc.name, guarded), func(t *testing.T) {
				w := newWorld(t, guarded)
				b := w.alloc(mib, tc.own)
				if err := w.work(b, tc.own); err != nil {
					t.Fatal(err)
				}
				for _, s := range tc.also {
					// The program itself orders its uses of a live block.
					e, _ := w.dev.EventCreate()
					_ = w.dev.EventRecord(e, w.streams[tc.own])
					_ = w.dev.StreamWaitEvent(w.streams[s], e)
					if w.guard != nil {
						if err := w.guard.Use(b, s); err != nil {
							t.Fatal(err)
						}
					}
					read := []device.Range{{Addr: b.Addr, Bytes: b.Size}}
					if err := w.dev.Work(w.streams[s], time.Millisecond, read, nil); err != nil {
						t.Fatal(err)
					}
				}
				if err := w.free(b); err != nil {
					t.Fatal(err)
				}
				next := w.alloc(mib, tc.next)
				if next.Addr != b.Addr {
					t.Fatalf("the next block is at %#x and not at %#x: the case is not the one meant", next.Addr, b.Addr)
				}
				err := w.work(next, tc.next)
				var h *sim.Hazard
				if want := tc.unsafe && !guarded; errors.As(err, &h) != want {
					t.Errorf("hazard %v, want %v: %v", !want, want, err)
				}
			})
		}
	}
}

// TestOneStream: a program of one stream pays nothing.
func TestOneStream(t *testing.T) {
	w := newWorld(t, true)
	first := w.alloc(mib, 2)
	calls := w.dev.Counters().Calls
	for range 100 {
		b := w.alloc(mib, 2)
		if err := w.free(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.free(first); err != nil {
		t.Fatal(err)
	}
	if c := w.dev.Counters().Calls; c != calls {
		t.Errorf("%d driver calls for one stream", c-calls)
	}
	if !w.guard.Idle(2) || w.guard.Idle(1) || w.guard.Several() {
		t.Error("the guard does not know that there is one stream")
	}
}

// random runs a random program; it returns where each block lay.
func (w *world) random(seed uint64, steps int) (placed []uint64, hazards int) {
	r := rand.New(rand.NewPCG(seed, 3))
	type held struct {
		b      alloc.Block
		stream uint32
	}
	var live []held
	work := func(b alloc.Block, s uint32) {
		var h *sim.Hazard
		if err := w.work(b, s); errors.As(err, &h) {
			hazards++
		} else if err != nil {
			w.t.Fatal(err)
		}
	}
	for range steps {
		switch {
		case len(live) < 20 && r.IntN(2) == 0:
			s := uint32(r.IntN(4))
			b := w.alloc(1+r.Uint64N(400*kib), s)
			placed = append(placed, b.Addr)
			work(b, s)
			live = append(live, held{b, s})
		case len(live) > 0:
			i := r.IntN(len(live))
			h := live[i]
			if s := uint32(r.IntN(4)); s != h.stream && r.IntN(3) == 0 {
				e, _ := w.dev.EventCreate()
				_ = w.dev.EventRecord(e, w.streams[h.stream])
				_ = w.dev.StreamWaitEvent(w.streams[s], e)
				if w.guard != nil {
					if err := w.guard.Use(h.b, s); err != nil {
						w.t.Fatal(err)
					}
				}
				work(h.b, s)
			}
			if err := w.free(h.b); err != nil {
				w.t.Fatal(err)
			}
			live = slices.Delete(live, i, i+1)
		}
		if r.IntN(200) == 0 {
			_ = w.dev.Synchronize()
		}
	}
	for _, h := range live {
		if err := w.free(h.b); err != nil {
			w.t.Fatal(err)
		}
	}
	return placed, hazards
}

// TestRandom: with the guard no hazard, without it many, and the same placements
// either way and every time.
func TestRandom(t *testing.T) {
	for seed := range uint64(6) {
		guarded, again, bare := newWorld(t, true), newWorld(t, true), newWorld(t, false)
		placed, found := guarded.random(seed, 3000)
		placedAgain, _ := again.random(seed, 3000)
		placedBare, foundBare := bare.random(seed, 3000)
		if found != 0 {
			t.Errorf("seed %d: %d hazards: %v", seed, found, guarded.dev.Hazards()[0])
		}
		if foundBare == 0 {
			t.Errorf("seed %d: the program is safe without a guard", seed)
		}
		if !slices.Equal(placed, placedBare) || !slices.Equal(placed, placedAgain) {
			t.Errorf("seed %d: blocks lie elsewhere", seed)
		}
		if a, b := guarded.dev.Counters(), again.dev.Counters(); a != b {
			t.Errorf("seed %d: driver calls differ from run to run: %+v, %+v", seed, a, b)
		}
		guarded.guard.Close()
		if err := guarded.tracker.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFaults: a driver call that fails at any place leaves block and guard as
// they were, and the program goes on safely.
func TestFaults(t *testing.T) {
	program := func(w *world) (calls uint64) {
		try := func(f func() error) {
			if f() != nil {
				if err := f(); err != nil { // the fault was for one call
					w.t.Fatal(err)
				}
			}
		}
		for i := range uint32(12) {
			s := i % 4
			b, err := w.pool.Alloc(alloc.Request{Bytes: mib, Stream: s})
			if err != nil {
				return w.dev.Counters().Calls // the pool's own
			}
			try(func() error { return w.guard.Alloc(b, s) })
			try(func() error { return w.work(b, s) })
			if i%3 == 0 {
				try(func() error { return w.guard.Use(b, (s+1)%4) })
			}
			try(func() error { return w.free(b) })
		}
		calls = w.dev.Counters().Calls
		if found := w.dev.Hazards(); len(found) > 0 {
			w.t.Fatal(found[0])
		}
		return calls
	}
	calls := program(newWorld(t, true))
	for n := uint64(1); n <= calls; n++ {
		w := newWorld(t, true)
		w.dev.SetFaults(sim.Faults{FailAt: n, Err: device.ErrInvalidValue})
		program(w)
	}
}

// TestReleaseFails: a block that its allocator does not take back is still used
// where it was.
func TestReleaseFails(t *testing.T) {
	w := newWorld(t, true)
	other := w.alloc(mib, 2)
	b := w.alloc(mib, 1)
	no := errors.New("no")
	if err := w.guard.Free(b, func() error { return no }); err != no {
		t.Fatal(err)
	}
	if err := w.work(b, 1); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.free(b), w.free(other)); err != nil {
		t.Fatal(err)
	}
	if next := w.alloc(mib, 0); next.Addr != other.Addr && next.Addr != b.Addr {
		t.Fatal("the case is not the one meant")
	} else if err := w.work(next, 0); err != nil {
		t.Error(err)
	}
}

// TestEventsAreReused: events do not pile up, also where the program never waits.
func TestEventsAreReused(t *testing.T) {
	w := newWorld(t, true)
	for i := range 20_000 {
		s := uint32(i % 4)
		b := w.alloc(uint64(1+i%97)*4*kib, s)
		if err := errors.Join(w.work(b, s), w.free(b)); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.tracker.Events(); n > 1000 {
		t.Errorf("%d events for 20,000 blocks of which none lives", n)
	}
}

func Example() {
	dev, _ := sim.New(sim.Config{Total: 64 << 20})
	compute, _ := dev.StreamCreate()
	copies, _ := dev.StreamCreate()
	pool, _ := bfc.New(dev, bfc.Config{Limit: 16 << 20})
	tracker := streams.New(dev)
	guard := streams.NewGuard(tracker)
	first, second := tracker.Number(compute), tracker.Number(copies)

	// A block of the compute stream is freed while a kernel still works on it.
	a, _ := pool.Alloc(alloc.Request{Bytes: 1 << 20, Stream: first})
	fmt.Println(guard.Alloc(a, first))
	fmt.Println(dev.Work(compute, time.Second, nil, []device.Range{{Addr: a.Addr, Bytes: a.Size}}))
	fmt.Println(guard.Free(a, func() error { return pool.Free(a) }))
	// The copying stream gets the same memory, and waits for the kernel.
	b, _ := pool.Alloc(alloc.Request{Bytes: 1 << 20, Stream: second})
	fmt.Println(guard.Alloc(b, second), b.Addr == a.Addr)
	fmt.Println(dev.FillAsync(b.Addr, b.Size, 0, copies))
	// Output:
	// <nil>
	// <nil>
	// <nil>
	// <nil> true
	// <nil>
}

// TestAllocEndsTheNotesOfItsMemory: the new owner is ordered after the old one, so that
// the event of that free can be used again at the next, while the block is still live.
func TestAllocEndsTheNotesOfItsMemory(t *testing.T) {
	w := newWorld(t, true)
	a, b := w.alloc(4*kib, 1), w.alloc(8*kib, 2)
	events := func(want int) {
		t.Helper()
		if n := w.tracker.Events(); n != want {
			t.Errorf("%d events, want %d", n, want)
		}
	}
	events(1) // after what was freed while there was one stream
	if err := w.free(a); err != nil {
		t.Fatal(err)
	}
	events(2)
	if again := w.alloc(4*kib, 2); again.Addr != a.Addr {
		t.Fatal("the block lies elsewhere")
	}
	if err := w.free(b); err != nil {
		t.Fatal(err)
	}
	events(2)
}
