package doctor

// Messages of PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp)
// and of vLLM, which stands on it.

var torchPatterns = []pattern{
	// To 2.0: (GPU 0; T total capacity; A already allocated; F free; R reserved in total by PyTorch),
	// before 1.4 "cached" for "reserved in total by PyTorch". The device's free
	// memory is what the driver has.
	{kind: TorchOOM, framework: "torch", anchors: []string{"CUDA out of memory. Tried to allocate ", "HIP out of memory. Tried to allocate "},
		rest: `{want} \(GPU {device}; {total} total capacity; {allocated} already allocated; {free} free; (?:{limit} allowed; )?{reserved} (?:reserved in total by PyTorch|cached)`},
	// Since 2.1, "capacty" in that release. A cap is "X allowed;".
	{kind: TorchOOM, framework: "torch", anchors: []string{"CUDA out of memory. Tried to allocate ", "HIP out of memory. Tried to allocate "},
		rest: `{want}(?:\.? GPU {device} has a total capac(?:i)?ty of {total} of which {free} is free(?:.*?{limit} allowed)?(?:.*?Of the allocated memory {allocated} is allocated by PyTorch(?:.*? and {reserved} is reserved by PyTorch but unallocated)?)?)?`},
	{kind: TorchOOM, framework: "torch", anchors: []string{"CUDA out of memory", "HIP out of memory"}, rest: ``},
	// The backend cudaMallocAsync (CUDAMallocAsyncAllocator.cpp), a figure in a line.
	{kind: TorchOOM, framework: "torch", name: "async", anchors: []string{"Allocation on device "}, rest: `{device} would exceed allowed memory`},
	{kind: TorchOOM, framework: "torch", name: "async", anchors: []string{"Currently allocated  ", "Requested            ", "Device limit         ", "Free (according to CUDA)"},
		whole: true, rest: `(?:Currently allocated +: {allocated}|Requested +: {want}|Device limit +: {total}|Free \(according to CUDA\): ?{free})`},
	// Lines that a terminal broke: the sentences alone.
	{kind: TorchOOM, framework: "torch", name: "device", anchors: []string{" has a total capac"}, line: true, rest: `(?:.*?)GPU {device} has a total capac(?:i)?ty of {total} of which {free} is free`},
	{kind: TorchOOM, framework: "torch", name: "use", anchors: []string{"Of the allocated memory "},
		rest: `{allocated} is allocated by PyTorch(?:.*? and {reserved} is reserved by PyTorch but unallocated)?`},
	{kind: TorchProcess, framework: "torch", within: true, anchors: []string{"Process "}, rest: `{pid} has {inuse} memory in use`},
	{kind: TorchProcess, framework: "torch", within: true, name: "this", anchors: []string{"this process has "}, rest: `{inuse} memory in use`},
	{kind: TorchPrivate, framework: "torch", within: true, anchors: []string{"allocated in private pools"}, line: true, rest: `.*with {allocated} allocated in private pools`},
	{kind: TorchAdvice, framework: "torch", within: true, nonfatal: true, anchors: []string{"try setting "}, rest: `(?P<value>max_split_size_mb|PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF=\S+)`},

	// What a traceback shows was being done: torch/cuda/graphs.py, vLLM's and
	// SGLang's runners, and a call that pins.
	{kind: Doing, framework: "torch", name: "graphs", once: true, anchors: []string{"torch.cuda.graph(", "capture_end()", "in capture_end", "CudaGraphRunner(", "capture_model()", "Capture cuda graph failed"}, rest: ``},
	{kind: Doing, framework: "torch", name: "pinned", once: true, anchors: []string{".pin_memory(", "_pin_memory("}, rest: ``},

	{kind: VLLMFree, framework: "vllm", anchors: []string{"Free memory on device "},
		rest: `(?:cuda:{device} |\w+ )?\((?P<pair>[\d.]+/{size})\) on startup is less than desired GPU memory utilization \((?P<value>[\d.]+), {want}\)`},
	{kind: VLLMCache, framework: "vllm", anchors: []string{"No available memory for the cache blocks"}, rest: ``},
	{kind: VLLMCache, framework: "vllm", anchors: []string{"is larger than the maximum number of tokens that can be stored in KV cache", "larger than the available KV cache memory"}, rest: `(?: \({free}\))?`},
	{kind: VLLMMemory, framework: "vllm", anchors: []string{"Available KV cache memory: "}, rest: `{free}`},
	{kind: VLLMMemory, framework: "vllm", anchors: []string{"total_gpu_memory="}, rest: `{total} initial_memory_usage={inuse}(?:.*?peak_torch_memory={allocated})?`},
	{kind: VLLMMemory, framework: "vllm", name: "weights", anchors: []string{"Model loading took ", "Loading model weights took "}, rest: `{allocated}`},
	{kind: VLLMMemory, framework: "vllm", name: "graphs", anchors: []string{"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"}, rest: ``},
	{kind: VLLMMemory, framework: "vllm", name: "graphs", anchors: []string{"Graph capturing finished in "}, rest: `(?:.*?took {allocated})?`},
	// A line of progress, which is printed again and again.
	{kind: VLLMMemory, framework: "vllm", name: "graphs", value: "start", once: true, anchors: []string{"Capturing CUDA graph", "Capturing cudagraphs", "Capturing the model for CUDA graphs"}, rest: ``},
	// Bytes without a unit up to 0.6, then GiB.
	{kind: VLLMMemory, framework: "vllm", name: "profiling", anchors: []string{"Error in memory profiling. Initial free memory "}, rest: `{reserved}(?:, current free memory {free})?`},
	{kind: VLLMMemory, framework: "vllm", name: "profiling", anchors: []string{"Error in memory profiling. Initial used memory "}, rest: `{reserved}(?:, currently used memory {inuse})?`},
}
