package main

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpumem/policy"
	"gpumem/report"
	"gpumem/size"
)

// explainDiff is --diff: the same question of two releases.
func explainDiff(cmd *cobra.Command, q *question, a, b string, asJSON bool) error {
	if cmd.Flags().Changed("as") && q.versioned {
		return fmt.Errorf("--diff names the releases: write --as %s alone, and got --as %s", q.as.Name, words(q.as))
	}
	d := explainedDiff{}
	for _, side := range []struct {
		word   string
		answer *policy.Answer
		as     *policy.Framework
	}{{a, &d.A, &d.asA}, {b, &d.B, &d.asB}} {
		f, err := parseSide(side.word, q.as.Name)
		if err == nil {
			*side.as = f
			if note := policy.ReleaseNote(f); note != "" {
				q.note("%s", note)
			}
			*side.answer, err = policy.Explain(q.env, f, q.policyDevice())
		}
		if err != nil {
			return fmt.Errorf("--diff: %w", err)
		}
	}
	d.Differences = differences(d.A, d.B)
	d.Changes = append([]policy.Change{}, policy.Changes(d.asA, d.asB)...)
	d.Device, d.Process = q.deviceJSON(), q.processJSON()
	q.writeNotes(cmd.ErrOrStderr())
	var err error
	if asJSON {
		err = encode(cmd.OutOrStdout(), d)
	} else {
		err = writeDiff(cmd.OutOrStdout(), q, d)
	}
	if err == nil && len(d.A.Errors)+len(d.B.Errors) > 0 {
		err = errNo
	}
	return err
}

// parseSide reads VERSION or FRAMEWORK[@VERSION].
func parseSide(word, framework string) (policy.Framework, error) {
	if word == "" {
		return policy.Framework{}, errors.New("a release is empty; want two, as in --diff 0.4.30 0.11.0")
	}
	if !strings.Contains(word, "@") && word[0] >= '0' && word[0] <= '9' {
		word = framework + "@" + word
	}
	return policy.ParseFramework(word)
}

// explainedDiff is what two releases make of one environment.
type explainedDiff struct {
	asA, asB    policy.Framework
	A           policy.Answer   `json:"a"`
	B           policy.Answer   `json:"b"`
	Differences []difference    `json:"differences"`
	Changes     []policy.Change `json:"changes"` // of the releases between
	Device      deviceSeen      `json:"device"`
	Process     *processSeen    `json:"process,omitempty"`
}

// A difference is a field that differs: one of an answer, or KIND.NAME for what
// is told of one variable (settings, warnings, errors) or one kind of pool
// (pools). null is for what the other has and this has not.
type difference struct {
	Field string `json:"field"`
	A     any    `json:"a"`
	B     any    `json:"b"`
}

// differences compares two answers, but for their releases.
func differences(a, b policy.Answer) []difference {
	list := []difference{}
	add := func(field string, a, b any) {
		if !reflect.DeepEqual(a, b) {
			list = append(list, difference{field, a, b})
		}
	}
	add("framework", a.Framework, b.Framework)
	add("allocator", a.Allocator, b.Allocator)
	add("preallocate", a.Preallocate, b.Preallocate)
	add("fraction", a.Fraction, b.Fraction)
	add("of", a.Of, b.Of)
	add("limit_bytes", a.Limit, b.Limit)
	add("taken_at_first_operation_bytes", a.First, b.First)
	add("gets_bytes", a.Gets, b.Gets)
	inA, inB := parts(a), parts(b)
	for _, field := range union(inA.fields, inB.fields) {
		add(field, inA.value(field), inB.value(field))
	}
	add("read", a.Read, b.Read)
	return list
}

// partsOf are the lists of an answer, by field.
type partsOf struct {
	fields []string
	values map[string][]any
}

// value is nil where there is none, and else what would be one's own list.
func (p partsOf) value(field string) any {
	if v, ok := p.values[field]; ok {
		return v
	}
	return nil
}

func parts(a policy.Answer) partsOf {
	p := partsOf{values: map[string][]any{}}
	add := func(field string, v any) {
		if p.values[field] == nil {
			p.fields = append(p.fields, field)
		}
		p.values[field] = append(p.values[field], v)
	}
	for _, pool := range a.Pools {
		add("pools."+pool.Space, pool)
	}
	for _, s := range a.Settings {
		add("settings."+s.Name, s.Effect)
	}
	for _, w := range a.Warnings {
		add("warnings."+w.Name, w.Text)
	}
	for _, e := range a.Errors {
		add("errors."+e.Name, e.Text)
	}
	return p
}

// union is a, and what b has besides.
func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// writeDiff is the comparison for people.
func writeDiff(w io.Writer, q *question, d explainedDiff) error {
	t := text{env: q.env}
	nameA, nameB := release(d.A), release(d.B)
	t.about(q, nameA+" and "+nameB)
	t.section("")
	a, b := d.A.Summary(), d.B.Summary()
	switch {
	case len(d.Differences) == 0:
		t.line("No difference in this environment, on this device: %s", a)
	case a == b:
		t.line("Both: %s", a)
	default:
		t.line("%s: %s", nameA, a)
		t.line("%s: %s", nameB, b)
	}

	raises := len(d.A.Errors)+len(d.B.Errors) > 0
	if !raises { // else there is nothing to compare with
		if err := diffTable(&t, d); err != nil {
			return err
		}
	}
	t.section("Variables")
	namesA, toldA := told(d.A)
	namesB, toldB := told(d.B)
	for _, name := range union(namesA, namesB) {
		if a, b := toldA[name], toldB[name]; a != b {
			t.entry(name, nameA+": "+or(a, "plays no part"))
			t.entry(name, nameB+": "+or(b, "plays no part"))
		}
	}
	t.section("Other pools")
	for _, f := range d.Differences {
		if space, ok := strings.CutPrefix(f.Field, "pools."); ok && space != "device" && !raises {
			t.line("  %s, %s: %s", space, nameA, poolsLine(f.A))
			t.line("  %s, %s: %s", space, nameB, poolsLine(f.B))
		}
	}
	t.section("What the releases between changed")
	for _, c := range d.Changes {
		t.line("  %s (%s): %s", c.Version, c.Date, strings.ReplaceAll(c.Text, "`", ""))
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}

// diffTable is what differs in a word or a number.
func diffTable(t *text, d explainedDiff) error {
	tab := report.NewTable("", release(d.A), release(d.B)).Fit(screenWidth)
	rows := 0
	row := func(title string, value func(policy.Answer) string) {
		if a, b := value(d.A), value(d.B); a != b {
			rows++
			tab.Row(title, a, b)
		}
	}
	row("allocator", func(a policy.Answer) string { return a.Allocator })
	row("preallocates", func(a policy.Answer) string {
		if a.Preallocate {
			return "yes"
		}
		return "no"
	})
	row("fraction", func(a policy.Answer) string {
		if a.Fraction == nil {
			return "-"
		}
		return strconv.FormatFloat(*a.Fraction, 'g', 6, 64) + " of " + a.Of
	})
	row("limit", func(a policy.Answer) string {
		if a.Limit == nil {
			return "none"
		}
		return size.Format(*a.Limit)
	})
	row("asks for first", func(a policy.Answer) string { return size.Format(a.First) })
	if d.A.Gets < d.A.First || d.B.Gets < d.B.First {
		row("gets", func(a policy.Answer) string { return size.Format(a.Gets) })
	}
	if rows == 0 {
		return nil
	}
	t.b.WriteString("\n")
	_, err := tab.WriteTo(&t.b)
	return err
}

// told is what an answer says of each variable, in one text.
func told(a policy.Answer) (names []string, texts map[string]string) {
	texts = map[string]string{}
	add := func(name, text string) {
		if texts[name] == "" {
			names = append(names, name)
		} else {
			text = texts[name] + "; " + text
		}
		texts[name] = text
	}
	for _, s := range a.Settings {
		add(s.Name, s.Effect)
	}
	for _, w := range a.Warnings {
		add(w.Name, w.Text)
	}
	for _, e := range a.Errors {
		if e.CPU {
			add(e.Name, e.Then)
			continue
		}
		add(e.Name, "raised: "+e.Text)
	}
	return names, texts
}

// or is s, or what to say where there is none.
func or(s, none string) string {
	if s == "" {
		return none
	}
	return s
}

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
