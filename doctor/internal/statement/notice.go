package statement

// Notices, the statements of a text: whether memory was refused in it, by whom and of what; whether a
// library failed; and the texts that have one meaning only, such as a setting that was
// not understood. Memory refused is known by words and their order, in any wording:
// "out of memory", "could not reserve 3 GiB", "not enough VRAM", "MemoryError". The texts
// with one meaning are in the table of topics.

import (
	_ "embed"
	"regexp"
	"slices"
	"strings"
)

// Layer is who refused.
type Layer uint8

const (
	layerUnknown Layer = iota
	LayerDriver        // the driver, or the runtime above it
	LayerPool          // a framework's pool
	layerLibrary       // cuDNN, cuBLAS and the like
	LayerContext       // not even a context could be made
	LayerModule        // compiled code could not be loaded
	LayerGraph         // a CUDA graph could not be made
	LayerNCCL          // NCCL's own buffers
	LayerHost          // the host's memory
	LayerEngine        // an engine's own check, such as vLLM's at its start
)

// Statement is a passage, read.
type Statement struct {
	passage
	toks    tokenList
	Words   map[string]bool // with those of its head
	Amounts []amount
	Refused bool // it says that memory was refused
	Faint   bool // by a word that may mean something else
	Mild    bool // it says itself that the program goes on
	Advice  bool // it only advises, or guesses
	Over    bool // a pool is at its limit, in words
	Stats   bool // it has figures of a pool's report
	Derived bool // that memory was refused follows from its numbers alone
	Report  bool // it is a line of a table or a pool's report
	Library string
	Handle  bool // the library could not be started, as against a call that failed
	Memory  bool // the library's status is that of memory
	Layer   Layer
	Topics  []topic
}

// A topic is what a text with one meaning says.
type topic struct {
	Id          string
	Name, Value string
}

// A sign is a text with one meaning: it is tried only where one of the words stands.
type sign struct {
	id, name string
	words    []string
	re       *regexp.Regexp
}

//go:embed topics.txt
var topicsText string

// topics are the texts with one meaning, and frameworkMarks those that show that a program
// uses a framework; see topics.txt.
var topics, frameworkMarks = parseTopics(topicsText)

// parseTopics reads the table. An expression that is none stops the program: the text is part
// of it.
func parseTopics(text string) (topics, marks []sign) {
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 4 {
			continue
		}
		t := sign{f[0], strings.TrimPrefix(f[1], "-"), strings.Fields(f[2]), regexp.MustCompile(f[3])}
		if t.id == "uses" {
			marks = append(marks, t)
		} else {
			topics = append(topics, t)
		}
	}
	return topics, marks
}

// libraryNames are the libraries of CUDA and ROCm by the words for them.
var libraryNames = map[string]string{
	"cudnn": "cuDNN", "miopen": "MIOpen", "cublas": "cuBLAS", "cublaslt": "cuBLAS", "rocblas": "rocBLAS", "hipblas": "hipBLAS", "hipblaslt": "hipBLASLt",
	"cusolver": "cuSolver", "gpusolver": "cuSolver", "cusparse": "cuSPARSE", "cufft": "cuFFT", "hipfft": "hipFFT", "curand": "cuRAND",
}

// readPassage reads a passage.
func readPassage(p passage) *Statement {
	plain := strings.ReplaceAll(p.Text, "n't", " not")
	plain = strings.ReplaceAll(plain, "n’t", " not")
	st := &Statement{passage: p, toks: tokenize(plain), Words: map[string]bool{}}
	for i := range st.toks {
		switch {
		case st.toks[i].kind == 'w':
			st.Words[st.toks[i].word] = true
		case st.toks[i].unit != "":
			st.Words[st.toks[i].unit] = true
		}
	}
	for _, t := range tokenize(p.head) {
		if t.kind == 'w' {
			st.Words[t.word] = true
		}
	}
	st.Amounts = amounts(st.toks)
	whole := p.head + p.Text
	for i := range topics {
		if !st.HasAny(topics[i].words...) {
			continue
		}
		if m := topics[i].re.FindStringSubmatch(Clipped64(whole)); m != nil && !denied(topics[i].id, Clipped64(whole), topics[i].re) {
			t := topic{Id: topics[i].id, Name: topics[i].name}
			for _, g := range m[1:] {
				switch {
				case g == "":
				case t.Name == "" && topics[i].name == "":
					t.Name = Clip(g)
				default:
					t.Value = Clip(strings.TrimSpace(t.Value + " " + g))
				}
			}
			st.Topics = append(st.Topics, t)
		}
	}
	st.judgeWords()
	return st
}

// denied reports whether the clause says that the failure did not come, or that /dev/shm
// failed for a reason other than its size.
func denied(id, text string, re *regexp.Regexp) bool {
	switch id {
	case "other":
		at := re.FindStringIndex(text)
		return absent.MatchString(text[at[1]:]) || lacking.MatchString(text[:at[0]])
	case "shm":
		return errno.MatchString(text)
	}
	return false
}

var (
	absent  = regexp.MustCompile(`^[^.;,:]{0,40}\b(?:did not|didn't|does not|doesn't|never|no longer)\b`)
	lacking = regexp.MustCompile(`(?i)\b(?:without(?: an?)?|no more|no longer an?)\s*$`)
	errno   = regexp.MustCompile(`(?i)\b(?:no such file|permission denied|invalid argument|operation not permitted|file exists|read-only file system|too many open files)`)
)

// Clipped64 bounds what a regular expression reads.
func Clipped64(s string) string { return s[:min(len(s), 16<<10)] }

// maxText is the longest quotation of a line in bytes.
const maxText = 600

// Clip bounds a word that is kept.
func Clip(text string) string { return strings.ToValidUTF8(text[:min(len(text), 300)], "") }

// HasAny reports whether one of these words is in the text, or in its head.
func (st *Statement) HasAny(words ...string) bool {
	for _, w := range words {
		if st.Words[w] {
			return true
		}
	}
	return false
}

// Says reports whether a word of the text has one of these classes.
func (st *Statement) Says(c class) bool {
	return slices.ContainsFunc(st.toks, func(t token) bool { return t.class&c != 0 })
}

// Topic is the statement's topic of that name, and nil.
func (st *Statement) Topic(ids ...string) *topic {
	for i := range st.Topics {
		for _, id := range ids {
			if st.Topics[i].Id == id {
				return &st.Topics[i]
			}
		}
	}
	return nil
}

// Amount is the first amount with a role, and nil.
func (st *Statement) Amount(r role) *amount {
	for i := range st.Amounts {
		if st.Amounts[i].Role == r && !st.Amounts[i].Private {
			return &st.Amounts[i]
		}
	}
	return nil
}

// calledRoutine is the routine of a library that PyTorch called when it failed.
var calledRoutine = regexp.MustCompile("when calling `(cu[a-z]+[A-Z]\\w*|hip\\w+|roc\\w+)\\(")

// judgeWords finds whether memory was refused, and by whom.
func (st *Statement) judgeWords() {
	toks := st.toks
	for i := 1; i < len(toks); i++ { // "90 allocations, 0 refused, 20 calls" counts them
		if n := &toks[i-1]; toks[i].class&CFail != 0 && n.kind == 'n' && n.unit == "" && (i == 1 || toks[i-2].kind != 'w') && (i+1 == len(toks) || strings.IndexByte(",;)|", toks[i+1].kind) >= 0) {
			toks[i].class &^= CFail
		}
	}
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
	memoryish := st.HasAny("memory", "mem", "vram", "bytes", "gpu", "cuda", "device", "buffer", "hip", "xpu", "mps", "pool", "alloc", "malloc", "pinned") || len(st.Amounts) > 0
	strong := false // "out of memory", whatever else the text speaks of
	yes := func(k int) {
		if hedged(k) {
			st.Advice = true
			return
		}
		st.Refused = true
	}
	for k := range w {
		t := &toks[w[k]]
		switch {
		case t.is("out") && at(k+1, "of") && at(k+2, "shared") && st.Topic("shm") == nil:
			st.Faint = true // a database's locks, a kernel's shared memory, or /dev/shm
		case t.is("out") && at(k+1, "of") && within(k+1, 3, cMemory):
			yes(k)
			strong = st.Refused
		case t.class&cOOM != 0 && !at(k+1, "score", "adj", "debugging", "memcg", "kill", "killer") && !at(k-1, "to", "avoid"):
			yes(k)
		case t.class&cSpent != 0 && (within(k, 4, cMemory) || class_(k-1, cMemory) || class_(k-2, cMemory)):
			yes(k)
		case t.class&cSpent != 0 && at(k-1, "resource", "resources"):
			st.Faint = true
		case t.class&(CFail|CNot) != 0 && within(k, 5, cAcquire|cAlloc) && memoryish && !at(k+1, "reserved") && (t.class&CFail != 0 || at(k-1, "could", "did", "was", "were", "ca", "can", "is", "does")):
			yes(k)
		case t.class&(cAcquire|cAlloc) != 0 && (within(k, 2, CFail) || within(k, 2, 0, "not") && within(k, 3, 0, "succeed", "possible", "succeeded")) && memoryish && !at(k+1, "retry"):
			yes(k)
		case t.class&cTry != 0 && within(k, 2, cAcquire):
			for i := range st.Amounts {
				if st.Amounts[i].Role == RoleWant {
					yes(k)
				}
			}
		case (t.class&cScarce != 0 || t.class&CNot != 0 && (at(k+1, "enough", "sufficient", "adequate", "available", "free", "more", "memory", "room", "space"))) && (within(k, 4, cMemory|cLimit|cAcquire, "vram") || within(k, 2, 0, "room", "space") && len(st.Amounts) > 0):
			if t.is("not") && class_(k+1, cFree) && !within(k+1, 1, cMemory) || t.is("low", "little", "less", "short") && !within(k, 2, cMemory) {
				break
			}
			yes(k)
		case t.class&cAsk != 0 && within(k, 1, CFail) && memoryish, t.is("memory") && at(k+1, "error") && !at(k+2, "in"), t.is("bad") && at(k+1, "alloc"), t.is("no") && at(k+1, "memory"), t.is("no") && within(k, 3, cMemory) && within(k, 5, cFree):
			yes(k)
		case t.is("not") && at(k+1, "available") && st.Words["memory"] && st.HasAny("cache", "blocks", "device", "gpu"):
			yes(k)
		case t.is("memory") && at(k+1, "allocation") && (at(k-1, "error") || within(k+1, 1, CFail)):
			yes(k)
		case t.class&cBeyond != 0 && (within(k, 5, cLimit|cTotal|cFree|cPeak) || class_(k-1, cLimit|cTotal|cSize) || class_(k-2, cLimit|cTotal|cSize) || within(k, 4, cAsk)) && st.HasAny("memory", "pool", "alloc", "vram", "allocation", "cache", "gpu"):
			if !st.HasAny("message", "shared", "connection", "connections", "queue") && (len(st.Amounts) > 0 || st.HasAny("pool", "cache", "allowed")) {
				yes(k)
				st.Over = st.Over || st.Words["pool"] && (class_(k-1, cSize|cLimit) || class_(k-2, cSize|cLimit) || within(k, 4, cLimit|cPeak))
			}
		case t.is("errno") && w[k]+1 < len(toks) && (toks[w[k]+1].kind == 'n' && toks[w[k]+1].value == 12):
			yes(k)
		}
	}
	if st.HasAny("sentencepiece") {
		st.Refused = false
	}
	if st.Topic("other") != nil && !st.Words["oom"] || st.Topic("exceeds", "reshard", "setting") != nil || st.Topic("remat") != nil && !strong {
		st.Refused = false
	}
	if st.Topic("hami", "nvml", "paging") != nil {
		st.Refused = true
	}
	if free := st.Amount(RoleFree); free != nil && free.N == 0 && st.Amount(RoleTotal) != nil && st.Words["capacity"] {
		st.Derived = !st.Refused
		st.Refused = true
	}
	if want, free := st.Amount(RoleWant), st.Amount(RoleFree); want != nil && free != nil && want.low > free.High && st.Words["memory"] && st.Topic("exceeds", "remat") == nil {
		st.Derived = !st.Refused
		st.Refused = true
	}
	// The tail that takes it back.
	for k := range w {
		if at(k, "failure") && (class_(k-1, CNot) || class_(k-2, CNot)) && !class_(k+1, cFree) {
			st.Mild = true
		}
		if at(k, "performance") && at(k+1, "gains") {
			st.Mild = true
		}
		if at(k, "fallback", "fall", "falling") && at(k+1, "back", "to") || at(k, "will") && at(k+1, "retry") || at(k, "retrying") {
			st.Mild = st.Mild || st.Level != "E" && st.Level != "F"
		}
	}
	if st.HasAny("tactic", "tactics") && st.Refused {
		st.Mild = true // a builder compares them, and takes another
	}
	if st.HasAny("growth", "may", "might") && st.HasAny("due") && st.Words["oom"] {
		st.Advice, st.Refused = true, false
	}
	// A library.
	fails := false
	handle := st.HasAny("handle", "create", "creating", "created", "initialize", "initialized", "initialise", "init", "initialization", "make", "cudnncreate", "support")
	for k := range w {
		t := &toks[w[k]]
		if name := libraryNames[strings.TrimRight(t.word, "0123456789")]; name != "" && (st.Library == "" || st.Library == "cuDNN" && name != "cuDNN" && !at(k+1, "status")) {
			st.Library = name
		}
		if t.is("blas") && st.Library == "" && st.HasAny("gemm", "stream", "algorithms", "launch") {
			st.Library = "cuBLAS"
		}
		if t.is("dnn") && st.Library == "" {
			st.Library = "cuDNN"
		}
		fails = fails || t.class&CFail != 0 || t.is("status", "without", "null", "internal", "nullptr", "ret", "worked", "check") || t.class&CNot != 0
	}
	switch {
	case st.Library == "" && st.Words["convolution"] && st.HasAny("algorithm", "engine") && fails:
		st.Library = "cuDNN"
	case st.Library != "" && !fails && !st.Refused, st.Topic("missing", "version") != nil:
		st.Library = ""
	}
	if st.Library != "" {
		st.Memory = st.Refused || st.HasAny("alloc") && st.HasAny("failed", "failure") || st.Words["resource"] && st.Words["allocation"] || st.Words["insufficient"] && st.HasAny("resources", "resource") || st.Words["allocate"] && st.Words["work"]
		st.Handle = handle && !st.Words["routine"]
		if c := calledRoutine.FindStringSubmatch(st.Text); c != nil && !strings.Contains(c[1], "Create") {
			st.Handle = false // it had its handle, and passed it on
		}
		if st.Advice {
			st.Library = ""
		}
	}
	st.Layer = st.layerOf()
}

// layerOf finds who refused.
func (st *Statement) layerOf() Layer {
	s := st.Words
	switch {
	case (s["nccl"] || s["rccl"]) && s["cannot"] && s["allocate"] && s["memory"] && !s["cuda"]:
		return LayerHost // what the C library prints for ENOMEM
	case s["nccl"] || s["rccl"] || s["ncclunhandledcudaerror"]:
		return LayerNCCL
	case st.Topic("cubin") != nil:
		return LayerModule
	case st.HasAny("instantiate", "instantiating") && st.HasAny("graph", "graphs", "command"):
		return LayerGraph
	case (s["ctx"] && st.HasAny("retain", "create")) || s["implicit"] && s["initialization"] || s["primary"] && s["context"]:
		return LayerContext
	case st.hostMemory():
		return LayerHost
	case st.Library != "" && !(s["tried"] && st.Amount(RoleTotal) != nil):
		return layerLibrary
	case s["fraction"] && s["static"] || s["utilization"] && st.Amount(RoleFree) != nil || (s["kv"] || s["cache"] && s["blocks"]) && !s["allocator"] && !s["tried"]:
		return LayerEngine
	case s["driver"] || s["from"] && s["device"] || st.HasAny("malloc", "cudamalloc", "mem") && st.HasAny("cuda", "hip", "cu", "cudamalloc") || s["ordinal"] || s["unified"] || s["request"] && s["allocate"] && !s["tried"]:
		return LayerDriver
	}
	return LayerPool
}

// hostMemory reports whether the memory refused is the host's.
func (st *Statement) hostMemory() bool {
	s := st.Words
	if st.Topic("shm", "paging") != nil {
		return true
	}
	if st.HasAny("mps", "rmm", "gpu", "vram", "hip", "xpu") && !s["host"] && !s["pinned"] || s["cuda"] && s["error"] && s["allocation"] && s["memory"] && st.Amount(RoleFree) != nil {
		return false
	}
	if st.HasAny("java", "javascript", "jvm") {
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
		case t.is("cpu", "mklcpu") && (k > 0 && toks[k-1].is("allocator") || k > 1 && toks[k-1].kind == ':' && toks[k-2].is("device")):
			return true
		case t.is("cpu") && !cuda && (toks.near(k, 2, 1, cMemory|cAcquire|cPool) || k+1 < len(toks) && toks[k+1].is("out") && toks.near(k, 3, 1, cMemory) || k+2 < len(toks) && (toks[k+1].is("buffer") || toks[k+2].is("buffer"))):
			return true
		case t.is("numpy"):
			return true
		case t.is("memory") && k+1 < len(toks) && toks[k+1].is("error") && toks[k+1].glued && !cuda && (k == 0 || !toks[k-1].is("of", "gpu")):
			return !st.HasAny("cupy")
		case t.is("errno"), t.is("array") && s["shape"] && s["unable"]:
			return !cuda
		case t.is("bad") && toks.next(k).is("alloc") && !cuda && !st.HasAny("oom", "paddle", "failure") && st.Amount(RoleFree) == nil:
			return true
		case t.class&CFail != 0 && toks.near(k, 3, 1, cAcquire) && !cuda && st.Amount(RoleWant) == nil && s["memory"] && !st.HasAny("oom", "pool", "paddle", "error", "tls", "allocator") && len(toks) < 30:
			return true // Cannot allocate memory
		}
	}
	return false
}

// Head is what a logger put before the text.
func (st *Statement) Head() string { return st.head }
