package doctor

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// formats has each message once, at sizes of our own. Line, Text, Level and From are
// TestDress's matter; Device is -1 where it is not told.
var formats = []struct {
	name, line string
	want       []Fact
}{
	// JAX and XLA.
	{"jax of 0.3", "Resource exhausted: Out of memory while trying to allocate 1234567 bytes.",
		[]Fact{{Kind: XLARefused, Code: "RESOURCE_EXHAUSTED", Device: -1, Want: 1234567, Has: HasWant, Framework: "xla"}}},
	{"jax of 2026", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12.00GiB with allocator GPU_3_bfc on device 3.",
		[]Fact{{Kind: XLARefused, Code: "RESOURCE_EXHAUSTED", Device: 3, Want: 12 * gib, Has: HasWant, Framework: "xla", Allocator: "GPU_3_bfc"}}},
	{"pinned host", "Out of host memory while trying to allocate 9.00GiB. Please set ...",
		[]Fact{{Kind: HostPinned, Device: -1, Want: 9 * gib, Has: HasWant, Framework: "xla"}}},
	{"no pool", "RESOURCE_EXHAUSTED: Failed to allocate request for 5.00GiB (5368709121B) on device ordinal 2",
		[]Fact{{Kind: XLADevice, Code: "RESOURCE_EXHAUSTED", Device: 2, Want: 5*gib + 1, Has: HasWant, Framework: "xla"}}},
	{"driver refuses, tensorflow 1", "failed to allocate 1.50G (1610612737 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY",
		[]Fact{{Kind: DeviceRefused, Code: "CUDA_ERROR_OUT_OF_MEMORY", Device: -1, Want: 1610612737, Has: HasWant}}},
	{"driver refuses, 2024", "failed to allocate 1.50GiB (1610612737 bytes) from device: RESOURCE_EXHAUSTED: : CUDA_ERROR_OUT_OF_MEMORY: out of memory",
		[]Fact{{Kind: DeviceRefused, Code: "CUDA_ERROR_OUT_OF_MEMORY", Device: -1, Want: 1610612737, Has: HasWant}}},
	{"driver refuses, 2026", "[1] Failed to allocate device memory of 1.50GiB (1610612737 bytes): RESOURCE_EXHAUSTED: out of memory",
		[]Fact{{Kind: DeviceRefused, Code: "RESOURCE_EXHAUSTED", Device: 1, Want: 1610612737, Has: HasWant}}},
	{"unified refused", "failed to alloc 77777 bytes unified memory; result: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
		[]Fact{{Kind: DeviceRefused, Name: "unified", Code: "CUDA_ERROR_OUT_OF_MEMORY", Device: -1, Want: 77777, Has: HasWant}}},
	{"pages", "RESOURCE_EXHAUSTED: Not enough PA budget: pa_allocated=700B, allocation_size=500B, pa_budget=1000B",
		[]Fact{{Kind: VMMRefused, Code: "RESOURCE_EXHAUSTED", Device: -1, Allocated: 700, Want: 500, Limit: 1000, Has: HasAllocated | HasWant | HasLimit, Framework: "xla"}}},
	{"pages refused", "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
		[]Fact{{Kind: VMMRefused, Code: "CUDA_ERROR_OUT_OF_MEMORY", Device: -1, Framework: "xla"}}},
	{"driver's pool refuses", "gpu_async_2 cuMemAllocAsync failed to allocate 4096 bytes: RESOURCE_EXHAUSTED: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
		[]Fact{{Kind: DeviceRefused, Name: "async", Code: "CUDA_ERROR_OUT_OF_MEMORY", Device: 2, Want: 4096, Has: HasWant, Allocator: "gpu_async_2"}}},
	{"no pages", "Device 4 does not support CUDA Virtual Memory Management",
		[]Fact{{Kind: VMMUnsupported, Device: 4, Framework: "xla"}}},
	{"preallocating", "XLA backend allocating 6442450944 bytes on device 1 for BFCAllocator.",
		[]Fact{{Kind: Preallocating, Device: 1, Limit: 6 * gib, Has: HasLimit, Framework: "xla", Name: "BFCAllocator"}}},
	{"growing", "XLA backend will use up to 6442450944 bytes on device 0 for BFCAllocator.",
		[]Fact{{Kind: Preallocating, Device: 0, Limit: 6 * gib, Has: HasLimit, Framework: "xla", Name: "BFCAllocator"}}},
	{"allocator", "Using CudaAsync allocator.", []Fact{{Kind: AllocatorChosen, Device: -1, Framework: "xla", Name: "CudaAsync"}}},
	{"context", "failed initializing StreamExecutor for CUDA device ordinal 5: INTERNAL: failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory; total memory reported: 123456",
		[]Fact{{Kind: Context, Device: 5, Total: 123456, Has: HasTotal, Name: "cuDevicePrimaryCtxRetain", Code: "CUDA_ERROR_OUT_OF_MEMORY"}}},
	{"context busy", "INTERNAL: failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE: CUDA-capable device(s) is/are busy or unavailable",
		[]Fact{{Kind: Context, Device: -1, Name: "cuDevicePrimaryCtxRetain", Code: "CUDA_ERROR_DEVICE_UNAVAILABLE"}}},
	{"context of tensorflow", "CUDA runtime implicit initialization on GPU:2 failed. Status: out of memory",
		[]Fact{{Kind: Context, Device: 2, Framework: "tensorflow", Value: "out of memory"}}},
	{"not a status", "WARNING: Unable to initialize backend 'cuda': no card", []Fact{{Kind: Backend, Device: -1, Framework: "jax", Value: "no card"}}},
	{"no backend", "CUDA backend failed to initialize: no devices",
		[]Fact{{Kind: Backend, Device: -1, Framework: "jax", Value: "no devices"}}},

	// The pool.
	{"pool refuses, to 2025", "Allocator (GPU_1_bfc) ran out of memory trying to allocate 2.00GiB (rounded to 2147483648)requested by op my/op",
		[]Fact{{Kind: BFCRefused, Device: 1, Want: 2 * gib, Has: HasWant, Allocator: "GPU_1_bfc", Name: "my/op"}}},
	{"pool refuses, 2026", "Allocator (GPU_1_bfc) ran out of memory trying to allocate 2.00GiB (rounded to 2147483648) from the upper end requested by op ",
		[]Fact{{Kind: BFCRefused, Device: 1, Want: 2 * gib, Has: HasWant, Allocator: "GPU_1_bfc", Value: "upper"}}},
	{"pool refuses, 2021", "Allocator (GPU_0_bfc) ran out of memory tying to allocate 2.00GiB (rounded to 2147483648)requested by op ",
		[]Fact{{Kind: BFCRefused, Device: 0, Want: 2 * gib, Has: HasWant, Allocator: "GPU_0_bfc"}}},
	{"host pool refuses", "Allocator (cuda_host_bfc) ran out of memory trying to allocate 2.00GiB.  Current allocation summary follows.",
		[]Fact{{Kind: BFCRefused, Device: -1, Want: 2 * gib, Has: HasWant, Allocator: "cuda_host_bfc"}}},
	{"warning", "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB with freed_by_count=0. The caller indicates that this is not a failure, but may mean",
		[]Fact{{Kind: BFCWarning, Nonfatal: true, Device: 0, Want: 2 * gib, Has: HasWant, Allocator: "GPU_0_bfc"}}},
	{"no warning", "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB from the lower end with freed_by_count=0.",
		[]Fact{{Kind: BFCRefused, Device: 0, Want: 2 * gib, Has: HasWant, Allocator: "GPU_0_bfc", Value: "lower"}}},
	{"advice", "If this is caused by memory fragmentation, the environment variable 'TF_GPU_ALLOCATOR=cuda_malloc_async' may improve the situation.",
		[]Fact{{Kind: PoolFragmented, Nonfatal: true, Device: -1}}},
	{"limit", "Limit:                      2147483648", []Fact{{Kind: PoolStats, Name: "Limit", Value: "2147483648", Device: -1, Limit: 2 * gib, Has: HasLimit}}},
	{"in use", "InUse:                         2.00GiB", []Fact{{Kind: PoolStats, Name: "InUse", Value: "2.00GiB", Device: -1, InUse: 2 * gib, Has: HasInUse}}},
	{"most in use", "MaxInUse:                      2.00GiB", []Fact{{Kind: PoolStats, Name: "MaxInUse", Value: "2.00GiB", Device: -1, InUse: 2 * gib, Has: HasInUse}}},
	{"largest request", "MaxAllocSize:                  1.0KiB", []Fact{{Kind: PoolStats, Name: "MaxAllocSize", Value: "1.0KiB", Device: -1, Want: 1024, Has: HasWant}}},
	{"most reserved", "PeakReserved:                      0B", []Fact{{Kind: PoolStats, Name: "PeakReserved", Value: "0B", Device: -1, Has: HasReserved}}},
	{"largest free", "LargestFreeBlock:              1.0KiB", []Fact{{Kind: PoolStats, Name: "LargestFreeBlock", Value: "1.0KiB", Device: -1, LargestFree: 1024, Has: HasLargestFree}}},
	{"sum", "Sum Total of in-use chunks: 3.00MiB", []Fact{{Kind: PoolStats, Name: "Sum Total", Value: "3.00MiB", Device: -1, InUse: 3 * mib, Has: HasInUse}}},
	{"bytes in pool", "Total bytes in pool: 1000 memory_limit_: 2000 available bytes: 1000 curr_region_allocation_bytes_: 4000",
		[]Fact{{Kind: PoolSummary, Device: -1, Total: 1000, Limit: 2000, Has: HasTotal | HasLimit}}},
	{"size in pool", "Total size in pool: 2.00GiB memory_limit_: 3.00GiB available size: 153B curr_region_allocation_bytes_: 4.00GiB",
		[]Fact{{Kind: PoolSummary, Device: -1, Total: 2 * gib, Limit: 3 * gib, Has: HasTotal | HasLimit}}},
	{"summary", "Allocator memory summary: rounded request 5.00MiB, total free in pool 6.00MiB, largest free chunk usable by lower end 4.00MiB, unallocated bytes 0B, pool size 8.00MiB, pool limit 9.00MiB",
		[]Fact{{Kind: PoolSummary, Device: -1, Want: 5 * mib, Free: 6 * mib, LargestFree: 4 * mib, Total: 8 * mib, Limit: 9 * mib, Value: "lower",
			Has: HasWant | HasFree | HasLargestFree | HasTotal | HasLimit}}},
	{"collection", "Garbage collection: deallocate free memory regions (i.e., allocations)", []Fact{{Kind: GarbageCollection, Nonfatal: true, Device: -1, Framework: "tensorflow"}}},
	{"memory_stats", "{'num_allocs': 3, 'bytes_in_use': 512, 'peak_bytes_in_use': 1024, 'bytes_limit': 4096, 'largest_free_block_bytes': 256, 'pool_bytes': None}", []Fact{
		{Kind: PoolStats, Framework: "jax", Name: "bytes_in_use", Value: "512", Device: -1, InUse: 512, Has: HasInUse},
		{Kind: PoolStats, Framework: "jax", Name: "peak_bytes_in_use", Value: "1024", Device: -1, InUse: 1024, Has: HasInUse},
		{Kind: PoolStats, Framework: "jax", Name: "bytes_limit", Value: "4096", Device: -1, Limit: 4096, Has: HasLimit},
		{Kind: PoolStats, Framework: "jax", Name: "largest_free_block_bytes", Value: "256", Device: -1, LargestFree: 256, Has: HasLargestFree},
		{Kind: PoolStats, Framework: "jax", Name: "pool_bytes", Value: "None", Device: -1}}},
	{"map", "W xla/bfc_allocator.cc:9] " + strings.Repeat("*", 60) + strings.Repeat("x", 2) + strings.Repeat("_", 38),
		[]Fact{{Kind: PoolMap, Device: -1, Value: strings.Repeat("*", 60) + "xx" + strings.Repeat("_", 38)}}},
	{"another limit", "RateLimit:     5", nil},
	{"chunk lines", "1 Chunks of size 1280 totalling 1.2KiB", nil},
	{"bin lines", "Bin (256): \tTotal Chunks: 2, Chunks in use: 2. 512B allocated for chunks.", nil},

	// Programs.
	{"assignment", "     preallocated temp allocation:    7.00GiB", []Fact{{Kind: BufferAssignment, Device: -1, Name: "preallocated temp allocation", Want: 7 * gib, Has: HasWant, Framework: "xla"}}},
	{"peak buffer", "\t\tSize: 2.00GiB", []Fact{{Kind: PeakBuffer, Device: -1, Want: 2 * gib, Has: HasWant, Framework: "xla"}}},
	{"remat", "Can't reduce memory use below 1.00GiB (1073741825 bytes) by rematerialization; only reduced to 2.00GiB (2147483649 bytes), down from 3.00GiB (3221225473 bytes) originally",
		[]Fact{{Kind: Remat, Nonfatal: true, Device: -1, Limit: gib + 1, Want: 2*gib + 1, Allocated: 3*gib + 1, Has: HasLimit | HasWant | HasAllocated, Framework: "xla"}}},

	// Libraries.
	{"cudnn", "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED", []Fact{{Kind: CuDNNHandle, Device: -1, Code: "CUDNN_STATUS_ALLOC_FAILED"}}},
	{"before cudnn", "There was an error before creating cudnn handle (2): cudaErrorMemoryAllocation : out of memory", []Fact{{Kind: CuDNNHandle, Name: "before", Device: -1, Code: "cudaErrorMemoryAllocation"}}},
	{"usage", "Memory usage: 100 bytes free, 900 bytes total.", []Fact{{Kind: DeviceFree, Device: -1, Free: 100, Total: 900, Has: HasFree | HasTotal}}},
	{"convolution", "Failed to determine best cudnn convolution algorithm for:", []Fact{{Kind: CuDNNConv, Device: -1}}},
	{"cudnn elsewhere", "in cuda_dnn.cc(12): CUDNN_STATUS_EXECUTION_FAILED", []Fact{{Kind: CuDNNCall, Device: -1, Code: "CUDNN_STATUS_EXECUTION_FAILED"}}},
	{"cublas", "failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED", []Fact{{Kind: CuBLASHandle, Device: -1, Code: "CUBLAS_STATUS_NOT_INITIALIZED"}}},
	{"cublas in words", "failed to create cublas handle: the resource allocation failed", []Fact{{Kind: CuBLASHandle, Device: -1, Value: "the resource allocation failed"}}},
	{"cublas of torch", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", []Fact{{Kind: CuBLASHandle, Device: -1, Code: "CUBLAS_STATUS_ALLOC_FAILED", Name: "cublasCreate", Framework: "torch"}}},
	{"cublas call of torch", "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle)`", []Fact{{Kind: CuBLASCall, Device: -1, Code: "CUBLAS_STATUS_EXECUTION_FAILED", Name: "cublasSgemm", Framework: "torch"}}},
	{"cusolver", "jaxlib/x.cc:37: operation cusolverDnCreate(&handle) failed: cuSolver internal error", []Fact{{Kind: CuSolver, Device: -1, Name: "cusolverDnCreate", Value: "cuSolver internal error"}}},
	{"cubin", "INTERNAL: Failed to load in-memory CUBIN (compiled for a different GPU?).: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
		[]Fact{{Kind: CUBIN, Device: -1, Code: "CUDA_ERROR_OUT_OF_MEMORY", Value: "(compiled for a different GPU?)."}}},
	{"nccl", "x.cc:7 NCCL WARN Failed to CUDA calloc 4194304 bytes", []Fact{{Kind: NCCL, Device: -1, Want: 4 * mib, Has: HasWant}}},
	{"nccl's cuda", "NCCL WARN Cuda failure 2 'out of memory'", []Fact{{Kind: NCCL, Device: -1, Value: "out of memory"}}},
	{"nccl of torch", "RuntimeError: NCCL Error 1: unhandled cuda error", []Fact{{Kind: NCCL, Device: -1, Framework: "torch"}}},
	{"command buffer", "RESOURCE_EXHAUSTED: Underlying backend ran out of memory trying to instantiate command buffer with 12 nodes (total of 34 alive graphs in the process). You can try",
		[]Fact{{Kind: Graph, Device: -1, Code: "RESOURCE_EXHAUSTED", Name: "command buffer", Value: "34", Framework: "xla"}}},

	// TensorFlow.
	{"tensor", "OOM when allocating tensor with shape[8,16] and type float on /job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc",
		[]Fact{{Kind: TFOOM, Device: 1, Value: "[8,16]", Allocator: "GPU_1_bfc", Framework: "tensorflow"}}},
	{"copy", "InternalError: Dst tensor is not initialized.", []Fact{{Kind: TFCopy, Device: -1, Framework: "tensorflow"}}},
	{"device", "Created device /job:localhost/replica:0/task:0/device:GPU:0 with 512 MB memory:  -> device: 0, name: Some Card, pci bus id: 0000:01:00.0, compute capability: 9.9",
		[]Fact{{Kind: TFDevice, Device: 0, Limit: 512 * mib, Has: HasLimit, Name: "Some Card", Framework: "tensorflow"}}},
	{"free of 1.4", "totalMemory: 8.00GiB freeMemory: 7.50GiB", []Fact{{Kind: DeviceFree, Device: -1, Total: 8 * gib, Free: 15 * gib / 2, Has: HasTotal | HasFree, Framework: "tensorflow"}}},

	// PyTorch and vLLM.
	{"torch of 1.x", "CUDA out of memory. Tried to allocate 64.00 MiB (GPU 1; 8.00 GiB total capacity; 5.00 GiB already allocated; 32.00 MiB free; 6.00 GiB reserved in total by PyTorch)",
		[]Fact{{Kind: TorchOOM, Device: 1, Want: 64 * mib, Total: 8 * gib, Allocated: 5 * gib, Free: 32 * mib, Reserved: 6 * gib, Has: HasWant | HasTotal | HasAllocated | HasFree | HasReserved, Framework: "torch"}}},
	{"torch of 2.x", "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 1 has a total capacty of 8.00 GiB of which 32.00 MiB is free. Process 12 has 2.00 GiB memory in use. Including non-PyTorch memory, this process has 3.00 GiB memory in use. Of the allocated memory 5.00 GiB is allocated by PyTorch, with 16.00 MiB allocated in private pools (e.g., CUDA Graphs), and 1.00 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid",
		[]Fact{
			{Kind: TorchOOM, Device: 1, Want: 64 * mib, Total: 8 * gib, Allocated: 5 * gib, Free: 32 * mib, Reserved: gib, Has: HasWant | HasTotal | HasAllocated | HasFree | HasReserved, Framework: "torch"},
			{Kind: TorchProcess, Device: -1, PID: 12, InUse: 2 * gib, Has: HasInUse, Framework: "torch"},
			{Kind: TorchProcess, Device: -1, Name: "this", InUse: 3 * gib, Has: HasInUse, Framework: "torch"},
			{Kind: TorchPrivate, Device: -1, Allocated: 16 * mib, Has: HasAllocated, Framework: "torch"},
			{Kind: TorchAdvice, Device: -1, Nonfatal: true, Value: "PYTORCH_ALLOC_CONF=expandable_segments:True", Framework: "torch"}}},
	{"torch with a cap", "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 4.00 GiB is free. Process 12 has 2.00 GiB memory in use. 3.00 GiB allowed; Of the allocated memory 2.00 GiB is allocated by PyTorch, and 1.00 MiB is reserved by PyTorch but unallocated.",
		[]Fact{{Kind: TorchOOM, Device: 0, Want: 64 * mib, Total: 8 * gib, Free: 4 * gib, Limit: 3 * gib, Allocated: 2 * gib, Reserved: mib, Has: HasWant | HasTotal | HasFree | HasLimit | HasAllocated | HasReserved, Framework: "torch"},
			{Kind: TorchProcess, Device: -1, PID: 12, InUse: 2 * gib, Has: HasInUse, Framework: "torch"}}},
	{"torch of 1.x with a cap", "CUDA out of memory. Tried to allocate 64.00 MiB (GPU 1; 8.00 GiB total capacity; 5.00 GiB already allocated; 32.00 MiB free; 4.00 GiB allowed; 6.00 GiB reserved in total by PyTorch)",
		[]Fact{{Kind: TorchOOM, Device: 1, Want: 64 * mib, Total: 8 * gib, Allocated: 5 * gib, Free: 32 * mib, Limit: 4 * gib, Reserved: 6 * gib, Has: HasWant | HasTotal | HasAllocated | HasFree | HasLimit | HasReserved, Framework: "torch"}}},
	{"torch on rocm", "HIP out of memory. Tried to allocate 64.00 MiB.", []Fact{{Kind: TorchOOM, Device: -1, Want: 64 * mib, Has: HasWant, Framework: "torch"}}},
	{"torch, nothing told", "RuntimeError: CUDA out of memory.", []Fact{{Kind: TorchOOM, Device: -1, Framework: "torch"}}},
	{"cuda of torch", "RuntimeError: CUDA error: out of memory", []Fact{{Kind: CUDAError, Device: -1, Value: "out of memory"}}},
	{"torch's setting", "RuntimeError: Unrecognized CachingAllocator option: max_splitt", []Fact{{Kind: Setting, Device: -1, Name: "PYTORCH_CUDA_ALLOC_CONF", Value: "max_splitt", Framework: "torch"}}},
	{"vllm's cache too small", "4.00 GiB KV cache is needed, which is larger than the available KV cache memory (2.00 GiB).", []Fact{{Kind: VLLMCache, Device: -1, Free: 2 * gib, Has: HasFree, Framework: "vllm"}}},
	{"vllm's room", "Available KV cache memory: 3.25 GiB", []Fact{{Kind: VLLMMemory, Device: -1, Free: 13 * gib / 4, Has: HasFree, Framework: "vllm"}}},
	{"vllm's profile", "Memory profiling results: total_gpu_memory=8.00GiB initial_memory_usage=2.00GiB peak_torch_memory=1.00GiB", []Fact{{Kind: VLLMMemory, Device: -1, Total: 8 * gib, InUse: 2 * gib, Allocated: gib, Has: HasTotal | HasInUse | HasAllocated, Framework: "vllm"}}},
	{"vllm's weights", "Model loading took 6.50 GiB and 3.2 seconds", []Fact{{Kind: VLLMMemory, Name: "weights", Device: -1, Allocated: 13 * gib / 2, Has: HasAllocated, Framework: "vllm"}}},
	{"ollama's card", `level=INFO source=types.go:1 msg="inference compute" id=GPU-1 library=cuda name="Card" total="8.0 GiB" available="7.5 GiB"`,
		[]Fact{{Kind: LlamaMemory, Device: -1, Name: "Card", Total: 8 * gib, Free: 15 * gib / 2, Has: HasTotal | HasFree, Framework: "llama.cpp"}}},
	{"cufft", "cufft: CUFFT_ALLOC_FAILED", []Fact{{Kind: CuFFT, Device: -1}}},
	{"cusolver of torch", "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling", []Fact{{Kind: CuSolver, Device: -1, Value: "INTERNAL_ERROR, when calling"}}},
	{"other cuda", "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected", []Fact{{Kind: CUDAError, Device: -1, Code: "CUDA_ERROR_NO_DEVICE"}}},
	{"tensorflow's source", "I tensorflow/core/x.cc:1] hello", []Fact{{Kind: Loaded, Framework: "tensorflow", Device: -1}}},
	{"jax's source of 0.3", "I external/org_tensorflow/tensorflow/core/x.cc:1] hello", []Fact{{Kind: Loaded, Framework: "jax", Device: -1}}},
	{"torch, broken line", "GPU 1 has a total capacity of 8.00 GiB of which 32.00 MiB is free.",
		[]Fact{{Kind: TorchOOM, Name: "device", Device: 1, Total: 8 * gib, Free: 32 * mib, Has: HasTotal | HasFree, Framework: "torch"}}},
	{"vllm", "Free memory on device cuda:1 (10.50/20.00 GiB) on startup is less than desired GPU memory utilization (0.9, 18.00 GiB).",
		[]Fact{{Kind: VLLMFree, Device: 1, Free: 21 * gib / 2, Total: 20 * gib, Want: 18 * gib, Value: "0.9", Has: HasFree | HasTotal | HasWant, Framework: "vllm"}}},
	{"vllm's cache", "No available memory for the cache blocks.", []Fact{{Kind: VLLMCache, Device: -1, Framework: "vllm"}}},

	// CuPy, RMM, llama.cpp.
	{"cupy", "Out of memory allocating 1,024 bytes (allocated so far: 2,048 bytes, limit set to: 3,072 bytes).",
		[]Fact{{Kind: CuPyOOM, Device: -1, Want: 1024, Allocated: 2048, Limit: 3072, Has: HasWant | HasAllocated | HasLimit, Framework: "cupy"}}},
	{"cupy of 6", "out of memory to allocate 1024 bytes (total 2048 bytes)", []Fact{{Kind: CuPyOOM, Device: -1, Want: 1024, Allocated: 2048, Has: HasWant | HasAllocated, Framework: "cupy"}}},
	{"rmm", "  what():  std::bad_alloc: out_of_memory: RMM failure at:/a/pool.hpp:12: Maximum pool size exceeded (failed to allocate 2.000000 GiB)",
		[]Fact{{Kind: RMMOOM, Device: -1, Want: 2 * gib, Has: HasWant, Value: "Maximum pool size exceeded", Framework: "rmm"}}},
	{"rmm of the driver", "MemoryError: std::bad_alloc: CUDA error at: /a/cuda.hpp:34: cudaErrorMemoryAllocation out of memory",
		[]Fact{{Kind: RMMOOM, Device: -1, Value: "cudaErrorMemoryAllocation out of memory", Framework: "rmm"}}},
	{"llama", "alloc_buffer: allocating 512.50 MiB on device 1: cudaMalloc failed: out of memory",
		[]Fact{{Kind: LlamaOOM, Device: 1, Want: 512*mib + mib/2, Has: HasWant, Value: "cudaMalloc failed: out of memory", Framework: "llama.cpp"}}},
	{"llama of 2023", "CUDA error 2 at ggml-cuda.cu:99: out of memory", []Fact{{Kind: CUDAError, Device: -1, Value: "out of memory", Framework: "llama.cpp"}}},
	{"llama's host", "failed to allocate 64.00 MiB of pinned memory: out of memory", []Fact{{Kind: HostPinned, Nonfatal: true, Device: -1, Want: 64 * mib, Has: HasWant, Framework: "llama.cpp"}}},

	// The host, limiters, settings.
	{"host", "could not allocate pinned host memory of size: 4096", []Fact{{Kind: HostPinned, Device: -1, Want: 4096, Has: HasWant}}},
	{"host of the driver", "failed to alloc 4096 bytes on host: CUDA_ERROR_OUT_OF_MEMORY", []Fact{{Kind: HostPinned, Device: -1, Want: 4096, Has: HasWant, Code: "CUDA_ERROR_OUT_OF_MEMORY"}}},
	{"container's limit", "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=31,uid=0", []Fact{{Kind: HostOOMKilled, Device: -1, PID: 31, Name: "python", Value: "CONSTRAINT_MEMCG"}}},
	{"killed", "Out of memory: Killed process 31 (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB", []Fact{{Kind: HostOOMKilled, Device: -1, PID: 31, Name: "python", InUse: 8192, Has: HasInUse}}},
	{"shell", "run.sh: line 7:  4242 Killed                  python train.py", []Fact{{Kind: HostOOMKilled, Device: -1, PID: 4242, Name: "python train.py", Value: "SIGKILL"}}},
	{"slurm", "slurmstepd: error: Detected 2 oom_kill events in StepId=1.0", []Fact{{Kind: HostOOMKilled, Device: -1}}},
	{"driver's host", "NVRM: GPU0 nvAssertOk: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)", []Fact{{Kind: HostDriver, Device: -1, Code: "NV_ERR_NO_MEMORY"}}},
	{"hami", "[HAMI-core ERROR (pid:7 thread=1 allocator.c:53)]: Device 2 OOM 3000 / 2000",
		[]Fact{{Kind: Limiter, Name: "hami", Value: "ERROR", Device: -1}, {Kind: Limiter, Name: "hami", Device: 2, PID: 7, InUse: 3000, Limit: 2000, Has: HasInUse | HasLimit}}},
	{"nvshare", "nvshare's cuMemGetInfo returning free=1024.00 MiB, total=2048.00 MiB", []Fact{{Kind: Limiter, Name: "nvshare", Value: "shown", Device: -1, Free: gib, Total: 2 * gib, Has: HasFree | HasTotal}}},
	{"both fractions", "ValueError: XLA_CLIENT_MEM_FRACTION is specified together with XLA_PYTHON_CLIENT_MEM_FRACTION. Remove the latter one, it is deprecated.",
		[]Fact{{Kind: Setting, Framework: "jax", Name: "XLA_PYTHON_CLIENT_MEM_FRACTION", Device: -1}}},
	{"allocator's name", `ValueError: XLA_PYTHON_CLIENT_ALLOCATOR env var must be "default", "platform", "bfc", or "cuda_async", got "poool"`,
		[]Fact{{Kind: Setting, Framework: "jax", Name: "XLA_PYTHON_CLIENT_ALLOCATOR", Value: "poool", Device: -1}}},
	{"setting", "export XLA_PYTHON_CLIENT_MEM_FRACTION=.45", []Fact{{Kind: SettingSeen, Name: "XLA_PYTHON_CLIENT_MEM_FRACTION", Value: ".45", Device: -1}}},
	{"setting in python", "os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'", []Fact{{Kind: SettingSeen, Name: "XLA_PYTHON_CLIENT_PREALLOCATE", Value: "false", Device: -1}}},
	{"advice is no setting", "please set XLA_FLAGS=--xla_gpu_x=false.", nil},

	// The machine.
	{"smi's use", "| 30%   45C    P2    90W / 300W |   1000MiB / 8192MiB |     12%      Default |", []Fact{{Kind: SmiMemory, Device: -1, InUse: 1000 * mib, Total: 8192 * mib, Has: HasInUse | HasTotal}}},
	{"smi's card", "|   3  Some Card 80GB       On  | 00000000:1A:00.0 Off |                    0 |", []Fact{{Kind: SmiGPU, Device: 3, Name: "Some Card 80GB"}}},
	{"smi's process", "|    3   N/A  N/A      4242      C   ...env/bin/python3          700MiB |", []Fact{{Kind: SmiProcess, Device: 3, PID: 4242, Name: "...env/bin/python3", Value: "C", InUse: 700 * mib, Has: HasInUse}}},
	{"smi's process of 2018", "|    3      4242      G   /usr/lib/Xorg          70MiB |", []Fact{{Kind: SmiProcess, Device: 3, PID: 4242, Name: "/usr/lib/Xorg", Value: "G", InUse: 70 * mib, Has: HasInUse}}},
	{"driver", "| NVIDIA-SMI 555.10    Driver Version: 555.10    CUDA Version: 12.9 |", []Fact{{Kind: Version, Name: "driver", Version: "555.10", Device: -1}, {Kind: Version, Name: "cuda", Version: "12.9", Device: -1}}},
	{"jax", "jax 0.4.99 and jaxlib==0.4.98", []Fact{{Kind: Version, Name: "jax", Version: "0.4.99", Device: -1}, {Kind: Version, Name: "jaxlib", Version: "0.4.98", Device: -1}}},
	{"tensorflow", "tensorflow==2.99.1", []Fact{{Kind: Version, Name: "tensorflow", Version: "2.99.1", Device: -1}}},
	{"torch", "PyTorch version: 2.9.1+cu128", []Fact{{Kind: Version, Name: "torch", Version: "2.9.1+cu128", Device: -1}}},
	{"missing", "Could not load dynamic library 'libfoo.so.7'; dlerror: libfoo.so.7: cannot open shared object file", []Fact{{Kind: LibraryMissing, Name: "libfoo.so.7", Device: -1}}},
	{"pip list", "tensorflow                   2.99.0.post1", []Fact{{Kind: Version, Name: "tensorflow", Version: "2.99.0.post1", Device: -1}}},
	{"wheel", "jaxlib-0.4.98+cuda12.cudnn89-cp39", []Fact{{Kind: Version, Name: "jaxlib", Version: "0.4.98+cuda12.cudnn89", Device: -1}}},
	{"mismatch", "Loaded runtime CuDNN library: 8.0.5 but source was compiled with: 8.6.0.", []Fact{{Kind: LibraryMismatch, Name: "cudnn", Version: "8.0.5", Value: "8.6.0", Device: -1}}},
	{"traceback", `  File "/usr/lib/python3/site-packages/jax/_src/api.py", line 1, in f`, []Fact{{Kind: Loaded, Framework: "jax", Device: -1}}},

	{"nothing", "Epoch 12/100 loss=0.123 - memory is fine", nil},
}

func TestFormats(t *testing.T) {
	for _, tt := range formats {
		t.Run(tt.name, func(t *testing.T) {
			got := facts(t, tt.line+"\n")
			if d := cmp.Diff(tt.want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Fact{}, "Line", "Text", "From", "Level")); d != "" {
				t.Errorf("%s\n%s", tt.line, d)
			}
		})
	}
}
