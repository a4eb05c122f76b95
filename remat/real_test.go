package remat

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpumem/hlo"
	"gpumem/hlo/memory"
	"gpumem/hlo/verify"
	"gpumem/internal/test/hlotest"
)

// realModules are modules of JAX, XLA and PyTorch that lie beside the working tree.
func realModules(t testing.TB) []string {
	files, _ := filepath.Glob("../../shared/data/hlo/*.hlo.gz")
	if len(files) == 0 {
		t.Skip("no modules in ../../shared/data/hlo: not tried on real ones")
	}
	return files
}

func read(t testing.TB, file string) *hlo.Module {
	t.Helper()
	return hlotest.Module(t, strings.TrimSuffix(filepath.Base(file), ".hlo.gz"))
}

// The pass on real modules: at most of them, single instructions do not get it far
// below 0.8 of the peak.
func TestRealModules(t *testing.T) {
	for _, file := range realModules(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".hlo.gz")
		t.Run(name, func(t *testing.T) {
			for _, part := range []float64{0.8, 0.6} {
				m := read(t, file)
				sum := uint64(0)
				if name != "rocm_alphafold3" { // whose calls in calls are many when written out
					sum = entryMeaning(m)
				}
				start := time.Now()
				peak, at, err := memory.TempPeak(m, memory.Options{})
				if err != nil {
					t.Fatal(err)
				}
				measured := time.Since(start)
				output, err := memory.ResultBytes(m, nil)
				if err != nil {
					t.Fatal(err)
				}
				start = time.Now()
				r, err := XLA(m, Options{Limit: uint64(part*float64(peak)) + uint64(output)})
				if err != nil {
					t.Fatal(err)
				}
				took := time.Since(start)
				if m.Instructions() < 1500 {
					// The second opinion is slow.
					if peak, err := replayPeak(m.String(), bytesOf); err != nil || peak != int64(r.Measured) {
						t.Errorf("a second opinion on the peak: %d bytes, %v; want %d", peak, err, r.Measured)
					}
				}
				if sum != 0 && entryMeaning(m) != sum {
					t.Error("it computes something else")
				}
				if err := verify.Module(m); err != nil {
					t.Fatal(err)
				}
				t.Logf("%d instructions, peak %.2f GB at %s (%v); limit %.1f: after %.3f, measured %.3f, chosen %d, added %d (%v)", m.Instructions(), float64(peak)/1e9, at.Name, measured.Round(time.Millisecond), part,
					float64(int64(r.After)-output)/float64(peak), float64(int64(r.Measured)-output)/float64(peak), r.Chosen, r.Added, took.Round(time.Millisecond))
			}
		})
	}
}
