//go:build libgpumem

package main

// #include "front.h"
import "C"

import (
	"slices"

	"gpumem/device"
	"gpumem/preload/internal/timeline"
)

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

// pool is the one that argument i names.
func (c *call) pool(i int) *pool {
	p, ok := c.pools[c.u64(i)]
	check(ok, invalidValue)
	return p
}

// allocAsync allocates from p in s. In a capture that is a node of a graph, which has an
// address now and memory when it runs; graphs do not run here.
func (c *call) allocAsync(p *pool, s *stream) {
	c.need(0)
	bytes := c.u64(1)
	if s.capture != nil {
		c.allocNode(s, bytes)
		return
	}
	check(s.gpu == p.gpu, invalidValue)
	var r device.Range
	c.work(s, func() (err error) {
		r, err = p.gpu.sim.AllocAsync(p.sim, bytes, s.sim)
		return err
	})
	b := c.enter(&block{base: p.gpu.out(r.Addr), bytes: bytes, kind: pooled, gpu: p.gpu, context: s.context, pool: p})
	if c.line != nil {
		c.submit(s, timeline.Op{}, c.freesOf(b)...)
	}
	give(c, 0, b.base)
}

// poolOf gives a pool of the device that argument 1 names.
func poolOf(which func(*gpu) *pool) handler {
	return func(c *call) {
		g := c.device(1)
		c.start(g)
		p := which(g)
		check(p != nil, notSupported)
		give(c, 0, p.handle)
	}
}

// freedBlock is memory that was freed in a stream, and the operation of that.
type freedBlock struct {
	base, bytes uint64
	op          *timeline.Op
}

// clear drops the contents of a block that is freed in a stream; where work takes time, after all in that stream.
func (d *driver) clear(s *stream, b *block) {
	if d.line == nil {
		d.contents.Drop(b.base, b.bytes)
		return
	}
	op := d.submit(s, timeline.Op{Finish: d.locked(func() { d.contents.Drop(b.base, b.bytes) })})
	d.freed = append(d.freed, freedBlock{b.base, b.bytes, op})
}

// freesOf returns the frees that have not ended of memory that is allocated anew: a pool may have it of another
// stream, after whose free the new one comes then.
func (d *driver) freesOf(b *block) (ops []*timeline.Op) {
	d.freed = slices.DeleteFunc(d.freed, func(f freedBlock) bool { return d.line.Ended(f.op) })
	for _, f := range d.freed {
		if f.base < b.end() && b.base < f.base+f.bytes {
			ops = append(ops, f.op)
		}
	}
	return ops
}

var poolCalls = map[string]handler{
	// The memory is of the stream's GPU, whichever context is current.
	"cuMemAllocAsync": func(c *call) {
		s := c.stream(2)
		check(s.gpu.pool != nil, notSupported)
		c.allocAsync(s.gpu.pool, s)
	},
	"cuMemAllocFromPoolAsync": func(c *call) {
		p := c.pool(2)
		c.need(0)
		c.allocAsync(p, c.stream(3))
	},
	"cuMemFreeAsync": func(c *call) {
		s, b := c.stream(1), c.blocks.starting(c.u64(0))
		check(b != nil && (b.kind == plain || b.kind == pooled || b.kind == node), invalidValue)
		if s.capture != nil { // a node, of which only that of the graph's own memory is kept
			b.graph.freed = b.graph.freed || slices.Contains(s.capture.graph.blocks, b)
			return
		}
		check(s.gpu == b.gpu, invalidValue)
		if b.kind == node {
			c.work(s, func() error { return nil })
			b.graph.live = false
			c.clear(s, b)
			c.leave(b)
			return
		}
		c.work(s, func() error { return b.gpu.sim.FreeAsync(b.gpu.in(b.base), s.sim) })
		c.blocks.remove(b)
		c.clear(s, b)
	},
	"cuDeviceGetDefaultMemPool": poolOf(func(g *gpu) *pool { return g.defaultPool }),
	"cuDeviceGetMemPool":        poolOf(func(g *gpu) *pool { return g.pool }),
	"cuDeviceSetMemPool": func(c *call) {
		g, p := c.device(0), c.pool(1)
		check(p.gpu == g, invalidValue)
		g.pool = p
	},
	// CUmemPoolProps: kind, kinds of handles, location, security, most bytes.
	"cuMemPoolCreate": func(c *call) {
		c.need(0, 1)
		check(at[int32](c, 1, 0) == pinned, invalidValue)
		check(at[int32](c, 1, 8) == onTheDevice, notSupported)
		g := c.gpu(int(at[int32](c, 1, 12)))
		c.start(g)
		h, err := g.sim.PoolCreate(at[uint64](c, 1, 24))
		must(err)
		give(c, 0, c.newPool(g, h).handle)
	},
	"cuMemPoolDestroy": func(c *call) {
		p := c.pool(0)
		must(p.gpu.sim.PoolDestroy(p.sim))
		delete(c.pools, p.handle)
		if p.gpu.pool == p {
			p.gpu.pool = p.gpu.defaultPool
		}
	},
	// The first three attributes are ints, the others 64 bits.
	"cuMemPoolGetAttribute": func(c *call) {
		p, a := c.pool(0), device.PoolAttribute(c.int(1))
		v, err := p.gpu.sim.PoolGetAttribute(p.sim, a)
		must(err)
		if a < device.PoolReleaseThreshold {
			give(c, 2, int32(v))
		} else {
			give(c, 2, v)
		}
	},
	"cuMemPoolSetAttribute": func(c *call) {
		p, a := c.pool(0), device.PoolAttribute(c.int(1))
		c.need(2)
		v := uint64(at[uint32](c, 2, 0))
		if a >= device.PoolReleaseThreshold {
			v = at[uint64](c, 2, 0)
		}
		must(p.gpu.sim.PoolSetAttribute(p.sim, a, v))
	},
	"cuMemPoolTrimTo": func(c *call) {
		p := c.pool(0)
		must(p.gpu.sim.PoolTrim(p.sim, c.u64(1)))
	},
	// Only the device itself has access, and always.
	"cuMemPoolSetAccess": func(c *call) {
		p := c.pool(0)
		for i := range int(c.u64(2)) {
			check(c.allows(1, 12*i, p.gpu), notSupported)
		}
	},
	"cuMemPoolGetAccess": func(c *call) {
		p := c.pool(1)
		c.need(2)
		flags := int32(0)
		if c.allows(2, 0, p.gpu) {
			flags = 3
		}
		give(c, 0, flags)
	},
}
