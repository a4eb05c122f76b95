package trace

// The idTable, which has the slots of live blocks by number: an ID or an address.
//
// Reading a recording spends most of its time here, and a Go map takes about
// twice as long: it needs a look-up and an insertion where put does both in one
// probe, and it leaves marks of deleted keys to be swept up later.
//
// It is a hash table with linear probing. A key lies in its home cell or, with
// no empty cell in between, after it. del keeps that true by moving later keys
// back into the hole, so there are no marks. The hash is seeded at random: no
// recording can be written to make all its IDs collide.

import "math/rand/v2"

// idTable maps a number to a slot. The zero value is not ready; see newIDTable.
type idTable struct {
	cells []idCell // a power of two long, never more than half used
	used  int
	seed  uint64
	shift uint // 64 - log2(len(cells))
}

// idCell is one key with its value. slot is the value + 1; 0 is an empty cell.
// A value is below maxSlots, so the + 1 fits.
type idCell struct {
	key  uint64
	slot uint32
}

// idTableBits is the log2 of the first size. The table doubles from there and
// does not shrink: like everything about live blocks it is as large as the most
// that were live at once.
const idTableBits = 8

func newIDTable() *idTable {
	return &idTable{
		cells: make([]idCell, 1<<idTableBits),
		seed:  rand.Uint64(),
		shift: 64 - idTableBits,
	}
}

// home is the cell where key would like to be: the top bits of MurmurHash3's
// 64-bit finisher (fmix64, by Austin Appleby, public domain). Cheaper hashes
// with one multiplication were tried: with some seeds, runs of consecutive keys
// then share their top bits, and a recording takes forty times as long.
func (t *idTable) home(key uint64) int {
	h := key ^ t.seed
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return int(h >> t.shift)
}

// put adds key unless it is there. It returns the cell's value and whether it
// was there; a new cell's value is to be set with *slot = value + 1 before the
// next call.
func (t *idTable) put(key uint64) (slot *uint32, found bool) {
	if t.used*2 >= len(t.cells) {
		t.grow()
	}
	mask := len(t.cells) - 1
	for i := t.home(key); ; i = (i + 1) & mask {
		c := &t.cells[i]
		if c.slot == 0 {
			c.key = key
			t.used++
			return &c.slot, false
		}
		if c.key == key {
			return &c.slot, true
		}
	}
}

// del removes key and returns its value.
func (t *idTable) del(key uint64) (value uint32, found bool) {
	mask := len(t.cells) - 1
	i := t.home(key)
	for t.cells[i].key != key || t.cells[i].slot == 0 {
		if t.cells[i].slot == 0 {
			return 0, false
		}
		i = (i + 1) & mask
	}
	value = t.cells[i].slot - 1
	t.used--
	// i is a hole now. A key further on may move into it if its home is not
	// between the hole and itself.
	for j := (i + 1) & mask; t.cells[j].slot != 0; j = (j + 1) & mask {
		if home := t.home(t.cells[j].key); (j-home)&mask >= (j-i)&mask {
			t.cells[i] = t.cells[j]
			i = j
		}
	}
	t.cells[i] = idCell{}
	return value, true
}

// has reports whether key is there.
func (t *idTable) has(key uint64) bool {
	mask := len(t.cells) - 1
	for i := t.home(key); t.cells[i].slot != 0; i = (i + 1) & mask {
		if t.cells[i].key == key {
			return true
		}
	}
	return false
}

// grow doubles the table.
func (t *idTable) grow() {
	old := t.cells
	t.cells = make([]idCell, 2*len(old))
	t.shift--
	t.used = 0
	for _, c := range old {
		if c.slot != 0 {
			slot, _ := t.put(c.key)
			*slot = c.slot
		}
	}
}
