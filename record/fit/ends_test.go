package fit_test

import (
	"testing"

	"gpumem/device/sim"
	"gpumem/record/fit"
)

// TestHardEnds: what a process has is free when it has ended, however it did, and not before. Nor is a process lost to the answer
// because the card has no room for its context.
func TestHardEnds(t *testing.T) {
	python := pythonPath(t)
	const loop = `for i in 1 2 3; do "$0" testdata/ends.py one "$1"; done; true`
	for _, tc := range []struct {
		program, how string // program "": a shell's
		total        uint64
		gib          uint64 // at the peak
	}{
		{"subprocesses", "exit", 8 << 30, 1},
		{"subprocesses", "_exit", 8 << 30, 1},
		{"subprocesses", "kill", 8 << 30, 1},
		{"subprocesses", "crash", 8 << 30, 1},
		{"spawned", "kill", 8 << 30, 1},
		{"then_parent", "kill", 8 << 30, 1},
		{"parent_before", "kill", 8 << 30, 2},
		{"", "kill", 8 << 30, 1},
		{"", "_exit", 8 << 30, 1},
		{"ignored", "", 3 << 29, 2}, // the second context is refused, and no request is
	} {
		t.Run(tc.program+" "+tc.how, func(t *testing.T) {
			command := []string{python, "testdata/ends.py", tc.program, tc.how}
			if tc.program == "" {
				command = []string{"sh", "-c", loop, python, tc.how}
			}
			r, err := fit.Run(t.Context(), fit.Config{Command: command, Env: environ(t), Sim: sim.Config{Total: tc.total}, Context: 1 << 28, Stderr: testLog{t}})
			if err != nil {
				t.Fatal(err)
			}
			if r.PeakBytes != tc.gib<<30 || r.Fits != (tc.total == 8<<30) {
				t.Errorf("a peak of %d MiB, want %d GiB; fits %v", r.PeakBytes>>20, tc.gib, r.Fits)
			}
		})
	}
}
