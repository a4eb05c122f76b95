// Every variable that has to do with GPU memory, and those of the same
// programs that look like one. The documentation is made of this table.
//
// Which release reads what was looked up in the releases themselves where the
// source says so: the names that stand in the wheels of PyPI, from TensorFlow
// 1.15.5, PyTorch 1.13.1, CuPy 11.5.0 and jaxlib 0.4.13 on.

package frameworks

import (
	"gpumem/policy"
	"slices"
)

// About is what a variable is about.
type About uint8

// What variables are about.
const (
	AboutMemory  About = iota // GPU memory
	AboutDevices              // which GPUs are seen
	AboutHost                 // host memory for transfers
	AboutOther                // neither: here so that it is not taken for a typo, or since it can raise
)

// A Variable is one that somebody reads. The texts are Markdown.
type Variable struct {
	Name    string
	Readers []Reader // the one whose name it bears first
	About   About
	Values  string // what it takes
	Default string // what holds without it
	Effect  string // what it does
	Not     string // what it does not do, though it may seem to; may be empty
	Source  string // where that is known from
}

// A Reader is a program that reads a variable.
type Reader struct {
	// Framework is its name as in the type [Framework], or "driver" for what
	// NVIDIA's driver and libraries read, whatever the framework.
	Framework string
	// Since is the first release that reads it. Empty: all that are known, or
	// a framework without versions.
	Since string
}

// ReadBy reports whether a framework reads v, in any release.
func (v Variable) ReadBy(framework string) bool {
	return slices.ContainsFunc(v.Readers, func(r Reader) bool {
		return r.Framework == framework || r.Framework == "driver"
	})
}

// ReadAt reports whether a release of a framework reads v.
func (v Variable) ReadAt(framework string, at policy.Version) bool {
	return slices.ContainsFunc(v.Readers, func(r Reader) bool {
		if r.Framework != framework {
			return r.Framework == "driver"
		}
		since, _ := policy.ParseVersion(r.Since, "", "") // "": version 0
		return !at.Less(since)
	})
}

// Lookup returns the entry of a name in [Variables].
func Lookup(name string) (Variable, bool) {
	i := slices.IndexFunc(Variables, func(v Variable) bool { return v.Name == name })
	if i < 0 {
		return Variable{}, false
	}
	return Variables[i], true
}

// jaxAndOurs is JAX since a release. Our runtime reads what the newest JAX
// reads.
func jaxAndOurs(since string) []Reader { return []Reader{{"jax", since}, {"gpumem", ""}} }

// by is one framework since a release.
func by(framework, since string) []Reader { return []Reader{{framework, since}} }

// Variables is the table, in the order of the documentation: by the framework
// whose name a variable bears, the ones that people set most first.
var Variables = []Variable{
	// JAX, and XLA under it.
	{
		Name: preallocateVar, Readers: jaxAndOurs(""),
		Values:  "`false`, `False` and `0` mean no; every other text means yes",
		Default: "yes",
		Effect:  "Whether the first operation on a GPU takes the whole limit at once. Without it the pool grows by doubling, from 2 MiB.",
		Not:     "`FALSE`, `no` and `off` do not turn it off. A growing pool does not give memory back either, and keeps the same limit. In jaxlib 0.4.21 to 0.4.23 no text turns it off.",
		Source:  "jaxlib/xla_client.py; jax-ml/jax#19213",
	},
	{
		Name: fractionVar, Readers: jaxAndOurs("0.4.32"),
		Values:  "a number as Python's `float` reads it, such as `.5`",
		Default: "0.75 since jaxlib 0.4.4, 0.9 before",
		Effect:  "The limit of the pool as a part of the GPU's total memory.",
		Not:     "It is no percentage: `75` asks for 75 times the GPU, and is not refused. It does not count what is outside the pool: the CUDA context, NCCL, cuDNN. It is not a part of what is free. It stops JAX from finding the GPU if the old name is set as well.",
		Source:  "XLA PR 16457; jaxlib/xla_client.py of 0.4.32; jax-ml/jax#17426",
	},
	{
		Name: oldFractionVar, Readers: jaxAndOurs(""),
		Values:  "as `" + fractionVar + "`",
		Default: "as `" + fractionVar + "`",
		Effect:  "The old name of `" + fractionVar + "`, the only one up to jaxlib 0.4.31. It still works, and nothing warns of it.",
		Not:     "It cannot stand beside the new name, even with the same value. Up to jaxlib 0.4.0 it was a part of what is free and not of the total.",
		Source:  "jaxlib/xla_client.py; JAX's CHANGELOG, jaxlib 0.4.1",
	},
	{
		Name: allocatorVar, Readers: jaxAndOurs(""),
		Values:  "`default`, `bfc`, `platform`, `cuda_async`; `vmm` since 0.10.0; `address` since 0.11.0; upper or lower case",
		Default: "`default`, which is `bfc`",
		Effect:  "Who serves the requests: the pool (`bfc`), the driver for each one (`platform`, `address`), the driver's own pool (`cuda_async`), or mapped pages (`vmm`).",
		Not:     "Set but empty is not the default, it is refused. In 0.10.1 and 0.10.2 `platform` is a pool of the whole GPU that gives nothing back. With `platform` neither the fraction nor preallocation counts.",
		Source:  "jaxlib/xla_client.py; openxla/xla#41761",
	},
	{
		Name: collectiveVar, Readers: jaxAndOurs("0.4.24"),
		Values:  "a whole number of MiB, as Python's `int` reads it",
		Default: "0, as much as is needed",
		Effect:  "The size of the second pool, for collective memory.",
		Not:     "Since 0.11.0 it does nothing while preallocation is on: collective memory then comes from the one pool.",
		Source:  "jaxlib/xla_client.py of 0.4.24; XLA of 2026-06-15",
	},
	{
		Name: createVar, Readers: jaxAndOurs("0.4.30"),
		Values:  "`key:value;key:value`, such as `allocator:cuda_async`",
		Default: "nothing",
		Effect:  "Options for the GPU client. They replace those that JAX makes of its other variables. From 0.12.0 on `memory_fraction_policy:0.5-0.9` makes the pool half of the GPU.",
		Not:     "Only texts can be given so: `memory_fraction:.5` and `preallocate:false` are refused, for XLA wants a number and a truth value. The growth that `memory_fraction_policy` speaks of (here up to 90 %) is read and does not happen in 0.12.0; openxla/xla#48985, which is not released, lets the pool grow so, and #48907 gives it a size in bytes. It goes to the clients of all platforms, TPUs included.",
		Source:  "jax/_src/xla_bridge.py; marin-community/marin#7115",
	},
	{
		Name: perDeviceVar, Readers: []Reader{{"jax", ""}, {"gpumem", ""}, {"tensorflow", ""}},
		Values:  "a whole number of MiB",
		Default: "0, none",
		Effect:  "The largest single request of the driver. In JAX it bounds each request of the allocator `platform` and, up to 0.10.1, each region of the pool, which backs off to it; in TensorFlow, each region of its pool.",
		Not:     "It does not cap what a program takes: two requests below it may together be above it. A text that is no number ends the process.",
		Source:  "xla/stream_executor; the names in TensorFlow's wheels since 1.15.5",
	},
	{
		Name: unifiedVar, Readers: jaxAndOurs(""),
		Values:  "`1`, `true`, `0`, `false`",
		Default: "no",
		Effect:  "The pool is made of unified memory, which the driver moves between GPU and host, so that a fraction above 1 is more than the GPU has.",
		Not:     "A fraction below 1 counts as 1 with it. It does nothing for the allocators other than `bfc`. TensorFlow's own pool goes by `per_process_gpu_memory_fraction` above 1 and does not read it.",
		Source:  "xla/pjrt/gpu/gpu_helpers.cc; google-deepmind/alphafold#149",
	},
	{
		Name: hostLimitVar, Readers: by("jax", ""), About: AboutHost,
		Values:  "a whole number of GiB",
		Default: "64, or 16 with `" + hostPreVar + "`",
		Effect:  "The most pinned host memory for each GPU, for transfers and offloading.",
		Not:     "It is about the host, but JAX loses the GPU over it: a text that is no whole number, the empty one included, fails the client. With `0` the first copies to the GPU fail, or the process dies by SIGSEGV (up to 0.11.2).",
		Source:  "xla/pjrt/gpu/se_gpu_pjrt_client.cc; the plugins themselves, asked",
	},
	{
		Name: hostPreVar, Readers: by("jax", ""), About: AboutHost,
		Values:  "`1`, `true`, `0`, `false`",
		Default: "no",
		Effect:  "Pinned host memory is taken at once.",
		Not:     "It is about the host; `" + preallocateVar + "` is the one for the GPU. Any other text, the empty one included, fails the client: JAX loses the GPU.",
		Source:  "xla/pjrt/gpu/se_gpu_pjrt_client.cc; the plugins themselves, asked",
	},
	{
		Name: rematVar, Readers: by("jax", "0.4.34"),
		Values:  "`1`, `true`, `yes`, `on`, `0`, `false`, `no`, `off`; anything else is an error at import",
		Default: "yes",
		Effect:  "Whether XLA may compute values twice in place of keeping them, to need less memory.",
		Not:     "It acts when a program is compiled, and only where the program's peak passes the compiler's limit: 95 % of what the pool's limit leaves beside arguments and results, so that a larger fraction raises it; 80 % of the GPU in place of the pool's limit with the allocators that have none. It does nothing on the CPU. It is not `jax.checkpoint`. `enable_remat_opt_pass`, as JAX's page had it until 2025-06, never was an option's name. The same by XLA alone: `XLA_FLAGS=--xla_disable_hlo_passes=rematerialization`.",
		Source:  "jax/_src/config.py and compiler.py; jaxlib's py_client; XLA's gpu_hlo_schedule.cc; jax-ml/jax#26929",
	},
	{
		Name: platformsVar, Readers: by("jax", ""), About: AboutDevices,
		Values:  "`cpu`, `cuda`, ... with commas between, in small letters and without blanks",
		Default: "the best that is found",
		Effect:  "What JAX computes on: the first of the list, of which each has to work. With `cuda` JAX stops where it would else go on without the GPU after a setting that it refuses; with `cpu` no GPU memory is taken.",
		Not:     "`cpu,cuda` runs on the CPU. `gpu` stands for `cuda` and `rocm`, and is an error where only one of them is installed; `CUDA`, ` cuda` and names without a plugin are errors, too.",
		Source:  "jax/_src/xla_bridge.py; 20 releases from 0.4.18 to 0.12.0.1 were asked",
	},
	{
		Name: platformVar, Readers: by("jax", ""), About: AboutDevices,
		Values:  "one of the names of `JAX_PLATFORMS`, in any case; `gpu` means `cuda` here",
		Default: "the best that is found",
		Effect:  "The platform that is used unless the program says otherwise.",
		Not:     "With `cpu` the GPU's client is still made: `JAX_PLATFORMS=cpu` is what keeps JAX off the GPU.",
		Source:  "jax/_src/xla_bridge.py; 20 releases from 0.4.18 to 0.12.0.1 were asked",
	},
	{
		Name: xlaFlagsVar, Readers: []Reader{{"jax", ""}, {"gpumem", ""}, {"tensorflow", ""}}, About: AboutOther,
		Values:  "`--name=value`, with blanks between; or the name of a file with such",
		Default: "nothing",
		Effect:  "Flags of XLA. Three are about JAX's memory: `--" + spatialFlag + "=false` separates collective memory again (0.11.0 on); `--" + updateFlag + "` other than `ALWAYS_UPDATE` makes the allocator `vmm`, whatever `" + allocatorVar + "` says. `--" + noPagesFlag + "=true` (0.12.0 on) is for a GPU without virtual memory management.",
		Not:     "An unknown flag, or a value that it does not take, ends the process, on the CPU too. So does a text that does not begin with `-`, the name of a file. What follows a word without `-` is not read.",
		Source:  "xla/debug_options_flags.cc; xla/parse_flags_from_env.cc; the plugins themselves, asked",
	},
	{
		Name: abortVar, Readers: jaxAndOurs("0.7.0"), About: AboutOther,
		Values: "a whole number", Default: "0",
		Effect: "Not about memory. But what is no whole number, the empty text included, is an error, and JAX goes on without the GPU.",
		Source: "jaxlib/xla_client.py of 0.7.0",
	},
	{
		Name: tfrtVar, Readers: jaxAndOurs("0.7.1"), About: AboutOther,
		Values: "a whole number", Default: "0",
		Effect: "Not about memory, with the same error as `" + abortVar + "`. Before 0.10.0 it cannot be combined with the allocator `cuda_async`.",
		Source: "jaxlib/xla_client.py of 0.7.1",
	},

	// Our own runtime.
	{
		Name: "GPUMEM_DEVICE", Readers: by("gpumem", ""), About: AboutDevices,
		Values:  "`cuda:0`, `sim:24GiB`, `sim@FILE`, ...: see [gpu.md](gpu.md)",
		Default: "`cuda:0` where a driver loads, else `sim:80GiB`",
		Effect:  "The device of the commands that get no `--device`.",
		Not:     "The library does not read it: a Go program says which device it opens.",
		Source:  "device/open",
	},

	// TensorFlow.
	{
		Name: "TF_FORCE_GPU_ALLOW_GROWTH", Readers: by("tensorflow", ""),
		Values:  "`true` or `false`, in exactly this case",
		Default: "what the program says, else no",
		Effect:  "Whether the pool grows as it is needed. It goes before what the program says.",
		Not:     "`1`, `True` and `yes` are not accepted: an error is logged and the program's choice holds. A pool that has grown gives nothing back while anything in it lives.",
		Source:  "tensorflow/core/common_runtime/gpu/gpu_bfc_allocator.cc",
	},
	{
		Name: tfAllocatorVar, Readers: []Reader{{"tensorflow", ""}, {"gpumem", ""}},
		Values:  "`cuda_malloc_async` (since TensorFlow 2.5), `cuda_malloc`, `memory_guard`",
		Default: "the pool (BFC)",
		Effect:  "The driver's own pool, the driver for each request, or the pool with guard words around each block. Our runtime reads the first two.",
		Not:     "**JAX does not read it**, although JAX's page and XLA's own messages recommend it: write `" + allocatorVar + "=cuda_async`. Any other text means the pool, without a word.",
		Source:  "tensorflow/core/common_runtime/gpu/gpu_process_state.cc; marin-community/marin#7024",
	},
	{
		Name: asyncVar, Readers: []Reader{{"tensorflow", "2.5"}, {"jax", ""}, {"gpumem", ""}},
		Values:  "bytes, or `-1` for what would be preallocated by default",
		Default: "0, nothing",
		Effect:  "How much the driver's pool takes at the start. TensorFlow and our runtime keep it.",
		Not:     "Only the driver's pool reads it. `-1` takes nothing in TensorFlow, whatever its documentation says. In JAX it counts only with `" + preallocateVar + "=false`, and the driver may take the memory back at the next synchronise; `-1` then reserves nothing, either.",
		Source:  "xla/stream_executor/gpu/gpu_cudamallocasync_allocator.cc; the names in TensorFlow's wheels",
	},
	{
		Name: "TF_ENABLE_GPU_GARBAGE_COLLECTION", Readers: by("tensorflow", ""),
		Values:  "`true` or `false`, in exactly this case",
		Default: "`true`",
		Effect:  "Before the pool refuses a request it gives regions back in which nothing lives, and takes a larger one.",
		Not:     "It does not collect values that the program still refers to, and JAX's pool does not read it.",
		Source:  "tensorflow/core/common_runtime/gpu/gpu_bfc_allocator.cc",
	},
	{
		Name: "TF_DEVICE_MIN_SYS_MEMORY_IN_MB", Readers: by("tensorflow", "2.5"),
		Values:  "a whole number of MiB, 0 or more",
		Default: "225 MiB on small GPUs, 500 to 1,800 MiB by compute capability else",
		Effect:  "How much of the free memory the pool leaves to the driver and to libraries. It replaces a fraction that the program sets.",
		Not:     "JAX leaves nothing free on purpose but its 25 %. More than is free is ignored with a warning.",
		Source:  "tensorflow/core/common_runtime/gpu/gpu_device.cc; the names in TensorFlow's wheels",
	},
	{
		Name: deterministicVar, Readers: []Reader{{"tensorflow", "2.7"}, {"jax", ""}, {"gpumem", ""}},
		Values:  "`1`, `true`, `0`, `false`",
		Default: "no",
		Effect:  "The driver's pool reuses a block only where the order of the streams alone allows it, so that runs can be compared.",
		Not:     "It changes nothing in the pool (BFC), and makes no computation deterministic.",
		Source:  "xla/stream_executor/gpu/gpu_cudamallocasync_allocator.cc; the names in TensorFlow's wheels",
	},
	{
		Name: memoryDumpVar, Readers: []Reader{{"tensorflow", "2.1"}, {"jax", ""}, {"gpumem", ""}},
		Values:  "the beginning of a path",
		Default: "nothing is written",
		Effect:  "Each failed attempt of the pool writes all its blocks to a file, which `gpumem replay` reads.",
		Not:     "Only the pool (BFC) does so. Attempts that succeed after a wait or a smaller request are written, too.",
		Source:  "xla/tsl/framework/bfc_allocator.cc; the names in TensorFlow's wheels",
	},
	{
		Name: "TF_CUDNN_WORKSPACE_LIMIT_IN_MB", Readers: by("tensorflow", ""),
		Values:  "a whole number of MiB",
		Default: "4,096",
		Effect:  "The most scratch memory that a cuDNN convolution may have. Less rules out faster algorithms.",
		Not:     "It is no part of the pool's limit: the scratch memory comes out of the pool.",
		Source:  "tensorflow/core/kernels/conv_ops_gpu.cc",
	},
	{
		Name: "TF_CUBLAS_WORKSPACE_LIMIT_IN_MB", Readers: by("tensorflow", "2.10"),
		Values:  "a whole number of MiB",
		Default: "4,096",
		Effect:  "The same for products of matrices (cuBLASLt).",
		Not:     "NVIDIA's own variable is `CUBLAS_WORKSPACE_CONFIG`.",
		Source:  "tensorflow/core/kernels/matmul_util.cc; the names in TensorFlow's wheels",
	},
	{
		Name: "TF_CUFFT_WORKSPACE_LIMIT_IN_MB", Readers: by("tensorflow", ""),
		Values:  "a whole number of MiB",
		Default: "4,096",
		Effect:  "The same for Fourier transforms (cuFFT).",
		Source:  "tensorflow/core/kernels/fft_ops.cc",
	},
	{
		Name: "TF_GPU_HOST_MEM_LIMIT_IN_MB", Readers: by("tensorflow", ""), About: AboutHost,
		Values:  "a whole number of MiB",
		Default: "131,072; 65,536 in older releases",
		Effect:  "The most pinned host memory, for transfers.",
		Not:     "It is about the host, but with `0` a session's first copy from the GPU fails. So it does since TensorFlow 2.20 with a text that is no number, whatever the log says of a default: the number that it begins with counts. Up to TensorFlow 1.13 its name was `TF_CUDA_HOST_MEM_LIMIT_IN_MB`, which nobody reads any more.",
		Source:  "tensorflow/core/common_runtime/gpu/gpu_process_state.cc",
	},
	{
		Name: "TF_CPU_BFC_MEM_LIMIT_IN_MB", Readers: by("tensorflow", ""), About: AboutOther,
		Values: "a whole number of MiB", Default: "65,536",
		Effect: "The limit of the pool for the CPU, with `TF_CPU_ALLOCATOR_USE_BFC`. Not about GPUs.",
		Source: "tensorflow/core/common_runtime/process_state.cc",
	},
	{
		Name: "TF_CPU_ALLOCATOR_USE_BFC", Readers: by("tensorflow", ""), About: AboutOther,
		Values: "`1`, `true`, `0`, `false`", Default: "no",
		Effect: "A pool for the CPU. Not about GPUs.",
		Source: "tensorflow/core/common_runtime/process_state.cc",
	},

	// PyTorch.
	{
		Name: "PYTORCH_ALLOC_CONF", Readers: by("pytorch", "2.10"),
		Values:  "`key:value,key:value`, such as `expandable_segments:True,max_split_size_mb:128`",
		Default: "nothing",
		Effect:  "How PyTorch's pool works. `per_process_memory_fraction:0.5` caps it, `expandable_segments:True` lets its regions grow, `backend:cudaMallocAsync` uses the driver's pool.",
		Not:     "PyTorch 2.9 recommends this name in a warning, but its pool for CUDA does not go by it. It is read last: `PYTORCH_CUDA_ALLOC_CONF` or `PYTORCH_HIP_ALLOC_CONF` beside it wins, even if empty. The cap does not count the CUDA context or NCCL. A key that the release does not know is an error.",
		Source:  "PyTorch's page on CUDA memory; the releases themselves, asked",
	},
	{
		Name: "PYTORCH_CUDA_ALLOC_CONF", Readers: by("pytorch", ""),
		Values:  "as `PYTORCH_ALLOC_CONF`",
		Default: "nothing",
		Effect:  "The older name of `PYTORCH_ALLOC_CONF`. Every release reads it, and it comes first where several are set.",
		Source:  "PyTorch's page on CUDA environment variables; the releases themselves, asked",
	},
	{
		Name: "PYTORCH_HIP_ALLOC_CONF", Readers: by("pytorch", "2.10"),
		Values:  "as `PYTORCH_ALLOC_CONF`",
		Default: "nothing",
		Effect:  "The name for AMD's GPUs. The builds for CUDA read it, too, before `PYTORCH_ALLOC_CONF`.",
		Not:     "They take only the settings that all kinds of GPU share from it: `backend` and `per_process_memory_fraction` are looked for under `PYTORCH_ALLOC_CONF`.",
		Source:  "the releases themselves, asked",
	},
	{
		Name: "PYTORCH_NO_CUDA_MEMORY_CACHING", Readers: by("pytorch", ""),
		Values:  "`1`; up to 2.6 anything, the empty text included",
		Default: "not set, the pool",
		Effect:  "Every request goes to the driver, and every free gives memory back. Slow; for debugging.",
		Not:     "Up to PyTorch 2.6 `PYTORCH_NO_CUDA_MEMORY_CACHING=0` turns the pool off just as `1` does: only that it is set counts. The backend `cudaMallocAsync` does not look at it.",
		Source:  "c10/cuda/CUDACachingAllocator.cpp; PyTorch 2.14.1, run",
	},
	{
		Name: "PYTORCH_NO_HIP_MEMORY_CACHING", Readers: by("pytorch", "2.6"),
		Values:  "as `PYTORCH_NO_CUDA_MEMORY_CACHING`",
		Default: "not set, the pool",
		Effect:  "The same name for AMD's GPUs.",
		Source:  "the names in PyTorch's wheels",
	},
	{
		Name: "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC", Readers: by("pytorch", "2.10"),
		Values:  "`1` or `0`",
		Default: "yes",
		Effect:  "Whether the pages behind `expandable_segments` can be shared with other processes.",
		Not:     "It does not turn such segments on.",
		Source:  "c10/cuda/CUDACachingAllocator.cpp; the names in PyTorch's wheels",
	},

	// CuPy.
	{
		Name: "CUPY_GPU_MEMORY_LIMIT", Readers: by("cupy", "7.0"),
		Values:  "bytes, or a percentage such as `50%`",
		Default: "0, no limit",
		Effect:  "The limit of CuPy's pool on each GPU; a percentage is of the total memory.",
		Not:     "It takes no units (`4GB`) and no fraction (`0.5`). Nothing is taken at once. It does not bound other allocators that the program chooses.",
		Source:  "CuPy's page on environment variables",
	},
	{
		Name: "CUPY_ENABLE_UMP", Readers: by("cupy", "13.5"),
		Values:  "a whole number",
		Default: "0",
		Effect:  "Arrays live in the system's memory where GPU and host share page tables (Grace Hopper, HMM), so that nothing is copied.",
		Not:     "It does not make CuPy allocate such memory: the program must also choose `malloc_system`.",
		Source:  "cupy/_core/core.pyx; the names in CuPy's wheels",
	},

	// The driver and NVIDIA's libraries, under every framework.
	{
		Name: "CUDA_VISIBLE_DEVICES", Readers: by("driver", ""), About: AboutDevices,
		Values:  "numbers, `GPU-...` or `MIG-...`, with commas between; empty or `-1`: none",
		Default: "all GPUs",
		Effect:  "Which GPUs a process sees, and in which order it counts them. JAX and TensorFlow take memory on every one they see.",
		Not:     "After a number that is not there, the rest of the list counts for nothing. What the program sets after CUDA has started changes nothing.",
		Source:  "CUDA programming guide 5.2.1",
	},
	{
		Name: "CUDA_DEVICE_ORDER", Readers: by("driver", ""), About: AboutDevices,
		Values:  "`FASTEST_FIRST`, `PCI_BUS_ID`",
		Default: "`FASTEST_FIRST`",
		Effect:  "What the numbers of `CUDA_VISIBLE_DEVICES` count.",
		Not:     "By default they are not those of `nvidia-smi`, which are by bus.",
		Source:  "CUDA programming guide 5.2.1",
	},
	{
		Name: "NVIDIA_VISIBLE_DEVICES", Readers: by("driver", ""), About: AboutDevices,
		Values:  "as `CUDA_VISIBLE_DEVICES`; also `all`, `none`, `void`",
		Default: "none, or what the image says",
		Effect:  "Which GPUs a container gets. It is read when the container is made.",
		Not:     "Set inside a running container, or without one, it does nothing.",
		Source:  "NVIDIA Container Toolkit's documentation",
	},
	{
		Name: "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", Readers: by("driver", ""),
		Values:  "`0=4G,1=512M`: for each GPU, by number",
		Default: "no limit",
		Effect:  "The driver refuses a client of MPS what is above this, whichever library asks.",
		Not:     "Without a running MPS daemon it does nothing. CUDA 11.5 or later.",
		Source:  "NVIDIA's MPS documentation, environment variables",
	},
	{
		Name: "CUDA_MODULE_LOADING", Readers: by("driver", ""),
		Values:  "`LAZY`, `EAGER`",
		Default: "`LAZY` since CUDA 12.2, on Linux",
		Effect:  "Whether kernels are loaded when they are first used. Lazily they take less memory outside the pool.",
		Not:     "A kernel that is loaded later needs memory then, which a pool may have left none of.",
		Source:  "CUDA programming guide 5.2, module loading",
	},
	{
		Name: "CUDA_MANAGED_FORCE_DEVICE_ALLOC", Readers: by("driver", ""),
		Values:  "`0`, `1`",
		Default: "`0`",
		Effect:  "Unified memory is placed on the GPU.",
		Source:  "CUDA programming guide 5.2.1",
	},
	{
		Name: "CUBLAS_WORKSPACE_CONFIG", Readers: by("driver", ""),
		Values:  "`:SIZE:COUNT`, sizes in KiB, such as `:4096:8`",
		Default: "cuBLAS's own, by GPU",
		Effect:  "The scratch memory of each cuBLAS handle. `:4096:8` and `:16:8` also make its results repeatable.",
		Not:     "It comes on top of a framework's pool where the library takes it itself.",
		Source:  "cuBLAS documentation, reproducibility",
	},
	{
		Name: "CUDA_DEVICE_MAX_CONNECTIONS", Readers: by("driver", ""), About: AboutOther,
		Values: "1 to 32", Default: "8",
		Effect: "How many queues there are between host and GPU. Not about memory.",
		Source: "CUDA programming guide 5.2",
	},
	{
		Name: "GPUMEM_TF_LIMIT_MIB", Readers: by("gpumem", ""), About: AboutOther,
		Values:  "a number of MiB for each GPU, with commas between",
		Default: "not set",
		Effect:  "Set by `gpumem run` for its start-up file in Python, which tells TensorFlow so. `GPUMEM_TF_FRACTION`, `GPUMEM_TF_CPU`, `GPUMEM_TORCH_FRACTION`, `GPUMEM_LEASE_ID`, `GPUMEM_LEASE_PART` and `GPUMEM_PROCS` go with it.",
		Source:  "share/runenv",
	},
	{
		Name: "JAX_CUDA_VISIBLE_DEVICES", Readers: by("nobody", ""), About: AboutDevices,
		Values:  "none",
		Default: "none",
		Effect:  "Nothing. The flag `jax_cuda_visible_devices` is set in code, by `jax.config.update`, or by absl.",
		Not:     "It does not choose NVIDIA GPUs; `CUDA_VISIBLE_DEVICES` does.",
		Source:  "jax/_src/xla_bridge.py; 20 releases from 0.4.18 to 0.12.0.1 were asked",
	},
	{
		Name: "JAX_ROCM_VISIBLE_DEVICES", Readers: by("nobody", ""), About: AboutDevices,
		Values:  "none",
		Default: "none",
		Effect:  "Nothing. The flag `jax_rocm_visible_devices` is set in code, by `jax.config.update`, or by absl.",
		Not:     "It does not choose AMD GPUs; `ROCR_VISIBLE_DEVICES` does.",
		Source:  "jax/_src/xla_bridge.py; 20 releases from 0.4.18 to 0.12.0.1 were asked",
	},
	{
		Name: "JAX_ONEAPI_VISIBLE_DEVICES", Readers: by("nobody", ""), About: AboutDevices,
		Values:  "none",
		Default: "none",
		Effect:  "Nothing. The flag `jax_oneapi_visible_devices` is set in code, by `jax.config.update`, or by absl.",
		Not:     "It does not choose Intel GPUs; `ONEAPI_DEVICE_SELECTOR` does.",
		Source:  "jax/_src/xla_bridge.py; 20 releases from 0.4.18 to 0.12.0.1 were asked",
	},
}
