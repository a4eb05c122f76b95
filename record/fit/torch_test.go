package fit_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/device/sim"
	"gpumem/record/fit"
)

// TestTorch runs real PyTorch programs, and compares with what PyTorch's allocator counted
// in the same run, and with what must live by construction. GPUMEM_TEST_TORCH is a Python
// with torch and its CUDA libraries, such as scripts/python-on-sim makes.
func TestTorch(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_TORCH")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_TORCH names no Python with torch for CUDA")
	}
	env := append(environ(t), "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
	for _, name := range []string{"dense", "dense_mixed", "language", "causal", "causal_mixed", "causal_checkpointed", "images", "emptied"} {
		for _, scale := range []string{"1", "2"} {
			t.Run(name+" "+scale, func(t *testing.T) { testTorch(t, env, python, name, scale) })
		}
	}
}

func testTorch(t *testing.T, env []string, python, name, scale string) {
	var out bytes.Buffer
	r, err := fit.Run(t.Context(), fit.Config{
		Command: []string{python, "testdata/torch_programs.py", name, scale}, Env: env, Sim: sim.Config{Total: 24 << 30, CCMajor: 8}, Full: true, Stdout: &out, Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	var torch struct {
		Expected  uint64 `json:"expected_bytes"`
		Requested uint64 `json:"requested_bytes"`
		Peak      uint64 `json:"requested_peak_bytes"`
		Reserved  uint64 `json:"reserved_peak_bytes"`
	}
	if err := json.Unmarshal(out.Bytes(), &torch); err != nil {
		t.Fatalf("%v: %s", err, out.Bytes())
	}
	if first := r.Candidates[0]; r.Trace.PeakLive != torch.Peak || first.HeldPeak != torch.Reserved || !r.FitsAsItIs {
		t.Errorf("peak %d, held %d; PyTorch has %d and %d", r.Trace.PeakLive, first.HeldPeak, torch.Peak, torch.Reserved)
	}
	p := r.Program
	// 2.7.1 keeps the workspaces of cuBLAS between steps, 8.1 or 32 MiB and 1 MiB; 2.15.0 does not.
	kept := uint64(0)
	if strings.HasPrefix(p.Version, "2.7.") {
		kept = 33 << 20
	}
	if torch.Requested < torch.Expected || torch.Requested-torch.Expected > kept {
		t.Errorf("%d between steps, %d by construction", torch.Requested, torch.Expected)
	}
	if p.Framework != "pytorch" || p.Version == "" || p.Repeats || !slices.Equal(p.Own, []string{"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"}) || !strings.Contains(p.Lines[0].What, "torch_programs.py:") {
		t.Errorf("%+v", p)
	}
	if len(r.Trace.Notes) > 0 { // the recording has all events
		t.Errorf("%q", r.Trace.Notes)
	}
}

// TestTorchRepeats ends a long run when its memory repeats, and a program that is larger than
// the card is served beyond it.
func TestTorchRepeats(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_TORCH")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_TORCH names no Python with torch for CUDA")
	}
	r, err := fit.Run(t.Context(), fit.Config{
		Command: []string{python, "testdata/torch_programs.py", "dense", "1", "1000000"}, Env: environ(t), Sim: sim.Config{Total: 256 << 20}, Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Program.Repeats || r.Advice != nil && !r.Advice.Ours || r.Program.RanOn != 256<<20 || r.DeviceBytes != 256<<20 {
		t.Errorf("%+v, advice %v", r.Program, r.Advice)
	}
}

// TestTorchWithoutCUDA names the reason where PyTorch is a build for the processor.
func TestTorchWithoutCUDA(t *testing.T) {
	python := pythonPath(t)
	folder := t.TempDir()
	for name, text := range map[string]string{
		"torch.py": "import types\n__version__, version = '2.15.0+cpu', types.SimpleNamespace(cuda=None)\n",
		"train.py": "import torch\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	_, err := fit.Run(t.Context(), fit.Config{Command: []string{python, filepath.Join(folder, "train.py")}, Env: environ(t), Sim: sim.Config{Total: 1 << 30}, Stderr: os.Stderr})
	if !errors.Is(err, fit.ErrNoGPU) || !strings.Contains(err.Error(), "PyTorch 2.15.0+cpu is built without CUDA") {
		t.Error(err)
	}
}

// TestTorchRecurrent: an LSTM of cuDNN failed; it keeps what cuDNN was seen to keep, and the answer says that this is estimated.
func TestTorchRecurrent(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_TORCH")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_TORCH names no Python with torch for CUDA")
	}
	r, err := fit.Run(t.Context(), fit.Config{Command: []string{python, "testdata/recurrent.py"}, Env: environ(t), Sim: sim.Config{Total: 16 << 30}, Stderr: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	said := func(s string) bool { return strings.Contains(s, "cuDNN's recurrent layers are estimated") }
	if r.PeakBytes < 736e6 || !slices.ContainsFunc(r.Differs, said) {
		t.Errorf("%d MiB, %q", r.PeakBytes>>20, r.Differs)
	}
}
