// The driver's blocks that grants lie in.

package shim

import (
	"math"
	"sync"
	"sync/atomic"
)

// driverBlock is the unit in which the driver takes memory of the GPU for plain grants.
const driverBlock = 2 << 20

// blocks counts the bytes that the driver has taken for grants of plain memory, by their
// addresses.
//
// A driver takes memory of the GPU in blocks of 2 MiB. A large grant has blocks for itself;
// small grants lie in one block together, which the driver releases with the last of them.
// It says neither how large a grant became nor what a block still has room for:
// cuMemGetAddressRange answers with the size that was asked for, and cuMemGetInfo shows what
// all processes do. But addresses of the GPU are mapped by whole pages of 2 MiB, so which
// pages a grant touches is evidence: two grants in one page share a block, and the page of a
// grant that lies there alone was taken for it. The simulated GPU rounds each grant up to
// 2 MiB and never places two in one page, so there, too, it is what the GPU counts.
//
// Let 1 KiB be granted at 4 MiB, 1 KiB at 4 MiB + 512 KiB and 5 MiB at 8 MiB: the first opens
// a block, the second none, the third three. Freeing the first closes none.
//
// Blocks are a process's, of all its contexts: a grant that the pool made and one of the
// program's may share one. It counts once, for whoever opened it, until the last has left.
type blocks struct {
	unit atomic.Uint64

	mu    sync.Mutex        // guards users
	users map[uint64]sharer // of a block that its grants do not fill, by its number
}

// sharer is who is in a block: how many grants, and the part that it counts as.
type sharer struct {
	grants int
	part   Part
}

// closed is the bytes of blocks that close, by the part that they count as.
type closed [parts]uint64

// give gives back what has closed.
func (c closed) give(a Account) {
	for p, n := range c {
		if n > 0 {
			a.Give(Part(p), n)
		}
	}
}

func newBlocks(unit uint64) *blocks {
	b := &blocks{users: map[uint64]sharer{}}
	b.unit.Store(unit)
	return b
}

// atLeast makes the unit larger, while no grant is there.
func (b *blocks) atLeast(unit uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.users) == 0 {
		advance(&b.unit, unit)
	}
}

// most is what a grant may need: whole blocks of its own. What is too large to be rounded is
// left, and refused.
func (b *blocks) most(bytes uint64) uint64 {
	unit := b.unit.Load()
	if bytes > math.MaxUint64-unit {
		return bytes
	}
	return (bytes + unit - 1) / unit * unit
}

// enter adds a grant and returns the bytes of the blocks that were opened for it, which count
// as its part.
func (b *blocks) enter(addr, bytes uint64, p Part) (opened uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	opened = b.filled(addr, bytes)
	for _, number := range b.shared(addr, bytes) {
		s, ok := b.users[number]
		if !ok {
			s.part = p
			opened += b.unit.Load()
		}
		s.grants++
		b.users[number] = s
	}
	return opened
}

// leave removes a grant of a part and returns the bytes of the blocks that close with it.
func (b *blocks) leave(addr, bytes uint64, p Part) (c closed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c[p] = b.filled(addr, bytes)
	for _, number := range b.shared(addr, bytes) {
		s := b.users[number]
		if s.grants--; s.grants > 0 {
			b.users[number] = s
			continue
		}
		delete(b.users, number)
		c[s.part] += b.unit.Load()
	}
	return c
}

// filled returns the bytes of the blocks that a grant fills: nobody else is in them.
func (b *blocks) filled(addr, bytes uint64) uint64 {
	unit := b.unit.Load()
	first, end := (addr+unit-1)/unit, (addr+bytes)/unit
	return (max(end, first) - first) * unit
}

// shared returns the numbers of the blocks that a grant is in and does not fill: at its two ends,
// or the only one.
func (b *blocks) shared(addr, bytes uint64) []uint64 {
	if bytes == 0 {
		return nil
	}
	numbers := make([]uint64, 0, 2)
	unit := b.unit.Load()
	first, last := addr/unit, (addr+bytes-1)/unit
	fillsFirst, fillsLast := addr%unit == 0, (addr+bytes)%unit == 0
	if first == last {
		if !fillsFirst || !fillsLast {
			numbers = append(numbers, first)
		}
		return numbers
	}
	if !fillsFirst {
		numbers = append(numbers, first)
	}
	if !fillsLast {
		numbers = append(numbers, last)
	}
	return numbers
}
