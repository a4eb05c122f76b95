// Package screen shows snapshots of a machine as text: once, as gpumem ps does, and live
// on a terminal, as gpumem top does.
//
// [List] and [Once] need no terminal. [Frame] draws what is on the screen of one, from a
// snapshot, what came before it, and the screen's size; [Run] is the program around it
// that reads keys. See frame.go, bar.go, graph.go and table.go for the parts of a frame.
package screen

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"gpumem/machine"
	"gpumem/report"
	"gpumem/size"
)

// List writes a snapshot: a heading for each device and a table of its programs, then
// those that wait, and what is unknown. Lines may be of any length.
func List(s *machine.Snapshot) string {
	if len(s.Devices) == 0 {
		return "no devices\n"
	}
	var b strings.Builder
	for i := range s.Devices {
		d := &s.Devices[i]
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(heading(d) + "\n")
		if len(d.Programs) == 0 {
			b.WriteString("  no program holds memory\n")
		}
		for _, l := range listTable(d, s.Time) {
			b.WriteString(l.text() + "\n")
		}
		for _, l := range remarks(d, s.Time) {
			b.WriteString("  " + l + "\n")
		}
	}
	return b.String()
}

// Once writes a snapshot as List does, below a line with the time.
func Once(s *machine.Snapshot) string { return header(s) + "\n\n" + List(s) }

// header returns the time, and how many programs there are.
func header(s *machine.Snapshot) string {
	programs, gone := 0, 0
	for _, d := range s.Devices {
		programs += len(d.Programs)
		for _, p := range d.Programs {
			if parentGone(&p) {
				gone++
			}
		}
	}
	head := fmt.Sprintf("gpumem top %s, %d %s", s.Time.Format(time.TimeOnly), programs, report.Plural(uint64(programs), "program"))
	if gone > 0 {
		head += fmt.Sprintf(", %d whose parent is gone", gone)
	}
	return head
}

// heading describes the device in one line.
func heading(d *machine.Device) string {
	s := d.Spec
	if d.Name != d.Spec && d.Name != "" {
		s += " " + d.Name
	}
	s += ": " + size.Format(d.Total)
	if d.Used == nil {
		s += ", used unknown"
	} else {
		s += fmt.Sprintf(", %s used, %s free", size.Format(*d.Used), size.Format(*d.Free))
	}
	if d.Leased > 0 {
		s += ", " + size.Format(d.Leased) + " leased"
	}
	if d.Display {
		s += ", drives a display"
	}
	return report.OneLine(s)
}

// remarks returns what there is to say about a device beside its programs: leases, who
// waits, and what is unknown.
func remarks(d *machine.Device, now time.Time) (lines []string) {
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
	for _, p := range d.Programs {
		if p.Hooked != nil && !*p.Hooked {
			lines = append(lines, unhookedLine(&p))
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
	if l.Holder > 0 {
		return fmt.Sprintf("the lease of process %d", l.Holder)
	}
	return "one lease"
}

// leasePoolLine describes what the pools of a lease's programs have together.
func leasePoolLine(l *machine.Lease) string {
	u := l.Sum
	parts := []string{fmt.Sprintf("pool %s, %s of it in use", size.Format(u.Held), size.Format(u.InUse))}
	for _, x := range []struct {
		bytes uint64
		what  string
	}{{u.Charged, "by the program itself"}, {u.Outside, "outside"}} {
		if x.bytes > 0 {
			parts = append(parts, size.Format(x.bytes)+" "+x.what)
		}
	}
	text := fmt.Sprintf("%s: %s of its %s held (%s), at most %s in use so far", leaseOf(l), size.Format(u.Counted()), size.Format(l.Bytes), strings.Join(parts, ", "), size.Format(u.PeakInUse))
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
	s := fmt.Sprintf("%s has waited for %s for %s (%s)", who, wants, age(now.Sub(l.Since)), place)
	if command := machine.CommandLine(l.Command); command != "" {
		s += ": " + command
	}
	return report.OneLine(s)
}

// age formats a duration in at most two units: 5s, 3m, 2h05m, 3d04h.
func age(d time.Duration) string {
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
