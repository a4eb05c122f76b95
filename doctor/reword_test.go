package doctor

import (
	"slices"
	"testing"

	"gpumem/internal/test/doctortest"
)

func TestReword(t *testing.T) {
	seen := map[string]int{}
	for i, m := range doctortest.Samples(8) {
		for _, text := range []string{m.Log, doctortest.Paraphrase(m.Log, i)} {
			d := diagnose(t, text, m.State)
			ok := len(ids(d)) > 0 && slices.Contains(m.Causes, ids(d)[0]) && (d.Verdict == VerdictCause || d.Verdict == VerdictNotMemory || d.Verdict == VerdictNonfatal || m.Asks)
			if m.Open {
				ok = d.Verdict != VerdictCause
			}
			if m.Asks && d.Verdict == VerdictUnknown {
				ok = true
			}
			if !ok {
				if seen[m.Class]++; seen[m.Class] <= 2 {
					t.Logf("## %s: %s %v want %v open %v asks %v\n%s\n%s", m.Class, d.Verdict, ids(d), m.Causes, m.Open, m.Asks, text, m.State)
				}
			}
		}
	}
}
