package legal

// Loops whose state changed: of what the forward loop stacked up for the backward loop, a part
// is computed again in the backward loop.
//
// Of
//
//	forward, in round i                           backward, in round j
//	t   = tanh(h)                                 t = dynamic-slice(ts, n-1-j)
//	ts' = dynamic-update-slice(ts, t, i)          g = multiply(t, d)
//	hs' = dynamic-update-slice(hs, h, i)
//
// the planned module has no ts: its backward body has t' = tanh(dynamic-slice(hs, n-1-j)), and
// g = multiply(t', d). A body that is numbered by itself says nothing about that, as ts and hs
// are two elements of its parameter. So the bodies of such loops are numbered where they run:
//
//   - An element of the state that each round hands on is what the loop was given. Any other is
//     a symbol, "element k at the beginning of round i". Loops have the same symbols in both
//     modules.
//   - Whole numbers are a*i + b, where they are.
//   - An element is a stack if round i writes slot a*i + b of it, and all slots are written: it
//     has one for each round, i begins with 0 and grows by 1 to the number of rounds.
//   - The backward loop's j is numbered as the i of which it reads slots. So a slot that it
//     reads has the number of what round i wrote there, in both modules.
//
// What is left is induction. If elements of the two loops begin with the same numbers, and a
// round that begins with the same symbols ends with the same numbers and the same condition,
// they are the same after each round. Then each instruction of a body has to have a number that
// the body had before, or, in the backward loop, the forward body. What only reads a slot, or
// writes a new stack, has no effect and may be new.

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"gpumem/xla/hlo"
)

// A changed is a loop whose state is another in the planned module.
type changed struct {
	id     int32
	number int32 // of the loop in the list: 1, 2, ...
	before side
	after  side
	// backward is set if the loop reads stacks of another one, whose round is a*j + b.
	forward *changed
	a, b    int64
}

// A side is a changed loop in one of the modules.
type side struct {
	*changed
	w               *hlo.Instruction
	body, condition *hlo.Computation
	names           []int32 // of the elements: the same in both modules; below 0: new
	inits, nexts    []int32
	counter         int // the element that counts rounds, -1: unknown
	rounds          int64
	test            int32 // the condition's number
	// configs are what a compiler wrote down about slots: of a GPU's backend, how the
	// bytes' place depends on the round, which does not hold in another loop.
	configs map[string]*hlo.Instruction
}

// facts are what is known of a number in such loops.
type facts struct {
	// A whole number a*symbol + b. symbol is 0 for a constant.
	whole  bool
	symbol int32
	a, b   int64
	below  int64 // a test that such a number is below this one
	tests  bool
	update *updateFact
	stack  *stackFact
}

// An updateFact is a dynamic-update-slice.
type updateFact struct {
	into, at int32
	zeros    bool  // the other indices are 0
	value    int32 // what is written, as it lies in memory, with its shape
	shape    *hlo.Shape
	slot     *hlo.Shape
	plain    bool // it is in memory before; else value is inside of the fusion
}

// A stackFact is a loop's result with what each round wrote.
type stackFact struct {
	of    *changed
	a, b  int64 // round i writes slot a*i + b
	value int32
	slot  int32 // shape
}

// A slotRead is a slot of a stack that is read in a loop.
type slotRead struct {
	stack *stackFact
	facts // the slot
}

// changedLoops pairs the loops whose state has other shapes; it is empty if none has. With all it
// pairs all loops, as what a state has may be another at the same shapes.
func changedLoops(before, after *hlo.Module, all bool) ([]*changed, error) {
	var list []*changed
	for _, c := range after.Computations {
		for _, w := range c.Instructions {
			if w.Opcode != hlo.While {
				continue
			}
			old := before.Computation(c.Name)
			if old == nil {
				continue
			}
			x := old.Instruction(w.Name)
			if x == nil || x.Opcode != hlo.While {
				continue
			}
			same := len(x.Shape.Elements) == len(w.Shape.Elements) && x.Shape.Equal(w.Shape)
			if same && !all {
				continue
			}
			k := &changed{number: int32(len(list) + 1)}
			k.before, k.after = side{changed: k, w: x}, side{changed: k, w: w}
			err := cmp.Or(k.before.form(), k.after.form())
			if err == nil {
				err = k.match()
			}
			switch {
			case err == nil:
				list = append(list, k)
			case !same:
				return nil, err
			}
		}
	}
	return list, nil
}

// form checks that a loop has the form that can be proven.
func (s *side) form() error {
	s.counter = -1
	s.body, s.condition = s.w.Call("body"), s.w.Call("condition")
	no := func(what string) error {
		return fail(s.w, "its state changed, and %s: that cannot be proven", what)
	}
	if s.body == nil || s.condition == nil || s.w.Shape.Type != hlo.Tuple || len(s.w.Operands) != 1 {
		return no("it is no loop over a tuple")
	}
	if root := s.body.Root; root.Opcode != hlo.TupleOp || len(root.Operands) != len(s.w.Shape.Elements) {
		return no("its body does not end in a tuple")
	}
	for _, c := range []*hlo.Computation{s.body, s.condition} {
		if list := c.Parameters(); len(list) != 1 || list[0] == nil {
			return no("its body has several parameters")
		}
		for i := range s.w.Parent.Module.All() {
			if i != s.w && slices.Contains(i.Called(), c) {
				return no(i.Name + " calls " + c.Name + ", too")
			}
		}
	}
	return nil
}

// shares reports two elements of the state that begin in the same memory, if a round may write to it.
// XLA copies one of them, but not after it has scheduled.
func (s *side) shares() error {
	tuple := s.w.Operands[0]
	if tuple.Opcode != hlo.TupleOp {
		return fail(s.w, "its state changed, and does not begin as a tuple: that cannot be proven")
	}
	type place struct {
		i  *hlo.Instruction
		at string
	}
	first := map[place]int{}
	for n, o := range tuple.Operands {
		i, at := behind(o, nil)
		x := place{i, fmt.Sprint(at)}
		if k, ok := first[x]; ok && (s.carried(k) || s.carried(n)) {
			return fail(s.w, "elements %d and %d of its state begin in the same memory, and a round writes there", k, n)
		}
		if _, ok := first[x]; !ok || s.carried(n) {
			first[x] = n
		}
	}
	return nil
}

// carried reports whether a round may change element k of the state.
func (s *side) carried(k int) bool {
	o := s.body.Root.Operands[k]
	if o.Opcode != hlo.GetTupleElement || o.Operands[0] != s.body.Parameters()[0] {
		return true
	}
	n, err := o.TupleIndex()
	return err != nil || n != k
}

// match names the elements of both loops. What is matched is only a guess, which the induction
// confirms: two are one if the same instruction, by name, makes their next value.
func (k *changed) match() error {
	maker := func(s *side, n int) []string {
		o := s.body.Root.Operands[n]
		list := []string{o.Name, original(o.Name)}
		if o.Opcode == hlo.GetTupleElement { // of a fusion that may have been pruned
			list = append(list, o.Operands[0].Name)
		}
		return list
	}
	free := map[int]bool{}
	k.before.names = make([]int32, len(k.before.w.Shape.Elements))
	for n := range k.before.names {
		k.before.names[n] = int32(n)
		free[n] = k.before.carried(n)
	}
	for n, e := range k.after.w.Shape.Elements {
		name := int32(-1 - n)
		if k.after.carried(n) {
			mine := maker(&k.after, n)
		search:
			for _, by := range []int{0, 1, 2} {
				for m, x := range k.before.w.Shape.Elements {
					if theirs := maker(&k.before, m); free[m] && sameShape(x, e) && (by < 2 && by < len(mine) && mine[by] == theirs[0] || by == 2 && len(theirs) > 2 && mine[0] == theirs[2]) {
						name, free[m] = int32(m), false
						break search
					}
				}
			}
		}
		k.after.names = append(k.after.names, name)
	}
	// What a compiler wrote down about the loop must stay true.
	was, is := numbersIn(k.before.w), numbersIn(k.after.w)
	if len(was) != len(is) {
		return fail(k.after.w, "its backend_config differs")
	}
	for n := range is {
		if is[n] >= len(k.after.names) || k.after.names[is[n]] != int32(was[n]) {
			return fail(k.after.w, "its backend_config names element %d, which is another one now", is[n])
		}
	}
	return nil
}

func sameShape(x, y *hlo.Shape) bool { return x.Equal(y) && x.FullLayout() == y.FullLayout() }

var tupleIndex = regexp.MustCompile(`"tuple_index":"(\d+)"`)

// numbersIn returns the elements that a loop's backend_config names.
func numbersIn(w *hlo.Instruction) (list []int) {
	config, _ := w.Attribute("backend_config")
	for _, m := range tupleIndex.FindAllStringSubmatch(config, -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			n = 1 << 30
		}
		list = append(list, n)
	}
	return list
}

// whole interns a whole number.
func (t *table) whole(symbol int32, a, b int64) (int32, bool) {
	const most = 1 << 29
	if a < -1 || a > 1 || b < -most || b > most {
		return 0, false
	}
	if a == 0 {
		symbol = 0
	}
	if a == 1 && b == 0 {
		return symbol, true
	}
	v := t.intern(numberKey([]byte("whole "), symbol, int32(a), int32(b)))
	t.values[v].facts = facts{whole: true, symbol: symbol, a: a, b: b}
	return v, true
}

// isWhole reports whether a shape is that of the numbers that count rounds.
func isWhole(s *hlo.Shape) bool { return s.Type == "s32" && len(s.Dims) == 0 }

// inLoops returns the number of an instruction where there are changed loops; ok is false if
// it is that of any module.
func (n *numbered) inLoops(i *hlo.Instruction) (int32, bool) {
	t := n.t
	operand := func(k int) int32 { return n.of[i.Operands[k].ID] }
	switch i.Opcode {
	case hlo.While:
		if s := n.loops[i]; s != nil {
			return n.loop(s)
		}
	case hlo.Copy:
		if sameShape(i.Shape, i.Operands[0].Shape) {
			return operand(0), true
		}
	case hlo.Constant:
		if b, err := strconv.ParseInt(i.Literal, 10, 32); err == nil && isWhole(i.Shape) {
			return t.whole(0, 0, b)
		}
	case hlo.Add, hlo.Subtract:
		x, y := t.values[operand(0)].facts, t.values[operand(1)].facts
		if !isWhole(i.Shape) || !x.whole || !y.whole || x.a != 0 && y.a != 0 && x.symbol != y.symbol {
			break
		}
		if i.Opcode == hlo.Subtract {
			y.a, y.b = -y.a, -y.b
		}
		symbol := x.symbol
		if x.a == 0 {
			symbol = y.symbol
		}
		return t.whole(symbol, x.a+y.a, x.b+y.b)
	case hlo.Compare:
		direction, _ := i.Attribute("direction")
		x, y := t.values[operand(0)].facts, t.values[operand(1)].facts
		if direction == "LT" && isWhole(i.Operands[0].Shape) && x.whole && y.whole && x.a == 1 && y.a == 0 {
			v := t.intern(numberKey([]byte("below "), operand(0), operand(1)))
			x.whole, x.tests, x.below = false, true, y.b
			t.values[v].facts = x
			return v, true
		}
	case hlo.Fusion:
		return 0, false
	case "fusion-start":
		e := i.Shape.Elements
		if len(e) < 2 || n.classes[i.ID]&effect != 0 || i.Call("calls") == nil || len(i.Call("calls").Parameters()) != len(i.Operands) {
			break
		}
		v, ok := n.fusion(i, e[1])
		if !ok {
			break
		}
		var operands []int32
		for k := range i.Operands {
			operands = append(operands, operand(k))
		}
		handed := n.tuple(numberKey([]byte("tuple "), t.shape(e[0])), operands)
		context := t.intern(numberKey([]byte("context "), v))
		return n.tuple(numberKey([]byte("fusion-start "), t.shape(i.Shape)), []int32{handed, v, context}[:min(len(e), 3)]), true
	case "fusion-done":
		if e := t.values[operand(0)].elements; len(e) > 1 && i.Operands[0].Opcode == "fusion-start" {
			return e[1], true
		}
	case hlo.DynamicSlice:
		if v, ok := n.slot(i); ok {
			return v, true
		}
		v := t.intern(n.atSlot(i, 1))
		if t.values[v].shape < 0 {
			t.values[v].shape = t.shape(i.Shape)
		}
		return v, true
	case hlo.DynamicUpdateSlice:
		b := i.Operands[1]
		for b.Opcode == hlo.Bitcast {
			b = b.Operands[0]
		}
		u := &updateFact{into: operand(0), at: operand(2), zeros: n.zeros(i.Operands[3:]), value: n.of[b.ID], shape: b.Shape, slot: i.Operands[1].Shape}
		u.plain = b.Opcode == hlo.Parameter || !n.inFusion(i)
		key := n.atSlot(i, 2)
		if u.plain {
			key = append(key, " plain"...)
		}
		v := t.intern(key)
		if t.values[v].shape < 0 {
			t.values[v].shape = t.shape(i.Shape)
		}
		t.values[v].update = u
		return v, true
	}
	return 0, false
}

// atSlot returns the key of a dynamic-slice or dynamic-update-slice whose operand number first
// says where. What the compiler wrote down about that is no part of the value.
func (n *numbered) atSlot(i *hlo.Instruction, first int) []byte {
	config := ""
	key := numberKey(append([]byte(i.Opcode), ' '), n.t.shape(i.Shape))
	for _, a := range i.Attributes {
		switch a.Key {
		case "metadata":
		case "backend_config":
			config = a.Value
		default:
			key = append(append(append(key, 0), a.Key+"="...), a.Value...)
		}
	}
	for _, o := range i.Operands {
		key = numberKey(key, n.of[o.ID], n.t.shape(o.Shape))
	}
	if n.current != nil && config != "" {
		at := numberKey([]byte(config), n.t.shape(i.Operands[0].Shape))
		for _, o := range i.Operands[first:] {
			at = numberKey(at, n.of[o.ID])
		}
		n.current.configs[string(at)] = i
	}
	return key
}

// inFusion reports whether an instruction is inside of a fusion.
func (n *numbered) inFusion(i *hlo.Instruction) bool {
	if n.inner == nil {
		n.inner = map[*hlo.Computation]bool{}
		for x := range n.m.All() {
			if x.Opcode == hlo.Fusion || x.Opcode == "fusion-start" {
				for _, c := range x.Called() {
					n.inner[c] = true
				}
			}
		}
	}
	return n.inner[i.Parent]
}

// zeros reports whether all of some instructions are 0.
func (n *numbered) zeros(list []*hlo.Instruction) bool {
	for _, i := range list {
		if f := n.t.values[n.of[i.ID]].facts; !f.whole || f.a != 0 || f.b != 0 {
			return false
		}
	}
	return true
}

// moves reports whether an instruction of a fused computation, which has a number, only moves bytes
// that are in memory before, or counts.
func (n *numbered) moves(i *hlo.Instruction, number int32) bool {
	for i.Opcode == hlo.Bitcast || i.Opcode == hlo.DynamicSlice || i.Opcode == hlo.Copy && sameShape(i.Shape, i.Operands[0].Shape) {
		i = i.Operands[0]
	}
	f := n.t.values[number].facts
	return i.Opcode == hlo.Parameter || f.whole || f.tests
}

// updated notes that number v is a fusion that ends in the update that number root is.
func (n *numbered) updated(v, root int32, how []byte) {
	u := n.t.values[root].update
	if u == nil {
		return
	}
	w := *u
	if !w.plain {
		w.value = n.t.intern(numberKey(slices.Clone(how), w.value, n.t.shape(w.shape)))
		if n.t.values[w.value].shape < 0 {
			n.t.values[w.value].shape = n.t.shape(w.shape)
		}
		w.plain = true
	}
	n.t.values[v].update = &w
}

// slot returns the number of a dynamic-slice: of a slot of a stack what was written there.
func (n *numbered) slot(i *hlo.Instruction) (int32, bool) {
	t := n.t
	k, f := t.values[n.of[i.Operands[0].ID]].stack, t.values[n.of[i.Operands[1].ID]].facts
	if k == nil || !f.whole || f.a == 0 || !n.zeros(i.Operands[2:]) || t.shape(i.Shape) != k.slot {
		return 0, false
	}
	if f.symbol == k.of.id && f.a == k.a && f.b == k.b {
		n.atSlot(i, 1)
		return k.value, true
	}
	n.reads = append(n.reads, slotRead{k, f})
	return 0, false
}

// loop numbers the body of a changed loop, and returns the number of the loop.
func (n *numbered) loop(s *side) (int32, bool) {
	t := n.t
	s.inits = t.values[n.of[s.w.Operands[0].ID]].elements
	if len(s.inits) != len(s.names) {
		return 0, false
	}
	s.id = t.intern(numberKey([]byte("round "), s.number))
	t.values[s.id].facts = facts{whole: true, symbol: s.id, a: 1}
	symbols := make([]int32, len(s.names))
	for k, name := range s.names {
		if symbols[k] = s.inits[k]; s.carried(k) {
			symbols[k] = t.intern(numberKey([]byte("element "), s.number, name))
		}
	}
	// First, what counts rounds is any element that begins with 0 and is whole; then it is known.
	n.reads = nil
	for k := range symbols {
		if f := t.values[s.inits[k]].facts; s.carried(k) && f.whole && f.a == 0 && f.b == 0 && isWhole(s.w.Shape.Elements[k]) {
			t.values[symbols[k]].facts = facts{whole: true, symbol: symbols[k], a: 1}
		}
	}
	n.bodies(s, symbols)
	for k, symbol := range symbols {
		x, f := t.values[s.nexts[k]].facts, t.values[s.test].facts
		if s.carried(k) && t.values[symbol].whole && x.whole && x.symbol == symbol && x.a == 1 && x.b == 1 && f.tests && f.symbol == symbol && f.a == 1 && f.b == 0 && f.below > 0 {
			s.counter, s.rounds = k, f.below
		}
	}
	if s.counter >= 0 {
		counter := symbols[s.counter]
		symbols[s.counter] = s.id
		if s == &s.changed.before {
			s.relate(n.reads, counter)
		}
		if f := s.forward; f != nil {
			// forward is j, or rounds-1 - j: see relate. Either is its own inverse.
			if v, ok := t.whole(f.id, s.a, s.b); ok {
				symbols[s.counter] = v
			}
		}
		n.bodies(s, symbols)
	}
	n.reads = nil
	results := make([]int32, len(s.names))
	for k, name := range s.names {
		if results[k] = s.inits[k]; !s.carried(k) {
			continue
		}
		results[k] = t.intern(numberKey([]byte("result "), s.number, name))
		if u := t.values[s.nexts[k]].update; u != nil && s.counter >= 0 && symbols[s.counter] == s.id {
			at := t.values[u.at].facts
			if u.into == symbols[k] && u.zeros && u.plain && at.whole && at.symbol == s.id && (at.a == 1 && at.b == 0 || at.a == -1 && at.b == s.rounds-1) && isSlot(u.slot, s.w.Shape.Elements[k], s.rounds) {
				t.values[results[k]].stack = &stackFact{s.changed, at.a, at.b, n.seen(u.value, u.shape, u.slot), t.shape(u.slot)}
			}
		}
	}
	for _, c := range []*hlo.Computation{s.body, s.condition} {
		n.functions[c].number = t.intern(numberKey([]byte("loop "), s.number))
	}
	return n.tuple(numberKey([]byte("state "), t.shape(s.w.Shape)), results), true
}

// isSlot reports whether a shape is one slot of a stack with one for each round.
func isSlot(s, stack *hlo.Shape, rounds int64) bool {
	return s.IsArray() && stack.IsArray() && s.Type == stack.Type && len(s.Dims) == len(stack.Dims) && len(s.Dims) > 0 && s.Dynamic == nil && stack.Dynamic == nil &&
		s.Dims[0] == 1 && stack.Dims[0] == rounds && slices.Equal(s.Dims[1:], stack.Dims[1:])
}

// relate finds the loop whose stacks the given module's loop reads: the first that all slots
// of a kind belong to.
func (s *side) relate(reads []slotRead, counter int32) {
	for _, r := range reads {
		// Slot r.a*j + r.b was written in round stack.a*(r.a*j + r.b - stack.b).
		a, b := r.stack.a*r.a, r.stack.a*(r.b-r.stack.b)
		if r.symbol == counter && r.stack.of.before.rounds == s.rounds && (a == 1 && b == 0 || a == -1 && b == s.rounds-1) {
			s.forward, s.changed.a, s.changed.b = r.stack.of, a, b
			return
		}
	}
}

// bodies numbers the body and the condition of a loop whose state begins with some numbers.
func (n *numbered) bodies(s *side, state []int32) {
	t := n.t
	v := n.tuple(numberKey([]byte("tuple "), t.shape(s.w.Shape)), state)
	outer := n.current
	n.current, s.configs, n.fused = s, map[string]*hlo.Instruction{}, map[string][]int32{}
	defer func() { n.current = outer }()
	for _, c := range []*hlo.Computation{s.body, s.condition} {
		place := map[*hlo.Instruction]int{}
		for k, i := range n.functions[c].effects {
			place[i] = k
		}
		for _, i := range operandsFirst(c) {
			if i.Opcode == hlo.Parameter {
				n.of[i.ID] = v
				continue
			}
			n.of[i.ID] = n.instruction(i, place)
		}
	}
	s.nexts, s.test = t.values[n.of[s.body.Root.ID]].elements, n.of[s.condition.Root.ID]
}

// induction checks that matched elements of a changed loop are the same after each round.
func (c *comparison) induction(k *changed) error {
	w := k.after.w
	if len(k.before.nexts) != len(k.before.names) || len(k.after.nexts) != len(k.after.names) {
		return fail(w, "its state changed, and its elements are not known")
	}
	if string(c.before.attributes(nil, k.before.w, false)) != string(c.after.attributes(nil, w, false)) {
		return fail(w, "it has other attributes than before")
	}
	if err := k.after.shares(); err != nil && k.before.shares() == nil {
		return err
	}
	for at, i := range k.after.configs {
		if k.before.configs[at] == nil {
			return fail(i, "its backend_config says where a slot lies in each round, and not of this loop")
		}
	}
	if k.before.test != k.after.test {
		return fail(w, "its state changed, and it ends otherwise than before")
	}
	for n, name := range k.after.names {
		if name < 0 {
			continue
		}
		if k.before.inits[name] != k.after.inits[n] {
			return fail(w, "its state changed, and element %d begins with another value than element %d did", n, name)
		}
		if k.before.nexts[name] != k.after.nexts[n] {
			return fail(k.after.body.Root.Operands[n], "a round hands on another value in element %d than it did in element %d", n, name)
		}
	}
	return nil
}

// again returns the numbers that the backward loop's body may have beside those that it had: what
// the forward body computed, and what it wrote into stacks.
func (c *comparison) again(k *changed) map[int32]bool {
	list := map[int32]bool{}
	if k.forward == nil {
		return list
	}
	f := &k.forward.before
	for _, i := range f.body.Instructions {
		list[c.before.of[i.ID]] = true
	}
	for _, v := range f.nexts {
		if u := c.t.values[v].update; u != nil {
			list[u.value] = true
		}
	}
	return list
}

// mayBeNew reports whether an instruction of a changed loop's body needs no original: it
// repeats what the forward body does, moves bytes, counts rounds, or writes a new stack.
func (k *pair) mayBeNew(i *hlo.Instruction) bool {
	v := k.after.of[i.ID]
	switch f := k.t.values[v].facts; {
	case k.after.classes[i.ID] != 0:
		return false
	case k.forward[v], f.whole, i.Opcode == hlo.Parameter, i.Opcode == hlo.Constant:
		return true
	case i.Opcode == hlo.GetTupleElement:
		return true // of the loop's state, or of a fusion that was looked at
	case i.Opcode == hlo.Bitcast:
		return i.Shape.Space() == i.Operands[0].Shape.Space()
	case !k.after.pure(i):
		return false
	case f.update != nil:
		return true
	case k.after.moves(i.Call("calls").Root, v):
		return true
	}
	return k.pruned(i)
}

// besideLoops reports whether an instruction gets an element of a changed loop's result, or is room
// for one: a fusion of nothing that only begins such loops.
func (k *pair) besideLoops(i *hlo.Instruction) bool {
	if i.Opcode == hlo.GetTupleElement {
		return k.after.loops[i.Operands[0]] != nil
	}
	return i.Opcode == hlo.Fusion && len(i.Operands) == 0 && k.after.classes[i.ID] == 0 && !slices.ContainsFunc(i.Users, func(u *hlo.Instruction) bool {
		return u.Opcode != hlo.TupleOp || slices.ContainsFunc(u.Users, func(w *hlo.Instruction) bool { return k.after.loops[w] == nil })
	})
}

// pruned reports whether an instruction is a fusion of which only some outputs are left, where
// loops need less.
func (k *pair) pruned(i *hlo.Instruction) bool {
	e := k.t.values[k.after.of[i.ID]].elements
	return len(k.loops) > 0 && k.after.pure(i) && len(e) > 0 && !slices.ContainsFunc(e, func(v int32) bool { return !k.forward[v] && len(k.byNumber[v]) == 0 })
}
