//go:build libgpumem

package main

// #include "front.h"
// #include <stdlib.h>
import "C"

import (
	"strings"
	"unsafe"
)

// Modules, kernels, graphs and what else a compiler's runtime asks for: handles
// with nothing behind, and answers that let it go on. Nothing runs.

// succeed does nothing.
func succeed(*call) {}

// newHandle gives a new handle at argument i.
func newHandle(i int) handler {
	return func(c *call) { give(c, i, c.handle()) }
}

// answer gives a number at argument i.
func answer[T any](i int, v T) handler {
	return func(c *call) { give(c, i, v) }
}

// functionAttribute gives a property of a kernel, by CUfunction_attribute: threads
// of a block, registers, versions of its code. The rest is 0.
func functionAttribute(c *call) {
	values := map[int]int32{0: 1024, 4: 32, 5: 80, 6: 80, 8: 49152}
	give(c, 0, values[c.int(1)])
}

// global allocates 64 KiB for a variable of a module, since a real one takes memory, too.
func global(c *call) {
	const bytes = 1 << 16
	put(c, 0, c.allocate(c.current(), bytes))
	put(c, 1, uint64(bytes))
}

// launched is work in the stream that argument i is. Which memory it uses is not known.
func (c *call) launched(i int) *stream {
	c.launches++
	s := c.stream(i)
	if s.capture == nil {
		c.work(s, func() error { return s.gpu.sim.Work(s.sim, 0, nil, nil) })
	}
	return s
}

func launched(i int) handler { return func(c *call) { c.launched(i) } }

// launch launches the kernel that argument 0 is in the stream that argument i is. Its arguments are behind the next.
func launch(i int) handler {
	return func(c *call) { c.launch(i, i+1) }
}

func (c *call) launch(i, arguments int) {
	s := c.launched(i)
	switch {
	case c.line == nil:
	case s.capture != nil:
		s.capture.graph.takes.add(c.kernel())
	default:
		c.submitKernel(s, c.u64(0), arguments)
	}
}

// kernelNode adds a kernel to the graph that argument 1 is.
func kernelNode(c *call) {
	if g := c.graphs[c.u64(1)]; g != nil && c.line != nil {
		g.takes.add(c.kernel())
	}
	give(c, 0, c.handle())
}

// childNode adds the graph that argument 4 is, as it is now.
func childNode(c *call) {
	if g, child := c.graphs[c.u64(1)], c.graphs[c.u64(4)]; g != nil && child != nil {
		g.takes.add(child.takes)
	}
	give(c, 0, c.handle())
}

var kernelName = C.CString("kernel")

// addNode adds a node whose CUgraphNodeParams are argument i. A conditional node has graphs
// for its bodies, in an array of the driver's: handle, type, number and array stand behind
// the 16 bytes that all nodes begin with.
func addNode(i int) handler {
	const kernel, conditional, mostBodies = 0, 13, 1 << 16
	return func(c *call) {
		g := c.graphs[c.u64(1)]
		if c.line != nil && g != nil && c.words[i] != 0 && at[uint32](c, i, 0) == kernel {
			g.takes.add(c.kernel())
		}
		if c.words[i] != 0 && at[uint32](c, i, 0) == conditional && g != nil {
			n := at[uint32](c, i, 28)
			check(0 < n && n <= mostBodies, invalidValue)
			array := C.malloc(C.size_t(n) * 8)
			g.arrays = append(g.arrays, array)
			handles := unsafe.Slice((*uint64)(array), n)
			for k := range handles {
				body := c.newGraph()
				g.bodies = append(g.bodies, body)
				handles[k] = body.handle
			}
			*(*unsafe.Pointer)(unsafe.Add(c.pointers[i], 32)) = array
		}
		give(c, 0, c.handle())
	}
}

// two gives two numbers, at arguments 0 and 1.
func two(a, b int32) handler {
	return func(c *call) {
		put(c, 0, a)
		give(c, 1, b)
	}
}

// nameOf gives the name of every kernel.
func nameOf(c *call) { give(c, 0, unsafe.Pointer(kernelName)) }

// alike serves each of the names with h.
func alike(h handler, names string) map[string]handler {
	m := make(map[string]handler)
	for _, name := range strings.Fields(names) {
		m[name] = h
	}
	return m
}

var kernelCalls = tables(
	alike(succeed, `
		cuModuleUnload cuLibraryUnload cuFuncLoad cuProfilerStart cuProfilerStop
		cuKernelSetAttribute cuKernelSetCacheConfig cuFuncSetAttribute cuFuncSetCacheConfig cuFuncSetSharedMemConfig
		cuGraphDebugDotPrint cuGraphAddDependencies cuGraphAddDependencies_v2
		cuGraphExecKernelNodeSetParams cuGraphExecKernelNodeSetParams_v2 cuGraphExecMemcpyNodeSetParams
		cuGraphExecMemsetNodeSetParams cuGraphExecChildGraphNodeSetParams cuGraphExecNodeSetParams
		cuGraphNodeSetEnabled cuGraphNodeSetParams cuGraphKernelNodeSetParams cuGraphKernelNodeSetParams_v2
		cuGraphKernelNodeSetAttribute cuGraphKernelNodeCopyAttributes cuDeviceSetGraphMemAttribute
		cuStreamSetAttribute cuStreamCopyAttributes cuTensorMapReplaceAddress
		cuMemAdvise cuMemAdvise_v2 cuMemPrefetchAsync cuMemPrefetchAsync_v2
		cuMemcpy3D_v2 cuMemcpy3DAsync_v2 cuMemcpy3DPeer cuMemcpy3DPeerAsync`),
	alike(newHandle(0), `
		cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary
		cuLibraryLoadData cuLibraryLoadFromFile cuLibraryGetModule cuFuncGetModule
		cuGraphClone cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphAddEmptyNode cuGraphAddHostNode
		cuGraphAddEventRecordNode cuGraphAddEventWaitNode cuGraphConditionalHandleCreate`),
	alike(getFunction, `cuModuleGetFunction cuLibraryGetKernel`),
	alike(kernelNode, `cuGraphAddKernelNode cuGraphAddKernelNode_v2`),
	alike(instantiate, `cuGraphInstantiate_v2 cuGraphInstantiateWithFlags cuGraphInstantiateWithParams`),
	alike(launchGraph, `cuGraphLaunch cuGraphUpload`),
	alike(launch(8), `cuLaunchKernel cuLaunchCooperativeKernel`),
	alike(global, `cuModuleGetGlobal_v2 cuLibraryGetGlobal`),
	alike(functionAttribute, `cuKernelGetAttribute cuFuncGetAttribute`),
	alike(nameOf, `cuKernelGetName cuFuncGetName`),
	alike(answer(0, int32(2)), `
		cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
		cuOccupancyMaxActiveClusters`),
	alike(two(108, 256), `cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags`),
	map[string]handler{
		"cuStreamAttachMemAsync":   launched(0),
		"cuStreamWriteValue32_v2":  valueCall(false, 4),
		"cuStreamWriteValue64_v2":  valueCall(false, 8),
		"cuStreamWaitValue32_v2":   valueCall(true, 4),
		"cuStreamWaitValue64_v2":   valueCall(true, 8),
		"cuStreamBatchMemOp_v2":    valueBatch,
		"cuGraphAddChildGraphNode": childNode,
		"cuGraphAddNode":           addNode(4),
		"cuGraphAddNode_v2":        addNode(5),
		"cuModuleGetLoadingMode":   answer(0, int32(2)), // lazy
		"cuFuncIsLoaded":           answer(0, int32(1)),
		"cuKernelGetFunction":      func(c *call) { give(c, 0, c.u64(1)) },
		// CUlaunchConfig has its stream after seven ints.
		"cuLaunchKernelEx": func(c *call) {
			c.need(0)
			c.words[8], c.words[0] = at[uint64](c, 0, 32), c.u64(1)
			c.launch(8, 2)
		},
		"cuOccupancyMaxPotentialClusterSize":      answer(0, int32(8)),
		"cuOccupancyAvailableDynamicSMemPerBlock": answer(0, uint64(48<<10)),
		"cuGraphExecUpdate_v2":                    answer(2, [3]uint64{}), // CUgraphExecUpdateResultInfo: it succeeded
		"cuGraphExecUpdate":                       answer(3, int32(0)),
		"cuGraphGetNodes":                         answer(2, uint64(0)),
		"cuGraphGetRootNodes":                     answer(2, uint64(0)),
		"cuGraphGetEdges":                         answer(3, uint64(0)),
		"cuGraphNodeGetType":                      answer(1, int32(0)),
		"cuGraphChildGraphNodeGetGraph":           newHandle(1),
		"cuDeviceGetGraphMemAttribute":            graphMemory,
		"cuDeviceGraphMemTrim":                    func(c *call) { c.trimGraphs(c.device(0)) },
		"cuGraphExecDestroy":                      dropExecutable,
		"cuTensorMapEncodeTiled":                  answer(0, [128]byte{}),
	},
)
