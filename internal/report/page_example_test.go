package report_test

import (
	"fmt"
	"strings"

	"gpumem/internal/report"
)

// A drawing of a run of four events under one policy. Package replay fills pages
// from recordings.
func ExampleWriteSVG() {
	p := &report.Page{Pools: []*report.Timeline{{
		Events: 4, Ends: []uint64{1, 2, 3, 4}, Peak: 3 << 20, PeakAt: 2,
		Asked:  []uint64{1 << 20, 3 << 20, 2 << 20, 0},
		Layers: []*report.Layer{{Policy: "jax", Held: []uint64{4 << 20, 4 << 20, 4 << 20, 4 << 20}}},
	}}}
	var b strings.Builder
	if err := report.WriteSVG(&b, p); err != nil {
		fmt.Println(err)
	}
	fmt.Println(strings.HasPrefix(b.String(), "<svg "), strings.Contains(b.String(), "peak 3 MiB"))
	// Output: true true
}
