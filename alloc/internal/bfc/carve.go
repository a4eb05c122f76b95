package bfc

// The free chunk that serves a request, and how it is cut: FindChunkPtr and SplitChunk
// of the original.
//
// Two ends, in a partitioned pool of 4 MiB whose ordinary blocks lie at the lower end.
// Addresses are in MiB, G is the gap:
//
//	                       G [0, 4)
//	ordinary A, 1 MiB      A [0, 1)  G [1, 4)
//	collective B, 1 MiB    A [0, 1)  G [1, 3)  B [3, 4)
//	ordinary C, 1.5 MiB    A [0, 1)  C [1, 3)  B [3, 4)   the gap is not twice as large,
//	                                                      so that C gets all of it
//	free A                 free lower [0, 1)  C [1, 3)  B [3, 4)
//	collective, 1 MiB      refused: the free chunk belongs to the lower end
//	free C                 the neighbour above is not lower, so C becomes gap; joined with
//	                       a chunk of another tag it stays gap: G [0, 3)
//
// Below is what lies at lower addresses of the block in its chunk, above what lies at
// higher ones. With an alignment of 1 MiB an ordinary block of 0.5 MiB in [1.75, 4)
// lies at 2: 0.25 MiB below, 1.5 above. The part below becomes a free chunk of the
// block's end; the part above keeps its tag.

import "gpumem/alloc/internal/chunks"

// find returns the chunk to use, 0 if none fits. It stays among the free ones. The gap
// comes last, however small the waste there would be.
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

// inGap returns the central gap if the request fits there, else 0.
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
	if a.arena != nil && end != a.home && at+n > a.arena.addr+a.arena.first {
		return false // collective memory stays where the pool began
	}
	return at >= c.Addr && at-c.Addr <= c.Size-n
}

// place returns the aligned address nearest to the given end of chunk c for n bytes,
// which are at most its size. If no aligned block fits it lies outside the chunk, so
// that fits must look at it. -align is the mask of a power of two.
func place(c *chunks.Chunk, end uint8, n, align uint64) uint64 {
	if end == tagUpper {
		return (c.Addr + c.Size - n) & -align
	}
	return (c.Addr + align - 1) & -align
}

// carve takes chunk h, which fits, out of the free ones and cuts it to the
// request. The chunk that it returns is the block's. What lies towards the end
// of the pool is there for alignment only and becomes a free chunk of that end. What
// lies on the other side keeps its tag, gap or not. Collective memory gets
// just what it asks for. An ordinary block also gets the rest if that is not worth
// a cut.
//
// At the upper end the rest below is given away only if the chunk begins aligned:
// otherwise the block, which would begin with the chunk, would not be.
func (a *Allocator) carve(h chunks.H, end uint8, n, align uint64) (chunks.H, *chunks.Chunk) {
	c := a.store.At(h)
	a.takeFree(h, c)
	at := place(c, end, n, align)
	// The three parts. The block is made of the middle one and of what is not worth a cut.
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
// n bytes: the split rule of the original, which holds for the central gap, too. The
// chunk is twice the request then, or 128 MiB larger. A rest of 300 MiB after a request
// of 400 is cut off by the second, one of 100 MiB is not. Upstream's code of August 2026
// and later always cuts the gap.
func (a *Allocator) worth(rest, n uint64) bool { return rest >= n || rest >= a.waste }

// cut takes off what chunk h, which is in no index and larger than n bytes, has
// beyond them, if that is worth it. The chunk that it returns is the block's. It is
// carve for the common case: no alignment, and the block at the end of ordinary memory.
// The block lies at the chunk's lower end, or in a pool that works top down at its
// upper end.
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
// the same tag, in no index. The new number goes to the upper part whichever is to be
// the block, as in the original: reports print the numbers.
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

// takeFree takes a free chunk out of its index, or ends its being the gap. It is called
// before size, address or tag of a free chunk change, as the index orders by them.
func (a *Allocator) takeFree(h chunks.H, c *chunks.Chunk) {
	if h == a.gap {
		a.gap = 0
		return
	}
	a.free[c.Tag].Remove(h, c)
}

// putFree puts a free chunk into the index of its tag, or makes it the gap.
// The rest of what a partitioned pool does is kept out of the common path.
func (a *Allocator) putFree(h chunks.H, c *chunks.Chunk) {
	if c.Tag != a.home {
		a.putTagged(h, c)
		return
	}
	a.ordinary.Insert(h, c)
}

// putTagged is putFree for the gap and for free chunks of the collective end, whose
// index is made when there is one.
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
