package pytorch

// The counters, and the walk over every piece. See pytorch.go for an overview.

import (
	"cmp"
	"slices"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
)

// MemoryStats are counters of torch.cuda.memory_stats beside those of alloc.Stats, in
// bytes unless noted.
type MemoryStats struct {
	OOMs              uint64 // num_ooms: requests that were refused
	Retries           uint64 // num_alloc_retries: how often everything free was released for a request
	Requested         uint64 // requested_bytes.current: of live blocks
	RequestedPeak     uint64
	Waiting           uint64 // in blocks that are free but for events: active_bytes less allocated_bytes
	Reserved          uint64 // reserved_bytes.current: of segments, or of mapped pages
	ReservedPeak      uint64
	ReservedSmall     uint64 // the small pools' part of Reserved
	InactiveSplit     uint64 // inactive_split_bytes.current: free in segments that are partly in use; without expandable ones
	InactiveSplitPeak uint64
	Segments          uint64 // segment.current: their number, without expandable ones
	SegmentsPeak      uint64
	SegmentsMade      uint64 // segment.allocated
	OversizeAllocs    uint64 // oversize_allocations.allocated: blocks of Config.MaxSplit and more, so far
	OversizeSegments  uint64 // oversize_segments.allocated
}

// MemoryStats returns PyTorch's counters.
func (a *Allocator) MemoryStats() MemoryStats { return a.mem }

// Reserved returns the peak of reserved_bytes, and how many segments were made.
func (a *Allocator) Reserved() (peak, segments uint64) { return a.mem.ReservedPeak, a.mem.SegmentsMade }

// Stats are JAX's statistics. Waiting blocks are not in use.
func (a *Allocator) Stats() alloc.Stats {
	s := a.stats
	s.NumAllocs = int64(a.lastID)
	for i := range a.lists {
		if h := a.lists[i].mapped.Largest(); h != 0 {
			s.LargestFreeBlock = max(s.LargestFreeBlock, a.store.At(h).Size)
		}
	}
	return s
}

// byAddress are the numbers of all segments in address order.
func (a *Allocator) byAddress() []int {
	var order []int
	for i := range a.segments {
		if a.segments[i].size != 0 {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(a.segments[i].addr, a.segments[j].addr) })
	return order
}

// chunks visits every chunk, unmapped ones too, in address order.
func (a *Allocator) chunks(yield func(chunks.H, *chunks.Chunk) bool) {
	for _, i := range a.byAddress() {
		for h := a.segments[i].first; h != 0; {
			c := a.store.At(h)
			next := c.Next
			if !yield(h, c) {
				return
			}
			h = next
		}
	}
}

// Walk visits every piece in address order. A segment is a region, and so is what is
// mapped in a row of an expandable one. The tag is large or small, the pool.
func (a *Allocator) Walk(yield func(alloc.Chunk) bool) {
	region := -1
	for _, c := range a.chunks {
		if c.Tag&unmapped != 0 {
			continue
		}
		if c.Prev == 0 || a.store.At(c.Prev).Tag&unmapped != 0 {
			region++
		}
		f := &a.lists[c.Stream]
		out := alloc.Chunk{
			Addr: c.Addr, Size: c.Size, Requested: c.Requested, Region: region,
			Live: c.State == chunks.Live, Tag: "large", Stream: f.stream,
		}
		if a.pools[f.pool].small {
			out.Tag = "small"
		}
		if out.Live {
			out.Site = alloc.Site(c.Site())
		}
		if !yield(out) {
			return
		}
	}
}
