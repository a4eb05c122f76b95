// Package elastic is this project's own policy: a pool without preallocation
// that holds what lives, has the speed of a pool, and refuses nothing while
// enough pages are free, wherever they are.
//
// A pool of fixed addresses fails by its holes: 3 GiB may be free and no hole as
// large as 1 GiB. A GPU can move physical pages to other addresses, so here a
// hole is never the end. Blocks lie in reserved addresses, many times as large
// as the device; a page of 2 MiB has memory behind it while something lives on
// it, and keeps it afterwards until it is needed elsewhere.
//
// # Words
//
// Addresses are tiled by chunks: live ones (blocks), mapped ones (free, all of
// it with memory behind), and unmapped ones (free, whole pages, nothing behind).
// A page is held if a live byte lies on it, and idle if it is mapped and free as
// a whole. A mapped chunk in a page that is held is a gap.
//
// # One request, from start to end
//
// Alloc(n):
//
//  1. n is rounded up to 256 bytes. Blocks of a page and more, and smaller ones,
//     have addresses of their own: a metric of 4 bytes must not keep a page that
//     large blocks could share.
//  2. The best fit among the mapped chunks: the smallest that is large enough.
//     If the block fits there, it is carved out and the driver is not called.
//     Programs that repeat themselves get no further.
//  3. place looks for a spot where pages must be mapped: beside a gap that can
//     take the odd end of the block, beside the largest mapped chunk, or in
//     fresh addresses with air on both sides. A large block touches as few pages
//     as it can. That its odd end shares a page with another's is what makes
//     this policy hold hardly more than what lives.
//  4. acquire gets the pages: from the device while little is idle, else from
//     the chunk that is free the longest, whose pages are unmapped there.
//  5. They are mapped where the spot wants them, and the block is carved out.
//
// When the pages held come near the limit, the best spot is the one that holds
// the fewest pages more; before that it is the one that maps the fewest. The
// first is tight and calls the driver often, the second the reverse.
//
// A large block never touches more pages than its size needs, and in fresh
// addresses it needs no more than that. So a refusal means that fewer pages than
// that are free, however they are strewn.
//
// Free makes the block a mapped chunk, joins it with mapped neighbours, and
// calls no driver. Only Trim, Close, Eager and blocks of one handle do.
//
// # Streams
//
// Unmapping does not wait for work that is queued. Memory freed may be unmapped
// only when the work that was queued until then is known to be done, which
// streams.Epochs tells. Where memory passes from one stream to another in place,
// the owner orders the two, with a streams.Guard.
//
// # Failing
//
// Pages are got before anything is carved, and each step leaves the structure
// whole, so that an error in the middle needs no way back: what was got stays
// with the pool as idle pages. A device that has less than the limit, because
// others use it, is no error: what is mapped is the limit until somebody asks
// again.
//
// Files: elastic.go the requests, free.go the way back, place.go where a block
// goes, list.go chunks cut and joined, lru.go the order in which they were freed,
// pages.go what is asked of the driver, close.go the end, whole.go blocks of one
// handle, stats.go figures and report, check.go
// the invariants.
package elastic

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/internal/invariants"
)

const (
	unit     = 256 // bytes; the unit of sizes and addresses
	unitMask = unit - 1

	// window is how many operations a peak is remembered for, once or twice.
	window = 4096

	// tightNum/tightDen of the limit: from there on spots are chosen that hold
	// the fewest pages. With 1 % less to go sizes just above the smallest device
	// that serves a program may be refused.
	tightNum, tightDen = 98, 100

	// thrash is how many pages may be remapped in a window without a word: at
	// some 65 us each that is 17 ms in a few training steps.
	thrash = 256
)

// Device is what the policy needs of a GPU.
type Device interface {
	device.Device
	device.Pages
	device.Streams
}

// Config says what pool to make.
type Config struct {
	Limit   uint64 // bytes of physical memory that may be held, rounded down to pages; 0, and at most, the device's total
	Reserve uint64 // bytes of idle pages that Trim leaves, and Eager
	Eager   bool   // unmap and release at once what is free; then Free waits for the work on it

	// Deterministic is for runs that must repeat themselves: where it matters
	// whether work happens to be done, it is waited for and not asked.
	Deterministic bool

	// Streams has the streams that requests name; nil means that all is in the
	// device's stream 0. Close closes it.
	Streams *streams.Tracker

	// Log, if set, is called when pages are moved about all the time, and for pages
	// that the driver does not take back.
	Log func(alloc.Message)
}

// Allocator is one pool. It is not safe for concurrent use.
type Allocator struct {
	// First what every operation touches.
	closed  bool
	eager   bool
	shift   uint8  // log2 of the page
	mask    uint64 // the page less one
	split   uint64 // first address of the small blocks; 0 until addresses are reserved
	store   chunks.Store
	large   space
	small   space
	live    *chunks.Table // by address; nil until a block is freed by address
	streams *streams.Tracker
	epochs  streams.Epochs // when the work on freed memory is done
	oldest  chunks.H       // of the chunks with idle pages, the one freed the longest ago
	newest  chunks.H
	held    uint64 // pages that a live byte lies on
	peak    uint64 // most of it in this window
	before  uint64 // and in the window before
	tightAt uint64 // pages; see tightNum
	ops     uint64 // allocations and frees

	lastID   uint64 // allocations are numbered from 1
	firstGen uint32 // added to that number in blocks
	stats    alloc.Stats

	dev   Device
	cfg   Config
	info  device.Info
	name  string
	limit uint64 // pages
	cap   uint64 // pages that may be owned now; less than limit where the device refused more

	base    uint64            // of the reservation
	bytes   uint64            // of it
	handles [][]device.Handle // of mapped pages, by their number from base; leaves of leafPages
	mapped  uint64            // pages that are mapped
	spare   []device.Handle   // of pages that are mapped nowhere
	orphans []orphan          // handles of several pages that could not be released
	at      chunks.H          // a chunk near the spot that pages are being got for; 0: none

	moves      Moves
	remapped   uint64 // moves.Remapped when the window began
	complained uint64 // pages remapped in the window that was complained about; only twice as many are worth another word
	full       bool   // the driver's tables were, once
}

// space is one of the two runs of addresses. Its chunks tile it.
type space struct {
	mapped   *chunks.Index
	unmapped *chunks.Index
	first    chunks.H
}

var (
	_ alloc.Allocator = (*Allocator)(nil)
	_ alloc.Reporter  = (*Allocator)(nil)
)

// New makes a pool on dev. Nothing is asked of the device yet. A device without
// virtual memory is an error.
func New(dev Device, cfg Config) (*Allocator, error) {
	info := dev.Info()
	if !info.HasPages {
		return nil, fmt.Errorf("elastic: %s has no virtual memory (%w); the policies jax, bfc and platform need none", info.Name, device.ErrNotSupported)
	}
	if info.Page < unit || info.Page&(info.Page-1) != 0 {
		return nil, fmt.Errorf("elastic: %s maps memory by %d bytes, which is no power of two from %d on; the policies jax, bfc and platform do without", info.Name, info.Page, unit)
	}
	a := &Allocator{
		dev: dev, cfg: cfg, info: info,
		name:     fmt.Sprintf("GPU_%d_elastic", info.Ordinal),
		eager:    cfg.Eager,
		shift:    uint8(bits.TrailingZeros64(info.Page)),
		mask:     info.Page - 1,
		firstGen: alloc.FirstGen(),
		streams:  cfg.Streams,
	}
	if a.streams == nil {
		a.streams = streams.Single(dev)
	}
	a.epochs = streams.NewEpochs(a.streams, cfg.Deterministic, a.renumber)
	limit := info.Total
	if cfg.Limit != 0 {
		limit = min(limit, cfg.Limit)
	}
	a.limit = limit >> a.shift
	a.setCap(a.limit)
	a.stats.BytesLimit = a.limit << a.shift
	for _, sp := range []*space{&a.large, &a.small} {
		sp.mapped = chunks.NewIndex(&a.store, limit)
		sp.unmapped = chunks.NewIndex(&a.store, 0)
	}
	return a, nil
}

// Name is the pool's name in messages, such as GPU_0_elastic.
func (a *Allocator) Name() string { return a.name }

// setCap sets how many pages may be owned for now.
func (a *Allocator) setCap(pages uint64) {
	a.cap = pages
	hi, lo := bits.Mul64(pages, tightNum)
	a.tightAt, _ = bits.Div64(hi, lo, tightDen)
	if a.tightAt*tightDen < pages*tightNum {
		a.tightAt++
	}
}

// space is that of an address.
func (a *Allocator) space(addr uint64) *space {
	if addr >= a.split {
		return &a.small
	}
	return &a.large
}

// pages is how many pages n bytes need.
func (a *Allocator) pages(n uint64) uint64 { return (n-1)>>a.shift + 1 }

// Alloc hands out a block. The size of a block with OneHandle is whole pages;
// every other one's is rounded up to 256 bytes.
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
	n := (r.Bytes + unitMask) &^ uint64(unitMask)
	if n < r.Bytes {
		return alloc.Block{}, alloc.ErrTooLarge
	}
	if err := a.streams.Use(r.Stream); err != nil {
		return alloc.Block{}, err
	}
	var h chunks.H
	var c *chunks.Chunk
	if r.Align <= unit && !r.OneHandle && r.Align&(r.Align-1) == 0 {
		h, c = a.fit(n)
	}
	if c == nil {
		var err error
		if h, c, err = a.miss(r, n); err != nil {
			return alloc.Block{}, err
		}
	}
	a.peak = max(a.peak, a.held)
	if a.ops++; a.ops%window == 0 {
		a.turn()
	}
	a.lastID++
	c.SetLive(a.firstGen+uint32(a.lastID), uint32(r.Site))
	c.Requested = r.Bytes
	c.Stream = r.Stream
	if a.live != nil {
		a.live.Insert(h, c.Addr)
	}
	a.stats.BytesInUse += c.Size
	a.stats.PeakBytesInUse = max(a.stats.PeakBytesInUse, a.stats.BytesInUse)
	a.stats.LargestAllocSize = max(a.stats.LargestAllocSize, c.Size)
	return alloc.MakeBlock(c.Addr, c.Size, h, c.Gen()), nil
}

// tight reports whether a block of that many pages is to be put where it holds the
// fewest pages more, whatever must be mapped for it.
func (a *Allocator) tight(need uint64) bool {
	return max(a.peak, a.before, a.held+need) >= a.tightAt
}

// miss serves what the best fit does not: pages must be mapped, or the request
// is a special one.
func (a *Allocator) miss(r alloc.Request, n uint64) (chunks.H, *chunks.Chunk, error) {
	if err := alloc.CheckRequest(r, math.MaxUint64); err != nil {
		return 0, nil, err
	}
	need := a.pages(n)
	if need > a.limit {
		return 0, nil, alloc.ErrNever
	}
	if a.split == 0 {
		if err := a.reserve(); err != nil {
			return 0, nil, err
		}
	}
	align := max(r.Align, unit)
	if !a.reaches(n, align, r.OneHandle) {
		return 0, nil, alloc.ErrNever
	}
	asked := false // whether the device refused memory just now
	for {
		var h chunks.H
		var c *chunks.Chunk
		var err error
		if r.OneHandle {
			h, c, err = a.whole(need, align)
		} else {
			h, c, err = a.spread(n, need, align)
		}
		switch {
		case err == nil:
			return h, c, nil
		case errors.Is(err, errPressure):
			asked = true
		case errors.Is(err, alloc.ErrNoMemory) && a.cap < a.limit && !asked:
			// The device had no more when it was asked last. Others may have given
			// some back.
			a.setCap(a.limit)
			asked = true
		default:
			return 0, nil, err
		}
	}
}

// reaches reports whether the pool has an address with that alignment at which n
// bytes could lie.
func (a *Allocator) reaches(n, align uint64, oneHandle bool) bool {
	lo, hi := a.base, a.split
	if n <= a.mask && !oneHandle {
		lo, hi = a.split, a.base+a.bytes
	}
	x := (lo + align - 1) &^ (align - 1)
	return x >= lo && x < hi && n <= hi-x
}

// spread is a block of pages from anywhere.
func (a *Allocator) spread(n, need, align uint64) (chunks.H, *chunks.Chunk, error) {
	s, err := a.place(n, need, align)
	if err != nil {
		return 0, nil, err
	}
	if s.newMap > 0 {
		if err := a.back(s, n); err != nil {
			return 0, nil, err
		}
		s.h = a.holding(a.at, s.x)
		a.at = 0
	}
	c := a.store.At(s.h)
	sp := a.space(s.x)
	sp.mapped.Remove(s.h, c)
	h, c := a.carve(sp, s.h, c, s.x, n)
	return h, c, nil
}

// turn begins a new window.
func (a *Allocator) turn() {
	a.before, a.peak = a.peak, a.held
	if a.cap < a.limit {
		// Ask the device again, now and then: others may have given some back.
		a.setCap(a.limit)
	}
	moved := a.moves.Remapped - a.remapped
	a.remapped = a.moves.Remapped
	// Where there is more to be had, pages are moved so as not to hold more than
	// the program needs, and that ends by itself.
	if moved > max(thrash, 2*a.complained) && a.owned()*tightDen >= a.cap*tightNum {
		a.complained = moved
		a.warnf("%s: %d pages were remapped in the last %d operations, which takes time; about 2 %% more memory than the %d pages there are would stop it",
			a.name, moved, window, a.cap)
	}
}

func (a *Allocator) warnf(format string, args ...any) {
	if a.cfg.Log != nil {
		a.cfg.Log(alloc.Message{Severity: alloc.Warning, Text: fmt.Sprintf(format, args...)})
	}
}
