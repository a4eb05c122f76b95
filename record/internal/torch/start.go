package torch

// The segments at the first event, from those of the snapshot and the events that say
// which came and went. With the seeds in them a replay can begin as the recorded program
// did. pages.go has those of expandable segments. See torch.go for an overview.

import (
	"cmp"
	"slices"

	"gpumem/record/internal/tape"
)

// smallSegment is the size of PyTorch's segments for small requests (kSmallBuffer);
// those for large ones are larger.
const smallSegment = 2 << 20

// start returns the segments at the first event, with the seeds in them. It is nil where
// that is not known: a seed that lies in none, or a damaged snapshot.
func (d *device) start() []tape.Segment {
	if d.foreign || len(d.final) == 0 {
		return nil
	}
	held := map[uint64]tape.Segment{}
	for _, s := range d.final {
		if s.Base == 0 {
			s.Blocks = nil
			held[s.Addr] = s
		}
	}
	for _, c := range slices.Backward(d.changed) {
		switch {
		case c.paged:
		case c.freed:
			held[c.Addr] = c.Segment
		default:
			delete(held, c.Addr)
		}
	}
	pages, ok := d.pagesAtStart()
	if !ok {
		return nil
	}
	list := []tape.Segment(pages)
	for _, s := range held {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b tape.Segment) int { return cmp.Compare(a.Addr, b.Addr) })
	if !d.seat(list) {
		return nil
	}
	return append([]tape.Segment{}, list...)
}

// seat puts the seeds into the segments, which are in the order of their addresses, and
// reports whether all have a place.
func (d *device) seat(list []tape.Segment) bool {
	limits := make([]uint64, 0, len(d.seeds)) // up to where each seed may reach
	end := uint64(0)
	for i := range list {
		s := &list[i]
		if s.Addr < end || s.Addr+s.Bytes <= s.Addr {
			return false
		}
		end = s.Addr + s.Bytes
		for k := len(limits); k < len(d.seeds) && d.seeds[k].addr < end; k++ {
			seed, most := &d.seeds[k], end
			if k+1 < len(d.seeds) {
				most = min(most, d.seeds[k+1].addr)
			}
			if seed.addr < s.Addr || seed.size == 0 || seed.size > most-seed.addr {
				return false
			}
			limits = append(limits, most)
			s.Blocks = append(s.Blocks, tape.SegmentBlock{Addr: seed.addr, Requested: seed.size})
		}
	}
	return len(limits) == len(d.seeds) && d.measure(list, limits)
}

// measure finds how large the seeds are in their segments, and reports whether none is larger
// than it can be.
func (d *device) measure(list []tape.Segment, limits []uint64) bool {
	ends := d.seedEnds(limits)
	next := 0
	for _, s := range list {
		for i := range s.Blocks {
			b := &s.Blocks[i]
			b.Bytes = d.size(d.seeds[next], ends[next])
			if b.Bytes != 0 && b.Bytes < b.Requested || b.Bytes > limits[next]-b.Addr {
				return false
			}
			next++
		}
	}
	return true
}

// size is what a seed was rounded up to: as the segments have it, or up to what lay behind
// it; 0 if it is not known.
func (d *device) size(b block, end uint64) uint64 {
	if a, ok := d.active[b.addr]; ok && a == b {
		return d.sizes[b.addr]
	}
	if end > b.addr && end-b.addr >= b.size {
		return end - b.addr
	}
	return 0
}

// seedEnds finds where seeds end that only a free tells of. PyTorch leaves some bytes at the
// end of a block if they are few. But the free block behind a live one begins where that one
// ends, and the first request that is served there lies at its beginning. 0 is unknown.
func (d *device) seedEnds(limits []uint64) []uint64 {
	ends := make([]uint64, len(d.seeds))
	gone := make([]bool, len(d.seeds))
	for i := range d.events {
		e := &d.events[i]
		if e.action != allocated && e.action != freeCompleted {
			continue
		}
		k, exact := slices.BinarySearchFunc(d.seeds, e.addr, func(b block, addr uint64) int { return cmp.Compare(b.addr, addr) })
		switch {
		case exact:
			gone[k] = true
		case k > 0 && e.action == allocated && e.addr < limits[k-1] && !gone[k-1] && ends[k-1] == 0:
			ends[k-1] = e.addr
		}
	}
	return ends
}

// granted returns the segments that were taken from the device in one piece, in order.
func (d *device) granted() []tape.Segment {
	var list []tape.Segment
	for _, c := range d.changed {
		if !c.freed && !c.paged {
			list = append(list, c.Segment)
		}
	}
	return list
}
