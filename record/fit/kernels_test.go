package fit_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"gpumem/device/sim"
	"gpumem/record/fit"
)

// TestKernelsAreNotCompiled: what would be compiled when it is first used is not, is called, and does
// nothing; lengths that kernels have added up pass for those that are given. A plan of a batch is there: FlashInfer asks for it before it runs.
func TestKernelsAreNotCompiled(t *testing.T) {
	python := pythonPath(t)
	folder := t.TempDir()
	for name, text := range map[string]string{
		"flashinfer/__init__.py":     "",
		"flashinfer/jit/__init__.py": "",
		"flashinfer/jit/core.py":     "class JitSpec:\n    def build_and_load(self):\n        raise RuntimeError('no nvcc')\n",
		"flashinfer/prefill.py": "class Wrapper:\n    def plan(self):\n        self._qo_indptr_last = 0\n" +
			"    def run(self, rows):\n        if rows != self._qo_indptr_last:\n            raise ValueError(rows)\n",
		"cutlass/__init__.py":      "",
		"cutlass/cute/__init__.py": "def compile(*_):\n    raise RuntimeError('no compiler')\n",
		"serve.py": "from cutlass import cute\nfrom flashinfer.jit.core import JitSpec\nfrom flashinfer.prefill import Wrapper\n" +
			"kernels = JitSpec().build_and_load()\nassert kernels.run(1, n=2) is None\nplan, staged = kernels.plan(1, n=2)\nassert plan is not None and staged == 0\nassert cute.compile(print)(1) is None\nassert cute.compile['O3'](print)(1) is None\n" +
			"w = Wrapper()\nw.plan()\nw.run(4096)\n",
	} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	_, err := fit.Run(t.Context(), fit.Config{
		Command: []string{python, filepath.Join(folder, "serve.py")}, Env: environ(t), Sim: sim.Config{Total: 1 << 30}, Stderr: os.Stderr,
	})
	if !errors.Is(err, fit.ErrNoGPU) {
		t.Error(err) // it came to its end, and took no memory
	}
}

// TestTritonMeasuresEveryWayOfAProgram: only an engine is left two ways to run a kernel (testdata/engine/vllm). A
// program that imports an engine's package, and makes none, measures all.
func TestTritonMeasuresEveryWayOfAProgram(t *testing.T) {
	python := pythonPath(t)
	const program = `import sys
sys.path.insert(0, "testdata/engine")
import vllm
from triton.runtime.autotuner import Autotuner
ways = Autotuner().prune_configs({})
assert ways == Autotuner.configs, ways
`
	_, err := fit.Run(t.Context(), fit.Config{Command: []string{python, "-c", program}, Env: environ(t), Sim: sim.Config{Total: 1 << 30}, Stderr: os.Stderr})
	if !errors.Is(err, fit.ErrNoGPU) {
		t.Error(err)
	}
}
