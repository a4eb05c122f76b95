package elastic

// The order in which chunks with idle pages were freed: where pages are taken
// from first. A list, linked through the chunks.
//
// A chunk keeps its place while it is cut, so the oldest pages are at one end.

import "gpumem/alloc/internal/chunks"

// A free chunk has no use for its Requested: the two links of the order share
// it, the older one in the upper half.

func older(c *chunks.Chunk) chunks.H { return chunks.H(c.Requested >> 32) }
func newer(c *chunks.Chunk) chunks.H { return chunks.H(uint32(c.Requested)) }

func setOlder(c *chunks.Chunk, h chunks.H) { c.Requested = uint64(h)<<32 | uint64(uint32(c.Requested)) }
func setNewer(c *chunks.Chunk, h chunks.H) { c.Requested = c.Requested>>32<<32 | uint64(h) }

// linkLast makes h the newest.
func (a *Allocator) linkLast(h chunks.H, c *chunks.Chunk) {
	c.Requested = uint64(a.newest) << 32
	if a.newest != 0 {
		setNewer(a.store.At(a.newest), h)
	} else {
		a.oldest = h
	}
	a.newest = h
}

// linkFirst makes h the oldest.
func (a *Allocator) linkFirst(h chunks.H, c *chunks.Chunk) {
	c.Requested = uint64(a.oldest)
	if a.oldest != 0 {
		setOlder(a.store.At(a.oldest), h)
	} else {
		a.newest = h
	}
	a.oldest = h
}

// linkAfter puts n right behind h.
func (a *Allocator) linkAfter(h chunks.H, c *chunks.Chunk, n chunks.H, d *chunks.Chunk) {
	next := newer(c)
	d.Requested = uint64(h)<<32 | uint64(next)
	setNewer(c, n)
	if next != 0 {
		setOlder(a.store.At(next), n)
	} else {
		a.newest = n
	}
}

// unlink takes the chunk c out.
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
	a.linkAfter(h, c, n, d)
	a.unlink(c)
}
