package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestReadmeExplain: what the README shows of gpumem explain is what it prints.
func TestReadmeExplain(t *testing.T) {
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, ok := strings.Cut(string(page), "$ XLA_CLIENT_MEM_FRACTION=80")
	if !ok {
		t.Fatal("the README has no such command")
	}
	_, block, _ = strings.Cut(block, "sim:24GiB\n")
	want, _, _ := strings.Cut(block, "```")
	for _, line := range os.Environ() { // nothing else is set there
		name, _, _ := strings.Cut(line, "=")
		for _, family := range []string{"XLA_", "TF_", "JAX_", "CUDA_", "PYTORCH_", "CUPY_", "GPUMEM_"} {
			if strings.HasPrefix(name, family) {
				t.Setenv(name, "")
				os.Unsetenv(name)
			}
		}
	}
	t.Setenv("XLA_CLIENT_MEM_FRACTION", "80")
	t.Setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "off")
	t.Setenv("TF_GPU_ALLOCATOR", "cuda_malloc_async")
	var out, errs bytes.Buffer
	if status := run(t.Context(), []string{"explain", "--device", "sim:24GiB"}, &out, &errs); status != 0 || errs.Len() > 0 {
		t.Fatalf("status %d, %s", status, errs.String())
	}
	if out.String() != want {
		t.Errorf("it prints\n%s\nthe README has\n%s", out.String(), want)
	}
}
