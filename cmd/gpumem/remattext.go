package main

// What remat says to people.

import (
	"fmt"
	"io"
	"strings"

	"gpumem/report"
	"gpumem/size"
)

// regionsShown is how many marked regions are told.
const regionsShown = 6

func writeRemat(w io.Writer, a *rematAnswer, width int) error {
	var t text
	line := func(format string, args ...any) { t.raw(report.Wrap(clean(fmt.Sprintf(format, args...)), width)) }
	now, then := a.Before, a.After
	if a.packed {
		now, then = a.HeapBefore, a.HeapAfter
	}
	switch {
	case now <= a.Limit && a.Recomputed == 0:
		line("%s fits its limit as it is: nothing is recomputed.", a.name)
	case a.Recomputed == 0 && a.Algorithm == "off":
		line("%s takes more than its limit, and nothing is recomputed.", a.name)
	case then >= now && !a.Met:
		line("%s takes more than its limit, and recomputing does not help.", a.name)
	case a.Met && a.Recomputed == 0 && a.HostValues > 0:
		line("%s meets its limit with %s on the host for a while; nothing is recomputed.", a.name, counted(uint64(a.HostValues), "value"))
	case a.Met:
		line("%s meets its limit with %s more, at %.1f %% more compute.", a.name, counted(uint64(a.Recomputed), "instruction"), a.Extra)
	default:
		line("%s does not meet its limit, with %s more, at %.1f %% more compute.", a.name, counted(uint64(a.Recomputed), "instruction"), a.Extra)
	}
	t.raw("")
	row := func(what string, n uint64, more string) { line("  %-12s  %10s  %s", what, size.Format(n), more) }
	row("limit", a.Limit, a.from)
	if a.Unfused > 0 {
		row("unfused", a.Unfused, "before "+counted(uint64(a.Fused), "fusion")+" were made")
	}
	row("now", a.Before, "temporaries at their peak, in "+counted(uint64(a.Instructions), "instruction"))
	row("then", a.After, partOf(a.After, a.Before)+" of that")
	if a.HostValues > 0 {
		row("on the host", a.HostBytes, fmt.Sprintf("copied to it and back beside what runs meanwhile: %s, %s", counted(uint64(a.HostValues), "value"), counted(uint64(a.HostReloads), "reload")))
	}
	if a.HeapBefore > 0 && a.HeapAfter > 0 {
		better := ""
		if a.HeapBest < a.HeapAfter {
			better = "; " + size.Format(a.HeapBest) + " if packed better than XLA does"
		}
		row("packed", a.HeapAfter, "the heap that this takes, and "+size.Format(a.HeapBefore)+" before"+better)
	}
	row("lower bound", a.LowerBound, "no plan goes below, in any order")
	switch {
	case a.OutOfReach:
		line("  Proven: out of reach while each instruction also runs at its place.")
	case a.LowerPercent >= .05:
		line("  Proven: at least %.1f %% more compute while each instruction also runs at its place; moving some may do better.", a.LowerPercent)
	}
	for _, k := range a.Marked {
		line("  marked %s in %s: %s, %d kept; %d added for %s", k.Pattern, k.Computation, counted(uint64(k.Region), "instruction"), k.Saved, k.Recomputed, counted(uint64(k.Late), "late user"))
	}
	a.writeAdvice(&t, width)
	if len(a.marked) > 0 {
		t.section("Marked by jax.checkpoint before")
		for _, r := range a.marked[:min(len(a.marked), regionsShown)] {
			t.raw(fmt.Sprintf("  %7d instructions, %7d of them recomputed: %s", r.Instructions, r.Recomputed, tailOf(oneLine(r.Name), width-52)))
		}
		if n := len(a.marked) - regionsShown; n > 0 {
			line("  and %d more", n)
		}
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}

// partOf is a part in whole percent.
func partOf(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(part)/float64(whole))
}

// least is what is proven of a plan's price. It is for the limit, which the plan may
// be below of.
func least(p *rematAnswer) string {
	if p.OutOfReach || p.LowerPercent == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", p.LowerPercent)
}

// writeFrontier is the curve of memory and compute, as a table.
func writeFrontier(w io.Writer, a *rematAnswer, curve []*rematAnswer) error {
	var t text
	t.raw(fmt.Sprintf("%s: what less memory costs, by %s; no plan goes below %s", oneLine(a.name), a.Algorithm, size.Format(a.LowerBound)))
	t.raw("")
	table := report.NewTable("temporaries", "of the peak", "more compute", "at least", "added", "").Fit(screenWidth)
	for _, p := range curve {
		bar := strings.Repeat("#", int(min(p.Extra, 60)/2+.5))
		table.Row(size.Format(p.After), partOf(p.After, p.Before), fmt.Sprintf("%.1f %%", p.Extra), least(p), report.Count(uint64(p.Recomputed)), bar)
	}
	if _, err := table.WriteTo(&t.b); err != nil {
		return err
	}
	if a.toHost {
		t.raw("\nValues may wait on the host, so that nothing is proven of the least compute.\nIn the order of the text.")
	} else {
		t.raw("\nat least: proven for plans that run each instruction at its place, too; moving some\nmay do better. In the order of the text.")
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}
