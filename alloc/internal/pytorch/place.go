package pytorch

// Sizes, and the free block that serves a request. See pytorch.go for an overview.

import (
	"math/bits"

	"gpumem/alloc/internal/chunks"
)

// Round returns the least size of a block for a request (round_size), in bytes. The
// request is of at most 2^63.
func (a *Allocator) Round(n uint64) uint64 {
	if n < minBlock {
		return minBlock
	}
	// Requests below 2 MiB are of the first interval, those from 32 GiB on of the last.
	i := min(max(bits.Len64(n)-21, 0), len(a.cfg.Divisions)-1)
	switch d := a.cfg.Divisions[i]; {
	case d == 1 && a.cfg.KeepSizes:
		return n
	case d > 1 && n > minBlock*d:
		if n&(n-1) == 0 {
			return n
		}
		step := uint64(1) << (bits.Len64(n) - 1) / d
		return (n + step - 1) &^ (step - 1)
	}
	return (n + minBlock - 1) &^ (minBlock - 1)
}

// segmentSize is what is asked of the device for a block of n bytes
// (get_allocation_size).
func (a *Allocator) segmentSize(n uint64) uint64 {
	switch {
	case n <= smallSize:
		return smallSegment
	case n < minLarge:
		return a.cfg.Segment
	}
	return (n + roundLarge - 1) &^ (roundLarge - 1)
}

// list is the number of the list that serves n bytes in a stream. It is made if
// there is none.
func (a *Allocator) list(n uint64, stream uint32) int32 {
	if !a.near.valid || a.near.stream != stream {
		p := 2 * a.arena(stream)
		a.near = near{valid: true, stream: stream, large: a.listOf(p, stream), small: a.listOf(p+1, stream)}
	}
	if n <= smallSize {
		return a.near.small
	}
	return a.near.large
}

// find takes the free block out that serves n bytes, if there is one
// (get_free_block). Only one block is looked at: if the rules of large blocks forbid
// it, a later one is not tried.
func (a *Allocator) find(l int32, n uint64) (chunks.H, *chunks.Chunk) {
	f := &a.lists[l]
	if a.cfg.GC > 0 {
		a.pools[f.pool].searches++
	}
	h := f.mapped.Find(n)
	if h == 0 {
		return 0, nil
	}
	c := a.store.At(h)
	for c.Size < n { // sizes that are no multiple of the index's unit
		if h = f.mapped.After(h); h == 0 {
			return 0, nil
		}
		c = a.store.At(h)
	}
	for c.Tag&expand != 0 {
		next := f.mapped.After(h)
		if next == 0 {
			break
		}
		d := a.store.At(next)
		if a.room(d) >= a.room(c) {
			break
		}
		h, c = next, d
	}
	if n < a.maxSplit && c.Size >= a.maxSplit || n >= a.maxSplit && c.Size >= n+a.cfg.Slack {
		return 0, nil
	}
	f.mapped.Remove(h, c)
	return h, c
}

// room is how large a free block can become: a block of an expandable segment
// together with the addresses behind it. So a hole comes before the end of a segment.
func (a *Allocator) room(c *chunks.Chunk) uint64 {
	if c.Next != 0 {
		if d := a.store.At(c.Next); d.Tag&unmapped != 0 {
			return c.Size + d.Size
		}
	}
	return c.Size
}

// splits reports whether what a block has beyond n bytes is cut off (should_split).
func (a *Allocator) splits(l int32, c *chunks.Chunk, n uint64) bool {
	return a.splitsOff(a.pools[a.lists[l].pool].small, n, c.Size-n)
}

// splitsOff reports whether rest bytes behind a block of n bytes are cut off.
func (a *Allocator) splitsOff(small bool, n, rest uint64) bool {
	if a.cfg.Expandable || small {
		return rest >= minBlock
	}
	return n < a.maxSplit && rest > smallSize
}

// split cuts n bytes off the low end of c, which is in no list; the rest becomes
// free. The low end is the new chunk.
func (a *Allocator) split(h chunks.H, c *chunks.Chunk, n uint64) (chunks.H, *chunks.Chunk) {
	low, d := a.cut(h, c, n)
	a.putFree(h, c)
	return low, d
}

// cutLead cuts n bytes off the low end of c, which is in no list, and frees them.
func (a *Allocator) cutLead(h chunks.H, c *chunks.Chunk, n uint64) {
	if n > 0 {
		low, d := a.cut(h, c, n)
		d.State = chunks.Free
		a.putFree(low, d)
	}
}

// cut makes a new chunk of the low n bytes of c.
func (a *Allocator) cut(h chunks.H, c *chunks.Chunk, n uint64) (chunks.H, *chunks.Chunk) {
	low, d := a.newChunk(a.more[h].segment)
	d.Addr, d.Size, d.Stream, d.Tag, d.State = c.Addr, n, c.Stream, c.Tag, c.State
	d.Prev, d.Next = c.Prev, h
	if d.Prev != 0 {
		a.store.At(d.Prev).Next = low
	} else {
		a.segments[a.more[h].segment].first = low
	}
	c.Prev = low
	c.Addr += n
	c.Size -= n
	return low, d
}

// newChunk makes a chunk of a segment.
func (a *Allocator) newChunk(segment int32) (chunks.H, *chunks.Chunk) {
	h, c := a.store.New()
	if int(h) >= len(a.more) {
		a.more = append(a.more, make([]record, int(h)+1-len(a.more))...)
	}
	a.objects++
	a.more[h] = record{segment: segment, object: a.objects}
	return h, c
}

// putFree puts a free chunk into its list.
func (a *Allocator) putFree(h chunks.H, c *chunks.Chunk) {
	f := &a.lists[c.Stream]
	if c.Tag&unmapped != 0 {
		f.addUnmapped(&a.store, h, c.Addr)
		return
	}
	f.mapped.Insert(h, c)
	if a.cfg.GC > 0 {
		a.more[h].stamp = a.pools[f.pool].searches
	}
	if c.Prev|c.Next != 0 && c.Tag&expand == 0 {
		a.mem.InactiveSplit += c.Size
	}
}

// takeFree takes a free chunk out of its list.
func (a *Allocator) takeFree(h chunks.H, c *chunks.Chunk) {
	f := &a.lists[c.Stream]
	if c.Tag&unmapped != 0 {
		f.dropUnmapped(&a.store, c.Addr)
		return
	}
	f.mapped.Remove(h, c)
	if c.Prev|c.Next != 0 && c.Tag&expand == 0 {
		a.mem.InactiveSplit -= c.Size
	}
}

// before reports whether chunk h, which is c, comes before chunk k, which is d and of the
// same size.
func (a *Allocator) before(h chunks.H, c *chunks.Chunk, k chunks.H, d *chunks.Chunk) bool {
	if a.rising {
		return c.Addr < d.Addr
	}
	x, y := &a.more[h], &a.more[k]
	if a.cfg.Tie == ByObject {
		return x.object < y.object
	}
	if x.segment != y.segment {
		return a.segments[x.segment].serial < a.segments[y.segment].serial
	}
	return c.Addr < d.Addr
}
