package legal

// Value numbers: two instructions have one number if they compute the same from the parameters
// of their computations.
//
// Of
//
//	a = f32[4] sine(p)
//	t = (f32[4], f32[4]) tuple(a, p)
//	b = (f32[4], f32[4]) opt-barrier(t)
//	g = f32[4] get-tuple-element(b), index=0
//	a.remat = f32[4] sine(p)
//
// a, g and a.remat have one number, and t and b another. What only says where a value lies, or
// under which shape its bytes are seen, is looked through: get-tuple-elements of tuples,
// barriers, bitcasts of bitcasts, and copies to the host and back.
//
// A computation is numbered by its result and its effects, so that calls of two computations
// that compute the same have one number, and a loop whose body was planned keeps its number.
// A fusion is numbered by what it makes of its operands, output by output: of one that was pruned,
// the outputs and operands that are left have the numbers that they had.
//
// What has an effect is numbered by its place among the effects of its computation. In a module
// that is not scheduled the list is no order, and the name stands for the place.

import (
	"encoding/binary"
	"slices"
	"strings"

	"gpumem/xla/internal/hlo"
)

// A table numbers keys of both modules.
type table struct {
	numbers map[string]int32
	values  []number // by number
	shapes  map[*hlo.Shape]int32
	texts   map[string]int32 // of shapes
}

// A number is what is known of a value number.
type number struct {
	elements []int32 // of a tuple; nil if they are not known
	// base and shape are what a bitcast sees under another shape: the number of the value
	// that an operation made, and the shape that it made it with. shape is -1 before it is set.
	base  int32
	shape int32
	facts // of loops whose state changed: stacks.go
}

func newTable() *table {
	return &table{map[string]int32{}, nil, map[*hlo.Shape]int32{}, map[string]int32{}}
}

// numberOf returns the number of a key.
func (t *table) numberOf(key []byte) int32 {
	n, ok := t.numbers[string(key)]
	if !ok {
		n = int32(len(t.values))
		t.numbers[string(key)] = n
		t.values = append(t.values, number{base: n, shape: -1})
	}
	return n
}

// noteShape notes with which shape an operation made a value, unless that is known, and returns the
// value.
func (t *table) noteShape(v int32, s *hlo.Shape) int32 {
	if t.values[v].shape < 0 {
		t.values[v].shape = t.shapeNumber(s)
	}
	return v
}

// shapeNumber returns the number of a shape.
func (t *table) shapeNumber(s *hlo.Shape) int32 {
	n, ok := t.shapes[s]
	if ok {
		return n
	}

	key := string(shapeKey(nil, s, true))
	if n, ok = t.texts[key]; !ok {
		n = int32(len(t.texts))
		t.texts[key] = n
	}

	t.shapes[s] = n
	return n
}

// shapeKey appends a shape as text, with its layout in full, and with or without the memory
// space of the layout.
func shapeKey(b []byte, s *hlo.Shape, space bool) []byte {
	b = append(b, s.Type...)
	if s.Buffer {
		b = append(b, 'b')
	}

	for n, d := range s.Dims {
		if n < len(s.Dynamic) && s.Dynamic[n] {
			b = append(b, '<')
		}
		b = binary.AppendVarint(append(b, ','), d)
	}

	layout := s.FullLayout()
	if !space {
		layout = withoutSpace(layout)
	}

	b = append(append(b, '{'), strings.TrimSuffix(layout, ":")...)
	for _, e := range s.Elements {
		b = shapeKey(append(b, '('), e, space)
	}
	return append(b, ')')
}

// withoutSpace cuts S(5) out of a layout such as 1,0:T(8,128)S(5).
func withoutSpace(layout string) string {
	from := 0
	for {
		at := strings.Index(layout[from:], "S(")
		if at < 0 {
			return layout
		}
		if at += from; at == 0 || layout[at-1] == ':' || layout[at-1] == ')' {
			if end := strings.IndexByte(layout[at:], ')'); end >= 0 {
				return layout[:at] + layout[at+end+1:]
			}
		}
		from = at + 2
	}
}

// A numbering has the value numbers of a module.
type numbering struct {
	m         *hlo.Module
	t         *table
	numbers   []int32 // by ID
	classes   []class // by ID, with what is called
	functions map[*hlo.Computation]*function
	// fused are the results of fused computations by their arguments; left bounds how many of
	// their instructions are numbered, as a chain of fusions may double each time.
	fused map[string][]int32
	left  int
	// loops are those whose state changed; nil if there are none.
	loops   map[*hlo.Instruction]*loopSide
	reads   []slotRead
	current *loopSide                 // the changed loop that is numbered
	inner   map[*hlo.Computation]bool // of fusions
}

// A function is what is known of a computation.
type function struct {
	number  int32 // of what it computes and does
	class   class
	effects []*hlo.Instruction // in the order of the list
}

// numberModule numbers a module, callees first.
func (t *table) numberModule(m *hlo.Module, loops map[*hlo.Instruction]*loopSide) *numbering {
	n := &numbering{
		m: m, t: t, loops: loops, numbers: make([]int32, m.IDs()), classes: make([]class, m.IDs()),
		functions: map[*hlo.Computation]*function{}, fused: map[string][]int32{}, left: 16*m.Instructions() + 1000,
	}
	for _, c := range m.CalleesFirst() {
		n.numberComputation(c)
	}
	return n
}

// numberComputation numbers the instructions of a computation, operands first.
func (n *numbering) numberComputation(c *hlo.Computation) {
	f := &function{}
	n.functions[c] = f
	place := n.classify(c, f)
	for _, i := range operandsFirst(c) {
		n.numbers[i.ID] = n.numberInstruction(i, place)
	}

	key := append([]byte("computation "), c.Thread...)
	key = appendNumbers(key, n.numbers[c.Root.ID], n.t.shapeNumber(c.Root.Shape))
	effects := f.effects
	if !n.m.Scheduled {
		effects = sortedByName(effects)
	}

	f.number = n.t.numberOf(appendNumbers(key, n.numbersOf(effects)...))
}

// sortedByName returns instructions by their names.
func sortedByName(list []*hlo.Instruction) []*hlo.Instruction {
	return slices.SortedFunc(slices.Values(list), func(a, b *hlo.Instruction) int { return strings.Compare(a.Name, b.Name) })
}

// numbersOf returns the numbers of instructions.
func (n *numbering) numbersOf(list []*hlo.Instruction) []int32 {
	numbers := make([]int32, len(list))
	for k, i := range list {
		numbers[k] = n.numbers[i.ID]
	}
	return numbers
}

// classify sets the classes of a computation's instructions, and returns the places of its effects.
func (n *numbering) classify(c *hlo.Computation, f *function) map[*hlo.Instruction]int {
	place := map[*hlo.Instruction]int{}
	for _, i := range c.Instructions {
		x := classOf(i)
		for _, callee := range i.Called() {
			x |= n.functions[callee].class
		}
		n.classes[i.ID] = x
		if f.class |= x; x&effect != 0 {
			place[i] = len(f.effects)
			f.effects = append(f.effects, i)
		}
	}

	return place
}

// operandsFirst returns the instructions of a computation in an order in which operands come
// before their users: the list itself, unless the module is not scheduled.
func operandsFirst(c *hlo.Computation) []*hlo.Instruction {
	if c.Module.Scheduled {
		return c.Instructions
	}

	list := make([]*hlo.Instruction, 0, len(c.Instructions))
	seen := make(map[*hlo.Instruction]bool, len(c.Instructions))
	var visit func(i *hlo.Instruction)
	visit = func(i *hlo.Instruction) {
		if seen[i] {
			return
		}
		seen[i] = true
		for _, o := range i.Operands {
			visit(o)
		}
		list = append(list, i)
	}

	for _, i := range c.Instructions {
		visit(i)
	}
	return list
}

func appendNumbers(key []byte, list ...int32) []byte {
	for _, n := range list {
		key = binary.LittleEndian.AppendUint32(key, uint32(n))
	}
	return key
}

// appendOperands appends the operands of an instruction to a key, with their shapes.
func (n *numbering) appendOperands(key []byte, i *hlo.Instruction) []byte {
	for _, o := range i.Operands {
		key = appendNumbers(key, n.numbers[o.ID], n.t.shapeNumber(o.Shape))
	}
	return key
}

// numberInstruction returns the number of an instruction whose operands have theirs. place has the
// effects of the computation.
func (n *numbering) numberInstruction(i *hlo.Instruction, place map[*hlo.Instruction]int) int32 {
	if n.loops != nil {
		if v, ok := n.numberInLoops(i); ok {
			return v
		}
	}

	if v, ok := n.numberForwarded(i); ok {
		return v
	}
	if n.isPureFusion(i) {
		if v, ok := n.numberFusion(i, i.Shape); ok {
			return v
		}
	}

	key := n.appendOperands(n.operationKey(i), i)
	if at, ok := place[i]; ok {
		if key = append(key, " effect "...); n.m.Scheduled {
			key = appendNumbers(key, int32(at))
		} else {
			key = append(key, i.Name...)
		}
	}

	return n.t.noteShape(n.t.numberOf(key), i.Shape)
}

// numberForwarded returns the number of what only says where a value lies, or under which shape it
// is seen; ok is false for others.
func (n *numbering) numberForwarded(i *hlo.Instruction) (v int32, ok bool) {
	t := n.t
	if i.Opcode == hlo.TupleOp {
		return n.numberTuple(appendNumbers([]byte("tuple "), t.shapeNumber(i.Shape)), n.numbersOf(i.Operands)), true
	}
	if len(i.Operands) == 0 {
		return 0, false
	}

	first := n.operand(i, 0)
	known := t.values[first].elements
	switch i.Opcode {
	case hlo.GetTupleElement:
		if k, err := i.TupleIndex(); err == nil && k < len(known) {
			return known[k], true
		}
	case hlo.OptBarrier:
		return first, len(i.Operands) == 1
	case hlo.Bitcast:
		if len(i.Operands) == 1 {
			return n.numberView(first, i.Operands[0].Shape, i.Shape), true
		}
	case hlo.CopyStart:
		if movesSpace(i) {
			from, e := i.Operands[0], i.Shape.Elements
			context := t.numberOf(appendNumbers([]byte("context "), first))
			elements := []int32{n.numberView(first, from.Shape, e[0]), first, context}
			return n.numberTuple(appendNumbers([]byte("copy-start "), t.shapeNumber(i.Shape)), elements[:len(e)]), true
		}
	case hlo.CopyDone:
		if len(known) > 0 {
			return known[0], true
		}
	}
	return 0, false
}

// isPure reports whether an instruction calls one computation with its operands, without effects,
// and isPureFusion whether it is a fusion, too.
func (n *numbering) isPure(i *hlo.Instruction) bool {
	c := i.Call("calls")
	return n.classes[i.ID]&effect == 0 && c != nil && len(c.Parameters()) == len(i.Operands)
}

func (n *numbering) isPureFusion(i *hlo.Instruction) bool {
	return i.Opcode == hlo.Fusion && n.isPure(i)
}

// numberFusion returns the number of a fusion without effects whose result has a shape: of an array a
// key with what the root of its computation makes of the operands, and of a tuple one for each
// element. ok is false if an operand has another shape or layout than its parameter, as then the
// fusion is no more than a call.
func (n *numbering) numberFusion(i *hlo.Instruction, result *hlo.Shape) (number int32, ok bool) {
	c := i.Call("calls")
	roots, ok := n.numberFused(i, c)
	if !ok {
		return 0, false
	}

	how := n.appendAttributes([]byte("fusion "), i, false)
	if result.Type != hlo.Tuple {
		return n.numberOutput(roots[0], c.Root, result, how), true
	}
	if len(roots) != len(result.Elements) || len(c.Root.Operands) != len(roots) {
		return 0, false
	}

	elements := make([]int32, len(roots))
	for k, s := range result.Elements {
		elements[k] = n.numberOutput(roots[k], c.Root.Operands[k], s, how)
	}
	return n.numberTuple(appendNumbers([]byte("tuple "), n.t.shapeNumber(result)), elements), true
}

// numberFused returns the numbers that the root of a fused computation has for the operands of a
// fusion: of a tuple those of its elements.
func (n *numbering) numberFused(i *hlo.Instruction, c *hlo.Computation) ([]int32, bool) {
	for k, p := range c.Parameters() {
		if n.t.shapeNumber(i.Operands[k].Shape) != n.t.shapeNumber(p.Shape) {
			return nil, false // the bytes of the operand are not those of the parameter
		}
	}

	args := string(n.appendOperands(appendNumbers(nil, n.functions[c].number), i))
	if roots, ok := n.fused[args]; ok {
		return roots, true
	}
	if n.left -= len(c.Instructions); n.left < 0 {
		return nil, false
	}

	for k, p := range c.Parameters() {
		n.numbers[p.ID] = n.operand(i, k)
	}

	for _, x := range operandsFirst(c) {
		if x.Opcode != hlo.Parameter {
			n.numbers[x.ID] = n.numberInstruction(x, nil)
		}
	}

	roots := []int32{n.numbers[c.Root.ID]}
	if c.Root.Shape.Type == hlo.Tuple {
		roots = n.t.values[roots[0]].elements
	}

	n.fused[args] = roots
	return roots, true
}

// numberOutput returns the number of an output of a fusion with a shape, which an instruction of its
// computation makes that has the number root. how are the attributes of the fusion.
func (n *numbering) numberOutput(root int32, by *hlo.Instruction, s *hlo.Shape, how []byte) int32 {
	if n.loops != nil && n.onlyMoves(by, root) && sameShape(by.Shape, s) {
		return root
	}
	v := n.t.noteShape(n.t.numberOf(appendNumbers(slices.Clone(how), root, n.t.shapeNumber(s))), s)
	if n.loops != nil {
		n.noteUpdate(v, root, how)
	}
	return v
}

// numberTuple returns the number of a tuple of elements. key is what its key begins with.
func (n *numbering) numberTuple(key []byte, elements []int32) int32 {
	v := n.t.numberOf(appendNumbers(key, elements...))
	n.t.values[v].elements = elements
	return v
}

// numberView returns the number of a value whose bytes are seen under another shape.
func (n *numbering) numberView(v int32, from, to *hlo.Shape) int32 {
	t := n.t
	t.noteShape(v, from) // an element of a tuple, or a parameter
	base := t.values[v].base
	s := t.shapeNumber(to)
	if t.values[base].shape == s {
		return base
	}

	w := t.numberOf(appendNumbers([]byte("bitcast "), base, s))
	t.values[w].base, t.values[w].shape = base, s
	return w
}

// movesSpace reports whether a copy-start copies to another memory space, and changes nothing
// else of the shape.
func movesSpace(i *hlo.Instruction) bool {
	e := i.Shape.Elements
	if len(i.Operands) != 1 || len(e) < 2 || len(e) > 3 {
		return false
	}
	from := i.Operands[0].Shape
	return from.IsArray() && e[0].Space() != e[1].Space() && e[1].Equal(from) &&
		string(shapeKey(nil, e[0], false)) == string(shapeKey(nil, from, false))
}

// operationKey is the key of what an instruction does to its operands: its opcode, shape,
// attributes and callees. It leaves out metadata, and the channel of a collective that is not
// a send or receive: a clone has another one.
func (n *numbering) operationKey(i *hlo.Instruction) []byte {
	key := append([]byte(i.Opcode), ' ')
	key = appendNumbers(key, n.t.shapeNumber(i.Shape))
	switch i.Opcode {
	case hlo.Parameter:
		return appendNumbers(key, int32(i.Parameter))
	case hlo.Constant:
		key = append(key, i.Literal...)
		if strings.Contains(i.Literal, "...") {
			key = append(key, originalName(i.Name)...) // the value was left out: by its name
		}
	default:
		key = append(key, i.Literal...)
	}
	return n.appendAttributes(key, i, true)
}

// appendAttributes appends the attributes of an instruction to a key, and what it calls if calls is set.
func (n *numbering) appendAttributes(key []byte, i *hlo.Instruction, calls bool) []byte {
	list := i.Attributes
	if !slices.IsSortedFunc(list, compareKeys) {
		list = slices.Clone(list)
		slices.SortStableFunc(list, compareKeys)
	}

	own := classOf(i)
	for _, a := range list {
		if a.Key == "metadata" || a.Key == "channel_id" && own&collective != 0 {
			continue
		}
		key = append(append(append(key, 0), a.Key...), '=')
		key = append(key, a.Value...)
		for _, c := range a.Calls {
			if calls {
				key = appendNumbers(key, n.functions[c].number)
			}
		}
	}

	return append(key, 0)
}

func compareKeys(a, b hlo.Attribute) int { return strings.Compare(a.Key, b.Key) }

// originalName is the name without what planners append to those of clones.
func originalName(name string) string {
	for _, suffix := range []string{".remat", ".clone"} {
		if at := strings.Index(name, suffix); at > 0 {
			name = name[:at]
		}
	}
	return name
}
