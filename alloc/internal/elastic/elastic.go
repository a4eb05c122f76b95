// Package elastic is this project's own policy: a pool without preallocation that
// serves a program on a device hardly larger than what lives at most, is nearly as fast
// as a pool of fixed addresses, and refuses nothing while enough pages are free, wherever
// they are.
//
// A pool of fixed addresses fails by fragmentation: 3 GiB may be free and no free
// block as large as 1 GiB. A GPU can map physical pages at other addresses, so
// here free pages serve a request wherever they lie. Blocks lie in reserved
// addresses, many times as large as the device. A page of 2 MiB has memory behind
// it while something lives on it, and keeps it afterwards until the memory is
// needed elsewhere or the owner trims the pool, as package gpumem does when a program
// is idle.
//
// # Terms
//
// Addresses are tiled by chunks, each in one of three states:
//
//	live      a block; or stuck pages, which the driver neither lets us use nor takes back
//	mapped    free, with memory behind every byte
//	unmapped  free, whole pages with nothing behind them
//
// Pages are counted by what lies on them:
//
//	held   a live byte lies on the page
//	idle   mapped, and free as a whole
//	spare  not mapped anywhere: a handle without an address
//	owned  all of these: what the device counts as this pool's
//
// A mapped chunk in a held page is a gap. The transitions of a chunk:
//
//	unmapped -> mapped    mapRun, for a block that needs the pages
//	mapped   -> live      carve
//	live     -> mapped    free, without a driver call
//	mapped   -> unmapped  unmapRun, for a block elsewhere (stitch) or to release pages (shrink)
//	unmapped -> live      whole, for a block of one handle; releaseWhole is the way back
//
// # One request, from start to end
//
// Alloc(n):
//
//  1. n is rounded up to 256 bytes. Blocks of a page and more, and smaller ones,
//     have separate addresses: a metric of 4 bytes must not hold a page that
//     large blocks could share.
//  2. fit takes the best fit among the mapped chunks, the smallest that is large
//     enough. If the block fits there, it is carved out without a driver call; a small
//     one takes a rest of up to an eighth with it. Programs that repeat themselves get
//     no further.
//  3. place looks for a spot where pages must be mapped: beside a gap that can
//     take the odd end of the block, beside the largest mapped chunk, or in
//     fresh addresses with air on both sides. A large block touches as few pages
//     as it can. That its odd end shares a page with another's is why a device
//     hardly larger than what lives is enough.
//  4. acquire gets the pages: from the device while few are idle, else from
//     the chunk that has been free the longest, whose pages are unmapped there.
//  5. They are mapped at the spot, and the block is carved out.
//
// When the pages held come near the limit, the best spot is the one that holds
// the fewest pages more; before that it is the one that maps the fewest. The
// first packs tightly and calls the driver often, the second the reverse.
//
// A large block never touches more pages than its size needs, and in fresh
// addresses it needs no more than that. So a refusal means that fewer pages than
// that are free, however they are scattered.
//
// Free makes the block a mapped chunk, joins it with mapped neighbours, and
// calls no driver. Only Trim, Close, Config.Eager and blocks of one handle do.
//
// # The same with numbers
//
// The limit is 6 pages. Addresses are in MiB from the start of the large blocks;
// TestPackageComment runs this case.
//
//	Alloc A, 5 MiB  3 pages in fresh addresses, with 64 pages of air below: A is
//	                [128, 133), and [133, 134) is a gap
//	Alloc B, 3 MiB  fits in no mapped chunk. Its odd MiB fits the gap: B is
//	                [133, 136) and one page is mapped, not two. 4 pages hold 8 MiB
//	Free A          [128, 133) is mapped. Its pages at 128 and 130 are idle, that at
//	                132 is held by B
//	Alloc C, 7 MiB  4 pages, and 2 are held: with 6 of 6 the pool is tight. Ending at
//	                133 holds 3 pages more, since B holds the page at 132. C is
//	                [126, 133), and one page is mapped, at 126
//	Alloc D, 3 MiB  2 pages, and 5 of 6 are held: refused, wherever it might go
//
// # What it reaches
//
// Smallest device that serves a trace, in units of the trace's peak of live bytes:
// 1.0001 for a training loop, 1.011 for a program of 1,000 steps, 1.005 on average
// for MiniMalloc's traces A to E. No algorithm gets below 1.0000 to 1.0010 there.
// goals_test.go holds these.
//
// # What an operation costs
//
// An allocation takes one chunk out of an index, cuts it and puts the rest back. A free
// looks at both neighbours, takes those that are mapped out, and puts one chunk in. Equal
// chunks are a list. When a chunk was freed is a number in it, by which idle pages are
// sorted when a driver call is due. So the usual operation touches the block, its
// neighbours and one chunk of an equal size.
//
// Lists of large chunks are ordered by address, as far as a short walk does it: blocks
// that live long then lie close together, and the free memory between them can be used.
// Keeping that order is an eighth of an operation's time. Once a window went by in which
// nothing was mapped, as in a program that does the same step again, the last freed is the
// first used, until something is mapped.
//
// # Streams
//
// Unmapping does not wait for work that is queued. Freed memory may be unmapped
// only when the work that was queued by then is known to be done, which
// epochs.Epochs reports. Where memory passes from one stream to another in place,
// the owner orders the two, with a streams.Guard.
//
// # Locks
//
// None: an Allocator is not safe for concurrent use, and its owner's lock guards
// all of it. The owner may let that lock go while it waits for a *streams.Pending
// that an operation returned. The operation has then changed nothing that a user
// can see, and is repeated; pages that it had obtained by then stay as idle ones.
//
// # Failing
//
// Pages are obtained before anything is carved, and each step leaves the structure
// consistent, so that an error in the middle needs no rollback: what was obtained
// stays with the pool as idle pages. A device that has less than the limit, because
// others use it, is no error: what is owned is the limit until it is asked again,
// at the next refusal or in the next window of 4096 operations.
//
// Files: elastic.go the requests, free.go the frees, place.go where a block
// goes, list.go chunks cut and joined, age.go the order in which they were freed,
// pages.go the driver's calls for pages, whole.go blocks of one handle, close.go
// the end, stats.go statistics and report, why.go the account of a refusal,
// check.go the invariants.
package elastic

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/alloc/internal/epochs"
	"gpumem/alloc/internal/ref"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/internal/invariants"
)

const (
	// unit of sizes and addresses, in bytes: that of the original's pool
	// (kMinAllocationSize of tsl/framework/bfc_allocator.h), so that a program
	// meets the same sizes under every policy.
	unit     = 256
	unitMask = unit - 1

	// window is how many operations a peak is remembered for: to the end of its
	// window and through the next one, so 4,096 to 8,192. That is several steps of
	// a training program, which makes some hundred operations in each.
	window = 4096

	// From tightNum/tightDen of the limit on, spots are chosen that hold the fewest
	// pages. With 99 % some devices a little above the smallest that serves a program
	// refused it in the experiments, since placement depends on what is mapped.
	// With 98 % none did, and 97 % needed as large a device.
	tightNum, tightDen = 98, 100

	// sorted is how many equal free chunks an insertion walks past to keep the order of their
	// addresses. Without any order blocks of one size that live long are spread: a training
	// program that is past its largest step calls the driver 9 times more. 16 do as well.
	// Small blocks need no order.
	sorted = 64

	// thrash is how many pages may be remapped in a window without a message: at
	// some 65 us each (MemSetAccess, MemUnmap and MemMap on an A100) that is 17 ms
	// in a few training steps.
	thrash = 256
)

// Device is what the policy needs of a GPU.
type Device interface {
	device.Device
	device.Pages
	device.Streams
}

// Config describes the pool to make. The zero Config is a pool of the whole device.
type Config struct {
	// Limit is the bytes of physical memory that may be owned, rounded down to
	// pages. 0, and whatever is more than the device has, is the device's total.
	Limit uint64
	// Reserve is the bytes of idle pages that Trim and Eager leave, rounded down to
	// pages.
	Reserve uint64
	// Eager unmaps and releases free pages at once. Free waits for the work on them,
	// or leaves that to the owner: see Finish.
	Eager bool

	// Deterministic is for runs that must be repeatable: where a choice depends on
	// whether work happens to be done, that work is waited for and not queried.
	Deterministic bool

	// Streams has the streams that requests name; nil means that all work is in the
	// device's stream 0. Close closes it.
	Streams *streams.Tracker

	// Log, if set, is called when pages are remapped all the time, and for pages
	// that the driver does not take back. It must not use the allocator.
	Log func(alloc.Message)
}

// Allocator is one pool. It is not safe for concurrent use.
//
// Between operations, all in pages:
//
//	held <= mapped <= owned <= cap <= limit
//	owned = mapped + spare + orphans; idle = owned - held
//
// Orphans count as held, though nothing lives on them, so that Trim does not try to
// release them as idle pages. Check verifies all of it.
type Allocator struct {
	// The fields that every operation touches come first.
	closed  bool
	eager   bool
	shift   uint8  // log2 of the page
	mask    uint64 // the page less one
	split   uint64 // first address of the small blocks; the large ones lie below; 0 until addresses are reserved
	store   chunks.Store
	large   space
	small   space
	live    *chunks.Table // by address; nil until a block is freed by address
	streams *streams.Tracker
	epochs  epochs.Epochs // when the work on freed memory is done
	held    uint64        // pages that a live byte lies on
	peak    uint64        // largest held in this window
	before  uint64        // and in the window before
	tightAt uint64        // pages; see tightNum
	ops     uint64        // allocations and frees

	lastID   uint64      // allocations are numbered from 1
	firstGen uint32      // added to that number in blocks; see ref.FirstGen
	stats    alloc.Stats // but for NumAllocs, PoolBytes and LargestFreeBlock, which Stats works out

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
	aged    []aged            // for byAge
	at      chunks.H          // a chunk near the spot that back is at work on, kept valid by swallow; 0: none

	moves      Moves
	mappedThen uint64 // moves.Mapped when the window began
	remapped   uint64 // moves.Remapped when the window began
	slack      uint64 // pages remapped in the windows since the last Trim; see softPart
	complained uint64 // pages remapped in the window of the last warning; the next warning needs twice as many
	full       bool   // the driver has refused a mapping for want of room in its tables; warned about once
	scattered  bool   // the last request that failed had pages enough, but no addresses; for Why
}

// space is one of the two runs of addresses, of the large blocks and of the small
// ones. Its chunks tile it. Each free chunk is in the index of its kind; live ones
// are in none.
type space struct {
	mapped   *chunks.Lists
	unmapped *chunks.Index
	first    chunks.H // the chunk at the lowest address
}

var (
	_ alloc.Allocator = (*Allocator)(nil)
	_ alloc.Reporter  = (*Allocator)(nil)
)

// New makes a pool on dev. It makes no driver call. A device without virtual memory,
// or whose page is no power of two, is an error.
func New(dev Device, cfg Config) (*Allocator, error) {
	info := dev.Info()
	if !info.HasPages {
		return nil, fmt.Errorf("elastic: %s has no virtual memory (%w); use jax, bfc or platform, which need none", info.Name, device.ErrNotSupported)
	}
	if info.Page < unit || info.Page&(info.Page-1) != 0 {
		return nil, fmt.Errorf("elastic: %s maps memory in units of %d bytes, not a power of two of at least %d; use jax, bfc or platform, which need no pages", info.Name, info.Page, unit)
	}
	a := &Allocator{
		dev: dev, cfg: cfg, info: info,
		name:     fmt.Sprintf("GPU_%d_elastic", info.Ordinal),
		eager:    cfg.Eager,
		shift:    uint8(bits.TrailingZeros64(info.Page)),
		mask:     info.Page - 1,
		firstGen: ref.FirstGen(),
		streams:  cfg.Streams,
	}
	if a.streams == nil {
		a.streams = streams.Single(dev)
	}
	a.epochs = epochs.New(a.streams, cfg.Deterministic, a.renumber)
	limit := info.Total
	if cfg.Limit != 0 {
		limit = min(limit, cfg.Limit)
	}
	a.limit = limit >> a.shift
	a.setCap(a.limit)
	a.stats.BytesLimit = a.limit << a.shift
	for _, sp := range []*space{&a.large, &a.small} {
		sp.unmapped = chunks.NewIndex(&a.store, 0)
	}
	a.large.mapped = chunks.NewLists(&a.store, limit, sorted)
	a.small.mapped = chunks.NewLists(&a.store, limit, 0)
	return a, nil
}

// Name is the pool's name in messages, such as GPU_0_elastic.
func (a *Allocator) Name() string { return a.name }

// setCap sets how many pages may be owned for now, and from how many on the pool is
// tight: 98 % of them, rounded up. Of 6 pages that is 5.88, so 6. The product is
// taken in 128 bits, for limits near 2^64 bytes.
func (a *Allocator) setCap(pages uint64) {
	a.cap = pages
	hi, lo := bits.Mul64(pages, tightNum)
	a.tightAt, _ = bits.Div64(hi, lo, tightDen)
	if a.tightAt*tightDen < pages*tightNum {
		a.tightAt++
	}
}

// space returns the space that an address lies in.
func (a *Allocator) space(addr uint64) *space {
	if addr >= a.split {
		return &a.small
	}
	return &a.large
}

// pages returns how many pages n bytes need, n being at least 1.
func (a *Allocator) pages(n uint64) uint64 { return (n-1)>>a.shift + 1 }

// Alloc allocates a block. The size of a block with OneHandle is whole pages;
// every other size is rounded up to 256 bytes, and one below a page may be up to an
// eighth larger. It returns errors of the kinds that
// alloc.Allocator lists, and a *streams.Pending if the tracker is deferred and work
// must be waited for first.
//
// The path of a block that fits is kept short: CheckRequest, the reservation and the
// alignment are left to miss.
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
			a.scattered = errors.Is(err, errAddresses)
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
	return c.Block(h), nil
}

// tight reports whether a block of that many pages is to be put where it holds the
// fewest pages more, whatever must be mapped for it: the pages held now with it, or
// the most held recently, are at least 98 % of what may be owned. The recent peak
// counts because a program that repeats itself will be there again.
func (a *Allocator) tight(need uint64) bool {
	return max(a.peak, a.before, a.held+need) >= a.tightAt
}

// miss serves what fit does not: pages must be mapped, or the request has an
// alignment or needs one handle.
//
// It tries again in two cases, each of which ends. After errPressure fewer pages may
// be owned (cap fell), so the spot is chosen anew with that. After a refusal under a
// cap that an earlier request had lowered, the whole limit is tried once, as other
// programs may have released memory since.
func (a *Allocator) miss(r alloc.Request, n uint64) (chunks.H, *chunks.Chunk, error) {
	if err := chunks.CheckRequest(r, math.MaxUint64); err != nil {
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
// bytes could lie if nothing lived in it. If not, no free can help: ErrNever.
func (a *Allocator) reaches(n, align uint64, oneHandle bool) bool {
	lo, hi := a.base, a.split
	if n <= a.mask && !oneHandle {
		lo, hi = a.split, a.base+a.bytes
	}
	x := (lo + align - 1) &^ (align - 1)
	return x >= lo && x < hi && n <= hi-x
}

// spread makes a block of pages from anywhere: all blocks but those of one handle.
// place chooses the spot, back maps what is missing there, carve cuts the block out.
// The chunks may have been cut and joined while back was at work, so that the chunk
// of the spot is looked up again.
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
	h, c := a.carve(sp, s.h, c, s.x, n, a.newHeld(c.Addr, end(c), s.x, n))
	return h, c, nil
}

// turn begins a new window. It is called every 4,096 operations, so what it does
// costs an operation next to nothing.
func (a *Allocator) turn() {
	a.before, a.peak = a.peak, a.held
	a.large.mapped.SetLoose(a.moves.Mapped == a.mappedThen) // back ends it
	a.mappedThen = a.moves.Mapped
	if a.cap < a.limit {
		// Ask the device again, now and then: others may have given some back.
		a.setCap(a.limit)
	}
	moved := a.moves.Remapped - a.remapped
	a.slack += moved
	a.remapped = a.moves.Remapped
	// Below 98 % of the cap, pages are remapped so that the pool owns no more than
	// the program needs. That ends by itself, so there is nothing to warn of.
	if moved > max(thrash, 2*a.complained) && a.owned()*tightDen >= a.cap*tightNum {
		a.complained = moved
		a.warnf("%s: %d pages were remapped in the last %d operations, which takes time; more memory than the %d pages there are would stop it",
			a.name, moved, window, a.cap)
	}
}

func (a *Allocator) warnf(format string, args ...any) {
	if a.cfg.Log != nil {
		a.cfg.Log(alloc.Message{Severity: alloc.Warning, Text: fmt.Sprintf(format, args...)})
	}
}
