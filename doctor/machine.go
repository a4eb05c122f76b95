package doctor

// What a log says of the machine and of what runs on it: pasted nvidia-smi tables,
// versions, settings, frameworks, and what pools and engines print of themselves. These
// have fixed forms, and a regular expression each.

import (
	"regexp"
	"strconv"
	"strings"

	"gpumem/policy/frameworks"
	"gpumem/size"
)

// A fact is one such thing.
type fact struct {
	kind                            string
	line                            int
	text, from                      string
	device, pid                     int
	name, version, value            string
	total, free, inUse, limit, want uint64
}

// smiCard is the row of an nvidia-smi table that names the GPU.
const smiCard = `\| +(?P<device>\d+)  (?P<name>\S(?:.*?\S)?)\s+(?:On|Off|N/A|\|)[^|]*\|`

const versionText = `v?(?P<version>\d+(?:\.\w+)+(?:\+\w+(?:\.\w+)*)?)`

// settingNames are the variables that frameworks and limiters read.
var settingNames = func() string {
	var names []string
	for _, v := range frameworks.Variables() {
		names = append(names, v.Name)
	}
	return strings.Join(append(names, "CUDA_DEVICE_MEMORY_LIMIT"), "|")
}()

// A pattern is one form. It is tried where one of the words stands.
var patterns = []struct {
	kind, name string
	words      string
	all        bool // there may be several in a text
	re         *regexp.Regexp
}{
	// Drivers 340 to 580.
	{"smi gpu", "", "off on n", false, regexp.MustCompile(smiCard + `.*(?: 00000000:| 0000:0|\| 0000)`)},
	{"smi memory", "", "mib", false, regexp.MustCompile(`(?P<inuse>\d+ ?MiB) / +(?P<total>\d+ ?MiB)|^\W*(?P<inuse>\d+ ?MiB) ?/ ?(?P<total>\d+ ?MiB)`)},
	{"smi process", "", "c g mib", false, regexp.MustCompile(`\| +(?P<device>\d+) +(?:\S+ +\S+ +)?(?P<pid>\d+) +(?P<value>C\+G|M\+C|C|G) +(?P<name>\S.*?) +(?:(?P<inuse>\d+ ?MiB)|N/A) *\|`)},
	{"device", "", "gpu", false, regexp.MustCompile(`GPU (?P<device>\d+): (?P<name>[A-Z][^()]*[^() ]) \(UUID: `)},
	{"device", "", "name", false, regexp.MustCompile(`(?:device: (?P<device>\d+), )?name: (?P<name>[A-Z][^,:]{2,80}?)(?:, pci bus id| major: \d| computeCapability: \d|$)`)},
	{"device", "", "executor", false, regexp.MustCompile(`StreamExecutor device \((?P<device>\d+)\): (?P<name>[^,]{2,80}), Compute Capability`)},
	{"device", "", "compute vmm capability", false, regexp.MustCompile(`Device (?P<device>\d+): (?P<name>[A-Z][^,:]{2,80}), (?:compute capability|VMM)`)},
	{"device", "", "nvidia tesla geforce quadro orin thor", false, regexp.MustCompile(`(?:Using device (?:cuda:)?(?P<device>\d+): |(?i:device|gpu)[ _](?i:name|model)["']?(?: ?[=:] ?)?["']?|(?:Device|GPU): | (?:name|description)="?)(?P<name>(?:NVIDIA|Tesla|GeForce|Quadro|Orin|AMD)\b[\w. -]{0,80}\w|Orin)`)},
	{"version", "driver", "driver", false, regexp.MustCompile(`Driver [Vv]ersion: *` + versionText)},
	{"version", "jaxlib", "jaxlib", false, regexp.MustCompile(`jaxlib(?: version)?(?:==| ?[:=] *|-| +\(?|/)["']?` + versionText)},
	{"version", "jax", "jax", false, regexp.MustCompile(`(?i:\bjax)(?: version|\.__version__)?(?:==|\W{1,8})v?(?P<version>0\.\w+(?:\.\w+)*)`)},
	{"version", "tensorflow", "tensorflow tf", false, regexp.MustCompile(`(?:\b(?i:tensorflow)(?:-gpu)?(?: version)?|tf\.__version__)(?:==|[ :=v-]{1,20})(?P<version>[12]\.\d+(?:\.\w+)*)`)},
	{"version", "torch", "torch pytorch", false, regexp.MustCompile(`(?:\b(?i:(?:py)?torch)(?: version)?|torch\.__version__)(?:==|[ :=v-]{1,20})(?P<version>[12]\.\d+(?:\.\w+)*(?:\+\w+)?)`)},
	{"version", "vllm", "vllm llm", false, regexp.MustCompile(`(?:vLLM API server version |vllm==|vLLM [Vv]ersion:? |LLM engine \()` + versionText)},
	{"setting seen", "", "xla jax tf pytorch cupy memory torch rmm", true, regexp.MustCompile(`(?:(?P<unless>\$\{|(?i:try|use|using|set|setting|variable|reducing|increasing) ["'` + "`" + `]?))?\b(?P<name>(?:` + settingNames + `)(?:_\d{1,2})?)\b["'` + "`" + `]?\]?(?: ?= ?(?:"(?P<value>[^"]*)"|'(?P<value>[^']*)'|(?P<value>[^\s"'` + "`" + `=,;)}\]]+))| ?: {0,40}(?:"(?P<value>[^"]*)"|'(?P<value>[^']*)'|(?P<value>[^\s"'` + "`" + `=,;)}\]]+)["',}\] ]*$)| +(?P<value>[\d.]+)$)`)},
	{"setting seen", "gpu_memory_utilization", "utilization", true, regexp.MustCompile(`gpu[-_]memory[-_]utilization["']?[ =:]{1,3}(?P<value>\d?\.\d+)`)},
	{"setting seen", "mem_fraction_static", "static", true, regexp.MustCompile(`mem[-_]fraction[-_]static["']?[ =:]{1,3}(?P<value>\d?\.\d+)`)},
	// What pools and engines print of themselves.
	{"tf device", "", "created creating", false, regexp.MustCompile(`(?:Created|Creating) (?:TensorFlow )?device .*?GPU:(?P<device>\d+) with (?P<limit>\d+ ?M\w*) memory(?:.*?name: (?P<name>[^,:]{2,80}?)(?:,|$))?`)},
	{"pool stats", "", "limit inuse in reserved sum available", true, regexp.MustCompile(`(?:^|[\s'{"])(?P<name>Limit|InUse|Reserved|LargestFreeBlock|memory_limit_|Total bytes in pool|Total size in pool|Sum Total of in-use chunks|total_region_allocated_bytes_|bytes_limit|bytes_in_use|bytes_reserved|pool_bytes|largest_free_block_bytes|total free in pool|largest free chunk usable by (?:lower|upper) end|pool size|pool limit|rounded request)['"]?:? +(?P<value>\d[\d.,]*\d ?[KMGT]?i?B?|\d+B?)`)},
	{"chunks", "", "chunks chunk", false, regexp.MustCompile(`(?P<value>\d+) Chunks of size (?P<inuse>\d+) totalling`)},
	{"arguments", "", "arguments", false, regexp.MustCompile(`byte size of input/output arguments \((?P<want>\d+)\) exceeds the base limit \((?P<limit>\d+)\)`)},
	{"estimate", "", "memory available msg", false, regexp.MustCompile(`memory\.available="\[(?P<list>[^\]]*)\]".*?(?:memory\.required\.full="(?P<want>[\d.]+ ?\w+)")?(?:.*?memory\.required\.partial="(?P<limit>[\d.]+ ?\w+)")?(?:.*?memory\.required\.allocations="\[(?P<value>[^\]]*)\]")?`)},
	{"found", "", "available", false, regexp.MustCompile(`total="(?P<total>[\d.]+ ?\w+)" available="(?P<free>[\d.]+ ?\w+)"`)},
	{"simulated", "", "simulating", false, regexp.MustCompile(`(?i)simulating GPU with memory size of (?P<total>\d+)`)},
	{"vllm usage", "", "initial", false, regexp.MustCompile(`total_gpu_memory=(?P<total>[\d.]+ ?\w+) initial_memory_usage=(?P<inuse>[\d.]+ ?\w+)`)},
}

var patternWords = func() (all [][]string) {
	for _, p := range patterns {
		all = append(all, strings.Fields(p.words))
	}
	return all
}()

// facts are what a statement says of the machine.
func (st *statement) facts() (out []fact) {
	text := clipped64(st.text)
	for i := range patterns {
		p := &patterns[i]
		if !st.hasAny(patternWords[i]...) {
			continue
		}
		n := 1
		if p.all {
			n = 20
		}
		for _, m := range p.re.FindAllStringSubmatch(text, n) {
			f := fact{kind: p.kind, name: p.name, line: st.line, from: st.from, device: -1, text: st.quote()}
			if f.set(p.re.SubexpNames(), m) {
				out = append(out, f)
			}
		}
	}
	return out
}

// set fills in what the groups of a pattern say.
func (f *fact) set(names, groups []string) bool {
	for i, name := range names {
		text := strings.TrimSpace(groups[i])
		if text == "" || name == "" {
			continue
		}
		switch name {
		case "unless":
			return false
		case "device":
			f.device, _ = strconv.Atoi(text)
		case "pid":
			f.pid, _ = strconv.Atoi(text)
		case "name":
			f.name = clip(text)
		case "version":
			f.version = clip(text)
		case "value":
			f.value = clip(text)
		case "list":
			f.version = clip(text)
		default:
			n := sizeOf(text)
			switch name {
			case "total":
				f.total = n
			case "free":
				f.free = n
			case "inuse":
				f.inUse = n
			case "limit":
				f.limit = n
			case "want":
				f.want = n
			}
		}
	}
	return true
}

// sizeOf reads a size as logs write it, 0 if it is none. All units are powers of 1024.
func sizeOf(text string) uint64 {
	n, err := size.Parse(strings.ReplaceAll(strings.TrimSpace(strings.TrimSuffix(text, "bytes")), ",", ""))
	if err != nil {
		return 0
	}
	return n
}

// frameworkMarks are what shows that a program uses a framework, in paths and names.
var frameworkMarks = []struct {
	name  string
	words string // it is tried where one of them stands
	re    *regexp.Regexp
}{
	{"jax", "jax jaxlib xla pjrt cu tsl flax", regexp.MustCompile(`\bjaxlib\b|\bjax\.(?:errors|extend|lib)\b|(?:site|dist)-packages/(?:jax|jaxlib|flax)/|external/(?:xla/xla|org_tensorflow|tsl/tsl)/|pjrt|PJRT|\bcuSolver internal error|\bXlaRuntimeError|\bJaxRuntimeError`)},
	{"tensorflow", "tensorflow tf tensor oom local dst", regexp.MustCompile(`(?:^|[^/])\btensorflow/(?:core|stream_executor)/|\btensorflow\.python\b|(?:site|dist)-packages/tensorflow/|external/local_(?:xla|tsl)/|Created (?:TensorFlow )?device|OOM when allocating tensor|Dst tensor is not|TensorFlow device`)},
	{"torch", "torch pytorch nccl cudnn calling", regexp.MustCompile(`\btorch(?:\.|/)|(?i:pytorch)|cuDNN error: CUDNN|CUDA error: CUBLAS_STATUS_\w+ when calling|site-packages/torch/|ProcessGroupNCCL|TORCH_`)},
	{"vllm", "vllm gpu cache", regexp.MustCompile(`(?i)\bvllm|gpu_memory_utilization|GPU memory utilization|cache blocks`)},
	{"sglang", "sglang fraction static", regexp.MustCompile(`(?i)\bsglang|mem-fraction-static`)},
	{"cupy", "cupy", regexp.MustCompile(`\bcupy\b`)},
	{"rmm", "rmm", regexp.MustCompile(`(?i)\brmm\b`)},
	{"llama.cpp", "llama ggml ollama", regexp.MustCompile(`(?i)\bllama[_.]|\bggml|\bollama|llama runner|\bllama-server`)},
	{"ollama", "ollama runner", regexp.MustCompile(`(?i)\bollama|llama runner|\brunner\.(?:go|size)`)},
	{"metal", "metal iogpu mtl", regexp.MustCompile(`(?i:\[metal\])|kIOGPU|MTL(?:CommandBuffer|Device|Heap)`)},
	{"mps", "mps", regexp.MustCompile(`\bMPS\b`)},
	{"hip", "hip rocm", regexp.MustCompile(`\bHIP\b|\bhip[A-Z]|(?i:rocm)|PYTORCH_HIP`)},
	{"xpu", "xpu", regexp.MustCompile(`\bXPU\b`)},
	{"onnxruntime", "onnxruntime arena", regexp.MustCompile(`(?i)onnxruntime|BFCArena`)},
	{"paddle", "paddle", regexp.MustCompile(`(?i)paddle`)},
	{"xgboost", "xgboost xgb", regexp.MustCompile(`(?i)xgboost`)},
	{"numba", "numba", regexp.MustCompile(`(?i)\bnumba\b`)},
	{"mxnet", "mxnet", regexp.MustCompile(`(?i)\bmxnet\b`)},
	{"julia", "jl gpu cuda", regexp.MustCompile(`CUDA\.jl|Out of GPU memory trying|\.jl:\d+`)},
	{"tensorrt", "tensor rt trt", regexp.MustCompile(`(?i)\bTensorRT\b|\[TRT\]|\[TRT-LLM\]`)},
	{"exla", "exla nx", regexp.MustCompile(`(?i)\bEXLA\b|\bNx\.`)},
	{"comfyui", "comfy comfyui", regexp.MustCompile(`(?i)comfyui`)},
	{"flax", "flax", regexp.MustCompile(`\bflax\b`)},
}

var markWords = func() (all [][]string) {
	for _, m := range frameworkMarks {
		all = append(all, strings.Fields(m.words))
	}
	return all
}()

// frameworksShown are those that a text shows.
func (st *statement) frameworksShown() (list []string) {
	text := clipped64(st.head + st.text)
	for i := range frameworkMarks {
		if st.hasAny(markWords[i]...) && frameworkMarks[i].re.MatchString(text) {
			list = append(list, frameworkMarks[i].name)
		}
	}
	return list
}

var exceptionName = regexp.MustCompile(`^(?:\w+\.)*\w+(?:Error|Exception): `)

// quote is the statement as it is quoted: clipped behind its numbers where it is long.
func (st *statement) quote() string {
	text := strings.TrimSpace(st.text)
	if text == "" {
		text = strings.TrimSpace(st.head)
	}
	if at := exceptionName.FindStringIndex(text); at != nil && len(text) > 160 {
		text = text[at[1]:] // the words that decide come later
	}
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "")
	}
	if text == "" {
		text = "(a blank line)"
	}
	return text
}
