package inventory

// The lines that are read. Each has a form, whose groups are named for the figures; the layouts are
// those of the programs' own sources and logs, old and new.

import (
	"regexp"
	"strconv"
	"strings"

	"gpumem/doctor/internal/needle"
	"gpumem/size"
)

// A form is a line, or a part of one, with figures. Groups of its expression are figures, but for
// gpu and device (the subject), count_X (a number), word_X (a text), and key, when and value
// (figures by name, as often as they stand in the line). unit is that of numbers without one.
type form struct {
	source *source
	needle string // one of these, with bars between, stands in each such line
	unit   string
	re     *regexp.Regexp
	how    how
}

// how is what a form is besides.
type how uint8

const (
	ordinary how = iota
	begins       // a report begins, and what the last one said is no longer so
	inTable      // a row of PyTorch's table, whose head names the GPU
	ownWords     // what people print themselves; messages about refused memory look alike
)

func with(pattern string) *regexp.Regexp {
	return regexp.MustCompile(strings.ReplaceAll(pattern, "SIZE", `\d[\d.,]*\s?(?:[KMGT]i?B|[Bb]ytes|[KMGTB]\b)`))
}

var forms = []form{
	// torch/cuda/memory.py: memory_summary, memory_stats, and what people print themselves.
	{torch, "memory summary, device ID", "", with(`device ID (?P<gpu>\d+)`), begins},
	{torch, "CUDA OOMs", "", with(`OOMs: +(?P<count_ooms>\d+) +\|(?: +cudaMalloc retries: +(?P<count_retries>\d+))?`), inTable},
	{torch, " memory ", "", with(`\|\s*(?P<key>Allocated|Active|Requested|GPU reserved|Non-releasable) memory\s*\|\s*(?P<value>SIZE)\s*\|\s*(?P<peak>SIZE)`), inTable},
	{torch, "_bytes.all.", "", with(`\b(?P<key>allocated|reserved|active|inactive_split|requested)_bytes\.all\.(?P<when>current|peak)['"]?\s*[,:=]\s*(?P<value>\d+)` +
		`|\bnum_(?:ooms['"]?\s*[,:=]\s*(?P<count_ooms>\d+)|alloc_retries['"]?\s*[,:=]\s*(?P<count_retries>\d+))`), ordinary},
	// Recipes of FSDP, MMEngine, detectron2 and Ultralytics.
	{torch, "Malloc ret|CUDA memory |data_time: |max_mem: |G   ", "MiB", with(`(?i)cuda malloc ret\w+ : (?P<count_retries>\d+)|` +
		`max CUDA memory (?:allocated was (?P<peak_allocated>SIZE)|reserved was (?P<peak_reserved>SIZE))|peak active CUDA memory was (?P<peak_active>SIZE)|` +
		`data_time: [\d.]+,?\s+memory: (?P<peak_allocated>\d+)\b|\bmax_mem: (?P<peak_allocated>\d+M)\b|^\s*\d+/\d+\s+(?P<reserved>[\d.]+G)\s+[\d.]+\s`), ordinary},
	{torch, "Max_MA ", "", with(`\bMA (?P<allocated>[\d.]+ GB)\s+Max_MA (?P<peak_allocated>[\d.]+ GB)\s+CA (?P<reserved>[\d.]+ GB)\s+Max_CA \d+ GB`), ordinary},
	{torch, "Allocated ", "GiB", with(`\b(?P<peak>[Mm]ax )?(?P<key>Memory|[Cc]ache) Allocated\s+(?P<value>[\d.]+)\s+GigaBytes`), ordinary},
	{torch, "MemAllocated=", "", with(`\bMemAllocated=(?P<allocated>SIZE), MaxMemAllocated=(?P<peak_allocated>SIZE)`), ordinary},
	{torch, "memory.used (MB)", "MiB", with(`(?:gpu_id|device_id): (?P<gpu>\d+)/memory\.used \(MB\)['"]?\s*[:=,]\s*(?P<used>[\d.]+)`), ordinary},
	{device, "mem_get_info", "", with(`\((?P<free>\d{6,}), (?P<total>\d{6,})\)`), ordinary},
	{host, "CPU Virtual Memory|CPU Total Peak|Mem: ", "", with(`used = (?P<used>[\d.]+ GB), percent = (?P<word_percent>[\d.]+)%|CPU Total Peak Memory consumed during the .*: (?P<peak_used>SIZE)|` +
		`^Mem:\s+(?P<total>[\d.]+[KMGT]i?)\s+(?P<used>[\d.]+[KMGT]i?)\s+[\d.]+[KMGT]i?(?:\s+[\d.]+[KMGTBi]*){2}\s+(?P<available>[\d.]+[KMGT]i?)`), ordinary},
	{trainer, "_mem_gpu", "", with(`\b(?P<key>before_init_mem_gpu|(?:init|train)_mem_gpu_(?:alloc|peaked)_delta)['"]?\s*[=:]\s*(?P<value>-?\d+(?:MB)?)`), ordinary},
	// jaxlib/py_device.cc: memory_stats; CompiledMemoryStats; xla/service/buffer_assignment.cc.
	{jax, "bytes_|_bytes", "", with(`\b(?P<key>bytes_in_use|peak_bytes_in_use|bytes_limit|(?:peak_)?bytes_reserved|bytes_reservable_limit|pool_bytes|peak_pool_bytes|largest_free_block_bytes)` +
		`['"]?\s*[:=]\s*(?P<value>\d+)`), ordinary},
	{compiled, "_size_in_bytes=", "", with(`\b(?P<key>generated_code|argument|output|alias|temp)_size_in_bytes=(?P<value>\d+)`), ordinary},
	{bufferAssignment, "BufferAssignment:", "", with(`^BufferAssignment:`), begins},
	{bufferAssignment, "allocation ", "", with(`^allocation \d+: size (?P<value>\d+),.*?(?P<key>parameter|constant|maybe-live-out|preallocated-temp|thread-local)`), ordinary},
	{memoryUsage, "Total bytes", "", with(`^Total bytes(?: used)?: (?P<total>\d+)`), ordinary},
	// vLLM's workers, 0.4 to 0.33. "GB" is GiB.
	{vllm, "gpu_memory_utilization (", "", with(`total_gpu_memory \((?P<total>SIZE)\) x gpu_memory_utilization \((?P<word_share>[\d.]+)\) = (?P<requested>SIZE)`), ordinary},
	{vllm, "model weights take", "", with(`model weights take (?P<weights>SIZE); non_torch_memory takes (?P<nontorch>SIZE); PyTorch activation peak memory takes` +
		` (?P<activations>SIZE); the rest of the memory reserved for KV Cache is (?P<cache>SIZE)`), ordinary},
	{vllm, "Memory profiling results", "", with(`total_gpu_memory=(?P<total>SIZE) initial_memory_usage=(?:SIZE) peak_torch_memory=(?P<peaktorch>SIZE) .*non_torch_memory=(?P<nontorch>SIZE)` +
		` kv_cache_size=(?P<cache>SIZE)`), ordinary},
	{vllm, "odel weights t|Model loading took|Available KV cache memory|KV cache size:|Graph capturing finished|instance can use|total_gpu_memory |non_torch_memory |peak memory |available_kv_cache", "",
		with(`(?:weights took|[Mm]odel loading took|model weights take\s{2}) *(?P<weights>SIZE)|KV cache memory: (?P<cache>SIZE)|GPU KV cache size: (?P<count_tokens>[\d,]+) tokens|` +
			`capturing finished .*took (?P<graphs>SIZE)|instance can use\s+(?P<requested>SIZE)|total_gpu_memory\s+(?P<total>SIZE)|non_torch_memory\s+(?P<nontorch>SIZE)|` +
			`PyTorch activation peak memory\s+(?P<activations>SIZE)|available_kv_cache_memory\s+(?P<cache>SIZE)`), ordinary},
	{vllm, "pu_memory_util|pu-memory-util", "", with(`gpu[_-]memory[_-]utilization(?:['"]?[=:,]\s*| +)(?P<word_share>0?\.\d+|1\.0)\b`), ownWords},
	{vllm, "Desired GPU memory utilization", "GiB", with(`Free memory on device \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\).*utilization is \((?P<word_share>[\d.]+), (?P<requested>[\d.]+ GiB)\)\.` +
		` Actual usage is ` +
		`(?:(?P<weights>SIZE) for weight|(?P<consumed>SIZE) for consumed memory[^,]*), (?P<activations>SIZE) for peak` +
		` activation,(?: (?P<nontorch>SIZE) for non-torch memory,)? and (?P<graphs>SIZE) for CUDAGraph memory.*Current kv cache memory in use is` +
		` (?P<cache>SIZE)`), ordinary},
	// SGLang: free memory is the whole device's, other programs included.
	{sglang, "Load weight begin", "", with(`avail mem=(?P<begin>SIZE)`), begins},
	{sglang, "Load weight end|Cache is allocated|Memory pool end|apture cuda graph|avail_mem=|e_gpu_mem=", "",
		with(`Load weight end.*avail mem=(?P<loaded>SIZE)(?:, mem usage=(?P<weights>SIZE))?|#tokens: (?P<count_tokens>\d+)|\bKV size: (?P<cache>SIZE)|K size: (?P<k>SIZE), V size: (?P<v>SIZE)|` +
			`Memory pool end.*avail mem=(?P<pooled>SIZE)|graph begin.*avail mem=(?P<before>SIZE)|graph end.*mem usage=(?P<graphs>SIZE)\. avail mem=(?P<captured>SIZE)|` +
			`avail(?:able_gpu)?_mem=(?P<capturing>SIZE)`), ordinary},
	// llama.cpp, alone and under Ollama. "MB" is MiB.
	{llama, "buffer size", "", with(`(?P<device>[A-Za-z]\w*)\s+(?P<key>model |KV |RS |compute |output |LoRA )?buffer size\s*=\s*(?P<value>[\d.]+ Mi?B)`), ordinary},
	{llama, "allocated ", "MiB", with(`buffer.*, size =\s+[\d.]+ Mi?B, \(\s*(?P<held>[\d.]+) /\s+(?P<recommended>[\d.]+)\)`), ordinary},
	{llama, "offloaded ", "", with(`offloaded (?P<count_offload>\d+)/(?P<count_layers>\d+) layers to GPU`), ordinary},
	{llama, "   - ", "MiB", with(`- (?P<device>\w+) \((?P<word_name>[^|]+)\)\s*\|\s*(?P<total>\d+) =\s+(?P<free>\d+) \+ \(\s*\d+ =\s+(?P<model>\d+) \+\s+(?P<kv>\d+)` +
		` \+\s+(?P<compute>\d+)\) \+\s+(?P<word_unaccounted>-?\d+) \|`), ordinary},
	{llama, "- Host ", "MiB", with(`- (?P<device>Host)\s*\|\s*\d+ =\s+(?P<model>\d+) \+\s+(?P<kv>\d+) \+\s+(?P<compute>\d+) `), ordinary},
	{llama, " device=", "", with(`msg="(?P<key>model weights|kv cache|compute graph)" device=(?P<device>\w+) size="(?P<value>SIZE)"`), ordinary},
	{llama, " MiB free", "", with(`(?P<device>[A-Z]\w*)\s*(?:: .*\((?P<total>\d+ MiB), | \([^()]*\)(?: \([^()]*\))? - )(?P<before>\d+ MiB) free`), ordinary},
	{ollama, "layers.offload=", "", with(`layers\.model=(?P<count_layers>\d+) layers\.offload=(?P<count_offload>\d+)|memory\.available="\[(?P<word_available>[^\]]*)\]"|` +
		`memory\.required\.allocations="\[(?P<word_allocations>[^\]]*)\]"|` +
		`\b(?P<key>memory\.required\.(?:full|partial|kv)|memory\.weights\.total|memory\.graph\.(?:full|partial)|projector\.(?:weights|graph))="(?P<value>SIZE)"`), ordinary},
	// TensorRT-LLM, its C++ runtime and its PyTorch backend.
	{tensorrt, "Loaded engine size", "", with(`Loaded engine size: (?P<weights>SIZE)`), ordinary},
	{tensorrt, "calculating max tokens in paged", "", with(`total: (?P<total>SIZE), available: (?P<free>SIZE)`), ordinary},
	{tensorrt, "TensorRT-managed allocation", "MiB", with(`now: CPU \d+, GPU (?P<managed>\d+) \(MiB\)`), ordinary},
	{tensorrt, "[MemUsageChange] Init", "MiB", with(`now: CPU \d+, GPU (?P<whole>\d+) \(MiB\)`), ordinary},
	{tensorrt, "for max tokens in paged KV", "", with(`Allocated (?P<cache>SIZE) for max tokens in paged KV cache(?: \((?P<count_tokens>\d+)\))?`), ordinary},
	{tensorrt, "[MemUsageChange] Allocated ", "", with(`Allocated (?:(?P<context>SIZE) for execution context memory|` +
		`(?P<buffers>SIZE) GPU memory for runtime buffers|(?P<decoder>SIZE) GPU memory for decoder)`), ordinary},
	{tensorrt, "tokens in paged KV", "", with(`Using (?P<count_tokens>\d+) tokens in paged`), ordinary},
	{tensorrt, "for k/v cache", "", with(`Allocate (?P<cache>\d+ bytes) for`), ordinary},
	{tensorrt, "(inside torch) in memory usage", "", with(`after loading model weights .*: (?P<weights>SIZE)`), ordinary},
	{tensorrt, "dynamically allocated during inf", "", with(`profiling: (?P<activations>SIZE)`), ordinary},
	{tensorrt, "Memory used outside torch", "", with(`profiling: (?P<nontorch>SIZE)`), ordinary},
	{tensorrt, "device total memory", "", with(`available KV cache memory when calculating max tokens: (?P<cache>SIZE).*device total memory (?P<total>SIZE)`), ordinary},
	{jetson, "RAM ", "MiB", with(`\bRAM (?P<used>\d+)/(?P<total>\d+)MB \(lfb `), ordinary},
	// CUDA.jl's memory_status, old and new; RMM's statistics, CuPy's pool, onnxruntime's arena, and
	// TensorFlow's get_memory_info.
	{julia, " usage: ", "", with(`Effective GPU memory usage: [\d.]+% \((?P<used>SIZE)/(?P<total>SIZE)\)|CUDA allocator usage: (?P<reserved>SIZE)|` +
		`pool usage: (?P<allocated>SIZE) \((?P<reserved>SIZE) reserved\)|\w+ usage: SIZE \((?P<allocated>SIZE) allocated, (?P<cached>SIZE) cached\)`), ordinary},
	{rmm, "current_bytes=", "", with(`\bcurrent_bytes=(?P<allocated>\d+).*\bpeak_bytes=(?P<peak_allocated>\d+)`), ordinary},
	{cupy, "_bytes()", "", with(`pool\w*\.(?P<key>used|free|total)_bytes\(\)\s*[:=,]?\s*(?P<value>\d+)`), ordinary},
	{onnx, "Total allocated bytes", "", with(`bfc_arena\.cc.*Total allocated bytes: (?P<reserved>\d+)`), ordinary},
	{tensorflow, "'peak': ", "", with(`'current': (?P<allocated>\d+), 'peak': (?P<peak_allocated>\d+)\}`), ordinary},
	{tensorflow, "device:GPU:", "", with(`/device:GPU:(?P<gpu>\d+) with (?P<limit>\d+ MB) memory`), ordinary},
	{mps, "pinned_mem_limit |PINNED_DEVICE_MEM_LIMIT", "", with(`(?:pinned_mem_limit |PINNED_DEVICE_MEM_LIMIT['"]?\s*[=:]\s*['"]?)(?P<gpu>\d+)[= ](?P<limit>\d+[MG]B?)\b`), ordinary},
	// Forge and ComfyUI, with units and, before 2025-10, without.
	{diffusion, "Model Require: |oaded partially|oaded completely|Total VRAM ", "MiB", with(`Target: (?P<word_model>\w+), Free GPU: (?P<free>SIZE), Model Require: (?P<require>SIZE),.*Inference Require: (?P<inference>SIZE)|` +
		`CPU Swap Loaded[^:]*: (?P<host>SIZE)|GPU Loaded: (?P<loaded>SIZE)|\bloaded (?:partially|completely);? (?:(?P<usable>[\d.]+)(?: MB usable,)? )?(?P<loaded>[\d.]+)(?: MB loaded| |$)|` +
		`(?P<host>SIZE) offloaded|partially: (?P<freed>SIZE) freed, (?P<loaded>SIZE) remains|(?P<buffer>SIZE) buffer reserved|Total VRAM (?P<vram>SIZE), total RAM (?P<ram>SIZE)`), ordinary},
	// What people print with words of their own, last.
	{torch, "emory (|emory [", "", headedPrint, ownWords},
	{torch, "llocated|eserved|ached", "", ownPrint, ownWords},
	{torch, " cur", "", seriesPrint, ownWords},
	{torch, "peak|Peak", "", peakPrint, ownWords},
}

// ownPrint is a counter of PyTorch by its name or by a word, with its size.
var ownPrint = with(`(?i)(?:^|[^a-z])(?P<peak>max(?:imum)?[ _]|peak[ _])?(?:gpu[ _])?(?:mem(?:ory)?[ _])?(?P<key>allocated|reserved|cached)` +
	`(?:[ _](?:mem(?:ory)?|bytes))?(?:\(\w*\))?['"]?\s*(?:[\[(](?P<unit>[KMG]i?B)[\])])?\s*(?:[:=]|is)?\s+(?P<value>\d[\d.]*\s?(?:[KMGT]i?B|bytes|B)?)(?:[\s,;|)]|$` +
	`)`)

// headedPrint is a line of counters whose unit stands in its heading.
var headedPrint = with(`(?i)\bphase\s*[:=]\s*(?P<word_phase>\w+)|\b(?P<peak>max(?:imum)?[ _]|peak[ _])?(?P<key>allocated|reserved|cached|inactive|param|grad|buffer)(?:eter|ient)?s?` +
	`\s*[:=]\s*(?P<value>\d[\d.]*)\b`)

var heading = needle.MustCompile(`emory [(\[]([KMG]i?B)[)\]]`)

// seriesPrint is a counter that stands beside its peak.
var seriesPrint = with(`(?i)\b(?P<key>alloc|reserved|cached)(?:ated)? (?P<when>cur|now|peak|max)\w*[:=]? +(?P<value>SIZE)`)

// peakPrint is a peak in the words of a program.
var peakPrint = with(`(?i)\bpeak(?: (?:gpu |cuda |device )?(?:mem(?:ory)?)?(?: usage| use)?)?\s*[:=]?\s+(?P<peak_allocated>\d[\d.]*\s?[MG]i?B)\b`)

// keys are figures under the names that the forms have.
var keys = strings.NewReplacer("gpu reserved", "reserved", "non-releasable", "nonreleasable", "inactive_split", "nonreleasable", "cached", "reserved",
	"allocated", "allocated", "alloc", "allocated", "cache", "reserved", "memory", "allocated", "peak_bytes_in_use", "peak_allocated", "bytes_in_use", "allocated", "bytes_limit", "limit",
	"peak_pool_bytes", "peak_reserved", "pool_bytes", "reserved", "bytes_reserved", "programs", "largest_free_block_bytes", "largest")

// itsName is what tells that counters with common names are PyTorch's.
var itsName = needle.MustCompile(`(?i)torch|memory_(?:allocated|reserved|cached)`)

var (
	escapes = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")
	// rank is how the prefix of a line names the process among others of its kind.
	rank   = regexp.MustCompile(`(?i)\brank[ :=_-]*(\d+)|(?:^|[^A-Za-z])((?:DP\d+ )?TP\d+)|\bpid=(\d+)`)
	digits = regexp.MustCompile(`\d+$`)
	plain  = regexp.MustCompile(`^[\d.]+$`)
)

// refusals are words of memory that was refused; those of an allocation stand beside failing.
var refusals = []string{"ut of memory", "ut of CUDA memory", "ut of GPU memory", "ut of device memory", "ried to allocate", "xhausted", "ot enough", "nsufficient", "o available memory", "o free memory",
	"nable to", "larger than", "bandwidth", "OOM "}

// fails reports whether a line may speak of memory that was refused.
func fails(text string) bool {
	for _, words := range refusals {
		if strings.Contains(text, words) {
			return true
		}
	}
	return strings.Contains(text, "lloc") && (strings.Contains(text, "ail") || strings.Contains(text, "annot"))
}

// stands reports whether a line has one of the form's needles.
func (f *form) stands(text string) bool {
	for needle := range strings.SplitSeq(f.needle, "|") {
		if strings.Contains(text, needle) {
			return true
		}
	}
	return false
}

// take reads a line of this form. It reports whether the line is one.
func (f *form) take(r *Reader, n int, text string) bool {
	if f.how == ownWords && fails(text) {
		return false
	}
	unit := f.unit
	if f.re == headedPrint {
		m := heading.FindStringSubmatch(text)
		if m == nil {
			return false
		}
		unit = m[1]
	}
	all := f.re.FindAllStringSubmatchIndex(text, 40)
	var s *subject
	from := From{n, text}
	for _, at := range all {
		group := func(name string) string {
			for i, g := range f.re.SubexpNames() {
				if g == name && at[2*i] >= 0 {
					return strings.TrimSpace(text[at[2*i]:at[2*i+1]])
				}
			}
			return ""
		}
		if f.source == llama && group("device") != "" || s == nil {
			if s = r.of(f.source, r.named(f, text[:at[0]], group)); s == nil {
				return true
			}
			if f.how == begins {
				s.clear()
				r.table = s.name
			}
			s.known = s.known || f.how != ownWords || itsName.MatchString(text)
		}
		if key := strings.ToLower(group("key")); key != "" {
			f.setNamed(s, key, unit, group, from)
			continue
		}
		for i, name := range f.re.SubexpNames() {
			if name == "" || name == "gpu" || name == "device" || at[2*i] < 0 {
				continue
			}
			value := text[at[2*i]:at[2*i+1]]
			if word, ok := strings.CutPrefix(name, "word_"); ok {
				s.words[word] = value
			} else if count, ok := strings.CutPrefix(name, "count_"); ok {
				s.counts[count], _ = strconv.ParseUint(strings.ReplaceAll(value, ",", ""), 10, 64)
			} else if b, ok := bytesOf(value, unit); ok {
				s.set(name, figure{b, from})
			}
		}
	}
	return len(all) > 0
}

// setNamed sets a figure that the line names.
func (f *form) setNamed(s *subject, key, unit string, group func(string) string, from From) {
	if f.source == torch || f.source == jax {
		key = keys.Replace(key)
	}
	if u := group("unit"); u != "" {
		unit = u
	}
	value := group("value")
	if f.re == ownPrint && unit == "" && plain.MatchString(value) && len(value) < 7 {
		return // no unit, and too small for bytes
	}
	if less, ok := strings.CutPrefix(value, "-"); ok {
		key, value = key+" less", less
	}
	b, ok := bytesOf(value, unit)
	if !ok {
		return
	}
	peak := group("peak")
	if when := group("when"); when == "peak" || when == "max" || peak != "" && !strings.ContainsAny(peak, "0123456789") {
		key = "peak_" + key
	}
	s.set(key, figure{b, from})
	if p, ok := bytesOf(peak, ""); ok {
		s.set("peak_"+key, figure{p, from})
	}
}

// named is the name of a line's subject.
func (r *Reader) named(f *form, prefix string, group func(string) string) string {
	if g := group("gpu"); g != "" {
		return "GPU " + g
	}
	if d := group("device"); d != "" {
		if n := digits.FindString(d); n != "" {
			return "GPU " + n
		}
		if strings.Contains(d, "CPU") || strings.Contains(d, "ost") {
			return "host"
		}
		return d
	}
	if f.how == inTable {
		return r.table
	}
	m := rank.FindStringSubmatch(prefix)
	switch {
	case m == nil:
		return ""
	case m[1] != "":
		return "rank " + m[1]
	case m[2] != "":
		return m[2]
	}
	return "pid " + m[3]
}

// bytesOf reads a size as lines have it; all units are powers of 1024.
func bytesOf(text, unit string) (uint64, bool) {
	text = strings.TrimSpace(strings.ReplaceAll(strings.TrimSuffix(strings.ToLower(text), "ytes"), ",", ""))
	if text == "" {
		return 0, false
	}
	if plain.MatchString(text) {
		text += unit
	}
	n, err := size.Parse(text)
	return n, err == nil
}
