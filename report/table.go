// Package report formats results for people: numbers, tables, wrapped text, drawings as
// SVG, and the HTML page of a replay.
//
// Files: format.go numbers, table.go and wrap.go text, svg.go parts of drawings, page.go
// the page, timeline.go its drawing.
package report

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Table is text in columns. A cell may hold any text without a line break.
type Table struct {
	head  []column
	cells [][]string
}

type column struct {
	title string
	right bool
}

// NewTable makes a table with the given column titles. A title that begins
// with > stands, like its cells, at the right.
func NewTable(titles ...string) *Table {
	t := &Table{}
	for _, s := range titles {
		name, right := strings.CutPrefix(s, ">")
		t.head = append(t.head, column{name, right})
	}
	return t
}

// Row adds a row. Cells that are missing are empty; cells too many are dropped.
func (t *Table) Row(cells ...string) {
	row := make([]string, len(t.head))
	copy(row, cells)
	t.cells = append(t.cells, row)
}

// WriteTo writes the titles and the rows, two blanks between columns and none
// at a line's end.
func (t *Table) WriteTo(w io.Writer) (int64, error) {
	width := make([]int, len(t.head))
	for i, c := range t.head {
		width[i] = utf8.RuneCountInString(c.title)
		for _, row := range t.cells {
			width[i] = max(width[i], utf8.RuneCountInString(row[i]))
		}
	}
	var b strings.Builder
	line := func(cell func(i int) string) {
		var l strings.Builder
		for i, c := range t.head {
			if i > 0 {
				l.WriteString("  ")
			}
			s := cell(i)
			fill := strings.Repeat(" ", width[i]-utf8.RuneCountInString(s))
			if c.right {
				s = fill + s
			} else {
				s += fill
			}
			l.WriteString(s)
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	line(func(i int) string { return t.head[i].title })
	for _, row := range t.cells {
		line(func(i int) string { return row[i] })
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}
