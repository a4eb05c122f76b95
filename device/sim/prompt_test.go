package sim_test

import (
	"errors"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"gpumem/device"
	"gpumem/device/sim"
)

// twins are a device whose allocations are prompt and one whose are not. Both report hazards
// and refuse nothing, so that they go through the same program.
type twins struct {
	prompt, strict *sim.Device
	pool           device.Pool
	found          [2]*sim.Hazard // of the current step
}

func newTwins(t *rapid.T) *twins {
	w := &twins{}
	for i, to := range []**sim.Device{&w.prompt, &w.strict} {
		d, err := sim.New(sim.Config{Total: 1 << 30, PromptAllocs: i == 0, Report: func(h *sim.Hazard) { w.found[i] = h }})
		if err != nil {
			t.Fatal(err)
		}
		*to = d
		if w.pool, err = d.DefaultPool(); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// both does a step on both devices.
func (w *twins) both(t *rapid.T, step func(*sim.Device) error) {
	w.found = [2]*sim.Hazard{}
	if err := errors.Join(step(w.prompt), step(w.strict)); err != nil {
		t.Fatal(err)
	}
}

// works is a set of kernels, by number.
type works map[int]bool

// block is memory of a pool.
type block struct {
	device.Range
	stream int  // where it was freed
	idle   bool // it was allocated with no kernel under way
}

func (b block) overlaps(r device.Range) bool {
	return b.Addr < r.Addr+r.Bytes && r.Addr < b.Addr+b.Bytes
}

// TestPromptAllocsHideNoOtherHazard runs random programs on both devices. Blocks lie in the same
// places. A hazard that only the strict one finds is about an allocation before which no kernel
// was under way, for all that the host knew; the prompt one finds none that the other does not.
func TestPromptAllocsHideNoOtherHazard(t *testing.T) {
	hidden := 0
	check(t, func(t *rapid.T) {
		w := newTwins(t)
		const streams, events = 3, 2
		var in [streams]works // kernels in a stream, or before it
		// may is in, and what a stream may come after besides: an allocation of memory that
		// another stream freed waits for that one, as far as its last free. So the host may
		// know more than the program told it.
		var may, atFree [streams]works
		var freed []block
		for s := range in {
			in[s], may[s], atFree[s] = works{}, works{}, works{}
			if s > 0 {
				w.both(t, func(d *sim.Device) error { _, err := d.StreamCreate(); return err })
			}
		}
		var at, mayAt [events]works
		var event [events]device.Event
		for e := range event {
			at[e], mayAt[e] = works{}, works{}
			w.both(t, func(d *sim.Device) (err error) { event[e], err = d.EventCreate(); return err })
		}
		host, kernels := works{}, 0
		var live []block
		stream := func(t *rapid.T) int { return rapid.IntRange(0, streams-1).Draw(t, "stream") }
		one := func(t *rapid.T) int {
			if len(live) == 0 {
				t.Skip("nothing allocated") // rapid draws another operation
			}
			return rapid.IntRange(0, len(live)-1).Draw(t, "block")
		}
		judge := func(t *rapid.T, b block) {
			p, s := w.found[0], w.found[1]
			if p != nil && s == nil {
				t.Fatalf("only the prompt device finds %v", p)
			}
			if p == nil && s != nil {
				hidden++
				if s.Reason != sim.NotYetAllocated || !b.idle {
					t.Fatalf("the prompt device lets pass %v (idle %v)", s, b.idle)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) {},
			"alloc": func(t *rapid.T) {
				s, n := stream(t), rapid.Uint64Range(1, 8).Draw(t, "MiB")<<20
				var got []device.Range
				w.both(t, func(d *sim.Device) error {
					r, err := d.AllocAsync(w.pool, n, device.Stream(s))
					got = append(got, r)
					return err
				})
				if got[0] != got[1] {
					t.Fatalf("at %+v and %+v", got[0], got[1])
				}
				idle := true
				for k := range in[s] {
					idle = idle && host[k]
				}
				for _, b := range freed {
					if b.overlaps(got[0]) {
						maps.Copy(may[s], atFree[b.stream])
					}
				}
				live = append(live, block{Range: got[0], idle: idle})
			},
			"free": func(t *rapid.T) {
				s, i := stream(t), one(t)
				w.both(t, func(d *sim.Device) error { return d.FreeAsync(live[i].Addr, device.Stream(s)) })
				judge(t, live[i])
				freed = append(freed, block{Range: live[i].Range, stream: s})
				atFree[s] = maps.Clone(may[s])
				live = append(live[:i:i], live[i+1:]...)
			},
			"use": func(t *rapid.T) {
				s, i := stream(t), one(t)
				write := rapid.Bool().Draw(t, "write")
				ranges := [2][]device.Range{}
				ranges[b2i(write)] = []device.Range{live[i].Range}
				kernels++
				w.both(t, func(d *sim.Device) error { return d.Work(device.Stream(s), 10*us, ranges[0], ranges[1]) })
				judge(t, live[i])
				in[s][kernels], may[s][kernels] = true, true
			},
			"kernel": func(t *rapid.T) {
				s := stream(t)
				kernels++
				w.both(t, func(d *sim.Device) error { return d.Work(device.Stream(s), 10*us, nil, nil) })
				in[s][kernels], may[s][kernels] = true, true
			},
			"record": func(t *rapid.T) {
				s, e := stream(t), rapid.IntRange(0, events-1).Draw(t, "event")
				w.both(t, func(d *sim.Device) error { return d.EventRecord(event[e], device.Stream(s)) })
				at[e], mayAt[e] = maps.Clone(in[s]), maps.Clone(may[s])
			},
			"wait": func(t *rapid.T) {
				s, e := stream(t), rapid.IntRange(0, events-1).Draw(t, "event")
				w.both(t, func(d *sim.Device) error { return d.StreamWaitEvent(device.Stream(s), event[e]) })
				maps.Copy(in[s], at[e])
				maps.Copy(may[s], mayAt[e])
			},
			"synchronise": func(t *rapid.T) {
				s := stream(t)
				w.both(t, func(d *sim.Device) error { return d.StreamSynchronize(device.Stream(s)) })
				maps.Copy(host, may[s])
			},
			"synchronise event": func(t *rapid.T) {
				e := rapid.IntRange(0, events-1).Draw(t, "event")
				w.both(t, func(d *sim.Device) error { return d.EventSynchronize(event[e]) })
				maps.Copy(host, mayAt[e])
			},
		})
	})
	if hidden == 0 {
		t.Error("no program had a hazard that only the strict device finds")
	}
}
