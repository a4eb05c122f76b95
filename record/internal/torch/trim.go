package torch

// When the program emptied PyTorch's cache (torch.cuda.empty_cache), from the segments that
// were released. An allocation releases segments, too: if the device has no memory for it,
// or if a limit is reached. Those come just before the segment that it takes, or before its
// refusal, and have its stack. Where nothing tells the two apart, as without stacks, it is
// the allocation that counts: a replay has its refusals.
//
// The events alloc A, free A, segment_free, segment_alloc, alloc B are an emptied cache if
// the stack of segment_free is not that of B. In alloc A, free A, segment_free, alloc B it
// is one in any case, for B takes no new segment.

import "gpumem/record/internal/tape"

// change is a segment that was taken from the device or released to it, before an event.
type change struct {
	tape.Segment
	before int // in device.events
	site   uint32
	freed  bool
	paged  bool // it is pages of an expandable segment
}

// segmentEvent notes a segment that came or went.
func (d *device) segmentEvent(t *reader, ev *dict, what action) {
	c := change{before: len(d.events), freed: what == segmentFreed || what == segmentUnmapped}
	var hasAddr, hasSize bool
	c.Addr, hasAddr = addressField(ev, "addr")
	c.Bytes, hasSize = sizeField(ev, "size")
	c.Stream, c.Small = d.stream(intField(ev, "stream")), c.Bytes == smallSegment
	frames, _ := ev.get("frames")
	c.site = t.stacks.site(frames)
	if c.paged = what == segmentMapped || what == segmentUnmapped; c.paged {
		c.Base = c.Addr
	}
	d.foreign = d.foreign || !hasAddr || !hasSize || c.Addr+c.Bytes < c.Addr
	d.changed = append(d.changed, c)
}

// findTrims finds the events before which the program emptied the cache.
func (d *device) findTrims(served bool) {
	for i := 0; i < len(d.changed); {
		first := i // of those before one event
		taken := false
		for ; i < len(d.changed) && d.changed[i].before == d.changed[first].before; i++ {
			taken = taken || !d.changed[i].freed
		}
		at := d.changed[first].before
		if at == len(d.events) {
			return
		}
		next := d.events[at]
		forNext := !served && (next.action == outOfMemory || next.action == allocated && taken)
		for _, c := range d.changed[first:i] {
			if c.freed && (!forNext || c.site != next.site) {
				d.trims = append(d.trims, at)
				break
			}
		}
	}
}
