package sim

import (
	"cmp"
	"slices"
)

// smallStep is how small grants lie in a block: at multiples of 512 bytes, the
// unit of cuMemAlloc on NVIDIA's GPUs.
const smallStep = 512

// blocks are the 2 MiB blocks that small grants share, as the cost model sees
// them: a grant is cheap if some open block has room for it, and releasing it
// is cheap if something else still lies in its block. Room is counted in bytes;
// where the holes in a block lie does not matter.
type blocks struct {
	left map[uint64]uint64 // room in each open block, by its number
	open []room            // the same, sorted
	last uint64            // number of the newest block; the first is 1
}

// room is one open block. Sorted by room and then number, so that the same
// calls cost the same time in every run.
type room struct {
	left uint64 // bytes
	id   uint64
}

func compareRooms(a, b room) int {
	return cmp.Or(cmp.Compare(a.left, b.left), cmp.Compare(a.id, b.id))
}

// take finds room for n bytes, at most a block, and says in which block it is
// and whether that had to be opened.
func (b *blocks) take(n uint64) (id uint64, opened bool) {
	i, _ := slices.BinarySearchFunc(b.open, room{left: n}, compareRooms)
	if i < len(b.open) {
		r := b.open[i]
		b.open = slices.Delete(b.open, i, i+1)
		b.put(room{r.left - n, r.id})
		return r.id, false
	}
	b.last++
	b.put(room{driverBlock - n, b.last})
	return b.last, true
}

// give returns n bytes to the block that take named, and reports whether that
// closed it, nothing else being in it.
func (b *blocks) give(id, n uint64) (closed bool) {
	r := room{b.left[id], id}
	i, _ := slices.BinarySearchFunc(b.open, r, compareRooms)
	b.open = slices.Delete(b.open, i, i+1)
	if r.left += n; r.left == driverBlock {
		delete(b.left, id)
		return true
	}
	b.put(r)
	return false
}

func (b *blocks) put(r room) {
	i, _ := slices.BinarySearchFunc(b.open, r, compareRooms)
	b.open = slices.Insert(b.open, i, r)
	b.left[r.id] = r.left
}
