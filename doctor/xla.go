package doctor

// Messages of JAX, XLA and StreamExecutor.

var xlaPatterns = []pattern{
	// xla/pjrt and tsl/framework; see Kind XLARefused for the eras.
	{kind: XLARefused, framework: "xla", anchors: []string{"Out of memory while trying to allocate ", "Out of memory while tying to allocate "},
		rest: `{want}(?: with allocator (?P<allocator>\S+)(?: on device {device})?)?`},
	// PjRt's pinned host memory, XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB.
	{kind: HostPinned, framework: "xla", anchors: []string{"Out of host memory while trying to allocate "}, rest: `{want}`},
	// stream_executor_memory_allocator; up to 2021 "Failed to allocate request for 6.27GiB (6727663616B) on device ordinal 0".
	// An algorithm that does not fit while they are compared: another is taken.
	{kind: XLADevice, framework: "xla", nonfatal: true, line: true, anchors: []string{"Failed to allocate request for "},
		rest: `.*algorithm_picker\.cc:\d+\].*?Failed to allocate request for (?:{size} \({want}\)|{want})(?: on device ordinal {device})?`},
	{kind: XLADevice, framework: "xla", anchors: []string{"Failed to allocate request for "},
		rest: `(?:{size} \({want}\)|{want})(?: on device ordinal {device})?`},
	{kind: TPU, framework: "xla", anchors: []string{"Ran out of memory in memory space "}, rest: `(?P<name>\w+)\.? Used {want} of {total}`},
	{kind: Resharding, framework: "xla", nonfatal: true, anchors: []string{"Involuntary full rematerialization"}, rest: ``},
	// cuda_executor of 2025-12 on.
	{kind: DeviceRefused, line: true, anchors: []string{"Failed to allocate device memory of "},
		rest: `(?:.*\[{device}\] |.*?)Failed to allocate device memory of (?:{size} \({want}\)|{want})(?:.*?{code})?`},
	// cuda_driver: 2016 to 2025.
	{kind: DeviceRefused, anchors: []string{"failed to allocate "},
		rest: `(?:{size} \({want}\)|{want}) from device: (?:RESOURCE_EXHAUSTED: ?: ?)?{code}`},
	// gpu_cudamallocasync_allocator, of TensorFlow and XLA.
	{kind: DeviceRefused, name: "async", line: true, anchors: []string{"cuMemAllocAsync failed to allocate "}, rest: `.*?(?P<allocator>\w+) cuMemAllocAsync failed to allocate {want}(?:.*?(?P<code>CUDA_ERROR_[A-Z_]+))?`},
	{kind: DeviceRefused, name: "unified", anchors: []string{"failed to alloc "}, rest: `{want} unified memory; result: {code}`},
	{kind: VMMRefused, framework: "xla", anchors: []string{"Not enough PA budget: "},
		rest: `pa_allocated={allocated}, allocation_size={want}, pa_budget={limit}`},
	{kind: VMMRefused, framework: "xla", anchors: []string{"cuMemCreate: ", "cuMemCreate("}, rest: `.{0,80}?(?P<code>CUDA_ERROR_[A-Z_]+)`},
	{kind: VMMUnsupported, framework: "xla", anchors: []string{"Device "}, rest: `{device} does not support CUDA Virtual Memory Management`},
	// pjrt/gpu/gpu_helpers.cc.
	{kind: Preallocating, framework: "xla", anchors: []string{"XLA backend allocating ", "XLA backend will use up to "},
		rest: `{limit} on device {device}(?: for (?P<name>\w+))?`},
	{kind: AllocatorChosen, framework: "xla", anchors: []string{"Using BFC allocator", "Using platform allocator", "Using CudaAsync allocator", "Using cuda_async allocator", "Using vmm allocator", "Using VMM allocator", "Using cudaMallocAsync allocator"},
		whole: true, rest: `Using (?P<name>\w+) allocator`},
	// cuda_driver and cuda_context; StreamExecutor's ordinal comes before.
	{kind: Context, line: true, anchors: []string{"failed call to cuDevicePrimaryCtxRetain: ", "failed call to cuCtxCreate: ", "failed to retain primary context"},
		rest: `(?:.*device ordinal {device}.*?)?.*?(?P<name>cuDevicePrimaryCtxRetain|cuCtxCreate|retain primary context)[^A-Z]*(?:[A-Z]+: ?)??{code}(?:.*?total memory reported: {total}|: CUDA-capable device\(s\) is/are busy or unavailable)?`},
	{kind: Context, framework: "tensorflow", anchors: []string{"CUDA runtime implicit initialization on GPU:"},
		rest: `{device} failed\. Status: (?P<value>out of memory|[\w ()-]+)`},
	// The same in the words of the runtime, since 9.2 and before it.
	{kind: Context, code: "CUDA_ERROR_DEVICE_UNAVAILABLE", anchors: []string{"CUDA_ERROR_DEVICE_UNAVAILABLE", "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable", "all CUDA-capable devices are busy or unavailable"},
		rest: `(?:\W{0,4}(?:CUDA-capable device\(s\) is/are|all CUDA-capable devices are) busy or unavailable)?`},
	{kind: BackendCleared, framework: "jax", anchors: []string{"clear_backends"}, rest: `\(\)`},
	{kind: Backend, framework: "jax", anchors: []string{"CUDA backend failed to initialize: ", "Unable to initialize backend 'cuda': ", "Unable to initialize backend 'gpu': ",
		"no supported devices found for platform CUDA"}, rest: `(?P<value>.*)`},
	// What no other message takes. They come last of all at their place only
	// if nothing longer began earlier.
	{kind: CUDAError, framework: "torch", anchors: []string{"cuda runtime error (2) : "}, rest: `(?P<value>out of memory)`},
	{kind: CUDAError, framework: "hami", line: true, within: true, anchors: []string{"cuMemoryAllocate failed res=2"}, rest: `.*HAMI-core.*res=2`, value: "out of memory"},
	{kind: CUDAError, anchors: []string{"cudaMalloc failed: ", "cudaMallocAsync failed: ", "cuMemAlloc failed: "}, rest: `(?:\w+: )?(?P<value>out of memory)`},
	{kind: CUDAError, framework: "jax", line: true, anchors: []string{"): out of memory"}, rest: `.*?(?P<name>cud\w+|cu[A-Z]\w+)\(.*\): (?P<value>out of memory)`},
	{kind: CUDAError, framework: "llama.cpp", anchors: []string{"CUDA error 2 at "}, rest: `\S+: (?P<value>out of memory)`},
	{kind: CUDAError, anchors: []string{"CUDA error: ", "CUDA Error: ", "CUDA runtime error: "},
		rest: `(?P<value>out of memory|initialization error)`},
	{kind: CUDAError, anchors: []string{"CUDA_ERROR_", "cudaErrorMemoryAllocation"}, whole: true, rest: `(?P<code>\w+)`},
}
