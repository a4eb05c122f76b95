package torch

// The segments at the first event, from those of the snapshot and the events that say
// which came and went. With the seeds in them a replay can begin as the recorded program
// did. See torch.go for an overview.

import (
	"cmp"
	"slices"

	"gpumem/record/internal/tape"
)

// segmentMove is a segment that was taken from the device or released to it.
type segmentMove struct {
	tape.Segment
	freed bool
}

// smallSegment is the size of PyTorch's segments for small requests (kSmallBuffer);
// those for large ones are larger.
const smallSegment = 2 << 20

// move notes an event of a segment.
func (d *device) move(ev *dict, what action) {
	s := tape.Segment{Stream: d.stream(intField(ev, "stream"))}
	var hasAddr, hasSize bool
	s.Addr, hasAddr = addressField(ev, "addr")
	s.Bytes, hasSize = sizeField(ev, "size")
	if what == segmentMapped || what == segmentUnmapped || !hasAddr || !hasSize {
		d.foreign = true
		return
	}
	s.Small = s.Bytes == smallSegment
	d.moves = append(d.moves, segmentMove{s, what == segmentFreed})
}

// addSegment notes a segment of the snapshot.
func (d *device) addSegment(seg *dict, addr uint64, stream uint32) {
	s := tape.Segment{Addr: addr, Stream: stream, Small: stringField(seg, "segment_type") == "small"}
	var ok bool
	s.Bytes, ok = sizeField(seg, "total_size")
	paged, _ := seg.get("is_expandable")
	if id, _ := seg.get("segment_pool_id"); id != nil {
		l, isList := id.(*list)
		private := !isList || slices.ContainsFunc(l.items, func(v any) bool { return v != int64(0) })
		ok = ok && !private
	}
	if !ok || paged == true {
		d.foreign = true
		return
	}
	d.segments = append(d.segments, s)
}

// start returns the segments at the first event, with the seeds in them. It is nil where
// that is not known: pages of expandable segments, private pools, a seed that lies in
// none, or a damaged snapshot.
func (d *device) start() []tape.Segment {
	if d.foreign || len(d.segments) == 0 {
		return nil
	}
	held := map[uint64]tape.Segment{}
	for _, s := range d.segments {
		held[s.Addr] = s
	}
	for _, m := range slices.Backward(d.moves) {
		if m.freed {
			held[m.Addr] = m.Segment
		} else {
			delete(held, m.Addr)
		}
	}
	var list []tape.Segment
	for _, s := range held {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b tape.Segment) int { return cmp.Compare(a.Addr, b.Addr) })
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
