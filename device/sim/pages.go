package sim

import (
	"math/bits"
	"time"

	"gpumem/device"
)

// Virtual memory: addresses are reserved, memory is created, and the one is
// mapped onto the other, by whole handles. What the driver refuses is refused
// here, by its manual; where the manual leaves room the stricter reading holds,
// so that what works here works there:
//
//   - MemSetAccess and MemUnmap take whole mappings, one after the other with
//     nothing between them; a part of one is refused;
//   - neither waits for work, and MemUnmap and MemRelease refuse what the host
//     does not know to be done with.
//
// A handle's memory is released when the handle is released and
// its last mapping is gone, whichever comes later.

const (
	// pageUnit is the granularity of virtual memory on every NVIDIA GPU that has
	// it, the least one and the recommended one.
	pageUnit = 2 << 20
	// maxReserved is how many bytes of addresses may be reserved at a time: those
	// of a program have 47 bits on Linux, and the driver finds the device's among
	// them.
	maxReserved = 1 << 47
	// maxAccessible is how many mappings of one pageUnit may have access at a
	// time; a larger mapping counts as several. On an H100 MemSetAccess answered
	// that memory is out with some 516,000 of them, and 12 GiB of data behind
	// them; it is the tables that are full.
	maxAccessible = 520_000
)

// AddressReserve reserves bytes of addresses at a multiple of the page and of
// align, a power of two or 0. It refuses with device.ErrOutOfMemory when 128
// TiB are reserved.
func (d *Device) AddressReserve(bytes, align uint64) (addr uint64, err error) {
	cost := d.costs.AddressReserve
	if bytes >= 1<<30 {
		cost = d.costs.AddressReserveLarge
	}
	err = d.onPages("cuMemAddressReserve", bytes, cost, func() error {
		if !d.whole(bytes) || align&(align-1) != 0 {
			return device.ErrInvalidValue
		}
		// The least multiple of both, one of which is a power of two.
		step := d.info.Page
		if have := bits.TrailingZeros64(step); align > 1<<have {
			if align > maxReserved || step>>have > maxReserved/align {
				return device.ErrOutOfMemory
			}
			step = step >> have * align
		}
		if bytes > maxReserved-d.reservedSum {
			return device.ErrOutOfMemory
		}
		var ok bool
		if addr, ok = d.addresses(bytes, step); !ok {
			return device.ErrOutOfMemory
		}
		d.reserved.add(segment{addr: addr, bytes: bytes, kind: reserved})
		d.reservedSum += bytes
		return nil
	})
	return addr, err
}

// AddressFree ends the reservation that AddressReserve made at addr with bytes,
// with nothing mapped in it; else it fails with device.ErrInvalidValue.
func (d *Device) AddressFree(addr, bytes uint64) error {
	return d.onPages("cuMemAddressFree", bytes, d.costs.AddressFree, func() error {
		r := d.reserved.starting(addr)
		if r == nil || r.bytes != bytes || !d.space.empty(addr, bytes) {
			return device.ErrInvalidValue
		}
		d.reserved.remove(addr)
		d.reservedSum -= bytes
		return nil
	})
}

// MemCreate takes bytes of physical memory, or refuses with
// device.ErrOutOfMemory.
func (d *Device) MemCreate(bytes uint64) (h device.Handle, err error) {
	err = d.onPages("cuMemCreate", bytes, d.costs.MemCreate, func() error {
		if !d.whole(bytes) {
			return device.ErrInvalidValue
		}
		if err := d.take(bytes); err != nil {
			return err
		}
		d.count.Time += byMiB(d.costs.MemCreatePerMiB, bytes)
		d.lastHandle++
		h = d.lastHandle
		d.handles[h] = &memory{bytes: bytes, handle: true}
		return nil
	})
	return h, err
}

// MemRelease ends a handle, and releases its memory if it is mapped nowhere.
// A handle that is not there answers device.ErrInvalidValue.
func (d *Device) MemRelease(h device.Handle) error {
	const name = "cuMemRelease"
	return d.onPages(name, 0, d.costs.MemRelease, func() error {
		m := d.handles[h]
		if m == nil {
			return device.ErrInvalidValue
		}
		if m.maps == 0 {
			if err := d.settled(name, piece{m, 0, m.bytes, 0}); err != nil {
				return err
			}
			if err := d.give(m.bytes); err != nil {
				return err
			}
			d.count.Time += byMiB(d.costs.MemReleasePerMiB, m.bytes)
		}
		m.handle = false
		delete(d.handles, h)
		return nil
	})
}

// MemMap puts the whole of h, which has bytes, at addr, in one reservation and
// where nothing is mapped; else it fails with device.ErrInvalidValue.
func (d *Device) MemMap(addr, bytes uint64, h device.Handle) error {
	return d.onPages("cuMemMap", bytes, d.costs.MemMap, func() error {
		m := d.handles[h]
		if m == nil || m.bytes != bytes || addr%d.info.Page != 0 ||
			d.reserved.holding(addr, bytes) == nil || !d.space.empty(addr, bytes) {
			return device.ErrInvalidValue
		}
		m.maps++
		d.space.add(segment{addr: addr, bytes: bytes, mem: m, kind: mapped})
		return nil
	})
}

// MemSetAccess lets the device read and write the mappings that make up a
// range; where there is none, or a part of one, it fails with
// device.ErrInvalidValue. More than 520,000 mappings of 2 MiB cannot have
// access: device.ErrOutOfMemory.
func (d *Device) MemSetAccess(addr, bytes uint64) error {
	return d.onPages("cuMemSetAccess", bytes, d.costs.MemSetAccess, func() error {
		list := d.mappings(addr, bytes)
		if list == nil {
			return device.ErrInvalidValue
		}
		more, cost := uint64(0), -d.costs.MemSetAccess // one was charged
		for _, s := range list {
			if s.kind == mapped {
				more += s.bytes / pageUnit
			}
			cost += ofSize(d.costs.MemSetAccess, d.costs.MemSetAccessPerMiB, s.bytes)
		}
		if more > maxAccessible-d.accessible {
			return device.ErrOutOfMemory
		}
		for _, s := range list {
			s.kind = readable
		}
		d.accessible += more
		d.count.Time += cost
		return nil
	})
}

// MemUnmap takes out the mappings that make up a range, and gives the memory
// back of those whose handle is released and that are mapped nowhere else.
// Where there is no mapping, or a part of one, it fails with
// device.ErrInvalidValue.
func (d *Device) MemUnmap(addr, bytes uint64) error {
	const name = "cuMemUnmap"
	return d.onPages(name, bytes, d.costs.MemUnmap, func() error {
		list := d.mappings(addr, bytes)
		if list == nil {
			return device.ErrInvalidValue
		}
		for _, s := range list {
			if err := d.settled(name, piece{s.mem, 0, s.bytes, s.addr}); err != nil {
				return err
			}
		}
		back, cost := uint64(0), -d.costs.MemUnmap // one was charged
		for _, s := range list {
			if s.mem.maps--; s.mem.maps == 0 && !s.mem.handle {
				back += s.bytes
				cost += byMiB(d.costs.MemReleasePerMiB, s.bytes)
			}
			cost += ofSize(d.costs.MemUnmap, d.costs.MemUnmapPerMiB, s.bytes)
		}
		if back > 0 {
			if err := d.give(back); err != nil {
				for _, s := range list {
					s.mem.maps++
				}
				return err
			}
		}
		for _, s := range list {
			if s.kind == readable {
				d.accessible -= s.bytes / pageUnit
			}
		}
		for at := addr; at < addr+bytes; {
			n := d.space.starting(at).bytes
			d.space.remove(at)
			at += n
		}
		d.count.Time += cost
		return nil
	})
}

// onPages is do for the calls of virtual memory.
func (d *Device) onPages(name string, bytes uint64, cost time.Duration, body func() error) error {
	return d.doIf(d.info.HasPages, name, bytes, cost, body)
}

// whole reports whether bytes is a number of pages, at least one.
func (d *Device) whole(bytes uint64) bool { return bytes > 0 && bytes%d.info.Page == 0 }

// mappings are those that make up [addr, addr+bytes) exactly, nil if none do.
// They are good until something is added to the space or removed. Caller holds
// d.mu.
func (d *Device) mappings(addr, bytes uint64) []*segment {
	end := addr + bytes
	if end <= addr {
		return nil
	}
	var list []*segment
	for s := range d.space.from(addr) {
		if s.addr != addr || s.end() > end || s.kind != mapped && s.kind != readable {
			break
		}
		list = append(list, s)
		if addr = s.end(); addr == end {
			return list
		}
	}
	return nil
}
