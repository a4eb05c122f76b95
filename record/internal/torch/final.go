package torch

// What the recorded pool held: its segments when the snapshot was taken, with their blocks,
// and the bytes in segments over the events. A page shows both beside what a policy would
// have held. See torch.go for an overview.

import (
	"cmp"
	"slices"

	"gpumem/record/internal/tape"
	"gpumem/size"
)

// addSegment notes a segment as the snapshot has it. Segments of any kind count here, also
// those of private pools and of mapped pages.
func (d *device) addSegment(seg *dict, addr uint64, stream uint32) {
	s := tape.Segment{Addr: addr, Stream: stream, Small: stringField(seg, "segment_type") == "small"}
	var sized bool
	s.Bytes, sized = sizeField(seg, "total_size")
	if paged, _ := seg.get("is_expandable"); paged == true {
		s.Base = s.Addr
	}
	var known bool
	s.Private, known = d.private(seg)
	d.damaged = d.damaged || !sized || s.Addr+s.Bytes < s.Addr
	d.foreign = d.foreign || !sized || !known
	d.final = append(d.final, s)
}

// addSegmentBlock notes a live block of the segment that was noted last.
func (d *device) addSegmentBlock(b block, bytes uint64) {
	s := &d.final[len(d.final)-1]
	s.Blocks = append(s.Blocks, tape.SegmentBlock{Addr: b.addr, Bytes: bytes, Site: b.site})
}

// lastSegments returns the segments at the end, by address; nil if a segment has no size,
// reaches into another, or has a block outside.
func (d *device) lastSegments() []tape.Segment {
	slices.SortFunc(d.final, func(a, b tape.Segment) int { return cmp.Compare(a.Addr, b.Addr) })
	end := uint64(0)
	for _, s := range d.final {
		if d.damaged || s.Addr < end {
			return nil
		}
		end = s.Addr
		for _, b := range s.Blocks {
			if b.Addr < end || b.Addr-s.Addr > s.Bytes || b.Bytes > s.Bytes-(b.Addr-s.Addr) {
				return nil
			}
			end = b.Addr + b.Bytes
		}
		end = s.Addr + s.Bytes
	}
	return d.final
}

// heldFirst returns what the segments had before the first event: what they have at the end,
// without those that came meanwhile and with those that went. Nothing is known of a snapshot
// without segments, or if more came than is there.
func (d *device) heldFirst() (held uint64, ok bool) {
	if len(d.final) == 0 || d.damaged {
		return 0, false
	}
	var came uint64
	for _, s := range d.final {
		held = size.Add(held, s.Bytes)
	}
	for _, c := range d.changed {
		if c.freed {
			held = size.Add(held, c.Bytes)
		} else {
			came = size.Add(came, c.Bytes)
		}
	}
	if came > held {
		return 0, false
	}
	return held - came, true
}

// reserveFirst notes what the segments had before the first event, if it is known.
func (d *device) reserveFirst() {
	var ok bool
	if d.held, ok = d.heldFirst(); !ok {
		d.changed = nil
		return
	}
	d.pool.Reserved(d.held)
}

// reserve notes the segments that came and went before the next event.
func (d *device) reserve() {
	for len(d.changed) > 0 && d.changed[0].before <= d.next {
		c := d.changed[0]
		d.changed = d.changed[1:]
		if c.freed {
			d.held -= min(c.Bytes, d.held)
		} else {
			d.held = size.Add(d.held, c.Bytes)
		}
		d.pool.Reserved(d.held)
	}
}
