// The driver's blocks that grants lie in.

package shim

import "math"

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
// The caller locks.
type blocks struct {
	unit  uint64
	users map[uint64]int // grants in a block that they do not fill, by its number
}

func newBlocks(unit uint64) blocks { return blocks{unit, map[uint64]int{}} }

// most is what a grant may need: whole blocks of its own. What is too large to be rounded is
// left, and refused.
func (b blocks) most(bytes uint64) uint64 {
	if bytes > math.MaxUint64-b.unit {
		return bytes
	}
	return (bytes + b.unit - 1) / b.unit * b.unit
}

// enter adds a grant and returns the bytes of the blocks that were opened for it.
func (b blocks) enter(addr, bytes uint64) (opened uint64) {
	return b.each(addr, bytes, func(number uint64) bool {
		b.users[number]++
		return b.users[number] == 1
	})
}

// leave removes a grant and returns the bytes of the blocks that close with it.
func (b blocks) leave(addr, bytes uint64) (closed uint64) {
	return b.each(addr, bytes, func(number uint64) bool {
		if b.users[number]--; b.users[number] > 0 {
			return false
		}
		delete(b.users, number)
		return true
	})
}

// each returns the bytes of the blocks that a grant fills, and of those at its ends for which
// part reports true.
func (b blocks) each(addr, bytes uint64, part func(number uint64) bool) (sum uint64) {
	if bytes == 0 {
		return 0
	}
	first, last := addr/b.unit, (addr+bytes-1)/b.unit
	sum = (last - first + 1) * b.unit
	fillsFirst, fillsLast := addr%b.unit == 0, (addr+bytes)%b.unit == 0
	if first == last {
		fillsFirst, fillsLast = fillsFirst && fillsLast, true
	}
	if !fillsFirst && !part(first) {
		sum -= b.unit
	}
	if !fillsLast && !part(last) {
		sum -= b.unit
	}
	return sum
}
