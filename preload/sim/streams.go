//go:build libgpumem

package main

// #include "front.h"
import "C"

import (
	"slices"
	"time"

	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/preload/internal/timeline"
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

	queue timeline.Queue // where work takes time
}

// event is one of the driver's.
type event struct {
	handle  uint64
	gpu     *gpu
	context *context
	sim     device.Event
	job     uint64
	capture *capture     // recorded in this capture
	op      *timeline.Op // where work takes time; nil: not recorded
}

// stream is the one that argument i names. Only the default streams, of which each context
// has its own, need a current context.
func (c *call) stream(i int) *stream {
	if s, ok := c.streams[c.u64(i)]; ok {
		return s
	}
	return c.defaultStream(c.u64(i))
}

// defaultStream is one of the current context's; 0 is the legacy stream, unless the call is
// of the kind that means the thread's own.
func (c *call) defaultStream(h uint64) *stream {
	g := c.current().gpu
	if h == 0 && c.perThread {
		h = perThreadHandle
	}
	if h == 0 || h == legacyHandle {
		return g.legacy
	}
	check(h == perThreadHandle, invalidHandle)
	n := uint64(c.thread.number)
	s := g.perThread[n]
	if s == nil {
		h, err := g.sim.StreamCreate()
		must(err)
		s = &stream{handle: perThreadHandle, id: c.id(), gpu: g, sim: h, blocking: true}
		g.perThread[n] = s
	}
	return s
}

// event is the one that argument i names.
func (c *call) event(i int) *event {
	e, ok := c.events[c.u64(i)]
	check(ok, invalidHandle)
	return e
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
func (d *driver) work(s *stream, f func() error) {
	g := s.gpu
	switch {
	case s == g.legacy:
		must(d.blockingStreams(g, func(b *stream) error {
			if !b.dirty {
				return nil
			}
			b.dirty = false
			return g.follow(s, b)
		}))
		g.legacyWork++
	case s.blocking:
		if s.ordered != g.legacyWork {
			must(g.follow(s, g.legacy))
			s.ordered = g.legacyWork
		}
		s.dirty = true
	}
	must(f())
}

// use is work of a test in the stream of argument 0, which writes a range for a while.
func (c *call) use(addr, bytes uint64) {
	s := c.stream(0)
	if s.capture != nil {
		return
	}
	c.work(s, func() error {
		return s.gpu.sim.Work(s.sim, workTime, nil, []device.Range{{Addr: s.gpu.in(addr), Bytes: bytes}})
	})
	if c.line != nil {
		c.submitWork(s, c.kernel(), nil)
	}
}

// workTime is how long the work of gpumemSimUse takes in the device's own time, which goes
// on with each call. A program that waits asks again and again, in real time: so it is
// no more than some dozen calls.
const workTime = 5 * time.Microsecond

// notice is what the program learns when a host function begins: that all before it in its
// stream is done. The function may pass that on to other threads before it returns.
type notice struct {
	job  uint64
	op   *timeline.Op // instead of job where work takes time
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
		if n.job > begun || n.op != nil && !d.line.Begun(n.op) {
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

// answerQuery refuses a query of work that has not ended, host functions up to that number
// among it.
func answerQuery(job uint64, query func() (bool, error)) {
	check(job <= uint64(C.simDone()), notReady)
	done, err := query()
	must(err)
	check(done, notReady)
}

// streamCreate serves the two calls that make one.
func streamCreate(priority bool) handler {
	return func(c *call) {
		ctx, flags := c.current(), c.u32(1)
		c.need(0)
		check(flags <= 1, invalidValue)
		h, err := ctx.gpu.sim.StreamCreate()
		must(err)
		s := &stream{id: c.id(), gpu: ctx.gpu, context: ctx, sim: h, flags: flags, blocking: flags&1 == 0}
		if priority {
			s.priority = int32(min(0, max(-5, c.int(2))))
		}
		// A handle is used again when the device's is.
		s.handle = 0x6000000000 + uint64(ctx.gpu.ordinal)<<32 + uint64(h)*0x100
		c.streams[s.handle] = s
		give(c, 0, s.handle)
	}
}

// hostFunction queues a function of the program: its arguments, and whether it
// takes the stream and a status, too.
func hostFunction(withStatus int) handler {
	return func(c *call) {
		s := c.stream(0)
		c.need(1)
		if s.capture != nil {
			return
		}
		c.work(s, func() error {
			g := s.gpu
			mark, err := g.sim.EventCreate()
			if err == nil {
				err = g.sim.EventRecord(mark, s.sim)
			}
			if err != nil {
				return err
			}
			if c.line != nil {
				c.notices = append(c.notices, notice{op: c.submitFunction(s, withStatus), sim: g.sim, mark: mark})
				return nil
			}
			c.lastJob = uint64(C.simQueue(c.pointers[1], c.pointers[2], c.pointers[0], C.int(withStatus)))
			s.job = c.lastJob
			c.notices = append(c.notices, notice{job: c.lastJob, sim: g.sim, mark: mark})
			return nil
		})
	}
}

// submitFunction puts a function of the program into a stream. It runs on the thread of all such functions.
func (c *call) submitFunction(s *stream, withStatus int) *timeline.Op {
	function, arg, stream := c.pointers[1], c.pointers[2], c.pointers[0]
	return c.submit(s, timeline.Op{Call: func() {
		C.simAwait(C.simQueue(function, arg, stream, C.int(withStatus)))
	}})
}

func eventRecord(c *call) {
	e, s := c.event(0), c.stream(1)
	check(s.gpu == e.gpu, invalidHandle)
	if e.capture = s.capture; e.capture != nil {
		return
	}
	e.job = s.job
	c.work(s, func() error { return s.gpu.sim.EventRecord(e.sim, s.sim) })
	if c.line != nil {
		e.op = c.submit(s, timeline.Op{})
	}
}

// elapsed is the time between two events, in milliseconds. Where work takes none it is 1. It is not 0, by which
// programs that time kernels to choose one would divide, but at least the half of a microsecond that the driver's
// manual names as its resolution.
func elapsed(c *call) {
	if c.line == nil {
		give(c, 0, float32(1))
		return
	}
	first, second := c.event(1).op, c.event(2).op
	check(first != nil && second != nil, invalidHandle)
	check(c.line.Ended(first) && c.line.Ended(second), notReady)
	give(c, 0, max(0.0005, float32((c.line.At(second)-c.line.At(first)).Seconds()*1000)))
}

func newEvent(c *call) {
	ctx := c.current()
	c.need(0)
	h, err := ctx.gpu.sim.EventCreate()
	must(err)
	e := &event{handle: c.handle(), gpu: ctx.gpu, context: ctx, sim: h}
	c.events[e.handle] = e
	give(c, 0, e.handle)
}

var streamCalls = map[string]handler{
	"cuStreamCreate":             streamCreate(false),
	"cuStreamCreateWithPriority": streamCreate(true),
	"cuStreamDestroy_v2": func(c *call) {
		s, ok := c.streams[c.u64(0)]
		check(ok, invalidHandle)
		if s.capture != nil {
			s.capture.invalid = true
			delete(s.capture.streams, s)
		}
		must(s.gpu.sim.StreamDestroy(s.sim))
		if s.mark != 0 {
			_ = s.gpu.sim.EventDestroy(s.mark)
		}
		if c.line != nil {
			s.gpu.left = append(s.gpu.left, c.line.Last(&s.queue))
		}
		delete(c.streams, s.handle)
	},
	"cuStreamQuery": func(c *call) {
		s := c.stream(0)
		s.capture.keepsOut()
		check(c.line == nil || c.finished(s), notReady)
		answerQuery(s.job, func() (bool, error) { return s.gpu.sim.StreamQuery(s.sim) })
	},
	"cuStreamSynchronize": func(c *call) {
		s := c.stream(0)
		s.capture.keepsOut()
		c.thread.wait = C.u64(s.job)
		if s == s.gpu.legacy {
			// It is in order with the blocking streams.
			c.work(s, func() error { return nil })
		}
		if c.line != nil {
			c.synchronize(s.gpu, s)
			return
		}
		must(s.gpu.sim.StreamSynchronize(s.sim))
	},
	"cuStreamWaitEvent": func(c *call) {
		s, e := c.stream(0), c.event(1)
		if e.capture != nil || s.capture != nil {
			c.join(s, e)
			return
		}
		s.job = max(s.job, e.job)
		if c.line != nil {
			c.submit(s, timeline.Op{}, e.op)
		}
		if e.gpu != s.gpu {
			// Two devices have no common time; the host's waiting stands for it.
			must(e.gpu.sim.EventSynchronize(e.sim))
			return
		}
		c.work(s, func() error { return s.gpu.sim.StreamWaitEvent(s.sim, e.sim) })
	},
	"cuStreamGetId":       func(c *call) { give(c, 1, c.stream(0).id) },
	"cuStreamGetFlags":    func(c *call) { give(c, 1, c.stream(0).flags) },
	"cuStreamGetPriority": func(c *call) { give(c, 1, c.stream(0).priority) },
	"cuStreamGetDevice":   func(c *call) { give(c, 1, int32(c.stream(0).gpu.ordinal)) },
	"cuStreamGetCtx": func(c *call) {
		ctx := c.stream(0).context
		if ctx == nil {
			ctx = c.current()
		}
		give(c, 1, ctx.handle)
	},
	"cuLaunchHostFunc":    hostFunction(0),
	"cuStreamAddCallback": hostFunction(1),

	"cuEventCreate": newEvent,
	"cuEventDestroy_v2": func(c *call) {
		e := c.event(0)
		delete(c.events, e.handle)
		must(e.gpu.sim.EventDestroy(e.sim))
	},
	"cuEventRecord":          eventRecord,
	"cuEventRecordWithFlags": eventRecord,
	"cuEventQuery": func(c *call) {
		e := c.event(0)
		e.capture.keepsOut()
		check(c.line == nil || c.line.Ended(e.op), notReady)
		answerQuery(e.job, func() (bool, error) { return e.gpu.sim.EventQuery(e.sim) })
	},
	"cuEventSynchronize": func(c *call) {
		e := c.event(0)
		e.capture.keepsOut()
		c.thread.wait = C.u64(e.job)
		if op := e.op; op != nil {
			if c.await(op); c.events[e.handle] != e || e.op != op {
				return // it was recorded anew meanwhile
			}
		}
		must(e.gpu.sim.EventSynchronize(e.sim))
	},
	"cuEventElapsedTime":    elapsed,
	"cuEventElapsedTime_v2": elapsed,
}
