// Cases of the other libraries: NCCL, graphs, CuPy, RMM, Ollama; limiters and leaks.
package doctortest

import (
	"fmt"
	"math"
)

const (
	idNCCL     = "nccl_headroom"
	idEstimate = "estimator_underestimates"
	idQuota    = "external_quota"
	idLimiter  = "limiter_bug"
	idLeak     = "leak"
)

func otherCases() []Case {
	var cases []Case
	for i, text := range []string{
		"Last NCCL warning(error) log entry (may be unrelated) 'Cuda failure 2 'out of memory''",
		"NCCL WARN Cuda failure 'out of memory'",
		"NCCL WARN Failed to CUDA calloc 8388608 bytes",
		"NCCL WARN Failed to CUDA calloc async 6291456 bytes",
	} {
		head := []string{"XlaRuntimeError: INTERNAL: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled cuda error. ",
			"node4:31877:32011 [0] transport/p2p.cc:211 ", "node4:31877:32011 [1] include/alloc.h:99 ", "node4:31877:32011 [3] include/alloc.h:228 "}[i]
		cases = append(cases, cause(idNCCL, fmt.Sprint("nccl-", i), head+text+"\n", "NCCL's own buffers were refused, which come from outside every pool", text))
	}
	for i, text := range []string{
		"Failed to instantiate CUDA graph: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
		"Underlying backend ran out of memory trying to instantiate graph with 412 nodes and 0 conditionals (total of 37 alive graphs in the process).",
	} {
		cases = append(cases, cause(idGraph, fmt.Sprint("xla-", i), "jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: "+text+"\n", "the driver keeps an instantiated graph outside the pool", text))
	}
	for i, limit := range []uint64{2 * gib, 5 * gib, 11 * gib} {
		key := fmt.Sprintf("%dg", limit/gib)
		far, want := limit/2, limit*3/4
		text := fmt.Sprintf("Out of memory allocating %s bytes (allocated so far: %s bytes, limit set to: %s bytes).", commas(want), commas(far), commas(limit))
		cases = append(cases, cause(idLimit, "cupy-"+key, "cupy.cuda.memory.OutOfMemoryError: "+text+"\n",
			fmt.Sprintf("%d + %d is over the limit of %d", far, want, limit), text))
		simulated := fmt.Sprintf("Simulating GPU with memory size of %d bytes.", 2*limit)
		text = "Maximum pool size exceeded"
		cases = append(cases, cause(idLimit, "rmm-"+key, simulated+"\nterminate called after throwing an instance of 'rmm::bad_alloc'\n  what():  std::bad_alloc: RMM failure at:"+
			[]string{"arena.hpp:389", "pool_memory_resource.hpp:254", "pool_memory_resource.hpp:310"}[i]+": "+text+"\n", "the pool's own maximum is the wall", text))
	}
	for i, c := range []card{rtx2070, gtx1080, rtx4090} {
		want := part(c.total, 150)
		found := fmt.Sprintf("total=\"%.1f GiB\" available=\"%.1f GiB\"", float64(c.total)/gib, float64(part(c.total, 95))/gib)
		refusal := fmt.Sprintf("allocating %.2f MiB on device 0: cudaMalloc failed: out of memory", float64(want)/mib)
		tail := "llama_model_load: error loading model: unable to allocate CUDA0 buffer\n"
		cases = append(cases, cause(idTooBig, "ollama-"+c.key, "msg=\"inference compute\" library=cuda name=\""+c.name+"\" "+found+"\nggml_backend_cuda_buffer_type_alloc_buffer: "+refusal+"\n"+tail,
			fmt.Sprintf("one buffer of %s is larger than the card's %s", xla(want), xla(c.total)), found, refusal))
		text := fmt.Sprintf("out of memory to allocate %d bytes (total %d bytes)", want, part(c.total, 5))
		old := cause(idTooBig, "cupy-"+c.key, "cupy.cuda.memory.OutOfMemoryError: "+text+"\n",
			fmt.Sprintf("one array of %s is larger than the card's %s", xla(want), xla(c.total)), text)
		cases = append(cases, withState(old, state{Devices: []stateDevice{{Name: c.name, Total: c.total}}}, FactTotal, idOccupied)...)
		need, free := part(c.total, 84), part(c.total, 93)
		estimate := fmt.Sprintf("memory.available=\"[%.1f GiB]\" memory.required.full=\"%.1f GiB\" memory.required.allocations=\"[%.1f GiB]\"", float64(free)/gib, float64(need)/gib, float64(need)/gib)
		refusal = fmt.Sprintf("allocating %.2f MiB on device 0: cudaMalloc failed: out of memory", float64(part(c.total, 13+float64(i)))/mib)
		cases = append(cases, cause(idEstimate, "ollama-"+c.key, "msg=\"offload to cuda\" layers.model=33 layers.offload=33 "+estimate+"\nggml_backend_cuda_buffer_type_alloc_buffer: "+refusal+"\n"+tail,
			fmt.Sprintf("%s was thought enough with %s free, and it was not", xla(need), xla(free)), estimate, refusal))
	}
	return cases
}

// limiterCases are messages of programs that stand between a process and the driver.
func limiterCases() []Case {
	var cases []Case
	for i, c := range []card{gtx1080, rtx4090, h100} {
		tag := []string{"4pdvGPU ERROR (pid:31877 thread=139872 allocator.c:49)", "HAMI-core ERROR (pid:31877 thread=139872 allocator.c:53)", "HAMI-core ERROR (pid:1 thread=139872 allocator.c:58)"}[i]
		quota := part(c.total, 50)
		text := fmt.Sprintf("Device 0 OOM %d / %d", quota+part(quota, 6), quota)
		cases = append(cases, cause(idQuota, "hami-"+c.key, fmt.Sprintf("[%s]: %s\n", tag, text),
			fmt.Sprintf("what would be in use is %s over the quota of %s", xla(part(quota, 6)), xla(quota)), text))
		free, offered := part(c.total, 90), part(c.total, 84)
		requested := fmt.Sprintf("cuMemAlloc requested %d bytes", part(c.total, 87))
		returned := fmt.Sprintf("nvshare's cuMemGetInfo returning free=%.2f MiB, total=%.2f MiB", float64(offered)/mib, float64(c.total)/mib)
		cases = append(cases, cause(idQuota, "nvshare-"+c.key,
			fmt.Sprintf("[NVSHARE][DEBUG]: real_cuMemGetInfo returned free=%.2f MiB, total=%.2f MiB\n[NVSHARE][DEBUG]: %s\n[NVSHARE][DEBUG]: %s\nRuntimeError: CUDA error: out of memory\n",
				float64(free)/mib, float64(c.total)/mib, returned, requested),
			fmt.Sprintf("%s was asked for: less than the driver's %s, more than the %s that the limiter offers", xla(part(c.total, 87)), xla(free), xla(offered)), returned, requested))
		below := math.MaxUint64 - part(quota, 1)
		text = fmt.Sprintf("Device 0 OOM %d / %d", uint64(below), quota)
		cases = append(cases, cause(idLimiter, "hami-"+c.key, fmt.Sprintf("[%s]: %s\n", tag, text),
			fmt.Sprintf("a number %s below 2^64 is a count that went below zero, not a size", xla(part(quota, 1))), text))
	}
	return cases
}

// leakCases are readings that rise by the same amount until the failure.
func leakCases() []Case {
	var cases []Case
	for i, c := range []card{rtx2070, t4, rtx4090} {
		step := part(c.total, 14)
		var log string
		var quotes []string
		for k := range uint64(5) {
			n := (k + 1) * step
			reading := fmt.Sprintf("'bytes_in_use': %d", n)
			if i == 2 {
				reading = fmt.Sprintf("memory_allocated: %d", n)
			}
			log += fmt.Sprintf("epoch %d {%s}\n", k, reading)
			quotes = append(quotes, reading)
		}
		fail := fmt.Sprintf("RESOURCE_EXHAUSTED: Out of memory while trying to allocate %d bytes.", step)
		log += "jaxlib.xla_extension.XlaRuntimeError: " + fail + "\n"
		if i == 2 {
			m := torchMessage{want: step, total: c.total, allocated: 5 * step, reserved: 5*step + 60*mib, process: c.total - 200*mib}
			m.process = m.reserved + torchContext
			m.want, m.free = c.total-m.process+512*mib, c.total-m.process
			fail = "Tried to allocate " + torchSize(m.want)
			log = log[:len(log)-len(lastLine(log))] + m.modern(spellings[1][0], spellings[1][1], spellings[1][2])
		}
		cases = append(cases, cause(idLeak, "readings-"+c.key, log,
			fmt.Sprintf("each epoch holds %s more than the one before, and nothing is released", xla(step)), append(quotes, fail)...))
	}
	return cases
}

// lastLine gives the last line of a log with its end.
func lastLine(log string) string {
	all := lines(log)
	return all[len(all)-1] + "\n"
}
