// What is on the screen.

package screen

import (
	"fmt"
	"strings"
	"time"

	"gpumem/internal/report"
	"gpumem/node/internal/history"
	"gpumem/node/internal/view"
	"gpumem/node/machine"
	"gpumem/size"
)

// screenView is how a snapshot is looked at: the screen, and what its reader chose.
type screenView struct {
	Width, Height int // of the screen, in cells, both above 0
	Colours       palette
	ASCII         bool // the terminal has no other characters

	Every  time.Duration // between looks, above 0
	By     history.By
	Filter string // shows only programs with this text; empty shows all
	Typing bool   // the filter is being typed
	Help   bool   // shows the keys instead of the devices
	Down   int    // lines that have gone off at the top; taken as far as there are lines
	Err    error  // of a later snapshot
}

// drawFrame draws a screen: at most v.Height lines of at most v.Width cells. The snapshot is
// the last that the history has seen.
func drawFrame(s *machine.Snapshot, h *history.History, v screenView) string {
	body := v.body(s, h)
	down := v.clamp(len(body))
	shown := body[down:min(len(body), down+v.room())]
	head := line{{text: header(s), look: look{bold: true}}}
	if v.Err != nil {
		head = line{{text: "gpumem top: as of " + s.Time.Format(time.TimeOnly) + "; now " + report.OneLine(v.Err.Error()), look: look{bold: true}}}
	}
	lines := append([]line{head}, shown...)
	for len(lines) < v.Height-1 {
		lines = append(lines, nil)
	}
	lines = append(lines, v.foot(down, len(shown), len(body)))
	var b strings.Builder
	for i, l := range lines[:min(len(lines), v.Height)] {
		if i > 0 {
			b.WriteString("\n")
		}
		if text := l.text(); width(text) > v.Width && v.Width >= 8 && i == 0 {
			l = line{{text: fit(text, v.Width), look: l[0].look}}
		}
		b.WriteString(l.render(v.Width, v.Colours))
	}
	return b.String()
}

// room returns the number of lines for the body: there is one above it and one below.
func (v *screenView) room() int { return max(0, v.Height-2) }

// clamp returns how many of the body's lines have gone off at the top.
func (v *screenView) clamp(lines int) int { return max(0, min(v.Down, lines-v.room())) }

// sign returns a character, or what stands for it on a terminal without it.
func (v *screenView) sign(s string) string {
	if !v.ASCII {
		return s
	}
	return map[string]string{"▲": "^", "▼": "v", "╱": "/", "▒": "#", "·": ".", "┤": "|"}[s]
}

// body returns the lines between the first and the last.
func (v *screenView) body(s *machine.Snapshot, h *history.History) (lines []line) {
	if v.Help {
		return v.help()
	}
	if len(s.Devices) == 0 {
		lines = v.say(lines, "no devices", look{})
	}
	for i := range s.Devices {
		if i > 0 {
			lines = append(lines, nil)
		}
		lines = append(lines, v.device(&s.Devices[i], s.Time, h, v.graphRows(len(s.Devices)))...)
	}
	for _, n := range s.Notes {
		lines = v.say(lines, report.OneLine(n), look{})
	}
	return lines
}

// graphRows returns the height of each graph. It does not depend on the programs, so that
// the screen does not change its parts as they come and go.
func (v *screenView) graphRows(devices int) int {
	if v.Height < 10 {
		return 0
	}
	return max(1, min(6, (v.Height-12)/(4*devices)))
}

// say adds a text, wrapped where the screen is too narrow.
func (v *screenView) say(lines []line, text string, at look) []line {
	for l := range strings.SplitSeq(report.Wrap(text, v.Width), "\n") {
		lines = append(lines, line{{text: fit(l, v.Width), look: at}})
	}
	return lines
}

// device draws a device.
func (v *screenView) device(d *machine.Device, now time.Time, h *history.History, graphRows int) []line {
	names := history.Programs(d)
	number := func(program int) int { return h.Number(d, names[program]) }
	shares := view.SharesOf(d)
	lines := v.say(nil, v.heading(d), look{bold: true})
	lines = append(lines, v.bar(d, shares, number))
	lines = append(lines, v.graph(h.Values(history.Device(d)), d.Total, graphRows)...)

	var rows []row
	var hidden int
	var hiddenBytes uint64
	for _, i := range h.Order(d, v.By) {
		p := &d.Programs[i]
		if !matches(p, v.Filter) {
			hidden++
			hiddenBytes += p.Holds()
			continue
		}
		rows = append(rows, row{p, now, number(i), h.Grows(names[i])})
	}
	if len(rows) > 0 {
		lines = append(lines, screenTable(rows, v)...)
	}
	var more []string
	if hidden > 0 {
		more = append(more, fmt.Sprintf("the filter %q hides %s with %s", v.Filter, report.Counted(uint64(hidden), "program"), size.Format(hiddenBytes)))
	} else if len(rows) == 0 {
		more = append(more, "no program holds memory")
	}
	for _, m := range append(append(more, shares.Remarks()...), view.Remarks(d, now)...) {
		lines = v.say(lines, "  "+m, look{})
	}
	return lines
}

// heading describes the device in one line where it fits.
func (v *screenView) heading(d *machine.Device) string {
	long := heading(d)
	if width(long) <= v.Width || d.Used == nil {
		return long
	}
	least := report.OneLine(fmt.Sprintf("%s: %s of %s", d.Spec, size.Format(*d.Used), size.Format(d.Total)))
	for _, more := range []string{fmt.Sprintf(" used, %s leased", size.Format(d.Leased)), " used"} {
		if width(least+more) <= v.Width && (d.Leased > 0 || more == " used") {
			return least + more
		}
	}
	return least
}

// matches reports whether a program has the text of a filter: in its number, user,
// command, framework or container. Upper and lower case are the same.
func matches(p *machine.Program, filter string) bool {
	for _, s := range []string{fmt.Sprint(p.PID), p.User, view.CommandLine(p), strings.Join(p.Command, " "), frameworksOf(p), p.Container} {
		if strings.Contains(strings.ToLower(s), strings.ToLower(filter)) {
			return true
		}
	}
	return false
}

// foot returns the last line: where the screen is, the filter, and as many keys as fit.
func (v *screenView) foot(down, shown, all int) line {
	if v.Typing {
		text := "filter: " + report.OneLine(v.Filter) + "_"
		for _, more := range []string{"  enter keeps it, esc drops it", "  enter, esc"} {
			if width(text+more) <= v.Width {
				return line{{text: text, look: look{bold: true}}, {text: more, look: look{quiet: true}}}
			}
		}
		return line{{text: text, look: look{bold: true}}}
	}
	var b []string
	if all > shown {
		if b = append(b, fmt.Sprintf("lines %d to %d of %d", down+1, down+shown, all)); v.Width < 40 {
			b[0] = fmt.Sprintf("%d-%d of %d", down+1, down+shown, all)
		}
	}
	if v.Filter != "" {
		b = append(b, fmt.Sprintf("filter %q", v.Filter))
	}
	b = append(b, "")
	for _, keys := range []string{
		"by m memory, p pid, a age, g growth, n name; / filter, ? help, q quit",
		"by m p a g n; / filter, ? help, q quit",
		"? help, q quit",
		"?",
	} {
		b[len(b)-1] = keys
		if text := strings.Join(b, "; "); width(text) <= v.Width {
			return line{{text: text, look: look{quiet: true}}}
		}
	}
	return line{{text: fit(strings.Join(b, "; "), v.Width), look: look{quiet: true}}}
}

// help returns what the keys do and what the signs mean.
func (v *screenView) help() (lines []line) {
	const keys, signs = 12, 5
	for _, entry := range []struct {
		head, text string
		column     int // of the text; 0 for a paragraph
	}{
		{"m p a g n", "order by memory, pid, age, growth or name; the column has a sign", keys},
		{"/", "show only programs with a text: number, user, command, framework, container; esc shows all again", keys},
		{"arrows j k", "scroll by a line; space, page up, page down, home by more", keys},
		{"? q", "this help; quit", keys},
		{},
		{"", "The bar is the device's memory. A letter is a program, the same as in the table.", 0},
		{strings.Repeat(v.sign("╱"), 3), "what is left of a lease: its programs may still take it", signs},
		{strings.Repeat(v.sign("▒"), 3), "unlisted: in use, but by no program that the driver reports", signs},
		{strings.Repeat(v.sign("·"), 3), "free, and not leased", signs},
		{},
		{"", "grows/min: the least that the program held rose in nearly each tenth of the last minutes. - is no growth; nothing stands there before there are 30 looks. What is allocated and freed again in each step does not count. Where there is no room for the column, a + before what a program holds says that it grows.", 0},
		{"", "By memory a row changes its place when its peak of the last 10 looks exceeds another's by a twentieth.", 0},
		{},
		{"", "Not seen: programs on other machines, memory that the driver does not report by program (under WSL, on some MIG devices), and, without the rights of root, the environment of other users' programs. From a container, processes outside of it are unknown.", 0},
	} {
		lines = append(lines, v.entry(entry.head, entry.text, entry.column)...)
	}
	return lines
}

// entry returns a text that is wrapped in its column, beside its head; without a column a
// paragraph, whose later lines are indented.
func (v *screenView) entry(head, text string, column int) (lines []line) {
	if column == 0 {
		return v.say(nil, text, look{})
	}
	// Wrap indents all lines but the first by two: that one has two letters in front, which go.
	for l := range strings.SplitSeq(report.Wrap("--"+text, v.Width-column), "\n") {
		lines = append(lines, line{{text: fit(fmt.Sprintf("  %-*s%s", column, head, l[2:]), v.Width)}})
		head = ""
	}
	return lines
}
