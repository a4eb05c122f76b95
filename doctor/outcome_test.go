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
		{"tried again, and a full disk", fillsGPU + again + "OSError: [Errno 28] No space left on device: 'ckpt.pt'\n", VerdictNotMemory, NotMemory, 5},
		{"tried again, and another error", fillsGPU + again + "KeyError: 'x'\n", VerdictNonfatal, NonfatalWarning, 1},
		{"tried again on the host", fillsGPU + "retrying on CPU\nMemoryError: Unable to allocate 300. GiB for an array with shape (100000, 402653)\n",
			VerdictCause, HostMemory, 3},
		{"started anew", "ValueError: Free memory on device cuda:0 (10.0/23.64 GiB) on startup is less than desired GPU memory utilization " +
			"(0.9, 21.28 GiB).\n--- restart ---\n" + fillsGPU, VerdictCause, ProgramTooBig, 3},
		{"caught, and a good end", "WARNING caught: " + fillsGPU + steps + "Training complete. exit code 0\n", VerdictNonfatal, NonfatalWarning, 1},
		{"steps that were kept back", fillsGPU + steps, VerdictCause, ProgramTooBig, 1},
		{"another rank's watchdog", fillsGPU + steps + "RuntimeError: NCCL watchdog: collective operation timeout\n", VerdictCause, ProgramTooBig, 1},
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
	log := strings.Replace(one, "NAME", "a", 1) + strings.Replace(one, "NAME", "b", 1) + strings.Replace(one, "NAME", "c", 1) + strings.Replace(one, "NAME", "d", 1)
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
	for want, says := range map[string]string{"995.00": "together enough for the 995 MiB", "997.54": "lost in the rounding", "1002.00": "1002 MiB more does not fit"} {
		if d := diagnose(t, strings.Replace(message, "WANT", want, 1), ""); !strings.Contains(inWords(d), says) {
			t.Errorf("%s: want %q:\n%s", want, says, inWords(d))
		}
	}
}
