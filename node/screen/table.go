// The table of a device's programs.

package screen

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpumem/internal/report"
	"gpumem/node/internal/history"
	"gpumem/node/internal/view"
	"gpumem/node/machine"
	"gpumem/size"
)

// row is a program in a table.
type row struct {
	*machine.Program
	now    time.Time
	number int             // in the bar; -1 if there is no bar
	growth *history.Growth // nil if unknown
}

// column is a column of the table. Where the screen is too narrow those with the highest
// rank are left out first; those with 0 stay.
type column struct {
	title string
	right bool
	rank  int
	least int        // width on a screen, so that it does not change with a figure's length
	by    history.By // the order that the column shows; its mark is mark
	mark  string
	cell  func(r row) string
}

var columns = []column{
	{title: "pid", right: true, by: history.ByPID, mark: "▲", cell: func(r row) string { return dashZero(r.PID) }},
	{title: "user", rank: 4, cell: func(r row) string { return orDash(r.User) }},
	{title: "age", right: true, rank: 3, least: 6, by: history.ByAge, mark: "▼", cell: func(r row) string {
		if r.Started == nil {
			return "-"
		}
		return view.Age(r.now.Sub(*r.Started))
	}},
	{title: "holds", right: true, least: 10, by: history.ByMemory, mark: "▼", cell: func(r row) string {
		switch {
		case r.Used != nil:
			return size.Format(*r.Used)
		case r.Kind == "": // it has a lease alone
			return "nothing yet"
		}
		return "unknown"
	}},
	{title: "turn", rank: 1, least: 9, cell: func(r row) string { return orDash(view.TurnWord(r.Turn)) }},
	{title: "on host", right: true, rank: 2, least: 9, cell: func(r row) string {
		if r.Turn == nil || r.Turn.OnHost == 0 {
			return "-"
		}
		return size.Format(r.Turn.OnHost)
	}},
	{title: "lease", right: true, rank: 2, cell: func(r row) string {
		if r.Lease == nil {
			return "-"
		}
		return size.Format(r.Lease.Bytes)
	}},
	{title: "pool", right: true, rank: 2, least: 9, cell: poolCell(func(u *machine.PoolUse) uint64 { return u.Held })},
	{title: "in use", right: true, rank: 2, least: 9, cell: poolCell(func(u *machine.PoolUse) uint64 { return u.InUse })},
	{title: "peak", right: true, rank: 3, least: 9, cell: poolCell(func(u *machine.PoolUse) uint64 { return u.PeakInUse })},
	{title: "framework", rank: 5, cell: func(r row) string { return frameworksOf(r.Program) }},
	{title: "asks for", rank: 6, cell: func(r row) string {
		if r.Asks == nil {
			return "-"
		}
		return r.Asks.Brief
	}},
	{title: "container", rank: 7, cell: containerCell},
	{title: "mark", rank: 1, cell: func(r row) string {
		switch {
		case r.LeftBy > 0:
			return fmt.Sprintf("left by %d", r.LeftBy)
		case parentGone(r.Program):
			return "parent gone"
		}
		return "-"
	}},
	{title: "command", by: history.ByName, mark: "▲", cell: func(r row) string { return view.CommandLine(r.Program) }},
}

// containerCell is the container that the program is in, by its names where its lease has
// them; of a lease without a program those that it is for.
func containerCell(r row) string {
	switch {
	case r.Pod != nil:
		return view.ContainerName(*r.Pod)
	case r.Started == nil && view.Where(r.Lease) != "":
		return view.Where(r.Lease)
	}
	return orDash(r.Container)
}

// growsColumn follows what a program holds, on a screen.
var growsColumn = column{title: "grows/min", right: true, rank: 1, least: 11, by: history.ByGrowth, mark: "▼", cell: func(r row) string {
	switch {
	case r.growth == nil:
		return ""
	case r.growth.Bytes == 0:
		return "-"
	}
	return "+" + size.Format(r.growth.PerMinute)
}}

// poolCell is a figure of the program's pool.
func poolCell(figure func(*machine.PoolUse) uint64) func(row) string {
	return func(r row) string {
		if r.Pool == nil {
			return "-"
		}
		return size.Format(figure(r.Pool))
	}
}

// The width of a command without a screen, and the least on one before another column is
// left out.
const (
	commandWidth = 60
	commandLeast = 16
)

// filled is a column with its cells.
type filled struct {
	column
	cells []string
	width int
}

// fill returns the columns with their cells. An empty column is left out, but for those
// that always stay.
func fill(columns []column, rows []row) (list []filled) {
	for _, c := range columns {
		f := filled{column: c, width: width(c.title)}
		any := c.rank == 0 || c.title == growsColumn.title
		for _, r := range rows {
			cell := report.OneLine(c.cell(r))
			any = any || cell != "-"
			f.cells = append(f.cells, cell)
			f.width = max(f.width, width(cell))
		}
		if any {
			list = append(list, f)
		}
	}
	return list
}

// fitTable leaves out columns until the table has no more than room cells in a line, and
// gives the last one, the command, what is left.
func fitTable(list []filled, room int) []filled {
	for {
		last := &list[len(list)-1]
		others, worst := 0, -1
		for i, c := range list[:len(list)-1] {
			others += c.width + 2
			if c.rank > 0 && (worst < 0 || c.rank > list[worst].rank) {
				worst = i
			}
		}
		if worst < 0 || others+min(last.width, commandLeast) <= room {
			last.width = max(room-others, 1)
			return list
		}
		list = append(list[:worst], list[worst+1:]...)
	}
}

// listTable is the table without a screen.
func listTable(d *machine.Device, now time.Time) []line {
	if len(d.Programs) == 0 {
		return nil
	}
	var rows []row
	for i := range d.Programs {
		rows = append(rows, row{Program: &d.Programs[i], now: now, number: -1})
	}
	list := fill(columns, rows)
	last := &list[len(list)-1]
	last.width = min(last.width, commandWidth)
	return tableLines(list, rows, "")
}

// screenTable is the table on a screen.
func screenTable(rows []row, v *screenView) []line {
	list := make([]column, 0, len(columns)+1)
	for _, c := range columns {
		list = append(list, c)
		if c.by == history.ByMemory {
			list = append(list, growsColumn)
		}
	}
	table := fill(list, rows)
	for i, c := range table {
		if c.by == v.By {
			table[i].title += v.sign(c.mark)
		}
		if i < len(table)-1 {
			table[i].width = max(c.width, c.least, width(table[i].title))
		}
	}
	table = fitTable(table, max(v.Width-3, 1))
	if !slices.ContainsFunc(table, func(c filled) bool { return c.by == history.ByGrowth }) {
		markGrowth(table, rows)
	}
	return tableLines(table, rows, v.By)
}

// markGrowth puts a + in front of what a program holds if it grows, where the column has
// no room.
func markGrowth(table []filled, rows []row) {
	for _, c := range table {
		for i, r := range rows {
			if c.by == history.ByMemory && r.growth != nil && r.growth.Bytes > 0 && width(c.cells[i]) < c.width {
				c.cells[i] = "+" + c.cells[i]
			}
		}
	}
}

// tableLines writes the titles and the rows, each behind the letter of its program.
func tableLines(list []filled, rows []row, by history.By) []line {
	lines := make([]line, 0, len(rows)+1)
	head := line{{text: "  "}}
	if rows[0].number >= 0 {
		head[0].text = "   "
	}
	for i, c := range list {
		l := look{quiet: by != ""}
		if by != "" && c.by == by {
			l = look{bold: true}
		}
		head = head.add(c.pad(c.title, i == len(list)-1), l)
	}
	lines = append(lines, head)
	for n, r := range rows {
		l := line{{text: "  "}}
		if r.number >= 0 {
			l = line{{text: letter(r.number), look: look{mark: mark(r.number), back: true}}, {text: "  "}}
		}
		for i, c := range list {
			at := look{}
			if c.cells[n] != "-" && (c.title == "mark" || strings.HasPrefix(c.title, growsColumn.title)) {
				at.bold = true
			}
			l = l.add(c.pad(c.cells[n], i == len(list)-1), at)
		}
		lines = append(lines, l)
	}
	return lines
}

// pad fills a cell to the column's width, and two blanks more before the next column.
func (c *filled) pad(cell string, last bool) string {
	cell = fit(cell, c.width)
	blanks := strings.Repeat(" ", max(0, c.width-width(cell)))
	switch {
	case last:
		return cell
	case c.right:
		return blanks + cell + "  "
	}
	return cell + blanks + "  "
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func dashZero(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func parentGone(p *machine.Program) bool { return p.ParentGone != nil && *p.ParentGone }

// frameworksOf returns those that a program has loaded, with their releases.
func frameworksOf(p *machine.Program) string {
	var all []string
	for i, name := range p.Frameworks {
		all = append(all, strings.TrimSuffix(name+" "+p.Releases[i], " "))
	}
	switch {
	case len(all) > 0:
		return strings.Join(all, ", ")
	case p.Started != nil && p.Frameworks == nil:
		return "unknown"
	}
	return "-"
}
