package fit_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/record/fit"
)

// engine is a real engine: its name, the variable that names the Python of an environment with it, and the flags of each run.
type engine struct {
	name, variable string
	flags          []string
}

var (
	vllm   = engine{"vllm", "GPUMEM_TEST_VLLM", []string{"--max-model-len", "8192"}}
	sglang = engine{"sglang", "GPUMEM_TEST_SGLANG", []string{"--context-length", "8192"}}
)

// start starts the engine with the config of a model of testdata/models, for a card or several of it, and returns the answer and
// what the engine prints.
type start func(t *testing.T, model, card string, flags ...string) (*fit.Report, string)

// starter returns what starts the engine.
func (e engine) starter(t *testing.T) start {
	t.Helper()
	python := os.Getenv(e.variable)
	if python == "" {
		t.Skipf("SKIPPED: %s names no Python with %s", e.variable, e.name)
	}
	env := environ(t)
	models, err := filepath.Abs("testdata/models")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir()) // here is a torch.py, which Python would import
	return func(t *testing.T, model, card string, flags ...string) (*fit.Report, string) {
		t.Helper()
		command, err := fit.Serve(filepath.Join(filepath.Dir(python), e.name), filepath.Join(models, model), slices.Concat(e.flags, flags))
		if err != nil {
			t.Fatal(err)
		}
		spec, gpus, err := open.Simulated(card)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		// Kernels that Triton compiles at a start take memory while the engine measures (of Granite 45 MiB). So
		// that starts can be compared, none finds those of another.
		env := append(slices.Clone(env), "TRITON_CACHE_DIR="+t.TempDir())
		r, err := fit.Run(t.Context(), fit.Config{Command: command, Env: env, Sim: spec.Sim, GPUs: gpus, Context: fit.EngineContext, Stdout: &out, Stderr: &out})
		if err != nil {
			t.Fatalf("%v\n%s", err, out.Bytes())
		}
		return r, out.String()
	}
}

// TestVLLM: the answer has the tokens that vLLM itself prints, nothing in it is in doubt, and what it derives for other settings
// and cards is what vLLM says when it is run so.
func TestVLLM(t *testing.T) {
	start := vllm.starter(t)
	run := func(card string, flags ...string) (*fit.Report, string) {
		t.Helper()
		return start(t, "llama-1b", card, append(flags, "--enforce-eager")...)
	}
	same := func(what string, said, ran uint64) {
		t.Helper()
		if math.Abs(float64(said)-float64(ran)) > 16 { // a block
			t.Errorf("%s: %d derived, %d by a run", what, said, ran)
		}
	}

	r, out := run("L4")
	a := r.Engine
	if !r.Fits || len(a.Doubts) > 0 || a.Requests < 1 || a.Weights == 0 || a.Activations == 0 {
		t.Fatalf("%+v", a)
	}
	if n := tokens(out); a.Tokens != n {
		t.Errorf("%d tokens, vLLM says %d", a.Tokens, n)
	}
	for _, o := range a.Others {
		other, _ := run("L4", strings.Fields(o.Set)...)
		same(o.Set, o.Tokens, other.Engine.Tokens)
	}
	for _, o := range a.Cards {
		if strings.Contains(o.Card, "L40S") {
			other, _ := run("L40S")
			same(o.Card, o.Tokens, other.Engine.Tokens)
		}
	}

	r, _ = run("L4", "--gpu-memory-utilization", "0.12")
	need := r.Engine.Need
	if r.Fits || r.Engine.Reason == "" || need < r.DeviceBytes {
		t.Errorf("%+v", r.Engine)
	}
	for _, tc := range []struct {
		card uint64
		fits bool
	}{{need + 64<<20, true}, {need / 50 * 49, false}} {
		if r, _ = run(strconv.FormatUint(tc.card>>20, 10)+"MiB,cc=8.9", "--gpu-memory-utilization", "0.12"); r.Fits != tc.fits {
			t.Errorf("on %d: %+v", tc.card, r.Engine)
		}
	}
}

// TestVLLMFamilies: of each kind of model the answer has the figures of vLLM's own log, on each GPU, nothing in it is in doubt,
// and the tokens that it derives for the highest utilization are those of a run.
func TestVLLMFamilies(t *testing.T) {
	start := vllm.starter(t)
	for _, tc := range []struct {
		model, card string
		derived     bool // is compared with a run
		flags       []string
	}{
		{"qwen2.5-7b", "L4", false, nil}, // compiled, with graphs
		{"mistral-7b-v0.1", "L4", true, []string{"--enforce-eager"}},
		{"gemma3-1b", "L4", true, []string{"--enforce-eager"}},
		{"mixtral-8l", "L40S", false, []string{"--enforce-eager"}},
		{"deepseek-v2-lite", "L4*2", true, []string{"--enforce-eager", "-tp", "2"}},
		{"llama-1b", "L4*2", true, []string{"--enforce-eager", "-pp", "2"}},
		{"qwen2.5-7b-awq", "L4", false, []string{"--enforce-eager"}},
		{"qwen2.5-7b-gptq", "L4", false, []string{"--enforce-eager"}},
		{"llama-8b-fp8", "L4", false, []string{"--enforce-eager"}},
		{"gpt-oss-20b", "L4", false, []string{"--enforce-eager"}},
		{"granite-4-h-tiny", "L4", true, []string{"--enforce-eager"}},
	} {
		t.Run(strings.Join(append([]string{tc.model}, tc.flags...), " "), func(t *testing.T) {
			r, out := start(t, tc.model, tc.card, tc.flags...)
			a := r.Engine
			if !r.Fits || len(a.Doubts) > 0 {
				t.Errorf("%+v", a)
			}
			if n := tokens(out); a.Tokens != n {
				t.Errorf("%d tokens, vLLM says %d", a.Tokens, n)
			}
			if got, want := fmt.Sprintf("%.2f", a.Requests), logged(out, `Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x`)[0]; got != want {
				t.Errorf("%s requests, vLLM says %s", got, want)
			}
			sameFigures(t, a, out)
			if tc.derived {
				sameDerived(t, start, a.Others, tc.model, tc.card, tc.flags)
			}
		})
	}
}

// TestSGLangFamilies: the same for SGLang, whose log has free memory, and whose graphs are of a prefill and of a decode.
func TestSGLangFamilies(t *testing.T) {
	start := sglang.starter(t)
	for _, tc := range []struct {
		model, card string
		other       string // a card that is compared with a run, as are other settings; "" if nothing is
		flags       []string
	}{
		{"llama-1b", "L4", "RTX 4090", nil},
		{"qwen2.5-7b", "L4", "", nil},
		{"mistral-7b-v0.1", "L4", "", nil},
		{"gemma2-2b", "L4", "", nil},
		{"mixtral-8l", "L40S", "", nil},
		{"deepseek-v2-lite", "L40S", "RTX 6000 Ada", nil},
		{"qwen2.5-7b-awq", "L4", "", nil},
		{"llama-8b-fp8", "L4", "", nil},
		{"llama-1b", "L4*2", "", []string{"--tp-size", "2"}},
	} {
		t.Run(strings.Join(append([]string{tc.model}, tc.flags...), " "), func(t *testing.T) {
			r, out := start(t, tc.model, tc.card, tc.flags...)
			a := r.Engine
			if !r.Fits || len(a.Doubts) > 0 {
				t.Errorf("%+v", a)
			}
			sameFree(t, a, out)
			if tc.other == "" {
				return
			}
			sameDerived(t, start, a.Others, tc.model, tc.card, tc.flags)
			i := slices.IndexFunc(a.Cards, func(o fit.EngineOther) bool {
				return strings.Contains(strings.ToLower(o.Card), strings.ToLower(tc.other))
			})
			if i < 0 {
				t.Fatalf("no %s in %+v", tc.other, a.Cards)
			}
			sameDerived(t, start, a.Cards[i:i+1], tc.model, tc.other, tc.flags)
		})
	}
}

// sameDerived compares what was derived for other settings, or for this card, with runs.
func sameDerived(t *testing.T, start start, derived []fit.EngineOther, model, card string, flags []string) {
	t.Helper()
	for _, o := range derived {
		other, _ := start(t, model, card, slices.Concat(flags, strings.Fields(o.Set))...)
		t.Logf("%s on %s: %d tokens derived, %d by a run", o.Set, card, o.Tokens, other.Engine.Tokens)
		if off := math.Abs(float64(other.Engine.Tokens)/float64(o.Tokens) - 1); off > 1e-3 { // a block
			t.Errorf("%s on %s: %d tokens derived, %d by a run", o.Set, card, o.Tokens, other.Engine.Tokens)
		}
	}
}

// sameFree compares the figures of SGLang with those of its log, which has the free memory of each GPU between its steps.
func sameFree(t *testing.T, a *fit.Engine, log string) {
	t.Helper()
	const gib = 1 << 30
	sum := func(line string) (sum float64) {
		for _, word := range logged(log, line) {
			n, _ := strconv.ParseFloat(word, 64)
			sum += n
		}
		return sum
	}
	gpus := float64(a.GPUs)
	outside := float64(a.CardBytes)/gib - sum(`Load weight begin.*avail mem=([\d.]+) GB`)/gpus // of what SGLang counts
	for _, tc := range []struct {
		what      string
		ours, log float64
		off       float64
	}{
		{"tokens", float64(a.Tokens), sum(`max_total_num_tokens=(\d+)`), 0},
		{"length", float64(a.MaxLen), sum(`context_len=(\d+)`), 0},
		{"requests", a.Requests, min(float64(a.Tokens)/float64(a.MaxLen), sum(`max_running_requests=(\d+)`)), 1e-9},
		{"weights", float64(a.Weights) / gib, sum(`Load weight end.*mem usage=([\d.]+) GB`) / gpus, .006},
		{"graphs", float64(a.Graphs) / gib, sum(`CUDA graph end.*mem usage=([\d.]+) GB`) / gpus, .012},
		{"K and V", float64(a.Cache) / gib, sum(`\b(?:K|V|KV) size: ([\d.]+) GB`) / gpus, .012},
		{"left", float64(a.Left)/gib - outside, sum(`available_gpu_mem=([\d.]+) GB`), .012},
	} {
		t.Logf("%s %.4f, SGLang says %.4f", tc.what, tc.ours, tc.log)
		if math.Abs(tc.ours-tc.log) > tc.off {
			t.Errorf("%s %f, SGLang says %f", tc.what, tc.ours, tc.log)
		}
	}
	for _, f := range a.Ranks {
		if sum := f.Weights + f.Activations + f.Graphs + f.Outside + f.Cache + f.Left; sum != a.CardBytes {
			t.Errorf("%+v: %d in all of %d", f, sum, a.CardBytes)
		}
	}
}

// sameFigures compares the figures of each GPU with those of the log. It has weights of each, and of one what is there for the cache.
func sameFigures(t *testing.T, a *fit.Engine, log string) {
	t.Helper()
	const gib = 1 << 30
	var weights []string
	for _, f := range a.Ranks {
		weights = append(weights, fmt.Sprintf("%.2f", float64(f.Weights)/gib))
		if sum := f.Weights + f.Activations + f.Graphs + f.Outside + f.Cache + f.Left; sum != a.CardBytes {
			t.Errorf("%+v: %d in all of %d", f, sum, a.CardBytes)
		}
	}
	var own []string
	for _, word := range logged(log, `Model loading took ([\d.]+) GiB`) {
		n, _ := strconv.ParseFloat(word, 64)
		own = append(own, fmt.Sprintf("%.2f", n))
	}
	slices.Sort(weights)
	slices.Sort(own)
	if !slices.Equal(weights, own) {
		t.Errorf("weights %s, vLLM says %s", weights, own)
	}
	available, _ := strconv.ParseFloat(logged(log, `Available KV cache memory: ([\d.]+) GiB`)[0], 64)
	if short := available - float64(a.Cache)/gib; short < -.01 || short > .02*available { // whole blocks
		t.Errorf("KV cache of %d bytes, vLLM has %.2f GiB for it", a.Cache, available)
	}
	for _, word := range logged(log, `Graph capturing finished in .* took ([\d.]+) GiB`) {
		if n, _ := strconv.ParseFloat(word, 64); math.Abs(n-float64(a.Graphs)/gib) > .01 {
			t.Errorf("graphs of %d bytes, vLLM says %s GiB", a.Graphs, word)
		}
	}
}

// logged returns the figures of the lines of a log, with one of no line if there is none.
func logged(log, line string) []string {
	var found []string
	for _, m := range regexp.MustCompile(line).FindAllStringSubmatch(log, -1) {
		found = append(found, m[1])
	}
	if found == nil {
		return []string{"-"}
	}
	return found
}

// standIn is a program for a stand-in of vLLM that allocates nothing, with options.
func standIn(t *testing.T, options ...string) fit.Config {
	t.Helper()
	return standInOf(t, "serve.py", options...)
}

// standInOf is the same for the program of another engine.
func standInOf(t *testing.T, program string, options ...string) fit.Config {
	t.Helper()
	python := pythonPath(t)
	return fit.Config{Command: append([]string{python, "testdata/engine/" + program}, options...), Env: environ(t), Sim: sim.Config{Total: 4000 << 20, CCMajor: 8, CCMinor: 9}, Stderr: os.Stderr}
}

// TestEngineEndsWhenReady: the figures are those of the stand-in's constants, and its program is
// ended before it serves.
func TestEngineEndsWhenReady(t *testing.T) {
	cfg := standIn(t)
	cfg.Env = append(cfg.Env, "PYTORCH_ALLOC_CONF=a", "TEST_ALLOC_CONF=a") // which is its own
	var out bytes.Buffer
	cfg.Stdout = &out
	r, err := fit.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	a := r.Engine
	if a == nil {
		t.Fatalf("no engine: %+v", r)
	}
	figures := [...]uint64{a.Tokens, a.Weights, a.Activations, a.Graphs, a.Cache, a.Left, a.Longest, a.Longest8}
	// Half of the layers keep 1,024 tokens: 2 * 2500 * 16 - 1024, and for eight at once with 312 blocks each.
	if want := [...]uint64{2500 * 16, 1000 << 20, 100 << 20, 64 << 20, 2500 << 20, 336 << 20, 78976, 8960}; figures != want || !r.Fits || len(a.Doubts) > 0 {
		t.Errorf("%+v", a)
	}
	if s := a.Second; s == nil || s.Activations != 30<<20 || s.Tokens != 2570*16 {
		t.Errorf("a second start: %+v", s)
	}
	if !slices.Equal(a.Options, []string{"load_format=dummy", "skip_tokenizer_init=true"}) || out.Len() > 0 {
		t.Errorf("%q, it printed %q", a.Options, out.String())
	}
}

// TestSGLang: the figures are those of the stand-in's constants, the fraction is what it chooses by the
// card, and what follows for another fraction is what a run gives.
func TestSGLang(t *testing.T) {
	run := func(card uint64, options ...string) *fit.Engine {
		t.Helper()
		cfg := standInOf(t, "serve_sglang.py", options...)
		cfg.Sim.Total = card << 20
		r, err := fit.Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if r.Engine == nil || r.Fits != r.Engine.Serves {
			t.Fatalf("%+v", r)
		}
		return r.Engine
	}
	a := run(4000)
	figures := [...]uint64{a.Tokens, a.Weights, a.Graphs, a.Outside, a.Cache, a.Left}
	if want := [...]uint64{2600 * 16, 1000 << 20, 64 << 20, 50 << 20, 2600 << 20, 286 << 20}; figures != want || len(a.Doubts) > 0 || a.Activations > 0 {
		t.Errorf("%d, %+v", figures, a)
	}
	if a.Utilization != .9 || a.Requests != 8 || !slices.Equal(a.Options, []string{"load_format=dummy", "skip_tokenizer_init=true"}) {
		t.Errorf("%+v", a)
	}
	if a = run(4000, "mem_fraction_static=0.8"); a.Tokens != 2200*16 {
		t.Errorf("%+v", a)
	}
	a = run(1200)
	if a.Serves || !strings.Contains(a.Reason, "leave no GPU memory for the KV cache") || a.CardBytes != 2400<<20 {
		t.Errorf("%+v", a)
	}
	// 4096 tokens take 256 MiB, a third stays free, as on the smaller card, and the rest of a block.
	if need := a.Need >> 20; need != 1884 {
		t.Errorf("it needs %d MiB", need)
	}
	// Other cards have the fraction that it would choose there, unless it was given one.
	chosen, given := a.Cards, run(1200, "mem_fraction_static=0.667").Cards
	if len(chosen) == 0 || len(given) != len(chosen) || chosen[0].Tokens <= given[0].Tokens {
		t.Errorf("chosen %+v, given %+v", chosen, given)
	}
}

// TestSGLangWindows: half of the tokens are of layers that keep a window, of which each request takes one and a page. The card that it
// needs is one on which it starts, and where the tokens do not follow it is unknown.
func TestSGLangWindows(t *testing.T) {
	for _, tc := range []struct {
		name     string
		options  []string
		card     uint64 // MiB
		want     string // tokens, requests, longest contexts
		need     uint64 // MiB
		smallest bool   // is said
	}{
		{"a window shorter than the requests", []string{"window=1008"}, 4000, "35200 8 [4096 4096]", 1570, true},
		// 8,192 tokens have room for one of 4,080 and a page in the other half, so it starts with 8,224; these take 514 MiB.
		{"a window as long as they are", []string{"window=4080"}, 4000, "35200 4.3 [4096 2184]", 1892, true},
		{"capped", []string{"max_total_tokens=100"}, 4000, "35200 8 [4096 4096]", 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := standInOf(t, "serve_sglang.py", append(tc.options, "mem_fraction_static=0.8")...)
			cfg.Sim.Total = tc.card << 20
			r, err := fit.Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			a := r.Engine
			got := fmt.Sprintf("%d %.2g [%d %d]", a.Tokens, a.Requests, a.Longest, a.Longest8)
			if got != tc.want || a.Need>>20 != tc.need || (r.SmallestDevice != nil) != tc.smallest || len(a.Doubts) > 0 {
				t.Errorf("got %s on %d, want %s on %d: %+v", got, a.Need>>20, tc.want, tc.need, a)
			}
			if tc.need == 0 {
				return
			}
			for _, other := range []struct {
				card uint64
				fits bool
			}{{a.Need + 2<<20, true}, {a.Need - 4<<20, false}} {
				cfg.Sim.Total = other.card
				if r, err = fit.Run(t.Context(), cfg); err != nil {
					t.Fatal(err)
				}
				if serves := r.Fits && r.Engine.Tokens >= 4096; serves != other.fits {
					t.Errorf("on %d: %+v", other.card, r.Engine)
				}
			}
		})
	}
}

// TestEngineRefused: it says why, and what it needs.
func TestEngineRefused(t *testing.T) {
	cfg := standIn(t)
	cfg.Sim.Total = 1200 << 20
	r, err := fit.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	// 4096 tokens take 256 MiB.
	if a := r.Engine; r.Fits || !strings.Contains(a.Reason, "No available memory") || a.CardBytes != 2400<<20 || a.Need>>20 != 1356*10/9 {
		t.Errorf("%+v", a)
	}
}

// TestEngineCacheGiven: the cache is what it was given, the utilization changes nothing, the card has room for the sum, and where it
// has none the engine becomes ready and does not serve.
func TestEngineCacheGiven(t *testing.T) {
	for _, tc := range []struct {
		name        string
		card, cache uint64 // MiB
		tokens      uint64
		serves      bool
		need        uint64 // MiB
		others      string
	}{
		{"room", 4000, 1000, 16000, true, 1000 + 100 + 64 + 1000, "--kv-cache-memory-bytes 2705326080 41280"},
		{"no room for activations", 2100, 1000, 16000, false, 2164, "--kv-cache-memory-bytes 713031680 10880"},
		{"no room", 1500, 1000, 16000, false, 2164, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := standIn(t, fmt.Sprintf("kv_cache_memory_bytes=%d", tc.cache<<20), "gpu_memory_utilization=0.3")
			cfg.Sim.Total = tc.card << 20
			r, err := fit.Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			a := r.Engine
			others := ""
			for _, o := range a.Others {
				others += fmt.Sprint(o.Set, " ", o.Tokens)
			}
			got := fmt.Sprint(a.Tokens, a.Serves, r.Fits, a.Reason == "", a.Need>>20, others)
			if want := fmt.Sprint(tc.tokens, tc.serves, tc.serves, tc.serves, tc.need, tc.others); got != want || len(a.Doubts) > 0 {
				t.Errorf("got %s, want %s: %+v", got, want, a)
			}
		})
	}
}

// TestEngineCacheGivenTooSmall: no other card has more of it, so none is tried.
func TestEngineCacheGivenTooSmall(t *testing.T) {
	cfg := standIn(t, fmt.Sprintf("kv_cache_memory_bytes=%d", 100<<20))
	cfg.Again = func(why string) { t.Error(why) }
	r, err := fit.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if a := r.Engine; r.Fits || a.RefusedOn != cfg.Sim.Total || !strings.Contains(a.Reason, "larger than the available KV cache memory") {
		t.Errorf("%+v", a)
	}
}

// TestEngineRefusedOnEveryCard: it is started three times, also for several cards, and has its first and its last reason.
func TestEngineRefusedOnEveryCard(t *testing.T) {
	cfg := standIn(t, "never=1")
	again := 0
	cfg.Again = func(string) { again++ }
	r, err := fit.RunCards(t.Context(), cfg, []fit.SimCard{{Name: "one", Sim: cfg.Sim}})
	if err != nil {
		t.Fatal(err)
	}
	const why = "RuntimeError: CUDA out of memory. Tried to allocate 2 TiB"
	type outcome struct {
		fits, serves bool
		first, last  string
		on, need     uint64
		again, cards int
	}
	a := r.Engine
	if got, want := (outcome{r.Fits, a.Serves, a.Reason, a.LastReason, a.RefusedOn, a.Need, again, len(r.Ran)}), (outcome{
		first: why, last: why, on: 1 << 40, again: 2, cards: 1,
	}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestEngineOddFigures: it serves on the card that there is, and what cannot be read is named.
func TestEngineOddFigures(t *testing.T) {
	cfg := standIn(t, "max_model_len=4097")
	r, err := fit.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	a := r.Engine
	if !r.Fits || a.CardBytes != cfg.Sim.Total || a.Tokens != 2500*16 || math.Abs(a.Requests-40000./4097) > .01 {
		t.Errorf("%+v", a)
	}
	for _, want := range []string{
		"kv_cache_max_concurrency: the engine says Infinity", "max_position_embeddings: the engine says 1.5", "the GPU has 4194304000 bytes, and vllm says 4194299904",
	} {
		if !slices.ContainsFunc(a.Doubts, func(d string) bool { return strings.HasPrefix(d, want) }) {
			t.Errorf("%q, want %q", a.Doubts, want)
		}
	}
}

// TestPackageOfEngineIsNoEngine: a program that only imports it, as one that trains may, runs as others do.
func TestPackageOfEngineIsNoEngine(t *testing.T) {
	cfg := standIn(t)
	const program = `
import os, sys
sys.path.insert(0, "testdata/engine")
os.environ["PYTORCH_ALLOC_CONF"] = "a"
import vllm, vllm.engine.arg_utils, vllm.v1.engine.core, torch
import gpumem_fit_engines as engines
sys.exit("%s, beyond %s, settings %s" % (engines.found(), os.environ.get("GPUMEM_SIM_BEYOND"), os.environ.get("PYTORCH_ALLOC_CONF")))
`
	cfg.Command = []string{cfg.Command[0], "-c", program}
	if _, err := fit.Run(t.Context(), cfg); err == nil || !strings.HasSuffix(err.Error(), ": None, beyond 1, settings None") {
		t.Error(err)
	}
}

// TestEngineNoteNotWhole: the process is named, but the program's own error goes first.
func TestEngineNoteNotWhole(t *testing.T) {
	cfg := standIn(t)
	for _, tc := range []struct{ then, want string }{
		{"", "of the engine has noted: it is not whole"},
		{"; raise ValueError('of its own')", "ValueError: of its own"},
	} {
		cfg.Command = []string{cfg.Command[0], "-c", "import os; open('%s.%d.engine' % (os.environ['GPUMEM_FIT'], os.getpid()), 'w').write('{')" + tc.then}
		if _, err := fit.Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Error(err)
		}
	}
}

// TestEngineOfReleasesThatAreNotRead: the first engine of vLLM, which older releases have, is refused by its name.
func TestEngineOfReleasesThatAreNotRead(t *testing.T) {
	_, err := fit.Run(t.Context(), standIn(t, "first=1"))
	if failed := new(fit.FailedError); !errors.As(err, &failed) || !strings.Contains(err.Error(), "vllm 0.0.1 starts its first engine (V0)") {
		t.Error(err)
	}
}

// TestVaryEngine: each value has its answer, also of an option that the command does not have.
func TestVaryEngine(t *testing.T) {
	for _, tc := range []struct {
		name, vary string
		options    []string
	}{
		{"in the command", "gpu_memory_utilization=0.5,0.8,0.2", []string{"gpu_memory_utilization=0.9"}},
		{"in the engine", "gpu-memory-utilization=0.5,0.8,0.2", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v, err := fit.ParseVary(tc.vary)
			if err != nil {
				t.Fatal(err)
			}
			r, err := fit.RunVary(t.Context(), standIn(t, tc.options...), v)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, x := range r.Varied.Tried {
				got = append(got, fmt.Sprint(x.Value, " ", x.Fits, " ", x.Engine.Tokens/16))
			}
			// At 0.2 it ran on 8000 MiB.
			if want := []string{"0.5 true 900", "0.8 true 2100", "0.2 false 500"}; !slices.Equal(got, want) || *r.Largest != "0.8" {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// TestVaryEngineUnknownOption: neither the command nor the engine has it.
func TestVaryEngineUnknownOption(t *testing.T) {
	_, err := fit.RunVary(t.Context(), standIn(t), fit.Vary{Name: "max-modle-len", Values: []string{"1024"}})
	if err == nil || !strings.HasSuffix(err.Error(), "ValueError: vllm has no option --max-modle-len") {
		t.Error(err)
	}
}

// TestEngineCards: each card has its answer, which is what another one derives.
func TestEngineCards(t *testing.T) {
	cards := []fit.SimCard{{Name: "small", Sim: sim.Config{Total: 1200 << 20, CCMajor: 8, CCMinor: 9}}, {Name: "large", Sim: sim.Config{Total: 22 << 30, CCMajor: 8, CCMinor: 9}}}
	r, err := fit.RunCards(t.Context(), standIn(t), cards)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Ran) != 2 || r.Ran[0].Engine.Serves || !r.Ran[1].Engine.Serves || r.Engine != r.Ran[1].Engine {
		t.Errorf("%+v", r.Ran)
	}
}

// TestEngineCardsFail: the reason of a card that has no answer stands in its row, and the others have theirs. The error of all is one line,
// in which each reason stands once.
func TestEngineCardsFail(t *testing.T) {
	sized := func(name string, mib uint64) fit.SimCard {
		return fit.SimCard{Name: name, Sim: sim.Config{Total: mib << 20, CCMajor: 8, CCMinor: 9}}
	}
	const why = "the program failed on the simulated GPU, and not for lack of memory (the engine did not become ready): ValueError: heads"
	r, err := fit.RunCards(t.Context(), standIn(t, "broken_below=3000"), []fit.SimCard{sized("small", 2000), sized("large", 4000)})
	if err != nil {
		t.Fatal(err)
	}
	if small, large := r.Ran[0], r.Ran[1]; small.Engine != nil || small.Error != why || large.Error != "" || r.Engine != large.Engine || !r.Fits {
		t.Errorf("%+v", r.Ran)
	}
	_, err = fit.RunCards(t.Context(), standIn(t, "broken_below=3000"), []fit.SimCard{sized("small", 2000), sized("another", 2500)})
	if failed := new(fit.FailedError); !errors.As(err, &failed) || err.Error() != "for small, another: "+why {
		t.Error(err)
	}
}

// TestEngineNotRecorded: the answer is there, and why nothing is kept.
func TestEngineNotRecorded(t *testing.T) {
	for _, tc := range []struct {
		options []string
		why     string
	}{
		{nil, "there is no recording to keep: no allocation of the program was recorded"},
		{[]string{"never=1"}, "no recording is kept: the program was refused memory, and a recording is of one that is served"},
	} {
		cfg := standIn(t, tc.options...)
		cfg.Record = filepath.Join(t.TempDir(), "run.trace")
		r, err := fit.Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if r.Engine == nil || r.NotKept == nil || r.NotKept.Error() != cfg.Record+": "+tc.why {
			t.Errorf("%q: %v", tc.options, r.NotKept)
		}
	}
}

// TestReportsHaveOneShape: what is a list in the report of a program is one in those of an engine, of one that is refused everywhere, and
// of a program that is too large, and each has all that the first one has.
func TestReportsHaveOneShape(t *testing.T) {
	python, env := python(t)
	run := func(cfg fit.Config) map[string]any {
		t.Helper()
		r, err := fit.Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var all map[string]any
		if err := json.Unmarshal(text, &all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	program := fit.Config{Command: []string{python, "testdata/driver.py", "none", "100", "end"}, Env: env, Sim: sim.Config{Total: 2 << 30}}
	endless := program
	endless.Command = []string{python, "testdata/driver.py", "none", "2000000", "end"}
	first := run(program)
	for name, other := range map[string]map[string]any{"engine": run(standIn(t)), "refused": run(standIn(t, "never=1")), "too large": run(endless)} {
		if (other["engine"] == nil) != (name == "too large") {
			t.Fatalf("%s: %v", name, other)
		}
		for key, value := range first {
			got, ok := other[key]
			_, isList := value.([]any)
			_, both := got.([]any)
			if _, isText := value.(string); !ok && !isText || isList && !both { // texts may be left out
				t.Errorf("%s: %s is %v, and %v in the report of a program", name, key, got, value)
			}
		}
	}
}

// TestEngineFails: an error that is not of memory is the program's, in one line.
func TestEngineFails(t *testing.T) {
	for _, tc := range []struct{ option, want string }{
		{"host=1", "OSError: [Errno 12] out of memory (fork)"}, // and no other card is tried
		{"max_model_len=200000", "max_model_len is larger than the model's"},
		{"gpu_memory_utilization=1.5", "(the engine did not become ready): ValidationError: gpu_memory_utilization: Input should be less than or equal to 1"},
	} {
		cfg := standIn(t, tc.option)
		cfg.Again = func(why string) { t.Error(why) }
		_, err := fit.Run(t.Context(), cfg)
		if failed := new(fit.FailedError); !errors.As(err, &failed) || !strings.HasSuffix(err.Error(), tc.want) {
			t.Error(err)
		}
	}
}

// tokens returns the tokens that vLLM prints.
func tokens(out string) uint64 {
	m := regexp.MustCompile(`KV cache size: ([\d,]+) tokens`).FindStringSubmatch(out)
	if m == nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.ReplaceAll(m[1], ",", ""), 10, 64)
	return n
}
