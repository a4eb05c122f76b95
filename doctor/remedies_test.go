package doctor

import (
	"strings"
	"testing"
)

// TestAdviceIsReadByTheRelease: what is advised is what the program's release reads, and
// not what it has already.
func TestAdviceIsReadByTheRelease(t *testing.T) {
	const gaps = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.90 GiB is free. Including non-PyTorch memory, this process has 37.48 GiB memory in use. Of the allocated memory 25.10 GiB is allocated by PyTorch, and 11.80 GiB is reserved by PyTorch but unallocated.\n"
	const capped = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 1 has a total capacity of 79.10 GiB of which 60.30 GiB is free. Including non-PyTorch memory, this process has 18.79 GiB memory in use. 19.77 GiB allowed; Of the allocated memory 17.90 GiB is allocated by PyTorch, and 210.50 MiB is reserved by PyTorch but unallocated.\n"
	const graphs = "Initializing a V1 LLM engine (v0.13.0) with config: model='m'\nCapturing CUDA graphs:  63%|\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 0 has a total capacity of 23.57 GiB of which 52.19 MiB is free. Including non-PyTorch memory, this process has 23.51 GiB memory in use. Of the allocated memory 22.50 GiB is allocated by PyTorch, and 80.12 MiB is reserved by PyTorch but unallocated.\n"
	for _, c := range []struct{ name, log, has, lacks string }{
		{"set already", "+ export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" + gaps, "set already", "PYTORCH_CUDA_ALLOC_CONF="},
		{"set to the opposite", "+ export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False\ntorch==2.3.0\n" + gaps, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", ":False"},
		{"kept beside", "+ export PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8\ntorch==2.3.0\n" + gaps, "PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8,expandable_segments:True", "?"},
		{"a name that 2.9 does not read", "torch==2.9.1\n+ export PYTORCH_ALLOC_CONF=expandable_segments:True\n" + gaps, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "PYTORCH_ALLOC_CONF="},
		{"a key that 2.4 refuses", "torch==2.4.1\n" + capped, "set_per_process_memory_fraction(F)", " per_process_memory_fraction:"},
		{"a key that 2.10 has", "torch==2.10.0\n" + capped, "per_process_memory_fraction:F", "?"},
		{"a name that vLLM no longer has", graphs, "cudagraph_capture_sizes", "cuda_graph_sizes"},
		{"an engine's own name", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n", "a larger --mem-fraction-static", "gpu_memory_utilization"},
		{"not the opposite", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n", "raise --mem-fraction-static", "less than now"},
		{"a product, not a handle", "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m, n, k)`\n", "do its work", "make its handle"},
		{"connections, not memory", "sqlalchemy.exc.TimeoutError: QueuePool limit of size 5 overflow 10 reached, connection timed out, timeout 30.00\n", "", "set_per_process"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all strings.Builder
			for _, cause := range diagnose(t, c.log, "").Causes {
				for _, s := range cause.Settings {
					all.WriteString(s.Name + "=" + s.Value + "\n")
				}
				for _, q := range cause.Evidence {
					all.WriteString(q.Reading + "\n")
				}
				all.WriteString(strings.Join(cause.Steps, "\n") + "\n")
			}
			if got := all.String(); !strings.Contains(got, c.has) || strings.Contains(got, c.lacks) {
				t.Errorf("want %q and not %q in\n%s", c.has, c.lacks, got)
			}
		})
	}
}

// TestAnswersToWhatIsNotTheGPUs: a heap with a limit of its own is told that limit, and a
// log without a word of memory how it ends.
func TestAnswersToWhatIsNotTheGPUs(t *testing.T) {
	for log, want := range map[string]string{
		"Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space":                    "-Xmx",
		"FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory":           "--max-old-space-size",
		"Traceback (most recent call last):\nModuleNotFoundError: No module named 'foo'":              "it ends with: ModuleNotFoundError: No module named 'foo'",
		strings.Repeat("step 1: loss 0.3\n", 100_000) + "ValueError: shapes (3, 4) and (5,) differ\n": "it ends with: ValueError: shapes (3, 4) and (5,) differ",
	} {
		d, err := Diagnose(strings.NewReader(log), nil)
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Join(d.Certain, "\n")
		for _, c := range d.Causes {
			said += strings.Join(c.Steps, "\n")
		}
		if !strings.Contains(said, want) {
			t.Errorf("%.80q: %q lacks %q", log, said, want)
		}
	}
}
