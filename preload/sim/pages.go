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
	place  uint64 // of its contents
}

// placesOfPhysical is the first place of contents of physical memory, beyond all
// addresses.
const placesOfPhysical = 1 << 63

// settle drops the contents of memory that is gone.
func (d *driver) settle(p *physical) {
	if p.refs == 0 && p.maps == 0 {
		d.contents.Drop(p.place, p.bytes)
	}
}

// here is the device for a call about addresses: that of the current context, or the first
// one without.
func (c *call) here() *gpu {
	g := c.gpus[0]
	if ctx, e := c.maybe(); e == success {
		g = ctx.gpu
	}
	c.start(g)
	return g
}

// reserved is the device in whose reservation the address in argument 0 lies.
func (c *call) reserved() *gpu {
	i := int(c.u64(0) >> apart)
	check(i < len(c.gpus) && c.gpus[i].sim != nil, invalidValue)
	return c.gpus[i]
}

// mappings visits the blocks that make up the range of arguments 0 and 1.
func (c *call) mappings(yield func(*block) bool) {
	for at, end := c.u64(0), c.u64(0)+c.u64(1); at < end; {
		b := c.blocks.starting(at)
		at = b.end()
		if !yield(b) {
			return
		}
	}
}

// allows reports whether the location at these bytes behind argument i is a device, and
// that one.
func (c *call) allows(i, bytes int, g *gpu) bool {
	return at[int32](c, i, bytes) == onTheDevice && int(at[int32](c, i, bytes+4)) == g.ordinal
}

var pageCalls = map[string]handler{
	// The hint of an address is not taken; a driver need not either.
	"cuMemAddressReserve": func(c *call) {
		g := c.here()
		c.need(0)
		check(c.u64(4) == 0, invalidValue)
		addr, err := g.sim.AddressReserve(c.u64(1), c.u64(2))
		must(err)
		g.reservations++
		give(c, 0, g.out(addr))
	},
	"cuMemAddressFree": func(c *call) {
		g := c.reserved()
		must(g.sim.AddressFree(g.in(c.u64(0)), c.u64(1)))
		g.reservations--
		c.stop(g)
	},
	"cuMemCreate": func(c *call) {
		c.need(0, 2)
		check(c.u64(3) == 0, invalidValue)
		p := at[prop](c, 2, 0)
		check(p.kind == pinned, invalidValue)
		if p.location[0] != onTheDevice {
			logf("cuMemCreate: location of type %d: not served", p.location[0])
			panic(notSupported)
		}
		g := c.gpu(int(p.location[1]))
		c.start(g)
		h, err := g.sim.MemCreate(c.u64(1))
		must(err)
		made := &physical{handle: c.handle(), gpu: g, sim: h, bytes: c.u64(1), prop: p, refs: 1, place: c.nextPlace}
		c.nextPlace += made.bytes
		c.handles[made.handle] = made
		give(c, 0, made.handle)
	},
	"cuMemRelease": func(c *call) {
		p := c.handles[c.u64(0)]
		check(p != nil, invalidValue)
		if p.refs > 1 {
			p.refs--
			return
		}
		must(p.gpu.sim.MemRelease(p.sim))
		p.refs = 0
		c.settle(p)
		delete(c.handles, p.handle)
		c.stop(p.gpu)
	},
	"cuMemMap": func(c *call) {
		g := c.reserved()
		addr, bytes, p := c.u64(0), c.u64(1), c.handles[c.u64(3)]
		check(p != nil && p.gpu == g && c.u64(2) == 0 && c.u64(4) == 0, invalidValue)
		must(g.sim.MemMap(g.in(addr), bytes, p.sim))
		c.enter(&block{base: addr, bytes: bytes, kind: mapped, gpu: g, physical: p})
		p.maps++
	},
	"cuMemUnmap": func(c *call) {
		g := c.reserved()
		must(g.sim.MemUnmap(g.in(c.u64(0)), c.u64(1)))
		c.noteUnmap(g)
		for b := range c.mappings {
			c.blocks.remove(b)
			b.physical.maps--
			c.settle(b.physical)
		}
	},
	// CUmemAccessDesc: location, flags (3: read and write).
	"cuMemSetAccess": func(c *call) {
		g := c.reserved()
		c.need(2, 3)
		for i := range int(c.u64(3)) {
			if flags := at[int32](c, 2, 12*i+8); !c.allows(2, 12*i, g) || flags != 3 {
				kind, number := at[int32](c, 2, 12*i), at[int32](c, 2, 12*i+4)
				logf("cuMemSetAccess: location of type %d, number %d, flags %d: not served", kind, number, flags)
				panic(notSupported)
			}
		}
		must(g.sim.MemSetAccess(g.in(c.u64(0)), c.u64(1)))
		for b := range c.mappings {
			b.access = true
		}
	},
	"cuMemGetAccess": func(c *call) {
		b := c.blocks.around(c.u64(2))
		check(b != nil && b.kind == mapped, invalidValue)
		c.need(1)
		flags := uint64(0)
		if b.access && c.allows(1, 0, b.gpu) {
			flags = 3
		}
		give(c, 0, flags)
	},
	"cuMemGetAllocationGranularity": func(c *call) {
		c.need(1)
		p := at[prop](c, 1, 0)
		check(p.location[0] == onTheDevice, notSupported)
		g := c.gpu(int(p.location[1]))
		check(g.info.HasPages, notSupported)
		give(c, 0, g.info.Page)
	},
	"cuMemGetAllocationPropertiesFromHandle": func(c *call) {
		p := c.handles[c.u64(1)]
		check(p != nil, invalidValue)
		give(c, 0, p.prop)
	},
	"cuMemRetainAllocationHandle": func(c *call) {
		b := c.blocks.around(c.u64(1))
		check(b != nil && b.kind == mapped && b.physical.refs != 0, invalidValue)
		c.need(0)
		b.physical.refs++
		give(c, 0, b.physical.handle)
	},
}
