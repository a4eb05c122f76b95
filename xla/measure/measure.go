// Package measure answers what a compiled program takes, from its files: a module, XLA's own
// buffer assignment, or both. With an assignment the figures are XLA's; without one they are
// those of a model of it, package memory.
//
// A file that --xla_dump_to writes with --xla_dump_hlo_as_proto has both in it. JAX hands out
// the assignment by itself, for CPUs in 0.12.0.1 (for GPUs it is empty there):
//
//	stats = compiled.memory_analysis()
//	open("step.assignment.pb", "wb").write(stats.serialized_buffer_assignment_proto)
//
// Its values have names if the module beside it is binary, too; in a text the numbers are
// missing by which it refers to instructions.
package measure

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/load"
	"gpumem/xla/internal/mark"
	"gpumem/xla/internal/memory"
)

// An Answer is what a program takes.
type Answer struct {
	*memory.Summary
	// Allocations are those of XLA's own assignment, in its order.
	Allocations []Allocation `json:"allocations,omitempty"`
	Module      *hlo.Module  `json:"-"` // nil if there is an assignment alone
	// Own is XLA's own assignment, nil if there is none.
	Own *load.Assignment `json:"-"`
	// Regions is the number of regions that jax.checkpoint marked.
	Regions int `json:"checkpoint_regions"`
}

// An Allocation is memory that lies there for the whole run.
type Allocation struct {
	For   string `json:"for"` // argument, result, temporaries, constant, thread
	Bytes uint64 `json:"bytes"`
	// Argument is the number of the parameter of an argument. Aliased reports whether a
	// result has its memory.
	Argument *int   `json:"argument,omitempty"`
	Aliased  bool   `json:"aliased,omitempty"`
	Space    uint64 `json:"memory_space,omitempty"`
}

// Files measures the program of one file, or of two: a module and an assignment, in any
// order. At most n of the values that live at the peak are listed. Errors name the file.
func Files(ctx context.Context, paths []string, n int) (*Answer, error) {
	var all load.Contents
	at := ""
	for _, path := range paths {
		c, err := load.Any(ctx, path)
		if err != nil && ctx.Err() == nil && isOtherDump(path) {
			return nil, fmt.Errorf("%s: XLA dumped it, and it is no module; gpumem hlo reads NAME.DEVICE_after_optimizations.txt or .hlo.pb, "+
				"NAME.DEVICE_after_optimizations-buffer-assignment.txt, and their folder", path)
		}
		if err != nil {
			return nil, err
		}
		switch {
		case c.Module != nil && all.Module != nil:
			return nil, fmt.Errorf("%s: is a module, as %s is; expected one module and its buffer assignment", path, at)
		case c.Assignment != nil && all.Assignment != nil:
			return nil, fmt.Errorf("%s: has a buffer assignment, as %s has", path, at)
		}
		if c.Module != nil {
			all.Module, all.Binary = c.Module, c.Binary
		}
		if c.Assignment != nil {
			all.Assignment = c.Assignment
		}
		at = path
	}
	s := &memory.Summary{Largest: []memory.LiveValue{}}
	regions := 0
	if all.Module != nil {
		var err error
		if all.Module.Scheduled { // before anything is counted, as in the program that runs
			hlo.RemoveBarriers(all.Module)
		}
		if s, err = memory.Summarize(all.Module, n); err != nil {
			return nil, fmt.Errorf("%s: %w", paths[0], err)
		}
		regions = len(mark.Regions(all.Module))
	}
	if a := all.Assignment; a != nil {
		if len(paths) > 1 && all.Binary != nil && !a.Text && !a.Name(all.Binary) {
			return nil, fmt.Errorf("%s and %s: the buffer assignment is that of another module", paths[0], paths[1])
		}
		t := totals(a)
		if len(paths) > 1 && all.Module != nil && (t.Arguments != s.Arguments || t.Results != s.Results) {
			const format = "%s: the buffer assignment is that of another module: arguments of %d bytes and results of %d, the module's have %d and %d"
			return nil, fmt.Errorf(format, at, t.Arguments, t.Results, s.Arguments, s.Results)
		}
		exact(s, a, t, all.Module, n)
	}
	return &Answer{s, allocations(all.Assignment), all.Module, all.Assignment, regions}, nil
}

// allocations lists those of an assignment, which may be nil.
func allocations(a *load.Assignment) (list []Allocation) {
	if a == nil {
		return nil
	}
	for k := range a.Allocations {
		x := &a.Allocations[k]
		y := Allocation{For: "temporaries", Bytes: x.Bytes, Space: x.Space}
		switch {
		case x.Parameter:
			y.For, y.Argument, y.Aliased = "argument", &x.Number, x.Aliased
		case x.Constant:
			y.For = "constant"
		case x.ThreadLocal:
			y.For = "thread"
		case x.LiveOut:
			y.For = "result"
		}
		list = append(list, y)
	}
	return list
}

// totals adds up allocations as XLA does for memory_analysis.
func totals(a *load.Assignment) (t memory.Totals) {
	for k := range a.Allocations {
		x := &a.Allocations[k]
		if x.Space == hlo.HostSpace {
			continue
		}
		if x.Parameter {
			t.Arguments += x.Bytes
		}
		if x.Aliased {
			t.Aliased += x.Bytes
		}
		if x.LiveOut {
			t.Results += x.Bytes
		}
		if x.Constant {
			t.Constants += x.Bytes
		}
		if x.Temporary() {
			t.Temporaries += x.Bytes
		}
	}
	return t.Summed()
}

// exact puts the figures of an assignment in the place of those of the model, and its values,
// if they have names. m may be nil.
func exact(s *memory.Summary, a *load.Assignment, t memory.Totals, m *hlo.Module, n int) {
	s.Exact, s.Totals = true, t
	var alive []load.Buffer
	peak, named := uint64(0), true
	for k := range a.Allocations {
		x := &a.Allocations[k]
		if x.Space == hlo.HostSpace || x.Constant || x.ThreadLocal {
			continue
		}
		if !x.Temporary() {
			peak += x.Bytes
		}
		for _, b := range x.Peak {
			if x.Temporary() {
				peak += b.Bytes
			}
			if named = named && b.Instruction != ""; b.Instruction == "" && x.Parameter {
				b.Instruction = fmt.Sprintf("parameter %d", x.Number)
			}
			alive = append(alive, b)
		}
	}
	if m == nil {
		s.Parameters, s.Peak = t.Arguments, peak
		switch {
		case a.Text:
			s.Peak = t.Total
			s.Notes = append(s.Notes, "XLA's text does not say when a value lives: of the temporaries, the largest that lie beside each other are listed")
		case !named:
			s.Notes = append(s.Notes, "the assignment alone has no names: name the binary module, too")
		}
	} else if !named || len(alive) == 0 || a.Text {
		return // the values of the model have names
	}
	slices.SortStableFunc(alive, func(v, w load.Buffer) int { return cmp.Compare(w.Bytes, v.Bytes) })
	s.Alive, s.Largest = len(alive), s.Largest[:0]
	for _, b := range alive[:min(n, len(alive))] {
		s.Largest = append(s.Largest, described(m, b))
	}
}

// described says what a value is, from the module if there is one.
func described(m *hlo.Module, b load.Buffer) memory.LiveValue {
	v := memory.LiveValue{Instruction: cmp.Or(b.Instruction, "value"), Shape: b.Shape, Bytes: b.Bytes}
	if m == nil {
		return v
	}
	for _, c := range m.Computations {
		if i := c.Instruction(b.Instruction); i != nil {
			v.OpName, v.Source = i.OpName(), m.Sources().Place(i)
			if shape := i.Shape.At(b.Index...); shape != nil {
				v.Shape = shape.String()
			}
			break
		}
	}
	return v
}
