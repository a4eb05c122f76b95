package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// recorded returns the note of a real start, changed.
func recorded(t *testing.T, change func(*Note)) []*Note {
	t.Helper()
	path := filepath.Join("testdata", "llama-8b-l4.json")
	n, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	n.Recorded = n.Stages[warming][1].Allocated
	if change != nil {
		change(n)
	}
	return []*Note{{Engine: "vllm", Set: []string{"A=1", "B=2"}, Options: map[string]any{"load_format": "dummy"}}, n}
}

// TestAnswer: the figures of vLLM's own log of that start.
func TestAnswer(t *testing.T) {
	a := New(recorded(t, nil))
	if a == nil {
		t.Fatal("no answer")
	}
	gib := func(n uint64) string { return fmt.Sprintf("%.2f", float64(n)/(1<<30)) }
	got := fmt.Sprint(a.Tokens, " ", fmt.Sprintf("%.2f", a.Requests), " weights ", gib(a.Weights), " activations ", gib(a.Activations),
		" graphs ", gib(a.Graphs), " outside ", gib(a.Outside), " cache ", gib(a.Cache), " left ", gib(a.Left), " ", a.Compiled, " ", a.Longest)
	const want = "37856 4.62 weights 15.00 activations 0.26 graphs 0.10 outside 0.13 cache 4.62 left 1.83 warm 37856"
	if got != want || len(a.Doubts) > 0 || !a.Serves || !slices.Equal(a.Options, []string{"load_format=dummy"}) {
		t.Errorf("got  %s\nwant %s\n%q %q", got, want, a.Doubts, a.Options)
	}
	if want := []string{"A=1", "B=2", "VLLM_USE_FLASHINFER_SAMPLER=0", "VLLM_NO_USAGE_STATS=1"}; !slices.Equal(a.Set, want) {
		t.Errorf("%q, want %q: what each process has set, once", a.Set, want)
	}
	// In all they are the card.
	if sum := a.Weights + a.Activations + a.Graphs + a.Outside + a.Cache + a.Left; sum != a.CardBytes {
		t.Errorf("%d of %d", sum, a.CardBytes)
	}
}

// TestDoubts: a figure that the allocator or the recording does not bear is named.
func TestDoubts(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		change     func(*Note)
	}{
		{"weights", "weights: vllm says 16 GiB, and its allocator 15.14 GiB", func(n *Note) { n.Worker.Weights = 16 << 30 }},
		{"parameters", "weights: vllm says 15.00 GiB, and its allocator 16 GiB", func(n *Note) { n.Worker.Params = 16 << 30 }},
		{"less cache", "KV cache: vllm says 4 GiB", func(n *Note) { n.Worker.Cache = 4 << 30 }},
		{"cache", "KV cache: vllm says 5 GiB", func(n *Note) { n.Worker.Cache = 5 << 30 }},
		{"graphs", "graphs: vllm says 1 GiB, and its allocator 110", func(n *Note) { n.Results[capturing] = 1 << 30 }},
		{"requests", "the recording has 19.84 GiB live when vllm is ready, and its allocator 19.74 GiB", func(n *Note) {
			s := n.Stages[warming]
			s[1].Requested = s[1].Allocated - 100<<20
		}},
		{"recording", "the recording has 1 GiB live when vllm is ready", func(n *Note) { n.Recorded = 1 << 30 }},
		{"tokens", "tokens: vllm says 1000000000000000, of 2366 blocks of at most 16", func(n *Note) { n.Cache.Tokens = 1e15 }},
		{"few tokens", "tokens: vllm says 16000, of 2366 blocks of at most 16", func(n *Note) { n.Cache.Tokens = 16000 }},
		{"tokens of parts of the context", "tokens: vllm says 1000000000000000, of 2366 blocks of at most 8192", func(n *Note) {
			n.Cache.Tokens, n.Cache.Groups = 1e15, append(n.Cache.Groups, n.Cache.Groups[0])
		}},
		{"requests", "requests: vllm says 1e+308 at once", func(n *Note) { n.Cache.Requests = 1e308 }},
		{"large utilization", "gpu-memory-utilization: vllm says 1e+300, which is no part of a card", func(n *Note) { n.Config.Utilization = 1e300 }},
		{"more than the card", "gpu-memory-utilization: vllm says 1.5", func(n *Note) { n.Config.Utilization = 1.5 }},
		{"small utilization", "gpu-memory-utilization: vllm says 1e-300", func(n *Note) { n.Config.Utilization = 1e-300 }},
		{"available", "what is available for the cache: vllm says 1e+308 bytes", func(n *Note) { n.Worker.Available = 1e308 }},
		{"no steps", "what the allocator of vllm had before and after load_model, initialize_from_config is not known", func(n *Note) { n.Stages = nil }},
		{"card", "the GPU has 23563264328 bytes, and vllm says 23563264327", func(n *Note) { n.On = n.Worker.Total + 1 }},
		{"outside", "outside: 1.13 GiB by the figures of vllm", func(n *Note) { n.Worker.Available -= 1 << 30 }},
		{"outside of the driver", "outside: 0 B by the figures of vllm", func(n *Note) {
			n.Worker.Available += 256 << 20
			n.Stages[profiling][1].Free -= 256 << 20
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := New(recorded(t, tc.change))
			if !slices.ContainsFunc(a.Doubts, func(d string) bool { return strings.HasPrefix(d, tc.want) }) {
				t.Errorf("%q, want %q", a.Doubts, tc.want)
			}
		})
	}
}

// TestOddFigures: a whole number may be written as a float. What is no number is unknown and named, unless no answer is without it.
func TestOddFigures(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "llama-8b-l4.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, value string
		doubt       string
		err         string
	}{
		{name: "max_num_seqs", value: "256.0"},
		{name: "max_num_seqs", value: "-1", doubt: "max_num_seqs: the engine says -1, which is taken as unknown"},
		{name: "max_num_seqs", value: `"256"`, doubt: "max_num_seqs: the engine says 256, which is taken as unknown"},
		{name: "kv_cache_max_concurrency", value: "Infinity", doubt: "kv_cache_max_concurrency: the engine says Infinity, which is taken as unknown"},
		{name: "kv_cache_size_tokens", value: "NaN", err: "kv_cache_size_tokens: the engine says NaN"},
		{name: "kv_cache_size_tokens", value: "1.5", err: "kv_cache_size_tokens: the engine says 1.5"},
	} {
		t.Run(tc.name+" "+tc.value, func(t *testing.T) {
			odd := regexp.MustCompile(`"`+tc.name+`": *[\d.]+`).ReplaceAll(text, []byte(`"`+tc.name+`": `+tc.value))
			n, err := parse(odd)
			if err != nil || tc.err != "" {
				if fmt.Sprint(err) != tc.err {
					t.Error(err)
				}
				return
			}
			a := New([]*Note{n})
			if got := slices.Contains(a.Doubts, tc.doubt); got != (tc.doubt != "") || a.Tokens != 37856 || math.Abs(a.Requests-4.62) > .01 {
				t.Errorf("%+v", a)
			}
		})
	}
	for _, text := range []string{"", string(text[:100]), "[]", `{"worker": 1}`} {
		if _, err := parse([]byte(text)); err == nil {
			t.Errorf("%.20q is a note", text)
		}
	}
}

// TestNoDoubtOfWholeBlocks: the allocator's blocks are larger than what was asked for, of weights and in all.
func TestNoDoubtOfWholeBlocks(t *testing.T) {
	a := New(recorded(t, func(n *Note) {
		n.Worker.Params -= 1 << 30
		n.Worker.Cache -= 100 << 20 // buffers are made with it
		s := n.Stages[warming]
		s[1].Requested = s[1].Allocated - 1<<30
		n.Recorded = s[1].Requested
	}))
	if len(a.Doubts) > 0 {
		t.Errorf("%q", a.Doubts)
	}
}

// TestNoDoubtOfASharedCache: GPUs that share the cache of a request have as many times the tokens for each block.
func TestNoDoubtOfASharedCache(t *testing.T) {
	a := New(recorded(t, func(n *Note) {
		n.Config.Decoding, n.Config.Prefilling = 2, 3
		n.Cache.Tokens *= 6
	}))
	if len(a.Doubts) > 0 {
		t.Errorf("%q", a.Doubts)
	}
}

// TestNoDoubtOfASmallPart: figures that differ by less than .005 of them are the same, also if that is more than 32 MiB.
func TestNoDoubtOfASmallPart(t *testing.T) {
	if a := New(recorded(t, func(n *Note) { n.Worker.Params = n.Worker.Weights + 60<<20 })); len(a.Doubts) > 0 {
		t.Errorf("%q", a.Doubts)
	}
}

// TestNoDoubtOfWhatPyTorchHoldsUnused: releases differ in whether it counts as free after the profile.
func TestNoDoubtOfWhatPyTorchHoldsUnused(t *testing.T) {
	a := New(recorded(t, func(n *Note) {
		s := n.Stages[profiling]
		s[1].Free -= 1 << 30
		s[1].Reserved += 1 << 30
	}))
	if len(a.Doubts) > 0 {
		t.Errorf("%q", a.Doubts)
	}
}

// TestGraphsAreThoseOfTheirPools: the engine measures them by the free memory of the card, which is more when PyTorch's
// cache is released meanwhile, and its allocator's cache may be full before.
func TestGraphsAreThoseOfTheirPools(t *testing.T) {
	a := New(recorded(t, func(n *Note) {
		n.Results[capturing], n.Apart = -1<<30, map[string]int64{capturing: 100 << 20}
	}))
	if a.Graphs != 100<<20 || len(a.Doubts) > 0 {
		t.Errorf("%d, %q", a.Graphs, a.Doubts)
	}
	a = New(recorded(t, func(n *Note) { n.Results[capturing], n.Apart = 10<<20, map[string]int64{capturing: 100 << 20} }))
	if a.Graphs != 100<<20 {
		t.Errorf("%d of pools that have grown by 100 MiB", a.Graphs)
	}
	a = New(recorded(t, func(n *Note) { n.Stages[capturing][0].Allocated -= 1 << 30 }))
	if len(a.Doubts) > 0 {
		t.Errorf("%q", a.Doubts)
	}
}

// TestStagesOfAPipeline: the second GPU has half of the layers that the first one has, and less for the
// cache, but room for more blocks: the figures are the first one's, and so is what other cards give.
func TestStagesOfAPipeline(t *testing.T) {
	first, second := recorded(t, nil)[1], recorded(t, nil)[1]
	second.Ready, second.Worker.Rank = false, 1
	second.Worker.Cache /= 2
	second.Worker.Available -= 1 << 30
	second.Worker.Weights -= 4 << 30
	a := New([]*Note{second, first})
	weights := []uint64{a.Weights, a.Ranks[0].Weights, a.Ranks[1].Weights}
	if want := []uint64{first.Worker.Weights, first.Worker.Weights, second.Worker.Weights}; a.GPUs != 2 || a.Replicas != 1 || !slices.Equal(weights, want) {
		t.Fatalf("%+v", a)
	}
	alone := New([]*Note{first})
	for _, total := range []uint64{a.CardBytes, a.CardBytes + 8<<30} {
		got, want := a.with(total, a.Utilization), alone.with(total, a.Utilization)
		if want.GPUs++; got != want {
			t.Errorf("%d: %+v, want %+v", total, got, want)
		}
	}
	// On a small card the second has no room, since it has less for the cache.
	least := a.CardBytes - uint64(second.Worker.Available/a.Utilization)
	if both, one := a.with(least, a.Utilization), alone.with(least, a.Utilization); both.Tokens != 0 || one.Tokens == 0 {
		t.Errorf("%+v, %+v", both, one)
	}
	if !slices.ContainsFunc(a.Doubts, func(d string) bool { return strings.HasPrefix(d, "GPU 1: outside") }) {
		t.Errorf("%q", a.Doubts)
	}
}

// TestReplicas: each has the tokens of the first.
func TestReplicas(t *testing.T) {
	second := recorded(t, func(n *Note) { n.Cache.Tokens-- })[1]
	if a := New([]*Note{recorded(t, nil)[1], second}); a.Replicas != 2 || a.GPUs != 2 || a.Tokens != 37856 {
		t.Errorf("%+v", a)
	}
}

// TestSecondStart: what a compiler takes to time kernels a start with compiled code has for the cache.
func TestSecondStart(t *testing.T) {
	a := New(recorded(t, func(n *Note) { n.Once = map[string]uint64{running: 100 << 20} }))
	if s := a.Second; s == nil || s.Activations != a.Activations-100<<20 || s.Tokens-a.Tokens != 100<<20/(128<<10) {
		t.Errorf("%+v of %+v", s, a)
	}
	if a = New(recorded(t, func(n *Note) { n.Once = map[string]uint64{running: 10 << 30} })); a.Second.Activations != 0 {
		t.Errorf("%+v: more than there is", a.Second)
	}
	if a = New(recorded(t, nil)); a.Second != nil {
		t.Errorf("%+v", a.Second)
	}
}

// TestDerivedFollowsTheCard: what another part of the card gives is what it has more, in whole blocks.
func TestDerivedFollowsTheCard(t *testing.T) {
	a := New(recorded(t, nil))
	if o := a.with(a.CardBytes, a.Utilization); o.Tokens != a.Tokens || o.Requests != a.Requests {
		t.Errorf("the same card: %+v", o)
	}
	const perToken = 2 * 32 * 8 * 128 * 2 // keys and values of a layer's heads
	more := a.with(a.CardBytes+8<<30, a.Utilization)
	if got, want := more.Tokens-a.Tokens, uint64(float64(8<<30)*a.Utilization)/perToken; got+16 < want || got > want+16 {
		t.Errorf("%d tokens more, want %d", got, want)
	}
	if o := a.with(a.Need+1<<20, a.Utilization); !o.Serves || o.Requests > 1.02 {
		t.Errorf("on the smallest card: %+v", o)
	}
	if o := a.with(a.Need-32<<20, a.Utilization); o.Serves {
		t.Errorf("on a smaller one: %+v", o)
	}
	if o := a.with(8<<30, a.Utilization); o.Serves || o.Tokens != 0 {
		t.Errorf("smaller than the weights: %+v", o)
	}
}

// given changes the note into that of a start with --kv-cache-memory-bytes, of which vLLM notes neither what is available nor an
// estimate of its graphs.
func given(n *Note) {
	const cache = 2048 * 16 * 128 << 10
	n.Config.CacheBytes = cache
	n.Counts["num_cudagraph_captured"] = 331 // of which the driver takes 430 MiB
	n.Worker.Available, n.Worker.Graphs, n.Worker.Cache = cache, 0, cache
	n.Cache.Blocks, n.Cache.Tokens, n.Cache.Requests = 2048, 2048*16, 4
	n.Stages[caching][1].Allocated = n.Stages[caching][0].Allocated + cache
}

// TestGivenCache: what lies outside is the driver's, no utilization gives more, and the card that it needs has room for the sum, the
// process's context, and what vLLM wants free at its start.
func TestGivenCache(t *testing.T) {
	free := New(recorded(t, nil))
	a := New(recorded(t, given))
	const context = 23563264327 - 21931680071
	if off := int64(a.Outside) - int64(free.Outside); off > 8<<20 || off < -8<<20 {
		t.Errorf("outside %d, %d where the cache is the rest", a.Outside, free.Outside)
	}
	if want := context + a.Weights + a.Activations + a.Graphs + a.Outside + a.Cache; a.Need != want || !a.Serves || len(a.Doubts) > 0 {
		t.Errorf("%d, want %d: %+v", a.Need, want, a)
	}
	if sum := a.all() + a.Left; sum != a.CardBytes {
		t.Errorf("%d of %d", sum, a.CardBytes)
	}
	for _, tc := range []struct{ card, tokens uint64 }{{a.Need, a.Tokens}, {a.Need + 40<<30, a.Tokens}, {a.Need - 1, 0}} {
		if o := a.with(tc.card, .5); o.Tokens != tc.tokens || o.Serves != (tc.tokens > 0) {
			t.Errorf("%d: %+v", tc.card, o)
		}
	}
	a.Settings(512 << 20)
	// 22,472 MiB less 1,556 of the context, 15,861 of the rest, 430 for 331 graphs and 256: 4,369, in blocks of 2 MiB.
	if len(a.Others) != 1 || a.Others[0].Set != "--kv-cache-memory-bytes 4581228544" || a.Others[0].Tokens != 2184*16 {
		t.Errorf("%+v", a.Others)
	}
	a = New(recorded(t, func(n *Note) {
		given(n)
		n.Cache.Blocks, n.Worker.Cache = 2184, 2184*2<<20
	}))
	if a.Settings(512 << 20); len(a.Others) != 0 {
		t.Errorf("%+v: it has the most", a.Others)
	}
	if a = New(recorded(t, func(n *Note) { given(n); n.Config.Utilization = .95 })); a.Need != uint64(math.Ceil(context/(1-.95))) {
		t.Errorf("with .95 free at its start: %d", a.Need)
	}
	if a.Serves || !strings.HasPrefix(a.Reason, "vllm becomes ready, and its largest batch has no room: with 4 GiB of KV cache") {
		t.Errorf("%q", a.Reason)
	}
	a = New(recorded(t, func(n *Note) { given(n); n.Once = map[string]uint64{running: 100 << 20} }))
	if s := a.Second; s == nil || s.Tokens != a.Tokens || s.Activations != a.Activations-100<<20 {
		t.Errorf("%+v", s)
	}
}

// TestSettings: the highest utilization leaves the context, the graphs and a reserve.
func TestSettings(t *testing.T) {
	for _, tc := range []struct {
		context  uint64
		captured int // graphs
		want     string
	}{
		{512 << 20, 0, "--gpu-memory-utilization 0.96 45040"}, {1 << 30, 0, "--gpu-memory-utilization 0.93 39648"}, {2 << 30, 0, ""},
		{512 << 20, 331, "--gpu-memory-utilization 0.94 41456"}, // of which the driver takes 430 MiB
		{512 << 20, 1718, ""}, // 2,233 MiB: more than .92 leaves
	} {
		a := New(recorded(t, func(n *Note) { n.Counts["num_cudagraph_captured"] = tc.captured }))
		a.Settings(tc.context)
		got := ""
		for _, o := range a.Others {
			got += fmt.Sprint(o.Set, " ", o.Tokens)
		}
		if got != tc.want {
			t.Errorf("context %d, %d graphs: got %q, want %q", tc.context, tc.captured, got, tc.want)
		}
	}
}

// TestOtherCards: cards of the same compute capability, and none for which vLLM chooses another batch.
func TestOtherCards(t *testing.T) {
	a := New(recorded(t, nil))
	a.OtherCards(a.CardBytes, 8, 9)
	var names []string
	for _, o := range a.Cards {
		names = append(names, strings.Split(o.Card, ", ")...)
		if o.Serves != (o.Requests >= 1) || o.Bytes > 70<<30 {
			t.Errorf("%+v", o)
		}
	}
	for _, want := range []string{"L40S", "RTX 4090"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %q", want, names)
		}
	}
	for _, name := range names {
		if name == "A10G" || name == "H100 80GB" || name == "L4" || strings.HasSuffix(name, "LAPTOP") {
			t.Errorf("%s in %q", name, names)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, tc := range []struct {
		text   string
		memory bool
	}{
		{"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", true},
		{"ValueError: To serve at least one request with the models's max seq len (8192), (1.00 GiB KV cache is needed, which is larger than the available KV cache memory (0.5 GiB).", true},
		{"OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB.", true},
		{"ValueError: Free memory on device (20.4/21.9 GiB) on startup is less than desired GPU memory utilization (0.97, 21.3 GiB).", true},
		{"RuntimeError: CUDA error: out of memory", true},
		{"RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", true},
		{"DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error. Last error: Cuda failure 2 'out of memory'", true},
		{"OSError: Errno 12: out of memory (fork)", false},
		{"OSError: [Errno 12] Cannot allocate memory", false},
		{"MemoryError: Unable to allocate 2 GiB for an array of the GPU: out of memory", false},
		{"RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: not enough memory: you tried to allocate 64 bytes", false},
		{"RuntimeError: std::bad_alloc: CUDA out of memory", false},
		{"ValueError: Unknown quantization method", false},
		{"RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist", false},
	} {
		why, memory := Refused([]*Note{{}, {Error: tc.text}})
		if !strings.HasPrefix(why, tc.text) || memory != tc.memory {
			t.Errorf("%q, %t", why, memory)
		}
	}
	lost := &Note{Error: "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."}
	for _, notes := range [][]*Note{{lost, {Error: "ValueError: heads"}}, {{Error: "ValueError: heads"}, lost}} {
		if why, _ := Refused(notes); why != "ValueError: heads" {
			t.Error(why)
		}
	}
	if why, _ := Refused([]*Note{{Error: "RuntimeError: Could not find nvcc"}}); !strings.Contains(why, "--attention-backend TRITON_ATTN") {
		t.Error(why)
	}
	const images = "ValueError: Qwen2_5_VLMultiModalProcessor requires a tokenizer and cannot be initialized when `skip_tokenizer_init=True`."
	if why := WithWay(images); !strings.HasPrefix(why, images) || !strings.Contains(why, "put the model's tokenizer and processor files beside its config.json") {
		t.Error(why)
	}
	if New([]*Note{{Error: "x"}}) != nil || New(nil) != nil {
		t.Error("an answer of an engine that is not ready")
	}
}

// TestNamed: the words before an engine's program are those that launch it, and a word elsewhere that is its name is none.
func TestNamed(t *testing.T) {
	script := filepath.Join(t.TempDir(), "serve.py")
	if err := os.WriteFile(script, []byte("import os\nfrom vllm import LLM\nLLM('m')\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		command, want string
	}{
		{"vllm serve m", "vllm"},
		{"/opt/v/bin/vllm serve m", "vllm"},
		{"sglang serve --model-path m", "sglang"},
		{"env X=1 vllm serve m", "vllm"},
		{"/usr/bin/env -u A X=1 /opt/v/bin/vllm serve m", "vllm"},
		{"nice vllm serve m", "vllm"},
		{"nice -n 5 timeout 60 sglang serve m", "sglang"},
		{"timeout -k 5 60 vllm serve m", "vllm"},
		{"taskset -c 0-3 vllm serve m", "vllm"},
		{"numactl -m 0 vllm serve m", "vllm"},
		{"uv run vllm serve m", "vllm"},
		{"uv run --with vllm vllm serve m", "vllm"},
		{"uv run --with vllm python train.py", ""},
		{"uv run " + script, "vllm"},
		{"uv run --with vllm train.py", ""},
		{"python -m vllm.entrypoints.openai.api_server --model m", "vllm"},
		{"python -m sglang.launch_server --model-path m", "sglang"},
		{"env X=1 nice python3 -u -m vllm.entrypoints.openai.api_server --model m", "vllm"},
		{"python " + script, "vllm"},
		{"timeout 60 python " + script, "vllm"},
		{"python -m torch.distributed.run " + script, "vllm"},
		{"python train.py " + script, ""},
		{"python train.py vllm", ""},
		{"python train.py vllm serve", ""},
		{"nice ./train vllm", ""},
		{"./train vllm serve", ""},
		{"python -m vllmx", ""},
		{"", ""},
	} {
		if got := Named(strings.Fields(tc.command)); got != tc.want {
			t.Errorf("%s: %q", tc.command, got)
		}
	}
}

// TestNamedByPython: a program is an engine's where it makes one, however it imports the package.
func TestNamedByPython(t *testing.T) {
	for _, tc := range []struct {
		text, want string
	}{
		{"import vllm; vllm.LLM('m')", "vllm"},
		{"import os, vllm\nvllm.LLM('m')", "vllm"},
		{"import os as o , sys,vllm\nvllm.LLM('m')", "vllm"},
		{"import sys; import vllm as v\nv.LLM('m')", "vllm"},
		{"from vllm import SamplingParams, LLM\nllm = LLM(\n    'm')", "vllm"},
		{"if True:\n\tfrom vllm.v1.engine.async_llm import AsyncLLM\n\tAsyncLLM.from_engine_args(a)", "vllm"},
		{"import sglang as sgl\nsgl.Engine(model_path='m')", "sglang"},
		{"from vllm import SamplingParams\nfrom trl import GRPOTrainer\nGRPOTrainer(p)", ""},
		{"from vllm import SamplingParams\n# as LLM(m) would\ntrain()", ""},
		{"from vllm import SamplingParams\nMyLLM(p)", ""},
		{"import vllmx\nLLM('m')", ""},
		{"import my.vllm\nLLM('m')", ""},
		{"print('import vllm')\nLLM('m')", ""},
		{"import vllm\nEngine()", ""},
	} {
		if got := Named([]string{"python", "-c", tc.text}); got != tc.want {
			t.Errorf("%q: %q", tc.text, got)
		}
	}
}

func TestServe(t *testing.T) {
	folder := t.TempDir()
	if _, err := Serve("vllm", folder, nil); err == nil || !strings.Contains(err.Error(), "want a folder with the config.json of a model") {
		t.Error(err)
	}
	for _, text := range []string{`{"architectures": [`, "[]", "{}"} {
		if err := os.WriteFile(filepath.Join(folder, "config.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Serve("vllm", folder, nil); text != "{}" && (err == nil || !strings.Contains(err.Error(), "config.json: want a model's configuration, a JSON object")) {
			t.Errorf("%s: %v", text, err)
		}
	}
	endless := t.TempDir()
	if err := os.Symlink("/dev/zero", filepath.Join(endless, "config.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := Serve("vllm", endless, nil); err == nil || !strings.Contains(err.Error(), "config.json is no regular file") {
		t.Error(err)
	}
	program := filepath.Join(t.TempDir(), "vllm")
	if _, err := Serve(program, folder, nil); err == nil || !strings.Contains(err.Error(), "vllm is not on PATH") {
		t.Error(err)
	}
	if err := os.WriteFile(program, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	got, err := Serve(program, folder, []string{"--max-model-len", "8192"})
	if want := []string{program, "serve", folder, "--max-model-len", "8192"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Serve("other", folder, nil); err == nil || !strings.Contains(err.Error(), `engine "other" is not known`) {
		t.Error(err)
	}
}

// FuzzNote: whatever a process leaves, the answer does not panic.
func FuzzNote(f *testing.F) {
	text, err := os.ReadFile("testdata/llama-8b-l4.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"ready":true,"config":{"gpu_memory_utilization":1e-300},"cache":{"num_blocks":1,"kv_cache_max_concurrency":1e308},` +
		`"worker":{"requested_memory":1e308,"available_kv_cache_memory_bytes":1e308,"kv_cache_bytes":1}}`))
	f.Add([]byte(`{"ready":true,"config":{},"cache":{"groups":[[]]},"worker":{}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := parse(text)
		if err != nil {
			return
		}
		if a := New([]*Note{n}); a != nil {
			a.Settings(1 << 29)
			a.OtherCards(a.CardBytes, 8, 9)
			if _, err := json.Marshal(a); err != nil {
				t.Error(err)
			}
		}
	})
}
