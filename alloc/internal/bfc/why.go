package bfc

// What alloc.Explain asks of a pool with two ends, and of one that grows: which free memory
// serves which request, and what more would take. report.go asks for the first, too.

import (
	"fmt"
	"math"

	"gpumem/alloc"
	"gpumem/size"
)

// Missing returns how many bytes the pool would have to take from the device to serve a
// request that it refused: for an arena what completes the free chunk at its end. It is
// the block itself for other pools, and not possible for collective memory.
func (a *Allocator) Missing(r alloc.Request) uint64 {
	n, ok := round256(r.Bytes)
	switch {
	case !ok || a.arena == nil || a.arena.first == 0:
		return n
	case a.end(r) != a.home:
		return math.MaxUint64
	}
	align, err := a.alignment(max(r.Align, 1))
	if err != nil {
		return math.MaxUint64
	}
	return a.missing(n, align)
}

// Serves returns how many bytes of a free chunk can serve a request: none of a chunk of the
// other end, and of the gap for collective memory only what lies in the first region.
func (a *Allocator) Serves(r alloc.Request, c alloc.Chunk) uint64 {
	align, err := a.alignment(max(r.Align, 1))
	end := a.end(r)
	if err != nil || c.Tag != tagNames[end] && c.Tag != tagNames[tagGap] {
		return 0
	}
	top := c.Addr + c.Size
	if end != a.home {
		align = max(align, a.cfg.CollectiveAlign)
		if a.arena != nil {
			top = min(top, a.arena.addr+a.arena.first)
		}
	}
	begin := (c.Addr + align - 1) &^ (align - 1)
	return top - min(top, begin)
}

// usable returns the size of the largest free chunk that serves an end, as the report has
// it: in an arena as far as it does.
func (a *Allocator) usable(end uint8) uint64 {
	if a.arena == nil {
		return a.largestFree(end)
	}
	r := alloc.Request{End: alloc.Lower}
	if end != a.home {
		r.End = alloc.Upper
	}
	n := uint64(0)
	a.Walk(func(c alloc.Chunk) bool {
		if !c.Live {
			n = max(n, a.Serves(r, c))
		}
		return true
	})
	return n
}

// Why says why collective memory was refused by a pool that grows: it never grows for it.
// For all other requests the free chunks say it.
func (a *Allocator) Why(r alloc.Request, _ int64) []string {
	if a.arena == nil || a.arena.first == 0 || a.end(r) == a.home {
		return nil
	}
	return []string{
		fmt.Sprintf("Collective memory stays in the first %s of the pool, which does not grow for it.", size.Format(a.arena.first)),
		fmt.Sprintf("The largest free part there that can serve it is %s.", size.Format(a.usable(a.end(r)))),
	}
}
