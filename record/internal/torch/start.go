package torch

// The segments at the first event, from those of the snapshot and the events that say
// which came and went. With the seeds in them a replay can begin as the recorded program
// did. See torch.go for an overview.

import (
	"cmp"
	"maps"
	"slices"

	"gpumem/record/internal/tape"
)

// smallSegment is the size of PyTorch's segments for small requests (kSmallBuffer);
// those for large ones are larger.
const smallSegment = 2 << 20

// isForeign reports whether a segment of the snapshot is of a private pool, or made of pages.
func isForeign(seg *dict) bool {
	if paged, _ := seg.get("is_expandable"); paged == true {
		return true
	}
	id, _ := seg.get("segment_pool_id")
	l, isList := id.(*list)
	return id != nil && (!isList || slices.ContainsFunc(l.items, func(v any) bool { return v != int64(0) }))
}

// start returns the segments at the first event, with the seeds in them. It is nil where
// that is not known: pages of expandable segments, private pools, a seed that lies in
// none, or a damaged snapshot.
func (d *device) start() []tape.Segment {
	if d.foreign || len(d.final) == 0 {
		return nil
	}
	held := map[uint64]tape.Segment{}
	for _, s := range d.final {
		s.Blocks = nil
		held[s.Addr] = s
	}
	for _, c := range slices.Backward(d.changed) {
		if c.freed {
			held[c.Addr] = c.Segment
		} else {
			delete(held, c.Addr)
		}
	}
	list := slices.SortedFunc(maps.Values(held), func(a, b tape.Segment) int { return cmp.Compare(a.Addr, b.Addr) })
	end := uint64(0)
	seeds := d.seeds
	for i := range list {
		s := &list[i]
		if s.Addr < end || s.Addr+s.Bytes <= s.Addr {
			return nil
		}
		end = s.Addr + s.Bytes
		for len(seeds) > 0 && seeds[0].addr < end {
			b := tape.SegmentBlock{Addr: seeds[0].addr, Bytes: d.size(seeds[0])}
			most := end
			if len(seeds) > 1 {
				most = min(most, seeds[1].addr)
			}
			if b.Addr < s.Addr || b.Bytes > most-b.Addr || b.Bytes < seeds[0].size || seeds[0].size == 0 {
				return nil
			}
			s.Blocks = append(s.Blocks, b)
			seeds = seeds[1:]
		}
	}
	if len(seeds) > 0 {
		return nil
	}
	return list
}

// size is what a seed was rounded up to: as the segments have it, or by PyTorch's
// default where only its free is known.
func (d *device) size(b block) uint64 {
	if a, ok := d.active[b.addr]; ok && a == b {
		return d.sizes[b.addr]
	}
	return max(b.size+511, 512) &^ 511
}
