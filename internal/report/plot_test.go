package report_test

import (
	"slices"
	"testing"

	"gpumem/internal/report"
)

func TestPlot(t *testing.T) {
	got := report.Plot([]uint64{0, 6 << 20, 3 << 20, 1 << 19}, 4)
	want := []string{
		"     6 MiB  █",
		"            █",
		"            █",
		"            ██",
		"            ██",
		"         0  ██▄",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	// Two steps a column: the highest counts.
	if got := report.Plot([]uint64{0, 6, 3, 0}, 2)[0]; got != "       6 B █" {
		t.Errorf("%q", got)
	}
	if got := report.Plot([]uint64{0, 0}, 4); got != nil {
		t.Errorf("without memory: %q", got)
	}
}
