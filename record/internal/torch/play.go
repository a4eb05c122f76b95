package torch

// The player, which makes a recording of a snapshot.
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
	"fmt"
	"slices"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/size"
)

// play makes a pool of each device and plays the events into them.
func play(b *tape.Builder, devices []*device, served bool) error {
	timed := true
	for _, d := range devices {
		d.pool = b.Pool(fmt.Sprintf("cuda:%d", d.index))
		d.blocks = d.pool.Blocks(false)
		d.pending = make(map[uint64]uint64)
		d.asked = slices.ContainsFunc(d.events, func(e event) bool { return e.action == freeRequested })
		d.findSeeds()
		d.findTrims(served)
		d.older = make(map[uint64]struct{}, len(d.seeds))
		for _, s := range d.seeds {
			d.older[s.addr] = struct{}{}
			if err := d.blocks.Seed(s.addr, s.event()); err != nil {
				return err
			}
			d.noteKept(s.addr)
		}
		start := d.start()
		d.pool.Segments(start)
		d.pool.Granted(d.granted())
		d.findPrivate(start)
		d.reserveFirst()
		timed = timed && d.timed
	}
	for {
		d := nextDevice(devices, timed)
		if d == nil {
			break
		}
		if timed {
			b.At(uint64(d.events[d.next].time) * 1000)
		}
		if err := d.event(); err != nil {
			return err
		}
	}
	for _, d := range devices {
		for _, s := range d.late {
			if _, err := d.pool.Alloc(s.event(), 0); err != nil {
				return err
			}
			d.noteKept(s.addr)
		}
		d.reserve()
		d.waitOn()
		d.pool.Final(d.lastSegments())
		d.pool.Keepers(d.finalKeepers())
		d.notes()
	}
	return nil
}

// nextDevice returns the one whose next event is the oldest; without times the first
// that has an event left. nil at the end. The order across devices matters only
// for Trace.PeakLive.
func nextDevice(devices []*device, timed bool) *device {
	var first *device
	for _, d := range devices {
		if d.next == len(d.events) {
			continue
		}
		if first == nil || timed && d.events[d.next].time < first.events[first.next].time {
			first = d
		}
	}
	return first
}

// findSeeds works out which blocks lived before the first event.
func (d *device) findSeeds() {
	// live has each address that an event allocated or freed: true while a
	// block that the events allocated lives there.
	live := make(map[uint64]bool)
	for i := range d.events {
		e := &d.events[i]
		switch e.action {
		case allocated:
			live[e.addr] = true
		case freeCompleted:
			if _, touched := live[e.addr]; !touched {
				d.seeds = append(d.seeds, block{addr: e.addr, size: e.size, stream: e.stream})
				d.unseen++
			}
			live[e.addr] = false
		}
	}
	for addr, b := range d.active {
		alive, touched := live[addr]
		switch {
		case !touched:
			d.seeds = append(d.seeds, b)
		case !alive:
			// The events end with this address free, so this block came
			// after them: recording was switched off before the snapshot.
			d.late = append(d.late, b)
		}
	}
	for addr, alive := range live {
		if _, ok := d.active[addr]; alive && !ok {
			d.lost++
		}
	}
	byAddress := func(x, y block) int { return cmp.Compare(x.addr, y.addr) }
	slices.SortFunc(d.seeds, byAddress)
	slices.SortFunc(d.late, byAddress)
}

// event plays the next event.
func (d *device) event() error {
	if len(d.trims) > 0 && d.trims[0] == d.next {
		d.pool.Trim()
		d.trims = d.trims[1:]
	}
	d.reserve()
	d.serve()
	e := d.events[d.next]
	d.next++
	ev := tape.Event{Bytes: e.size, Site: e.site, Stream: e.stream}
	switch e.action {
	case allocated:
		delete(d.pending, e.addr)
		err := d.blocks.Alloc(e.addr, ev)
		d.noteKept(e.addr)
		return err
	case freeRequested:
		if d.blocks.Live(e.addr) {
			d.pending[e.addr] = d.pool.Events()
		}
	case freeCompleted:
		d.waited(e)
		delete(d.pending, e.addr)
		return d.blocks.Free(e.addr, ev)
	case outOfMemory:
		return d.blocks.Refuse(ev, fmt.Sprint("event ", d.pool.Events()+1), e.addr)
	}
	return nil
}

// event returns the Alloc of a block.
func (b *block) event() tape.Event {
	return tape.Event{Bytes: b.size, Site: b.site, Stream: b.stream}
}

// notes adds what was assumed.
func (d *device) notes() {
	if d.pool.Events() == uint64(len(d.seeds)) {
		d.pool.Note("the snapshot has no allocations or frees, only the state when it was taken: record with torch.cuda.memory._record_memory_history before the run")
	}
	var sizes []uint64
	for _, s := range d.seeds {
		sizes = append(sizes, s.size)
	}
	d.pool.NoteOlder(sizes, "", "")
	d.pool.NoteCount(d.unseen, "free", "of blocks allocated before the recording began; seeded from their size")
	d.blocks.Notes()
	d.pool.NoteCount(len(d.pending), "block", "asked to be freed and never completed by the end; left live")
	d.pool.NoteCount(len(d.late), "block", "active in the segments but not after the last event; allocated at the end")
	d.pool.NoteCount(d.lost, "block", "live after the last event but not active in the segments; left live")
	d.pool.NoteCount(d.doubled, "block", "of the segments at the address of another; the first counts")
	if n := d.unknown; n > 0 {
		d.pool.Note("%s with an action that this version does not know (the first: %s); skipped", size.Count(n, "event"), input.Quote(d.strange))
	}
}
