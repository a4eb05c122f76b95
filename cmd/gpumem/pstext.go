package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"gpumem/policy"
	"gpumem/report"
	"gpumem/share"
	"gpumem/size"
)

// psText is the state for people: a heading for each device and a table of its
// programs, then who waits, and what could not be told. width is that of the
// screen; 0 means that there is none, and nothing is left out.
func psText(s *psState, width int) string {
	if len(s.devices) == 0 {
		return "no devices\n"
	}
	var b strings.Builder
	for i, d := range s.devices {
		if i > 0 {
			b.WriteString("\n")
		}
		psLine(&b, d.heading(), width)
		if len(d.programs) == 0 {
			psLine(&b, "  no program holds memory", width)
		} else {
			psTable(&b, d, s.at, width)
		}
		said := map[*psLease]bool{}
		for _, p := range d.programs {
			if l := p.lease; l != nil && l.programs > 1 && !said[l] {
				said[l] = true
				psLine(&b, "  "+sharedLine(l), width)
			}
		}
		for _, p := range d.programs {
			if p.hooked != nil && !*p.hooked {
				psLine(&b, "  "+unhookedLine(p), width)
			}
		}
		for _, l := range d.waiting {
			psLine(&b, "  "+waitingLine(l, s.at), width)
		}
		unknown := map[string]bool{}
		for _, p := range d.programs {
			if p.why != "" && !unknown[p.why] {
				unknown[p.why] = true
				psLine(&b, "  unknown: "+oneLine(p.why), width)
			}
		}
		for _, n := range d.Notes {
			psLine(&b, "  "+oneLine(n), width)
		}
	}
	return b.String()
}

// psLine writes a line, broken where the screen is too narrow.
func psLine(b *strings.Builder, line string, width int) {
	if width > 0 {
		line = report.Wrap(line, width)
	}
	for l := range strings.SplitSeq(line, "\n") {
		b.WriteString(fit(l, width) + "\n")
	}
}

// heading is the device in a line.
func (d psDevice) heading() string {
	s := d.Words
	if d.Name != d.Words && d.Name != "" {
		s += " " + d.Name
	}
	s += ": " + size.Format(d.Total)
	if d.Free == 0 && d.Used == 0 {
		s += ", used unknown"
	} else {
		s += fmt.Sprintf(", %s used, %s free", size.Format(d.Used), size.Format(d.Free))
	}
	if d.leased > 0 {
		s += ", " + size.Format(d.leased) + " leased"
	}
	if d.Display {
		s += ", drives a display"
	}
	return oneLine(s)
}

// sharedLine is about a lease under which several programs use the device.
func sharedLine(l *psLease) string {
	who := "one lease"
	if pid := seenAs(l.Entry); pid > 0 {
		who = fmt.Sprintf("the lease of process %d", pid)
	}
	text := fmt.Sprintf("%s: %d programs under it hold %s together, ", who, l.programs, size.Format(l.used))
	if l.used > l.Bytes {
		return text + fmt.Sprintf("%s more than its %s; gpumem run --procs %d divides it", size.Format(l.used-l.Bytes), size.Format(l.Bytes), l.programs)
	}
	return text + "of its " + size.Format(l.Bytes)
}

// unhookedLine is about a program of a lease whose environment lacks the hook.
func unhookedLine(p psProgram) string {
	return fmt.Sprintf("process %d: its environment lacks the Python hook of its lease; "+
		"if it runs Python, the lease does not limit TensorFlow, nor PyTorch before 2.10; keep the folder that gpumem run puts in PYTHONPATH", p.PID)
}

// waitingLine is who waits for a lease.
func waitingLine(l share.Entry, now time.Time) string {
	place := "next"
	if l.Place > 0 {
		place = fmt.Sprintf("%d before it", l.Place)
	}
	if l.Stopped {
		place += ", stopped: it is passed over"
	}
	wants := "all that can be shared"
	if l.Bytes > 0 {
		wants = size.Format(l.Bytes)
	}
	who := "a program"
	if l.PID > 0 {
		who = "process " + strconv.Itoa(l.PID)
	}
	if l.Elsewhere {
		who += " of another pid namespace"
	}
	s := fmt.Sprintf("%s has waited for %s for %s (%s)", who, wants, age(now.Sub(l.Since)), place)
	if command := commandLine(l.Command); command != "" {
		s += ": " + command
	}
	return oneLine(s)
}

// A psColumn is one of a table of programs. Where the screen is too narrow those
// with the highest number go first; those with 0 stay.
type psColumn struct {
	title string
	goes  int
	cell  func(p psProgram, now time.Time) string
}

var psColumns = []psColumn{
	{">pid", 0, func(p psProgram, _ time.Time) string { return dashZero(p.PID) }},
	{"user", 4, func(p psProgram, _ time.Time) string { return orDash(p.user()) }},
	{">age", 3, func(p psProgram, now time.Time) string {
		if p.info == nil {
			return "-"
		}
		return age(now.Sub(p.info.Started))
	}},
	{">holds", 0, func(p psProgram, _ time.Time) string {
		switch {
		case p.Known:
			return size.Format(p.Used)
		case p.Kind == "": // it has a lease alone
			return "nothing yet"
		}
		return "unknown"
	}},
	{">lease", 2, func(p psProgram, _ time.Time) string {
		if p.lease == nil {
			return "-"
		}
		return size.Format(p.lease.Bytes)
	}},
	{"framework", 5, func(p psProgram, _ time.Time) string { return p.framework() }},
	{"asks for", 6, func(p psProgram, _ time.Time) string { return p.asksShort() }},
	{"container", 7, func(p psProgram, _ time.Time) string {
		if p.info == nil {
			return "-"
		}
		return orDash(p.info.Container)
	}},
	{"mark", 1, func(p psProgram, _ time.Time) string {
		switch {
		case p.left != nil:
			return fmt.Sprintf("left by %d", p.left.PID)
		case p.info != nil && p.info.ParentGone:
			return "parent gone"
		}
		return "-"
	}},
	{"command", 0, func(p psProgram, _ time.Time) string { return p.command() }},
}

// Of a command this much is shown where there is no screen, and at least so
// much on one before another column goes.
const (
	commandWidth = 60
	commandLeast = 16
)

// psTable draws the programs of a device. A column in which nothing is told is
// left out, but for those that always stay.
func psTable(b *strings.Builder, d psDevice, now time.Time, width int) {
	type filled struct {
		psColumn
		cells []string
		width int
	}
	var columns []filled
	for _, c := range psColumns {
		f := filled{psColumn: c, width: utf8.RuneCountInString(strings.TrimPrefix(c.title, ">"))}
		told := c.goes == 0
		for _, p := range d.programs {
			cell := oneLine(c.cell(p, now))
			told = told || cell != "-"
			f.cells = append(f.cells, cell)
			f.width = max(f.width, utf8.RuneCountInString(cell))
		}
		if told {
			columns = append(columns, f)
		}
	}
	last := &columns[len(columns)-1] // the command, which takes what is left
	last.width = min(last.width, commandWidth)
	if width > 0 {
		for {
			others, worst := 2, -1 // two blanks before a column
			for i, c := range columns[:len(columns)-1] {
				others += c.width + 2
				if c.goes > 0 && (worst < 0 || c.goes > columns[worst].goes) {
					worst = i
				}
			}
			if worst < 0 || others+min(last.width, commandLeast) <= width {
				last.width = max(width-others, 1)
				break
			}
			columns = append(columns[:worst], columns[worst+1:]...)
			last = &columns[len(columns)-1]
		}
	}
	var titles []string
	for _, c := range columns {
		titles = append(titles, c.title)
	}
	table := report.NewTable(titles...)
	for i := range d.programs {
		var row []string
		for j, c := range columns {
			cell := c.cells[i]
			if j == len(columns)-1 {
				cell = fit(cell, c.width)
			}
			row = append(row, cell)
		}
		table.Row(row...)
	}
	var text strings.Builder
	_, _ = table.WriteTo(&text) // a Builder takes everything
	for line := range strings.Lines(text.String()) {
		b.WriteString(fit("  "+strings.TrimSuffix(line, "\n"), width) + "\n")
	}
}

// fit cuts a line that is longer than the screen is wide. 0 is no screen.
func fit(line string, width int) string {
	if width <= 0 || utf8.RuneCountInString(line) <= width {
		return line
	}
	if width < 8 {
		return string([]rune(line)[:width])
	}
	return string([]rune(line)[:width-3]) + "..."
}

func dashZero(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func (p psProgram) user() string {
	switch {
	case p.info != nil:
		return p.info.User
	case p.lease != nil:
		return leaseUser(p.lease)
	}
	return ""
}

// framework is what a program has loaded.
func (p psProgram) framework() string {
	var all []string
	for _, f := range p.loaded {
		all = append(all, strings.TrimSuffix(f.Name+" "+f.Version, " "))
	}
	switch {
	case len(all) > 0:
		return strings.Join(all, ", ")
	case p.info != nil && p.opaque:
		return "unknown"
	}
	return "-"
}

// asksShort is what the environment asks for in a few words.
func (p psProgram) asksShort() string {
	if p.asks == nil {
		return "-"
	}
	a := *p.asks
	s := "as needed"
	switch {
	case len(a.Errors) > 0 && a.Errors[0].CPU:
		s = "runs on the CPU"
	case len(a.Errors) > 0:
		s = a.Errors[0].Name + " is refused"
	case a.Allocator == "":
		s = "sees no GPU"
	case a.Policy.Kind == policy.Platform, a.Policy.Kind == policy.Address:
		s = "as needed, keeps nothing"
	case a.Preallocate && a.First > 0:
		s = size.Format(a.First) + " at once"
	case a.Limit != nil:
		s = "up to " + size.Format(*a.Limit)
	}
	switch n := len(a.Warnings); {
	case n == 1:
		s += " (1 warning)"
	case n > 1:
		s += fmt.Sprintf(" (%d warnings)", n)
	}
	return s
}

// command is the program's, without the folder that it lies in.
func (p psProgram) command() string {
	switch {
	case p.info != nil && len(p.info.Command) > 0:
		return commandLine(p.info.Command)
	case p.info != nil:
		return "[" + p.info.Name + "]" // as ps does
	case p.lease != nil && len(p.lease.Command) > 0:
		return commandLine(p.lease.Command)
	}
	return "unknown"
}

func commandLine(command []string) string {
	if len(command) == 0 {
		return ""
	}
	first := command[0]
	if i := strings.LastIndexByte(first, '/'); i >= 0 && i+1 < len(first) && !strings.Contains(first, " ") {
		first = first[i+1:]
	}
	return strings.Join(append([]string{first}, command[1:]...), " ")
}

// age is a duration in the two units that say most: 5s, 3m, 2h05m, 3d04h.
func age(d time.Duration) string {
	seconds := max(0, int64(d/time.Second))
	switch {
	case seconds < 60:
		return fmt.Sprintf("%ds", seconds)
	case seconds < 3600:
		return fmt.Sprintf("%dm", seconds/60)
	case seconds < 86400:
		return fmt.Sprintf("%dh%02dm", seconds/3600, seconds%3600/60)
	}
	return fmt.Sprintf("%dd%02dh", seconds/86400, seconds%86400/3600)
}
