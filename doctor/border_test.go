package doctor

// Both sides of each border in the account of a message: what one figure more or less decides.

import (
	"fmt"
	"strings"
	"testing"
)

// card is a message of PyTorch's in GiB; it tells of no process that has 0.
type card struct{ want, total, free, others, process, alloc, idle float64 }

func (c card) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %.2f GiB. GPU 0 has a total capacity of %.2f GiB of which %.2f GiB is free. ", c.want, c.total, c.free)
	if c.others > 0 {
		fmt.Fprintf(&b, "Process 4242 has %.2f GiB memory in use. ", c.others)
	}
	if c.process > 0 {
		fmt.Fprintf(&b, "Including non-PyTorch memory, this process has %.2f GiB memory in use. ", c.process)
	}
	fmt.Fprintf(&b, "Of the allocated memory %.2f GiB is allocated by PyTorch, and %.2f GiB is reserved by PyTorch but unallocated.\n",
		c.alloc, c.idle)
	return b.String()
}

// xpu is a message without what is free.
func xpu(alloc float64) string {
	return fmt.Sprintf("torch.OutOfMemoryError: XPU out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 GiB. "+
		"Of the allocated memory %.2f GiB is allocated by PyTorch, and 0.20 GiB is reserved by PyTorch but unallocated.\n", alloc)
}

// untold is a message that does not say how much was wanted, with a list of processes.
func untold(processes string) string {
	return "torch.OutOfMemoryError: CUDA out of memory. GPU 0 has a total capacity of 40.00 GiB of which 10.00 MiB is free. " + processes +
		"Of the allocated memory 14.00 GiB is allocated by PyTorch, and 0.20 GiB is reserved by PyTorch but unallocated.\n"
}

// parts is TensorRT-LLM's list of what an engine's parts took of 80 GiB, of which start were free.
func parts(start, model float64) string {
	return fmt.Sprintf(`RuntimeError: Executor creation failed due to insufficient GPU memory.

The following component could not be created: KV cache
Total GPU memory (GiB): 80.00
Free GPU memory before component creation attempt (GiB): 0.40

Previously created components and free GPU memory before/after creation (GiB):
Model: %.2f / %.2f
Sampler: %.2f / 0.40
`, start, start-model, start-model)
}

// listed is a machine on which another process holds so many MiB of a GPU of 80 GiB.
func listed(mib int) string { return listedOn(80, mib) }

// listedOn is the same on a GPU of so many GiB.
func listedOn(gib, mib int) string {
	return fmt.Sprintf(`{"devices": [{"index": 0, "total_bytes": %d, "processes": [{"pid": 77, "name": "python", "used_bytes": %d}]}], "process": {"frameworks": ["torch"], "pid": 78}}`, gib<<30, mib<<20)
}

func TestBordersOfTheAccount(t *testing.T) {
	rest := card{2, 80, 1, 0, 0, 38, 1}.String() // 40 GiB are nobody's, 1 GiB was lacking
	for _, tt := range []struct{ name, log, state, want string }{
		{"holes, a quarter of a pool that fills the GPU", card{8, 72, 1.0, 0, 70.5, 52.4, 17.6}.String(), "", "cause: holes in the pool"},
		{"holes, less than that", card{8, 72, 1.0, 0, 70.5, 52.6, 17.4}.String(), "",
			"either: holes in the pool, or just too few; holes in the pool, or just too few"},
		{"holes, a twenty-fifth of the pool, beside much that is outside of it", card{2, 72, .8, 0, 60.7, 57.5, 2.5}.String(), "",
			"cause: holes in the pool"},
		{"holes, less than that, beside as much", card{2, 72, .8, 0, 60.7, 57.7, 2.3}.String(), "",
			"either: holes in the pool, or just too few; holes in the pool, or just too few"},
		{"tensors in 94 of 100 parts, and 3 of the pool unused", card{.4, 40, .3, 0, 39.2, 37.61, 1.15}.String(), "",
			"cause: the program's own allocations fill the GPU"},
		{"tensors in less", card{.4, 40, .3, 0, 39.2, 37.59, 1.15}.String(), "",
			"either: holes in the pool, or just too few; holes in the pool, or just too few"},
		{"as many tensors, and more of the pool unused", card{.4, 40, .3, 0, 39.2, 37.61, 1.18}.String(), "",
			"either: holes in the pool, or just too few; holes in the pool, or just too few"},
		{"others with four times the holes", card{4, 80, 1, 13.2, 65, 61.3, 3.2}.String(), "", "cause: others in the message"},
		{"others with less than that", card{4, 80, 1, 12.4, 66, 62.3, 3.2}.String(), "", "cause: holes in the pool"},
		{"free, and others with two fifths of the GPU", card{2, 80, 2.5, 32.5, 44, 43, .2}.String(), "", "cause: others in the message"},
		{"free, and others with less", card{2, 80, 2.5, 31.5, 45, 44, .2}.String(), "",
			"needs: refused while enough is free; refused while enough is free; refused while enough is free"},
		{"nothing of what is free, and less than half the GPU", xpu(5.7), "", "needs: the rest of the GPU; the program's own allocations"},
		{"nothing of what is free, and more than half", xpu(6.1), "", "needs: the program's own allocations; the rest of the GPU"},
		{"an engine whose model took more than half", parts(78, 41), "", "cause: an engine's parts"},
		{"an engine whose model took less", parts(78, 39), "", "needs: an engine's parts"},
		{"an engine with more than four fifths at the start", parts(65, 50), "", "cause: an engine's parts"},
		{"an engine with less at the start", parts(63, 50), "", "cause: most of the GPU was taken before"},
		{"the rest, half of it listed", rest, listed(20 << 10), "cause: others on the machine"},
		{"the rest, a quarter of it listed", rest, listed(10 << 10), "either: the rest of the GPU; the rest of the GPU"},
		// How much was wanted is not told. 25.8 of 40 GiB are neither free nor in the pool.
		{"no request, and nobody is listed", untold(""), "", "needs: the rest of the GPU; the rest of the GPU"},
		{"no request, and a list of who has them", untold("Process 4242 has 25.00 GiB memory in use. Process 77 has 14.90 GiB memory in use. "), "", "unknown: "},
		// 0.6 GiB were lacking. A context has up to 1.5, and so a process of 0.9 may have no more.
		{"others with what was lacking, and no more than a context", older("1.00 GiB", "16.00 GiB", "12.00 GiB", "0.40 GiB", "12.50 GiB"),
			listedOn(16, 900), "either: the program's own allocations; the rest of the GPU"},
		{"others with more than one", older("1.00 GiB", "16.00 GiB", "12.00 GiB", "0.40 GiB", "12.50 GiB"), listedOn(16, 2000),
			"cause: others on the machine"},
		{"a list of another GPU, of 80 GiB", older("1.00 GiB", "16.00 GiB", "12.00 GiB", "0.40 GiB", "12.50 GiB"), listed(2000),
			"needs: the program's own allocations; the rest of the GPU"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := diagnose(t, tt.log, tt.state)
			if got := string(d.Verdict) + ": " + rules(d); got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
}

// On ROCm segments that grow work since PyTorch 2.12.
func TestBorderOfSegmentsOnROCm(t *testing.T) {
	message := strings.Replace(card{2, 72, 1.0, 0, 70.5, 66, 4}.String(), "CUDA", "HIP", 1)
	for version, want := range map[string]string{"2.11.0+rocm7.0": "max_split_size_mb:128", "2.12.0+rocm7.0": "expandable_segments:True"} {
		d := diagnose(t, "PyTorch version: "+version+"\n"+message, "")
		if got := inWords(d); !strings.Contains(got, want) {
			t.Errorf("with %s, want %s:\n%s", version, want, got)
		}
	}
}
