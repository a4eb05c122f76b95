package bfc

// Which free chunk serves a request, and how it is cut.

import "gpumem/alloc/internal/chunks"

// find is the chunk to use, 0 if none fits. It stays where it is.
func (a *Allocator) find(end uint8, n, align, freedBefore uint64) chunks.H {
	x := a.free[end]
	if align == MinAllocation && freedBefore == 0 {
		if x != nil {
			if h := x.Find(n); h != 0 {
				return h
			}
		}
	} else if x != nil {
		// A chunk that is large enough can still be refused, by its alignment or
		// its age, so the order is followed from the best fit on.
		for h := x.Find(n); h != 0; h = x.After(h) {
			if a.fits(h, end, n, align, freedBefore) {
				return h
			}
		}
	}
	return a.inGap(end, n, align, freedBefore)
}

// inGap is the central gap if the request fits there, else 0.
func (a *Allocator) inGap(end uint8, n, align, freedBefore uint64) chunks.H {
	if a.gap != 0 && a.fits(a.gap, end, n, align, freedBefore) {
		return a.gap
	}
	return 0
}

// fits says whether n bytes can be cut from h at the given end.
func (a *Allocator) fits(h chunks.H, end uint8, n, align, freedBefore uint64) bool {
	c := a.store.At(h)
	if c.Size < n || freedBefore > 0 && a.age(h) > freedBefore {
		return false
	}
	if end == tagUpper {
		return (c.Addr+c.Size-n)&-align >= c.Addr
	}
	pad := -c.Addr & (align - 1)
	return pad <= c.Size-n
}

// carve takes chunk h, which fits, out of the free ones and cuts it to the
// request. The chunk that it returns is the block's.
func (a *Allocator) carve(h chunks.H, end uint8, n, align uint64) (chunks.H, *chunks.Chunk) {
	c := a.store.At(h)
	a.takeFree(h, c)
	if end == tagUpper {
		// Exact at both sides: what lies below stays what it was (gap or hole),
		// what lies above is a hole of the upper end.
		start := (c.Addr + c.Size - n) & -align
		if start > c.Addr {
			rest, r := a.split(h, c, start-c.Addr)
			a.putFree(h, c)
			h, c = rest, r
		}
		if c.Size > n {
			rest, r := a.split(h, c, n)
			r.Tag = tagUpper
			a.putFree(rest, r)
		}
		return h, c
	}
	if pad := -c.Addr & (align - 1); pad > 0 {
		rest, r := a.split(h, c, pad)
		c.Tag = tagLower
		a.putFree(h, c)
		h, c = rest, r
	}
	a.cut(h, c, n)
	return h, c
}

// cut takes off what chunk h, which is in no index, has beyond n bytes, if that
// is worth it: the split rule of the original, which holds for the central gap,
// too.
func (a *Allocator) cut(h chunks.H, c *chunks.Chunk, n uint64) {
	if over := c.Size - n; over > 0 && (over >= n || over >= a.waste) {
		a.putFree(a.split(h, c, n))
	}
}

// split cuts chunk h after size bytes. The upper part is a new chunk, free, of
// the same tag and age, in no index.
func (a *Allocator) split(h chunks.H, c *chunks.Chunk, size uint64) (chunks.H, *chunks.Chunk) {
	rest, r := a.store.New()
	r.State = chunks.Free
	r.Addr = c.Addr + size
	r.Size = c.Size - size
	r.Tag = c.Tag
	r.Prev, r.Next = h, c.Next
	if c.Next != 0 {
		a.store.At(c.Next).Prev = rest
	}
	c.Size = size
	c.Next = rest
	if a.timed {
		a.setAge(rest, a.age(h))
	}
	return rest, r
}

// takeFree takes a free chunk out of its index, or off its place as the gap.
func (a *Allocator) takeFree(h chunks.H, c *chunks.Chunk) {
	if h == a.gap {
		a.gap = 0
		return
	}
	a.free[c.Tag].Remove(h, c)
}

// putFree puts a free chunk into the index of its tag, or makes it the gap.
// What a partitioned pool does besides is kept out of the common path.
func (a *Allocator) putFree(h chunks.H, c *chunks.Chunk) {
	if c.Tag != tagLower {
		a.putTagged(h, c)
		return
	}
	a.free[tagLower].Insert(h, c)
}

// putTagged is putFree in a partitioned pool.
func (a *Allocator) putTagged(h chunks.H, c *chunks.Chunk) {
	if c.Tag == tagGap {
		if a.gap == 0 {
			a.gap = h
			return
		}
		// There is a gap elsewhere: this one lies in a later region, which is
		// used as an unpartitioned pool would use it.
		c.Tag = tagLower
	}
	if c.Tag == tagUpper && a.free[tagUpper] == nil {
		a.free[tagUpper] = chunks.NewIndex(&a.store, a.cfg.Limit)
	}
	a.free[c.Tag].Insert(h, c)
}
