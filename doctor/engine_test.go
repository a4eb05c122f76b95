package doctor

import (
	"strings"
	"testing"
)

// TestEnginesSayWhatFits: what an engine prints of its own is read, the number that decides is in
// the answer, and its advice is repeated under its name. The logs are those of testdata/verdicts.
func TestEnginesSayWhatFits(t *testing.T) {
	cases := map[string]string{}
	for _, c := range readStored(t)["testdata/verdicts/engine.txtar"] {
		cases[c.name] = c.log
	}
	for name, says := range map[string][]string{
		"vllm-no-blocks": {"program_too_big pool_limit", "vLLM itself advises: Try increasing `gpu_memory_utilization`",
			"--kv-cache-memory-bytes, since 0.10.2"},
		"vllm-tokens":    {"pool_limit", "--max-model-len 23648", "vLLM itself advises"},
		"vllm-length":    {"pool_limit", "--max-model-len 79056", "needs 16 GiB of cache, and the cache has 9.65 GiB"},
		"vllm-start-old": {"device_occupied startup_race", "vLLM itself advises: Decrease GPU memory utilization"},
		"vllm-sampler": {"program_too_big cuda_graph_headroom device_occupied", "1024 requests", "--max-num-seqs",
			"vLLM itself advises: Please try lowering"},
		"sglang-static": {"program_too_big pool_limit", "SGLang itself advises: Please try to increase --mem-fraction-static",
			"--context-length"},
		"sglang-prefill": {"program_too_big pool_limit", "SGLang itself advises: Try to lower your batch size"},
		"sglang-slots":   {"pool_limit", "not the GPU's memory", "--max-running-requests"},
		"tgi-prefill": {"program_too_big device_occupied", "4096 tokens",
			"TGI itself advises: You need to decrease `--max-batch-prefill-tokens`", "--max-input-tokens"},
		"tgi-prefill-after-torch": {"program_too_big", "21.20 GiB of 22.06 GiB", "--max-batch-prefill-tokens"},
		"tgi-total":               {"program_too_big pool_limit", "8192 tokens", "--max-total-tokens"},
		"trtllm-cache": {"program_too_big", "409.60 MiB was left for the KV cache", "the Model took 76.20 GiB",
			"free_gpu_memory_fraction"},
		"trtllm-neighbour": {"device_occupied", "30.10 GiB of 79.11 GiB was free before"},
		"ollama-host":      {"host_memory", "2.80 GiB is lacking", "num_ctx"},
		"ollama-layers":    {"program_too_big device_occupied", "99 layers", "num_gpu"},
		"llama-weights":    {"program_too_big device_occupied", "weights smaller: fewer layers on the GPU (-ngl)"},
		"llama-cache":      {"program_too_big device_occupied", "cache smaller: a shorter context (-c)"},
		"llama-compute":    {"program_too_big device_occupied", "a smaller -ub (512 where it is not set)"},
		"tpu-padding":      {"program_too_big", "4.20 GiB of one buffer is padding", "multiples of 128"},
		"tpu-kernel":       {"program_too_big", "--xla_tpu_scoped_vmem_limit_kib"},
		"onnx-arena":       {"pool_limit", "gpu_mem_limit"},
		"paddle":           {"program_too_big device_occupied", "paddle.amp.auto_cast"},
	} {
		t.Run(name, func(t *testing.T) {
			d := diagnose(t, cases[name], "")
			if got := strings.Join(ids(d), " "); got != says[0] {
				t.Errorf("%s %s, want %s", d.Verdict, got, says[0])
			}
			answer := inWords(d)
			for _, c := range d.Causes {
				answer += strings.Join(c.Steps, "\n") + "\n"
			}
			for _, word := range says[1:] {
				if !strings.Contains(answer, word) {
					t.Errorf("%q is not said in\n%s", word, answer)
				}
			}
		})
	}
}
