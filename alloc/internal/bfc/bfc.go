// Package bfc is the pool that JAX, XLA and TensorFlow put between a program
// and the GPU: best fit with coalescing. It follows the original, BFCAllocator in
// XLA's tsl/framework/bfc_allocator.cc, placement for placement, so that a recorded
// run fails here where it failed there. The files in testdata/bfc, made by the original,
// hold it to that to the byte.
//
// # One request, from start to end
//
// The pool takes large regions from the device and tiles each with chunks, which
// are live or free. Two free ones are never neighbours. A fixed pool (the
// default) takes one region of its whole limit at the first request; a growing
// one takes 2, 4, 8... MiB as it needs them.
//
// Alloc(n):
//
//  1. n is rounded up to 256 bytes.
//  2. find: the smallest free chunk that is large enough, the lowest in
//     address among equals. The original keeps 21 bins and walks the first one
//     from its smallest chunk; its bins are sorted by size and then address, so
//     what it finds is the best fit. We ask an index (package chunks) for the
//     same chunk and never walk.
//  3. Nothing found: extend takes another region, if the limit allows, asking
//     for 0.9 times as much each time the device refuses, down to the request.
//  4. carve: if the chunk is at least twice the request, or 128 MiB larger, the
//     rest is cut off and stays free. Otherwise the caller gets all of it.
//
// Free puts the chunk back and joins it with its free neighbours. Nothing is
// released to the device before Close, however empty the pool is, as JAX's
// documentation says. The one exception is the original's own (garbage
// collection of regions, TensorFlow's default): wholly free regions are released
// when that makes room for a larger one.
//
// # The same with numbers
//
// A fixed pool of 1 MiB, 1,048,576 bytes. TestPackageComment runs this case.
//
//	Alloc A, 300,000   300,032 rounded up. The one chunk is more than twice that, so it is
//	                   cut: A is [0, 300032)
//	Alloc B, 300,000   B is [300032, 600064)
//	Alloc C, 300,000   448,512 bytes are left, not twice 300,032 and not 128 MiB more: C
//	                   gets all of them, of which it wastes 148,512
//	Free A, free C     748,544 bytes are free
//	Alloc D, 500,000   out of memory: the largest free chunk has 448,512 bytes, and B lies
//	                   between the two. This is fragmentation
//	Free B             joins the chunk above, then the one below: one of 1,048,576 again
//
// The limit was asked of the device in one piece. A growing pool that meets a request
// of 100,000,000 bytes first doubles what it asks for, from 2 MiB to 128 MiB, and the
// block gets the whole region: a chunk of 134,217,728 bytes is not cut.
//
// # Two ends
//
// Since JAX 0.11 a preallocated pool is partitioned: ordinary blocks grow from
// one end, collective memory from the other, and what lies between is the
// central gap, a free chunk that is in no index and is used only when no other
// fits. Each end has an index of its free chunks. carve.go has an example.
//
// JAX 0.11 serves ordinary blocks from the lower end. JAX 0.12 serves them from
// the upper one (TopDown), and is its mirror image: the same chunk at the same
// distance from the other end, so the highest in address among equals, cut from
// its top. Collective memory takes the lowest among equals in both. Where the
// device had less than the limit, such a pool never takes a second region.
//
// # Cost
//
// The original walks its bin from the smallest chunk: some 130 ns an operation, and
// 4,900 where thousands of chunks are a little too small. Its table of addresses has 8
// bytes for each 256 of the pool, all touched when a region is taken: 1.9 GiB of host
// memory and 2 s for 60 GiB. Here an operation takes 35 to 70 ns whatever is free, and
// the table has 8 bytes for each live block.
//
// # Locks
//
// None: the owner's lock guards all of it, as the original's mutex does.
//
// # Where we differ, on purpose
//
// The original loops for ever when a device keeps refusing a small region
// (0.9 x 2304 rounds up to 2304 again): we step down by at least 256 bytes. It
// wraps a size near 2^64 to 0: we refuse. It aborts when a partitioned pool
// that had to back off takes a second region while a gap exists: we treat that
// region as an unpartitioned one. It aborts on a bad free: we return an error.
// XLA's plugin opens a second pool for collective memory where the first is not
// partitioned: an unpartitioned pool here takes it like ordinary memory.
//
// The next JAX lets such a pool grow: arena.go.
//
// Files: bfc.go requests, carve.go the chunk that serves one and how it is cut, free.go
// frees, region.go regions of the device, arena.go growth in reserved addresses, stats.go
// statistics, report.go the out-of-memory report, why.go the account of a refusal, check.go
// the invariants.
package bfc

import (
	"cmp"
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/alloc/internal/ref"
	"gpumem/device"
	"gpumem/internal/invariants"
	"gpumem/size"
)

// Constants of XLA's tsl/framework/bfc_allocator.h, as of August 2026. The placements
// of XLA of June 2025 are the same.
const (
	// MinAllocation is the unit of sizes and addresses, in bytes
	// (kMinAllocationSize).
	MinAllocation = 256
	// numBins is kNumBins: 256 B, 512 B ... 256 MiB, the last for all that is larger.
	// The original searches them; here only the report shows them.
	numBins = 21
	// defaultWaste is how much larger than the request a chunk may be and still
	// be handed out whole, if it is not twice the request: 128 MiB
	// (kMaxInternalFragmentation). A block so wastes up to its own size.
	defaultWaste = 128 << 20
	// firstRegion is what a growing pool asks for first: 2 MiB (1 MiB in
	// TensorFlow up to 2.4).
	firstRegion = 2 << 20
)

// Tags of a chunk: the end it belongs to. Without partitioning all are lower. A live
// chunk is lower or upper; a free one may be the gap as well. The report prints them.
const (
	tagLower uint8 = iota
	tagUpper
	tagGap
)

var tagNames = [...]string{tagLower: "lower", tagUpper: "upper", tagGap: "central_gap"}

// Config describes the pool to make. Package policy works it out from a framework's
// environment; the fields are the original's options.
type Config struct {
	Name          string  // for messages; "" means GPU_<ordinal>_bfc
	Limit         uint64  // bytes that may be taken from the device in all
	Growth        bool    // take regions as needed; otherwise one of the whole limit
	Spatial       bool    // two ends; not together with Growth
	TopDown       bool    // ordinary blocks at the upper end, collective memory at the lower, and one region only; with Spatial
	GC            bool    // release wholly free regions when that makes room: garbage_collection
	Coalesce      bool    // regions that touch become one (the device must grant such); no framework's device does
	Fragmentation float64 // fraction of the limit that a block may waste: fragmentation_fraction; 0 means 128 MiB
	Align         uint64  // least alignment of every block, a power of two; 0 means 256
	FirstRegion   uint64  // what a growing pool asks for first, in bytes; 0 means 2 MiB
	// Initial, if not 0, makes a pool with TopDown take that many bytes first, and grow up to
	// Limit in addresses that it reserves: arena.go. The device must be a Reserver.
	Initial uint64
	// CollectiveAlign is the least alignment of collective memory in a partitioned
	// pool, a power of two; 0 means Align.
	CollectiveAlign uint64
	RegionUnit      uint64 // a region is what is asked for, rounded up to a multiple of this; 0: what the device grants
	IgnoreAlign     bool   // do not honour any alignment past 256, as before JAX 0.10.1
	// Report2025 writes reports as JAX did until December 2025: the head has a blank too few
	// and a line twice, chunks have no tag, the sums are one line of plain numbers, and
	// LargestFreeBlock is always 0. From then to June 2026 JAX wrote a third form, that one
	// with IEC units, which is not written here. Readers of logs know all three.
	Report2025 bool

	// Quiesce, if set, is called before free regions are released, since the driver
	// waits for all work then. Its error is returned, and nothing is released.
	Quiesce func() error
	// Log, if set, is called for what the original would log.
	Log func(alloc.Message)
}

// Allocator is one pool. It is not safe for concurrent use.
//
// Between operations each free chunk is in free[its tag] or is the gap, each live one
// in neither, and stats.PoolBytes is the sum of the regions' grants; see Check.
type Allocator struct {
	// The fields that every operation touches come first.
	closed   bool
	spatial  bool          // cfg.Spatial
	home     uint8         // the end of ordinary blocks: tagUpper with cfg.TopDown, else tagLower
	gap      chunks.H      // the central gap; 0: none
	align    uint64        // least alignment, at least 256
	waste    uint64        // a chunk this much larger than the request is always cut
	ordinary *chunks.Index // free[home]
	store    chunks.Store
	free     [2]*chunks.Index // holes of the lower and the upper end; nil until there is one but for [home]
	live     *chunks.Table    // by address; nil until a block is freed by address
	lastID   uint64           // allocations are numbered from 1
	firstGen uint32           // added to that number in blocks; see ref.FirstGen
	stats    alloc.Stats      // but for NumAllocs, which is lastID, and LargestFreeBlock

	dev     device.Device
	cfg     Config
	regions []region // by address
	arena   *arena   // nil without Config.Initial
	next    uint64   // bytes to ask for next (curr_region_allocation_bytes_)

	unusable []device.Range // grants at odd addresses that the device did not take back
}

var _ alloc.Allocator = (*Allocator)(nil)

// New makes a pool on dev. It takes nothing from the device yet. Options that exclude
// each other, or an alignment that is no power of two, are an alloc.ErrBadRequest.
func New(dev device.Device, cfg Config) (*Allocator, error) {
	if cfg.Spatial && cfg.Growth {
		return nil, fmt.Errorf("bfc: %w: a partitioned pool must be preallocated (spatial=true needs preallocate=true)", alloc.ErrBadRequest)
	}
	if cfg.TopDown && !cfg.Spatial {
		return nil, fmt.Errorf("bfc: %w: only a partitioned pool serves from the upper end (topdown=true needs spatial=true)", alloc.ErrBadRequest)
	}
	if grows := cfg.Initial != 0; grows && (!cfg.TopDown || cfg.GC || cfg.Coalesce || cfg.Initial > cfg.Limit) {
		return nil, fmt.Errorf("bfc: %w: a pool grows in reserved addresses from its first %d bytes to %d only with topdown=true, and without gc and coalesce", alloc.ErrBadRequest, cfg.Initial, cfg.Limit)
	}
	if cfg.Align == 0 {
		cfg.Align = MinAllocation
	}
	if c := cfg.CollectiveAlign; c&(c-1) != 0 {
		return nil, fmt.Errorf("bfc: %w: alignment %d of collective memory is not a power of two", alloc.ErrBadRequest, c)
	}
	if cfg.Align&(cfg.Align-1) != 0 {
		return nil, fmt.Errorf("bfc: %w: alignment %d is not a power of two", alloc.ErrBadRequest, cfg.Align)
	}
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("GPU_%d_bfc", dev.Info().Ordinal)
	}
	a := &Allocator{
		dev:      dev,
		cfg:      cfg,
		firstGen: ref.FirstGen(),
		spatial:  cfg.Spatial,
		align:    MinAllocation,
		waste:    defaultWaste,
	}
	if !cfg.IgnoreAlign {
		a.align = max(MinAllocation, cfg.Align)
	}
	if cfg.Fragmentation > 0 {
		a.waste = uint64(cfg.Fragmentation * float64(cfg.Limit))
	}
	// The limit itself need be no multiple of 256; what is asked of the device is.
	first := cfg.Limit
	if cfg.Initial != 0 {
		var err error
		if a.arena, err = newArena(dev, cfg.Limit); err != nil {
			return nil, err
		}
		first = min(cfg.Initial, a.arena.size)
	}
	if cfg.Growth {
		first = min(first, cmp.Or(cfg.FirstRegion, firstRegion))
	}
	a.next, _ = round256(first)
	a.stats.BytesLimit = cfg.Limit
	a.ordinary = chunks.NewIndex(&a.store, cfg.Limit)
	if cfg.TopDown {
		a.home = tagUpper
		a.ordinary = chunks.NewHighIndex(&a.store, cfg.Limit)
	}
	a.free[a.home] = a.ordinary
	return a, nil
}

// Name returns the pool's name in messages, such as GPU_0_bfc, which is JAX's. TensorFlow's
// is the same.
func (a *Allocator) Name() string { return a.cfg.Name }

// round256 rounds up to the unit: 300,000 bytes become 300,032. It is false where that
// passes 2^64.
func round256(n uint64) (uint64, bool) {
	r := (n + MinAllocation - 1) &^ (MinAllocation - 1)
	return r, r >= n
}

// Alloc allocates a block. Errors are those that alloc.Allocator lists. A device that
// refuses a region gives alloc.ErrNoMemory; any other failure of it is returned as it is.
//
// The common case, an ordinary block without a special alignment, takes the chunk out
// of the index in the same step that finds it, and cuts it without looking at tags.
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
	n, ok := round256(r.Bytes)
	if !ok {
		return alloc.Block{}, alloc.ErrTooLarge
	}
	align := a.align
	if r.Align != 0 {
		var err error
		if align, err = a.alignment(r.Align); err != nil {
			return alloc.Block{}, err
		}
	}
	end := a.home // a.end(r), inlined by hand: r stays in registers
	if r.End == alloc.Upper && a.spatial {
		end = tagUpper - end
	}
	var h chunks.H
	var c *chunks.Chunk
	if end == a.home && align == MinAllocation {
		// The common case: the best fit is the block, whatever chunk it is.
		if h, c = a.ordinary.Take(n); h != 0 {
			if c.Size != n {
				h, c = a.cut(h, c, n) // or not, if the rest is not worth it
			}
		} else {
			h = a.inGap(end, n, align)
		}
	} else {
		if end != a.home {
			align = max(align, a.cfg.CollectiveAlign)
		}
		h = a.find(end, n, align)
	}
	if c == nil {
		if h == 0 {
			var err error
			if h, err = a.makeRoom(end, n, align); err != nil {
				return alloc.Block{}, err
			}
		}
		h, c = a.carve(h, end, n, align)
	}

	// Ids are given to successes alone, as in the original. The number in the block is
	// the id's lower half, and begins elsewhere in each pool.
	a.lastID++
	c.Tag = end
	c.SetLive(a.firstGen+uint32(a.lastID), uint32(r.Site))
	c.Requested = r.Bytes
	c.Stream = r.Stream
	if a.live != nil {
		a.live.Insert(h, c.Addr)
	}
	a.stats.BytesInUse += c.Size
	a.stats.PeakBytesInUse = max(a.stats.PeakBytesInUse, a.stats.BytesInUse)
	a.stats.LargestAllocSize = max(a.stats.LargestAllocSize, c.Size)
	return c.Block(h), nil
}

// end returns the end of the pool that serves a request. Collective memory is called
// Upper after the end that serves it in JAX 0.11.
func (a *Allocator) end(r alloc.Request) uint8 {
	if a.spatial && r.End == alloc.Upper {
		return tagUpper - a.home
	}
	return a.home
}

// maxAlign is the largest alignment of which any address is a multiple: GPUs
// have addresses of at most 57 bits (CUDA programming guide, unified virtual
// address space).
const maxAlign = 1 << 56

// alignment returns the alignment of a block for a request that asks for one: at least
// the pool's own. Before JAX 0.10.1 the original ignored it.
func (a *Allocator) alignment(align uint64) (uint64, error) {
	switch {
	case align&(align-1) != 0:
		return 0, fmt.Errorf("%w: alignment %d is not a power of two", alloc.ErrBadRequest, align)
	case a.cfg.IgnoreAlign:
		return a.align, nil
	case align > maxAlign:
		return 0, neverAligned(align)
	}
	return max(align, a.align), nil
}

func neverAligned(align uint64) error {
	return fmt.Errorf("no block can be aligned to %s here: %w", size.Format(align), alloc.ErrNever)
}

// misses reports whether an aligned block of n bytes fits into no region, even if
// all of it were free, and the pool can take no further region. No free helps then, so
// that a caller need not wait.
func (a *Allocator) misses(end uint8, n, align uint64) bool {
	if a.arena == nil && (a.cfg.GC || n <= a.cfg.Limit-min(a.stats.PoolBytes, a.cfg.Limit)) {
		return false
	}
	for i := range a.regions {
		r := &a.regions[i]
		size := r.size
		if a.arena != nil {
			size = a.arena.reach(end != a.home, a.cfg.Initial)
		}
		if pad := -r.addr & (align - 1); n <= size && pad <= size-n {
			return false
		}
	}
	return true
}

// makeRoom is what is tried when no free chunk fits, in the original's order: another
// region; then, with garbage collection, releasing free regions and another region
// again. It returns the chunk that fits, still among the free ones.
func (a *Allocator) makeRoom(end uint8, n, align uint64) (chunks.H, error) {
	for collected := !a.cfg.GC; ; collected = true {
		grown, err := a.extend(end, n, align)
		if err != nil {
			return 0, err
		}
		if grown {
			if h := a.find(end, n, align); h != 0 {
				return h, nil
			}
		}
		if collected {
			break
		}
		if freed, err := a.collect(n); err != nil || !freed {
			if err != nil {
				return 0, err
			}
			break
		}
	}
	if n > a.cfg.Limit || a.arena != nil && n > a.arena.reach(end != a.home, a.cfg.Initial) {
		return 0, alloc.ErrNever
	}
	if align > MinAllocation && a.misses(end, n, align) {
		return 0, neverAligned(align)
	}
	return 0, alloc.ErrNoMemory
}
