// The tables of releases: what each release of each framework does otherwise
// than those before it, in words for the documentation, in code for the readers,
// and with the source. Nothing else in this module knows versions.

package frameworks

import (
	"gpumem/policy"
)

// jaxRelease is what a release of JAX does.
//
// Versions are jaxlib's, whose part all this is. Since 0.4.0 those of jax are
// the same; before, jax 0.1.x to 0.3.x ran with a jaxlib of another number.
type jaxRelease struct {
	fraction    float64      // the default
	of          policy.Basis // what it is a fraction of
	float32     bool         // a fraction passes through a 32-bit float on its way into XLA
	boolAsText  bool         // every PREALLOCATE means yes, and a fraction of 0 means unset
	newFraction bool         // reads XLA_CLIENT_MEM_FRACTION, too
	collective  bool         // reads XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB
	abort, tfrt bool         // reads a variable that is not about memory, but can raise
	allocators  []string     // that XLA_PYTHON_CLIENT_ALLOCATOR may name
	platform    policy.Kind  // what "platform" gives; BFC: a growing pool of the whole device
	asyncKeep   bool         // cuda_async keeps its fraction without preallocation, too
	ignoreAlign bool         // the pool ignores the alignment asked for
	roundLimit  uint64       // bytes
	poolByPages bool         // the pool's regions are made of pages (cuMemCreate), no longer of cuMemAlloc
	tfrtAsync   bool         // the client of XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT has cuda_async, too
	spatial     bool         // whenever preallocating
	topDown     bool         // and then ordinary memory comes from the upper end
	remat       bool         // reads JAX_COMPILER_ENABLE_REMAT_PASS
	rematAdds   bool         // and leaves other passes of xla_disable_hlo_passes disabled
	needPages   bool         // refuses a device without virtual memory management

	platforms, gpuPlatforms []string            // that JAX_PLATFORMS may name without a plugin; that gpu means there
	noHostMemory            policy.SettingError // what becomes of a limit of 0 for pinned host memory
}

// jaxReleases, oldest first. All of them preallocate with BFC.
var jaxReleases = []policy.Row[jaxRelease]{
	{Version: policy.Version{0, 1, 16}, Date: "2019-05",
		Change: "A pool (BFC) by default, of 90 % of what is free when it is made.",
		Source: "JAX's documentation of 2019-07; `AllocatorConfig` in xla/python of that time",
		Apply: func(r *jaxRelease) {
			*r = jaxRelease{fraction: 0.9, of: policy.Free, platform: policy.Platform, asyncKeep: true, ignoreAlign: true,
				allocators: []string{"default", "platform", "bfc", "cuda_async"},
				platforms:  []string{"cpu", "rocm", "tpu"}, gpuPlatforms: []string{"cuda", "rocm"},
				noHostMemory: policy.SettingError{Text: "Segmentation fault", Then: "the process dies by SIGSEGV at one of the first copies to the GPU, or waits 10 seconds at each and then goes without pinned memory"}}
		}},
	{Version: policy.Version{0, 4, 1}, Date: "2022-12-13",
		Change: "The fraction is of the total memory, no longer of what is free.",
		Source: "JAX's CHANGELOG, jaxlib 0.4.1",
		Apply:  func(r *jaxRelease) { r.of = policy.Total }},
	{Version: policy.Version{0, 4, 4}, Date: "2023-02-16",
		Change: "The default fraction is 0.75, to leave room for NCCL.",
		Source: "XLA of 2023-02-09 (0.8) and 02-15 (0.75); in no CHANGELOG, and 0.4.4 is the first release whose XLA is newer",
		Apply:  func(r *jaxRelease) { r.fraction = 0.75 }},
	{Version: policy.Version{0, 4, 21}, Date: "2023-12-04",
		Change: "`XLA_PYTHON_CLIENT_PREALLOCATE=false` has no effect, nor has a fraction of 0.",
		Source: "jaxlib/xla_client.py of 0.4.21 to 0.4.23: `make_gpu_client` compares a truth value with texts; repaired by XLA commit 45c41c43",
		Apply:  func(r *jaxRelease) { r.boolAsText = true }},
	{Version: policy.Version{0, 4, 24}, Date: "2024-02-06",
		Change: "`XLA_PYTHON_CLIENT_PREALLOCATE` works again. `XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB` is read.",
		Source: "jaxlib/xla_client.py of 0.4.24",
		Apply:  func(r *jaxRelease) { r.boolAsText, r.collective = false, true }},
	// Until here XLA's GPU client was in jaxlib itself and a fraction stayed
	// Python's double (GpuAllocatorConfig.memory_fraction).
	{Version: policy.Version{0, 4, 30}, Date: "2024-06-18",
		Change: "XLA is a plugin behind the PJRT C API, through which a fraction passes as a 32-bit float.",
		Source: "JAX's CHANGELOG, jaxlib 0.4.30; xla/pjrt/c/pjrt_c_api_gpu_internal.cc",
		Apply:  func(r *jaxRelease) { r.float32 = true }},
	{Version: policy.Version{0, 4, 31}, Date: "2024-07-29",
		Change: "Without preallocation, `cuda_async` keeps nothing when the GPU is synchronised.",
		Source: "XLA of 2024-06-14",
		Apply:  func(r *jaxRelease) { r.asyncKeep = false }},
	{Version: policy.Version{0, 4, 32}, Date: "2024-09-11",
		Change: "`XLA_CLIENT_MEM_FRACTION`. The old name `XLA_PYTHON_CLIENT_MEM_FRACTION` still works, but not beside it.",
		Source: "XLA PR 16457; jaxlib/xla_client.py of 0.4.32",
		Apply:  func(r *jaxRelease) { r.newFraction = true }},
	{Version: policy.Version{0, 4, 34}, Date: "2024-10-04",
		Change: "`JAX_COMPILER_ENABLE_REMAT_PASS` (`jax_compiler_enable_remat_pass`), on by default: XLA's recompute pass can be switched off.",
		Source: "jax/_src/config.py and compiler.py of 0.4.33 and 0.4.34",
		Apply:  func(r *jaxRelease) { r.remat = true }},
	{Version: policy.Version{0, 6, 0}, Date: "2025-04",
		Change: "`rocm` in `JAX_PLATFORMS` needs a plugin, as `cuda` does.",
		Source: "jax/_src/xla_bridge.py of 0.5.3 and 0.6.0",
		Apply:  func(r *jaxRelease) { r.platforms = []string{"cpu", "tpu"} }},
	{Version: policy.Version{0, 7, 0}, Date: "2025-07-22",
		Change: "`XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE` is read: not about memory, but a text that is no integer is an error.",
		Source: "jaxlib/xla_client.py of 0.7.0",
		Apply:  func(r *jaxRelease) { r.abort = true }},
	{Version: policy.Version{0, 7, 1}, Date: "2025-08-20",
		Change: "`XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT` is read, likewise.",
		Source: "jaxlib/xla_client.py of 0.7.1",
		Apply:  func(r *jaxRelease) { r.tfrt = true }},
	{Version: policy.Version{0, 10, 0}, Date: "2026-04-15",
		Change: "The allocator `vmm`.",
		Source: "jaxlib/xla_client.py of 0.10.0",
		Apply: func(r *jaxRelease) {
			r.allocators = []string{"default", "platform", "bfc", "cuda_async", "vmm"}
			r.tfrtAsync = true
		}},
	{Version: policy.Version{0, 10, 1}, Date: "2026-05-18",
		Change: "The allocator `platform` silently gives a growing pool of the whole GPU. The pool honours the alignment asked for.",
		Source: "openxla/xla#41761, #41659; XLA's BFCAllocator of 2026-04",
		Apply:  func(r *jaxRelease) { r.platform, r.ignoreAlign, r.needPages = policy.BFC, false, true }},
	{Version: policy.Version{0, 10, 2}, Date: "2026-06-17",
		Change: "The limit is rounded up to 2 MiB.",
		Source: "XLA of 2026-06-03",
		Apply:  func(r *jaxRelease) { r.roundLimit, r.poolByPages = 2<<20, true }},
	{Version: policy.Version{0, 11, 0}, Date: "2026-07-16",
		Change: "The pool serves collective memory from its upper end. `platform` is a pass-through again; `address` is another name for it.",
		Source: "XLA of 2026-06-15 (xla_gpu_enable_allocator_spatial_partitioning) and commit 604c077c",
		Apply: func(r *jaxRelease) {
			r.spatial, r.platform = true, policy.Platform
			r.noHostMemory = policy.SettingError{Text: "Segmentation fault", Then: "the process dies by SIGSEGV at one of the first copies to the GPU"}
			r.allocators = []string{"default", "platform", "bfc", "cuda_async", "vmm", "address"}
		}},
	{Version: policy.Version{0, 11, 1}, Date: "2026-08-17",
		Change: "The out-of-memory error names the allocator and the device. Switching the recompute pass off leaves the other passes of `xla_disable_hlo_passes` as they are.",
		Source: "the plugin jax-cuda12-pjrt 0.11.1 itself; jax/_src/compiler.py of 0.11.0 and 0.11.1",
		Apply: func(r *jaxRelease) {
			r.rematAdds = true
		}},
	{Version: policy.Version{0, 12, 0}, Date: "2026-10-16",
		Change: "A preallocated pool serves ordinary memory from its upper end, collective memory from its lower: the mirror image of before. The client option `memory_fraction_policy`, which only `JAX_PJRT_CLIENT_CREATE_OPTIONS` reaches.",
		Source: "XLA PR 48834; the plugin jax-cuda12-pjrt 0.12.0 itself",
		Apply: func(r *jaxRelease) {
			r.topDown = true
			r.platforms = []string{"cpu", "tpu", "proxy"}
			r.noHostMemory = policy.SettingError{Text: "The pinned host pool may be exhausted or fragmented (see XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB), or the underlying pinned allocation failed; check earlier allocator warnings for the root cause.", Then: "JAX raises JaxRuntimeError at the first copy to the GPU: there is no pinned host memory"}
		}},
}

// newestJAX is the newest release that was looked at.
var newestJAX = policy.Version{0, 12, 0, 1}

// tfRelease is what a release of TensorFlow does.
type tfRelease struct {
	leave       policy.LeaveRule
	firstRegion uint64 // of a growing pool, in bytes
	hostLimit   uint64 // of the pinned host pool, in bytes
	async       bool   // knows cuda_malloc_async
	system      bool   // reads TF_DEVICE_MIN_SYS_MEMORY_IN_MB
	wraps       bool   // counts the bytes of TF_DEVICE_MIN_SYS_MEMORY_IN_MB in 32 bits
	asyncOption bool   // honours use_cuda_malloc_async
	plus        bool   // a number may begin with a plus sign
}

// newestTensorFlow is the newest release that was asked.
var newestTensorFlow = policy.Version{2, 21}

// tfReleases, oldest first.
var tfReleases = []policy.Row[tfRelease]{
	{Version: policy.Version{2, 2, 0}, Date: "2020-05-06",
		Change: "The pool is what is free less 6 % of it, at least 300 MiB; 225 MiB where less than 2 GiB are free.",
		Source: "TensorFlow 2.2.3 itself",
		Apply: func(r *tfRelease) {
			*r = tfRelease{leave: policy.LeaveSixth, firstRegion: 1 << 20, hostLimit: 64 << 30}
		}},
	{Version: policy.Version{2, 5, 0}, Date: "2021-05-14",
		Change: "The pool is what is free less 500 MiB, 1050 MiB or 1536 MiB, by compute capability. A growing pool begins with 2 MiB. `TF_GPU_ALLOCATOR=cuda_malloc_async` and `TF_DEVICE_MIN_SYS_MEMORY_IN_MB`.",
		Source: "TensorFlow 2.5.3 itself; tensorflow#44810",
		Apply: func(r *tfRelease) {
			r.leave, r.firstRegion = policy.LeaveSteps, 2<<20
			r.async, r.system, r.wraps = true, true, true
		}},
	{Version: policy.Version{2, 7, 0}, Date: "2021-11-04",
		Change: "`TF_DEVICE_MIN_SYS_MEMORY_IN_MB` is counted in 64 bits: before, 6000 meant 1904. `experimental.use_cuda_malloc_async` works.",
		Source: "TensorFlow 2.6.5 and 2.8.4 themselves",
		Apply:  func(r *tfRelease) { r.wraps, r.asyncOption = false, true }},
	{Version: policy.Version{2, 12, 0}, Date: "2023-03-23",
		Change: "Pinned host memory is limited to 128 GiB by default, no longer 64.",
		Source: "TensorFlow 2.11.1 and 2.12.1 themselves",
		Apply:  func(r *tfRelease) { r.hostLimit = 128 << 30 }},
	{Version: policy.Version{2, 13, 0}, Date: "2023-07-05",
		Change: "1800 MiB are left on compute capability 9 and later.",
		Source: "TensorFlow 2.13.1 itself",
		Apply:  func(r *tfRelease) { r.leave = policy.LeaveSteps9 }},
	{Version: policy.Version{2, 20, 0}, Date: "2025-08-13",
		Change: "A number in a variable may begin with a plus sign.",
		Source: "TensorFlow 2.20.0 itself",
		Apply:  func(r *tfRelease) { r.plus = true }},
}

// cupyRelease is what a release of CuPy does.
type cupyRelease struct {
	limit bool // reads CUPY_GPU_MEMORY_LIMIT
}

// cupyReleases, oldest first.
var cupyReleases = []policy.Row[cupyRelease]{
	{Version: policy.Version{6, 0, 0}, Date: "2019-05-16",
		Change: "The oldest release known here. The pool takes memory as it is needed; only the program can limit it.",
		Source: "CuPy 6.7.0, asked",
		Apply:  func(*cupyRelease) {}},
	{Version: policy.Version{7, 0, 0}, Date: "2019-12-05",
		Change: "`CUPY_GPU_MEMORY_LIMIT`.",
		Source: "CuPy 6.7.0 and 7.0.0, asked",
		Apply:  func(r *cupyRelease) { r.limit = true }},
}

// newestCuPy is the newest release that was looked at.
var newestCuPy = policy.Version{14, 2}
