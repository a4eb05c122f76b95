// The answers of gpumem fit about engines that serve models, as text.

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gpumem/internal/report"
	"gpumem/record/fit"
	"gpumem/size"
)

// writeEngine writes what an engine serves on the card, what takes its memory, and what other
// settings and cards give.
func writeEngine(t *text, rep *fit.Report) {
	if rep.Varied != nil {
		writeVariedEngine(t, rep.Varied)
		t.section("")
	}
	if len(rep.Ran) > 0 {
		tab := engineTable("card")
		for _, c := range rep.Ran {
			if c.Engine == nil {
				tab.Row(c.Card, "failed")
				continue
			}
			engineRow(tab, c.Card, c.Engine)
		}
		t.Table(tab)
		for _, c := range rep.Ran {
			if c.Engine == nil {
				t.Line("%s: %s", c.Card, c.Error)
			}
		}
		t.section("")
	}
	a := rep.Engine
	if a.RefusedOn > 0 {
		writeRefused(t, a, rep.DeviceBytes)
		return
	}
	writeServes(t, a, rep.DeviceBytes)
	t.Line("weights %s, %sgraphs %s, other %s, KV cache %s; %s leaves %s", size.Format(a.Weights), activations(a), size.Format(a.Graphs),
		size.Format(a.Outside), size.Format(a.Cache), cacheSetting(a), size.Format(a.Left))
	if a.Longest > 0 {
		t.Line("longest context for one request: %s; for 8 at once: %s", report.Count(a.Longest), report.Count(a.Longest8))
	}
	if s := a.Second; s != nil {
		t.Line("a start that finds compiled code: activations %s, %s tokens, %.1f requests at once", size.Format(s.Activations), report.Count(s.Tokens), s.Requests)
	}
	for _, d := range a.Doubts {
		t.Line("Not sure: %s.", d)
	}
	writeRanks(t, a.Ranks)
	if len(a.Others) > 0 {
		t.section("")
		tab := report.NewTable("set", ">tokens", ">requests")
		for _, o := range a.Others {
			tab.Row(o.Set, report.Count(o.Tokens), fmt.Sprintf("%.1f", o.Requests))
		}
		t.Table(tab)
	}
	if len(a.Cards) > 0 {
		of, each := "", ""
		if a.GPUs > 1 {
			of, each = fmt.Sprintf(", %d of each", a.GPUs), fmt.Sprintf("%d GPUs of ", a.GPUs)
		}
		t.section("Other cards of its compute capability" + of + ", by arithmetic")
		tab := report.NewTable("card", ">tokens", ">requests")
		for _, o := range a.Cards {
			if o.Serves {
				tab.Row(o.Card, report.Count(o.Tokens), fmt.Sprintf("%.1f", o.Requests))
			}
		}
		t.Table(tab)
		t.Line("One request of %s is served from %s%s on.", report.Count(a.MaxLen), each, size.Format(a.Need))
	}

	t.section("")
	if set := slices.Concat(a.Set, a.Options); len(set) > 0 {
		t.Line("For the simulated GPU: %s.", strings.Join(set, ", "))
	}
	for _, d := range rep.Differences() {
		t.Line("%s", d)
	}
}

// writeRanks writes what lies on each GPU, if that differs. The line before is about the one that bounds the cache.
func writeRanks(t *text, ranks []fit.EngineFigures) {
	var rows [][]string
	for _, f := range ranks {
		rows = append(rows, formatSizes(f.Weights, f.Activations, f.Graphs, f.Outside, f.Cache, f.Left))
	}
	if !slices.ContainsFunc(rows, func(row []string) bool { return !slices.Equal(row, rows[0]) }) {
		return
	}
	tab := report.NewTable("GPU", ">weights", ">activations", ">graphs", ">other", ">KV cache", ">left")
	for i, row := range rows {
		tab.Row(append([]string{strconv.Itoa(i)}, row...)...)
	}
	t.section("")
	t.Table(tab)
}

// cacheSetting returns the setting by which the cache has its size.
func cacheSetting(a *fit.Engine) string {
	if a.Given > 0 {
		return fmt.Sprintf("%s %s", a.GivenBy, size.Format(a.Given))
	}
	return fmt.Sprintf("%s %.4g", a.Part, a.Utilization)
}

// activations are none where an engine does not measure them.
func activations(a *fit.Engine) string {
	if a.Activations == 0 {
		return ""
	}
	return "activations " + size.Format(a.Activations) + ", "
}

// writeServes writes the verdict about a card.
func writeServes(t *text, a *fit.Engine, card uint64) {
	on := size.Format(a.CardBytes)
	if a.GPUs > 1 {
		on = fmt.Sprintf("%d GPUs of %s", a.GPUs, on)
	}
	what := fmt.Sprintf("%s %s, %s", a.Engine, a.Version, a.DType)
	if a.Quantized != "" {
		what += ", " + a.Quantized
	}
	if a.Serves {
		each := ""
		if a.Replicas > 1 {
			each = fmt.Sprintf(", in each of %d replicas", a.Replicas)
		}
		t.Line("Serves%s: %s tokens of KV cache, %.1f requests of %s at once (%s, on %s)",
			each, report.Count(a.Tokens), a.Requests, report.Count(a.MaxLen), what, on)
		return
	}
	t.Line("Does not serve on %s: %s", size.Format(card), report.OneLine(a.Reason))
	ran := "It ran on " + on + " to learn what it needs: "
	if a.CardBytes == card { // it is ready there, and does not serve
		ran = ""
	}
	with := fmt.Sprintf("%s (%s, %s)", report.Count(a.MaxLen), what, cacheSetting(a))
	if a.Need == 0 {
		t.Line("%sits tokens do not follow from bytes, so which GPUs serve one request of %s is unknown.", ran, with)
		return
	}
	t.Line("%sGPUs of %s serve one request of %s.", ran, size.Format(a.Need), with)
}

// writeRefused writes the verdict about an engine that did not serve on any card.
func writeRefused(t *text, a *fit.Engine, card uint64) {
	t.Line("Does not serve on %s: %s", size.Format(card), report.OneLine(a.Reason))
	if a.RefusedOn > card {
		t.Line("Nor on %s, so what it needs is not known: %s", size.Format(a.RefusedOn), report.OneLine(a.LastReason))
	}
}

func engineTable(first string) *report.Table {
	return report.NewTable(first, "serves", ">tokens", ">requests", ">of length", ">weights", ">activations", ">KV cache")
}

func engineRow(tab *report.Table, first string, a *fit.Engine) {
	row := []string{first, servesWord(a.Serves), report.Count(a.Tokens), fmt.Sprintf("%.1f", a.Requests), report.Count(a.MaxLen)}
	sizes := formatSizes(a.Weights, a.Activations, a.Cache)
	if !a.Serves { // the rest is of a larger card
		row[2], row[3], sizes[2] = "", "", ""
	}
	if a.RefusedOn > 0 { // or there is none
		row[4], sizes[0], sizes[1] = "", "", ""
	}
	tab.Row(append(row, sizes...)...)
}

// writeVariedEngine writes the answer of each value.
func writeVariedEngine(t *text, v *fit.Varied) {
	tab := engineTable(v.Name)
	for _, x := range v.Tried {
		engineRow(tab, x.Value, x.Engine)
	}
	t.Table(tab)
	if v.Largest != nil {
		t.Line("The rest of this answer is for %s=%s.", v.Name, *v.Largest)
	}
}

func servesWord(serves bool) string {
	if serves {
		return "yes"
	}
	return "no"
}
