// The C functions, from programs in C and C++ on the simulated GPU.

package main_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"gpumem/record/formats"
	"gpumem/record/trace"
)

// built builds the library and returns its folder.
func built(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: builds a library, which takes half a minute")
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("SKIPPED: no gcc, which libgpumem_c.so is built with")
	}
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: the library is for Linux")
	}
	// Go reuses a test's result until a file changes that the test itself has read.
	for _, name := range []string{"build", "capi.c", "capi.h", "main.go", "record.go", "report.go", "../gpumem.h", "testdata/conformance.c", "testdata/header.cc"} {
		if _, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	if out, err := exec.Command("./build", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// driver returns a folder with a libcuda.so.1 that is a simulated GPU.
func driver(t *testing.T) string {
	t.Helper()
	const script = "../../scripts/libcudasim"
	if _, err := os.Stat(script); err != nil {
		t.Skipf("SKIPPED: %v, which builds a driver to run on", err)
	}
	dir := t.TempDir()
	if out, err := exec.Command(script, dir).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return dir
}

// TestConformance compiles the programs of testdata against the header, with warnings as
// errors, and runs them.
func TestConformance(t *testing.T) {
	lib := built(t)
	for _, c := range []struct{ compiler, standard, source, device string }{
		{"gcc", "-std=c99", "conformance.c", "sim:1GiB"},
		{"gcc", "-std=c99", "conformance.c", "cuda:0"},
		{"g++", "-std=c++11", "header.cc", ""},
	} {
		t.Run(c.source+" "+c.device, func(t *testing.T) {
			env := os.Environ()
			if c.device == "cuda:0" {
				env = append(env, "LD_LIBRARY_PATH="+driver(t), "GPUMEM_DEVICE=sim:1GiB")
			}
			if _, err := exec.LookPath(c.compiler); err != nil {
				t.Skipf("SKIPPED: no %s", c.compiler)
			}
			program := filepath.Join(t.TempDir(), "program")
			args := []string{c.standard, "-Wall", "-Wextra", "-Wpedantic", "-Wno-overlength-strings", "-Werror", "-I..", "-o", program,
				filepath.Join("testdata", c.source), "-L" + lib, "-l:libgpumem_c.so", "-Wl,-rpath," + lib, "-lpthread", "-ldl"}
			if out, err := exec.Command(c.compiler, args...).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", c.compiler, err, out)
			}
			recording := filepath.Join(t.TempDir(), "recording")
			cmd := exec.Command(program, c.device, recording)
			cmd.Env = env
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				t.Fatalf("%s: %v\n%s", c.source, err, out)
			}
			if c.device != "" {
				checkRecording(t, recording)
			}
		})
	}
}

// checkRecording checks what function recordings of conformance.c did: two blocks of 10
// and 20 MiB, a refused request for 60, and a free of the first block.
func checkRecording(t *testing.T, path string) {
	r, err := formats.Open(context.Background(), path, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, want := fmt.Sprint(len(r.Pools), r.Allocs, r.Refused, r.PeakLive>>20, r.Pools[0].EndLive>>20), "1 3 1 90 20"; got != want {
		t.Errorf("pools, allocs, refused, peak and final MiB: %s, want %s", got, want)
	}
}
