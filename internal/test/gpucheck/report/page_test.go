package report

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// page is the report's text.
func page(r *Report) string {
	var b strings.Builder
	r.Text(&b)
	return b.String()
}

// Whoever opens the page sees first what needs somebody, with where to read on and how to repeat it.
func TestPageBeginsWithWhatIsBad(t *testing.T) {
	r := &Report{Begun: time.Unix(0, 0), Notes: []string{"XLA_FLAGS was set"}}
	for i, o := range []Outcome{Held, Hung, Skipped, Wrong, NotReached, Crashed, Wrong} {
		name := fmt.Sprintf("check%d", i)
		r.Results = append(r.Results, Result{Name: name, Claim: "It is so", Doc: "docs/x.md", Outcome: o, Logs: []string{name + ".check.log"}, Repeat: "check --only " + name})
	}
	got := page(r)
	at := -1
	for _, want := range []string{"XLA_FLAGS was set", "wrong       check3", "again: check --only check3\n", "wrong       check6", "crashed     check5", "hung        check1", "logs: check1.check.log\n",
		"held        check0", "skipped     check2", "not reached check4"} {
		i := strings.Index(got, want)
		if i <= at {
			t.Errorf("%q is at %d, after %d, in\n%s", want, i, at, got)
		}
		at = i
	}
	for _, name := range []string{"check0", "check2", "check4"} {
		if strings.Contains(got, "--only "+name) {
			t.Errorf("%s needs nobody, and the page says how to repeat it", name)
		}
	}
}

// A line is read on any terminal, however long the sentences and words are, and a flood of faults
// leaves the page one.
func TestPageIsNarrowAndShort(t *testing.T) {
	c := Result{Name: "explain-pytorch", Claim: strings.Repeat("claims and ", 20), Doc: "docs/settings.md", Outcome: Wrong, Why: strings.Repeat("x", 3000)}
	for i := range 1000 {
		c.Faults = append(c.Faults, fmt.Sprintf("%d: measured 3.99 GiB – more than %s", i, strings.Repeat("é ", 90)))
		c.Logs = append(c.Logs, fmt.Sprintf("explain-pytorch.%d.log", i))
	}
	got := page(&Report{Bundle: strings.Repeat("b ", 99), Results: []Result{c}})
	lines := strings.Split(got, "\n")
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > 100 || strings.TrimRight(line, " ") != line {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	if len(lines) > 60 {
		t.Errorf("%d lines for one check:\n%s", len(lines), got)
	}
	for _, want := range []string{"0: measured", "and 992 more, in report.json", "explain-pytorch.0.log, 992 more, explain-pytorch.993.log", "explain-pytorch.999.log\n", "(report.json has all of it)"} {
		if !strings.Contains(strings.Join(strings.Fields(got), " ")+"\n", strings.TrimSpace(want)) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
