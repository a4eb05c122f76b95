package chunks

import (
	"fmt"

	"gpumem/alloc"
)

// An example: chunks at 0x7f0000000000 and 0x7f0000049400, 300,032 bytes apart, have the
// keys 0 and 1,172, the low 32 bits of the address in units of 256 bytes (0x7f00000000 is
// cut off). In a table of 64 slots home spreads the keys over the slots by the upper six
// bits of a product. Remove of the first empties its slot, and shiftBack moves any later
// entry of the same cluster that could no longer be found across the empty slot. No marks for
// deleted entries are left, so that a table that is used for days does not fill up.

// Table finds a live chunk by its address: open addressing with linear
// probing, at most half full, deletion by shifting back. An entry is eight
// bytes, the chunk's number and the low 32 bits of its address in units of 256
// bytes; those are compared first, so that a probe seldom touches a chunk that
// is not the one sought.
//
// It grows a little with each insertion and removal: while an old table is
// drained into a new one of twice the size, look-ups try both. So no single
// operation pays for all entries.
type Table struct {
	store *Store
	slots []entry
	shift uint8 // 64 - log2(len(slots))
	count int   // in slots and old together

	old      []entry // being drained, nil most of the time
	oldShift uint8
	drained  int // slots of old before this one are empty and stay so
}

type entry struct {
	h   H // 0: empty
	key uint32
}

const (
	minOrder = 6
	tableMin = 1 << minOrder // slots
	// drainStep is how many steps an operation drains the old table by; a step
	// moves one entry or passes one empty slot. n old slots hold n/2 entries
	// when draining begins, so it takes at most 1.5 n steps, and n/2 insertions
	// fill the new table: 4 steps for each are enough.
	drainStep = 4
)

// NewTable makes a table of chunks of st, with 2^order slots at first, at least
// 64. A table that is nearly empty is the fastest: at an eighth full, insert and
// remove take half of what they take at a half, for hardly a search meets a slot
// that is taken, and the processor foresees where it ends.
func NewTable(st *Store, order uint8) *Table {
	order = min(max(order, minOrder), 31)
	return &Table{store: st, slots: make([]entry, 1<<order), shift: 64 - order}
}

// Len returns how many chunks are in the table.
func (t *Table) Len() int { return t.count }

// Cap returns the bytes of host memory that the table holds.
func (t *Table) Cap() int { return (len(t.slots) + len(t.old)) * 8 }

// home returns the slot that a key belongs to in a table of 2^(64-shift) slots. Only the key
// counts, so that moving entries about touches no chunk. Two addresses 2^40
// bytes apart share a key; the chunk distinguishes them.
//
// Addresses of equal blocks are an arithmetic progression. The multiplication
// alone (Fibonacci hashing) keeps it one, and for some strides, 6765 units among
// them, all entries are then one cluster. Folding upper bits onto lower ones
// first breaks it and costs less than a second multiplication. 5 and 12 were
// the best of the shifts tried, on 40,000 progressions and grids of two strides:
// no search read more than 66 slots, and none of the tables 3 on average.
func home(key uint32, shift uint8) uint32 {
	const golden = 0x9E3779B97F4A7C15 // 2^64 divided by the golden ratio
	return uint32(uint64(key^key>>5^key>>12) * golden >> (shift & 63))
}

// Insert puts chunk h in, which starts at addr (its Addr, and the same until it
// is taken out). No other chunk in the table does.
func (t *Table) Insert(h H, addr uint64) {
	if t.old != nil {
		t.drain()
	}
	if t.count >= len(t.slots)/2 {
		t.grow()
	}
	t.count++
	put(t.slots, t.shift, entry{h, uint32(addr >> unitBits)})
}

// put enters e, whose chunk is not in slots, which has an empty slot.
func put(slots []entry, shift uint8, e entry) {
	mask := uint32(len(slots) - 1)
	i := home(e.key, shift)
	for slots[i&mask].h != 0 {
		i++
	}
	slots[i&mask] = e
}

// Block returns the live block that starts at addr; 0 gives the zero block, and where
// none starts it is alloc.ErrNotAllocated. The table may hold chunks that are not live
// (vmm's pending ones), which are none.
func (t *Table) Block(addr uint64) (alloc.Block, error) {
	if addr == 0 {
		return alloc.Block{}, nil
	}
	if h := t.Find(addr); h != 0 {
		if c := t.store.At(h); c.State == Live {
			return c.Block(h), nil
		}
	}
	return alloc.Block{}, fmt.Errorf("%#x: %w: no live block starts there", addr, alloc.ErrNotAllocated)
}

// Find returns the chunk that starts at addr, 0 if none starts there.
func (t *Table) Find(addr uint64) H {
	if i, ok := t.find(t.slots, t.shift, addr); ok {
		return t.slots[i].h
	}
	if t.old != nil {
		if i, ok := t.find(t.old, t.oldShift, addr); ok {
			return t.old[i].h
		}
	}
	return 0
}

// find returns the slot of the chunk that starts at addr. The chunk is looked at only if
// the key is equal, since only there is the whole address.
func (t *Table) find(slots []entry, shift uint8, addr uint64) (uint32, bool) {
	mask := uint32(len(slots) - 1)
	key := uint32(addr >> unitBits)
	for i := home(key, shift); ; i++ {
		e := slots[i&mask]
		if e.h == 0 {
			return 0, false
		}
		if e.key == key && t.store.At(e.h).Addr == addr {
			return i & mask, true
		}
	}
}

// Remove takes the chunk that starts at addr out and returns it, 0 if none starts there.
func (t *Table) Remove(addr uint64) H {
	if t.old != nil {
		t.drain()
	}
	if i, ok := t.find(t.slots, t.shift, addr); ok {
		h := t.slots[i].h
		t.count--
		shiftBack(t.slots, t.shift, i)
		return h
	}
	if t.old != nil {
		if i, ok := t.find(t.old, t.oldShift, addr); ok {
			h := t.old[i].h
			t.count--
			shiftBack(t.old, t.oldShift, i)
			return h
		}
	}
	return 0
}

// RemoveChunk takes chunk h out, which is in and lies at addr. It need not
// look at any other chunk.
func (t *Table) RemoveChunk(h H, addr uint64) {
	if t.old != nil {
		t.drain()
	}
	if t.removeChunk(t.slots, t.shift, h, addr) {
		return
	}
	if t.old != nil {
		t.removeChunk(t.old, t.oldShift, h, addr)
	}
}

func (t *Table) removeChunk(slots []entry, shift uint8, h H, addr uint64) bool {
	mask := uint32(len(slots) - 1)
	for i := home(uint32(addr>>unitBits), shift); ; i++ {
		switch slots[i&mask].h {
		case h:
			t.count--
			shiftBack(slots, shift, i&mask)
			return true
		case 0:
			return false
		}
	}
}

// shiftBack empties slot i and moves back whatever would no longer be found (Knuth, The
// Art of Computer Programming 3, 6.4, algorithm R).
func shiftBack(slots []entry, shift uint8, i uint32) {
	mask := uint32(len(slots) - 1)
	for j := i; ; {
		j = (j + 1) & mask
		e := slots[j&mask]
		if e.h == 0 {
			break
		}
		// e may move to i unless its home lies cyclically in (i, j].
		k := home(e.key, shift)
		if (j-k)&mask >= (j-i)&mask {
			slots[i&mask] = e
			i = j
		}
	}
	slots[i&mask] = entry{}
}

// grow begins a table of twice the size.
func (t *Table) grow() {
	// The last growth is over: see drainStep. Removals only put this one off.
	t.old, t.oldShift, t.drained = t.slots, t.shift, 0
	t.slots = make([]entry, 2*len(t.slots))
	t.shift--
}

// drain moves a few entries from the old table to the new one. Taking an entry
// out shifts others into its slot, so the slot is looked at again until it is
// empty; every slot before it stays empty, since nothing is put into the old
// table any more.
func (t *Table) drain() {
	for range drainStep {
		e := t.old[t.drained]
		if e.h != 0 {
			shiftBack(t.old, t.oldShift, uint32(t.drained))
			put(t.slots, t.shift, e)
			continue
		}
		if t.drained++; t.drained == len(t.old) {
			t.old = nil
			return
		}
	}
}
