package replay

// The event loop, which is the same for every pass, and the hooks that observe it.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/device"
	"gpumem/policy"
	"gpumem/record/internal/tape"
	"gpumem/record/trace"
)

// A Hook observes a pass. Its functions may be nil, and a pass without Event
// functions does nothing for an event but allocate and free. An error ends the
// replay.
type Hook struct {
	// Event is called after each event with the block that was allocated or freed,
	// the zero block if the request was refused or is of 0 bytes. The block of a
	// request that the recorded program was refused is freed after the call.
	Event func(e *trace.Event, b alloc.Block) error
	// Refused is called when a request is refused, before Event. Where several processes share
	// the GPU and one has no room for its context, that is a request for its bytes.
	Refused func(e *trace.Event) error
	// End is called after the last event, before the pool is trimmed and closed.
	End func() error
}

// A Pass is one run of a policy over the events of a pool, on a new device. Hooks
// read it and change nothing. The figures are those after the current event, and
// up to date only while a hook has an Event function.
type Pass struct {
	Trace     *trace.Trace
	Pool      *trace.Pool
	Policy    policy.Policy
	Device    device.GPU
	Allocator alloc.Allocator

	Event   uint64 // number of the current event, from 1, the pool's seeds included
	Used    uint64 // bytes in use, in whole blocks
	Blocks  int    // live blocks, those of 0 bytes left out
	Held    uint64 // bytes held from the device
	Refused uint64 // requests refused so far
	Calls   uint64 // driver calls of the policy so far
	Called  bool   // the current event called the driver

	asked    device.Counters // the cost of questions, which is not the policy's
	hooks    []Hook
	recorded *recorded // nil if the policy is not that of the recorded program

	card    device.GPU // as it was opened
	only    *part      // the only process; nil of a joined recording, whose Allocator and Device are those of the event
	parts   []*part
	current *part // of a joined recording: that of the latest event
	log     func(alloc.Message)
	peak    uint64 // of Held
	most    uint64 // of Used
}

// device opens a device for a pass. Under the settings of the recorded program it gives memory
// where that had it, which is what the second result is for; nil otherwise.
func (r *runner) device(total uint64) (device.GPU, *recorded, error) {
	dev, err := r.cfg.Device(total)
	if err != nil || r.pool.Segments() == nil || !isAsRecorded(r.trace, r.policy) {
		return dev, nil, err
	}
	if rec := newRecorded(dev, r.pool); rec != nil {
		return rec, rec, nil
	}
	return dev, nil, nil
}

// newPass opens the policy's allocator on the device; close closes both. Of a joined recording
// it opens none: each process has its own, from its begin on.
func (r *runner) newPass(dev device.GPU, rec *recorded, log func(alloc.Message)) (*Pass, error) {
	p := &Pass{Trace: r.trace, Pool: r.pool, Policy: r.policy, Device: dev, card: dev, recorded: rec, log: log}
	for _, x := range tape.Parts(r.pool) {
		p.parts = append(p.parts, &part{first: x.Stream, streams: x.Streams, used: map[uint64]bool{}})
	}
	if p.parts != nil {
		return p, nil
	}
	a, err := build.New(dev, r.policy, build.Options{Log: log})
	if err != nil {
		_ = dev.Close()
		return nil, err
	}
	p.Allocator, p.Calls = a, dev.Counters().Calls // opening may have asked what is free
	p.only = &part{allocator: a, device: dev, used: map[uint64]bool{}}
	p.parts = []*part{p.only}
	return p, nil
}

// close closes the allocators and the device. Errors do not change what was found.
func (p *Pass) close() {
	for _, a := range p.parts {
		a.finish()
	}
	_ = p.card.Close()
}

// counters returns those of all processes.
func (p *Pass) counters() device.Counters {
	if p.only != nil {
		return p.card.Counters()
	}
	var sum device.Counters
	for _, a := range p.parts {
		if a.device != nil {
			c := a.device.Counters()
			sum.Calls += c.Calls
			sum.Time += c.Time
		}
	}
	return sum
}

// ask calls f, whose driver calls then do not count as the policy's.
func (p *Pass) ask(f func()) {
	before := p.counters()
	f()
	after := p.counters()
	p.asked.Calls += after.Calls - before.Calls
	p.asked.Time += after.Time - before.Time
}

// Stats returns the allocator's statistics, without a driver call that counts. Of a joined
// recording they are those of the process of the event, with what all hold together.
func (p *Pass) Stats() (s alloc.Stats) {
	p.ask(func() {
		if p.Allocator != nil { // else no process has begun
			s = p.Allocator.Stats()
		}
		if p.only == nil {
			s.PoolBytes = p.pooled()
			s.PeakPoolBytes, s.PeakBytesInUse = max(p.peak, s.PoolBytes), p.most
		}
	})
	return s
}

// driver returns what the policy has cost at the driver so far.
func (p *Pass) driver() device.Counters {
	c := p.counters()
	c.Calls -= p.asked.Calls
	c.Time -= p.asked.Time
	return c
}

// request returns an event's request, as a process makes it whose first stream is that.
func request(e *trace.Event, first uint32) alloc.Request {
	req := alloc.Request{Bytes: e.Bytes, Stream: e.Stream - first, Site: alloc.Site(e.Site)}
	if e.Upper {
		req.End = alloc.Upper
	}
	return req
}

// started is when the program began, more or less.
var started = time.Now()

func wallTime() time.Duration { return time.Since(started) }

// run runs every event and returns the time in the loop, which is the allocator's
// if no hook is set. The clock is read once a batch, never once an event. On a simulated
// device it is the thread's CPU time, since all there is to wait for is other programs
// and passes on the same core.
func (p *Pass) run(ctx context.Context, progress func(part float64)) (took time.Duration, err error) {
	clock := wallTime
	if p.card.Info().Simulated {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		clock = cpuTime
	}
	observed := slices.ContainsFunc(p.hooks, func(h Hook) bool { return h.Event != nil })
	seeds, err := p.restore()
	if err != nil {
		return 0, err
	}
	acts := p.acts()
	blocks := make([]alloc.Block, p.Pool.Slots)
	var done uint64
	err = p.Pool.Batches(ctx, progress, func(events []trace.Event) error {
		start := clock()
		for i := range events {
			e := &events[i]
			n := done + uint64(i) + 1
			var b alloc.Block
			var err error
			if acts.before(n) {
				if err := p.act(&acts, n, observed); err != nil {
					return fmt.Errorf("event %d: %w", n, err)
				}
			}
			of := p.only
			if of == nil {
				if of, err = p.partOf(e); err == nil && of.allocator == nil {
					blocks[e.Slot] = alloc.Block{}
					if err = p.refuseAll(n, e, observed); err == nil {
						continue
					}
				}
				if err != nil {
					return fmt.Errorf("event %d: %w", n, err)
				}
			}
			if e.Op == trace.Free {
				b = blocks[e.Slot]
				err = of.allocator.Free(b)
			} else {
				if n <= uint64(len(seeds)) {
					b, err = seeds[n-1].place(request(e, of.first))
				} else {
					b, err = of.allocator.Alloc(request(e, of.first))
				}
				// The comparison first, for a refusal is part of what is timed.
				if err != nil && (err == alloc.ErrNoMemory || errors.Is(err, alloc.ErrNoMemory)) {
					err = p.refuse(n, e)
				}
				blocks[e.Slot] = b // after a refusal the zero block, whose free does nothing
			}
			if err == nil && observed {
				err = p.observe(n, e, b)
			}
			if err == nil && e.Refused {
				err = p.drop(of, b, observed)
				blocks[e.Slot] = alloc.Block{}
			}
			if err != nil {
				return fmt.Errorf("event %d: %w", n, err)
			}
		}
		took += clock() - start
		done += uint64(len(events))
		return nil
	})
	if err == nil {
		err = p.act(&acts, math.MaxUint64, observed)
	}
	for _, h := range p.hooks {
		if err == nil && h.End != nil {
			err = h.End()
		}
	}
	return took, err
}

// refuse counts a refusal.
func (p *Pass) refuse(n uint64, e *trace.Event) error {
	p.Event = n
	p.Refused++
	for _, h := range p.hooks {
		if h.Refused == nil {
			continue
		}
		if err := h.Refused(e); err != nil {
			return err
		}
	}
	return nil
}

// observe brings the figures up to date and calls the hooks.
func (p *Pass) observe(n uint64, e *trace.Event, b alloc.Block) error {
	p.Event = n
	if !b.IsZero() {
		if e.Op == trace.Free {
			p.Used -= b.Size
			p.Blocks--
		} else {
			p.Used += b.Size
			p.most = max(p.most, p.Used)
			p.Blocks++
		}
	}
	p.lookAtDriver()
	for _, h := range p.hooks {
		if h.Event == nil {
			continue
		}
		if err := h.Event(e, b); err != nil {
			return err
		}
	}
	return nil
}

// drop frees the block of a request that the recorded program was refused.
func (p *Pass) drop(of *part, b alloc.Block, observed bool) error {
	err := of.allocator.Free(b)
	if observed && !b.IsZero() {
		p.Used -= b.Size
		p.Blocks--
		p.lookAtDriver()
	}
	return err
}

// trim empties the pool, at the program's cost.
func (p *Pass) trim(a *part, observed bool) error {
	_, err := a.allocator.Trim(0)
	if observed {
		p.lookAtDriver()
	}
	return err
}

// lookAtDriver reads what is held, which changes only when the driver is called.
func (p *Pass) lookAtDriver() {
	calls := p.driver().Calls
	if p.Called = calls != p.Calls; p.Called {
		p.Calls = calls
		p.Held = p.Stats().PoolBytes
		p.peak = max(p.peak, p.Held)
	}
}
