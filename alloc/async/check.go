package async

import (
	"cmp"
	"fmt"
	"slices"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
)

// blocks are the live chunks in address order.
func (a *Allocator) blocks() []chunks.H {
	var out []chunks.H
	for h := chunks.H(1); a.store.Valid(h); h++ {
		if a.store.At(h).State == chunks.Live {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(x, y chunks.H) int { return cmp.Compare(a.store.At(x).Addr, a.store.At(y).Addr) })
	return out
}

// Walk visits the live blocks in address order. What is free in the pool is the
// driver's to know, and so is which blocks share a chunk of it: each block
// counts as a separate region.
func (a *Allocator) Walk(yield func(alloc.Chunk) bool) {
	for i, h := range a.blocks() {
		c := a.store.At(h)
		if !yield(alloc.Chunk{
			Addr: c.Addr, Size: c.Size, Requested: c.Requested, Region: i,
			Live: true, Tag: "lower", Site: alloc.Site(c.Site()), Stream: c.Stream,
		}) {
			return
		}
	}
}

// Check looks at the whole structure and returns the first thing that does not
// hold: every live block is in the table and overlaps no other, what few blocks
// have belongs to live ones, and the statistics equal the sum. It makes no
// driver call.
func (a *Allocator) Check() error {
	if a.closed {
		return nil
	}
	var used, end uint64
	hs := a.blocks()
	extras := 0
	for _, h := range hs {
		c := a.store.At(h)
		used += c.Size
		if a.live.Find(c.Addr) != h {
			return fmt.Errorf("block at %#x is not in the table", c.Addr)
		}
		start := c.Addr
		if x, ok := a.extra[h]; ok {
			extras++
			if x.start > c.Addr {
				return fmt.Errorf("block at %#x begins before the driver's at %#x", c.Addr, x.start)
			}
			if x.start != 0 {
				start = x.start
			}
		}
		if start < end {
			return fmt.Errorf("block at %#x begins inside the one below", c.Addr)
		}
		end = c.Addr + c.Size
	}
	if used != a.stats.BytesInUse || len(hs) != a.live.Len() || len(hs) != a.store.Len() || extras != len(a.extra) {
		return fmt.Errorf("statistics say %d bytes in use, %d blocks, %d of them with something more; a walk counts %d bytes, %d blocks, %d with more",
			a.stats.BytesInUse, a.live.Len(), len(a.extra), used, len(hs), extras)
	}
	return nil
}
