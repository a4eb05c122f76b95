package doctor

// Rules for what takes memory outside of every pool, but for the libraries:
// NCCL, graphs, compiled code.

import (
	"strings"
)

var headroomRules = []rule{
	{
		name: "NCCL without room", cause: NCCLHeadroom,
		seen:   "NCCL's failure with out of memory, or of its own allocation",
		source: "openxla/xla#7201; jax-ml/jax#4950; NVIDIA/JAX-Toolbox#455",
		test: func(e *evidence) *finding {
			f := e.pick(NCCL, ncclMemory)
			if f == nil {
				return nil
			}
			reading := "NCCL's buffers come from outside every pool, and the driver had no more"
			if f.Tells(HasWant) {
				reading = "NCCL asked the driver for " + human(f.Want) + ", outside every pool, and got nothing"
			}
			return shown(cureNCCL(e), quote(f, reading))
		},
	},
	{
		name: "NCCL without a reason", cause: NCCLHeadroom,
		seen:   "\"unhandled cuda error\" and nothing more",
		source: "NCCL's troubleshooting",
		test: func(e *evidence) *finding {
			f := e.pick(NCCL, nil)
			if f == nil || e.pick(NCCL, ncclMemory) != nil || strings.Contains(f.Text, "'"+f.Value+"'") && f.Value != "" {
				return nil
			}
			return fits(cureNCCL(e), "NCCL_DEBUG=INFO python PROGRAM    # NCCL then says which call failed, and why", need("NCCL's own warning: run with NCCL_DEBUG=INFO"), quote(f, "NCCL had a CUDA error; which one is not told"))
		},
	},
	{
		name: "graphs without room", cause: GraphHeadroom,
		seen:   "a CUDA graph that could not be made for lack of memory",
		source: "XLA's command buffers; CUDA driver API, cuGraphInstantiate",
		test: func(e *evidence) *finding {
			f := e.pick(Graph, func(f *Fact) bool { return f.Code == "" && f.Framework == "xla" || isOOM(f.Code) || isOOM(f.Text) })
			if f == nil {
				return nil
			}
			reading := "the driver keeps a graph outside of the pool, and had no more for it"
			if f.Value != "" {
				reading += "; " + f.Value + " graphs are alive"
			}
			return shown(cureGraphs(e), quote(f, reading))
		},
	},
	{
		name: "compiled code without room", cause: ModuleLoad,
		seen:   "a module that could not be loaded, with the driver's status out of memory",
		not:    "another status, whatever the text guesses (\"compiled for a different GPU?\")",
		source: "marin-community/marin#7421; google-research/perceiver-ar#14",
		test: func(e *evidence) *finding {
			f := e.pick(CUBIN, func(f *Fact) bool { return isOOM(f.Code) })
			if f == nil {
				return nil
			}
			reading := "the driver's status is out of memory: it loads code outside of the pool"
			if strings.Contains(f.Text, "different GPU") {
				reading += "; the text's guess at another GPU is wrong here"
			}
			return shown(cureModule(e), quote(f, reading))
		},
	},
	{
		name: "compiled code that was not loaded", cause: ModuleLoad,
		seen:   "the same without the driver's status",
		source: "marin-community/marin#7421",
		test: func(e *evidence) *finding {
			f := e.pick(CUBIN, func(f *Fact) bool { return !strings.HasPrefix(f.Code, "CUDA_") })
			if f == nil {
				return nil
			}
			return fits(cureModule(e), decidePrealloc, nil, quote(f, "the driver's status is cut off: out of memory, or code for another GPU"))
		},
	},
	{
		name: "compiled code that does not fit", cause: LibraryMismatched,
		seen:   "the same: the code may be for another GPU",
		source: "CUDA driver API, CUresult 209",
		test: func(e *evidence) *finding {
			f := e.pick(CUBIN, func(f *Fact) bool { return !strings.HasPrefix(f.Code, "CUDA_") })
			if f == nil {
				return nil
			}
			return fits(cureLibrary(e), decidePrealloc, nil, quote(f, "the code may be for another GPU, as the text guesses"))
		},
	},
}
