package elastic

// Chunks cut and joined. After each step (carve, free, isolate with settle)
// the chunks tile their space, free ones are in the index of their kind, and no two free
// neighbours are of one kind.
//
// carve and free are the two that a program in its steady state runs. The others
// change what is mapped and run with a driver call beside them.
//
// One life of a chunk, in MiB, pages of 2 MiB. M is mapped, with the number of the
// operation that freed it, U unmapped, and held counts the pages with a live byte:
//
//	                       U [0, 40)
//	back maps 3 pages      U [0, 10)  M0 [10, 16)  U [16, 40)      held 0
//	carve 5 MiB at 10      U [0, 10)  live [10, 15)  M0 [15, 16) . held 3
//	free it                U [0, 10)  M8 [10, 16)  U [16, 40)      held 0
//	steal takes [10, 14)   U [0, 14)  M8 [14, 16)  U [16, 40)      held 0
//
// A gap such as M0 [15, 16) is in the index, where small ends of blocks find it, but
// steal passes it by: it has no page to take. In the last line isolate cuts the two
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

// newHeld returns how many pages that are idle in the mapped chunk [lo, hi) are held by a
// block of n bytes at x: of [10, 16), in MiB, all three by 5 MiB at 10, and none is idle in
// the rest [15, 16).
func (a *Allocator) newHeld(lo, hi, x, n uint64) uint64 {
	return a.wholes(lo, hi) - a.wholes(lo, x) - a.wholes(x+n, hi)
}

// An index has the free chunks of one kind.
type index interface {
	Insert(chunks.H, *chunks.Chunk)
	Remove(chunks.H, *chunks.Chunk)
	Ascend(func(chunks.H) bool)
}

// index returns the index of a kind of free chunk.
func (sp *space) index(tag uint8) index {
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

// cut cuts chunk h after size bytes. The upper part is a new chunk, in no index, with the
// same stamps.
func (a *Allocator) cut(h chunks.H, c *chunks.Chunk, size uint64) (chunks.H, *chunks.Chunk) {
	n, d := a.store.New()
	d.Addr = c.Addr + size
	d.Size = c.Size - size
	d.State, d.Tag, d.Stream, d.Requested = c.State, c.Tag, c.Stream, c.Requested
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
// keeps its stamps. held grows by newHeld, the pages that were idle and are not any more.
func (a *Allocator) carve(sp *space, h chunks.H, c *chunks.Chunk, x, n, newHeld uint64) (chunks.H, *chunks.Chunk) {
	a.held += newHeld
	lo, y, hi := c.Addr, x+n, end(c)
	if y < hi {
		r, d := a.cut(h, c, y-lo)
		sp.mapped.Insert(r, d)
	}
	if x == lo {
		return h, c
	}
	m, d := a.cut(h, c, x-lo)
	sp.mapped.Insert(h, c)
	return m, d
}

// free makes the ordinary block h a mapped chunk, joined with mapped neighbours. It is
// stamped with this operation, which makes it the newest, and with the open epoch, which
// is no earlier than that of the neighbours: what they waited for is waited for too.
//
// held falls by the pages that are idle in the joined chunk and were not idle in a
// neighbour: freeing [15, 17) between M [10, 15) and M [17, 20) makes the pages at 14
// and 16 idle, and those at 10, 12 and 18 were.
func (a *Allocator) free(h chunks.H, c *chunks.Chunk) {
	ix := a.space(c.Addr).mapped
	idle := uint64(0) // pages that were idle before
	if n := c.Next; n != 0 {
		if d := a.store.At(n); d.State == chunks.Free && d.Tag == tagMapped {
			ix.Remove(n, d)
			idle = a.wholes(d.Addr, end(d))
			a.swallow(h, c, n, d)
		}
	}
	if p := c.Prev; p != 0 {
		if d := a.store.At(p); d.State == chunks.Free && d.Tag == tagMapped {
			ix.Remove(p, d)
			idle += a.wholes(d.Addr, end(d))
			a.swallow(p, d, h, c)
			h, c = p, d
		}
	}
	c.State, c.Tag, c.Stream, c.Requested = chunks.Free, tagMapped, a.epochs.Stamp(), a.ops+1
	ix.Insert(h, c)
	if c.Size > a.mask { // else it has no whole page
		a.held -= a.wholes(c.Addr, end(c)) - idle
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
// is returned is just that, in no index. The rest stays what it was, with its stamps. The
// caller settles what it got, or makes it live.
func (a *Allocator) isolate(h chunks.H, c *chunks.Chunk, lo, hi uint64) (chunks.H, *chunks.Chunk) {
	ix := a.space(c.Addr).index(c.Tag)
	ix.Remove(h, c)
	if hi < end(c) {
		r, d := a.cut(h, c, hi-c.Addr)
		ix.Insert(r, d)
	}
	if lo == c.Addr {
		return h, c
	}
	m, d := a.cut(h, c, lo-c.Addr)
	ix.Insert(h, c)
	return m, d
}

// settle puts chunk h, whole pages in no index, back as a free
// one of that kind, joined with its neighbours. A mapped one that joins none becomes
// the oldest: nothing has used its pages yet.
//
// Joined mapped chunks have the later of their places by age, and the later
// epoch. The epoch must be the later one, for until that is over some of the bytes may
// be in use. The place should be, because what was freed last is likely to be wanted
// next. Between a chunk below of epoch 7 and one above of epoch 9 the joined one has
// epoch 9 and the place of the one above.
func (a *Allocator) settle(h chunks.H, c *chunks.Chunk, tag uint8) {
	ix := a.space(c.Addr).index(tag)
	c.State, c.Tag, c.Stream, c.Requested = chunks.Free, tag, 0, 0
	if n := c.Next; n != 0 {
		if d := a.store.At(n); d.State == chunks.Free && d.Tag == tag {
			ix.Remove(n, d)
			c.Stream, c.Requested = d.Stream, d.Requested
			a.swallow(h, c, n, d)
		}
	}
	if p := c.Prev; p != 0 {
		if d := a.store.At(p); d.State == chunks.Free && d.Tag == tag {
			ix.Remove(p, d)
			d.Stream, d.Requested = max(d.Stream, c.Stream), max(d.Requested, c.Requested)
			a.swallow(p, d, h, c)
			h, c = p, d
		}
	}
	ix.Insert(h, c)
}
