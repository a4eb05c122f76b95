package compare

// The report as text.

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"gpumem/internal/report"
	"gpumem/record/replay"
	"gpumem/record/timeline"
	"gpumem/size"
)

const (
	// The rows of a table of one pool, and of each of several pools.
	textRows, poolRows = 20, 8
	// endRows are those of what is live at the end and of the allocations.
	endRows = 8
	// stackFrames is the most frames of a stack.
	stackFrames = 8
	// leastWhere is the least width of a place in a table.
	leastWhere = 16
)

// words are how a row was matched, for its table.
var words = map[matching]string{
	ByStack: "same", ByLines: "moved", ByProgram: "lib", ByFunction: "alike", BySize: "size", OnlyBefore: "gone", OnlyAfter: "new",
}

// WriteText adds the report to t. Without a screen tables are as wide as t.
func (rep *Report) WriteText(t *report.Text, smallest bool) {
	w := &writer{Text: t, width: cmp.Or(t.Screen, t.Width), rep: rep}
	t.Line("%s", strings.Join(rep.Summary, " "))
	timeline.WriteRecording(t, "before: ", rep.Before, "")
	timeline.WriteRecording(t, "after: ", rep.After, "")
	for _, n := range rep.Notes {
		t.Line("  %s", n)
	}
	rows := textRows
	if len(rep.Pools) > 1 {
		rows = poolRows
	}
	for _, p := range rep.Pools {
		w.pool(p, rows)
	}
	w.policies(smallest)
}

type writer struct {
	*report.Text
	width int
	rep   *Report
}

// pool writes what differs in a pool.
func (w *writer) pool(p *poolReport, rows int) {
	differ := p.AtPeak.differ(rows)
	if len(w.rep.Pools) > 1 {
		name := report.OneLine(cmp.Or(p.Name, "without a name"))
		if p.PeakDifference == 0 && len(differ.Rows) == 0 {
			w.Section("")
			w.Line("Pool %s: no difference, the peak is %s", name, size.Format(p.After.Peak))
			return
		}
		w.Section("Pool " + name)
	} else {
		w.Section("")
	}
	w.sides(p)
	if len(differ.Rows) > 0 {
		w.Section("Live at the peaks")
		w.rows(differ, signedBytes, size.Format, peakOf)
		w.matched(p)
		w.stacks(differ.Rows[0])
	}
	if t := p.AtEnd.differ(endRows); len(t.Rows) > 0 && !oneInstant(p) {
		w.Section("Live at the end")
		w.rows(t, signedBytes, size.Format, endOf)
	}
	if t := p.Allocs.differ(endRows); len(t.Rows) > 0 && !oneInstant(p) {
		w.Section("Allocations over the run")
		w.rows(t, signedCount, report.Count, allocsOf)
	}
	if p.Uncounted {
		w.Line("  allocations by size are not counted: there are more than %s sizes", report.Count(maxSizes))
	}
}

// oneInstant reports whether nothing is freed in either recording: its end is its peak,
// and every allocation is live there, so that more tables would repeat the first.
func oneInstant(p *poolReport) bool {
	for _, s := range []*side{p.Before, p.After} {
		if s != nil && s.Allocs+s.Seeds != s.Events {
			return false
		}
	}
	return true
}

// A figure is what a table is of, and its blocks.
type figure func(*rowPart) (value, blocks uint64)

func peakOf(p *rowPart) (uint64, uint64)   { return p.PeakBytes, p.PeakBlocks }
func endOf(p *rowPart) (uint64, uint64)    { return p.EndBytes, p.EndBlocks }
func allocsOf(p *rowPart) (uint64, uint64) { return p.Allocs, 0 }

// sides returns the rows of the two sides of a pool: a name, before, after, the difference.
func sides(p *poolReport) [][4]string {
	var rows [][4]string
	row := func(name string, compare bool, value func(*side) (uint64, bool), format func(uint64) string) {
		cells := [4]string{name, "-", "-"}
		var v [2]uint64
		some := false
		for i, s := range []*side{p.Before, p.After} {
			if s == nil {
				continue
			}
			if n, ok := value(s); ok {
				v[i], some, cells[i+1] = n, true, format(n)
			}
		}
		if compare {
			cells[3] = signed(int64(v[1]-v[0]), format)
		}
		if some {
			rows = append(rows, cells)
		}
	}
	row("peak", true, func(s *side) (uint64, bool) { return s.Peak, true }, size.Format)
	row("in blocks", true, func(s *side) (uint64, bool) { return s.PeakBlocks, true }, report.Count)
	row("at event", false, func(s *side) (uint64, bool) { return s.number(s.PeakEvent), s.PeakEvent > 0 }, func(n uint64) string {
		if n == 0 {
			return "the start" // what is older than the recording
		}
		return report.Count(n)
	})
	row("at time", false, func(s *side) (uint64, bool) {
		if s.PeakTime == nil {
			return 0, false
		}
		return *s.PeakTime, true
	}, func(ns uint64) string { return report.Seconds(float64(ns) / 1e9) })
	row("refused there", false, func(s *side) (uint64, bool) { return s.PeakRefused, s.PeakRefused > 0 }, size.Format)
	row("live at the end", true, func(s *side) (uint64, bool) { return s.End, true }, size.Format)
	row("allocations", true, func(s *side) (uint64, bool) { return s.Allocs, true }, report.Count)
	return rows
}

// sides writes the two sides of a pool.
func (w *writer) sides(p *poolReport) {
	tab := report.NewTable("", ">before", ">after", ">difference")
	for _, r := range sides(p) {
		tab.Row(r[:]...)
	}
	w.Table(tab)
}

// rows writes a table of differences, and its sum.
func (w *writer) rows(t diffTable, difference func(int64) string, format func(uint64) string, of figure) {
	var lines [][]string
	blocks := false
	sum := &row{Where: "in all"}
	add := func(r *row, where string) {
		v0, b0 := of(&r.Before)
		v1, b1 := of(&r.After)
		blocks = blocks || b0+b1 > 0
		lines = append(lines, []string{difference(r.Difference), format(v0), format(v1), report.Count(b0) + "/" + report.Count(b1), words[r.How], where})
	}
	for _, r := range t.Rows {
		sum.add(r)
		where := report.OneLine(r.Where)
		add(r, where)
	}
	if t.Rest != nil {
		sum.add(t.Rest)
		add(t.Rest, t.Rest.Where)
	}
	add(sum, sum.Where)
	columns := []string{">difference", ">before", ">after", ">blocks", "match"}
	if !blocks {
		columns = slices.Delete(columns, 3, 4)
	}
	used := 0
	for i, title := range columns {
		width := len(strings.TrimPrefix(title, ">"))
		for k, cells := range lines {
			if !blocks && i == 0 {
				cells = slices.Delete(cells, 3, 4)
				lines[k] = cells
			}
			width = max(width, len(cells[i]))
		}
		used += width + 2
	}
	// The place stands behind its figures; before them and whole where a narrow screen breaks
	// the table, which has it in each part.
	last, room := len(columns), w.width-used
	first := room < leastWhere
	columns = append(columns, "where")
	if first {
		columns = append(columns[last:], columns[:last]...)
	}
	tab := report.NewTable(columns...)
	for _, cells := range lines {
		if first {
			cells = append(cells[last:], cells[:last]...)
		} else {
			cells[last] = shorten(cells[last], room)
		}
		tab.Row(cells...)
	}
	w.Table(tab)
}

// shorten cuts a frame: its file from the front, so that function and line stay.
func shorten(frame string, width int) string {
	if utf8.RuneCountInString(frame) <= width {
		return frame
	}
	name, file, ok := strings.Cut(frame, " (")
	left := width - utf8.RuneCountInString(name) - len(" (...")
	if r := []rune(file); ok && left > 4 && len(r) > left {
		return name + " (..." + string(r[len(r)-left:])
	}
	return report.Shorten(frame, width)
}

// about explains the words.
var about = map[matching]string{
	ByStack: "same: the same stack", ByLines: "moved: the same stack but for line numbers", ByProgram: "lib: moved, and libraries differ",
	ByFunction: "alike: the same function", BySize: "size: no stacks, the same size",
	OnlyBefore: "gone: nothing allocates there any more", OnlyAfter: "new: nothing allocated there before",
}

// matched writes how the live memory at the peaks was matched.
func (w *writer) matched(p *poolReport) {
	if len(p.Matched) == 0 {
		return
	}
	w.Section("")
	tab := report.NewTable("match", ">before", ">after")
	for _, m := range p.Matched {
		tab.Row(about[m.How], size.Format(m.Before), size.Format(m.After))
	}
	w.Table(tab)
}

// stacks writes the stacks of a row.
func (w *writer) stacks(r *row) {
	write := func(title, stack string) {
		if stack == "" {
			return
		}
		w.Section(title)
		frames := strings.Split(stack, "\n")
		for _, f := range frames[:min(len(frames), stackFrames)] {
			w.Raw("  " + report.Fit(report.OneLine(f), max(0, w.Screen-2)))
		}
		if more := len(frames) - stackFrames; more > 0 {
			w.Line("  and %s more (--json)", report.Counted(uint64(more), "frame"))
		}
	}
	if r.How != ByStack {
		write("Largest difference: its stack before", r.Before.Stack)
	}
	write("Largest difference: its stack after", r.After.Stack)
}

// policies writes the figures of the policies.
func (w *writer) policies(smallest bool) {
	if len(w.rep.Policies) == 0 {
		return
	}
	w.Section("Policies: the most held, and requests refused")
	head := []string{"policy"}
	several := len(w.rep.Pools) > 1
	if several {
		head = append(head, "pool")
	}
	head = append(head, ">before", ">after", ">difference", ">refused")
	if smallest {
		head = append(head, ">smallest device")
	}
	tab := report.NewTable(head...)
	for _, x := range w.rep.Policies {
		before, after := held(x.Before), held(x.After)
		cells := []string{x.Policy}
		if several {
			cells = append(cells, x.Pool)
		}
		cells = append(cells, before.peak, after.peak, signedBytes(x.difference()), before.refused+"/"+after.refused)
		if smallest {
			cells = append(cells, before.smallest+" / "+after.smallest)
		}
		tab.Row(cells...)
	}
	w.Table(tab)
	if !w.rep.Fits() {
		w.Line("gpumem replay %s says why a request is refused.", w.rep.After.Source)
	}
}

// difference returns how much more the policy holds at most after than before.
func (p policyRow) difference() (n int64) {
	if p.Before != nil {
		n -= int64(p.Before.HeldPeak)
	}
	if p.After != nil {
		n += int64(p.After.HeldPeak)
	}
	return n
}

// A heldText is what a table has of a result.
type heldText struct{ peak, refused, smallest string }

func held(r *replay.Result) heldText {
	if r == nil {
		return heldText{"-", "-", "-"}
	}
	t := heldText{size.Format(r.HeldPeak), report.Count(r.Refused), "none"}
	if r.Smallest != nil {
		t.smallest = size.Format(*r.Smallest)
	}
	return t
}
