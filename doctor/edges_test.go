package doctor

import (
	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
	"slices"
	"strings"
	"testing"
)

// The edges of arguments. What is wanted follows from the comment of each, not from what
// the doctor answered.

func TestUnifiedIsReadAsXLADoes(t *testing.T) {
	for value, want := range map[string]bool{"1": true, "true": true, "TRUE": true, "0": false, "false": false, "no": false, "yes": false,
		"": false} {
		e := account.New(nil)
		e.Env["TF_FORCE_UNIFIED_MEMORY"] = value
		if e.Unified() != want {
			t.Errorf("%q: %v", value, !want)
		}
	}
}

func TestLadderHasStepsOfNineTenths(t *testing.T) {
	for name, c := range map[string]struct {
		step float64
		want int
	}{"nine tenths": {.9, 5}, "eight tenths": {.8, 1}, "hardly less": {.98, 1}} {
		e := account.New(nil)
		for want, k := float64(8*statement.Gib), 0; k < 5; k++ {
			e.Failed = append(e.Failed, &account.Refusal{Want: uint64(want)})
			want *= c.step
		}
		if _, _, n := e.Ladder(); n != c.want {
			t.Errorf("%s: %d steps, want %d", name, n, c.want)
		}
	}
}

func TestWholePoolIsThreeQuartersOrNineTenths(t *testing.T) {
	for part, want := range map[int]bool{75: true, 90: true, 70: false, 80: false, 85: false, 95: false} {
		e := account.New(nil)
		e.Failed = []*account.Refusal{{St: &statement.Statement{}, Total: 100 * statement.Gib, Want: uint64(part) * statement.Gib}}
		if got := e.WholePool(e.Failed[0], 1); got != want {
			t.Errorf("%d %%: %v", part, got)
		}
	}
}

func TestSizesInListsAreOfTheDevice(t *testing.T) {
	for device, want := range map[int][2]uint64{-1: {1 * statement.Gib, 5 * statement.Gib}, 0: {1 * statement.Gib, 5 * statement.Gib},
		1: {2 * statement.Gib, 6 * statement.Gib}, 2: {0, 0}} {
		if p, a := account.FromLists("1 GiB 2 GiB", "5 GiB, 6 GiB", device); p != want[0] || a != want[1] {
			t.Errorf("device %d: %d and %d", device, p, a)
		}
	}
}

// Of two processes that hold what the pool reserved, the one that holds least beside it is
// the program; the other is another program.
func TestOwnProcessHoldsLeastBesideItsPool(t *testing.T) {
	d := diagnose(t, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which 512.00 MiB is free. Process 111 has 10.00 GiB memory in use. Process 222 has 5.50 GiB memory in use. Of the allocated memory 4.80 GiB is allocated by PyTorch, and 204.80 MiB is reserved by PyTorch but unallocated.\n", "")
	if ids(d)[0] != string(DeviceOccupied) || !strings.Contains(d.Causes[0].Evidence[0].Reading, "process 111: 10 GiB") {
		t.Errorf("%s", inWords(d))
	}
}

// A pool that leaves a library a tenth of the GPU may still leave it too little; one of a
// half does not.
func TestTriedFractionMustBeSmall(t *testing.T) {
	log := "E cuda_dnn.cc:439] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR\nE cuda_dnn.cc:443] Memory usage: 214958080 bytes free, 8361017344 bytes total.\n"
	for value, want := range map[string]bool{".9": false, ".5": true} {
		d := diagnose(t, log, `{"version":1,"tried":[{"env":{"XLA_PYTHON_CLIENT_MEM_FRACTION":"`+value+`"},"helped":false}]}`)
		if slices.Contains(ids(d), string(LibraryMismatched)) != want {
			t.Errorf("%s: %v", value, ids(d))
		}
	}
}

// Four readings that rise may be a start.
func TestFourReadingsAreNoLeak(t *testing.T) {
	steps := []string{"step 1: memory allocated 1.0 GiB", "step 2: memory allocated 2.0 GiB", "step 3: memory allocated 3.0 GiB",
		"step 4: memory allocated 4.0 GiB", "step 5: memory allocated 5.0 GiB"}
	for n, want := range map[int]bool{4: false, 5: true} {
		d := diagnose(t, strings.Join(steps[:n], "\n")+"\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", "")
		if slices.Contains(ids(d), string(Leak)) != want {
			t.Errorf("%d readings: %v", n, ids(d))
		}
	}
}

// The cap is what PyTorch reads, which gpumem explain prints: the last of a key counts.
func TestTorchFractionIsReadAsPyTorchDoes(t *testing.T) {
	for text, want := range map[string]float64{
		"per_process_memory_fraction:0.5":                                 .5,
		" per_process_memory_fraction : 0.5":                              .5,
		"per_process_memory_fraction:0.9,per_process_memory_fraction:0.5": .5,
		"per_process_memory_fraction:1.0":                                 0,
		"max_split_size_mb:128":                                           0,
	} {
		e := account.New(nil)
		e.Env[account.TorchConf] = text
		if f, ok := e.TorchFraction(); ok != (want > 0) || ok && f != want {
			t.Errorf("%q: %v %v, want %v", text, f, ok, want)
		}
	}
}

func TestTorchFractionOnHIP(t *testing.T) {
	e := account.New(nil)
	e.Env["PYTORCH_HIP_ALLOC_CONF"] = "per_process_memory_fraction:0.5"
	if f, ok := e.TorchFraction(); ok {
		t.Errorf("CUDA: %v", f)
	}
	e.Marks["hip"] = statement.Evidence{}
	if f, ok := e.TorchFraction(); !ok || f != .5 {
		t.Errorf("HIP: %v %v", f, ok)
	}
}
