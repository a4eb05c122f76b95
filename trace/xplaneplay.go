package trace

// This file is for turning the memory events of an xplane into a recording that
// can be replayed.
//
// A profile covers a part of a run, so its pools held blocks before the first
// event. What of them is known is seeded, as Alloc events at the front:
//
//   - blocks that the events free and did not allocate, in the order of their
//     addresses. Their size is in the free. A TPU's free has none; there it is
//     the step that the pool's bytes_allocated makes with it.
//   - what bytes_allocated was before the first event beyond those: blocks that
//     outlive the recording, such as a model's weights. How many they are is not
//     known, so they are one block. Without it a replay would show a run that
//     needs less than it did.
//
// bytes_allocated is also how to tell that the profile is whole: from event to
// event of a pool it moves by the size of the event's block.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// xplanePlay is all pools of one profile.
type xplanePlay struct {
	b         *builder
	pools     []*xplanePool
	byName    map[string]uint32
	noAddress int // events that cannot be used
}

// xplanePool is one pool while its events are walked: first to find the seeds,
// then to play them.
type xplanePool struct {
	name string
	out  *poolBuilder

	held   uint64 // bytes_allocated after the last event
	isHeld bool   // it is known

	// The first walk.
	started bool
	before  uint64              // bytes_allocated before the first event
	touched map[uint64]struct{} // addresses of all events so far
	seeds   []xplaneSeed
	rest    uint64 // bytes held before the recording beyond the seeds
	stepped int    // seeds whose size is a step of bytes_allocated
	noSize  int    // seeds and allocations without a size

	// The second walk.
	live    map[uint64]xplaneBlock // by address
	steps   int                    // of bytes_allocated that could be checked
	wrong   int                    // that were not the block's size
	again   int                    // allocations at an address that is live
	dropped int                    // frees of blocks that are not live
}

type xplaneSeed struct {
	addr, size, allocated uint64
}

type xplaneBlock struct {
	allocated uint64
	slot      uint32
	sized     bool // allocated is known
}

// pool returns the number of a pool; false if there are too many.
func (p *xplanePlay) pool(name string) (uint32, bool) {
	n, ok := p.byName[name]
	if ok || len(p.pools) == maxDevices {
		return n, ok
	}
	if p.byName == nil {
		p.byName = make(map[string]uint32)
	}
	n = uint32(len(p.pools))
	p.byName[name] = n
	p.pools = append(p.pools, &xplanePool{
		name:    name,
		touched: make(map[uint64]struct{}),
		live:    make(map[uint64]xplaneBlock),
	})
	return n, true
}

// run makes the recording.
func (p *xplanePlay) run(ctx context.Context, events *memEvents) error {
	n := 0
	alive := func() error {
		if n++; n%4096 == 0 && ctx.Err() != nil {
			return stopped(ctx, p.b.trace.Source)
		}
		return nil
	}
	if err := events.each(func(e *memEvent) error {
		p.pools[e.pool].look(e)
		return alive()
	}); err != nil {
		return err
	}
	sorted := slices.Clone(p.pools)
	// GPU_2_bfc before GPU_10_bfc.
	slices.SortFunc(sorted, func(x, y *xplanePool) int {
		return cmp.Or(cmp.Compare(len(x.name), len(y.name)), cmp.Compare(x.name, y.name))
	})
	for _, pool := range sorted {
		pool.out = p.b.pool(printable(pool.name))
	}
	seeded := false
	if err := events.each(func(e *memEvent) error {
		p.b.at(e.ns)
		if !seeded {
			seeded = true
			for _, pool := range sorted {
				if err := pool.seed(p.b.sites); err != nil {
					return err
				}
			}
		}
		if err := p.pools[e.pool].event(e); err != nil {
			return err
		}
		return alive()
	}); err != nil {
		return err
	}
	for _, pool := range sorted {
		pool.notes(p.b, len(sorted) > 1)
	}
	if n := p.noAddress; n > 0 {
		p.b.note(fmt.Sprintf("%s without an address; skipped", count(n, "event")))
	}
	return nil
}

// look is the first walk: which blocks are older than the recording?
func (p *xplanePool) look(e *memEvent) {
	size, sized := e.size()
	if !p.started {
		p.started = true
		p.before, p.isHeld = e.held+e.allocated, e.has&hasHeld != 0
		if e.op == Alloc {
			p.before = e.held - min(e.held, e.allocated)
		}
		p.held = p.before
	}
	if _, ok := p.touched[e.addr]; !ok {
		p.touched[e.addr] = struct{}{}
		if e.op == Free {
			s := xplaneSeed{addr: e.addr, size: size, allocated: e.allocated}
			if !sized && p.isHeld && e.has&hasHeld != 0 && e.held < p.held {
				s.size = p.held - e.held
				sized = true
				p.stepped++
			}
			s.allocated = max(s.allocated, s.size)
			p.seeds = append(p.seeds, s)
			if !sized {
				p.noSize++
			}
		}
	}
	if e.op == Alloc && !sized {
		p.noSize++
	}
	p.held, p.isHeld = e.held, e.has&hasHeld != 0
}

// seed allocates what is older than the recording.
func (p *xplanePool) seed(sites *siteMaker) error {
	var known sum
	for _, s := range p.seeds {
		known.add(s.allocated)
	}
	if k := known.cap(); k < p.before {
		p.rest = p.before - k
		if _, err := p.out.alloc(p.rest, sites.named([]byte("held since before the recording")), 0, false); err != nil {
			return err
		}
	}
	slices.SortFunc(p.seeds, func(x, y xplaneSeed) int { return cmp.Compare(x.addr, y.addr) })
	for _, s := range p.seeds {
		slot, err := p.out.alloc(s.size, 0, 0, false)
		if err != nil {
			return err
		}
		p.live[s.addr] = xplaneBlock{allocated: s.allocated, slot: slot, sized: s.allocated > 0}
	}
	p.out.p.Seeds = p.out.p.Allocs
	p.held, p.isHeld = 0, false
	p.touched = nil
	return nil
}

// event is the second walk: it plays an event.
func (p *xplanePool) event(e *memEvent) error {
	blk, live := p.live[e.addr]
	step, sized := e.allocated, e.has&hasAllocated != 0
	if e.op == Free && !sized {
		step, sized = blk.allocated, live && blk.sized
	}
	if sized && p.isHeld && e.has&hasHeld != 0 {
		p.steps++
		if e.op == Alloc && e.held-p.held != step || e.op == Free && p.held-e.held != step {
			p.wrong++
		}
	}
	p.held, p.isHeld = e.held, e.has&hasHeld != 0

	if !live && e.op == Free {
		p.dropped++
		return nil
	}
	if live {
		site := e.site
		if e.op == Alloc {
			p.again++
			site = 0
		}
		delete(p.live, e.addr)
		if err := p.out.release(blk.slot, site, 0, false); err != nil {
			return err
		}
	}
	if e.op == Free {
		return nil
	}
	size, _ := e.size()
	slot, err := p.out.alloc(size, e.site, 0, false)
	if err != nil {
		return err
	}
	p.live[e.addr] = xplaneBlock{allocated: e.allocated, slot: slot, sized: sized}
	return p.out.placed(e.addr)
}

// notes tells what was assumed. With several pools each note names its own.
func (p *xplanePool) notes(b *builder, several bool) {
	note := func(format string, args ...any) {
		s := fmt.Sprintf(format, args...)
		if several {
			s = p.out.p.Name + ": " + s
		}
		b.note(s)
	}
	if p.rest > 0 {
		note("%d bytes are live when the recording begins and are not freed in it; allocated at its start as one block", p.rest)
	}
	if n := len(p.seeds); n > 0 {
		var bytes sum
		for _, s := range p.seeds {
			bytes.add(s.size)
		}
		note("%s older than the recording (%d bytes), known from their frees, %s allocated at its start, in the order of the addresses",
			count(n, "block"), bytes.cap(), is(n))
	}
	if n := p.stepped; n > 0 {
		note("%s of these blocks without a size; taken from the step of bytes_allocated", count(n, "free"))
	}
	if n := p.noSize; n > 0 {
		note("%s without a size; counted as 0 bytes", count(n, "block"))
	}
	if p.wrong > 0 {
		note("%d of %s of bytes_allocated %s not the size of the block: the profile has not all events", p.wrong, count(p.steps, "step"), is(p.wrong))
	}
	if n := p.again; n > 0 {
		note("%s at the address of a live block; the older block is freed there", count(n, "allocation"))
	}
	if n := p.dropped; n > 0 {
		note("%s of blocks that are not live; dropped", count(n, "free"))
	}
}
