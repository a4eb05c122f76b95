package doctor

// A Kind is what a Fact says. The comments give the message's shape, its era
// and who prints it; X, A, B are sizes, N is a number.
type Kind string

// JAX, XLA and the driver below them.
const (
	// XLARefused: "Out of memory while trying to allocate X", what a program
	// of JAX sees. N bytes until 2025-11, then 20.00GiB, since 2026-07 with the
	// allocator and the device (XLA's tsl/framework and pjrt). Code is the
	// status before it; up to JAX 0.3 it was "Resource exhausted".
	XLARefused Kind = "xla-refused"
	// XLADevice: "Failed to allocate request for A (NB) on device ordinal N",
	// XLA without a pool: a request to the driver failed (0.4.2x on).
	XLADevice Kind = "xla-device"
	// DeviceRefused: "failed to allocate A (N bytes) from device: CODE" and
	// "[0] Failed to allocate device memory of A (N bytes): ..." of 2025 on. The
	// driver refused a region of a pool (StreamExecutor). A growing pool asks again for
	// 9/10 of it, ten times: a series of these is one refusal.
	DeviceRefused Kind = "device-refused"
	// VMMRefused: "Not enough PA budget: ..." or cuMemCreate with an error;
	// Limit is the budget, Allocated what is taken of it (allocator vmm, 2026).
	VMMRefused Kind = "vmm-refused"
	// VMMUnsupported: "Device N does not support CUDA Virtual Memory Management" (2026).
	VMMUnsupported Kind = "vmm-unsupported"
	// Preallocating: "XLA backend allocating N bytes on device N for ..." or
	// "will use up to N bytes": the limit of a pool at its start (pjrt/gpu, 2020 on).
	Preallocating Kind = "preallocating"
	// AllocatorChosen: "Using BFC allocator." and its like; Name is which.
	AllocatorChosen Kind = "allocator-chosen"
	// Context: cuDevicePrimaryCtxRetain or cuCtxCreate failed, no context could
	// be made on the device; Code says why. "CUDA runtime implicit
	// initialization ... failed" of TensorFlow is the same. Total as the driver
	// reports it, which is nonsense when the device is full.
	Context Kind = "context"
	// Backend: no GPU backend at all: "CUDA backend failed to initialize" and
	// its like (jax/_src/xla_bridge.py). Value is the reason.
	Backend Kind = "backend-failed"
	// CUDAError: a CUDA status that belongs to no other message here, such as
	// "CUDA error: out of memory"; Code is the status.
	CUDAError Kind = "cuda-error"
	// TPU: "Ran out of memory in memory space hbm. Used A of B hbm": the
	// compiler for Google's accelerator counts before it runs; Want and Total.
	TPU Kind = "tpu"
	// Doing: a line of a traceback that says what was being done; Name is
	// graphs (they were captured) or pinned (host memory was pinned).
	Doing Kind = "doing"
	// Resharding: "Involuntary full rematerialization" of XLA's partitioner: a
	// slow way from one sharding to another, and no failure.
	Resharding Kind = "resharding"
	// BackendCleared: "clear_backends()" of JAX: a call that makes a second
	// pool beside the first one.
	BackendCleared Kind = "backend-cleared"
)

// XLA's and TensorFlow's pool.
const (
	// BFCRefused: "Allocator (NAME) ran out of memory trying to allocate A
	// (rounded to N)", the head of a pool's report: the same words since 2015, with and without a
	// blank before "requested by op", since 2025-12 with the end of the pool. Name is the
	// op, Value the end.
	BFCRefused Kind = "bfc-refused"
	// BFCWarning: the same with "The caller indicates that this is not a
	// failure": the program goes on.
	BFCWarning Kind = "bfc-warning"
	// PoolFragmented: the advice "If the cause is memory fragmentation" in its
	// two wordings. It is printed whatever the cause.
	PoolFragmented Kind = "fragmentation-advice"
	// PoolStats: one line of the report's Stats, or of its sums; Name is the
	// label, Value the text behind it. Sizes: Limit; InUse for InUse, MaxInUse and
	// Sum Total; Reserved and Allocated also for the peaks of these; LargestFree;
	// Want for MaxAllocSize. Also the entries of a printed memory_stats() of
	// JAX, by their names there; a pool_bytes of None is a live cuda_async.
	PoolStats Kind = "pool-stats"
	// PoolSummary: "Total bytes in pool: ... memory_limit_: ..." (to 2026-06)
	// or "Allocator memory summary: ..." (after): Want, Free, LargestFree,
	// Total in regions, Limit.
	PoolSummary Kind = "pool-summary"
	// PoolMap: the report's last line of 100 columns; Value is it: * in use, x
	// lost to rounding, _ free.
	PoolMap Kind = "pool-map"
	// GarbageCollection: "Garbage collection: deallocate free memory regions"
	// (TensorFlow 2.x): a pool in pieces, the program goes on.
	GarbageCollection Kind = "garbage-collection"
)

// Programs that XLA compiles.
const (
	// BufferAssignment: one line of "BufferAssignment stats" (0.3 to 0.4, rare
	// since); Name is the label, Want the size. The heading has no Name.
	BufferAssignment Kind = "buffer-assignment"
	// PeakBuffer: "Size:" of an entry of "Peak buffers:"; Want.
	PeakBuffer Kind = "peak-buffer"
	// Remat: "Can't reduce memory use below A by rematerialization; only
	// reduced to B, down from C originally" (0.4 on): Limit, Want, Allocated in this order.
	// An estimate of the compiler, no failure.
	Remat Kind = "rematerialization"
)

// Libraries.
const (
	// CuDNNHandle: "Could not create cudnn handle: CODE", or the error before
	// it. INTERNAL_ERROR is not always memory.
	CuDNNHandle Kind = "cudnn-handle"
	// CuDNNCall: another cuDNN status, or "DNN library initialization failed".
	CuDNNCall Kind = "cudnn-call"
	// CuDNNConv: "Failed to determine best cudnn convolution algorithm" (2021 to 2024).
	CuDNNConv Kind = "cudnn-convolution"
	// DeviceFree: "Memory usage: N bytes free, N bytes total." behind a
	// failure (2023 on), or TensorFlow's "Total memory:" and "Free memory:": what the driver has.
	DeviceFree Kind = "device-free"
	// CuBLASHandle: "failed to create cublas handle: CODE" in words or as a
	// status, and PyTorch's "when calling cublasCreate(handle)".
	CuBLASHandle Kind = "cublas-handle"
	// CuBLASCall: cuBLAS failed in another place, such as GetBlasGemmAlgorithms.
	CuBLASCall Kind = "cublas-call"
	// CuSolver: "operation cusolverDnCreate(&handle) failed: cuSolver internal
	// error" of jaxlib; Name is the operation.
	CuSolver Kind = "cusolver"
	// CuSparse, CuFFT: the same of these, plans included.
	CuSparse Kind = "cusparse"
	CuFFT    Kind = "cufft"
	// CUBIN: "Failed to load in-memory CUBIN (compiled for a different GPU?):
	// CODE" (2022 on, the words in brackets not in all).
	CUBIN Kind = "cubin"
	// NCCL: "unhandled cuda error", "Cuda failure N 'out of memory'" and
	// "Failed to CUDA calloc N bytes"; Want.
	NCCL Kind = "nccl"
	// Graph: a CUDA graph or command buffer could not be made; Value is the
	// number of graphs alive.
	Graph Kind = "cuda-graph"
)

// Frameworks.
const (
	// TFOOM: "OOM when allocating tensor with shape[...]"; Value is the shape,
	// Allocator the pool where it is told.
	TFOOM Kind = "tensorflow-oom"
	// TFCopy: "Dst tensor is not initialized": a copy to the GPU had no memory.
	TFCopy Kind = "tensorflow-copy"
	// TFDevice: "Created device ... with N MB memory": Limit is what its pool
	// may take, in MiB.
	TFDevice Kind = "tensorflow-device"
	// TorchOOM: "CUDA out of memory. Tried to allocate X ..." in the two
	// layouts (to 2.0, and since 2.1; Name is device or use for a sentence of it alone). Free and Total are the device's,
	// Allocated and Reserved PyTorch's, Limit what per_process_memory_fraction allows.
	// In the newer layout Reserved is what is reserved and not allocated.
	TorchOOM Kind = "torch-oom"
	// TorchProcess: "Process N has X memory in use", within the newer layout;
	// Name is "this" for the process that failed.
	TorchProcess Kind = "torch-process"
	// TorchPrivate: "with X allocated in private pools (e.g., CUDA Graphs)"; Allocated.
	TorchPrivate Kind = "torch-private-pools"
	// TorchAdvice: the advice to try max_split_size_mb or expandable_segments,
	// printed whatever the cause; Value is the setting.
	TorchAdvice Kind = "torch-advice"
	// VLLMFree: "Free memory on device (A/B GiB) on startup is less than
	// desired GPU memory utilization (F, C GiB)": Free, Total, Want; Value is F.
	VLLMFree Kind = "vllm-free"
	// VLLMCache: no room for the KV cache; VLLMMemory: what it measured,
	// "Available KV cache memory", "total_gpu_memory=...". Its Name is weights,
	// graphs (Value start: they are about to be captured; Allocated: what they
	// took) or profiling: the free memory changed while vLLM measured, Free is
	// the one afterwards and Reserved the one before; in the wording of used
	// memory InUse is the one afterwards and Reserved the one before.
	VLLMCache  Kind = "vllm-cache"
	VLLMMemory Kind = "vllm-memory"
	// CuPyOOM: "Out of memory allocating N bytes (allocated so far: N bytes,
	// limit set to: N bytes)", and "out of memory to allocate N bytes (total N bytes)" up to 7.
	CuPyOOM Kind = "cupy-oom"
	// RMMOOM: "Maximum pool size exceeded" and other failures of RMM; Value is it.
	RMMOOM Kind = "rmm-oom"
	// RMMDevice: "Simulating GPU with memory size of N bytes."
	RMMDevice Kind = "rmm-device"
	// LlamaOOM: "allocating X MiB on device N: cudaMalloc failed: out of
	// memory" of llama.cpp, which Ollama runs; LlamaLoad: that it could not
	// load, LlamaMemory: what Ollama estimated.
	LlamaOOM    Kind = "llama-oom"
	LlamaLoad   Kind = "llama-load"
	LlamaMemory Kind = "llama-memory"
)

// Host, limiters, settings, and the machine.
const (
	// HostPinned: pinned host memory was refused: "could not allocate pinned
	// host memory of size: N", "failed to alloc N bytes on host", "Out of host memory".
	HostPinned Kind = "host-pinned"
	// HostOOMKilled: the kernel killed for memory; Value is the constraint
	// (CONSTRAINT_MEMCG is a container's limit; SIGKILL where a
	// shell said no more than Killed, which may have another sender), InUse the resident memory.
	HostOOMKilled Kind = "host-killed"
	// HostDriver: "NVRM: ... NV_ERR_NO_MEMORY" in the kernel's log.
	HostDriver Kind = "host-driver"
	// HostWarning: "Allocation of N exceeds 10% of free system memory."
	// (TensorFlow's cpu_allocator_impl.cc): the program goes on; Want, Value the percents.
	HostWarning Kind = "host-warning"
	// HostShared: /dev/shm is full, or a worker died of it (PyTorch's DataLoader).
	HostShared Kind = "host-shared"
	// Tegra: NvMap could not allocate: the memory that a Jetson's processor and GPU share.
	Tegra Kind = "tegra"
	// HostRefused: the host's own allocator: std::bad_alloc, MemoryError, "Cannot allocate memory".
	HostRefused Kind = "host-refused"
	// Limiter: HAMi's or nvshare's lines; Name is hami or nvshare. "Device 0
	// OOM A / B" has InUse and Limit; a InUse near 2^64 is below zero.
	Limiter Kind = "limiter"
	// Setting: a setting refused or ignored, in the words of who read it; Name
	// is the variable if told, Value the text.
	Setting Kind = "setting"
	// SettingSeen: NAME=VALUE of a variable that policy knows of, in an
	// echoed command line or environment.
	SettingSeen Kind = "setting-seen"
	// SmiGPU, SmiMemory, SmiProcess: rows of a pasted nvidia-smi table: Name;
	// InUse and Total; PID, Name and InUse.
	SmiGPU     Kind = "smi-gpu"
	SmiMemory  Kind = "smi-memory"
	SmiProcess Kind = "smi-process"
	// Version: a release that the log names; Name is of what.
	Version Kind = "version"
	// Loaded: a framework is in the process, as its paths or its log lines
	// say; Framework is which. Once for each.
	Loaded Kind = "loaded"
	// LibraryLoaded, LibraryMissing: a shared library was opened or was not
	// found; Name is the file.
	LibraryLoaded  Kind = "library-loaded"
	LibraryMissing Kind = "library-missing"
	// LibraryMismatch: built for one version and run with another; Version is
	// the one loaded, Value the one built for. Name image: code that the device
	// cannot run, such as "no kernel image is available"; Code is the status.
	LibraryMismatch Kind = "library-mismatch"
	// OtherFailure: a failure that shares words with memory and is none; Name
	// says which ("an illegal address"), Code is its status. Want and Limit are
	// those of a kernel's shared memory or of a message.
	OtherFailure Kind = "other-failure"
	// DeviceName: the name of a GPU, in any message that has it; Name, and
	// Device where it is told.
	DeviceName Kind = "device-name"
	// Reading: memory in use that a program printed of itself, such as
	// "memory_allocated: N" or "GPU memory: 1234 MiB"; Name is the label, InUse
	// the value. What has no unit is in bytes.
	Reading Kind = "reading"
)
