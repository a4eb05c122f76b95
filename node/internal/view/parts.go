// Who has a device's memory, as the parts of a bar.

package view

import (
	"cmp"
	"slices"

	"gpumem/node/machine"
)

// PartKind is what a part of a device's memory is.
type PartKind string

// The parts of a device's memory.
const (
	PartProgram  PartKind = "program"  // held by a program
	PartLease    PartKind = "lease"    // leased, and not held by the programs of the lease
	PartUnlisted PartKind = "unlisted" // in use, and held by no program of the list
	PartFree     PartKind = "free"     // neither in use nor leased
	PartUnknown  PartKind = "unknown"  // of a device whose memory in use is unknown
)

// Part is a piece of a device's memory.
type Part struct {
	Kind    PartKind
	Program int            // its index in Device.Programs; of a lease the first program under it; else -1
	Lease   *machine.Lease // that the part counts against, nil if none
	Bytes   uint64
}

// Shares says who has a device's memory.
type Shares struct {
	// Parts add up to Total. The oldest program is first; those under one lease are
	// neighbours, and what is left of the lease follows them. A part without memory is
	// left out. So a part changes its place when a program starts or ends, but not when
	// one holds more.
	Parts []Part
	// Total is the device's memory, or what the programs hold if that is more.
	Total uint64
	// Short is what leases may still take and the device does not have free, without those by
	// turns: these take it one after the other.
	Short uint64
	// Over is what the programs hold beyond the memory in use. The driver counts memory
	// that processes share once for each.
	Over uint64
	// Silent is the number of programs whose memory is unknown.
	Silent int
}

// SharesOf divides the device's memory among its programs and leases.
func SharesOf(d *machine.Device) Shares {
	order := ByAge(d)
	var s Shares
	var held, left, byTurns uint64
	done := make([]bool, len(d.Programs))
	for _, i := range order {
		if done[i] {
			continue
		}
		l := d.Programs[i].Lease
		for _, j := range order { // i, and the others under its lease
			p := &d.Programs[j]
			if j != i && (l == nil || p.Lease != l) {
				continue
			}
			done[j] = true
			held += p.Holds()
			if p.Used == nil && p.Kind != "" {
				s.Silent++
			}
			s.Parts = append(s.Parts, Part{PartProgram, j, l, p.Holds()})
		}
		if l != nil {
			rest := leftOf(l)
			left += rest
			if d.Programs[i].Turn != nil {
				byTurns += rest
			}
			s.Parts = append(s.Parts, Part{PartLease, i, l, rest})
		}
	}
	s.Total = max(d.Total, held)
	if d.Used == nil {
		left = 0 // nothing says how much of the leases can be had
		s.Parts = slices.DeleteFunc(s.Parts, func(p Part) bool { return p.Kind == PartLease })
		s.Parts = append(s.Parts, Part{PartUnknown, -1, nil, s.Total - held})
	} else {
		used := min(max(*d.Used, held), s.Total)
		s.Over = held - min(held, *d.Used)
		free := s.Total - used
		lacks := left - min(left, free)
		s.Short = lacks - min(lacks, byTurns)
		for i, short := len(s.Parts)-1, lacks; i >= 0 && short > 0; i-- { // the youngest lease lacks it
			if p := &s.Parts[i]; p.Kind == PartLease {
				cut := min(p.Bytes, short)
				p.Bytes -= cut
				short -= cut
			}
		}
		s.Parts = append(s.Parts,
			Part{PartUnlisted, -1, nil, used - held},
			Part{PartFree, -1, nil, free - (left - lacks)})
	}
	s.Parts = slices.DeleteFunc(s.Parts, func(p Part) bool { return p.Bytes == 0 })
	return s
}

// ByAge returns the indexes of a device's programs, the oldest first and those whose
// age is unknown last.
func ByAge(d *machine.Device) []int {
	order := make([]int, len(d.Programs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := &d.Programs[i], &d.Programs[j]
		if (a.Start == 0) != (b.Start == 0) {
			return cmp.Compare(b.Start, a.Start)
		}
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.PID, b.PID))
	})
	return order
}

// leftOf returns what of a lease its programs do not hold, as far as known.
func leftOf(l *machine.Lease) uint64 {
	used := l.InUse
	if l.Sum != nil {
		used = max(used, countedOf(l.Sum))
	}
	return l.Bytes - min(l.Bytes, used)
}

// countedOf returns what of a pool counts against the lease.
func countedOf(u *machine.PoolUse) uint64 { return u.Held + u.Charged + u.Outside }

// SortPrograms orders the programs of a device: the largest first, and those that hold as much by process.
func SortPrograms(d *machine.Device) {
	slices.SortStableFunc(d.Programs, func(a, b machine.Program) int {
		return cmp.Or(cmp.Compare(b.Holds(), a.Holds()), cmp.Compare(a.PID, b.PID))
	})
}

// AddUse adds what another process has to the use of a pool.
func AddUse(u *machine.PoolUse, v machine.PoolUse) {
	u.Held += v.Held
	u.InUse += v.InUse
	u.PeakHeld += v.PeakHeld
	u.PeakInUse += v.PeakInUse
	u.Charged += v.Charged
	u.Outside += v.Outside
	u.Refused += v.Refused
	u.DriverCalls += v.DriverCalls
}
