package bfc

// Which free chunk serves a request, and how it is cut.

import "gpumem/alloc/internal/chunks"

// find is the chunk to use, 0 if none fits. It stays where it is.
func (a *Allocator) find(end uint8, n, align uint64) chunks.H {
	x := a.free[end]
	if align == MinAllocation {
		if x != nil {
			if h := x.Find(n); h != 0 {
				return h
			}
		}
	} else if x != nil {
		// A chunk that is large enough can still be refused, by its alignment, so the
		// order is followed from the best fit on.
		for h := x.Find(n); h != 0; h = x.After(h) {
			if a.fits(h, end, n, align) {
				return h
			}
		}
	}
	return a.inGap(end, n, align)
}

// inGap is the central gap if the request fits there, else 0.
func (a *Allocator) inGap(end uint8, n, align uint64) chunks.H {
	if a.gap != 0 && a.fits(a.gap, end, n, align) {
		return a.gap
	}
	return 0
}

// fits reports whether n bytes can be cut from h at the given end.
func (a *Allocator) fits(h chunks.H, end uint8, n, align uint64) bool {
	c := a.store.At(h)
	if c.Size < n {
		return false
	}
	at := place(c, end, n, align)
	return at >= c.Addr && at-c.Addr <= c.Size-n
}

// place is the aligned address nearest to the given end of chunk c at which n
// bytes, which are at most its size, end or begin within it. Where there is
// none it lies outside.
func place(c *chunks.Chunk, end uint8, n, align uint64) uint64 {
	if end == tagUpper {
		return (c.Addr + c.Size - n) & -align
	}
	return (c.Addr + align - 1) & -align
}

// carve takes chunk h, which fits, out of the free ones and cuts it to the
// request. The chunk that it returns is the block's. What lies towards the end
// of the pool is there for alignment only and becomes a hole of that end. What
// lies on the other side stays what it was, gap or hole. Collective memory gets
// just what it asks for, an ordinary block the rest, too, if that is not worth
// a cut.
func (a *Allocator) carve(h chunks.H, end uint8, n, align uint64) (chunks.H, *chunks.Chunk) {
	c := a.store.At(h)
	a.takeFree(h, c)
	at := place(c, end, n, align)
	below, above := at-c.Addr, c.Addr+c.Size-n-at
	belowTag, aboveTag := c.Tag, c.Tag
	if end == tagLower {
		belowTag = tagLower
		if end == a.home && !a.worth(above, n) {
			above = 0
		}
	} else {
		aboveTag = tagUpper
		if end == a.home && !a.worth(below, n) && c.Addr&(align-1) == 0 {
			below = 0
		}
	}
	if below > 0 {
		rest, r := a.split(h, c, below)
		c.Tag = belowTag
		a.putFree(h, c)
		h, c = rest, r
	}
	if above > 0 {
		rest, r := a.split(h, c, c.Size-above)
		r.Tag = aboveTag
		a.putFree(rest, r)
	}
	return h, c
}

// worth reports whether a rest of that many bytes is cut off a chunk that serves
// n bytes: the split rule of the original, which holds for the central gap, too.
func (a *Allocator) worth(rest, n uint64) bool { return rest >= n || rest >= a.waste }

// cut takes off what chunk h, which is in no index and larger than n bytes, has
// beyond them, if that is worth it. The chunk that it returns is the block's.
func (a *Allocator) cut(h chunks.H, c *chunks.Chunk, n uint64) (chunks.H, *chunks.Chunk) {
	rest := c.Size - n
	if !a.worth(rest, n) {
		return h, c
	}
	if a.home == tagLower {
		a.putFree(a.split(h, c, n))
		return h, c
	}
	block, b := a.split(h, c, rest)
	a.putFree(h, c)
	return block, b
}

// split cuts chunk h after size bytes. The upper part is a new chunk, free, of
// the same tag, in no index.
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
	if c.Tag != a.home {
		a.putTagged(h, c)
		return
	}
	a.ordinary.Insert(h, c)
}

// putTagged is putFree for the gap and for holes of the collective end.
func (a *Allocator) putTagged(h chunks.H, c *chunks.Chunk) {
	if c.Tag == tagGap {
		if a.gap == 0 {
			a.gap = h
			return
		}
		// There is a gap elsewhere: this one lies in a later region, which is
		// used as an unpartitioned pool would use it.
		c.Tag = a.home
	}
	x := a.free[c.Tag]
	if x == nil {
		x = chunks.NewIndex(&a.store, a.cfg.Limit)
		a.free[c.Tag] = x
	}
	x.Insert(h, c)
}
