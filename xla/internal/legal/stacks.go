package legal

// Loops whose state changed: of what the forward loop stacked up for the backward loop, a part
// is computed again in the backward loop.
//
// In the example of loops.go ts has gone. A body that is numbered by itself says nothing about
// that, as ts and hs are two elements of its parameter. So the bodies of such loops are numbered
// where they run:
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
	"bytes"
	"slices"
	"strconv"

	"gpumem/xla/internal/hlo"
)

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

// isConstant reports whether a number is a constant.
func (f facts) isConstant(b int64) bool { return f.whole && f.a == 0 && f.b == b }

// isNext reports whether a number is one more than a symbol.
func (f facts) isNext(symbol int32) bool {
	return f.whole && f.symbol == symbol && f.a == 1 && f.b == 1
}

// endsCount reports whether a number is the test that a symbol is below a number of rounds.
func (f facts) endsCount(symbol int32) bool {
	return f.tests && f.symbol == symbol && f.a == 1 && f.b == 0 && f.below > 0
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
	of    *changedLoop
	a, b  int64 // round i writes slot a*i + b
	value int32
	slot  int32 // shape
}

// isForwardSlot reports whether round i takes slot a*i + b = i, and isBackwardSlot whether the last
// round takes the first one.
func isForwardSlot(a, b int64) bool          { return a == 1 && b == 0 }
func isBackwardSlot(a, b, rounds int64) bool { return a == -1 && b == rounds-1 }

// A slotRead is a slot of a stack that is read in a loop.
type slotRead struct {
	stack *stackFact
	facts // the slot
}

// wholeNumber numbers a whole number.
func (t *table) wholeNumber(symbol int32, a, b int64) (int32, bool) {
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

	v := t.numberOf(appendNumbers([]byte("whole "), symbol, int32(a), int32(b)))
	t.values[v].facts = facts{whole: true, symbol: symbol, a: a, b: b}
	return v, true
}

// isWhole reports whether a shape is that of the numbers that count rounds.
func isWhole(s *hlo.Shape) bool { return s.Type == "s32" && len(s.Dims) == 0 }

// numberInLoops returns the number of an instruction where there are changed loops; ok is false if
// it is that of any module.
func (n *numbering) numberInLoops(i *hlo.Instruction) (v int32, ok bool) {
	switch i.Opcode {
	case hlo.While:
		if s := n.loops[i]; s != nil {
			return n.numberLoop(s)
		}
	case hlo.Copy:
		if sameShape(i.Shape, i.Operands[0].Shape) {
			return n.operand(i, 0), true
		}
	case hlo.Constant:
		if b, err := strconv.ParseInt(i.Literal, 10, 32); err == nil && isWhole(i.Shape) {
			return n.t.wholeNumber(0, 0, b)
		}
	case hlo.Add, hlo.Subtract:
		return n.numberSum(i)
	case hlo.Compare:
		return n.numberTest(i)
	case "fusion-start":
		return n.numberFusionStart(i)
	case "fusion-done":
		if e := n.t.values[n.operand(i, 0)].elements; len(e) > 1 && i.Operands[0].Opcode == "fusion-start" {
			return e[1], true
		}
	case hlo.DynamicSlice:
		if v, ok := n.readSlot(i); ok {
			return v, true
		}
		return n.t.noteShape(n.t.numberOf(n.slotKey(i, 1)), i.Shape), true
	case hlo.DynamicUpdateSlice:
		return n.numberUpdate(i), true
	}
	return 0, false
}

// operand returns the number of an operand.
func (n *numbering) operand(i *hlo.Instruction, k int) int32 { return n.numbers[i.Operands[k].ID] }

// factsOf returns what is known of an operand.
func (n *numbering) factsOf(i *hlo.Instruction, k int) facts {
	return n.t.values[n.operand(i, k)].facts
}

// numberSum returns the number of a sum or difference of whole numbers.
func (n *numbering) numberSum(i *hlo.Instruction) (int32, bool) {
	x, y := n.factsOf(i, 0), n.factsOf(i, 1)
	if !isWhole(i.Shape) || !x.whole || !y.whole {
		return 0, false
	}
	if x.a != 0 && y.a != 0 && x.symbol != y.symbol {
		return 0, false
	}
	if i.Opcode == hlo.Subtract {
		y.a, y.b = -y.a, -y.b
	}

	symbol := x.symbol
	if x.a == 0 {
		symbol = y.symbol
	}
	return n.t.wholeNumber(symbol, x.a+y.a, x.b+y.b)
}

// numberTest returns the number of a test that symbol + b is below a constant.
func (n *numbering) numberTest(i *hlo.Instruction) (int32, bool) {
	direction, _ := i.Attribute("direction")
	if direction != "LT" || !isWhole(i.Operands[0].Shape) {
		return 0, false
	}

	x, y := n.factsOf(i, 0), n.factsOf(i, 1)
	if !x.whole || !y.whole || x.a != 1 || y.a != 0 {
		return 0, false
	}

	v := n.t.numberOf(appendNumbers([]byte("below "), n.operand(i, 0), n.operand(i, 1)))
	x.whole, x.tests, x.below = false, true, y.b
	n.t.values[v].facts = x
	return v, true
}

// numberFusionStart returns the number of a fusion that runs beside others: a tuple of its operands,
// of what the fusion computes, and of a context.
func (n *numbering) numberFusionStart(i *hlo.Instruction) (int32, bool) {
	t, e := n.t, i.Shape.Elements
	if len(e) < 2 || !n.isPure(i) {
		return 0, false
	}

	v, ok := n.numberFusion(i, e[1])
	if !ok {
		return 0, false
	}

	handed := n.numberTuple(appendNumbers([]byte("tuple "), t.shapeNumber(e[0])), n.numbersOf(i.Operands))
	context := t.numberOf(appendNumbers([]byte("context "), v))
	return n.numberTuple(appendNumbers([]byte("fusion-start "), t.shapeNumber(i.Shape)), []int32{handed, v, context}[:min(len(e), 3)]), true
}

// numberUpdate returns the number of a dynamic-update-slice, and notes what it writes.
func (n *numbering) numberUpdate(i *hlo.Instruction) int32 {
	b := i.Operands[1]
	for b.Opcode == hlo.Bitcast {
		b = b.Operands[0]
	}

	u := &updateFact{
		into: n.operand(i, 0), at: n.operand(i, 2), zeros: n.areZero(i.Operands[3:]),
		value: n.numbers[b.ID], shape: b.Shape, slot: i.Operands[1].Shape,
		plain: b.Opcode == hlo.Parameter || !n.isInFusion(i),
	}

	key := n.slotKey(i, 2)
	if u.plain {
		key = append(key, " plain"...)
	}

	v := n.t.noteShape(n.t.numberOf(key), i.Shape)
	n.t.values[v].update = u
	return v
}

// slotKey returns the key of a dynamic-slice or dynamic-update-slice whose operand number first
// says where. What the compiler wrote down about that is no part of the value.
func (n *numbering) slotKey(i *hlo.Instruction, first int) []byte {
	config := ""
	key := appendNumbers(append([]byte(i.Opcode), ' '), n.t.shapeNumber(i.Shape))
	for _, a := range i.Attributes {
		switch a.Key {
		case "metadata":
		case "backend_config":
			config = a.Value
		default:
			key = append(append(append(key, 0), a.Key+"="...), a.Value...)
		}
	}

	key = n.appendOperands(key, i)
	if n.current != nil && config != "" {
		at := appendNumbers([]byte(config), n.t.shapeNumber(i.Operands[0].Shape))
		at = appendNumbers(at, n.numbersOf(i.Operands[first:])...)
		n.current.configs[string(at)] = i
	}
	return key
}

// isInFusion reports whether an instruction is inside of a fusion.
func (n *numbering) isInFusion(i *hlo.Instruction) bool {
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

// areZero reports whether all of some instructions are 0.
func (n *numbering) areZero(list []*hlo.Instruction) bool {
	for _, i := range list {
		if !n.t.values[n.numbers[i.ID]].isConstant(0) {
			return false
		}
	}
	return true
}

// onlyMoves reports whether an instruction of a fused computation, which has a number, only moves bytes
// that are in memory before, or counts.
func (n *numbering) onlyMoves(i *hlo.Instruction, number int32) bool {
	for i.Opcode == hlo.Bitcast || i.Opcode == hlo.DynamicSlice || i.Opcode == hlo.Copy && sameShape(i.Shape, i.Operands[0].Shape) {
		i = i.Operands[0]
	}
	f := n.t.values[number].facts
	return i.Opcode == hlo.Parameter || f.whole || f.tests
}

// noteUpdate notes that number v is a fusion that ends in the update that number root is.
func (n *numbering) noteUpdate(v, root int32, how []byte) {
	u := n.t.values[root].update
	if u == nil {
		return
	}

	w := *u
	if !w.plain {
		w.value = n.t.numberOf(appendNumbers(slices.Clone(how), w.value, n.t.shapeNumber(w.shape)))
		n.t.noteShape(w.value, w.shape)
		w.plain = true
	}

	n.t.values[v].update = &w
}

// readSlot returns the number of a dynamic-slice: of a slot of a stack what was written there.
func (n *numbering) readSlot(i *hlo.Instruction) (int32, bool) {
	k, f := n.factsOf(i, 0).stack, n.factsOf(i, 1)
	if k == nil || n.t.shapeNumber(i.Shape) != k.slot || !n.areZero(i.Operands[2:]) {
		return 0, false
	}
	if !f.whole || f.a == 0 {
		return 0, false
	}
	if f.symbol == k.of.id && f.a == k.a && f.b == k.b {
		n.slotKey(i, 1)
		return k.value, true
	}

	n.reads = append(n.reads, slotRead{k, f})
	return 0, false
}

// numberLoop numbers the body of a changed loop, and returns the number of the loop.
func (n *numbering) numberLoop(s *loopSide) (int32, bool) {
	t := n.t
	s.inits = t.values[n.operand(s.w, 0)].elements
	if len(s.inits) != len(s.names) {
		return 0, false
	}

	s.id = t.numberOf(appendNumbers([]byte("round "), s.number))
	t.values[s.id].facts = facts{whole: true, symbol: s.id, a: 1}
	symbols := make([]int32, len(s.names))
	for k, name := range s.names {
		if symbols[k] = s.inits[k]; s.isCarried(k) {
			symbols[k] = t.numberOf(appendNumbers([]byte("element "), s.number, name))
		}
	}

	n.findCounter(s, symbols)
	if s.counter >= 0 {
		n.numberRounds(s, symbols)
	}

	n.reads = nil

	results := make([]int32, len(s.names))
	for k, name := range s.names {
		if results[k] = s.inits[k]; s.isCarried(k) {
			results[k] = t.numberOf(appendNumbers([]byte("result "), s.number, name))
			n.noteStack(s, k, symbols, results[k])
		}
	}

	for _, c := range s.bodies() {
		n.functions[c].number = t.numberOf(appendNumbers([]byte("loop "), s.number))
	}
	return n.numberTuple(appendNumbers([]byte("state "), t.shapeNumber(s.w.Shape)), results), true
}

// findCounter finds the element that counts rounds: it begins with 0, grows by 1, and the condition
// tests it. Before that is known, it may be any element that begins with 0 and is whole.
func (n *numbering) findCounter(s *loopSide, symbols []int32) {
	t := n.t
	n.reads = nil
	for k, symbol := range symbols {
		if s.isCarried(k) && isWhole(s.w.Shape.Elements[k]) && t.values[s.inits[k]].isConstant(0) {
			t.values[symbol].facts = facts{whole: true, symbol: symbol, a: 1}
		}
	}

	n.numberBodies(s, symbols)
	test := t.values[s.test].facts
	for k, symbol := range symbols {
		counts := s.isCarried(k) && t.values[symbol].whole && t.values[s.nexts[k]].isNext(symbol)
		if counts && test.endsCount(symbol) {
			s.counter, s.rounds = k, test.below
		}
	}
}

// numberRounds numbers the bodies of a loop again whose counter is known: it is the number of the round,
// or in a loop that reads stacks what that was in the loop that wrote them.
func (n *numbering) numberRounds(s *loopSide, symbols []int32) {
	counter := symbols[s.counter]
	symbols[s.counter] = s.id
	if s == &s.changedLoop.before {
		s.relateLoops(n.reads, counter)
	}
	if f := s.forward; f != nil {
		// forward is j, or rounds-1 - j: see relateLoops. Either is its own inverse.
		if v, ok := n.t.wholeNumber(f.id, s.a, s.b); ok {
			symbols[s.counter] = v
		}
	}

	n.numberBodies(s, symbols)
}

// noteStack notes that a loop's result is a stack, if each round writes a slot of element k and all
// slots are written.
func (n *numbering) noteStack(s *loopSide, k int, symbols []int32, result int32) {
	u := n.t.values[s.nexts[k]].update
	if u == nil || s.counter < 0 || symbols[s.counter] != s.id {
		return
	}
	if u.into != symbols[k] || !u.zeros || !u.plain || !isSlot(u.slot, s.w.Shape.Elements[k], s.rounds) {
		return
	}

	at := n.t.values[u.at].facts
	if at.whole && at.symbol == s.id && (isForwardSlot(at.a, at.b) || isBackwardSlot(at.a, at.b, s.rounds)) {
		n.t.values[result].stack = &stackFact{s.changedLoop, at.a, at.b, n.numberView(u.value, u.shape, u.slot), n.t.shapeNumber(u.slot)}
	}
}

// isSlot reports whether a shape is one slot of a stack with one for each round.
func isSlot(s, stack *hlo.Shape, rounds int64) bool {
	if !isStatic(s) || !isStatic(stack) || s.Type != stack.Type || len(s.Dims) != len(stack.Dims) {
		return false
	}
	return s.Dims[0] == 1 && stack.Dims[0] == rounds && slices.Equal(s.Dims[1:], stack.Dims[1:])
}

// isStatic reports whether a shape is an array of known dimensions.
func isStatic(s *hlo.Shape) bool { return s.IsArray() && len(s.Dims) > 0 && s.Dynamic == nil }

// relateLoops finds the loop whose stacks the given module's loop reads: the first that all slots
// of a kind belong to.
func (s *loopSide) relateLoops(reads []slotRead, counter int32) {
	for _, r := range reads {
		if r.symbol != counter || r.stack.of.before.rounds != s.rounds {
			continue
		}
		// Slot r.a*j + r.b was written in round stack.a*(r.a*j + r.b - stack.b).
		a, b := r.stack.a*r.a, r.stack.a*(r.b-r.stack.b)
		if isForwardSlot(a, b) || isBackwardSlot(a, b, s.rounds) {
			s.forward, s.changedLoop.a, s.changedLoop.b = r.stack.of, a, b
			return
		}
	}
}

// numberBodies numbers the body and the condition of a loop whose state begins with some numbers.
func (n *numbering) numberBodies(s *loopSide, state []int32) {
	t := n.t
	v := n.numberTuple(appendNumbers([]byte("tuple "), t.shapeNumber(s.w.Shape)), state)
	outer := n.current
	n.current, s.configs, n.fused = s, map[string]*hlo.Instruction{}, map[string][]int32{}
	defer func() { n.current = outer }()
	for _, c := range s.bodies() {
		place := map[*hlo.Instruction]int{}
		for k, i := range n.functions[c].effects {
			place[i] = k
		}
		for _, i := range operandsFirst(c) {
			if i.Opcode == hlo.Parameter {
				n.numbers[i.ID] = v
			} else {
				n.numbers[i.ID] = n.numberInstruction(i, place)
			}
		}
	}

	s.nexts, s.test = t.values[n.numbers[s.body.Root.ID]].elements, n.numbers[s.condition.Root.ID]
}

// checkInduction checks that matched elements of a changed loop are the same after each round.
func (c *comparison) checkInduction(k *changedLoop) error {
	w := k.after.w
	if len(k.before.nexts) != len(k.before.names) || len(k.after.nexts) != len(k.after.names) {
		return refuse(w, "its state changed, and its elements are not known")
	}
	if !bytes.Equal(c.before.appendAttributes(nil, k.before.w, false), c.after.appendAttributes(nil, w, false)) {
		return refuse(w, "it has other attributes than before")
	}
	if err := k.after.sharesMemory(); err != nil && k.before.sharesMemory() == nil {
		return err
	}

	for at, i := range k.after.configs {
		if k.before.configs[at] == nil {
			return refuse(i, "its backend_config says where a slot lies in each round, and not of this loop")
		}
	}

	if k.before.test != k.after.test {
		return refuse(w, "its state changed, and it ends otherwise than before")
	}

	for n, name := range k.after.names {
		if name < 0 {
			continue
		}
		if k.before.inits[name] != k.after.inits[n] {
			return refuse(w, "its state changed, and element %d begins with another value than element %d did", n, name)
		}
		if k.before.nexts[name] != k.after.nexts[n] {
			return refuse(k.after.body.Root.Operands[n], "a round hands on another value in element %d than it did in element %d", n, name)
		}
	}

	return nil
}

// forwardNumbers returns the numbers that the backward loop's body may have beside those that it had: what
// the forward body computed, and what it wrote into stacks.
func (c *comparison) forwardNumbers(k *changedLoop) map[int32]bool {
	list := map[int32]bool{}
	if k.forward == nil {
		return list
	}

	f := &k.forward.before
	for _, i := range f.body.Instructions {
		list[c.before.numbers[i.ID]] = true
	}

	for _, v := range f.nexts {
		if u := c.t.values[v].update; u != nil {
			list[u.value] = true
		}
	}
	return list
}

// isOfLoops reports whether an instruction needs no original, as it is one of loops that changed.
func (k *pair) isOfLoops(i *hlo.Instruction) bool {
	return k.after.loops[i] != nil || k.loop != nil && k.mayBeNew(i) || k.isPruned(i) || k.isBesideLoops(i)
}

// mayBeNew reports whether an instruction of a changed loop's body needs no original: it
// repeats what the forward body does, moves bytes, counts rounds, or writes a new stack.
func (k *pair) mayBeNew(i *hlo.Instruction) bool {
	v := k.after.numbers[i.ID]
	switch f := k.t.values[v].facts; {
	case k.after.classes[i.ID] != 0:
		return false
	case k.forward[v], f.whole, i.Opcode == hlo.Parameter, i.Opcode == hlo.Constant:
		return true
	case i.Opcode == hlo.GetTupleElement:
		return true // of the loop's state, or of a fusion that was looked at
	case i.Opcode == hlo.Bitcast:
		return i.Shape.Space() == i.Operands[0].Shape.Space()
	case !k.after.isPureFusion(i):
		return false
	case f.update != nil:
		return true
	case k.after.onlyMoves(i.Call("calls").Root, v):
		return true
	}
	return k.isPruned(i)
}

// isBesideLoops reports whether an instruction gets an element of a changed loop's result, or is room
// for one: a fusion of nothing that only begins such loops.
func (k *pair) isBesideLoops(i *hlo.Instruction) bool {
	changes := func(w *hlo.Instruction) bool { return k.after.loops[w] != nil }
	switch {
	case i.Opcode == hlo.GetTupleElement:
		return changes(i.Operands[0])
	case i.Opcode != hlo.Fusion || len(i.Operands) > 0 || k.after.classes[i.ID] != 0:
		return false
	}

	for _, u := range i.Users {
		if u.Opcode != hlo.TupleOp || !every(u.Users, changes) {
			return false
		}
	}
	return true
}

// isPruned reports whether an instruction is a fusion of which only some outputs are left, where
// loops need less.
func (k *pair) isPruned(i *hlo.Instruction) bool {
	e := k.t.values[k.after.numbers[i.ID]].elements
	if len(k.loops) == 0 || len(e) == 0 || !k.after.isPureFusion(i) {
		return false
	}
	return every(e, func(v int32) bool { return k.forward[v] || len(k.byNumber[v]) > 0 })
}

// every reports whether something holds for each of a list.
func every[T any](list []T, holds func(T) bool) bool {
	return !slices.ContainsFunc(list, func(x T) bool { return !holds(x) })
}
