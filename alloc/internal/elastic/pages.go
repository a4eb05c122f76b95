package elastic

// The driver's calls for pages: addresses reserved, pages created, mapped, unmapped
// and released.
//
// A page is owned from when it was created until it is released. In between it
// is mapped somewhere, or spare. Every function here leaves the structure consistent
// and as the device has it when a call fails.
//
// Each page is a separate handle. Larger handles would save calls, but one live page
// keeps the whole handle from being moved. With handles of up to 32 MiB the smallest
// device for a program of 1,000 sizes was 1.055 of its live bytes, and 1.22 for
// MiniMalloc's trace K; with 2 MiB it was 1.016 and 1.008 (in experiments with a simpler
// placement).
//
// How a block gets 3 pages, with a limit of 100, 40 owned, 38 held at most recently and
// 5 idle: acquire may create pages up to 38 + 16 = 54 owned, so 3 are created and
// nothing is unmapped. With 54 owned it stitches: the oldest idle pages whose work is
// known to be done are unmapped and used again. Are those too few, it creates up to
// the limit; are the pages then still too few, it waits for the work on the idle ones.
// That sum always suffices unless the device refuses, since place has checked that
// held and newHeld are at most cap: then errPressure has the spot chosen again.
//
// Order of a remapping, which is that of the driver's manual (CUDA driver API, virtual
// memory management): MemUnmap of the old range; MemMap of each handle; MemSetAccess
// for the new range at once, since access does not survive an unmap.

import (
	"errors"
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/device"
)

const (
	// Addresses are reserved for this many times the limit, or for half as many
	// again and again if the driver has fewer, down to leastAddresses times. Tight
	// programs have used 28 times what they held. With 4 times, air runs out and
	// blocks are put side by side. 64 times 160 GiB is 10 TiB of the 128 TiB that a
	// process has.
	addresses      = 64
	leastAddresses = 4
	mostAddresses  = 1 << 57 // bytes: what GPUs can address (CUDA programming guide, unified virtual address space)
	fewestPages    = 4096    // 8 GiB of addresses for the smallest devices

	// One page in smallPart is for small blocks.
	smallPart = 4

	// Idle pages are used up before new ones are created when the pages owned
	// pass the recent peak of those held by an eighth, and by 32 MiB. The eighth
	// cost no driver call on programs with steps, and bounds those without: on
	// MiniMalloc's traces A to E the pool owns 1.13 times the peak of what lives, without
	// a bound up to 2.0 times. A program that remaps all the time may own as many pages
	// more as it has remapped (Allocator.slack), so that it comes to an end: one of random
	// sizes in a pool that is nearly full remaps 2,700 pages in 100,000 operations, then none,
	// and owns 1.52 times its peak. With the eighth alone it remapped 84,000.
	softPart  = 8
	softLeast = 16

	// Handles are kept in leaves that are made when a page in them is mapped first:
	// of 64 times the limit in addresses few are ever used.
	leafBits  = 9
	leafPages = 1 << leafBits // 1 GiB of addresses
)

// errPressure means that the device has less than the limit, and that cap was lowered
// to what is owned. The spot is to be chosen again under that. It never leaves the
// package; miss handles it.
var errPressure = errors.New("elastic: the device refused pages")

// Moves counts what became of pages, since the pool was made.
type Moves struct {
	Mapped   uint64 // pages mapped, these included
	Remapped uint64 // pages taken away from other addresses for that
}

// Moves returns how many pages were mapped and remapped so far. Trim and Eager count
// as neither.
func (a *Allocator) Moves() Moves { return a.moves }

// orphan is a handle of several pages, mapped nowhere, that the driver did not
// take back.
type orphan struct {
	handle device.Handle
	pages  uint64
}

// owned returns how many pages the device counts as this pool's.
func (a *Allocator) owned() uint64 {
	n := a.mapped + uint64(len(a.spare))
	for _, o := range a.orphans {
		n += o.pages
	}
	return n
}

// grew updates the peak of what is owned. It follows every MemCreate.
func (a *Allocator) grew() {
	a.stats.PeakPoolBytes = max(a.stats.PeakPoolBytes, a.owned()<<a.shift)
}

// reserve reserves the addresses and makes the two spaces: the large blocks' from
// base, the small blocks' from split on. It runs at the first request, since a pool
// that is never used should cost nothing.
func (a *Allocator) reserve() error {
	want := max(a.limit*addresses, fewestPages)
	for {
		err := device.ErrOutOfMemory
		if want <= mostAddresses>>a.shift {
			a.base, err = a.dev.AddressReserve(want<<a.shift, 0)
		}
		if err == nil {
			a.bytes = want << a.shift
			break
		}
		if !errors.Is(err, device.ErrOutOfMemory) || want/2 < a.limit*leastAddresses {
			a.base = 0
			return fmt.Errorf("elastic: no addresses for the pool: %w", err)
		}
		want /= 2
	}
	a.split = a.base + (want-want/smallPart)<<a.shift
	a.handles = make([][]device.Handle, (want+leafPages-1)>>leafBits)
	a.large.first = a.vacant(a.base, a.split)
	a.small.first = a.vacant(a.split, a.base+a.bytes)
	return nil
}

// vacant makes the first chunk of a space.
func (a *Allocator) vacant(lo, hi uint64) chunks.H {
	h, c := a.store.New()
	c.Addr, c.Size = lo, hi-lo
	a.settle(h, c, tagUnmapped)
	return h
}

// handle returns the place of the handle of the page at addr. It holds 0 if nothing is
// mapped there, or if the page is not the first of a larger handle.
func (a *Allocator) handle(addr uint64) *device.Handle {
	i := (addr - a.base) >> a.shift
	leaf := &a.handles[i>>leafBits]
	if *leaf == nil {
		*leaf = make([]device.Handle, leafPages)
	}
	return &(*leaf)[i&(leafPages-1)]
}

// back puts memory behind all of the n bytes at a spot: acquire makes enough pages
// spare, and mapRun maps them wherever a chunk of the spot is unmapped, of which there
// are at most a few with mapped ones in between. Unmapping and mapping cut and join
// chunks, so that the spot's own number may change: a.at follows it (see swallow). The
// caller resets a.at after success.
//
// The driver was called anyway, so that the open epoch is closed here. What was freed
// before can then be found to be done without the wait for what is freed later.
func (a *Allocator) back(s spot, n uint64) error {
	a.large.mapped.SetLoose(false) // what is mapped costs: from now on the order counts (turn)
	a.at = s.h
	lo, hi := a.down(s.x), a.up(s.x+n)
	if err := a.acquire(s.newMap, s.newHeld, lo, hi); err != nil {
		a.at = 0
		return err
	}
	for {
		h := a.holding(a.at, s.x)
		c := a.store.At(h)
		for c.Tag != tagUnmapped && end(c) < s.x+n {
			h = c.Next
			c = a.store.At(h)
		}
		if c.Tag != tagUnmapped {
			break
		}
		if err := a.mapRun(h, max(c.Addr, lo), min(end(c), hi)); err != nil {
			a.at = 0
			return err
		}
	}
	// Where the device fails the epoch stays open, and is waited for as a whole.
	_ = a.epochs.Close()
	return nil
}

// acquire gets n spare pages, for a block in the pages of [lo, hi) that holds
// newHeld more. Those in there are not taken from others.
func (a *Allocator) acquire(n, newHeld, lo, hi uint64) error {
	peak := max(a.peak, a.before, a.held+newHeld)
	if err := a.create(n, min(a.cap, peak+max(peak/softPart, softLeast)+a.slack)); err != nil {
		return err
	}
	if uint64(len(a.spare)) < n {
		// What was freed since the last driver call is in the open epoch, of which nobody
		// knows whether it is over. Where the device fails it stays open.
		_ = a.epochs.Close()
	}
	// New pages are better than waiting. In a deterministic run whether there is
	// something to wait for must not matter, so it waits first.
	if err := a.stitch(n, lo, hi, a.cfg.Deterministic); err != nil {
		return err
	}
	if err := a.create(n, a.cap); err != nil {
		return err
	}
	if err := a.stitch(n, lo, hi, true); err != nil {
		return err
	}
	if uint64(len(a.spare)) < n {
		return errPressure
	}
	return nil
}

// stitch is steal for a block, which counts the pages as remapped.
func (a *Allocator) stitch(n, lo, hi uint64, wait bool) error {
	had := len(a.spare)
	err := a.steal(n, lo, hi, wait)
	a.moves.Remapped += uint64(len(a.spare) - had)
	return err
}

// create makes pages until n are spare, but owns no more than most. Where the
// device has no more, what is owned is all that may be owned for now, and it is for the
// caller to see that fewer than n are spare.
func (a *Allocator) create(n, most uint64) error {
	for uint64(len(a.spare)) < n && a.owned() < most {
		p, err := a.dev.MemCreate(a.mask + 1)
		if errors.Is(err, device.ErrOutOfMemory) {
			a.setCap(a.owned())
			return nil
		}
		if err != nil {
			return err
		}
		a.spare = append(a.spare, p)
		a.grew()
	}
	return nil
}

// steal unmaps idle pages, the oldest first, until n are spare or none is left.
// Pages in [lo, hi), which the block will lie in, stay. If it may not wait, it stops
// at pages that may still be worked on: those behind them were freed later.
//
// Epochs are the safety of this file. A page must not be unmapped before the epoch of
// its chunk is over, or kernels that are queued fault. Nothing else guards it: sim
// reports such an unmap as a Hazard, real hardware as an illegal address, later.
func (a *Allocator) steal(n, lo, hi uint64, wait bool) error {
	if uint64(len(a.spare)) >= n {
		return nil
	}
	for h := range a.byAge {
		c := a.store.At(h)
		from, to := a.up(c.Addr), a.down(end(c))
		// What lies above the pages that stay goes first: h stays the number of the rest.
		for _, part := range [...][2]uint64{{max(from, hi), to}, {from, min(to, lo)}} {
			if part[0] >= part[1] {
				continue
			}
			if !a.epochs.Passed(c.Stream) {
				if !wait {
					return nil
				}
				if err := a.epochs.Wait(c.Stream); err != nil {
					return err
				}
			}
			k := min(n-uint64(len(a.spare)), (part[1]-part[0])>>a.shift)
			if err := a.unmapRun(h, part[0], part[0]+k<<a.shift); err != nil {
				return err
			}
			if uint64(len(a.spare)) == n {
				return nil
			}
		}
	}
	return nil
}

// unmapRun makes the idle pages [lo, hi) of the mapped chunk h spare. Their epoch is
// over. It is one driver call for the run, which covers whole mappings, as the driver
// demands.
func (a *Allocator) unmapRun(h chunks.H, lo, hi uint64) error {
	if err := a.dev.MemUnmap(lo, hi-lo); err != nil {
		return err
	}
	for at := lo; at < hi; at += a.mask + 1 {
		p := a.handle(at)
		a.spare = append(a.spare, *p)
		*p = 0
	}
	a.mapped -= (hi - lo) >> a.shift
	h, c := a.isolate(h, a.store.At(h), lo, hi)
	a.settle(h, c, tagUnmapped)
	return nil
}

// mapRun maps spare pages at [lo, hi), whole pages of the unmapped chunk h: one MemMap
// for each and one MemSetAccess for all.
//
// If one fails, what was mapped is unmapped again and the pages stay spare. If that
// fails as well, those pages are stuck: strand. If the driver's tables are full (some
// 520,000 mappings on an H100), no page more can be mapped: the spare ones are
// released and what is mapped becomes the cap.
func (a *Allocator) mapRun(h chunks.H, lo, hi uint64) error {
	rest := uint64(len(a.spare)) - (hi-lo)>>a.shift
	pages := a.spare[rest:]
	done := lo // mapped up to here
	var err error
	for _, p := range pages {
		if err = a.dev.MemMap(done, a.mask+1, p); err != nil {
			break
		}
		done += a.mask + 1
	}
	if err == nil {
		if err = a.dev.MemSetAccess(lo, hi-lo); err == nil {
			a.enter(lo, pages)
			a.spare = a.spare[:rest]
			a.moves.Mapped += uint64(len(pages))
			m, c := a.isolate(h, a.store.At(h), lo, hi)
			a.settle(m, c, tagMapped)
			return nil
		}
	}
	if done > lo {
		if undo := a.dev.MemUnmap(lo, done-lo); undo != nil {
			n := (done - lo) >> a.shift
			a.enter(lo, pages[:n])
			a.spare = append(a.spare[:rest], pages[n:]...)
			a.strand(h, lo, done)
			return errors.Join(err, undo)
		}
	}
	if !errors.Is(err, device.ErrOutOfMemory) {
		return err
	}
	// The driver's tables are full. Fewer pages must be mapped, so those that
	// are spare are of no use.
	if !a.full {
		a.full = true
		a.warnf("%s: the driver maps no more than %d pages: %v", a.name, a.mapped, err)
	}
	if err := a.releaseSpare(0); err != nil {
		return err
	}
	a.setCap(a.owned())
	return errPressure
}

// enter records that handles are mapped from addr on, a page each.
func (a *Allocator) enter(addr uint64, pages []device.Handle) {
	for _, p := range pages {
		*a.handle(addr) = p
		addr += a.mask + 1
		a.mapped++
	}
}

// strand takes pages of the unmapped chunk h out of use that are mapped without
// access, because the driver failed twice. They become a live chunk that is no block
// and count as held. Close tries again to unmap them.
func (a *Allocator) strand(h chunks.H, lo, hi uint64) {
	_, c := a.isolate(h, a.store.At(h), lo, hi)
	c.Tag = tagStuck
	c.SetLive(a.firstGen, 0) // a number that no block has
	a.held += (hi - lo) >> a.shift
}

// releaseSpare releases spare pages until no more than keep pages are owned.
func (a *Allocator) releaseSpare(keep uint64) error {
	for n := len(a.spare); n > 0 && a.owned() > keep; n-- {
		if err := a.dev.MemRelease(a.spare[n-1]); err != nil {
			return err
		}
		a.spare = a.spare[:n-1]
	}
	return nil
}

// releaseOrphans tries again to release the handles that the driver did not take back.
func (a *Allocator) releaseOrphans() error {
	for n := len(a.orphans); n > 0; n-- {
		if err := a.dev.MemRelease(a.orphans[n-1].handle); err != nil {
			return err
		}
		a.held -= a.orphans[n-1].pages
		a.orphans = a.orphans[:n-1]
	}
	return nil
}

// shrink releases pages until no more than keep are owned, or no idle one is
// left: spare ones first, which costs no unmap. It waits for the work on idle ones.
func (a *Allocator) shrink(keep uint64) error {
	if err := a.releaseSpare(keep); err != nil {
		return err
	}
	if a.owned() <= keep {
		return nil
	}
	if err := a.steal(a.owned()-keep, 0, 0, true); err != nil {
		return err
	}
	return a.releaseSpare(keep)
}

// shrinkOnce is shrink for an owner that others use while it waits. It waits once,
// for the latest epoch among the oldest chunks that have the pages between them. The
// second call, made when that wait is over, releases what is done by then and waits for
// nothing: what was freed meanwhile has later work behind it, and a busy program would
// never let Trim return.
func (a *Allocator) shrinkOnce(keep uint64) error {
	if err := a.releaseSpare(keep); err != nil || a.owned() <= keep {
		return err
	}
	if !a.streams.Repeated() {
		last, pages := uint32(0), uint64(0)
		for h := range a.byAge {
			c := a.store.At(h)
			last = max(last, c.Stream)
			if pages += a.wholes(c.Addr, end(c)); pages >= a.owned()-keep {
				break
			}
		}
		if pages > 0 {
			if err := a.epochs.Wait(last); err != nil {
				return err
			}
		}
	}
	if err := a.steal(a.owned()-keep, 0, 0, false); err != nil {
		return err
	}
	return a.releaseSpare(keep)
}

// Trim releases idle pages, those free the longest first, until at most keep
// bytes are owned or only Config.Reserve of them is idle. It waits for the work
// that may still use them, or returns a *streams.Pending if the tracker is deferred.
// Blocks stay where they are. released is in bytes, and counts what went before an
// error, too.
func (a *Allocator) Trim(keep uint64) (released uint64, err error) {
	if a.closed {
		return 0, alloc.ErrClosed
	}
	a.slack = 0
	before := a.owned()
	err = a.releaseOrphans()
	if err == nil {
		least := max(keep>>a.shift, a.held+a.cfg.Reserve>>a.shift)
		if a.streams.Deferred() {
			err = a.shrinkOnce(least)
		} else {
			err = a.shrink(least)
		}
	}
	return (before - a.owned()) << a.shift, err
}
