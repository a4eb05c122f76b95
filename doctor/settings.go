package doctor

// Settings: refusals in the words that package policy knows too, and
// variables that a log echoes.

import "regexp"

// advice marks a setting that a message recommends and nobody made.
var advice = regexp.MustCompile(`(?i)(?:try|use|using|set|setting|variable|reducing|increasing|see documentation for .* and) ["'` + "`" + `]?$`)

var settingPatterns = []pattern{
	{kind: Setting, framework: "jax", name: "XLA_PYTHON_CLIENT_MEM_FRACTION", anchors: []string{"XLA_CLIENT_MEM_FRACTION is specified together with XLA_PYTHON_CLIENT_MEM_FRACTION"}, rest: `(?P<value>)`},
	{kind: Setting, framework: "jax", name: "XLA_PYTHON_CLIENT_ALLOCATOR", anchors: []string{"XLA_PYTHON_CLIENT_ALLOCATOR env var must be "}, rest: `.*?got "?(?P<value>[^"]*)"?`},
	{kind: Setting, anchors: []string{"could not convert string to float: "}, rest: `'?(?P<value>[^']*)'?`},
	{kind: Setting, framework: "jax", name: "JAX_PJRT_CLIENT_CREATE_OPTIONS", anchors: []string{"Multiple ':' separators for option in jax_pjrt_client_create_options: "}, rest: `'?(?P<value>[^']*)`},
	{kind: Setting, framework: "jax", anchors: []string{"Option passed to PJRT_Client_Create with name "}, rest: `(?P<name>\w+) (?P<value>.*)`},
	{kind: Setting, framework: "jax", anchors: []string{"Unexpected option name passed to PJRT_Client_Create: "}, rest: `(?P<name>\w+)`},
	{kind: Setting, framework: "jax", name: "allocator", anchors: []string{"Allocator "}, rest: `(?P<value>\S+) not supported for PJRT GPU plugin`},
	{kind: Setting, framework: "jax", anchors: []string{"CudaAsync allocator is not supported in TfrtGpuClient"}, rest: ``},
	{kind: Setting, framework: "xla", name: "XLA_FLAGS", anchors: []string{"Unknown flag in XLA_FLAGS: ", "Unknown flags in XLA_FLAGS: "}, rest: `(?P<value>\S+)`},
	{kind: Setting, framework: "torch", anchors: []string{"Unrecognized CachingAllocator option: ", "Error parsing CachingAllocator settings, ", "CachingAllocator option ", "Unrecognized key '"}, rest: `(?P<value>.*)`, name: "PYTORCH_CUDA_ALLOC_CONF"},
	{kind: Setting, framework: "torch", anchors: []string{"per_process_memory_fraction is invalid", "garbage_collect_threshold is invalid", "garbage_collect_threshold too ", "Unknown allocator backend, options are native and cudaMallocAsync", "Expected a single True/False argument for "}, rest: `(?P<value>.*)`, name: "PYTORCH_CUDA_ALLOC_CONF"},
	{kind: Setting, framework: "torch", nonfatal: true, anchors: []string{"PYTORCH_CUDA_ALLOC_CONF is deprecated", "expandable_segments not supported on this platform"}, rest: ``, name: "PYTORCH_CUDA_ALLOC_CONF"},
	{kind: Setting, framework: "tensorflow", anchors: []string{"Physical devices cannot be modified after being initialized", "Virtual devices cannot be modified after being initialized",
		"Memory growth cannot differ between GPU devices", "Cannot set memory growth on device when virtual devices configured"}, rest: ``},

	// NAME=VALUE or 'NAME': 'VALUE' as shells, env and Python's os.environ echo it.
	{kind: SettingSeen, within: true, anchors: []string{"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_ALLOCATOR",
		"XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB", "JAX_PJRT_CLIENT_CREATE_OPTIONS", "XLA_FLAGS", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_ALLOCATOR", "TF_FORCE_UNIFIED_MEMORY",
		"TF_ENABLE_GPU_GARBAGE_COLLECTION", "TF_PER_DEVICE_MEMORY_LIMIT_MB", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUPY_GPU_MEMORY_LIMIT", "CUDA_VISIBLE_DEVICES",
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT"}, whole: true, unless: advice,
		rest: `(?P<name>\w+)["']?\]? ?[=:] ?["']?(?P<value>[^\s"']*[^\s"',;:.)}\]])`},
}
