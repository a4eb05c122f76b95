package pytorch

// A pool that begins as a recorded one did: segments with blocks at given places. See
// pytorch.go for an overview.

import (
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
)

// A restored is a segment that [Allocator.Restore] took, and that blocks are placed in.
type restored struct {
	a    *Allocator
	rest chunks.H // the free chunk behind the last block; 0: none
	addr uint64
}

// Restore takes a segment from the device, as a pool had it that was recorded. Blocks are
// placed in it by [Restored.Place] before the allocator is used for anything else. Errors:
// alloc.ErrClosed; alloc.ErrBadRequest with expandable segments; alloc.ErrNoMemory where
// the limit or the device refuses; the device's.
func (a *Allocator) Restore(bytes uint64, stream uint32, small bool) (place func(r alloc.Request, offset, size uint64) (alloc.Block, error), err error) {
	switch {
	case a.closed:
		return nil, alloc.ErrClosed
	case a.cfg.Expandable:
		return nil, fmt.Errorf("%w: restore a segment of %d bytes: segments are expandable", alloc.ErrBadRequest, bytes)
	case bytes == 0:
		return nil, fmt.Errorf("%w: restore a segment of 0 bytes", alloc.ErrBadRequest)
	}
	if err := a.streams.Use(stream); err != nil {
		return nil, err
	}
	p := 0
	if small {
		p = 1
	}
	h, c, err := a.takeSegment(a.listOf(p, stream), bytes)
	if h == 0 {
		if err == nil {
			err = alloc.ErrNoMemory
		}
		return nil, err
	}
	a.putFree(h, c)
	return (&restored{a: a, rest: h, addr: c.Addr}).place, nil
}

func (s *restored) place(r alloc.Request, offset, size uint64) (alloc.Block, error) {
	a := s.a
	bad := s.rest == 0 || size == 0 || r.Bytes == 0 || r.Bytes > size
	if !bad {
		c := a.store.At(s.rest)
		used := c.Addr - s.addr
		bad = offset < used || size > c.Size || offset-used > c.Size-size
	}
	if bad {
		return alloc.Block{}, fmt.Errorf("%w: place a block of %d bytes at %d of a segment: it does not fit there", alloc.ErrBadRequest, size, offset)
	}
	h, c := s.rest, a.store.At(s.rest)
	a.takeFree(h, c)
	a.cutLead(h, c, s.addr+offset-c.Addr)
	s.rest = 0
	if c.Size != size {
		s.rest = h
		h, c = a.split(h, c, size)
	}
	return a.handOut(h, c, r), nil
}
