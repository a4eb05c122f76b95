package pass

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/test/remattest"
	"gpumem/xla/internal/verify"
)

// The pass on real modules: at most of them, single instructions do not get it far
// below 0.8 of the peak.
func TestRealModules(t *testing.T) {
	for _, file := range remattest.Real(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".hlo.gz")
		t.Run(name, func(t *testing.T) {
			for _, part := range []float64{0.8, 0.6} {
				m := remattest.Read(t, file)
				sum := uint64(0)
				if name != "rocm_alphafold3" { // whose calls in calls are many when written out
					sum = remattest.Meaning(m)
				}
				start := time.Now()
				peak, at, err := memory.TempPeak(m, memory.Options{})
				if err != nil {
					t.Fatal(err)
				}
				measured := time.Since(start)
				start = time.Now()
				r, err := Run(m, Options{Limit: uint64(part * float64(peak))})
				if err != nil {
					t.Fatal(err)
				}
				took := time.Since(start)
				now, _, err := memory.TempPeak(m, memory.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if m.Instructions() < 1500 { // the model is slow
					output := remattest.ResultBytes(m)
					if peak, err := remattest.ReplayPeak(m.String(), remattest.Bytes); err != nil || peak-output != int64(now) {
						t.Errorf("the model's peak is %d bytes, %v; want %d", peak-output, err, now)
					}
				}
				if sum != 0 && remattest.Meaning(m) != sum {
					t.Error("it computes something else")
				}
				if err := verify.Module(m); err != nil {
					t.Fatal(err)
				}
				t.Logf("%d instructions, peak %.2f GB at %s (%v); limit %.1f: after %.3f, measured %.3f, chosen %d, added %d (%v)", m.Instructions(), float64(peak)/1e9, at.Name, measured.Round(time.Millisecond), part,
					float64(r.After)/float64(peak), float64(now)/float64(peak), r.Chosen, r.Added, took.Round(time.Millisecond))
			}
		})
	}
}
