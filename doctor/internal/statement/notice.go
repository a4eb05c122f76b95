package statement

// Notices, the statements of a text: whether memory was refused in it, by whom and of what; whether a
// library failed; and the texts that have one meaning only, such as a setting that was
// not understood. Memory refused is known by words and their order, in any wording:
// "out of memory", "could not reserve 3 GiB", "not enough VRAM", "MemoryError". The texts
// with one meaning are in the table of topics.

import (
	_ "embed"
	"gpumem/doctor/internal/needle"
	"gpumem/doctor/internal/vocabulary"
	"iter"
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
	plain   string // the text with its contractions resolved
	toks    tokenList
	Words   map[string]bool // with those of its head
	Amounts []amount
	Refused bool // it says that memory was refused
	Faint   bool // by a word that may mean something else
	Mild    bool // it says itself that the program goes on
	Again   bool // it says that it tries again, or with something else
	Sticky  bool // every later call fails too, whoever makes it
	Codes   []vocabulary.Hit
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
		t := sign{f[0], strings.TrimPrefix(f[1], "-"), strings.Fields(f[2]), regexp.MustCompile(programName.ReplaceAllString(f[3], programItself))}
		if t.id == "uses" {
			marks = append(marks, t)
		} else {
			topics = append(topics, t)
		}
	}
	return topics, marks
}

// topicsBy and marksBy find the topics and marks that a text may have.
var topicsBy, marksBy = needle.NewFinder(expressions(topics)), needle.NewFinder(expressions(frameworkMarks))

func expressions(signs []sign) iter.Seq[*regexp.Regexp] {
	return func(yield func(*regexp.Regexp) bool) {
		for i := range signs {
			if !yield(signs[i].re) {
				return
			}
		}
	}
}

// programName is how topics.txt writes the name of a program, and programItself what shows it and
// not a host, a container or a folder of that name.
var programName = regexp.MustCompile(`\{([a-z]+)\}`)

const programItself = `(?i:(?:^|[^\w/.@-])$1(?:$$|[^\w/@.-]|\.\s)|\b$1(?:==|/(?:[\w.-]+/)*[\w-]+\.(?:py|cc|cpp|cu|rs|go|so)\b|\.(?:[a-z_]\w*\.)+[A-Za-z_]))`

// libraryNames are the libraries of CUDA and ROCm by the words for them.
var libraryNames = map[string]string{
	"cudnn": "cuDNN", "miopen": "MIOpen", "cublas": "cuBLAS", "cublaslt": "cuBLAS", "rocblas": "rocBLAS", "hipblas": "hipBLAS", "hipblaslt": "hipBLASLt",
	"cusolver": "cuSolver", "gpusolver": "cuSolver", "cusparse": "cuSPARSE", "cufft": "cuFFT", "hipfft": "hipFFT", "curand": "cuRAND",
}

// readPassage reads a passage.
func readPassage(p passage) *Statement {
	plain := strings.ReplaceAll(p.Text, "n't", " not")
	plain = strings.ReplaceAll(plain, "n’t", " not")
	st := &Statement{passage: p, plain: plain, toks: tokenize(plain), Words: map[string]bool{}}
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
	markBytes(st.toks)
	st.Amounts = amounts(st.toks)
	whole := p.head + p.Text
	for _, i := range topicsBy.In(Clipped64(whole)) {
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
	st.readCodes(Clipped64(whole))
	st.judge()
	return st
}

// denied reports whether the text says that the failure did not come, or that /dev/shm failed for a
// reason other than its size.
func denied(id, text string, re *regexp.Regexp) bool {
	switch id {
	case "other", "killed", "sigkill":
		at := re.FindStringIndex(text)
		return vocabulary.Denied(text, at[0], at[1])
	case "shm":
		return errno.MatchString(text)
	}
	return false
}

var errno = needle.MustCompile(`(?i)\b(?:no such file|permission denied|invalid argument|operation not permitted|file exists|read-only file system|too many open files)`)

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

// failure is how the line of an error begins or ends.
var failure = needle.MustCompile(`\w(?:Error|Exception)\b(?::|$)|(?i)^\W*(?:error|fatal|panic)\b|\b(?:failed|aborted|terminated)\b|\berror:`)

// outright is what only a program that fails prints.
var outright = needle.MustCompile(`what\(\):|\bGGML_ASSERT\b`)

// Fails reports whether the text looks like a failure of any kind.
func (st *Statement) Fails() bool {
	if st.Report || st.Advice || st.Mild {
		return false
	}
	return st.Level == "E" || st.Level == "F" || outright.MatchString(st.Text) || st.Says(CFail) && failure.MatchString(Clipped64(st.Text))
}

// followUp is what other failures leave behind them.
var followUp = needle.MustCompile(`(?i)^\W*(?:aborted|segmentation fault|terminate called)|core dumped|` +
	`CalledProcessError|ChildFailedError|EngineDeadError|See root cause above|GGML_ASSERT: \S+ false$|^make(?:\[\d+\])?: \*\*\*|exited with (?:code|status)`)

var exceptionLine = needle.MustCompile(`^\W*(?:[\w.]+\.)?\w+(?:Error|Exception)\b:|panicked at|what\(\):|\bGGML_ASSERT\b`)

// Weight is how much a line that fails says of its program's end: an exception more than a line of
// an error, that more than a warning, and what follows from another failure nothing.
func (st *Statement) Weight() int {
	switch {
	case followUp.MatchString(st.Text) && !strings.Contains(st.Text, "what():") || st.Level == "W":
		return 0
	case st.Level == "F" || exceptionLine.MatchString(Clipped64(st.Text)):
		return 3
	case st.Level == "E" || st.Refused || strings.Contains(strings.ToLower(Clipped64(st.Text)), "error:"):
		return 2
	}
	return 1
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
var calledRoutine = needle.MustCompile("when calling `(cu[a-z]+[A-Z]\\w*|hip\\w+|roc\\w+)\\(")

// words are those of a text, by their place among its tokens.
type words struct {
	toks tokenList
	at   []int
	text string
}

// denied reports whether the text says that "out of memory", or a word for it, from word k on did not
// come.
func (w *words) denied(k int) bool {
	end := k
	for j := k; j < len(w.at) && j <= k+4; j++ {
		if w.has(j, cMemory|cOOM) {
			end = j
			break
		}
	}
	return vocabulary.Denied(w.text, w.toks[w.at[k]].at, w.toks[w.at[end]].end)
}

// is reports whether word k is one of these.
func (w *words) is(k int, any ...string) bool {
	return k >= 0 && k < len(w.at) && w.toks[w.at[k]].is(any...)
}

// has reports whether word k has one of these classes.
func (w *words) has(k int, c class) bool {
	return k >= 0 && k < len(w.at) && w.toks[w.at[k]].class&c != 0
}

// within reports whether word k is followed by one of a class, or one of these, within n words
// of the same sentence.
func (w *words) within(k, n int, c class, any ...string) bool {
	for j := k + 1; j < len(w.at) && j <= k+n; j++ {
		for m := w.at[j-1] + 1; m < w.at[j]; m++ {
			if t := &w.toks[m]; t.kind == '.' && !w.toks[m+1].glued || t.kind == ';' || t.kind == '|' {
				return false
			}
		}
		if w.has(j, c) || w.is(j, any...) {
			return true
		}
	}
	return false
}

// counts reports whether word k is the name of a count: "CUDA OOMs: 0", "num_ooms = 3", "0 OOMs".
func (w *words) counts(k int) bool {
	i := w.at[k] + 1
	if before := w.at[k] - 1; before >= 0 && w.is(k, "ooms") {
		if n := &w.toks[before]; n.kind == 'n' && n.unit == "" && n.value == 0 {
			return true
		}
	}
	marks := false
	for ; i < len(w.toks) && i < w.at[k]+12; i++ {
		switch t := &w.toks[i]; {
		case t.kind == 'n':
			return marks && t.unit == "" && t.integer && t.value < 1e6
		case t.is("no", "none", "false"):
			return marks
		case t.kind == 'w' && !t.is("total", "count", "events", "errors", "error", "gpu", "container", "kill", "killed", "a"):
			return false
		case t.kind == ':' || t.kind == '=' || t.kind == '}' || t.kind == ',' && w.toks[i-1].kind == '\'':
			marks = true
		}
	}
	return false
}

// hedged reports whether word k is what is to be avoided, or guessed.
func (w *words) hedged(k int) bool {
	for j := k - 1; j >= 0 && j >= k-6; j-- {
		if w.is(j, "caused") && w.is(j-2, "may", "might", "could", "can") {
			return true // may be caused by the GPU running out of memory
		}
		if j < k-4 {
			continue
		}
		if w.is(j, "avoid", "prevent", "due", "if", "avoids", "preventing", "avoiding", "reduce", "see", "cause", "caused") {
			return true
		}
	}
	return false
}

// memoryish reports whether the text speaks of memory: in so many words, or of a GPU and of no
// other thing that is given out.
func (st *Statement) memoryish() bool {
	if len(st.Amounts) > 0 || st.HasAny("memory", "mem", "vram", "bytes", "buffer", "pool", "alloc", "malloc", "pinned") {
		return true
	}
	return st.HasAny("gpu", "cuda", "device", "hip", "xpu", "mps") && !st.Says(cThing)
}

// judge finds whether memory was refused, whether the program goes on, and whose failure it is.
func (st *Statement) judge() {
	w := &words{toks: st.toks, text: st.plain}
	for i := range st.toks {
		// "90 allocations, 0 refused, 20 calls" counts them.
		if i > 0 && st.toks[i].class&CFail != 0 && w.toks.counted(i) {
			st.toks[i].class &^= CFail
		}
		if st.toks[i].kind == 'w' {
			w.at = append(w.at, i)
		}
	}
	strong := st.judgeRefusal(w)
	st.judgeTopics(strong)
	st.judgeNumbers()
	st.judgeOutcome(w)
	st.judgeLibrary(w)
	st.Faint = st.Faint || !st.Refused && st.Library == "" && len(st.Topics) == 0 && st.openCode()
	st.Layer = st.layerOf()
}

// counted reports whether word i stands behind the number that it counts.
func (toks tokenList) counted(i int) bool {
	n := &toks[i-1]
	alone := n.kind == 'n' && n.unit == "" && (i == 1 || toks[i-2].kind != 'w')
	return alone && (i+1 == len(toks) || strings.IndexByte(",;)|", toks[i+1].kind) >= 0)
}

// judgeRefusal finds whether the words say that memory was refused. strong is "out of memory",
// whatever else the text speaks of.
func (st *Statement) judgeRefusal(w *words) (strong bool) {
	for k := range w.at {
		out := w.is(k, "out") && w.is(k+1, "of")
		if out && (w.is(k-1, "any") || w.is(k+2, "memory") && w.counts(k+2)) {
			continue // a hint, or a count of them
		}
		switch {
		case out && w.is(k+2, "shared") && st.Topic("shm") == nil:
			st.Faint = true // a database's locks, a kernel's shared memory, or /dev/shm
			continue
		case w.has(k, cSpent) && w.is(k-1, "resource", "resources") && !st.spent(w, k):
			st.Faint = true
			continue
		}
		reach := 3
		if w.is(k+2, "gpu", "video", "device", "system", "host") {
			reach = 5 // "out of GPU and shared host memory"
		}
		short := out && w.within(k+1, reach, cMemory)
		switch {
		case !short && !slices.ContainsFunc(lacks, func(lack lack) bool { return lack(st, w, k) }):
		case w.hedged(k):
			st.Advice = true
		case (short || w.has(k, cOOM) || w.is(k, "memory")) && w.denied(k):
		default:
			if !st.Refused {
				st.startAt(st.toks[w.at[k]].at)
			}
			st.Refused = true
			strong = strong || short
		}
	}
	return strong
}

// A lack is words for memory that was refused, other than "out of memory", from word k on.
type lack func(st *Statement, w *words, k int) bool

// lacks are looked for in their order.
var lacks = []lack{
	(*Statement).spent, (*Statement).namesOOM, (*Statement).notAllocated, (*Statement).tooLittle, (*Statement).noMemory,
	(*Statement).beyondLimit, (*Statement).lacksRoom,
}

// spent is memory that is exhausted.
func (st *Statement) spent(w *words, k int) bool {
	return w.has(k, cSpent) && (w.within(k, 4, cMemory) || w.has(k-1, cMemory) || w.has(k-2, cMemory))
}

// namesOOM is a word for a refusal, and no count of them.
func (st *Statement) namesOOM(w *words, k int) bool {
	return w.has(k, cOOM) && !w.is(k+1, "score", "adj", "debugging", "memcg", "kill", "killer") && !w.is(k-1, "to", "avoid", "not", "never", "no") && !w.counts(k)
}

// notAllocated is memory that could not be got.
func (st *Statement) notAllocated(w *words, k int) bool {
	if !st.memoryish() {
		return false
	}
	switch {
	case w.has(k, CFail|CNot) && w.within(k, 5, cAcquire|cAlloc) && !w.is(k+1, "reserved"):
		return w.has(k, CFail) || w.is(k-1, "could", "did", "was", "were", "ca", "can", "is", "does")
	case w.has(k, cAcquire|cAlloc) && !w.is(k+1, "retry"):
		return w.within(k, 2, CFail) || w.within(k, 2, 0, "not") && w.within(k, 3, 0, "succeed", "possible", "succeeded")
	case w.has(k, cTry) && w.within(k, 2, cAcquire):
		return st.Amount(RoleWant) != nil
	case w.has(k, cAsk):
		return w.within(k, 1, CFail)
	}
	return false
}

// tooLittle is memory that is not enough.
func (st *Statement) tooLittle(w *words, k int) bool {
	what := w.is(k+1, "enough", "sufficient", "adequate", "available", "free", "more", "memory", "room", "space") && !w.is(k+2, notShort...)
	none := w.has(k, CNot) && (what || w.is(k+2, "enough"))
	unlikely := w.is(k, "unlikely") && w.within(k, 3, 0, "enough")
	room := w.within(k, 2, 0, "room", "space") && len(st.Amounts) > 0
	if !none && !unlikely && !w.has(k, cScarce) || !room && !w.within(k, 4, cMemory|cLimit|cAcquire) {
		return false
	}
	notFree := w.is(k, "not") && w.has(k+1, cFree) && !w.within(k+1, 1, cMemory)
	return !notFree && !(w.is(k, "low", "little", "less", "short") && !w.within(k, 2, cMemory))
}

// notShort are words after "no memory" that do not speak of a lack.
var notShort = []string{"leak", "leaks", "pressure", "access", "errors", "error", "issue", "issues", "problem", "problems", "limit", "limits",
	"overhead", "growth"}

// noMemory is what programs and libraries call it besides.
func (st *Statement) noMemory(w *words, k int) bool {
	switch {
	case w.is(k, "memory"):
		return w.is(k+1, "error") && !w.is(k+2, "in") || w.is(k+1, "allocation") && (w.is(k-1, "error") || w.within(k+1, 1, CFail))
	case w.is(k, "bad"):
		return w.is(k+1, "alloc")
	case w.is(k, "no"):
		return w.is(k+1, "memory") && !w.is(k+2, notShort...) || w.within(k, 3, cMemory) && w.within(k, 5, cFree)
	case w.is(k, "not"):
		return w.is(k+1, "available") && st.Words["memory"] && st.HasAny("cache", "blocks", "device", "gpu")
	case w.is(k, "errno"):
		i := w.at[k] + 1
		return i < len(w.toks) && w.toks[i].kind == 'n' && w.toks[i].value == 12
	}
	return false
}

// beyondLimit is a request, or what is taken, beyond a limit.
func (st *Statement) beyondLimit(w *words, k int) bool {
	beside := w.has(k-1, cLimit|cTotal|cSize) || w.has(k-2, cLimit|cTotal|cSize)
	limit := beside || w.within(k, 5, cLimit|cTotal|cFree|cPeak) || w.within(k, 4, cAsk)
	ours := st.HasAny("memory", "pool", "alloc", "vram", "allocation", "cache", "gpu", "buffer", "allocatable")
	switch {
	case !w.has(k, cBeyond), w.fewer(k), !limit, !ours, st.HasAny("message", "shared", "connection", "connections", "queue"),
		len(st.Amounts) == 0 && !st.HasAny("pool", "cache", "allowed"):
		return false
	}
	atMost := w.has(k-1, cSize|cLimit) || w.has(k-2, cSize|cLimit) || w.within(k, 4, cLimit|cPeak)
	if !w.hedged(k) {
		st.Over = st.Over || st.Words["pool"] && atMost
	}
	return true
}

// judgeTopics lets what has one meaning go before the words.
func (st *Statement) judgeTopics(strong bool) {
	other := st.Topic("other") != nil && !st.Words["oom"]
	if scarce := strong || st.Words["insufficient"] && st.Words["memory"]; other && scarce && st.Topic("other").Name == refusedArgument {
		st.drop("other") // a status that many failures have, beside words that have one meaning
		other = false
	}
	quiet := st.Topic("exceeds", "reshard", "setting", "busy", "workingset") != nil || st.Topic("remat") != nil && !strong
	switch {
	case st.Topic("engine") != nil:
		st.Refused, st.Advice = true, false
	case st.Topic("hami", "nvml", "paging", "cpuclient", "hostwords", "vram") != nil:
		st.Refused, st.Advice = true, false
	case other || quiet || st.HasAny("sentencepiece"):
		st.Refused = false
	case !st.Advice && st.memoryCode() && !st.Says(CNot):
		st.Refused = true
	}
}

// drop takes a topic away.
func (st *Statement) drop(id string) {
	st.Topics = slices.DeleteFunc(st.Topics, func(t topic) bool { return t.Id == id })
}

// judgeNumbers finds a refusal that follows from the numbers alone.
func (st *Statement) judgeNumbers() {
	want, free := st.Amount(RoleWant), st.Amount(RoleFree)
	empty := free != nil && free.N == 0 && st.Amount(RoleTotal) != nil && st.Words["capacity"]
	more := want != nil && free != nil && want.low > free.High && st.Words["memory"] && st.Topic("exceeds", "remat") == nil
	if planned := st.Words["offload"] && st.Words["layers"]; (empty || more) && !planned {
		st.Derived = !st.Refused
		st.Refused = true
	}
}

// judgeOutcome finds whether the text says itself that the program goes on.
func (st *Statement) judgeOutcome(w *words) {
	for k := range w.at {
		noFailure := w.is(k, "failure") && (w.has(k-1, CNot) || w.has(k-2, CNot)) && !w.has(k+1, cFree)
		if noFailure || w.is(k, "performance") && w.is(k+1, "gains") {
			st.Mild = true
		}
		back := w.is(k, "fallback", "fall", "falling") && w.is(k+1, "back", "to")
		frees := w.has(k, cTry) && w.within(k, 3, 0, "free", "reclaim", "again") && w.within(k, 6, cMemory)
		if again := w.is(k, "will") && w.is(k+1, "retry") || w.is(k, "retrying") || frees; back || again {
			st.Mild = st.Mild || st.Level != "E" && st.Level != "F"
			st.Again = st.Again || again || back
		}
	}
	if st.HasAny("tactic", "tactics") && st.Refused {
		st.Mild = true // a builder compares them, and takes another
	}
	if st.Refused && st.Words["success"] && succeeded.MatchString(Clipped64(st.Text)) {
		st.Mild = true // the program took another way, and the driver has no error
	}
	if st.HasAny("growth", "may", "might") && st.HasAny("due") && st.Words["oom"] {
		st.Advice, st.Refused = true, false
	}
}

// succeeded is the status of a call that did not fail.
var succeeded = regexp.MustCompile(`(?::|\b(?:status|returned|code|error)) (?:(?:CL|CUDA|VK|ZE_RESULT)_SUCCESS|(?:cuda|hip)Success)\W*$`)

// judgeLibrary finds a library that failed.
func (st *Statement) judgeLibrary(w *words) {
	fails := false
	for k := range w.at {
		t := &w.toks[w.at[k]]
		if name := st.namedLibrary(w, k); name != "" {
			above := st.Library == "cuDNN" && name != "cuDNN" && !w.is(k+1, "status") // cuDNN's message names what it called
			if st.Library == "" || above {
				st.Library = name
			}
		}
		fails = fails || t.class&(CFail|CNot) != 0 || t.is("status", "without", "null", "internal", "nullptr", "ret", "worked", "check")
	}
	switch {
	case st.Library == "" && st.Words["convolution"] && st.HasAny("algorithm", "engine") && fails:
		st.Library = "cuDNN"
	case st.Library != "" && !fails && !st.Refused, st.Topic("missing", "version") != nil:
		st.Library = ""
	}
	if st.Library == "" {
		return
	}
	st.Memory = st.Refused || st.lacksForLibrary()
	st.Handle = !st.Words["routine"] && st.HasAny("handle", "create", "creating", "created", "initialize", "initialized", "initialise", "init",
		"initialization", "make", "cudnncreate", "support")
	if c := calledRoutine.FindStringSubmatch(st.Text); c != nil && !strings.Contains(c[1], "Create") {
		st.Handle = false // it had its handle, and passed it on
	}
	if st.Advice && !st.Handle {
		st.Library = ""
	}
}

// namedLibrary is the library that word k names; empty if it names none.
func (st *Statement) namedLibrary(w *words, k int) string {
	t, next := &w.toks[w.at[k]], w.toks.at(w.at[k]+1)
	name := libraryNames[strings.TrimRight(t.word, "0123456789")]
	switch {
	case name != "" || st.Library != "":
		return name
	case t.is("blas") && st.HasAny("gemm", "stream", "algorithms", "launch"):
		return "cuBLAS"
	case t.is("cu", "roc", "hip") && next.glued:
		return libraryNames[t.word+next.word]
	case t.is("dnn") && !w.toks.at(w.at[k]-1).is("one"): // oneDNN computes on the CPU
		return "cuDNN"
	}
	return ""
}

// lacksForLibrary reports whether the status of a library is that of memory, in words that others use
// for other things.
func (st *Statement) lacksForLibrary() bool {
	s := st.Words
	switch {
	case s["alloc"] && st.HasAny("failed", "failure"), s["insufficient"] && st.HasAny("resources", "resource"):
		return true
	}
	return s["resource"] && s["allocation"] || s["allocate"] && s["work"]
}

// layerOf finds who refused.
func (st *Statement) layerOf() Layer {
	s := st.Words
	nccl := s["nccl"] || s["rccl"]
	cached := s["kv"] || s["cache"] && s["blocks"]
	pool := s["tried"] || s["allocator"]
	switch {
	case st.Topic("engine") != nil:
		return LayerEngine
	case nccl && st.hostCode() && !s["cuda"]:
		return LayerHost
	case nccl, s["ncclunhandledcudaerror"]:
		return LayerNCCL
	case st.Topic("cubin") != nil:
		return LayerModule
	case st.HasAny("instantiate", "instantiating") && st.HasAny("graph", "graphs", "command"):
		return LayerGraph
	case s["ctx"] && st.HasAny("retain", "create"), s["implicit"] && s["initialization"], s["primary"] && s["context"]:
		return LayerContext
	case st.hostMemory():
		return LayerHost
	case st.Library != "" && !(s["tried"] && st.Amount(RoleTotal) != nil):
		return layerLibrary
	case s["fraction"] && s["static"], s["utilization"] && st.Amount(RoleFree) != nil, cached && !pool:
		return LayerEngine
	case s["driver"], s["ordinal"], s["unified"], s["cudamalloc"], s["from"] && s["device"], s["request"] && s["allocate"] && !s["tried"],
		st.HasAny("malloc", "mem") && st.HasAny("cuda", "hip", "cu"):
		return LayerDriver
	}
	return LayerPool
}

// hostMemory reports whether the memory refused is the host's.
func (st *Statement) hostMemory() bool {
	s := st.Words
	ofGPU := st.DeviceCode() || st.HasAny("mps", "rmm", "gpu", "vram", "hip", "xpu", "pyopencl", "opencl")
	freeOfGPU := s["cuda"] && s["error"] && s["allocation"] && s["memory"] && st.Amount(RoleFree) != nil
	cuda := s["cuda"] || s["device"] && !s["shared"] || s["cublas"]
	switch {
	case st.Topic("shm", "paging", "cpuclient", "hostwords") != nil, st.hostCode() && !st.HasAny("cuda", "gpu", "vram", "rmm", "hip"):
		return true
	case ofGPU && !s["host"] && !s["pinned"], freeOfGPU, s["gpu"] && s["shared"]: // Blender's GPU and shared host memory
		return false
	case st.HasAny("java", "javascript", "jvm", "numpy"):
		return true
	}
	for k := range st.toks {
		t, next := &st.toks[k], st.toks.at(k+1)
		switch {
		case t.is("host", "pinned") && st.toks.hostAt(k), !cuda && t.class&cHost != 0 && !t.is("cpu") && st.toks.hostAt(k), st.toks.cpuAt(k, cuda):
			return true
		case !cuda && t.is("memory") && next.is("error") && next.glued && !st.toks.at(k-1).is("of", "gpu"):
			return !s["cupy"] // MemoryError of Python
		case t.is("bad") && st.toks.next(k).is("alloc") && !cuda && !st.HasAny("oom", "paddle", "failure"):
			return st.Amount(RoleFree) == nil // of C++
		case t.is("errno"), t.is("array") && s["shape"] && s["unable"]:
			return !cuda
		}
	}
	return false
}

// hostAt reports whether word k, which is of the host, stands where whose memory it is stands.
func (toks tokenList) hostAt(k int) bool {
	beside := toks.near(k, 2, cMemory|cAcquire|cPool) || toks.near(k, -1, cMemory|cAcquire)
	return beside || k > 1 && toks[k-1].is("on") || toks.at(k+1).is("register", "buffer", "bfc", "file")
}

// cpuAt reports whether word k is the processor as whose memory was refused. It says so of itself only
// in a text without CUDA.
func (toks tokenList) cpuAt(k int, cuda bool) bool {
	before, next := toks.at(k-1), toks.at(k+1)
	switch {
	case !toks[k].is("cpu", "mklcpu"):
		return false
	case before.is("allocator"), before.kind == ':' && toks.at(k-2).is("device"):
		return true
	case cuda || toks[k].is("mklcpu"):
		return false
	}
	out := next.is("out") && toks.near(k, 3, cMemory)
	return out || next.is("buffer") || toks.at(k+2).is("buffer") || toks.near(k, 2, cMemory|cAcquire|cPool)
}

// Head is what a logger put before the text.
func (st *Statement) Head() string { return st.head }
