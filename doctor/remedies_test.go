package doctor

import (
	"strings"
	"testing"
)

// TestAdviceIsReadByTheRelease: what is advised is what the program's release reads, and
// not what it has already.
func TestAdviceIsReadByTheRelease(t *testing.T) {
	const gaps = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.90 GiB is free. Including non-PyTorch memory, this process has 37.48 GiB memory in use. Of the allocated memory 25.10 GiB is allocated by PyTorch, and 11.80 GiB is reserved by PyTorch but unallocated.\n"
	const capped = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 1 has a total capacity of 79.10 GiB of which 60.30 GiB is free. Including non-PyTorch memory, this process has 18.79 GiB memory in use. 19.77 GiB allowed; Of the allocated memory 17.90 GiB is allocated by PyTorch, and 210.50 MiB is reserved by PyTorch but unallocated.\n"
	const graphs = "Initializing a V1 LLM engine (v0.13.0) with config: model='m'\nCapturing CUDA graphs:  63%|\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 0 has a total capacity of 23.57 GiB of which 52.19 MiB is free. Including non-PyTorch memory, this process has 23.51 GiB memory in use. Of the allocated memory 22.50 GiB is allocated by PyTorch, and 80.12 MiB is reserved by PyTorch but unallocated.\n"
	for _, c := range []struct{ name, log, has, lacks string }{
		{"set already", "+ export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" + gaps, "set already", "PYTORCH_CUDA_ALLOC_CONF="},
		{"set to the opposite", "+ export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False\ntorch==2.3.0\n" + gaps, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", ":False"},
		{"kept beside", "+ export PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8\ntorch==2.3.0\n" + gaps, "PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8,expandable_segments:True", "?"},
		{"a name that 2.9 does not read", "torch==2.9.1\n+ export PYTORCH_ALLOC_CONF=expandable_segments:True\n" + gaps, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "PYTORCH_ALLOC_CONF="},
		{"a key that 2.4 refuses", "torch==2.4.1\n" + capped, "set_per_process_memory_fraction(F)", " per_process_memory_fraction:"},
		{"a key that 2.10 has", "torch==2.10.0\n" + capped, "per_process_memory_fraction:F", "?"},
		{"a name that vLLM no longer has", graphs, "cudagraph_capture_sizes", "cuda_graph_sizes"},
		{"an engine's own name", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n", "a larger --mem-fraction-static", "gpu_memory_utilization"},
		{"not the opposite", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n", "raise --mem-fraction-static", "less than now"},
		{"a product, not a handle", "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m, n, k)`\n", "do its work", "make its handle"},
		{"Paddle's limit", "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 4.5GB memory on GPU 0, 18.1GB memory has been allocated and available memory is only 1.9GB.\n\nOr set environment variable `FLAGS_gpu_memory_limit_mb` to a larger value. Currently `FLAGS_gpu_memory_limit_mb` is 20480, so the maximum GPU memory usage is limited to 20480 MB.\n", "FLAGS_gpu_memory_limit_mb, above", "set_per_process"},
		{"Julia's limit", "ERROR: LoadError: Out of GPU memory trying to allocate 1.400 GiB\nEffective GPU memory usage: 22.10% (1.740 GiB/7.875 GiB)\nMemory pool usage: 1.210 GiB (1.250 GiB reserved)\nMemory limit: hard = 2.000 GiB\n", "JULIA_CUDA_HARD_MEMORY_LIMIT", "set_per_process"},
		{"a limit of nobody known", "device allocation failed: requested 1300.00 MiB, total 7900.00 MiB, budget of 4000.00 MiB, used 2900.00 MiB, only 4,900,000,000 bytes left\n", "the limit that the program has for its pool", "MEM_FRACTION"},
		{"gaps on XPU", "RuntimeError: XPU out of memory. Tried to allocate 1.30 GiB (GPU 0; 11.10 GiB total capacity; 5.10 GiB already allocated; 9.70 GiB reserved in total by PyTorch)\n", "torch.xpu.empty_cache()", "torch.cuda"},
		{"gaps, and nothing known to be free", "RuntimeError: XPU out of memory. Tried to allocate 1.30 GiB (GPU 0; 11.10 GiB total capacity; 5.10 GiB already allocated; 9.70 GiB reserved in total by PyTorch)\n", "in use: enough for", "0 B is free"},
		{"gaps before there were settings", "RuntimeError: CUDA out of memory. Tried to allocate 2.10 GiB (GPU 0; 10.90 GiB total capacity; 4.30 GiB already allocated; 560.00 MiB free; 5.60 GiB cached)\n", "torch.cuda.empty_cache()", "PYTORCH_CUDA_ALLOC_CONF"},
		{"no framework known", "terminate called after throwing an instance of 'thrust::system::system_error'\n  what():  cudaErrorMemoryAllocation: out of memory\n", "a smaller batch or input", "jax"},
		{"code in TensorFlow", "Failed to load in-memory CUBIN: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n\t [[{{node StatefulPartitionedCall}}]]\n", "TF_FORCE_GPU_ALLOW_GROWTH=true", "XLA_PYTHON"},
		{"a library in Rust", "thread 'main' panicked at src/backend.rs:47:83:\ncalled `Result::unwrap()` on an `Err` value: Cuda(Cublas(CublasError(CUBLAS_STATUS_ALLOC_FAILED)))\n", "preallocates nothing", "XLA_PYTHON"},
		{"a library of JAX or TensorFlow", "E cuda_dnn.cc:329] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR\n", "if the program is TensorFlow: TF_FORCE_GPU_ALLOW_GROWTH=true", "?"},
		{"a quarter is free", "E external/xla/xla/stream_executor/cuda/cuda_dnn.cc:439] Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED\nE external/xla/xla/stream_executor/cuda/cuda_dnn.cc:443] Memory usage: 6012862464 bytes free, 25386352640 bytes total.\n", "MEM_FRACTION=0.65", "MEM_FRACTION=0.75"},
		{"NCCL in whatever", "node4:21012:58195 [2] include/alloc.h:192 NCCL WARN Failed to CUDA calloc async 6291456 bytes\n", "gpu_memory_utilization (vLLM)", "XLA_PYTHON_CLIENT_PREALLOCATE"},
		{"Apple's", "libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\n", "the Mac's own", "drop_caches"},
		{"Ollama on the host", "Error: model requires more system memory (41.2 GiB) than is available (33.9 GiB)\n", "num_ctx", "loader workers"},
		{"the driver refuses to pin", "jaxlib 0.5.0\nE external/xla/xla/stream_executor/cuda/cuda_driver.cc:796] failed to alloc 61943578624 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n", "ulimit -l", "HOST_MEMORY_LIMIT"},
		{"InfiniBand", "n1:4016:4653 [7] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n", "locked memory", "NCCL_BUFFSIZE"},
		{"Windows", "OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading \"C:\\torch\\lib\\gpu_ops.dll\" or one of its dependencies.\n", "paging file larger", "docker"},
		{"Slurm's older words", "slurmstepd: error: Exceeded step memory limit at some point.\n", "--mem of the job", "docker"},
		{"a smaller pool was had", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 3322.00 MiB on device 0: cudaMalloc failed: out of memory\nllama_model_load: error loading model: unable to allocate CUDA0 buffer\nload_tensors: offloaded 21/33 layers to GPU\nlevel=INFO msg=\"llama runner started in 1.84 seconds\"\n[GIN] 2026/02/04 - 16:57:09 | 200 |  7.19s |  127.0.0.1 | POST  \"/api/generate\"\n", "the program went on after it", "and says so"},
		{"an arena's sizes", "[I:onnxruntime:, bfc_arena.cc:29 BFCArena] Creating BFCArena for Cuda with following configs: initial_chunk_size_bytes: 1048576 max_dead_bytes_per_chunk: 134217728 memory limit: 32568770560 arena_extend_strategy: 0\nonnxruntime.capi.onnxruntime_pybind11_state.RuntimeException: bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t) Available memory of 6291456 is smaller than requested bytes of 2554331136\n", "the arena may take 30.33 GiB", "128 MiB"},
		{"connections, not memory", "sqlalchemy.exc.TimeoutError: QueuePool limit of size 5 overflow 10 reached, connection timed out, timeout 30.00\n", "", "set_per_process"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all strings.Builder
			for _, cause := range diagnose(t, c.log, "").Causes {
				for _, s := range cause.Settings {
					all.WriteString(s.Name + "=" + s.Value + "\n")
				}
				for _, q := range cause.Evidence {
					all.WriteString(q.Reading + "\n")
				}
				all.WriteString(strings.Join(cause.Steps, "\n") + "\n")
			}
			if got := all.String(); !strings.Contains(got, c.has) || strings.Contains(got, c.lacks) {
				t.Errorf("want %q and not %q in\n%s", c.has, c.lacks, got)
			}
		})
	}
}

// TestAnswersToWhatIsNotTheGPUs: a heap with a limit of its own is told that limit, and a
// log without a word of memory how it ends.
func TestAnswersToWhatIsNotTheGPUs(t *testing.T) {
	for log, want := range map[string]string{
		"Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space":                    "-Xmx",
		"FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory":           "--max-old-space-size",
		"Traceback (most recent call last):\nModuleNotFoundError: No module named 'foo'":              "it ends with: ModuleNotFoundError: No module named 'foo'",
		strings.Repeat("step 1: loss 0.3\n", 100_000) + "ValueError: shapes (3, 4) and (5,) differ\n": "it ends with: ValueError: shapes (3, 4) and (5,) differ",
	} {
		d, err := Diagnose(strings.NewReader(log), nil)
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Join(d.Certain, "\n")
		for _, c := range d.Causes {
			said += strings.Join(c.Steps, "\n")
		}
		if !strings.Contains(said, want) {
			t.Errorf("%.80q: %q lacks %q", log, said, want)
		}
	}
}
