// The text that gpumem explain prints.

package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"gpumem/internal/report"
	"gpumem/node/probe"
	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/size"
)

// visibleVar chooses the GPUs that a program sees, and their order.
const visibleVar = "CUDA_VISIBLE_DEVICES"

// writeExplain is the answer for people, the news first: what happens, then why,
// then what to write instead.
func writeExplain(t *text, q *probe.Question, a explain.Answer) {
	t.about(q, a.Release())
	summary := a.Summary()
	t.Line("%s", summary)
	if a.AtOnce() && q.GPUs > 1 {
		if value, set := q.Env.Lookup(visibleVar); set {
			t.Line("As much on each of the %d GPUs of %s=%s.", q.GPUs, visibleVar, readable(value))
		} else {
			t.Line("As much on each of the machine's %d GPUs: %s is not set.", q.GPUs, visibleVar)
		}
	}
	for i, p := range a.Pools {
		if i > 0 && p.Name != a.Pools[0].Name {
			t.Line("Besides (%s): %s.", p.Space, poolLine(p))
		}
	}

	if a.Ahead != "" {
		t.Line("%s", a.Ahead)
	}

	read := "Variables are read " + a.Read + "."
	if len(a.Settings)+len(a.Warnings)+len(a.Errors) == 0 {
		t.Line("Nothing is set that plays a part. %s", read)
		return
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
		t.Raw("  " + report.OneLine(command)) // to be copied: one line, however long
	}

	t.section("")
	t.Line("%s", read)
}

// about writes what the answer is about.
func (t *text) about(q *probe.Question, releases string) {
	t.env = q.Env
	t.Line("%s on %s", releases, deviceLine(q))
	if q.Process != nil {
		t.Line("Process %d, by the environment that it was started with: what it set itself later is not seen.", q.Process.PID)
	}
}

// deviceLine returns the device in a few words.
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

// poolLine returns how much a pool takes, and when.
func poolLine(p policy.Pool) string {
	switch {
	case p.First > 0:
		return size.Format(p.First) + ", " + p.Text
	case p.Limit != nil:
		return "up to " + size.Format(*p.Limit) + ", " + p.Text
	}
	return p.Text
}

// writeDiff is the comparison for people.
func writeDiff(t *text, q *probe.Question, d explain.Comparison) {
	nameA, nameB := d.A.Release(), d.B.Release()
	t.about(q, nameA+" and "+nameB)

	t.section("")
	a, b := d.A.Summary(), d.B.Summary()
	switch {
	case len(d.Differences) == 0:
		t.Line("No difference in this environment, on this device: %s", a)
	case a == b:
		t.Line("Both: %s", a)
	default:
		t.Line("%s: %s", nameA, a)
		t.Line("%s: %s", nameB, b)
	}

	raises := len(d.A.Errors)+len(d.B.Errors) > 0
	if !raises { // else there is nothing to compare with
		diffTable(t, d)
	}

	t.section("Variables")
	for _, v := range d.Variables() {
		t.entry(v.Name, nameA+": "+cmp.Or(v.A, "plays no part"))
		t.entry(v.Name, nameB+": "+cmp.Or(v.B, "plays no part"))
	}

	t.section("Other pools")
	for _, f := range d.Differences {
		if space, ok := strings.CutPrefix(f.Field, "pools."); ok && space != "device" && !raises {
			t.Line("  %s, %s: %s", space, nameA, poolsLine(f.A))
			t.Line("  %s, %s: %s", space, nameB, poolsLine(f.B))
		}
	}

	t.section("What the releases between changed")
	for _, c := range d.Changes {
		t.Line("  %s (%s): %s", c.Version, c.Date, strings.ReplaceAll(c.Text, "`", ""))
	}
}

// diffTable is what differs in a word or a number.
func diffTable(t *text, d explain.Comparison) {
	tab := report.NewTable("", d.A.Release(), d.B.Release())
	rows := 0
	row := func(title string, value func(explain.Answer) string) {
		if a, b := value(d.A), value(d.B); a != b {
			rows++
			tab.Row(title, a, b)
		}
	}
	row("allocator", func(a explain.Answer) string { return a.Allocator })
	row("preallocates", func(a explain.Answer) string {
		if a.Preallocate {
			return "yes"
		}
		return "no"
	})
	row("fraction", func(a explain.Answer) string {
		if a.Fraction == nil {
			return "-"
		}
		return strconv.FormatFloat(*a.Fraction, 'g', 6, 64) + " of " + a.Of
	})
	row("limit", func(a explain.Answer) string {
		if a.Limit == nil {
			return "none"
		}
		return size.Format(*a.Limit)
	})
	row("asks for first", func(a explain.Answer) string { return size.Format(a.First) })
	if d.A.Gets < d.A.First || d.B.Gets < d.B.First {
		row("gets", func(a explain.Answer) string { return size.Format(a.Gets) })
	}
	if rows > 0 {
		t.section("")
		t.Table(tab)
	}
}

// poolsLine returns a list of pools in the difference of a field.
func poolsLine(v any) string {
	list, _ := v.([]any)
	if len(list) == 0 {
		return "none"
	}
	var out []string
	for _, p := range list {
		out = append(out, poolLine(p.(policy.Pool)))
	}
	return strings.Join(out, "; ")
}
