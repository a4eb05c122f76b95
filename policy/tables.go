// The tables of releases: what each release of each framework does otherwise
// than those before it, in words for the documentation, in code for the readers,
// and with the source. Nothing else in this module knows versions.

package policy

// jaxRelease is what a release of JAX does.
//
// Versions are jaxlib's, whose part all this is. Since 0.4.0 those of jax are
// the same; before, jax 0.1.x to 0.3.x ran with a jaxlib of another number.
type jaxRelease struct {
	fraction    float64  // the default
	of          Basis    // what it is a fraction of
	float32     bool     // a fraction passes through a 32-bit float on its way into XLA
	boolAsText  bool     // every PREALLOCATE means yes, and a fraction of 0 means unset
	newFraction bool     // reads XLA_CLIENT_MEM_FRACTION, too
	collective  bool     // reads XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB
	abort, tfrt bool     // reads a variable that is not about memory, but can raise
	allocators  []string // that XLA_PYTHON_CLIENT_ALLOCATOR may name
	platform    Kind     // what "platform" gives; BFC: a growing pool of the whole device
	asyncKeep   bool     // cuda_async keeps its fraction without preallocation, too
	ignoreAlign bool     // the pool ignores the alignment asked for
	roundLimit  uint64   // bytes
	poolByPages bool     // the pool's regions are made of pages (cuMemCreate), no longer of cuMemAlloc
	tfrtAsync   bool     // the client of XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT has cuda_async, too
	spatial     bool     // whenever preallocating
	topDown     bool     // and then ordinary memory comes from the upper end
	remat       bool     // reads JAX_COMPILER_ENABLE_REMAT_PASS
	rematAdds   bool     // and leaves other passes of xla_disable_hlo_passes disabled
	needPages   bool     // refuses a device without virtual memory management

	platforms, gpuPlatforms []string     // that JAX_PLATFORMS may name without a plugin; that gpu means there
	noHostMemory            SettingError // what becomes of a limit of 0 for pinned host memory
}

// jaxReleases, oldest first. All of them preallocate with BFC.
var jaxReleases = []Row[jaxRelease]{
	{Version{0, 1, 16}, "2019-05",
		"A pool (BFC) by default, of 90 % of what is free when it is made.",
		"JAX's documentation of 2019-07; `AllocatorConfig` in xla/python of that time",
		func(r *jaxRelease) {
			*r = jaxRelease{fraction: 0.9, of: Free, platform: Platform, asyncKeep: true, ignoreAlign: true,
				allocators: []string{"default", "platform", "bfc", "cuda_async"},
				platforms:  []string{"cpu", "rocm", "tpu"}, gpuPlatforms: []string{"cuda", "rocm"},
				noHostMemory: SettingError{Text: "Segmentation fault", Then: "the process dies by SIGSEGV at one of the first copies to the GPU, or waits 10 seconds at each and then goes without pinned memory"}}
		}},
	{Version{0, 4, 1}, "2022-12-13",
		"The fraction is of the total memory, no longer of what is free.",
		"JAX's CHANGELOG, jaxlib 0.4.1",
		func(r *jaxRelease) { r.of = Total }},
	{Version{0, 4, 4}, "2023-02-16",
		"The default fraction is 0.75, to leave room for NCCL.",
		"XLA of 2023-02-09 (0.8) and 02-15 (0.75); in no CHANGELOG, and 0.4.4 is the first release whose XLA is newer",
		func(r *jaxRelease) { r.fraction = 0.75 }},
	{Version{0, 4, 21}, "2023-12-04",
		"`XLA_PYTHON_CLIENT_PREALLOCATE=false` has no effect, nor has a fraction of 0.",
		"jaxlib/xla_client.py of 0.4.21 to 0.4.23: `make_gpu_client` compares a truth value with texts; repaired by XLA commit 45c41c43",
		func(r *jaxRelease) { r.boolAsText = true }},
	{Version{0, 4, 24}, "2024-02-06",
		"`XLA_PYTHON_CLIENT_PREALLOCATE` works again. `XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB` is read.",
		"jaxlib/xla_client.py of 0.4.24",
		func(r *jaxRelease) { r.boolAsText, r.collective = false, true }},
	// Until here XLA's GPU client was in jaxlib itself and a fraction stayed
	// Python's double (GpuAllocatorConfig.memory_fraction).
	{Version{0, 4, 30}, "2024-06-18",
		"XLA is a plugin behind the PJRT C API, through which a fraction passes as a 32-bit float.",
		"JAX's CHANGELOG, jaxlib 0.4.30; xla/pjrt/c/pjrt_c_api_gpu_internal.cc",
		func(r *jaxRelease) { r.float32 = true }},
	{Version{0, 4, 31}, "2024-07-29",
		"Without preallocation, `cuda_async` keeps nothing when the GPU is synchronised.",
		"XLA of 2024-06-14",
		func(r *jaxRelease) { r.asyncKeep = false }},
	{Version{0, 4, 32}, "2024-09-11",
		"`XLA_CLIENT_MEM_FRACTION`. The old name `XLA_PYTHON_CLIENT_MEM_FRACTION` still works, but not beside it.",
		"XLA PR 16457; jaxlib/xla_client.py of 0.4.32",
		func(r *jaxRelease) { r.newFraction = true }},
	{Version{0, 4, 34}, "2024-10-04",
		"`JAX_COMPILER_ENABLE_REMAT_PASS` (`jax_compiler_enable_remat_pass`), on by default: XLA's recompute pass can be switched off.",
		"jax/_src/config.py and compiler.py of 0.4.33 and 0.4.34",
		func(r *jaxRelease) { r.remat = true }},
	{Version{0, 6, 0}, "2025-04",
		"`rocm` in `JAX_PLATFORMS` needs a plugin, as `cuda` does.",
		"jax/_src/xla_bridge.py of 0.5.3 and 0.6.0",
		func(r *jaxRelease) { r.platforms = []string{"cpu", "tpu"} }},
	{Version{0, 7, 0}, "2025-07-22",
		"`XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE` is read: not about memory, but a text that is no integer is an error.",
		"jaxlib/xla_client.py of 0.7.0",
		func(r *jaxRelease) { r.abort = true }},
	{Version{0, 7, 1}, "2025-08-20",
		"`XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT` is read, likewise.",
		"jaxlib/xla_client.py of 0.7.1",
		func(r *jaxRelease) { r.tfrt = true }},
	{Version{0, 10, 0}, "2026-04-15",
		"The allocator `vmm`.",
		"jaxlib/xla_client.py of 0.10.0",
		func(r *jaxRelease) {
			r.allocators = []string{"default", "platform", "bfc", "cuda_async", "vmm"}
			r.tfrtAsync = true
		}},
	{Version{0, 10, 1}, "2026-05-18",
		"The allocator `platform` silently gives a growing pool of the whole GPU. The pool honours the alignment asked for.",
		"openxla/xla#41761, #41659; XLA's BFCAllocator of 2026-04",
		func(r *jaxRelease) { r.platform, r.ignoreAlign, r.needPages = BFC, false, true }},
	{Version{0, 10, 2}, "2026-06-17",
		"The limit is rounded up to 2 MiB.",
		"XLA of 2026-06-03",
		func(r *jaxRelease) { r.roundLimit, r.poolByPages = 2<<20, true }},
	{Version{0, 11, 0}, "2026-07-16",
		"The pool serves collective memory from its upper end. `platform` is a pass-through again; `address` is another name for it.",
		"XLA of 2026-06-15 (xla_gpu_enable_allocator_spatial_partitioning) and commit 604c077c",
		func(r *jaxRelease) {
			r.spatial, r.platform = true, Platform
			r.noHostMemory = SettingError{Text: "Segmentation fault", Then: "the process dies by SIGSEGV at one of the first copies to the GPU"}
			r.allocators = []string{"default", "platform", "bfc", "cuda_async", "vmm", "address"}
		}},
	{Version{0, 11, 1}, "2026-08-17",
		"The out-of-memory error names the allocator and the device. Switching the recompute pass off leaves the other passes of `xla_disable_hlo_passes` as they are.",
		"the plugin jax-cuda12-pjrt 0.11.1 itself; jax/_src/compiler.py of 0.11.0 and 0.11.1",
		func(r *jaxRelease) {
			r.rematAdds = true
		}},
	{Version{0, 12, 0}, "2026-10-16",
		"A preallocated pool serves ordinary memory from its upper end, collective memory from its lower: the mirror image of before. The client option `memory_fraction_policy`, which only `JAX_PJRT_CLIENT_CREATE_OPTIONS` reaches.",
		"XLA PR 48834; the plugin jax-cuda12-pjrt 0.12.0 itself",
		func(r *jaxRelease) {
			r.topDown = true
			r.platforms = []string{"cpu", "tpu", "proxy"}
			r.noHostMemory = SettingError{Text: "The pinned host pool may be exhausted or fragmented (see XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB), or the underlying pinned allocation failed; check earlier allocator warnings for the root cause.", Then: "JAX raises JaxRuntimeError at the first copy to the GPU: there is no pinned host memory"}
		}},
}

// newestJAX is the newest release that was looked at.
var newestJAX = Version{0, 12, 0, 1}

// tfRelease is what a release of TensorFlow does.
type tfRelease struct {
	leave       LeaveRule
	firstRegion uint64 // of a growing pool, in bytes
	hostLimit   uint64 // of the pinned host pool, in bytes
	async       bool   // knows cuda_malloc_async
	system      bool   // reads TF_DEVICE_MIN_SYS_MEMORY_IN_MB
	wraps       bool   // counts the bytes of TF_DEVICE_MIN_SYS_MEMORY_IN_MB in 32 bits
	asyncOption bool   // honours use_cuda_malloc_async
	plus        bool   // a number may begin with a plus sign
}

// newestTensorFlow is the newest release that was asked.
var newestTensorFlow = Version{2, 21}

// tfReleases, oldest first.
var tfReleases = []Row[tfRelease]{
	{Version{2, 2, 0}, "2020-05-06",
		"The pool is what is free less 6 % of it, at least 300 MiB; 225 MiB where less than 2 GiB are free.",
		"TensorFlow 2.2.3 itself",
		func(r *tfRelease) { *r = tfRelease{leave: LeaveSixth, firstRegion: 1 << 20, hostLimit: 64 << 30} }},
	{Version{2, 5, 0}, "2021-05-14",
		"The pool is what is free less 500 MiB, 1050 MiB or 1536 MiB, by compute capability. A growing pool begins with 2 MiB. `TF_GPU_ALLOCATOR=cuda_malloc_async` and `TF_DEVICE_MIN_SYS_MEMORY_IN_MB`.",
		"TensorFlow 2.5.3 itself; tensorflow#44810",
		func(r *tfRelease) {
			r.leave, r.firstRegion = LeaveSteps, 2<<20
			r.async, r.system, r.wraps = true, true, true
		}},
	{Version{2, 7, 0}, "2021-11-04",
		"`TF_DEVICE_MIN_SYS_MEMORY_IN_MB` is counted in 64 bits: before, 6000 meant 1904. `experimental.use_cuda_malloc_async` works.",
		"TensorFlow 2.6.5 and 2.8.4 themselves",
		func(r *tfRelease) { r.wraps, r.asyncOption = false, true }},
	{Version{2, 12, 0}, "2023-03-23",
		"Pinned host memory is limited to 128 GiB by default, no longer 64.",
		"TensorFlow 2.11.1 and 2.12.1 themselves",
		func(r *tfRelease) { r.hostLimit = 128 << 30 }},
	{Version{2, 13, 0}, "2023-07-05",
		"1800 MiB are left on compute capability 9 and later.",
		"TensorFlow 2.13.1 itself",
		func(r *tfRelease) { r.leave = LeaveSteps9 }},
	{Version{2, 20, 0}, "2025-08-13",
		"A number in a variable may begin with a plus sign.",
		"TensorFlow 2.20.0 itself",
		func(r *tfRelease) { r.plus = true }},
}

// torchRelease is what a release of PyTorch's builds for CUDA does.
type release struct {
	grammar   torchGrammar
	keys      []torchKey
	divisions string // the word in its errors
	noStep    bool   // divisions of 0 in a list mean none
	crashes   bool   // a list without its end is read beyond it
	scolds    bool   // calls PYTORCH_CUDA_ALLOC_CONF deprecated and reads nothing else
	hipNoPool bool   // PYTORCH_NO_HIP_MEMORY_CACHING counts, too
	noPoolIs1 bool   // only the value 1 turns the pool off, not that the variable is set
	// places are where failed assertions are in PyTorch's source, by a part of
	// their text; none where that is not known.
	places map[string]string
}

// torchReleases, oldest first.
var releases = []Row[release]{
	{Version{1, 13, 0}, "2022-10-28",
		"The oldest release known here. `PYTORCH_CUDA_ALLOC_CONF` has `max_split_size_mb`, `roundup_power2_divisions` and `garbage_collection_threshold`; what has no value is passed over in silence.",
		"PyTorch 1.13.1, asked",
		func(r *release) {
			r.divisions = "divisons"
			r.know(true, (*reader).megabytes, keyMaxSplit)
			r.know(true, (*reader).threshold, keyGC)
			r.know(true, (*reader).roundup, keyRoundup)
		}},
	{Version{2, 0, 0}, "2023-03-15",
		"The list is read strictly: all that is not understood is an error. `backend`; `roundup_power2_divisions` may be a list.",
		"PyTorch 2.0.1, asked",
		func(r *release) {
			r.grammar, r.crashes = torchStrict, true
			r.know(false, (*reader).backend, keyBackend)
		}},
	{Version{2, 1, 0}, "2023-10-04",
		"`expandable_segments`.",
		"PyTorch 2.1.2, asked",
		func(r *release) { r.know(true, (*reader).truth, keyExpandable) }},
	{Version{2, 2, 0}, "2024-01-30",
		"`release_lock_on_cudamalloc`, `pinned_use_cuda_host_register`, `pinned_num_register_threads`.",
		"PyTorch 2.2.2, asked",
		func(r *release) {
			r.know(false, (*reader).truth, "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "pinned_use_cuda_host_register", "pinned_use_hip_host_register")
			r.know(false, (*reader).threads, "pinned_num_register_threads")
		}},
	{Version{2, 4, 0}, "2024-07-24",
		"In a list of `roundup_power2_divisions`, 0 means no rounding.",
		"PyTorch 2.3.1 and 2.4.1, asked",
		func(r *release) { r.noStep = true }},
	{Version{2, 6, 0}, "2025-01-29",
		"`max_non_split_rounding_mb`, `pinned_use_background_threads`. `PYTORCH_NO_HIP_MEMORY_CACHING` turns the pool off in builds for CUDA, too.",
		"PyTorch 2.5.1 and 2.6.0, asked; the names in their libraries",
		func(r *release) {
			r.crashes, r.hipNoPool = false, true
			r.know(true, (*reader).megabytes, keyNonSplit)
			r.know(true, (*reader).truth, "pinned_use_background_threads")
		}},
	{Version{2, 7, 0}, "2025-04-23",
		"`PYTORCH_NO_CUDA_MEMORY_CACHING` turns the pool off with the value 1 only; before, with any.",
		"`forceUncachedAllocator` in libc10_cuda.so of PyTorch 2.6.0, 2.7.1 and 2.8.0 (has_env, then check_env); PyTorch 2.14.1, asked",
		func(r *release) { r.noPoolIs1 = true }},
	{Version{2, 8, 0}, "2025-08-06",
		"An error spells \"divisions\" right.",
		"PyTorch 2.7.1 and 2.8.0, asked",
		func(r *release) { r.divisions = "divisions" }},
	{Version{2, 9, 0}, "2025-10-15",
		"`graph_capture_record_stream_reuse`. A warning calls `PYTORCH_CUDA_ALLOC_CONF` deprecated in favour of `PYTORCH_ALLOC_CONF`, which the pool for CUDA does not read.",
		"PyTorch 2.9.0 and 2.9.1, asked",
		func(r *release) {
			r.scolds = true
			r.know(false, (*reader).truth, "graph_capture_record_stream_reuse")
		}},
	{Version{2, 10, 0}, "2026-01-21",
		"`per_process_memory_fraction`, `pinned_reserve_segment_size_mb`. `PYTORCH_ALLOC_CONF` is read where `PYTORCH_CUDA_ALLOC_CONF` is not set. Separators are not checked any more. 20 MiB is enough for `max_split_size_mb`.",
		"PyTorch 2.10.0, asked; c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp of 2025-11",
		func(r *release) {
			r.grammar, r.scolds = torchTwice, false
			r.know(false, (*reader).fraction, keyFraction)
			r.know(false, (*reader).count, keyReserve)
		}},
	{Version{2, 11, 0}, "2026-03",
		"`large_segment_size_mb`.",
		"PyTorch 2.11.0, asked",
		func(r *release) { r.know(true, (*reader).megabytes, keyLarge) }},
	{Version{2, 12, 0}, "2026-05",
		"`throw_on_cudamalloc_oom`, `pinned_free_catch_all`.",
		"PyTorch 2.12.1, asked; PyTorch PR 179473",
		func(r *release) { r.know(false, (*reader).truth, keyThrow, "pinned_free_catch_all") }},
	{Version{2, 13, 0}, "2026-07",
		"`pinned_max_round_threshold_mb`, `pinned_max_cached_size_mb`.",
		"PyTorch 2.12.1 and 2.13.0, asked",
		func(r *release) { r.know(true, (*reader).megabytes, keyRoundMost, keyCacheMost) }},
	{Version{2, 15, 0}, "2026-11",
		"`expandable_segments_reserve`, `expandable_segments_reserve_by_class`.",
		"PyTorch 2.15.0, asked; PyTorch PR 192269",
		func(r *release) {
			r.know(false, (*reader).reserve, keyAddresses)
			r.know(false, (*reader).reserves, keyAddresses+"_by_class")
			const header = `"/__w/pytorch/pytorch/c10/core/AllocatorConfig.h":`
			r.places = map[string]string{
				"Index out of bounds": header + "123", "Expected closing bracket": header + "114",
				"Allocator backend": `"/__w/pytorch/pytorch/c10/cuda/CUDAAllocatorConfig.cpp":64`,
			}
		}},
}

// cupyRelease is what a release of CuPy does.
type cupyRelease struct {
	limit bool // reads CUPY_GPU_MEMORY_LIMIT
}

// cupyReleases, oldest first.
var cupyReleases = []Row[cupyRelease]{
	{Version{6, 0, 0}, "2019-05-16",
		"The oldest release known here. The pool takes memory as it is needed; only the program can limit it.",
		"CuPy 6.7.0, asked",
		func(*cupyRelease) {}},
	{Version{7, 0, 0}, "2019-12-05",
		"`CUPY_GPU_MEMORY_LIMIT`.",
		"CuPy 6.7.0 and 7.0.0, asked",
		func(r *cupyRelease) { r.limit = true }},
}

// newestTorch is the newest release that was looked at.
var newestTorch = Version{2, 15}

// newestCuPy is the newest release that was looked at.
var newestCuPy = Version{14, 2}
