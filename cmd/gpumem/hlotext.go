package main

// What hlo says to people: the sizes, the curve of memory over the program, and
// what lives where it is highest.

import (
	"fmt"
	"io"
	"strings"

	"gpumem/report"
	"gpumem/size"
)

func writeHLO(w io.Writer, a *moduleAnswer, width int) error {
	var t text
	order := "in the order in which they run"
	if !a.Scheduled {
		order = "not scheduled: measured in the order of the text"
	}
	t.raw(report.Wrap(clean(fmt.Sprintf("%s: %s in %s, %s", a.Name, counted(uint64(a.Instructions), "instruction"), counted(uint64(a.Computations), "computation"), order)), width))
	aliased := ""
	if a.Alias > 0 {
		aliased = ", of which " + size.Format(a.Alias) + " lie in parameters"
	}
	t.raw(fmt.Sprintf("  %-11s  %10s", "parameters", size.Format(a.Parameter)))
	t.raw(fmt.Sprintf("  %-11s  %10s%s", "results", size.Format(a.Output), aliased))
	t.raw(fit(fmt.Sprintf("  %-11s  %10s at %s, parameters and results with it", "peak", size.Format(a.Peak), a.At), width))
	t.raw(fit(fmt.Sprintf("  %-11s  %10s at %s, as XLA's recompute pass counts", "temporaries", size.Format(a.TempPeak), a.TempAt), width))
	if a.Regions > 0 {
		t.raw("  " + counted(uint64(a.Regions), "region") + " marked by jax.checkpoint")
	}
	if len(a.curve) > 1 {
		t.section("Memory over the program")
		for _, l := range drawCurve(a.curve, width-14) {
			t.raw("  " + l)
		}
	}
	if len(a.Largest) > 0 {
		t.section(fmt.Sprintf("Alive at the peak: %s, the largest", counted(uint64(a.alive), "value")))
		for _, v := range a.Largest {
			from := v.OpName
			if v.Source != "" {
				from += " " + v.Source
			}
			t.raw(fit(fmt.Sprintf("  %10s  %s", size.Format(v.Bytes), oneLine(v.Instruction+" "+v.Shape)), width))
			if from = strings.TrimSpace(from); from != "" {
				t.raw("              " + tailOf(oneLine(from), width-14))
			}
		}
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}

// tailOf is the end of a text that is too long: of an operation's way the end
// says most.
func tailOf(text string, n int) string {
	if r := []rune(text); len(r) > n && n > 3 {
		return "..." + string(r[len(r)-n+3:])
	}
	return text
}

// curveRows is how high the curve is drawn.
const curveRows = 6

// drawCurve draws bytes over places, the highest of each column, with the
// largest on its axis. A column is as high as eighths of a row allow.
func drawCurve(curve []uint64, columns int) []string {
	columns = max(1, min(columns, len(curve)))
	high := make([]uint64, columns)
	var top uint64
	for n, v := range curve {
		at := n * columns / len(curve)
		high[at] = max(high[at], v)
		top = max(top, v)
	}
	if top == 0 {
		return nil
	}
	eighths := []rune(" ▁▂▃▄▅▆▇█")
	lines := make([]string, curveRows)
	for row := range lines {
		var b strings.Builder
		switch row {
		case 0:
			fmt.Fprintf(&b, "%10s ", size.Format(top))
		case curveRows - 1:
			fmt.Fprintf(&b, "%10s ", "0")
		default:
			b.WriteString(strings.Repeat(" ", 11))
		}
		below := float64(curveRows - 1 - row)
		for _, v := range high {
			part := float64(v)/float64(top)*curveRows - below
			b.WriteRune(eighths[int(min(max(part, 0), 1)*8+.5)])
		}
		lines[row] = strings.TrimRight(b.String(), " ")
	}
	return lines
}
