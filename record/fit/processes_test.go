package fit_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/device/sim"
	"gpumem/node/simulate"
	"gpumem/policy"
	"gpumem/record/fit"
)

// processesProgram is one of testdata/processes.py.
type processesProgram struct {
	name     string
	launcher []string // words between python and the file
	needs    string   // a module that has to be installed
	gpus     int
	apart    bool // its processes run one after the other
	jax      bool
	byTurns  bool // which process takes its three quarters of the GPU first differs from run to run
}

var (
	torchrun   = strings.Fields("-m torch.distributed.run --standalone --nproc-per-node 2")
	accelerate = strings.Fields("-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 --main_process_port 0 --mixed_precision no --dynamo_backend no")
	pytest     = strings.Fields("-m pytest -q -p no:cacheprovider -n 2")
)

var processesPrograms = []processesProgram{
	{name: "spawn_two_gpus", gpus: 2},
	{name: "spawn_one_gpu", gpus: 1},
	{name: "spawn_four_on_two", gpus: 2},
	{name: "fork", gpus: 1},
	{name: "fork_after_nvml", gpus: 1},
	{name: "forkserver", gpus: 1},
	{name: "in_turn", gpus: 1, apart: true},
	{name: "pool", gpus: 1},
	{name: "subprocesses", gpus: 2},
	{name: "parent_too", gpus: 1},
	{name: "killed", gpus: 1},
	{name: "loader", gpus: 1},
	{name: "loader_cuda", gpus: 1},
	{name: "ddp", launcher: torchrun, gpus: 2},
	{name: "ddp_gloo", launcher: torchrun, gpus: 2},
	{name: "fsdp", launcher: torchrun, gpus: 2},
	{name: "fsdp2", launcher: torchrun, gpus: 2},
	{name: "zero", launcher: torchrun, gpus: 2},
	{name: "tensor_parallel", launcher: torchrun, gpus: 2},
	{name: "pipeline", launcher: torchrun, gpus: 2},
	{name: "accelerated", launcher: accelerate, needs: "accelerate", gpus: 2},
	{name: "pytest", launcher: pytest, needs: "xdist", gpus: 1},
	{name: "jax_one_gpu", needs: "jax", gpus: 1, jax: true, byTurns: true},
	{name: "jax_distributed", needs: "jax", gpus: 2, jax: true},
}

// counted is what a process of a program counted.
type counted struct {
	GPU      int
	Reserved uint64
	Live     uint64
}

// TestProcesses runs programs of several processes. What fit says is reserved of each GPU at most
// is what the allocators of the processes that have it at once count together; the smallest device
// serves the program, and one of 2 % less does not (not with -short). GPUMEM_TEST_PROCESSES is a
// Python with torch, jax, accelerate and pytest-xdist; a program whose module it lacks is skipped.
func TestProcesses(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_PROCESSES")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_PROCESSES names no Python with torch for CUDA")
	}
	file, err := filepath.Abs("testdata/processes.py")
	if err != nil {
		t.Fatal(err)
	}
	env := slices.DeleteFunc(environ(t), func(line string) bool { return strings.HasPrefix(line, "PYTHONPATH=") })
	t.Chdir(t.TempDir()) // python -m looks for modules here, and this folder has a torch.py
	for _, p := range processesPrograms {
		t.Run(p.name, func(t *testing.T) {
			if p.needs != "" && exec.Command(python, "-c", "import "+p.needs).Run() != nil {
				t.Skipf("SKIPPED: %s has no %s", python, p.needs)
			}
			command := append(append([]string{python}, p.launcher...), file)
			if p.name != "pytest" {
				command = append(command, p.name)
			}
			p.test(t, env, command)
		})
	}
}

// contextOfEach is what each process takes beside its pool.
const contextOfEach = 200 << 20

func (p processesProgram) test(t *testing.T, env, command []string) {
	counts := filepath.Join(t.TempDir(), "counts")
	r, err := fit.Run(t.Context(), fit.Config{
		Command: command, Env: append(slices.Clone(env), "COUNTS="+counts), Sim: sim.Config{Total: 6 << 30, CCMajor: 8}, GPUs: p.gpus, Context: contextOfEach,
		Full: true, Stderr: testLog{t}, Stdout: testLog{t},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, want := p.held(r), p.expected(t, counts)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("held of each GPU %v, the allocators have %v", got, want)
	}
	first := r.Candidates[0]
	if notes := strings.Join(r.Trace.Notes, "\n"); strings.Contains(notes, "was ended from outside") || strings.Contains(notes, "last million events") {
		t.Error(notes)
	}
	if first.SmallestDevice == nil {
		t.Fatal("no smallest device")
	}
	t.Logf("%d processes, held %v, smallest device %d MiB", len(r.Program.Shares), got, *first.SmallestDevice>>20)

	if testing.Short() || p.byTurns {
		return
	}
	smallest := *first.SmallestDevice
	if out, err := p.runOn(t, env, command, smallest); err != nil {
		t.Errorf("refused on the smallest device, %d: %v\n%s", smallest, err, out)
	}
	if out, err := p.runOn(t, env, command, smallest/100*98); err == nil {
		t.Errorf("served on 2 %% less than %d\n%s", smallest, out)
	}
}

// held returns what fit says is held of each GPU, of JAX what is live.
func (p processesProgram) held(r *fit.Report) map[int]uint64 {
	got := map[int]uint64{0: r.Candidates[0].HeldPeak}
	if p.jax {
		got[0] = r.PeakBytes
	}
	for _, g := range r.GPUs {
		var n int
		fmt.Sscanf(g.Pool, "cuda:%d", &n)
		if got[n] = g.Candidates[0].HeldPeak; p.jax {
			got[n] = g.PeakLive
		}
	}
	return got
}

// expected returns what the processes counted together of each GPU.
func (p processesProgram) expected(t *testing.T, path string) map[int]uint64 {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := map[int]uint64{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var c counted
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if n := c.Reserved + c.Live; p.apart {
			want[c.GPU] = max(want[c.GPU], n)
		} else {
			want[c.GPU] += n
		}
	}
	return want
}

// runOn runs the program on simulated GPUs of a size, without fit.
func (p processesProgram) runOn(t *testing.T, env, command []string, total uint64) ([]byte, error) {
	t.Helper()
	folder := t.TempDir()
	file := filepath.Join(folder, "gpus")
	var cards []sim.Config
	for range p.gpus {
		cards = append(cards, sim.Config{Total: total, Context: contextOfEach, CCMajor: 8})
	}
	if err := sim.CreateFile(file, cards...); err != nil {
		t.Fatal(err)
	}
	gpu, err := simulate.New("sim@"+file, policy.Environ(env).Get)
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	c := exec.CommandContext(t.Context(), command[0], command[1:]...)
	c.Env = gpu.Environ(append(slices.Clone(env), "COUNTS="+filepath.Join(folder, "counts")))
	return c.CombinedOutput()
}

// testLog is the output of a program in the test's log.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", bytes.TrimSpace(p))
	return len(p), nil
}

// TestBuckets: where PyTorch's thread that watches NCCL still had the first buckets of 128 MiB in the second
// step, the peak was that much higher, in about every second run.
func TestBuckets(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_PROCESSES")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_PROCESSES names no Python with PyTorch")
	}
	env := environ(t)
	for range 3 {
		r, err := fit.Run(t.Context(), fit.Config{
			Command: []string{python, "testdata/buckets.py"}, Env: env, Sim: sim.Config{Total: 16 << 30}, GPUs: 2, Full: true, Stderr: os.Stderr,
		})
		if err != nil {
			t.Fatal(err)
		}
		// Weights, gradients, two moments, the buckets, and what AdamW makes of all weights at once; the rest is cuBLAS's.
		if r.PeakBytes < 6*128<<20 || r.PeakBytes > 6*128<<20+64<<20 {
			t.Errorf("%d MiB", r.PeakBytes>>20)
		}
		if !slices.ContainsFunc(r.Doubts, func(d fit.Doubt) bool { return d.Kind == fit.Watched && strings.Contains(d.Text, "128 MiB") }) {
			t.Errorf("%+v", r.Doubts)
		}
	}
}
