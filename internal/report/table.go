// Package report formats results for people: numbers, tables, wrapped text, drawings as
// SVG, and the HTML page of a replay.
//
// Files: format.go numbers, table.go and wrap.go text, svg.go parts of drawings, page.go
// the page, timeline.go its drawing.
package report

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Table is text in columns. A cell may hold any text: what a terminal would not print, a
// line break included, stands as ?.
type Table struct {
	head  []column
	cells [][]string
	width int // of the screen; 0: any
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
	for i := range min(len(row), len(cells)) {
		row[i] = printable(cells[i])
	}
	t.cells = append(t.cells, row)
}

// Fit sets the width of the screen, in characters, and returns t. Of a table that is
// wider, the columns that do not fit stand in a second table below, behind the columns again
// that tell the rows apart. If a cell is too wide for that, the rows are written one below the other,
// each cell behind its title. 0 is any width.
func (t *Table) Fit(width int) *Table {
	t.width = width
	return t
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
	for n, columns := range t.parts(width) {
		if columns == nil {
			t.stack(&b)
			break
		}
		if n > 0 {
			b.WriteString("\n")
		}
		t.write(&b, width, columns)
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

// parts returns the columns of each table that fits the screen; one nil part if none does.
func (t *Table) parts(width []int) [][]int {
	all := make([]int, len(width))
	for i := range width {
		all[i] = i
	}
	list := [][]int{all}
	keys := t.keys()
	for t.width > 0 && len(all) > 0 {
		last := list[len(list)-1]
		used, n := -2, 0
		for n < len(last) && used+2+width[last[n]] <= t.width {
			used += 2 + width[last[n]]
			n++
		}
		switch {
		case n == len(last):
			return list
		case n <= keys: // they stand alone
			return [][]int{nil}
		}
		list[len(list)-1] = last[:n]
		list = append(list, append(slices.Clone(all[:keys]), last[n:]...))
	}
	return list
}

// keys returns how many of the first columns tell the rows apart; the first alone if none do.
func (t *Table) keys() int {
	for n := 1; n < len(t.head) && !t.head[n-1].right; n++ {
		seen := map[string]bool{}
		for _, row := range t.cells {
			seen[strings.Join(row[:n], "\x00")] = true
		}
		if len(seen) == len(t.cells) {
			return n
		}
	}
	return 1
}

// write writes some of the columns.
func (t *Table) write(b *strings.Builder, width, columns []int) {
	line := func(cell func(i int) string) {
		var l strings.Builder
		for n, i := range columns {
			if n > 0 {
				l.WriteString("  ")
			}
			s := cell(i)
			fill := strings.Repeat(" ", width[i]-utf8.RuneCountInString(s))
			if t.head[i].right {
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
}

// stack writes the rows below each other: the first cell, and indented below it the
// others that are not empty.
func (t *Table) stack(b *strings.Builder) {
	for _, row := range t.cells {
		var cells []string
		for i, cell := range row {
			if cell = strings.TrimSpace(cell); i > 0 && cell != "" {
				cell = strings.TrimLeft(t.head[i].title+" ", " ") + cell
				if utf8.RuneCountInString(cell) < t.width-5 { // it stays on one line
					cell = strings.ReplaceAll(cell, " ", "\u00a0")
				}
				cells = append(cells, cell)
			}
		}
		b.WriteString(Wrap(row[0], t.width) + "\n")
		if len(cells) > 0 {
			text := Wrap("  "+strings.Join(cells, ", "), t.width)
			b.WriteString(strings.ReplaceAll(text, "\u00a0", " ") + "\n")
		}
	}
}
