package alias

// Dataflow rules for each opcode: the values it defines and those it forwards. See
// alias.go for an overview.
//
// A rule writes the values that it forwards to the positions of the result. What it leaves
// is defined afterwards, in preorder. For init of the package comment tuple writes the
// values 1 and 0 to the second and third position; the first one is left, and gets a new
// value, 2. get-tuple-element writes its only position, so that nothing is left to define.
//
// The models have the rules of forwardValues in common, and differ in:
//
//	opcode                       buffer assignment             rematerialization pass
//	parameter                    what the call passes          defined
//	call                         walked                        defined
//	while, conditional           walked, one of several        defined
//	fusion                       defined                       operands that it aliases
//	all-gather-start,            operands                      defined
//	collective-permute-start
//	their ends                   element 1, its arrays         defined
//	all-reduce-done              operand, or its element 1     defined
//	async-start and others       operands, their arrays;       operands with their tables,
//	that wrap an operation       what it calls is walked       and those that it aliases
//	their updates and ends       the arrays of the operands    all of the operands and
//	                             and the result                the result
//
// What a result that is defined shares with an operand all the same (in place, a loop's
// state) is found by Buffers in buffer assignment, and by package memory in the pass.

import (
	"slices"

	"gpumem/xla/internal/hlo"
)

// applyRule gives each part of a node's result a value: what the node forwards, and new ones for
// the rest. Before that, it walks what the node calls.
func (f *Flow) applyRule(n Node) error {
	if err := f.forwardValues(n); err != nil {
		return err
	}
	if !slices.Contains(f.Parts(n), -1) {
		return nil
	}
	sub := int32(-1)
	return eachPart(f.inst[n].Shape, nil, func(s *hlo.Shape, index []int) error {
		if sub++; f.val[f.first[n]+sub] >= 0 {
			return nil
		}
		_, err := f.defineValue(n, sub, index, s)
		return err
	})
}

// forwardValues has the rules that both models share.
func (f *Flow) forwardValues(n Node) error {
	switch f.inst[n].Opcode {
	case hlo.Bitcast, hlo.AddDependency, hlo.Domain, hlo.OptBarrier:
		return f.forwardWhole(n)
	case hlo.GetTupleElement:
		return f.element(n)
	case hlo.TupleOp:
		return f.forwardTuple(n)
	case hlo.Copy: // of a tuple it copies the table alone
		err := f.forwardWhole(n)
		f.Parts(n)[0] = -1
		return err
	case hlo.CopyStart:
		return f.forwardPart(n, nil, 1)
	case hlo.CopyDone:
		return f.forwardPart(n, []int{0})
	case hlo.Send:
		return f.forwardPart(n, nil, 0)
	case hlo.RecvDone:
		return f.forwardPart(n, []int{0}, 0)
	}
	if f.Module == nil {
		return f.inComputation(n)
	}
	return f.inModule(n)
}

// inModule has the rules of buffer assignment alone.
func (f *Flow) inModule(n Node) error {
	switch o := f.inst[n].Opcode; {
	case o == hlo.Parameter:
		return f.forwardParameter(n)
	case o == hlo.Call:
		return f.walkCall(n)
	case o == hlo.While:
		return f.walkLoop(n)
	case o == hlo.Conditional:
		return f.walkBranches(n)
	case o == "all-gather-start" || o == "collective-permute-start":
		return f.forwardInputs(n)
	case o == "all-gather-done" || o == "collective-permute-done":
		return f.forwardLeavesOf(n, 1)
	case o == "all-reduce-start" && withOperands(f.inst[n].Shape):
		return f.forwardInputs(n)
	case o == "all-reduce-done" && len(f.inst[n].Operands) > 0 && withOperands(f.inst[n].Operands[0].Shape):
		return f.forwardLeavesOf(n, 1)
	case o == "all-reduce-done":
		return f.forwardWhole(n)
	case o == "all-reduce-start" || o == hlo.SendDone:
		return nil
	case o.IsAsyncStart() || o.IsAsyncUpdate() || o.IsAsyncDone():
		return f.walkAsyncChain(n)
	}
	return nil
}

// inComputation has the rules of the rematerialization pass alone. Calls, whiles and
// conditionals define all that they return, and so do the collectives of inModule. Fusions
// and starts of asynchronous operations forward the operands in whose memory they are declared
// to be; the aliasing of custom calls does not count, as in XLA.
func (f *Flow) inComputation(n Node) error {
	i := f.inst[n]
	switch o := i.Opcode; {
	case o == hlo.Fusion:
		return f.forwardDeclared(n)
	case o.WrapsStart():
		if err := f.forwardDeclared(n); err != nil {
			return err
		}
		return f.forwardOperands(n, 0, i.Operands, f.forward)
	case o.IsAsyncUpdate():
		if err := f.forwardPart(n, []int{0}, 0); err != nil {
			return err
		}
		return f.forwardPart(n, []int{1}, 1)
	case o.WrapsEnd():
		return f.forwardPart(n, []int{1})
	}
	return nil
}

// defineValue makes a value at a part of a node's result. The index is copied, as eachPart reuses
// it.
func (f *Flow) defineValue(n Node, sub int32, index []int, shape *hlo.Shape) (int32, error) {
	if len(f.Values) >= maxValues {
		return 0, wrong(f.inst[n], "%v", errTooManyParts)
	}
	id := len(f.Values)
	v := Value{ID: id, Position: Position{Instruction: f.inst[n]}, Shape: shape, Node: n}
	if len(index) > 0 {
		v.Index = append([]int(nil), index...)
	}
	f.Values = append(f.Values, v)
	f.val[f.first[n]+sub] = int32(id)
	return int32(id), nil
}

// mergeParts makes each part of a node's result one of the values at the positions in. It
// forwards the value if they turn out to be the same: see resolvePhis. Until then it is a value
// of the node, so that users can be walked before that is known.
func (f *Flow) mergeParts(n Node, in ...int32) error {
	sub := int32(-1)
	return eachPart(f.inst[n].Shape, nil, func(s *hlo.Shape, index []int) error {
		sub++
		id, err := f.defineValue(n, sub, index, s)
		if err != nil {
			return err
		}
		p := phi{value: id, in: make([]int32, len(in))}
		for k, at := range in {
			p.in[k] = f.val[at+sub]
		}
		f.phis = append(f.phis, p)
		return nil
	})
}

// forward gives the parts of a node's result from position to on, of shape s, the values
// from position from on, of shape t. The shapes need the same parts; types and dimensions may
// differ, as a bitcast's do.
func (f *Flow) forward(n Node, to int32, s *hlo.Shape, from int32, t *hlo.Shape) error {
	if s == nil || t == nil || !sameParts(s, t) {
		return wrong(f.inst[n], "its shape has other parts than what it forwards")
	}
	k := countParts(s)
	copy(f.val[to:to+k], f.val[from:from+k])
	return nil
}

// forwardLeaves is forward for what is no tuple. The tables of tuples are left to be defined:
// an asynchronous operation makes its own.
func (f *Flow) forwardLeaves(n Node, to int32, s *hlo.Shape, from int32, t *hlo.Shape) error {
	if err := f.forward(n, to, s, from, t); err != nil {
		return err
	}
	return eachPart(s, nil, func(s *hlo.Shape, _ []int) error {
		if s.Type == hlo.Tuple {
			f.val[to] = -1
		}
		to++
		return nil
	})
}

// forwardParameter forwards what the caller passes. Without arguments, in the entry and in loops, it
// leaves all its parts to be defined.
func (f *Flow) forwardParameter(n Node) error {
	i, args := f.inst[n], f.Walks[f.walk[n]].args
	if args == nil {
		return nil
	}
	if i.Parameter < 0 || i.Parameter >= len(args) {
		return wrong(i, "number %d of a call with %d arguments", i.Parameter, len(args))
	}
	// The caller has checked the shapes.
	copy(f.Parts(n), f.val[args[i.Parameter]:])
	return nil
}

// forwardWhole forwards all of operand 0, under the shape of the result.
func (f *Flow) forwardWhole(n Node) error {
	o, err := f.operand(n, 0)
	if err != nil {
		return err
	}
	return f.forward(n, f.first[n], f.inst[n].Shape, f.first[o], f.inst[o].Shape)
}

// element forwards an element of a tuple, with all of its parts.
func (f *Flow) element(n Node) error {
	i := f.inst[n]
	o, err := f.operand(n, 0)
	if err != nil {
		return err
	}
	k, err := i.TupleIndex()
	if err != nil {
		return err
	}
	s := f.inst[o].Shape
	if k >= len(s.Elements) {
		return wrong(i, "index=%d of a tuple of %d", k, len(s.Elements))
	}
	return f.forward(n, f.first[n], i.Shape, f.first[o]+int32(f.places.element(s, k)), s.Elements[k])
}

// forwardTuple forwards the operands, each as one element. The table is left to be defined.
func (f *Flow) forwardTuple(n Node) error {
	i := f.inst[n]
	if len(i.Shape.Elements) != len(i.Operands) {
		return wrong(i, "%d operands for %d elements", len(i.Operands), len(i.Shape.Elements))
	}
	to := f.first[n] + 1
	for k, x := range i.Operands {
		o, _ := f.Node(f.walk[n], x)
		if err := f.forward(n, to, i.Shape.Elements[k], f.first[o], x.Shape); err != nil {
			return err
		}
		to += int32(len(f.Parts(o)))
	}
	return nil
}

// forwardPart forwards the part of operand 0 at the index from as the part at the index to: of
// copy-start ((to, from, context)) the whole operand as element 1, of copy-done element 0 as
// the whole.
func (f *Flow) forwardPart(n Node, from []int, to ...int) error {
	o, err := f.operand(n, 0)
	if err != nil {
		return err
	}
	source, ok := f.position(o, from...)
	target, ok2 := f.position(n, to...)
	if !ok || !ok2 {
		return wrong(f.inst[n], "its result or its operand does not have the parts of such an operation")
	}
	return f.forward(n, target, f.inst[n].Shape.At(to...), source, f.inst[o].Shape.At(from...))
}

// A forwarder is forward or forwardLeaves.
type forwarder func(n Node, to int32, s *hlo.Shape, from int32, t *hlo.Shape) error

// forwardOperands forwards operands as the elements of the first element of a result, from number
// skip on: those of an asynchronous operation that came with its start are skipped.
func (f *Flow) forwardOperands(n Node, skip int, list []*hlo.Instruction, forward forwarder) error {
	i := f.inst[n]
	for k, x := range list {
		o, _ := f.Node(f.walk[n], x)
		to, ok := f.position(n, 0, skip+k)
		if !ok {
			return wrong(i, "its result does not begin with its operands")
		}
		if err := forward(n, to, i.Shape.At(0, skip+k), f.first[o], x.Shape); err != nil {
			return err
		}
	}
	return nil
}

// forwardInputs are the starts of collectives whose result begins with their operands:
// (operand, result, ...), or a tuple of them for several. The collective-permute with four
// operands, which writes into its second, forwards its first alone.
func (f *Flow) forwardInputs(n Node) error {
	i := f.inst[n]
	if len(i.Operands) == 1 && !withOperands(i.Shape) || i.Opcode == "collective-permute-start" && len(i.Operands) == 4 {
		return f.forwardPart(n, nil, 0)
	}
	return f.forwardOperands(n, 0, i.Operands, f.forward)
}

// withOperands reports whether the result of a collective's start is a tuple that begins with
// a tuple of the operands, as XLA writes it since 2026 for one operand, too.
func withOperands(s *hlo.Shape) bool { return len(s.Elements) > 1 && len(s.Elements[0].Elements) > 0 }

// forwardLeavesOf forwards element k of operand 0. It defines tables anew: of all-gather-done element 1
// of the start's result, (operands, results).
func (f *Flow) forwardLeavesOf(n Node, k int) error {
	o, err := f.operand(n, 0)
	if err != nil {
		return err
	}
	from, ok := f.position(o, k)
	if !ok {
		return wrong(f.inst[n], "its operand has no element %d", k)
	}
	return f.forwardLeaves(n, f.first[n], f.inst[n].Shape, from, f.inst[o].Shape.Elements[k])
}

// forwardDeclared forwards what output_to_operand_aliasing names. In this model a result that lies in
// an operand's memory is the operand's value, so that it takes nothing.
func (f *Flow) forwardDeclared(n Node) error {
	i := f.inst[n]
	list, err := outputAliases(i)
	if err != nil {
		return err
	}
	for k := len(list) - 1; k >= 0; k-- { // the first counts, so it is written last
		x := list[k]
		if x.operand >= len(i.Operands) && i.Opcode != hlo.Fusion {
			continue
		}
		o, err := f.operand(n, x.operand)
		if err != nil {
			return err
		}
		from, ok := f.position(o, x.from...)
		to, ok2 := f.position(n, x.to...)
		if !ok || !ok2 {
			return noSuchPart(i, x)
		}
		f.val[to] = f.val[from]
	}
	return nil
}

// walkCalled walks a computation that is passed the given operands. Its parameters forward them,
// so that a value is the same inside and outside of the call.
func (f *Flow) walkCalled(n Node, c *hlo.Computation, operands []*hlo.Instruction) (int32, error) {
	i := f.inst[n]
	params := c.Parameters()
	if len(params) != len(operands) {
		return 0, wrong(i, "%s has %d parameters for %d operands", c.Name, len(params), len(operands))
	}
	args := make([]int32, len(operands))
	for k, x := range operands {
		if params[k] == nil || !sameParts(params[k].Shape, x.Shape) {
			return 0, wrong(i, "operand %s does not fit parameter %d of %s", x.Name, k, c.Name)
		}
		o, _ := f.Node(f.walk[n], x)
		args[k] = f.first[o]
	}
	return f.walkInner(n, c, args)
}

// walkInner walks a computation that a node calls, one level deeper.
func (f *Flow) walkInner(n Node, c *hlo.Computation, args []int32) (int32, error) {
	w, err := f.enterComputation(c, args, f.Walks[f.walk[n]].depth+1)
	if err == nil {
		f.Walks[w].Caller = n
	}
	return w, err
}

// walkCall walks the callee and forwards what it returns.
func (f *Flow) walkCall(n Node) error {
	i := f.inst[n]
	c := i.Call("to_apply")
	if c == nil || c.Root == nil || !sameParts(c.Root.Shape, i.Shape) {
		return wrong(i, "calls nothing, or what it calls returns something else")
	}
	w, err := f.walkCalled(n, c, i.Operands)
	if err != nil {
		return err
	}
	return f.forward(n, f.first[n], i.Shape, f.first[f.Root(w)], c.Root.Shape)
}

// walkLoop walks the condition and then the body, once each, as if the loop had one round. What
// the body returns comes back as the parameter of both: so these parameters, and the parts
// of the result, are phis of what the loop begins with and what the body returns.
func (f *Flow) walkLoop(n Node) error {
	i := f.inst[n]
	cond, body := i.Call("condition"), i.Call("body")
	o, err := f.operand(n, 0)
	if err != nil {
		return err
	}
	if cond == nil || body == nil || body.Root == nil || !sameParts(i.Operands[0].Shape, i.Shape) || !sameParts(body.Root.Shape, i.Shape) {
		return wrong(i, "expected a condition, and a body that returns the shape of the operand")
	}
	var walks [2]int32
	for k, c := range []*hlo.Computation{cond, body} {
		params := c.Parameters()
		if len(params) != 1 || params[0] == nil || !sameParts(params[0].Shape, i.Shape) {
			return wrong(i, "%s: expected one parameter, of the shape of the operand", c.Name)
		}
		// What the body returns comes back as its parameter: known only later.
		if walks[k], err = f.walkInner(n, c, nil); err != nil {
			return err
		}
	}
	f.loops[n] = walks[1]
	// All five places of the state are bound to each other, by way of the result.
	result, init, root := f.first[n], f.first[o], f.first[f.Root(walks[1])]
	count := int32(len(f.Parts(n)))
	f.bindTogether(result, count, init, root)
	for k, c := range []*hlo.Computation{cond, body} {
		p, _ := f.Node(walks[k], c.Parameters()[0])
		for sub, v := range f.Parts(p) {
			f.phis = append(f.phis, phi{v, []int32{f.val[root+int32(sub)], f.val[init+int32(sub)]}})
		}
		f.bindTogether(result, count, f.first[p])
	}
	return f.mergeParts(n, root, init)
}

// walkBranches walks all branches, one after the other, each with its operand. A part of the
// result is one of those that the branches return.
func (f *Flow) walkBranches(n Node) error {
	i := f.inst[n]
	branches := i.Branches()
	if len(branches) == 0 || len(i.Operands) != len(branches)+1 {
		return wrong(i, "%d branches and %d operands: expected one operand more", len(branches), len(i.Operands))
	}
	roots := make([]int32, len(branches))
	for k, c := range branches {
		if c.Root == nil || !sameParts(c.Root.Shape, i.Shape) {
			return wrong(i, "branch %s returns something else", c.Name)
		}
		w, err := f.walkCalled(n, c, i.Operands[k+1:k+2])
		if err != nil {
			return err
		}
		roots[k] = f.first[f.Root(w)]
	}
	f.bindTogether(f.first[n], int32(len(f.Parts(n))), roots...)
	return f.mergeParts(n, roots...)
}

// bindTogether notes that what is at n positions from p on has to lie where the values at n
// positions from each of the others do: the state of a loop in all of its places, and what the
// branches of a conditional return with its result.
func (f *Flow) bindTogether(p, n int32, others ...int32) {
	for _, q := range others {
		f.bound = append(f.bound, bound{p, q, n})
	}
}
