package legal

// Values that have to share memory: what each operation hands on, and what it writes in place.

import (
	"slices"
	"strings"

	"gpumem/xla/internal/hlo"
)

// countLeaves returns the leaves of a shape: its parts that are no tuples.
func (r *runner) countLeaves(s *hlo.Shape) int {
	if s.Type != hlo.Tuple {
		return 1
	}

	n, ok := r.leaves[s]
	if !ok {
		for _, e := range s.Elements {
			n = min(n+r.countLeaves(e), 2*maxLeaves)
		}
		r.leaves[s] = n
	}

	return n
}

// findPart returns the first leaf of the part at an index, and how many it has; 0, 0 if the shape
// has no such part.
func (r *runner) findPart(s *hlo.Shape, index []int) (from, n int) {
	for _, k := range index {
		if k < 0 || k >= len(s.Elements) {
			return 0, 0
		}
		for _, e := range s.Elements[:k] {
			from += r.countLeaves(e)
		}
		s = s.Elements[k]
	}

	return from, r.countLeaves(s)
}

// A callee is a computation that an instruction runs, and the first leaf of its operands
// that it is passed.
type callee struct {
	role
	from int
}

// calleesOf returns what an instruction runs as a part of the program.
func (r *runner) calleesOf(i *hlo.Instruction) (list []callee) {
	switch {
	case i.Opcode == hlo.Call:
		list = append(list, callee{role{i.Call("to_apply"), subroutine}, 0})
	case i.Opcode == hlo.While:
		list = append(list, callee{role{i.Call("condition"), condition}, 0}, callee{role{i.Call("body"), body}, 0})
	case i.Opcode == hlo.Conditional:
		from := r.countLeaves(i.Operands[0].Shape)
		for n, c := range i.Branches() {
			list = append(list, callee{role{c, subroutine}, from})
			from += r.countLeaves(i.Operands[n+1].Shape)
		}
	case isStart(i):
		list = append(list, callee{role{i.Call("calls"), subroutine}, 0})
	}
	return slices.DeleteFunc(list, func(x callee) bool { return x.c == nil })
}

// defineResult returns the values of an instruction's result, leaf by leaf: those that it hands on,
// and new ones, which are joined with what they are written over.
func (f *frame) defineResult(i *hlo.Instruction) []int32 {
	n := f.countLeaves(i.Shape)
	var first []int32
	if len(i.Operands) > 0 {
		first = f.results[i.Operands[0]]
	}

	switch {
	case i.Opcode == hlo.TupleOp:
		return f.operandLeaves(i)
	case i.Opcode == hlo.GetTupleElement:
		if k, err := i.TupleIndex(); err == nil {
			from, n := f.findPart(i.Operands[0].Shape, []int{k})
			return first[from : from+n]
		}
	case forwardsOperands(i) && i.Opcode != hlo.Parameter && len(first) == n:
		return first
	case i.Opcode == hlo.Call, i.Opcode == hlo.While, i.Opcode == hlo.Conditional:
		return f.callResult(i, f.operandLeaves(i))
	case isDone(i) || isUpdate(i):
		return f.endResult(i, first, n)
	case isStart(i) || i.Opcode == hlo.Send:
		return f.startResult(i, f.operandLeaves(i), n)
	}

	out := f.newValues(i, 0, n)
	f.joinParts(i, out)
	return out
}

// operandLeaves returns the values of all operands.
func (f *frame) operandLeaves(i *hlo.Instruction) (list []int32) {
	for _, o := range i.Operands {
		list = append(list, f.results[o]...)
	}
	return list
}

// callResult returns the values of a call, a loop or a conditional with operands in.
func (f *frame) callResult(i *hlo.Instruction, in []int32) []int32 {
	n := f.countLeaves(i.Shape)
	out := f.newValues(i, 0, n)
	list := f.calleesOf(i)
	if i.Opcode == hlo.While {
		list = list[len(list)-1:] // the body
	}

	same := make([]int32, n) // 1 + the value that all branches hand on, -1: none
	for b, c := range list {
		for k, o := range f.runComputation(c.role).out {
			if k >= n {
				break
			}
			at := c.from + o.parameter
			if o.parameter < 0 || at >= len(in) {
				same[k] = -1
				continue
			}
			handed := in[at] + 1
			if !o.same || b > 0 && same[k] != handed {
				handed = -1
			}
			same[k] = handed
			f.joinCells(out[k], in[at])
		}
	}

	for k := range out {
		if same[k] > 0 {
			out[k] = same[k] - 1
		}
	}
	return out
}

// startResult returns the values of the start of an asynchronous operation: its result begins with
// the operands, if their shapes say so, and what it computes follows.
func (f *frame) startResult(i *hlo.Instruction, in []int32, n int) []int32 {
	if i.Opcode == hlo.CopyStart { // (to, from, context)
		out := f.newValues(i, 0, n)
		if n > 1 && len(in) == 1 {
			out[1] = in[0]
		}
		return out
	}

	handed := 0
	if e := i.Shape.Elements; len(e) > 1 && f.countLeaves(e[0]) == len(in) {
		handed = len(in)
	}

	out := append(slices.Clone(in[:handed]), f.newValues(i, handed, n-handed)...)
	if c := i.Call("calls"); c != nil && handed > 0 {
		for k, o := range f.runComputation(role{c, subroutine}).out {
			if at := handed + k; o.parameter >= 0 && o.parameter < len(in) && at < len(out) {
				f.joinCells(out[at], in[o.parameter])
			}
		}
	}

	f.joinParts(i, out)
	return out
}

// endResult returns the values of the end or the update of an asynchronous operation: all that the
// start has, or its second element, or for a copy and a receive the first.
func (f *frame) endResult(i *hlo.Instruction, in []int32, n int) []int32 {
	if isUpdate(i) && len(in) == n {
		return in
	}
	if len(i.Operands) > 0 {
		s := i.Operands[0].Shape
		element := 1
		if i.Opcode == hlo.CopyDone || i.Opcode == hlo.RecvDone {
			element = 0
		}
		from, m := f.findPart(s, []int{element})
		switch {
		case len(s.Elements) > 1 && m == n && i.Opcode != hlo.RecvDone:
			return in[from : from+n]
		case i.Opcode == hlo.RecvDone && m < n:
			return append(slices.Clone(in[:m]), f.newValues(i, m, n-m)...)
		case len(in) == n && i.Opcode == "all-reduce-done":
			return in
		}
	}

	return f.newValues(i, 0, n)
}

// A writtenPart is a part of a result that is written over a part of an operand.
type writtenPart struct {
	operand  int
	from, to []int
}

// joinParts joins the parts of an instruction's result with those of operands that they are written
// over.
func (f *frame) joinParts(i *hlo.Instruction, out []int32) {
	for _, p := range f.overwrittenParts(i) {
		if p.operand >= len(i.Operands) {
			continue
		}
		o := i.Operands[p.operand]
		from, n := f.findPart(o.Shape, p.from)
		to, m := f.findPart(i.Shape, p.to)
		for k := range min(n, m) {
			f.joinCells(out[to+k], f.results[o][from+k])
		}
	}
}

// overwrittenParts returns what an instruction writes over its operands.
func (r *runner) overwrittenParts(i *hlo.Instruction) (list []writtenPart) {
	each := func(first, n int) {
		for k := range n {
			var to []int
			if i.Shape.Type == hlo.Tuple {
				to = []int{k}
			}
			list = append(list, writtenPart{operand: first + k, to: to})
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
	case hlo.CollectivePermute:
		if len(i.Operands) == 4 {
			list = append(list, writtenPart{operand: 1})
		}
	case "collective-permute-start":
		if len(i.Operands) == 4 {
			list = append(list, writtenPart{operand: 1, to: []int{1}})
		}
	case hlo.Fusion:
		if c := i.Call("calls"); c != nil {
			list = append(list, r.partsOfFusion(c)...)
		}
	}

	if aliases, err := i.OutputAliases(); err == nil {
		for _, a := range aliases {
			list = append(list, writtenPart{a.Parameter, a.Index, a.Output})
		}
	}
	return list
}

// partsOfFusion returns the parts of a fusion that ends in an update of a parameter.
func (r *runner) partsOfFusion(c *hlo.Computation) []writtenPart {
	if list, ok := r.pairs[c]; ok {
		return list
	}

	r.pairs[c] = nil
	var list []writtenPart
	var add func(at []int)
	add = func(at []int) {
		if s := c.Root.Shape.At(at...); s != nil && s.Type == hlo.Tuple {
			for k := range s.Elements {
				add(append(slices.Clone(at), k))
			}
		} else if p, from, ok := r.updatedParameter(c.Root, at); ok {
			list = append(list, writtenPart{p.Parameter, from, at})
		}
	}

	add(nil)
	r.pairs[c] = list
	return list
}

// updatedParameter returns the parameter, and the part of it, that a part of a fused computation's root
// is written over. Up to two operations in place follow each other: of the fusion, and of one inside.
func (r *runner) updatedParameter(i *hlo.Instruction, at []int) (p *hlo.Instruction, from []int, ok bool) {
	for range 2 {
		i, at = lookThrough(i, at)
		list := r.overwrittenParts(i)
		n := slices.IndexFunc(list, func(p writtenPart) bool { return slices.Equal(p.to, at) })
		if n < 0 || list[n].operand >= len(i.Operands) {
			return nil, nil, false
		}
		wasFusion := i.Opcode == hlo.Fusion
		i, at = lookThrough(i.Operands[list[n].operand], list[n].from)
		if i.Opcode == hlo.Parameter || wasFusion {
			return i, at, i.Opcode == hlo.Parameter
		}
	}

	return nil, nil, false
}

// lookThrough goes back over what changes no byte.
func lookThrough(i *hlo.Instruction, at []int) (*hlo.Instruction, []int) {
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
	switch i.Opcode {
	case hlo.Select, "clamp", hlo.Fusion, hlo.CustomCall, hlo.Sort, hlo.TriangularSolve:
		return true
	}
	isElementwise := i.Opcode.Unary() && i.Opcode != hlo.Copy || i.Opcode.Binary()
	isAllReduce := strings.HasPrefix(string(i.Opcode), "all-reduce")
	return isElementwise || isAllReduce || len(f.overwrittenParts(i)) > 0 || len(f.calleesOf(i)) > 0
}
