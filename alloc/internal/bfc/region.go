package bfc

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/device"
)

// Regions: memory taken from the device, and released to it. Extend,
// DeallocateFreeRegions and the back-off of the original.
//
// How much is asked for: next, which begins with the limit in a fixed pool and with 2
// MiB in a growing one. It doubles until the request fits, or else once after the
// region was taken. So of requests of 1 MiB each the first, third, seventh
// and fifteenth take regions of 2, 4, 8 and 16 MiB.
//
// A device that refuses is asked for 0.9 times as much, in single precision, again and
// again down to the request. A pool of 12 GiB on a device with 8 GiB free asks for 12,
// 10.8, 9.7, 8.7 and gets 7.9: preallocation that fails in part is no error. Two JAX
// processes on one GPU come about so, with 75 % and 23.5 %.

// region is memory that was taken from the device in one piece (or in several
// that touch, with Coalesce), tiled by chunks.
type region struct {
	addr   uint64
	size   uint64
	first  chunks.H
	grants []device.Range // what to release
}

func (r *region) end() uint64 { return r.addr + r.size }

// regionOf returns the number of the region that addr lies in, -1 if none does.
func (a *Allocator) regionOf(addr uint64) int {
	i, _ := slices.BinarySearchFunc(a.regions, addr, func(r region, addr uint64) int {
		if r.end() <= addr {
			return -1
		}
		return 1
	})
	if i < len(a.regions) && a.regions[i].addr <= addr {
		return i
	}
	return -1
}

// extend takes another region that can hold a block of n bytes at an end of the pool, or
// makes the only region of an arena grow, and reports whether it did. A device that
// refuses is asked for less and less; any other failure of the device is an error. What
// is refused changes next all the same, as in the original: a later request begins with
// the doubled size.
func (a *Allocator) extend(end uint8, n, align uint64) (bool, error) {
	if a.arena != nil {
		return a.extendArena(end, n, align)
	}
	avail := uint64(0)
	if a.cfg.Limit > a.stats.PoolBytes {
		avail = (a.cfg.Limit - a.stats.PoolBytes) &^ (MinAllocation - 1)
	}
	if n > avail || a.cfg.TopDown && len(a.regions) > 0 {
		return false, nil
	}
	return a.takeRegion(n, n, avail)
}

// takeRegion takes a region for a block of n bytes: the next usual size, but no more than
// avail, and less and less down to least where the device refuses.
func (a *Allocator) takeRegion(n, least, avail uint64) (bool, error) {
	// A size that was doubled for this request is not doubled again afterwards. A fixed
	// pool, which never doubles here, ends with next at twice its limit: the report shows
	// it as the region growth hint.
	doubled := false
	for n > a.next {
		if a.next >= 1<<63 { // where the original wraps to 0 and loops
			a.next = 1<<64 - MinAllocation
			break
		}
		a.next *= 2
		doubled = true
	}
	first := max(min(a.next, avail), least)
	ask := first
	refused := 0
	var got device.Range
	for {
		var err error
		if got, err = a.grant(ask); err == nil {
			break
		}
		a.count(0)
		if !errors.Is(err, device.ErrOutOfMemory) {
			return false, err
		}
		if a.cfg.Log != nil { // its text costs more than the refusal
			a.log(alloc.Message{
				Severity: alloc.Error,
				Text: fmt.Sprintf("[%d] Failed to allocate device memory of %s (%d bytes): %v",
					a.dev.Info().Ordinal, xla(ask), ask, device.ErrOutOfMemory),
			})
		}
		refused++
		if ask = a.backOff(ask, least); ask < least {
			return false, nil
		}
	}
	if got.Addr%MinAllocation != 0 {
		// The original ends the process. Nothing can be placed there by its rules.
		err := fmt.Errorf("bfc: the device granted memory at %#x, which is not a multiple of %d", got.Addr, MinAllocation)
		free := a.dev.Free(got.Addr)
		if free != nil {
			a.unusable = append(a.unusable, got)
		}
		return false, errors.Join(err, free)
	}
	if !doubled && a.next < 1<<63 {
		a.next *= 2
	}
	// What the device granted counts, which may be more than was asked for: with pages of
	// 2 MiB the pool can pass its limit by less than one.
	a.count(got.Bytes)
	if refused > 0 {
		a.log(alloc.Message{
			Severity: alloc.Info,
			Text: fmt.Sprintf("%s backed off: refused %s, it took %s (refusals: %d, limit: %s)",
				a.cfg.Name, xla(first), xla(got.Bytes), refused, xla(a.cfg.Limit)),
		})
	}
	a.addRegion(got)
	return true, nil
}

// count makes the statistics say what the pool holds after it took bytes more. An arena
// counts by itself: memory of an extension that failed may still be held.
func (a *Allocator) count(bytes uint64) {
	a.stats.PoolBytes += bytes
	if a.arena != nil {
		a.stats.PoolBytes = a.arena.held()
	}
	a.stats.PeakPoolBytes = max(a.stats.PeakPoolBytes, a.stats.PoolBytes)
}

// grant takes a region of at least n bytes from the device. What the device
// grants beyond the configured unit is not used, so that a device with a larger unit
// than the recorded run's gives the same placements.
func (a *Allocator) grant(n uint64) (device.Range, error) {
	if a.arena != nil {
		return a.arena.extend(n)
	}
	unit := a.cfg.RegionUnit
	if unit == 0 {
		return a.dev.Alloc(n)
	}
	if over := n % unit; over != 0 {
		if n += unit - over; n < unit {
			return device.Range{}, device.ErrOutOfMemory // passed 2^64
		}
	}
	got, err := a.dev.Alloc(n)
	got.Bytes = min(got.Bytes, n)
	return got, err
}

// backOff returns the next size to ask for when the device refused ask: 0.9 of it,
// in single precision as the original computes it, rounded up; but at least
// one unit less, where the original would ask for the same again for ever: 0.9 times
// 2,304 is 2,073.6, and 2,304 rounded up. Upstream was mended in August 2026, the same way.
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

// backOff returns the next size to ask for when the device refused ask: see the function.
// An arena that grows steps down by whole units, and tries least at last.
func (a *Allocator) backOff(ask, least uint64) uint64 {
	next := backOff(ask)
	if a.arena == nil || len(a.regions) == 0 {
		return next
	}
	if ask <= least {
		return 0
	}
	return max(next/a.arena.unit*a.arena.unit, least)
}

// freeChunk makes one free chunk of a grant, in no index yet. Of a grant that is no
// multiple of 256 bytes the odd end is not used.
func (a *Allocator) freeChunk(g device.Range, gap bool) (chunks.H, *chunks.Chunk) {
	h, c := a.store.New()
	c.State = chunks.Free
	c.Addr, c.Size, c.Tag = g.Addr, g.Bytes&^(MinAllocation-1), a.home
	if gap {
		c.Tag = tagGap
	}
	return h, c
}

// addRegion makes a region of a grant, or with Coalesce a part of the region that ends
// where it begins. The regions stay in address order, by which regionOf searches.
func (a *Allocator) addRegion(got device.Range) {
	grows := a.arena != nil && len(a.regions) > 0 // then what comes belongs to the upper end
	h, c := a.freeChunk(got, a.spatial && a.gap == 0 && !grows)
	i, _ := slices.BinarySearchFunc(a.regions, got.Addr, func(r region, addr uint64) int {
		if r.addr < addr {
			return -1
		}
		return 1
	})
	if (a.cfg.Coalesce || grows) && i > 0 && a.regions[i-1].end() == got.Addr {
		// The region below ends here: its last chunk gets a neighbour.
		r := &a.regions[i-1]
		last, _ := a.last(r)
		c.Prev = last
		a.store.At(last).Next = h
		r.size += c.Size
		r.grants = append(r.grants, got)
		a.putFree(a.join(h, c))
		return
	}
	a.regions = slices.Insert(a.regions, i, region{
		addr: got.Addr, size: c.Size, first: h, grants: []device.Range{got},
	})
	a.putFree(h, c)
}

// last returns the uppermost chunk of a region, by a walk: regions are taken seldom.
func (a *Allocator) last(r *region) (chunks.H, *chunks.Chunk) {
	last := r.first
	for next := a.store.At(last).Next; next != 0; next = a.store.At(last).Next {
		last = next
	}
	return last, a.store.At(last)
}

// collect releases all wholly free regions, if that can make room for n
// bytes, and reports whether it did. It makes room if n fits into what the limit leaves
// beside the pool and those regions: with a limit of 16 MiB, regions of 2, 4 and 8 MiB
// of which the first two are free, a request of 8 MiB fits into 2 + 6.
//
// The owner may have to wait for the device first (Config.Quiesce). Then nothing was
// released and the request is repeated.
func (a *Allocator) collect(n uint64) (bool, error) {
	idle := a.idleBytes()
	if idle == 0 || n > a.cfg.Limit-min(a.stats.PoolBytes, a.cfg.Limit)+idle {
		return false, nil
	}
	if err := a.quiesce(); err != nil {
		return false, err
	}
	a.log(alloc.Message{Severity: alloc.Warning, Text: gcText})
	_, err := a.releaseIdle(0)
	return err == nil, err
}

// gcText is what the original logs when it collects, word for word. It names a variable
// of TensorFlow, also in JAX.
const gcText = "Garbage collection: deallocate free memory regions (i.e., allocations) so that we can re-allocate a larger region to avoid OOM due to memory fragmentation. " +
	"If you see this message frequently, you are running near the threshold of the available device memory and re-allocation may incur great performance overhead. " +
	"You may try smaller batch sizes to observe the performance impact. " +
	"Set TF_ENABLE_GPU_GARBAGE_COLLECTION=false if you'd like to disable this feature."

// idle reports whether nothing lives in a region.
func (a *Allocator) idle(r *region) bool {
	for _, c := range a.tiles(r) {
		if c.State == chunks.Live {
			return false
		}
	}
	return true
}

// idleBytes returns the size of all regions in which nothing lives, in bytes. It walks
// every chunk of a region up to the first live one.
func (a *Allocator) idleBytes() (n uint64) {
	for i := range a.regions {
		if r := &a.regions[i]; a.idle(r) {
			n += r.size
		}
	}
	return n
}

// releaseIdle releases wholly free regions, in address order, while more
// than keep bytes are held. What the device does not take stays in the pool: of a
// region of several grants each becomes a region of its own chunk.
func (a *Allocator) releaseIdle(keep uint64) (released uint64, err error) {
	var kept []region // not in place: one region may become several
	for _, r := range a.regions {
		if err != nil || a.stats.PoolBytes <= keep || !a.idle(&r) {
			kept = append(kept, r)
			continue
		}
		for h, c := range a.tiles(&r) {
			a.takeFree(h, c)
			a.store.Drop(h)
		}
		for k, g := range r.grants {
			if err = a.dev.Free(g.Addr); err != nil {
				// The device kept it: so do we, as one free chunk for each grant.
				for _, g := range r.grants[k:] {
					kept = append(kept, a.regainRegion(g))
				}
				break
			}
			a.stats.PoolBytes -= g.Bytes
			released += g.Bytes
		}
	}
	a.regions = kept
	return released, err
}

// regainRegion makes a region of one free chunk over a grant that could not be
// released.
func (a *Allocator) regainRegion(g device.Range) region {
	h, c := a.freeChunk(g, a.spatial)
	a.putFree(h, c)
	return region{addr: c.Addr, size: c.Size, first: h, grants: []device.Range{g}}
}

// Trim releases wholly free regions until at most keep bytes are held, but
// only in a pool with garbage collection (TensorFlow's). JAX's pool never releases
// anything, and neither does this one; policy elastic does. It returns how many bytes
// were released, also with an error.
func (a *Allocator) Trim(keep uint64) (uint64, error) {
	if a.closed {
		return 0, alloc.ErrClosed
	}
	if !a.cfg.GC {
		return 0, nil
	}
	if a.stats.PoolBytes > keep && a.idleBytes() > 0 {
		if err := a.quiesce(); err != nil {
			return 0, err
		}
	}
	return a.releaseIdle(keep)
}

// quiesce waits for the device before regions are released, or returns the error of
// an operation that is repeated when its owner has waited. Without it the driver's free
// would wait, with the owner's lock held.
func (a *Allocator) quiesce() error {
	if a.cfg.Quiesce == nil {
		return nil
	}
	return a.cfg.Quiesce()
}

// Close releases every region, whatever lives in it. A device that fails
// does not keep the other regions from being released; its errors are joined. A second
// Close returns alloc.ErrClosed.
func (a *Allocator) Close() error {
	if a.closed {
		return alloc.ErrClosed
	}
	a.closed = true
	var errs []error
	for _, g := range a.unusable {
		errs = append(errs, a.dev.Free(g.Addr))
	}
	if a.arena != nil {
		errs = append(errs, a.arena.close())
		a.stats.PoolBytes = a.arena.held()
		a.regions = nil
	}
	for _, r := range a.regions {
		for _, g := range r.grants {
			if err := a.dev.Free(g.Addr); err != nil {
				errs = append(errs, err)
				continue
			}
			a.stats.PoolBytes -= g.Bytes
		}
	}
	a.regions, a.unusable = nil, nil
	a.store = chunks.Store{}
	a.free = [2]*chunks.Index{}
	a.live, a.gap = nil, 0
	a.stats.BytesInUse = 0
	return errors.Join(errs...)
}

// log calls Config.Log. Texts that cost time are made only if that is set.
func (a *Allocator) log(m alloc.Message) {
	if a.cfg.Log != nil {
		a.cfg.Log(m)
	}
}
