// Package standin builds the simulated GPU in the place of the driver
// (preload/sim, scripts/libcudasim) for tests, and C programs that run on it.
// The sources of the libraries beside the driver are here, too: src, names.txt,
// and python for programs in Python.
package standin

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// Root is the folder of the project.
func Root(t testing.TB) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	root := filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(file))))
	if _, err := os.Stat(filepath.Join(root, "go.mod")); !ok || err != nil {
		t.Skip("SKIPPED: the sources are not where they were compiled (-trimpath)")
	}
	return root
}

// need skips the test where the driver cannot be built.
func need(t testing.TB) {
	t.Helper()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("SKIPPED: the driver's library is for Linux on amd64 and arm64")
	}
	for _, tool := range []string{"gcc", "bash", "awk", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED: no %s, which builds the library", tool)
		}
	}
}

var built struct {
	sync.Once
	folder, output string
	err            error
}

// Library is a folder with libcuda.so.1 and the libraries beside it, built once
// for a test binary. It skips the test where gcc is not there.
func Library(t testing.TB) string {
	t.Helper()
	need(t)
	root := Root(t)
	// go test keeps a result until a file that the test opened changes. Scripts
	// and compilers read these unseen.
	for _, source := range []string{"preload", "device", "internal", "scripts/libcudasim"} {
		_ = filepath.WalkDir(filepath.Join(root, source), func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() {
				_, _ = os.Stat(path)
			}
			return nil
		})
	}
	built.Do(func() {
		if built.folder, built.err = os.MkdirTemp("", "libcudasim"); built.err != nil {
			return
		}
		var out []byte
		out, built.err = exec.Command("bash", filepath.Join(root, "scripts", "libcudasim"), built.folder).CombinedOutput()
		built.output = string(out)
	})
	if built.err != nil {
		t.Fatalf("scripts/libcudasim: %v\n%s", built.err, built.output)
	}
	return built.folder
}

// Remove removes what Library built. A TestMain calls it last.
func Remove() {
	if built.folder != "" {
		_ = os.RemoveAll(built.folder)
	}
}

// Compile makes a program of a C file and returns its path.
func Compile(t testing.TB, source string) string {
	t.Helper()
	need(t)
	to := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c"))
	// -w: functions of the driver are called without prototypes.
	if out, err := exec.Command("gcc", "-O1", "-w", "-std=gnu11", "-o", to, source, "-ldl", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("gcc %s: %v\n%s", source, err, out)
	}
	return to
}

// Environ is this process's environment with the library's folder first among
// those that the loader looks in, and settings after it.
func Environ(library string, settings ...string) []string {
	env := []string{"LD_LIBRARY_PATH=" + library}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GPUMEM_") && !strings.HasPrefix(v, "LD_LIBRARY_PATH=") {
			env = append(env, v)
		}
	}
	return append(env, settings...)
}

// JAX is the environment of a Python with jax and its CUDA plugin that compiles for a simulated
// device, with settings after it.
func JAX(t testing.TB, python, device string, settings ...string) []string {
	t.Helper()
	env := Environ(Library(t), "PYTHONPATH="+filepath.Join(Root(t), "internal/test/standin/python"), "GPUMEM_DEVICE="+device, "JAX_PLATFORMS=cuda",
		"JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1", "XLA_PYTHON_CLIENT_PREALLOCATE=false", "XLA_FLAGS=--xla_gpu_autotune_level=0", "TF_CPP_MIN_LOG_LEVEL=3")
	// The wheel's ptxas.
	if nvcc, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(python)), "lib/python3*/site-packages/nvidia/cuda_nvcc/bin")); len(nvcc) > 0 {
		env = append(env, "PATH="+nvcc[0]+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	return append(env, settings...)
}
