package bfc

// The counters, and the walk over every piece.

import (
	"math/bits"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
)

// chunks walks every chunk, region by region in address order.
func (a *Allocator) chunks() func(yield func(chunks.H, *chunks.Chunk) bool) {
	return func(yield func(chunks.H, *chunks.Chunk) bool) {
		for i := range a.regions {
			for h := a.regions[i].first; h != 0; {
				c := a.store.At(h)
				next := c.Next
				if !yield(h, c) {
					return
				}
				h = next
			}
		}
	}
}

// Walk visits every piece in address order.
func (a *Allocator) Walk(yield func(alloc.Chunk) bool) {
	for i := range a.regions {
		for h := a.regions[i].first; h != 0; {
			c := a.store.At(h)
			out := alloc.Chunk{
				Addr: c.Addr, Size: c.Size, Requested: c.Requested, Region: i,
				Live: c.State == chunks.Live, Tag: tagNames[c.Tag], Stream: c.Stream,
			}
			if out.Live {
				out.Site = alloc.Site(c.Site())
			}
			if !yield(out) {
				return
			}
			h = c.Next
		}
	}
}

// Stats are JAX's statistics.
func (a *Allocator) Stats() alloc.Stats {
	s := a.stats
	s.NumAllocs = int64(a.lastID)
	s.LargestFreeBlock = a.largestFree(tagLower, tagUpper)
	return s
}

// largestHole is the largest free chunk of the given ends, without the gap.
func (a *Allocator) largestHole(ends ...uint8) uint64 {
	var n uint64
	for _, end := range ends {
		if x := a.free[end]; x != nil && x.Largest() != 0 {
			n = max(n, a.store.At(x.Largest()).Size)
		}
	}
	return n
}

// largestFree is the largest free chunk of the given ends, the gap included.
func (a *Allocator) largestFree(ends ...uint8) uint64 {
	n := a.largestHole(ends...)
	if a.gap != 0 {
		n = max(n, a.store.At(a.gap).Size)
	}
	return n
}

// MetadataBytes is the host memory that describes the pool.
func (a *Allocator) MetadataBytes() int {
	n := a.store.Cap() + cap(a.regions)*64
	for _, x := range a.free {
		if x != nil {
			n += x.Cap()
		}
	}
	if a.live != nil {
		n += a.live.Cap()
	}
	return n
}

// PeakChunks is the most pieces, live and free, that the pool was ever in.
func (a *Allocator) PeakChunks() int { return a.store.Peak() }

// binOf is the bin in which the original keeps chunks of a size.
func binOf(size uint64) int {
	return min(numBins-1, bits.Len64(max(size, MinAllocation)>>8)-1)
}
