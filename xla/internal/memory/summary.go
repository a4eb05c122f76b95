package memory

// A module measured in one answer: sizes, both peaks, and what lives at the first.
//
// The two peaks differ by more than parameters and results, which only one of them has: the
// first lets results take the place of operands and looks into loops for what is live there,
// the second counts all that a call takes at once, and constants. See doc.go.

import (
	"cmp"

	"gpumem/xla/internal/hlo"
)

// A Summary is what a module takes, in bytes. Scripts rely on its JSON.
type Summary struct {
	Name         string `json:"name"`
	Computations int    `json:"computations"`
	Instructions int    `json:"instructions"`
	// Scheduled reports whether the order of the instructions is that in which they run.
	Scheduled bool `json:"scheduled"`
	// Parameters are those of the entry, in the host's memory, too.
	Parameters uint64 `json:"parameter_bytes"`
	Totals
	// Exact reports whether the totals are those of XLA's own assignment.
	Exact bool `json:"exact"`
	// Peak is that of [Analysis.Peak], TempPeak that of [TempPeak], which is also there under
	// its later name. PeakAt and TempPeakAt are the names of the instructions where they are,
	// empty for none.
	Peak       uint64 `json:"peak_bytes"`
	TempPeak   uint64 `json:"temp_peak_bytes"`
	PassPeak   uint64 `json:"pass_peak_bytes"`
	PeakAt     string `json:"peak_instruction"`
	TempPeakAt string `json:"temp_peak_instruction"`
	// Largest are the largest values that live at the peak, of Alive in all.
	Largest []LiveValue `json:"largest"`
	Alive   int         `json:"-"`
	// Notes are what the figures do not say, a line each.
	Notes []string `json:"notes,omitempty"`
	// Curve is that of [Analysis.Curve].
	Curve []uint64 `json:"-"`
	// Analysis and Assignment are what the figures come from.
	Analysis   *Analysis   `json:"-"`
	Assignment *Assignment `json:"-"`
}

// A LiveValue is a value that lives at the peak, with where it comes from in the program as far
// as the module says so: op_name of JAX, and the line of the source.
type LiveValue struct {
	Instruction string `json:"instruction"`
	Shape       string `json:"shape"`
	Bytes       uint64 `json:"bytes"`
	OpName      string `json:"op_name"`
	Source      string `json:"source,omitempty"` // FILE:LINE, as far as it is known
}

// Describe says what a value is. sources are those of its module.
func Describe(v Value, sources *hlo.Sources) LiveValue {
	i := v.Instruction
	return LiveValue{i.Name, i.Shape.At(v.Index...).String(), v.Bytes, i.OpName(), sources.Place(i)}
}

// Summarize measures a module in the order in which its instructions stand, with at most n
// of the values that live at the peak. Both models are asked, each once. The errors are
// those of [AnalyzeModule] and [TempPeak].
func Summarize(m *hlo.Module, n int) (*Summary, error) {
	s := &Summary{Name: m.Name, Computations: len(m.Computations), Instructions: m.Instructions(), Scheduled: m.Scheduled}
	s.Largest = []LiveValue{}
	var err error
	for _, p := range m.Entry.Parameters() {
		bytes, e := p.Shape.TotalBytes()
		err = cmp.Or(err, e)
		s.Parameters += bytes
	}
	if err != nil {
		return nil, err
	}
	var at *hlo.Instruction
	if s.TempPeak, at, err = TempPeak(m, Options{}); err != nil {
		return nil, err
	}
	s.PassPeak, s.TempPeakAt = s.TempPeak, nameOf(at)
	a, err := AnalyzeModule(m)
	if err != nil {
		return nil, err
	}
	if s.Assignment, err = a.Assign(); err != nil {
		return nil, err
	}
	s.Analysis, s.Totals = a, a.totals(s.Assignment)
	var alive []Value
	s.Peak, at, alive = a.Peak()
	s.PeakAt, s.Alive, s.Curve = nameOf(at), len(alive), a.Curve()
	sources := m.Sources()
	for _, v := range alive[:min(len(alive), n)] {
		s.Largest = append(s.Largest, Describe(v, sources))
	}
	if e := Estimate(m); e != "" {
		s.Notes = append(s.Notes, e)
	}
	if !m.HasOpNames() {
		s.Notes = append(s.Notes, "no op_name in it: operations and lines of the program are unknown")
	}
	return s, nil
}

// nameOf is the name of an instruction, empty if it is nil: a module may have no peak.
func nameOf(i *hlo.Instruction) string {
	if i == nil {
		return ""
	}
	return i.Name
}
