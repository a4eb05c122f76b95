// Package bfc is the pool that JAX, XLA and TensorFlow put between a program
// and the GPU: best fit with coalescing, placement for placement what the
// original does, so that a recorded run fails here where it failed there.
//
// # One request, from start to end
//
// The pool takes large regions from the device and tiles each with chunks:
// live ones, and free ones that no two neighbours ever are. A fixed pool (the
// default) takes one region of its whole limit at the first request; a growing
// one takes 2, 4, 8... MiB as it must.
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
// Free puts the chunk back and joins it with its free neighbours. Nothing goes
// back to the device before Close, however empty the pool is: the page says so
// and the original does so. The one exception is the original's own (garbage
// collection of regions, TensorFlow's default): wholly free regions are given
// back when that makes room for a larger one.
//
// # Two ends
//
// Since 2026 a preallocated JAX pool is partitioned: ordinary blocks grow from
// the lower end, collective memory from the upper one, and what lies between
// is the central gap, a free chunk that is in no index and is used only when no
// hole fits. Each end has an index of its own holes.
//
// # Where we differ, on purpose
//
// The original loops for ever when a device keeps refusing a small region
// (0.9 x 2304 rounds up to 2304 again): we step down by at least 256 bytes. It
// wraps a size near 2^64 to 0: we refuse. It aborts when a partitioned pool
// that had to back off takes a second region while a gap exists: we treat that
// region as an unpartitioned one. It aborts on a bad free: we return an error.
//
// Files: bfc.go the requests, region.go what is taken from the device, stamp.go
// the timing counter, report.go the out-of-memory report, memdump.go the binary
// one, check.go the invariants.
package bfc

import (
	"fmt"
	"math"
	"math/bits"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/device"
	"gpumem/internal/invariants"
)

// Constants of XLA's tsl/framework/bfc_allocator.h.
const (
	// MinAllocation is the unit of sizes and addresses, in bytes
	// (kMinAllocationSize).
	MinAllocation = 256
	// numBins is kNumBins: 256 B, 512 B ... 256 MiB. Only the report shows them.
	numBins = 21
	// defaultWaste is how much larger than the request a chunk may be and still
	// be handed out whole, if it is not twice the request: 128 MiB
	// (kMaxInternalFragmentation).
	defaultWaste = 128 << 20
	// firstRegion is what a growing pool asks for first: 2 MiB.
	firstRegion = 2 << 20
)

// Tags of a chunk: the end it belongs to. Without partitioning all are lower.
const (
	tagLower uint8 = iota
	tagUpper
	tagGap
)

var tagNames = [...]string{tagLower: "lower", tagUpper: "upper", tagGap: "central_gap"}

// Config says what pool to make.
type Config struct {
	Name          string  // for messages; "" means GPU_<ordinal>_bfc
	Limit         uint64  // bytes that may be taken from the device in all
	Growth        bool    // take regions as needed; otherwise one of the whole limit
	Spatial       bool    // two ends; not together with Growth
	GC            bool    // give wholly free regions back when that makes room
	Coalesce      bool    // regions that touch become one (the device must grant such)
	Fragmentation float64 // fraction of the limit that a block may waste; 0 means 128 MiB
	Align         uint64  // least alignment of every block, a power of two; 0 means 256
	IgnoreAlign   bool    // do not honour any alignment past 256, as before JAX 0.10.1
	Layout        Layout  // of the report

	// Counter, if set, is TensorFlow's timing counter: a freed chunk bears the
	// next count and is not joined with others before SetSafeFrontier passes it.
	Counter func() uint64

	// Log, if set, is told what the original would log while it works.
	Log func(alloc.Message)
}

// Allocator is one pool. It is not safe for concurrent use.
type Allocator struct {
	dev  device.Device
	cfg  Config
	name string

	align uint64 // least alignment, at least 256
	waste uint64 // a chunk this much larger than the request is always cut

	store chunks.Store
	free  [2]*chunks.Index // holes of the lower and the upper end; [1] is nil until there is one
	gap   chunks.H         // the central gap; 0: none
	live  *chunks.Table    // by address; nil until a block is freed by address

	regions []region // by address
	next    uint64   // bytes to ask for next (curr_region_allocation_bytes_)

	timed    bool     // there is a timing counter; stamp.go
	ages     []uint64 // by chunk: the count at which it was freed, 0 when that is safe
	stamped  []stamp  // freed chunks that wait for the safe frontier
	frontier uint64

	lastID uint64 // allocations are numbered from 1
	stats  alloc.Stats
	closed bool
}

var _ alloc.Allocator = (*Allocator)(nil)

// New makes a pool on dev. Nothing is taken from the device yet.
func New(dev device.Device, cfg Config) (*Allocator, error) {
	if cfg.Spatial && cfg.Growth {
		return nil, fmt.Errorf("bfc: %w: a partitioned pool must be preallocated (spatial=true needs preallocate=true)", alloc.ErrBadRequest)
	}
	if cfg.Spatial && cfg.Counter != nil {
		return nil, fmt.Errorf("bfc: %w: a partitioned pool has no timing counter", alloc.ErrBadRequest)
	}
	if cfg.Align == 0 {
		cfg.Align = MinAllocation
	}
	if cfg.Align&(cfg.Align-1) != 0 {
		return nil, fmt.Errorf("bfc: %w: alignment %d is not a power of two", alloc.ErrBadRequest, cfg.Align)
	}
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("GPU_%d_bfc", dev.Info().Ordinal)
	}
	a := &Allocator{
		dev:   dev,
		cfg:   cfg,
		name:  cfg.Name,
		timed: cfg.Counter != nil,
		align: MinAllocation,
		waste: defaultWaste,
	}
	if !cfg.IgnoreAlign {
		a.align = max(MinAllocation, cfg.Align)
	}
	if cfg.Fragmentation > 0 {
		a.waste = uint64(cfg.Fragmentation * float64(cfg.Limit))
	}
	a.next, _ = round256(cfg.Limit)
	if cfg.Growth {
		a.next, _ = round256(min(cfg.Limit, firstRegion))
	}
	a.stats.BytesLimit = cfg.Limit
	a.free[tagLower] = chunks.NewIndex(&a.store, cfg.Limit)
	return a, nil
}

// Name is the pool's name in messages, such as GPU_0_bfc.
func (a *Allocator) Name() string { return a.name }

// round256 rounds up to the unit; false where that passes 2^64.
func round256(n uint64) (uint64, bool) {
	r := (n + MinAllocation - 1) &^ (MinAllocation - 1)
	return r, r >= n
}

// Alloc hands out a block.
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
	if r.Align > align {
		if r.Align&(r.Align-1) != 0 {
			return alloc.Block{}, fmt.Errorf("%w: alignment %d is not a power of two", alloc.ErrBadRequest, r.Align)
		}
		if !a.cfg.IgnoreAlign {
			align = r.Align
		}
	}
	end := tagLower
	if a.cfg.Spatial && r.End == alloc.Upper {
		end = tagUpper
	}
	if len(a.stamped) > 0 {
		a.mergeStamped(0)
	}
	var h chunks.H
	var c *chunks.Chunk
	if end == tagLower && align == MinAllocation && r.FreedBefore == 0 {
		// The common case: the best fit is the block, whatever chunk it is.
		if h, c = a.free[tagLower].Take(n); h != 0 {
			a.cut(h, c, n)
		}
	}
	if h == 0 {
		if h = a.find(end, n, align, r.FreedBefore); h == 0 {
			var err error
			if h, err = a.makeRoom(end, n, align, r.FreedBefore); err != nil {
				return alloc.Block{}, err
			}
		}
		h, c = a.carve(h, end, n, align)
	}

	a.lastID++
	c.Tag = end
	c.SetLive(uint32(a.lastID), uint32(r.Site))
	c.Requested = r.Bytes
	c.Stream = r.Stream
	if a.live != nil {
		a.live.Insert(h, c.Addr)
	}
	if a.timed {
		a.setAge(h, 0)
	}
	a.stats.NumAllocs++
	a.stats.BytesInUse += c.Size
	a.stats.PeakBytesInUse = max(a.stats.PeakBytesInUse, a.stats.BytesInUse)
	a.stats.LargestAllocSize = max(a.stats.LargestAllocSize, c.Size)
	return alloc.MakeBlock(c.Addr, c.Size, h, c.Gen()), nil
}

// makeRoom is what is tried when no free chunk fits: another region, joining
// chunks that the timing counter keeps apart, giving free regions back.
func (a *Allocator) makeRoom(end uint8, n, align, freedBefore uint64) (chunks.H, error) {
	grown, err := a.extend(n)
	if err != nil {
		return 0, err
	}
	if grown {
		if h := a.find(end, n, align, freedBefore); h != 0 {
			return h, nil
		}
	}
	if freedBefore == 0 && len(a.stamped) > 0 && a.mergeStamped(n) {
		if h := a.find(end, n, align, freedBefore); h != 0 {
			return h, nil
		}
	}
	if a.cfg.GC {
		freed, err := a.collect(n)
		if err != nil {
			return 0, err
		}
		if freed {
			if grown, err = a.extend(n); err != nil {
				return 0, err
			}
			if grown {
				if h := a.find(end, n, align, freedBefore); h != 0 {
					return h, nil
				}
			}
		}
	}
	if n > a.cfg.Limit {
		return 0, alloc.ErrNever // not earlier: the original joins chunks even for this
	}
	return 0, alloc.ErrNoMemory
}

// find is the chunk to use, 0 if none fits. It stays where it is.
func (a *Allocator) find(end uint8, n, align, freedBefore uint64) chunks.H {
	x := a.free[end]
	if align == MinAllocation && freedBefore == 0 {
		if x != nil {
			if h := x.Find(n); h != 0 {
				return h
			}
		}
	} else if x != nil {
		// A chunk that is large enough can still be refused, by its alignment or
		// its age, so the order is followed from the best fit on.
		for h := x.Find(n); h != 0; h = x.After(h) {
			if a.fits(h, end, n, align, freedBefore) {
				return h
			}
		}
	}
	if a.gap != 0 && a.fits(a.gap, end, n, align, freedBefore) {
		return a.gap
	}
	return 0
}

// fits says whether n bytes can be cut from h at the given end.
func (a *Allocator) fits(h chunks.H, end uint8, n, align, freedBefore uint64) bool {
	c := a.store.At(h)
	if c.Size < n || freedBefore > 0 && a.age(h) > freedBefore {
		return false
	}
	if end == tagUpper {
		return (c.Addr+c.Size-n)&-align >= c.Addr
	}
	pad := -c.Addr & (align - 1)
	return pad <= c.Size-n
}

// carve takes chunk h, which fits, out of the free ones and cuts it to the
// request. The chunk that it returns is the block's.
func (a *Allocator) carve(h chunks.H, end uint8, n, align uint64) (chunks.H, *chunks.Chunk) {
	c := a.store.At(h)
	a.takeFree(h, c)
	if end == tagUpper {
		// Exact at both sides: what lies below stays what it was (gap or hole),
		// what lies above is a hole of the upper end.
		start := (c.Addr + c.Size - n) & -align
		if start > c.Addr {
			rest, r := a.split(h, c, start-c.Addr)
			a.putFree(h, c)
			h, c = rest, r
		}
		if c.Size > n {
			rest, r := a.split(h, c, n)
			r.Tag = tagUpper
			a.putFree(rest, r)
		}
		return h, c
	}
	if pad := -c.Addr & (align - 1); pad > 0 {
		rest, r := a.split(h, c, pad)
		c.Tag = tagLower
		a.putFree(h, c)
		h, c = rest, r
	}
	a.cut(h, c, n)
	return h, c
}

// cut takes off what chunk h, which is in no index, has beyond n bytes, if that
// is worth it: the split rule of the original, which holds for the central gap,
// too.
func (a *Allocator) cut(h chunks.H, c *chunks.Chunk, n uint64) {
	if over := c.Size - n; over > 0 && (over >= n || over >= a.waste) {
		a.putFree(a.split(h, c, n))
	}
}

// split cuts chunk h after size bytes. The upper part is a new chunk, free, of
// the same tag and age, in no index.
func (a *Allocator) split(h chunks.H, c *chunks.Chunk, size uint64) (chunks.H, *chunks.Chunk) {
	rest, r := a.store.New()
	r.State = chunks.Free
	r.Addr = c.Addr + size
	r.Size = c.Size - size
	r.Tag = c.Tag
	r.Prev, r.Next = h, c.Next
	if c.Next != 0 {
		a.store.At(c.Next).Prev = rest
	}
	c.Size = size
	c.Next = rest
	if a.timed {
		a.setAge(rest, a.age(h))
	}
	return rest, r
}

// takeFree takes a free chunk out of its index, or off its place as the gap.
func (a *Allocator) takeFree(h chunks.H, c *chunks.Chunk) {
	if h == a.gap {
		a.gap = 0
		return
	}
	a.free[c.Tag].Remove(h, c)
}

// putFree puts a free chunk into the index of its tag, or makes it the gap.
// What a partitioned pool does besides is kept out of the common path.
func (a *Allocator) putFree(h chunks.H, c *chunks.Chunk) {
	if c.Tag != tagLower {
		a.putTagged(h, c)
		return
	}
	a.free[tagLower].Insert(h, c)
}

// putTagged is putFree in a partitioned pool.
func (a *Allocator) putTagged(h chunks.H, c *chunks.Chunk) {
	if c.Tag == tagGap {
		if a.gap == 0 {
			a.gap = h
			return
		}
		// There is a gap elsewhere: this one lies in a later region, which is
		// used as an unpartitioned pool would use it.
		c.Tag = tagLower
	}
	if c.Tag == tagUpper && a.free[tagUpper] == nil {
		a.free[tagUpper] = chunks.NewIndex(&a.store, a.cfg.Limit)
	}
	a.free[c.Tag].Insert(h, c)
}

// Free takes a block back.
func (a *Allocator) Free(b alloc.Block) error {
	if a.closed {
		return alloc.ErrClosed
	}
	h, gen := b.Key()
	if h == 0 && b.Addr == 0 {
		return nil
	}
	if !a.store.Valid(h) {
		return fmt.Errorf("free of %v: %w", b, alloc.ErrNotAllocated)
	}
	c := a.store.At(h)
	if c.State != chunks.Live || c.Gen() != gen || c.Addr != b.Addr {
		return a.badFree(b)
	}
	if a.live != nil {
		a.live.RemoveChunk(h, b.Addr)
	}
	a.release(h, c)
	return nil
}

// FreeAddr takes back the block that starts at addr. The first call builds the
// table of addresses, so that a program which frees by block never pays for it.
func (a *Allocator) FreeAddr(addr uint64) error {
	if a.closed {
		return alloc.ErrClosed
	}
	if addr == 0 {
		return nil
	}
	if a.live == nil {
		a.live = chunks.NewTable(&a.store)
		for h, c := range a.chunks() {
			if c.State == chunks.Live {
				a.live.Insert(h, c.Addr)
			}
		}
	}
	h := a.live.Remove(addr)
	if h == 0 {
		return a.badAddr(addr)
	}
	a.release(h, a.store.At(h))
	return nil
}

// release makes a live chunk free and joins it with its free neighbours.
func (a *Allocator) release(h chunks.H, c *chunks.Chunk) {
	if invariants.Enabled {
		defer func() { invariants.Must(a.Check()) }()
	}
	a.stats.BytesInUse -= c.Size
	c.State = chunks.Free
	if a.timed {
		a.stamp(h, c)
		return
	}
	if a.cfg.Spatial && a.bordersGap(c) {
		c.Tag = tagGap
	}
	a.putFree(a.coalesce(h, c, false))
}

// bordersGap says whether a chunk that was live is the last of its end, so that
// what becomes free there is part of the gap.
func (a *Allocator) bordersGap(c *chunks.Chunk) bool {
	if c.Tag == tagUpper {
		return c.Prev == 0 || a.store.At(c.Prev).Tag != tagUpper
	}
	return c.Next == 0 || a.store.At(c.Next).Tag != tagLower
}

// coalesce joins the free chunk h, which is in no index, with its free
// neighbours, first the one above, then the one below, and returns the chunk
// that is left. Chunks that wait for the safe frontier are left apart unless
// force is set.
func (a *Allocator) coalesce(h chunks.H, c *chunks.Chunk, force bool) (chunks.H, *chunks.Chunk) {
	if a.timed && !force && a.age(h) > 0 {
		return h, c
	}
	if n := c.Next; n != 0 {
		if d := a.store.At(n); d.State == chunks.Free && (!a.timed || force || a.age(n) == 0) {
			a.takeFree(n, d)
			a.merge(h, c, n, d)
		}
	}
	if p := c.Prev; p != 0 {
		if d := a.store.At(p); d.State == chunks.Free && (!a.timed || force || a.age(p) == 0) {
			a.takeFree(p, d)
			a.merge(p, d, h, c)
			return p, d
		}
	}
	return h, c
}

// merge joins hi, which lies right above lo, into lo. Different tags mean that
// the gap between the ends closed or opened there.
func (a *Allocator) merge(lo chunks.H, c *chunks.Chunk, hi chunks.H, d *chunks.Chunk) {
	c.Size += d.Size
	if a.timed {
		a.setAge(lo, max(a.age(lo), a.age(hi)))
	}
	if c.Tag != d.Tag {
		c.Tag = tagGap
	}
	c.Next = d.Next
	if d.Next != 0 {
		a.store.At(d.Next).Prev = lo
	}
	a.store.Drop(hi)
}

// badFree says what is wrong with a block that is not live.
func (a *Allocator) badFree(b alloc.Block) error {
	if a.regionOf(b.Addr) < 0 {
		return fmt.Errorf("free of %v: %w: the address is not in this pool", b, alloc.ErrNotAllocated)
	}
	return fmt.Errorf("free of %v: %w", b, alloc.ErrDoubleFree)
}

// badAddr says what is wrong with an address at which no live block starts.
func (a *Allocator) badAddr(addr uint64) error {
	i := a.regionOf(addr)
	if i < 0 {
		return fmt.Errorf("free of %#x: %w: the address is not in this pool", addr, alloc.ErrNotAllocated)
	}
	for h := a.regions[i].first; h != 0; {
		c := a.store.At(h)
		if addr < c.Addr+c.Size {
			if c.State == chunks.Free {
				return fmt.Errorf("free of %#x: %w: the memory there is free", addr, alloc.ErrDoubleFree)
			}
			return fmt.Errorf("free of %#x: %w: it lies %d bytes into the live block at %#x", addr, alloc.ErrNotAllocated, addr-c.Addr, c.Addr)
		}
		h = c.Next
	}
	return fmt.Errorf("free of %#x: %w", addr, alloc.ErrNotAllocated)
}

// chunks walks every chunk, region by region in address order.
func (a *Allocator) chunks() func(yield func(chunks.H, *chunks.Chunk) bool) {
	return func(yield func(chunks.H, *chunks.Chunk) bool) {
		for i := range a.regions {
			for h := a.regions[i].first; h != 0; {
				c := a.store.At(h)
				next := c.Next
				if !yield(h, c) {
					return
				}
				h = next
			}
		}
	}
}

// Walk visits every piece in address order.
func (a *Allocator) Walk(yield func(alloc.Chunk) bool) {
	for i := range a.regions {
		for h := a.regions[i].first; h != 0; {
			c := a.store.At(h)
			out := alloc.Chunk{
				Addr: c.Addr, Size: c.Size, Requested: c.Requested, Region: i,
				Live: c.State == chunks.Live, Tag: tagNames[c.Tag], Stream: c.Stream,
			}
			if out.Live {
				out.Site = alloc.Site(c.Site())
			}
			if !yield(out) {
				return
			}
			h = c.Next
		}
	}
}

// Stats are JAX's statistics.
func (a *Allocator) Stats() alloc.Stats {
	s := a.stats
	s.LargestFreeBlock = a.largestFree(tagLower, tagUpper)
	return s
}

// largestFree is the largest hole of the given ends, the gap included.
func (a *Allocator) largestFree(ends ...uint8) uint64 {
	var n uint64
	for _, end := range ends {
		if x := a.free[end]; x != nil && x.Len() > 0 {
			n = max(n, a.store.At(x.Largest()).Size)
		}
	}
	if a.gap != 0 {
		n = max(n, a.store.At(a.gap).Size)
	}
	return n
}

// MetadataBytes is the host memory that describes the pool.
func (a *Allocator) MetadataBytes() int {
	n := a.store.Cap() + cap(a.regions)*64
	for _, x := range a.free {
		if x != nil {
			n += x.Cap()
		}
	}
	if a.live != nil {
		n += a.live.Cap()
	}
	return n
}

// Chunks is how many pieces, live and free, the pool is in.
func (a *Allocator) Chunks() int { return a.store.Len() }

// binOf is the bin in which the original keeps chunks of a size.
func binOf(size uint64) int {
	return min(numBins-1, bits.Len64(max(size, MinAllocation)>>8)-1)
}

// backOff is the next size to ask for when the device refused ask: 0.9 of it,
// in single precision as the original computes it, rounded up; but at least
// one unit less, where the original would ask for the same again for ever.
func backOff(ask uint64) uint64 {
	f := float32(ask) * float32(0.9)
	step := uint64(math.MaxUint64)
	if f < math.MaxUint64 {
		step, _ = round256(uint64(f))
	}
	if ask < MinAllocation {
		return 0
	}
	return min(step, ask-MinAllocation)
}
