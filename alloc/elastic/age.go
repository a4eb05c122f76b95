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

import (
	"cmp"
	"slices"

	"gpumem/alloc/internal/chunks"
)

// byAge returns the mapped chunks with a whole page, the one that was freed the longest
// ago first, equal ones by address. The slice is good until the next call.
func (a *Allocator) byAge() []chunks.H {
	a.aged = a.aged[:0]
	for _, sp := range []*space{&a.large, &a.small} {
		for h := sp.mapped.Find(a.mask + 1); h != 0; h = sp.mapped.After(h) {
			if c := a.store.At(h); a.wholes(c.Addr, end(c)) > 0 {
				a.aged = append(a.aged, h)
			}
		}
	}
	slices.SortFunc(a.aged, func(h, k chunks.H) int {
		c, d := a.store.At(h), a.store.At(k)
		return cmp.Or(cmp.Compare(c.Requested, d.Requested), cmp.Compare(c.Addr, d.Addr))
	})
	return a.aged
}
