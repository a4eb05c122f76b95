package bfc

import (
	"fmt"

	"gpumem/alloc/internal/chunks"
)

// Check verifies the whole structure and returns the first thing that does not
// hold. It costs a walk over every chunk; tests call it, and with the build tag
// invariants every operation does. It walks regions by itself rather than with tiles,
// as a broken link is one of the things that it looks for.
//
// What holds between operations:
//
//   - regions are in address order and do not overlap; their grants add up to
//     the bytes in the pool;
//   - a region's chunks tile it, linked both ways, each a multiple of 256 bytes
//     (but for a region whose grant was not);
//   - a live chunk is in no index; a free one is in the
//     index of its tag or is the gap, exactly once;
//   - no two neighbours are free;
//   - there is at most one gap, only in a partitioned pool, and in its region
//     no chunk above it is lower and none below it is upper;
//   - a pool that grows in reserved addresses has one region, which is all that is mapped,
//     and no collective memory above what it began with;
//   - the statistics equal what a walk counts.
func (a *Allocator) Check() error {
	if a.closed {
		return nil
	}
	// The indices first: what they hold must be free chunks of their tag, each once, in
	// the order in which requests are served.
	inFree := map[chunks.H]bool{}
	for tag, x := range a.free {
		if x == nil {
			continue
		}
		var last *chunks.Chunk
		for h := range x.Ascend {
			c := a.store.At(h)
			if int(c.Tag) != tag {
				return fmt.Errorf("chunk %d of tag %s is in the index of %s", h, tagNames[c.Tag], tagNames[tag])
			}
			if last != nil && (c.Size < last.Size || c.Size == last.Size && (c.Addr <= last.Addr) == (tag == int(tagLower) || a.home == tagLower)) {
				return fmt.Errorf("index of %s: chunk %d is out of order", tagNames[tag], h)
			}
			if inFree[h] {
				return fmt.Errorf("chunk %d is in an index twice", h)
			}
			inFree[h], last = true, c
		}
	}
	// Then the regions, in address order, and the chunks of each.
	var pool, used uint64
	live, free := 0, 0
	end := uint64(0)
	for i := range a.regions {
		r := &a.regions[i]
		if r.addr < end {
			return fmt.Errorf("region %d at %#x begins before the one below ends", i, r.addr)
		}
		end = r.end()
		for _, g := range r.grants {
			pool += g.Bytes
		}
		at, prev := r.addr, chunks.H(0)
		for h := r.first; h != 0; {
			c := a.store.At(h)
			if c.Addr != at || c.Prev != prev || c.Size == 0 || c.Size%MinAllocation != 0 {
				return fmt.Errorf("chunk %d at %#x of %d bytes below %d: want it at %#x", h, c.Addr, c.Size, c.Prev, at)
			}
			switch c.State {
			case chunks.Live:
				live++
				used += c.Size
				if inFree[h] || h == a.gap || c.Tag == tagGap || c.Requested > c.Size {
					return fmt.Errorf("live chunk %d at %#x: in index %v, gap %v, number %d, tag %s, requested %d of %d",
						h, c.Addr, inFree[h], h == a.gap, c.Gen(), tagNames[c.Tag], c.Requested, c.Size)
				}
				if a.live != nil && a.live.Find(c.Addr) != h {
					return fmt.Errorf("live chunk %d at %#x is not in the table", h, c.Addr)
				}
			case chunks.Free:
				free++
				if inFree[h] == (h == a.gap) {
					return fmt.Errorf("free chunk %d at %#x: in index %v, gap %v", h, c.Addr, inFree[h], h == a.gap)
				}
				if (c.Tag == tagGap) != (h == a.gap) {
					return fmt.Errorf("free chunk %d at %#x has tag %s; gap %v", h, c.Addr, tagNames[c.Tag], h == a.gap)
				}
				if prev != 0 {
					p := a.store.At(prev)
					if p.State == chunks.Free {
						return fmt.Errorf("free chunks %d and %d are neighbours", prev, h)
					}
				}
			default:
				return fmt.Errorf("chunk %d at %#x is in a region and unused", h, c.Addr)
			}
			at, prev = c.Addr+c.Size, h
			h = c.Next
		}
		if at != r.end() {
			return fmt.Errorf("the chunks of region %d end at %#x, it ends at %#x", i, at, r.end())
		}
	}
	if err := a.checkArena(); err != nil {
		return err
	}
	if a.gap != 0 && !a.spatial {
		return fmt.Errorf("a gap in a pool that is not partitioned")
	}
	if err := a.checkGap(); err != nil {
		return err
	}
	if a.arena != nil && a.arena.stuck != nil {
		pool += a.arena.stuck.bytes
	}
	// At last what was counted on the way against what Alloc and Free have counted.
	s := a.stats
	if pool != s.PoolBytes || used != s.BytesInUse || s.PeakBytesInUse < used || s.PeakPoolBytes < pool {
		return fmt.Errorf("statistics say %d in use and %d in the pool, a walk counts %d and %d", s.BytesInUse, s.PoolBytes, used, pool)
	}
	if a.live != nil && a.live.Len() != live {
		return fmt.Errorf("the table holds %d chunks, %d are live", a.live.Len(), live)
	}
	if live+free != a.store.Len() {
		return fmt.Errorf("the store holds %d chunks, the regions %d", a.store.Len(), live+free)
	}
	return nil
}

// checkGap verifies the order of tags around the gap: lower ones below, upper ones
// above. Regions without the gap may have any.
func (a *Allocator) checkGap() error {
	if a.gap == 0 {
		return nil
	}
	for h := a.store.At(a.gap).Prev; h != 0; h = a.store.At(h).Prev {
		if a.store.At(h).Tag != tagLower {
			return fmt.Errorf("chunk %d of tag %s lies below the gap", h, tagNames[a.store.At(h).Tag])
		}
	}
	for h := a.store.At(a.gap).Next; h != 0; h = a.store.At(h).Next {
		if a.store.At(h).Tag != tagUpper {
			return fmt.Errorf("chunk %d of tag %s lies above the gap", h, tagNames[a.store.At(h).Tag])
		}
	}
	return nil
}

// checkArena verifies that the region is what the arena has mapped, and where collective
// memory lies.
func (a *Allocator) checkArena() error {
	r := a.arena
	if r == nil || len(a.regions) == 0 {
		return nil
	}
	mapped := uint64(0)
	for _, p := range r.parts {
		if p.addr != r.addr+mapped {
			return fmt.Errorf("memory at %#x: want it at %#x", p.addr, r.addr+mapped)
		}
		mapped += p.bytes
	}
	region := &a.regions[0]
	isRegion := len(a.regions) == 1 && region.addr == r.addr && region.size == mapped
	inOrder := r.first <= mapped && mapped == r.mapped && mapped <= r.size
	if !isRegion || !inOrder {
		return fmt.Errorf("%d regions, the first of %d bytes at %#x; %d of %d bytes are mapped at %#x, first %d",
			len(a.regions), region.size, region.addr, mapped, r.size, r.addr, r.first)
	}
	for _, c := range a.tiles(region) {
		if c.Tag == tagLower && c.Addr+c.Size > r.addr+r.first {
			return fmt.Errorf("chunk at %#x of %d bytes is collective memory above %#x", c.Addr, c.Size, r.addr+r.first)
		}
	}
	return nil
}
