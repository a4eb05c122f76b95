package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"gpumem/machine"
	"gpumem/machine/probe"
	"gpumem/report"
	"gpumem/size"
)

func psCommand() *cobra.Command {
	var o probe.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the programs on each GPU and their memory",
		Long: `List the programs on each GPU: process, user, age, command, memory in use, lease,
framework, and the memory that its environment asks for. Programs with a lease
and no memory yet are listed, too, and those that wait for a lease, in their
order. Notes say where several programs share a lease, and where the program of
a lease has ended and left it to another process.

"parent gone" marks a program whose parent has ended, such as a worker whose
parent was killed. In a container the driver may report other process numbers;
then a program is unknown, with the reason. ps changes nothing.

Without --device it lists every GPU of the driver and the device of
$GPUMEM_DEVICE; without a driver and a named device there are none. --json
writes a state file for gpumem doctor, in which driver.up says whether the
driver answers.`,
		Example: `  gpumem ps
  gpumem ps --device sim@/dev/shm/gpu
  gpumem ps --json > state.json`,
		Args: noWords("ps"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, s, err := startProbe(o)
			if err != nil {
				return err
			}
			return writeSnapshot(cmd, s, asJSON, func() string { return psText(s, 0) })
		},
	}
	psFlags(cmd, &o, &asJSON)
	return cmd
}

// psFlags are those that ps and top share.
func psFlags(cmd *cobra.Command, o *probe.Options, asJSON *bool) {
	cmd.Flags().StringArrayVar(&o.Devices, "device", nil, "only this `DEVICE`: cuda:N or sim@FILE[,device=N]; repeat for several")
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON")
}

func noWords(command string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("%s takes no words but flags, and got %q; to look at one device: gpumem %s --device %s", command, args[0], command, args[0])
		}
		return nil
	}
}

// startProbe takes the first snapshot at once: what is wrong with the flags shows now.
func startProbe(o probe.Options) (*probe.Probe, *machine.Snapshot, error) {
	p, err := probe.New(o)
	if err != nil {
		return nil, nil, err
	}
	s, err := p.Snapshot()
	return p, s, err
}

// writeSnapshot writes the notes to stderr and a snapshot to stdout, as JSON or text.
func writeSnapshot(cmd *cobra.Command, s *machine.Snapshot, asJSON bool, frame func() string) error {
	writeNotes(cmd.ErrOrStderr(), s.Notes)
	return show(cmd, asJSON, s, func(t *text) { t.Raw(strings.TrimSuffix(frame(), "\n")) })
}

// writeNotes writes a line for each note.
func writeNotes(w io.Writer, notes []string) {
	for _, n := range notes {
		fmt.Fprintln(w, "gpumem: "+report.OneLine(n))
	}
}

// psText writes a snapshot for people: a heading for each device and a table of its
// programs, then those that wait, and what is unknown. width is that of the screen; 0 is
// no screen, where nothing is left out.
func psText(s *machine.Snapshot, width int) string {
	if len(s.Devices) == 0 {
		return "no devices\n"
	}
	var b strings.Builder
	for i, d := range s.Devices {
		if i > 0 {
			b.WriteString("\n")
		}
		psLine(&b, heading(d), width)
		if len(d.Programs) == 0 {
			psLine(&b, "  no program holds memory", width)
		} else {
			psTable(&b, d, s.Time, width)
		}
		said := map[*machine.Lease]bool{}
		for _, p := range d.Programs {
			l := p.Lease
			switch {
			case l == nil || said[l]:
			case l.Sum != nil:
				psLine(&b, "  "+leasePoolLine(l), width)
			case l.Programs > 1:
				psLine(&b, "  "+sharedLine(l), width)
			}
			said[l] = true
		}
		for _, p := range d.Programs {
			if p.Hooked != nil && !*p.Hooked {
				psLine(&b, "  "+unhookedLine(p), width)
			}
		}
		for _, l := range d.Waiting {
			psLine(&b, "  "+waitingLine(l, s.Time), width)
		}
		unknown := map[string]bool{}
		for _, p := range d.Programs {
			if p.Unknown != "" && !unknown[p.Unknown] {
				unknown[p.Unknown] = true
				psLine(&b, "  unknown: "+report.OneLine(p.Unknown), width)
			}
		}
		for _, n := range d.Notes {
			psLine(&b, "  "+report.OneLine(n), width)
		}
	}
	return b.String()
}

// psLine writes a line, wrapped where the screen is too narrow.
func psLine(b *strings.Builder, line string, width int) {
	if width > 0 {
		line = report.Wrap(line, width)
	}
	for l := range strings.SplitSeq(line, "\n") {
		b.WriteString(report.Fit(l, width) + "\n")
	}
}

// heading describes the device in one line.
func heading(d machine.Device) string {
	s := d.Spec
	if d.Name != d.Spec && d.Name != "" {
		s += " " + d.Name
	}
	s += ": " + size.Format(d.Total)
	if d.Used == nil {
		s += ", used unknown"
	} else {
		s += fmt.Sprintf(", %s used, %s free", size.Format(*d.Used), size.Format(*d.Free))
	}
	if d.Leased > 0 {
		s += ", " + size.Format(d.Leased) + " leased"
	}
	if d.Display {
		s += ", drives a display"
	}
	return report.OneLine(s)
}

// leasePoolLine describes what the pools of a lease's programs have together.
func leasePoolLine(l *machine.Lease) string {
	who := "one lease"
	if l.Holder > 0 {
		who = fmt.Sprintf("the lease of process %d", l.Holder)
	}
	u := l.Sum
	parts := []string{fmt.Sprintf("pool %s, %s of it in use", size.Format(u.Held), size.Format(u.InUse))}
	for _, x := range []struct {
		bytes uint64
		what  string
	}{{u.Charged, "by the program itself"}, {u.Outside, "outside"}} {
		if x.bytes > 0 {
			parts = append(parts, size.Format(x.bytes)+" "+x.what)
		}
	}
	text := fmt.Sprintf("%s: %s of its %s held (%s), at most %s in use so far", who, size.Format(u.Counted()), size.Format(l.Bytes), strings.Join(parts, ", "), size.Format(u.PeakInUse))
	switch {
	case u.Refused == 1:
		text += ", 1 request refused"
	case u.Refused > 1:
		text += fmt.Sprintf(", %d requests refused", u.Refused)
	}
	return text
}

// sharedLine describes a lease under which several programs use the device.
func sharedLine(l *machine.Lease) string {
	who := "one lease"
	if l.Holder > 0 {
		who = fmt.Sprintf("the lease of process %d", l.Holder)
	}
	text := fmt.Sprintf("%s: %d programs under it hold %s together, ", who, l.Programs, size.Format(l.InUse))
	if l.InUse > l.Bytes {
		return text + fmt.Sprintf("%s more than its %s; gpumem run --procs %d divides it", size.Format(l.InUse-l.Bytes), size.Format(l.Bytes), l.Programs)
	}
	return text + "of its " + size.Format(l.Bytes)
}

// unhookedLine describes a program of a lease whose environment lacks the hook.
func unhookedLine(p machine.Program) string {
	return fmt.Sprintf("process %d: its environment lacks the Python hook of its lease; "+
		"if it runs Python, the lease does not limit TensorFlow, nor PyTorch before 2.10; keep the folder that gpumem run puts in PYTHONPATH", p.PID)
}

// waitingLine describes a program that waits for a lease.
func waitingLine(l machine.Waiting, now time.Time) string {
	place := "next"
	if l.Place > 0 {
		place = fmt.Sprintf("%d before it", l.Place)
	}
	if l.Stopped {
		place += ", stopped: it is passed over"
	}
	wants := "all that can be shared"
	if l.Wants > 0 {
		wants = size.Format(l.Wants)
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
	return report.OneLine(s)
}

// psColumn is a column of the table of programs. Where the screen is too narrow those
// with the highest rank are left out first; those with 0 stay.
type psColumn struct {
	title string
	rank  int
	cell  func(p machine.Program, now time.Time) string
}

var psColumns = []psColumn{
	{">pid", 0, func(p machine.Program, _ time.Time) string { return dashZero(p.PID) }},
	{"user", 4, func(p machine.Program, _ time.Time) string { return orDash(p.User) }},
	{">age", 3, func(p machine.Program, now time.Time) string {
		if p.Started == nil {
			return "-"
		}
		return age(now.Sub(*p.Started))
	}},
	{">holds", 0, func(p machine.Program, _ time.Time) string {
		switch {
		case p.Used != nil:
			return size.Format(*p.Used)
		case p.Kind == "": // it has a lease alone
			return "nothing yet"
		}
		return "unknown"
	}},
	{">lease", 2, func(p machine.Program, _ time.Time) string {
		if p.Lease == nil {
			return "-"
		}
		return size.Format(p.Lease.Bytes)
	}},
	{">pool", 2, poolCell(func(u *machine.PoolUse) uint64 { return u.Held })},
	{">in use", 2, poolCell(func(u *machine.PoolUse) uint64 { return u.InUse })},
	{">peak", 3, poolCell(func(u *machine.PoolUse) uint64 { return u.PeakInUse })},
	{"framework", 5, func(p machine.Program, _ time.Time) string { return frameworksOf(p) }},
	{"asks for", 6, func(p machine.Program, _ time.Time) string {
		if p.Asks == nil {
			return "-"
		}
		return p.Asks.Brief
	}},
	{"container", 7, func(p machine.Program, _ time.Time) string { return orDash(p.Container) }},
	{"mark", 1, func(p machine.Program, _ time.Time) string {
		switch {
		case p.LeftBy > 0:
			return fmt.Sprintf("left by %d", p.LeftBy)
		case parentGone(p):
			return "parent gone"
		}
		return "-"
	}},
	{"command", 0, func(p machine.Program, _ time.Time) string { return command(p) }},
}

// poolCell is a figure of the program's pool.
func poolCell(figure func(*machine.PoolUse) uint64) func(machine.Program, time.Time) string {
	return func(p machine.Program, _ time.Time) string {
		if p.Pool == nil {
			return "-"
		}
		return size.Format(figure(p.Pool))
	}
}

// The width of a command without a screen, and the least on one before another column is
// left out.
const (
	commandWidth = 60
	commandLeast = 16
)

// psTable writes the programs of a device. An empty column is left out, but for those
// that always stay.
func psTable(b *strings.Builder, d machine.Device, now time.Time, width int) {
	type column struct {
		psColumn
		cells []string
		width int
	}
	var columns []column
	for _, c := range psColumns {
		f := column{psColumn: c, width: utf8.RuneCountInString(strings.TrimPrefix(c.title, ">"))}
		filled := c.rank == 0
		for _, p := range d.Programs {
			cell := report.OneLine(c.cell(p, now))
			filled = filled || cell != "-"
			f.cells = append(f.cells, cell)
			f.width = max(f.width, utf8.RuneCountInString(cell))
		}
		if filled {
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
				if c.rank > 0 && (worst < 0 || c.rank > columns[worst].rank) {
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
	for i := range d.Programs {
		var row []string
		for j, c := range columns {
			cell := c.cells[i]
			if j == len(columns)-1 {
				cell = report.Fit(cell, c.width)
			}
			row = append(row, cell)
		}
		table.Row(row...)
	}
	var text strings.Builder
	_, _ = table.WriteTo(&text) // a Builder takes everything
	for line := range strings.Lines(text.String()) {
		b.WriteString(report.Fit("  "+strings.TrimSuffix(line, "\n"), width) + "\n")
	}
}

func dashZero(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func parentGone(p machine.Program) bool { return p.ParentGone != nil && *p.ParentGone }

// frameworksOf returns those that a program has loaded, with their releases.
func frameworksOf(p machine.Program) string {
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

// command is the program's command line, without the folder that it lies in.
func command(p machine.Program) string {
	switch {
	case len(p.Command) > 0:
		return commandLine(p.Command)
	case p.Started != nil:
		return "[" + p.Name + "]" // as ps does
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

// age formats a duration in at most two units: 5s, 3m, 2h05m, 3d04h.
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
