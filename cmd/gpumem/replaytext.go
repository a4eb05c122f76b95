// The report of gpumem replay as text.

package main

import (
	"strings"

	"gpumem/internal/report"
	"gpumem/record/replay"
	"gpumem/record/timeline"
	"gpumem/size"
)

// policyWidth is where a policy of many keys is broken: room for the longest of
// the defaults and a bit more.
const policyWidth = 26

// writeReplay writes the report as text: a line about the recording, the table, then the
// messages of the policies and their first refusals.
func writeReplay(t *text, rep *replay.Report, smallest bool) {
	writeTrace(t, rep)

	t.section("")
	writeTable(t, rep, smallest)

	t.section("")
	for _, line := range timeline.Placements(rep) {
		t.Line("%s", line)
	}
	for _, r := range rep.Results {
		if r.At != nil {
			t.Line("after event %s, %s%s: %s requested, %s allocated, %s active, %s reserved",
				report.Count(r.Number(r.At.Event)), r.Policy, inPool(r, rep),
				size.Format(r.At.Requested), size.Format(r.At.Allocated), size.Format(r.At.Active), size.Format(r.At.Reserved))
		}
	}
	for _, r := range rep.Results {
		if len(r.Notes) > 0 || r.Failure != nil {
			writeResult(t, r, len(rep.Trace.PoolNames) > 1)
		}
	}
}

// inPool names the pool of a result, where there are several.
func inPool(r *replay.Result, rep *replay.Report) string {
	if len(rep.Trace.PoolNames) < 2 {
		return ""
	}
	return " in " + r.Pool
}

// writeTrace writes what concerns the recording alone.
func writeTrace(t *text, rep *replay.Report) {
	timeline.WriteRecording(&t.Text, "", rep.Trace, "")
	// The bound is the pool's, whatever the policy.
	var bounds []string
	seen := map[string]bool{}
	for _, r := range rep.Results {
		if seen[r.Pool] {
			continue
		}
		seen[r.Pool] = true
		bound := size.Format(r.LowerBound)
		if len(rep.Trace.PoolNames) > 1 {
			bound += " in " + r.Pool
		}
		bounds = append(bounds, bound)
	}
	t.Fact("device of %s; any allocator must hold %s at the peak", size.Format(rep.Results[0].DeviceBytes), strings.Join(bounds, ", "))
}

// writeTable writes a row for each result.
func writeTable(t *text, rep *replay.Report, smallest bool) {
	titles := []string{"policy"}
	several := len(rep.Trace.PoolNames) > 1
	if several {
		titles = append(titles, "pool")
	}
	tab := report.NewTable(append(titles, timeline.Columns(smallest)...)...)
	for _, r := range rep.Results {
		name := breakPolicy(r.Policy)
		cells := []string{name[0]}
		if several {
			cells = append(cells, r.Pool)
		}
		cells = append(cells, timeline.Cells(r, smallest)...)
		tab.Row(cells...)
		for _, rest := range name[1:] {
			tab.Row(rest)
		}
	}
	t.Table(tab)
}

// breakPolicy breaks a policy with many keys after a comma, so that it does not push
// every column off the screen.
func breakPolicy(spec string) []string {
	var lines []string
	line := ""
	for part := range strings.SplitAfterSeq(spec, ",") {
		if line != "" && len(line)+len(part) > policyWidth {
			lines = append(lines, line)
			part, line = "  "+part, ""
		}
		line += part
	}
	return append(lines, line)
}

// writeResult writes the messages of one policy, and its first refusal.
func writeResult(t *text, r *replay.Result, several bool) {
	title := r.Policy
	if several {
		title += ", pool " + r.Pool
	}

	t.section(title)
	for _, n := range r.Notes {
		t.Line("  %s", n)
	}
	f := r.Failure
	if f == nil {
		return
	}
	too := ""
	if f.Recorded {
		too = ", which the recorded run was refused, too"
	}
	t.Line("  first refused: %s, %s%s", report.EventName(r.Number(f.Event)), size.Format(f.Bytes), too)
	if f.Stack != "" {
		t.Raw("    " + strings.ReplaceAll(strings.TrimSuffix(f.Stack, "\n"), "\n", "\n    "))
	}
	for line := range strings.Lines(f.Why) {
		t.Line("  %s", strings.TrimSuffix(line, "\n"))
	}
}
