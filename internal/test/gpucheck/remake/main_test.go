package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/test/gpucheck/report"
)

const before = `# Costs.

MemInfo 8us
	about: asks for free and total:
		5-12 us.

MemMap 2us
	measured: 2us on an old GPU
	about: maps.

MemUnmap 3us
	about: unmaps.
`

// A table that was remade has the measured values with their source; remaking it again with
// the same report changes nothing, and what was not measured, or measured as 0, stays.
func TestRemake(t *testing.T) {
	figures := map[string]report.Figure{"MemInfo": {Value: 6.25}, "MemMap": {Value: 1.5}, "MemUnmap": {Value: 1e-5}, "Other": {Value: 1}}
	after, changes := tables[0].remake(before, figures, "a GPU")
	want := strings.NewReplacer("MemInfo 8us\n", "MemInfo 6.25us\n\tmeasured: 6.25us on a GPU\n",
		"MemMap 2us\n\tmeasured: 2us on an old GPU\n", "MemMap 1.5us\n\tmeasured: 1.5us on a GPU\n").Replace(before)
	if diff := cmp.Diff(want, after); diff != "" {
		t.Errorf("the table differs (-want +got):\n%s", diff)
	}
	if want := []string{"MemInfo 6.25us, was 8us", "MemMap 1.5us, was 2us"}; !cmp.Equal(changes, want) {
		t.Errorf("changes %q, want %q", changes, want)
	}
	if again, _ := tables[0].remake(after, figures, "a GPU"); again != after {
		t.Errorf("remade twice it differs: %s", cmp.Diff(after, again))
	}
}
