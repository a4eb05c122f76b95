// Package pytorch is PyTorch's caching allocator for CUDA (backend:native):
// placement for placement and driver call for driver call what the releases 2.0.1
// to 2.15.0 do, so that a recorded run fails here where it failed there.
//
// # One request, from start to end
//
// Memory is taken from the device in segments, one cudaMalloc each, and cut into
// blocks. Free blocks are kept in pools: one for small requests (up to 1 MiB), one
// for large ones, and within each a list for every stream. A block never changes its
// stream, and blocks of two segments are never joined.
//
// Alloc(3,000,000), on an empty pool with the default settings:
//
//  1. The size is rounded up to 512 bytes: 3,000,320. More than 1 MiB, so the large
//     pool serves it.
//  2. find: the smallest free block that is large enough. There is none.
//  3. grow: below 10 MiB a segment of 20 MiB is taken; from there on the request
//     rounded up to 2 MiB; a small request takes 2 MiB.
//  4. split: the block is the low end of the segment. The rest of 17,971,200 bytes is
//     more than 1 MiB, so it becomes a free block. In the small pool 512 bytes do.
//
// Free joins the block with its free neighbours. Nothing goes back to the device.
//
// If the device refuses, all segments without a block in use go back to it, the large
// pool's first, and it is asked once more. With a limit and a threshold (Config.GC)
// large segments that have long been idle go back earlier; with Config.MaxSplit blocks
// of that size and more are not split, and go back before everything else does.
//
// # Expandable segments
//
// With Config.Expandable a segment is a range of addresses larger than the device,
// one for each pool and stream, behind which pages are mapped as they are needed: of 2
// MiB for small requests, of 20 MiB for large ones. What is not mapped is a block, too,
// in a separate list by address. See expand.go.
//
// # Several streams
//
// A block that was used in another stream ([Allocator.Record]) waits after its free
// for an event in that stream. It is a free block when a later request finds that the
// event has passed. See streams.go.
//
// # Where we differ, on purpose
//
// Releases up to 2.4 fail an assertion when they release large blocks with both
// max_split_size_mb and expandable segments; here the blocks are skipped, as later
// releases do. An alignment above 512 bytes, which PyTorch does not have, is served by
// cutting the block; requests without one are placed as ever. Sizes of 1 EiB and more
// are refused at once. Streams are ordered by number where PyTorch goes by handle, and
// several private pools by age where PyTorch has a hash table's order.
//
// Files: pytorch.go requests, place.go sizes and the block that serves a request,
// free.go frees, grow.go segments, expand.go expandable ones, streams.go events,
// private.go private pools, restore.go recorded
// ones, stats.go the counters, check.go the invariants.
package pytorch

import (
	"fmt"
	"math"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/alloc/internal/ref"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/internal/invariants"
	"gpumem/size"
)

// Constants of PyTorch's c10/core/CachingDeviceAllocator.h (c10/cuda/
// CUDACachingAllocator.cpp in older releases), in bytes.
const (
	minBlock     = 512      // kMinBlockSize: the smallest block, and the unit of sizes
	smallSize    = 1 << 20  // kSmallSize: the largest request of the small pool
	smallSegment = 2 << 20  // kSmallBuffer: a segment of the small pool
	largeSegment = 20 << 20 // kLargeBuffer: a segment for requests below minLarge, and the slack for large blocks
	minLarge     = 10 << 20 // kMinLargeAlloc: from here on a segment is one request's
	roundLarge   = 2 << 20  // kRoundLarge: the unit of such a segment
	tooLarge     = 1 << 60  // one_exa_bytes: requests from here on are refused at once
)

// A Tie is the order of free blocks of the same size: the first one is used.
type Tie uint8

// The orders, by release.
const (
	BySegment Tie = iota // 2.13 and later: that of the older segment, then the lowest address
	ByAddress            // up to 2.11: the lowest address
	ByObject             // 2.12: the one whose block was made first
)

// Config is the settings of one pool. The zero value is the newest release's default.
type Config struct {
	// Limit is the most that segments may take, in bytes
	// (set_per_process_memory_fraction times the total); 0 means no limit.
	Limit uint64
	// MaxSplit is max_split_size_mb in bytes; 0 means no such limit.
	MaxSplit uint64
	// Slack is max_non_split_rounding_mb in bytes: an unsplit block for a request of
	// MaxSplit and more is less than this larger. 0 means 20 MiB.
	Slack uint64
	// Segment is large_segment_size_mb in bytes; 0 means 20 MiB.
	Segment uint64
	// Divisions are roundup_power2_divisions: for requests from 1, 2, 4 ... 32768
	// MiB on, the number of steps, a power of two, between two powers of two. 0 and
	// 1 mean none.
	Divisions [16]uint64
	// GC is garbage_collection_threshold, from 0 to 1; 0 turns collection off. It
	// needs Limit.
	GC float64
	// Expandable is expandable_segments.
	Expandable bool
	// Addresses is how many bytes of addresses an expandable segment reserves; 0
	// means 9/8 of the device's total, which is also the most.
	Addresses uint64

	Tie Tie
	// KeepSizes leaves sizes above 512 bytes as they are where Divisions is 1, as
	// releases up to 2.3 do.
	KeepSizes bool
	// CaptureEvents has a block that is freed during a capture wait for the streams, too,
	// that used it in the capture, as releases up to 2.3 do.
	CaptureEvents bool
	// PrivateGrants has private pools take whole segments with Expandable, too, as
	// releases up to 2.4 do.
	PrivateGrants bool
	// PoolCaptures has each BeginPool count as a capture, as releases up to 2.12 do.
	PoolCaptures bool

	// Streams has the streams that requests name; nil means that all is in stream 0.
	// Close closes it.
	Streams *streams.Tracker
	// Log, if set, is called for what the original would log.
	Log func(alloc.Message)
}

// Device is what the allocator needs of a GPU.
type Device interface {
	device.Device
	device.Pages
	device.Streams
}

// Flags of a chunk, in its Tag. A chunk in no list is live or waiting.
const (
	unmapped uint8 = 1 << iota // addresses of an expandable segment without memory
	waiting                    // freed, and used in other streams whose events have not passed
	expand                     // of an expandable segment
)

// record is what the store does not have of a chunk.
type record struct {
	segment int32
	events  int32  // that a waiting chunk waits for
	others  int32  // index in Allocator.others: the other streams of a live chunk; 0: none
	object  uint64 // ByObject: when it was made
	stamp   uint64 // with collection: its pool's count of searches when it became free
}

// freeList is the free blocks of one stream in one pool. A chunk's Stream is the
// number of its list.
type freeList struct {
	stream   uint32
	pool     int32
	mapped   *chunks.Index
	unmapped []chunks.H // by address
}

// pool is the small or the large pool, of an arena.
type pool struct {
	small    bool
	lists    []int32 // by stream
	searches uint64  // counted while collection is on
}

// Allocator is one device's. It is not safe for concurrent use.
type Allocator struct {
	// First what every operation touches.
	closed  bool
	plain   bool // none of MaxSplit, GC, Expandable, KeepSizes: the best fit is the block
	rising  bool // BySegment: each segment lies above those before it, so that the order is by address
	near    near
	store   chunks.Store
	more    []record      // by handle
	live    *chunks.Table // by address; nil until a block is freed by address
	lists   []freeList
	pools   []pool  // two for each arena, the large one first
	arenas  []arena // [0] is the default; see private.go
	stats   alloc.Stats
	mem     MemoryStats
	lastID  uint64 // allocations are numbered from 1
	gen     uint32 // added to that number in blocks
	objects uint64 // ByObject: made so far

	dev       Device
	info      device.Info
	cfg       Config
	maxSplit  uint64 // cfg.MaxSplit, or the largest number
	segments  []segment
	spare     []int32 // segments that are none
	serial    uint64  // of the last segment or arena
	highest   uint64  // address of a segment so far
	routes    []route
	capturing int        // captures that are under way
	deferred  []chunks.H // freed during a capture, without their events
	queues    []queue    // of events
	others    [][]use    // lists of streams; [0] is none
	unused    []int32    // of others
	orphans   []orphan
	created   []device.Handle // of backPages
	scratch   []chunks.H
	streams   *streams.Tracker
	quiet     bool // this operation has waited for the device
}

// near is the pools that served the last request.
type near struct {
	valid        bool
	stream       uint32
	small, large int32 // lists
}

var (
	_ alloc.Allocator = (*Allocator)(nil)
)

// New makes a pool on dev. Nothing is taken from the device yet. Errors:
// alloc.ErrBadRequest for settings that PyTorch refuses, device.ErrNotSupported for
// expandable segments on a device without pages.
func New(dev Device, cfg Config) (*Allocator, error) {
	info := dev.Info()
	if cfg.Slack == 0 {
		cfg.Slack = largeSegment
	}
	if cfg.Segment == 0 {
		cfg.Segment = largeSegment
	}
	switch {
	case cfg.Segment <= minLarge:
		return nil, fmt.Errorf("pytorch: %w: large segments of %s: want more than 10 MiB", alloc.ErrBadRequest, size.Format(cfg.Segment))
	case cfg.MaxSplit != 0 && cfg.MaxSplit < cfg.Segment:
		// So that a free block of that size is always a whole segment.
		return nil, fmt.Errorf("pytorch: %w: max_split_size of %s: want at least the size of large segments, %s", alloc.ErrBadRequest, size.Format(cfg.MaxSplit), size.Format(cfg.Segment))
	case !(cfg.GC >= 0 && cfg.GC < 1):
		return nil, fmt.Errorf("pytorch: %w: garbage_collection_threshold %g: want a number above 0 and below 1", alloc.ErrBadRequest, cfg.GC)
	case cfg.Expandable && !info.HasPages:
		return nil, fmt.Errorf("pytorch: %s has no virtual memory calls, which expandable segments need: %w", info.Name, device.ErrNotSupported)
	}
	for _, d := range cfg.Divisions {
		if d&(d-1) != 0 {
			return nil, fmt.Errorf("pytorch: %w: roundup_power2_divisions %d is not a power of two", alloc.ErrBadRequest, d)
		}
	}
	if cfg.Limit == 0 {
		cfg.GC = 0 // as in PyTorch, where only a limit switches it on
	}
	a := &Allocator{
		dev: dev, info: info, cfg: cfg, maxSplit: cfg.MaxSplit, streams: cfg.Streams,
		gen: ref.FirstGen(), others: make([][]use, 1),
		rising: cfg.Tie == BySegment,
		plain:  cfg.MaxSplit == 0 && cfg.GC == 0 && !cfg.Expandable && !cfg.KeepSizes,
	}
	if a.maxSplit == 0 {
		a.maxSplit = math.MaxUint64
	}
	if a.streams == nil {
		a.streams = streams.Single(dev)
	}
	a.stats.BytesLimit = cfg.Limit
	if cfg.Limit == 0 {
		a.stats.BytesLimit = info.Total
	}
	a.addArena(0)
	return a, nil
}

// Name is pytorch.
func (a *Allocator) Name() string { return "pytorch" }

// Alloc allocates a block. The errors are those of alloc.Allocator.
func (a *Allocator) Alloc(r alloc.Request) (alloc.Block, error) {
	if invariants.Enabled {
		defer func() { invariants.Must(a.Check()) }()
	}
	if a.closed {
		return alloc.Block{}, alloc.ErrClosed
	}
	if r.Bytes == 0 {
		return alloc.Block{}, nil
	}
	if err := a.streams.Use(r.Stream); err != nil {
		return alloc.Block{}, err
	}
	if r.Bytes >= tooLarge {
		return alloc.Block{}, alloc.ErrTooLarge
	}
	if a.mem.Waiting > 0 && a.capturing == 0 {
		if err := a.processEvents(); err != nil {
			return alloc.Block{}, err
		}
	}
	n := a.Round(r.Bytes)
	want := n // with what an alignment may cost
	if r.Align > minBlock || r.Align > 1 && a.cfg.KeepSizes {
		if err := chunks.CheckRequest(r, a.stats.BytesLimit); err != nil {
			return alloc.Block{}, err
		}
		want += r.Align
	} else if r.Align&(r.Align-1) != 0 {
		return alloc.Block{}, chunks.CheckRequest(r, a.stats.BytesLimit)
	}
	l := a.list(want, r.Stream)
	var h chunks.H
	var c *chunks.Chunk
	if a.plain {
		h, c = a.lists[l].mapped.Take(want)
	} else {
		h, c = a.find(l, want)
	}
	if h == 0 {
		var err error
		if h, c, err = a.grow(l, want); err != nil {
			return alloc.Block{}, err
		}
	} else if c.Prev|c.Next != 0 && c.Tag&expand == 0 {
		a.mem.InactiveSplit -= c.Size
	}
	if want != n {
		a.cutLead(h, c, -c.Addr&(r.Align-1))
	}
	if c.Size != n && a.splits(l, c, n) {
		h, c = a.split(h, c, n)
	}
	return a.handOut(h, c, r), nil
}

// handOut makes the block of a request of a chunk that is in no list.
func (a *Allocator) handOut(h chunks.H, c *chunks.Chunk, r alloc.Request) alloc.Block {
	a.lastID++
	c.SetLive(a.gen+uint32(a.lastID), uint32(r.Site))
	c.Requested = r.Bytes
	if a.live != nil {
		a.live.Insert(h, c.Addr)
	}
	if c.Size >= a.maxSplit {
		a.mem.OversizeAllocs++
	}
	s, m := &a.stats, &a.mem
	s.BytesInUse += c.Size
	s.PeakBytesInUse = max(s.PeakBytesInUse, s.BytesInUse)
	s.LargestAllocSize = max(s.LargestAllocSize, c.Size)
	m.Requested += r.Bytes
	m.RequestedPeak = max(m.RequestedPeak, m.Requested)
	m.InactiveSplitPeak = max(m.InactiveSplitPeak, m.InactiveSplit)
	return c.Block(h)
}
