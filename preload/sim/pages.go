//go:build libgpumem

package main

// #include "front.h"
import "C"

import "gpumem/device"

// Numbers of the interface: CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE.
const (
	pinned      = 1
	onTheDevice = 1
)

// prop is CUmemAllocationProp.
type prop struct {
	kind        int32
	handleTypes uint32
	location    [2]int32 // type, number
	win32       uint64
	flags       [8]byte
}

// physical is memory without an address, of cuMemCreate.
type physical struct {
	handle uint64
	gpu    *gpu
	sim    device.Handle
	bytes  uint64
	prop   prop
	refs   int // references to the handle; 0: it is released, and the memory lives while it is mapped
	maps   int
	place  uint64 // of its contents (copies.go)
}

// placesOfPhysical is the first place of contents of physical memory, beyond all
// addresses.
const placesOfPhysical = 1 << 63

// settle drops the contents of memory that is gone.
func (d *driver) settle(p *physical) {
	if p.refs == 0 && p.maps == 0 {
		d.contents.drop(p.place, p.bytes)
	}
}

// onAddresses serves a call about addresses, which are those of the device of
// the current context, or of the first one without.
func onAddresses(f func(d *driver, c *call, g *gpu) code) handler {
	return func(d *driver, c *call) code {
		g := d.gpus[0]
		if ctx, e := d.current(c); e == success {
			g = ctx.gpu
		}
		if e := d.start(g); e != success {
			return e
		}
		return f(d, c, g)
	}
}

// ofAddress serves a call whose argument 0 is an address in a reservation.
func ofAddress(f func(d *driver, c *call, g *gpu) code) handler {
	return func(d *driver, c *call) code {
		i := int(c.u64(0) >> apart)
		if i >= len(d.gpus) || d.gpus[i].sim == nil {
			return invalidValue
		}
		return f(d, c, d.gpus[i])
	}
}

var pageCalls = map[string]handler{
	// The hint of an address is not taken; a driver need not either.
	"cuMemAddressReserve": onAddresses(func(d *driver, c *call, g *gpu) code {
		if c.words[0] == 0 || c.u64(4) != 0 {
			return invalidValue
		}
		addr, err := g.sim.AddressReserve(c.u64(1), c.u64(2))
		if err != nil {
			return codeOf(err)
		}
		g.reservations++
		return give(c, 0, g.out(addr))
	}),
	"cuMemAddressFree": ofAddress(func(d *driver, c *call, g *gpu) code {
		err := g.sim.AddressFree(g.in(c.u64(0)), c.u64(1))
		if err == nil {
			g.reservations--
			d.stop(g)
		}
		return codeOf(err)
	}),
	"cuMemCreate": func(d *driver, c *call) code {
		if c.words[0] == 0 || c.words[2] == 0 || c.u64(3) != 0 {
			return invalidValue
		}
		p := at[prop](c, 2, 0)
		if p.kind != pinned {
			return invalidValue
		}
		if p.location[0] != onTheDevice {
			logf("cuMemCreate: location of type %d: not served", p.location[0])
			return notSupported
		}
		g, e := d.gpu(int(p.location[1]))
		if e != success {
			return e
		}
		if e := d.start(g); e != success {
			return e
		}
		h, err := g.sim.MemCreate(c.u64(1))
		if err != nil {
			return codeOf(err)
		}
		made := &physical{handle: d.handle(), gpu: g, sim: h, bytes: c.u64(1), prop: p, refs: 1, place: d.nextPlace}
		d.nextPlace += made.bytes
		d.handles[made.handle] = made
		return give(c, 0, made.handle)
	},
	"cuMemRelease": func(d *driver, c *call) code {
		p := d.handles[c.u64(0)]
		if p == nil {
			return invalidValue
		}
		if p.refs > 1 {
			p.refs--
			return success
		}
		if err := p.gpu.sim.MemRelease(p.sim); err != nil {
			return codeOf(err)
		}
		p.refs = 0
		d.settle(p)
		delete(d.handles, p.handle)
		d.stop(p.gpu)
		return success
	},
	"cuMemMap": ofAddress(func(d *driver, c *call, g *gpu) code {
		addr, bytes, p := c.u64(0), c.u64(1), d.handles[c.u64(3)]
		if p == nil || p.gpu != g || c.u64(2) != 0 || c.u64(4) != 0 {
			return invalidValue
		}
		if err := g.sim.MemMap(g.in(addr), bytes, p.sim); err != nil {
			return codeOf(err)
		}
		d.enter(&block{base: addr, bytes: bytes, kind: mapped, gpu: g, physical: p})
		p.maps++
		return success
	}),
	"cuMemUnmap": ofAddress(func(d *driver, c *call, g *gpu) code {
		addr, bytes := c.u64(0), c.u64(1)
		if err := g.sim.MemUnmap(g.in(addr), bytes); err != nil {
			return codeOf(err)
		}
		for at := addr; at < addr+bytes; {
			b := d.blocks.starting(at)
			at = b.end()
			d.blocks.remove(b)
			b.physical.maps--
			d.settle(b.physical)
		}
		return success
	}),
	// CUmemAccessDesc: location, flags (3: read and write).
	"cuMemSetAccess": ofAddress(func(d *driver, c *call, g *gpu) code {
		addr, bytes := c.u64(0), c.u64(1)
		if c.words[2] == 0 || c.u64(3) == 0 {
			return invalidValue
		}
		for i := range int(c.u64(3)) {
			kind, number, flags := at[int32](c, 2, 12*i), at[int32](c, 2, 12*i+4), at[int32](c, 2, 12*i+8)
			if kind != onTheDevice || int(number) != g.ordinal || flags != 3 {
				logf("cuMemSetAccess: location of type %d, number %d, flags %d: not served", kind, number, flags)
				return notSupported
			}
		}
		if err := g.sim.MemSetAccess(g.in(addr), bytes); err != nil {
			return codeOf(err)
		}
		for at := addr; at < addr+bytes; {
			b := d.blocks.starting(at)
			b.access = true
			at = b.end()
		}
		return success
	}),
	"cuMemGetAccess": func(d *driver, c *call) code {
		b := d.blocks.around(c.u64(2))
		if b == nil || b.kind != mapped || c.words[1] == 0 {
			return invalidValue
		}
		flags := uint64(0)
		if b.access && at[int32](c, 1, 0) == onTheDevice && int(at[int32](c, 1, 4)) == b.gpu.ordinal {
			flags = 3
		}
		return give(c, 0, flags)
	},
	"cuMemGetAllocationGranularity": func(d *driver, c *call) code {
		if c.words[1] == 0 {
			return invalidValue
		}
		p := at[prop](c, 1, 0)
		g, e := d.gpu(int(p.location[1]))
		if p.location[0] != onTheDevice {
			return notSupported
		}
		if e != success {
			return e
		}
		if !g.info.HasPages {
			return notSupported
		}
		return give(c, 0, g.info.Page)
	},
	"cuMemGetAllocationPropertiesFromHandle": func(d *driver, c *call) code {
		p := d.handles[c.u64(1)]
		if p == nil {
			return invalidValue
		}
		return give(c, 0, p.prop)
	},
	"cuMemRetainAllocationHandle": func(d *driver, c *call) code {
		b := d.blocks.around(c.u64(1))
		if b == nil || b.kind != mapped || b.physical.refs == 0 || c.words[0] == 0 {
			return invalidValue
		}
		b.physical.refs++
		return give(c, 0, b.physical.handle)
	},
}
