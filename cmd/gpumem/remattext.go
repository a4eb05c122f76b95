package main

// The text that remat prints.

import (
	"fmt"
	"io"
	"strings"

	"gpumem/remat"
	"gpumem/report"
	"gpumem/size"
)

// regionsShown is how many marked regions are shown.
const regionsShown = 6

func writeRemat(w io.Writer, a *remat.Answer, width int) error {
	var t text
	line := func(format string, args ...any) { t.raw(report.Wrap(clean(fmt.Sprintf(format, args...)), width)) }
	now, then := a.Before, a.After
	if a.Request.Packed {
		now, then = a.HeapBefore, a.HeapAfter
	}
	switch {
	case now <= a.Limit && a.Recomputed == 0:
		line("%s fits its limit as it is: nothing is recomputed.", a.Given.Name)
	case a.Recomputed == 0 && a.Algorithm == "off":
		line("%s takes more than its limit, and nothing is recomputed.", a.Given.Name)
	case then >= now && !a.Met:
		line("%s takes more than its limit, and recomputing does not help.", a.Given.Name)
	case a.Met && a.Recomputed == 0 && a.HostValues > 0:
		line("%s meets its limit with %s on the host for a while; nothing is recomputed.", a.Given.Name, counted(uint64(a.HostValues), "value"))
	case a.Met:
		line("%s meets its limit with %s more, at %.1f %% more compute.", a.Given.Name, counted(uint64(a.Recomputed), "instruction"), a.Extra)
	default:
		line("%s does not meet its limit, with %s more, at %.1f %% more compute.", a.Given.Name, counted(uint64(a.Recomputed), "instruction"), a.Extra)
	}
	t.raw("")
	row := func(what string, n uint64, more string) { line("  %-12s  %10s  %s", what, size.Format(n), more) }
	row("limit", a.Limit, a.Request.LimitFrom)
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
	writeRematAdvice(&t, a, width)
	if len(a.Regions) > 0 {
		t.section("Marked by jax.checkpoint before")
		for _, r := range a.Regions[:min(len(a.Regions), regionsShown)] {
			t.raw(fmt.Sprintf("  %7d instructions, %7d of them recomputed: %s", r.Instructions, r.Recomputed, tailOf(oneLine(r.Name), width-52)))
		}
		if n := len(a.Regions) - regionsShown; n > 0 {
			line("  and %d more", n)
		}
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}

// writeRematAdvice is the advice in words.
func writeRematAdvice(t *text, a *remat.Answer, width int) {
	line := func(format string, args ...any) { t.raw(report.Wrap(clean(fmt.Sprintf(format, args...)), width)) }
	if len(a.Holders) > 0 {
		t.section("What holds the memory at the peak")
		for _, h := range a.Holders {
			t.raw(fit(fmt.Sprintf("  %10s  %5s  %s", size.Format(h.Bytes), partOf(h.Bytes, a.Before), tailOf(oneLine(h.Part), width-24)), width))
		}
	}
	if len(a.ByHand) == 0 {
		return
	}
	t.section("By hand, with jax.checkpoint alone")
	for n, k := range a.ByHand {
		which := "each"
		if k.Marked < k.Layers {
			which = fmt.Sprintf("the first %d", k.Marked)
		}
		line("  around %s of the %d %s*, policy %s: %s (%s), at %.1f %% more compute", which, k.Layers, k.Layer, k.Policy, size.Format(k.Peak), partOf(k.Peak, a.Before), k.Extra)
		if n == 0 {
			layer := strings.TrimRight(k.Layer, "_.")
			line("    Flax: nn.remat(%s, policy=jax.checkpoint_policies.%s); else jax.checkpoint(f, policy=...) around what applies one layer", layer, k.Policy)
		}
	}
}

// partOf is a part in whole percent.
func partOf(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(part)/float64(whole))
}

// writeFrontier is the curve of memory and compute, as a table.
func writeFrontier(w io.Writer, a *remat.Answer) error {
	var t text
	t.raw(fmt.Sprintf("%s: what less memory costs, by %s; no plan goes below %s", oneLine(a.Given.Name), a.Algorithm, size.Format(a.LowerBound)))
	t.raw("")
	table := report.NewTable("temporaries", "of the peak", "more compute", "at least", "added", "").Fit(screenWidth)
	for _, p := range a.Frontier {
		bar := strings.Repeat("#", int(min(p.Extra, 60)/2+.5))
		table.Row(size.Format(p.After), partOf(p.After, p.Before), fmt.Sprintf("%.1f %%", p.Extra), p.Least(), report.Count(uint64(p.Recomputed)), bar)
	}
	if _, err := table.WriteTo(&t.b); err != nil {
		return err
	}
	if a.Request.HostSpeed > 0 {
		t.raw("\nValues may wait on the host, so that nothing is proven of the least compute.\nIn the order of the text.")
	} else {
		t.raw("\nat least: proven for plans that run each instruction at its place, too; moving some\nmay do better. In the order of the text.")
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}
