package torch

// Turning what a PyTorch snapshot says into a recording that
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
	"fmt"
	"slices"

	"gpumem/internal/input"
	"gpumem/size"
	"gpumem/trace"
)

// torchPlay is the state of one device while its events are played.
type torchPlay struct {
	pool    *trace.PoolBuilder
	blocks  *trace.Blocks
	pending map[uint64]struct{} // live blocks whose free is requested
	next    int                 // next event

	seeds  []torchBlock
	unseen int          // seeds that are known from their free
	late   []torchBlock // active at the end, allocated after the last event
	lost   int          // live after the last event, not active
}

// playTorch makes a pool of each device and plays the events into them.
func playTorch(b *trace.Builder, devices []*torchDevice) error {
	timed := true
	for _, d := range devices {
		d.play.pool = b.Pool(fmt.Sprintf("cuda:%d", d.index))
		d.play.blocks = d.play.pool.Blocks(false)
		d.play.pending = make(map[uint64]struct{})
		d.findSeeds()
		for _, s := range d.play.seeds {
			if err := d.play.blocks.Seed(s.addr, s.event()); err != nil {
				return err
			}
		}
		timed = timed && d.timed
	}
	for {
		d := nextDevice(devices, timed)
		if d == nil {
			break
		}
		if timed {
			b.At(uint64(d.events[d.play.next].time) * 1000)
		}
		if err := d.event(); err != nil {
			return err
		}
	}
	for _, d := range devices {
		for _, s := range d.play.late {
			if _, err := d.play.pool.Alloc(s.event(), 0); err != nil {
				return err
			}
		}
		d.notes()
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
	ev := trace.Event{Bytes: e.size, Site: e.site, Stream: e.stream}
	switch e.action {
	case torchAlloc:
		delete(p.pending, e.addr)
		return p.blocks.Alloc(e.addr, ev)
	case torchFreeRequested:
		if p.blocks.Live(e.addr) {
			p.pending[e.addr] = struct{}{}
		}
	case torchFreeCompleted:
		delete(p.pending, e.addr)
		return p.blocks.Free(e.addr, ev)
	case torchOOM:
		return p.blocks.Refuse(ev, fmt.Sprint("event ", p.pool.Events()+1), e.addr)
	}
	return nil
}

// event is the Alloc of a block.
func (b *torchBlock) event() trace.Event {
	return trace.Event{Bytes: b.size, Site: b.site, Stream: b.stream}
}

// notes adds what was assumed.
func (d *torchDevice) notes() {
	p := &d.play
	if p.pool.Events() == uint64(len(p.seeds)) {
		p.pool.Note("the snapshot has no allocations or frees, only the state when it was taken: record with torch.cuda.memory._record_memory_history before the run")
	}
	if n := len(p.seeds); n > 0 {
		var bytes uint64
		for _, s := range p.seeds {
			bytes = size.Add(bytes, s.size)
		}
		p.pool.Note("%s older than the recording (%d bytes) %s allocated at its start, in the order of the addresses",
			size.Count(n, "block"), bytes, size.Are(n))
	}
	if n := p.unseen; n > 0 {
		p.pool.Note("%s of blocks allocated before the recording began; seeded from their size", size.Count(n, "free"))
	}
	p.blocks.Notes()
	if n := len(p.pending); n > 0 {
		p.pool.Note("%s asked to be freed and never completed by the end; left live", size.Count(n, "block"))
	}
	if n := len(p.late); n > 0 {
		p.pool.Note("%s active in the segments but not after the last event; allocated at the end", size.Count(n, "block"))
	}
	if n := p.lost; n > 0 {
		p.pool.Note("%s live after the last event but not active in the segments; left live", size.Count(n, "block"))
	}
	if n := d.doubled; n > 0 {
		p.pool.Note("%s of the segments at the address of another; the first counts", size.Count(n, "block"))
	}
	if n := d.unknown; n > 0 {
		p.pool.Note("%s with an action that this version does not know (the first: %s); skipped", size.Count(n, "event"), input.Quote(d.strange))
	}
}
