// Package screen shows snapshots of a machine as text: once, as gpumem ps does, and live
// on a terminal, as gpumem top does.
//
// [List] and [Once] need no terminal. [drawFrame] draws what is on the screen of one, from a
// snapshot, what came before it, and the screen's size; [Run] is the program around it
// that reads keys. See frame.go, bar.go, graph.go and table.go for the parts of a frame.
package screen

import (
	"fmt"
	"strings"
	"time"

	"gpumem/internal/report"
	"gpumem/node/internal/view"
	"gpumem/node/machine"
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
		for _, l := range view.Remarks(d, s.Time) {
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
