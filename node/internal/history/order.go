// The order of rows: nothing moves without cause.

package history

import (
	"cmp"
	"slices"

	"gpumem/node/internal/view"
	"gpumem/node/machine"
)

// By is what the programs of a device are ordered by.
type By string

// The orders. Each begins with the largest, or the first.
const (
	ByMemory By = "memory" // the most that it held lately
	ByPID    By = "pid"
	ByAge    By = "age" // the oldest first
	ByGrowth By = "growth"
	ByName   By = "name" // of the command
)

const (
	// Lately is the number of looks whose peak decides the order by memory. Programs
	// that allocate and free in each step do not change places with each look.
	Lately = 10
	// slack is the part of a value by which it must exceed another before their rows
	// change places: a twentieth.
	slack = 20
)

// Order returns the indexes of the device's programs in order. New ones without a reason
// for another place are last.
func (h *History) Order(d *machine.Device, by By) []int {
	names := Programs(d)
	list := Device(d) + "\x00" + string(by)
	switch by {
	case ByMemory, ByGrowth:
		sizes := make([]uint64, len(names))
		for i, name := range names {
			if by == ByMemory {
				sizes[i] = max(d.Programs[i].Holds(), h.Peak(name, Lately))
			} else if g := h.Grows(name); g != nil {
				sizes[i] = g.PerMinute
			}
		}
		return h.Largest(list, names, sizes)
	}
	rows := h.places(list, names)
	slices.SortStableFunc(rows, func(i, j int) int { return compare(&d.Programs[i], &d.Programs[j], by) })
	h.keepPlaces(list, names, rows)
	return rows
}

// Largest returns the indexes of a list, the largest first. Rows keep the places that they
// had in the last call with this list, unless one is clearly larger than one before it.
func (h *History) Largest(list string, names []string, sizes []uint64) []int {
	rows := h.places(list, names)
	if !nearlySorted(rows, sizes) {
		slices.SortStableFunc(rows, func(i, j int) int { return cmp.Compare(sizes[j], sizes[i]) })
	}
	h.keepPlaces(list, names, rows)
	return rows
}

// places returns the indexes of the names in the order that they last had, new ones last.
func (h *History) places(list string, names []string) []int {
	last := map[string]int{}
	for place, name := range h.orders[list] {
		last[name] = place
	}
	rows := make([]int, len(names))
	for i := range rows {
		rows[i] = i
	}
	place := func(i int) int {
		if n, ok := last[names[i]]; ok {
			return n
		}
		return len(last)
	}
	slices.SortStableFunc(rows, func(i, j int) int { return cmp.Compare(place(i), place(j)) })
	return rows
}

func (h *History) keepPlaces(list string, names []string, rows []int) {
	kept := make([]string, len(rows))
	for place, i := range rows {
		kept[place] = names[i]
	}
	h.orders[list] = kept
}

// nearlySorted reports whether no row is clearly larger than one before it.
func nearlySorted(rows []int, sizes []uint64) bool {
	for k, i := range rows {
		for _, j := range rows[:k] {
			if sizes[i] > sizes[j]+sizes[i]/slack {
				return false
			}
		}
	}
	return true
}

// compare orders by what does not change while a program runs.
func compare(a, b *machine.Program, by By) int {
	switch by {
	case ByPID:
		return cmp.Compare(a.PID, b.PID)
	case ByName:
		return cmp.Compare(view.CommandLine(a), view.CommandLine(b))
	}
	if (a.Start == 0) != (b.Start == 0) { // those of unknown age are last
		return cmp.Compare(b.Start, a.Start)
	}
	return cmp.Compare(a.Start, b.Start)
}
