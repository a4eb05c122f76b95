package legal

// Values that are read after their memory was overwritten.
//
// In
//
//	p = f32[4] parameter(0)                    donated: its memory is that of output 0
//	a = f32[4] exponential(p)
//	d = f32[4] dynamic-update-slice(p, u, i)   output 0
//	b = f32[4] exponential(p)
//
// p and d share memory, and b reads d. XLA inserts a copy of p where it sees that, but it does so
// before scheduling; what changes the schedule later has to keep readers before writers.
//
// Each computation is run once in the order of its list. The parts of results are values, and
// values that have to share memory are one cell (cells.go): a cell holds the value that was
// written last. A reader that finds another value than its own is a fault. What a computation does
// to the cells of its parameters is kept for its callers, so that each is run once.

import (
	"cmp"
	"slices"

	"gpumem/xla/internal/hlo"
)

// findOverwrites returns the first fault of the planned module that the given one does not have.
func findOverwrites(before, after *numbering) error {
	known := map[string]bool{}
	err := runAll(before, func(f fault) bool { known[f.key] = true; return true })
	if err != nil {
		return err
	}

	var found error
	err = runAll(after, func(f fault) bool {
		if !known[f.key] {
			found = refuse(f.i, "%s", f.problem)
		}
		return found == nil
	})

	return cmp.Or(found, err)
}

// A fault is a value that is not there any more. The key is the value by its number, so that
// clones have the faults of their originals. Who reads it, and what overwrote it, is left out:
// where the given module reads it late, XLA has to keep a copy, which serves other readers, too.
type fault struct {
	key     string
	i       *hlo.Instruction
	problem string
}

// maxLeaves bounds the leaves of all results together: tuples of tuples may double each time.
const maxLeaves = 1 << 24

// runAll runs all computations that are part of the program, and reports faults until report
// returns false. The error is of a module whose results have more than maxLeaves leaves.
func runAll(n *numbering, report func(fault) bool) error {
	r := &runner{n: n, report: report, leaves: map[*hlo.Shape]int{}}
	r.summaries, r.pairs = map[role]*summary{}, map[*hlo.Computation][]writtenPart{}
	for i := range n.m.All() {
		if r.total += r.countLeaves(i.Shape); r.total > maxLeaves {
			return refuse(i, "with it, results have more than 2^24 parts: too many to check")
		}
	}
	r.runComputation(role{n.m.Entry, entry})
	return nil
}

// A runner runs the computations of one module.
type runner struct {
	n         *numbering
	report    func(fault) bool
	stopped   bool
	summaries map[role]*summary
	pairs     map[*hlo.Computation][]writtenPart // of fused computations
	leaves    map[*hlo.Shape]int
	total     int
}

// A role is a computation and what it runs as.
type role struct {
	c  *hlo.Computation
	as int
}

const (
	entry     = iota
	body      // its results lie where its parameter does
	condition // it must not write to its parameter
	subroutine
)

// A summary is what callers have to know of a computation, by the leaves of its parameters
// in order.
type summary struct {
	out     []outcome // by leaf of the result
	written []bool    // the cell of the parameter's leaf gets another value
}

// An outcome says where a leaf of a result comes from.
type outcome struct {
	parameter int  // leaf in whose cell it lies; -1: in a cell by itself
	same      bool // it is that leaf
}

// A value is a leaf of an instruction's result.
type value struct {
	definer *hlo.Instruction
	leaf    int
}

// A frame is one computation that runs.
type frame struct {
	*runner
	c       *hlo.Computation
	values  []value
	cell    []int32 // by value: union-find
	results map[*hlo.Instruction][]int32
	holds   map[int32]int32 // by cell: the value that was written last
	fixed   map[int32]bool  // cells that must not be written: constants, parameters
}

// runComputation runs a computation, and returns what its callers have to know.
func (r *runner) runComputation(x role) *summary {
	if s := r.summaries[x]; s != nil {
		return s
	}

	s := &summary{}
	r.summaries[x] = s
	f := &frame{
		runner: r, c: x.c, results: make(map[*hlo.Instruction][]int32, len(x.c.Instructions)),
		holds: map[int32]int32{}, fixed: map[int32]bool{},
	}

	for _, i := range x.c.Instructions {
		f.results[i] = f.defineResult(i)
		// What does not fit, in operations that xla/internal/verify does not know, is a value by itself.
		if n := f.countLeaves(i.Shape); len(f.results[i]) != n {
			f.results[i] = f.newValues(i, 0, n)
		}
	}

	var in []int32
	for _, p := range x.c.Parameters() {
		in = append(in, f.results[p]...)
	}

	out := f.results[x.c.Root]
	f.joinOutside(x.as, in, out)

	for _, v := range in {
		f.holds[f.cellOf(v)] = v
	}

	for _, i := range x.c.Instructions {
		if r.stopped {
			return s
		}
		f.executeInstruction(i)
	}

	for _, v := range out {
		f.checkRead(x.c.Root, v, "the result")
		s.out = append(s.out, f.outcomeOf(v, in))
	}

	for _, p := range in {
		s.written = append(s.written, f.holds[f.cellOf(p)] != p)
	}
	return s
}

// joinOutside joins the cells that a computation's caller has, of parameters and of the result, and
// fixes those that must not be written.
func (f *frame) joinOutside(as int, in, out []int32) {
	donated := map[int32]bool{}
	switch as {
	case body:
		for k := range min(len(in), len(out)) {
			f.joinCells(out[k], in[k])
		}
	case entry:
		donated = f.donateParameters()
	}

	// An entry must not write to parameters that stay the caller's, nor a condition to its own.
	if as == entry || as == condition {
		for _, v := range in {
			if !donated[v] {
				f.fixed[f.cellOf(v)] = true
			}
		}
	}

	for _, i := range f.c.Instructions {
		if i.Opcode == hlo.Constant {
			for _, v := range f.results[i] {
				f.fixed[f.cellOf(v)] = true
			}
		}
	}
}

// outcomeOf returns where a leaf of the result comes from: the leaf of the parameters that it is, or
// else the first in whose cell it lies.
func (f *frame) outcomeOf(v int32, in []int32) outcome {
	if n := slices.Index(in, v); n >= 0 {
		return outcome{n, true}
	}
	return outcome{slices.IndexFunc(in, func(p int32) bool { return f.cellOf(p) == f.cellOf(v) }), false}
}

func (f *frame) cellOf(v int32) int32 {
	for f.cell[v] != v {
		f.cell[v] = f.cell[f.cell[v]]
		v = f.cell[v]
	}
	return v
}

func (f *frame) joinCells(v, w int32) {
	if v, w = f.cellOf(v), f.cellOf(w); v != w {
		f.cell[max(v, w)] = min(v, w)
	}
}

// newValues makes n values of an instruction, in cells by themselves; from is the first leaf.
func (f *frame) newValues(i *hlo.Instruction, from, n int) []int32 {
	list := make([]int32, n)
	for k := range list {
		list[k] = int32(len(f.values))
		f.values = append(f.values, value{i, from + k})
		f.cell = append(f.cell, list[k])
	}
	return list
}

// donateParameters joins the outputs of the entry with the parameters whose memory they have, and
// returns these.
func (f *frame) donateParameters() map[int32]bool {
	donated := map[int32]bool{}
	params := f.c.Parameters()
	for _, a := range f.n.m.Aliases {
		if a.Parameter >= len(params) {
			continue
		}
		out, n := f.findPart(f.c.Root.Shape, a.Output)
		in, m := f.findPart(params[a.Parameter].Shape, a.Index)
		for k := range min(n, m) {
			v := f.results[params[a.Parameter]][in+k]
			f.joinCells(f.results[f.c.Root][out+k], v)
			donated[v] = true
		}
	}

	return donated
}

// executeInstruction reads what an instruction reads, and writes what it makes.
func (f *frame) executeInstruction(i *hlo.Instruction) {
	if forwardsOperands(i) {
		return
	}

	read := f.readOperands(i)
	f.writeCalled(i, read)

	beside := f.mayOverlap(i)
	for _, v := range f.results[i] {
		if f.values[v].definer != i {
			continue // forwarded
		}
		c := f.cellOf(v)
		if f.fixed[c] && i.Opcode != hlo.Constant {
			f.reportFault(i, v, "it writes to memory of a constant, or of a parameter that is not donated")
		}
		for _, w := range read {
			if !beside && f.cellOf(w) == c {
				f.reportFault(i, v, "it writes where it reads "+f.values[w].definer.Name)
			}
		}
		f.holds[c] = v
	}
}

// readOperands reads the operands of an instruction, and returns their values.
func (f *frame) readOperands(i *hlo.Instruction) (read []int32) {
	start := startOf(i)
	for _, o := range i.Operands {
		for _, v := range f.results[o] {
			// What an asynchronous operation wrote over its own operand is no fault at its end.
			if held, ok := f.holds[f.cellOf(v)]; !ok || start == nil || f.values[held].definer != start {
				f.checkRead(i, v, "it")
			}
			read = append(read, v)
		}
	}

	return read
}

// startOf returns the start of what an instruction ends or continues, nil if it does not.
func startOf(i *hlo.Instruction) *hlo.Instruction {
	if len(i.Operands) == 0 || !isDone(i) && !isUpdate(i) {
		return nil
	}
	start := i.Operands[0]
	for isUpdate(start) && len(start.Operands) > 0 {
		start = start.Operands[0]
	}
	return start
}

// writeCalled writes to the cells of what an instruction passes as what it calls does.
func (f *frame) writeCalled(i *hlo.Instruction, read []int32) {
	for _, callee := range f.calleesOf(i) {
		for n, written := range f.runComputation(callee.role).written {
			if k := callee.from + n; written && k < len(read) {
				f.holds[f.cellOf(read[k])] = f.newValues(i, -1, 1)[0]
			}
		}
	}
}

// checkRead checks that a value is where it was written.
func (f *frame) checkRead(i *hlo.Instruction, v int32, what string) {
	held, written := f.holds[f.cellOf(v)]
	if !written || held == v {
		return
	}
	f.reportFault(i, v, what+" reads "+f.values[v].definer.Name+", whose memory "+f.values[held].definer.Name+" has overwritten")
}

// reportFault reports that an instruction does not find, or destroys, a value that is needed.
func (f *frame) reportFault(i *hlo.Instruction, v int32, problem string) {
	n, leaf := f.valueNumber(f.values[v])
	if !f.report(fault{string(appendNumbers(nil, f.n.functions[f.c].number, n, leaf)), i, problem}) {
		f.stopped = true
	}
}

// valueNumber returns the value number of a value, and its leaf if that is not known by itself. The
// outputs of a fusion have other places once some were pruned, but not other numbers.
func (f *frame) valueNumber(v value) (n, leaf int32) {
	n = f.n.numbers[v.definer.ID]
	s := v.definer.Shape
	at := v.leaf
	for s.Type == hlo.Tuple && at >= 0 && len(f.n.t.values[n].elements) == len(s.Elements) {
		k := 0
		for k+1 < len(s.Elements) && at >= f.countLeaves(s.Elements[k]) {
			at -= f.countLeaves(s.Elements[k])
			k++
		}
		n, s = f.n.t.values[n].elements[k], s.Elements[k]
	}

	return n, int32(at)
}
