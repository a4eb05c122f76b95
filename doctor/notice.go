package doctor

// What a text says: whether memory was refused in it, by whom and of what; whether a
// library failed; and the texts that have one meaning only, such as a setting that was
// not understood. Memory refused is known by words and their order, in any wording:
// "out of memory", "could not reserve 3 GiB", "not enough VRAM", "MemoryError". The texts
// with one meaning are in the table of topics.

import (
	"regexp"
	"slices"
	"strings"
)

// A layer is who refused.
type layer uint8

const (
	layerUnknown layer = iota
	layerDriver        // the driver, or the runtime above it
	layerPool          // a framework's pool
	layerLibrary       // cuDNN, cuBLAS and the like
	layerContext       // not even a context could be made
	layerModule        // compiled code could not be loaded
	layerGraph         // a CUDA graph could not be made
	layerNCCL          // NCCL's own buffers
	layerHost          // the host's memory
	layerEngine        // an engine's own check, such as vLLM's at its start
)

// A statement is a passage, read.
type statement struct {
	passage
	toks    tokenList
	words   map[string]bool // with those of its head
	amounts []amount
	refused bool // it says that memory was refused
	faint   bool // by a word that may mean something else
	mild    bool // it says itself that the program goes on
	advice  bool // it only advises, or guesses
	over    bool // a pool is at its limit, in words
	stats   bool // it has figures of a pool's report
	derived bool // that memory was refused follows from its numbers alone
	report  bool // it is a line of a table or a pool's report
	library string
	handle  bool // the library could not be started, as against a call that failed
	memory  bool // the library's status is that of memory
	layer   layer
	topics  []topic
}

// A topic is what a text with one meaning says.
type topic struct {
	id          string
	name, value string
}

// topics are the texts with one meaning. A text is tried only if it has one of the words.
var topics = []struct {
	id, name string
	words    string
	re       *regexp.Regexp
}{
	// Settings that were not understood.
	{"setting", "", "fraction", regexp.MustCompile(`(\w*MEM_FRACTION)\b.{0,40}\b(?:together|along|both|as well)\b.{0,20}?(\w*MEM_FRACTION)`)},
	{"setting", "", "must has should expected expects got", regexp.MustCompile(`\b((?:XLA|JAX|TF|PYTORCH|CUDA|CUPY|HIP)_[A-Z0-9_]+)\b.{0,60}\b(?:must|has to|have to|should|needs to) be\b.*\bgot\b\W*([^"']*)`)},
	{"setting", "", "convert", regexp.MustCompile(`could not convert string to float:? ?()'?([^']*)`)},
	{"setting", "JAX_PJRT_CLIENT_CREATE_OPTIONS", "separators", regexp.MustCompile(`Multiple ':' separators`)},
	{"setting", "", "option", regexp.MustCompile(`[Oo]ption (?:passed|given) to PJRT_Client_Create with name (\w+)(.*)|[Uu]n(?:expected|known) option name (?:passed|given) to PJRT_Client_Create:? (\w+)`)},
	{"setting", "allocator", "allocator", regexp.MustCompile(`Allocator ()(\S+) (?:is )?not supported (?:for|by) PJRT|CudaAsync allocator is not supported in TfrtGpuClient`)},
	{"setting", "XLA_FLAGS", "flag flags", regexp.MustCompile(`[Uu]n(?:known|recognized) flags? in XLA_FLAGS:? ?()(\S*)`)},
	{"setting", "PYTORCH_CUDA_ALLOC_CONF", "unrecognized parsing caching option threshold key", regexp.MustCompile(`(?:[Uu]nrecognized (?:Caching)?Allocator option|Error parsing CachingAllocator settings|CachingAllocator option|Unrecognized key '|garbage_collect\w*_threshold (?:is invalid|too)|Unknown allocator backend)()(.*)`)},
	{"setting", "PYTORCH_CUDA_ALLOC_CONF", "process true", regexp.MustCompile(`per_process_memory_fraction is invalid|Expected a single True/False argument for ()(\w*)`)},
	{"setting", "tensorflow", "modified growth", regexp.MustCompile(`(?:Physical|Virtual) devices cannot be modified after|Memory growth cannot differ between|Cannot set memory growth on device when`)},
	{"unread", "TF_FORCE_GPU_ALLOW_GROWTH", "growth", regexp.MustCompile(`TF_FORCE_GPU_ALLOW_GROWTH .*could not be parsed(?:: ()"?([^"]*))?`)},
	{"unread", "PYTORCH_CUDA_ALLOC_CONF", "deprecated expandable", regexp.MustCompile(`PYTORCH_CUDA_ALLOC_CONF is deprecated|expandable_segments not supported on this platform`)},
	// Devices.
	{"vmm", "", "vmm virtual", regexp.MustCompile(`(?i)(?:not support|n't support|no support for|lacks?|without)\b.{0,20}\b(?:CUDA )?(?:Virtual Memory Management|VMM)\b`)},
	{"busy", "", "unavailable busy available", regexp.MustCompile(`CUDA_ERROR_DEVICE_UNAVAILABLE|cudaErrorDevicesUnavailable|(?i:busy or (?:unavailable|not available))`)},
	// Libraries.
	{"missing", "", "load open loaded found", regexp.MustCompile(`(?i)(?:could not|cannot|can not|unable to|failed to) (?:dynamically )?load (?:the )?(?:dynamic |shared )?library:? ?'?([\w.+-]+)|([\w+.-]+\.so[\w.]*): (?:cannot|can not|could not) open shared object|([\w+.-]+\.(?:dll|so|dylib)[\w.]*)\W{1,3}(?:(?:is|was|could) )?not (?:be )?(?:found|loaded)|Unable to load (?:any of \{)?(lib[\w.]+|cuDNN)|(zlibwapi)`)},
	{"symbol", "", "symbol", regexp.MustCompile(`(?i)\b(\w+) symbol (?:not found|(?:is|was) (?:missing|not found)|could not be found|missing)|undefined symbol:? ?(\w+)|symbol lookup error()`)},
	{"version", "", "compiled runtime source", regexp.MustCompile(`(?i)Loaded runtime (\w+) library: ([\d.]*\d).*?compiled with\W+([\d.]*\d)`)},
	{"image", "", "image ptx toolchain kernel", regexp.MustCompile(`CUDA_ERROR_NO_BINARY_FOR_GPU|cudaErrorNoKernelImageForDevice|(?i:no kernel image is available)|CUDA_ERROR_INVALID_IMAGE|cudaErrorInvalidKernelImage|(?i:kernel image is invalid)|CUDA_ERROR_INVALID_PTX|cudaErrorInvalidPtx|(?i:a PTX JIT compilation failed)|CUDA_ERROR_UNSUPPORTED_PTX_VERSION|cudaErrorUnsupportedPtxVersion|(?i:compiled with an unsupported toolchain)`)},
	// Failures that share words with memory.
	{"other", "an illegal address", "illegal misaligned", regexp.MustCompile(`CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress|(?i:illegal (?:memory )?access)|CUDA_ERROR_MISALIGNED_ADDRESS|cudaErrorMisalignedAddress|(?i:misaligned address)`)},
	{"other", "a wrong address space", "space", regexp.MustCompile(`CUDA_ERROR_INVALID_ADDRESS_SPACE|cudaErrorInvalidAddressSpace|not supported on global/shared address space`)},
	{"other", "an illegal instruction", "instruction", regexp.MustCompile(`CUDA_ERROR_ILLEGAL_INSTRUCTION|cudaErrorIllegalInstruction|an illegal instruction was`)},
	{"other", "an assertion", "assert assertion", regexp.MustCompile(`CUDA_ERROR_ASSERT\b|cudaErrorAssert\b|(?i:device-side assert)|: block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion`)},
	{"other", "a launch that timed out", "timeout timed", regexp.MustCompile(`CUDA_ERROR_LAUNCH_TIMEOUT|cudaErrorLaunchTimeout|launch timed out`)},
	{"other", "a failed launch", "launch", regexp.MustCompile(`CUDA_ERROR_LAUNCH_FAILED|cudaErrorLaunchFailure|unspecified launch failure`)},
	{"other", "a kernel's registers", "launch", regexp.MustCompile(`CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES|cudaErrorLaunchOutOfResources|too many resources requested for launch`)},
	{"other", "an ECC error", "ecc uncorrectable", regexp.MustCompile(`CUDA_ERROR_ECC_UNCORRECTABLE|cudaErrorECCUncorrectable|(?i:uncorrectable ECC)`)},
	{"other", "no device", "device detected ordinal", regexp.MustCompile(`CUDA_ERROR_NO_DEVICE|cudaErrorNoDevice|(?i:no CUDA-capable device is detected)|CUDA_ERROR_INVALID_DEVICE|cudaErrorInvalidDevice\b|(?i:invalid device ordinal)`)},
	{"other", "a driver that does not fit", "driver system compatibility forward", regexp.MustCompile(`CUDA_ERROR_INSUFFICIENT_DRIVER|cudaErrorInsufficientDriver|(?i:driver version is insufficient)|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|cudaErrorSystemDriverMismatch|(?i:unsupported display driver)|CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE|cudaErrorCompatNotSupportedOnDevice|forward compatibility was attempted|Driver/library version mismatch|driver on your system is too old`)},
	{"other", "a fabric not ready", "ready initialized", regexp.MustCompile(`CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady|system not yet initialized`)},
	{"other", "a collective that timed out", "collective watchdog", regexp.MustCompile(`(?i)collective operation timeout|watchdog caught collective`)},
	{"other", "a fork", "forked", regexp.MustCompile(`(?i)re-initialize CUDA in forked subprocess`)},
	{"other", "a database's own limit", "command", regexp.MustCompile(`command not allowed when used memory > 'maxmemory'`)},
	{"other", "a quota of a service", "quota pings requests rate", regexp.MustCompile(`(?i)\b429\b|exceeded your (?:current )?quota|too many (?:pings|requests)`)},
	{"other", "an argument that a library refused", "cublas", regexp.MustCompile(`CUBLAS_STATUS_INVALID_VALUE`)},
	{"other", "a full disk", "space", regexp.MustCompile(`(?i)no space left on device|\bENOSPC\b`)},
	{"other", "too many open files", "files", regexp.MustCompile(`(?i)too many open files`)},
	{"other", "thread-local storage", "tls", regexp.MustCompile(`static TLS block`)},
	{"other", "a kernel's shared memory", "shared resource", regexp.MustCompile(`out of resources?: (?:shared memory|[\w ]+, Required)|(?i:shared memory size limit exceeded)|uses too much shared data`)},
	{"other", "the size of a message", "message", regexp.MustCompile(`(?i)(?:received|sent) message .{0,12}(?:larger than|in excess of|exceed|above|over|too large|too big|bigger)`)},
	// The kernel, and others that kill.
	{"killed", "", "oom kill killed killing oomkilled killer memory evicted", regexp.MustCompile(`(?i)oom-kill:constraint=(\w+)|\bkill(?:ed)? process (\d+)|OOMKilled|invoked oom-killer|oom[-_ ]kill(?: event|ed|er)?\b|(?:reason|status|result)\W{1,5}oom|(?-i:: Out Of Memory\s*$)|kill(?:ed|ing)\b.{0,60}\b(?:due to|low on|short of|lack of|out of) memory|memory (?:cgroup|limit).{0,40}(?:killed|exceeded)|\bevicted\b|low on resource:? memory`)},
	{"sigkill", "", "killed sigkill signal exit exitcode exited code", regexp.MustCompile(`(?i)(?:^|\s|: )Killed(?:\s{2,}\S.*)?\.?\s*$|\b\w*sh: killed\b|killed by signal:? (?:killed|9)|\bSIGKILL\b|\bsignal:? 9\b|signal \(9\)|exit(?:ed)?(?: with)?[ _]?(?:code|status)\W{1,3}(?:137|-9)\b|exitcode\W{0,3}:? ?(?:137|-9)\b`)},
	{"nvrm", "", "nvrm nv", regexp.MustCompile(`NVRM:.*NV_ERR_NO_MEMORY`)},
	{"tegra", "", "nv", regexp.MustCompile(`NvMapMem(?:AllocInternalTagged|HandleAlloc):?.*?(?:error )?12\b`)},
	{"nvml", "", "nvml", regexp.MustCompile(`NVML_SUCCESS == r.{0,40}CUDACachingAllocator`)},
	{"shm", "", "shm shared dataloader bus", regexp.MustCompile(`(?i)out of shared memory|insufficient shared memory|/dev/shm|\bshm\b.{0,60}(?:size|small|full|space|memory)|Bus error.{0,60}shared memory`)},
	// What may be ignored.
	{"picker", "", "algorithm autotune autotuner autotuning", regexp.MustCompile(`algorithm_picker\.cc|autotun`)},
	{"exceeds", "", "system", regexp.MustCompile(`(?i)Allocation of [\d,]+ exceeds (\d+)% of (?:free )?system memory`)},
	{"recovering", "", "recover recovered", regexp.MustCompile(`(?i)(?:usage|memory)\b.{0,12}(?:did not|didn't|has not|hasn't) recover`)},
	{"reshard", "", "rematerialization", regexp.MustCompile(`Involuntary full rematerialization`)},
	{"collection", "", "garbage", regexp.MustCompile(`Garbage collection: deallocate free memory regions`)},
	{"remat", "", "rematerialization", regexp.MustCompile(`(?i)\bmemory\b.*rematerialization|rematerialization.*\bmemory\b`)},
	{"success", "", "step epoch started startup listening served post get", regexp.MustCompile(`(?i)\| 200 \||\b(?:step|epoch|iter\w*)\b.*\b(?:loss|it/s)|runner started|startup complete|listening on`)},
	// What was being done.
	{"capture", "", "capture graph graphs capturing cudagraph cudagraphs cuda", regexp.MustCompile(`(?i)\bcapture_(?:end|begin|model)\b|torch\.cuda\.graph\(|torch/cuda/graphs\.py|CudaGraphRunner|captur(?:e|ing) (?:the )?(?:model for )?(?:CUDA|HIP)? ?-?graphs?|Capture cuda graph failed|Capturing (?:CUDA )?(?:graph|batches)|ESTIMATE_CUDAGRAPHS`)},
	{"pinning", "", "pin pinned", regexp.MustCompile(`\.?_?pin_memory\(`)},
	{"cleared", "", "backends", regexp.MustCompile(`clear_backends\(\)`)},
	{"announced", "", "backend", regexp.MustCompile(`XLA backend\b.{0,30}?(\d+) bytes (?:on|of) device (\d+)`)},
	{"profiling", "", "profiling", regexp.MustCompile(`(?i)error in memory profiling`)},
	{"hami", "", "oom", regexp.MustCompile(`Device (\d+) OOM (\d+) ?/ ?(\d+)`)},
	{"limiter", "hami", "hami pdv vgpu", regexp.MustCompile(`(?i)\[HAMI-core|\[4pdvGPU|\[vgpu`)},
	{"nvshare", "", "nvshare", regexp.MustCompile(`(?i)\[NVSHARE\]|nvshare's`)},
	{"cpu", "", "platforms platform falling cpu", regexp.MustCompile(`(?i)falling back to (?:the )?CPU|no GPU/TPU found|JAX_PLATFORMS?(?:_NAME)?["']?\]?\s*[=:]\s*["']?cpu\b`)},
	{"cubin", "", "cubin ptx hsaco module", regexp.MustCompile(`(?i)\bload\w*\b.{0,14}\b(?:CUBIN|PTX|HSACO|module)\b|\b(?:CUBIN|PTX|HSACO)\b.{0,40}\bload`)},
	{"tpu", "", "hbm vmem smem", regexp.MustCompile(`(?i)memory space (?:hbm|vmem|smem)`)},
}

// topicWords are the words of each topic.
var topicWords = func() (all [][]string) {
	for _, t := range topics {
		all = append(all, strings.Fields(t.words))
	}
	return all
}()

// libraryNames are the libraries of CUDA and ROCm by the words for them.
var libraryNames = map[string]string{
	"cudnn": "cuDNN", "miopen": "MIOpen", "cublas": "cuBLAS", "cublaslt": "cuBLAS", "rocblas": "rocBLAS", "hipblas": "hipBLAS", "hipblaslt": "hipBLASLt",
	"cusolver": "cuSolver", "gpusolver": "cuSolver", "cusparse": "cuSPARSE", "cufft": "cuFFT", "hipfft": "hipFFT", "curand": "cuRAND",
}

// readPassage reads a passage.
func readPassage(p passage) *statement {
	plain := strings.ReplaceAll(p.text, "n't", " not")
	plain = strings.ReplaceAll(plain, "n’t", " not")
	st := &statement{passage: p, toks: tokenize(plain), words: map[string]bool{}}
	for i := range st.toks {
		switch {
		case st.toks[i].kind == 'w':
			st.words[st.toks[i].word] = true
		case st.toks[i].unit != "":
			st.words[st.toks[i].unit] = true
		}
	}
	for _, t := range tokenize(p.head) {
		if t.kind == 'w' {
			st.words[t.word] = true
		}
	}
	st.amounts = amounts(st.toks)
	whole := p.head + p.text
	for i := range topics {
		if !st.hasAny(topicWords[i]...) {
			continue
		}
		if m := topics[i].re.FindStringSubmatch(clipped64(whole)); m != nil && !(topics[i].id == "other" && denied(clipped64(whole), topics[i].re)) {
			t := topic{id: topics[i].id, name: topics[i].name}
			for _, g := range m[1:] {
				switch {
				case g == "":
				case t.name == "" && topics[i].name == "":
					t.name = clip(g)
				default:
					t.value = clip(strings.TrimSpace(t.value + " " + g))
				}
			}
			st.topics = append(st.topics, t)
		}
	}
	st.judgeWords()
	return st
}

// denied reports whether the clause says that the failure did not come.
func denied(text string, re *regexp.Regexp) bool {
	at := re.FindStringIndex(text)
	return absent.MatchString(text[at[1]:]) || lacking.MatchString(text[:at[0]])
}

var (
	absent  = regexp.MustCompile(`^[^.;,:]{0,40}\b(?:did not|didn't|does not|doesn't|never|no longer)\b`)
	lacking = regexp.MustCompile(`(?i)\b(?:without(?: an?)?|no more|no longer an?)\s*$`)
)

// clipped64 bounds what a regular expression reads.
func clipped64(s string) string { return s[:min(len(s), 16<<10)] }

// maxText is the longest quotation of a line in bytes.
const maxText = 600

// clip bounds a word that is kept.
func clip(text string) string { return strings.ToValidUTF8(text[:min(len(text), 300)], "") }

func (st *statement) hasAny(words ...string) bool {
	for _, w := range words {
		if st.words[w] {
			return true
		}
	}
	return false
}

// says reports whether a word of the text has one of these classes.
func (st *statement) says(c class) bool {
	return slices.ContainsFunc(st.toks, func(t token) bool { return t.class&c != 0 })
}

// topic is the statement's topic of that name, and nil.
func (st *statement) topic(ids ...string) *topic {
	for i := range st.topics {
		for _, id := range ids {
			if st.topics[i].id == id {
				return &st.topics[i]
			}
		}
	}
	return nil
}

// amount is the first amount with a role, and nil.
func (st *statement) amount(r role) *amount {
	for i := range st.amounts {
		if st.amounts[i].role == r && !st.amounts[i].private {
			return &st.amounts[i]
		}
	}
	return nil
}

// calledRoutine is the routine of a library that PyTorch called when it failed.
var calledRoutine = regexp.MustCompile("when calling `(cu[a-z]+[A-Z]\\w*|hip\\w+|roc\\w+)\\(")

// judgeWords finds whether memory was refused, and by whom.
func (st *statement) judgeWords() {
	toks := st.toks
	var w []int // the words
	for i := range toks {
		if toks[i].kind == 'w' {
			w = append(w, i)
		}
	}
	// A word k is followed by one of a class within n words of the same sentence.
	within := func(k, n int, c class, words ...string) bool {
		for j := k + 1; j < len(w) && j <= k+n; j++ {
			for m := w[j-1] + 1; m < w[j]; m++ {
				if toks[m].kind == '.' && !toks[m+1].glued || toks[m].kind == ';' || toks[m].kind == '|' {
					return false
				}
			}
			if toks[w[j]].class&c != 0 || toks[w[j]].is(words...) {
				return true
			}
		}
		return false
	}
	at := func(k int, words ...string) bool { return k >= 0 && k < len(w) && toks[w[k]].is(words...) }
	class_ := func(k int, c class) bool { return k >= 0 && k < len(w) && toks[w[k]].class&c != 0 }
	hedged := func(k int) bool {
		for j := k - 1; j >= 0 && j >= k-4; j-- {
			if at(j, "avoid", "prevent", "due", "if", "avoids", "preventing", "avoiding", "reduce", "see", "cause", "caused") {
				return true
			}
		}
		return false
	}
	memoryish := st.hasAny("memory", "mem", "vram", "bytes", "gpu", "cuda", "device", "buffer", "hip", "xpu", "mps", "pool", "alloc", "malloc", "pinned") || len(st.amounts) > 0
	strong := false // "out of memory", whatever else the text speaks of
	yes := func(k int) {
		if hedged(k) {
			st.advice = true
			return
		}
		st.refused = true
	}
	for k := range w {
		t := &toks[w[k]]
		switch {
		case t.is("out") && at(k+1, "of") && within(k+1, 3, cMemory):
			yes(k)
			strong = st.refused
		case t.class&cOOM != 0 && !at(k+1, "score", "adj", "debugging", "memcg", "kill", "killer") && !at(k-1, "to", "avoid"):
			yes(k)
		case t.class&cSpent != 0 && (within(k, 4, cMemory) || class_(k-1, cMemory) || class_(k-2, cMemory)):
			yes(k)
		case t.class&cSpent != 0 && at(k-1, "resource", "resources"):
			st.faint = true
		case t.class&(cFail|cNot) != 0 && within(k, 5, cAcquire|cAlloc) && memoryish && !at(k+1, "reserved") && (t.class&cFail != 0 || at(k-1, "could", "did", "was", "were", "ca", "can", "is", "does")):
			yes(k)
		case t.class&(cAcquire|cAlloc) != 0 && (within(k, 2, cFail) || within(k, 2, 0, "not") && within(k, 3, 0, "succeed", "possible", "succeeded")) && memoryish && !at(k+1, "retry"):
			yes(k)
		case t.class&cTry != 0 && within(k, 2, cAcquire):
			for i := range st.amounts {
				if st.amounts[i].role == roleWant {
					yes(k)
				}
			}
		case (t.class&cScarce != 0 || t.class&cNot != 0 && (at(k+1, "enough", "sufficient", "adequate", "available", "free", "more", "memory", "room", "space"))) && (within(k, 4, cMemory|cLimit|cAcquire, "vram") || within(k, 2, 0, "room", "space") && len(st.amounts) > 0):
			if t.is("not") && class_(k+1, cFree) && !within(k+1, 1, cMemory) || t.is("low", "little", "less", "short") && !within(k, 2, cMemory) {
				break
			}
			yes(k)
		case t.class&cAsk != 0 && within(k, 1, cFail) && memoryish, t.is("memory") && at(k+1, "error") && !at(k+2, "in"), t.is("bad") && at(k+1, "alloc"), t.is("no") && at(k+1, "memory"), t.is("no") && within(k, 3, cMemory) && within(k, 5, cFree):
			yes(k)
		case t.is("not") && at(k+1, "available") && st.words["memory"] && st.hasAny("cache", "blocks", "device", "gpu"):
			yes(k)
		case t.is("memory") && at(k+1, "allocation") && (at(k-1, "error") || within(k+1, 1, cFail)):
			yes(k)
		case t.class&cBeyond != 0 && (within(k, 5, cLimit|cTotal|cFree|cPeak) || class_(k-1, cLimit|cTotal|cSize) || class_(k-2, cLimit|cTotal|cSize) || within(k, 4, cAsk)) && st.hasAny("memory", "pool", "alloc", "vram", "allocation", "cache", "gpu"):
			if !st.hasAny("message", "shared", "connection", "connections", "queue") && (len(st.amounts) > 0 || st.hasAny("pool", "cache", "allowed")) {
				yes(k)
				st.over = st.over || st.words["pool"] && (class_(k-1, cSize|cLimit) || class_(k-2, cSize|cLimit) || within(k, 4, cLimit|cPeak))
			}
		case t.is("errno") && w[k]+1 < len(toks) && (toks[w[k]+1].kind == 'n' && toks[w[k]+1].value == 12):
			yes(k)
		}
	}
	if st.hasAny("sentencepiece") {
		st.refused = false
	}
	if st.topic("other") != nil && !st.words["oom"] || st.topic("exceeds", "reshard", "setting") != nil || st.topic("remat") != nil && !strong {
		st.refused = false
	}
	if st.topic("hami", "nvml") != nil {
		st.refused = true
	}
	if free := st.amount(roleFree); free != nil && free.n == 0 && st.amount(roleTotal) != nil && st.words["capacity"] {
		st.derived = !st.refused
		st.refused = true
	}
	if want, free := st.amount(roleWant), st.amount(roleFree); want != nil && free != nil && want.low > free.high && st.words["memory"] && st.topic("exceeds", "remat") == nil {
		st.derived = !st.refused
		st.refused = true
	}
	// The tail that takes it back.
	for k := range w {
		if at(k, "failure") && (class_(k-1, cNot) || class_(k-2, cNot)) && !class_(k+1, cFree) {
			st.mild = true
		}
		if at(k, "performance") && at(k+1, "gains") {
			st.mild = true
		}
		if at(k, "fallback", "fall", "falling") && at(k+1, "back", "to") || at(k, "will") && at(k+1, "retry") || at(k, "retrying") {
			st.mild = st.mild || st.level != "E" && st.level != "F"
		}
	}
	if st.hasAny("growth", "may", "might") && st.hasAny("due") && st.words["oom"] {
		st.advice, st.refused = true, false
	}
	// A library.
	fails := false
	handle := st.hasAny("handle", "create", "creating", "created", "initialize", "initialized", "initialise", "init", "initialization", "make", "cudnncreate", "support")
	for k := range w {
		t := &toks[w[k]]
		if name := libraryNames[strings.TrimRight(t.word, "0123456789")]; name != "" && (st.library == "" || st.library == "cuDNN" && name != "cuDNN" && !at(k+1, "status")) {
			st.library = name
		}
		if t.is("blas") && st.library == "" && st.hasAny("gemm", "stream", "algorithms", "launch") {
			st.library = "cuBLAS"
		}
		if t.is("dnn") && st.library == "" {
			st.library = "cuDNN"
		}
		fails = fails || t.class&cFail != 0 || t.is("status", "without", "null", "internal", "nullptr", "ret", "worked", "check") || t.class&cNot != 0 && (class_(k-1, 0) || true)
	}
	switch {
	case st.library == "" && st.words["convolution"] && st.hasAny("algorithm", "engine") && fails:
		st.library = "cuDNN"
	case st.library != "" && !fails && !st.refused, st.topic("missing", "version") != nil:
		st.library = ""
	}
	if st.library != "" {
		st.memory = st.refused || st.hasAny("alloc") && st.hasAny("failed", "failure") || st.words["resource"] && st.words["allocation"] || st.words["insufficient"] && st.hasAny("resources", "resource") || st.words["allocate"] && st.words["work"]
		st.handle = handle && !st.words["routine"]
		if c := calledRoutine.FindStringSubmatch(st.text); c != nil && !strings.Contains(c[1], "Create") {
			st.handle = false // it had its handle, and passed it on
		}
		if st.advice {
			st.library = ""
		}
	}
	st.layer = st.layerOf()
}

// layerOf finds who refused.
func (st *statement) layerOf() layer {
	s := st.words
	switch {
	case s["nccl"] || s["rccl"] || s["ncclunhandledcudaerror"]:
		return layerNCCL
	case st.topic("cubin") != nil:
		return layerModule
	case st.hasAny("instantiate", "instantiating") && st.hasAny("graph", "graphs", "command"):
		return layerGraph
	case (s["ctx"] && st.hasAny("retain", "create")) || s["implicit"] && s["initialization"] || s["primary"] && s["context"]:
		return layerContext
	case st.hostMemory():
		return layerHost
	case st.library != "" && !(s["tried"] && st.amount(roleTotal) != nil):
		return layerLibrary
	case s["fraction"] && s["static"] || s["utilization"] && st.amount(roleFree) != nil || (s["kv"] || s["cache"] && s["blocks"]) && !s["allocator"] && !s["tried"]:
		return layerEngine
	case s["driver"] || s["from"] && s["device"] || st.hasAny("malloc", "cudamalloc", "mem") && st.hasAny("cuda", "hip", "cu", "cudamalloc") || s["ordinal"] || s["unified"] || s["request"] && s["allocate"] && !s["tried"]:
		return layerDriver
	}
	return layerPool
}

// hostMemory reports whether the memory refused is the host's.
func (st *statement) hostMemory() bool {
	s := st.words
	if st.topic("shm") != nil {
		return true
	}
	if st.hasAny("mps", "rmm", "gpu", "vram", "hip", "xpu") && !s["host"] && !s["pinned"] || s["cuda"] && s["error"] && s["allocation"] && s["memory"] && st.amount(roleFree) != nil {
		return false
	}
	if st.hasAny("java", "javascript", "jvm") {
		return true
	}
	cuda := s["cuda"] || s["device"] && !s["shared"] || s["cublas"]
	toks := st.toks
	for k := range toks {
		t := &toks[k]
		switch {
		case t.kind != 'w':
		case t.class&cHost != 0 && !t.is("cpu") && (toks.near(k, 2, 1, cMemory|cAcquire|cPool) || toks.near(k, 1, -1, cMemory|cAcquire) || k > 1 && toks[k-1].is("on") || k+1 < len(toks) && toks[k+1].is("register", "buffer", "bfc", "file")):
			if !t.is("host", "pinned") && cuda {
				break
			}
			return true
		case t.is("cpu") && !cuda && (toks.near(k, 2, 1, cMemory|cAcquire|cPool) || k+2 < len(toks) && (toks[k+1].is("buffer") || toks[k+2].is("buffer"))):
			return true
		case t.is("paging"), t.is("winerror"), t.is("numpy"):
			return true
		case t.is("memory") && k+1 < len(toks) && toks[k+1].is("error") && toks[k+1].glued && !cuda && (k == 0 || !toks[k-1].is("of", "gpu")):
			return !st.hasAny("cupy")
		case t.is("errno"), t.is("array") && s["shape"] && s["unable"]:
			return !cuda
		case t.is("bad") && toks.next(k).is("alloc") && !cuda && !st.hasAny("oom", "paddle", "failure") && st.amount(roleFree) == nil:
			return true
		case t.class&cFail != 0 && toks.near(k, 3, 1, cAcquire) && !cuda && st.amount(roleWant) == nil && s["memory"] && !st.hasAny("oom", "pool", "paddle", "error", "tls", "allocator") && len(toks) < 30:
			return true // Cannot allocate memory
		}
	}
	return false
}
