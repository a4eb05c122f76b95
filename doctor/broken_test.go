// Answers to wrapped logs, by the kind of wrap and its width.
//
//	go test ./doctor -run Wraps -v    prints the table
//	go test ./doctor -run Wraps -widths 60,70,72,80,100,120,160,200
//
// A narrow width breaks the most lines: 60 breaks each that is broken at all, 80 is a
// terminal's, and at 120 it is the long lines alone, each broken once.
//
// It comes before measure_test.go, which writes the figures that miss the goal.
package doctor_test

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"gpumem/internal/test/doctortest"
)

// allWidths are those that testdata/measured.txt has figures of.
const allWidths = "60,70,72,80,100,120,160,200"

var widths = flag.String("widths", "60,80,120", "widths at which TestMeasureWraps wraps, with commas between; all with -measured")

// TestMeasureWraps: no kind of wrap, at no width, changes more than goalBroken percent of
// the answers.
func TestMeasureWraps(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: some ten thousand logs take ten seconds")
	}
	logs := settledLogs(t)
	if len(logs) == 0 {
		t.Skip("skipped: no logs in ../shared/data/oomlogs beside the checkout")
	}
	list := *widths
	if *writeFigure {
		list = allWidths
	}
	head := fmt.Sprintf("%-24s", "changed %, by width")
	var rows []string
	for i, word := range strings.Split(list, ",") {
		width, err := strconv.Atoi(word)
		if err != nil || width < 20 {
			t.Fatalf("-widths %q: want numbers from 20 on, with commas between", list)
		}
		head += fmt.Sprintf(" %6d", width)
		for k, b := range doctortest.Wraps(width) {
			if i == 0 {
				rows = append(rows, fmt.Sprintf("%-24s", b.Name))
			}
			asked, changed, blamed, examples := changes(t, logs, 1, b.Apply)
			rows[k] += fmt.Sprintf(" %6.1f", percent(changed, asked))
			measured.check(t, fmt.Sprintf("wrap/%s/%d", strings.NewReplacer(", ", "-", " ", "-").Replace(b.Name), width),
				percent(changed, asked), goalBroken, false)
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
