// What gpumem leaks finds, as text.

package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"gpumem/internal/report"
	"gpumem/record/leaks"
	"gpumem/record/timeline"
	"gpumem/record/trace"
	"gpumem/size"
)

// The number of lines that fit on a screen; --json has all.
const (
	leaksRows   = 8
	liveRows    = 20
	leaksFrames = 10
	grewRows    = 3
)

// writeLeaks writes the answer as text: the verdict, the places, the stack of the first,
// what to do.
func writeLeaks(t *text, rep *leaks.Answer) {
	t.Line("%s", leaksVerdict(rep))
	if oneStep := rep.Verdict == leaks.Growth && len(rep.Leaks) > 0; oneStep {
		t.Line("The recording shows no step that surely repeats: it may be one step, " +
			"whose layers or weights keep memory each in turn. To know, record twenty steps or more.")
	}
	timeline.WriteRecording(&t.Text, "", rep.Trace, "")
	if len(rep.Leaks) > 0 {
		t.section("")
		leaksTable(t, rep)
	}
	if len(rep.Leaks) > 0 && rep.Leaks[0].Stack != "" {
		t.section("The stack that keeps the most at the first place")
		frames := strings.Split(rep.Leaks[0].Stack, "\n")
		for _, f := range frames[:min(len(frames), leaksFrames)] {
			t.Raw("  " + report.OneLine(f))
		}
		if more := len(frames) - leaksFrames; more > 0 {
			t.Line("  and %s more (--json)", report.Counted(uint64(more), "frame"))
		}
	}
	if len(rep.Grew) > 0 {
		t.section("Grew, then stopped: no leaks")
		for _, p := range rep.Grew[:min(len(rep.Grew), grewRows)] {
			t.Line("  %s until event %s, then no more: %s", size.Format(p.Bytes), report.Count(p.GrowsToEvent), where(p))
		}
		if rest := restOf(rep.Grew, grewRows); rest != "" {
			t.Line("  %s", rest)
		}
	}

	t.section("What to do")
	for _, advice := range leaksAdvice(rep) {
		t.Line("  %s", advice)
	}
}

// writeLive writes what is live at the end as a table.
func writeLive(t *text, rep *leaks.LiveAnswer) {
	pools := slices.ContainsFunc(rep.Live, func(h leaks.Held) bool { return h.Pool != rep.Live[0].Pool })
	head := []string{">bytes", ">blocks", "where"}
	if pools {
		head = append(head, "pool")
	}
	tab := report.NewTable(head...)
	var bytes, blocks, rest uint64
	for i, h := range rep.Live {
		bytes, blocks = size.Add(bytes, h.Bytes), blocks+h.Blocks
		if i < liveRows {
			site := report.OneLine(cmp.Or(h.Site, "unknown"))
			if h.Keeper != nil {
				site += "; kept by " + keeperText(h.Keeper)
			}
			row := []string{size.Format(h.Bytes), report.Count(h.Blocks), site}
			if pools {
				row = append(row, h.Pool)
			}
			tab.Row(row...)
		} else {
			rest = size.Add(rest, h.Bytes)
		}
	}
	t.Line("%s: %s in %s", rep.Trace.Source, size.Format(bytes), report.Counted(blocks, "live block"))
	if len(rep.Live) > 0 {
		t.Table(tab)
	}
	if more := len(rep.Live) - liveRows; more > 0 {
		t.Line("and %s in %s more (--json)", size.Format(rest), report.Counted(uint64(more), "line"))
	}
}

// leaksVerdict returns the answer in a sentence.
func leaksVerdict(rep *leaks.Answer) string {
	switch {
	case len(rep.Leaks) > 0:
		first := rep.Leaks[0]
		what := "A leak"
		if len(rep.Leaks) > 1 {
			what = report.Counted(uint64(len(rep.Leaks)), "leak")
		}
		more := "more and more"
		if first.BytesPerStep != nil {
			more = size.Format(*first.BytesPerStep) + " more in each step"
		}
		if rep.Verdict == leaks.Growth {
			what, more = "It grows to the end", "more and more"
		}
		s := fmt.Sprintf("%s: %s %s %s", what, where(first), keeps(first), more)
		if rep.Steps != nil && rep.Verdict == leaks.Leak {
			s += fmt.Sprintf(", in about %s", report.Counted(*rep.Steps, "step"))
		}
		return s + fmt.Sprintf("; %s at the end.", size.Format(first.Bytes))
	case rep.Verdict == leaks.Growth:
		return fmt.Sprintf("Live memory grows steadily, by %s from a quarter to nine tenths of the recording, "+
			"but no one place keeps it: blocks may be replaced by larger ones, or the recording may be one step.", size.Format(rep.Unnamed))
	case rep.Verdict == leaks.None && rep.Steps != nil:
		return fmt.Sprintf("No leak: nothing grows to the end, in about %s.", report.Counted(*rep.Steps, "step"))
	case rep.Verdict == leaks.None:
		return "No leak: nothing grows to the end. The recording does not show how many steps there are."
	}
	return "Too short to say: the recording shows no step that repeats often enough. " +
		"Record twenty steps or more; --live lists what is live at its end."
}

// keeps returns the verb for a place: requests keep, a line keeps.
func keeps(p leaks.Place) string {
	if p.Stack == "" {
		return "keep"
	}
	return "keeps"
}

// where returns a place for a sentence.
func where(p leaks.Place) string {
	if p.Pool != "" {
		return report.OneLine(p.Site) + " on " + p.Pool
	}
	return report.OneLine(p.Site)
}

// keeperText returns a container with the line that fills it.
func keeperText(k *trace.Keeper) string {
	if k.Line == "" {
		return report.OneLine(k.Container)
	}
	return report.OneLine(k.Container + " (" + k.Line + ")")
}

func leaksTable(t *text, rep *leaks.Answer) {
	titles, rows := leaksTableRows(rep)
	tab := report.NewTable(titles...)
	for _, row := range rows {
		tab.Row(row...)
	}
	t.Table(tab)
	if rest := restOf(rep.Leaks, leaksRows); rest != "" {
		t.Line("%s", rest)
	}
}

// restOf says what places have that are not among the first n; "" if there are no more.
func restOf(places []leaks.Place, n int) string {
	if len(places) <= n {
		return ""
	}
	var bytes uint64
	for _, p := range places[n:] {
		bytes = size.Add(bytes, p.Bytes)
	}
	return fmt.Sprintf("and %s in %s more (--json)", size.Format(bytes), report.Counted(uint64(len(places)-n), "place"))
}

// leaksTableRows returns the table of the places that grow to the end.
func leaksTableRows(rep *leaks.Answer) (titles []string, rows [][]string) {
	step := ">a step"
	if rep.Verdict == leaks.Growth {
		step = ">a round" // of a step or of a layer
	}
	for _, p := range rep.Leaks[:min(len(rep.Leaks), leaksRows)] {
		each := "?"
		if p.BytesPerStep != nil {
			each = size.Format(*p.BytesPerStep)
		}
		site := where(p)
		if p.Regrows {
			site += ", each time a larger block"
		}
		if p.Keeper != nil {
			site += "; kept by " + keeperText(p.Keeper)
		}
		rows = append(rows, []string{each, size.Format(p.Bytes), report.Count(p.Blocks), report.Count(p.FirstEvent), site})
	}
	return []string{step, ">at the end", ">blocks", ">since event", "where"}, rows
}

// leaksOnPage returns the answer as the page of a replay shows it.
func leaksOnPage(rep *leaks.Answer) *report.Section {
	s := &report.Section{ID: "grew", Title: "What grew", Sentences: []string{leaksVerdict(rep)}}
	if len(rep.Leaks) > 0 {
		s.Columns, s.Rows = leaksTableRows(rep)
		if rest := restOf(rep.Leaks, leaksRows); rest != "" {
			s.More = append(s.More, "The table has the largest, "+strings.TrimSuffix(rest, " (--json)")+".")
		}
		if rep.Leaks[0].Stack != "" {
			s.Lines = strings.Split(rep.Leaks[0].Stack, "\n")
		}
	}
	s.More = append(s.More, leaksAdvice(rep)...)
	s.Small = []string{"gpumem leaks " + filepath.Base(rep.Trace.Source) + " has the same answer."}
	return s
}

// leaksAdvice returns what to do next, for well-known causes alone.
func leaksAdvice(rep *leaks.Answer) []string {
	if rep.Verdict != leaks.Leak {
		return nil
	}
	const (
		arrays = "JAX, TensorFlow, CuPy: an array lives as long as Python refers to it, from a list, a closure or a cache. " +
			"Keep float(loss) or a NumPy array instead. In JAX, gpumem.jax.live() lists what is alive, by line."
		torch = "PyTorch: most often a tensor is kept with the graph that made it, as in total += loss. " +
			"Keep loss.item() or x.detach(); what is only evaluated goes under torch.no_grad()."
	)
	var kept []string
	if k := rep.Leaks[0].Keeper; k != nil {
		kept = append(kept, "At the end of the recording they are kept by "+keeperText(k)+": take out what is no longer "+
			"needed, or put x.detach().cpu() there.")
	}
	if rep.Trace.Format == "torch" {
		return append(kept, torch)
	}
	list := append(kept, arrays, torch)
	if rep.Leaks[0].Stack == "" {
		list = append(list, "This recording has no stacks. One of PyTorch itself has: gpumem run --record x.pickle -- "+
			"COMMAND, without --pool.")
	}
	return list
}
