package elastic

// Placement of a block.
//
// A spot is a first address x for a block. Its cost is four numbers: pages to be
// mapped, pages held that are not held now, bytes wasted, and x itself. Wasted are
// the free bytes left in the pages at the block's edges, where only something small
// could go later. They include a gap next door that the block shuts off: while free
// addresses lie beside a gap, the odd end of some large block can still grow into
// it. Without that term, and without air, a program of 1,000 sizes needed 3.5 % more
// than its live bytes; with both it is 1 %.
//
// Small blocks are put side by side from low addresses on, across the ends of pages, as
// dense as they come: they have no air, and no waste counts. With these, 4,000 blocks of
// 1.01 MiB took a page each.
//
// In a free chunk [a, b) six spots for a block of k pages and r bytes make sense:
//
//	at a; at b-n                 flush with the neighbours
//	at the first page; r bytes below it: the odd end in the gap below
//	k pages below the end of the last page: the odd end in the gap above; k+1 below
//
// For a block of 5 MiB (k = 2 pages, r = 1 MiB) in [3, 13), in MiB, these are 3 and
// 8; 4 and 3; 8 and 6. The first page begins at 4, the last one ends at 12. At 4 the
// block holds three pages more, at 4, 6 and 8, and leaves [3, 4) and [9, 10) as
// gaps: 2 MiB wasted. At 3 it touches the pages at 2, 4 and 6, the first of which a
// neighbour holds: two pages more and nothing wasted. So does the block at 8; 3 is
// the lower address.
//
// A spot may run on into free neighbours, which is how an unmapped chunk beside
// a gap is found. For a large block only spots count that touch no more pages
// than it needs; that is what the promise of the package rests on.
//
// Two searches share these rules. fit looks at one mapped chunk, the best fit, and
// is what a program in its steady state pays: no list, no score of neighbours.
// search looks at about 35 chunks and runs when pages must be mapped, where a driver
// call of 65 us dwarfs it.

import (
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
)

const (
	// tries is how many gaps are looked at for one that takes the odd end of a
	// block, the smallest first. It bounds the time of a miss; the experiments were
	// made with 32.
	tries = 32
	// air is how many pages stay free on either side of a block in fresh
	// addresses, so that later ones can share its edge pages. Without any, a
	// program of random sizes holds 3 % more; with 16 or 512 pages it holds the
	// same as with 64. It costs addresses, of which there are 64 times the limit: a block of
	// 2 MiB takes 65 pages of them. So there is less air once only one part in keepRun
	// of the addresses for large blocks is left in one piece, 12 times the limit, which
	// is kept for blocks that find no other place. Blocks of up to 64 pages then lie in the
	// air of others.
	air     = 64
	keepRun = 4
	// A small block gets all of a chunk that is larger by at most one part in 8, unless
	// pages are short. With none a program of random sizes takes 2.0 times bfc's time instead
	// of 1.1; the pages that programs need stay the same within one or two in a thousand.
	keepPart = 8
)

// errAddresses is returned when blocks are scattered over the addresses so that no
// run of free ones is long enough. With 64 times the limit in addresses that takes a
// program written for it (see keepRun); a driver that reserves few addresses makes it
// likelier.
var errAddresses = fmt.Errorf("%w: pages are free, but no addresses in one piece", alloc.ErrNoMemory)

// spot is where a block may go.
type spot struct {
	h       chunks.H // the chunk that x lies in
	x       uint64
	newMap  uint64 // pages to be mapped
	newHeld uint64 // pages that are held then and are not now
	waste   uint64 // bytes
}

// fit carves the block out of its best fit, if it fits there without a page to
// be mapped, and without one held too many when pages are short. Otherwise it
// changes nothing and returns a nil chunk. A small block may get a little more than it
// asked for: a rest of 256 bytes costs a cut now and a join later, and serves nobody.
//
// A small block's chunk is taken out of its index when it is found, since nearly always it
// is used, and put back where it is not. Of large ones half begin where the block cannot.
func (a *Allocator) fit(n uint64) (chunks.H, *chunks.Chunk) {
	if n <= a.mask {
		sp := &a.small
		h, c := sp.mapped.Take(n)
		if h == 0 {
			return 0, nil
		}
		tight := a.tight(1)
		if !tight && c.Size-n <= n/keepPart && c.Size <= a.mask { // it stays a small block
			n = c.Size
		}
		newHeld := uint64(0)
		if c.Size > a.mask { // else it has no whole page
			newHeld = a.newHeld(c.Addr, end(c), c.Addr, n)
		}
		if tight && newHeld > 0 {
			sp.mapped.Insert(h, c)
			return 0, nil
		}
		return a.carve(sp, h, c, c.Addr, n, newHeld)
	}
	sp := &a.large
	h := sp.mapped.Find(n)
	if h == 0 {
		return 0, nil
	}
	c := a.store.At(h)
	x, newHeld, ok := a.within(c, n)
	if !ok {
		// Large enough, but it begins where the block would touch a page too
		// many. One that is larger by the part of the last page less 256 bytes (a page
		// less 256 if that is whole) has a spot wherever it begins.
		if h = sp.mapped.Find(n + (n-unit)&a.mask); h == 0 {
			return 0, nil
		}
		c = a.store.At(h)
		x, newHeld, _ = a.within(c, n)
	}
	if newHeld > n>>a.shift && a.tight(a.pages(n)) {
		return 0, nil
	}
	sp.mapped.Remove(h, c)
	return a.carve(sp, h, c, x, n, newHeld)
}

// starts returns the six spots in [lo, hi), see above. Some may lie outside. The first, the
// third and the fourth are at the low end, on which around relies.
func (a *Allocator) starts(lo, hi, n uint64) [6]uint64 {
	odd, even := n&a.mask, n&^a.mask
	first, last := a.up(lo), a.down(hi)
	return [6]uint64{lo, hi - n, first, first - odd, last - even, last - a.up(n)}
}

// legal reports whether a block of n bytes touches no more pages at x than it must.
// A block of 5 MiB needs 3 pages: it may begin up to 1 MiB into its first one. Small
// blocks may straddle two pages: keeping them within one was measured to hold more.
func (a *Allocator) legal(x, n uint64) bool {
	return n <= a.mask || x&a.mask+n <= a.up(n)
}

// within returns the best spot for a large block in the mapped chunk c, which is
// large enough, and how many pages more are held then; false if no spot is legal. All
// of c is mapped, so that pages held come first, then waste, then the lower address.
//
// It chooses among the six spots without scoring them all, which TestWithin does. An odd
// end that fits the gap at one end of the chunk saves a page. In the gap below nothing
// beats the chunk's low end; in the one above, the block begins on a page unless that
// shuts off a part of a page below it. Where no gap takes it, a block at the low end of a
// chunk that begins on a page shuts nothing off. Else it takes the last whole pages, and
// where these are the first ones as well, it ends with the chunk if that ends on a page.
func (a *Allocator) within(c *chunks.Chunk, n uint64) (x, newHeld uint64, ok bool) {
	lo, hi := c.Addr, end(c)
	first, last := a.up(lo), a.down(hi)
	odd := n & a.mask
	if odd == 0 {
		// Whole pages: at the first, or flush with the last where that shuts off
		// less.
		x = first
		if first-lo > hi-last {
			x = last - n
		}
		return x, n >> a.shift, first+n <= last
	}
	low, high := first-lo >= odd, hi-last >= odd
	if !low && !high {
		switch x = last - a.up(n); {
		case first+a.up(n) > last:
			return 0, 0, false
		case first == lo:
			x = first
		case x == first && hi == last:
			x = hi - n
		}
		return x, a.pages(n), true
	}
	x = lo
	if high {
		if x = last - n + odd; x != lo && x-lo <= a.mask {
			x = hi - n
		}
		if low && a.above(lo+n, hi) <= a.below(lo, x)+a.above(x+n, hi) {
			x = lo
		}
	}
	return x, min(last-first, n) >> a.shift, true
}

// below returns the bytes wasted below a block at x, where memory is free from lo on:
// those in the block's first page, or, if it begins on a page, in the page below it
// unless that is free as a whole.
func (a *Allocator) below(lo, x uint64) uint64 {
	if x&a.mask == 0 && x-lo > a.mask {
		return 0 // a page that is free as a whole
	}
	return x - max(lo, a.down(x-1))
}

// above does the same above a block that ends at y, where memory is free up to hi.
func (a *Allocator) above(y, hi uint64) uint64 {
	if y&a.mask == 0 && hi-y > a.mask {
		return 0
	}
	return min(hi, a.up(y+1)) - y
}

// score works out what a spot costs; h is a free chunk near it. False if the
// spot is not free. It walks from h to the chunk that x lies in, then on through the
// chunks that the block would cover: seldom more than three.
func (a *Allocator) score(h chunks.H, x, n uint64) (s spot, ok bool) {
	c := a.store.At(h)
	for x < c.Addr {
		if h = c.Prev; h == 0 {
			return spot{}, false
		}
		if c = a.store.At(h); c.State != chunks.Free {
			return spot{}, false
		}
	}
	for x >= end(c) {
		if h = c.Next; h == 0 {
			return spot{}, false
		}
		if c = a.store.At(h); c.State != chunks.Free {
			return spot{}, false
		}
	}
	s.h, s.x = h, x
	y := x + n
	lo := c.Addr // from here on memory is free, at least a page's worth below x
	if lo == x && c.Prev != 0 {
		if d := a.store.At(c.Prev); d.State == chunks.Free {
			lo = d.Addr
		}
	}
	from, to := a.down(x), a.up(y)
	for {
		if c.Tag == tagUnmapped {
			k := (min(end(c), to) - max(c.Addr, from)) >> a.shift
			s.newMap += k
			s.newHeld += k
		} else if f, l := max(a.up(c.Addr), from), min(a.down(end(c)), to); f < l {
			s.newHeld += (l - f) >> a.shift
		}
		if y <= end(c) {
			break
		}
		if c.Next == 0 {
			return spot{}, false
		}
		if c = a.store.At(c.Next); c.State != chunks.Free {
			return spot{}, false
		}
	}
	hi := end(c)
	if hi == y && c.Next != 0 {
		if d := a.store.At(c.Next); d.State == chunks.Free {
			hi = end(d)
		}
	}
	if n > a.mask {
		s.waste = a.below(lo, x) + a.above(y, hi)
	}
	return s, true
}

// search is one look for a spot for a block of n bytes, with the best found so far.
type search struct {
	a     *Allocator
	n     uint64
	align uint64
	tight bool
	best  spot
	found bool
}

// better reports whether s is before t in the order of spots: by pages mapped, then
// held; when tight the other way round; then by waste and address. The address makes
// the choice unique, so that runs repeat.
func (f *search) better(s, t spot) bool {
	s1, s2, t1, t2 := s.newMap, s.newHeld, t.newMap, t.newHeld
	if f.tight {
		s1, s2, t1, t2 = s2, s1, t2, t1
	}
	switch {
	case s1 != t1:
		return s1 < t1
	case s2 != t2:
		return s2 < t2
	case s.waste != t.waste:
		return s.waste < t.waste
	}
	return s.x < t.x
}

// try considers the spot x; h is a free chunk near it.
func (f *search) try(h chunks.H, x uint64) {
	if !f.a.legal(x, f.n) {
		return
	}
	if s, ok := f.a.score(h, x, f.n); ok && (!f.found || f.better(s, f.best)) {
		f.best, f.found = s, true
	}
}

// around considers the six spots of the free chunk h. With an alignment, spots at the
// low end move up to a multiple of it and spots at the high end down.
func (f *search) around(h chunks.H) {
	c := f.a.store.At(h)
	for i, x := range f.a.starts(c.Addr, end(c), f.n) {
		if f.align > unit {
			if i == 0 || i == 2 || i == 3 {
				x = (x + f.align - 1) &^ (f.align - 1)
			} else {
				x &^= f.align - 1
			}
		}
		f.try(h, x)
	}
}

// enough reports whether looking further is of no use: when pages are short, a
// block whose odd end costs no page is as good as any. A block of 5 MiB that holds 2
// pages more, not 3, has its odd MiB in a page that is held anyway.
func (f *search) enough() bool {
	return f.tight && f.found && f.best.newHeld <= f.n>>f.a.shift
}

// run considers, in this order: the best fit; up to 32 gaps that can take the odd
// end, from the smallest on, if they have free addresses beside them; the largest
// mapped chunk, which may grow into them; fresh addresses.
func (f *search) run(sp *space, need uint64) {
	a := f.a
	if h := sp.mapped.Find(f.n); h != 0 {
		if f.around(h); f.enough() {
			return
		}
	}
	if odd := f.n & a.mask; odd > 0 { // else a gap is of no use
		h := sp.mapped.Find(odd)
		for i := 0; i < tries && h != 0; i++ {
			if c := a.store.At(h); c.Size >= f.n || a.roomy(c) {
				if f.around(h); f.enough() {
					return
				}
			}
			h = sp.mapped.After(h)
		}
	}
	if h := sp.mapped.Largest(); h != 0 {
		if f.around(h); f.enough() {
			return
		}
	}
	f.fresh(sp, need)
}

// roomy reports whether free addresses lie beside a mapped chunk.
func (a *Allocator) roomy(c *chunks.Chunk) bool {
	return c.Prev != 0 && a.store.At(c.Prev).State == chunks.Free ||
		c.Next != 0 && a.store.At(c.Next).State == chunks.Free
}

// fresh considers a spot in addresses with nothing behind them, with as much air
// around it as there is: 64 pages on either side, 16, or none. A block of 3 pages
// takes the smallest unmapped chunk of 131 pages and begins 64 pages into it. A small
// block takes the smallest that is large enough, and begins or ends in a gap beside it.
func (f *search) fresh(sp *space, need uint64) {
	a := f.a
	slip := uint64(0) // what aligning may cost
	if f.align > a.mask {
		slip = f.align - a.mask - 1
	}
	if f.n <= a.mask {
		if h := sp.unmapped.Find(need<<a.shift + slip); h != 0 {
			f.around(h)
			c := a.store.At(h)
			for _, gap := range [...]chunks.H{c.Prev, c.Next} {
				if gap != 0 && a.store.At(gap).State == chunks.Free {
					f.around(gap)
				}
			}
		}
		return
	}
	for _, pages := range [...]uint64{air, air / 4, 0} {
		size := (need+2*pages)<<a.shift + slip
		h := sp.unmapped.Find(size)
		if h == 0 {
			continue
		}
		c := a.store.At(h)
		if pages > 0 && c.Size-size < (a.split-a.base)/keepRun && h == sp.unmapped.Largest() {
			continue
		}
		x := c.Addr + pages<<a.shift
		f.try(h, (x+f.align-1)&^(f.align-1))
		return
	}
}

// place returns the best spot for n bytes, which need that many pages. It returns
// alloc.ErrNoMemory where fewer may still be held.
//
// If the spot that maps the fewest pages would hold too many, the search is repeated
// as if the pool were tight, before anything is refused. If even that finds no
// addresses, all idle pages are unmapped once: they may split the free addresses.
func (a *Allocator) place(n, need, align uint64) (spot, error) {
	sp := &a.large
	if n <= a.mask {
		sp = &a.small
	}
	for flushed := false; ; flushed = true {
		f := search{a: a, n: n, align: align, tight: a.tight(need)}
		f.run(sp, need)
		if !f.tight && (!f.found || a.held+f.best.newHeld > a.cap) {
			f = search{a: a, n: n, align: align, tight: true}
			f.run(sp, need)
		}
		if f.found && a.held+f.best.newHeld <= a.cap {
			return f.best, nil
		}
		if a.held+need > a.cap {
			return spot{}, alloc.ErrNoMemory
		}
		if flushed {
			return spot{}, errAddresses
		}
		// There are pages enough, but no addresses in one piece. Idle pages may
		// lie in between.
		if err := a.steal(a.mapped, 0, 0, true); err != nil {
			return spot{}, err
		}
	}
}
