package doctor

import (
	"strings"
	"testing"
)

// fillsGPU is PyTorch's refusal of a program that fills its GPU.
const fillsGPU = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which " +
	"120.00 MiB is free. Including non-PyTorch memory, this process has 23.50 GiB memory in use. Of the allocated memory 22.90 GiB is " +
	"allocated by PyTorch, and 50.00 MiB is reserved by PyTorch but unallocated.\n"

// TestExceptionThatWasSurvived: an exception is not the failure where the program goes on and fails of something
// else, or ends well. Progress alone shows nothing, since output that was kept back comes after it.
func TestExceptionThatWasSurvived(t *testing.T) {
	const again = "INFO retrying with batch size 4\nstep 1 ok\nstep 2 ok\n"
	const steps = "step 10 loss 2.0\nstep 11 loss 1.9\n"
	for _, tt := range []struct {
		name, log string
		verdict   Verdict
		first     CauseID
		line      int // that shows it
	}{
		{"two steps, and an illegal address", fillsGPU + steps + "RuntimeError: CUDA error: an illegal memory access was encountered\n",
			VerdictNotMemory, NotMemory, 4},
		{"tried again, and a full disk", fillsGPU + again + "OSError: [Errno 28] No space left on device: 'ckpt.pt'\n", VerdictNotMemory,
			NotMemory, 5},
		{"tried again, and another error", fillsGPU + again + "KeyError: 'x'\n", VerdictNonfatal, NonfatalWarning, 1},
		{"tried again on the host", fillsGPU + "retrying on CPU\nMemoryError: Unable to allocate 300. GiB for an array with shape (100000, 402653)\n",
			VerdictCause, HostMemory, 3},
		{"started anew", "ValueError: Free memory on device cuda:0 (10.0/23.64 GiB) on startup is less than desired GPU memory utilization " +
			"(0.9, 21.28 GiB).\n--- restart ---\n" + fillsGPU, VerdictCause, ProgramTooBig, 3},
		{"caught, and a good end", "WARNING caught: " + fillsGPU + steps + "Training complete. exit code 0\n", VerdictNonfatal,
			NonfatalWarning, 1},
		{"steps that were kept back", fillsGPU + steps, VerdictCause, ProgramTooBig, 1},
		{"another rank's watchdog", fillsGPU + steps + "RuntimeError: NCCL watchdog: collective operation timeout\n", VerdictCause,
			ProgramTooBig, 1},
		{"tried again, and refused again", fillsGPU + again + fillsGPU, VerdictCause, ProgramTooBig, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := diagnose(t, tt.log, "")
			if d.Verdict != tt.verdict || len(d.Causes) == 0 || d.Causes[0].ID != tt.first || d.Causes[0].Evidence[0].Line != tt.line {
				t.Errorf("want %s %s at line %d:\n%s", tt.verdict, tt.first, tt.line, inWords(d))
			}
		})
	}
}

// TestNarrowScreen: a message that was wrapped at 40 columns, between words or within, has all its figures.
func TestNarrowScreen(t *testing.T) {
	const message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which " +
		"1.02 GiB is free. Process 4242 has 12.00 GiB memory in use. Including non-PyTorch memory, this process has 10.60 GiB memory in " +
		"use. Of the allocated memory 9.90 GiB is allocated by PyTorch, and 210.00 MiB is reserved by PyTorch but unallocated."
	var cut strings.Builder
	for rest := message; rest != ""; rest = rest[min(40, len(rest)):] {
		cut.WriteString(rest[:min(40, len(rest))] + "\n")
	}
	if d := diagnose(t, cut.String(), ""); d.Verdict != VerdictCause || d.Causes[0].ID != DeviceOccupied {
		t.Errorf("%s", inWords(d))
	}
}

// TestOnlyBytesAreNoShortage: no setting of memory gives room for 24 bytes where it gives none now.
func TestOnlyBytesAreNoShortage(t *testing.T) {
	const one = "FAILED core_test.py::test_NAME - RuntimeError: Resource exhausted: Out of memory while trying to allocate 24 bytes.\n"
	log := strings.Replace(one, "NAME", "a", 1) + strings.Replace(one, "NAME", "b", 1) + strings.Replace(one, "NAME", "c",
		1) + strings.Replace(one, "NAME", "d", 1)
	if d := diagnose(t, log, ""); d.Verdict != VerdictUnknown || !strings.Contains(d.Decide, "build for this machine") {
		t.Errorf("%s", inWords(d))
	}
	if d := diagnose(t, one, ""); d.Verdict == VerdictUnknown {
		t.Errorf("of one refusal: %s", inWords(d))
	}
}

// TestRoundingOfHoles: figures in MiB are rounded to hundredths of one, whatever others in GiB hide.
func TestRoundingOfHoles(t *testing.T) {
	const message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate WANT MiB. GPU 0 has a total capacity of 14.74 GiB of which " +
		"640.12 MiB is free. Process 4242 has 14.11 GiB memory in use. Of the allocated memory 13.65 GiB is allocated by PyTorch, and " +
		"357.42 MiB is reserved by PyTorch but unallocated.\n"
	for want, says := range map[string]string{"995.00": "together enough for the 995 MiB", "997.54": "lost in the rounding",
		"1002.00": "1002 MiB more does not fit"} {
		if d := diagnose(t, strings.Replace(message, "WANT", want, 1), ""); !strings.Contains(inWords(d), says) {
			t.Errorf("%s: want %q:\n%s", want, says, inWords(d))
		}
	}
}

// TestFiguresOfAKill: what a log says of the limit, or of the node, stands in the answer.
func TestFiguresOfAKill(t *testing.T) {
	const ray = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n" +
		"Memory on the node (IP: 10.0.0.5, ID: aa) where the task (task ID: bb, name=step, pid=4331, memory used=TASKGB) was running was " +
		"59.49GB / 62.58GB (0.950627), which exceeds the memory usage threshold of 0.95.\n"
	for _, tt := range []struct{ name, log, says, not string }{
		{"a pod's limit", "    Reason:       OOMKilled\n    Exit Code:    137\n  Limits:\n    memory:          512Gi\n",
			"the limit is 512 GiB", ""},
		{"a small task", strings.Replace(ray, "TASK", "2.22", 1), "had 59.49 GiB of 62.58 GiB in use, and the task that was killed 2.22 GiB", ""},
		{"a small task, and who has the rest", strings.Replace(ray, "TASK", "2.22", 1), "Top 10 memory users", ""},
		{"a large task", strings.Replace(ray, "TASK", "41.00", 1), "the task that was killed 41 GiB", "Top 10 memory users"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := diagnose(t, tt.log, "")
			all := inWords(d) + strings.Join(d.Causes[0].Steps, "\n")
			if d.Causes[0].ID != HostMemory || !strings.Contains(all, tt.says) || tt.not != "" && strings.Contains(all, tt.not) {
				t.Errorf("want %q, not %q:\n%s", tt.says, tt.not, all)
			}
		})
	}
}

// TestSettingsInTheShellOfThePlace: cmd and PowerShell have no export.
func TestSettingsInTheShellOfThePlace(t *testing.T) {
	const log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 400.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which " +
		"0 bytes is free. Of the allocated memory 5.40 GiB is allocated by PyTorch, and 1.60 GiB is reserved by PyTorch but unallocated.\n"
	for before, want := range map[string]string{
		`File "C:\venv\Lib\site-packages\torch\nn\modules\conv.py"`: "\n  set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128\n    in PowerShell: $env:",
		`File "/venv/lib/torch/nn/modules/conv.py"`:                 "\n  export PYTORCH_CUDA_ALLOC_CONF=",
		`error:\n  File "/venv/lib/torch/nn/modules/conv.py"`:       "\n  export PYTORCH_CUDA_ALLOC_CONF=",
	} {
		var b strings.Builder
		d := diagnose(t, before+"\n"+log, "")
		if err := WriteText(&b, []Answer{{Diagnosis: d}}, 80); err != nil || !strings.Contains(b.String(), want) {
			t.Errorf("%s: want %q, %v:\n%s", before, want, err, b.String())
		}
	}
}

// TestAdviceIsNotRepeated: a setting that stands in one step is in no other.
func TestAdviceIsNotRepeated(t *testing.T) {
	for _, log := range []string{
		"Non-zero status code returned while running Conv node. Status Message: bfc_arena.cc:368 void* onnxruntime::BFCArena::" +
			"AllocateRawInternal(size_t, bool) Available memory of 1234567 is smaller than requested bytes of 33554432\n",
		"RuntimeError: MPS backend out of memory (MPS allocated: 17.90 GB, other allocations: 100.00 MB, max allowed: 18.13 GB). Tried to " +
			"allocate 1.00 GB on private pool.\n",
	} {
		steps := strings.Join(diagnose(t, log, "").Causes[0].Steps, "\n")
		for _, words := range []string{"kSameAsRequested", "make it smaller", "the memory is the Mac's own"} {
			if strings.Count(steps, words) > 1 {
				t.Errorf("%q twice:\n%s", words, steps)
			}
		}
	}
}

// TestAvailableOfOllamaIsShown: what its new engine found available is the decisive contrast to what was refused.
func TestAvailableOfOllamaIsShown(t *testing.T) {
	d := diagnose(t, `time=2025-10-05T10:11:12.000Z level=INFO source=server.go:1200 msg="gpu memory" id=GPU-1 library=CUDA available="7.1 GiB" free="7.5 GiB"
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 6144.00 MiB on device 0: cudaMalloc failed: out of memory
`, "")
	if !strings.Contains(inWords(d), "7.10 GiB was free at the start") {
		t.Errorf("%s", inWords(d))
	}
}

// TestWordsThatAreEasilyMisread: what another GPU has, a guess, another program's retry, and figures that are equal.
func TestWordsThatAreEasilyMisread(t *testing.T) {
	for _, tt := range []struct {
		name, log string
		verdict   Verdict
		says, not string
	}{
		{"another GPU's free memory", "engine: out of GPU memory on GPU 0: requested 2.00 GiB; GPU 1: 15.00 GiB free of 16.00 GiB; GPU 0: 0.50 GiB free of 16.00 GiB\n",
			VerdictNeeds, "512 MiB of 16 GiB free", "15 GiB"},
		{"a guess", "This may be caused by the GPU running out of memory\n", VerdictUnknown, "", ""},
		{"another's retry", "cudaMalloc failed: out of memory\n" + strings.Repeat("loading a part\n",
			12) + "download of shard 3: connection reset, retrying\n",
			VerdictNeeds, "memory was refused", ""},
		{"two figures that are equal", "RuntimeError: MPS backend out of memory (MPS allocated: 9.00 GB, other allocations: 9.00 GB, max allowed: 18.13 GB). " +
			"Tried to allocate 1.00 GB on private pool.\n", VerdictCause, "18 GiB taken", ""},
		{"the reason stands before the abort", "terminate called after throwing an instance of 'acme::device_error'\n  what():  got VK_ERROR_NOT_ENOUGH_SPACE_KHR from Vulkan\nAborted (core dumped)\n",
			VerdictUnknown, "the last failure in it is line", ""},
		{"a status that may be memory's", "RuntimeError: Native API failed. Native API returns: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)\n",
			VerdictUnknown, "", noRefusal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := diagnose(t, tt.log, "")
			if all := inWords(d); d.Verdict != tt.verdict || !strings.Contains(all, tt.says) || tt.not != "" && strings.Contains(all, tt.not) {
				t.Errorf("want %s, %q, and not %q:\n%s", tt.verdict, tt.says, tt.not, all)
			}
		})
	}
}

// TestFirstStepWhileWeightsAreLoaded: before the first batch a smaller one gives nothing.
func TestFirstStepWhileWeightsAreLoaded(t *testing.T) {
	const train = "  File \"train.py\", line 12, in <module>\n"
	for frame, want := range map[string]string{
		"  File \"/venv/torch/nn/modules/module.py\", line 900, in _apply\n":                 "make the weights smaller",
		"  File \"/venv/torch/nn/parallel/distributed.py\", line 700, in _ddp_init_helper\n": "make the weights smaller",
		"  File \"/venv/torch/nn/modules/linear.py\", line 100, in forward\n":                "make it smaller: a smaller batch",
	} {
		steps := diagnose(t, "Traceback (most recent call last):\n"+train+frame+fillsGPU, "").Causes[0].Steps
		if !strings.HasPrefix(steps[0], want) || strings.HasPrefix(want, "make the weights") && strings.Contains(strings.Join(steps, "\n"), "batch") {
			t.Errorf("%s: %q", frame, steps)
		}
	}
}
