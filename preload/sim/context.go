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
	flags   uint32
	more    int    // times that it was attached, and not detached since
	bytes   uint64 // address of what a further context takes; 0: the device counts it, for one
}

// maybe is the thread's current context, or why there is none.
func (c *call) maybe() (*context, code) {
	if c.thread.depth == 0 {
		return nil, invalidContext
	}
	ctx, ok := c.contexts[uint64(c.thread.stack[c.thread.depth-1])]
	if !ok {
		return nil, contextDestroyed
	}
	return ctx, success
}

// current is the thread's current context.
func (c *call) current() *context {
	ctx, e := c.maybe()
	check(e == success, e)
	return ctx
}

// context is the one that argument i names; a null pointer is the current one.
func (c *call) context(i int) *context {
	if c.u64(i) == 0 {
		return c.current()
	}
	ctx, ok := c.contexts[c.u64(i)]
	check(ok, invalidContext)
	return ctx
}

func (d *driver) newContext(g *gpu, flags uint32, primary bool) *context {
	d.start(g)
	bytes := uint64(0)
	if g.contexts > 0 && g.info.Context > 0 {
		r, err := g.sim.Alloc(g.info.Context)
		must(err)
		bytes = r.Addr
	}
	ctx := &context{bytes: bytes, handle: d.handle(), id: d.id(), gpu: g, primary: primary, flags: flags}
	d.contexts[ctx.handle] = ctx
	g.contexts++
	return ctx
}

// destroy ends a context: what was allocated in it goes, and its streams and events.
func (d *driver) destroy(ctx *context) {
	g := ctx.gpu
	d.drain(g)
	must(g.sim.Synchronize())
	var mine []*block
	for _, b := range d.blocks.all {
		if b.context == ctx {
			mine = append(mine, b)
		}
	}
	for _, b := range mine {
		if err := d.release(b); err != nil {
			logf("context ends: block %#x: %d", b.base, codeOf(err))
		}
	}
	for h, a := range d.arrays {
		if a.context == ctx {
			_ = g.sim.Free(a.base)
			delete(d.arrays, h)
		}
	}
	if ctx.bytes == 0 { // the device counts another one from now on
		for _, other := range d.contexts {
			if other.gpu == g && other.bytes != 0 {
				ctx.bytes, other.bytes = other.bytes, 0
				break
			}
		}
	}
	if ctx.bytes != 0 {
		_ = g.sim.Free(ctx.bytes)
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
}

// push makes a context current; pop takes the current one away.
func push(t *C.struct_simThread, handle uint64) {
	check(t.depth < C.simDepth, invalidContext)
	t.stack[t.depth] = C.u64(handle)
	t.depth++
}

func pop(t *C.struct_simThread) uint64 {
	t.depth--
	return uint64(t.stack[t.depth])
}

// create serves the forms of cuCtxCreate, whose flags and device are arguments i
// and i+1.
func create(i int) handler {
	return func(c *call) {
		g := c.device(i + 1)
		c.need(0)
		check(c.thread.depth < C.simDepth, invalidContext) // or the context would stay
		ctx := c.newContext(g, c.u32(i), false)
		push(c.thread, ctx.handle)
		give(c, 0, ctx.handle)
	}
}

// A primary context that was reset is still retained: by NVIDIA's words, who has retained it
// releases it.
func primaryRelease(c *call) {
	g := c.device(0)
	check(g.retained > 0, invalidContext)
	if g.retained--; g.retained == 0 && g.primary != nil {
		c.destroy(g.primary)
	}
}

func primaryReset(c *call) {
	if g := c.device(0); g.primary != nil {
		c.destroy(g.primary)
	}
}

func contextDestroy(c *call) {
	ctx, ok := c.contexts[c.u64(0)]
	check(ok && !ctx.primary, invalidContext)
	if now, _ := c.maybe(); now == ctx {
		pop(c.thread)
	}
	c.destroy(ctx)
}

func primarySetFlags(c *call) {
	g := c.device(0)
	g.primaryFlags = c.u32(1)
	if g.primary != nil {
		g.primary.flags = g.primaryFlags
	}
}

// inContext serves a call that needs a current context and gives v at the first argument.
func inContext[T any](v T) handler {
	return func(c *call) {
		c.current()
		give(c, 0, v)
	}
}

// nothing serves a call that needs a current context and changes nothing here.
func nothing(c *call) { c.current() }

func noPeerAccess(*call) { panic(peerAccessUnsupported) }

var contextCalls = map[string]handler{
	"cuDevicePrimaryCtxRetain": func(c *call) {
		g := c.device(1)
		c.need(0)
		if g.primary == nil {
			g.primary = c.newContext(g, g.primaryFlags, true)
		}
		g.retained++
		give(c, 0, g.primary.handle)
	},
	"cuDevicePrimaryCtxRelease":     primaryRelease,
	"cuDevicePrimaryCtxRelease_v2":  primaryRelease,
	"cuDevicePrimaryCtxReset":       primaryReset,
	"cuDevicePrimaryCtxReset_v2":    primaryReset,
	"cuDevicePrimaryCtxSetFlags":    primarySetFlags,
	"cuDevicePrimaryCtxSetFlags_v2": primarySetFlags,
	"cuDevicePrimaryCtxGetState": func(c *call) {
		g := c.device(0)
		put(c, 1, g.primaryFlags)
		active := int32(0)
		if g.primary != nil {
			active = 1
		}
		give(c, 2, active)
	},
	"cuCtxCreate_v2":  create(1),
	"cuCtxCreate_v3":  create(3),
	"cuCtxCreate_v4":  create(2),
	"cuCtxCreate":     create(1),
	"cuCtxDestroy":    contextDestroy,
	"cuCtxDestroy_v2": contextDestroy,
	"cuCtxAttach": func(c *call) {
		check(c.u32(1) == 0, invalidValue)
		ctx := c.current()
		ctx.more++
		give(c, 0, ctx.handle)
	},
	"cuCtxDetach": func(c *call) {
		if ctx := c.contexts[c.u64(0)]; ctx != nil && ctx.more > 0 {
			ctx.more--
			return
		}
		contextDestroy(c)
	},
	"cuCtxSetCurrent": func(c *call) {
		t, h := c.thread, c.u64(0)
		_, ok := c.contexts[h]
		check(ok || h == 0, invalidContext)
		if t.depth > 0 {
			pop(t)
		}
		if h != 0 {
			push(t, h)
		}
	},
	"cuCtxGetCurrent": func(c *call) {
		h := uint64(0)
		if c.thread.depth > 0 {
			h = uint64(c.thread.stack[c.thread.depth-1])
		}
		give(c, 0, h)
	},
	"cuCtxPushCurrent_v2": func(c *call) {
		_, ok := c.contexts[c.u64(0)]
		check(ok, invalidContext)
		push(c.thread, c.u64(0))
	},
	"cuCtxPopCurrent_v2": func(c *call) {
		check(c.thread.depth > 0, invalidContext)
		put(c, 0, pop(c.thread))
	},
	"cuCtxGetDevice": func(c *call) { give(c, 0, int32(c.current().gpu.ordinal)) },
	"cuCtxGetId":     func(c *call) { give(c, 1, c.context(0).id) },
	"cuCtxGetApiVersion": func(c *call) {
		c.context(0)
		give(c, 1, uint32(3020))
	},
	"cuCtxGetFlags": func(c *call) { give(c, 0, c.current().flags) },
	"cuCtxSynchronize": func(c *call) {
		ctx := c.current()
		c.thread.wait = C.u64(c.lastJob)
		if c.line != nil {
			c.synchronize(ctx.gpu, c.streamsOf(ctx.gpu)...)
			return
		}
		must(ctx.gpu.sim.Synchronize())
	},
	"cuCtxGetStreamPriorityRange": func(c *call) {
		c.current()
		put(c, 0, int32(0))
		put(c, 1, int32(-5))
	},
	"cuCtxGetLimit":               inContext(uint64(1 << 20)),
	"cuCtxSetLimit":               nothing,
	"cuCtxGetCacheConfig":         inContext(int32(0)),
	"cuCtxSetCacheConfig":         nothing,
	"cuCtxGetSharedMemConfig":     inContext(int32(1)),
	"cuCtxSetSharedMemConfig":     nothing,
	"cuCtxSetFlags":               nothing,
	"cuCtxResetPersistingL2Cache": nothing,
	"cuCtxEnablePeerAccess":       noPeerAccess,
	"cuCtxDisablePeerAccess":      noPeerAccess,
}
