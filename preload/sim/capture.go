//go:build libgpumem

package main

// #include "front.h"
// #include <stdlib.h>
import "C"

import "unsafe"

// Modes of a capture, and of a thread.
const (
	modeGlobal  = 0
	modeThread  = 1
	modeRelaxed = 2
)

// capture is one under way: work in its streams becomes a graph.
type capture struct {
	id      uint64
	mode    uint64
	thread  uint64 // that began it
	origin  *stream
	streams map[*stream]bool
	graph   *graph
	invalid bool
}

// graph is what a capture made, or cuGraphCreate. All that it has here is the
// addresses of its allocations, and the bodies of its conditional nodes.
type graph struct {
	handle uint64
	blocks []*block
	bodies []*graph
	arrays []unsafe.Pointer // with the handles of bodies, for the program
}

// spoil ends a capture's chance to succeed.
func (p *capture) spoil(e code) code {
	p.invalid = true
	return e
}

// captureForbids are the calls that NVIDIA's guide names potentially unsafe in a
// capture: they wait, or the driver does something in the legacy stream. Of those
// for pages it says nothing; the stricter reading stands here.
var captureForbids = func() map[string]bool {
	m := map[string]bool{}
	for _, name := range []string{
		"cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemAllocManaged", "cuMemAllocHost_v2", "cuMemHostAlloc", "cuMemFree_v2", "cuMemFreeHost",
		"cuMemHostRegister_v2", "cuMemHostUnregister",
		"cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemAddressReserve", "cuMemAddressFree",
		"cuMemcpy", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemcpyDtoD_v2", "cuMemsetD8_v2", "cuMemsetD16_v2", "cuMemsetD32_v2",
		"cuCtxSynchronize", "cuEventQuery", "cuMemPoolTrimTo",
	} {
		m[name] = true
	}
	return m
}()

// forbidden reports whether a capture keeps this thread from unsafe calls, and
// spoils the captures that do.
func (d *driver) forbidden(c *call) (is bool) {
	if c.thread.captureMode == modeRelaxed {
		return false
	}
	for _, p := range d.captures {
		own := p.thread == uint64(c.thread.number)
		if p.mode == modeRelaxed || !own && (p.mode != modeGlobal || c.thread.captureMode != modeGlobal) {
			continue
		}
		p.invalid, is = true, true
	}
	return is
}

// join makes a stream part of the capture in which the event was recorded.
func (d *driver) join(s *stream, e *event) code {
	switch {
	case e.capture == nil:
		return s.capture.spoil(captureUnsupported) // the event is from outside
	case s.capture != nil && s.capture != e.capture:
		s.capture.invalid = true
		return e.capture.spoil(captureMerge)
	case s == s.gpu.legacy:
		return e.capture.spoil(captureImplicit)
	}
	s.capture = e.capture
	s.capture.streams[s] = true
	return success
}

// begin starts a capture in a stream, into g.
func (d *driver) begin(c *call, s *stream, g *graph, mode uint64) code {
	switch {
	case s == s.gpu.legacy:
		return captureUnsupported
	case s.capture != nil:
		return s.capture.spoil(captureUnsupported)
	case mode > modeRelaxed:
		return invalidValue
	}
	p := &capture{id: d.id(), mode: mode, thread: uint64(c.thread.number), origin: s, streams: map[*stream]bool{s: true}, graph: g}
	s.capture = p
	d.captures = append(d.captures, p)
	return success
}

func (d *driver) newGraph() *graph {
	g := &graph{handle: d.handle()}
	d.graphs[g.handle] = g
	return g
}

// drop ends a graph.
func (d *driver) drop(g *graph) {
	for _, b := range g.blocks {
		d.forget(b)
		if err := b.gpu.sim.AddressFree(b.gpu.in(b.base), b.bytes); err != nil {
			logf("cuGraphDestroy: %v", err)
		}
	}
	for _, body := range g.bodies {
		d.drop(body)
	}
	for _, array := range g.arrays {
		C.free(array)
	}
	delete(d.graphs, g.handle)
}

// allocNode is an allocation in a capture.
func (d *driver) allocNode(c *call, s *stream, bytes uint64) code {
	if s.capture.invalid {
		return captureInvalidated
	}
	page := max(s.gpu.info.Page, 1)
	n := (bytes + page - 1) / page * page
	addr, err := s.gpu.sim.AddressReserve(n, 0)
	if err != nil {
		return codeOf(err)
	}
	b := d.enter(&block{base: s.gpu.out(addr), bytes: n, kind: node, gpu: s.gpu, context: nil})
	s.capture.graph.blocks = append(s.capture.graph.blocks, b)
	return give(c, 0, b.base)
}

// captureInfo serves the forms of cuStreamGetCaptureInfo: status, identity, graph,
// dependencies (there are none to show), and how many, at the given argument.
func captureInfo(countAt int) handler {
	return onStream(0, func(d *driver, c *call, s *stream) code {
		status, id, graph := int32(0), uint64(0), uint64(0)
		if p := s.capture; p != nil {
			status, id, graph = 1, p.id, p.graph.handle
			if p.invalid {
				status = 2
			}
		}
		put(c, 2, id)
		if countAt > 0 {
			put(c, 3, graph)
			for i := 4; i < countAt; i++ {
				put(c, i, uint64(0))
			}
			put(c, countAt, uint64(0))
		}
		return give(c, 1, status)
	})
}

var captureCalls = map[string]handler{
	"cuStreamBeginCapture_v2": onStream(0, func(d *driver, c *call, s *stream) code {
		return d.begin(c, s, d.newGraph(), uint64(c.u32(1)))
	}),
	"cuStreamBeginCaptureToGraph": onStream(0, func(d *driver, c *call, s *stream) code {
		g, ok := d.graphs[c.u64(1)]
		if !ok {
			return invalidValue
		}
		return d.begin(c, s, g, uint64(c.u32(5)))
	}),
	"cuStreamEndCapture": onStream(0, func(d *driver, c *call, s *stream) code {
		p := s.capture
		switch {
		case p == nil:
			return illegalState
		case p.origin != s:
			return p.spoil(captureUnmatched)
		case p.mode == modeThread && p.thread != uint64(c.thread.number):
			return captureWrongThread
		}
		for one := range p.streams {
			one.capture = nil
		}
		for i, one := range d.captures {
			if one == p {
				d.captures = append(d.captures[:i], d.captures[i+1:]...)
				break
			}
		}
		for _, e := range d.events {
			if e.capture == p {
				e.capture = nil
			}
		}
		if p.invalid {
			put(c, 1, uint64(0))
			return captureInvalidated
		}
		return give(c, 1, p.graph.handle)
	}),
	"cuStreamIsCapturing": onStream(0, func(d *driver, c *call, s *stream) code {
		status := int32(0)
		if s.capture != nil {
			status = 1
			if s.capture.invalid {
				status = 2
			}
		}
		return give(c, 1, status)
	}),
	"cuStreamGetCaptureInfo":               captureInfo(0),
	"cuStreamGetCaptureInfo_v2":            captureInfo(5),
	"cuStreamGetCaptureInfo_v3":            captureInfo(6),
	"cuStreamUpdateCaptureDependencies":    onStream(0, func(d *driver, c *call, s *stream) code { return success }),
	"cuStreamUpdateCaptureDependencies_v2": onStream(0, func(d *driver, c *call, s *stream) code { return success }),
	"cuThreadExchangeStreamCaptureMode": func(d *driver, c *call) code {
		if c.words[0] == 0 || at[uint32](c, 0, 0) > modeRelaxed {
			return invalidValue
		}
		before := uint32(c.thread.captureMode)
		c.thread.captureMode = C.u64(at[uint32](c, 0, 0))
		return give(c, 0, before)
	},
	"cuGraphCreate": func(d *driver, c *call) code { return give(c, 0, d.newGraph().handle) },
	"cuGraphDestroy": func(d *driver, c *call) code {
		g, ok := d.graphs[c.u64(0)]
		if !ok {
			return success // a clone or a child: a handle alone
		}
		d.drop(g)
		return success
	},
}
