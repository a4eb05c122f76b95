// Answers to wrapped logs, by the kind of wrap and its width.
//
//	go test ./doctor -run Wraps -v    prints the table
//
// It comes before measure_test.go, which writes the figures that miss the goal.
package doctor_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"gpumem/internal/test/doctortest"
)

// TestMeasureWraps: no kind of wrap, at no width, changes more than goalBroken percent of
// the answers.
func TestMeasureWraps(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: some twenty thousand logs take a minute")
	}
	logs := settledLogs(t)
	if len(logs) == 0 {
		t.Skip("skipped: no logs in ../shared/data/oomlogs beside the checkout")
	}
	widths := []int{60, 70, 72, 80, 100, 120, 160, 200}
	head := fmt.Sprintf("%-24s", "changed %, by width")
	var rows []string
	for i, width := range widths {
		head += fmt.Sprintf(" %6d", width)
		for k, b := range doctortest.Wraps(width) {
			if i == 0 {
				rows = append(rows, fmt.Sprintf("%-24s", b.Name))
			}
			asked, changed, blamed, examples := changes(t, logs, 1, b.Apply)
			rows[k] += fmt.Sprintf(" %6.1f", percent(changed, asked))
			measured.check(t, fmt.Sprintf("wrap/%s/%d", strings.NewReplacer(", ", "-", " ", "-").Replace(b.Name), width), percent(changed, asked), goalBroken, false)
			if blamed > 0 {
				rows[k] += "!"
			}
			if os.Getenv("GPUMEM_EXAMPLES") != "" {
				t.Log(width, b.Name, strings.Join(examples, "\n"))
			}
		}
	}
	t.Log(head + "\n" + strings.Join(rows, "\n"))
}
