package main

// The answer of doctor for a person whose program has just died: the cause
// first and how sure it is, then what shows it, then what to set.

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"gpumem/doctor"
	"gpumem/report"
)

// writeDoctor is the answer for people, one for each log.
func writeDoctor(w io.Writer, all []diagnosed, width int) error {
	var b strings.Builder
	for i, d := range all {
		if i > 0 {
			b.WriteString("\n")
		}
		if len(all) > 1 {
			b.WriteString(shorten("== "+oneLine(d.log)+" ==", width) + "\n")
		}
		b.WriteString(onScreen(d, width))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// An answer has at most screenLines, which is what a screen shows. poolLines of
// them are kept for a pool's dump or a program's buffers, where there are such.
const (
	screenLines = 40
	poolLines   = 18
)

// An extent is how much is told; --json has all.
type extent struct {
	quotes int // lines that are quoted for a cause
	rows   int // of the screen for each of them
	advice int // settings, and as many steps, for each of several causes; steps for one that is shortened
}

// extents are tried until the answer fits.
var extents = []extent{{5, 2, 3}, {4, 1, 2}, {2, 1, 2}, {2, 1, 1}}

// onScreen is an answer, and behind it what the log told of a pool or of a
// program.
func onScreen(d diagnosed, width int) string {
	pool := len(dumped(d.Diagnosis, width, screenLines))
	var said string
	for _, e := range extents {
		a := answer{Diagnosis: d.Diagnosis, log: d.log, width: width, extent: e}
		a.write()
		said = a.b.String()
		if strings.Count(said, "\n")+min(pool, poolLines) <= screenLines {
			break
		}
	}
	return said + strings.Join(dumped(d.Diagnosis, width, screenLines-strings.Count(said, "\n")), "")
}

// dumped are the lines that a dump and a program say of themselves, with blank
// lines and titles at most as many as room says.
func dumped(d *doctor.Diagnosis, width, room int) []string {
	var t text
	list := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		room -= 2 + len(lines)
		t.section(title)
		for _, l := range lines {
			blanks := len(l) - len(strings.TrimLeft(l, " "))
			t.raw("  " + l[:blanks] + oneLine(l))
		}
	}
	if d.Dump != nil {
		title := "The pool, as it was dumped"
		if d.Dump.Line > 0 {
			title += fmt.Sprintf(" at line %d", d.Dump.Line)
		}
		lines := room - 2
		if d.Program != nil {
			lines = lines * 2 / 3
		}
		list(title, d.Dump.Summary(width-2, lines))
	}
	if d.Program != nil {
		list("The program's buffers, as the compiler told of them", d.Program.Summary(width-2, room-2))
	}
	return slices.Collect(strings.Lines(t.b.String()))
}

// An answer is a diagnosis as text.
type answer struct {
	text
	*doctor.Diagnosis
	log   string
	width int
	extent
	shown []string // what the quoted lines show
}

func (a *answer) write() {
	switch {
	case len(a.Causes) == 0:
		a.unknown()
	case a.Verdict == doctor.VerdictEither || a.Verdict == doctor.VerdictNeeds || a.Verdict == doctor.VerdictUnknown:
		a.several()
	default:
		a.one()
	}
	a.links()
}

// one is the answer where there is one.
func (a *answer) one() {
	c := a.Causes[0]
	head := "The cause: " + c.Title
	switch {
	case a.Verdict == doctor.VerdictNonfatal && c.ID == doctor.NonfatalWarning:
		head = "A warning, not the failure: the program can go on after it"
	case a.Verdict == doctor.VerdictNonfatal:
		head = "A warning, not the failure: " + c.Title
	case a.Verdict == doctor.VerdictNotMemory && c.ID == doctor.NotMemory:
		head = "Not a failure of memory: settings of memory do not help"
	case a.Verdict == doctor.VerdictNotMemory:
		head = "Not a failure of memory: " + c.Title
	}
	a.line("%s.", head)
	a.section("What shows it")
	a.quotes(a.Causes[:1])
	a.section("Set")
	a.settings(c.Settings)
	a.section("Do")
	steps := c.Steps
	if a.extent != extents[0] {
		steps = steps[:min(len(steps), a.advice)]
	}
	a.steps(steps)
	a.section("See that it took effect")
	a.command(c.Check)
	a.section("Also possible")
	for _, c := range a.Causes[1:] {
		a.line("  %s%s", c.Title, mainEvidence(c))
	}
	a.section("To be surer")
	a.find()
	if a.advice > 1 {
		a.certain("Sure in any case")
	}
}

// several is the answer where several causes fit, or a fact is wanted to be
// sure: the causes, and what tells them apart. Where a fact is wanted, what to
// set would be a guess.
func (a *answer) several() {
	tells := "This would tell"
	switch {
	case len(a.Causes) == 1:
		a.line("Perhaps: %s.", a.Causes[0].Title)
	case a.Verdict == doctor.VerdictEither:
		a.line("One of %s; what is known fits each of them:", counted(uint64(len(a.Causes)), "cause"))
		tells = "This tells them apart"
	default:
		a.line("Not certain yet; one of these, the likeliest first:")
	}
	if len(a.Causes) > 1 {
		for i, c := range a.Causes {
			a.line("  %s  %s", letter(i), c.Title)
		}
	}
	a.section("What is known")
	a.quotes(a.Causes)
	a.certain("Sure in any case")
	a.section(tells)
	a.find()
	if a.Verdict != doctor.VerdictEither {
		return
	}
	for i, c := range a.Causes {
		a.section(fit("If "+letter(i)+", "+oneLine(c.Title), a.width))
		a.settings(c.Settings[:min(len(c.Settings), a.advice)])
		a.steps(c.Steps[:min(len(c.Steps), a.advice)])
	}
}

// unknown is the answer where there is none.
func (a *answer) unknown() {
	if a.Verdict == doctor.VerdictNotMemory {
		a.line("Not a failure of memory, as far as the log tells.")
	} else {
		a.line("The cause is not known: nothing in the log decides.")
	}
	a.certain("Sure so far")
	a.section("This would tell")
	a.find()
	if len(a.Missing) == 0 && a.Decide == "" {
		a.line("  all that the program printed, on stderr as well; the lines before its end count most")
	}
}

// line is a line, broken at the screen's edge.
func (a *answer) line(format string, args ...any) {
	a.raw(report.Wrap(clean(fmt.Sprintf(format, args...)), a.width))
}

// certain is what is sure whatever the cause is, but for what was just read.
func (a *answer) certain(title string) {
	a.section(title)
	for _, c := range a.Certain {
		if !slices.ContainsFunc(a.shown, func(s string) bool { return strings.Contains(s, c) }) {
			a.line("  %s", c)
		}
	}
}

// stateName is what a missing fact is called in a state file.
var stateName = regexp.MustCompile(`^(?:devices|process)\.[a-z_]+: `)

// find is what is not known and would tell more, and how to learn it.
func (a *answer) find() {
	decide := a.Decide
	for _, m := range a.Missing {
		a.line("  %s", stateName.ReplaceAllLiteralString(m, ""))
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
func (a *answer) command(command string) {
	if command == "" {
		return
	}
	command, comment, _ := strings.Cut(oneLine(command), "  # ")
	if a.log != "" && a.log != "stdin" {
		command = logWord.ReplaceAllLiteralString(command, shellQuote(oneLine(a.log)))
	}
	a.raw("  " + strings.TrimRight(command, " "))
	if comment != "" {
		a.line("    %s", comment)
	}
}

// environmentName is a name that a shell takes; other settings are flags and
// calls.
var environmentName = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)

// settings are what to type, to be copied, each with its reason.
func (a *answer) settings(all []doctor.Advice) {
	for _, s := range all {
		words := s.Name
		switch {
		case environmentName.MatchString(s.Name) && s.Value == "":
			words = "unset " + s.Name
		case environmentName.MatchString(s.Name):
			words = "export " + s.Name + "=" + shellQuote(s.Value)
		case s.Value != "" && strings.HasPrefix(s.Name, "-"):
			words += " " + shellQuote(s.Value)
		case s.Value != "":
			words += "=" + s.Value
		}
		a.raw("  " + oneLine(words))
		if s.Why != "" {
			a.line("    %s", s.Why)
		}
	}
}

// steps are in their order.
func (a *answer) steps(steps []string) {
	for _, s := range steps {
		if len(steps) > 1 {
			s = "- " + s
		}
		a.line("  %s", s)
	}
}

// links are the pages of the causes: of the one, or of all that it may be.
func (a *answer) links() {
	var pages []string
	last := ""
	for i, c := range a.Causes {
		if c.Doc == "" || i > 0 && a.Verdict != doctor.VerdictEither && a.Verdict != doctor.VerdictNeeds {
			continue
		}
		page, anchor, _ := strings.Cut(c.Doc, "#")
		if page == last {
			pages = append(pages, "#"+anchor)
		} else {
			pages = append(pages, c.Doc)
		}
		last = page
	}
	a.section("")
	if len(pages) > 0 {
		a.line("More: %s", strings.Join(pages, ", "))
	}
}

// letter is A for 0.
func letter(i int) string { return string(rune('A' + min(i, 25))) }

// shellQuote is a word that a shell reads as s.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:,=%+@", r)
	}
	if s != "" && strings.TrimFunc(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
