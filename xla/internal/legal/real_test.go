package legal_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpumem/xla/internal/gap"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/pass"
	"gpumem/xla/internal/test/remattest"
)

// TestPlansOfRealModulesAreLegal fails if the checker refuses gap's plan for a module of a real
// program, or XLA's for another reason than memory that was overwritten.
func TestPlansOfRealModulesAreLegal(t *testing.T) {
	for _, file := range remattest.Real(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".hlo.gz"), func(t *testing.T) {
			m := remattest.Read(t, file)
			for _, percent := range []uint64{40, 70} {
				limit := remattest.TempPeak(t, m) / 100 * percent
				after := m.Clone()
				added, err := gap.Run(after, gap.Options{Limit: limit, Seconds: remattest.BySize})
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				if err := (legal.Options{}).Check(m, after); err != nil {
					t.Errorf("gap: %v", err)
				}
				t.Logf("gap at %d %%: %d added to %d, checked in %v", percent, added, m.Instructions(), time.Since(start))
				after = m.Clone()
				r, err := pass.Run(after, pass.Options{Limit: limit})
				if err != nil {
					t.Fatal(err)
				}
				err = legal.Options{Collectives: true}.Check(m, after)
				if err != nil && !strings.Contains(err.Error(), "has overwritten") {
					t.Errorf("xla: %v", err)
				}
				t.Logf("xla at %d %%: %d added: %v", percent, r.Added, err)
			}
		})
	}
}
