package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/record/formats"
	"gpumem/record/trace"
)

// The part of CuPy that calls hooks: those of the thread, with these names, and a
// pool that gives addresses again.
const standInCuPy = `
import types
hooks, free = [], [4096, 512]
class MemoryHook(object):
    def __enter__(self): hooks.append(self); return self
    def __exit__(self, *_): hooks.remove(self)
    def malloc_postprocess(self, **kwargs): pass
    def free_postprocess(self, **kwargs): pass
cuda = types.SimpleNamespace(MemoryHook=MemoryHook)
def malloc(size):
    ptr = free.pop() if size < 1000 else 0
    for h in hooks: h.malloc_postprocess(device_id=0, size=size, mem_size=512, mem_ptr=ptr, pmem_id=id(ptr))
    return ptr
def release(ptr):
    for h in hooks: h.free_postprocess(device_id=0, mem_size=512, mem_ptr=ptr, pmem_id=id(ptr))
    free.append(ptr)
`

// TestCuPyHook: the hook in docs/recording.md writes a recording that we read.
func TestCuPyHook(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("skipped: there is no python3 on PATH")
	}
	page, err := os.ReadFile("../../docs/recording.md")
	if err != nil {
		t.Fatal(err)
	}
	_, code, found := strings.Cut(string(page), "```python\nimport cupy\n")
	code, _, ended := strings.Cut(code, "```")
	if !found || !ended {
		t.Fatal("the page has no hook for CuPy")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cupy.py"), []byte(standInCuPy), 0o644); err != nil {
		t.Fatal(err)
	}
	// Of before, two blocks at one address, one refused, one that stays.
	const program = "import cupy\nold = cupy.malloc(1)\ndef main():\n    cupy.release(old); cupy.release(cupy.malloc(100)); cupy.malloc(200); cupy.malloc(5000)\n"
	cmd := exec.Command(python, "-c", program+code)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	tr, err := formats.Open(context.Background(), filepath.Join(dir, "cupy.txt"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if p := tr.Pools[0]; p.Events != 5 || p.Allocs != 3 || p.PeakLive != 5200 || p.EndBlocks != 1 || p.EndLive != 200 {
		t.Errorf("%d events, %d allocations, %d blocks of %d bytes in the end", p.Events, p.Allocs, p.EndBlocks, p.EndLive)
	}
}
