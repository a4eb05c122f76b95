package doctor

// What a log tells of the machine and of what runs on it: pasted nvidia-smi
// tables, versions, libraries.

import "regexp"

// orgTensorflow stands before the paths of an older JAX.
var orgTensorflow = regexp.MustCompile(`org_tensorflow/$`)

// smiCard is the row of an nvidia-smi table that names the GPU.
const smiCard = `.*?\| +{device}  (?P<name>\S(?:.*?\S)?)\s+(?:On|Off|N/A|\|)[^|]*\|`

// unit is a size that says what it is of.
const unit = `\d+(?:\.\d+)? ?(?:[KMGT]i?B|[MG]\b)`

var machinePatterns = []pattern{
	// |   0  NVIDIA A10   On  | 00000000:00:1E.0 Off |   0 |, of drivers 340 to 580.
	{kind: SmiGPU, line: true, anchors: []string{" 00000000:", " 0000:0", "| 0000"}, rest: smiCard},
	{kind: SmiMemory, line: true, within: true, anchors: []string{"MiB / ", "MiB /  "}, rest: `.*?(?P<inuse>\d+ ?MiB) / +(?P<total>\d+ ?MiB)`},
	{kind: SmiProcess, line: true, anchors: []string{"   C   ", "   G   ", " C+G   ", " M+C   "},
		rest: `.*?\| +{device} +(?:\S+ +\S+ +)?{pid} +(?P<value>C\+G|M\+C|C|G) +(?P<name>\S.*?) +(?:(?P<inuse>\d+ ?MiB)|N/A) *\|`},
	{kind: DeviceName, line: true, within: true, anchors: []string{"| 0000"}, rest: smiCard},
	{kind: DeviceName, anchors: []string{"GPU 0: ", "GPU 1: ", "GPU 2: ", "GPU 3: ", "GPU 4: ", "GPU 5: ", "GPU 6: ", "GPU 7: "}, whole: true, rest: `GPU {device}: (?P<name>[A-Z][^()]*[^() ]) \(UUID: `},
	// TensorFlow's, within "Created device" and by itself.
	{kind: DeviceName, framework: "tensorflow", within: true, anchors: []string{"device: "}, rest: `{device}, name: (?P<name>[^,]{2,80}), pci bus id`},
	{kind: DeviceName, framework: "tensorflow", anchors: []string{"name: "}, rest: `(?P<name>[A-Z][^,:]{2,80}?)(?:, pci bus id| major: \d| computeCapability: \d)`},
	// XLA's, at its start; ggml's; Ollama's; JAX's and other programs'.
	{kind: DeviceName, framework: "xla", anchors: []string{"StreamExecutor device ("}, rest: `{device}\): (?P<name>[^,]{2,80}), Compute Capability`},
	{kind: DeviceName, framework: "llama.cpp", anchors: []string{"Device "}, rest: `{device}: (?P<name>[A-Z][^,:]{2,80}), (?:compute capability|VMM)`},
	{kind: DeviceName, within: true, anchors: []string{" name=\"NVIDIA ", " description=\"NVIDIA "}, whole: true, rest: ` (?:name|description)="(?P<name>[^"]{2,80})"`},
	{kind: DeviceName, anchors: []string{"Using device "}, rest: `(?:cuda:)?{device}: (?P<name>(?:NVIDIA|Tesla|GeForce|Quadro)\b[\w. -]{0,80}\w)`},
	{kind: DeviceName, anchors: []string{"device_name", "Device name", "device name", "Device: ", "gpu_name", "GPU name", "GPU model", "GPU Model", "GPU: NVIDIA"}, rest: `["']?(?: ?[=:] ?)?["']?(?P<name>(?:NVIDIA|Tesla|GeForce|Quadro)\b[\w. -]{0,80}\w)`},
	{kind: Version, name: "driver", once: true, anchors: []string{"Driver Version: ", "Driver version: ", "driver version: "}, rest: ` *{version}`},
	{kind: Version, name: "cuda", once: true, anchors: []string{"CUDA Version: ", "CUDA version: "}, rest: ` *{version}`},

	// pip, Python's dist-info, requirement files, issue forms, environment printers.
	{kind: Version, name: "jaxlib", once: true, anchors: []string{"jaxlib"}, rest: `(?: version)?(?:==| ?[:=] *|-| +\(?|/)["']?{version}`},
	{kind: Version, name: "jax", once: true, anchors: []string{"jax==0", "jax 0.", "jax: 0", "jax-0.", "jax v0", "jax=0.", "jax  0", "jax (0", "JAX 0.", "JAX v0", "JAX==0", "JAX: 0"}, whole: true, rest: `(?i:jax)\W+v?{version}`},
	{kind: Version, name: "jax", once: true, anchors: []string{"jax version", "JAX version", "jax.__version__", "jax:  ", "jax   "}, rest: `\W{0,8}{version}`},
	{kind: Version, name: "tensorflow", once: true, anchors: []string{"tensorflow==", "tensorflow 1", "tensorflow 2", "tensorflow-1", "tensorflow-2", "tensorflow: ", "tensorflow  ", "tensorflow-gpu==", "TensorFlow 1", "TensorFlow 2", "TensorFlow version", "TensorFlow: ", "tf.__version__"},
		whole: true, rest: `(?:(?i:tensorflow)(?:-gpu)?(?: version)?|tf\.__version__)\W{0,40}{version}`},
	{kind: Version, name: "torch", once: true, anchors: []string{"torch==", "torch 1.", "torch 2.", "torch-1.", "torch-2.", "torch: ", "torch:  ", "torch   ", "PyTorch 1", "PyTorch 2", "PyTorch version", "PyTorch: ", "torch.__version__"},
		whole: true, rest: `(?:(?i:(?:py)?torch)(?: version)?|torch\.__version__)\W{0,40}{version}`},
	{kind: Version, name: "vllm", once: true, anchors: []string{"vLLM API server version ", "vllm==", "vLLM version ", "vLLM Version: ", "LLM engine (v"}, rest: ` ?{version}`},
	{kind: Version, name: "cudnn", once: true, anchors: []string{"Loaded cuDNN version ", "Loaded CuDNN version ", "cuDNN version: ", "cuDNN version "}, rest: ` *(?P<version>\d+(?:\.\d+)*)`},

	{kind: LibraryMismatch, name: "cudnn", anchors: []string{"Loaded runtime CuDNN library: "}, rest: `(?P<version>[\d.]*\d).*?source was compiled with: (?P<value>[\d.]*\d)`},
	{kind: LibraryMissing, anchors: []string{"Could not load dynamic library "}, rest: `'(?P<name>[^']+)'`},
	{kind: LibraryMissing, anchors: []string{"Could not load library "}, rest: `(?P<name>lib[\w.+-]+\w)`},
	{kind: LibraryMissing, anchors: []string{"Unable to load cuDNN", "Unable to load any of {lib", "Could not locate zlibwapi"}, rest: ``},
	{kind: LibraryMissing, line: true, anchors: []string{"cannot open shared object file"}, rest: `.*?(?P<name>lib[\w.+-]+): cannot open shared object file`},
	{kind: LibraryLoaded, once: true, anchors: []string{"Successfully opened dynamic library ", "successfully opened CUDA library "}, rest: `(?P<name>lib[\w.+-]+\w)`},

	// Paths of tracebacks and sources of log lines.
	{kind: Loaded, once: true, within: true, anchors: []string{"site-packages/", "dist-packages/"}, rest: `(?P<framework>jax|jaxlib|tensorflow|torch|vllm|cupy|rmm|flax)/`},
	// JAX to 0.4.1 was built in TensorFlow's tree, under external/org_tensorflow/.
	{kind: Loaded, once: true, within: true, framework: "tensorflow", unless: orgTensorflow, anchors: []string{"tensorflow/core/", "tensorflow/stream_executor/", "tensorflow.python."}, rest: ``},
	{kind: Loaded, once: true, within: true, framework: "tensorflow", anchors: []string{"external/local_xla/", "external/local_tsl/"}, rest: ``},
	{kind: Loaded, once: true, within: true, framework: "jax", anchors: []string{"external/xla/xla/", "external/org_tensorflow/", "external/tsl/tsl/"}, rest: ``},
	{kind: Loaded, once: true, within: true, framework: "jax", anchors: []string{"jaxlib.xla_extension.", "jax.errors.", "jaxlib._jax."}, rest: ``},

	// What programs print of themselves as they go. A number without a unit is
	// believed only of functions that are known to give bytes.
	{kind: Reading, framework: "torch", within: true, anchors: []string{"memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"}, whole: true,
		rest: `(?P<name>\w+)(?:\((?:\d+|["']?cuda(?::\d+)?["']?|device)?\))?["']?(?: ?[=:]+ ?|  ?)(?P<inuse>` + unit + `|\d{4,}\b)`, unless: inWord},
	{kind: Reading, framework: "jax", unless: inWord, anchors: []string{"bytes_in_use", "peak_bytes_in_use"}, whole: true, rest: `(?P<name>\w+)["']?\]? ?[=:] ?(?P<inuse>` + unit + `|\d{4,}\b)`},
	{kind: Reading, unless: inWord, anchors: []string{"gpu_mem", "gpu_memory", "GPU mem", "GPU Mem", "GPU_mem", "gpu mem", "cuda_mem", "CUDA mem", "CUDA Mem"}, whole: true,
		rest: `(?P<name>(?i:gpu|cuda)[ _](?i:mem(?:ory)?)(?i:[ _](?:used|usage|allocated|in use|alloc))?)(?: ?\([\w ]{1,20}\))?["']?(?: ?[=:]+ ?| )(?P<inuse>` + unit + `)(?: ?/ ?{total})?`},
	// A line of an epoch or a step.
	{kind: Reading, line: true, anchors: []string{"allocated: ", "allocated=", "Allocated: ", "memory: ", "memory=", "in use: ", "in use="},
		rest: `.*?\b(?i:epoch|step|iter(?:ation)?|batch)\b.*?\b(?P<name>(?:(?i:max|peak|gpu|cuda) )?(?i:allocated|memory|in use)) ?[=:] ?(?P<inuse>` + unit + `)`},
}
