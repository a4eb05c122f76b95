// Package unstack computes again, in a loop's backward pass, what its forward pass stacked up.
//
// jax.lax.scan over layers under jax.grad is two loops. The body of the first writes each
// layer's values into arrays with an element for each layer, and the body of the second reads
// them in reverse:
//
//	forward, at i                                     backward, at j
//	x    the layer's input                            x' = dynamic-slice(xs, n-1-j)
//	h    = dot(x, dynamic-slice(w, i))                t' = dynamic-slice(ts, n-1-j)
//	t    = tanh(h)                                    ...
//	xs'  = dynamic-update-slice(xs, x, i)
//	ts'  = dynamic-update-slice(ts, t, i)
//
// Since x is stacked, and w is there in both loops, ts need not be: the backward body computes
// t' as tanh(dot(x', dynamic-slice(w, n-1-j))), and ts leaves the state of both loops.
// jax.checkpoint around the body does the same for all of them at once.
//
// [Find] returns the pairs of loops with their stacks, [Pair.Needs] what must be computed again
// without some of them, and [Drop] changes the module.
package unstack

import (
	"slices"
	"strconv"
	"strings"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/hlo"
)

// A Stack is a value that the forward loop stacks up for the backward loop.
type Stack struct {
	Element int    // of the forward loop's state
	Bytes   uint64 // of the stack
	in      []int  // elements of the backward loop's state
	// value is what the forward body stacks up: an instruction of it, or, if the fusion that
	// writes the stack also computes the value, inner, which is in that fusion.
	value, fusion, inner *hlo.Instruction
	update               *hlo.Shape // of what is written
	at                   affine     // in the forward loop's number of the round
	reads                []read
	// of is set for a stack that is not there yet: of element Element of the state, which each
	// round hands to the next.
	of *hlo.Shape
}

// A read is an instruction of the backward body that reads a slice of a stack.
type read struct {
	user *hlo.Instruction
	// slice is the dynamic-slice: user itself, or in the fusion that user is or starts.
	slice *hlo.Instruction
}

// A Pair is a loop with stacks, and the later loop that reads them.
type Pair struct {
	Forward, Backward *hlo.Instruction
	Trips             uint64
	Stacks            []*Stack
	f, b              *loop
	rounds            affine // the forward loop's round as a function of the backward loop's
	leaves            map[*hlo.Instruction][]*Stack
	carried           map[int]*Stack // that could be stacked up, by element of the state
	effects           hlo.Effects
}

// A loop is a while whose state is a tuple, and that counts its rounds from 0.
type loop struct {
	while, init, parameter *hlo.Instruction
	body, condition        *hlo.Computation
	counter                int // the element of the state
	trips                  int64
	depth                  int // of the sum at hand: see position.go
}

// Find returns the pairs of loops in a verified, scheduled module.
func Find(m *hlo.Module) (list []*Pair) {
	for _, c := range m.Computations {
		var loops []*loop
		for _, i := range c.Instructions {
			if i.Opcode != hlo.While {
				continue
			}
			b := newLoop(i)
			if b == nil {
				continue
			}
			for _, f := range loops {
				if p := newPair(f, b); p != nil {
					list = append(list, p)
				}
			}
			loops = append(loops, b)
		}
	}

	return list
}

// mostTrips keeps numbers of rounds far from the ends of 32 bits.
const mostTrips = 1 << 24

// newLoop returns the loop of a while, nil if it has another form.
func newLoop(w *hlo.Instruction) *loop {
	l := &loop{while: w, body: w.Call("body"), condition: w.Call("condition"), counter: -1}
	trips, ok := cost.TripCount(w)
	if !ok || trips < 2 || trips > mostTrips {
		return nil
	}
	if l.body == nil || l.condition == nil || len(w.Operands) != 1 {
		return nil
	}

	l.trips, l.init = int64(trips), w.Operands[0]
	if !l.hasTuples() {
		return nil
	}

	for _, c := range []*hlo.Computation{l.body, l.condition} {
		list := c.Parameters()
		if len(list) != 1 || list[0] == nil || !only(list[0].Users, hlo.GetTupleElement) {
			return nil
		}
	}

	l.parameter = l.body.Parameters()[0]
	for k, o := range l.body.Root.Operands {
		if n, ok := constantOf(through(l.init.Operands[k])); !ok || n != 0 {
			continue
		}
		l.counter = k
		if a, ok := l.position(o); ok && a == (affine{1, 1}) {
			return l
		}
	}

	return nil
}

// hasTuples reports whether the loop begins with a tuple, ends each round with one, and neither is
// used otherwise.
func (l *loop) hasTuples() bool {
	w, root := l.while, l.body.Root
	if w.Shape.Type != hlo.Tuple || l.init.Opcode != hlo.TupleOp || len(l.init.Users) != 1 {
		return false
	}
	if root.Opcode != hlo.TupleOp || len(root.Operands) != len(w.Shape.Elements) || len(root.Users) > 0 {
		return false
	}
	return only(w.Users, hlo.GetTupleElement) && w.Parent.Root != w && w.Parent.Root != l.init
}

func only(list []*hlo.Instruction, o hlo.Opcode) bool {
	return !slices.ContainsFunc(list, func(i *hlo.Instruction) bool { return i.Opcode != o })
}

// invariant reports whether each round hands on an element of the state as it is.
func (l *loop) invariant(n int) bool { return l.element(l.body.Root.Operands[n]) == n }

// gets returns the instructions that get element n of a tuple.
func gets(tuple *hlo.Instruction, n int) (list []*hlo.Instruction) {
	for _, u := range tuple.Users {
		if k, err := u.TupleIndex(); err == nil && u.Opcode == hlo.GetTupleElement && k == n {
			list = append(list, u)
		}
	}
	return list
}

// through returns what an instruction is a copy of, in the same layout.
func through(i *hlo.Instruction) *hlo.Instruction {
	for i.Opcode == hlo.Copy && i.Shape.Equal(i.Operands[0].Shape) {
		i = i.Operands[0]
	}
	return i
}

// seen returns what an instruction shows under another shape.
func seen(i *hlo.Instruction) *hlo.Instruction {
	for i.Opcode == hlo.Bitcast {
		i = i.Operands[0]
	}
	return i
}

// newPair returns the pair of two loops, nil if the second reads no stack of the first that can
// be dropped, or used to compute others.
func newPair(f, b *loop) *Pair {
	if f.trips != b.trips || f.body == b.body {
		return nil
	}

	p := &Pair{Forward: f.while, Backward: b.while, Trips: uint64(f.trips), f: f, b: b}
	p.leaves, p.effects = map[*hlo.Instruction][]*Stack{}, hlo.Effects{}
	for n, e := range f.while.Shape.Elements {
		s := f.stack(n, e)
		if s == nil {
			continue
		}
		to, ok := b.reads(s, gets(f.while, n))
		if !ok || to.a == 0 { // nothing reads it as a stack
			continue
		}
		// Slot at of the forward loop is slot to of the backward loop.
		r := to.less(s.at.b).times(s.at.a)
		if p.rounds.a == 0 {
			p.rounds = r
		} else if p.rounds != r {
			continue
		}
		p.Stacks = append(p.Stacks, s)
		if s.value != nil {
			p.leaves[through(s.value)] = append(p.leaves[through(s.value)], s)
		}
	}

	if len(p.Stacks) == 0 {
		return nil
	}

	p.carried = map[int]*Stack{}
	for n, e := range f.while.Shape.Elements {
		if s := f.couldStack(n, e); s != nil && f.stack(n, e) == nil {
			p.carried[n] = s
		}
	}
	return p
}

// couldStack returns a stack of what each round hands to the next in element n of the state; nil if it
// is no such value.
func (l *loop) couldStack(n int, e *hlo.Shape) *Stack {
	switch e.Type {
	case "f32", "f64", "f16", "bf16", "s32", "u32": // a 0 of these can be written
	default:
		return nil
	}

	list := gets(l.parameter, n)
	if n == l.counter || l.invariant(n) || len(list) == 0 {
		return nil
	}

	order, ok := e.MinorToMajor()
	bytes, err := e.TotalBytes()
	isPlain := len(e.Dims) > 0 && e.Dynamic == nil && !strings.Contains(e.Layout, ":")
	if !ok || err != nil || bytes > 1<<50 || !isPlain {
		return nil
	}

	var layout strings.Builder
	for _, d := range order {
		layout.WriteString(strconv.Itoa(d+1) + ",")
	}

	stack := &hlo.Shape{Type: e.Type, Dims: append([]int64{l.trips}, e.Dims...), Layout: layout.String() + "0", HasLayout: true}
	slot := *stack
	slot.Dims = append([]int64{1}, e.Dims...)
	return &Stack{Element: n, Bytes: bytes * uint64(l.trips), value: list[0], update: &slot, at: affine{1, 0}, of: stack}
}

// stack returns what the body stacks up in element n of its state, nil if it does not.
func (l *loop) stack(n int, e *hlo.Shape) *Stack {
	if !e.IsArray() || len(e.Dims) == 0 || e.Dims[0] != l.trips || l.invariant(n) {
		return nil
	}

	bytes, err := e.TotalBytes()
	if err != nil {
		return nil
	}

	by, d := writerOf(l.body.Root.Operands[n])
	if d == nil || d.Opcode != hlo.DynamicUpdateSlice || !d.Shape.Equal(e) || !l.updates(n, by, d) {
		return nil
	}

	s := &Stack{Element: n, Bytes: bytes, update: d.Operands[1].Shape}
	var ok bool
	if s.at, ok = l.slot(d.Operands[2:], by, fused(by)); !ok || !isSlice(s.update, e) {
		return nil
	}

	switch v := seen(d.Operands[1]); {
	case d == by:
		s.value = v
	case v.Opcode == hlo.Parameter:
		s.value = by.Operands[v.Parameter]
	default:
		if _, aliased := by.Attribute("output_to_operand_aliasing"); aliased || !v.Shape.IsArray() || by.Opcode != hlo.Fusion {
			return nil
		}
		s.inner, s.fusion = v, by
	}

	return s
}

// writerOf returns the instruction that makes a value which only the loop's state reads, and what
// computes the value: the instruction itself, or the root or output of its fused computation. d is nil
// if that cannot be told.
func writerOf(v *hlo.Instruction) (by, d *hlo.Instruction) {
	if len(v.Users) != 1 {
		return nil, nil
	}
	if v.Opcode.IsAsyncDone() && len(v.Operands) == 1 {
		if v = v.Operands[0]; !wrapsFusion(v) || len(v.Users) != 1 {
			return nil, nil
		}
	}

	index := -1
	if v.Opcode == hlo.GetTupleElement && v.Operands[0].Opcode == hlo.Fusion {
		n, err := v.TupleIndex()
		if err != nil {
			return nil, nil
		}
		index, v = n, v.Operands[0]
	}

	c := fused(v)
	if c == nil {
		return v, v
	}
	if kind, _ := v.Attribute("kind"); kind != "kLoop" {
		return nil, nil
	}
	if index < 0 {
		return v, c.Root
	}
	if c.Root.Opcode != hlo.TupleOp || index >= len(c.Root.Operands) {
		return nil, nil
	}
	return v, c.Root.Operands[index]
}

// updates reports whether a dynamic-update-slice, which an instruction of the body makes, writes into
// element n of the state, and nothing else reads that.
func (l *loop) updates(n int, by, d *hlo.Instruction) bool {
	into := d.Operands[0]
	if len(into.Users) != 1 {
		return false
	}
	if d != by {
		if into.Opcode != hlo.Parameter || !once(by.Operands, by.Operands[into.Parameter]) {
			return false
		}
		into = by.Operands[into.Parameter]
	}

	return l.element(into) == n && len(into.Users) == 1 && len(gets(l.parameter, n)) == 1
}

func once(list []*hlo.Instruction, i *hlo.Instruction) bool {
	n := slices.Index(list, i)
	return n >= 0 && !slices.Contains(list[n+1:], i)
}

// wrapsFusion reports whether an instruction starts a fusion that runs beside others.
func wrapsFusion(i *hlo.Instruction) bool { return i.Opcode == "fusion-start" }

// isSlice reports whether s is one slot of a stack.
func isSlice(s, stack *hlo.Shape) bool {
	if s.Type != stack.Type || len(s.Dims) != len(stack.Dims) || s.Dynamic != nil || stack.Dynamic != nil {
		return false
	}
	return s.Dims[0] == 1 && slices.Equal(s.Dims[1:], stack.Dims[1:])
}

// reads adds what the body reads of a stack, and returns at which slot, with a = 0 if it is read
// nowhere. ok is false if something else reads it. from are the instructions that get it from
// the forward loop.
func (l *loop) reads(s *Stack, from []*hlo.Instruction) (at affine, ok bool) {
	for _, g := range from {
		for _, u := range g.Users {
			if u != l.init {
				return at, false
			}
		}
		if g.Parent.Root == g {
			return at, false
		}
		for n, o := range l.init.Operands {
			if o != g {
				continue
			}
			if !l.invariant(n) {
				return at, false
			}
			s.in = append(s.in, n)
			for _, e := range gets(l.parameter, n) {
				for _, u := range e.Users {
					if u == l.body.Root {
						continue
					}
					if !l.readsOf(s, e, u, &at) {
						return at, false
					}
				}
			}
			if len(gets(l.condition.Parameters()[0], n)) > 0 {
				return at, false
			}
		}
	}

	return at, true
}

// readsOf adds what one user reads of a stack; false if it is no slot, or not the one that
// others read.
func (l *loop) readsOf(s *Stack, e, u *hlo.Instruction, at *affine) bool {
	add := func(d *hlo.Instruction, c *hlo.Computation) bool {
		if d.Opcode != hlo.DynamicSlice || !isSlice(d.Shape, e.Shape) || !d.Shape.Equal(s.update) {
			return false
		}
		a, ok := l.slot(d.Operands[1:], u, c)
		if !ok || at.a != 0 && *at != a {
			return false
		}
		*at = a
		s.reads = append(s.reads, read{u, d})
		return true
	}

	c := fused(u)
	if c == nil {
		return once(u.Operands, e) && add(u, nil)
	}
	if !once(u.Operands, e) {
		return false
	}
	if wrapsFusion(u) && (sliceOf(c) == nil || len(u.Users) != 1 || !u.Users[0].Opcode.IsAsyncDone()) {
		return false
	}

	q := c.Parameters()[slices.Index(u.Operands, e)]
	if c.Root == q || len(q.Users) == 0 {
		return false
	}

	for _, d := range q.Users {
		if !once(d.Operands, q) || !add(d, c) {
			return false
		}
	}
	return true
}

// sliceOf returns the dynamic-slice of a fused computation that does no more than take a slot of its
// parameter; nil if it does more.
func sliceOf(c *hlo.Computation) *hlo.Instruction {
	if d := seen(c.Root); d.Opcode == hlo.DynamicSlice && d.Operands[0].Opcode == hlo.Parameter {
		return d
	}
	return nil
}
