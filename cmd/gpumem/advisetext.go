// The advice of gpumem advise as text.

package main

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"gpumem/internal/report"
	"gpumem/record/advise"
	"gpumem/record/timeline"
	"gpumem/size"
)

// writeAdvice writes the answer as text.
func writeAdvice(t *text, rep *advise.Report) {
	if g := rep.Grows; g != nil {
		t.Line("%s", growsText(g, rep.Advice != nil, size.Format(rep.DeviceBytes)))
	}
	writeVerdict(t, rep, "", rep.Grows)
	writeReasons(t, rep)
}

// writeVerdict writes the verdict, which holds with limits, and what to set. Of what grows, unless that is nil,
// it is about the steps that were recorded, if it fits for those.
func writeVerdict(t *text, rep *advise.Report, limits string, grows *advise.Grows) {
	verdict := adviceVerdict(rep, limits)
	if grows != nil && rep.Advice != nil { // else it fits for none
		verdict = "For the " + recordedText(grows) + ", " + lowerFirst(verdict)
	}
	t.Line("%s", verdict)
	if c := rep.Advice; c != nil {
		if !rep.FitsAsItIs {
			setAdvice(t, c.Set, c.Call, "in the program: ")
			if c.Run != "" {
				t.Raw("  " + c.Run)
			}
		}
		if r := c.Range; r != nil {
			t.Line("%s", rangeText(r, rep))
		}
		for _, n := range c.Notes {
			t.Line("  during the run: %s", n)
		}
	}
}

// writeReasons writes what the verdict comes from: the peak, the table of what was tried, each
// GPU, a second program, the smallest card, the assumptions.
func writeReasons(t *text, rep *advise.Report) {
	for _, line := range rep.Trace.PeakLines() {
		t.Line("%s.", strings.ToUpper(line[:1])+line[1:])
	}
	if rep.Instant {
		t.Line("The recording is of one instant: this is about what was live then, and no more.")
	}

	t.section("")
	adviceTable(t, rep)
	if len(rep.GPUs) > 1 {
		t.section("Each GPU alone")
		gpuTable(t, rep)
	}

	t.section("")
	writeSecond(t, rep)
	writeSmallest(t, rep)

	t.section("")
	writeBasis(t, rep)
}

// growsText says that a program grows, and for how long it fits, if it
// fits at all.
func growsText(g *advise.Grows, fits bool, device string) string {
	text := report.OneLine(g.Sentence())
	seen := report.Counted(g.RecordedSteps, "step")
	switch {
	case g.FitsSteps != nil:
		text += fmt.Sprintf(": if it goes on as in the %s that were seen, it fits %s for about %s steps",
			seen, device, report.Count(report.Round(*g.FitsSteps)))
	case fits && g.RecordedSteps == 0:
		text += fmt.Sprintf(": for how many it fits %s is unknown", device)
	case fits:
		text += fmt.Sprintf(". What it needs at the peaks of the %s that were seen did not grow evenly, "+
			"or too few ran: for how many it fits %s is unknown", seen, device)
	}
	return text + ". gpumem leaks says more."
}

// recordedText names the steps that a verdict is about where more of them need more.
func recordedText(g *advise.Grows) string {
	if g.RecordedSteps == 0 {
		return "steps that were recorded"
	}
	return report.Counted(g.RecordedSteps, "step") + " that were recorded"
}

// setAdvice writes what to set: for the environment, and statements for the program behind
// some words.
func setAdvice(t *text, set, call []string, words string) {
	for _, s := range set {
		t.Raw("  export " + s)
	}
	for _, s := range call {
		t.Raw("  " + words + s)
	}
}

// rangeText says both ends of a limit.
func rangeText(r *advise.Range, rep *advise.Report) string {
	var parts []string
	if r.TooLittle != "" {
		parts = append(parts, fmt.Sprintf("with %s a request is refused", r.TooLittle))
	}
	switch {
	case r.Most == r.Least:
	case r.Capped:
		parts = append(parts, r.Most+" is the most that is advised")
	default:
		parts = append(parts, fmt.Sprintf("%s is the most that leaves %s outside the pool", r.Most, size.Format(rep.ContextBytes)))
	}
	if len(parts) == 0 {
		return "No less and no more was tried."
	}
	return fmt.Sprintf("%s is the least that is enough: %s.", r.Least, strings.Join(parts, "; "))
}

// writeSecond says what is left for a second program, and how the two are set.
func writeSecond(t *text, rep *advise.Report) {
	s := rep.Second
	if s == nil {
		if rep.Grows != nil {
			return
		}
		if rep.Advice != nil {
			t.Line("Nothing of this leaves enough memory for a second program.")
		}
		return
	}
	with := ""
	if rep.Title() == "" && s.Run == "" {
		with = ", if this one has the policy " + s.Policy
	}
	t.Line("For a second program there would be %s, and %s for its context%s.", size.Format(s.Bytes), size.Format(rep.ContextBytes), with)
	switch {
	case s.Run != "":
		t.Line("Run this program with:")
		t.Raw("  " + s.Run)
	case len(s.First)+len(s.FirstCall) > 0:
		t.Line("In this program set:")
		setAdvice(t, s.First, s.FirstCall, "")
	}
	if len(s.Other)+len(s.OtherCall) > 0 {
		t.Line("In the second one:")
		setAdvice(t, s.Other, s.OtherCall, "")
	}
}

// writeSmallest says which card is the smallest.
func writeSmallest(t *text, rep *advise.Report) {
	var ours *advise.Candidate
	for _, c := range rep.Candidates {
		if c.Ours && c.SmallestCard != nil && (rep.SmallestCard == nil || *c.SmallestCard < *rep.SmallestCard) {
			ours = c
		}
	}
	switch {
	case rep.SmallestCard != nil:
		of := ""
		if rep.Grows != nil {
			of = " for the " + recordedText(rep.Grows)
		}
		t.Line("The smallest card%s: %s, of which programs see %s at least, with %s.", of, size.Format(*rep.SmallestCard),
			size.Format(advise.Usable(*rep.SmallestCard)), smallestWith(rep, *rep.SmallestCard))
	case ours == nil:
		t.Line("No card on the market is large enough.")
	default:
		t.Line("No card on the market is large enough with settings of the framework.")
	}
	if ours != nil {
		t.Line("With %s a card of %s is enough.", ours.Run, size.Format(*ours.SmallestCard))
	}
}

// writeBasis says what the answer is based on: the recording, the card, the framework.
func writeBasis(t *text, rep *advise.Report) {
	on, devices := "", "device"
	if n := len(rep.GPUs); n > 1 {
		on, devices = " on one GPU", fmt.Sprintf("%d devices", n)
	}
	if slices.ContainsFunc(rep.GPUs, func(g *advise.GPU) bool { return len(g.Others) > 0 }) {
		on = " in one pool"
	}
	recording := rep.Trace
	recording.AtPeak = nil // it stands below the verdict
	timeline.WriteRecording(&t.Text, "", recording, on)
	used := ""
	if rep.UsedBytes > 0 {
		used = fmt.Sprintf(", %s of it held by others", size.Format(rep.UsedBytes))
	}
	t.Line("%s of %s%s; any allocator must hold %s at the peak%s", devices, size.Format(rep.DeviceBytes), used,
		size.Format(rep.LowerBound), on)
	for _, l := range leftOutText(rep.LeftOut) {
		t.Line("%s.", l)
	}
	for _, g := range rep.GPUs {
		if len(g.Others) > 0 {
			t.Line("%s: on its GPU lies %s, too, whose peaks of %s in all are taken before that pool begins.",
				g.Pool, strings.Join(g.Others, ", "), size.Format(g.Beside))
		}
	}
	if rep.PoolNote != "" {
		t.Line("%s", rep.PoolNote)
	}
	t.Line("%s", frameworkText(rep))
	for _, c := range rep.Candidates {
		if c.Approximate != "" {
			t.Line("%s is approximate: %s.", strings.Join(c.Brief, " "), c.Approximate)
		}
	}
	if n := rep.ConstantBytes; n > 0 {
		t.Line("%s of constants lie outside the pool, too.", size.Format(n))
	}
	t.Line("%s", assumedText(rep))
}

// assumedText says what is assumed beside the recording.
func assumedText(rep *advise.Report) string {
	pool := "the pool"
	if n := rep.Need; n != nil && n.Processes > 1 {
		pool += fmt.Sprintf(" of each of %d processes", n.Processes)
	}
	return fmt.Sprintf("Assumed: %s outside %s, for the CUDA context, code and libraries (--beside), "+
		"and another run that requests no more than this one.", size.Format(rep.ContextBytes), pool)
}

// leftOutText says of pools that are not in the answer what they are.
func leftOutText(left []advise.LeftOut) (lines []string) {
	for _, l := range left {
		switch {
		case l.Peak == 0:
		case l.Code:
			lines = append(lines, fmt.Sprintf("%s is compiled code, %s, which counts as memory outside the pool", l.Pool,
				size.Format(l.Peak)))
		default:
			lines = append(lines, fmt.Sprintf("%s is host memory, %s at the peak, and is not in the answer", l.Pool, size.Format(l.Peak)))
		}
	}
	return lines
}

// frameworkText says whose settings the answer has, and why.
func frameworkText(rep *advise.Report) string {
	title := rep.Title()
	if title == "" {
		const policies = "Policies are named as gpumem replay and gpumem run --pool take them"
		if rep.Why == "" {
			return policies + "."
		}
		return policies + ", for " + rep.Why + ": --as jax, tensorflow, pytorch or rmm has the settings of one."
	}
	text := "Settings are " + title + "'s"
	if rep.Why != "" {
		text += ", for " + rep.Why
	}
	switch newest := rep.Newest(); {
	case newest == "":
		text += "."
	case rep.Version != "":
		text += ", release " + rep.Version + "."
	default:
		text += fmt.Sprintf(". They are those of %s, the newest release known: --as %s@VERSION has another's.", newest, rep.Name)
	}
	if rep.Older != "" {
		text += " " + rep.Older
	}
	if rep.Other != "" {
		text += fmt.Sprintf(" If the program is not %s's, --as %s.", title, rep.Other)
	}
	if rep.Note != "" {
		text += " " + rep.Note + "."
	}
	return text
}

// defaultsOf names what is tried first.
func defaultsOf(rep *advise.Report) string {
	switch title := rep.Title(); {
	case title == "":
		return "the policy " + rep.Candidates[0].Policy
	case rep.Newest() == "":
		return title + "'s default of no pool"
	case rep.Recorded != "":
		return "the recorded settings " + rep.Recorded
	default:
		return title + "'s defaults"
	}
}

// adviceVerdict returns the answer in a sentence or two. That it fits holds with limits, which
// are words such as ", as far as it ran".
func adviceVerdict(rep *advise.Report, limits string) string {
	first, defaults := rep.Candidates[0], defaultsOf(rep)
	each := ""
	if n := len(rep.GPUs); n > 1 {
		each = fmt.Sprintf(" each of %d GPUs", n)
	}
	// not says on which GPUs it does not fit, if ok reports whether it fits one.
	not := func(ok func(*advise.GPU) bool) string {
		switch n := len(rep.GPUs); {
		case n < 2:
			return ""
		case slices.ContainsFunc(rep.GPUs, ok):
			return fmt.Sprintf(" all of %d GPUs", n)
		default:
			return fmt.Sprintf(" any of %d GPUs", n)
		}
	}
	some := not(func(g *advise.GPU) bool { return g.FitsAsItIs })
	if rep.FitsAsItIs {
		served := "every request is served"
		if n := rep.Trace.Refused; n > 0 {
			served += fmt.Sprintf(", also the %s that the recorded run was refused", report.Count(n))
		}
		return fmt.Sprintf("It fits%s as it is%s: with %s %s; %s.", each, limits, defaults, served, heldText(first, rep))
	}
	why := ""
	if len(first.Set) > 0 { // see advise.Candidate: the first sets nothing, unless it must
		why = ": JAX refuses a GPU without virtual memory management"
	} else if first.FirstRefused != nil {
		event := report.EventName(*first.FirstRefused - min(first.Seeds, *first.FirstRefused))
		if first.RefusedPool != "" {
			event += " of " + first.RefusedPool
		}
		why = fmt.Sprintf(" (%s, a request for %s, is refused; %s)", event, size.Format(first.RefusedBytes), heldText(first, rep))
	}
	switch {
	case rep.Advice == nil:
		some = cmp.Or(not(func(g *advise.GPU) bool { return g.Advice != nil }), " a GPU")
		setting := "setting"
		if rep.Title() == "" {
			setting = "policy"
		}
		return fmt.Sprintf("It does not fit%s of %s%s, with any %s: %s.",
			some, size.Format(rep.DeviceBytes), othersText(rep.UsedBytes), setting, needText(rep))
	case rep.Advice.Ours && rep.Title() != "":
		some = not(func(g *advise.GPU) bool { return g.Advice != nil && !g.Advice.Ours })
		const format = "It does not fit%s with any setting of %s%s. It fits%s with this project's pool under the unchanged program:"
		return fmt.Sprintf(format, some, rep.Title(), why, spaced(limits))
	case rep.Title() == "":
		return fmt.Sprintf("It does not fit%s with %s%s. It fits%s with the policy %s.", some, defaults, why, spaced(limits), rep.Advice.Policy)
	}
	return fmt.Sprintf("It does not fit%s with %s%s. It fits%s with:", some, defaults, why, spaced(limits))
}

// spaced closes words that stand within a sentence.
func spaced(limits string) string {
	if limits == "" {
		return ""
	}
	return limits + ","
}

// othersText says what others hold of the card.
func othersText(used uint64) string {
	if used == 0 {
		return ""
	}
	return fmt.Sprintf(", of which others hold %s", size.Format(used))
}

// needText says why nothing fits.
func needText(rep *advise.Report) string {
	n, at := rep.Need, "at the peak"
	if n.Pools > 1 {
		at = fmt.Sprintf("at the peaks of the %d pools of a GPU", n.Pools)
	}
	live, outside := size.Format(n.Live)+" is live "+at, size.Format(rep.ContextBytes+rep.ConstantBytes)
	if n.Wanted > n.Live {
		live += ", " + size.Format(n.Wanted) + " with what the recorded run was refused"
	}
	outside += " is needed outside the pool"
	if n.Processes > 1 {
		outside += fmt.Sprintf(" of each of %d processes", n.Processes)
	}
	if n.TooMuch {
		return live + ", and " + outside
	}
	return live + ", but with each setting the pool needs more than is live, for holes and rounded sizes; " + outside
}

// heldText says what a candidate holds at most, in the framework's words.
func heldText(c *advise.Candidate, rep *advise.Report) string {
	most := "at most " + size.Format(c.HeldPeak) + " of " + size.Format(rep.DeviceBytes)
	if inPyTorchWords(rep) {
		return most + " is reserved, and " + size.Format(c.UsedPeak) + " allocated"
	}
	return most + " is held"
}

// inPyTorchWords reports whether memory is reserved and allocated, not held.
func inPyTorchWords(rep *advise.Report) bool { return rep.Name == "pytorch" }

func adviceTable(t *text, rep *advise.Report) {
	titles, rows := adviceRows(rep)
	tab := report.NewTable(titles...)
	for k, c := range rep.Candidates {
		names := nameOf(c, rep)
		rows[k][0] = names[0]
		tab.Row(rows[k]...)
		for _, more := range names[1:] {
			tab.Row("  " + more)
		}
	}
	t.Table(tab)
}

// adviceRows returns the table of what was tried: its titles, and a row for each candidate.
func adviceRows(rep *advise.Report) (titles []string, rows [][]string) {
	titles = []string{"setting", "fits", ">held peak"}
	if rep.Title() == "" {
		titles[0] = "policy"
	}
	if inPyTorchWords(rep) {
		titles = []string{"setting", "fits", ">reserved", ">allocated"}
	}
	titles = append(titles, ">left", ">driver calls", ">driver time", ">smallest device", ">card")
	for _, c := range rep.Candidates {
		fits, left := "yes", size.Format(c.Left)
		if !c.Fits {
			fits, left = "NO", ""
		}
		cells := []string{strings.Join(nameOf(c, rep), " "), fits, size.Format(c.HeldPeak)}
		if inPyTorchWords(rep) {
			cells = append(cells, size.Format(c.UsedPeak))
		}
		calls, seconds := report.Count(c.DriverCalls), report.Seconds(c.DriverSeconds)
		rows = append(rows, append(cells, left, calls, seconds, sizeOrNone(c.SmallestDevice), sizeOrNone(c.SmallestCard)))
	}
	return titles, rows
}

// pageLines returns what write writes as sentences.
func pageLines(write func(*text)) (list []string) {
	t := &text{Text: report.Text{Width: math.MaxInt32}}
	write(t)
	for line := range strings.Lines(t.String()) {
		if line = strings.TrimSpace(line); line != "" {
			list = append(list, line)
		}
	}
	return list
}

// adviceOnPage returns the answer as the page of a replay shows it.
func adviceOnPage(rep *advise.Report) *report.Section {
	s := &report.Section{ID: "set", Title: "What to set", Sentences: []string{adviceVerdict(rep, "")}}
	if c := rep.Advice; c != nil {
		if !rep.FitsAsItIs {
			s.Lines = pageLines(func(t *text) { setAdvice(t, c.Set, c.Call, "") })
			if c.Run != "" {
				s.Lines = append(s.Lines, c.Run)
			}
		}
		if c.Range != nil {
			s.Sentences = append(s.Sentences, rangeText(c.Range, rep))
		}
	}
	s.Columns, s.Rows = adviceRows(rep)
	s.More = pageLines(func(t *text) { writeSmallest(t, rep) })
	s.Small = []string{
		frameworkText(rep),
		fmt.Sprintf("Assumed: %s outside the pool, for the CUDA context, code and libraries, and another run that "+
			"requests no more than this one. "+
			"The table of policies above assumes nothing outside the pool.", size.Format(rep.ContextBytes)),
		"gpumem advise " + filepath.Base(rep.Trace.Source) + " has the same answer, and its options.",
	}
	return s
}

func sizeOrNone(n *uint64) string {
	if n == nil {
		return "none"
	}
	return size.Format(*n)
}

// nameOf returns what is set, a line for each setting.
func nameOf(c *advise.Candidate, rep *advise.Report) []string {
	switch {
	case rep.Title() == "":
		return breakPolicy(c.Policy)
	case c.Ours:
		return []string{"(run --pool " + c.Policy + ")"}
	case len(c.Brief) == 0:
		return []string{"(nothing)"}
	}
	return c.Brief
}

// gpuTable has a row for each GPU, as if the program used that one alone.
func gpuTable(t *text, rep *advise.Report) {
	tab := report.NewTable("GPU", ">live peak", "as it is", "fits with", ">card")
	for _, g := range rep.GPUs {
		fits, with := "NO", "no setting"
		if g.FitsAsItIs {
			fits = "fits"
		}
		if g.Advice != nil {
			with = strings.Join(nameOf(g.Advice, rep), " ")
		}
		tab.Row(g.Pool, size.Format(g.PeakLive), fits, with, sizeOrNone(g.SmallestCard))
	}
	t.Table(tab)
}

// smallestWith returns the first setting with which a card is enough.
func smallestWith(rep *advise.Report, card uint64) string {
	for _, c := range rep.Candidates {
		if c.Ours || c.SmallestCard == nil || *c.SmallestCard != card {
			continue
		}
		text := strings.Join(c.CardSet, " ")
		switch {
		case rep.Title() == "":
			text = "the policy " + c.CardPolicy
		case len(c.CardCall) > 0:
			text = strings.Join(c.CardBrief, " ")
		case text == "" && rep.Recorded != "":
			text = "what is set"
		case text == "":
			text = "nothing set"
		}
		if r := c.CardRange; r != nil && r.Most != r.Least {
			text += fmt.Sprintf(", or up to %s", r.Most)
		}
		return text
	}
	return "" // not reached: the card is some candidate's
}

// writeTogether writes the answer about several programs: the verdict, how to start each,
// what each needs.
func writeTogether(t *text, rep *advise.Together) {
	others := othersText(rep.UsedBytes)
	if rep.Fits {
		t.Line("They fit a GPU of %s together%s: their leases take %s, and %s is left. Start each in its lease:",
			size.Format(rep.DeviceBytes), others, size.Format(rep.Leases), size.Format(rep.Left))
	} else {
		t.Line("They do not fit a GPU of %s together%s: their leases would take %s. Each alone:",
			size.Format(rep.DeviceBytes), others, size.Format(rep.Leases))
	}
	for _, m := range rep.Programs {
		t.Raw("  " + m.Run + "   # " + report.OneLine(m.Trace.Source))
	}

	t.section("")
	tab := report.NewTable("recording", "framework", ">live peak", ">lease", "pool")
	for _, m := range rep.Programs {
		framework, pool := m.Name, m.Pool
		if m.Version != "" {
			framework += "@" + m.Version
		}
		if pool == "" {
			pool = "its own"
		}
		tab.Row(m.Trace.Source, framework, size.Format(m.Trace.PeakLive), size.Format(m.Lease), pool)
	}
	t.Table(tab)

	t.section("")
	for _, m := range rep.Programs {
		if about := memberText(m); about != "" {
			t.Line("%s: %s.", m.Trace.Source, about)
		}
	}
	t.Line("A lease is the least in which the recording is served, with %s outside the pool (--beside). "+
		"So each may be at its peak at the same time.", size.Format(rep.ContextBytes))
	if rep.PeakTogether != nil {
		t.Line("If all begin at the same time as recorded, at most %s is live at once.", size.Format(*rep.PeakTogether))
	}
}

// memberText says what holds for one of several programs alone.
func memberText(m *advise.Member) string {
	title, parts := m.Title(), []string(nil)
	if m.Instant {
		parts = append(parts, "of one instant, so the lease is for what was live then, and no more")
	}
	if m.Other != "" {
		parts = append(parts, fmt.Sprintf("taken as %s's, for %s; if it is not, --as %s, which holds for all recordings",
			title, m.Why, m.Other))
	}
	if len(m.Set) > 0 {
		parts = append(parts, title+" refuses a GPU without virtual memory management unless "+strings.Join(m.Set, " ")+" is set")
	}
	switch {
	case m.OwnLease > 0:
		parts = append(parts, fmt.Sprintf("%s in place of %s's own pool, whose lease of %s is too large beside the others",
			m.Pool, title, size.Format(m.OwnLease)))
	case m.Pool != "" && title != "":
		parts = append(parts, fmt.Sprintf("%s, for gpumem run cannot limit a pool of %s", m.Pool, title))
	case m.Why != "" && m.Pool != "":
		parts = append(parts, fmt.Sprintf("%s, for %s, and gpumem run limits the pools of frameworks alone", m.Pool, m.Why))
	}
	parts = append(parts, leftOutText(m.LeftOut)...)
	if len(m.Others) > 0 {
		parts = append(parts, fmt.Sprintf("the lease has %s for %s, too", size.Format(m.Beside), strings.Join(m.Others, ", ")))
	}
	if m.PoolNote != "" {
		parts = append(parts, strings.TrimSuffix(m.PoolNote, "."))
	}
	return strings.Join(parts, "; ")
}
