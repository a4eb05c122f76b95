package statement

// Facts of a log about the machine and its programs: pasted nvidia-smi tables,
// versions, settings, frameworks, and what pools and engines print of themselves. These
// have fixed forms, and a regular expression each.

import (
	"regexp"
	"strconv"
	"strings"

	"gpumem/doctor/internal/needle"
	"gpumem/policy/frameworks"
	"gpumem/size"
)

// Fact is one such thing.
type Fact struct {
	Kind                            string
	Line                            int
	Text, from                      string
	Device, Pid                     int
	Name, Version, Value            string
	Total, Free, InUse, Limit, Want uint64
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
	{"version", "", "sglang ollama", false, regexp.MustCompile(`\b(?P<name>sglang|ollama)(?:==| version(?: is)? )` + versionText)},
	{"version", "ollama", "listening", false, regexp.MustCompile(`Listening on \S+:11434 \(version ` + versionText)},
	{"setting seen", "", "xla jax tf pytorch cupy memory torch rmm", true, regexp.MustCompile(`(?:(?P<unless>\$\{|(?i:try|use|using|set|setting|variable|reducing|increasing) ["'` + "`" + `]?))?\b(?P<name>(?:` + settingNames + `)(?:_\d{1,2})?)\b["'` + "`" + `]?\]?(?: ?= ?(?:"(?P<value>[^"]*)"|'(?P<value>[^']*)'|(?P<value>[^\s"'` + "`" + `=,;)}\]]+))| ?: {0,40}(?:"(?P<value>[^"]*)"|'(?P<value>[^']*)'|(?P<value>[^\s"'` + "`" + `=,;)}\]]+)["',}\] ]*$)| +(?P<value>[\d.]+)$)`)},
	{"setting seen", "gpu_memory_utilization", "utilization", true, regexp.MustCompile(`gpu[-_]memory[-_]utilization["']?[ =:(]{1,3}(?P<value>\d?\.\d+)`)},
	{"setting seen", "mem_fraction_static", "static", true, regexp.MustCompile(`mem[-_]fraction[-_]static["']?[ =:]{1,3}(?P<value>\d?\.\d+)`)},
	// What pools and engines print of themselves.
	{"tf device", "", "created creating", false, regexp.MustCompile(`(?:Created|Creating) (?:TensorFlow )?device .*?GPU:(?P<device>\d+) with (?P<limit>\d+ ?M\w*) memory(?:.*?name: (?P<name>[^,:]{2,80}?)(?:,|$))?`)},
	{"pool stats", "", "limit inuse in reserved sum available", true, regexp.MustCompile(`(?:^|[\s'{"])(?P<name>Limit|InUse|Reserved|LargestFreeBlock|memory_limit_|Total bytes in pool|Total size in pool|Sum Total of in-use chunks|total_region_allocated_bytes_|bytes_limit|bytes_in_use|bytes_reserved|pool_bytes|largest_free_block_bytes|total free in pool|largest free chunk usable by (?:lower|upper) end|pool size|pool limit|rounded request)['"]?:? +(?P<value>\d[\d.,]*\d ?[KMGT]?i?B?|\d+B?)`)},
	{"torch summary", "", "active allocated", true, regexp.MustCompile(`\| *(?P<name>Active|Allocated) memory +\| +(?P<inuse>[\d.]+ ?\w+)`)},
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

// patternsBy finds the patterns that a text may have.
var patternsBy = needle.NewFinder(func(yield func(*regexp.Regexp) bool) {
	for i := range patterns {
		if !yield(patterns[i].re) {
			return
		}
	}
})

// Facts are what a statement says of the machine.
func (st *Statement) Facts() (out []Fact) {
	text := Clipped64(st.Text)
	for _, i := range patternsBy.In(text) {
		p := &patterns[i]
		if !st.HasAny(patternWords[i]...) {
			continue
		}
		n := 1
		if p.all {
			n = 20
		}
		for _, m := range p.re.FindAllStringSubmatch(text, n) {
			f := Fact{Kind: p.kind, Name: p.name, Line: st.Line, from: st.From, Device: -1, Text: st.Quote()}
			if f.set(p.re.SubexpNames(), m) {
				out = append(out, f)
			}
		}
	}
	return out
}

// set fills in what the groups of a pattern say.
func (f *Fact) set(names, groups []string) bool {
	for i, name := range names {
		text := strings.TrimSpace(groups[i])
		if text == "" || name == "" {
			continue
		}
		switch name {
		case "unless":
			return false
		case "device":
			f.Device, _ = strconv.Atoi(text)
		case "pid":
			f.Pid, _ = strconv.Atoi(text)
		case "name":
			f.Name = Clip(text)
		case "version":
			f.Version = Clip(text)
		case "value":
			f.Value = Clip(text)
		case "list":
			f.Version = Clip(text)
		default:
			n := SizeOf(text)
			switch name {
			case "total":
				f.Total = n
			case "free":
				f.Free = n
			case "inuse":
				f.InUse = n
			case "limit":
				f.Limit = n
			case "want":
				f.Want = n
			}
		}
	}
	return true
}

// SizeOf reads a size as logs write it, 0 if it is none. All units are powers of 1024.
func SizeOf(text string) uint64 {
	n, err := size.Parse(strings.ReplaceAll(strings.TrimSpace(strings.TrimSuffix(text, "bytes")), ",", ""))
	if err != nil {
		return 0
	}
	return n
}

// FrameworksShown are those that a text shows.
func (st *Statement) FrameworksShown() (list []string) {
	text := Clipped64(st.head + st.Text)
	for _, i := range marksBy.In(text) {
		if st.HasAny(frameworkMarks[i].words...) && frameworkMarks[i].re.MatchString(text) {
			list = append(list, frameworkMarks[i].name)
		}
	}
	return list
}

var exceptionName = regexp.MustCompile(`^(?:\w+\.)*\w+(?:Error|Exception): `)

// Quote is the statement as it is quoted: clipped behind its numbers where it is long.
func (st *Statement) Quote() string {
	text := strings.TrimSpace(st.Text[min(st.from, len(st.Text)):])
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

// Evidence is a line that shows something.
type Evidence struct {
	Line    int    `json:"line"` // of the log, from 1; 0: of the state or a binary dump
	Text    string `json:"text"`
	Reading string `json:"reading"` // what it shows, in numbers where it has them
}

// Quoted is a statement with what it shows.
func (st *Statement) Quoted(reading string) Evidence { return Evidence{st.Line, st.Quote(), reading} }

// Quoted is the line of a fact with what it shows.
func (f *Fact) Quoted(reading string) Evidence { return Evidence{f.Line, f.Text, reading} }
