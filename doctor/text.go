// The text of an answer: the cause first and how sure it is, then the evidence, then
// what to set.

package doctor

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"gpumem/internal/report"
)

// WriteText writes the answers for people, in lines of at most width characters but for
// what is to be copied.
func WriteText(w io.Writer, all []Answer, width int) error {
	var b strings.Builder
	for i, a := range all {
		if i > 0 {
			b.WriteString("\n")
		}
		if len(all) > 1 {
			b.WriteString(report.Shorten("== "+report.OneLine(a.Log)+" ==", width) + "\n")
		}
		b.WriteString(a.onScreen(width))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// An answer has at most screenLines. Of those poolLines are kept for a pool's dump or a
// program's buffers, if it has them.
const (
	screenLines = 40
	poolLines   = 18
)

// An extent limits an answer; the JSON has all.
type extent struct {
	quotes int // lines quoted for a cause
	rows   int // on the screen for each of them
	advice int // settings, and as many steps, for each of several causes; steps for one that is shortened; 0: one of both
}

// extents are tried until the answer fits.
var extents = []extent{{5, 3, 3}, {4, 2, 2}, {2, 2, 2}, {2, 2, 1}, {2, 2, 0}}

// onScreen returns an answer, and the summary of a pool's dump or a program's buffers.
func (a Answer) onScreen(width int) string {
	pool := len(a.dumped(width, screenLines))
	var said string
	for _, e := range extents {
		t := text{Text: report.Text{Width: width}, Answer: a, extent: e}
		t.write()
		said = t.String()
		if strings.Count(said, "\n")+min(pool, poolLines) <= screenLines {
			break
		}
	}
	return said + strings.Join(a.dumped(width, screenLines-strings.Count(said, "\n")), "")
}

// summaryWidth is how wide a summary is at least: on a narrower screen its lines are folded, not cut.
const summaryWidth = 80

// dumped returns the summaries of a dump and a program: at most room lines, with blank
// lines and titles.
func (a Answer) dumped(width, room int) []string {
	var t report.Text
	list := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		room -= 2 + len(lines)
		t.Section(title)
		for _, l := range lines {
			blanks := len(l) - len(strings.TrimLeft(l, " "))
			t.Raw(report.Fold("  "+l[:blanks]+report.OneLine(l), width))
		}
	}
	if a.Dump != nil {
		title := "The pool, as it was dumped"
		if a.Dump.Line > 0 {
			title += fmt.Sprintf(" at line %d", a.Dump.Line)
		}
		if a.DumpSource != "" {
			title = report.Fit(title+" of "+report.OneLine(a.DumpSource), width)
		}
		lines := room - 2
		if a.Program != nil {
			lines = lines * 2 / 3
		}
		list(title, a.Dump.Summary(max(width, summaryWidth)-2, lines))
	}
	if a.Program != nil {
		list("The program's buffers, as the compiler counted them", a.Program.Summary(max(width, summaryWidth)-2, room-2))
	}
	return slices.Collect(strings.Lines(t.String()))
}

// text writes one answer.
type text struct {
	report.Text
	Answer
	extent
	shown []string // what the quoted lines show
}

func (a *text) write() {
	switch {
	case a.Verdict == VerdictAccount:
		a.inventory()
	case len(a.Causes) == 0:
		a.unknown()
	case a.Verdict == VerdictEither || a.Verdict == VerdictNeeds || a.Verdict == VerdictUnknown:
		a.several()
	default:
		a.one()
	}
	a.processSettings()
	a.links()
}

// processSettings are the settings of the process that was looked at: beside a failure only some.
func (a *text) processSettings() {
	most := max(a.advice, 1)
	if a.Verdict == VerdictAccount || len(a.Causes) == 0 {
		most = mostSettings
	}
	a.list("The settings of the process", a.Settings, most)
}

// mostSettings is how many settings of a process are on the screen.
const mostSettings = 6

// one is the answer where there is one.
func (a *text) one() {
	c := a.Causes[0]
	head := "The cause: " + c.Title + " (" + strings.ReplaceAll(string(c.ID), "_", " ") + ")"
	switch {
	case a.Verdict == VerdictNonfatal && c.ID == NonfatalWarning:
		head = "A warning, not the failure: the program can go on after it"
	case a.Verdict == VerdictNonfatal:
		head = "A warning, not the failure: " + c.Title
	case a.Verdict == VerdictNotMemory && c.ID == NotMemory:
		head = "Not a failure of memory: settings of memory do not help"
	case a.Verdict == VerdictNotMemory:
		head = "Not a failure of memory: " + c.Title
	}
	a.Line("%s.", head)
	a.Section("What shows it")
	a.quotes(a.Causes[:1])
	a.Section("Set")
	a.settings(c.Settings)
	a.Section("Do")
	steps := c.Steps
	if a.extent != extents[0] {
		steps = steps[:min(len(steps), a.advice)]
	}
	a.steps(steps)
	a.Section("See that it took effect")
	a.command(c.Check)
	a.Section("Also possible")
	for _, c := range a.Causes[1:] {
		a.Line("  %s%s", c.Title, a.mainEvidence(c))
	}
	a.Section("To be surer")
	a.find()
	if a.advice > 1 {
		a.certain("Sure in any case")
	}
}

// several is the answer where several causes fit, or a fact is wanted to be
// sure: the causes, what tells them apart, and what to do about each.
func (a *text) several() {
	tells := "This would tell"
	switch {
	case len(a.Causes) == 1:
		a.Line("Perhaps: %s.", a.Causes[0].Title)
	case a.Verdict == VerdictEither:
		a.Line("One of %s; what is known fits each of them:", report.Counted(uint64(len(a.Causes)), "cause"))
		tells = "This tells them apart"
	default:
		a.Line("Not certain yet; one of these:")
	}
	if len(a.Causes) > 1 {
		for i, c := range a.Causes {
			a.Line("  %s  %s", letter(i), c.Title)
		}
	}
	a.Section("What is known")
	a.quotes(a.Causes)
	a.certain("Sure in any case")
	a.Section(tells)
	a.find()
	for i, c := range a.Causes {
		title := "If so"
		if len(a.Causes) > 1 {
			title = report.Fold("If "+letter(i)+", "+report.OneLine(c.Title), a.Width)
		}
		a.Section(title)
		settings := min(len(c.Settings), max(a.advice, 1))
		a.settings(c.Settings[:settings])
		if a.advice > 0 || settings == 0 {
			a.steps(c.Steps[:min(len(c.Steps), max(a.advice, 1))])
		}
	}
}

// unknown is the answer where there is none.
func (a *text) unknown() {
	switch {
	case a.Verdict == VerdictNotMemory:
		a.Line("Not a failure of memory, as far as the log tells.")
	case slices.Contains(a.Certain, noLog):
		a.Line("Nothing is known of a failure: %s, and what is known of the machine shows no memory in use.", noLog)
		a.Section("This would tell")
		a.Line("  what the program printed, in a file or piped in; or --pid of a program that runs")
		return
	case len(a.Certain) > 0 && a.Certain[0] == noRefusal:
		a.Line("No failure of memory is in this log: %s.", noRefusal)
		a.shown = append(a.shown, noRefusal)
	default:
		a.Line("The cause is not known: nothing in the log decides.")
	}
	a.certain("Sure so far")
	a.Section("This would tell")
	a.find()
	if len(a.Missing) == 0 && a.Decide == "" {
		a.Line("  all that the program printed, on stderr as well; the lines before its end count most")
	}
}

// certain is what is sure whatever the cause is, but for what was just read.
func (a *text) certain(title string) {
	a.Section(title)
	for _, c := range a.Certain {
		if !slices.ContainsFunc(a.shown, func(s string) bool { return strings.Contains(s, c) }) {
			a.Line("  %s", c)
		}
	}
}

// stateName is what a missing fact is called in a state file.
var stateName = regexp.MustCompile(`^(?:devices|process)\.[a-z_]+: `)

// find is what is not known and would tell more, and how to learn it.
func (a *text) find() {
	decide := a.Decide
	for _, m := range a.Missing {
		a.Line("  %s", stateName.ReplaceAllLiteralString(m, ""))
		if decide == "" && strings.HasPrefix(m, "devices.") {
			decide = "gpumem ps --json > state.json; gpumem doctor LOG --state state.json  # on the machine where it fails, while it fails"
		}
	}
	a.command(decide)
}

// logWord stands for the log in a command.
var logWord = regexp.MustCompile(`\bLOG\b`)

// command is to be copied: one line, however long. What stands behind it as a
// shell's comment is for reading.
func (a *text) command(command string) {
	if command == "" {
		return
	}
	command, comment, _ := strings.Cut(report.OneLine(command), "  # ")
	if a.Log != "" && a.Log != "stdin" {
		command = logWord.ReplaceAllLiteralString(command, report.ShellQuote(report.OneLine(a.Log)))
	}
	a.Raw("  " + strings.TrimRight(command, " "))
	if comment != "" {
		a.Line("    %s", comment)
	}
}

// environmentName is a name that a shell takes; other settings are flags and
// calls.
var environmentName = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)

// settings are what to type, to be copied, each with its reason.
func (a *text) settings(all []Advice) {
	for _, s := range all {
		words := s.Name
		switch {
		case environmentName.MatchString(s.Name):
			words = a.assignment(s)
		case s.Value != "" && strings.HasPrefix(s.Name, "-"):
			words += " " + report.ShellQuote(s.Value)
		case s.Value != "":
			words += "=" + s.Value
		}
		a.Raw("  " + report.OneLine(words))
		if a.windows && environmentName.MatchString(s.Name) {
			a.Raw("    in PowerShell: $env:" + s.Name + "='" + report.OneLine(s.Value) + "'")
		}
		if s.Why != "" {
			a.Line("    %s", s.Why)
		}
	}
}

// assignment is what makes a setting of the environment in the shell of the system: cmd's, or a POSIX one.
func (a *text) assignment(s Advice) string {
	switch {
	case a.windows:
		return "set " + s.Name + "=" + s.Value
	case s.Value == "":
		return "unset " + s.Name
	}
	return "export " + s.Name + "=" + report.ShellQuote(s.Value)
}

// steps are in their order.
func (a *text) steps(steps []string) {
	for _, s := range steps {
		if len(steps) > 1 {
			s = "- " + s
		}
		a.Line("  %s", s)
	}
}

// links are how to read more of the causes: of the one, or of all that it may be.
func (a *text) links() {
	var ids []string
	for i, c := range a.Causes {
		if c.Doc == "" || i > 0 && a.Verdict != VerdictEither && a.Verdict != VerdictNeeds {
			continue
		}
		ids = append(ids, string(c.ID))
	}
	a.Section("")
	if len(ids) > 0 {
		a.Line("More: gpumem doctor --explain %s", strings.Join(ids, ", or "))
	}
}

// letter is A for 0.
func letter(i int) string { return string(rune('A' + min(i, 25))) }
