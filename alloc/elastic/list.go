package elastic

// Chunks cut and joined. After each exported step (carve, free, isolate with settle)
// the chunks tile their space, free ones are in the index of their kind, no two free
// neighbours are of one kind, and the chunks with idle pages are in the order of
// lru.go, once each.
//
// carve and free are the two that a program in its steady state runs. The others
// change what is mapped and run with a driver call beside them.
//
// One life of a chunk, in MiB, pages of 2 MiB. M is mapped, U unmapped, and held
// counts the pages with a live byte:
//
//	                       U [0, 40)
//	back maps 3 pages      U [0, 10)  M [10, 16)  U [16, 40)       held 0, order M
//	carve 5 MiB at 10      U [0, 10)  live [10, 15)  M [15, 16) ... held 3, order empty
//	free it                U [0, 10)  M [10, 16)  U [16, 40)       held 0, order M
//	steal takes [10, 14)   U [0, 14)  M [14, 16)  U [16, 40)       held 0, order M
//
// A gap such as M [15, 16) is in the index, where small ends of blocks find it, but
// not in the order: it has no page to take. In the last line isolate cuts the two
// pages out of M, and settle joins them with U [0, 10).

import "gpumem/alloc/internal/chunks"

// Tags. Of free chunks the first two, of live ones the others. An ordinary block keeps
// tagMapped from the chunk that it was cut out of.
const (
	tagMapped   uint8 = iota // every byte has memory behind it; also of an ordinary block
	tagUnmapped              // whole pages with none
	tagWhole                 // a block with a dedicated handle
	tagStuck                 // pages that the driver neither let us use nor took back: live for ever, and no block
)

// isBlock reports whether a chunk was handed out. Stuck pages are live, so that nothing
// is joined with them, and no block.
func isBlock(c *chunks.Chunk) bool { return c.State == chunks.Live && c.Tag != tagStuck }

func end(c *chunks.Chunk) uint64 { return c.Addr + c.Size }

// down and up round an address, or a size, to whole pages.
func (a *Allocator) down(x uint64) uint64 { return x &^ a.mask }
func (a *Allocator) up(x uint64) uint64   { return (x + a.mask) &^ a.mask }

// wholes returns how many whole pages lie in [lo, hi). Of a mapped chunk these are
// its idle pages: a page is held if and only if it lies wholly inside no free chunk,
// so that no count is kept for each page.
func (a *Allocator) wholes(lo, hi uint64) uint64 {
	f, e := (lo+a.mask)>>a.shift, hi>>a.shift
	if e <= f {
		return 0
	}
	return e - f
}

// index returns the index of a kind of free chunk.
func (sp *space) index(tag uint8) *chunks.Index {
	if tag == tagUnmapped {
		return sp.unmapped
	}
	return sp.mapped
}

// holding returns the chunk that x lies in, found by walking from h, which is in the
// same space. Callers have an h that is near.
func (a *Allocator) holding(h chunks.H, x uint64) chunks.H {
	c := a.store.At(h)
	for x < c.Addr {
		h = c.Prev
		c = a.store.At(h)
	}
	for x >= end(c) {
		h = c.Next
		c = a.store.At(h)
	}
	return h
}

// cut cuts chunk h after size bytes. The upper part is a new chunk, in no index
// and in no order.
func (a *Allocator) cut(h chunks.H, c *chunks.Chunk, size uint64) (chunks.H, *chunks.Chunk) {
	n, d := a.store.New()
	d.Addr = c.Addr + size
	d.Size = c.Size - size
	d.State, d.Tag, d.Stream = c.State, c.Tag, c.Stream
	d.Prev, d.Next = h, c.Next
	if c.Next != 0 {
		a.store.At(c.Next).Prev = n
	}
	c.Size = size
	c.Next = n
	return n, d
}

// carve takes [x, x+n) out of the mapped chunk h of sp, which was taken out of
// its index. The chunk that it returns is the block's and not yet live. The rest
// keeps its place in the order: what is left of h keeps its number for that, also
// where the block is cut off its lower end, as most are, so that no link changes.
//
// held grows by the pages that were idle and are not any more: of [10, 16) all three
// are, of the rest [15, 16) none.
func (a *Allocator) carve(sp *space, h chunks.H, c *chunks.Chunk, x, n uint64) (chunks.H, *chunks.Chunk) {
	lo, hi := c.Addr, end(c)
	all, below, above := a.wholes(lo, hi), a.wholes(lo, x), a.wholes(x+n, hi)
	a.held += all - below - above
	if all > 0 && below+above == 0 {
		a.unlink(c)
	}
	switch {
	case c.Size == n:
		return h, c
	case x == lo:
		m, d := a.store.New()
		d.Addr, d.Size, d.Tag = lo, n, tagMapped
		d.Prev, d.Next = c.Prev, h
		if c.Prev != 0 {
			a.store.At(c.Prev).Next = m
		} else {
			sp.first = m
		}
		c.Addr, c.Size, c.Prev = x+n, c.Size-n, m
		sp.mapped.Insert(h, c)
		return m, d
	case hi > x+n:
		r, d := a.cut(h, c, x+n-lo)
		sp.mapped.Insert(r, d)
		if above > 0 {
			a.link(r, d, h, newer(c))
			if below == 0 {
				a.unlink(c)
			}
		}
	}
	m, d := a.cut(h, c, x-lo)
	sp.mapped.Insert(h, c)
	return m, d
}

// free makes the ordinary block h a mapped chunk, joined with mapped neighbours, and
// the newest in the order. It is stamped with the open epoch, which is no earlier than
// that of the neighbours, so what they waited for is waited for too.
//
// held falls by the pages that are idle in the joined chunk and were not idle in a
// neighbour: freeing [15, 17) between M [10, 15) and M [17, 20) makes the pages at 14
// and 16 idle, and those at 10, 12 and 18 were.
func (a *Allocator) free(h chunks.H, c *chunks.Chunk) {
	ix := a.space(c.Addr).mapped
	was := uint64(0) // pages that were idle before
	if n := c.Next; n != 0 {
		if d := a.store.At(n); d.State == chunks.Free && d.Tag == tagMapped {
			ix.Remove(n, d)
			if w := a.wholes(d.Addr, end(d)); w > 0 {
				was += w
				a.unlink(d)
			}
			a.swallow(h, c, n, d)
		}
	}
	if p := c.Prev; p != 0 {
		if d := a.store.At(p); d.State == chunks.Free && d.Tag == tagMapped {
			ix.Remove(p, d)
			if w := a.wholes(d.Addr, end(d)); w > 0 {
				was += w
				a.unlink(d)
			}
			a.swallow(p, d, h, c)
			h, c = p, d
		}
	}
	c.State, c.Tag, c.Stream = chunks.Free, tagMapped, a.epochs.Stamp()
	ix.Insert(h, c)
	if w := a.wholes(c.Addr, end(c)); w > 0 {
		a.held -= w - was
		a.linkLast(h, c)
	}
}

// swallow joins chunk n, which lies right above chunk h, into that. Neither is
// in an index. n's number is invalid from then on; back may be holding it as a.at,
// which then becomes h.
func (a *Allocator) swallow(h chunks.H, c *chunks.Chunk, n chunks.H, d *chunks.Chunk) {
	c.Size += d.Size
	c.Next = d.Next
	if d.Next != 0 {
		a.store.At(d.Next).Prev = h
	}
	a.store.Drop(n)
	if a.at == n {
		a.at = h
	}
}

// isolate cuts [lo, hi), whole pages or all of it, out of the free chunk h: what
// is returned is just that, in no index and in no order. The rest stays what it was,
// with its place in the order if it still has a whole page. The caller settles what it
// got, or makes it live.
func (a *Allocator) isolate(h chunks.H, c *chunks.Chunk, lo, hi uint64) (chunks.H, *chunks.Chunk) {
	ix := a.space(c.Addr).index(c.Tag)
	ix.Remove(h, c)
	ordered := c.Tag == tagMapped && a.wholes(c.Addr, end(c)) > 0
	if hi < end(c) {
		r, d := a.cut(h, c, hi-c.Addr)
		ix.Insert(r, d)
		if ordered && a.wholes(d.Addr, end(d)) > 0 {
			a.link(r, d, h, newer(c))
		}
	}
	if lo == c.Addr {
		if ordered {
			a.unlink(c)
		}
		return h, c
	}
	m, d := a.cut(h, c, lo-c.Addr)
	ix.Insert(h, c)
	if ordered && a.wholes(c.Addr, end(c)) == 0 {
		a.unlink(c)
	}
	return m, d
}

// settle puts chunk h, whole pages in no index and in no order, back as a free
// one of that kind, joined with its neighbours. A mapped one that joins none becomes
// the oldest: nothing has used its pages yet.
//
// Joined mapped chunks have the later of their places in the order, and the later
// epoch. The epoch must be the later one, for until that is over some of the bytes may
// be in use. The place should be, because what was freed last is likely to be wanted
// next. Between a chunk below of epoch 7 and one above of epoch 9 the joined one has
// epoch 9 and the place of the one above.
func (a *Allocator) settle(h chunks.H, c *chunks.Chunk, tag uint8) {
	ix := a.space(c.Addr).index(tag)
	c.State, c.Tag, c.Stream = chunks.Free, tag, 0
	placed := false // h has a place in the order
	if n := c.Next; n != 0 {
		if d := a.store.At(n); d.State == chunks.Free && d.Tag == tag {
			ix.Remove(n, d)
			c.Stream = d.Stream
			if tag == tagMapped && a.wholes(d.Addr, end(d)) > 0 {
				a.takePlace(n, d, h, c)
				placed = true
			}
			a.swallow(h, c, n, d)
		}
	}
	if p := c.Prev; p != 0 {
		if d := a.store.At(p); d.State == chunks.Free && d.Tag == tag {
			ix.Remove(p, d)
			ordered := tag == tagMapped && a.wholes(d.Addr, end(d)) > 0
			switch {
			case placed && ordered && d.Stream > c.Stream:
				a.unlink(c)
			case placed:
				if ordered {
					a.unlink(d)
				}
				a.takePlace(h, c, p, d)
			}
			placed = placed || ordered
			d.Stream = max(d.Stream, c.Stream)
			a.swallow(p, d, h, c)
			h, c = p, d
		}
	}
	if tag == tagMapped && !placed {
		a.link(h, c, 0, a.oldest)
	}
	ix.Insert(h, c)
}
