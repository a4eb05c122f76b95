package timeline

// The summary of a replay, in a headline and sentences.

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"gpumem/alloc"
	"gpumem/internal/input"
	"gpumem/internal/report"
	"gpumem/record/internal/stacks"
	"gpumem/record/replay"
	"gpumem/size"
)

// summary returns the outcome of a replay in a line, and then in sentences: what the recorded
// run was refused, the first refusal here and what would have helped, or what was held. Of
// policies that refuse the recorded framework's (own) goes first; results are those of GPUs'
// memory if there are some.
func summary(r *replay.Report, results []*replay.Result, pools []*report.Timeline, own []string, texts *textTable) (headline string, sentences []string) {
	name := filepath.Base(r.Trace.Source)
	var fit []*replay.Result
	var first *replay.Result // of those that refused
	policies, refuse := map[string]bool{}, map[string]bool{}
	for _, res := range results {
		policies[res.Policy] = true
		if res.Fits {
			fit = append(fit, res)
			continue
		}
		refuse[res.Policy] = true
		if first == nil || slices.Contains(own, res.Policy) && !slices.Contains(own, first.Policy) {
			first = res
		}
	}
	device := size.Format(results[0].DeviceBytes)
	died, recorded := "", recordedRefusal(pools, texts)
	if recorded != "" {
		died = " ran out of memory when it was recorded; it"
	}
	theirs := slices.IndexFunc(fit, func(res *replay.Result) bool { return slices.Contains(own, res.Policy) && !refuse[res.Policy] })
	switch {
	case first == nil:
		headline = fmt.Sprintf("%s%s fits %s under %s", name, died, device, all(len(policies), "policy", "policies"))
		sentences = served(r, pools, fit, device)
	case theirs >= 0:
		headline = fmt.Sprintf("%s%s fits %s under %s, and runs out of memory under %s", name, died, device, fit[theirs].Policy, one(len(policies), len(refuse), first))
		sentences = append(sentences, fmt.Sprintf("%s, the policy of the recorded program, held %s at most.", fit[theirs].Policy, size.Format(fit[theirs].HeldPeak)), refusal(first, r)+".")
	default:
		headline = fmt.Sprintf("%s%s runs out of memory on %s under %s", name, died, device, one(len(policies), len(refuse), first))
		sentences = append(sentences, refusal(first, r)+".", sentence(first.Failure.Cause), remedy(fit, first, results))
	}
	if recorded != "" {
		sentences = append([]string{recorded}, sentences...)
	}
	return headline, sentences
}

// recordedRefusal returns a sentence about the first request that the recorded program was
// refused; "" if there is none.
func recordedRefusal(pools []*report.Timeline, texts *textTable) string {
	for _, tl := range pools {
		if len(tl.Refused) == 0 {
			continue
		}
		r, on := tl.Refused[0], ""
		if tl.Pool != "" && len(pools) > 1 {
			on = " on " + tl.Pool
		}
		if r.Stack >= 0 {
			on += ", in " + texts.shown(stacks.OwnFrame(texts.List[r.Stack])) + ","
		}
		more := ""
		if n := len(tl.Refused); n > 1 {
			more = fmt.Sprintf(", the first of %s", report.Counted(uint64(n), "refusal"))
		}
		return fmt.Sprintf("The recorded run was refused %s%s at event %s of %s, with %s live%s.", size.Format(r.Bytes), on, report.Count(r.Event), report.Count(tl.Events), size.Format(r.Live), more)
	}
	return ""
}

// refusal returns a sentence, without its point, about a policy's first refusal.
func refusal(first *replay.Result, r *replay.Report) string {
	f := first.Failure
	what := fmt.Sprintf("Under %s, %s of %s requested %s", label(first, r), report.EventName(first.Number(f.Event)), report.Count(first.Number(first.Events)), size.Format(f.Bytes))
	if first.Number(f.Event) == 0 {
		what = fmt.Sprintf("Under %s, a block of %s from before the recording", label(first, r), size.Format(f.Bytes))
	} else if who := f.Line; who != "" {
		what += ", in " + who + ","
	}
	what += " and was refused"
	if first.Number(f.Event) == 0 {
		what = strings.Replace(what, " and was", " was", 1)
	}
	if f.Recorded {
		what += ", as in the recorded run"
	}
	if first.Refused > 1 {
		what += fmt.Sprintf(", the first of %s refusals", report.Count(first.Refused))
	}
	return what
}

// one names the policies that refuse a request.
func one(all, refuse int, first *replay.Result) string {
	switch {
	case all == 1:
		return first.Policy
	case refuse == all:
		return "every policy"
	case refuse == 1:
		return first.Policy + " alone"
	}
	return fmt.Sprintf("%d of %d policies", refuse, all)
}

// all returns "the policy" or "all 3 policies".
func all(n int, one, many string) string {
	if n == 1 {
		return "the " + one
	}
	return fmt.Sprintf("all %d %s", n, many)
}

// label returns the policy, and its pool if there are several.
func label(res *replay.Result, r *replay.Report) string {
	if len(r.Trace.PoolNames) > 1 {
		return res.Policy + " on " + res.Pool
	}
	return res.Policy
}

// served returns the sentences of a replay in which nothing was refused.
func served(r *replay.Report, pools []*report.Timeline, fit []*replay.Result, device string) []string {
	// Of several pools the one with the highest peak speaks for the policies.
	if len(pools) > 1 {
		largest := highest(pools)
		fit = slices.DeleteFunc(slices.Clone(fit), func(res *replay.Result) bool { return res.Pool != largest.Pool })
	}
	least := slices.MinFunc(fit, func(a, b *replay.Result) int { return cmp.Compare(a.HeldPeak, b.HeldPeak) })
	most := slices.MaxFunc(fit, func(a, b *replay.Result) int { return cmp.Compare(a.HeldPeak, b.HeldPeak) })
	who, peak, events := "The program", r.Trace.PeakLive, r.Trace.Events
	switch {
	case len(pools) == 1: // of several, if one was chosen
		peak, events = pools[0].Peak, pools[0].Events
	case len(pools) > 1:
		largest := highest(pools)
		who, peak, events = "Pool "+largest.Pool, largest.Peak, largest.Events
	}
	out := []string{fmt.Sprintf("%s requested at most %s at once, in %s.", who, size.Format(peak), report.Counted(events, "event"))}
	if events == 0 {
		out[0] = fmt.Sprintf("%s had %s live at the instant of the recording.", who, size.Format(peak))
	}
	if len(fit) == 1 {
		out = append(out, fmt.Sprintf("%s held %s of the device's %s at most.", label(least, r), size.Format(least.HeldPeak), device))
	} else {
		out = append(out, fmt.Sprintf("Of the policies %s held least, %s at most, and %s held most, %s of the device's %s.",
			label(least, r), size.Format(least.HeldPeak), label(most, r), size.Format(most.HeldPeak), device))
	}
	if n := r.Trace.Refused; n > 0 {
		return append(out, fmt.Sprintf("Every request was served, also the %s that the recorded run was refused.", report.Count(n)))
	}
	return append(out, "Nothing was refused.")
}

// highest returns the pool with the highest peak.
func highest(pools []*report.Timeline) *report.Timeline {
	return slices.MaxFunc(pools, func(a, b *report.Timeline) int { return cmp.Compare(a.Peak, b.Peak) })
}

// sentence returns in one sentence why the request did not fit.
func sentence(c alloc.Cause) string {
	b := size.Format
	free := c.Pool - min(c.Live, c.Pool)
	device := ""
	if c.DeviceKnown {
		device = fmt.Sprintf(", and the device had %s left", b(c.DeviceFree))
	}
	switch {
	case c.PassThrough && c.Rounded <= c.Limit, c.PassThrough && c.Limit == 0:
		return fmt.Sprintf("Every block is the device's own: %s was live%s.", b(c.Live), device)
	case c.Rounded > c.Limit && c.Limit > 0:
		return fmt.Sprintf("That is more than the limit of %s, so nothing that is freed would have helped.", b(c.Limit))
	case len(c.Words) > 0:
		parts := strings.Split(c.Words[0], ". ")
		for k := range parts[1:] {
			parts[k+1] = strings.ToLower(parts[k+1][:1]) + parts[k+1][1:]
		}
		return strings.Join(parts, "; ")
	case c.Pool == 0:
		return fmt.Sprintf("The pool held nothing yet%s.", device)
	case free >= c.Rounded:
		return fmt.Sprintf("Of the pool's %s, %s was free, enough, but in pieces of which the largest was %s%s.", b(c.Pool), b(free), b(c.Hole), device)
	case c.Growth() && free == 0 && c.Limit-min(c.Pool, c.Limit) < c.Rounded:
		return fmt.Sprintf("Every byte of the pool's %s was taken, and the limit of %s kept it from taking more of the %s that the device had left.", b(c.Pool), b(c.Limit), b(c.DeviceFree))
	case free == 0:
		return fmt.Sprintf("Every byte of the pool's %s was taken%s.", b(c.Pool), device)
	case c.Growth() && c.Limit-min(c.Pool, c.Limit) < c.Rounded:
		return fmt.Sprintf("Of the pool's %s only %s was free, and the limit of %s kept it from taking more of the %s that the device had left.", b(c.Pool), b(free), b(c.Limit), b(c.DeviceFree))
	}
	return fmt.Sprintf("Of the pool's %s, %s was live and %s free, in one piece %s%s.", b(c.Pool), b(c.Live), b(free), b(c.Hole), device)
}

// remedy returns in one sentence what would have helped.
func remedy(fit []*replay.Result, first *replay.Result, results []*replay.Result) string {
	// On the same pool of the recording, for one that serves another is no help.
	fit = slices.DeleteFunc(slices.Clone(fit), func(res *replay.Result) bool { return res.Pool != first.Pool })
	if len(fit) > 0 {
		slices.SortStableFunc(fit, func(a, b *replay.Result) int { return cmp.Compare(a.HeldPeak, b.HeldPeak) })
		var list []string
		for _, res := range fit {
			list = append(list, res.Policy)
		}
		served := fmt.Sprintf("On the same device %s served every request", input.And(list))
		if len(fit) == 1 {
			return fmt.Sprintf("%s; it held %s at most.", served, size.Format(fit[0].HeldPeak))
		}
		return fmt.Sprintf("%s; %s held least, %s at most.", served, fit[0].Policy, size.Format(fit[0].HeldPeak))
	}
	// Of several pools the one that needs most says which device is enough.
	bound := slices.MaxFunc(results, func(a, b *replay.Result) int { return cmp.Compare(a.LowerBound, b.LowerBound) })
	if bound.LowerBound > first.DeviceBytes {
		on := ""
		if bound.Pool != first.Pool {
			on = " for " + bound.Pool
		}
		return fmt.Sprintf("No policy can serve it on this device: any allocator must hold %s%s at the peak, and the device has %s.", size.Format(bound.LowerBound), on, size.Format(first.DeviceBytes))
	}
	if first.Smallest != nil {
		return fmt.Sprintf("None of the policies that were tried served it; this one needs a device of %s.", size.Format(*first.Smallest))
	}
	return fmt.Sprintf("None of the policies that were tried served it; any allocator must hold %s at the peak, and the device has %s.", size.Format(first.LowerBound), size.Format(first.DeviceBytes))
}

// atPeak returns a sentence about what lived at the peak of the largest pool: by what it was
// for where that is known, else the two groups with the most bytes.
func (m *pageMaker) atPeak(pools []*report.Timeline) string {
	tl := highest(pools)
	for _, o := range m.outlines {
		if o.timeline != tl || o.reading == nil || !o.reading.Knows() {
			continue
		}
		where := ""
		if len(pools) > 1 {
			where = " in " + tl.Pool
		}
		p := o.reading.Peak()
		return fmt.Sprintf("%s%s at event %s: %s.", size.Format(p.Bytes), where, report.Count(p.Event), p.Text())
	}
	return groupsAtPeak(pools, m.texts)
}

// groupsAtPeak returns a sentence about what lived at the peak of the largest pool: the two groups
// with the most bytes. What the recorded program was refused did not live.
func groupsAtPeak(pools []*report.Timeline, texts *textTable) string {
	tl := highest(pools)
	k := slices.IndexFunc(tl.Lists, func(l *report.List) bool { return l.Event == tl.PeakAt })
	if k < 0 || len(tl.Lists[k].Groups[0]) == 0 {
		return "Nothing lived."
	}
	l, where := tl.Lists[k], ""
	if len(pools) > 1 {
		where = " in " + tl.Pool
	}
	var parts []string
	rest := l.Bytes
	for n, g := range l.Groups[0] {
		if n == 2 || g.Name < 0 {
			break
		}
		part := texts.shown(texts.List[g.Label])
		if tl.Groupings[0].By == "size" {
			part, _, _ = strings.Cut(part, ", ") // without the exact bytes
			part = "requests of " + part
		}
		parts = append(parts, fmt.Sprintf("%s (%s) in %s", size.Format(g.Bytes), report.Part(g.Bytes, l.Bytes), part))
		rest -= min(g.Bytes, rest)
	}
	text := fmt.Sprintf("%s was live%s at event %s: %s", size.Format(l.Bytes), where, report.Count(l.Event), strings.Join(parts, ", "))
	if rest > 0 {
		text += fmt.Sprintf(", and %s in others", size.Format(rest))
	}
	for _, r := range tl.Refused {
		if r.Event == l.Event {
			text += fmt.Sprintf("; %s more was requested and refused", size.Format(r.Bytes))
		}
	}
	return text + "."
}
