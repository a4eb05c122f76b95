package async

import (
	"fmt"

	"gpumem/alloc"
)

// Walk visits the live blocks in address order. What is free in the pool is the
// driver's to know, and so is which blocks share a chunk of it: each block
// counts as a separate region.
func (a *Allocator) Walk(yield func(alloc.Chunk) bool) { a.blocks.Walk(yield) }

// Check looks at the whole structure and returns the first thing that does not
// hold: see [chunks.Blocks.Check]; the driver's allocations do not overlap; and what
// few blocks have belongs to live ones. It makes no driver call.
func (a *Allocator) Check() error {
	if a.blocks.Closed {
		return nil
	}
	extras, end := 0, uint64(0)
	for _, h := range a.blocks.Sorted() {
		c := a.blocks.Store.At(h)
		start := a.start(h, c)
		if start > c.Addr || start < end {
			return fmt.Errorf("block at %#x: the driver's allocation begins at %#x, and the block below ends at %#x", c.Addr, start, end)
		}
		if _, ok := a.extra[h]; ok {
			extras++
		}
		end = c.Addr + c.Size
	}
	if extras != len(a.extra) {
		return fmt.Errorf("%d blocks have something more, %d are noted", extras, len(a.extra))
	}
	return a.blocks.Check()
}
