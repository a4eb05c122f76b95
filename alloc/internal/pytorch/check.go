package pytorch

import (
	"fmt"
	"slices"

	"gpumem/alloc/internal/chunks"
)

// Check looks at the whole structure and returns the first thing that does not hold. It
// costs a walk over every chunk; tests call it, and with the build tag invariants every
// operation does.
//
// What holds between operations:
//
//   - segments do not overlap; a segment's chunks tile it, linked both ways, and all are
//     of its list;
//   - a free chunk that is not waiting is in its list exactly once: in the index if it is
//     mapped, in the sorted slice if not; live and waiting ones are in neither;
//   - no two neighbours that are free and not waiting are both mapped or both unmapped;
//   - a waiting chunk has as many events in the queues as its record says, at least one if
//     its events are not deferred, and no other chunk has any;
//   - every page that a mapped chunk touches is there; unmapped chunks are whole pages;
//   - the counters equal what a walk counts.
func (a *Allocator) Check() error {
	if a.closed {
		return nil
	}
	listed := map[chunks.H]int32{}
	for l := range a.lists {
		f := &a.lists[l]
		var last *chunks.Chunk
		var before chunks.H
		for h := range f.mapped.Ascend {
			c := a.store.At(h)
			if last != nil && (c.Size < last.Size || c.Size == last.Size && !a.ordered(before, last, h, c)) {
				return fmt.Errorf("list %d: chunk %d is out of order", l, h)
			}
			if _, twice := listed[h]; twice || c.Tag&unmapped != 0 {
				return fmt.Errorf("list %d: chunk %d is listed twice (%v), or is unmapped", l, h, twice)
			}
			listed[h], last, before = int32(l), c, h
		}
		end := uint64(0)
		for _, h := range f.unmapped {
			c := a.store.At(h)
			if _, twice := listed[h]; twice || c.Tag&unmapped == 0 || c.Addr < end {
				return fmt.Errorf("list %d: unmapped chunk %d is listed twice (%v), mapped, or out of order", l, h, twice)
			}
			listed[h], end = int32(l), c.Addr+c.Size
		}
	}
	events := map[chunks.H]int32{}
	for _, q := range a.queues {
		for _, e := range q.events {
			events[e.chunk]++
		}
	}
	var sum MemoryStats
	var used, held, end uint64
	live, number := 0, 0
	segments := make([]int, len(a.arenas))
	for _, o := range a.orphans {
		held += o.bytes
	}
	for _, i := range a.byAddress() {
		s := &a.segments[i]
		if s.addr < end {
			return fmt.Errorf("the segment at %#x begins before the one below ends", s.addr)
		}
		end = s.addr + s.size
		f := &a.lists[s.list]
		segments[f.pool/2]++
		reserved := s.size
		held += s.granted
		if s.page != 0 {
			reserved = 0
			for _, handle := range s.pages {
				if handle != 0 {
					held += s.page
				}
			}
		} else {
			sum.Segments++
		}
		at, prev := s.addr, chunks.H(0)
		for h := s.first; h != 0; h = a.store.At(h).Next {
			c := a.store.At(h)
			number++
			if c.Addr != at || c.Prev != prev || c.Size == 0 || c.Stream != uint32(s.list) || a.more[h].segment != int32(i) || (c.Tag&expand != 0) != (s.page != 0) {
				return fmt.Errorf("chunk %d at %#x of %d bytes behind %d, list %d, segment %d, flags %d: want it at %#x behind %d",
					h, c.Addr, c.Size, c.Prev, c.Stream, a.more[h].segment, c.Tag, at, prev)
			}
			l, inList := listed[h]
			free := c.State == chunks.Free && c.Tag&waiting == 0
			if inList != free || inList && l != s.list {
				return fmt.Errorf("chunk %d at %#x: state %d, flags %d, listed %v", h, c.Addr, c.State, c.Tag, inList)
			}
			if n := events[h]; n != a.more[h].events || (n > 0 || slices.Contains(a.deferred, h)) != (c.Tag&waiting != 0) {
				return fmt.Errorf("chunk %d at %#x has %d events, its record says %d, flags %d", h, c.Addr, n, a.more[h].events, c.Tag)
			}
			if prev != 0 && free {
				if p := a.store.At(prev); p.State == chunks.Free && p.Tag == c.Tag {
					return fmt.Errorf("free chunks %d and %d are neighbours", prev, h)
				}
			}
			if s.page != 0 {
				lo, hi := (c.Addr-s.addr)/s.page, (c.Addr+c.Size-s.addr+s.page-1)/s.page
				if c.Tag&unmapped != 0 {
					if (c.Addr-s.addr)%s.page != 0 || c.Size%s.page != 0 || c.State != chunks.Free {
						return fmt.Errorf("unmapped chunk %d at %#x of %d bytes is not whole pages", h, c.Addr, c.Size)
					}
				} else {
					reserved += c.Size
					for ; lo < hi; lo++ {
						if s.pages[lo] == 0 {
							return fmt.Errorf("chunk %d at %#x of %d bytes: page %d is not there", h, c.Addr, c.Size, lo)
						}
					}
				}
			}
			switch {
			case c.State == chunks.Live:
				live++
				used += c.Size
				sum.Requested += c.Requested
				if c.Requested > c.Size {
					return fmt.Errorf("live chunk %d at %#x of %d bytes was requested with %d", h, c.Addr, c.Size, c.Requested)
				}
				if a.live != nil && a.live.Find(c.Addr) != h {
					return fmt.Errorf("live chunk %d at %#x is not in the table", h, c.Addr)
				}
			case c.State != chunks.Free:
				return fmt.Errorf("chunk %d at %#x is in a segment and unused", h, c.Addr)
			case c.Tag&waiting != 0:
				sum.Waiting += c.Size
			case c.Tag&expand == 0 && c.Prev|c.Next != 0:
				sum.InactiveSplit += c.Size
			}
			at, prev = c.Addr+c.Size, h
		}
		if at != end {
			return fmt.Errorf("the chunks of the segment at %#x end at %#x, it ends at %#x", s.addr, at, end)
		}
		sum.Reserved += reserved
		if a.pools[f.pool].small {
			sum.ReservedSmall += reserved
		}
	}
	for i, n := range segments {
		if x := a.arenas[i]; x.segments != n || x.ended && n > 0 {
			return fmt.Errorf("arena %d has %d segments, %d counted", i, n, x.segments)
		}
	}
	m := a.mem
	got := MemoryStats{Requested: m.Requested, Waiting: m.Waiting, Reserved: m.Reserved, ReservedSmall: m.ReservedSmall, InactiveSplit: m.InactiveSplit, Segments: m.Segments}
	if got != sum || used != a.stats.BytesInUse || held != a.stats.PoolBytes {
		return fmt.Errorf("the counters are %+v, %d in use, %d held; a walk counts %+v, %d, %d", got, a.stats.BytesInUse, a.stats.PoolBytes, sum, used, held)
	}
	if a.live != nil && a.live.Len() != live {
		return fmt.Errorf("the table holds %d chunks, %d are live", a.live.Len(), live)
	}
	if number != a.store.Len() {
		return fmt.Errorf("the store holds %d chunks, the segments %d", a.store.Len(), number)
	}
	if a.cfg.Limit != 0 && m.Reserved > a.cfg.Limit && !a.cfg.Expandable {
		return fmt.Errorf("%d bytes are reserved, the limit is %d", m.Reserved, a.cfg.Limit)
	}
	return nil
}

// ordered reports whether chunk h may stand before chunk k, of the same size, in a list.
func (a *Allocator) ordered(h chunks.H, c *chunks.Chunk, k chunks.H, d *chunks.Chunk) bool {
	if a.cfg.Tie == ByAddress {
		return c.Addr < d.Addr
	}
	return a.before(h, c, k, d)
}
