// The order of rows: nothing moves without cause.

package history

import (
	"cmp"
	"slices"

	"gpumem/machine"
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
	// lately is the number of looks whose peak decides the order by memory. Programs
	// that allocate and free in each step do not change places with each look.
	lately = 10
	// slack is the part of a value by which it must exceed another before their rows
	// change places: a twentieth.
	slack = 20
)

// Order returns the indexes of the device's programs in order. Rows keep the places that
// they had in the last call unless one is clearly in the wrong place. New rows without a
// reason for another place are last.
func (h *History) Order(d *machine.Device, by By) []int {
	names := Programs(d)
	key := Device(d) + "\x00" + string(by)
	last := map[string]int{}
	for place, name := range h.orders[key] {
		last[name] = place
	}
	rows := make([]int, len(names))
	for i := range rows {
		rows[i] = i
	}
	slices.SortStableFunc(rows, func(i, j int) int {
		a, old := last[names[i]]
		b, older := last[names[j]]
		switch {
		case old && older:
			return cmp.Compare(a, b)
		case old:
			return -1
		case older:
			return 1
		}
		return cmp.Compare(h.Number(d, names[i]), h.Number(d, names[j]))
	})
	switch by {
	case ByMemory, ByGrowth:
		sizes := make([]uint64, len(names))
		for i, name := range names {
			if by == ByMemory {
				sizes[i] = max(d.Programs[i].Holds(), h.Peak(name, lately))
			} else if g := h.Grows(name); g != nil {
				sizes[i] = g.PerMinute
			}
		}
		if !nearlySorted(rows, sizes) {
			slices.SortStableFunc(rows, func(i, j int) int { return cmp.Compare(sizes[j], sizes[i]) })
		}
	default:
		slices.SortStableFunc(rows, func(i, j int) int { return compare(&d.Programs[i], &d.Programs[j], by) })
	}
	h.orders[key] = h.orders[key][:0]
	for _, i := range rows {
		h.orders[key] = append(h.orders[key], names[i])
	}
	return rows
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
		return cmp.Compare(a.CommandLine(), b.CommandLine())
	}
	if (a.Start == 0) != (b.Start == 0) { // those of unknown age are last
		return cmp.Compare(b.Start, a.Start)
	}
	return cmp.Compare(a.Start, b.Start)
}
