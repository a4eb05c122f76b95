// The text that gpumem remat prints.

package main

import (
	"fmt"
	"strings"

	"gpumem/internal/report"
	"gpumem/size"
	"gpumem/xla/remat"
)

// regionsShown is how many marked regions are shown.
const regionsShown = 6

func writeRemat(t *text, a *remat.Answer) {
	t.Line("%s", a.Headline())

	t.section("")
	for _, f := range a.Figures() {
		t.Line("  %-12s  %10s  %s", f.What, f.Value, f.More)
	}
	if p := a.Proven(); p.Value != "" {
		t.Line("  Proven: %s %s.", p.Value, p.More)
	}
	for _, k := range a.Markings() {
		t.Line("  %s %s %s", k.What, k.Value, k.More)
	}
	writeRematAdvice(t, a)

	if len(a.Regions) == 0 {
		return
	}

	t.section("Marked by jax.checkpoint before")
	for _, r := range a.Regions[:min(len(a.Regions), regionsShown)] {
		name := tailOf(report.OneLine(r.Name), textWidth-52)
		t.Raw(fmt.Sprintf("  %7d instructions, %7d of them recomputed: %s", r.Instructions, r.Recomputed, name))
	}
	if n := len(a.Regions) - regionsShown; n > 0 {
		t.Line("  and %d more", n)
	}
}

// writeRematAdvice is the advice in words.
func writeRematAdvice(t *text, a *remat.Answer) {
	if len(a.Holders) > 0 {
		t.section("What holds the memory at the peak")
		for _, h := range a.Holders {
			t.place(h.Bytes, fmt.Sprintf("%5s  %s", report.Part(h.Bytes, a.Before), tailOf(report.OneLine(h.Part), textWidth-24)), "")
		}
	}
	if a.Holds != "" {
		t.Line("  %s", a.Holds)
	}

	for _, section := range a.Text {
		t.section(section.Title)
		for _, l := range section.Lines {
			switch {
			case l.Code:
				t.Raw("    " + l.Text)
			case l.Bytes > 0:
				t.place(l.Bytes, tailOf(report.OneLine(l.Text), textWidth-16), "")
			default:
				t.Line("  %s", l.Text)
			}
		}
	}
}

// writeFrontier is the curve of memory and compute, as a table.
func writeFrontier(t *text, a *remat.Answer) {
	name, bound := report.OneLine(a.Given.Name), size.Format(a.LowerBound)
	t.Raw(fmt.Sprintf("%s: what less memory costs, by %s; no plan goes below %s", name, a.Algorithm, bound))

	t.section("")
	table := report.NewTable("temporaries", "of the peak", "more compute", "at least", "added", "")
	for _, p := range a.Frontier {
		bar := strings.Repeat("#", int(min(max(p.Extra, 0), 60)/2+.5))
		more, added := fmt.Sprintf("%.1f %%", p.Extra), report.Count(uint64(p.Recomputed))
		table.Row(size.Format(p.After), report.Part(p.After, p.Before), more, p.Least(), added, bar)
	}
	t.Table(table)

	t.section("")
	if a.Request.HostSpeed > 0 {
		t.Line("Values may wait on the host, so that nothing is proven of the least compute. In the order of the text.")
	} else {
		t.Line("at least: proven for plans that run each instruction at its place, too; moving some may do better. In the order of the text.")
	}
}
