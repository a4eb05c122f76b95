//go:build libgpumem

package main

// #include "front.h"
import "C"

// context is one of a device's. A thread has a stack of them, of which the last
// is current.
type context struct {
	handle  uint64
	id      uint64
	gpu     *gpu
	primary bool
	refs    int // of a primary context: retains less releases
	flags   uint32
}

// current is the thread's current context.
func (d *driver) current(c *call) (*context, code) {
	if c.thread.depth == 0 {
		return nil, invalidContext
	}
	ctx, ok := d.contexts[uint64(c.thread.stack[c.thread.depth-1])]
	if !ok {
		return nil, contextDestroyed
	}
	return ctx, success
}

// inContext serves a call that needs a current context.
func inContext(f func(d *driver, c *call, ctx *context) code) handler {
	return func(d *driver, c *call) code {
		ctx, e := d.current(c)
		if e != success {
			return e
		}
		return f(d, c, ctx)
	}
}

// onContext serves a call whose argument i is a context, or a null pointer for
// the current one.
func onContext(i int, f func(d *driver, c *call, ctx *context) code) handler {
	return func(d *driver, c *call) code {
		if c.u64(i) == 0 {
			return inContext(f)(d, c)
		}
		ctx, ok := d.contexts[c.u64(i)]
		if !ok {
			return invalidContext
		}
		return f(d, c, ctx)
	}
}

func (d *driver) newContext(g *gpu, flags uint32, primary bool) (*context, code) {
	if e := d.start(g); e != success {
		return nil, e
	}
	ctx := &context{handle: d.handle(), id: d.id(), gpu: g, primary: primary, flags: flags}
	d.contexts[ctx.handle] = ctx
	g.contexts++
	return ctx, success
}

// destroy ends a context: what was allocated in it goes, and its streams and events.
func (d *driver) destroy(ctx *context) code {
	g := ctx.gpu
	if err := g.sim.Synchronize(); err != nil {
		return codeOf(err)
	}
	var mine []*block
	for _, b := range d.blocks.all {
		if b.context == ctx {
			mine = append(mine, b)
		}
	}
	for _, b := range mine {
		if e := d.release(b); e != success {
			logf("context ends: block %#x: %d", b.base, e)
		}
	}
	if err := g.sim.Synchronize(); err != nil { // pools release what that left
		logf("context ends: %v", err)
	}
	for h, s := range d.streams {
		if s.context == ctx {
			_ = g.sim.StreamDestroy(s.sim)
			delete(d.streams, h)
		}
	}
	for h, e := range d.events {
		if e.context == ctx {
			_ = g.sim.EventDestroy(e.sim)
			delete(d.events, h)
		}
	}
	delete(d.contexts, ctx.handle)
	if ctx.primary {
		g.primary = nil
	}
	g.contexts--
	d.stop(g)
	return success
}

// push makes a context current; pop takes the current one away.
func push(t *C.struct_simThread, handle uint64) code {
	if t.depth == C.simDepth {
		return invalidContext
	}
	t.stack[t.depth] = C.u64(handle)
	t.depth++
	return success
}

func pop(t *C.struct_simThread) uint64 {
	t.depth--
	return uint64(t.stack[t.depth])
}

// create serves the forms of cuCtxCreate, whose flags and device are arguments i
// and i+1.
func create(i int) handler {
	return onDevice(i+1, func(d *driver, c *call, g *gpu) code {
		if c.words[0] == 0 {
			return invalidValue
		}
		ctx, e := d.newContext(g, c.u32(i), false)
		if e != success {
			return e
		}
		if e := push(c.thread, ctx.handle); e != success {
			return e
		}
		return give(c, 0, ctx.handle)
	})
}

var primaryRelease = onDevice(0, func(d *driver, c *call, g *gpu) code {
	if g.primary == nil {
		return invalidContext
	}
	if g.primary.refs--; g.primary.refs > 0 {
		return success
	}
	return d.destroy(g.primary)
})

var primaryReset = onDevice(0, func(d *driver, c *call, g *gpu) code {
	if g.primary == nil {
		return success
	}
	return d.destroy(g.primary)
})

var primarySetFlags = onDevice(0, func(d *driver, c *call, g *gpu) code {
	g.primaryFlags = c.u32(1)
	if g.primary != nil {
		g.primary.flags = g.primaryFlags
	}
	return success
})

var contextCalls = map[string]handler{
	"cuDevicePrimaryCtxRetain": onDevice(1, func(d *driver, c *call, g *gpu) code {
		if c.words[0] == 0 {
			return invalidValue
		}
		if g.primary == nil {
			ctx, e := d.newContext(g, g.primaryFlags, true)
			if e != success {
				return e
			}
			g.primary = ctx
		}
		g.primary.refs++
		return give(c, 0, g.primary.handle)
	}),
	"cuDevicePrimaryCtxRelease":     primaryRelease,
	"cuDevicePrimaryCtxRelease_v2":  primaryRelease,
	"cuDevicePrimaryCtxReset":       primaryReset,
	"cuDevicePrimaryCtxReset_v2":    primaryReset,
	"cuDevicePrimaryCtxSetFlags":    primarySetFlags,
	"cuDevicePrimaryCtxSetFlags_v2": primarySetFlags,
	"cuDevicePrimaryCtxGetState": onDevice(0, func(d *driver, c *call, g *gpu) code {
		put(c, 1, g.primaryFlags)
		active := int32(0)
		if g.primary != nil {
			active = 1
		}
		return give(c, 2, active)
	}),
	"cuCtxCreate_v2": create(1),
	"cuCtxCreate_v3": create(3),
	"cuCtxCreate_v4": create(2),
	"cuCtxDestroy_v2": func(d *driver, c *call) code {
		ctx, ok := d.contexts[c.u64(0)]
		if !ok || ctx.primary {
			return invalidContext
		}
		if now, e := d.current(c); e == success && now == ctx {
			pop(c.thread)
		}
		return d.destroy(ctx)
	},
	"cuCtxSetCurrent": func(d *driver, c *call) code {
		t, h := c.thread, c.u64(0)
		if _, ok := d.contexts[h]; !ok && h != 0 {
			return invalidContext
		}
		if t.depth > 0 {
			pop(t)
		}
		if h == 0 {
			return success
		}
		return push(t, h)
	},
	"cuCtxGetCurrent": func(d *driver, c *call) code {
		if c.thread.depth == 0 {
			return give(c, 0, uint64(0))
		}
		return give(c, 0, uint64(c.thread.stack[c.thread.depth-1]))
	},
	"cuCtxPushCurrent_v2": func(d *driver, c *call) code {
		if _, ok := d.contexts[c.u64(0)]; !ok {
			return invalidContext
		}
		return push(c.thread, c.u64(0))
	},
	"cuCtxPopCurrent_v2": func(d *driver, c *call) code {
		if c.thread.depth == 0 {
			return invalidContext
		}
		put(c, 0, pop(c.thread))
		return success
	},
	"cuCtxGetDevice":     inContext(func(d *driver, c *call, ctx *context) code { return give(c, 0, int32(ctx.gpu.ordinal)) }),
	"cuCtxGetId":         onContext(0, func(d *driver, c *call, ctx *context) code { return give(c, 1, ctx.id) }),
	"cuCtxGetApiVersion": onContext(0, func(d *driver, c *call, ctx *context) code { return give(c, 1, uint32(3020)) }),
	"cuCtxGetFlags":      inContext(func(d *driver, c *call, ctx *context) code { return give(c, 0, ctx.flags) }),
	"cuCtxSynchronize": inContext(func(d *driver, c *call, ctx *context) code {
		c.thread.wait = C.u64(d.lastJob)
		return codeOf(ctx.gpu.sim.Synchronize())
	}),
	"cuCtxGetStreamPriorityRange": inContext(func(d *driver, c *call, ctx *context) code {
		put(c, 0, int32(0))
		put(c, 1, int32(-5))
		return success
	}),
	"cuCtxGetLimit":               inContext(func(d *driver, c *call, ctx *context) code { return give(c, 0, uint64(1<<20)) }),
	"cuCtxSetLimit":               inContext(nothing),
	"cuCtxGetCacheConfig":         inContext(func(d *driver, c *call, ctx *context) code { return give(c, 0, int32(0)) }),
	"cuCtxSetCacheConfig":         inContext(nothing),
	"cuCtxGetSharedMemConfig":     inContext(func(d *driver, c *call, ctx *context) code { return give(c, 0, int32(1)) }),
	"cuCtxSetSharedMemConfig":     inContext(nothing),
	"cuCtxSetFlags":               inContext(nothing),
	"cuCtxResetPersistingL2Cache": inContext(nothing),
	"cuCtxEnablePeerAccess":       func(d *driver, c *call) code { return peerAccessUnsupported },
	"cuCtxDisablePeerAccess":      func(d *driver, c *call) code { return peerAccessUnsupported },
}

// nothing serves a call that changes nothing here.
func nothing(*driver, *call, *context) code { return success }
