package remat

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/test/remattest"
)

// No plan goes below the bound of its module.
func TestProofsHold(t *testing.T) {
	for name, text := range map[string]func(*rapid.T) string{
		"instructions": func(t *rapid.T) string { return remattest.Random(t) },
		"loops":        func(t *rapid.T) string { return remattest.Scans(t) },
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m := remattest.Parsed(t, text(t))
				percent := float64(rapid.IntRange(10, 100).Draw(t, "percent"))
				a, err := Run(t.Context(), m, Request{Algorithm: "gap", Limit: Percent(percent), Rates: cost.Rates{Bytes: 3e12, Flops: 4e14}})
				if err != nil {
					t.Fatal(err)
				}
				if a.After < a.LowerBound {
					t.Errorf("%s: %d bytes, and no plan is said to go below %d\n%s", a.By, a.After, a.LowerBound, m)
				}
				// A loop with another state runs not even at its place.
				if strings.Contains(a.By, "loops") && (a.OutOfReach || a.LowerPercent > 0) {
					t.Errorf("%s: proven at least %v %%, out of reach %t\n%s", a.By, a.LowerPercent, a.OutOfReach, m)
				}
			})
		})
	}
}
