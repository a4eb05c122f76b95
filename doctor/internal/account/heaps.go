package account

// Heaps and cards that a log lists beside a failure, and whether one of them was short.

import (
	"strings"

	"gpumem/doctor/internal/statement"
)

// A Heap is a part of the GPU's or the host's memory as Vulkan has them.
type Heap struct {
	Name         string
	Used, Budget uint64
	From         statement.Evidence
}

// Heaps are those listed beside a refusal, the last list of the log.
func (e *Case) Heaps() (list []Heap) {
	for _, st := range e.Statements() {
		h := Heap{From: st.Quoted("")}
		for _, a := range st.Amounts {
			switch {
			case !strings.HasPrefix(a.Subject, "heap "):
				continue
			case a.Role == statement.RoleAlloc || a.Role == statement.RoleUse:
				h.Used = max(h.Used, a.N)
			case a.Role == statement.RoleLimit || a.Role == statement.RoleTotal && h.Budget == 0:
				h.Budget = a.N
			}
			h.Name = a.Subject
		}
		switch {
		case h.Name == "" || h.Budget == 0:
		case len(list) > 0 && h.Name <= list[len(list)-1].Name:
			list = []Heap{h} // another list
		default:
			list = append(list, h)
		}
	}
	return list
}

// Budget is what Windows grants a program of the GPU, and what it has of it, as an engine prints both when memory is
// refused: a line each, the budget first. It is nil where they are not told.
func (e *Case) Budget() *Heap {
	var h *Heap
	var at int
	for _, st := range e.Statements() {
		for _, a := range st.Amounts {
			switch {
			case a.Host || a.Subject != "" || a.N < statement.Mib:
			case a.Label == "budget":
				h, at = &Heap{Budget: a.N}, st.Line
			case h != nil && h.Used == 0 && (a.Label == "used" || a.Label == "usage") && st.Line <= at+2:
				h.Used, h.From = a.N, st.Quoted("")
			}
		}
	}
	if h == nil || h.Used == 0 {
		return nil
	}
	return h
}

// Short is the first heap without room for a request, and nil.
func Short(heaps []Heap, want uint64) *Heap {
	for i := range heaps {
		if heaps[i].Used+max(want, statement.Mib) > heaps[i].Budget {
			return &heaps[i]
		}
	}
	return nil
}

// Roomy is what is certain of heaps none of which was short, a sentence each; nil if there are none.
func (e *Case) Roomy() (all []string) {
	heaps := e.Heaps()
	r := e.Last(func(r *Refusal) bool { return !r.Mild })
	if len(heaps) == 0 || r == nil || Short(heaps, r.Want) != nil {
		return nil
	}
	for _, h := range heaps[:min(len(heaps), 4)] {
		all = append(all, Say("%s was not full: %v of %v (line %d)", h.Name, h.Used, h.Budget, h.From.Line))
	}
	return append(all,
		"what may be full though no heap is: the address space of a 32-bit program, at 2 to 4 GiB, or the number of "+
			"allocations that the driver gives")
}

// FreeCard is a reading of the GPU beside the failure that shows it nearly empty, and 0 if there is
// none, or if it is one of several GPUs that are not all so: no other program held it then.
func (e *Case) FreeCard() Sized {
	devices := map[int]bool{}
	for _, f := range e.facts("smi gpu") {
		devices[f.Device] = true
	}
	empty, n := Sized{}, 0
	for _, f := range e.facts("smi memory") {
		if f.Total < statement.Gib || f.InUse > f.Total/10 {
			continue
		}
		if n++; empty.Bytes == 0 {
			empty = Sized{f.Total, f.Quoted(Say("%v of %v was in use in this reading: no other program held the GPU then",
				f.InUse, f.Total))}
		}
	}
	if empty.Bytes > 0 && (len(devices) <= 1 || n == len(e.facts("smi memory"))) {
		return empty
	}
	return e.freePair()
}

// freePair is such a reading in the program's own words: total and free, a line each.
func (e *Case) freePair() Sized {
	var total *statement.Statement
	for _, st := range e.Statements() {
		if len(st.Amounts) != 1 || !st.HasAny("vram", "gpu", "device", "card") || st.Refused {
			continue
		}
		switch a := st.Amounts[0]; {
		case a.Torch || a.Pool || a.Host:
		case a.Role == statement.RoleTotal:
			total = st
		case a.Role == statement.RoleFree && total != nil && st.Line <= total.Line+2 && a.N >= total.Amounts[0].N/5*4 &&
			a.N <= total.Amounts[0].N:
			return Sized{total.Amounts[0].N, st.Quoted(Say("%v of %v was free in this reading: no other program held much of the GPU then",
				a.N, total.Amounts[0].N))}
		}
	}
	return Sized{}
}
