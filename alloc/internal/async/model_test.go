package async_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"gpumem/alloc"
	"gpumem/alloc/internal/async"
	"gpumem/alloc/internal/ref"
	"gpumem/device"
	"gpumem/device/sim"
)

// TestRecord: a block of one stream that another one uses. Without Record the
// free comes too early, and the device says so.
func TestRecord(t *testing.T) {
	for _, tc := range []struct {
		name   string
		used   []uint32 // beside stream 1
		record []uint32
		calls  uint64 // of the free
		hazard bool
	}{
		{"its own", nil, nil, 1, false},
		{"its own, recorded", nil, []uint32{1}, 1, false},
		{"another, recorded", []uint32{2}, []uint32{2}, 4, false},
		{"another, recorded twice", []uint32{2}, []uint32{2, 2}, 4, false},
		{"two more", []uint32{2, 0}, []uint32{0, 2}, 6, false},
		{"another, forgotten", []uint32{2}, nil, 1, true},
		{"one of two forgotten", []uint32{2, 3}, []uint32{3}, 4, true},
		{"recorded in vain", nil, []uint32{3}, 4, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, 33*mib, async.Config{}) // room for one
			b := w.alloc(32*mib, 1)
			for _, s := range tc.used {
				w.after(s, 1)
				w.ok(w.dev.Work(w.streams[s], 1000, []device.Range{{Addr: b.Addr, Bytes: b.Size}}, nil))
			}
			for _, s := range tc.record {
				w.ok(w.a.Record(b, s))
			}
			before := w.dev.Counters().Calls
			err := w.a.Free(b)
			if n := w.dev.Counters().Calls - before; n != tc.calls {
				t.Errorf("the free made %d driver calls, want %d", n, tc.calls)
			}
			var h *sim.Hazard
			if errors.As(err, &h) != tc.hazard || (err != nil) != tc.hazard || (len(w.dev.Hazards()) > 0) != tc.hazard {
				t.Errorf("hazard: %v", err)
			}
			if tc.hazard { // the block is still live
				w.ok(w.a.Check(), w.dev.Synchronize(), w.a.Free(b))
			}
			// Whoever gets the memory next may use it at once.
			next := w.alloc(32*mib, 3)
			w.ok(w.work(next, 3))
			if next.Addr != b.Addr {
				t.Error("the memory was not used again: the case is not the one meant")
			}
		})
	}
}

// TestRecordErrors: a block that is not live is recorded nowhere.
func TestRecordErrors(t *testing.T) {
	w := newWorld(t, gib, async.Config{})
	b := w.alloc(mib, 1)
	w.ok(w.a.Record(alloc.Block{}, 2), w.a.Record(b, 2), w.a.Free(b))
	for what, got := range map[string][2]error{
		"freed":   {w.a.Record(b, 2), alloc.ErrDoubleFree},
		"foreign": {w.a.Record(alloc.Block{Addr: b.Addr, Size: mib, Ref: ref.Make(99, 1)}, 2), alloc.ErrNotAllocated},
	} {
		if !errors.Is(got[0], got[1]) {
			t.Errorf("%s: %v, want %v", what, got[0], got[1])
		}
	}
	w.ok(w.a.Close())
	if err := w.a.Record(b, 2); !errors.Is(err, alloc.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestModel runs random programs of four streams against a list of blocks. No
// two overlap, nothing is used before its time, the statistics are the list's
// and what the device says, and at the end nothing is held.
func TestModel(t *testing.T) {
	type block struct {
		alloc.Block
		bytes   uint64 // with what the alignment and the driver's rounding add
		stream  uint32
		streams []uint32 // recorded
	}
	rapid.Check(t, func(rt *rapid.T) {
		const total = 96 * mib
		n := rapid.Uint64Range(0, 2).Draw(rt, "preallocate") * 20 * mib
		w := newWorld(t, total, async.Config{
			Reserve: rapid.SampledFrom([]uint64{0, 40 * mib, total}).Draw(rt, "reserve"), Preallocate: n,
			Deterministic: rapid.Bool().Draw(rt, "deterministic"),
		})
		w.t = failer{t, rt}
		var live []block
		var want alloc.Stats
		want.BytesLimit = w.a.Stats().BytesLimit
		stream := func() uint32 { return rapid.Uint32Range(0, 3).Draw(rt, "stream") }
		which := func() int {
			if len(live) == 0 {
				rt.Skip("nothing is live")
			}
			return rapid.IntRange(0, len(live)-1).Draw(rt, "which")
		}
		rt.Repeat(map[string]func(*rapid.T){
			"alloc": func(rt *rapid.T) {
				r := alloc.Request{
					Bytes:  rapid.OneOf(rapid.Uint64Range(1, 4000), rapid.Uint64Range(1, 30*mib)).Draw(rt, "bytes"),
					Align:  rapid.SampledFrom([]uint64{0, 1, 256, 512, 4096, mib}).Draw(rt, "align"),
					Stream: stream(), Site: alloc.Site(len(live)),
				}
				b, err := w.a.Alloc(r)
				if errors.Is(err, alloc.ErrNoMemory) && !errors.Is(err, alloc.ErrNever) {
					return
				}
				w.ok(err)
				if b.Size != r.Bytes || b.Addr%max(r.Align, 256) != 0 {
					rt.Fatalf("%+v gave %v", r, b)
				}
				bytes := (r.Bytes + max(r.Align, 256) - 256 + 511) &^ 511
				live = append(live, block{b, bytes, r.Stream, nil})
				want.NumAllocs++
				want.BytesInUse += b.Size
				want.PeakBytesInUse = max(want.PeakBytesInUse, want.BytesInUse)
				want.LargestAllocSize = max(want.LargestAllocSize, b.Size)
				w.ok(w.work(b, r.Stream))
			},
			"use": func(rt *rapid.T) {
				i, s := which(), stream()
				b := &live[i]
				// It comes after all that was done with the block, and the block's
				// own stream comes after it only by Record.
				for _, other := range append([]uint32{b.stream}, b.streams...) {
					w.after(s, other)
				}
				w.ok(w.work(b.Block, s), w.a.Record(b.Block, s))
				b.streams = append(b.streams, s)
			},
			"free": func(rt *rapid.T) {
				i := which()
				b := live[i]
				if rapid.Bool().Draw(rt, "by address") {
					w.ok(w.a.FreeAddr(b.Addr))
				} else {
					w.ok(w.a.Free(b.Block))
				}
				live = slices.Delete(live, i, i+1)
				want.BytesInUse -= b.Size
				if err := w.a.Free(b.Block); !errors.Is(err, alloc.ErrDoubleFree) {
					rt.Fatalf("freed again: %v", err)
				}
			},
			"synchronise": func(rt *rapid.T) { w.ok(w.dev.StreamSynchronize(w.streams[stream()])) },
			"trim": func(rt *rapid.T) {
				before := w.held()
				n, err := w.a.Trim(rapid.Uint64Range(0, 64).Draw(rt, "MiB") * mib)
				if err != nil || before-w.held() != n {
					rt.Fatalf("Trim says %d, %v; the device got %d", n, err, before-w.held())
				}
			},
			"": func(rt *rapid.T) {
				w.ok(w.a.Check())
				s := w.a.Stats()
				_, peak := w.dev.Held()
				want.PoolBytes, want.PeakPoolBytes = w.held(), peak
				if s != want {
					rt.Fatalf("statistics %+v, want %+v", s, want)
				}
				var used uint64
				sorted := slices.SortedFunc(slices.Values(live), func(a, b block) int { return cmp.Compare(a.Addr, b.Addr) })
				end := uint64(0)
				for _, b := range sorted {
					if b.Addr < end {
						rt.Fatalf("%v begins inside another", b.Block)
					}
					end = b.Addr + b.Size
					used += b.bytes
				}
				if got := w.attribute(device.PoolUsedCurrent); got != used {
					rt.Fatalf("the driver says %d in use, the blocks are %d", got, used)
				}
				i := 0
				w.a.Walk(func(c alloc.Chunk) bool {
					if b := sorted[i]; c.Addr != b.Addr || c.Size != b.Size || c.Requested != b.Size || !c.Live || c.Stream != b.stream || c.Region != i {
						rt.Fatalf("walk: %+v, want %v of stream %d", c, b.Block, b.stream)
					}
					i++
					return i < len(sorted)
				})
				if h := w.dev.Hazards(); len(h) > 0 {
					rt.Fatal(h[0])
				}
			},
		})
		w.ok(w.a.Close())
		if h := w.dev.Hazards(); len(h) > 0 || w.held() != 0 || w.attribute(device.PoolReleaseThreshold) != 0 {
			rt.Fatalf("%d bytes are held after Close, %v", w.held(), h)
		}
	})
}

// failer tells rapid of failures, so that it looks for a smaller program.
type failer struct {
	testing.TB
	rt *rapid.T
}

func (f failer) Helper()           {}
func (f failer) Fatal(args ...any) { f.rt.Fatal(args...) }

// TestFaults: each driver call of a program in turn fails once, in three ways.
// The call that met it says so and has done nothing, its repetition succeeds,
// and at the end nothing is held and the pool is as it was found.
func TestFaults(t *testing.T) {
	program := func(t *testing.T, fault func(*sim.Device)) (calls uint64) {
		w := newWorld(t, 256*mib, async.Config{Reserve: 64 * mib, Preallocate: 64 * mib, Deterministic: true})
		fault(w.dev)
		failed := 0
		// try makes a call until it succeeds.
		try := func(call func() error) {
			t.Helper()
			err := call()
			if err == nil {
				return
			}
			failed++
			w.ok(w.a.Check())
			if failed > 1 {
				t.Fatalf("a second failure: %v", err)
			}
			if err := call(); err != nil {
				t.Fatalf("the second attempt: %v", err)
			}
		}
		var live []alloc.Block
		for i := range uint32(8) {
			s := i % 4
			var b alloc.Block
			try(func() (err error) { b, err = w.a.Alloc(alloc.Request{Bytes: uint64(i+1) * 4 * mib, Stream: s}); return })
			live = append(live, b)
			if i%2 == 1 {
				w.ok(w.a.Record(b, (s+1)%4))
			}
			if i%3 == 2 {
				try(func() error { return w.a.Free(live[0]) })
				live = live[1:]
			}
			if i == 5 {
				try(func() error { _, err := w.a.Trim(0); return err })
			}
		}
		var sum uint64
		for _, b := range live {
			sum += b.Size
		}
		if s := w.a.Stats(); s.BytesInUse != sum || s.NumAllocs != 8 {
			t.Fatalf("%+v; want %d in use", s, sum)
		}
		err := w.a.Close()
		calls = w.dev.Counters().Calls
		w.dev.SetFaults(sim.Faults{})
		if err == nil && (w.held() != 0 || w.attribute(device.PoolReleaseThreshold) != 0 || w.attribute(device.PoolReuseAllowOpportunistic) != 1) {
			t.Fatalf("Close says nothing; %d held", w.held())
		}
		if s := w.a.Stats(); s.PoolBytes != w.held() || s.BytesInUse != 0 {
			t.Fatalf("after Close: %+v; %d held", s, w.held())
		}
		return calls
	}
	calls := program(t, func(*sim.Device) {})
	for n := uint64(1); n <= calls; n++ {
		for _, err := range []error{device.ErrOutOfMemory, device.ErrInvalidValue, device.ErrNotPermitted} {
			t.Run(fmt.Sprintf("call %d/%.30s", n, err), func(t *testing.T) {
				program(t, func(d *sim.Device) { d.SetFaults(sim.Faults{FailAt: n, Err: err}) })
			})
		}
	}
}
