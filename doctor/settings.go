package doctor

// Settings: refusals in the words that package policy knows too, and
// variables that a log echoes.

import (
	"regexp"
	"strings"

	"gpumem/policy/frameworks"
)

// notSet marks a setting that a message recommends and nobody made, the end of
// a longer name, and a shell's ${NAME:-default}.
var notSet = regexp.MustCompile(`\w$|\$\{$|(?i)(?:try|use|using|set|setting|variable|reducing|increasing|see documentation for .* and) ["'` + "`" + `]?$`)

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
}

// seenPatterns are for variables that a log echoes, in the ways of shells
// (NAME=VALUE, with or without export, env or docker run's -e), of Python
// (os.environ["NAME"] = "VALUE", 'NAME': 'VALUE'), of YAML and JSON (NAME: VALUE,
// - NAME=VALUE, "NAME": "VALUE") and of Dockerfiles (ENV NAME VALUE). An empty
// value is one only between quotes. Behind a colon a value without quotes ends
// the line: else it is a sentence.
var seenPatterns = func() []pattern {
	var names, env []string
	for _, v := range frameworks.Variables() {
		names = append(names, v.Name)
	}
	names = append(names, "CUDA_DEVICE_MEMORY_LIMIT") // HAMi's quota, with the GPU's number behind it or without
	for _, n := range names {
		env = append(env, "ENV "+n)
	}
	const (
		value = `"(?P<value>[^"]*)"|'(?P<value>[^']*)'|`
		bare  = `(?P<value>[^\s"'` + "`" + `=,;)}\]](?:[^\s"'` + "`" + `]*[^\s"'` + "`" + `,;:.)}\]])?)`
		last  = `["'` + "`" + `,;)}\] ]*$`
	)
	name := `(?P<name>(?:` + strings.Join(names, "|") + `)(?:_\d{1,2})?)\b`
	return []pattern{
		{kind: SettingSeen, within: true, anchors: names, whole: true, unless: notSet, rest: name + `["'` + "`" + `]?\]?(?: ?= ?(?:` + value + bare + `)| ?: {0,40}(?:` + value + bare + last + `))`},
		{kind: SettingSeen, within: true, anchors: env, whole: true, unless: inWord, rest: `ENV ` + name + ` +(?:` + value + `(?P<value>[^\s=].*?))\s*$`},
	}
}()
