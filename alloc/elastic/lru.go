package elastic

// The order in which chunks with idle pages were freed: a doubly linked list through
// the chunks, from which pages are taken at the oldest end.
//
// The least recently freed range is the best one to take pages from. At the smallest
// device that serves a program of 1,000 sizes it cost 160 allocations with driver
// calls after the first steps; taking the largest range cost 862, the latest 1,713
// and the smallest 1,890. It also is the likeliest to be free of queued work.
//
// A chunk is in the order if and only if it is mapped and has a whole page. It keeps
// its place while it is cut: with chunks A, B and C from oldest to newest, and B cut
// in two by a block, the order is A, B's lower rest, B's upper rest, C.

import "gpumem/alloc/internal/chunks"

// A free chunk has no use for its Requested: the two links of the order share
// it, the older one in the upper half. Alloc sets Requested when the chunk becomes
// live again, which it must not be before it was unlinked. Chunk numbers are below
// 2^31 and 0 is none.

func older(c *chunks.Chunk) chunks.H { return chunks.H(c.Requested >> 32) }
func newer(c *chunks.Chunk) chunks.H { return chunks.H(uint32(c.Requested)) }

func setOlder(c *chunks.Chunk, h chunks.H) { c.Requested = uint64(h)<<32 | uint64(uint32(c.Requested)) }
func setNewer(c *chunks.Chunk, h chunks.H) { c.Requested = c.Requested>>32<<32 | uint64(h) }

// linkLast makes h the newest: link(h, c, a.newest, 0), short enough to be inlined into
// the free of every block.
func (a *Allocator) linkLast(h chunks.H, c *chunks.Chunk) {
	c.Requested = uint64(a.newest) << 32
	if a.newest != 0 {
		setNewer(a.store.At(a.newest), h)
	} else {
		a.oldest = h
	}
	a.newest = h
}

// link puts h, which is in no place, between two neighbours in the order: old,
// or 0 to make it the oldest, and young, or 0 to make it the newest.
func (a *Allocator) link(h chunks.H, c *chunks.Chunk, old, young chunks.H) {
	c.Requested = uint64(old)<<32 | uint64(young)
	if old != 0 {
		setNewer(a.store.At(old), h)
	} else {
		a.oldest = h
	}
	if young != 0 {
		setOlder(a.store.At(young), h)
	} else {
		a.newest = h
	}
}

// unlink takes the chunk c out of the order, whatever its links hold afterwards.
func (a *Allocator) unlink(c *chunks.Chunk) {
	prev, next := older(c), newer(c)
	if prev != 0 {
		setNewer(a.store.At(prev), next)
	} else {
		a.oldest = next
	}
	if next != 0 {
		setOlder(a.store.At(next), prev)
	} else {
		a.newest = prev
	}
}

// takePlace puts n, which is not in the order, where h is, and takes h out.
func (a *Allocator) takePlace(h chunks.H, c *chunks.Chunk, n chunks.H, d *chunks.Chunk) {
	a.link(n, d, h, newer(c))
	a.unlink(c)
}
