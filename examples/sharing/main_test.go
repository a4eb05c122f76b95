package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"pgregory.net/rapid"

	"gpumem"
	"gpumem/device/sim"
	"gpumem/policy/frameworks"
)

// TestMain lets tests run this very program by the name sharing.
func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"sharing": main}) }

// TestRun is one program alone on its GPU.
func TestRun(t *testing.T) {
	const both = "XLA_CLIENT_MEM_FRACTION=.5 XLA_PYTHON_CLIENT_MEM_FRACTION=.5"
	for _, c := range []struct {
		name   string
		args   string
		device string // "": sim:24GiB
		env    string
		status int
		stdout string
		stderr string // begins so; "": nothing
	}{
		{name: "default", stdout: "ready: pool of 18 GiB, limit 18 GiB\n"},
		{name: "old release", args: "-as jax@0.4.0", stdout: "ready: pool of 21.60 GiB, limit 21.60 GiB\n"},
		{name: "fraction", env: "XLA_PYTHON_CLIENT_MEM_FRACTION=.25", stdout: "ready: pool of 6 GiB, limit 6 GiB\n"},
		{name: "just enough", args: "-need 6GiB", env: "XLA_CLIENT_MEM_FRACTION=.25", stdout: "ready: pool of 6 GiB, limit 6 GiB\n"},
		{name: "growth", env: "XLA_PYTHON_CLIENT_PREALLOCATE=false XLA_CLIENT_MEM_FRACTION=.15", stdout: "ready: pool of 2 MiB, limit 3.60 GiB\n"},
		{name: "platform", env: "XLA_PYTHON_CLIENT_ALLOCATOR=platform", stdout: "ready: pool of 0 B, limit 24 GiB\n"},
		{name: "no work", args: "-need 0", stdout: "ready: pool of 18 GiB, limit 18 GiB\n"},

		{name: "too much", args: "-need 100GiB", status: 1, stdout: "ready: pool of 18 GiB, limit 18 GiB\n",
			stderr: "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 25.00GiB with allocator GPU_0_bfc on device 0.\n"},
		{name: "full GPU", device: "sim:24GiB,used=24GiB", status: 1,
			stderr: "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4B with allocator GPU_0_bfc on device 0.\n"},
		{name: "lost GPU", device: "sim:24GiB,lose=1", status: 1, stderr: "sharing: "},
		{name: "no such file", device: "sim@/nonexistent/gpu", status: 1, stderr: "sharing: sim@/nonexistent/gpu"},
		{name: "bad device", device: "gpu0", status: 1, stderr: `sharing: GPUMEM_DEVICE: device "gpu0": no card is known`},

		{name: "both fractions", env: both, stdout: "running on the CPU\n",
			stderr: "Jax plugin configuration error: XLA_CLIENT_MEM_FRACTION is specified together with"},
		{name: "both fractions, only on a GPU", env: both + " JAX_PLATFORMS=cuda,cpu", status: 1,
			stderr: "Jax plugin configuration error: XLA_CLIENT_MEM_FRACTION is specified together with"},
		{name: "JAX_PLATFORMS=cpu", env: both + " JAX_PLATFORMS=cpu", stdout: "running on the CPU\n"},
		{name: "JAX_PLATFORMS=gpu", env: "JAX_PLATFORMS=gpu", status: 1, stderr: "RuntimeError: Unable to initialize backend 'rocm'"},
		{name: "JAX_PLATFORMS=cuda", env: "JAX_PLATFORMS=cuda", stdout: "ready: pool of 18 GiB, limit 18 GiB\n"},
		{name: "no GPU visible", env: "CUDA_VISIBLE_DEVICES=", stdout: "running on the CPU\n"},
		{name: "client refused", env: "JAX_PJRT_CLIENT_CREATE_OPTIONS=memory_fraction:.5", status: 1,
			stderr: "RuntimeError: Unable to initialize backend 'cuda': INVALID_ARGUMENT: "},
		{name: "abort", env: "TF_PER_DEVICE_MEMORY_LIMIT_MB=x", status: 134, stderr: "Failed to parse"},

		{name: "tensorflow", args: "-as tensorflow", stdout: "ready: pool of 22.24 GiB, limit 22.24 GiB\n"},
		{name: "tensorflow, limit", args: "-as tensorflow", env: limitVar + "=4096", stdout: "ready: pool of 4 GiB, limit 4 GiB\n"},
		{name: "tensorflow, limit and growth", args: "-as tensorflow", env: limitVar + "=4096 TF_FORCE_GPU_ALLOW_GROWTH=true",
			stdout: "ready: pool of 2 MiB, limit 4 GiB\n"},
		{name: "tensorflow, limit too low", args: "-as tensorflow -need 16GiB", env: limitVar + "=2048", status: 1,
			stdout: "ready: pool of 2 GiB, limit 2 GiB\n", stderr: "RESOURCE_EXHAUSTED: "},
		{name: "tensorflow, limit without a pool", args: "-as tensorflow", env: limitVar + "=1024 TF_GPU_ALLOCATOR=cuda_malloc",
			stdout: "ready: pool of 0 B, limit 24 GiB\n"},
		{name: "tensorflow, bad limit", args: "-as tensorflow", env: limitVar + "=4GiB", status: 1, stderr: "sharing: " + limitVar + "=4GiB: want a number of MiB"},
		{name: "tensorflow, limit 0", args: "-as tensorflow", env: limitVar + "=0", status: 1, stderr: "sharing: " + limitVar + "=0: want"},
		{name: "jax does not read the limit", env: limitVar + "=4096", stdout: "ready: pool of 18 GiB, limit 18 GiB\n"},
		{name: "tensorflow does not read JAX's", args: "-as tensorflow", env: both + " JAX_PLATFORMS=cpu", stdout: "ready: pool of 22.24 GiB, limit 22.24 GiB\n"},

		{name: "bad framework", args: "-as torch", status: 2, stderr: "invalid value"},
		{name: "other framework", args: "-as gpumem", status: 2, stderr: `invalid value "gpumem" for flag -as: want jax or tensorflow`},
		{name: "bad need", args: "-need lots", status: 2, stderr: "invalid value"},
		{name: "word", args: "train", status: 2, stderr: `sharing: "train": no words but flags are taken`},
		{name: "help", args: "-help", stderr: "Usage of sharing:"},
		{name: "no folder for -ready", args: "-ready /nonexistent/ready", status: 1, stderr: "sharing: open /nonexistent/ready"},
	} {
		t.Run(c.name, func(t *testing.T) {
			device := c.device
			if device == "" {
				device = "sim:24GiB"
			}
			var stdout, stderr bytes.Buffer
			status := run(append([]string{"-for", "0s"}, strings.Fields(c.args)...), append(strings.Fields(c.env), "GPUMEM_DEVICE="+device), &stdout, &stderr)
			if status != c.status || stdout.String() != c.stdout {
				t.Errorf("status %d and %q, want %d and %q", status, stdout.String(), c.status, c.stdout)
			}
			if got := stderr.String(); !strings.HasPrefix(got, c.stderr) || c.stderr == "" && got != "" {
				t.Errorf("stderr %q, want %q", got, c.stderr)
			}
		})
	}
}

// TestReadyFile: the file is there once the first operation is done, on the CPU
// as well.
func TestReadyFile(t *testing.T) {
	for _, hidden := range []string{"0", "-1"} {
		file := filepath.Join(t.TempDir(), "ready")
		var stdout, stderr bytes.Buffer
		if status := run([]string{"-for", "0s", "-ready", file}, []string{"GPUMEM_DEVICE=sim:24GiB", "CUDA_VISIBLE_DEVICES=" + hidden}, &stdout, &stderr); status != 0 {
			t.Fatalf("status %d, %s", status, stderr.String())
		}
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
}

// TestTrain: a training takes what it is said to need, at most that, and nearly
// that; and a pool of just that size serves it.
func TestTrain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		need := rapid.Uint64Range(64<<10, 20<<30).Draw(t, "need")
		dev, err := sim.New(sim.Config{Total: 24 << 30, Granularity: 256}) // grants no more than is asked for
		if err != nil {
			t.Fatal(err)
		}
		p, err := frameworks.Parse(fmt.Sprintf("bfc:limit=%d", need&^255))
		if err != nil {
			t.Fatal(err)
		}
		pool, err := gpumem.Open(dev, p, gpumem.WithRetry(0))
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if err := train(pool, need, 0); err != nil {
			t.Fatal(err)
		}
		sizes := divide(need)
		sum := sizes.weights + sizes.scratch
		for _, n := range sizes.activations {
			sum += n
		}
		s := pool.Stats()
		if sum > need || need-sum > 32<<10 || s.PeakBytesInUse > need || s.PeakBytesInUse < sum || s.BytesInUse != 0 {
			t.Fatalf("blocks of %d, peak %d of %d, %d left", sum, s.PeakBytesInUse, need, s.BytesInUse)
		}
	})
}

// TestTrainRefused: wherever in a step the memory ends, that is the error.
func TestTrainRefused(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 24 << 30})
	if err != nil {
		t.Fatal(err)
	}
	const need = 3 << 30
	for limit := uint64(1 << 30); limit < need-need/8; limit += 128 << 20 {
		p, err := frameworks.Parse(fmt.Sprintf("bfc:limit=%d", limit))
		if err != nil {
			t.Fatal(err)
		}
		pool, err := gpumem.Open(dev, p, gpumem.WithRetry(0))
		if err != nil {
			t.Fatal(err)
		}
		if err := train(pool, need, 0); !errors.Is(err, gpumem.ErrOutOfMemory) {
			t.Errorf("limit %d: %v", limit, err)
		}
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	}
}
