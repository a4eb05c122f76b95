// Generated messages of engines that serve models: vLLM, SGLang, llama.cpp, Ollama.
package doctortest

import (
	"fmt"
	"strings"
)

// gb prints n in GiB with two decimals and the unit.
func gb(n uint64) string { return fmt.Sprintf("%.2f GiB", float64(n)/gib) }

// mb prints n in MiB as llama.cpp does.
func mb(n uint64) string { return fmt.Sprintf("%.2f MiB", float64(n)/mib) }

// cacheTooSmall is vLLM's error for a context that does not fit into its cache:
// weights and activations take their part of the share, the cache the rest.
func cacheTooSmall(d draw, fits bool) Sample {
	total, share, weights, need, have := uint64(0), 0.0, uint64(0), uint64(0), uint64(0)
	for {
		total = d.bigCard().total
		share = []float64{0.5, 0.6, 0.7, 0.9, 0.92}[d.IntN(5)]
		weights = d.percent(total, 20, 80)
		may := uint64(share * float64(total))
		if may < weights+200*mib {
			continue
		}
		have = may - weights
		need = have + d.percent(total, 2, 60)
		// With 0.95 of the card the cache would be larger by what 0.95 is above the share.
		most := have + uint64((0.95-share)*float64(total))
		if fits && need < most*9/10 || !fits && need > most+most/10+total/20 {
			break
		}
	}
	tokens := 1024 * (8 + d.IntN(120))
	log := fmt.Sprintf("INFO 03-05 10:11:12 [gpu_worker.py:277] total_gpu_memory=%s, gpu_memory_utilization=%.2f, model weights %s\nINFO 03-05 10:11:12 [gpu_worker.py:298] Available KV cache memory: %s\n", gb(total), share, gb(weights), gb(have))
	log += fmt.Sprintf("ValueError: To serve at least one request with the models's max seq len (%d), (%s KV cache is needed, which is larger than the available KV cache memory (%s). Based on the available memory, the estimated maximum model length is %d. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.\n", tokens, gb(need), gb(have), uint64(tokens)*have/need)
	if fits {
		return Sample{Log: log, Causes: []string{idLimit}, Why: "a larger share of the card has room for the cache"}
	}
	return Sample{Log: log, Causes: []string{idTooBig, idLimit}, Why: "the cache does not fit with any share; only a shorter context does"}
}

// llama is llama.cpp's loading: parts that were served, and the one that was not.
func llama(c card, free, model, kv, failed uint64, part string) string {
	var s strings.Builder
	fmt.Fprintf(&s, "ggml_cuda_init: found 1 CUDA devices:\n  Device 0: %s, compute capability 8.9, VMM: yes, VRAM: %d MiB\n", c.name, c.total/mib)
	fmt.Fprintf(&s, "llama_model_load_from_file_impl: using device CUDA0 (%s) - %d MiB free\n", c.name, free/mib)
	if part == "model" {
		fmt.Fprintf(&s, "ggml_backend_cuda_buffer_type_alloc_buffer: allocating %s on device 0: cudaMalloc failed: out of memory\nalloc_tensor_range: failed to allocate CUDA0 buffer of size %d\nllama_model_load: error loading model: unable to allocate CUDA0 buffer\n", mb(failed), failed)
		return s.String()
	}
	fmt.Fprintf(&s, "load_tensors: offloaded 33/33 layers to GPU\nload_tensors:        CUDA0 model buffer size = %s\n", mb(model))
	if part == "kv" {
		fmt.Fprintf(&s, "ggml_backend_cuda_buffer_type_alloc_buffer: allocating %s on device 0: cudaMalloc failed: out of memory\nllama_kv_cache_init: failed to allocate buffer for kv cache\nllama_new_context_with_model: llama_kv_cache_init() failed for self-attention cache\n", mb(failed))
		return s.String()
	}
	fmt.Fprintf(&s, "llama_kv_cache_init:      CUDA0 KV buffer size = %s\nggml_backend_cuda_buffer_type_alloc_buffer: allocating %s on device 0: cudaMalloc failed: out of memory\nggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size %d\nllama_new_context_with_model: failed to allocate compute buffers\n", mb(kv), mb(failed), failed)
	return s.String()
}

// llamaSample is a model whose parts together are more than was free.
func llamaSample(d draw, part string) Sample {
	c := d.bigCard()
	free := c.total - d.between(300*mib, 900*mib)
	var model, kv, failed uint64
	switch part {
	case "model":
		failed = d.percent(free, 105, 300)
	case "kv":
		model = d.percent(free, 50, 90)
		failed = free - model + d.percent(free, 3, 60)
	default:
		model, kv = d.percent(free, 50, 70), d.percent(free, 15, 25)
		failed = free - model - kv + d.percent(free, 3, 20)
	}
	return Sample{Log: llama(c, free, model, kv, failed, part), Causes: []string{idTooBig}, Why: "the model's parts and the refused one are more than was free at the start, which is nearly a whole card"}
}

// ollamaOffload is the line in which Ollama says what it expects.
func ollamaOffload(available, required uint64) string {
	return fmt.Sprintf("time=2026-02-04T16:56:25.332Z level=INFO source=memory.go:356 msg=\"offload to cuda\" layers.requested=-1 layers.model=65 layers.offload=65 memory.available=\"[%.1f GiB]\" memory.gpu_overhead=\"0 B\" memory.required.full=\"%.1f GiB\" memory.required.allocations=\"[%.1f GiB]\"\n",
		float64(available)/gib, float64(required)/gib, float64(required)/gib)
}

func engineClasses() []class {
	startup := func(d draw, free, total uint64, share float64) string {
		return fmt.Sprintf("ValueError: Free memory on device %s(%s/%s GiB) on startup is less than desired GPU memory utilization (%v, %s GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n",
			d.one("", "cuda:0 "), gigabytes(free), gigabytes(total), share, gigabytes(uint64(share*float64(total))))
	}
	shares := []float64{0.8, 0.85, 0.9, 0.92, 0.95}
	return []class{
		{"vllm/others-at-start", func(d draw) Sample {
			c := d.bigCard()
			return Sample{Log: startup(d, d.percent(c.total, 5, 65), c.total, shares[d.IntN(5)]), Causes: []string{idOccupied, idRace}, Asks: true, Why: "before the engine took any, others held a third of the card and more"}
		}},
		{"vllm/unified-at-start", func(d draw) Sample {
			total := []uint64{130661433344, 128496123904, 65890131968, 131853336576}[d.IntN(4)]
			name := d.one("NVIDIA GB10", "NVIDIA Thor", "Orin")
			return Sample{Log: "INFO Using device 0: " + name + "\n" + startup(d, d.percent(total, 70, 86), total, 0.9), Causes: []string{idUnified}, Why: "this GPU's memory is the host's, which everything uses"}
		}},
		{"vllm/freed-meanwhile", func(d draw) Sample {
			c := d.bigCard()
			first := d.percent(c.total, 10, 50)
			return Sample{Log: fmt.Sprintf("AssertionError: Error in memory profiling. Initial free memory %s GiB, current free memory %s GiB. This happens when other processes sharing the same container release GPU memory while vLLM is profiling during initialization.\n", gigabytes(first), gigabytes(first+d.percent(c.total, 5, 40))), Causes: []string{idRace}, Why: "more was free after loading than before"}
		}},
		{"vllm/context-fits-larger-share", func(d draw) Sample { return cacheTooSmall(d, true) }},
		{"vllm/context-fits-no-share", func(d draw) Sample { return cacheTooSmall(d, false) }},
		{"vllm/share-in-command", func(d draw) Sample {
			total := d.bigCard().total
			share := []float64{0.3, 0.4, 0.5, 0.6}[d.IntN(4)]
			weights := uint64((share + 0.01 + 0.2*d.Float64()) * float64(total))
			return Sample{Log: fmt.Sprintf("$ vllm serve models/llm %s %v\n%sINFO 03-05 10:11:12 [model_runner.py:1014] Loading model weights took %.4f GB\nValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n",
				d.one("--gpu-memory-utilization", "--gpu_memory_utilization"), share, banner(d, total), float64(weights)/gib), Causes: []string{idLimit}, Why: "the share in the command is less than the weights, and the card has more"}
		}},
		{"vllm/graph-capture", func(d draw) Sample {
			b := balance{total: d.bigCard().total, context: d.between(160*mib, 560*mib), want: d.between(40*mib, 200*mib)}
			b.reserved = b.total - b.context - d.percent(b.want, 20, 90)
			b.inUse = b.reserved - d.percent(b.want, 1, 5)
			log := fmt.Sprintf("INFO 03-05 10:11:12 [gpu_worker.py:298] Available KV cache memory: %s\nCapturing CUDA graph shapes:  %d%%|##   | %d/35\n", gb(d.percent(b.total, 20, 40)), 3+d.IntN(90), 1+d.IntN(33))
			return Sample{Log: log + torchText(d, b, torchLayout{format: torch22 + d.IntN(2)}), Causes: []string{idGraph}, Why: "the cache was sized first, and capturing graphs asks for more than is left"}
		}},
		{"vllm/weights-too-big", func(d draw) Sample {
			b := alone(d, idTooBig, 70, 97, 3, 40, 1)
			log := fmt.Sprintf("INFO 03-05 10:11:12 [model_runner.py:1014] Starting to load model /models/llm...\nLoading safetensors checkpoint shards:  %d%% Completed | %d/30\n", 10+d.IntN(80), 1+d.IntN(28))
			return Sample{Log: log + torchText(d, b, torchLayout{format: torch22 + d.IntN(2), rows: []row{{used: b.process()}}}), Causes: b.causes(), Why: "the weights alone fill the card while they are loaded"}
		}},
		{"sglang/static-share", func(d draw) Sample {
			total := d.bigCard().total
			share := []float64{0.6, 0.7, 0.75, 0.8, 0.85}[d.IntN(5)]
			weights := uint64((share + 0.005 + 0.06*d.Float64()) * float64(total))
			log := fmt.Sprintf("[2026-03-05 10:11:12 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=%.2f GB, mem usage=%.2f GB.\n", float64(total-weights)/gib, float64(weights)/gib)
			return Sample{Log: log + fmt.Sprintf("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: self.server_args.mem_fraction_static=%v\n", share), Causes: []string{idLimit}, Why: "the static share is less than the weights, and the card has more"}
		}},
		{"llama/model", func(d draw) Sample { return llamaSample(d, "model") }},
		{"llama/kv-cache", func(d draw) Sample { return llamaSample(d, "kv") }},
		{"llama/compute-buffer", func(d draw) Sample { return llamaSample(d, "compute") }},
		{"ollama/estimate", func(d draw) Sample {
			available := d.percent(d.bigCard().total, 90, 97)
			required := d.percent(available, 85, 98)
			failed := d.percent(available, 4, 20)
			return Sample{Log: ollamaOffload(available, required) + fmt.Sprintf("ggml_backend_cuda_buffer_type_alloc_buffer: allocating %s on device 0: cudaMalloc failed: out of memory\nggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size %d\n", mb(failed), failed), Causes: []string{idEstimate}, Asks: true, Why: "what was thought enough was below what was available, and it was not enough"}
		}},
		{"ollama/retried", func(d draw) Sample {
			failed := d.between(2*gib, 20*gib)
			return Sample{Log: fmt.Sprintf("ggml_backend_cuda_buffer_type_alloc_buffer: allocating %s on device 0: cudaMalloc failed: out of memory\nllama_model_load: error loading model: unable to allocate CUDA0 buffer\nload_tensors: offloaded 21/33 layers to GPU\nload_tensors:        CUDA0 model buffer size = %s\ntime=2026-02-04T16:57:02.101Z level=INFO source=server.go:628 msg=\"llama runner started in %.2f seconds\"\n[GIN] 2026/02/04 - 16:57:09 | 200 |  7.19s |  127.0.0.1 | POST  \"/api/generate\"\n", mb(failed), mb(d.percent(failed, 50, 70)), 1+9*d.Float64()), Causes: []string{idNonfatal}, Asks: true, Why: "it was loaded with fewer layers, and the server answers"}
		}},
		{"ollama/occupied", func(d draw) Sample {
			c := d.bigCard()
			available := d.percent(c.total, 3, 20)
			failed := available + d.percent(c.total, 5, 40)
			return Sample{Log: fmt.Sprintf("time=2026-02-04T16:56:25.304Z level=INFO source=types.go:130 msg=\"inference compute\" id=GPU-1f2e library=cuda variant=v12 compute=8.9 driver=12.4 name=\"%s\" total=\"%.1f GiB\" available=\"%.1f GiB\"\nggml_backend_cuda_buffer_type_alloc_buffer: allocating %s on device 0: cudaMalloc failed: out of memory\nllama_model_load: error loading model: unable to allocate CUDA0 buffer\n", c.name, float64(c.total)/gib, float64(available)/gib, mb(failed)), Causes: []string{idOccupied}, Asks: true, Why: "most of the card was taken before the model, which would fit into it"}
		}},
		{"ollama/host", func(d draw) Sample {
			available := d.between(4*gib, 60*gib)
			return Sample{Log: fmt.Sprintf("Error: model requires more system memory (%.1f GiB) than is available (%.1f GiB)\n", float64(d.percent(available, 115, 800))/gib, float64(available)/gib), Causes: []string{idHost}, Why: "the sizes are the host's"}
		}},
	}
}
