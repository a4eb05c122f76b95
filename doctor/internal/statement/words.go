package statement

// Words and numbers of a line. A line is cut into words (in small letters, names such
// as CUDA_ERROR_OUT_OF_MEMORY and cudaErrorMemoryAllocation into their parts), numbers
// with their units, and punctuation. The lexicon gives each word its classes: what a
// word may say of a number beside it, and what it may say of a failure.

import (
	"math"
	"strconv"
	"strings"
)

// Sizes in bytes.
const (
	kib = 1 << 10
	Mib = 1 << 20
	Gib = 1 << 30
)

// A class is a set of meanings of a word.
type class uint64

const (
	// Of a number.
	cAsk     class = 1 << iota // requested, needed: the number is what was wanted
	cTry                       // tried, attempting
	cAcquire                   // allocate, reserve, obtain: what one does to get memory
	cAlloc                     // allocated
	cFree                      // free, available, left
	cTotal                     // total, capacity
	cLimit                     // limit, budget, allowed
	cUse                       // in use, occupied, held
	cKept                      // reserved, cached
	cIdle                      // unallocated, unused
	cLargest                   // largest, contiguous
	cPeak                      // peak, maximum
	cSize                      // size
	// Of a failure.
	CFail   // failed, cannot, unable
	CNot    // not, no
	cMemory // memory, vram
	cSpent  // exhausted
	cScarce // insufficient, short
	cBeyond // exceeds, larger, above
	cOOM    // oom
	// Of whom.
	cHost     // host, system, pinned
	cDevice   // gpu, device
	cPool     // pool, arena, allocator
	cLibrary  // cudnn, cublas
	cFiller   // says nothing: of, is, the
	cHarmless // a word of messages that says nothing here by itself
	cThing    // something else that is given out: a job, a port
)

// lexicon is the classes of words.
var lexicon = func() map[string]class {
	m := map[string]class{}
	for c, words := range map[class]string{
		cAsk:      "requested request requests requesting need needs needed require requires required wanted wants want desired asked asking asks demand demanded demands requirement",
		cTry:      "tried trying tying tries try attempt attempted attempting attempts",
		cAcquire:  "allocate allocates allocating allocation alloc malloc calloc realloc reserve reserving obtain obtaining acquire acquiring mmap grab commit",
		cAlloc:    "allocated allocations allocs",
		cFree:     "free available avail left remaining remains remain availability vacant headroom spare usable",
		cTotal:    "total capacity capacty physical installed overall altogether global",
		cLimit:    "limit limits limited budget cap caps capped allowed allowance quota ceiling threshold permitted allow highwatermark allocatable",
		cUse:      "used use uses usage using taking occupied occupies occupying held holds hold holding consumed consumes consuming taken live active inuse utilized",
		cKept:     "reserved committed pooled",
		cIdle:     "unallocated unused idle cached caching",
		cLargest:  "largest biggest contiguous",
		cPeak:     "peak max maximum most highest",
		cSize:     "size sizes sized bytes_size",
		CFail:     "failed fail fails failure failing unable cannot couldn couldnt cant refused refuse refuses denied rejected unsuccessful error errors impossible aborted terminated",
		CNot:      "not no none isn doesn without never didn",
		cMemory:   "memory mem vram ram hbm",
		cSpent:    "exhausted exhaustion exhaust depleted",
		cScarce:   "insufficient short lack lacking lacks little low scarce",
		cBeyond:   "exceeds exceed exceeded exceeding larger greater bigger above beyond over below smaller less more overflow",
		cOOM:      "oom ooms oomkilled enomem",
		cHost:     "host system pinned cpu swap rss shm",
		cDevice:   "gpu gpus device devices card cards cuda hip xpu mps",
		cPool:     "pool pools arena bfc allocator heap workspace",
		cLibrary:  "cudnn cublas cublaslt cusolver cufft cusparse curand nccl rccl rocblas hipblas hipblaslt miopen hipfft cudnn8 cutlass gpublas gpusolver gpublaslt",
		cFiller:   "of is was are were be been the a an to at in on by has have had it its with only just about set that which this and so far up for memory mem bytes byte amount still currently already as further additional another more gpu device cuda vram usable",
		cThing:    "job jobs task tasks port ports address addresses socket sockets thread threads node nodes pod pods license licenses slot slots worker workers replica replicas tty session sessions partition partitions rank ranks ip lock locks",
		cHarmless: "ordinal chunks chunk convolution algorithm handle create created library dynamic symbol fragmentation utilization startup desired initialization implicit primary retain context process processes autotuning capture capturing graphs module instantiate support busy unavailable killed virtual management driver performance rematerialization reduce fraction environment variable profiling compiled runtime caller indicates weights blocks",
	} {
		for _, w := range strings.Fields(words) {
			m[w] |= c
		}
	}
	return m
}()

// A token is a word, a number or a punctuation mark of a text.
type token struct {
	kind    byte // 'w', 'n', or the mark itself; '|' where the text begins anew
	word    string
	class   class
	value   float64 // of a number, in bytes if it has a unit
	low     float64 // the least that rounds to it
	high    float64
	unit    string // of a number; empty without one
	integer bool
	bytes   bool // a number without a unit that the words before it call bytes
	glued   bool // no blank between this and the token before
	at, end int
}

// A tokenList is a text.
type tokenList []token

// noToken stands before the first and behind the last.
var noToken token

// at is token k, or noToken.
func (toks tokenList) at(k int) *token {
	if k < 0 || k >= len(toks) {
		return &noToken
	}
	return &toks[k]
}

// is reports whether the token is one of these words.
func (t *token) is(words ...string) bool {
	if t.kind != 'w' {
		return false
	}
	for _, w := range words {
		if t.word == w {
			return true
		}
	}
	return false
}

// units are the factors of units. All are powers of 1024, as frameworks mean them; the
// interval of a number in KB, MB, GB or TB reaches down to powers of 1000.
var units = map[string]float64{
	"b": 1, "byte": 1, "bytes": 1, "k": kib, "kb": kib, "kib": kib, "ki": kib, "m": Mib, "mb": Mib, "mib": Mib, "mi": Mib,
	"g": Gib, "gb": Gib, "gib": Gib, "gi": Gib, "t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40, "ti": 1 << 40, "p": 1 << 50, "pb": 1 << 50, "pib": 1 << 50, "e": 1 << 60, "eb": 1 << 60, "eib": 1 << 60,
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
func upper(c byte) bool  { return c >= 'A' && c <= 'Z' }
func small(c byte) bool  { return c >= 'a' && c <= 'z' }
func digit(c byte) bool  { return c >= '0' && c <= '9' }

// maxTokens bounds the work for one text.
const maxTokens = 20000

// tokenize cuts a text into tokens.
func tokenize(text string) tokenList {
	toks := make(tokenList, 0, len(text)/5+8)
	for i := 0; i < len(text) && len(toks) < maxTokens; {
		var t token
		switch c := text[i]; {
		case letter(c):
			t = wordAt(text, i)
		case digit(c), c == '-' && (i == 0 || text[i-1] == ' ') && digitsAt(text, i+1) > 0:
			t = numberAt(text, i)
		case strings.IndexByte(" \t\r*`", c) >= 0 || c >= 0x80:
			i++
			continue
		case c == '\n':
			t = token{kind: '|', end: i + 1}
		default:
			t = token{kind: c, end: i + 1}
		}
		t.at, t.glued = i, len(toks) > 0 && toks[len(toks)-1].end == i
		toks = append(toks, t)
		i = t.end
	}
	return toks
}

// wordAt reads the word at text[i:], up to a new part: aB, or the last capital of ABc.
func wordAt(text string, i int) token {
	j := i + 1
	for j < len(text) && letter(text[j]) {
		last := j+2 < len(text) && small(text[j+1]) && letter(text[j+2])
		if upper(text[j]) && (small(text[j-1]) || last) {
			break
		}
		j++
	}
	w := strings.ToLower(text[i:j])
	return token{kind: 'w', word: w, class: lexicon[w], end: j}
}

// numberAt reads the number at text[i:], with its unit.
func numberAt(text string, i int) token {
	j := i
	if text[j] == '-' {
		j++
	}
	if strings.HasPrefix(text[j:], "0x") {
		for j += 2; j < len(text) && (digit(text[j]) || letter(text[j])); j++ {
		}
		return token{kind: 'n', end: j, unit: "hex"}
	}
	shape := i > 0 && (text[i-1] == '[' || text[i-1] == ',') // no thousands
	dots, decimals := 0, 0
	for ; j < len(text); j++ {
		switch {
		case digit(text[j]):
			decimals += min(dots, 1)
			continue
		case text[j] == '.' && digitsAt(text, j+1) > 0:
			dots++
			continue
		case text[j] == ',' && dots == 0 && !shape && thousands(text[i:j]) && digitsAt(text, j+1) == 3:
			continue
		}
		break
	}
	if dots > 1 {
		return token{kind: 'n', end: j, unit: "version"}
	}
	v, _ := strconv.ParseFloat(strings.ReplaceAll(text[i:j], ",", ""), 64)
	v = min(v, math.MaxFloat64)
	t := token{kind: 'n', integer: dots == 0}
	t.unit, t.end = unitAt(text, j)
	factor := max(units[t.unit], 1)
	half := 0.0
	if decimals > 0 || factor > 1 {
		half = .5 * math.Pow(10, -float64(decimals)) * factor
	}
	t.value = v * factor
	t.low, t.high = t.value-half, t.value+half
	if len(t.unit) == 2 && t.unit[1] == 'b' {
		t.low = v*math.Pow(1000, math.Log(factor)/math.Log(1024)) - half
	}
	return t
}

// digitsAt is the number of digits from text[i] on.
func digitsAt(text string, i int) (n int) {
	for i+n < len(text) && digit(text[i+n]) {
		n++
	}
	return n
}

// thousands reports whether a comma behind the figure may part its thousands.
func thousands(figure string) bool {
	return len(figure) <= 3 || len(figure) <= 15 && strings.IndexByte(figure, ',') > 0
}

// unitAt is the unit at text[j:] and where it ends: glued to its number, or behind a blank if it can
// be no other word. It is empty, and ends at j, if there is none.
func unitAt(text string, j int) (unit string, end int) {
	k := j
	if strings.HasPrefix(text[k:], ". ") && strings.HasPrefix(text[min(k+3, len(text)):], "iB") {
		k++ // NumPy's 300. GiB
	}
	if k < len(text) && text[k] == ' ' {
		k++
	}
	e := k
	for e < len(text) && letter(text[e]) {
		e++
	}
	word, low := text[k:e], strings.ToLower(text[k:e])
	goesOn := e < len(text) && (digit(text[e]) || text[e] == '_')
	if units[low] == 0 || word == "b" || word == "e" || goesOn {
		return "", j
	}
	if k == j || len(word) > 2 || word == "B" || len(word) == 2 && low[1] == 'b' {
		return low, e
	}
	return "", j
}

// quantity reports whether a number may be a size: it has a unit, or is a count of at
// least a MiB that no name, version or clock has in it.
func (t *token) quantity(before *token) bool {
	switch {
	case t.kind != 'n', t.unit == "hex", t.unit == "version", t.value < 0:
		return false
	case t.glued && t.unit == "" && t.value >= Mib && before.is("is", "of", "need", "needs"):
		return t.integer // a blank is missing
	case t.glued && strings.IndexByte("w_#", before.kind) >= 0, t.unit == "" && before.is(counted...):
		return false
	case t.glued && t.unit == "" && strings.IndexByte("[,", before.kind) >= 0: // of a shape
		return false
	}
	return t.unit != "" || t.bytes || t.integer && t.value >= Mib
}

// quantity reports whether token i may be a size.
func (toks tokenList) quantity(i int) bool { return toks[i].quantity(toks.at(i - 1)) }

// bare reports whether the token is an integer without a unit.
func (t *token) bare() bool { return t.kind == 'n' && t.integer && t.unit == "" }

// markBytes finds numbers that the words before them call bytes, however small: "requested bytes
// of 2048", "available memory of 0", "requested buffer of size 643840".
func markBytes(toks tokenList) {
	for i := range toks {
		mark, what := toks.at(i-1), toks.at(i-2)
		switch {
		case !toks[i].bare():
		case what.is("bytes") && (mark.kind == ':' || mark.kind == '=' || mark.is("of")),
			what.is("memory") && mark.is("of"),
			what.is("of") && mark.is("size") && toks.at(i-3).is("buffer", "allocation", "request", "memory", "block", "segment"):
			toks[i].bytes = true
		}
	}
}

// counted are words before numbers that are no sizes.
var counted = []string{"process", "pid", "thread", "line", "step", "epoch", "rank", "port", "seed", "node", "task", "job", "iteration", "worker", "len", "length", "tokens", "code"}

// bytesOf is a value as bytes.
func bytesOf(v float64) uint64 {
	switch {
	case v <= 0:
		return 0
	case v >= math.MaxUint64:
		return math.MaxUint64
	}
	return uint64(v)
}
