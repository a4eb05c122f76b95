package doctor

// Borders of what a log and a machine's list say beside a message: each pair of rows is one figure,
// or one word, on both sides of what it decides.

import (
	"fmt"
	"strings"
	"testing"
)

const gib = 1 << 30

// machineWith is a machine with a GPU of total bytes and these processes on it, of which the program that
// failed is 4242. A process is "PID NAME BYTES".
func machineWith(total uint64, processes ...string) string {
	var list []string
	for _, p := range processes {
		var pid, used uint64
		var name string
		_, _ = fmt.Sscan(p, &pid, &name, &used)
		list = append(list, fmt.Sprintf(`{"pid": %d, "name": %q, "used_bytes": %d}`, pid, name, used))
	}
	return fmt.Sprintf(`{"devices": [{"index": 0, "total_bytes": %d, "processes": [%s]}], "process": {"pid": 4242}}`, total,
		strings.Join(list, ", "))
}

// cudnnLog is XLA's failure of cuDNN, and what was free of the GPU, in bytes.
func cudnnLog(status string, free, total uint64) string {
	return fmt.Sprintf("E0305 10:11:12.000000    4242 cuda_dnn.cc:439] Could not create cudnn handle: CUDNN_STATUS_%s\n"+
		"E0305 10:11:12.000000    4242 cuda_dnn.cc:443] Memory usage: %d bytes free, %d bytes total.\n", status, free, total)
}

const (
	bareLog        = "cudaMalloc failed: out of memory\n"
	bareOfJAX      = "jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3221225472 bytes.\n"
	cusolverLog    = "RuntimeError: jaxlib/cusolver_kernels.cc:44: operation cusolverDnCreate(&handle) failed: cuSolver internal error\n"
	contextLog     = "tensorflow.python.framework.errors_impl.InternalError: CUDA runtime implicit initialization on GPU:0 failed. Status: out of memory\n"
	wholePool      = "I0305 10:11:12.000000    4242 xla/stream_executor/cuda/cuda_driver.cc:1571] failed to allocate 11.06GiB (11871240192 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
	regionsLog     = "W tensorflow/core/common_runtime/bfc_allocator.cc:314] Garbage collection: deallocate free memory regions (i.e., allocations) so that we can re-allocate a larger region to avoid OOM due to memory fragmentation.\n"
	pastPool       = "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 500.00GiB (536870912000B) on device ordinal 0\n"
	pinnedLog      = "WARNING: failed to allocate 400.00 MB of pinned memory: out of memory\nWARNING: failed to allocate 400.00 MB of pinned memory: out of memory\n"
	withoutSize    = "needs: a refusal without its numbers; a refusal without its numbers"
	withoutNumbers = "needs: a message without its numbers; a message without its numbers"
	ofAGrowingPool = "needs: a request that a growing pool refused; a request and nothing more; a request and nothing more; a request and nothing more"
	ofAnyPool      = "needs: a request and nothing more; a request and nothing more; a request and nothing more"
)

// smiRow is a row of nvidia-smi's table for a GPU of 15,356 MiB.
func smiRow(used int) string {
	return fmt.Sprintf("|   0  NVIDIA A2                  On  | 00000000:00:05.0 Off |                    0 |\n| N/A   40C    P8    20W /  60W |  %5dMiB / 15356MiB |      0%%      Default |\n", used)
}

// smiList is nvidia-smi's list with one process, and a refusal on GPU 1.
func smiList(gpu int) string {
	return fmt.Sprintf(`torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 16.00 GiB of which 0.20 GiB is free.
+-----------------------------------------------------------------------------+
| Processes:                                                                  |
|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |
|=============================================================================|
|    %d   N/A  N/A      1234      C   solver                          15000MiB |
+-----------------------------------------------------------------------------+
`, gpu)
}

// programOf is XLA's report of a program's buffers on a GPU of 64 GiB.
func programOf(temp, total string) string {
	return fmt.Sprintf("[gpu 0] memory size 64.00 GiB\njaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes.\n"+
		"BufferAssignment OOM Debugging.\nBufferAssignment stats:\n             parameter allocation:   1.00GiB\n     preallocated temp allocation:   %s\n                 total allocation:   %s\n", temp, total)
}

// rising are lines of a loop, and a refusal behind them.
func rising(format string, values ...string) string {
	var b strings.Builder
	for i, v := range values {
		fmt.Fprintf(&b, format+"\n", i, v)
	}
	return b.String() + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
}

// triedState is a state with a setting that was tried.
func triedState(name, value string, helped bool) string {
	return fmt.Sprintf(`{"tried": [{"env": {%q: %q}, "helped": %v}]}`, name, value, helped)
}

// atStart is vLLM's check at its start, in GiB.
func atStart(free, share, want float64) string {
	return fmt.Sprintf("ValueError: Free memory on device cuda:0 (%.2f/80.00 GiB) on startup is less than desired GPU memory utilization (%.2f, %.2f GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n", free, share, want)
}

// before is vLLM's count of a GPU of 80 GiB, of which used were in use before it loaded 7 GiB of weights.
func before(used float64) string {
	return fmt.Sprintf("INFO vllm: Loading model weights took 7.0000 GiB\n"+
		"Memory profiling: total_gpu_memory=80.00GiB initial_memory_usage=%.2fGiB peak_torch_memory=8.0GiB vllm\n"+
		"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n", used)
}

// captured is an error of CUDA's so many lines behind one that says that graphs are captured.
func captured(lines int) string {
	return "vllm: Capturing CUDA graphs (mixed prefill-decode, PIECEWISE)\n" +
		strings.Repeat("  File \"/opt/vllm/worker.py\", line 84, in run\n", lines-1) + "RuntimeError: CUDA error: out of memory\n"
}

// foundGPU is what TensorFlow says of the GPU at its start, and a refusal.
func foundGPU(free string) string {
	return "I tensorflow/core/common_runtime/gpu/gpu_device.cc:1392] Found device 0 with properties: \ntotalMemory: 16.00GiB freeMemory: " + free +
		"\nI tensorflow/stream_executor/cuda/cuda_driver.cc:890] failed to allocate 62.00M (65011712 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
}

// tfDevice is TensorFlow's device of so many MB on a card of 8 GB, and a library that fails.
func tfDevice(mb int) string {
	return fmt.Sprintf("I tensorflow/core/common_runtime/gpu/gpu_device.cc:1613] Created device /job:localhost/replica:0/task:0/device:GPU:0 with %d MB memory:  -> device: 0, name: NVIDIA GeForce RTX 2070\n"+
		"E tensorflow/stream_executor/cuda/cuda_blas.cc:226] failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED\n", mb)
}

// llamaModel is a model of llama.cpp: what was free before it, of 15,095 MiB, and its two parts.
func llamaModel(free, weights, cache int) string {
	return fmt.Sprintf("ggml_cuda_init: found 1 CUDA devices:\n  Device 0: Tesla T4, compute capability 7.5, VMM: yes, VRAM: 15095 MiB\nllama_model_load_from_file_impl: using device CUDA0 (Tesla T4) - %d MiB free\n"+
		"load_tensors:        CUDA0 model buffer size =  %d.00 MiB\nggml_backend_cuda_buffer_type_alloc_buffer: allocating %d.00 MiB on device 0: cudaMalloc failed: out of memory\n", free, weights, cache)
}

// cupyLog is CuPy's refusal of 5 GiB on a GPU of 24.
func cupyLog(allocated uint64) string {
	return fmt.Sprintf("Device 0: total memory 24.00 GiB\ncupy.cuda.memory.OutOfMemoryError: Out of memory allocating 5368709120 bytes (allocated so far: %d bytes).\n", allocated)
}

// mpsLog is a refusal of 1 GB on a Mac that lets the process have 18.13.
func mpsLog(ours, others float64) string {
	return fmt.Sprintf("RuntimeError: MPS backend out of memory (MPS allocated: %.2f GB, other allocations: %.2f GB, max allowed: 18.13 GB). Tried to allocate 1.00 GB on private pool.\n", ours, others)
}

// sglang is SGLang's refusal behind what it says of its weights, in GB.
func sglang(static, free, used float64) string {
	return fmt.Sprintf("[2026-03-05 10:11:12 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=%.2f GB, mem usage=%.2f GB.\n"+
		"RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=%v\n", free, used,
		static)
}

// heap is DXVK's refusal without a size, and a heap of 7,500 MB.
func heap(allocated int) string {
	return fmt.Sprintf("err:   DxvkMemoryAllocator: Memory allocation failed\nerr:     Heap 0: %d MB allocated, 7300 MB used, %[1]d MB allocated (driver), 7500 MB budget (driver), 8192 MB total\n"+
		"err:     Heap 1: 500 MB allocated, 480 MB used, 500 MB allocated (driver), 16000 MB budget (driver), 16000 MB total\n", allocated)
}

// busy is TensorFlow's refusal of so many MiB, behind a warning that 12 GiB were not to be had.
func busy(mib int) string {
	return "W tensorflow/core/common_runtime/bfc_allocator.cc:217] Allocator (GPU_0_bfc) ran out of memory trying to allocate 12.00GiB.  The caller indicates that this is not a failure, but may mean that there could be performance gains if more memory were available.\n" +
		fmt.Sprintf("W tensorflow/core/common_runtime/bfc_allocator.cc:273] Allocator (GPU_0_bfc) ran out of memory trying to allocate %d.00MiB (rounded to %d) requested by op conv1\n", mib, mib<<20) +
		"If the cause is memory fragmentation maybe the environment variable 'TF_GPU_ALLOCATOR=cuda_malloc_async' will improve the situation.\n"
}

// chunks is a line of a pool's report.
const chunks = "2025-03-05 10:11:12.000000: I external/xla/xla/tsl/framework/bfc_allocator.cc:1117] 2 Chunks of size 983040000 totalling 1.83GiB\n"

// onRanks are refusals of the driver in two processes whose lines begin so.
func onRanks(a, b string) string {
	const line = "I tensorflow/stream_executor/cuda/cuda_driver.cc:775] failed to allocate %s from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
	return a + fmt.Sprintf(line, "3.50G (3758096384 bytes)") + b + fmt.Sprintf(line, "4.20G (4509715660 bytes)")
}

func TestBordersOfTheMachine(t *testing.T) {
	for _, tt := range []struct{ name, log, state, want string }{
		{"a neighbour with a sixteenth of the request", "failed to allocate 11.06GiB (11871240192 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n", `{"devices": [{"index": 0, "processes": [{"pid": 77, "name": "solver", "used_bytes": 734003200}]}]}`, "needs: a refusal without its numbers; a refusal without its numbers"},
		{"a neighbour with half of it", "failed to allocate 11.06GiB (11871240192 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n", `{"devices": [{"index": 0, "processes": [{"pid": 77, "name": "solver", "used_bytes": 5872025600}]}]}`, "cause: others on the machine"},
		{"processes on the GPU that failed", smiList(1), "", "cause: others on the machine"},
		{"processes on another GPU", smiList(0), "", withoutNumbers},
		{"a neighbour with half the GPU", bareLog, machineWith(16*gib, "77 ollama 9663676416"), "cause: others on the machine"},
		{"a neighbour with a fifth of it", bareLog, machineWith(16*gib, "77 ollama 3221225472"),
			"either: a refusal without its numbers; a refusal without its numbers"},
		{"a neighbour that leaves less than the pool", wholePool, machineWith(16*gib, "77 jupyter 5368709120"), "cause: others on the machine"}, // 11.06 and 5 are more than 16
		{"a neighbour with less than a library takes", wholePool,
			`{"devices": [{"index": 0, "processes": [{"pid": 77, "name": "jupyter", "used_bytes": 314572800}]}]}`, withoutSize},
		{"a Python with three quarters and a context", cudnnLog("ALLOC_FAILED", 200e6, 16*gib),
			machineWith(16*gib, "77 python3 13421772800", "4242 python3 2400000000"), "cause: another JAX on the GPU"},
		{"a Python with more than that, and less than nine tenths", cudnnLog("ALLOC_FAILED", 200e6, 16*gib),
			machineWith(16*gib, "77 python3 14388140441", "4242 python3 2400000000"), "cause: others leave a library too little"},
		{"the host's memory is not the GPU's", "host memory total 64.00 GiB\n" + strings.SplitAfter(cupyLog(50*gib), "\n")[1], "",
			"needs: a pool that the GPU refuses; a pool that the GPU refuses"},

		{"no context, and less than a GiB free", contextLog + smiRow(14500), "", "cause: no context: the GPU is full"},
		{"no context, and more than that", contextLog + smiRow(14200), "", "needs: no context"},
		{"a tenth in use beside a refusal", smiRow(1400) + "\n" + bareLog, "", "needs: a refusal on an empty GPU"},
		{"a fifth in use", smiRow(3000) + "\n" + bareLog, "", withoutSize},
		{"four fifths free, in the program's words", "VRAM total: 16.00 GiB\nVRAM free: 14.00 GiB\n" + bareLog, "",
			"needs: a refusal on an empty GPU"},
		{"five eighths free", "VRAM total: 16.00 GiB\nVRAM free: 10.00 GiB\n" + bareLog, "", withoutSize},
		{"a quarter free at the start", foundGPU("3.90GiB"), "", "cause: free memory at the start"},
		{"more than that", foundGPU("4.10GiB"), "", withoutSize},
		{"TensorFlow with less than half its card", tfDevice(3700), "",
			"needs: TensorFlow got a part of the GPU only; a library that failed; a library that failed"},
		{"TensorFlow with more than half", tfDevice(4200), "", "either: a library that failed; a library that failed; a library that failed"},

		// A library takes 520 MiB, and any two of them a GiB.
		{"a third of a small GPU free, which is little", cudnnLog("INTERNAL_ERROR", 600e6, 1900e6), "",
			"either: a library that failed; a library that failed"},
		{"a third of a large GPU free", cudnnLog("INTERNAL_ERROR", 6e9, 19e9), "", "not_memory: a library fails on a free GPU"},
		{"a fifth free, as JAX's pool leaves it", cudnnLog("INTERNAL_ERROR", 32e8, 16e9), "", "unknown: "},
		{"an allocator without a pool helped", cusolverLog, triedState("XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async", true),
			"cause: a smaller pool helped"},
		{"a pool of nine tenths helped", cusolverLog, triedState("XLA_PYTHON_CLIENT_MEM_FRACTION", ".9", true), "cause: a smaller pool helped"},
		{"a pool of four GPUs, in unified memory, is not smaller", cusolverLog, triedState("XLA_PYTHON_CLIENT_MEM_FRACTION", "4.0", true),
			"either: a library that failed; a library that failed; a library that failed"},
		// What neither the pool nor what is free explains is 2.2 of 16 GiB, a desktop's at most, or 3.8, which may be anybody's.
		{"a pool of 0.85 leaves a library too little", "XLA_PYTHON_CLIENT_MEM_FRACTION=.85 python train.py\n" + cudnnLog("ALLOC_FAILED",
			200e6, 16*gib), "", "cause: the pool leaves a library too little"},
		{"a pool of 0.75 leaves more than a quarter of itself",
			"XLA_PYTHON_CLIENT_MEM_FRACTION=.75 python train.py\n" + cudnnLog("ALLOC_FAILED", 200e6, 16*gib), "",
			"needs: a library without room; a library without room; a library without room"},
		{"a pool of half the GPU did not help", cusolverLog, triedState("XLA_PYTHON_CLIENT_MEM_FRACTION", ".5", false),
			"either: a smaller pool did not help; a smaller pool did not help; a smaller pool may not have been small enough"},
		{"nor one of six tenths, which is not small", cusolverLog, triedState("XLA_PYTHON_CLIENT_MEM_FRACTION", ".6", false),
			"either: a library that failed; a library that failed; a library that failed"},

		{"a program of a sixteenth of the GPU", programOf("3.00GiB", "4.00GiB"), "",
			"needs: a small program that does not fit; a small program that does not fit"},
		{"a program of a sixth", programOf("9.00GiB", "10.00GiB"), "", ofAnyPool},
		{"a pool that grows, said as 0", "XLA_PYTHON_CLIENT_PREALLOCATE=0 python train.py\n" + bareOfJAX, "", ofAGrowingPool},
		{"a pool that grows, said as False", "XLA_PYTHON_CLIENT_PREALLOCATE=False python train.py\n" + bareOfJAX, "", ofAGrowingPool},
		{"a pool that does not", "XLA_PYTHON_CLIENT_PREALLOCATE=true python train.py\n" + bareOfJAX, "", ofAnyPool},
		{"past the pool, and regions released before", regionsLog + pastPool, "", "cause: a request above any GPU"},

		{"readings that rise by half in all", rising("step %d: memory allocated %s GiB", "10.0", "11.1", "12.2", "13.3", "14.4", "15.5"), "",
			"cause: readings that only rise"},
		{"readings that rise by a twentieth", rising("step %d: memory allocated %s GiB", "10.0", "10.1", "10.2", "10.3", "10.4", "10.5"), "",
			withoutSize},
		{"readings of the host that rise", rising("step %d: host memory used %s GiB", "10.0", "11.1", "12.2", "13.3", "14.4", "15.5"), "",
			withoutSize},
		{"readings without a unit that rise evenly", rising("step %d, gpu memory used: %s", "1.00", "1.50", "2.00", "2.50", "3.00", "3.50"),
			"", "cause: readings that rise by the same each time"},
		{"and by steps of any size", rising("step %d, gpu memory used: %s", "1.00", "1.10", "2.00", "2.05", "3.40", "3.50"), "", withoutSize},

		{"more live than the GPU, by the rounding of a size", older("1.00 GiB", "8.00 GiB", "8.05 GiB", "0 bytes", "8.40 GiB"), "",
			"cause: the program's own allocations fill the GPU"},
		{"more live than that", older("1.00 GiB", "8.00 GiB", "8.30 GiB", "0 bytes", "8.40 GiB"), "", "cause: more allocated than the GPU has"},
		{"a Mac's process with little besides PyTorch", mpsLog(15, 3), "", "cause: the pool's own limit"},
		{"a Mac's process with twice of PyTorch's", mpsLog(6, 12), "", "either: others in the process; the limit on the process"},
		{"a pool of more than three quarters", cupyLog(37 * gib / 2), "", "cause: the pool holds most of the GPU"},
		{"a pool of less", cupyLog(14 * gib), "", "needs: a pool that the GPU refuses; a pool that the GPU refuses"},

		{"a quarter used before an engine, and 1 GiB lacking", atStart(60, .76, 61), "",
			"cause: an engine's check at its start; a neighbour at its start or end"},
		{"a sixteenth used, and 1 GiB lacking", atStart(75, .95, 76), "",
			"either: an engine's check at its start; a neighbour at its start or end"},
		// Weights of 7 GiB, a context of 0.75, and a tenth of the GPU, 8: up to 15.75 may be the engine's own.
		{"in use before an engine, and perhaps its own", before(15.1), "", "needs: no room for the cache; the engine's share"},
		{"in use before an engine, and not its own", before(16.5), "", "cause: an engine counts what was there before it"},
		{"an error forty lines behind a capture", captured(40), "", "cause: an error while graphs are captured"},
		{"an error eighty lines behind one", captured(80), "", withoutSize},
		{"all free at the start, and a model that is larger", llamaModel(14200, 9000, 6000), "", "cause: the model's parts above the GPU"},
		{"half free at the start, and a model that would fit", llamaModel(7500, 5000, 4000), "", "cause: most of the GPU was taken before"},
		{"a sixteenth of the GPU is free of SGLang's weights", sglang(.98, 3, 77), "", "cause: no room for the cache"},
		{"a quarter of it is", sglang(.98, 20, 60), "", "cause: the engine's share"},
		{"a heap without a MiB left", heap(7500), "", "needs: a heap without room"},
		{"a heap with ten", heap(7490), "", "unknown: "},
		{"a small request of a busy pool", busy(200), "", "cause: a small request of a busy pool"},
		{"a request that is not small", busy(300), "", "unknown: "},
		{"three quarters of the GPU in use, and a pool's report", chunks,
			fmt.Sprintf(`{"devices": [{"index": 0, "total_bytes": %d, "used_bytes": %d}]}`, 48*gib, 36*gib),
			"cause: the GPU is used up to the pool's part"},
		{"five sixths in use, which is no pool's part", chunks,
			fmt.Sprintf(`{"devices": [{"index": 0, "total_bytes": %d, "used_bytes": %d}]}`, 48*gib, 40*gib), "unknown: "},
		{"the host's free memory is not the GPU's", strings.SplitAfter(cudnnLog("INTERNAL_ERROR", 1, 1),
			"\n")[0] + "I0305 10:11:12.000000    4242 host.cc:12] Host memory usage: 60000000000 bytes free, 64000000000 bytes total.\n", "",
			"either: a library that failed; a library that failed"},
		{"a whole pool is refused, and a pool's warning behind it", wholePool + strings.SplitAfter(busy(1), "\n")[0] + "\n", "",
			"needs: a whole pool is refused; a whole pool is refused; a whole pool is refused"},
		{"cuBLAS in JAX, which the path shows", "  File \"/opt/venv/lib/python3.12/site-packages/jax/_src/dispatch.py\", line 90, in apply\nRuntimeError: CUBLAS_STATUS_ALLOC_FAILED in cublasCreate\n", "", "needs: a library without room; a library without room; a library without room"},
		{"cuBLAS, which TensorFlow beside JAX starves as well",
			"E0305 10:11:12.000000    4242 xla/stream_executor/cuda/cuda_blas.cc:188] failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED\n", "", "either: a library that failed; a library that failed; a library that failed; a library that failed"},
		{"cuDNN, which it does not", strings.SplitAfter(cudnnLog("NOT_INITIALIZED", 1, 1), "\n")[0], "",
			"either: a library that failed; a library that failed"},
		{"the host refused, and then the GPU", "OSError: [Errno 12] Cannot allocate memory\n" + bareLog, "", "cause: the host's memory"},
		{"two workers on one GPU", onRanks("(pid=4210) ", "(pid=4242) "), "", "cause: pools of several processes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := diagnose(t, tt.log, tt.state)
			if got := string(d.Verdict) + ": " + rules(d); got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestWhatIsNotSaid: a fact that a nearly equal log would have.
func TestWhatIsNotSaid(t *testing.T) {
	kernel := func(constraint, before string) string {
		return fmt.Sprintf("[ 1234.567890] oom-kill:constraint=%s,nodemask=(null),cpuset=docker-3f1c.scope,mems_allowed=0,task=python,pid=4242,uid=0\n"+
			"[ 1234.567891] %sOut of memory: Killed process 4242 (python) total-vm:64000000kB, anon-rss:33000000kB\n", constraint, before)
	}
	announced := "I0305 10:11:12.000000    4242 xla/pjrt/gpu/gpu_helpers.cc:114] XLA backend allocating 11871240192 bytes on device 0 for BFCAllocator.\n"
	for _, tt := range []struct{ name, log, says, not string }{
		{"one pool is announced once", announced + ">>> jax.clear_backends()\n" + wholePool, "the program cleared its backends",
			"the same again"},
		{"two pools are announced", announced + ">>> jax.clear_backends()\n" + announced + wholePool, "the same again", ""},
		{"the GPU refused before the host did", "CUDA error 2 at ggml-cuda.cu:781: out of memory\n" + pinnedLog, "", "the host refused first"},
		{"the host refused before the GPU did", pinnedLog + "CUDA error 2 at ggml-cuda.cu:781: out of memory\n", "the host refused first", ""},
		{"the kernel killed at a container's limit", kernel("CONSTRAINT_MEMCG", "Memory cgroup "), "its container's limit",
			"the machine had no memory left"},
		{"the kernel killed at the machine's, too", kernel("CONSTRAINT_MEMCG", "Memory cgroup ") + kernel("CONSTRAINT_NONE", ""),
			"the machine had no memory left", "its container's limit"},
		{"another GPU's free memory", "engine: out of GPU memory: requested 2.00 GiB on GPU 0; GPU 1 has 15.00 GiB free of 16.00 GiB\n",
			"2 GiB was refused", "15 GiB"},
		{"NCCL's next line after another failure", "node1:42:61 [0] enqueue.cc:100 NCCL WARN Cuda failure 'operation not supported'\nnode1:42:61 [0] alloc.h:170 NCCL WARN Failed to CUDA calloc async 608 bytes\n", "", "nccl_headroom"},
		{"JAX does not read TensorFlow's limit on pinned memory",
			"E0305 10:11:12.000000    4242 external/xla/xla/tsl/framework/bfc_allocator.cc:512] Allocator (xla_gpu_host_bfc) ran out of memory trying to allocate 2.00GiB (rounded to 2147483648)requested by op\n", "host_memory", "TF_GPU_HOST_MEM_LIMIT_IN_MB"},
		{"TensorFlow does", "2021-03-05 10:11:12.000000: E tensorflow/core/common_runtime/bfc_allocator.cc:512] Allocator (cuda_host_bfc) ran out of memory trying to allocate 2.00GiB (rounded to 2147483648)requested by op\n", "TF_GPU_HOST_MEM_LIMIT_IN_MB", ""},
		{"ranks have a GPU each", onRanks("[rank0]: ", "[rank1]: "), "", "pools of several processes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := inWords(diagnose(t, tt.log, "")); !strings.Contains(got, tt.says) || tt.not != "" && strings.Contains(got, tt.not) {
				t.Errorf("%s\nwant %q and not %q", got, tt.says, tt.not)
			}
		})
	}
}

// TestFirstStep: what is to be done first, where a figure beside it says so.
func TestFirstStep(t *testing.T) {
	two := strings.Replace(card{2, 40, 1, 20, 19, 18, .3}.String(), "Process 4242 has 20.00 GiB",
		"Process 11 has 10.00 GiB memory in use. Process 12 has 10.00 GiB", 1)
	three := strings.Replace(two, "Process 11 has 10.00 GiB",
		"Process 11 has 7.00 GiB memory in use. Process 13 has 7.00 GiB memory in use. Process 14 has 7.00 GiB", 1)
	const weights = "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB on device 0: cudaMalloc failed: out of memory\n"
	const cache = "llama_kv_cache_init: failed to allocate buffer for kv cache\n"
	moved := "  File \"/opt/torch/nn/modules/module.py\", line 927, in _apply\n" + older("3.00 GiB", "24.00 GiB", "22.40 GiB", "1.00 GiB",
		"22.50 GiB")
	for _, tt := range []struct{ name, log, first string }{
		{"a model on its way to the GPU", moved, "make the weights smaller"},
		{"the same in a program that trains", "epoch 1, loss 0.31\n" + moved, "make it smaller: a smaller batch"},
		{"two of one size are two programs", two, "see who holds it"},
		{"three of one size are ranks", three, "3 of the processes hold 7 GiB each: the ranks of one job"},
		{"the buffer of the cache, by the next line", weights + cache, "make the cache smaller"},
		{"the buffer of recurrent states", weights + "llama_memory_recurrent: failed to allocate buffer for rs cache\n",
			"make the cache smaller"},
		{"that of the weights, and the cache of a later model", weights + strings.Repeat("srv load: trying the next model\n", 8) + cache,
			"make the weights smaller"},
	} {
		if d := diagnose(t, tt.log, ""); len(d.Causes) == 0 || !strings.HasPrefix(d.Causes[0].Steps[0], tt.first) {
			t.Errorf("%s: %+v\nwant %s", tt.name, d.Causes, tt.first)
		}
	}
}

// TestProgramOfTheList: the program that failed is the one whose process has its pool and a context
// more; one of 4 GiB more is another, and is named beside the first.
func TestProgramOfTheList(t *testing.T) {
	log := older("6.00 GiB", "40.00 GiB", "4.50 GiB", "5.50 GiB", "5.00 GiB")
	for used, want := range map[uint64]bool{9 * gib: true, 6 * gib: false} {
		state := fmt.Sprintf(`{"devices": [{"index": 0, "total_bytes": %d, "processes": [{"pid": 77, "name": "ollama", "used_bytes": %d}, {"pid": 78, "name": "render", "used_bytes": %d}]}]}`, 40*gib, 20*gib, used)
		if got := inWords(diagnose(t, log, state)); strings.Contains(got, "pid 78 render") != want || !strings.Contains(got, "pid 77 ollama") {
			t.Errorf("%d GiB: another program %v, want %v\n%s", used/gib, !want, want, got)
		}
	}
}

// TestWhoGoesOn: a program that goes on says so in its own lines, soon after the refusal, and not
// after a line that ends it.
func TestWhoGoesOn(t *testing.T) {
	const progress = "step 10: loss 0.5, 2.0 it/s\nstep 20: loss 0.4, 2.0 it/s\n"
	ranked := strings.ReplaceAll("[rank0]: "+progress, "\ns", "\n[rank0]: s")
	for _, tt := range []struct {
		name, log string
		goesOn    bool
	}{
		{"an error, and progress", "E0305 10:11:12.000000    4242 allocator.cc:12] " + bareLog + progress, true},
		{"a fatal line, and somebody's progress", "F0305 10:11:12.000000    4242 allocator.cc:12] " + bareLog + progress, false},
		{"its own rank's progress", "[rank0]: " + bareLog + ranked, true},
		{"another rank's progress", "[rank1]: " + bareLog + ranked, false},
		{"it tries again in the next line", bareLog + "allocation failed, retrying with a smaller batch\n", true},
		{"something else is tried again far below", bareLog + strings.Repeat("loading a part\n",
			12) + "download of shard 3: connection reset, retrying\n", false},
	} {
		if d := diagnose(t, tt.log, ""); (d.Verdict == VerdictNonfatal) != tt.goesOn {
			t.Errorf("%s: %s %v", tt.name, d.Verdict, ids(d))
		}
	}
}
