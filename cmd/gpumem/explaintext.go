package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"gpumem/machine/probe"
	"gpumem/policy"
	"gpumem/report"
	"gpumem/size"
)

// writeExplain is the answer for people, the news first: what happens, then why,
// then what to write instead.
func writeExplain(w io.Writer, q *probe.Question, a policy.Answer) error {
	t := text{env: q.Env}
	t.about(q, release(a))
	summary := a.Summary()
	t.line("%s", summary)
	if a.Preallocate && a.First > 0 && q.GPUs > 1 {
		if value, set := q.Env.Lookup(visibleVar); set {
			t.line("As much on each of the %d GPUs of %s=%s.", q.GPUs, visibleVar, readable(value))
		} else {
			t.line("As much on each of the machine's %d GPUs: %s is not set.", q.GPUs, visibleVar)
		}
	}
	for i, p := range a.Pools {
		if i > 0 && p.Name != a.Pools[0].Name {
			t.line("Besides (%s): %s.", p.Space, poolLine(p))
		}
	}

	t.section("Settings that count")
	for _, s := range a.Settings {
		t.entry(s.Name, s.Effect)
	}
	t.section("Settings that do not do what they seem to")
	for _, w := range a.Warnings {
		t.entry(w.Name, w.Text)
	}
	t.section("What is raised")
	for _, e := range a.Errors {
		t.entry(e.Name, e.Text)
		if !strings.Contains(summary, e.Then) {
			t.entry(e.Name, e.Then)
		}
	}
	if command := a.Command("COMMAND"); command != "" {
		t.section("Write instead")
		t.raw("  " + oneLine(command)) // to be copied: one line, however long
	}
	read := "Variables are read " + a.Read + "."
	if len(a.Settings)+len(a.Warnings)+len(a.Errors) == 0 {
		t.head = "" // no sections
		read = "Nothing is set that plays a part. " + read
	} else {
		t.section("")
	}
	t.line("%s", read)
	_, err := io.WriteString(w, t.b.String())
	return err
}

// about is what the answer is about.
func (t *text) about(q *probe.Question, releases string) {
	t.line("%s on %s", releases, deviceLine(q))
	if q.Process != nil {
		t.line("Process %d, by the environment that it was started with: what it set itself later is not seen.", q.Process.PID)
	}
}

// release is a framework and its release.
func release(a policy.Answer) string {
	return strings.TrimSuffix(a.Framework+" "+a.Version, " ")
}

// deviceLine is the device in a few words.
func deviceLine(q *probe.Question) string {
	d := q.Device
	s := d.Spec
	if d.Name != d.Spec && d.Name != "" {
		s += ", " + d.Name
	}
	s += ": " + size.Format(d.Total)
	switch {
	case d.Free == nil:
		s += ", how much of it is free is not known"
	case *d.Free == d.Total:
		s += ", all of it free"
	default:
		s += ", " + size.Format(*d.Free) + " free"
	}
	if d.Unified {
		s += ", shared with the host's programs"
	}
	if p := q.Process; p != nil && p.Used != nil {
		s += fmt.Sprintf(", %s held by process %d", size.Format(*p.Used), p.PID)
	}
	return s
}

// poolLine is how much a pool takes, and when.
func poolLine(p policy.Pool) string {
	switch {
	case p.First > 0:
		return size.Format(p.First) + ", " + p.Text
	case p.Limit != nil:
		return "up to " + size.Format(*p.Limit) + ", " + p.Text
	}
	return p.Text
}

// A text is lines in sections.
type text struct {
	b    strings.Builder
	env  policy.Environment
	head string // of the section that has no lines yet
	name string // of the last entry
}

// section begins one; without lines it does not show.
func (t *text) section(title string) {
	t.head, t.name = "\n", ""
	if title != "" {
		t.head += title + "\n"
	}
}

// line is a line, broken where it is too long.
func (t *text) line(format string, args ...any) {
	t.raw(report.Wrap(clean(fmt.Sprintf(format, args...)), textWidth))
}

// raw is a line as it is.
func (t *text) raw(line string) {
	t.b.WriteString(t.head + line + "\n")
	t.head = ""
}

// entry is what is told of a variable; its name and value stand above what is
// told first.
func (t *text) entry(name, about string) {
	if name != t.name {
		t.name = name
		head := clean(name)
		if value, set := t.env.Lookup(name); set {
			head += "=" + readable(value)
		}
		t.raw(shorten("  "+head, textWidth))
	}
	t.line("    %s", about)
}

// readable is a value as it is where it can be read, and else in quotes.
func readable(value string) string {
	strange := func(r rune) bool { return !unicode.IsPrint(r) }
	if value == "" || !utf8.ValidString(value) || strings.TrimSpace(value) != value || strings.ContainsFunc(value, strange) {
		return strconv.Quote(value)
	}
	return value
}

func clean(s string) string { return report.Clean(s, textWidth) }
