package main

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

// own are this project's policies, in the table's order.
var own = []struct{ name, spec string }{
	{"gpumem bfc", "bfc:fraction=1"},
	{"gpumem bfc, growing", "bfc:fraction=1,preallocate=false"},
	{"gpumem elastic", "elastic"},
	{"gpumem vmm", "vmm"},
	{"gpumem async", "async"},
	{"gpumem pytorch", "pytorch@2.6.0"},
	{"gpumem pytorch, expandable", "pytorch@2.6.0:expandable_segments=True"},
	{"gpumem platform", "platform"},
}

// figures are what one allocator did on one trace. Of what was not measured they are
// nil or "".
type figures struct {
	ns       string
	refused  uint64
	calls    *uint64
	held     *float64 // mean over the events, in bytes
	smallest *uint64  // bytes
	digest   string   // of all placements
}

// failed reports whether so many requests were refused, more than one in twenty, that the
// other figures are about a different trace.
func (f figures) failed(in *input) bool { return f.refused > in.trace.Allocs/20 }

// measureOwn replays a trace under a policy, on the column's device.
func measureOwn(ctx context.Context, in *input, spec string, repeats int) (figures, error) {
	p, err := frameworks.Parse(spec)
	if err != nil {
		return figures{}, err
	}
	rep, err := replay.Run(ctx, in.trace, replay.Config{
		Policies: []policy.Policy{p}, Total: in.device, Smallest: true, Untimed: true,
		// As device.h: what is less than a grant at the device's end is left out.
		Device: func(total uint64) (device.GPU, error) {
			return sim.New(sim.Config{Total: max(total/sim.DefaultGranularity, 1) * sim.DefaultGranularity})
		},
	})
	if err != nil {
		return figures{}, err
	}
	res := rep.Results[0]
	f := figures{refused: res.Refused, calls: &res.DriverCalls, held: &res.HeldMean, smallest: res.Smallest, digest: res.Digest}
	best := math.Inf(1)
	for range repeats {
		s, err := timeOwn(ctx, in, p)
		if err != nil {
			return f, err
		}
		best = min(best, s)
	}
	f.ns = nanos(best * 1e9 / float64(len(in.events)))
	return f, nil
}

// timeOwn is the CPU time of this thread for one pass, in seconds, as replay.cc
// measures it: a fresh pool that has served one block, and frees by block. The pool's lock
// is in it. The garbage collector is not, as there is nothing for it to collect.
func timeOwn(ctx context.Context, in *input, p policy.Policy) (float64, error) {
	dev, err := sim.New(sim.Config{Total: in.device})
	if err != nil {
		return 0, err
	}
	pool, err := gpumem.Open(dev, p, gpumem.WithRetry(0), gpumem.WithStacks(false))
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	slots := in.trace.Pools[0].Slots
	blocks, live := make([]gpumem.Block, slots), make([]bool, slots)
	if b, err := pool.Alloc(ctx, 1); err == nil {
		if err := pool.Free(b); err != nil {
			return 0, err
		}
	}
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began, err := cpuSeconds()
	if err != nil {
		return 0, err
	}
	for i := range in.events {
		e := &in.events[i]
		if e.Op == trace.Free {
			if live[e.Slot] {
				if err := pool.Free(blocks[e.Slot]); err != nil {
					return 0, err
				}
				live[e.Slot] = false
			}
			continue
		}
		b, err := pool.TryAlloc(e.Bytes)
		blocks[e.Slot], live[e.Slot] = b, err == nil
	}
	ended, err := cpuSeconds()
	if err != nil {
		return 0, err
	}
	for slot, is := range live {
		if is {
			if err := pool.Free(blocks[slot]); err != nil {
				return 0, err
			}
		}
	}
	return ended - began, nil
}

func cpuSeconds() (float64, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return float64(t.Nano()) / 1e9, err
}
