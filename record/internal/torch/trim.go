package torch

// When the program emptied PyTorch's cache (torch.cuda.empty_cache), from the segments that
// were released. An allocation releases segments, too: if the device has no memory for it,
// or if a limit is reached. Those come just before the segment that it takes, or before its
// refusal, and have its stack. Without stacks it was the program if the device had room for
// the new segment beside the old ones, for as much was held at some time, and in any case if
// a released segment could have served the request. Where nothing tells the two apart, it is
// the allocation that counts: a replay has its refusals.
//
// The events alloc A, free A, segment_free, segment_alloc, alloc B are an emptied cache if
// the stack of segment_free is not that of B. In alloc A, free A, segment_free, alloc B it
// is one in any case, for B takes no new segment.

import (
	"gpumem/record/internal/tape"
	"gpumem/size"
)

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

// couldServe reports whether an allocation would have found a segment that was released, and
// so did not release it.
func (d *device) couldServe(c change, next event) bool {
	isOfPool := c.Stream == next.stream && c.Small == (next.size <= smallRequest) && !c.paged
	return next.action == allocated && isOfPool && c.Bytes >= next.size && !d.maxSplit
}

// heldOver returns what the segments had before the first event, and the most that they had
// at any time; 0 if that is not known.
func (d *device) heldOver() (first, most uint64) {
	first, ok := d.heldFirst()
	if !ok {
		return 0, 0
	}
	held := first
	for _, c := range d.changed {
		if c.freed {
			held -= min(c.Bytes, held)
		} else {
			held = size.Add(held, c.Bytes)
		}
		most = max(most, held)
	}
	return first, max(first, most)
}

// findTrims finds the events before which the program emptied the cache.
func (d *device) findTrims(served bool) {
	held, most := d.heldOver()
	for i := 0; i < len(d.changed); {
		first := i // of those before one event
		taken, had := false, held
		var came uint64
		for ; i < len(d.changed) && d.changed[i].before == d.changed[first].before; i++ {
			c := d.changed[i]
			taken = taken || !c.freed
			if c.freed {
				held -= min(c.Bytes, held)
			} else {
				held = size.Add(held, c.Bytes)
				came = size.Add(came, c.Bytes)
			}
		}
		at := d.changed[first].before
		if at == len(d.events) {
			return
		}
		next := d.events[at]
		forNext := !served && (next.action == outOfMemory || next.action == allocated && taken)
		hadRoom := next.action == allocated && next.site == 0 && size.Add(had, came) <= most
		for _, c := range d.changed[first:i] {
			if c.freed && (!forNext || hadRoom || c.site != next.site || d.couldServe(c, next)) {
				d.trims = append(d.trims, at)
				break
			}
		}
	}
}
