// The answers of gpumem fit as text.

package main

import (
	"fmt"
	"slices"
	"strings"

	"gpumem/internal/report"
	"gpumem/record/fit"
	"gpumem/size"
)

// compiledRows is how many compiled functions are listed.
const compiledRows = 5

// writeFit writes the answer about a program: the advice, what it compiled, what differs.
func writeFit(t *text, rep *fit.Report) {
	if rep.Engine != nil {
		writeEngine(t, rep)
		return
	}
	if rep.Varied != nil {
		writeVaried(t, rep.Varied, rep.DeviceBytes)
		t.section("")
	}
	if p := rep.Program; p.TooLarge {
		t.Line("It does not fit %s: it was refused memory on a simulated GPU of %s, too, with %s live. "+
			"It needs more, or takes all that it can get.", size.Format(rep.DeviceBytes), size.Format(p.RanOn), size.Format(rep.PeakBytes))
		return
	}
	if own := rep.Program.Own; len(own) > 0 {
		why := ", for JAX refuses both names of a setting at once"
		if rep.Program.Framework != "jax" {
			why = ""
		}
		t.Line("Without the program's own %s: take that out before you set anything below%s.", strings.Join(own, ", "), why)
	}
	grows := rep.Grows
	if rep.Advice != nil && !slices.ContainsFunc(rep.Doubts, func(d fit.Doubt) bool { return d.Kind == fit.Grows }) {
		grows = nil // too slowly to matter
	}
	if grows != nil {
		t.Line("%s", strings.TrimSpace(forStepsText(rep)+" "+growsText(grows, rep.Advice != nil, size.Format(rep.DeviceBytes))))
	}
	writeVerdict(t, rep.Report, limits(rep.Doubts), grows)
	for _, d := range rep.Doubts {
		if d.Kind != fit.Grows { // which stands first
			t.Line("%s", report.OneLine(d.Text))
		}
	}
	writeReasons(t, rep.Report)
	if len(rep.Program.Lines) > 0 {
		writePlaces(t, "Live at the peak, by line of the program, the largest", rep.Program.Lines)
	}
	writeShares(t, rep.Program.Shares)
	if len(rep.Peaks) > 1 {
		t.section("")
		t.Line("Each of the %d GPUs that it uses is a card of the size; "+
			"the sizes and times above are those of the one that needs the most.", len(rep.Peaks))
		tab := report.NewTable("GPU", ">live at the peak", "in")
		for _, p := range rep.Peaks {
			tab.Row(p.Pool, size.Format(p.Bytes), p.Function)
		}
		t.Table(tab)
	}
	writePeak(t, rep.Peak())
	if b := rep.Breaks; b != nil && b.Function != "" {
		what := ""
		if b.For != "" {
			what = ", for its " + string(b.For)
		}
		t.Line("As it is, it would be refused %s in %s%s.", size.Format(b.Bytes), b.Function, what)
	}
	if p := rep.Program; len(p.Compiled) > 0 {
		t.section("")
		t.Line("Compiled by %s %s, the largest first:", p.Framework, p.Version)
		tab := report.NewTable("function", ">in all", ">arguments", ">results", ">in place", ">temporaries", ">code")
		for _, c := range p.Compiled[:min(compiledRows, len(p.Compiled))] {
			tab.Row(append([]string{c.Name}, formatSizes(c.Total(), c.Argument, c.Output, c.Alias, c.Temp, c.Code)...)...)
		}
		t.Table(tab)
		if more := len(p.Compiled) - compiledRows; more > 0 {
			t.Line("and %s more (--json)", report.Counted(uint64(more), "function"))
		}
	}

	t.section("")
	for _, c := range rep.Tried {
		switch with := strings.Join(c.Set, " "); {
		case !c.Fits:
			t.Line("Run for a card of %s, it does not fit.", size.Format(c.Card))
		case with == "":
			t.Line("Run for a card of %s, it fits as it is; %s is live at the peak.", size.Format(c.Card), size.Format(c.Peak))
		default:
			t.Line("Run for a card of %s, it fits with %s; %s is live at the peak.", size.Format(c.Card), with, size.Format(c.Peak))
		}
	}
	if f := rep.Program.Framework; (f == "jax" || f == "tensorflow") && len(rep.Tried) == 0 && rep.SmallestCard != nil {
		t.Line("For a smaller card the compiler may choose what takes less memory: --smallest runs the program for those, too.")
	}
	if rep.Program.RanOn != rep.DeviceBytes {
		t.Line("It was refused memory on the card, and ran again on a simulated GPU of %s that shows the card's size, to learn what it needs.",
			size.Format(rep.Program.RanOn))
	}
	for _, d := range rep.Differences() {
		t.Line("%s", d)
	}
}

// forStepsText is the verdict about a program that grows, for the steps that it is to make; "" if their number is not
// given, or it fits for none.
func forStepsText(rep *fit.Report) string {
	steps, device := report.Counted(rep.For, "step"), size.Format(rep.DeviceBytes)
	switch {
	case rep.For == 0 || rep.Advice == nil:
		return ""
	case rep.Fits:
		return fmt.Sprintf("It fits %s for %s.", device, steps)
	case rep.Grows.FitsSteps == nil:
		return fmt.Sprintf("It is not known to fit %s for %s.", device, steps)
	}
	return fmt.Sprintf("It does not fit %s for %s, if it goes on so.", device, steps)
}

// limits returns for what a verdict holds, as words behind it.
func limits(doubts []fit.Doubt) (words string) {
	for _, d := range doubts {
		switch d.Kind {
		case fit.Ended:
			words += ", as far as it ran"
		case fit.Caught:
			words += ", as it went on when it was refused memory"
		case fit.Sizes:
			words += ", with the sizes of zeros"
		case fit.Assumed:
			if !strings.Contains(words, "assumed") {
				words += ", with what is assumed"
			}
		}
	}
	return words
}

// writeShares writes what each process of a program has of the GPUs.
func writeShares(t *text, shares []fit.Share) {
	if len(shares) == 0 {
		return
	}
	t.section("")
	t.Line("Several processes use the GPUs, each with its own pool and context. What one has released to the driver another can take.")
	tab := report.NewTable("GPU", "process", ">live at its peak", ">at the GPU's peak")
	apart := map[string][2]uint64{} // of each GPU: the sum of the peaks, and what was live at once
	var gpus []string
	for _, s := range shares {
		tab.Row(s.GPU, strings.TrimPrefix(s.Process, "process "), size.Format(s.Peak), size.Format(s.AtPeak))
		sum, seen := apart[s.GPU]
		if !seen {
			gpus = append(gpus, s.GPU)
		}
		apart[s.GPU] = [2]uint64{sum[0] + s.Peak, sum[1] + s.AtPeak}
	}
	t.Table(tab)
	for _, gpu := range gpus {
		if sum := apart[gpu]; sum[0]-sum[1] > sum[1]/100 {
			t.Line("On %s the peaks did not all come at once in this run. In another run they may: then %s is live, not %s.",
				gpu, size.Format(sum[0]), size.Format(sum[1]))
		}
	}
}

// writePeak writes what the memory of a GPU is for when most is live.
func writePeak(t *text, p fit.Peak) {
	if p.Function == "" {
		return
	}

	t.section("")
	t.Line("%s at its peak of %s, in %s, which the sizes of its blocks show:", p.Pool, size.Format(p.Bytes), p.Function)
	tab := report.NewTable("for", ">bytes", "what")
	for _, part := range p.Parts {
		tab.Row(string(part.Kind), size.Format(part.Bytes), part.Name)
	}
	t.Table(tab)
	if len(p.Largest) > 0 {
		t.Line("The largest temporaries where it has the most of them, by a model of XLA's buffer assignment:")
		tab := report.NewTable(">bytes", "shape", "operation", "at")
		for _, v := range p.Largest {
			tab.Row(size.Format(v.Bytes), v.Shape, v.OpName, v.Source)
		}
		t.Table(tab)
	}
}

// writeVaried writes which values were tried, and which is the largest that fits.
func writeVaried(t *text, v *fit.Varied, card uint64) {
	if v.Largest == nil {
		t.Line("With no value of %s it fits %s. The rest of this answer is for the first.", v.Name, size.Format(card))
	} else {
		t.Line("%s=%s is the largest of these values that fits %s. The rest of this answer is for it.", v.Name, *v.Largest, size.Format(card))
	}
	tab := report.NewTable(v.Name, "fits", ">live at the peak", "with")
	for _, x := range v.Tried {
		fits := "no"
		if x.Fits {
			fits = "yes"
		}
		tab.Row(x.Value, fits, size.Format(x.Peak), strings.Join(x.Set, " "))
	}
	t.Table(tab)
	if v.Unordered {
		t.Line("The values are not in the order of their memory: a larger one may fit. Give them from the least memory to the most.")
	}
	t.Line("More memory with each value is assumed: values that are not in the table were not tried.")
}

// writeFitFile writes the answer about a module or a recording.
func writeFitFile(t *text, rep *fit.FileReport) {
	writeAdvice(t, rep.Report)
	if m := rep.Module; m != nil {
		t.section("")
		if rep.Refused != nil {
			t.Line("What is refused first is %s.", rep.Refused.What)
		}
		t.Line("%s takes %s:", m.Name, size.Format(m.Total))
		tab := report.NewTable(">arguments", ">results", ">in place", ">temporaries", ">constants")
		tab.Row(formatSizes(m.Arguments, m.Results, m.Aliased, m.Temporaries, m.Constants)...)
		t.Table(tab)
		if !m.Scheduled {
			t.Line("The module is not compiled yet (is_scheduled=true is missing). " +
				"What it takes is an estimate: docs/fit.md says how wrong it may be. compiled.as_text() has what runs.")
		}
		t.Line("Constants and the code, whose size the module does not have, lie outside the pool.")
	}
	if len(rep.Peak) > 0 {
		writePlaces(t, "Live at the peak, the largest", rep.Peak)
	}
}

func formatSizes(list ...uint64) (texts []string) {
	for _, n := range list {
		texts = append(texts, size.Format(n))
	}
	return texts
}

// writePlaces lists what fills the peak.
func writePlaces(t *text, title string, list []fit.Place) {
	t.section(title)
	for _, p := range list {
		what := p.What
		if p.Blocks > 1 {
			what += ", " + report.Counted(p.Blocks, "block")
		}
		t.place(p.Bytes, report.OneLine(what), p.Where)
	}
}
