package bfc

// Reserved addresses: how the pool of JAX's next release grows. The original is
// openxla/xla#48985 with the design text beside it, of which no release exists yet.
//
// One range of addresses for the whole limit is reserved before the first region is
// taken, and memory is put behind its beginning alone. Three sizes describe it, in
// bytes from its address on:
//
//	                       first (P)                size (C)
//	at first   | S(1) -> | gap | <- S(0) |....... no memory ........|
//	later      | S(1) -> | gap | <- S(0) |   more S(0)   |. no memory |
//	                                                     mapped (M)
//
// What is mapped never moves and is never given back before Close. Collective memory,
// S(1), lies below first for good, its padding included, and never makes the pool grow.
// An ordinary request that no free chunk serves does: it asks for the usual size of the
// next region first, and backs off in whole units down to what completes the free chunk
// at the end. The new chunk belongs to the upper end, and joins free neighbours across
// the old boundary.
//
// A pool of 12 MiB that begins with 8, in units of 2 MiB; addresses in MiB:
//
//	ordinary A and B, 4 MiB   B [0, 4)  A [4, 8)
//	free A                    B [0, 4)  free [4, 8)
//	ordinary C, 5 MiB         no chunk of 5. The usual size is 16, so all 4 that are left are
//	                          asked for: free [4, 12), of which C gets all, as 3 more than it
//	                          asked for are not worth a cut
//
// With 2 MiB free on the device the 4 are refused and 2 are taken: C is [4, 10).

import (
	"errors"
	"fmt"
	"math"

	"gpumem/alloc/internal/chunks"
	"gpumem/device"
)

// Reserver is the device of a pool that grows in reserved addresses.
type Reserver interface {
	device.Device
	device.Pages
}

// arena is the reserved addresses of a pool and what is mapped there.
type arena struct {
	dev    Reserver
	unit   uint64 // sizes are multiples of this
	size   uint64 // bytes of addresses: the limit, rounded down to units
	addr   uint64 // 0 until they are reserved
	first  uint64 // bytes that were mapped first; 0 until then
	mapped uint64 // bytes from addr on that have memory; during close, that still have it
	parts  []part // what is mapped, in address order
	stuck  *part  // memory of an extension that failed and could not be undone
}

// part is one piece of physical memory.
type part struct {
	addr, bytes uint64
	handle      device.Handle
	mapped      bool
}

// newArena returns an arena without addresses for a limit.
func newArena(dev device.Device, limit uint64) (*arena, error) {
	r, ok := dev.(Reserver)
	unit := dev.Info().Page
	if !ok || !dev.Info().HasPages || unit == 0 {
		return nil, fmt.Errorf("bfc: a pool that grows in reserved addresses: %s has no virtual memory management: %w", dev.Info().Name, device.ErrNotSupported)
	}
	return &arena{dev: r, unit: unit, size: limit / unit * unit}, nil
}

// extend maps n bytes more, rounded up to whole units, right behind what is mapped, and
// returns them. That much is left of the addresses. A device that fails leaves the arena
// as it was.
func (r *arena) extend(n uint64) (device.Range, error) {
	if over := n % r.unit; over != 0 {
		n += r.unit - over
	}
	if err := r.settle(); err != nil {
		return device.Range{}, err
	}
	if r.addr == 0 {
		addr, err := r.dev.AddressReserve(r.size, 0)
		if err != nil { // %v: it is no refusal of memory, of which less would not help
			return device.Range{}, fmt.Errorf("bfc: reserving %d bytes of addresses: %v", r.size, err)
		}
		r.addr = addr
	}
	p := part{addr: r.addr + r.mapped, bytes: n}
	if err := r.take(&p); err != nil {
		if p.bytes > 0 {
			r.stuck = &p
			err = errors.Join(err, r.settle())
		}
		return device.Range{}, err
	}
	r.parts = append(r.parts, p)
	r.mapped += n
	if r.first == 0 {
		r.first = n
	}
	return device.Range{Addr: p.addr, Bytes: n}, nil
}

// take makes the driver calls of extend and records in p how far they came: bytes is 0
// if there is no memory.
func (r *arena) take(p *part) (err error) {
	if p.handle, err = r.dev.MemCreate(p.bytes); err != nil {
		p.bytes = 0
		return err
	}
	if err := r.dev.MemMap(p.addr, p.bytes, p.handle); err != nil {
		return err
	}
	p.mapped = true
	return r.dev.MemSetAccess(p.addr, p.bytes)
}

// held returns the bytes of memory that the arena has, those that are stuck included.
func (r *arena) held() uint64 {
	if r.stuck != nil {
		return r.mapped + r.stuck.bytes
	}
	return r.mapped
}

// settle releases what an extension that failed left behind.
func (r *arena) settle() error {
	if r.stuck == nil {
		return nil
	}
	if err := r.release(r.stuck); err != nil {
		return err
	}
	r.stuck = nil
	return nil
}

// release unmaps and releases a part. After an error it can be called again.
func (r *arena) release(p *part) error {
	if p.mapped {
		if err := r.dev.MemUnmap(p.addr, p.bytes); err != nil {
			return err
		}
		p.mapped = false
	}
	return r.dev.MemRelease(p.handle)
}

// close releases everything. What the device does not take back stays held.
func (r *arena) close() error {
	errs := []error{r.settle()}
	for i := range r.parts {
		if err := r.release(&r.parts[i]); err != nil {
			errs = append(errs, err)
			continue
		}
		r.mapped -= r.parts[i].bytes
	}
	if err := errors.Join(errs...); err != nil || r.addr == 0 {
		return err // the addresses cannot be freed with memory behind them
	}
	return r.dev.AddressFree(r.addr, r.size)
}

// reach returns the size in bytes of the addresses that an end of the pool may ever use.
// Before the first region is taken, collective memory may use initial bytes of them.
func (r *arena) reach(collective bool, initial uint64) uint64 {
	switch {
	case !collective:
		return r.size
	case r.first == 0:
		return initial
	}
	return r.first
}

// missing returns by how many bytes, in whole units, the memory behind the last chunk that
// is not free must grow for an ordinary block of n bytes to fit there, whatever the limit;
// the most that a uint64 holds where no addresses are enough. The block ends where the
// memory ends. It walks the chunks.
func (a *Allocator) missing(n, align uint64) uint64 {
	r := a.arena
	end := r.addr + r.mapped
	begin := end
	if _, last := a.last(&a.regions[0]); last.State != chunks.Live {
		begin = last.Addr
	}
	begin = (begin + align - 1) &^ (align - 1)
	if n > maxAlign || begin > maxAlign {
		return math.MaxUint64
	}
	more := begin + n - end
	return (more + r.unit - 1) / r.unit * r.unit
}

// extendArena takes the first region, or makes it grow for an ordinary request: see
// extend. The first region is of the configured size whatever the request is; where the
// device refuses that, less and less is asked for, as by a fixed pool.
func (a *Allocator) extendArena(end uint8, n, align uint64) (bool, error) {
	r := a.arena
	if len(a.regions) == 0 {
		initial := a.next
		if initial == 0 || end != a.home && n > initial {
			return false, nil
		}
		taken, err := a.takeRegion(initial, min(n, initial), initial)
		if err != nil || !taken || a.find(end, n, align) != 0 {
			return taken, err
		}
	}
	if end != a.home || r.mapped == r.size {
		return false, nil // at the cap a refusal costs what it costs a fixed pool
	}
	least := a.missing(n, align)
	if least > r.size-r.mapped {
		return false, nil
	}
	return a.takeRegion(n, least, r.size-r.mapped)
}
