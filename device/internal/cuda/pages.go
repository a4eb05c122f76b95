//go:build linux && (amd64 || arm64) && !nodriver

// Virtual memory. A handle is the driver's CUmemGenericAllocationHandle.

package cuda

import (
	"unsafe"

	"gpumem/device"
)

// beginPages is begin for the calls that need virtual memory.
func (d *Device) beginPages(f int, bytes uint64) *call {
	c := d.begin(f, bytes)
	c.requires(d.info.HasPages)
	return c
}

// pinned describes memory of device id, shared with no other device.
func pinned(id int32) memProps {
	return memProps{kind: allocationPinned, location: memLocation{locationDevice, id}}
}

// pages adds a number that must be a multiple of the page, or refuses the call.
// The driver itself is content with multiples of its least page.
func (c *call) pages(v uint64) *call {
	return c.check(c.d.info.Page != 0 && v%c.d.info.Page == 0).arg(v)
}

// span adds a range of pages.
func (c *call) span(addr, bytes uint64) *call {
	return c.check(bytes != 0).pages(addr).pages(bytes)
}

// accessible adds one location, a device by the driver's number, that may read and write.
func (c *call) accessible(id int32) *call {
	c.access = memAccess{memLocation{locationDevice, id}, accessReadWrite}
	return c.ptr(unsafe.Pointer(&c.access)).arg(1)
}

// AddressReserve reserves addresses. Nothing is held on the device for them.
func (d *Device) AddressReserve(bytes, align uint64) (addr uint64, err error) {
	c := d.beginPages(cuMemAddressReserve, bytes)
	defer c.end()
	c.check(bytes != 0 && align&(align-1) == 0)
	c.returns(0).pages(bytes).arg(max(align, d.info.Page), 0, 0) // anywhere, no flags
	return create[uint64](c, d.reserved, bytes)
}

// AddressFree ends a reservation.
func (d *Device) AddressFree(addr, bytes uint64) error {
	c := d.beginPages(cuMemAddressFree, bytes)
	defer c.end()
	size, ok := known(d, d.reserved, addr)
	c.check(ok && size == bytes).span(addr, bytes)
	return forget(c, d.reserved, addr)
}

// MemCreate takes physical memory from the device.
func (d *Device) MemCreate(bytes uint64) (device.Handle, error) {
	c := d.beginPages(cuMemCreate, bytes)
	defer c.end()
	c.props = pinned(d.id)
	c.returns(0).pages(bytes).ptr(unsafe.Pointer(&c.props)).arg(0).fits(bytes, d.info.Total) // no flags
	return create[device.Handle](c, d.handles, bytes)
}

// MemRelease releases a handle; its memory follows when it is mapped nowhere.
func (d *Device) MemRelease(h device.Handle) error {
	c := d.beginPages(cuMemRelease, 0)
	defer c.end()
	c.arg(uint64(h))
	return forget(c, d.handles, uint64(h))
}

// MemMap puts the memory of h at addr.
func (d *Device) MemMap(addr, bytes uint64, h device.Handle) error {
	c := d.beginPages(cuMemMap, bytes)
	defer c.end()
	size, ok := known(d, d.handles, uint64(h))
	c.check(ok && size == bytes).span(addr, bytes).arg(0, uint64(h), 0) // from the beginning of h, no flags
	if err := c.do(); err != nil {
		return err
	}
	keep(d, d.mapped, addr, bytes)
	return nil
}

// MemSetAccess lets this device read and write a mapped range.
func (d *Device) MemSetAccess(addr, bytes uint64) error {
	c := d.beginPages(cuMemSetAccess, bytes)
	defer c.end()
	return c.span(addr, bytes).accessible(d.id).do()
}

// MemUnmap takes whole mappings out of a range. It does not wait for work that
// uses them.
func (d *Device) MemUnmap(addr, bytes uint64) error {
	c := d.beginPages(cuMemUnmap, bytes)
	defer c.end()
	if err := c.span(addr, bytes).check(d.covers(addr, bytes, false)).do(); err != nil {
		return err
	}
	d.covers(addr, bytes, true)
	return nil
}

// covers reports whether whole mappings cover a range, and if asked to takes them
// out of the table.
func (d *Device) covers(addr, bytes uint64, remove bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	done := uint64(0)
	for done < bytes {
		n := d.mapped[addr+done]
		if n == 0 || n > bytes-done {
			return false
		}
		if remove {
			delete(d.mapped, addr+done)
		}
		done += n
	}
	return true
}
