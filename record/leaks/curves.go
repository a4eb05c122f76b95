package leaks

// The two passes over a recording. The first counts the allocations of each place and
// finds the survivors; the second follows the live memory of the places that matter,
// window by window. Memory grows with live blocks and, up to a bound, with places; it
// does not grow with events.

import (
	"cmp"
	"context"
	"math/bits"
	"slices"

	"gpumem/record/internal/idtable"
	"gpumem/record/trace"
)

const (
	// windows is the number of parts of equal length, in events, of a run.
	windows = 64
	// maxPlaces bounds the places that are counted. A text recording may have a
	// new size in every line; places beyond the bound have no name.
	maxPlaces = 1 << 18
	// maxFollowed bounds those that are followed window by window: this many with
	// the most survivors, and this many with the most allocations.
	maxFollowed = 4096
	// maxBlock is the most that a block counts, 1 PiB, so that sums stay below
	// 2^63. Recordings of failures may have wrong lengths near 2^64.
	maxBlock = 1 << 50
)

// place has the counts of one place.
type place struct {
	site   uint32 // a site of it; 0: a size
	bytes  uint64 // that size
	allocs uint64
	born   []birth // survivors, the oldest first; blocks older than the recording left out

	*curve // nil if it is not followed
}

// curve is a place, or everything together, window by window.
type curve struct {
	counts [windows]uint64 // allocations
	least  [windows]int64  // least bytes live
	live   int64           // while following
}

// birth is a survivor: a block that lives at the end.
type birth struct {
	event uint64 // from 0
	bytes uint64
	site  uint32
}

// gathered is the outcome of the two passes. Its end is behind the last allocation,
// because a program that ends well frees everything, leaks included.
type gathered struct {
	places     []*place
	start, end uint64 // events, without the seeds in front
	coarse     bool
	total      curve // everything together
	peak       int64 // most bytes live
	pool       *trace.Pool
}

// window returns the part of the run that an event from start on is in.
func (g *gathered) window(event uint64) int {
	hi, lo := bits.Mul64(event-g.start, windows)
	q, _ := bits.Div64(hi, lo, g.end-g.start)
	return int(q)
}

// firstOf returns the first event of a window.
func (g *gathered) firstOf(window int) uint64 {
	hi, lo := bits.Mul64(g.end-g.start, uint64(window))
	lo, carry := bits.Add64(lo, windows-1, 0)
	n, _ := bits.Div64(hi+carry, lo, windows)
	return g.start + n
}

// index finds the place of a block; -1 if it is beyond the bound.
type index struct {
	g      *gathered
	names  *names
	bySite []int32 // number of the place, plus 1
	bySize *idtable.Table
}

func (x *index) of(site uint32, bytes uint64) int32 {
	n := min(bytes, maxBlock)
	if x.g.coarse {
		if site = x.names.group(site); n > 0 {
			n = 1 << (bits.Len64(n) - 1)
		}
	}
	if site != 0 {
		if at := x.bySite[site]; at > 0 {
			return at - 1
		}
	} else if at, ok := x.bySize.Get(n); ok {
		return int32(at)
	}
	if len(x.g.places) == maxPlaces {
		return -1
	}
	p := &place{site: site}
	x.g.places = append(x.g.places, p)
	at := int32(len(x.g.places))
	if site != 0 {
		x.bySite[site] = at
	} else {
		p.bytes = n
		cell, _ := x.bySize.Put(n)
		*cell = uint32(at)
	}
	return at - 1
}

// gather reads the recording twice.
func gather(ctx context.Context, t *trace.Trace, pool *trace.Pool, progress func(part float64), names *names, coarse bool) (*gathered, error) {
	g := &gathered{start: pool.Seeds, end: pool.Seeds, coarse: coarse, pool: pool}
	x := &index{g: g, names: names, bySite: make([]int32, t.Sites()), bySize: idtable.New()}
	w := pool.Walk()
	var last []uint32 // slots that were freed since the last allocation
	err := w.Each(ctx, progress, func(e *trace.Event, _ *trace.Block) {
		switch {
		case e.Op == trace.Free:
			last = append(last, e.Slot)
		case !e.Refused: // nothing lives after that
			last = last[:0]
			at := x.of(e.Site, e.Bytes)
			if g.end = max(w.Number, g.start); at >= 0 && w.Number > g.start {
				g.places[at].allocs++
			}
		}
	})
	if err != nil {
		return nil, err
	}
	for _, slot := range last {
		w.Slots[slot].Live = true
	}
	x.survivors(w.Slots)
	follow(g)
	if g.end == g.start {
		return g, nil
	}
	return g, x.watch(ctx, pool, progress)
}

// survivors gives each place the blocks that live at the end.
func (x *index) survivors(blocks []trace.Block) {
	for _, b := range blocks {
		if !b.Live || b.Number <= x.g.start || b.Bytes == 0 {
			continue
		}
		if at := x.of(b.Site, b.Bytes); at >= 0 {
			p := x.g.places[at]
			p.born = append(p.born, birth{b.Number - 1, min(b.Bytes, maxBlock), b.Site})
		}
	}
	for _, p := range x.g.places {
		slices.SortFunc(p.born, func(a, b birth) int { return cmp.Compare(a.event, b.event) })
	}
}

// follow chooses the places that are followed.
func follow(g *gathered) {
	order := slices.Clone(g.places)
	for _, count := range []func(p *place) uint64{
		func(p *place) uint64 { return uint64(len(p.born)) },
		func(p *place) uint64 { return p.allocs },
	} {
		slices.SortStableFunc(order, func(a, b *place) int { return cmp.Compare(count(b), count(a)) })
		for _, p := range order[:min(len(order), maxFollowed)] {
			if p.curve == nil && count(p) >= leastBlocks {
				p.curve = &curve{}
			}
		}
	}
}

// watch is the second pass.
func (x *index) watch(ctx context.Context, pool *trace.Pool, progress func(part float64)) error {
	g := x.g
	curves := []*curve{&g.total}
	for _, p := range g.places {
		if p.curve != nil {
			curves = append(curves, p.curve)
		}
	}
	places := make([]int32, pool.Slots) // of the blocks
	at, next := -1, g.start             // the current window, -1 before the first, and where the next one begins
	w := pool.Walk()
	return w.Each(ctx, progress, func(e *trace.Event, _ *trace.Block) {
		if w.Number > g.end {
			return
		}
		for ; w.Number > next; next = g.firstOf(at + 1) {
			at++
			for _, c := range curves {
				c.least[at] = c.live
			}
		}
		if e.Refused {
			return
		}
		if e.Op == trace.Alloc {
			places[e.Slot] = x.of(e.Site, e.Bytes)
		}
		bytes := int64(min(e.Bytes, maxBlock))
		g.total.step(e.Op, bytes, at)
		if k := places[e.Slot]; k >= 0 && g.places[k].curve != nil {
			g.places[k].step(e.Op, bytes, at)
		}
		g.peak = max(g.peak, g.total.live)
	})
}

// step counts an event in window w, -1 before the first.
func (c *curve) step(op trace.Op, bytes int64, w int) {
	if op == trace.Alloc {
		c.live += bytes
		if w >= 0 {
			c.counts[w]++
		}
		return
	}
	c.live -= bytes
	if w >= 0 {
		c.least[w] = min(c.least[w], c.live)
	}
}
