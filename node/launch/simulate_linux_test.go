package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/device/sim"
	"gpumem/internal/test/standin"
)

// TestSimulatedProgramEndsAndLeavesNothing: its status is the program's, what it held is said, and
// its files are gone. With --mem it runs in a lease on the simulated GPU.
func TestSimulatedProgramEndsAndLeavesNothing(t *testing.T) {
	folder, scratch := t.TempDir(), t.TempDir()
	if err := os.Symlink(standin.Library(t), filepath.Join(folder, "sim")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "libcuda.so.1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	hold := standin.Compile(t, "../simulate/testdata/hold.c")
	t.Setenv("GPUMEM_LIB", folder)
	t.Setenv("TMPDIR", scratch)
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	for _, tc := range []struct {
		name    string
		gpu     string
		gpus    string
		bytes   uint64
		visible string // CUDA_VISIBLE_DEVICES
		command string
		status  int
		said    []string
	}{
		{name: "alone", gpu: "4GiB", command: hold + " 0 1073741824", said: []string{"a simulated GPU of 4 GiB, compute capability 9.0", "simulated GPU 0: total 4 GiB, peak 1 GiB, of process"}},
		{name: "its status", gpu: "4GiB", command: "exit 7", status: 7, said: []string{"no process of the program has used the simulated GPU"}},
		{name: "killed", gpu: "T4", command: "kill -9 $$", status: 137},
		{name: "ended by _exit", gpu: "4GiB", command: hold + " 0 1073741824 _exit", said: []string{"peak 1 GiB, of process ", ", or up to a 64th more"}},
		{name: "the second", gpu: "4GiB*2", command: "CUDA_VISIBLE_DEVICES=1 " + hold + " 0 1048576", said: []string{"simulated GPU 1: total 4 GiB, peak 2 MiB"}},
		{name: "a lease on the second", gpu: "4GiB*2", bytes: 1 << 30, visible: "1", command: `test -z "$CUDA_VISIBLE_DEVICES" && ` + hold + " 0 1048576", said: []string{"simulated GPU 1: total 4 GiB, peak 2 MiB"}},
		{name: "--gpu counts what is visible", gpu: "4GiB*3", gpus: "1", bytes: 1 << 30, visible: "2,1", command: hold + " 0 1048576", said: []string{"simulated GPU 1: total 4 GiB, peak 2 MiB"}},
		{name: "hidden", gpu: "4GiB", visible: "3", command: "! " + hold + " 0", said: []string{"CUDA_VISIBLE_DEVICES=3 hides the simulated GPU from the program"}},
		{name: "without a lease", gpu: "4GiB", command: `test -z "$GPUMEM_LEASE_ID"`},
		{name: "with one", gpu: "4GiB", bytes: 1 << 30, command: `test -n "$GPUMEM_LEASE_ID" && ` + hold + " 0 1048576", said: []string{"total 4 GiB, peak 2 MiB"}},
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
			if left, _ := filepath.Glob(filepath.Join(scratch, "gpumem-sim-*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
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
