package tape

// The blocks of a pool by their addresses, for formats that name them so.

import (
	"cmp"
	"fmt"
	"slices"

	"gpumem/record/internal/idtable"
	"gpumem/size"
)

// Blocks plays the events of one pool for formats that name blocks by their addresses:
// what is live where, what is older than the recording, what was refused.
type Blocks struct {
	pool *PoolBuilder
	live *idtable.Table // slots by address
	// freed has the addresses that were freed at some time, to distinguish a second
	// free from that of an older block; its values mean nothing. When it is full
	// it forgets them all, so a log that never uses an address again takes no
	// more memory. A second free is then taken for one of an older block.
	freed *idtable.Table // nil if blocks are not older
	host  bool           // see OnHost

	again   int // allocations at an address that is live
	dropped int // frees of blocks that are not live

	// The requests that the recorded program was refused. Each is an event of the pool, too.
	refused int
	first   string // the first, in words
	largest uint64
}

// maxFreed is how many freed addresses are remembered: what a table of 16 MiB
// takes without growing. Pools give the same addresses out again and again and
// do not get there.
const maxFreed = 1<<19 - 1

// Blocks returns the blocks of a pool. A free of an address that did not occur before is
// dropped; with older it is of a block older than the recording. The memory was held
// until then, and a replay without it would show a run that needs less than it did, so
// the block becomes an allocation at the front.
func (p *PoolBuilder) Blocks(older bool) *Blocks {
	a := &Blocks{pool: p, live: idtable.New()}
	if older {
		a.freed = idtable.New()
	}
	return a
}

// OnHost says that the blocks are in the host's memory: their addresses name them, and are
// no placement.
func (a *Blocks) OnHost() { a.host = true }

// Live reports whether a block lies at addr.
func (a *Blocks) Live(addr uint64) bool {
	_, live := a.live.Get(addr)
	return live
}

// Slot returns the slot of the block at addr; ok is false if none lies there.
func (a *Blocks) Slot(addr uint64) (slot uint32, ok bool) {
	return a.live.Get(addr)
}

// Seed adds a block that is older than the recording, see PoolBuilder.Seed.
func (a *Blocks) Seed(addr uint64, ev Event) error {
	slot, err := a.pool.Seed(ev)
	cell, _ := a.live.Put(addr)
	*cell = slot + 1
	return err
}

// Alloc adds an Alloc. A block that is live at the address is freed first.
func (a *Blocks) Alloc(addr uint64, ev Event) error {
	cell, live := a.live.Put(addr)
	if live {
		a.again++
		if err := a.pool.Free(Event{Slot: *cell - 1, Stream: ev.Stream}); err != nil {
			return err
		}
	}
	// The slot is known only now, and nothing else uses the table in between.
	place := addr
	if a.host {
		place = 0
	}
	slot, err := a.pool.Alloc(ev, place)
	*cell = slot + 1
	return err
}

// Refuse adds a request that was refused. at is where the recording has it, as in
// "line 5", and free what the device had free then, 0 if that is not known.
func (a *Blocks) Refuse(ev Event, at string, free uint64) error {
	if a.refused == 0 {
		a.first = fmt.Sprintf("%s (%s", size.Format(ev.Bytes), at)
		if free > 0 {
			a.first += fmt.Sprintf("; the device had %s free", size.Format(free))
		}
		a.first += ")"
	}
	a.refused++
	a.largest = max(a.largest, ev.Bytes)
	ev.Refused = true
	_, err := a.pool.Alloc(ev, 0)
	return err
}

// Free frees the block at addr; ev.Bytes is its size as the free has it.
func (a *Blocks) Free(addr uint64, ev Event) error {
	slot, live := a.live.Delete(addr)
	again := true
	if a.freed != nil {
		var cell *uint32
		cell, again = a.freed.Put(addr)
		*cell = 1
		if a.freed.Len() > maxFreed {
			a.freed = idtable.New()
		}
	}
	switch {
	case live:
		ev.Slot = slot
		return a.pool.Free(ev)
	case again:
		a.dropped++
		return nil
	}
	return a.pool.freeOlder(addr, ev)
}

// Notes adds what was assumed.
func (a *Blocks) Notes() {
	var sizes []uint64
	for _, s := range a.pool.older {
		sizes = append(sizes, s.ev.Bytes)
	}
	a.pool.NoteOlder(sizes, "", "; known from the frees")
	switch requests := size.Count(a.refused, "request"); {
	case a.refused == 1:
		a.pool.Note("the recorded run was refused %s: %s", requests, a.first)
	case a.refused > 1:
		a.pool.Note("the recorded run was refused %s: the first %s, the largest %s", requests, a.first, size.Format(a.largest))
	}
	a.pool.NoteCount(a.again, "allocation", "at the address of a live block; the older block is freed there")
	a.pool.NoteCount(a.dropped, "free", "of blocks that are not live; dropped")
}

// NoteOlder adds a sentence about blocks that are older than the recording, if there are
// some; where and end stand behind their bytes and at the end.
func (p *PoolBuilder) NoteOlder(sizes []uint64, where, end string) {
	var bytes uint64
	for _, n := range sizes {
		bytes = size.Add(bytes, n)
	}
	if n := len(sizes); n > 0 {
		p.Note("%s older than the recording (%s)%s %s allocated at its start, in the order of the addresses%s",
			size.Count(n, "block"), size.Format(bytes), where, size.Are(n), end)
	}
}

// olderBlock is a block older than the recording, known from its free.
type olderBlock struct {
	addr uint64
	ev   Event // its Alloc, which becomes one of the first events
}

// Older adds the Alloc of a block that is older than the recording, and that is known only
// now; it is live until the caller frees it. The Alloc becomes one of the pool's first events.
//
// All sums come out as if it had been known from the start. The block lived through
// everything so far, so every sum until now was too low by its size, and the peaks are. For
// the same reason no slot in use until now can have been its slot, and the most blocks live
// at once were one more: it takes a slot that no block had.
func (p *PoolBuilder) Older(addr uint64, ev Event) (slot uint32, err error) {
	if err := p.b.stream(ev.Stream); err != nil {
		return 0, err
	}
	bytes := ev.Bytes
	if slot, err = p.newSlot(bytes); err != nil {
		return 0, err
	}
	p.older = append(p.older, olderBlock{addr, Event{Bytes: bytes, Slot: slot, Site: ev.Site, Stream: ev.Stream}})
	p.p.Events++
	p.p.Allocs++
	p.p.Seeds++
	p.p.LargestAlloc = max(p.p.LargestAlloc, bytes)
	p.p.Streams = max(p.p.Streams, ev.Stream+1)
	p.live.Add(bytes)
	p.peak.Add(bytes)
	p.live256.Add256(bytes)
	p.peak256.Add256(bytes)
	p.b.live.Add(bytes)
	p.b.peak.Add(bytes)
	return slot, nil
}

// Rest is the site of the one block that stands for all that a pool held before the recording and
// did not free in it, where a format has the sum alone.
const Rest = "held since before the recording"

// OlderBytes returns the bytes of the blocks that turned out to be older than the recording.
func (p *PoolBuilder) OlderBytes() (n uint64) {
	for _, s := range p.older {
		n = size.Add(n, s.ev.Bytes)
	}
	return n
}

// freeOlder adds the Free of a block that is older than the recording and known from this
// free alone. What ev says of the site is about the free.
func (p *PoolBuilder) freeOlder(addr uint64, ev Event) error {
	slot, err := p.Older(addr, Event{Bytes: ev.Bytes, Stream: ev.Stream})
	if err != nil {
		return err
	}
	ev.Slot = slot
	return p.Free(ev)
}

// sealOlder puts the older blocks in front of the events, in the order of their
// addresses: the order in which they were allocated is lost.
func (p *PoolBuilder) sealOlder() error {
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
	for i := range p.p.reserved[min(1, len(p.p.reserved)):] {
		p.p.reserved[i+1].Event += uint64(len(p.older))
	}
	return err
}
