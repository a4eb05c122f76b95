package launch

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpumem/device/sim"
	"gpumem/internal/test/standin"
	"gpumem/node/runenv"
)

// simulatedMachine has a folder of libraries as an installation has it, and returns a program that
// holds memory of the simulated GPU (hold.c) and the folder for temporary files.
func simulatedMachine(t *testing.T) (hold, scratch string) {
	t.Helper()
	folder, scratch := t.TempDir(), t.TempDir()
	if err := os.Symlink(standin.Library(t), filepath.Join(folder, "sim")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "libcuda.so.1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GPUMEM_LIB", folder)
	t.Setenv("TMPDIR", scratch)
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	return standin.Compile(t, "../simulate/testdata/hold.c"), scratch
}

// TestSimulatedProgramEndsAndLeavesNothing: its status is the program's, what it held is said, and
// its files are gone. With --mem it runs in a lease on the simulated GPU.
func TestSimulatedProgramEndsAndLeavesNothing(t *testing.T) {
	hold, scratch := simulatedMachine(t)
	for _, tc := range []struct {
		name    string
		gpu     string
		gpus    string
		bytes   uint64
		visible string // CUDA_VISIBLE_DEVICES
		command string
		status  int
		said    []string
		not     string // said
	}{
		{name: "alone", gpu: "4GiB", command: hold + " 0 1073741824", said: []string{"a simulated GPU of 4 GiB, of which the context of each process takes 1.50 GiB, compute capability 9.0", "simulated GPU 0: total 4 GiB, peak 2.50 GiB, of process"}},
		{name: "its status", gpu: "4GiB", command: "exit 7", status: 7, said: []string{"no process of the program has used the simulated GPU"}},
		{name: "killed", gpu: "T4", command: "kill -9 $$", status: 137, said: []string{"a simulated Tesla T4 of 14.55 GiB, of which the context"}},
		{name: "two cards", gpu: "T4*2", command: "true", said: []string{"2 simulated GPUs, each a Tesla T4 of 14.55 GiB, of which"}},
		{name: "ended by _exit", gpu: "4GiB", command: hold + " 0 1073741824 _exit", said: []string{"peak 2.50 GiB, of process ", ", or up to a 64th more"}},
		{name: "six processes", gpu: "8GiB,context=0", command: "for i in 1 2 3 4 5; do " + hold + " 0 ${i}097152; done; " + hold + " 0 1073741824", said: []string{
			"peak 1 GiB, of process ", "peak 6 MiB, of process", "and 2 more that held less\n", "simulated GPU 0: at most 1 GiB held by all at once"}, not: "peak 2 MiB"},
		{name: "a process with two GPUs", gpu: "4GiB*2,context=0", command: hold + " 0 1073741824 gpu 1 2097152", said: []string{"simulated GPU 0: total 4 GiB, peak 1 GiB", "simulated GPU 1: total 4 GiB, peak 2 MiB"}, not: "at once"},
		{name: "listed once", gpu: "4GiB*2", command: `CUDA_VISIBLE_DEVICES=1 ` + os.Args[0] + ` list >$TMPDIR/list && printf '%s\n' "$GPUMEM_DEVICE" "$GPUMEM_DEVICE,device=1" | cmp - $TMPDIR/list`},
		{name: "the second", gpu: "4GiB*2", command: "CUDA_VISIBLE_DEVICES=1 " + hold + " 0 1048576", said: []string{"simulated GPU 1: total 4 GiB, peak 1.50 GiB"}},
		{name: "a lease on the second", gpu: "4GiB*2", bytes: 2 << 30, visible: "1", command: `test -z "$CUDA_VISIBLE_DEVICES" && ` + hold + " 0 1048576", said: []string{"simulated GPU 1: total 4 GiB, peak 1.50 GiB"}},
		{name: "--gpu counts what is visible", gpu: "4GiB*3", gpus: "1", bytes: 2 << 30, visible: "2,1", command: hold + " 0 1048576", said: []string{"simulated GPU 1: total 4 GiB, peak 1.50 GiB"}},
		{name: "hidden", gpu: "4GiB", visible: "3", command: "! " + hold + " 0", said: []string{"CUDA_VISIBLE_DEVICES=3 hides the simulated GPU from the program"}},
		{name: "without a lease", gpu: "4GiB", command: `test -z "$GPUMEM_LEASE_ID"`},
		{name: "with one", gpu: "4GiB", bytes: 2 << 30, command: `test -n "$GPUMEM_LEASE_ID" && ` + hold + " 0 1048576", said: []string{"total 4 GiB, peak 1.50 GiB"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var said strings.Builder
			if tc.visible != "" {
				t.Setenv("CUDA_VISIBLE_DEVICES", tc.visible)
			}
			p := &Plan{
				Command: []string{"sh", "-c", tc.command}, Simulate: tc.gpu, GPUs: tc.gpus, Bytes: tc.bytes, Copies: 1,
				Say: func(line string) { said.WriteString(line + "\n") },
			}
			status, err := p.Run(t.Context())
			if err != nil || status != tc.status {
				t.Errorf("status %d, %v; want %d", status, err, tc.status)
			}
			for _, want := range tc.said {
				if !strings.Contains(said.String(), want) {
					t.Errorf("not said: %s\n%s", want, &said)
				}
			}
			if tc.not != "" && strings.Contains(said.String(), tc.not) {
				t.Errorf("said: %s\n%s", tc.not, &said)
			}
			if left, _ := filepath.Glob(filepath.Join(scratch, "gpumem-sim-*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// TestTimeOfASimulatedGPUIsSaid: that of both programs of the run, and nothing of what others did on a shared one before.
func TestTimeOfASimulatedGPUIsSaid(t *testing.T) {
	simulatedMachine(t)
	program := standin.Compile(t, "../../internal/test/standin/testdata/time.c")
	t.Setenv("GPUMEM_SIM_KERNEL", "2ms")
	gpu := "sim@" + filepath.Join(t.TempDir(), "gpu")
	for _, tc := range []struct{ name, gpu, command, said string }{
		{"created", gpu + ",create,total=1GiB", program + " kernels 20", "simulated GPU 0: time of its work: kernels 40ms, copies to the device 0s, copies to the host 0s\n"},
		{"both", gpu, program + " kernels 5 & " + program + " kernels 3; wait", "simulated GPU 0: time of its work: kernels 16ms, "},
		{"none", gpu, program + " kernels 0", ""},
	} {
		var said strings.Builder
		p := &Plan{Command: []string{"sh", "-c", tc.command}, Simulate: tc.gpu, Copies: 1, Say: func(line string) { said.WriteString(line + "\n") }}
		if status, err := p.Run(t.Context()); status != 0 || err != nil {
			t.Errorf("%s: status %d, %v", tc.name, status, err)
		}
		if tc.said == "" && strings.Contains(said.String(), "time of its work") || !strings.Contains(said.String(), tc.said) {
			t.Errorf("%s: want %q\n%s", tc.name, tc.said, &said)
		}
	}
}

// TestSimulatedGPUStaysWithAProcessThatRunsOn: with its files, which the next run removes.
func TestSimulatedGPUStaysWithAProcessThatRunsOn(t *testing.T) {
	hold, scratch := simulatedMachine(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	end, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("FIFO", fifo)
	run := func(command string) string {
		t.Helper()
		var said strings.Builder
		p := &Plan{Command: []string{"sh", "-c", command}, Simulate: "4GiB", Copies: 1, Say: func(line string) { said.WriteString(line + "\n") }}
		if status, err := p.Run(t.Context()); status != 0 || err != nil {
			t.Errorf("status %d, %v", status, err)
		}
		return said.String()
	}
	left := func() int { list, _ := filepath.Glob(filepath.Join(scratch, "gpumem-sim-*")); return len(list) }

	said := run(hold + ` 0 1048576 wait 3<"$FIFO" >/dev/null 2>&1 & until test -s "$GPUMEM_SIM_PEAKS"; do :; done`)
	if !strings.Contains(said, ", which runs on\n") || left() != 1 {
		t.Errorf("%d folders left, want 1\n%s", left(), said)
	}
	run("true")
	if left() != 1 {
		t.Errorf("%d folders left by the next run, want 1: the process runs on", left())
	}
	end.Close()
	for run("true"); left() > 0 && t.Context().Err() == nil; {
		run("true") // the process is about to end
	}
}

// TestSimulatedProgramEndsWithItsKilledParent: kill -9 of gpumem is one of the program, as where gpumem becomes the
// program.
func TestSimulatedProgramEndsWithItsKilledParent(t *testing.T) {
	simulatedMachine(t)
	run := exec.Command(os.Args[0], "simulate", "sh", "-c", "echo begun; exec cat")
	in, err := run.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close() // cat ends by a signal alone
	out, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	_ = out.(*os.File).SetReadDeadline(time.Now().Add(time.Minute))
	var begun [6]byte
	if _, err := io.ReadFull(out, begun[:]); err != nil {
		t.Fatal(err)
	}
	if err := run.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(out); err != nil { // ends with the program
		t.Error(err)
	}
	_ = run.Wait()
}

// TestPythonWithoutTheStartUpFileIsSaid: it has opened the driver, and its frameworks are not prepared.
func TestPythonWithoutTheStartUpFileIsSaid(t *testing.T) {
	simulatedMachine(t)
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("SKIPPED: no python3")
	}
	for _, flag := range []string{"-I", "-E", "-s"} { // the last reads it
		var said strings.Builder
		p := &Plan{
			Command: []string{"python3", flag, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"}, Simulate: "4GiB", Copies: 1,
			Say: func(line string) { said.WriteString(line + "\n") },
		}
		if status, err := p.Run(t.Context()); status != 0 || err != nil {
			t.Errorf("%s: status %d, %v", flag, status, err)
		}
		if got := strings.Contains(said.String(), "has not read the start-up file"); got != (flag != "-s") {
			t.Errorf("%s: %v\n%s", flag, got, &said)
		}
	}
}

// TestNeedsLease: each flag that asks for more than the simulated GPU has a lease taken on it, and nothing else has.
func TestNeedsLease(t *testing.T) {
	for name, set := range map[string]func(*Plan){
		"--mem": func(p *Plan) { p.Bytes = 1 }, "--share": func(p *Plan) { p.Share = 0.5 }, "--reserve": func(p *Plan) { p.Reserve = 1 },
		"--wait": func(p *Plan) { p.Wait = -1 }, "--copies": func(p *Plan) { p.Copies = 2 }, "--gpu": func(p *Plan) { p.GPUs = "0" },
		"--pool": func(p *Plan) { p.Pool = "elastic" }, "--record": func(p *Plan) { p.Record = "x.rec" }, "--procs": func(p *Plan) { p.Limits.Procs = 2 },
		"--allocator": func(p *Plan) { p.Limits.Allocator = "vmm" }, "--cpu-tensorflow": func(p *Plan) { p.Limits.CPUTensorFlow = true },
		"--growth": func(p *Plan) { p.Limits.Growth = true }, "--overhead": func(p *Plan) { p.Limits.Overhead = new(uint64) },
		"--remat": func(p *Plan) { p.Limits.Remat = "auto" },
	} {
		p := &Plan{Command: []string{"true"}, Simulate: "T4", Copies: 1, Limits: runenv.Limits{Procs: 1}}
		if p.needsLease() {
			t.Fatal("a plan without a flag needs a lease")
		}
		if set(p); !p.needsLease() {
			t.Errorf("%s needs no lease", name)
		}
	}
}

// TestShowSimulated: each setting with its reason, once that the files are made anew, and no folder is left. A variable
// of the user's that is kept is no change.
func TestShowSimulated(t *testing.T) {
	_, scratch := simulatedMachine(t)
	t.Setenv("GPUMEM_SIM_HAZARDS", "refuse")
	for _, bytes := range []uint64{0, 2 << 30} {
		e, err := (&Plan{Command: []string{"true"}, Simulate: "4GiB", Copies: 1, Bytes: bytes}).Show(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		reasons := map[string]string{}
		for _, c := range e.Changes {
			reasons[c.Name] = c.Why
			if old := os.Getenv(c.Name); c.Old != old && c.Name != "PYTHONPATH" { // which a lease changes again
				t.Errorf("%s was %q, not %q", c.Name, old, c.Old)
			}
		}
		for name, why := range map[string]string{
			"--simulate": "made anew for each run", "GPUMEM_SIM_PEAKS": "each process leaves there what it held", "XLA_FLAGS": "no kernel can be chosen by its time",
		} {
			if !strings.Contains(reasons[name], why) {
				t.Errorf("%d bytes: %s: %q, want %s", bytes, name, reasons[name], why)
			}
		}
		if _, changed := reasons["GPUMEM_SIM_HAZARDS"]; changed || (reasons["GPUMEM_LEASE"] != "") != (bytes > 0) {
			t.Errorf("%d bytes: %v", bytes, reasons)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(scratch, "gpumem-sim-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestSimulateAndDeviceAreRefused: both name the GPU.
func TestSimulateAndDeviceAreRefused(t *testing.T) {
	_, err := (&Plan{Command: []string{"true"}, Simulate: "T4", Device: "cuda:0", Copies: 1}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "--simulate and --device both name the GPU") {
		t.Error(err)
	}
}

// TestSimulateInALeaseIsRefused: the lease's settings are parts of another GPU.
func TestSimulateInALeaseIsRefused(t *testing.T) {
	t.Setenv("GPUMEM_LEASE_ID", "other")
	_, err := (&Plan{Command: []string{"true"}, Simulate: "T4", Copies: 1}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "in a lease of another GPU") {
		t.Error(err)
	}
}

// TestSimulatedGPUThatIsNotVisibleIsNoTarget: a lease is for a GPU that the program would see.
func TestSimulatedGPUThatIsNotVisibleIsNoTarget(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gpus")
	if err := sim.CreateFile(file, sim.Config{Total: 1 << 30}, sim.Config{Total: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ visible, gpus, wrong string }{
		{"2", "", "CUDA_VISIBLE_DEVICES=2 hides every simulated GPU"},
		{"", "0", "CUDA_VISIBLE_DEVICES= hides every simulated GPU"},
		{"1", "1", "--gpu 1: CUDA_VISIBLE_DEVICES=1 shows 1 of the simulated GPUs, so the last is 0"},
	} {
		p := &Plan{Device: "sim@" + file, GPUs: tc.gpus, env: []string{"CUDA_VISIBLE_DEVICES=" + tc.visible}}
		if err := p.choose(); err == nil || !strings.Contains(err.Error(), tc.wrong) {
			t.Errorf("%q, --gpu %q: %v, want %s", tc.visible, tc.gpus, err, tc.wrong)
		}
	}
}
