package cause

import (
	"strings"
	"testing"
	"unicode/utf8"

	"gpumem/doctor/internal/account"
)

// TestOwnAdvice: the sentence that says what to do, whole, and none that is known to be no help.
func TestOwnAdvice(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"vLLM", "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
			"Try increasing `gpu_memory_utilization` when initializing the engine"},
		{"a newer vLLM", "Try increasing `gpu_memory_utilization` when initializing the engine. See https://docs.vllm.ai/x/ for more details.", "Try increasing `gpu_memory_utilization` when initializing the engine"},
		{"TGI", "Not enough memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`",
			"You need to decrease `--max-batch-prefill-tokens`"},
		{"a dot in a word stays", "Not enough memory, use lower resolution (max approx. 832x832). Need: 5.1GB free, Have:3.9GB free",
			"use lower resolution (max approx. 832x832)"},
		{"a dot in a number stays", "Out of memory. Set the fraction to 0.5 of the card. Bye", "Set the fraction to 0.5 of the card"},
		{"MPS", "Tried to allocate 1 GB. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).", "Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure)"},
		{"PyTorch's hint at fragmentation", "out of memory. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.", ""},
		{"the same, as a sentence", "out of memory. Try setting max_split_size_mb to avoid fragmentation.", ""},
		{"TensorFlow's variable", "out of memory. Use TF_GPU_ALLOCATOR=cuda_malloc_async and see.", ""},
		{"what was tried is no advice", "CUDA out of memory. Tried to allocate 2.00 GiB", ""},
		{"what is used is no advice", "memory: used 2.00 GiB of 4.00 GiB. Used by others: 1 GiB", ""},
		{"too short to help", "out of memory. Try again.", ""},
	} {
		if got := ownAdvice(tt.text); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func FuzzOwnAdvice(f *testing.F) {
	f.Add("Out of memory. Please try to increase --mem-fraction-static. Current value: 0.8")
	f.Add("Try increasing " + strings.Repeat("\u00e9 ", 200))
	f.Add("Try-" + strings.Repeat("x", 200) + " a b c d")
	f.Fuzz(func(t *testing.T, text string) {
		said := ownAdvice(text)
		torn := utf8.ValidString(text) && !strings.Contains(text, strings.TrimSuffix(said, "..."))
		if len(said) > mostQuoted || !utf8.ValidString(said) || torn {
			t.Errorf("%q of %q", said, text)
		}
	})
}

// TestAdviceThatNumbersRefute: a larger share is not repeated where the GPU has no more, nor what
// a pool shall give back where it has little.
func TestAdviceThatNumbersRefute(t *testing.T) {
	const xpu = "XPU out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 11.93 GiB of which 5.62 MiB is free. Of the allocated memory 11.43 GiB is allocated by PyTorch, and IDLE is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory.\n"
	const vllm = "INFO model weights take WEIGHTSGiB\nINFO the current vLLM instance can use total_gpu_memory (15.77GiB) x gpu_memory_utilization (0.90) = 14.20GiB\nLoading weights took WEIGHTS GiB\nValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n"
	for _, tt := range []struct {
		name, log string
		repeated  bool
	}{
		{"little to give back", strings.ReplaceAll(xpu, "IDLE", "94.57 MiB"), false},
		{"the weights fill the GPU", strings.ReplaceAll(vllm, "WEIGHTS", "15.2"), false},
		{"nothing is known of the GPU", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n", true},
		{"a risk that the remedy names last", "MPS backend out of memory (MPS allocated: 8.70 GB, other allocations: 112.00 MB, max allowed: 9.07 GB). Tried to allocate 405.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).\n", false},
	} {
		repeated := false
		for _, x := range explainedLog(t, tt.log) {
			repeated = repeated || strings.Contains(strings.Join(x.Remedy.Steps, "\n"), "itself advises")
		}
		if repeated != tt.repeated {
			t.Errorf("%s: repeated %v, want %v", tt.name, repeated, tt.repeated)
		}
	}
}

// explainedLog explains a log alone.
func explainedLog(t *testing.T, log string) []Explanation {
	t.Helper()
	e := account.New(nil)
	if err := e.Read(strings.NewReader(log), nil); err != nil {
		t.Fatal(err)
	}
	return Explain(e)
}

// TestFlagsOfTheRelease: what is proposed exists in the release that the log shows.
func TestFlagsOfTheRelease(t *testing.T) {
	const cache = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n"
	const capture = "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a total capacity of 95.00 GiB of which 171.44 MiB is free.\n"
	for _, tt := range []struct{ name, log, says, not string }{
		{"vLLM 0.5", "INFO api_server.py:1] vLLM API server version 0.5.4\n" + cache, "--gpu-memory-utilization", "--kv-cache-memory-bytes"},
		{"vLLM 0.5 has no offloading", "INFO api_server.py:1] vLLM API server version 0.5.4\n" + cache, "--tensor-parallel-size",
			"--cpu-offload-gb"},
		{"vLLM 0.11", "INFO api_server.py:1] vLLM API server version 0.11.0\n" + cache, "--kv-cache-memory-bytes", "since"},
		{"an unknown vLLM", cache, "--kv-cache-memory-bytes, since 0.10.2", ""},
		{"SGLang 0.4", "sglang==0.4.6\n" + capture, "--cuda-graph-max-bs 16", "--cuda-graph-max-bs-decode"},
		{"SGLang 0.5.20", "sglang==0.5.20\n" + capture, "--cuda-graph-max-bs-decode", "--disable-cuda-graph"},
		{"Ollama 0.2", "ollama version is 0.2.8\nError: llama runner process has terminated: cudaMalloc failed: out of memory\n",
			"OLLAMA_NUM_PARALLEL", "OLLAMA_KV_CACHE_TYPE"},
		{"Ollama 0.9", "ollama version is 0.9.0\nError: llama runner process has terminated: cudaMalloc failed: out of memory\n",
			"OLLAMA_KV_CACHE_TYPE", "since"},
		{"PyTorch 1", "torch==1.13.1\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 16.00 GiB total capacity; 15.00 GiB already allocated; 100.00 MiB free; 15.10 GiB reserved in total by PyTorch)\n", "torch.utils.checkpoint", "_record_memory_history"},
	} {
		answer := ""
		for _, x := range explainedLog(t, tt.log) {
			answer += strings.Join(x.Remedy.Steps, "\n") + "\n"
		}
		if !strings.Contains(answer, tt.says) || tt.not != "" && strings.Contains(answer, tt.not) {
			t.Errorf("%s: want %q and not %q in\n%s", tt.name, tt.says, tt.not, answer)
		}
	}
}
