// What is kept of a machine: each device's memory in use, and each program's.

package history

import (
	"fmt"
	"maps"
	"strings"

	"gpumem/node/internal/view"
	"gpumem/node/machine"
)

// See adds a snapshot, and other quantities of the same time if they are not nil. A
// snapshot that is not later than the last is not added.
func (h *History) See(s *machine.Snapshot, others map[string]uint64) {
	quantities := map[string]uint64{}
	maps.Copy(quantities, others)
	for i := range s.Devices {
		d := &s.Devices[i]
		if d.Used != nil {
			quantities[Device(d)] = *d.Used
		}
		for _, part := range view.SharesOf(d).Parts {
			if part.Kind == view.PartUnlisted {
				quantities[Unlisted(d)] = part.Bytes
			}
		}
		names := Programs(d)
		for k, p := range d.Programs {
			if p.Used != nil || p.Kind == "" { // with a lease alone it holds nothing
				quantities[names[k]] = p.Holds()
			}
		}
		h.number(d, names)
	}
	h.Add(s.Time, quantities)
}

// Device returns the name of a device's memory in use.
func Device(d *machine.Device) string { return d.Spec }

// Unlisted returns the name of the memory in use that no program of the list holds.
func Unlisted(d *machine.Device) string { return d.Spec + "\x00unlisted" }

// Programs returns the name of what each program of a device holds, in the order of
// d.Programs: the device's name, a zero byte, and what tells the process from all others,
// also later ones with the same number.
func Programs(d *machine.Device) []string {
	names := make([]string, len(d.Programs))
	seen := map[string]int{}
	for i, p := range d.Programs {
		name := fmt.Sprintf("%s\x00%d", d.Spec, p.PID)
		switch {
		case p.Start > 0:
			name += fmt.Sprintf(" %d", p.Start)
		case p.PID == 0:
			name += " " + p.User + " " + strings.Join(p.Command, " ")
		}
		if seen[name]++; seen[name] > 1 {
			name += fmt.Sprintf(" #%d", seen[name])
		}
		names[i] = name
	}
	return names
}

// number gives each program of a device the least number that no other one has, new ones
// by age. A number
// is free again when nothing of its program is kept any more, so that a mark on the
// screen does not mean another program all at once.
func (h *History) number(d *machine.Device, names []string) {
	device := Device(d)
	marks := h.marks[device]
	if marks == nil {
		marks = map[string]int{}
		h.marks[device] = marks
	}
	present := map[string]bool{}
	for _, name := range names {
		present[name] = true
	}
	taken := map[int]bool{}
	for name, n := range marks {
		if present[name] || len(h.values[name]) > 0 {
			taken[n] = true
		} else {
			delete(marks, name)
		}
	}
	n := 0
	for _, i := range view.ByAge(d) {
		name := names[i]
		if _, ok := marks[name]; ok {
			continue
		}
		for taken[n] {
			n++
		}
		marks[name], taken[n] = n, true
	}
}

// Number returns a program's number on its device, counted from 0, by the name that
// Programs returns. It is 0 if the program was not seen.
func (h *History) Number(d *machine.Device, name string) int { return h.marks[Device(d)][name] }
