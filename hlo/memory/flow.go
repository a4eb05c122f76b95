package memory

// Dataflow rules for each opcode: the values it defines and those it forwards.

import (
	"strings"

	"gpumem/hlo"
)

// step walks one instruction: the computations that it calls, then itself.
func (f *flow) step(fr, node int32, args []int32, depth int) error {
	i := f.inst[node]
	switch o := i.Opcode; {
	case o == hlo.Parameter:
		return f.parameter(fr, node, args)
	case o == hlo.Bitcast || o == hlo.AddDependency || o == hlo.Domain || o == hlo.OptBarrier || o == "all-reduce-done":
		return f.whole(fr, node)
	case o == hlo.GetTupleElement:
		return f.element(fr, node)
	case o == hlo.TupleOp:
		return f.tuple(fr, node)
	case o == hlo.Copy:
		return f.copied(fr, node)
	case o == hlo.Call:
		return f.call(fr, node, depth)
	case o == hlo.While:
		return f.while(fr, node, depth)
	case o == hlo.Conditional:
		return f.conditional(fr, node, depth)
	case o == hlo.CopyStart:
		return f.part(fr, node, nil, 1)
	case o == hlo.CopyDone:
		return f.part(fr, node, []int{0})
	case o == hlo.Send:
		return f.part(fr, node, nil, 0)
	case o == hlo.RecvDone:
		return f.part(fr, node, []int{0}, 0)
	case o == "all-gather-start" || o == "collective-permute-start":
		return f.inputs(fr, node)
	case o == "all-gather-done" || o == "collective-permute-done":
		return f.leaves(fr, node, 1)
	case o == "all-reduce-start" || o == hlo.SendDone:
		return f.defineRest(fr, node)
	case o.IsAsyncStart() || o.IsAsyncDone() || strings.HasSuffix(string(o), "-update"):
		return f.async(fr, node, depth)
	}
	return f.defineRest(fr, node)
}

func (f *flow) parameter(fr, node int32, args []int32) error {
	i := f.inst[node]
	if args == nil {
		return f.defineRest(fr, node)
	}
	if i.Parameter < 0 || i.Parameter >= len(args) {
		return wrong(i, "number %d, but the call hands over %d", i.Parameter, len(args))
	}
	// The caller has checked the shapes.
	at := f.first[node]
	copy(f.val[at:at+f.width[i.ID]], f.val[args[i.Parameter]:])
	return nil
}

// whole hands on all of operand 0.
func (f *flow) whole(fr, node int32) error {
	p, err := f.from(fr, node, 0)
	if err != nil {
		return err
	}
	i := f.inst[node]
	return f.forward(node, 0, i.Shape, p, i.Operands[0].Shape)
}

func (f *flow) element(fr, node int32) error {
	i := f.inst[node]
	p, err := f.from(fr, node, 0)
	if err != nil {
		return err
	}
	s := i.Operands[0].Shape
	k, err := i.TupleIndex()
	if err != nil {
		return err
	}
	if k >= len(s.Elements) {
		return wrong(i, "index=%d of a tuple of %d", k, len(s.Elements))
	}
	return f.forward(node, 0, i.Shape, p+int32(f.places.element(s, k)), s.Elements[k])
}

func (f *flow) tuple(fr, node int32) error {
	i := f.inst[node]
	if len(i.Shape.Elements) != len(i.Operands) {
		return wrong(i, "%d operands for %d elements", len(i.Operands), len(i.Shape.Elements))
	}
	sub := int32(1)
	for k, o := range i.Operands {
		p, err := f.from(fr, node, k)
		if err != nil {
			return err
		}
		if err := f.forward(node, sub, i.Shape.Elements[k], p, o.Shape); err != nil {
			return err
		}
		sub += f.width[o.ID]
	}
	_, err := f.define(fr, node, 0, nil, i.Shape)
	return err
}

// copied is a copy: of a tuple it copies the table alone.
func (f *flow) copied(fr, node int32) error {
	if err := f.whole(fr, node); err != nil {
		return err
	}
	_, err := f.define(fr, node, 0, nil, f.inst[node].Shape)
	return err
}

// part hands the part of operand 0 at the index from on to the part at the
// index to, and makes the rest.
func (f *flow) part(fr, node int32, from []int, to ...int) error {
	i := f.inst[node]
	p, err := f.from(fr, node, 0)
	if err != nil {
		return err
	}
	source, ok := f.partOf(i.Operands[0].Shape, from...)
	target, ok2 := f.partOf(i.Shape, to...)
	if !ok || !ok2 {
		return wrong(i, "its result, or that of its operand, has not the parts of such an operation")
	}
	if err := f.forward(node, target, i.Shape.At(to...), p+source, i.Operands[0].Shape.At(from...)); err != nil {
		return err
	}
	return f.defineRest(fr, node)
}

// inputs are the starts of collectives whose result begins with their operands:
// (operand, result, ...), or a tuple of them for several. The collective-permute
// with four operands, which writes into its second, hands on its first alone.
func (f *flow) inputs(fr, node int32) error {
	i := f.inst[node]
	if len(i.Operands) == 1 || i.Opcode == "collective-permute-start" && len(i.Operands) == 4 {
		return f.part(fr, node, nil, 0)
	}
	for k, o := range i.Operands {
		p, err := f.from(fr, node, k)
		if err != nil {
			return err
		}
		target, ok := f.partOf(i.Shape, 0, k)
		if !ok {
			return wrong(i, "its result does not begin with its operands")
		}
		if err := f.forward(node, target, i.Shape.At(0, k), p, o.Shape); err != nil {
			return err
		}
	}
	return f.defineRest(fr, node)
}

// leaves hands on element k of operand 0, whose tables are made anew.
func (f *flow) leaves(fr, node int32, k int) error {
	i := f.inst[node]
	p, err := f.from(fr, node, 0)
	if err != nil {
		return err
	}
	source, ok := f.partOf(i.Operands[0].Shape, k)
	if !ok {
		return wrong(i, "its operand has no element %d", k)
	}
	if err := f.forwardLeaves(node, 0, i.Shape, p+source, i.Operands[0].Shape.Elements[k]); err != nil {
		return err
	}
	return f.defineRest(fr, node)
}

// forwardLeaves is forward for what is no tuple.
func (f *flow) forwardLeaves(node, sub int32, to *hlo.Shape, p int32, shape *hlo.Shape) error {
	if err := f.forward(node, sub, to, p, shape); err != nil {
		return err
	}
	at := f.first[node] + sub
	return walk(to, nil, func(s *hlo.Shape, _ []int) error {
		if s.Type == hlo.Tuple {
			f.val[at] = -1
		}
		at++
		return nil
	})
}

// called walks a computation that is given the operands from number skip on.
func (f *flow) called(fr, node int32, c *hlo.Computation, operands []*hlo.Instruction, depth int) (int32, error) {
	i := f.inst[node]
	params := c.Parameters()
	if len(params) != len(operands) {
		return 0, wrong(i, "%s has %d parameters for %d operands", c.Name, len(params), len(operands))
	}
	args := make([]int32, len(operands))
	for k, o := range operands {
		if params[k] == nil || !same(params[k].Shape, o.Shape) {
			return 0, wrong(i, "operand %s does not fit parameter %d of %s", o.Name, k, c.Name)
		}
		n, _ := f.node(fr, o)
		args[k] = f.first[n]
	}
	return f.enter(c, args, depth+1)
}

func (f *flow) call(fr, node int32, depth int) error {
	i := f.inst[node]
	c := i.Call("to_apply")
	if c == nil || c.Root == nil || !same(c.Root.Shape, i.Shape) {
		return wrong(i, "calls nothing, or what it calls returns something else")
	}
	g, err := f.called(fr, node, c, i.Operands, depth)
	if err != nil {
		return err
	}
	return f.forward(node, 0, i.Shape, f.root(g), c.Root.Shape)
}

func (f *flow) while(fr, node int32, depth int) error {
	i := f.inst[node]
	cond, body := i.Call("condition"), i.Call("body")
	init, err := f.from(fr, node, 0)
	if err != nil {
		return err
	}
	if cond == nil || body == nil || body.Root == nil || !same(i.Operands[0].Shape, i.Shape) || !same(body.Root.Shape, i.Shape) {
		return wrong(i, "expected a condition, and a body that returns the shape of the operand")
	}
	var frames [2]int32
	for k, c := range []*hlo.Computation{cond, body} {
		params := c.Parameters()
		if len(params) != 1 || params[0] == nil || !same(params[0].Shape, i.Shape) {
			return wrong(i, "%s: expected one parameter, of the shape of the operand", c.Name)
		}
		// What the body returns comes back as its parameter: known only later.
		if frames[k], err = f.enter(c, nil, depth+1); err != nil {
			return err
		}
	}
	root := f.root(frames[1])
	f.loops[node] = frames[1]
	n := f.width[i.ID]
	f.bind(f.first[node], n, init, root)
	for k, c := range []*hlo.Computation{cond, body} {
		p, _ := f.node(frames[k], c.Parameters()[0])
		for sub := range n {
			f.phis = append(f.phis, phi{f.val[f.first[p]+sub], []int32{f.val[root+sub], f.val[init+sub]}})
		}
		f.bind(f.first[node], n, f.first[p])
	}
	return f.merge(fr, node, root, init)
}

func (f *flow) conditional(fr, node int32, depth int) error {
	i := f.inst[node]
	branches := i.Branches()
	if len(branches) == 0 || len(i.Operands) != len(branches)+1 {
		return wrong(i, "%d branches and %d operands: expected one operand more", len(branches), len(i.Operands))
	}
	roots := make([]int32, len(branches))
	for k, c := range branches {
		if c.Root == nil || !same(c.Root.Shape, i.Shape) {
			return wrong(i, "branch %s returns something else", c.Name)
		}
		g, err := f.called(fr, node, c, i.Operands[k+1:k+2], depth)
		if err != nil {
			return err
		}
		roots[k] = f.root(g)
	}
	f.bind(f.first[node], f.width[i.ID], roots...)
	return f.merge(fr, node, roots...)
}

// bind notes that what is at n positions from p on has to lie where the same
// number of positions from each of the others do.
func (f *flow) bind(p, n int32, others ...int32) {
	for _, q := range others {
		f.bound = append(f.bound, bound{p, q, n})
	}
}

// A bound ties n positions from p on to n from q on.
type bound struct{ p, q, n int32 }
