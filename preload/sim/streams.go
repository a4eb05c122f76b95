//go:build libgpumem

package main

// #include "front.h"
import "C"

import (
	"slices"
	"time"

	"gpumem/device"
	"gpumem/device/sim"
)

// Special handles of streams.
const (
	legacyHandle    = 1
	perThreadHandle = 2
)

// stream is one of the driver's. Those that are not made with
// CU_STREAM_NON_BLOCKING run in order with the legacy stream.
type stream struct {
	handle   uint64
	id       uint64
	gpu      *gpu
	context  *context // nil: of the device, as the legacy stream is
	sim      device.Stream
	flags    uint32
	priority int32
	blocking bool
	job      uint64   // the newest host function in it, or before it by an event
	capture  *capture // nil: none is under way

	// Order with the legacy stream.
	mark    device.Event // recorded in this stream when the other kind has to wait for it; 0 before
	dirty   bool         // work since the legacy stream waited for it
	ordered uint64       // the value of gpu.legacyWork when it last waited for the legacy stream
}

// event is one of the driver's.
type event struct {
	handle  uint64
	gpu     *gpu
	context *context
	sim     device.Event
	job     uint64
	capture *capture // recorded in this capture
}

// stream is the one that argument i names. Only the default streams, of which each context
// has its own, need a current context.
func (d *driver) stream(c *call, i int) (*stream, code) {
	h := c.u64(i)
	if s, ok := d.streams[h]; ok {
		return s, success
	}
	ctx, e := d.current(c)
	if e != success {
		return nil, e
	}
	g := ctx.gpu
	if h == 0 && c.perThread {
		h = perThreadHandle
	}
	switch h {
	case 0, legacyHandle:
		return g.legacy, success
	case perThreadHandle:
		n := uint64(c.thread.number)
		if s := g.perThread[n]; s != nil {
			return s, success
		}
		h, err := g.sim.StreamCreate()
		if err != nil {
			return nil, codeOf(err)
		}
		s := &stream{handle: perThreadHandle, id: d.id(), gpu: g, sim: h, blocking: true}
		g.perThread[n] = s
		return s, success
	}
	return nil, invalidHandle
}

// onStream serves a call whose argument i is a stream.
func onStream(i int, f func(d *driver, c *call, s *stream) code) handler {
	return func(d *driver, c *call) code {
		s, e := d.stream(c, i)
		if e != success {
			return e
		}
		return f(d, c, s)
	}
}

// onEvent serves a call whose argument i is an event.
func onEvent(i int, f func(d *driver, c *call, e *event) code) handler {
	return func(d *driver, c *call) code {
		e, ok := d.events[c.u64(i)]
		if !ok {
			return invalidHandle
		}
		return f(d, c, e)
	}
}

// blockingStreams calls f for each blocking stream of a device.
func (d *driver) blockingStreams(g *gpu, f func(*stream) error) error {
	for _, s := range d.streams {
		if s.gpu == g && s.blocking {
			if err := f(s); err != nil {
				return err
			}
		}
	}
	for _, s := range g.perThread {
		if err := f(s); err != nil {
			return err
		}
	}
	return nil
}

// follow makes later work in s wait for what is in before now.
func (g *gpu) follow(s, before *stream) (err error) {
	if before.mark == 0 {
		if before.mark, err = g.sim.EventCreate(); err != nil {
			return err
		}
	}
	if err := g.sim.EventRecord(before.mark, before.sim); err != nil {
		return err
	}
	s.job = max(s.job, before.job)
	return g.sim.StreamWaitEvent(s.sim, before.mark)
}

// work queues f in s, in order with the legacy stream: work there waits for all
// blocking streams, and later work in those for it.
func (d *driver) work(s *stream, f func() error) code {
	g := s.gpu
	switch {
	case s == g.legacy:
		err := d.blockingStreams(g, func(b *stream) error {
			if !b.dirty {
				return nil
			}
			b.dirty = false
			return g.follow(s, b)
		})
		if err != nil {
			return codeOf(err)
		}
		g.legacyWork++
	case s.blocking:
		if s.ordered != g.legacyWork {
			if err := g.follow(s, g.legacy); err != nil {
				return codeOf(err)
			}
			s.ordered = g.legacyWork
		}
		s.dirty = true
	}
	return codeOf(f())
}

// use is work of a test in a stream, which writes a range for a while.
func (d *driver) use(c *call, addr, bytes, handle uint64) code {
	c.words[0] = handle
	s, e := d.stream(c, 0)
	if e != success {
		return e
	}
	if s.capture != nil {
		return success
	}
	return d.work(s, func() error {
		return s.gpu.sim.Work(s.sim, workTime, nil, []device.Range{{Addr: s.gpu.in(addr), Bytes: bytes}})
	})
}

// workTime is how long the work of gpumemSimUse takes in the device's own time, which goes
// on with each call. A program that waits asks again and again, in real time: so it is
// no more than some dozen calls.
const workTime = 5 * time.Microsecond

// notice is what the program learns when a host function begins: that all before it in its
// stream is done. The function may pass that on to other threads before it returns.
type notice struct {
	job  uint64
	sim  *sim.Device
	mark device.Event
}

// learn takes note of the host functions that have begun.
func (d *driver) learn() {
	if len(d.notices) == 0 {
		return
	}
	begun := uint64(C.simBegun())
	d.notices = slices.DeleteFunc(d.notices, func(n notice) bool {
		if n.job > begun {
			return false
		}
		// The device may be closed by now. A query first: it does not make pools
		// release memory, as a synchronise would.
		if ready, err := n.sim.EventQuery(n.mark); err == nil && !ready {
			_ = n.sim.EventSynchronize(n.mark)
		}
		_ = n.sim.EventDestroy(n.mark)
		return true
	})
}

// busy reports whether host functions up to that number are still to run.
func busy(job uint64) bool { return job > uint64(C.simDone()) }

// done is the code of a query.
func doneCode(done bool, err error) code {
	switch {
	case err != nil:
		return codeOf(err)
	case !done:
		return notReady
	}
	return success
}

// streamCreate serves the two calls that make one.
func streamCreate(priority bool) handler {
	return inContext(func(d *driver, c *call, ctx *context) code {
		flags := c.u32(1)
		if c.words[0] == 0 || flags > 1 {
			return invalidValue
		}
		h, err := ctx.gpu.sim.StreamCreate()
		if err != nil {
			return codeOf(err)
		}
		s := &stream{id: d.id(), gpu: ctx.gpu, context: ctx, sim: h, flags: flags, blocking: flags&1 == 0}
		if priority {
			s.priority = int32(min(0, max(-5, c.int(2))))
		}
		// A handle is used again when the device's is.
		s.handle = 0x6000000000 + uint64(ctx.gpu.ordinal)<<32 + uint64(h)*0x100
		d.streams[s.handle] = s
		return give(c, 0, s.handle)
	})
}

// hostFunction queues a function of the program: its arguments, and whether it
// takes the stream and a status, too.
func hostFunction(withStatus int) handler {
	return onStream(0, func(d *driver, c *call, s *stream) code {
		if c.words[1] == 0 {
			return invalidValue
		}
		if s.capture != nil {
			return success
		}
		return d.work(s, func() error {
			g := s.gpu
			mark, err := g.sim.EventCreate()
			if err == nil {
				err = g.sim.EventRecord(mark, s.sim)
			}
			if err != nil {
				return err
			}
			d.lastJob = uint64(C.simQueue(c.pointers[1], c.pointers[2], c.pointers[0], C.int(withStatus)))
			s.job = d.lastJob
			d.notices = append(d.notices, notice{d.lastJob, g.sim, mark})
			return nil
		})
	})
}

var streamWait = onStream(0, func(d *driver, c *call, s *stream) code {
	return onEvent(1, func(d *driver, c *call, e *event) code {
		if e.capture != nil || s.capture != nil {
			return d.join(s, e)
		}
		s.job = max(s.job, e.job)
		if e.gpu != s.gpu {
			// Two devices have no common time; the host's waiting stands for it.
			return codeOf(e.gpu.sim.EventSynchronize(e.sim))
		}
		return d.work(s, func() error { return s.gpu.sim.StreamWaitEvent(s.sim, e.sim) })
	})(d, c)
})

var eventRecord = onEvent(0, func(d *driver, c *call, e *event) code {
	s, code := d.stream(c, 1)
	if code != success {
		return code
	}
	if s.gpu != e.gpu {
		return invalidHandle
	}
	if e.capture = s.capture; e.capture != nil {
		return success
	}
	e.job = s.job
	return d.work(s, func() error { return s.gpu.sim.EventRecord(e.sim, s.sim) })
})

func elapsed(d *driver, c *call) code { return give(c, 0, float32(0)) }

var streamCalls = map[string]handler{
	"cuStreamCreate":             streamCreate(false),
	"cuStreamCreateWithPriority": streamCreate(true),
	"cuStreamDestroy_v2": func(d *driver, c *call) code {
		s, ok := d.streams[c.u64(0)]
		if !ok {
			return invalidHandle
		}
		if s.capture != nil {
			s.capture.invalid = true
			delete(s.capture.streams, s)
		}
		if err := s.gpu.sim.StreamDestroy(s.sim); err != nil {
			return codeOf(err)
		}
		if s.mark != 0 {
			_ = s.gpu.sim.EventDestroy(s.mark)
		}
		delete(d.streams, s.handle)
		return success
	},
	"cuStreamQuery": onStream(0, func(d *driver, c *call, s *stream) code {
		if s.capture != nil {
			return s.capture.spoil(captureUnsupported)
		}
		if busy(s.job) {
			return notReady
		}
		return doneCode(s.gpu.sim.StreamQuery(s.sim))
	}),
	"cuStreamSynchronize": onStream(0, func(d *driver, c *call, s *stream) code {
		if s.capture != nil {
			return s.capture.spoil(captureUnsupported)
		}
		c.thread.wait = C.u64(s.job)
		if s == s.gpu.legacy {
			// It is in order with the blocking streams.
			if e := d.work(s, func() error { return nil }); e != success {
				return e
			}
		}
		return codeOf(s.gpu.sim.StreamSynchronize(s.sim))
	}),
	"cuStreamWaitEvent":   streamWait,
	"cuStreamGetId":       onStream(0, func(d *driver, c *call, s *stream) code { return give(c, 1, s.id) }),
	"cuStreamGetFlags":    onStream(0, func(d *driver, c *call, s *stream) code { return give(c, 1, s.flags) }),
	"cuStreamGetPriority": onStream(0, func(d *driver, c *call, s *stream) code { return give(c, 1, s.priority) }),
	"cuStreamGetDevice":   onStream(0, func(d *driver, c *call, s *stream) code { return give(c, 1, int32(s.gpu.ordinal)) }),
	"cuStreamGetCtx": onStream(0, func(d *driver, c *call, s *stream) code {
		ctx := s.context
		if ctx == nil {
			ctx, _ = d.current(c)
		}
		return give(c, 1, ctx.handle)
	}),
	"cuLaunchHostFunc":    hostFunction(0),
	"cuStreamAddCallback": hostFunction(1),

	"cuEventCreate": inContext(func(d *driver, c *call, ctx *context) code {
		if c.words[0] == 0 {
			return invalidValue
		}
		h, err := ctx.gpu.sim.EventCreate()
		if err != nil {
			return codeOf(err)
		}
		e := &event{handle: d.handle(), gpu: ctx.gpu, context: ctx, sim: h}
		d.events[e.handle] = e
		return give(c, 0, e.handle)
	}),
	"cuEventDestroy_v2": onEvent(0, func(d *driver, c *call, e *event) code {
		delete(d.events, e.handle)
		return codeOf(e.gpu.sim.EventDestroy(e.sim))
	}),
	"cuEventRecord":          eventRecord,
	"cuEventRecordWithFlags": eventRecord,
	"cuEventQuery": onEvent(0, func(d *driver, c *call, e *event) code {
		if e.capture != nil {
			return e.capture.spoil(captureUnsupported)
		}
		if busy(e.job) {
			return notReady
		}
		return doneCode(e.gpu.sim.EventQuery(e.sim))
	}),
	"cuEventSynchronize": onEvent(0, func(d *driver, c *call, e *event) code {
		if e.capture != nil {
			return e.capture.spoil(captureUnsupported)
		}
		c.thread.wait = C.u64(e.job)
		return codeOf(e.gpu.sim.EventSynchronize(e.sim))
	}),
	// There is no time in which kernels run.
	"cuEventElapsedTime":    elapsed,
	"cuEventElapsedTime_v2": elapsed,
}
