package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
		bytes   uint64
		command string
		status  int
		said    []string
	}{
		{name: "alone", gpu: "4GiB", command: hold + " 0 1073741824", said: []string{"a simulated GPU of 4 GiB, compute capability 9.0", "simulated GPU 0: total 4 GiB, peak 1 GiB, of process"}},
		{name: "its status", gpu: "4GiB", command: "exit 7", status: 7, said: []string{"no process of the program has used the simulated GPU"}},
		{name: "killed", gpu: "T4", command: "kill -9 $$", status: 137},
		{name: "ended by _exit", gpu: "4GiB", command: hold + " 0 1073741824 _exit", said: []string{"peak 1 GiB, of process ", ", or up to a 64th more"}},
		{name: "without a lease", gpu: "4GiB", command: `test -z "$GPUMEM_LEASE_ID"`},
		{name: "with one", gpu: "4GiB", bytes: 1 << 30, command: `test -n "$GPUMEM_LEASE_ID" && ` + hold + " 0 1048576", said: []string{"total 4 GiB, peak 2 MiB"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var said strings.Builder
			p := &Plan{
				Command: []string{"sh", "-c", tc.command}, Simulate: tc.gpu, Bytes: tc.bytes, Copies: 1,
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
