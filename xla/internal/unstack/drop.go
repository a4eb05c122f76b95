package unstack

// The change of the module.

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gpumem/xla/hlo"
)

// ErrCannot is the error of [Drop] for a stack that the backward loop cannot compute from what is
// kept. Any other is a fault.
var ErrCannot = errors.New("the backward loop cannot compute it")

// Drop drops the stacks with these keys from a module: they leave the state of both loops, and
// the backward body computes them again. With carry, what each round of the forward loop hands to
// the next is stacked up where that needs it. It returns how many instructions that body has more. The
// module is not usable after an error.
func Drop(m *hlo.Module, keys []string, carry bool) (added int, err error) {
	left := slices.Clone(keys)
	for len(left) > 0 {
		done := false
		for _, p := range Find(m) {
			var drop []*Stack
			for _, s := range p.Stacks {
				if n := slices.Index(left, p.Key(s)); n >= 0 {
					drop = append(drop, s)
					left = slices.Delete(left, n, n+1)
				}
			}
			if len(drop) == 0 {
				continue
			}
			n, err := p.drop(drop, carry)
			if err != nil {
				return 0, err
			}
			added += n
			done = true
			break // what was found is no longer so
		}
		if !done {
			return 0, fmt.Errorf("unstack: no stack %s", left[0])
		}
	}
	if _, err := hlo.RemoveDead(m); err != nil {
		return 0, err
	}
	return added, nil
}

// A writer adds to the backward body.
type writer struct {
	*needs
	m    *hlo.Module
	made map[*hlo.Instruction]*hlo.Instruction // by instruction of the forward body
	// fresh are the new instructions, operands first.
	fresh  []*hlo.Instruction
	states []*hlo.Instruction // what the backward loop's state has more
	gets   map[int]*hlo.Instruction
	round  *hlo.Instruction // the backward loop's
	number *hlo.Instruction // the forward loop's
	slices map[sliced]*hlo.Instruction
}

type sliced struct {
	element int
	at      affine
	shape   string
}

func (p *Pair) drop(drop []*Stack, carry bool) (added int, err error) {
	w := &writer{needs: newNeeds(p, drop, carry), m: p.Forward.Parent.Module, made: map[*hlo.Instruction]*hlo.Instruction{}, gets: map[int]*hlo.Instruction{}, slices: map[sliced]*hlo.Instruction{}}
	for _, s := range drop {
		if !w.stack(s) {
			return 0, fmt.Errorf("unstack: %s: %w", p.Key(s), ErrCannot)
		}
	}
	more := w.stackUp()
	for _, s := range drop {
		v := w.value(s)
		for _, r := range s.reads {
			w.replace(s, r, v)
		}
	}
	// What overwrites the counter waits for those that read it.
	if next := through(p.b.body.Root.Operands[p.b.counter]); w.round != nil && len(next.After) > 0 {
		for _, i := range w.fresh {
			if slices.Contains(i.Operands, w.round) {
				next.AddAfter(i)
			}
		}
	}
	w.place()
	var leaving []int
	for _, s := range drop {
		leaving = append(leaving, s.in...)
	}
	if err := p.b.resize(leaving, w.states, w.gets, nil); err != nil {
		return 0, err
	}
	leaving = nil
	for _, s := range drop {
		leaving = append(leaving, s.Element)
		for _, g := range gets(p.Forward, s.Element) {
			g.Parent.Remove(g)
		}
	}
	return len(w.fresh), p.f.resize(leaving, more.inits, more.gets, more.nexts)
}

// additions are new elements of the forward loop's state.
type additions struct {
	inits       []*hlo.Instruction
	gets, nexts map[int]*hlo.Instruction
}

// stackUp adds the stacks that are not there yet to the forward body, and to the state of the
// backward loop.
func (w *writer) stackUp() (a additions) {
	a = additions{gets: map[int]*hlo.Instruction{}, nexts: map[int]*hlo.Instruction{}}
	f := w.f
	at := func(c *hlo.Computation, i *hlo.Instruction) int { return slices.Index(c.Instructions, i) }
	for _, k := range slices.Sorted(maps.Keys(w.more)) {
		s := w.more[k]
		n := len(f.init.Operands) + len(a.inits)
		// What it begins with is never read.
		zero := w.m.NewInstruction("constant", hlo.Constant, &hlo.Shape{Type: s.of.Type})
		zero.Literal = "0"
		room := w.m.NewInstruction("broadcast", hlo.Broadcast, s.of, zero)
		room.Attributes = []hlo.Attribute{{Key: "dimensions", Value: "{}"}}
		c := w.computation("stack_computation")
		c.Insert(0, zero, room)
		c.Root = room
		init := w.m.NewInstruction("stack.remat", hlo.Fusion, s.of)
		init.Attributes = []hlo.Attribute{{Key: "kind", Value: "kLoop"}, {Key: "calls", Calls: []*hlo.Computation{c}}}
		parent := f.while.Parent
		parent.Insert(at(parent, f.init), init)
		a.inits = append(a.inits, init)

		get := func(from *hlo.Instruction, shape *hlo.Shape) *hlo.Instruction {
			g := w.m.NewInstruction("get-tuple-element", hlo.GetTupleElement, shape, from)
			g.Attributes = []hlo.Attribute{{Key: "index", Value: strconv.Itoa(n)}}
			return g
		}
		// It is written first of all, before anything overwrites the value or the counter.
		g, counter := get(f.parameter, s.of), gets(f.parameter, f.counter)[0]
		c = w.computation("stack_computation")
		p, v, i := w.parameter(0, s.of), w.parameter(1, s.value.Shape), w.parameter(2, counter.Shape)
		slot := w.m.NewInstruction("bitcast", hlo.Bitcast, s.update, v)
		zero = w.m.NewInstruction("constant", hlo.Constant, counter.Shape)
		zero.Literal = "0"
		operands := []*hlo.Instruction{p, slot, i}
		for range s.value.Shape.Dims {
			operands = append(operands, zero)
		}
		update := w.m.NewInstruction("dynamic-update-slice", hlo.DynamicUpdateSlice, s.of, operands...)
		c.Insert(0, p, v, i, slot, zero, update)
		c.Root = update
		next := w.m.NewInstruction("stacked.remat", hlo.Fusion, s.of, g, s.value, counter)
		next.Attributes = []hlo.Attribute{{Key: "kind", Value: "kLoop"}, {Key: "calls", Calls: []*hlo.Computation{c}}}
		f.body.Instructions = slices.DeleteFunc(f.body.Instructions, func(i *hlo.Instruction) bool { return i == s.value || i == counter })
		f.body.Instructions = slices.Insert(f.body.Instructions, at(f.body, f.parameter)+1, s.value, counter)
		f.body.Insert(at(f.body, counter)+1, g, next)
		for _, k := range []int{k, f.counter} {
			x := f.body.Root.Operands[k]
			if x.Opcode == hlo.GetTupleElement {
				x = x.Operands[0]
			}
			if len(x.After) > 0 && x.Opcode != hlo.Parameter {
				x.AddAfter(next)
			}
		}
		a.gets[n], a.nexts[n] = g, next

		result := get(f.while, s.of)
		parent.Insert(at(parent, f.while)+1, result)
		s.in = []int{len(w.b.init.Operands) + len(w.states)}
		w.states = append(w.states, result)
	}
	return a
}

// value returns the value of a stack in the backward body.
func (w *writer) value(s *Stack) *hlo.Instruction {
	if s.inner == nil {
		return w.again(s.value)
	}
	return w.alone(s)
}

// add makes an instruction of the backward body.
func (w *writer) add(name string, op hlo.Opcode, shape *hlo.Shape, operands ...*hlo.Instruction) *hlo.Instruction {
	i := w.m.NewInstruction(name, op, shape, operands...)
	w.fresh = append(w.fresh, i)
	return i
}

// as returns a value under a shape with the same bytes.
func (w *writer) as(v *hlo.Instruction, s *hlo.Shape, name string) *hlo.Instruction {
	if v.Shape.Equal(s) {
		return v
	}
	return w.add(name, hlo.Bitcast, s, v)
}

// again returns a value of the forward body in the backward body.
func (w *writer) again(v *hlo.Instruction) *hlo.Instruction {
	v = through(v)
	if i := w.made[v]; i != nil {
		return i
	}
	var i *hlo.Instruction
	if s := w.leaf(v); s != nil {
		stack := s.of
		if stack == nil {
			stack = w.b.while.Shape.Elements[s.in[0]]
		}
		i = w.slice(s.in[0], stack, s.at.of(w.rounds), s.update, v.Shape, v.Name)
	} else if k := w.f.element(v); k >= 0 {
		if k == w.f.counter {
			i = w.forwardRound()
		} else {
			i = w.state(k)
		}
	} else if k, at, ok := w.f.sliceOfInvariant(v); ok {
		n := w.element(k)
		d := v
		if !v.Opcode.IsAsyncDone() {
			d = sliceOf(fused(v))
		} else {
			d = sliceOf(fused(v.Operands[0]))
		}
		i = w.slice(n, w.f.while.Shape.Elements[k], at.of(w.rounds), d.Shape, v.Shape, v.Name)
	} else {
		operands := make([]*hlo.Instruction, len(v.Operands))
		for n, o := range v.Operands {
			operands[n] = w.again(o)
		}
		i = v.CloneOwning(v.Name + ".remat")
		i.After = nil
		for _, c := range i.Called() {
			unplace(c)
		}
		for n, o := range operands {
			i.SetOperand(n, o)
		}
		w.fresh = append(w.fresh, i)
	}
	w.made[v] = i
	return i
}

// alone returns what a fusion computes for a stack as a fusion by itself.
func (w *writer) alone(s *Stack) *hlo.Instruction {
	c := w.computation(s.fusion.Call("calls").Name)
	of := map[*hlo.Instruction]*hlo.Instruction{}
	var operands, list []*hlo.Instruction
	for _, x := range cone(s.inner) {
		y := x.Clone(x.Name)
		for n, o := range x.Operands {
			y.SetOperand(n, of[o])
		}
		if x.Opcode == hlo.Parameter {
			y.Parameter, y.Literal = len(operands), strconv.Itoa(len(operands))
			operands = append(operands, w.again(s.fusion.Operands[x.Parameter]))
		}
		of[x] = y
		list = append(list, y)
	}
	c.Insert(0, list...)
	unplace(c)
	c.Root = of[s.inner]
	i := s.fusion.Clone(s.fusion.Name + ".remat")
	w.fresh = append(w.fresh, i)
	i.Detach()
	for _, o := range operands {
		i.AddOperand(o)
	}
	i.Shape, i.After = s.inner.Shape, nil
	for n := range i.Attributes {
		if i.Attributes[n].Key == "calls" {
			i.Attributes[n].Calls = []*hlo.Computation{c}
		}
	}
	return i
}

// unplace takes from slices what the compiler wrote down about their place in each round, which is
// another one in the backward loop; with metadata they would be none of xla/load's new ones.
func unplace(c *hlo.Computation) {
	for _, i := range c.Instructions {
		if i.Opcode == hlo.DynamicSlice || i.Opcode == hlo.DynamicUpdateSlice {
			i.Attributes = slices.DeleteFunc(slices.Clone(i.Attributes), func(a hlo.Attribute) bool { return a.Key != "dynamic_slice_sizes" })
		}
	}
}

// element returns the number of an element of the forward loop's state, which stays as it is, in
// the backward loop's, where it may be a new one.
func (w *writer) element(k int) int {
	v := w.f.init.Operands[k]
	for n, o := range w.b.init.Operands {
		if o == v && w.b.invariant(n) {
			return n
		}
	}
	n := slices.Index(w.states, v)
	if n < 0 {
		n = len(w.states)
		w.states = append(w.states, v)
	}
	return len(w.b.init.Operands) + n
}

// state returns an element of the forward loop's state in the backward body.
func (w *writer) state(k int) *hlo.Instruction {
	return w.get(w.element(k), w.f.while.Shape.Elements[k])
}

// get returns an element of the backward loop's state.
func (w *writer) get(n int, s *hlo.Shape) *hlo.Instruction {
	if list := gets(w.b.parameter, n); len(list) > 0 && list[0].Parent != nil {
		return list[0]
	}
	i := w.gets[n]
	if i == nil {
		i = w.add("get-tuple-element", hlo.GetTupleElement, s, w.b.parameter)
		i.Attributes = []hlo.Attribute{{Key: "index", Value: strconv.Itoa(n)}}
		w.gets[n] = i
	}
	return i
}

// backwardRound returns the backward loop's counter: the copy that its body reads, if there is one.
func (w *writer) backwardRound() *hlo.Instruction {
	if w.round == nil {
		w.round = w.get(w.b.counter, w.b.while.Shape.Elements[w.b.counter])
		for _, u := range w.round.Users {
			if u.Opcode == hlo.Copy && len(u.Users) > 0 && u.Shape.Equal(w.round.Shape) {
				w.round = u
				break
			}
		}
	}
	return w.round
}

// linear adds a*q + b of a parameter q to a fused computation, operands first.
func (w *writer) linear(q *hlo.Instruction, x affine) (root *hlo.Instruction, list []*hlo.Instruction) {
	if x == (affine{1, 0}) {
		return q, nil
	}
	b := w.m.NewInstruction("constant", hlo.Constant, q.Shape)
	b.Literal = strconv.FormatInt(x.b, 10)
	if x.a < 0 {
		root = w.m.NewInstruction("subtract", hlo.Subtract, q.Shape, b, q)
	} else {
		root = w.m.NewInstruction("add", hlo.Add, q.Shape, q, b)
	}
	return root, []*hlo.Instruction{b, root}
}

// forwardRound returns the forward loop's counter for the layer.
func (w *writer) forwardRound() *hlo.Instruction {
	if w.number == nil {
		j := w.backwardRound()
		if w.rounds == (affine{1, 0}) {
			w.number = j
			return j
		}
		c := w.computation("round_computation")
		q := w.parameter(0, j.Shape)
		root, list := w.linear(q, w.rounds)
		c.Insert(0, append([]*hlo.Instruction{q}, list...)...)
		c.Root = root
		w.number = w.fusion("round.remat", j.Shape, c, j)
	}
	return w.number
}

// computation adds a computation with a name that the module does not have yet.
func (w *writer) computation(name string) *hlo.Computation {
	name += ".remat"
	for n, base := 1, name; w.m.Computation(name) != nil; n++ {
		name = base + "." + strconv.Itoa(n)
	}
	return w.m.NewComputation(name)
}

func (w *writer) parameter(n int, s *hlo.Shape) *hlo.Instruction {
	i := w.m.NewInstruction("param_"+strconv.Itoa(n), hlo.Parameter, s)
	i.Parameter, i.Literal = n, strconv.Itoa(n)
	return i
}

func (w *writer) fusion(name string, s *hlo.Shape, c *hlo.Computation, operands ...*hlo.Instruction) *hlo.Instruction {
	i := w.add(name, hlo.Fusion, s, operands...)
	i.Attributes = []hlo.Attribute{{Key: "kind", Value: "kLoop"}, {Key: "calls", Calls: []*hlo.Computation{c}}}
	return i
}

// slice returns a slot of element n of the backward loop's state.
func (w *writer) slice(n int, stack *hlo.Shape, at affine, slot, shape *hlo.Shape, name string) *hlo.Instruction {
	key := sliced{n, at, shape.String()}
	if i := w.slices[key]; i != nil {
		return i
	}
	var i *hlo.Instruction
	// The body may have it already.
	if n < len(w.b.init.Operands) {
		for _, x := range w.b.body.Instructions {
			if k, p, ok := w.b.sliceOfInvariant(x); ok && k == n && p == at && x.Shape.Equal(shape) && x.Opcode == hlo.Fusion {
				i = x
				break
			}
		}
	}
	if i == nil {
		from, j := w.get(n, stack), w.backwardRound()
		c := w.computation("slice_computation")
		p, q := w.parameter(0, stack), w.parameter(1, j.Shape)
		root, list := w.linear(q, at)
		list = append([]*hlo.Instruction{p, q}, list...)
		operands := []*hlo.Instruction{p, root}
		if len(stack.Dims) > 1 {
			zero := w.m.NewInstruction("constant", hlo.Constant, q.Shape)
			zero.Literal = "0"
			list = append(list, zero)
			for range stack.Dims[1:] {
				operands = append(operands, zero)
			}
		}
		d := w.m.NewInstruction("dynamic-slice", hlo.DynamicSlice, slot, operands...)
		d.Attributes = []hlo.Attribute{{Key: "dynamic_slice_sizes", Value: sizes(slot)}}
		list = append(list, d)
		if !d.Shape.Equal(shape) {
			d = w.m.NewInstruction("bitcast", hlo.Bitcast, shape, d)
			list = append(list, d)
		}
		c.Insert(0, list...)
		c.Root = d
		i = w.fusion(strings.TrimSuffix(name, ".remat")+".remat", shape, c, from, j)
	}
	w.slices[key] = i
	return i
}

func sizes(s *hlo.Shape) string {
	var list []string
	for _, d := range s.Dims {
		list = append(list, strconv.FormatInt(d, 10))
	}
	return "{" + strings.Join(list, ",") + "}"
}

// replace makes an instruction of the backward body read a value instead of a slot of the stack.
func (w *writer) replace(s *Stack, r read, v *hlo.Instruction) {
	c := fused(r.user)
	if c == nil {
		w.instead(r.user, w.as(v, r.user.Shape, r.user.Name+".remat"))
		return
	}
	if d := sliceOf(c); d == r.slice {
		out := r.user
		if wrapsFusion(out) {
			out = out.Users[0]
		}
		w.instead(out, w.as(v, out.Shape, out.Name+".remat"))
		return
	}
	n := r.slice.Operands[0].Parameter
	q := r.slice.Operands[0]
	r.user.SetOperand(n, w.as(v, r.slice.Shape, v.Name+".slot"))
	q.Shape = r.slice.Shape
	r.slice.ReplaceUses(q, nil)
	removeUnused(r.slice)
}

// instead makes users of i use v, and what waits for i wait for v.
func (w *writer) instead(i, v *hlo.Instruction) {
	for _, x := range i.Parent.Instructions {
		if slices.Contains(x.After, i) {
			x.AddAfter(v)
		}
	}
	i.ReplaceUses(v, nil)
	removeUnused(i)
}

// removeUnused takes out an instruction that nothing uses, and what only it used.
func removeUnused(i *hlo.Instruction) {
	if len(i.Users) > 0 || i.Parent == nil || i.Parent.Root == i || i.Opcode == hlo.Parameter {
		return
	}
	operands := slices.Clone(i.Operands)
	i.Parent.Remove(i)
	for _, o := range operands {
		removeUnused(o)
	}
}

// place puts the new instructions into the backward body: each right before the first that
// needs it.
func (w *writer) place() {
	c := w.b.body
	var list []*hlo.Instruction
	put := map[*hlo.Instruction]bool{}
	var visit func(i *hlo.Instruction)
	visit = func(i *hlo.Instruction) {
		if put[i] {
			return
		}
		put[i] = true
		for _, p := range i.After {
			visit(p)
		}
		for _, o := range i.Operands {
			visit(o)
		}
		list = append(list, i)
	}
	for _, i := range c.Instructions {
		visit(i)
	}
	c.Reorder(list)
}

// resize takes elements out of the state of a loop, and adds some. found are the instructions of the
// body that get the new ones, and nexts what a round makes of them: they stay as they are if it
// has nothing.
func (l *loop) resize(leaving []int, more []*hlo.Instruction, found, nexts map[int]*hlo.Instruction) error {
	old := len(l.init.Operands)
	now := make([]int, old+len(more)) // -1: it leaves
	kept := 0
	for n := range now {
		if now[n] = kept; n < old && slices.Contains(leaving, n) {
			now[n] = -1
		} else {
			kept++
		}
	}
	if now[l.counter] != l.counter {
		return fmt.Errorf("unstack: %s: the counter would move", l.while.Name)
	}
	shapes := slices.Clone(l.while.Shape.Elements)
	for _, v := range more {
		shapes = append(shapes, v.Shape)
	}
	pick := func(list []*hlo.Instruction) (left []*hlo.Instruction) {
		for n, i := range list {
			if now[n] >= 0 {
				left = append(left, i)
			}
		}
		return left
	}
	var elements []*hlo.Shape
	for n, s := range shapes {
		if now[n] >= 0 {
			elements = append(elements, s)
		}
	}
	shape := &hlo.Shape{Type: hlo.Tuple, Elements: elements}
	// The body hands on the new elements.
	root := slices.Clone(l.body.Root.Operands)
	for n, v := range more {
		g := found[old+n]
		if g == nil {
			g = l.body.Module.NewInstruction("get-tuple-element", hlo.GetTupleElement, v.Shape, l.parameter)
			g.Attributes = []hlo.Attribute{{Key: "index", Value: strconv.Itoa(old + n)}}
			l.body.Insert(slices.Index(l.body.Instructions, l.parameter)+1, g)
		}
		if next := nexts[old+n]; next != nil {
			g = next
		}
		root = append(root, g)
	}
	dropped := slices.DeleteFunc(slices.Clone(root), func(i *hlo.Instruction) bool { return slices.Contains(pick(root), i) })
	retuple(l.body.Root, pick(root), shape)
	for _, i := range dropped {
		var fusion *hlo.Instruction
		if i.Opcode == hlo.GetTupleElement && i.Operands[0].Opcode == hlo.Fusion {
			fusion = i.Operands[0]
		}
		removeUnused(i)
		if fusion != nil && fusion.Parent != nil {
			if err := prune(fusion); err != nil {
				return err
			}
		}
	}
	init := append(slices.Clone(l.init.Operands), more...)
	retuple(l.init, pick(init), shape)
	for _, tuple := range []*hlo.Instruction{l.parameter, l.condition.Parameters()[0], l.while} {
		for _, g := range slices.Clone(tuple.Users) {
			n, err := g.TupleIndex()
			if err != nil || n >= len(now) {
				return fmt.Errorf("unstack: %s: no element", g.Name)
			}
			if now[n] < 0 {
				if len(g.Users) > 0 {
					return fmt.Errorf("unstack: %s is still used", g.Name)
				}
				g.Parent.Remove(g)
				continue
			}
			for k := range g.Attributes {
				if g.Attributes[k].Key == "index" {
					g.Attributes[k].Value = strconv.Itoa(now[n])
				}
			}
		}
		tuple.Shape = shape
	}
	return nil
}

// prune takes out the outputs of a fusion that nothing uses. hlo.RemoveDead does so where no
// order is demanded by control dependencies; here they stay.
func prune(fusion *hlo.Instruction) error {
	after := fusion.After
	fusion.After = nil
	var followers []*hlo.Instruction
	for _, i := range fusion.Parent.Instructions {
		if n := slices.Index(i.After, fusion); n >= 0 {
			i.After = slices.Delete(i.After, n, n+1)
			followers = append(followers, i)
		}
	}
	_, err := hlo.RemoveDead(fusion.Parent.Module)
	fusion.After = after
	for _, i := range followers {
		i.AddAfter(fusion)
	}
	return err
}

// retuple gives a tuple other elements.
func retuple(t *hlo.Instruction, elements []*hlo.Instruction, shape *hlo.Shape) {
	t.Detach()
	for _, e := range elements {
		t.AddOperand(e)
	}
	t.Shape = shape
}
