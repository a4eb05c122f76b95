package unstack

// What the backward body can compute of the forward body's values.

import (
	"slices"

	"gpumem/xla/internal/hlo"
)

// Key names a stack in the module and its clones.
func (p *Pair) Key(s *Stack) string {
	return p.f.body.Name + "/" + p.f.body.Root.Operands[s.Element].Name
}

// Needs returns the instructions of the forward body that the backward body runs again if some
// stacks are dropped, in their order; ok is false if it cannot compute them. With carry, what
// each round hands to the next may be stacked up for it: more is what such stacks take, in bytes.
func (p *Pair) Needs(drop []*Stack, carry bool) (list []*hlo.Instruction, more uint64, ok bool) {
	n := newNeeds(p, drop, carry)
	for _, s := range drop {
		if !n.needStack(s) {
			return nil, 0, false
		}
	}

	for _, i := range p.f.body.Instructions {
		if n.seen[i] && !n.isFree(i) {
			list = append(list, i)
		}
	}

	for _, s := range n.carry {
		more += s.Bytes
	}
	return list, more, true
}

// needs is one look for what is needed.
type needs struct {
	*Pair
	drop     []*Stack
	mayCarry bool
	carry    map[int]*Stack            // of Pair.carried
	seen     map[*hlo.Instruction]bool // what can be computed
}

func newNeeds(p *Pair, drop []*Stack, carry bool) *needs {
	return &needs{p, drop, carry, map[int]*Stack{}, map[*hlo.Instruction]bool{}}
}

// leaf returns the stack that has a value of the forward body and is kept, nil if none.
func (n *needs) leaf(v *hlo.Instruction) *Stack {
	for _, s := range n.leaves[v] {
		if !slices.Contains(n.drop, s) {
			return s
		}
	}
	return n.carry[n.f.element(v)]
}

// isFree reports whether what the backward body reads instead costs no more than a slice.
func (n *needs) isFree(v *hlo.Instruction) bool {
	return n.leaf(through(v)) != nil || through(v) != v || n.f.element(v) >= 0 || v.Opcode == hlo.Constant
}

// needStack reports whether the backward body can have what a stack has.
func (n *needs) needStack(s *Stack) bool {
	if s.inner == nil {
		return n.needValue(s.value)
	}

	for _, x := range needsOf(s.inner) {
		switch {
		case x.Opcode == hlo.Parameter:
			if !n.needValue(s.fusion.Operands[x.Parameter]) {
				return false
			}
		case x.Opcode != hlo.Constant && !n.mayRepeat(x):
			return false
		}
	}

	n.seen[s.fusion] = true
	return true
}

// needsOf returns an instruction and all that it needs, in the order of their computation.
func needsOf(i *hlo.Instruction) (list []*hlo.Instruction) {
	needed := map[*hlo.Instruction]bool{i: true}
	all := i.Parent.Instructions
	for agenda := []*hlo.Instruction{i}; len(agenda) > 0; {
		x := agenda[len(agenda)-1]
		agenda = agenda[:len(agenda)-1]
		for _, o := range x.Operands {
			if !needed[o] {
				needed[o] = true
				agenda = append(agenda, o)
			}
		}
	}

	for _, x := range all {
		if needed[x] {
			list = append(list, x)
		}
	}
	return list
}

// needValue reports whether the backward body can have a value of the forward body.
func (n *needs) needValue(v *hlo.Instruction) bool {
	v = through(v)
	if n.seen[v] || n.leaf(v) != nil {
		return true
	}
	if k := n.f.element(v); k >= 0 {
		if s := n.carried[k]; s != nil && n.mayCarry {
			n.carry[k] = s
			return true
		}
		return k == n.f.counter || n.f.invariant(k) && !n.b.mayOverwrite(n.f.init.Operands[k])
	}

	if k, _, ok := n.f.sliceOfInvariant(v); ok {
		if n.b.mayOverwrite(n.f.init.Operands[k]) {
			return false
		}
	} else {
		if !n.mayRepeat(v) {
			return false
		}
		for _, o := range v.Operands {
			if !n.needValue(o) {
				return false
			}
		}
	}

	n.seen[v] = true
	return true
}

// mayOverwrite reports whether the loop's state begins with a value that a round may overwrite.
func (l *loop) mayOverwrite(v *hlo.Instruction) bool {
	for n, o := range l.init.Operands {
		if seen(o) == seen(v) && !l.invariant(n) {
			return true
		}
	}
	return false
}

// mayRepeat reports whether an instruction may run again, if it can have its operands.
func (p *Pair) mayRepeat(i *hlo.Instruction) bool {
	switch i.Opcode {
	case hlo.Constant, hlo.GetTupleElement, hlo.Bitcast, hlo.Copy:
		return true
	case hlo.CustomCall, hlo.Call, hlo.TupleOp, hlo.OptBarrier, hlo.Parameter:
		return false
	}

	if _, aliased := i.Attribute("output_to_operand_aliasing"); aliased || !p.effects.Recomputable(i) {
		return false
	}
	if !isPure(i.Opcode) {
		return false
	}

	for _, c := range i.Called() {
		if slices.ContainsFunc(c.Instructions, func(x *hlo.Instruction) bool {
			return !isPure(x.Opcode) || x.Opcode == hlo.Fusion || x.Opcode == hlo.Call
		}) {
			return false
		}
	}

	return true
}

// isPure reports whether an operation does the same each time, whatever other devices do.
func isPure(o hlo.Opcode) bool {
	switch o {
	case hlo.AllReduce, hlo.AllGather, hlo.ReduceScatter, hlo.AllToAll, "ragged-all-to-all", hlo.CollectivePermute, hlo.CollectiveBroadcast,
		hlo.RngBitGenerator, hlo.While, hlo.Conditional, hlo.CustomCall:
		return false
	}
	return !o.IsAsyncStart() && !o.IsAsyncUpdate() && !o.IsAsyncDone()
}

// sliceOfInvariant returns the element of the state and the slot if an instruction of the body
// is no more than a slot of an element that stays as it is.
func (l *loop) sliceOfInvariant(v *hlo.Instruction) (element int, at affine, ok bool) {
	i := v
	if i.Opcode.IsAsyncDone() && len(i.Operands) == 1 && wrapsFusion(i.Operands[0]) {
		i = i.Operands[0]
	}

	c := fused(i)
	if c == nil || !v.Shape.IsArray() {
		return 0, at, false
	}

	d := sliceOf(c)
	if d == nil || d.Operands[0].Parameter >= len(i.Operands) {
		return 0, at, false
	}

	element = l.element(i.Operands[d.Operands[0].Parameter])
	if element < 0 || !l.invariant(element) {
		return 0, at, false
	}
	if e := l.while.Shape.Elements[element]; !isSlice(d.Shape, e) || e.Dims[0] != l.trips {
		return 0, at, false
	}

	at, ok = l.slot(d.Operands[1:], i, c)
	return element, at, ok
}
