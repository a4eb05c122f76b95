package doctor

// Messages of CuPy, RMM, and of llama.cpp and Ollama.

var otherPatterns = []pattern{
	// Since 7 (2019); the limit is told if there is one.
	{kind: CuPyOOM, framework: "cupy", anchors: []string{"Out of memory allocating "},
		rest: `{want} \(allocated so far: {allocated}(?:, limit set to: {limit})?`},
	{kind: CuPyOOM, framework: "cupy", anchors: []string{"out of memory to allocate "}, rest: `{want} \(total {allocated}`},
	// Since 22 with what it is, since 24 with the size.
	{kind: RMMOOM, framework: "rmm", anchors: []string{"std::bad_alloc: out_of_memory", "std::bad_alloc: RMM failure", "std::bad_alloc: CUDA error", "RMM failure at:"}, whole: true,
		rest: `(?:std::bad_alloc: )?(?:out_of_memory: )?(?:RMM failure|CUDA error)(?: \(failed to allocate {want}\))? at: ?\S+: (?P<value>[^()]{1,200}[^() ])(?: \(failed to allocate {want}\))?`},
	{kind: RMMOOM, framework: "rmm", anchors: []string{"Maximum pool size exceeded"}, rest: `(?: \(failed to allocate {want}\))?`, value: "Maximum pool size exceeded"},
	{kind: RMMDevice, framework: "rmm", anchors: []string{"Simulating GPU with memory size of "}, rest: `{total}`},

	// ggml-cuda.cu.
	{kind: LlamaOOM, framework: "llama.cpp", anchors: []string{"allocating "}, rest: `{want} on device {device}: (?P<value>cudaMalloc failed: out of memory)`},
	{kind: LlamaOOM, framework: "llama.cpp", anchors: []string{"failed to allocate CUDA", "unable to allocate CUDA"}, rest: `{device}(?:_Split)? buffer(?: of size {want})?`},
	{kind: HostPinned, framework: "llama.cpp", anchors: []string{"failed to allocate CUDA_Host buffer", "unable to allocate CUDA_Host buffer"}, rest: `(?: of size {want})?`},
	{kind: HostPinned, framework: "llama.cpp", nonfatal: true, anchors: []string{"failed to allocate "}, rest: `{want} of pinned memory`},
	// NvMap of NVIDIA's Tegra: the number is a tag.
	{kind: Tegra, anchors: []string{"NvMapMemAllocInternalTagged: ", "NvMapMemHandleAlloc: error "}, rest: `(?:\d+ )?(?:error )?(?P<code>\d+)`},
	{kind: LlamaLoad, framework: "llama.cpp", anchors: []string{"llama_model_load: error loading model", "failed to load model", "unable to load model", "error loading model", "model requires more system memory", "llama runner process has terminated"}, rest: `(?:.*?\({want}\).*?\({free}\))?`},
	// Ollama's log of its estimate.
	{kind: LlamaMemory, framework: "llama.cpp", anchors: []string{"msg=\"offload to cuda\""}, rest: `(?:.*?memory.available="\[{free})?(?:.*?memory.required.full="{want})?(?:.*?memory.required.partial="{allocated})?`},
	{kind: LlamaMemory, framework: "llama.cpp", anchors: []string{"msg=\"inference compute\""}, rest: `(?:.*? name="?(?P<name>[^" ]+))?(?:.*? total="{total})?(?:.*? available="{free})?`},
}
