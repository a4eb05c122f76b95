package memory

// What a compiled module takes by XLA's own account: arguments, results, and one block for
// everything else (CompiledMemoryStats in xla/pjrt, 2026, which JAX calls memory_analysis).
//
// In the module of live.go the argument p and the result s take 16 bytes each, and the
// temporaries, the table of t, 16. Nothing is given away: 48 bytes in all.

import (
	"slices"

	"gpumem/xla/internal/hlo"
)

// Totals are what memory_analysis says of a module, in bytes of the device. Memory of the
// host is left out.
type Totals struct {
	Arguments   uint64 `json:"argument_bytes"`
	Results     uint64 `json:"output_bytes"`
	Aliased     uint64 `json:"alias_bytes"` // of the results, in the memory of arguments
	Temporaries uint64 `json:"temp_bytes"`
	Total       uint64 `json:"total_bytes"` // of all of it, what is aliased once
	// Constants lie beside all that, where the code is.
	Constants uint64 `json:"constant_bytes"`
}

// A Part is a part of an argument or of the result that takes memory of the device.
type Part struct {
	Instruction *hlo.Instruction // the parameter, or the root
	Index       []int
	Bytes       uint64
	Aliased     bool // a part of the result that lies in an argument
}

// Totals returns those of the analysed module in its order. The error is that of
// [Analysis.Assign].
func (a *Analysis) Totals() (Totals, error) {
	heap, err := a.Assign()
	if err != nil {
		return Totals{}, err
	}
	return a.totals(heap), nil
}

// totals are those with an assignment of a.
func (a *Analysis) totals(heap *Assignment) (t Totals) {
	for _, p := range Arguments(a.Module) {
		t.Arguments += p.Bytes
	}
	for _, p := range Results(a.Module) {
		if t.Results += p.Bytes; p.Aliased {
			t.Aliased += p.Bytes
		}
	}
	t.Temporaries, t.Constants = heap.Temp, heap.Constants
	return t.Summed()
}

// Summed returns t with the Total of its other figures.
func (t Totals) Summed() Totals {
	t.Total = t.Arguments + t.Results - t.Aliased + t.Temporaries
	return t
}

// Arguments returns the parts of the arguments of a module that was checked.
func Arguments(m *hlo.Module) (list []Part) {
	for _, p := range m.Entry.Parameters() {
		list = parts(list, p, p.Shape, nil)
	}
	return list
}

// Results returns the parts of the result of a module that was checked.
func Results(m *hlo.Module) []Part {
	list := parts(nil, m.Entry.Root, m.Entry.Root.Shape, nil)
	for k := range list {
		list[k].Aliased = slices.ContainsFunc(m.Aliases, func(a hlo.Alias) bool { return slices.Equal(a.Output, list[k].Index) })
	}
	return list
}

// parts appends the parts of a shape, tables of tuples included.
func parts(list []Part, i *hlo.Instruction, s *hlo.Shape, index []int) []Part {
	if s.Space() == hlo.HostSpace {
		return list
	}
	if own, err := s.Bytes(); err == nil && own > 0 {
		list = append(list, Part{Instruction: i, Index: index, Bytes: own})
	}
	for k, e := range s.Elements {
		list = parts(list, i, e, append(slices.Clone(index), k))
	}
	return list
}

// Estimate returns in one line how far the figures of a module are those of the program
// that will run, and in which direction they are wrong. It is empty for a compiled module.
// Before optimizations nothing is fused and nothing is in the order in which it will run,
// which makes the figures too high; copies in loops and what libraries need are not there
// yet, which makes them too low.
func Estimate(m *hlo.Module) string {
	if m.Scheduled {
		return ""
	}
	return "not compiled: estimated; mostly too high, with loops or libraries too low"
}
