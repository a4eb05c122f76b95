// Package engine answers for engines that serve models, in their own terms: how many tokens of
// KV cache there are, how many requests at once, what takes the rest of the card, and what
// another setting or card would give.
//
// An engine fills the card at its start: it loads the weights, runs the largest batch once to
// see what it takes, and gives what is left of its part of the card to the KV cache. So where
// another part of the card, or another card of the same compute capability, is all that differs,
// the rest stays as it was measured, and the answer follows by arithmetic. What changes the
// measurement (the batch, graphs, the quantization of weights) is not derived here: it wants a
// run.
//
// Every figure is the engine's, and is compared with what PyTorch's allocator, the simulated
// driver and the recording say. What they do not bear stands in Answer.Doubts.
//
// Files: kinds.go what is known of each engine, note.go what its processes have noted, engine.go
// the answer, other.go what follows for other settings and cards.
package engine

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpumem/size"
)

// Answer is the answer about an engine on a card. Sizes are bytes on each GPU.
type Answer struct {
	Engine  string `json:"engine"`
	Version string `json:"version"`
	Serves  bool   `json:"serves"`
	// Reason is the engine's own word why it does not serve; "" if it does. Then the figures
	// are those of a larger card, of CardBytes.
	Reason string `json:"reason,omitempty"`
	// RefusedOn is the largest card that it was tried on, which it has refused for LastReason; 0 if one
	// has served. Then there are no figures.
	RefusedOn  uint64 `json:"refused_on_bytes,omitempty"`
	LastReason string `json:"last_reason,omitempty"`

	Model     string `json:"model"`
	DType     string `json:"dtype"`
	Quantized string `json:"quantization,omitempty"`
	CacheType string `json:"kv_cache_dtype"`
	CardBytes uint64 `json:"card_bytes"` // as programs see it
	GPUs      int    `json:"gpus"`

	Utilization float64 `json:"gpu_memory_utilization"` // or by what name the engine has it: Part
	Part        string  `json:"utilization_flag"`
	// Given is the size of the KV cache on each GPU that the engine was given, by the option GivenBy, in place of
	// what the utilization leaves; 0 if none was.
	Given      uint64 `json:"kv_cache_given_bytes,omitempty"`
	GivenBy    string `json:"kv_cache_flag,omitempty"`
	MaxLen     uint64 `json:"max_model_len"`
	MaxSeqs    uint64 `json:"max_num_seqs"`
	MaxBatched uint64 `json:"max_num_batched_tokens"`

	Tokens   uint64  `json:"kv_cache_tokens"`
	Requests float64 `json:"requests"`             // of MaxLen tokens, at once
	Longest  uint64  `json:"longest_context"`      // of one request, by the cache and the model; 0 if unknown
	Longest8 uint64  `json:"longest_context_of_8"` // of eight requests at once

	// Figures are those of the GPU that has room for the fewest blocks of the cache: of several all have as many.
	Figures
	Ranks    []Figures `json:"ranks"`    // of each GPU
	Replicas int       `json:"replicas"` // which have Tokens and Requests each: data parallelism

	// Need is the smallest card, in bytes, on which one request of MaxLen is served at this
	// utilization, or beside a cache of Given; 0 if that is unknown.
	Need uint64 `json:"smallest_card_bytes"`

	Compiled Compiled `json:"compile_cache"`
	// Second is a start after this one, which finds compiled code; nil if that is the same.
	Second  *Second  `json:"second_start,omitempty"`
	Set     []string `json:"set"`     // for the simulated GPU, NAME=value
	Options []string `json:"options"` // of the engine, NAME=value, that are not the program's
	Others  []Other  `json:"other_settings"`
	Cards   []Other  `json:"other_cards"`
	Doubts  []string `json:"doubts"` // figures that the recording does not bear

	kind      kind
	fixed     bool // the utilization was given, and is no choice of the engine by the card
	blocks    uint64
	positions uint64  // of the model; 0 if unknown
	perToken  float64 // requests for each token, if the engine does not serve more than MaxSeqs
	least     uint64  // tokens with which it starts
	plain     bool    // each token takes the same in each layer
}

// Figures is what lies on a GPU.
type Figures struct {
	Weights     uint64 `json:"weights_bytes"`
	Activations uint64 `json:"activation_bytes"` // the peak of the largest batch, above the weights
	Graphs      uint64 `json:"graph_bytes"`
	Outside     uint64 `json:"outside_bytes"` // beside PyTorch's pool, and what that holds unused
	Captured    uint64 `json:"graphs_captured"`
	Cache       uint64 `json:"kv_cache_bytes"`
	Left        uint64 `json:"left_bytes"` // by the utilization; the context of the process lies there

	once                 uint64  // of the activations, what a compiler took to time kernels
	available, requested float64 // for the cache, and for all
	taken                float64 // before the engine began, if the utilization is a part of the rest or the cache was given; else 0
	block                uint64  // bytes of one of the cache
}

// Compiled is the state of the engine's cache of compiled code, which changes what it measures.
type Compiled string

// The states.
const (
	NotCompiled Compiled = "none" // nothing is compiled
	Cold        Compiled = "cold"
	Warm        Compiled = "warm"
)

// Second is what differs in a start that finds compiled code.
type Second struct {
	Activations uint64  `json:"activation_bytes"`
	Tokens      uint64  `json:"kv_cache_tokens"`
	Requests    float64 `json:"requests"`
}

// ofMemory are the errors of engines that have not found GPU memory enough.
var ofMemory = regexp.MustCompile(`(?is)no available memory for the cache blocks|leave no gpu memory for the kv cache|larger than the available KV cache memory|` +
	`less than desired GPU memory utilization|not enough (?:gpu )?memory|(?:cuda|hip|gpu|nccl|cublas).*out.?of.?memory|out.?of.?memory.*(?:cuda|gpu)`)

// ofHost are errors of memory of the host.
var ofHost = regexp.MustCompile(`(?i)^(?:OSError|BlockingIOError|MemoryError)\b|bad_alloc|errno 12\b|ENOMEM|cannot allocate memory|CPUAllocator`)

// elsewhere is the error of a process of an engine that has lost another one, whose error says why.
var elsewhere = regexp.MustCompile(`(?i)root cause|background process|engine core`)

// Refused returns why an engine did not become ready, and whether for lack of memory. It is ""
// if none of the processes says so.
func Refused(notes []*Note) (why string, memory bool) {
	for _, n := range notes {
		if n.Error == "" {
			continue
		}
		if why == "" || elsewhere.MatchString(why) {
			why = n.Error
		}
		if ofMemory.MatchString(n.Error) && !ofHost.MatchString(n.Error) {
			return n.Error, true
		}
	}
	return WithWay(why), false
}

// ofCache are the errors of engines whose cache has no room for a request.
var ofCache = regexp.MustCompile(`(?i)larger than the available KV cache memory|no available memory for the cache blocks`)

// OnAnyCard reports whether an engine is refused on a larger card for the same reason: the cache that it was
// given is too small.
func OnAnyCard(notes []*Note) bool {
	given := slices.ContainsFunc(notes, func(n *Note) bool { return n.Config != nil && n.Config.CacheBytes > 0 })
	return given && slices.ContainsFunc(notes, func(n *Note) bool { return ofCache.MatchString(n.Error) })
}

// ways are ways out of errors.
var ways = []struct{ of, way string }{
	{"nvcc", "FlashInfer compiles its kernels when they are first used: choose others, as with --attention-backend TRITON_ATTN, whose workspace differs"},
	{"larger than the number of available GPUs", "two GPUs of a card are --card 'L4*2'"},
	{"requires a tokenizer", "put the model's tokenizer and processor files beside its config.json, by which images are measured, or serve text alone with --language-model-only"},
	{"load image processor", "put the model's tokenizer and processor files beside its config.json, by which images are measured, or serve text alone with --language-model-only"},
}

// WithWay returns an error of an engine, with a way out of it if one is known.
func WithWay(text string) string {
	for _, w := range ways {
		if strings.Contains(text, w.of) {
			return text + "; " + w.way
		}
	}
	return text
}

// RefusedAnswer returns the answer of an engine that served on no card, up to one of a size.
func RefusedAnswer(notes []*Note, reason string, on uint64) *Answer {
	a := &Answer{
		Reason: reason, RefusedOn: on, LastReason: reason, Set: []string{}, Options: []string{}, Ranks: []Figures{}, Others: []Other{}, Cards: []Other{}, Doubts: []string{},
	}
	for _, n := range notes {
		a.Engine, a.Version = cmp.Or(a.Engine, n.Engine), cmp.Or(a.Version, n.Version)
	}
	return a
}

// New returns the answer of the processes of an engine. It is nil if they are none's, or if
// none was ready.
func New(notes []*Note) *Answer {
	head, workers, replicas := roles(notes)
	if head == nil || len(workers) == 0 {
		return nil
	}
	a := configured(head)
	w := workers[0]
	a.CardBytes, a.GPUs, a.Replicas, a.Compiled = w.card(), len(workers), replicas, w.compiled()
	a.addSettings(notes)
	a.addRanks(workers)
	a.Doubts = append(a.Doubts, a.checkCount(head)...)
	for _, n := range notes {
		for _, odd := range n.odd {
			a.Doubts = append(a.Doubts, odd+", which is taken as unknown")
		}
	}
	a.lengths(head.Cache.Longest)
	a.derive()
	return a
}

// roles returns the first note of a process that has a scheduler and is ready, those of processes on
// GPUs, by their ranks, and how many of the former there are. head is nil if there is none.
func roles(notes []*Note) (head *Note, workers []*Note, replicas int) {
	for _, n := range notes {
		if n.Ready && n.Config != nil && n.Cache != nil {
			head = cmp.Or(head, n)
			replicas++
		}
		if n.Worker != nil {
			workers = append(workers, n)
		}
	}
	slices.SortStableFunc(workers, func(a, b *Note) int { return cmp.Compare(a.Worker.Rank, b.Worker.Rank) })
	return head, workers, replicas
}

// configured returns an answer with what the process of the scheduler says.
func configured(head *Note) *Answer {
	c := head.Config
	a := &Answer{
		Engine: head.Engine, Version: head.Version, Serves: true, Model: c.Model, DType: strings.TrimPrefix(c.DType, "torch."),
		Quantized: c.Quantized, CacheType: c.CacheType, Utilization: c.Utilization,
		MaxLen: c.MaxLen, MaxSeqs: c.MaxSeqs, MaxBatched: c.MaxBatched, Tokens: head.Cache.Tokens, Requests: head.Cache.Requests,
		Set: []string{}, Options: []string{}, Others: []Other{}, Cards: []Other{}, Doubts: []string{},
		blocks: head.Cache.Blocks, positions: c.Positions, kind: kindOf(head.Engine),
	}
	a.Part, a.plain = a.kind.part, a.kind.isPlain(head.Cache.Groups)
	if a.Given = c.CacheBytes; a.Given > 0 {
		a.GivenBy = a.kind.given
	}
	if a.kind.ofFree {
		a.perToken, a.least = a.Requests/float64(max(1, a.Tokens)), max(1, head.Cache.Least)
		a.Requests = min(a.Requests, float64(a.MaxSeqs))
	}
	return a
}

// isPlain reports whether all layers keep every token, so that the cache is so many tokens for
// any length.
func (k *kind) isPlain(groups [][]any) bool {
	if len(groups) != 1 || len(groups[0]) == 0 {
		return false
	}
	class, _ := groups[0][0].(string)
	return slices.Contains(k.whole, class)
}

// addSettings adds what was set for the simulated GPU, each once: a child has found what its parent has set.
func (a *Answer) addSettings(notes []*Note) {
	part := strings.ReplaceAll(a.Part, "-", "_")
	for _, n := range notes {
		for _, word := range n.Set {
			if !slices.Contains(a.Set, word) {
				a.Set = append(a.Set, word)
			}
		}
		a.fixed = a.fixed || n.Given[part] != nil
		for name, value := range n.Options {
			a.Options = append(a.Options, fmt.Sprintf("%s=%v", name, value))
		}
	}
	slices.Sort(a.Options)
	a.Options = slices.Compact(a.Options)
}

// addRanks adds what lies on each GPU, and what of it is in doubt.
func (a *Answer) addRanks(workers []*Note) {
	for i, n := range workers {
		f := n.measure(a.blocks)
		switch {
		case a.kind.ofFree:
			f.ofFree(n, a.blocks)
		case a.Given > 0:
			f.ofGiven(n)
		}
		for _, doubt := range append(f.check(a.Engine, n), f.bound(a.Engine, n)...) {
			if len(workers) > 1 {
				doubt = fmt.Sprintf("GPU %d: %s", i, doubt)
			}
			a.Doubts = append(a.Doubts, doubt)
		}
		a.Ranks = append(a.Ranks, f)
	}
	a.Figures = slices.MinFunc(a.Ranks, func(f, g Figures) int { return cmp.Compare(f.room(0), g.room(0)) })
}

// compiled returns the state of the cache of compiled code.
func (n *Note) compiled() Compiled {
	saved := n.Counts["num_compiled_artifacts_saved"] + n.Counts["num_aot_artifacts_saved"] + n.Counts["num_inductor_compiles"]
	loaded := n.Counts["num_compiled_artifacts_loaded"] + n.Counts["num_aot_artifacts_loaded"]
	switch {
	case saved > 0:
		return Cold
	case loaded > 0:
		return Warm
	}
	return NotCompiled
}

// measure returns what lies on the GPU of a worker, whose cache has so many blocks.
func (w *Note) measure(blocks uint64) Figures {
	f := Figures{
		Weights: w.Worker.Weights, Graphs: uint64(max(0, w.graphs())), Cache: w.Worker.Cache,
		Captured:  uint64(max(0, w.Counts["num_cudagraph_captured"])),
		available: w.Worker.Available, requested: w.Worker.Requested,
	}
	if s := w.Stages[running]; len(s) == 2 {
		f.Activations = s[1].Peak - min(s[0].Allocated, s[1].Peak)
		f.once = min(w.Once[running], f.Activations)
	}
	// The engine takes its estimate of the graphs from the cache, if it makes one.
	rest := f.requested - f.available - float64(f.Weights) - float64(f.Activations) - float64(max(0, w.Worker.Graphs))
	f.Outside = uint64(max(0, rest))
	f.Left = w.card() - min(w.card(), f.all())
	if blocks > 0 {
		f.block = f.Cache / blocks
	}
	return f
}

// ofFree fills what lies on the GPU of a worker of an engine that goes by free memory.
func (f *Figures) ofFree(w *Note, blocks uint64) {
	held := w.Worker.Free - min(w.Worker.End, w.Worker.Free)
	f.Outside = held - min(held, f.Weights+f.Graphs+f.Cache)
	f.Left = w.card() - min(w.card(), held)
	f.available, f.taken = float64(blocks*f.block), float64(w.card())-float64(min(w.card(), w.Worker.Free))
}

// ofGiven fills what lies on the GPU of a worker whose cache was given. It is no rest then, so what lies outside
// is what the driver says after the largest batch, without what PyTorch holds unused.
func (f *Figures) ofGiven(w *Note) {
	f.Outside, f.taken = 0, float64(w.card())-float64(min(w.card(), cmp.Or(w.Worker.Free, w.card())))
	if s := w.Stages[profiling]; len(s) == 2 && w.Worker.Free > 0 {
		held := w.Worker.Free - min(s[1].Free+s[1].Reserved-min(s[1].Allocated, s[1].Reserved), w.Worker.Free)
		kept := s[1].Allocated - min(s[0].Allocated, s[1].Allocated) // a part of the activations
		f.Outside = held - min(held, f.Weights+kept)
	}
	f.Left = w.card() - min(w.card(), f.all())
}

// all is what the engine takes of the GPU.
func (f *Figures) all() uint64 { return f.Weights + f.Activations + f.Graphs + f.Outside + f.Cache }

// lengths fills the longest contexts, of which the engine's own are for one request and for eight.
func (a *Answer) lengths(own []uint64) {
	switch {
	case len(own) == 2:
		a.Longest, a.Longest8 = own[0], own[1]
	case a.plain:
		a.Longest, a.Longest8 = a.Tokens, a.Tokens/8
		if a.positions > 0 {
			a.Longest, a.Longest8 = min(a.Longest, a.positions), min(a.Longest8, a.positions)
		}
	}
}

// graphs returns what the graphs take. Engines measure it by the free memory of the card, so that what
// PyTorch's cache releases meanwhile makes it too small, or negative: then it is what the pools of
// graphs have grown by.
func (n *Note) graphs() int64 {
	measured, pools := n.Results[capturing], n.Apart[capturing]
	if measured < pools-rounding {
		return pools
	}
	return measured
}

// The differences that pass: engines round, and PyTorch's blocks are whole.
const (
	tolerance = .005
	rounding  = 32 << 20
)

// check compares the figures of an engine about a GPU with what its allocator and the recording say,
// and returns what they do not bear.
func (f *Figures) check(engine string, w *Note) (list []string) {
	doubt := func(format string, words ...any) { list = append(list, fmt.Sprintf(format, words...)) }
	compare := func(what string, own, ours uint64) {
		if gap := math.Abs(float64(own) - float64(ours)); gap > rounding && gap > tolerance*float64(own) {
			doubt("%s: %s says %s, and its allocator %s", what, engine, size.Format(own), size.Format(ours))
		}
	}
	// Loading leaves the parameters, in whole blocks, and what an engine keeps beside them.
	if taken, ok := w.grown(loading); ok && taken < f.Weights && w.Worker.End == 0 { // else libraries are loaded, too
		compare("weights", f.Weights, taken)
	}
	if n := w.Worker.Params; n > f.Weights {
		compare("weights", f.Weights, n)
	}
	if missing := w.uncompared(); len(missing) > 0 {
		doubt("what the allocator of %s had before and after %s is not known, so it is compared with nothing", engine, strings.Join(missing, ", "))
	}
	// Some buffers are made with the cache.
	if taken, ok := w.grown(caching); ok && (taken < f.Cache || taken > f.Cache+w.Worker.Table+4*rounding) {
		compare("KV cache", f.Cache, taken)
	}
	if s := w.Stages[capturing]; len(s) == 2 {
		list = append(list, f.checkGraphs(engine, w, s)...)
	}
	if s := w.Stages[warming]; len(s) == 2 && w.Recorded > 0 {
		live := cmp.Or(s[1].Requested, s[1].Allocated) // the recording has requests
		if gap := math.Abs(float64(live) - float64(w.Recorded)); gap > rounding {
			doubt("the recording has %s live when %s is ready, and its allocator %s", size.Format(w.Recorded), engine, size.Format(live))
		}
	}
	if s := w.Stages[profiling]; len(s) == 2 && w.Worker.Free > 0 {
		held := w.Worker.Free - min(s[1].Free, w.Worker.Free)
		kept := s[1].Allocated - min(s[0].Allocated, s[1].Allocated) // a part of the activations
		beside := held - min(held, f.Weights+kept)
		// Some releases count as free what PyTorch holds unused.
		least := min(beside, held-min(held, s[1].Reserved))
		if f.Outside+4*rounding < least || f.Outside > beside+4*rounding {
			doubt("outside: %s by the figures of %s, %s by those of the driver", size.Format(f.Outside), engine, size.Format(beside))
		}
	}
	return list
}

// uncompared returns the steps that are not known, of those that figures are compared with.
func (n *Note) uncompared() (steps []string) {
	if _, ok := n.grown(loading); !ok && n.Worker.End == 0 {
		steps = append(steps, loading)
	}
	if _, ok := n.grown(caching); !ok {
		steps = append(steps, caching)
	}
	return steps
}

// checkGraphs compares what the graphs take with what PyTorch's allocator grew by in their step. If it
// does not say for what, that depends on when the engine has emptied the allocator's cache.
func (f *Figures) checkGraphs(engine string, w *Note, s []state) []string {
	least, most := s[1].Reserved-min(s[0].Reserved, s[1].Reserved), s[1].Reserved-min(s[0].Allocated, s[1].Reserved)
	if pools, ok := w.Apart[capturing]; ok && pools >= 0 {
		least, most = uint64(pools), max(most, uint64(pools))
	}
	if f.Graphs+rounding < least || f.Graphs > most+rounding {
		return []string{fmt.Sprintf("graphs: %s says %s, and its allocator %s", engine, size.Format(f.Graphs), size.Format(most))}
	}
	return nil
}

// card returns the size of the GPU of a worker.
func (n *Note) card() uint64 { return cmp.Or(n.On, n.Worker.Total) }

// bound returns which figures the GPU has no room for, from which nothing is derived then.
func (f *Figures) bound(engine string, w *Note) (list []string) {
	if w.Worker.Total != w.card() {
		list = append(list, fmt.Sprintf("the GPU has %d bytes, and %s says %d", w.card(), engine, w.Worker.Total))
	}
	for _, x := range []struct {
		what  string
		bytes float64
	}{
		{"weights", float64(f.Weights)}, {"KV cache", float64(f.Cache)}, {"what is available for the cache", f.available}, {"its part of the GPU", f.requested},
	} {
		if x.bytes < 0 || x.bytes > float64(w.card()) {
			f.block = 0
			list = append(list, fmt.Sprintf("%s: %s says %.4g bytes, of a GPU of %s", x.what, engine, x.bytes, size.Format(w.card())))
		}
	}
	return list
}

// leastPart is the smallest part of a card that an engine is taken to be given.
const leastPart = .001

// checkCount compares the engine's count of its cache with the blocks that it has, and sets what it
// cannot be.
func (a *Answer) checkCount(head *Note) (list []string) {
	doubt := func(format string, words ...any) { list = append(list, fmt.Sprintf(format, words...)) }
	if a.Utilization < leastPart || a.Utilization > 1 {
		doubt("%s: %s says %.4g, which is no part of a card", a.Part, a.Engine, a.Utilization)
		a.Utilization = 0
	}
	blocks := head.Cache.Blocks
	if holds := head.blockTokens(a.plain); blocks > 0 && holds > 0 {
		if own := float64(a.Tokens); own > float64(blocks+1)*holds || a.plain && a.MaxLen >= uint64(holds) && 2*own < float64(blocks)*holds {
			doubt("tokens: %s says %d, of %d blocks of at most %.0f", a.Engine, a.Tokens, blocks, holds)
		}
	}
	if most := float64(max(1, cmp.Or(blocks, a.Tokens))); a.Requests <= 0 || a.Requests > most {
		own := a.Requests
		if a.Requests = 0; a.MaxLen > 0 {
			a.Requests = min(most, float64(a.Tokens)/float64(a.MaxLen))
		}
		doubt("requests: %s says %.4g at once, so they are the tokens by the length", a.Engine, own)
	}
	return list
}

// blockTokens returns how many tokens a block of the cache holds at most; 0 if it is not known. Where layers
// keep a part of the context it is a request's.
func (n *Note) blockTokens(plain bool) float64 {
	shared := float64(max(1, n.Config.Decoding)) * float64(max(1, n.Config.Prefilling))
	if !plain {
		return float64(n.Config.MaxLen) * shared
	}
	if group := n.Cache.Groups[0]; len(group) > 1 {
		tokens, _ := strconv.ParseFloat(fmt.Sprint(group[1]), 64) // 0 if it is none
		return tokens * shared
	}
	return 0
}
