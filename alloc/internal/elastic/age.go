package elastic

// The order in which chunks with idle pages were freed, from which pages are taken at the
// oldest end.
//
// The least recently freed range is the best one to take pages from. At the smallest
// device that serves a program of 1,000 sizes it cost 160 allocations with driver
// calls after the first steps; taking the largest range cost 862, the latest 1,713
// and the smallest 1,890. It also is the likeliest to be free of queued work.
//
// A free chunk has no use for its Requested: it holds the number of the operation that
// freed the chunk, 0 for pages that were mapped and have not been used. A chunk keeps it
// while it is cut; joined chunks have the later one. The order is worked out from these
// stamps when pages are taken, with a driver call of 65 us for each, so that an
// allocation and a free, which are a thousand times as frequent, need no list.

import "gpumem/alloc/internal/chunks"

// aged is a free chunk with a whole page.
type aged struct {
	freed uint64 // the operation
	addr  uint64
	h     chunks.H
}

func (g *aged) before(o *aged) bool {
	return g.freed < o.freed || g.freed == o.freed && g.addr < o.addr
}

// byAge visits the mapped chunks with a whole page, the one that was freed the longest
// ago first, equal ones by address. Nothing may be freed meanwhile. Mostly a few are
// enough, so that they come from a heap and are not sorted.
func (a *Allocator) byAge(yield func(chunks.H) bool) {
	all := a.aged[:0]
	for _, sp := range []*space{&a.large, &a.small} {
		for h := sp.mapped.Find(a.mask + 1); h != 0; h = sp.mapped.After(h) {
			if c := a.store.At(h); a.wholes(c.Addr, end(c)) > 0 {
				all = append(all, aged{c.Requested, c.Addr, h})
			}
		}
	}
	a.aged = all // keeps the room
	for i := len(all)/2 - 1; i >= 0; i-- {
		sink(all, i)
	}
	for len(all) > 0 {
		if !yield(all[0].h) {
			return
		}
		last := len(all) - 1
		all[0] = all[last]
		all = all[:last]
		sink(all, 0)
	}
}

// sink moves entry i of a heap down to where it belongs.
func sink(all []aged, i int) {
	for {
		k := 2*i + 1
		if k >= len(all) {
			return
		}
		if k+1 < len(all) && all[k+1].before(&all[k]) {
			k++
		}
		if !all[k].before(&all[i]) {
			return
		}
		all[i], all[k] = all[k], all[i]
		i = k
	}
}
