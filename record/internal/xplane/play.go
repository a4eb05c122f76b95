package xplane

// The player, which makes a recording of the memory events.
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
// bytes_allocated also shows whether the profile is whole: from event to event of a
// pool it moves by the size of the event's block.

import (
	"cmp"
	"slices"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/size"
)

// player is all pools of one profile.
type player struct {
	in        *input.Reader
	b         *tape.Builder
	pools     []*poolPlayer
	byName    map[string]uint32
	noAddress int // events that cannot be used
}

// poolPlayer is one pool while its events are walked: first to find the seeds,
// then to play them.
type poolPlayer struct {
	name   string
	out    *tape.PoolBuilder
	blocks *tape.Blocks

	held   uint64 // bytes_allocated after the last event
	isHeld bool   // it is known

	// The first walk.
	started bool
	before  uint64              // bytes_allocated before the first event
	touched map[uint64]struct{} // addresses of all events so far
	seeds   []seed
	rest    uint64 // bytes held before the recording beyond the seeds
	stepped int    // seeds whose size is a step of bytes_allocated
	noSize  int    // seeds and allocations without a size

	// The second walk.
	sizes map[uint64]uint64 // of live blocks by address, as far as known
	steps int               // of bytes_allocated that could be checked
	wrong int               // that were not the block's size
}

type seed struct {
	addr, size, allocated uint64
}

// pool returns the number of a pool; false if there are too many.
func (p *player) pool(name string) (uint32, bool) {
	n, ok := p.byName[name]
	if ok || len(p.pools) == maxPools {
		return n, ok
	}
	if p.byName == nil {
		p.byName = make(map[string]uint32)
	}
	n = uint32(len(p.pools))
	p.byName[name] = n
	p.pools = append(p.pools, &poolPlayer{
		name:    name,
		touched: make(map[uint64]struct{}),
		sizes:   make(map[uint64]uint64),
	})
	return n, true
}

// run makes the recording of the events, which are in the order of time.
func (p *player) run(events []memEvent) error {
	for i := range events {
		if err := p.alive(i); err != nil {
			return err
		}
		e := &events[i]
		p.pools[e.pool].look(e)
	}
	sorted := slices.Clone(p.pools)
	// GPU_2_bfc before GPU_10_bfc.
	slices.SortFunc(sorted, func(x, y *poolPlayer) int {
		return cmp.Or(cmp.Compare(len(x.name), len(y.name)), cmp.Compare(x.name, y.name))
	})
	for _, pool := range sorted {
		pool.out = p.b.Pool(pool.name)
		pool.blocks = pool.out.Blocks(false)
	}
	for i := range events {
		e := &events[i]
		p.b.At(e.ns)
		if i == 0 {
			for _, pool := range sorted {
				if err := pool.seed(p.b); err != nil {
					return err
				}
			}
		}
		if err := p.pools[e.pool].event(e); err != nil {
			return err
		}
		if err := p.alive(i); err != nil {
			return err
		}
	}
	for _, pool := range sorted {
		pool.notes()
	}
	if n := p.noAddress; n > 0 {
		p.b.Note("%s without an address; skipped", size.Count(n, "event"))
	}
	return nil
}

// alive returns an error if the context has ended; it looks at every 4096th event.
func (p *player) alive(i int) error {
	if i%4096 != 0 {
		return nil
	}
	return p.in.Stopped()
}

// look is the first walk: which blocks are older than the recording?
func (p *poolPlayer) look(e *memEvent) {
	bytes, sized := e.size()
	if !p.started {
		p.started = true
		p.before, p.isHeld = e.held+e.allocated, e.has&hasHeld != 0
		if e.op == tape.Alloc {
			p.before = e.held - min(e.held, e.allocated)
		}
		p.held = p.before
	}
	if _, ok := p.touched[e.addr]; !ok {
		p.touched[e.addr] = struct{}{}
		if e.op == tape.Free {
			s := seed{addr: e.addr, size: bytes, allocated: e.allocated}
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
	if e.op == tape.Alloc && !sized {
		p.noSize++
	}
	p.held, p.isHeld = e.held, e.has&hasHeld != 0
}

// seed allocates what is older than the recording.
func (p *poolPlayer) seed(b *tape.Builder) error {
	var known uint64
	for _, s := range p.seeds {
		known = size.Add(known, s.allocated)
	}
	if known < p.before {
		p.rest = p.before - known
		if _, err := p.out.Seed(tape.Event{Bytes: p.rest, Site: b.Site([]byte(tape.Rest))}); err != nil {
			return err
		}
	}
	slices.SortFunc(p.seeds, func(x, y seed) int { return cmp.Compare(x.addr, y.addr) })
	for _, s := range p.seeds {
		if err := p.blocks.Seed(s.addr, tape.Event{Bytes: s.size}); err != nil {
			return err
		}
		if s.allocated > 0 {
			p.sizes[s.addr] = s.allocated
		}
	}
	p.held, p.isHeld = 0, false
	p.touched = nil
	return nil
}

// event is the second walk: it plays an event.
func (p *poolPlayer) event(e *memEvent) error {
	step, sized := e.allocated, e.has&hasAllocated != 0
	if e.op == tape.Free {
		if !sized {
			step, sized = p.sizes[e.addr]
		}
		delete(p.sizes, e.addr)
	} else if sized {
		p.sizes[e.addr] = step
	} else {
		delete(p.sizes, e.addr)
	}
	if sized && p.isHeld && e.has&hasHeld != 0 {
		p.steps++
		if e.op == tape.Alloc && e.held-p.held != step || e.op == tape.Free && p.held-e.held != step {
			p.wrong++
		}
	}
	p.held, p.isHeld = e.held, e.has&hasHeld != 0

	if e.op == tape.Free {
		return p.blocks.Free(e.addr, tape.Event{Site: e.site})
	}
	bytes, _ := e.size()
	return p.blocks.Alloc(e.addr, tape.Event{Bytes: bytes, Site: e.site})
}

// notes adds what was assumed.
func (p *poolPlayer) notes() {
	if p.rest > 0 {
		p.out.Note("%s is live when the recording begins and is not freed in it; allocated at its start as one block", size.Format(p.rest))
	}
	var sizes []uint64
	for _, s := range p.seeds {
		sizes = append(sizes, s.size)
	}
	p.out.NoteOlder(sizes, ", known from their frees,", "")
	p.out.NoteCount(p.stepped, "free", "of these blocks without a size; taken from the step of bytes_allocated")
	p.out.NoteCount(p.noSize, "block", "without a size; counted as 0 bytes")
	if p.wrong > 0 {
		p.out.Note("%d of %s of bytes_allocated %s not the size of the block: the profile has not all events", p.wrong, size.Count(p.steps, "step"), size.Are(p.wrong))
	}
	p.blocks.Notes()
}
