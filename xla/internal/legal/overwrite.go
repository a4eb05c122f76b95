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

	"gpumem/xla/hlo"
)

// overwrites returns the first fault of the planned module that the given one does not have.
func overwrites(before, after *numbered) error {
	known := map[string]bool{}
	err := runAll(before, func(f fault) bool { known[f.key] = true; return true })
	if err != nil {
		return err
	}
	var found error
	err = runAll(after, func(f fault) bool {
		if !known[f.key] {
			found = fail(f.i, "%s", f.problem)
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
func runAll(n *numbered, report func(fault) bool) error {
	r := &runner{n: n, report: report, summaries: map[role]*summary{}, pairs: map[*hlo.Computation][]pairOf{}, leaves: map[*hlo.Shape]int{}}
	for i := range n.m.All() {
		if r.total += r.count(i.Shape); r.total > maxLeaves {
			return fail(i, "with it, results have more than 2^24 parts: too many to check")
		}
	}
	r.run(role{n.m.Entry, entry})
	return nil
}

// A runner runs the computations of one module.
type runner struct {
	n         *numbered
	report    func(fault) bool
	stopped   bool
	summaries map[role]*summary
	pairs     map[*hlo.Computation][]pairOf // of fused computations
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
	c      *hlo.Computation
	values []value
	cell   []int32 // by value: union-find
	of     map[*hlo.Instruction][]int32
	holds  map[int32]int32 // by cell: the value that was written last
	fixed  map[int32]bool  // cells that must not be written: constants, parameters
}

// run runs a computation, and returns what its callers have to know.
func (r *runner) run(x role) *summary {
	if s := r.summaries[x]; s != nil {
		return s
	}
	s := &summary{}
	r.summaries[x] = s
	f := &frame{runner: r, c: x.c, of: make(map[*hlo.Instruction][]int32, len(x.c.Instructions)), holds: map[int32]int32{}, fixed: map[int32]bool{}}
	for _, i := range x.c.Instructions {
		f.of[i] = f.define(i)
		// What does not fit, in operations that xla/internal/verify does not know, is a value by itself.
		if n := f.count(i.Shape); len(f.of[i]) != n {
			f.of[i] = f.fresh(i, 0, n)
		}
	}
	var in []int32
	for _, p := range x.c.Parameters() {
		in = append(in, f.of[p]...)
	}
	out := f.of[x.c.Root]
	donated := map[int32]bool{}
	switch x.as {
	case body:
		for k := range min(len(in), len(out)) {
			f.join(out[k], in[k])
		}
	case entry:
		donated = f.donate()
	}
	// An entry must not write to parameters that stay the caller's, nor a condition to its own.
	if x.as == entry || x.as == condition {
		for _, v := range in {
			if !donated[v] {
				f.fixed[f.find(v)] = true
			}
		}
	}
	for _, i := range x.c.Instructions {
		if i.Opcode == hlo.Constant {
			for _, v := range f.of[i] {
				f.fixed[f.find(v)] = true
			}
		}
	}
	for _, v := range in {
		f.holds[f.find(v)] = v
	}
	for _, i := range x.c.Instructions {
		if r.stopped {
			return s
		}
		f.execute(i)
	}
	for _, v := range out {
		f.read(x.c.Root, v, "the result")
		o := outcome{parameter: -1}
		for n, p := range in {
			if p == v {
				o = outcome{n, true}
				break
			}
			if o.parameter < 0 && f.find(p) == f.find(v) {
				o.parameter = n
			}
		}
		s.out = append(s.out, o)
	}
	for _, p := range in {
		s.written = append(s.written, f.holds[f.find(p)] != p)
	}
	return s
}

func (f *frame) find(v int32) int32 {
	for f.cell[v] != v {
		f.cell[v] = f.cell[f.cell[v]]
		v = f.cell[v]
	}
	return v
}

func (f *frame) join(v, w int32) {
	if v, w = f.find(v), f.find(w); v != w {
		f.cell[max(v, w)] = min(v, w)
	}
}

// fresh makes n values of an instruction, in cells by themselves; from is the first leaf.
func (f *frame) fresh(i *hlo.Instruction, from, n int) []int32 {
	list := make([]int32, n)
	for k := range list {
		list[k] = int32(len(f.values))
		f.values = append(f.values, value{i, from + k})
		f.cell = append(f.cell, list[k])
	}
	return list
}

// donate joins the outputs of the entry with the parameters whose memory they have, and
// returns these.
func (f *frame) donate() map[int32]bool {
	donated := map[int32]bool{}
	params := f.c.Parameters()
	for _, a := range f.n.m.Aliases {
		if a.Parameter >= len(params) {
			continue
		}
		out, n := f.span(f.c.Root.Shape, a.Output)
		in, m := f.span(params[a.Parameter].Shape, a.Index)
		for k := range min(n, m) {
			v := f.of[params[a.Parameter]][in+k]
			f.join(f.of[f.c.Root][out+k], v)
			donated[v] = true
		}
	}
	return donated
}

// execute reads what an instruction reads, and writes what it makes.
func (f *frame) execute(i *hlo.Instruction) {
	if forwards(i) {
		return
	}
	var start *hlo.Instruction // that i ends or continues
	if len(i.Operands) > 0 && (isDone(i) || isUpdate(i)) {
		for start = i.Operands[0]; isUpdate(start) && len(start.Operands) > 0; start = start.Operands[0] {
		}
	}
	var read []int32
	for _, o := range i.Operands {
		for _, v := range f.of[o] {
			// What an asynchronous operation wrote over its own operand is no fault at its end.
			if held, ok := f.holds[f.find(v)]; !ok || start == nil || f.values[held].definer != start {
				f.read(i, v, "it")
			}
			read = append(read, v)
		}
	}
	// What is called writes to the cells of what it is passed.
	at := 0
	for _, callee := range f.calls(i) {
		for n, written := range f.run(callee.role).written {
			if k := at + callee.from + n; written && k < len(read) {
				f.holds[f.find(read[k])] = f.fresh(i, -1, 1)[0]
			}
		}
	}
	beside := f.mayOverlap(i)
	for _, v := range f.of[i] {
		if f.values[v].definer != i {
			continue // forwarded
		}
		c := f.find(v)
		if f.fixed[c] && i.Opcode != hlo.Constant {
			f.fault(i, v, "it writes to memory of a constant, or of a parameter that is not donated")
		}
		if !beside {
			for _, w := range read {
				if f.find(w) == c {
					f.fault(i, v, "it writes where it reads "+f.values[w].definer.Name)
				}
			}
		}
		f.holds[c] = v
	}
}

// read checks that a value is where it was written.
func (f *frame) read(i *hlo.Instruction, v int32, what string) {
	held, written := f.holds[f.find(v)]
	if !written || held == v {
		return
	}
	f.fault(i, v, what+" reads "+f.values[v].definer.Name+", whose memory "+f.values[held].definer.Name+" has overwritten")
}

// fault reports that an instruction does not find, or destroys, a value that is needed.
func (f *frame) fault(i *hlo.Instruction, v int32, problem string) {
	n, leaf := f.number(f.values[v])
	if !f.report(fault{string(numberKey(nil, f.n.functions[f.c].number, n, leaf)), i, problem}) {
		f.stopped = true
	}
}

// number returns the value number of a value, and its leaf if that is not known by itself. The
// outputs of a fusion have other places once some were pruned, but not other numbers.
func (f *frame) number(v value) (n, leaf int32) {
	n = f.n.of[v.definer.ID]
	s := v.definer.Shape
	at := v.leaf
	for s.Type == hlo.Tuple && at >= 0 && len(f.n.t.values[n].elements) == len(s.Elements) {
		k := 0
		for k+1 < len(s.Elements) && at >= f.count(s.Elements[k]) {
			at -= f.count(s.Elements[k])
			k++
		}
		n, s = f.n.t.values[n].elements[k], s.Elements[k]
	}
	return n, int32(at)
}
