// The history of a device: its memory in use over the last minutes.

package screen

import (
	"math"
	"strings"
	"time"

	"gpumem/node/internal/history"
	"gpumem/size"
)

const (
	// gutter is the width of the scale at the left of a graph.
	gutter = 12
	// graphLeast is the least width of a graph.
	graphLeast = 8
)

// graph draws what a device had in use, rows high, with the time and the largest value
// below; with one row both stand in it. Each column is the largest value of equal times
// that do not begin anew with each look, so that the picture moves by whole columns. The
// scale ends at the device's memory, or at 3/4, 1/2, 3/8, 1/4... of it.
func (v *screenView) graph(values []history.Value, total uint64, rows int) []line {
	if rows == 0 || v.Width < gutter+graphLeast+1 {
		return nil
	}
	room := v.Width - gutter
	after := ""
	if rows == 1 {
		after = " max 1023.99 GiB" // as wide as it gets
		room -= len(after)
	}
	room = min(room, history.Keep)
	if room < graphLeast {
		return nil
	}
	slice := time.Duration(max(1, history.Keep/room)) * v.Every
	columns, known, most := v.columns(values, room, slice)
	top := total
	for range 6 { // to a 64th: the noise of an idle device is no mountain
		if top/2 >= most && most > 0 {
			top /= 2
		}
	}
	if top-top/4 >= most && most > 0 {
		top -= top / 4
	}
	ago := strings.TrimSuffix((time.Duration(room) * slice).Round(time.Second).String(), "m0s")
	if n := len(ago); n > 0 && ago[n-1] != 's' {
		ago += "m"
	}
	if rows == 1 {
		l := line{{text: pad(ago+" ", gutter), look: look{quiet: true}}, {text: v.level(columns, known, top, 0, 1), look: look{mark: 1}}}
		if most > 0 {
			l = l.add(" max "+size.Format(most), look{quiet: true})
		}
		return []line{l}
	}
	var lines []line
	for r := range rows {
		scale := ""
		switch r {
		case 0:
			scale = size.Format(top)
		case rows - 1:
			scale = "0"
		}
		lines = append(lines, line{{text: pad(scale+" "+v.sign("┤"), gutter), look: look{quiet: true}}, {text: v.level(columns, known, top, rows-1-r, rows), look: look{mark: 1}}})
	}
	left, right := ago+" ago", "now"
	if most > 0 {
		right = "max " + size.Format(most) + ", now"
	}
	if blanks := room - len(left) - len(right); blanks > 0 {
		lines = append(lines, line{{text: strings.Repeat(" ", gutter) + left + strings.Repeat(" ", blanks) + right, look: look{quiet: true}}})
	}
	return lines
}

// pad puts blanks before a text.
func pad(s string, n int) string { return strings.Repeat(" ", max(0, n-width(s))) + s }

// columns returns the largest value in each of the last n slices of time, which of them
// are known, and the largest of all. Between two looks that are not far apart the value
// of the first one stands.
func (v *screenView) columns(values []history.Value, n int, slice time.Duration) (columns []uint64, known []bool, most uint64) {
	columns, known = make([]uint64, n), make([]bool, n)
	if len(values) == 0 {
		return columns, known, 0
	}
	number := func(t time.Time) int { return int(t.UnixNano() / int64(slice)) }
	first := number(values[len(values)-1].At) - n + 1
	far := max(5*v.Every, 5*time.Second)
	for i, x := range values {
		from := number(x.At)
		to := from
		if i+1 < len(values) && values[i+1].At.Sub(x.At) < far {
			to = number(values[i+1].At)
		}
		for k := max(from, first); k == from || k < to; k++ {
			if k >= first+n { // the clock was set back
				break
			}
			columns[k-first] = max(columns[k-first], x.Bytes)
			known[k-first] = true
			most = max(most, columns[k-first])
		}
	}
	return columns, known, most
}

// level returns a row of a graph, counted from below. A value that is known leaves a mark
// in the lowest row, whatever it is.
func (v *screenView) level(columns []uint64, known []bool, top uint64, row, rows int) string {
	eighths := []rune(" ▁▂▃▄▅▆▇█")
	if v.ASCII {
		eighths = []rune(" ...::::#")
	}
	var b strings.Builder
	for i, c := range columns {
		part := 0
		if top > 0 {
			part = int(math.Round(float64(c)/float64(top)*float64(8*rows))) - 8*row
		}
		if known[i] && row == 0 {
			part = max(part, 1)
		}
		b.WriteRune(eighths[min(max(part, 0), 8)])
	}
	return b.String()
}
