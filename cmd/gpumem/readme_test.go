package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
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

// TestReadmeRecordings: so are its examples of advise and leaks.
func TestReadmeRecordings(t *testing.T) {
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var loop strings.Builder // what the line of awk prints
	for i := range 50 {
		fmt.Fprintf(&loop, "a x 300000\na k%d 1048576\nf x\n", i)
	}
	path := filepath.Join(t.TempDir(), "loop.txt")
	if err := os.WriteFile(path, []byte(loop.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for shown, args := range map[string][]string{
		"$ gpumem advise examples/training.txt.gz --device sim:12GiB\n": {"advise", "../../examples/training.txt.gz", "--device", "sim:12GiB"},
		"| gpumem leaks -\n": {"leaks", path},
	} {
		_, block, ok := strings.Cut(string(page), shown)
		if !ok {
			t.Fatalf("the README has no %q", shown)
		}
		want, _, _ := strings.Cut(block, "```")
		var out, errs bytes.Buffer
		if status := run(t.Context(), args, &out, &errs); status != 0 || errs.Len() > 0 {
			t.Fatalf("%v: status %d, %s", args, status, errs.String())
		}
		got := strings.ReplaceAll(strings.ReplaceAll(out.String(), "../../", ""), path, "stdin")
		// The path may break a line elsewhere than in the README.
		if strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
			t.Errorf("it prints\n%s\nthe README has\n%s", got, want)
		}
	}
}
