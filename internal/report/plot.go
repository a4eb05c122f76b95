package report

// Curves as text.

import (
	"fmt"
	"slices"
	"strings"

	"gpumem/size"
)

// plotRows is the height of a plot.
const plotRows = 6

// Plot draws bytes over steps as lines of text, with the largest on the axis. Each of
// at most n columns is as high as the highest of its steps, in eighths of a row. There
// are no lines if all is 0.
func Plot(curve []uint64, n int) []string {
	high := Columns(curve, max(n, 1))
	top := slices.Max(append(high, 0))
	if top == 0 {
		return nil
	}
	eighths := []rune(" ▁▂▃▄▅▆▇█")
	lines := make([]string, plotRows)
	for row := range lines {
		var b strings.Builder
		switch row {
		case 0:
			fmt.Fprintf(&b, "%10s ", size.Format(top))
		case plotRows - 1:
			fmt.Fprintf(&b, "%10s ", "0")
		default:
			b.WriteString(strings.Repeat(" ", 11))
		}
		below := float64(plotRows - 1 - row)
		for _, v := range high {
			part := float64(v)/float64(top)*plotRows - below
			b.WriteRune(eighths[int(min(max(part, 0), 1)*8+.5)])
		}
		lines[row] = strings.TrimRight(b.String(), " ")
	}
	return lines
}
