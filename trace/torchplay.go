package trace

// This file is for turning what a PyTorch snapshot says into a recording that
// can be replayed.
//
// The events in a snapshot are the last ones of a run, so blocks may be older
// than the first event. Which ones lived at the start follows from both ends:
//
//	live at the start =   the blocks active at the end
//	                    - those that the events allocate and do not free
//	                    + those that the events free and did not allocate
//
// The blocks of the first kind are known from the segments. Those of the last
// kind are known from the free itself, which has the address and the size. They
// are seeded as well: the memory was held until then, and a replay without them
// would show a run that needs less than it did. Both kinds become Alloc events
// at the front, in the order of their addresses, as the allocation order is
// lost.
//
// A block lives until free_completed: between free_requested and that, a stream
// may still use it.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// torchPlay is the state of one device while its events are played.
type torchPlay struct {
	pool    *poolBuilder
	slots   map[uint64]uint32   // live blocks by address
	pending map[uint64]struct{} // live blocks whose free is requested
	next    int                 // next event

	seeds  []torchBlock
	unseen int          // seeds that are known from their free
	late   []torchBlock // active at the end, allocated after the last event
	lost   int          // live after the last event, not active

	again   int // allocations at an address that is live
	dropped int // frees of blocks that are not live
	refused refusals
}

// playTorch makes a pool of each device and plays the events into them.
func playTorch(ctx context.Context, b *builder, devices []*torchDevice) error {
	timed := true
	for _, d := range devices {
		d.play.pool = b.pool(fmt.Sprintf("cuda:%d", d.index))
		d.play.slots = make(map[uint64]uint32)
		d.play.pending = make(map[uint64]struct{})
		d.findSeeds()
		for _, s := range d.play.seeds {
			if err := d.alloc(s.addr, s.size, s.site, s.stream); err != nil {
				return err
			}
		}
		d.play.pool.p.Seeds = uint64(len(d.play.seeds))
		timed = timed && d.timed
	}
	for n := 0; ; n++ {
		if n%65536 == 0 && ctx.Err() != nil {
			return stopped(ctx, b.trace.Source)
		}
		d := nextDevice(devices, timed)
		if d == nil {
			break
		}
		if timed {
			b.at(uint64(d.events[d.play.next].time) * 1000)
		}
		if err := d.event(); err != nil {
			return err
		}
	}
	for _, d := range devices {
		for _, s := range d.play.late {
			if err := d.alloc(s.addr, s.size, s.site, s.stream); err != nil {
				return err
			}
		}
		d.notes(b, len(devices) > 1)
	}
	return nil
}

// nextDevice is the one whose next event is the oldest; without times the first
// that has an event left. nil at the end. The order across devices matters only
// for Trace.PeakLive.
func nextDevice(devices []*torchDevice, timed bool) *torchDevice {
	var first *torchDevice
	for _, d := range devices {
		if d.play.next == len(d.events) {
			continue
		}
		if first == nil || timed && d.events[d.play.next].time < first.events[first.play.next].time {
			first = d
		}
	}
	return first
}

// findSeeds works out which blocks lived before the first event.
func (d *torchDevice) findSeeds() {
	// live has each address that an event allocated or freed: true while a
	// block that the events allocated lives there.
	live := make(map[uint64]bool)
	for i := range d.events {
		e := &d.events[i]
		switch e.action {
		case torchAlloc:
			live[e.addr] = true
		case torchFreeCompleted:
			if _, touched := live[e.addr]; !touched {
				d.play.seeds = append(d.play.seeds, torchBlock{addr: e.addr, size: e.size, stream: e.stream})
				d.play.unseen++
			}
			live[e.addr] = false
		}
	}
	for addr, b := range d.active {
		alive, touched := live[addr]
		switch {
		case !touched:
			d.play.seeds = append(d.play.seeds, b)
		case !alive:
			// The events end with this address free, so this block came
			// after them: recording was switched off before the snapshot.
			d.play.late = append(d.play.late, b)
		}
	}
	for addr, alive := range live {
		if _, ok := d.active[addr]; alive && !ok {
			d.play.lost++
		}
	}
	byAddress := func(x, y torchBlock) int { return cmp.Compare(x.addr, y.addr) }
	slices.SortFunc(d.play.seeds, byAddress)
	slices.SortFunc(d.play.late, byAddress)
}

// event plays the next event.
func (d *torchDevice) event() error {
	p := &d.play
	e := d.events[p.next]
	p.next++
	switch e.action {
	case torchAlloc:
		if _, live := p.slots[e.addr]; live {
			p.again++
			if err := d.free(e.addr, 0, e.stream); err != nil {
				return err
			}
		}
		if err := d.alloc(e.addr, e.size, e.site, e.stream); err != nil {
			return err
		}
		return p.pool.placed(e.addr)
	case torchFreeRequested:
		if _, live := p.slots[e.addr]; live {
			p.pending[e.addr] = struct{}{}
		}
	case torchFreeCompleted:
		if _, live := p.slots[e.addr]; !live {
			p.dropped++
			return nil
		}
		return d.free(e.addr, e.site, e.stream)
	case torchOOM:
		p.refused.add(e.size, e.addr, "event", p.pool.p.Events+1)
		return p.pool.refuse(e.size, e.site, e.stream, false)
	}
	return nil
}

func (d *torchDevice) alloc(addr, size uint64, site, stream uint32) error {
	slot, err := d.play.pool.alloc(size, site, stream, false)
	d.play.slots[addr] = slot
	return err
}

func (d *torchDevice) free(addr uint64, site, stream uint32) error {
	slot := d.play.slots[addr]
	delete(d.play.slots, addr)
	delete(d.play.pending, addr)
	return d.play.pool.release(slot, site, stream, false)
}

// notes tells what was assumed. With several devices each note names its own.
func (d *torchDevice) notes(b *builder, several bool) {
	note := func(format string, args ...any) {
		s := fmt.Sprintf(format, args...)
		if several {
			s = d.play.pool.p.Name + ": " + s
		}
		b.note(s)
	}
	p := &d.play
	if p.pool.p.Events == uint64(len(p.seeds)) {
		note("the snapshot has no allocations or frees, only the state when it was taken: record with torch.cuda.memory._record_memory_history before the run")
	}
	if n := len(p.seeds); n > 0 {
		var bytes sum
		for _, s := range p.seeds {
			bytes.add(s.size)
		}
		note("%s older than the recording (%d bytes) %s allocated at its start, in the order of the addresses",
			count(n, "block"), bytes.cap(), is(n))
	}
	if n := p.unseen; n > 0 {
		note("%s of blocks allocated before the recording began; seeded from their size", count(n, "free"))
	}
	if s := p.refused.note(); s != "" {
		note("%s", s)
	}
	if n := p.again; n > 0 {
		note("%s at the address of a live block; the older block is freed there", count(n, "allocation"))
	}
	if n := p.dropped; n > 0 {
		note("%s of blocks that are not live; dropped", count(n, "free"))
	}
	if n := len(p.pending); n > 0 {
		note("%s asked to be freed and never completed by the end; left live", count(n, "block"))
	}
	if n := len(p.late); n > 0 {
		note("%s active in the segments but not after the last event; allocated at the end", count(n, "block"))
	}
	if n := p.lost; n > 0 {
		note("%s live after the last event but not active in the segments; left live", count(n, "block"))
	}
	if n := d.doubled; n > 0 {
		note("%s of the segments at the address of another; the first counts", count(n, "block"))
	}
	if n := d.unknown; n > 0 {
		note("%s with an action that this version does not know (the first: %s); skipped", count(n, "event"), quote(d.strange))
	}
}

// count is "1 block" or "2 blocks".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func is(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}
