package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"gpumem/replay"
	"gpumem/report"
	"gpumem/size"
)

// policyWidth is where a policy of many keys is broken: room for the longest of
// the defaults and a bit more.
const policyWidth = 26

// writeReplay is the report for people: a line about the recording, the table,
// then what the policies did on the way and where they broke.
func writeReplay(w io.Writer, rep *replay.Report, smallest bool) error {
	var b strings.Builder
	writeTrace(&b, rep)
	b.WriteString("\n")
	if err := writeTable(&b, rep, smallest); err != nil {
		return err
	}
	for k, line := range rep.Placements() {
		if k == 0 {
			b.WriteString("\n")
		}
		b.WriteString(report.Wrap(line, textWidth) + "\n")
	}
	for _, r := range rep.Results {
		if len(r.Notes) > 0 || r.Failure != nil {
			b.WriteString("\n")
			writeResult(&b, r, len(rep.Trace.PoolNames) > 1)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeTrace is about the recording alone.
func writeTrace(b *strings.Builder, rep *replay.Report) {
	t := rep.Trace
	b.WriteString(fitScreen(traceLine(t)) + "\n")
	for _, n := range t.Notes {
		b.WriteString(report.Wrap("  "+n, textWidth) + "\n")
	}
	// The bound is the pool's, whatever the policy.
	var bounds []string
	seen := map[string]bool{}
	for _, r := range rep.Results {
		if seen[r.Pool] {
			continue
		}
		seen[r.Pool] = true
		bound := size.Format(r.LowerBound)
		if len(t.PoolNames) > 1 {
			bound += " in " + r.Pool
		}
		bounds = append(bounds, bound)
	}
	b.WriteString(fitScreen(fmt.Sprintf("device of %s; any allocator must hold %s at the peak",
		size.Format(rep.Results[0].DeviceBytes), strings.Join(bounds, ", "))) + "\n")
}

// traceLine is the recording in a line.
func traceLine(t replay.TraceInfo) string {
	allocs := counted(t.Allocs, "allocation")
	if t.Refused > 0 {
		allocs += fmt.Sprintf(" (%s refused in the recorded run)", report.Count(t.Refused))
	}
	return fmt.Sprintf("%s: %s, %s, at most %s live", t.Source, counted(t.Events, "event"), allocs, size.Format(t.PeakLive))
}

// writeTable has a row for each result.
func writeTable(b *strings.Builder, rep *replay.Report, smallest bool) error {
	titles := []string{"policy"}
	several := len(rep.Trace.PoolNames) > 1
	if several {
		titles = append(titles, "pool")
	}
	titles = append(titles, "fits", ">refused", ">held peak", ">mean", ">idle", ">frag", ">driver calls", ">driver time", ">own time")
	if smallest {
		titles = append(titles, ">smallest device")
	}
	tab := report.NewTable(titles...).Fit(screenWidth)
	for _, r := range rep.Results {
		name := breakPolicy(r.Policy)
		cells := []string{name[0]}
		if several {
			cells = append(cells, r.Pool)
		}
		fits := "yes"
		if !r.Fits {
			fits = "NO"
		}
		cells = append(cells, fits, report.Count(r.Refused), size.Format(r.HeldPeak), size.Format(uint64(r.HeldMean)), size.Format(r.HeldIdle),
			strconv.FormatFloat(r.Fragmentation, 'f', 2, 64), report.Count(r.DriverCalls), report.Seconds(r.DriverSeconds),
			r.OwnTime())
		if smallest {
			s := "none"
			if r.Smallest != nil {
				s = size.Format(*r.Smallest)
			}
			cells = append(cells, s)
		}
		tab.Row(cells...)
		for _, rest := range name[1:] {
			tab.Row(rest)
		}
	}
	_, err := tab.WriteTo(b)
	return err
}

// breakPolicy breaks a policy of many keys after a comma, so that one long
// policy does not push every column off the screen.
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

// writeResult is what one policy did on the way, and its first refusal.
func writeResult(b *strings.Builder, r *replay.Result, several bool) {
	b.WriteString(r.Policy)
	if several {
		b.WriteString(", pool " + r.Pool)
	}
	b.WriteString("\n")
	for _, n := range r.Notes {
		b.WriteString(report.Wrap("  "+n, textWidth) + "\n")
	}
	f := r.Failure
	if f == nil {
		return
	}
	too := ""
	if f.Recorded {
		too = ", which the recorded run was refused, too"
	}
	fmt.Fprintf(b, "  first refused: event %s, %s%s\n", report.Count(f.Event), size.Format(f.Bytes), too)
	if f.Stack != "" {
		fmt.Fprintf(b, "    %s\n", strings.ReplaceAll(strings.TrimSuffix(f.Stack, "\n"), "\n", "\n    "))
	}
	for line := range strings.Lines(f.Why) {
		b.WriteString(report.Wrap("  "+strings.TrimSuffix(line, "\n"), textWidth) + "\n")
	}
}

// counted is "1 event" or "1,234 events".
func counted(n uint64, what string) string {
	if n != 1 {
		what += "s"
	}
	return report.Count(n) + " " + what
}
