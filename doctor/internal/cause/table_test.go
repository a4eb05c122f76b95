package cause

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpumem/doctor/internal/account"
	"gpumem/internal/test/doctortest"
)

// TestRemediesAreSourced: every line of the table is one, with a source, a need that is known,
// and releases in order.
func TestRemediesAreSourced(t *testing.T) {
	lines := 0
	for line := range strings.Lines(remediesText) {
		if line[0] != '#' {
			lines++
		}
	}
	if lines != len(rows) {
		t.Errorf("%d lines, and %d remedies", lines, len(rows))
	}
	names := map[string]bool{}
	for _, r := range rows {
		if r.need == "name" {
			names[r.framework] = true
		}
	}
	without := []string{"name", "image", "vmm", "host", "handle"} // that begin no sentence
	for _, r := range rows {
		need, _, _ := strings.Cut(r.need, ".")
		known := leads[need] != "" || slices.Contains(without, need)
		needsSource := r.need != "name" && r.framework != "any"
		sourced := r.source != "" && !(r.source == "-" && needsSource)
		if !known || r.text == "" || !sourced {
			t.Errorf("%+v", r)
		}
		if r.since != "" && r.until != "" && !older(r.since, r.until) {
			t.Errorf("%+v: releases out of order", r)
		}
		if name, _, ok := strings.Cut(r.text, " | "); ok != strings.HasPrefix(name, "set ") || ok && !strings.Contains(name, "=") {
			t.Errorf("%+v: a setting is \"set NAME=VALUE | WHY\"", r)
		}
	}
}

// TestReleasesOfRemedies: a release has what it has, and an unknown one is told which do.
func TestReleasesOfRemedies(t *testing.T) {
	for _, tt := range []struct {
		since, until, release, want string
	}{
		{"", "", "", "x"},
		{"", "", "1.0", "x"},
		{"0.10.2", "", "", "x (since 0.10.2)"},
		{"0.10.2", "", "0.10.2", "x"},
		{"0.10.2", "", "0.10.1", ""},
		{"0.10.2", "", "0.9.9", ""},
		{"", "0.17", "", "x (up to 0.17)"},
		{"", "0.17", "0.17.1", "x"},
		{"", "0.17", "0.18", ""},
		{"0.3.6", "0.5.14", "", "x (0.3.6 to 0.5.14)"},
		{"0.3.6", "0.5.14", "0.5.14.post1", "x"},
		{"0.3.6", "0.5.14", "0.5.15", ""},
		{"0.3.6", "0.5.14", "0.2.15", ""},
	} {
		got, ok := row{text: "x", since: tt.since, until: tt.until}.of(tt.release)
		if !ok {
			got = ""
		}
		if got != tt.want {
			t.Errorf("%s to %s in %q: %q, want %q", tt.since, tt.until, tt.release, got, tt.want)
		}
	}
}

// named is what only one framework has.
var named = regexp.MustCompile(`(?i)\bXLA_|\bTF_|\bjax\b|PYTORCH|\btorch\b|tensorflow|FLAGS_|JULIA_|OLLAMA|-ngl|num_gpu|--gpu-memory|--mem-fraction|cupy|DataLoader`)

// TestUnknownFrameworksGetNeutralWords: where nothing in a log shows which framework it is, no
// setting is proposed, and no step and no command is of one framework. All causes are covered
// but those that name a framework themselves.
func TestUnknownFrameworksGetNeutralWords(t *testing.T) {
	logs := append([]string(nil), neutralLogs...)
	for _, c := range doctortest.Cases() {
		if c.State == "" {
			logs = append(logs, c.Log)
		}
	}
	seen := map[string]bool{}
	for _, log := range logs {
		e := account.New(nil)
		if err := e.Read(strings.NewReader(log), nil); err != nil {
			t.Fatal(err)
		}
		if len(e.Marks) > 0 || e.XLAWords() || len(e.Env) > 0 || len(newView(e).othersLines()) > 0 || wordOfFramework.MatchString(log) {
			continue
		}
		for _, x := range Explain(e) {
			if seen[x.Cause] = true; x.Cause == "bad_setting" {
				continue // the log names the setting
			}
			for _, s := range append([]string{string(x.Decide), x.Remedy.Check}, x.Remedy.Steps...) {
				if m := named.FindString(s); m != "" && !strings.Contains(s, "if it is "+m) {
					t.Errorf("%s (%s) says %q for\n%s", x.Cause, x.Argument, s, log)
				}
			}
			if x.Cause != "unified_memory" && len(x.Remedy.Settings) > 0 {
				t.Errorf("%s (%s) sets %+v for\n%s", x.Cause, x.Argument, x.Remedy.Settings, log)
			}
		}
	}
	for _, f := range finders {
		if !seen[f.id] && !ofOneFramework[f.id] {
			t.Errorf("no log without a framework has the cause %s", f.id)
		}
	}
}

// wordOfFramework is evidence in a refusal's own words.
var wordOfFramework = regexp.MustCompile(`(?i)torch|tensorflow|xla|jax|mem_fraction|_bfc`)

// ofOneFramework are causes whose texts are of one framework.
var ofOneFramework = map[string]bool{"bad_setting": true, "vmm_unsupported": true, "remat_insufficient": true, "jax_plus_tf": true,
	"same_process_second_pool": true, "multi_process_preallocation": true, "stream_pending": true, "unified_memory": true,
	"estimator_underestimates": true}

// neutralLogs are of programs that do not say what they are.
var neutralLogs = []string{
	"error: cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY\n",
	"ERROR: failed to allocate 209715200 bytes on device 0: CUDA_ERROR_OUT_OF_MEMORY\n",
	"ERROR: cudnn_handle failed: CUDNN_STATUS_NOT_INITIALIZED\n",
	"ERROR: cublasCreate failed: CUBLAS_STATUS_ALLOC_FAILED\n",
	"ERROR: cublasCreate failed: CUBLAS_STATUS_NOT_INITIALIZED\n",
	"step 1 gpu memory used 1.00 GiB\nstep 2 gpu memory used 2.00 GiB\nstep 3 gpu memory used 3.00 GiB\nstep 4 gpu memory used 4.00 GiB\nstep 5 gpu memory used 5.00 GiB\nstep 6 gpu memory used 6.00 GiB\nCUDA error: out of memory\n",
	"cuGraphInstantiate failed: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n",
	"Failed to load in-memory module: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n",
	"my_engine: GPU out of memory: requested 2.00 GiB, total 16.00 GiB, free 100.00 MiB, allocated 8.00 GiB, reserved 15.50 GiB\n",
	"my_engine: GPU out of memory: requested 2.00 GiB, total 16.00 GiB, free 12.00 GiB, allocated 2.00 GiB, reserved 2.50 GiB\n",
	"my_engine: GPU out of memory: requested 2.00 GiB, total 16.00 GiB, free 100.00 MiB, allocated 2.00 GiB, reserved 2.50 GiB\n",
	"WARNING: failed to allocate 512.00 MB of pinned memory: out of memory\n",
}

// TestSharedCodeIsNoJAX: lines of code that JAX and TensorFlow share set nothing of one of them.
func TestSharedCodeIsNoJAX(t *testing.T) {
	for _, log := range []string{
		"E cuda_dnn.cc:329] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR\n",
		"E cuda_dnn.cc:439] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR\nE cuda_dnn.cc:443] Memory usage: 214958080 bytes free, 8361017344 bytes total.\n",
		"Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.00GiB (rounded to 3221225472) requested by op \nLimit:                     19327352832\nInUse:                     19320000000\n",
	} {
		both := ""
		for _, x := range explainedLog(t, log) {
			if len(x.Remedy.Settings) > 0 {
				t.Errorf("%s sets %+v for\n%s", x.Cause, x.Remedy.Settings, log)
			}
			both += strings.Join(x.Remedy.Steps, "\n") + "\n"
		}
		if !strings.Contains(both, "in JAX: ") || !strings.Contains(both, "in TensorFlow, ") {
			t.Errorf("not both are named:\n%s", both)
		}
	}
}

// TestEXLAHasNoCheckOfJAX: EXLA's pool is set in Elixir's configuration, and `gpumem explain` reads JAX's
// variables, which would check nothing of it.
func TestEXLAHasNoCheckOfJAX(t *testing.T) {
	const full = "** (RuntimeError) RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.\n" +
		"bfc_allocator.cc:1100] Limit:                     6442450944\nbfc_allocator.cc:1100] InUse:                     4294967296\n"
	for line, want := range map[string]bool{"[info] XLA service initialized; exla\n": false, "jaxlib 0.7.2\n": true} {
		checked := false
		for _, x := range explainedLog(t, line+full) {
			checked = checked || x.Remedy.Check != ""
		}
		if checked != want {
			t.Errorf("%q: a check %v, want %v", line, checked, want)
		}
	}
}

// TestConditionsOfRemedies: what is advised suits what the program did, how it is set, and when it ran.
func TestConditionsOfRemedies(t *testing.T) {
	const full = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 1.00 GiB is free. " +
		"Of the allocated memory 22.40 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.\n"
	const blocks = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n"
	for _, tt := range []struct{ name, log, says, not string }{
		{"a program that trains", "loss 0.31\n" + full, "activation checkpointing", "inference_mode"},
		{"one that checkpoints already", "  File \"/x/torch/utils/checkpoint.py\", line 9, in backward\nloss 0.31\n" + full, "LoRA",
			"activation checkpointing"},
		{"one that runs a model", "generate: 40 tokens\n" + full, "inference_mode", "checkpointing"},
		{"one of which neither is known", full, "in training, activation checkpointing", "FSDP"},
		{"an attention", "    attn = torch.baddbmm(q, k)\n" + full, "scaled_dot_product_attention", ""},
		{"one request above the GPU", strings.Replace(full, "3.00 GiB", "30.00 GiB", 1), "that one request smaller", "weights"},
		{"a game", "vkAllocateMemory failed: VK_ERROR_OUT_OF_DEVICE_MEMORY\n", "textures", "half precision"},
		{"a page", "[.WebGLRenderingContext]GL ERROR :GL_OUT_OF_MEMORY : glTexImage2D: <- error from previous GL command\n", "other tabs",
			"batch"},
		{"an engine that works in what its share leaves", "vllm==0.8.5\n" + full,
			"leave more room beside it: a lower --gpu-memory-utilization", "FSDP"},
		{"a log of 2023", "2023-06-01 10:00:00 start\n" + blocks, "--tensor-parallel-size", "--cpu-offload-gb"},
		{"a log of 2026", "2026-06-01 10:00:00 start\n" + blocks, "--cpu-offload-gb", ""},
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
