package unstack

// The change of the module.

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gpumem/xla/internal/hlo"
)

// ErrCannot is the error of [Drop] for a stack that the backward loop cannot compute from what is
// kept. Any other is a fault.
var ErrCannot = errors.New("the backward loop cannot compute it")

// Drop drops the stacks with these keys from a module: they leave the state of both loops, and
// the backward body computes them again. With carry, what each round of the forward loop hands to
// the next is stacked up where that needs it. It returns how many instructions that body has more. The
// module is not usable after an error.
func Drop(m *hlo.Module, keys []string, carry bool) (added int, err error) {
	for len(keys) > 0 {
		p, drop, left := findStacks(m, keys)
		if p == nil {
			return 0, fmt.Errorf("unstack: no stack %s", keys[0])
		}
		n, err := p.dropStacks(drop, carry)
		if err != nil {
			return 0, err
		}
		added, keys = added+n, left
	}

	_, err = hlo.RemoveDead(m)
	return added, err
}

// findStacks returns the first pair that has stacks with some of the keys, these, and the keys that are
// left.
func findStacks(m *hlo.Module, keys []string) (*Pair, []*Stack, []string) {
	for _, p := range Find(m) {
		var drop []*Stack
		left := slices.Clone(keys)
		for _, s := range p.Stacks {
			if n := slices.Index(left, p.Key(s)); n >= 0 {
				drop, left = append(drop, s), slices.Delete(left, n, n+1)
			}
		}
		if len(drop) > 0 {
			return p, drop, left
		}
	}

	return nil, nil, nil
}

// A writer adds to the backward body.
type writer struct {
	*needs
	m    *hlo.Module
	made map[*hlo.Instruction]*hlo.Instruction // by instruction of the forward body
	// fresh are the new instructions, operands first.
	fresh  []*hlo.Instruction
	more   additions        // to the backward loop's state
	round  *hlo.Instruction // the backward loop's
	number *hlo.Instruction // the forward loop's
	slices map[sliced]*hlo.Instruction
}

type sliced struct {
	element int
	at      affine
	shape   string
}

// additions are new elements of a loop's state. gets are the instructions of the body that get them,
// by the element's number, and nexts what a round makes of them: they stay as they are if it has
// nothing.
type additions struct {
	inits       []*hlo.Instruction
	gets, nexts map[int]*hlo.Instruction
}

// dropStacks changes the module. It returns how many instructions the backward body has more.
func (p *Pair) dropStacks(drop []*Stack, carry bool) (added int, err error) {
	w := &writer{
		needs: newNeeds(p, drop, carry), m: p.Forward.Parent.Module, made: map[*hlo.Instruction]*hlo.Instruction{},
		more: additions{gets: map[int]*hlo.Instruction{}}, slices: map[sliced]*hlo.Instruction{},
	}

	for _, s := range drop {
		if !w.needStack(s) {
			return 0, fmt.Errorf("unstack: %s: %w", p.Key(s), ErrCannot)
		}
	}

	stacked := w.stackUp()
	for _, s := range drop {
		v := w.stackValue(s)
		for _, r := range s.reads {
			w.replaceRead(r, v)
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

	var read, written []int
	for _, s := range drop {
		read, written = append(read, s.in...), append(written, s.Element)
	}

	if err := p.b.resize(read, w.more); err != nil {
		return 0, err
	}

	for _, n := range written {
		for _, g := range gets(p.Forward, n) {
			g.Parent.Remove(g)
		}
	}
	return len(w.fresh), p.f.resize(written, stacked)
}

// stackUp adds the stacks that are not there yet to the forward body, and to the state of the
// backward loop.
func (w *writer) stackUp() additions {
	a := additions{gets: map[int]*hlo.Instruction{}, nexts: map[int]*hlo.Instruction{}}
	f := w.f
	for _, e := range slices.Sorted(maps.Keys(w.carry)) {
		s := w.carry[e]
		n := len(f.init.Operands) + len(a.inits)
		// What it begins with is never read.
		init := w.fuse("stack.remat", "stack_computation", s.of, nil, func(k *kernel) *hlo.Instruction {
			room := k.add("broadcast", hlo.Broadcast, s.of, k.constant(&hlo.Shape{Type: s.of.Type}, 0))
			room.Attributes = []hlo.Attribute{{Key: "dimensions", Value: "{}"}}
			return room
		})
		parent := f.while.Parent
		parent.Insert(slices.Index(parent.Instructions, f.init), init)
		a.inits = append(a.inits, init)
		a.gets[n] = newElement(f.parameter, n, s.of)
		a.nexts[n] = w.stackRound(s, a.gets[n])
		for _, e := range []int{e, f.counter} {
			x := f.body.Root.Operands[e]
			if x.Opcode == hlo.GetTupleElement {
				x = x.Operands[0]
			}
			if len(x.After) > 0 && x.Opcode != hlo.Parameter {
				x.AddAfter(a.nexts[n])
			}
		}

		result := newElement(f.while, n, s.of)
		parent.Insert(slices.Index(parent.Instructions, f.while)+1, result)
		s.in = []int{len(w.b.init.Operands) + len(w.more.inits)}
		w.more.inits = append(w.more.inits, result)
	}

	return a
}

// stackRound makes the forward body write a slot of a new stack, which it has as an element. It is
// written first of all, before anything overwrites the value or the counter.
func (w *writer) stackRound(s *Stack, stack *hlo.Instruction) *hlo.Instruction {
	f := w.f
	counter := gets(f.parameter, f.counter)[0]
	next := w.fuse("stacked.remat", "stack_computation", s.of, []*hlo.Instruction{stack, s.value, counter}, func(k *kernel) *hlo.Instruction {
		slot := k.add("bitcast", hlo.Bitcast, s.update, k.list[1])
		operands := k.at([]*hlo.Instruction{k.list[0], slot}, k.list[2], len(s.of.Dims))
		return k.add("dynamic-update-slice", hlo.DynamicUpdateSlice, s.of, operands...)
	})

	list := slices.DeleteFunc(f.body.Instructions, func(i *hlo.Instruction) bool { return i == s.value || i == counter })
	f.body.Instructions = slices.Insert(list, slices.Index(list, f.parameter)+1, s.value, counter)
	f.body.Insert(slices.Index(f.body.Instructions, counter)+1, stack, next)
	return next
}

// newElement makes an instruction that gets an element of a tuple.
func newElement(tuple *hlo.Instruction, n int, s *hlo.Shape) *hlo.Instruction {
	g := tuple.Parent.Module.NewInstruction("get-tuple-element", hlo.GetTupleElement, s, tuple)
	g.Attributes = []hlo.Attribute{{Key: "index", Value: strconv.Itoa(n)}}
	return g
}

// A kernel is a fused computation as it is written. The list begins with its parameters.
type kernel struct {
	m    *hlo.Module
	list []*hlo.Instruction
}

func (k *kernel) add(name string, op hlo.Opcode, s *hlo.Shape, operands ...*hlo.Instruction) *hlo.Instruction {
	i := k.m.NewInstruction(name, op, s, operands...)
	k.list = append(k.list, i)
	return i
}

func (k *kernel) constant(s *hlo.Shape, n int64) *hlo.Instruction {
	i := k.add("constant", hlo.Constant, s)
	i.Literal = strconv.FormatInt(n, 10)
	return i
}

// at returns the operands of a dynamic slice or its update in slot q of a stack with rank dimensions.
func (k *kernel) at(operands []*hlo.Instruction, q *hlo.Instruction, rank int) []*hlo.Instruction {
	operands = append(operands, q)
	if rank > 1 {
		zero := k.constant(q.Shape, 0)
		for range rank - 1 {
			operands = append(operands, zero)
		}
	}
	return operands
}

// affine returns a*q + b of a parameter q.
func (k *kernel) affine(q *hlo.Instruction, x affine) *hlo.Instruction {
	if x == (affine{1, 0}) {
		return q
	}
	b := k.constant(q.Shape, x.b)
	if x.a < 0 {
		return k.add("subtract", hlo.Subtract, q.Shape, b, q)
	}
	return k.add("add", hlo.Add, q.Shape, q, b)
}

// fuse makes a fusion of the operands, whose computation, with a name like the given one, write
// adds to and returns the root of.
func (w *writer) fuse(name, computation string, s *hlo.Shape, operands []*hlo.Instruction,
	write func(*kernel) *hlo.Instruction) *hlo.Instruction {
	k := &kernel{m: w.m}
	for n, o := range operands {
		p := k.add("param_"+strconv.Itoa(n), hlo.Parameter, o.Shape)
		p.Parameter, p.Literal = n, strconv.Itoa(n)
	}
	c := w.newComputation(computation)
	c.Root = write(k)
	c.Insert(0, k.list...)
	i := w.m.NewInstruction(name, hlo.Fusion, s, operands...)
	i.Attributes = []hlo.Attribute{{Key: "kind", Value: "kLoop"}, {Key: "calls", Calls: []*hlo.Computation{c}}}
	return i
}

// stackValue returns the value of a stack in the backward body.
func (w *writer) stackValue(s *Stack) *hlo.Instruction {
	if s.inner == nil {
		return w.repeat(s.value)
	}
	return w.repeatInner(s)
}

// add makes an instruction of the backward body.
func (w *writer) add(name string, op hlo.Opcode, shape *hlo.Shape, operands ...*hlo.Instruction) *hlo.Instruction {
	i := w.m.NewInstruction(name, op, shape, operands...)
	w.fresh = append(w.fresh, i)
	return i
}

// reshape returns a value under a shape with the same bytes.
func (w *writer) reshape(v *hlo.Instruction, s *hlo.Shape, name string) *hlo.Instruction {
	if v.Shape.Equal(s) {
		return v
	}
	return w.add(name, hlo.Bitcast, s, v)
}

// repeat returns a value of the forward body in the backward body.
func (w *writer) repeat(v *hlo.Instruction) *hlo.Instruction {
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
		i = w.slice(s.in[0], stack, s.at.compose(w.rounds), s.update, v)
	} else if k := w.f.element(v); k >= 0 && k == w.f.counter {
		i = w.forwardRound()
	} else if k >= 0 {
		i = w.get(w.element(k), w.f.while.Shape.Elements[k])
	} else if k, at, ok := w.f.sliceOfInvariant(v); ok {
		fusion := v
		if v.Opcode.IsAsyncDone() {
			fusion = v.Operands[0]
		}
		i = w.slice(w.element(k), w.f.while.Shape.Elements[k], at.compose(w.rounds), sliceOf(fused(fusion)).Shape, v)
	} else {
		i = w.repeatInstruction(v)
	}

	w.made[v] = i
	return i
}

// repeatInstruction returns a copy of an instruction of the forward body that reads copies.
func (w *writer) repeatInstruction(v *hlo.Instruction) *hlo.Instruction {
	operands := make([]*hlo.Instruction, len(v.Operands))
	for n, o := range v.Operands {
		operands[n] = w.repeat(o)
	}

	i := v.CloneOwning(v.Name + ".remat")
	i.After = nil
	for _, c := range i.Called() {
		unplace(c)
	}

	for n, o := range operands {
		i.SetOperand(n, o)
	}

	w.fresh = append(w.fresh, i)
	return i
}

// repeatInner returns what a fusion computes for a stack as a fusion by itself.
func (w *writer) repeatInner(s *Stack) *hlo.Instruction {
	c := w.newComputation(s.fusion.Call("calls").Name)
	of := map[*hlo.Instruction]*hlo.Instruction{}
	var operands, list []*hlo.Instruction
	for _, x := range needsOf(s.inner) {
		y := x.Clone(x.Name)
		for n, o := range x.Operands {
			y.SetOperand(n, of[o])
		}
		if x.Opcode == hlo.Parameter {
			y.Parameter, y.Literal = len(operands), strconv.Itoa(len(operands))
			operands = append(operands, w.repeat(s.fusion.Operands[x.Parameter]))
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
// another one in the backward loop; with metadata they would be none of xla/internal/load's new ones.
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

	n := slices.Index(w.more.inits, v)
	if n < 0 {
		n = len(w.more.inits)
		w.more.inits = append(w.more.inits, v)
	}
	return len(w.b.init.Operands) + n
}

// get returns an element of the backward loop's state.
func (w *writer) get(n int, s *hlo.Shape) *hlo.Instruction {
	if list := gets(w.b.parameter, n); len(list) > 0 && list[0].Parent != nil {
		return list[0]
	}
	if w.more.gets[n] == nil {
		w.more.gets[n] = newElement(w.b.parameter, n, s)
		w.fresh = append(w.fresh, w.more.gets[n])
	}
	return w.more.gets[n]
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

// forwardRound returns the forward loop's counter for the layer.
func (w *writer) forwardRound() *hlo.Instruction {
	if w.number == nil {
		w.number = w.backwardRound()
		if w.rounds != (affine{1, 0}) {
			j := w.number
			w.number = w.fuse("round.remat", "round_computation", j.Shape, []*hlo.Instruction{j}, func(k *kernel) *hlo.Instruction {
				return k.affine(k.list[0], w.rounds)
			})
			w.fresh = append(w.fresh, w.number)
		}
	}

	return w.number
}

// newComputation adds a computation with a name that the module does not have yet.
func (w *writer) newComputation(name string) *hlo.Computation {
	name += ".remat"
	for n, base := 1, name; w.m.Computation(name) != nil; n++ {
		name = base + "." + strconv.Itoa(n)
	}
	return w.m.NewComputation(name)
}

// slice returns a slot of element n of the backward loop's state, in place of value v of the forward
// body. The body may have it already.
func (w *writer) slice(n int, stack *hlo.Shape, at affine, slot *hlo.Shape, v *hlo.Instruction) *hlo.Instruction {
	key := sliced{n, at, v.Shape.String()}
	if w.slices[key] == nil {
		w.slices[key] = w.findSlice(n, at, v.Shape)
	}
	if w.slices[key] == nil {
		operands := []*hlo.Instruction{w.get(n, stack), w.backwardRound()}
		i := w.fuse(strings.TrimSuffix(v.Name, ".remat")+".remat", "slice_computation", v.Shape, operands, func(k *kernel) *hlo.Instruction {
			d := k.add("dynamic-slice", hlo.DynamicSlice, slot, k.at(k.list[:1:1], k.affine(k.list[1], at), len(stack.Dims))...)
			d.Attributes = []hlo.Attribute{{Key: "dynamic_slice_sizes", Value: sizes(slot)}}
			if !slot.Equal(v.Shape) {
				d = k.add("bitcast", hlo.Bitcast, v.Shape, d)
			}
			return d
		})
		w.slices[key], w.fresh = i, append(w.fresh, i)
	}

	return w.slices[key]
}

// findSlice returns an instruction of the backward body that is a slot of element n of its state, nil
// if there is none.
func (w *writer) findSlice(n int, at affine, s *hlo.Shape) *hlo.Instruction {
	if n >= len(w.b.init.Operands) {
		return nil
	}
	for _, x := range w.b.body.Instructions {
		if k, p, ok := w.b.sliceOfInvariant(x); ok && k == n && p == at && x.Opcode == hlo.Fusion && x.Shape.Equal(s) {
			return x
		}
	}
	return nil
}

func sizes(s *hlo.Shape) string {
	var list []string
	for _, d := range s.Dims {
		list = append(list, strconv.FormatInt(d, 10))
	}
	return "{" + strings.Join(list, ",") + "}"
}

// replaceRead makes an instruction of the backward body read a value instead of a slot of the stack.
func (w *writer) replaceRead(r read, v *hlo.Instruction) {
	c := fused(r.user)
	if c == nil {
		w.instead(r.user, w.reshape(v, r.user.Shape, r.user.Name+".remat"))
		return
	}

	if d := sliceOf(c); d == r.slice {
		out := r.user
		if wrapsFusion(out) {
			out = out.Users[0]
		}
		w.instead(out, w.reshape(v, out.Shape, out.Name+".remat"))
		return
	}

	n := r.slice.Operands[0].Parameter
	q := r.slice.Operands[0]
	r.user.SetOperand(n, w.reshape(v, r.slice.Shape, v.Name+".slot"))
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

// resize takes elements out of the state of a loop, and adds some.
func (l *loop) resize(leaving []int, more additions) error {
	old := len(l.init.Operands)
	now := make([]int, old+len(more.inits)) // -1: it leaves
	kept := 0
	for n := range now {
		if now[n] = kept; slices.Contains(leaving, n) {
			now[n] = -1
		} else {
			kept++
		}
	}

	if now[l.counter] != l.counter {
		return fmt.Errorf("unstack: %s: the counter would move", l.while.Name)
	}

	elements := l.while.Shape.Elements
	for _, v := range more.inits {
		elements = append(elements[:len(elements):len(elements)], v.Shape)
	}

	shape := &hlo.Shape{Type: hlo.Tuple, Elements: keep(elements, now)}

	// The body hands on the new elements.
	root := slices.Clone(l.body.Root.Operands)
	for n, v := range more.inits {
		root = append(root, l.nextOf(old+n, v.Shape, more))
	}

	if err := l.setRoot(root, keep(root, now), shape); err != nil {
		return err
	}

	retuple(l.init, keep(append(slices.Clone(l.init.Operands), more.inits...), now), shape)
	for _, tuple := range []*hlo.Instruction{l.parameter, l.condition.Parameters()[0], l.while} {
		if err := renumber(tuple, now); err != nil {
			return err
		}
		tuple.Shape = shape
	}

	return nil
}

// keep returns those of a list of elements that stay.
func keep[T any](list []T, now []int) (left []T) {
	for n, x := range list {
		if now[n] >= 0 {
			left = append(left, x)
		}
	}
	return left
}

// nextOf returns what a round makes of a new element.
func (l *loop) nextOf(n int, s *hlo.Shape, more additions) *hlo.Instruction {
	if next := more.nexts[n]; next != nil {
		return next
	}
	if g := more.gets[n]; g != nil {
		return g
	}
	g := newElement(l.parameter, n, s)
	l.body.Insert(slices.Index(l.body.Instructions, l.parameter)+1, g)
	return g
}

// setRoot makes the body hand on elements that stay of all. What makes the others goes.
func (l *loop) setRoot(all, stay []*hlo.Instruction, shape *hlo.Shape) error {
	retuple(l.body.Root, stay, shape)
	for _, i := range all {
		if slices.Contains(stay, i) {
			continue
		}
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

	return nil
}

// renumber makes what gets elements of a tuple get them at their new places.
func renumber(tuple *hlo.Instruction, now []int) error {
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
