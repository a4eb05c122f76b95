//go:build libgpumem

package main

// #include "front.h"
// #include <stdlib.h>
import "C"

import (
	"slices"
	"strings"
	"unsafe"
)

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
	takes  takes            // of its work
}

// spoil ends a capture's chance to succeed, and refuses the call that does.
func (p *capture) spoil(e code) {
	p.invalid = true
	panic(e)
}

// keepsOut refuses a call about a stream or event in the capture, if there is one.
func (p *capture) keepsOut() {
	if p != nil {
		p.spoil(captureUnsupported)
	}
}

// captureForbids are the calls that NVIDIA's guide names potentially unsafe in a
// capture: they wait, or the driver does something in the legacy stream. Of those
// for pages it says nothing; the stricter reading stands here.
var captureForbids = strings.Fields(`
	cuMemAlloc_v2 cuMemAllocPitch_v2 cuMemAllocManaged cuMemAllocHost_v2 cuMemHostAlloc cuMemFree_v2 cuMemFreeHost
	cuMemHostRegister_v2 cuMemHostUnregister
	cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess cuMemAddressReserve cuMemAddressFree
	cuMemcpy cuMemcpyHtoD_v2 cuMemcpyDtoH_v2 cuMemcpyDtoD_v2 cuMemsetD8_v2 cuMemsetD16_v2 cuMemsetD32_v2
	cuCtxSynchronize cuEventQuery cuMemPoolTrimTo`)

// forbidden reports whether a capture keeps this thread from unsafe calls, and
// spoils the captures that do.
func (c *call) forbidden() (is bool) {
	if c.thread.captureMode == modeRelaxed {
		return false
	}
	for _, p := range c.captures {
		own := p.thread == uint64(c.thread.number)
		if p.mode == modeRelaxed || !own && (p.mode != modeGlobal || c.thread.captureMode != modeGlobal) {
			continue
		}
		p.invalid, is = true, true
	}
	return is
}

// join makes a stream part of the capture in which the event was recorded.
func (d *driver) join(s *stream, e *event) {
	switch {
	case e.capture == nil:
		s.capture.spoil(captureUnsupported) // the event is from outside
	case s.capture != nil && s.capture != e.capture:
		s.capture.invalid = true
		e.capture.spoil(captureMerge)
	case s == s.gpu.legacy:
		e.capture.spoil(captureImplicit)
	}
	s.capture = e.capture
	s.capture.streams[s] = true
}

// begin starts a capture in a stream, into g.
func (c *call) begin(s *stream, g *graph, mode uint64) {
	check(s != s.gpu.legacy, captureUnsupported)
	s.capture.keepsOut()
	check(mode <= modeRelaxed, invalidValue)
	p := &capture{id: c.id(), mode: mode, thread: uint64(c.thread.number), origin: s, streams: map[*stream]bool{s: true}, graph: g}
	s.capture = p
	c.captures = append(c.captures, p)
}

func (d *driver) newGraph() *graph {
	g := &graph{handle: d.handle()}
	d.graphs[g.handle] = g
	return g
}

// graphPart is what a block that a graph allocates has beside others. Its addresses are there
// as long as the graph, an executable of it, or the memory is: a launch begins the life of that,
// and a free outside of the graph, or the graph's own, ends it.
type graphPart struct {
	holders int  // the graph and its executables
	live    bool // has memory
	freed   bool // by the graph that allocates it
}

// let ends a holder's part in the blocks of a graph.
func (d *driver) let(blocks []*block) {
	for _, b := range blocks {
		b.graph.holders--
		d.leave(b)
	}
}

// end ends the life of a graph's memory.
func (d *driver) end(b *block) {
	b.graph.live = false
	d.contents.Drop(b.base, b.bytes)
	d.leave(b)
}

// leave frees the addresses of a graph's block that nothing needs any more.
func (d *driver) leave(b *block) {
	if b.graph.holders > 0 || b.graph.live || d.blocks.starting(b.base) != b { // the device may have been closed
		return
	}
	d.forget(b)
	if err := b.gpu.sim.AddressFree(b.gpu.in(b.base), b.bytes); err != nil {
		logf("memory of a graph: %v", err)
	}
}

// memory is what a graph and its bodies allocate.
func (g *graph) memory() []*block {
	all := slices.Clone(g.blocks)
	for _, body := range g.bodies {
		all = append(all, body.memory()...)
	}
	return all
}

// work is the time of a graph's work, and of its bodies', of which each is taken to run once.
func (g *graph) work() takes {
	t := g.takes
	for _, body := range g.bodies {
		t.add(body.work())
	}
	return t
}

// drop ends a graph.
func (d *driver) drop(g *graph) {
	d.let(g.blocks)
	for _, body := range g.bodies {
		d.drop(body)
	}
	for _, array := range g.arrays {
		C.free(array)
	}
	delete(d.graphs, g.handle)
}

// allocNode is an allocation in a capture.
func (c *call) allocNode(s *stream, bytes uint64) {
	check(!s.capture.invalid, captureInvalidated)
	page := max(s.gpu.info.Page, 1)
	n := (bytes + page - 1) / page * page
	addr, err := s.gpu.sim.AddressReserve(n, 0)
	must(err)
	b := c.enter(&block{base: s.gpu.out(addr), bytes: n, kind: node, gpu: s.gpu, graph: graphPart{holders: 1}})
	s.capture.graph.blocks = append(s.capture.graph.blocks, b)
	give(c, 0, b.base)
}

// status is CUstreamCaptureStatus.
func (p *capture) status() int32 {
	switch {
	case p == nil:
		return 0
	case p.invalid:
		return 2
	}
	return 1
}

// instantiate makes an executable of the graph that argument 1 names. The driver takes memory
// for its allocations when it is first launched, and keeps it for all graphs until it is trimmed.
func instantiate(c *call) {
	h := c.handle()
	if g := c.graphs[c.u64(1)]; g != nil {
		c.execs[h] = g.memory()
		if c.line != nil {
			c.execTakes[h] = g.work()
		}
		for _, b := range c.execs[h] {
			b.graph.holders++
		}
	}
	give(c, 0, h)
}

func dropExecutable(c *call) {
	c.let(c.execs[c.u64(0)])
	delete(c.execs, c.u64(0))
	delete(c.execTakes, c.u64(0))
}

// launchGraph launches the executable that argument 0 names in a stream, or takes the memory for
// it alone. Graphs run one after the other, so they have their memory in common.
func launchGraph(c *call) {
	s := c.stream(1)
	g, need := s.gpu, uint64(0)
	for _, b := range c.execs[c.u64(0)] {
		need += b.bytes
	}
	if need > g.graphBytes && s.capture == nil {
		r, err := g.sim.Alloc(need - g.graphBytes)
		must(err)
		g.graphGrants = append(g.graphGrants, r)
		g.graphBytes += r.Bytes
	}
	c.launched(1)
	if strings.HasPrefix(c.name, "cuGraphUpload") {
		return
	}
	if s.capture != nil {
		s.capture.graph.takes.add(c.execTakes[c.u64(0)])
		return
	}
	if c.line != nil {
		c.submitWork(s, c.execTakes[c.u64(0)], nil)
	}
	for _, b := range c.execs[c.u64(0)] {
		b.graph.live = !b.graph.freed
	}
}

// trimGraphs releases what graphs of a device have reserved, unless some of it is in use.
func (d *driver) trimGraphs(g *gpu) {
	d.drain(g)
	if slices.ContainsFunc(d.blocks.all, func(b *block) bool { return b.gpu == g && b.graph.live }) {
		return
	}
	for _, r := range g.graphGrants {
		must(g.sim.Free(r.Addr))
	}
	g.graphGrants, g.graphBytes, g.graphMost = nil, 0, max(g.graphMost, g.graphBytes)
}

// graphMemory gives CUgraphMem_attribute: used now and at most, reserved now and at most.
func graphMemory(c *call) {
	g := c.device(0)
	most := max(g.graphMost, g.graphBytes)
	i := c.int(1)
	check(0 <= i && i <= 3, invalidValue)
	give(c, 2, [...]uint64{0, most, g.graphBytes, most}[i])
}

// captureInfo serves the forms of cuStreamGetCaptureInfo: status, identity, graph,
// dependencies (there are none to show), and how many, at the given argument.
func captureInfo(countAt int) handler {
	return func(c *call) {
		p := c.stream(0).capture
		id, graph := uint64(0), uint64(0)
		if p != nil {
			id, graph = p.id, p.graph.handle
		}
		put(c, 2, id)
		if countAt > 0 {
			put(c, 3, graph)
			for i := 4; i <= countAt; i++ {
				put(c, i, uint64(0))
			}
		}
		give(c, 1, p.status())
	}
}

func updateDependencies(c *call) { c.stream(0) }

var captureCalls = map[string]handler{
	"cuStreamBeginCapture_v2": func(c *call) { c.begin(c.stream(0), c.newGraph(), uint64(c.u32(1))) },
	"cuStreamBeginCaptureToGraph": func(c *call) {
		s, g := c.stream(0), c.graphs[c.u64(1)]
		check(g != nil, invalidValue)
		c.begin(s, g, uint64(c.u32(5)))
	},
	"cuStreamEndCapture": func(c *call) {
		s := c.stream(0)
		p := s.capture
		switch {
		case p == nil:
			panic(illegalState)
		case p.origin != s:
			p.spoil(captureUnmatched)
		case p.mode == modeThread && p.thread != uint64(c.thread.number):
			panic(captureWrongThread)
		}
		for one := range p.streams {
			one.capture = nil
		}
		c.captures = slices.DeleteFunc(c.captures, func(one *capture) bool { return one == p })
		for _, e := range c.events {
			if e.capture == p {
				e.capture = nil
			}
		}
		if p.invalid {
			put(c, 1, uint64(0))
			panic(captureInvalidated)
		}
		give(c, 1, p.graph.handle)
	},
	"cuStreamIsCapturing":                  func(c *call) { give(c, 1, c.stream(0).capture.status()) },
	"cuStreamGetCaptureInfo":               captureInfo(0),
	"cuStreamGetCaptureInfo_v2":            captureInfo(5),
	"cuStreamGetCaptureInfo_v3":            captureInfo(6),
	"cuStreamUpdateCaptureDependencies":    updateDependencies,
	"cuStreamUpdateCaptureDependencies_v2": updateDependencies,
	"cuThreadExchangeStreamCaptureMode": func(c *call) {
		c.need(0)
		mode := at[uint32](c, 0, 0)
		check(mode <= modeRelaxed, invalidValue)
		before := uint32(c.thread.captureMode)
		c.thread.captureMode = C.u64(mode)
		give(c, 0, before)
	},
	"cuGraphCreate": func(c *call) { give(c, 0, c.newGraph().handle) },
	"cuGraphDestroy": func(c *call) {
		if g, ok := c.graphs[c.u64(0)]; ok { // else a clone or a child: a handle alone
			c.drop(g)
		}
	},
}
