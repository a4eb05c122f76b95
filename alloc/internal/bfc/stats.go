package bfc

// Statistics, and the walks over the chunks. What Alloc and Free count is kept in
// Allocator.stats; what can be worked out from the chunks is worked out when asked for,
// so that an operation does not pay for it.

import (
	"math/bits"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
)

// chunks walks every chunk, region by region in address order. See tiles.
func (a *Allocator) chunks() func(yield func(chunks.H, *chunks.Chunk) bool) {
	return func(yield func(chunks.H, *chunks.Chunk) bool) {
		for i := range a.regions {
			for h, c := range a.tiles(&a.regions[i]) {
				if !yield(h, c) {
					return
				}
			}
		}
	}
}

// tiles walks the chunks of a region in address order. The chunk that was given
// last may be dropped: the number of the next one is read before.
func (a *Allocator) tiles(r *region) func(yield func(chunks.H, *chunks.Chunk) bool) {
	return func(yield func(chunks.H, *chunks.Chunk) bool) {
		for h := r.first; h != 0; {
			c := a.store.At(h)
			next := c.Next
			if !yield(h, c) {
				return
			}
			h = next
		}
	}
}

// Walk visits every chunk, live or free, in address order until yield returns false. The
// pool must not be used meanwhile.
func (a *Allocator) Walk(yield func(alloc.Chunk) bool) {
	for i := range a.regions {
		for _, c := range a.tiles(&a.regions[i]) {
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
		}
	}
}

// Stats returns JAX's statistics. LargestFreeBlock is 0 in JAX before 0.11 and right
// since; here it is always right.
func (a *Allocator) Stats() alloc.Stats {
	s := a.stats
	s.NumAllocs = int64(a.lastID)
	s.LargestFreeBlock = a.largestFree(tagLower, tagUpper)
	return s
}

// largestHole returns the size of the largest free chunk of the given ends, without the
// gap.
func (a *Allocator) largestHole(ends ...uint8) uint64 {
	var n uint64
	for _, end := range ends {
		if x := a.free[end]; x != nil && x.Largest() != 0 {
			n = max(n, a.store.At(x.Largest()).Size)
		}
	}
	return n
}

// largestFree returns the size of the largest free chunk of the given ends, the gap
// included.
func (a *Allocator) largestFree(ends ...uint8) uint64 {
	n := a.largestHole(ends...)
	if a.gap != 0 {
		n = max(n, a.store.At(a.gap).Size)
	}
	return n
}

// MetadataBytes returns the bytes of host memory that describe the pool.
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

// PeakChunks returns the most chunks, live and free, that the pool was ever cut into.
func (a *Allocator) PeakChunks() int { return a.store.Peak() }

// binOf returns the bin in which the original keeps chunks of a size: bin i has those
// from 256<<i up to the next. 256 and 511 bytes are in bin 0, 1 GiB in bin 20.
func binOf(size uint64) int {
	return min(numBins-1, bits.Len64(max(size, MinAllocation)>>8)-1)
}
