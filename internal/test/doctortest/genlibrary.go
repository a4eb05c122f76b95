// Generated messages of other libraries: RMM, CuPy, Numba, ONNX Runtime, Paddle,
// XGBoost, MXNet, Julia, TensorRT, NCCL, and PyTorch on CUDA's own pool.
package doctortest

import "fmt"

// rmmSize prints n as RMM does.
func rmmSize(n uint64) string {
	if n < gib {
		return fmt.Sprintf("%.6f MiB", float64(n)/mib)
	}
	return fmt.Sprintf("%.6f GiB", float64(n)/gib)
}

// paddleSize prints n as Paddle does: its GB are of 1024^3 bytes.
func paddleSize(n uint64) string {
	if n < gib {
		return fmt.Sprintf("%.6fMB", float64(n)/mib)
	}
	return fmt.Sprintf("%.6fGB", float64(n)/gib)
}

// alone draws a balance without other processes and without a limit.
func alone(d draw, id string, useLow, useHigh, wantLow, wantHigh, spare float64) balance {
	return d.until(id, func(b *balance) {
		b.inUse, b.want = d.percent(b.total, useLow, useHigh), d.percent(b.total, wantLow, wantHigh)
		b.reserved = b.inUse + d.percent(b.total, 0.1, spare)
	})
}

// banner is a line in which a program names the card and its size.
func banner(d draw, total uint64) string {
	return d.one("Using device 0: NVIDIA GPU, ", "[gpu 0] ", "CUDA device 0: ") + d.one("total memory ", "memory size ", "global memory ") + fmt.Sprintf("%.2f GiB\n", float64(total)/gib)
}

// cupy is CuPy's error; a limit of 0 is none.
func cupy(want, used, limit uint64) string {
	text := fmt.Sprintf("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating %s bytes (allocated so far: %s bytes", commas(want), commas(used))
	if limit > 0 {
		text += fmt.Sprintf(", limit set to: %s bytes", commas(limit))
	}
	return text + ").\n"
}

// paddle is Paddle's error; limited has the hint at its own limit.
func paddle(b balance, limited bool) string {
	hint := ""
	total := b.total
	if limited {
		hint = fmt.Sprintf("\n   Or set environment variable `FLAGS_gpu_memory_limit_mb` to a larger value. Currently `FLAGS_gpu_memory_limit_mb` is %d, so the maximum GPU memory usage is limited to %d MB.", b.limit/mib, b.limit/mib)
		total = b.limit
	}
	free := min(b.free(), b.growth())
	return fmt.Sprintf("ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate %s memory on GPU 0, %s memory has been allocated and available memory is only %s.\n\nPlease check whether there is any other process using GPU 0.\n1. If yes, please stop them, or start PaddlePaddle on another GPU.\n2. If no, please decrease the batch size of your model. %s\n",
		paddleSize(b.want), paddleSize(total-free), paddleSize(free), hint)
}

// julia is CUDA.jl's error with the state of its pool.
func julia(b balance) string {
	text := fmt.Sprintf("ERROR: LoadError: Out of GPU memory trying to allocate %.3f GiB\nEffective GPU memory usage: %.2f%% (%.3f GiB/%.3f GiB)\nMemory pool usage: %.3f GiB (%.3f GiB reserved)\n",
		float64(b.want)/gib, 100*float64(b.taken())/float64(b.total), float64(b.taken())/gib, float64(b.total)/gib, float64(b.inUse)/gib, float64(b.reserved)/gib)
	if b.limit > 0 {
		text += fmt.Sprintf("Memory limit: hard = %.3f GiB\n", float64(b.limit)/gib)
	}
	return text + "Stacktrace:\n  [1] throw_out_of_gpu_memory\n    @ CUDA/src/pool.jl:453\n"
}

// async is PyTorch's message on CUDA's own pool.
func async(d draw, b balance) string {
	limit := "17179869184.00 GiB"
	if b.limit > 0 {
		limit = torchSize(b.limit)
	}
	return fmt.Sprintf("%sAllocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : %s\nRequested               : %s\nDevice limit            : %s\nFree (according to CUDA): %s\nPyTorch limit (set by user-supplied memory fraction)\n                        : %s\n",
		d.one("torch.cuda.OutOfMemoryError: ", "torch.OutOfMemoryError: ", "!!! Exception during processing !!! "), torchSize(b.inUse), torchSize(b.want), torchSize(b.total), torchSize(b.free()), limit)
}

// limitedBalance draws a pool with a limit that is the only wall.
func limitedBalance(d draw) balance {
	return d.until(idLimit, func(b *balance) {
		b.limit, b.want = d.percent(b.total, 10, 50), d.percent(b.total, 3, 20)
		b.reserved = b.limit - d.percent(b.want, 5, 90)
		b.inUse = b.reserved - d.percent(b.want, 1, 5)
	})
}

func libraryClasses() []class {
	return []class{
		{"torch-async/too-big", func(d draw) Sample {
			b := alone(d, idTooBig, 50, 90, 8, 40, 1)
			return Sample{Log: traceback(d, async(d, b)), Causes: b.causes(), Why: "what is allocated and the request are more than the device"}
		}},
		{"torch-async/fraction", func(d draw) Sample {
			b := limitedBalance(d)
			return Sample{Log: traceback(d, async(d, b)), Causes: b.causes(), Why: "the fraction is reached, and CUDA has more free than was requested"}
		}},
		{"cupy/limit", func(d draw) Sample {
			b := limitedBalance(d)
			return Sample{Log: traceback(d, cupy(b.want, b.inUse, b.limit)), Causes: b.causes(), Why: "allocated and requested are over the limit that was set"}
		}},
		{"cupy/too-big", func(d draw) Sample {
			b := alone(d, idTooBig, 5, 60, 70, 300, 2)
			return Sample{Log: banner(d, b.total) + cupy(b.want, b.inUse, 0), Causes: b.causes(), Why: "allocated and requested are more than the card that the log names"}
		}},
		{"cupy/total-unknown", func(d draw) Sample {
			b := alone(d, idTooBig, 60, 90, 10, 40, 2)
			return Sample{Log: cupy(b.want, b.inUse, 0), Causes: []string{idTooBig, idOccupied, idFragment, idLeak}, Open: true, Why: "neither the card nor a limit is known"}
		}},
		{"rmm/maximum", func(d draw) Sample {
			limit := d.between(2*gib, 70*gib)
			want := d.percent(limit, 5, 60)
			text := fmt.Sprintf("MemoryError: std::bad_alloc: out_of_memory: RMM failure at:/opt/rapids/include/rmm/mr/device/pool_memory_resource.hpp:%d: Maximum pool size exceeded (failed to allocate %s): Not enough room to grow, current/max/try size = %s, %s, %s\n",
				180+d.IntN(90), rmmSize(want), rmmSize(limit-d.percent(want, 5, 80)), rmmSize(limit), rmmSize(want))
			return Sample{Log: traceback(d, text), Causes: []string{idLimit}, Why: "the pool cannot grow by the request below its maximum"}
		}},
		{"rmm/driver", func(d draw) Sample {
			return Sample{Log: traceback(d, "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /opt/rapids/include/rmm/mr/device/cuda_memory_resource.hpp:62: cudaErrorMemoryAllocation out of memory\n"), Open: true, Why: "the message has no number"}
		}},
		{"numba/bare", func(d draw) Sample {
			return Sample{Log: traceback(d, d.one("numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY\n", "numba.cuda.cudadrv.driver.CudaAPIError: [CUresult.CUDA_ERROR_OUT_OF_MEMORY] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY\n")), Open: true, Why: "the message has no number"}
		}},
		{"cuda/bare", func(d draw) Sample {
			text := d.one("terminate called after throwing an instance of 'thrust::system::system_error'\n  what():  cudaErrorMemoryAllocation: out of memory\n", "RuntimeError: CUDA error: out of memory\n", "RuntimeError: HIP error: out of memory\n", "hipErrorOutOfMemory: out of memory\n",
				"[12:04:51] src/storage/./pooled_storage_manager.h:161: cudaMalloc retry failed: out of memory\n", "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")\n")
			return Sample{Log: traceback(d, text), Open: true, Why: "the message has no number"}
		}},
		{"onnx/arena-limit", func(d draw) Sample {
			limit := d.between(gib, 40*gib)
			want := d.percent(limit, 5, 60)
			log := fmt.Sprintf("2026-04-02 11:20:31.4410 [I:onnxruntime:, bfc_arena.cc:29 BFCArena] Creating BFCArena for Cuda with following configs: initial_chunk_size_bytes: 1048576 max_dead_bytes_per_chunk: 134217728 initial_growth_chunk_size_bytes: 2097152 memory limit: %d arena_extend_strategy: 0\n", limit)
			log += fmt.Sprintf("onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running MatMul node. Status Message: /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*, bool, onnxruntime::WaitNotificationFn) Available memory of %d is smaller than requested bytes of %d\n", d.percent(want, 0, 90), want)
			return Sample{Log: log, Causes: []string{idLimit}, Why: "what the arena may still take under its limit is less than the request"}
		}},
		{"onnx/arena-unlimited", func(d draw) Sample {
			return Sample{Log: fmt.Sprintf("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running FusedConv node. Status Message: /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:368 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) Failed to allocate memory for requested buffer of size %d\n", d.between(gib, 20*gib)), Open: true, Why: "only the request is known"}
		}},
		{"paddle/limit", func(d draw) Sample {
			b := limitedBalance(d)
			return Sample{Log: traceback(d, paddle(b, true)), Causes: b.causes(), Why: "the flag's limit is the wall"}
		}},
		{"paddle/too-big", func(d draw) Sample {
			b := alone(d, idTooBig, 1, 60, 110, 400, 2)
			return Sample{Log: traceback(d, paddle(b, false)), Causes: b.causes(), Why: "the request is more than allocated and available together, which are the card"}
		}},
		{"paddle/open", func(d draw) Sample {
			b := alone(d, idTooBig, 60, 90, 12, 35, 2)
			return Sample{Log: traceback(d, paddle(b, false)), Causes: []string{idTooBig, idOccupied}, Open: true, Why: "what is allocated on the card is this program's or another's: the message counts all"}
		}},
		{"xgboost/too-big", func(d draw) Sample {
			b := alone(d, idTooBig, 1, 20, 110, 300, 1)
			free, want := fmt.Sprint(b.free()), fmt.Sprint(b.want)
			if d.chance(50) {
				free, want = fmt.Sprintf("%.4fGB", float64(b.free())/1e9), fmt.Sprintf("%.4fGB", float64(b.want)/1e9)
			}
			return Sample{Log: banner(d, b.total) + fmt.Sprintf("xgboost.core.XGBoostError: [11:17:11] /workspace/src/common/device_vector.cu:23: Memory allocation error on worker 0: std::bad_alloc: cudaErrorMemoryAllocation: out of memory\n- Free memory: %s\n- Requested memory: %s\n\nStack trace:\n  [bt] (0) libxgboost.so(+0x2a6e7c)\n", free, want), Causes: b.causes(), Why: "the request is more than the card that the log names"}
		}},
		{"xgboost/open", func(d draw) Sample {
			want := d.between(2*gib, 12*gib)
			return Sample{Log: fmt.Sprintf("xgboost.core.XGBoostError: [13:55:26] /workspace/src/c_api/../common/device_helpers.cuh:431: Memory allocation error on worker 0: std::bad_alloc: cudaErrorMemoryAllocation: out of memory\n- Free memory: %d\n- Requested memory: %d\n", d.percent(want, 10, 80), want), Causes: []string{idTooBig, idOccupied}, Open: true, Why: "free is less than requested; who holds the rest is unknown"}
		}},
		{"julia/others", func(d draw) Sample {
			b := d.until(idOccupied, func(b *balance) {
				b.others, b.inUse, b.want = d.percent(b.total, 45, 80), d.percent(b.total, 5, 25), d.percent(b.total, 4, 15)
				b.reserved = b.inUse + d.percent(b.want, 1, 30)
			})
			return Sample{Log: julia(b), Causes: []string{idOccupied, idOtherAllocator}, Asks: true, Why: "most of what is used lies outside of the pool"}
		}},
		{"julia/too-big", func(d draw) Sample {
			b := alone(d, idTooBig, 55, 90, 10, 60, 2)
			return Sample{Log: julia(b), Causes: b.causes(), Why: "the pool's use and the request are more than the card"}
		}},
		{"julia/fragmentation", func(d draw) Sample {
			b := alone(d, idFragment, 30, 50, 10, 30, 50)
			return Sample{Log: julia(b), Causes: b.causes(), Why: "what the pool reserved and does not use is more than the request"}
		}},
		{"julia/limit", func(d draw) Sample {
			b := limitedBalance(d)
			return Sample{Log: julia(b), Causes: b.causes(), Why: "the limit is reached, and the card has more"}
		}},
		{"tensorrt/too-big", func(d draw) Sample {
			c := d.bigCard()
			want := d.percent(c.total, 105, 250)
			return Sample{Log: banner(d, c.total) + fmt.Sprintf("[TensorRT-LLM][INFO] Loaded engine size: %d MiB\n[TensorRT-LLM][ERROR] [defaultAllocator.cpp::allocate::31] Error Code 1: Cuda Runtime (out of memory)\n[TensorRT-LLM][WARNING] Requested amount of GPU memory (%d bytes) could not be allocated. There may not be enough free memory for allocation to succeed.\n", want/mib, want), Causes: []string{idTooBig}, Why: "the engine is larger than the card that the log names"}
		}},
		{"nccl/buffers", func(d draw) Sample {
			n := []uint64{6291456, 8388608, 4194304, 33554432}[d.IntN(4)]
			head := fmt.Sprintf("node%d:%d:%d [%d] ", d.IntN(9), d.pid(), d.pid(), d.IntN(8))
			return Sample{Log: head + fmt.Sprintf("include/alloc.h:%d NCCL WARN Cuda failure 2 'out of memory'\n", 170+d.IntN(90)) + head + fmt.Sprintf("include/alloc.h:%d NCCL WARN Failed to CUDA calloc %s%d bytes\n", 185+d.IntN(90), d.one("", "async "), n), Causes: []string{idNCCL}, Why: "NCCL's own buffers were refused, which lie outside of every pool"}
		}},
		{"hami/quota", func(d draw) Sample {
			quota := d.between(gib, 40*gib)
			return Sample{Log: fmt.Sprintf("[%s ERROR (pid:%d thread=139872 allocator.c:%d)]: Device 0 OOM %d / %d\n", d.one("HAMI-core", "4pdvGPU"), d.pid(), 49+d.IntN(10), quota+d.percent(quota, 1, 60), quota), Causes: []string{idQuota}, Why: "what would be in use is over the quota"}
		}},
		{"hami/underflow", func(d draw) Sample {
			quota := d.between(gib, 40*gib)
			return Sample{Log: fmt.Sprintf("[HAMI-core ERROR (pid:%d thread=139872 allocator.c:53)]: Device 0 OOM %d / %d\n", d.pid(), -d.between(2*mib, gib), quota), Causes: []string{idLimiter}, Why: "a number just below 2^64 is a count that went below zero"}
		}},
		{"nvshare/quota", func(d draw) Sample {
			c := d.bigCard()
			free := d.percent(c.total, 80, 95)
			offered := free - d.percent(free, 10, 40)
			want := offered + d.percent(free-offered, 20, 80)
			return Sample{Log: fmt.Sprintf("[NVSHARE][DEBUG]: real_cuMemGetInfo returned free=%.2f MiB, total=%.2f MiB\n[NVSHARE][DEBUG]: nvshare's cuMemGetInfo returning free=%.2f MiB, total=%.2f MiB\n[NVSHARE][DEBUG]: cuMemAlloc requested %d bytes\nRuntimeError: CUDA error: out of memory\n", float64(free)/mib, float64(c.total)/mib, float64(offered)/mib, float64(c.total)/mib, want), Causes: []string{idQuota}, Why: "the driver has enough, and the limiter offers less than the request"}
		}},
	}
}
