package memory

// Asynchronous operations that run a computation.

import "gpumem/hlo"

// async is a generic asynchronous operation: a start ((operands), result,
// context), updates, and a done that returns the result. What it runs is walked
// at the first of them that has all operands and the result.
func (f *flow) async(fr, node int32, depth int) error {
	i := f.inst[node]
	// Starts of other names run an operation, not a computation.
	c := i.Call("calls")
	if i.Opcode == "call-start" {
		c = i.Call("to_apply")
	} else if i.Opcode != hlo.AsyncStart {
		c = nil
	}
	// The operation before this one in the chain, and its frame if it was walked.
	given, chained := int32(-1), len(i.Operands) > 0 && !i.Opcode.IsAsyncStart()
	ran := int32(-1)
	if chained {
		p, _ := f.node(fr, i.Operands[0])
		if g, ok := f.asyncs[p]; ok {
			ran, c = g.frame, g.c
		}
		given = f.first[p]
	}
	if i.Opcode.IsAsyncDone() {
		return f.asyncDone(fr, node, given, ran, c, depth)
	}
	if len(i.Shape.Elements) < 2 {
		return wrong(i, "expected a result of the shape ((operands), result, context)")
	}
	fresh, old := i.Operands, 0
	if chained {
		fresh, old = i.Operands[1:], len(i.Operands[0].Shape.At(0).Elements)
		source, _ := f.partOf(i.Operands[0].Shape, 0)
		for k := range old {
			from := int32(f.places.element(i.Operands[0].Shape.Elements[0], k))
			to, ok := f.partOf(i.Shape, 0, k)
			if !ok {
				return wrong(i, "its result does not have the operands of the start")
			}
			if err := f.forwardLeaves(node, to, i.Shape.At(0, k), given+source+from, i.Operands[0].Shape.At(0, k)); err != nil {
				return err
			}
		}
	}
	for k, o := range fresh {
		to, ok := f.partOf(i.Shape, 0, old+k)
		if !ok {
			return wrong(i, "its result does not begin with its operands")
		}
		n, _ := f.node(fr, o)
		if err := f.forwardLeaves(node, to, i.Shape.At(0, old+k), f.first[n], o.Shape); err != nil {
			return err
		}
	}
	if c != nil && ran < 0 && c.Root != nil && len(i.Shape.Elements[0].Elements) == len(c.Parameters()) && same(c.Root.Shape, i.Shape.Elements[1]) {
		var err error
		if ran, err = f.walkAsync(fr, node, f.first[node]+1, i.Shape.Elements[0], c, depth); err != nil {
			return err
		}
	}
	result, _ := f.partOf(i.Shape, 1)
	if ran >= 0 {
		if err := f.forwardLeaves(node, result, i.Shape.Elements[1], f.root(ran), c.Root.Shape); err != nil {
			return err
		}
	} else if chained && same(i.Operands[0].Shape.At(1), i.Shape.Elements[1]) {
		source, _ := f.partOf(i.Operands[0].Shape, 1)
		if err := f.forwardLeaves(node, result, i.Shape.Elements[1], given+source, i.Operands[0].Shape.At(1)); err != nil {
			return err
		}
	}
	f.asyncs[node] = asyncRun{ran, c}
	return f.defineRest(fr, node)
}

// An asyncRun is the computation of an asynchronous operation, and its frame, -1: not walked yet.
type asyncRun struct {
	frame int32
	c     *hlo.Computation
}

func (f *flow) asyncDone(fr, node, given, ran int32, c *hlo.Computation, depth int) (err error) {
	i := f.inst[node]
	if given < 0 {
		return wrong(i, "expected the start or an update as its operand")
	}
	before := i.Operands[0].Shape
	if c != nil && ran < 0 && before.At(0) != nil {
		if c.Root == nil || len(before.Elements[0].Elements) != len(c.Parameters()) {
			return wrong(i, "the operands of %s are not all given", c.Name)
		}
		if ran, err = f.walkAsync(fr, node, given+1, before.Elements[0], c, depth); err != nil {
			return err
		}
	}
	if ran < 0 {
		return f.leaves(fr, node, 1)
	}
	if f.frames[ran].done < 0 {
		f.frames[ran].done = node
	}
	if err := f.forwardLeaves(node, 0, i.Shape, f.root(ran), c.Root.Shape); err != nil {
		return err
	}
	return f.defineRest(fr, node)
}

// walkAsync walks what an asynchronous operation runs. Its operands are the
// elements of the tuple at position p.
func (f *flow) walkAsync(fr, node, p int32, operands *hlo.Shape, c *hlo.Computation, depth int) (int32, error) {
	args := make([]int32, len(operands.Elements))
	params := c.Parameters()
	for k, s := range operands.Elements {
		if params[k] == nil || !same(params[k].Shape, s) {
			return 0, wrong(f.inst[node], "operand %d does not fit parameter %d of %s", k, k, c.Name)
		}
		args[k] = p + int32(f.places.element(operands, k))
	}
	from := len(f.frames)
	g, err := f.enter(c, args, depth+1)
	if err != nil {
		return 0, err
	}
	for k := from; k < len(f.frames); k++ {
		if f.frames[k].outer < 0 {
			f.frames[k].outer, f.frames[k].async = fr, g
		}
	}
	return g, nil
}
