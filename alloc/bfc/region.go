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

// region is memory that was taken from the device in one piece (or in several
// that touch, with Coalesce), tiled by chunks.
type region struct {
	addr   uint64
	size   uint64
	first  chunks.H
	grants []device.Range // what to release
}

func (r *region) end() uint64 { return r.addr + r.size }

// regionOf is the number of the region that addr lies in, -1 if none.
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

// extend takes another region that can hold n bytes, and reports whether it did.
// A device that refuses is asked for less and less; any other failure of the
// device is an error.
func (a *Allocator) extend(n uint64) (bool, error) {
	avail := uint64(0)
	if a.cfg.Limit > a.stats.PoolBytes {
		avail = (a.cfg.Limit - a.stats.PoolBytes) &^ (MinAllocation - 1)
	}
	if n > avail || a.cfg.TopDown && len(a.regions) > 0 {
		return false, nil
	}
	doubled := false
	for n > a.next {
		if a.next >= 1<<63 {
			a.next = 1<<64 - MinAllocation
			break
		}
		a.next *= 2
		doubled = true
	}
	first := min(a.next, avail)
	ask := first
	refused := 0
	var got device.Range
	for {
		var err error
		if got, err = a.grant(ask); err == nil {
			break
		}
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
		if ask = backOff(ask); ask < n {
			return false, nil
		}
	}
	if got.Addr%MinAllocation != 0 {
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
	a.stats.PoolBytes += got.Bytes
	a.stats.PeakPoolBytes = max(a.stats.PeakPoolBytes, a.stats.PoolBytes)
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

// grant takes a region of at least n bytes from the device. What the device
// grants beyond the configured unit is not used.
func (a *Allocator) grant(n uint64) (device.Range, error) {
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

// freeChunk makes one free chunk of a grant, in no index yet. A device that grants odd
// sizes loses the odd end.
func (a *Allocator) freeChunk(g device.Range, gap bool) (chunks.H, *chunks.Chunk) {
	h, c := a.store.New()
	c.State = chunks.Free
	c.Addr, c.Size, c.Tag = g.Addr, g.Bytes&^(MinAllocation-1), a.home
	if gap {
		c.Tag = tagGap
	}
	return h, c
}

// addRegion makes a region of a grant, or a part of the region that ends there.
func (a *Allocator) addRegion(got device.Range) {
	h, c := a.freeChunk(got, a.spatial && a.gap == 0)
	i, _ := slices.BinarySearchFunc(a.regions, got.Addr, func(r region, addr uint64) int {
		if r.addr < addr {
			return -1
		}
		return 1
	})
	if a.cfg.Coalesce && i > 0 && a.regions[i-1].end() == got.Addr {
		// The region below ends here: its last chunk gets a neighbour.
		r := &a.regions[i-1]
		last := r.first
		for next := a.store.At(last).Next; next != 0; next = a.store.At(last).Next {
			last = next
		}
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

// collect releases all wholly free regions, if that can make room for n
// bytes, and reports whether it did.
func (a *Allocator) collect(n uint64) (bool, error) {
	var idle uint64
	for i := range a.regions {
		if a.idle(i) {
			idle += a.regions[i].size
		}
	}
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

// gcText is what the original logs when it collects.
const gcText = "Garbage collection: deallocate free memory regions (i.e., allocations) so that we can re-allocate a larger region to avoid OOM due to memory fragmentation. " +
	"If you see this message frequently, you are running near the threshold of the available device memory and re-allocation may incur great performance overhead. " +
	"You may try smaller batch sizes to observe the performance impact. " +
	"Set TF_ENABLE_GPU_GARBAGE_COLLECTION=false if you'd like to disable this feature."

// idle reports whether nothing lives in region i.
func (a *Allocator) idle(i int) bool {
	for h := a.regions[i].first; h != 0; {
		c := a.store.At(h)
		if c.State == chunks.Live {
			return false
		}
		h = c.Next
	}
	return true
}

// releaseIdle releases wholly free regions, in address order, while more
// than keep bytes are held. What cannot be released stays in the pool.
func (a *Allocator) releaseIdle(keep uint64) (released uint64, err error) {
	var kept []region // not in place: one region may become several
	for i, r := range a.regions {
		if err != nil || a.stats.PoolBytes <= keep || !a.idle(i) {
			kept = append(kept, r)
			continue
		}
		for h := r.first; h != 0; {
			c := a.store.At(h)
			next := c.Next
			a.takeFree(h, c)
			a.store.Drop(h)
			h = next
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

// regainRegion is a region of one free chunk over a grant that could not be
// released.
func (a *Allocator) regainRegion(g device.Range) region {
	h, c := a.freeChunk(g, a.spatial)
	a.putFree(h, c)
	return region{addr: c.Addr, size: c.Size, first: h, grants: []device.Range{g}}
}

// Trim releases wholly free regions until at most keep bytes are held, but
// only in a pool with garbage collection (TensorFlow's). JAX's pool never gives
// anything back, and neither does this one: a policy that does is elastic.
func (a *Allocator) Trim(keep uint64) (uint64, error) {
	if a.closed {
		return 0, alloc.ErrClosed
	}
	if !a.cfg.GC {
		return 0, nil
	}
	if a.stats.PoolBytes > keep && a.anyIdle() {
		if err := a.quiesce(); err != nil {
			return 0, err
		}
	}
	return a.releaseIdle(keep)
}

// anyIdle reports whether nothing lives in some region.
func (a *Allocator) anyIdle() bool {
	for i := range a.regions {
		if a.idle(i) {
			return true
		}
	}
	return false
}

// quiesce waits for the device before regions are released, or returns the error of
// an operation that is repeated when its owner has waited.
func (a *Allocator) quiesce() error {
	if a.cfg.Quiesce == nil {
		return nil
	}
	return a.cfg.Quiesce()
}

// Close releases every region, whatever lives in it. A device that fails
// does not keep the other regions from being released; its errors are joined.
func (a *Allocator) Close() error {
	if a.closed {
		return alloc.ErrClosed
	}
	a.closed = true
	var errs []error
	for _, g := range a.unusable {
		errs = append(errs, a.dev.Free(g.Addr))
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

func (a *Allocator) log(m alloc.Message) {
	if a.cfg.Log != nil {
		a.cfg.Log(m)
	}
}
