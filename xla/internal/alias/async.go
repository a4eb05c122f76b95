package alias

// Asynchronous operations that run a computation, in buffer assignment's model.
//
//	s = ((f32[4]), f32[4], u32[]) call-start(p), to_apply=f
//	u = ((f32[4]), f32[4], u32[]) call-update(s)
//	d = f32[4] call-done(u)
//
// s has five parts: its table, the table of the operands, the operand, the result and the
// context. The operand is p's value, the result what f returns, and the tables and the
// context are values of s. f is walked once, at s, the first of the three that has all
// operands and the shape of the result. u forwards the operand and the result. d is the
// value that f returns. All that f computes lives from the beginning of the caller to d,
// since f runs at some time in between: Outer, Async and Done of its walk say so.

import "gpumem/xla/internal/hlo"

// An asyncRun is the computation of an asynchronous operation, and the walk through it, -1
// if it is not walked yet.
type asyncRun struct {
	walk int32
	c    *hlo.Computation
}

// walkAsyncChain is a generic asynchronous operation: a start ((operands), result, context),
// updates, and a done that returns the result. The computation is walked at the first of
// them that has all operands and the result. An update may add operands to those of the start,
// so that the start does not have all of them.
func (f *Flow) walkAsyncChain(n Node) error {
	i := f.inst[n]
	run := asyncRun{walk: -1}
	// Starts of other names run an operation, not a computation: all-gather-start and the like,
	// whose rules are in rules.go, and generic ones such as slice-start, which come by here.
	switch i.Opcode {
	case hlo.AsyncStart:
		run.c = i.Call("calls")
	case "call-start":
		run.c = i.Call("to_apply")
	}
	// The operation before this one in the chain, -1 if it is the start. What it knows about the
	// computation and its walk goes on with the chain.
	before := Node(-1)
	if len(i.Operands) > 0 && !i.Opcode.IsAsyncStart() {
		before, _ = f.Node(f.walk[n], i.Operands[0])
		if earlier, ok := f.asyncs[before]; ok {
			run = earlier
		}
	}
	if i.Opcode.IsAsyncDone() {
		return f.asyncDone(n, before, run)
	}
	if len(i.Shape.Elements) < 2 {
		return wrong(i, "expected a result of the shape ((operands), result, context)")
	}
	fresh, old := i.Operands, 0
	if before >= 0 {
		s := i.Operands[0].Shape
		fresh, old = i.Operands[1:], len(s.At(0).Elements)
		for k := range old {
			from, _ := f.position(before, 0, k)
			to, ok := f.position(n, 0, k)
			if !ok {
				return wrong(i, "its result does not have the operands of the start")
			}
			if err := f.forwardLeaves(n, to, i.Shape.At(0, k), from, s.At(0, k)); err != nil {
				return err
			}
		}
	}
	if err := f.forwardOperands(n, old, fresh, f.forwardLeaves); err != nil {
		return err
	}
	operands, result := i.Shape.Elements[0], i.Shape.Elements[1]
	if c := run.c; c != nil && run.walk < 0 && c.Root != nil && len(operands.Elements) == len(c.Parameters()) && sameParts(c.Root.Shape, result) {
		if err := f.walkAsync(n, n, &run); err != nil {
			return err
		}
	}
	to, _ := f.position(n, 1)
	if run.walk >= 0 {
		if err := f.forwardLeaves(n, to, result, f.first[f.Root(run.walk)], run.c.Root.Shape); err != nil {
			return err
		}
	} else if before >= 0 && sameParts(i.Operands[0].Shape.At(1), result) {
		from, _ := f.position(before, 1)
		if err := f.forwardLeaves(n, to, result, from, i.Operands[0].Shape.At(1)); err != nil {
			return err
		}
	}
	f.asyncs[n] = run
	return nil
}

// asyncDone is the end of an asynchronous operation. If no node before it had all operands,
// the computation is walked here; an operation without a computation returns the result that
// its start or update has as element 1.
func (f *Flow) asyncDone(n, before Node, run asyncRun) error {
	i := f.inst[n]
	if before < 0 {
		return wrong(i, "expected the start or an update as its operand")
	}
	if operands := i.Operands[0].Shape.At(0); run.c != nil && run.walk < 0 && operands != nil {
		if run.c.Root == nil || len(operands.Elements) != len(run.c.Parameters()) {
			return wrong(i, "the operands of %s are not all given", run.c.Name)
		}
		if err := f.walkAsync(n, before, &run); err != nil {
			return err
		}
	}
	if run.walk < 0 {
		return f.forwardLeavesOf(n, 1)
	}
	if w := &f.Walks[run.walk]; w.Done < 0 {
		w.Done = n
	}
	return f.forwardLeaves(n, f.first[n], i.Shape, f.first[f.Root(run.walk)], run.c.Root.Shape)
}

// walkAsync walks what an asynchronous operation runs. Its arguments are the elements of
// the first element of the result of the node from. Walks of what it calls in turn belong to
// the same operation: they have no Outer yet, and get this one's.
func (f *Flow) walkAsync(n, from Node, run *asyncRun) (err error) {
	list := f.inst[from].Shape.Elements[0].Elements
	args := make([]int32, len(list))
	params := run.c.Parameters()
	for k, s := range list {
		if params[k] == nil || !sameParts(params[k].Shape, s) {
			return wrong(f.inst[n], "operand %d does not fit parameter %d of %s", k, k, run.c.Name)
		}
		args[k], _ = f.position(from, 0, k)
	}
	first := len(f.Walks)
	if run.walk, err = f.walkInner(n, run.c, args); err != nil {
		return err
	}
	for k := first; k < len(f.Walks); k++ {
		if w := &f.Walks[k]; w.Outer < 0 {
			w.Outer, w.Async = f.walk[n], run.walk
		}
	}
	return nil
}
