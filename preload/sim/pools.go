//go:build libgpumem

package main

// #include "front.h"
import "C"

import "gpumem/device"

// pool is a stream-ordered pool of the driver.
type pool struct {
	handle uint64
	gpu    *gpu
	sim    device.Pool
}

func (d *driver) newPool(g *gpu, h device.Pool) *pool {
	p := &pool{handle: d.handle(), gpu: g, sim: h}
	d.pools[p.handle] = p
	return p
}

// onPool serves a call whose argument i is a pool.
func onPool(i int, f func(d *driver, c *call, p *pool) code) handler {
	return func(d *driver, c *call) code {
		p, ok := d.pools[c.u64(i)]
		if !ok {
			return invalidValue
		}
		return f(d, c, p)
	}
}

// allocAsync allocates from p in the stream that argument i names. In a capture
// that is a node of a graph, which has an address now and memory when it runs;
// graphs do not run here.
func (d *driver) allocAsync(c *call, p *pool, i int) code {
	if c.words[0] == 0 {
		return invalidValue
	}
	s, e := d.stream(c, i)
	if e != success {
		return e
	}
	bytes := c.u64(1)
	if s.capture != nil {
		return d.allocNode(c, s, bytes)
	}
	if s.gpu != p.gpu {
		return invalidValue
	}
	var r device.Range
	e = d.work(s, func() (err error) {
		r, err = p.gpu.sim.AllocAsync(p.sim, bytes, s.sim)
		return err
	})
	if e != success {
		return e
	}
	b := d.enter(&block{base: p.gpu.out(r.Addr), bytes: bytes, kind: pooled, gpu: p.gpu, context: s.context, pool: p})
	return give(c, 0, b.base)
}

var poolCalls = map[string]handler{
	// The memory is of the stream's GPU, whichever context is current.
	"cuMemAllocAsync": onStream(2, func(d *driver, c *call, s *stream) code {
		if s.gpu.pool == nil {
			return notSupported
		}
		return d.allocAsync(c, s.gpu.pool, 2)
	}),
	"cuMemAllocFromPoolAsync": onPool(2, func(d *driver, c *call, p *pool) code { return d.allocAsync(c, p, 3) }),
	"cuMemFreeAsync": onStream(1, func(d *driver, c *call, s *stream) code {
		b := d.blocks.starting(c.u64(0))
		if b == nil || b.kind != plain && b.kind != pooled && b.kind != node {
			return invalidValue
		}
		if s.capture != nil || b.kind == node {
			return success // the graph's own
		}
		if s.gpu != b.gpu {
			return invalidValue
		}
		e := d.work(s, func() error { return b.gpu.sim.FreeAsync(b.gpu.in(b.base), s.sim) })
		if e == success {
			d.forget(b)
		}
		return e
	}),
	"cuDeviceGetDefaultMemPool": onDevice(1, func(d *driver, c *call, g *gpu) code {
		if e := d.start(g); e != success {
			return e
		}
		if g.defaultPool == nil {
			return notSupported
		}
		return give(c, 0, g.defaultPool.handle)
	}),
	"cuDeviceGetMemPool": onDevice(1, func(d *driver, c *call, g *gpu) code {
		if e := d.start(g); e != success {
			return e
		}
		if g.pool == nil {
			return notSupported
		}
		return give(c, 0, g.pool.handle)
	}),
	"cuDeviceSetMemPool": onDevice(0, func(d *driver, c *call, g *gpu) code {
		return onPool(1, func(d *driver, c *call, p *pool) code {
			if p.gpu != g {
				return invalidValue
			}
			g.pool = p
			return success
		})(d, c)
	}),
	// CUmemPoolProps: kind, kinds of handles, location, security, most bytes.
	"cuMemPoolCreate": func(d *driver, c *call) code {
		if c.words[0] == 0 || c.words[1] == 0 || at[int32](c, 1, 0) != pinned {
			return invalidValue
		}
		if at[int32](c, 1, 8) != onTheDevice {
			return notSupported
		}
		g, e := d.gpu(int(at[int32](c, 1, 12)))
		if e != success {
			return e
		}
		if e := d.start(g); e != success {
			return e
		}
		h, err := g.sim.PoolCreate(at[uint64](c, 1, 24))
		if err != nil {
			return codeOf(err)
		}
		return give(c, 0, d.newPool(g, h).handle)
	},
	"cuMemPoolDestroy": onPool(0, func(d *driver, c *call, p *pool) code {
		if err := p.gpu.sim.PoolDestroy(p.sim); err != nil {
			return codeOf(err)
		}
		delete(d.pools, p.handle)
		if p.gpu.pool == p {
			p.gpu.pool = p.gpu.defaultPool
		}
		return success
	}),
	// The first three attributes are ints, the others 64 bits.
	"cuMemPoolGetAttribute": onPool(0, func(d *driver, c *call, p *pool) code {
		a := device.PoolAttribute(c.int(1))
		v, err := p.gpu.sim.PoolGetAttribute(p.sim, a)
		if err != nil {
			return codeOf(err)
		}
		if a < device.PoolReleaseThreshold {
			return give(c, 2, int32(v))
		}
		return give(c, 2, v)
	}),
	"cuMemPoolSetAttribute": onPool(0, func(d *driver, c *call, p *pool) code {
		a := device.PoolAttribute(c.int(1))
		if c.words[2] == 0 {
			return invalidValue
		}
		if a < device.PoolReleaseThreshold {
			return codeOf(p.gpu.sim.PoolSetAttribute(p.sim, a, uint64(at[uint32](c, 2, 0))))
		}
		return codeOf(p.gpu.sim.PoolSetAttribute(p.sim, a, at[uint64](c, 2, 0)))
	}),
	"cuMemPoolTrimTo": onPool(0, func(d *driver, c *call, p *pool) code { return codeOf(p.gpu.sim.PoolTrim(p.sim, c.u64(1))) }),
	// Only the device itself has access, and always.
	"cuMemPoolSetAccess": onPool(0, func(d *driver, c *call, p *pool) code {
		for i := range int(c.u64(2)) {
			if at[int32](c, 1, 12*i) != onTheDevice || int(at[int32](c, 1, 12*i+4)) != p.gpu.ordinal {
				return notSupported
			}
		}
		return success
	}),
	"cuMemPoolGetAccess": onPool(1, func(d *driver, c *call, p *pool) code {
		if c.words[2] == 0 {
			return invalidValue
		}
		if at[int32](c, 2, 0) == onTheDevice && int(at[int32](c, 2, 4)) == p.gpu.ordinal {
			return give(c, 0, int32(3))
		}
		return give(c, 0, int32(0))
	}),
}
