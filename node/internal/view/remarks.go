// What there is to say about a device, in sentences.

package view

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"gpumem/internal/report"
	"gpumem/node/machine"
	"gpumem/size"
)

// Remarks returns what there is to say about a device beside its programs, each in a line:
// leases, turns, who waits, and what is unknown.
func Remarks(d *machine.Device, now time.Time) (lines []string) {
	said := map[*machine.Lease]bool{}
	for _, p := range d.Programs {
		l := p.Lease
		switch {
		case l == nil || said[l]:
		case l.Sum != nil:
			lines = append(lines, leasePoolLine(l))
		case l.Programs > 1:
			lines = append(lines, sharedLine(l))
		}
		said[l] = true
	}
	lines = append(lines, TurnLines(d, now)...)
	for _, p := range d.Programs {
		if p.Hooked != nil && !*p.Hooked {
			lines = append(lines, unhookedLine(&p))
		}
	}
	for _, p := range d.Programs {
		if p.Beside != nil {
			lines = append(lines, report.OneLine(fmt.Sprintf("process %d: it %s", p.PID, p.Beside)))
		}
	}
	for _, l := range d.Waiting {
		lines = append(lines, waitingLine(l, now))
	}
	unknown := map[string]bool{}
	for _, p := range d.Programs {
		if p.Unknown != "" && !unknown[p.Unknown] {
			unknown[p.Unknown] = true
			lines = append(lines, "unknown: "+report.OneLine(p.Unknown))
		}
	}
	for _, n := range d.Notes {
		lines = append(lines, report.OneLine(n))
	}
	return lines
}

// leaseOf names a lease.
func leaseOf(l *machine.Lease) string {
	if where := Where(l); where != "" {
		return "the lease of " + where
	}
	if l.Holder > 0 {
		return fmt.Sprintf("the lease of process %d", l.Holder)
	}
	return "one lease"
}

// leasePoolLine describes what the pools of a lease's programs have together.
func leasePoolLine(l *machine.Lease) string {
	u := l.Sum
	inUse := "of it in use"
	if u.InUse > u.Held {
		inUse = "in use with what is on the host"
	}
	parts := []string{fmt.Sprintf("pool %s, %s %s", size.Format(u.Held), size.Format(u.InUse), inUse)}
	for _, x := range []struct {
		bytes uint64
		what  string
	}{{u.Charged, "by the program itself"}, {u.Outside, "outside"}} {
		if x.bytes > 0 {
			parts = append(parts, size.Format(x.bytes)+" "+x.what)
		}
	}
	text := fmt.Sprintf("%s: %s of its %s held (%s), at most %s in use so far", leaseOf(l), size.Format(countedOf(u)), size.Format(l.Bytes), strings.Join(parts, ", "), size.Format(u.PeakInUse))
	switch {
	case u.Refused == 1:
		text += ", 1 request refused"
	case u.Refused > 1:
		text += fmt.Sprintf(", %d requests refused", u.Refused)
	}
	return text
}

// sharedLine describes a lease under which several programs use the device.
func sharedLine(l *machine.Lease) string {
	text := fmt.Sprintf("%s: %d programs under it hold %s together, ", leaseOf(l), l.Programs, size.Format(l.InUse))
	if l.InUse > l.Bytes && len(l.Containers) > 0 {
		return text + fmt.Sprintf("%s more than its %s", size.Format(l.InUse-l.Bytes), size.Format(l.Bytes))
	}
	if l.InUse > l.Bytes {
		return text + fmt.Sprintf("%s more than its %s; gpumem run --procs %d divides it", size.Format(l.InUse-l.Bytes), size.Format(l.Bytes), l.Programs)
	}
	return text + "of its " + size.Format(l.Bytes)
}

// unhookedLine describes a program of a lease whose environment lacks the hook.
func unhookedLine(p *machine.Program) string {
	return fmt.Sprintf("process %d: its environment lacks the Python hook of its lease; "+
		"if it runs Python, the lease does not limit TensorFlow, nor PyTorch before 2.10; keep the folder that gpumem run puts in PYTHONPATH", p.PID)
}

// waitingLine describes a program that waits for a lease.
func waitingLine(l machine.Waiting, now time.Time) string {
	place := "next"
	if l.Place > 0 {
		place = fmt.Sprintf("%d before it", l.Place)
	}
	if l.Stopped {
		place += ", stopped: it is passed over"
	}
	wants := "all that can be shared"
	if l.Wants > 0 {
		wants = size.Format(l.Wants)
	}
	who := "a program"
	if l.PID > 0 {
		who = "process " + strconv.Itoa(l.PID)
	}
	if l.Elsewhere {
		who += " of another pid namespace"
	}
	s := fmt.Sprintf("%s has waited for %s for %s (%s)", who, wants, Age(now.Sub(l.Since)), place)
	if command := commandLine(l.Command); command != "" {
		s += ": " + command
	}
	return report.OneLine(s)
}

// Remarks returns what the figures leave open, each in a line.
func (s *Shares) Remarks() (lines []string) {
	var unlisted uint64
	for _, p := range s.Parts {
		if p.Kind == PartUnlisted {
			unlisted = p.Bytes
		}
	}
	if s.Silent > 0 {
		lines = append(lines, fmt.Sprintf("the driver does not report the memory of %s: it is part of what is unlisted", report.Counted(uint64(s.Silent), "program")))
	} else if unlisted > s.Total/100 { // the driver needs some memory itself
		lines = append(lines, fmt.Sprintf("unlisted: %s are in use by no program of the list, but by the driver or by programs that cannot be seen from here", size.Format(unlisted)))
	}
	if s.Short > 0 {
		lines = append(lines, fmt.Sprintf("leases may still take %s more than is free", size.Format(s.Short)))
	}
	if s.Over > 0 {
		lines = append(lines, fmt.Sprintf("the programs together hold %s more than is in use: memory that they share counts once for each", size.Format(s.Over)))
	}
	return lines
}

// Age formats a duration in at most two units: 5s, 3m, 2h05m, 3d04h.
func Age(d time.Duration) string {
	seconds := max(0, int64(d/time.Second))
	switch {
	case seconds < 60:
		return fmt.Sprintf("%ds", seconds)
	case seconds < 3600:
		return fmt.Sprintf("%dm", seconds/60)
	case seconds < 86400:
		return fmt.Sprintf("%dh%02dm", seconds/3600, seconds%3600/60)
	}
	return fmt.Sprintf("%dd%02dh", seconds/86400, seconds%86400/3600)
}
