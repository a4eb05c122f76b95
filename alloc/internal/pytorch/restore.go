package pytorch

// A pool that begins as a recorded one did: segments with blocks at given places. See
// pytorch.go for an overview.

import (
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
)

// Recorded is a pool of one stream, in which a recorded program had segments: the default
// one for small or large requests, or that of a private pool.
type Recorded struct {
	Stream  uint32
	Small   bool
	Private uint64 // as in BeginPool; 0 is none
}

// A Placer makes a live block of size bytes at an offset of a segment, in rising order. Errors:
// alloc.ErrBadRequest for a block that does not fit there.
type Placer func(r alloc.Request, offset, size uint64) (alloc.Block, error)

// A restored is a segment that [Allocator.Restore] took, or mapped pages of an expandable
// one, that blocks are placed in.
type restored struct {
	a    *Allocator
	rest chunks.H // the free chunk behind the last block; 0: none
	addr uint64
}

// Restore takes a segment from the device, as a pool had it that was recorded. Blocks are
// placed in it before the allocator is used for anything else. Errors: alloc.ErrClosed;
// alloc.ErrBadRequest for an empty segment; alloc.ErrNoMemory where the limit or the device
// refuses; the device's.
func (a *Allocator) Restore(r Recorded, bytes uint64) (Placer, error) {
	l, err := a.recordedList(r, bytes)
	if err != nil {
		return nil, err
	}
	if a.cfg.Limit != 0 && bytes > a.cfg.Limit-min(a.mem.Reserved, a.cfg.Limit) {
		return nil, alloc.ErrNoMemory
	}
	h, c, err := a.takeSegment(l, bytes)
	if h == 0 {
		if err == nil {
			err = alloc.ErrNoMemory
		}
		return nil, err
	}
	a.putFree(h, c)
	return (&restored{a: a, rest: h, addr: c.Addr}).place, nil
}

// Pages is a range of an expandable segment that has memory: an offset in it, and bytes.
type Pages struct{ Offset, Bytes uint64 }

// RestorePaged makes an expandable segment with memory behind the given ranges, which come
// in rising order with gaps between them, and returns a Placer for each. Errors are those of
// Restore; alloc.ErrBadRequest is also of ranges that are not of whole pages or do not fit.
func (a *Allocator) RestorePaged(r Recorded, ranges []Pages) ([]Placer, error) {
	var bytes uint64
	for _, p := range ranges {
		bytes += p.Bytes
	}
	l, err := a.recordedList(r, bytes)
	if err != nil {
		return nil, err
	}
	h, err := a.newExpandable(l, bytes)
	if h == 0 {
		if err == nil {
			err = alloc.ErrNoMemory
		}
		return nil, err
	}
	base, page := a.store.At(h).Addr, a.segments[a.more[h].segment].page
	var list []Placer
	for _, p := range ranges {
		if h == 0 {
			return nil, fmt.Errorf("%w: restore pages at %d: nothing is left of the segment", alloc.ErrBadRequest, p.Offset)
		}
		c := a.store.At(h)
		from := c.Addr - base
		fits := p.Offset-from <= c.Size && p.Bytes <= c.Size-(p.Offset-from) // one below from wraps, and is too large
		arePages := p.Bytes > 0 && p.Offset%page == 0 && p.Bytes%page == 0
		if !fits || !arePages {
			return nil, fmt.Errorf("%w: restore %d bytes of pages at %d of a segment", alloc.ErrBadRequest, p.Bytes, p.Offset)
		}
		if p.Offset > from {
			a.takeFree(h, c)
			low, d := a.cut(h, c, p.Offset-from)
			d.State = chunks.Free
			a.putFree(low, d)
			a.putFree(h, c)
		}
		if ok, err := a.mapPages(h, c, p.Bytes); !ok {
			if err == nil {
				err = alloc.ErrNoMemory
			}
			return nil, err
		}
		list = append(list, (&restored{a: a, rest: h, addr: c.Addr}).place)
		h = c.Next
	}
	return list, nil
}

// recordedList returns the list of a recorded pool, which is made.
func (a *Allocator) recordedList(r Recorded, bytes uint64) (int32, error) {
	switch {
	case a.closed:
		return 0, alloc.ErrClosed
	case bytes == 0:
		return 0, fmt.Errorf("%w: restore a segment of 0 bytes", alloc.ErrBadRequest)
	}
	if err := a.streams.Use(r.Stream); err != nil {
		return 0, err
	}
	p := 0
	if r.Private != 0 {
		i := a.findArena(r.Private)
		if i == 0 {
			i = a.addArena(r.Private)
			a.arenas[i].users = 1
		}
		p = 2 * i
	}
	if r.Small {
		p++
	}
	return a.listOf(p, r.Stream), nil
}

// Occupies returns how many of the free bytes at its place a block takes: with all of them if
// the rest would not be split off. It is 0 if the block does not fit.
func (a *Allocator) Occupies(r Recorded, bytes, free uint64) uint64 {
	n := a.Round(bytes)
	switch {
	case bytes == 0 || n > free:
		return 0
	case a.splitsOff(r.Small, n, free-n):
		return n
	}
	return free
}

// hasRoom reports whether a block fits behind the last one.
func (s *restored) hasRoom(offset, size uint64) bool {
	if s.rest == 0 {
		return false
	}
	c := s.a.store.At(s.rest)
	offset -= c.Addr - s.addr // one within the last block wraps, and is too large
	return size <= c.Size && offset <= c.Size-size
}

func (s *restored) place(r alloc.Request, offset, size uint64) (alloc.Block, error) {
	a := s.a
	if r.Bytes == 0 || r.Bytes > size || !s.hasRoom(offset, size) {
		return alloc.Block{}, fmt.Errorf("%w: place a block of %d bytes at %d of a segment: it does not fit there",
			alloc.ErrBadRequest, size, offset)
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
