// Package idtable maps numbers to small numbers: the IDs or addresses of live blocks to
// their slots, sizes to their places.
//
// Reading a recording spends most of its time here, and a Go map takes about
// twice as long: it needs a look-up and an insertion where Put does both in one
// probe, and it leaves marks of deleted keys to be swept up later.
//
// It is a hash table with linear probing. A key lies in its home cell or, with
// no empty cell in between, after it. Delete keeps that true by moving later keys
// back into the hole, so there are no marks. The hash is seeded at random: no
// recording can be written to make all its IDs collide.
package idtable

import "math/rand/v2"

// Table maps a number to a value below 2^32-1. The zero value is not ready; see [New].
type Table struct {
	cells []cell // a power of two long, never more than half used
	used  int
	seed  uint64
	shift uint // 64 - log2(len(cells))
}

// cell is one key with its value. slot is the value + 1; 0 is an empty cell.
type cell struct {
	key  uint64
	slot uint32
}

// firstBits is the log2 of the first size. The table doubles from there and
// does not shrink: like everything about live blocks it is as large as the most
// that were live at once.
const firstBits = 8

// New returns an empty table.
func New() *Table {
	return &Table{
		cells: make([]cell, 1<<firstBits),
		seed:  rand.Uint64(),
		shift: 64 - firstBits,
	}
}

// home is the cell where key would like to be: the top bits of MurmurHash3's
// 64-bit finisher (fmix64, by Austin Appleby, public domain). Cheaper hashes
// with one multiplication were tried: with some seeds, runs of consecutive keys
// then share their top bits, and a recording takes forty times as long.
func (t *Table) home(key uint64) int {
	h := key ^ t.seed
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return int(h >> t.shift)
}

// Put adds key unless it is there. It returns the cell's value and whether it
// was there; a new cell's value is to be set with *slot = value + 1 before the
// next call.
func (t *Table) Put(key uint64) (slot *uint32, found bool) {
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

// Delete removes key and returns its value.
func (t *Table) Delete(key uint64) (value uint32, found bool) {
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
	t.cells[i] = cell{}
	return value, true
}

// Get returns the value of key, and whether it is there.
func (t *Table) Get(key uint64) (value uint32, found bool) {
	mask := len(t.cells) - 1
	for i := t.home(key); t.cells[i].slot != 0; i = (i + 1) & mask {
		if t.cells[i].key == key {
			return t.cells[i].slot - 1, true
		}
	}
	return 0, false
}

// Len returns how many keys there are.
func (t *Table) Len() int { return t.used }

// grow doubles the table.
func (t *Table) grow() {
	old := t.cells
	t.cells = make([]cell, 2*len(old))
	t.shift--
	t.used = 0
	for _, c := range old {
		if c.slot != 0 {
			slot, _ := t.Put(c.key)
			*slot = c.slot
		}
	}
}
