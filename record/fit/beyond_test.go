package fit_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"gpumem/device/sim"
	"gpumem/internal/test/standin"
	"gpumem/record/fit"
)

// TestCatching: which statements of a program catch an error and go on.
func TestCatching(t *testing.T) {
	python := pythonPath(t)
	out, err := exec.Command(python, "testdata/catching.py", "beyond.py").CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) != 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestRefusedBesideServed: a process that was refused on the card is run again, also where another one is of a framework that is
// served beyond it.
func TestRefusedBesideServed(t *testing.T) {
	program := standin.Compile(t, "testdata/program.c")
	for _, other := range []string{`{"framework":"jax"}`, `{"framework":"pytorch","beyond":true}`} {
		again := 0
		r, err := fit.Run(t.Context(), fit.Config{
			Command: []string{"sh", "-c", `echo "$1" >"$GPUMEM_FIT.$$"; "$0" 3000`, program, other}, Env: environ(t), Sim: sim.Config{Total: 2 << 30},
			Again: func(string) { again++ },
		})
		if err != nil {
			t.Fatal(err)
		}
		if p := r.Program; p.TooLarge || p.RanOn != 1<<40 || r.PeakBytes != 3000<<20 || again != 1 {
			t.Errorf("beside %s: too large %v, ran on %d, peak %d, %d times again", other, p.TooLarge, p.RanOn, r.PeakBytes, again)
		}
	}
}

// TestBlockBeyondTheCardIsAskedOnce: the thread that answers may wait for a lock of the one that asks, which then waits for it
// at each of the 512 pages of a block of 1 GiB, a minute for each.
func TestBlockBeyondTheCardIsAskedOnce(t *testing.T) {
	program := standin.Compile(t, "testdata/asked.c")
	_, err := fit.Run(t.Context(), fit.Config{Command: []string{program}, Env: environ(t), Sim: sim.Config{Total: 2 << 30}, Stderr: os.Stderr})
	if err != nil {
		t.Error(err)
	}
}

// TestTorchBeyondTheCard: one run is enough for a program that is larger than the card, unless it
// catches the refusal and fails all the same, and one that catches it goes on as on the card.
func TestTorchBeyondTheCard(t *testing.T) {
	python := os.Getenv("GPUMEM_TEST_TORCH")
	if python == "" {
		t.Skip("SKIPPED: GPUMEM_TEST_TORCH names no Python with torch for CUDA")
	}
	env := environ(t)
	for _, tc := range []struct {
		name   string
		fits   bool
		again  int    // how often it is started again
		caught uint64 // refusals
		peak   uint64 // MiB
	}{
		{name: "large", peak: 4096},
		{name: "large_in_backward", peak: 6144},
		{name: "by_the_card", fits: true, peak: 512},
		{name: "finds_a_batch", fits: true, caught: 2, peak: 1024},
		{name: "finds_a_batch_by_text", fits: true, caught: 2, peak: 1024},
		{name: "finds_a_batch_in_backward", fits: true, caught: 1, peak: 1536},
		{name: "gives_up", again: 1, peak: 4096},
		{name: "raises_again", peak: 4096},
		{name: "in_a_forked_child", peak: 4096},
	} {
		t.Run(tc.name, func(t *testing.T) {
			runs := filepath.Join(t.TempDir(), "runs")
			again := 0
			r, err := fit.Run(t.Context(), fit.Config{
				Command: []string{python, "testdata/beyond.py", tc.name, runs}, Env: env, Sim: sim.Config{Total: 2 << 30}, Context: 256 << 20,
				Stderr: os.Stderr, Again: func(why string) { again++; t.Log(why) },
			})
			if err != nil {
				t.Fatal(err)
			}
			if r.Fits != tc.fits || r.Program.Caught != tc.caught || again != tc.again || r.PeakBytes>>20 != tc.peak {
				t.Errorf("fits %v, caught %d at %q, %d times again, %d MiB", r.Fits, r.Program.Caught, r.Program.CaughtAt, again, r.PeakBytes>>20)
			}
			if began, err := os.ReadFile(runs); err != nil || len(began) != again+1 {
				t.Errorf("%d runs, %v", len(began), err)
			}
		})
	}
}
