package inventory

// Rows from figures: for each source of lines its parts in their order, and what is left.

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gpumem/size"
)

// A source is who prints lines.
type source struct {
	title   string
	parts   []part
	total   part
	rest    string // what the total has beside the parts; empty if that would say nothing
	others  []part // figures of another moment, such as peaks
	returns []string
	notTold string
	ofGPU   string           // what is not told either, unless a line has what the GPU has in use
	derive  func(s *subject) // makes figures of others first

	together string // what the sum of a list is; empty if that would say nothing
}

type part struct{ key, what string }

var peaks = []part{{"peak_allocated", "allocated at its peak"}, {"peak_reserved", "reserved at its peak"}, {"peak_active", "active at its peak"}}

var (
	torch = &source{
		title: "PyTorch", others: append([]part{{"requested", "of it requested, before rounding"}, {"param", "parameters"}, {"grad", "gradients"}, {"buffer", "buffers"}, {"inactive", "inactive"}}, peaks...), derive: ofPyTorch,
		parts: []part{
			{"allocated", "allocated"}, {"waiting", "freed, waiting for a stream"}, {"pinned", "cached beside live blocks"}, {"cached", "cached, free"},
			{"used", "used on the device, by all programs"},
		},
		total: part{"reserved", "reserved by its pool"},
		ofGPU: "the CUDA context and libraries, other programs, and the size of the GPU: nvidia-smi has them",
	}
	jax = &source{
		title: "JAX's pool", others: []part{{"peak_allocated", "in use at its peak"}, {"peak_reserved", "taken at its peak"}, {"largest", "the largest free block"}, {"peak_programs", "reserved for programs at its peak"}, {"bytes_reservable_limit", "what programs may reserve"}},
		parts: []part{{"allocated", "in use"}, {"programs", "reserved for programs"}, {"cached", "free in the pool"}, {"untaken", "not yet taken from the GPU"}},
		total: part{"limit", "the pool's limit"}, derive: ofJAX,
		ofGPU: "what programs and libraries hold outside the pool, other processes, and the size of the GPU: nvidia-smi has them",
	}
	compiled = &source{
		title: "A compiled function", total: part{"sum", "together"}, derive: ofCompiled,
		parts:   []part{{"argument", "arguments"}, {"output", "results"}, {"temp", "temporaries"}, {"generated_code", "code"}},
		notTold: "what the process has beside this function",
	}
	bufferAssignment = &source{
		title: "A program, as XLA placed its buffers", total: part{"sum", "together"}, derive: addUp,
		parts:   []part{{"parameter", "parameters"}, {"maybe-live-out", "results"}, {"preallocated-temp", "temporaries"}, {"constant", "constants"}, {"thread-local", "of threads"}},
		notTold: "what the process has beside this program",
	}
	memoryUsage = &source{title: "A program, as XLA placed its buffers", total: part{"total", "together"}, notTold: "the parts of it"}
	vllm        = &source{
		title: "vLLM at its start", total: part{"total", "total of the GPU"}, rest: "not taken by vLLM", derive: ofVLLM,
		parts: []part{
			{"weights", "weights"}, {"consumed", "weights and outside PyTorch"}, {"peaktorch", "weights and activations, PyTorch's peak"},
			{"nontorch", "outside PyTorch"}, {"activations", "activations at their peak"}, {"cache", "KV cache"}, {"graphs", "CUDA graphs"},
		},
		others:  []part{{"requested", "what it may use"}},
		returns: []string{"the KV cache takes what is left: a smaller --gpu-memory-utilization returns memory, and so does sleep mode (/sleep) between requests"},
		ofGPU:   "what the other programs on the GPU hold",
	}
	sglang = &source{
		title: "SGLang at its start", total: part{"begin", "free when it began"}, derive: ofSGLang,
		parts: []part{{"weights", "weights"}, {"cache", "KV cache"}, {"pools", "tables of requests and others"}, {"graphs", "CUDA graphs"}, {"since", "taken since: workspaces, CUDA graphs"}, {"left", "free"}},
		others: []part{
			{"k", "of the cache: K"}, {"v", "of the cache: V"}, {"loaded", "free after the weights"}, {"pooled", "free after the pools"}, {"before", "free before the CUDA graphs"},
		},
		returns: []string{"a smaller --mem-fraction-static makes the KV cache smaller"},
		ofGPU:   "what other programs hold, and the size of the GPU",
	}
	llama = &source{
		title: "llama.cpp", total: part{"total", "in all"}, rest: "the rest: free, and other programs", derive: ofLlama,
		others: []part{{"before", "free before it loaded"}, {"held", "allocated in all"}, {"recommended", "what Metal recommends at most"}},
		parts: []part{
			{"model", "weights"}, {"model weights", "weights"}, {"", "weights"}, {"lora", "LoRA"}, {"kv", "KV cache"}, {"kv cache", "KV cache"}, {"rs", "recurrent state"},
			{"compute", "compute buffers"}, {"compute graph", "compute buffers"}, {"output", "output buffers"}, {"unaccounted", "not llama.cpp's own: context, other programs"}, {"free", "free"},
		},
		returns: []string{"a smaller context (-c, Ollama's num_ctx) makes the KV cache smaller; a smaller -ngl (num_gpu) leaves layers on the host"},
		ofGPU:   "the CUDA context, other programs, and what is free",
	}
	ollama = &source{
		title: "Ollama's plan", derive: ofOllama, parts: []part{{"memory.required.partial", "on the GPUs"}}, ofGPU: "what other programs hold",
		others: []part{
			{"memory.required.full", "all layers on the GPUs would take"}, {"memory.weights.total", "weights"}, {"memory.required.kv", "KV cache"}, {"graph", "graph"},
			{"projector.weights", "the projector's weights"}, {"projector.graph", "the projector's graph"}, {"on0", "on GPU 0"}, {"on1", "on GPU 1"}, {"on2", "on GPU 2"}, {"on3", "on GPU 3"},
		},
	}
	tensorrt = &source{
		title: "TensorRT at its start", total: part{"total", "total of the GPU"}, rest: "the rest",
		derive: ofTensorRT,
		parts:  []part{{"weights", "weights"}, {"managed", "the engine, as TensorRT manages it"}, {"context", "execution context"}, {"buffers", "runtime buffers"}, {"decoder", "decoder"}, {"activations", "activations"}, {"nontorch", "outside PyTorch, other programs included"}, {"cache", "KV cache"}},
		others: []part{{"free", "free before the KV cache"}, {"whole", "in use on the GPU, by all programs"}},
		ofGPU:  "what other programs hold",
	}
	trainer = &source{
		title: "Hugging Face's Trainer", total: part{"sum", "at the peak of training"}, derive: ofTrainer,
		parts: []part{
			{"before_init_mem_gpu", "before the Trainer"}, {"init_mem_gpu_alloc_delta", "the Trainer's start"},
			{"train_mem_gpu_alloc_delta", "kept by training"}, {"train_mem_gpu_peaked_delta", "more at its peak"},
		},
		notTold: "PyTorch's cache and context, other GPUs and ranks: these figures are of rank 0, and of what is allocated",
	}
	device = &source{} // of a card
	host   = &source{
		title: "The host", parts: []part{{"used", "in use by all programs"}}, total: part{"total", "in all"}, rest: "free, or caches of files",
		others: []part{{"peak_used", "of this program, at its peak"}, {"available", "available to programs"}},
	}
	jetson = &source{title: "RAM, the CPU's and the GPU's", parts: []part{{"used", "in use"}, {"free", "free"}}, total: part{"total", "there is"}, derive: ofPool, notTold: "who uses it"}
	julia  = &source{
		title: "CUDA.jl", total: part{"total", "total of the GPU"}, derive: ofJulia, ofGPU: "who holds what is outside the pool: nvidia-smi",
		parts: []part{{"allocated", "live in its pool"}, {"cached", "cached, free in its pool"}, {"outside", "outside the pool: context, other programs"}, {"free", "free"}},
	}
	rmm  = &source{title: "RMM", parts: []part{{"allocated", "allocated"}}, others: peaks, notTold: "the size of its pool, and what is outside it"}
	cupy = &source{
		title: "CuPy's pool", parts: []part{{"used", "in use"}, {"free", "cached, free"}}, total: part{"total", "taken by the pool"}, derive: ofPool,
		returns: []string{"cupy.get_default_memory_pool().free_all_blocks() returns what is free in the pool"}, notTold: "what is outside the pool",
	}
	list       = &source{title: "Figures", notTold: "which of them are parts of another"}
	gauges     = &source{title: "Metrics", notTold: "what is not in these metrics"}
	onnx       = &source{title: "onnxruntime's arena", parts: []part{{"reserved", "taken from the device"}}, notTold: "how much of it is in use"}
	tensorflow = &source{
		title: "TensorFlow's allocator", parts: []part{{"allocated", "in use"}}, total: part{"limit", "what its pool may take"}, others: peaks, notTold: "what is outside its pool",
	}
	tpu = &source{
		title: "A program in HBM, as XLA counts it", total: part{"usage", "in all"},
		parts: []part{{"reserved", "reserved"}, {"program", "the program"}, {"arguments", "arguments"}},
		others: []part{
			{"requirement", "what the program requires"}, {"HLO temp", "temporaries"}, {"global", "global"}, {"scoped", "scoped"}, {"padded", "with padding"}, {"unpadded", "without padding"},
			{"buffer 1", "buffer 1"}, {"buffer 1 unpadded", "buffer 1 without padding"}, {"buffer 1 padding", "padding of buffer 1"},
			{"buffer 2", "buffer 2"}, {"buffer 2 unpadded", "buffer 2 without padding"}, {"buffer 2 padding", "padding of buffer 2"},
			{"buffer 3", "buffer 3"}, {"buffer 3 unpadded", "buffer 3 without padding"}, {"buffer 3 padding", "padding of buffer 3"},
		},
	}
	mps       = &source{title: "CUDA MPS", total: part{"limit", "what one client may take"}, returns: []string{"fewer clients with a larger set_default_device_pinned_mem_limit each, or fewer replicas where a device plugin sets it"}}
	diffusion = &source{
		title: "The diffusion model", total: part{"vram", "of the GPU"},
		parts: []part{{"loaded", "of the model, on the GPU"}},
		others: []part{
			{"host", "of the model, in the host's memory"}, {"free", "free on the GPU before it"}, {"usable", "usable for the model"}, {"require", "what the model takes"},
			{"inference", "what inference takes beside it"}, {"buffer", "reserved for what is swapped in"}, {"freed", "freed for others"}, {"ram", "the host's memory in all"},
		},
		notTold: "what the images and other programs take beside the model",
	}
)

func human(n uint64) string { return size.Format(n) }

func number(n int) string { return strconv.Itoa(n) }

// less sets a figure to the difference of two, if both are known and it is not negative.
func (s *subject) less(key, from string, others ...string) {
	f, ok := s.figures[from]
	for _, o := range others {
		n := s.figures[o].bytes
		if ok = ok && n <= f.bytes; ok {
			f.bytes -= n
		}
	}
	if ok {
		s.figures[key] = f
	}
}

// addUp sets the sum of the parts, on the line of the last one.
func addUp(s *subject) {
	var sum figure
	n := 0
	for _, p := range s.parts {
		if f, ok := s.figures[p.key]; ok {
			n++
			sum.bytes = size.Add(sum.bytes, f.bytes)
			sum.From = f.From
		}
	}
	if n > 1 {
		s.figures["sum"] = sum
	}
}

func ofPyTorch(s *subject) {
	inUse := "allocated"
	if a, b := s.figures["allocated"], s.figures["reserved"]; s.has("allocated", "reserved") && a.bytes > b.bytes+b.bytes/100 {
		if a.Line < b.Line { // of different moments: the later one counts
			delete(s.figures, "allocated")
		} else {
			delete(s.figures, "reserved")
		}
	}
	if s.has("active", "allocated") {
		inUse = "active"
		if s.less("waiting", "active", "allocated"); s.figures["waiting"].bytes == 0 {
			delete(s.figures, "waiting")
		}
	}
	if !s.has(inUse) {
		return
	}
	s.less("pool", "reserved", inUse)
	if s.less("cached", "reserved", inUse, "nonreleasable"); s.has("cached", "nonreleasable") {
		s.figures["pinned"] = s.figures["nonreleasable"]
	} else {
		s.less("cached", "reserved", inUse)
	}
}

func ofJAX(s *subject) {
	if s.figures["reserved"].bytes > 0 {
		s.less("cached", "reserved", "allocated")
		s.less("untaken", "limit", "reserved")
	} else {
		s.less("untaken", "limit", "allocated", "programs")
	}
	if s.figures["bytes_reservable_limit"].bytes == s.figures["limit"].bytes {
		delete(s.figures, "bytes_reservable_limit")
	}
	for _, key := range []string{"programs", "largest", "untaken"} {
		if s.figures[key].bytes == 0 {
			delete(s.figures, key)
		}
	}
}

// ofCompiled leaves out results that are written over arguments.
func ofCompiled(s *subject) {
	s.less("output", "output", "alias")
	addUp(s)
}

func ofVLLM(s *subject) {
	if s.has("consumed") {
		delete(s.figures, "weights")
		delete(s.figures, "nontorch")
	}
	if s.has("peaktorch") {
		delete(s.figures, "weights")
	}
}

func ofSGLang(s *subject) {
	if !s.has("weights") {
		s.less("weights", "begin", "loaded")
	}
	if k, ok := s.figures["k"]; ok {
		k.bytes = size.Add(k.bytes, s.figures["v"].bytes)
		s.figures["cache"] = k
	}
	if s.has("pooled", "cache") {
		s.less("pools", "loaded", "cache", "pooled")
	}
	for _, key := range []string{"begin", "loaded", "pooled", "before", "capturing", "captured"} {
		if f, ok := s.figures[key]; ok {
			s.figures["left"] = f
		}
	}
	if s.has("pooled") && !s.has("graphs") {
		s.less("since", "pooled", "left")
	}
	for _, key := range []string{"loaded", "pooled", "before"} {
		if s.figures[key] == s.figures["left"] {
			defer delete(s.figures, key)
		}
	}
	if !s.has("pooled") && !s.has("before") && !s.has("captured") && !s.has("capturing") {
		s.less("left", "loaded", "cache")
	}
	if !s.has("begin") && s.has("loaded", "weights") {
		f := s.figures["loaded"]
		f.bytes = size.Add(f.bytes, s.figures["weights"].bytes)
		s.figures["begin"] = f
	}
}

func ofLlama(s *subject) {
	n, err := strconv.ParseInt(s.words["unaccounted"], 10, 64)
	switch {
	case err != nil:
	case n < 0: // a plan: what is free was measured before
		delete(s.figures, "total")
		delete(s.figures, "free")
	default:
		s.figures["unaccounted"] = figure{uint64(n) << 20, s.figures["total"].From}
	}
}

func ofOllama(s *subject) {
	graph := "memory.graph.full"
	if s.counts["offload"] < s.counts["layers"] {
		graph = "memory.graph.partial"
	}
	s.less("graph", graph)
	for i, b := range listed(s.words["allocations"]) {
		s.figures[fmt.Sprintf("on%d", i)] = figure{b, s.figures["memory.required.partial"].From}
	}
}

// listed are the sizes of a list.
func listed(text string) (all []uint64) {
	for t := range strings.SplitSeq(strings.ReplaceAll(text, "iB ", "iB,"), ",") {
		if b, ok := bytesOf(t, ""); ok {
			all = append(all, b)
		}
	}
	return all
}

// ofTensorRT counts the weights of an engine once.
func ofTensorRT(s *subject) {
	if s.figures["managed"].bytes > 0 {
		delete(s.figures, "weights")
	}
}

func ofJulia(s *subject) {
	if f, ok := s.figures["allocated"]; ok && s.has("cached") && !s.has("reserved") {
		f.bytes = size.Add(f.bytes, s.figures["cached"].bytes)
		s.figures["reserved"] = f
	}
	s.less("cached", "reserved", "allocated")
	s.less("outside", "used", "reserved")
	s.less("free", "total", "used")
}

// ofTrainer heeds that a stage may end with less than it began.
func ofTrainer(s *subject) {
	s.less("train_mem_gpu_peaked_delta", "train_mem_gpu_peaked_delta", "train_mem_gpu_alloc_delta less")
	addUp(s)
}

func ofPool(s *subject) {
	if s.has("used") {
		s.less("free", "total", "used")
	} else {
		s.less("used", "total", "free")
	}
}

// subject adds the rows of a subject of the log.
func (a *Account) subject(s *subject, sampled bool) {
	if s.derive != nil {
		s.derive(s)
	}
	name := s.title
	if s.source == torch && !s.known {
		name = "The program"
	}
	if s.name != "" {
		name += ", " + s.name
	}
	var rows []Row
	sum := uint64(0)
	add := func(list []part, kind string) {
		for _, p := range list {
			f, ok := s.figures[p.key]
			none := f.bytes == 0 && (kind == Other || len(rows) > 0 && p.key != "allocated")
			if !ok || none {
				continue
			}
			rows = append(rows, Row{What: s.label(p), Bytes: f.bytes, From: f.From, Kind: kind})
			if kind == Part {
				sum = size.Add(sum, f.bytes)
			}
		}
	}
	add(s.parts, Part)
	t, told := s.figures[s.total.key]
	rest := t.bytes - min(sum, t.bytes)
	counts := s.source != llama || rest > t.bytes/200 // its lines round
	if s.rest != "" && rest > 0 && sum > 0 && counts {
		rows = append(rows, Row{What: s.rest, Bytes: rest, From: t.From, Kind: Part})
	}
	add(s.others, Other)
	if len(rows) == 0 && !told {
		if len(s.counts) > 0 {
			a.oddOf(name, s, sampled)
		}
		return
	}
	a.add(name, Row{What: s.total.what, Bytes: t.bytes, From: t.From, Kind: Total}, rows)
	a.remarks(name, s, told)
	a.oddOf(name, s, sampled)
	a.Returns = appendNew(a.Returns, s.returns...)
}

// remarks adds what the lines say besides, and what they do not.
func (a *Account) remarks(name string, s *subject, told bool) {
	switch {
	case s.ofGPU == "" || a.told:
	case s.source == torch && !s.known:
		a.NotTold = appendNew(a.NotTold, "what it holds beside this, and other programs: nvidia-smi has them")
	default:
		a.NotTold = appendNew(a.NotTold, s.ofGPU)
	}
	if s.source == vllm && !s.has("cache") && s.counts["tokens"] > 0 {
		a.Notes = append(a.Notes, fmt.Sprintf("%s: the KV cache has room for %d tokens", name, s.counts["tokens"]))
	}
	if share := s.words["share"]; share != "" && !s.has("requested") {
		a.Notes = append(a.Notes, name+": gpu_memory_utilization is "+share)
	}
	if s.source == host && !told {
		a.NotTold = appendNew(a.NotTold, "how much the host has")
	}
	if s.notTold != "" {
		a.NotTold = appendNew(a.NotTold, s.notTold)
	}
}

// label is what a part is called, with what else is told of it.
func (s *subject) label(p part) string {
	switch tokens := s.counts["tokens"]; {
	case p.key == "cache" && tokens > 0:
		return fmt.Sprintf("%s of %d tokens", p.what, tokens)
	case p.key == "used" && s.words["percent"] != "":
		return p.what + ", " + s.words["percent"] + " %"
	case p.key == "allocated" && s.words["phase"] != "":
		return p.what + ", " + s.words["phase"]
	}
	return p.what
}

func appendNew(list []string, more ...string) []string {
	for _, m := range more {
		if !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}
