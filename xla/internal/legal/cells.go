package legal

// Values that have to share memory: what each operation hands on, and what it writes in place.

import (
	"slices"
	"strings"

	"gpumem/xla/hlo"
)

// count returns the leaves of a shape: its parts that are no tuples.
func (r *runner) count(s *hlo.Shape) int {
	if s.Type != hlo.Tuple {
		return 1
	}
	n, ok := r.leaves[s]
	if !ok {
		for _, e := range s.Elements {
			n = min(n+r.count(e), 2*maxLeaves)
		}
		r.leaves[s] = n
	}
	return n
}

// span returns the first leaf of the part at an index, and how many it has; 0, 0 if the shape
// has no such part.
func (r *runner) span(s *hlo.Shape, index []int) (from, n int) {
	for _, k := range index {
		if k < 0 || k >= len(s.Elements) {
			return 0, 0
		}
		for _, e := range s.Elements[:k] {
			from += r.count(e)
		}
		s = s.Elements[k]
	}
	return from, r.count(s)
}

// A calledBy is a computation that an instruction runs, and the first leaf of its operands
// that it is passed.
type calledBy struct {
	role
	from int
}

// calls returns what an instruction runs as a part of the program.
func (r *runner) calls(i *hlo.Instruction) (list []calledBy) {
	switch {
	case i.Opcode == hlo.Call:
		list = append(list, calledBy{role{i.Call("to_apply"), subroutine}, 0})
	case i.Opcode == hlo.While:
		list = append(list, calledBy{role{i.Call("condition"), condition}, 0}, calledBy{role{i.Call("body"), body}, 0})
	case i.Opcode == hlo.Conditional:
		from := r.count(i.Operands[0].Shape)
		for n, c := range i.Branches() {
			list = append(list, calledBy{role{c, subroutine}, from})
			from += r.count(i.Operands[n+1].Shape)
		}
	case isStart(i):
		if c := i.Call("calls"); c != nil {
			list = append(list, calledBy{role{c, subroutine}, 0})
		}
	}
	return slices.DeleteFunc(list, func(x calledBy) bool { return x.c == nil })
}

// define returns the values of an instruction's result, leaf by leaf: those that it hands on,
// and new ones, which are joined with what they are written over.
func (f *frame) define(i *hlo.Instruction) []int32 {
	n := f.count(i.Shape)
	var in []int32
	switch i.Opcode {
	case hlo.TupleOp, hlo.While, hlo.Call, hlo.Conditional:
	default:
		if len(i.Operands) > 0 {
			in = f.of[i.Operands[0]]
		}
	}
	all := func() (list []int32) {
		for _, o := range i.Operands {
			list = append(list, f.of[o]...)
		}
		return list
	}
	switch {
	case i.Opcode == hlo.TupleOp:
		return all()
	case i.Opcode == hlo.GetTupleElement:
		if k, err := i.TupleIndex(); err == nil {
			if from, n := f.span(i.Operands[0].Shape, []int{k}); n > 0 {
				return in[from : from+n]
			}
			return nil
		}
	case forwards(i) && i.Opcode != hlo.Parameter && len(in) == n:
		return in
	case i.Opcode == hlo.Call, i.Opcode == hlo.While, i.Opcode == hlo.Conditional:
		return f.called(i, all())
	case isDone(i) || isUpdate(i):
		return f.ended(i, in, n)
	case isStart(i) || i.Opcode == hlo.Send:
		return f.started(i, all(), n)
	}
	out := f.fresh(i, 0, n)
	for _, p := range f.inPlace(i) {
		f.joinPair(i, p, out)
	}
	return out
}

// called returns the values of a call, a loop or a conditional with operands in.
func (f *frame) called(i *hlo.Instruction, in []int32) []int32 {
	n := f.count(i.Shape)
	out := f.fresh(i, 0, n)
	list := f.calls(i)
	if i.Opcode == hlo.While {
		list = list[len(list)-1:] // the body
	}
	same := make([]int32, n) // 1 + the value that all branches hand on, -1: none
	for b, c := range list {
		for k, o := range f.run(c.role).out {
			if k >= n {
				break
			}
			at := c.from + o.parameter
			if o.parameter < 0 || at >= len(in) {
				same[k] = -1
				continue
			}
			if o.same && (b == 0 || same[k] == in[at]+1) {
				same[k] = in[at] + 1
			} else {
				same[k] = -1
			}
			f.join(out[k], in[at])
		}
	}
	for k := range out {
		if same[k] > 0 {
			out[k] = same[k] - 1
		}
	}
	return out
}

// started returns the values of the start of an asynchronous operation: its result begins with
// the operands, if their shapes say so, and what it computes follows.
func (f *frame) started(i *hlo.Instruction, in []int32, n int) []int32 {
	if i.Opcode == hlo.CopyStart { // (to, from, context)
		out := f.fresh(i, 0, n)
		if n > 1 && len(in) == 1 {
			out[1] = in[0]
		}
		return out
	}
	handed := 0
	if e := i.Shape.Elements; len(e) > 1 && f.count(e[0]) == len(in) {
		handed = len(in)
	}
	out := append(slices.Clone(in[:handed]), f.fresh(i, handed, n-handed)...)
	if c := i.Call("calls"); c != nil && handed > 0 {
		for k, o := range f.run(role{c, subroutine}).out {
			if at := handed + k; o.parameter >= 0 && o.parameter < len(in) && at < len(out) {
				f.join(out[at], in[o.parameter])
			}
		}
	}
	for _, p := range f.inPlace(i) {
		f.joinPair(i, p, out)
	}
	return out
}

// ended returns the values of the end or the update of an asynchronous operation: all that the
// start has, or its second element, or for a copy and a receive the first.
func (f *frame) ended(i *hlo.Instruction, in []int32, n int) []int32 {
	if isUpdate(i) && len(in) == n {
		return in
	}
	if len(i.Operands) > 0 {
		s := i.Operands[0].Shape
		element := 1
		if i.Opcode == hlo.CopyDone || i.Opcode == hlo.RecvDone {
			element = 0
		}
		from, m := f.span(s, []int{element})
		switch {
		case len(s.Elements) > 1 && m == n && i.Opcode != hlo.RecvDone:
			return in[from : from+n]
		case i.Opcode == hlo.RecvDone && m < n:
			return append(slices.Clone(in[:m]), f.fresh(i, m, n-m)...)
		case len(in) == n && i.Opcode == "all-reduce-done":
			return in
		}
	}
	return f.fresh(i, 0, n)
}

// A pairOf is a part of a result that is written over a part of an operand.
type pairOf struct {
	operand  int
	from, to []int
}

// joinPair joins a part of an instruction's result with that of an operand.
func (f *frame) joinPair(i *hlo.Instruction, p pairOf, out []int32) {
	if p.operand >= len(i.Operands) {
		return
	}
	o := i.Operands[p.operand]
	from, n := f.span(o.Shape, p.from)
	to, m := f.span(i.Shape, p.to)
	for k := range min(n, m) {
		f.join(out[to+k], f.of[o][from+k])
	}
}

// inPlace returns what an instruction writes over its operands.
func (r *runner) inPlace(i *hlo.Instruction) (list []pairOf) {
	each := func(first, n int) {
		for k := range n {
			var to []int
			if i.Shape.Type == hlo.Tuple {
				to = []int{k}
			}
			list = append(list, pairOf{operand: first + k, to: to})
		}
	}
	switch i.Opcode {
	case hlo.DynamicUpdateSlice, hlo.SetDimensionSize:
		each(0, 1)
	case hlo.Scatter:
		each(0, (len(i.Operands)-1)/2)
	case "all-reduce-start":
		if e := i.Shape.Elements; len(e) < 2 || e[0].Type != hlo.Tuple {
			each(0, len(i.Operands))
		}
	case "ragged-all-to-all":
		each(1, 1)
	case hlo.CollectivePermute, "collective-permute-start":
		if len(i.Operands) == 4 {
			to := []int{1}
			if i.Opcode == hlo.CollectivePermute {
				to = nil
			}
			list = append(list, pairOf{operand: 1, to: to})
		}
	case hlo.Fusion:
		if c := i.Call("calls"); c != nil {
			list = append(list, r.fused(c)...)
		}
	}
	if aliases, err := i.OutputAliases(); err == nil {
		for _, a := range aliases {
			list = append(list, pairOf{a.Parameter, a.Index, a.Output})
		}
	}
	return list
}

// fused returns the pairs of a fusion that ends in an update of a parameter.
func (r *runner) fused(c *hlo.Computation) []pairOf {
	if list, ok := r.pairs[c]; ok {
		return list
	}
	r.pairs[c] = nil
	var list []pairOf
	var part func(i *hlo.Instruction, at, to []int)
	part = func(i *hlo.Instruction, at, to []int) {
		if s := i.Shape.At(at...); s != nil && s.Type == hlo.Tuple {
			for k := range s.Elements {
				part(i, append(slices.Clone(at), k), append(slices.Clone(to), k))
			}
			return
		}
		// Up to two operations in place follow each other: of the fusion, and of one inside.
		for range 2 {
			i, at = behind(i, at)
			n := slices.IndexFunc(r.inPlace(i), func(p pairOf) bool { return slices.Equal(p.to, at) })
			if n < 0 {
				return
			}
			p := r.inPlace(i)[n]
			if p.operand >= len(i.Operands) {
				return
			}
			wasFusion := i.Opcode == hlo.Fusion
			if i, at = behind(i.Operands[p.operand], p.from); i.Opcode == hlo.Parameter {
				list = append(list, pairOf{i.Parameter, at, to})
				return
			}
			if wasFusion {
				return
			}
		}
	}
	part(c.Root, nil, nil)
	r.pairs[c] = list
	return list
}

// behind goes back over what changes no byte.
func behind(i *hlo.Instruction, at []int) (*hlo.Instruction, []int) {
	for len(i.Operands) > 0 {
		switch {
		case i.Opcode == hlo.TupleOp && len(at) > 0 && at[0] < len(i.Operands):
			i, at = i.Operands[at[0]], at[1:]
		case i.Opcode == hlo.GetTupleElement:
			k, err := i.TupleIndex()
			if err != nil {
				return i, at
			}
			i, at = i.Operands[0], append([]int{k}, at...)
		case (i.Opcode == hlo.Bitcast || i.Opcode == hlo.Reshape) && len(at) == 0:
			i = i.Operands[0]
		default:
			return i, at
		}
	}
	return i, at
}

// mayOverlap reports whether an instruction may write where it reads: what it does in place,
// each element after it was read, or what it calls, which is looked at by itself. A fusion does
// what XLA made it for.
func (f *frame) mayOverlap(i *hlo.Instruction) bool {
	if i.Opcode.Unary() && i.Opcode != hlo.Copy || i.Opcode.Binary() || len(f.inPlace(i)) > 0 || len(f.calls(i)) > 0 {
		return true
	}
	switch i.Opcode {
	case hlo.Select, "clamp", hlo.Fusion, hlo.CustomCall, hlo.Sort, hlo.TriangularSolve:
		return true
	}
	return strings.HasPrefix(string(i.Opcode), "all-reduce")
}
