package trace

// This file is for logs that name blocks by their addresses and are read as they
// come: what is live where, what is older than the log, what was refused.

import (
	"cmp"
	"fmt"
	"slices"

	"gpumem/size"
)

// addressPlay plays the events of one pool.
//
// A free of an address that the log has not mentioned is of a block older than
// the log. The memory was held until then, and a replay without it would show a
// run that needs less than it did, so the block becomes an allocation at the
// front (poolBuilder.freeOlder), as it does for PyTorch snapshots.
type addressPlay struct {
	pool *poolBuilder
	live *idTable // slots by address
	// freed has the addresses that were freed at some time, to tell a second
	// free from one of an older block; its values mean nothing. When it is full
	// it forgets them all, so a log that never uses an address again takes no
	// more memory. A second free is then taken for one of an older block.
	freed *idTable

	again   int // allocations at an address that is live
	dropped int // second frees
	refused refusals
}

// maxFreed is how many freed addresses are remembered: what a table of 16 MiB
// takes without growing. Pools give the same addresses out again and again and
// do not get there.
const maxFreed = 1<<19 - 1

// refusals are the requests that the recorded program was refused, for the note.
// Each is an event of the pool, too.
type refusals struct {
	n       int
	bytes   uint64 // of the first
	at      string // where the recording has it, "line 5"
	free    uint64 // what the device had free then; 0: the recording does not say
	largest uint64
}

func (r *refusals) add(bytes, free uint64, unit string, at uint64) {
	if r.n == 0 {
		r.bytes, r.free, r.at = bytes, free, fmt.Sprintf("%s %d", unit, at)
	}
	r.n++
	r.largest = max(r.largest, bytes)
}

// note is what there is to say of them; "" if there were none.
func (r *refusals) note() string {
	if r.n == 0 {
		return ""
	}
	s := fmt.Sprintf("the recorded run was refused %s: ", count(r.n, "request"))
	if r.n > 1 {
		s += "the first "
	}
	s += fmt.Sprintf("%s (%s", size.Format(r.bytes), r.at)
	if r.free > 0 {
		s += fmt.Sprintf("; the device had %s free", size.Format(r.free))
	}
	s += ")"
	if r.n > 1 {
		s += fmt.Sprintf(", the largest %s", size.Format(r.largest))
	}
	return s
}

func newAddressPlay(pool *poolBuilder) *addressPlay {
	return &addressPlay{pool: pool, live: newIDTable(), freed: newIDTable()}
}

func (a *addressPlay) alloc(addr, bytes uint64, stream uint32) error {
	cell, live := a.live.put(addr)
	if live {
		a.again++
		if err := a.pool.release(*cell-1, 0, stream, false); err != nil {
			return err
		}
	}
	// The slot is known only now, and nothing else uses the table in between.
	slot, err := a.pool.alloc(bytes, 0, stream, false)
	*cell = slot + 1
	if err != nil {
		return err
	}
	return a.pool.placed(addr)
}

// refuse adds a request that was refused; line is where the log says so.
func (a *addressPlay) refuse(line int, bytes uint64, stream uint32) error {
	a.refused.add(bytes, 0, "line", uint64(line))
	return a.pool.refuse(bytes, 0, stream, false)
}

// free frees the block at addr; bytes is its size as the free gives it.
func (a *addressPlay) free(addr, bytes uint64, stream uint32) error {
	slot, live := a.live.del(addr)
	cell, again := a.freed.put(addr)
	*cell = 1
	if a.freed.used > maxFreed {
		a.freed = newIDTable()
	}
	switch {
	case live:
		return a.pool.release(slot, 0, stream, false)
	case again:
		a.dropped++
		return nil
	}
	return a.pool.freeOlder(addr, bytes, 0, stream)
}

// notes tells what was assumed; prefix names the pool if there are several.
func (a *addressPlay) notes(b *builder, prefix string) {
	note := func(format string, args ...any) { b.note(prefix + fmt.Sprintf(format, args...)) }
	if n := len(a.pool.older); n > 0 {
		var bytes sum
		for _, s := range a.pool.older {
			bytes.add(s.ev.Bytes)
		}
		note("%s older than the recording (%d bytes) %s allocated at its start, in the order of the addresses; known from the frees",
			count(n, "block"), bytes.cap(), is(n))
	}
	if s := a.refused.note(); s != "" {
		note("%s", s)
	}
	if n := a.again; n > 0 {
		note("%s at the address of a live block; the older block is freed there", count(n, "allocation"))
	}
	if n := a.dropped; n > 0 {
		note("%s of blocks that are not live; dropped", count(n, "free"))
	}
}

// olderBlock is a block older than the recording that its free told of.
type olderBlock struct {
	addr uint64
	ev   Event // its Alloc, which becomes one of the first events
}

// freeOlder adds the Free of a block that is older than the recording, and
// nothing but this free tells of it. Its Alloc becomes one of the pool's first
// events.
//
// All sums come out as if that Alloc had been known from the start. The block
// lived through everything so far, so every sum until now was too low by its
// size, and the peaks are. For the same reason no slot in use until now can have
// been its slot, and the most blocks live at once were one more: it takes a slot
// of its own.
func (p *poolBuilder) freeOlder(addr, bytes uint64, site, stream uint32) error {
	slot, err := p.newSlot(bytes)
	if err != nil {
		return err
	}
	p.older = append(p.older, olderBlock{addr, Event{Bytes: bytes, Slot: slot, Stream: stream}})
	p.p.Events++
	p.p.Allocs++
	p.p.Seeds++
	p.p.LargestAlloc = max(p.p.LargestAlloc, bytes)
	p.live.add(bytes)
	p.peak.add(bytes)
	p.live256.add256(bytes)
	p.peak256.add256(bytes)
	p.b.live.add(bytes)
	p.b.peak.add(bytes)
	return p.release(slot, site, stream, false)
}

// sealOlder puts the older blocks in front of the events, in the order of their
// addresses: the order in which they were allocated is lost.
func (p *poolBuilder) sealOlder() error {
	slices.SortFunc(p.older, func(x, y olderBlock) int {
		return cmp.Or(cmp.Compare(x.addr, y.addr), cmp.Compare(x.ev.Slot, y.ev.Slot))
	})
	known := p.p.blocks
	p.p.blocks = nil
	p.enc.timed = false
	for _, s := range p.older {
		p.enc.put(s.ev)
		if p.enc.full() {
			if err := p.seal(); err != nil {
				return err
			}
		}
	}
	err := p.seal()
	p.p.blocks = append(p.p.blocks, known...)
	return err
}
