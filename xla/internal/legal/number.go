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

	"gpumem/xla/hlo"
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

// intern returns the number of a key.
func (t *table) intern(key []byte) int32 {
	n, ok := t.numbers[string(key)]
	if !ok {
		n = int32(len(t.values))
		t.numbers[string(key)] = n
		t.values = append(t.values, number{base: n, shape: -1})
	}
	return n
}

// shape returns the number of a shape.
func (t *table) shape(s *hlo.Shape) int32 {
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

// A numbered module has the value numbers of its instructions.
type numbered struct {
	m         *hlo.Module
	t         *table
	of        []int32 // by ID
	classes   []class // by ID, with what is called
	functions map[*hlo.Computation]*function
	// fused are the results of fused computations by their arguments; left bounds how many of
	// their instructions are numbered, as a chain of fusions may double each time.
	fused map[string][]int32
	left  int
	// loops are those whose state changed; nil if there are none.
	loops   map[*hlo.Instruction]*side
	reads   []slotRead
	current *side                     // the changed loop that is numbered
	inner   map[*hlo.Computation]bool // of fusions
}

// A function is what is known of a computation.
type function struct {
	number  int32 // of what it computes and does
	class   class
	effects []*hlo.Instruction // in the order of the list
}

// number numbers a module, callees first.
func (t *table) number(m *hlo.Module, loops map[*hlo.Instruction]*side) *numbered {
	n := &numbered{m: m, t: t, loops: loops, of: make([]int32, m.IDs()), classes: make([]class, m.IDs()), functions: map[*hlo.Computation]*function{}, fused: map[string][]int32{}, left: 16*m.Instructions() + 1000}
	for _, c := range m.CalleesFirst() {
		n.computation(c)
	}
	return n
}

// computation numbers the instructions of a computation, operands first.
func (n *numbered) computation(c *hlo.Computation) {
	f := &function{}
	n.functions[c] = f
	place := n.classify(c, f)
	for _, i := range operandsFirst(c) {
		n.of[i.ID] = n.instruction(i, place)
	}
	key := append([]byte("computation "), c.Thread...)
	key = numberKey(key, n.of[c.Root.ID], n.t.shape(c.Root.Shape))
	effects := slices.Clone(f.effects)
	if !n.m.Scheduled {
		slices.SortFunc(effects, func(a, b *hlo.Instruction) int { return strings.Compare(a.Name, b.Name) })
	}
	for _, i := range effects {
		key = numberKey(key, n.of[i.ID])
	}
	f.number = n.t.intern(key)
}

// classify sets the classes of a computation's instructions, and returns the places of its effects.
func (n *numbered) classify(c *hlo.Computation, f *function) map[*hlo.Instruction]int {
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
	type step struct {
		i    *hlo.Instruction
		next int
	}
	list := make([]*hlo.Instruction, 0, len(c.Instructions))
	seen := make(map[*hlo.Instruction]bool, len(c.Instructions))
	var stack []step
	for _, i := range c.Instructions {
		if seen[i] {
			continue
		}
		seen[i] = true
		for stack = append(stack, step{i, 0}); len(stack) > 0; {
			top := &stack[len(stack)-1]
			if top.next == len(top.i.Operands) {
				list = append(list, top.i)
				stack = stack[:len(stack)-1]
				continue
			}
			o := top.i.Operands[top.next]
			top.next++
			if !seen[o] {
				seen[o] = true
				stack = append(stack, step{o, 0})
			}
		}
	}
	return list
}

func numberKey(b []byte, list ...int32) []byte {
	for _, n := range list {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	return b
}

// instruction returns the number of an instruction whose operands have theirs. place has the
// effects of the computation.
func (n *numbered) instruction(i *hlo.Instruction, place map[*hlo.Instruction]int) int32 {
	t := n.t
	if n.loops != nil {
		if v, ok := n.inLoops(i); ok {
			return v
		}
	}
	first := int32(-1)
	if len(i.Operands) > 0 {
		first = n.of[i.Operands[0].ID]
	}
	switch {
	case i.Opcode == hlo.TupleOp:
		elements := make([]int32, len(i.Operands))
		for k, o := range i.Operands {
			elements[k] = n.of[o.ID]
		}
		return n.tuple(numberKey([]byte("tuple "), t.shape(i.Shape)), elements)
	case i.Opcode == hlo.GetTupleElement && first >= 0:
		if k, err := i.TupleIndex(); err == nil && k < len(t.values[first].elements) {
			return t.values[first].elements[k]
		}
	case i.Opcode == hlo.OptBarrier && len(i.Operands) == 1:
		return first
	case i.Opcode == hlo.Bitcast && len(i.Operands) == 1:
		return n.seen(first, i.Operands[0].Shape, i.Shape)
	case i.Opcode == hlo.CopyStart && movesSpace(i):
		from, e := i.Operands[0], i.Shape.Elements
		context := t.intern(numberKey([]byte("context "), first))
		elements := []int32{n.seen(first, from.Shape, e[0]), first, context}
		return n.tuple(numberKey([]byte("copy-start "), t.shape(i.Shape)), elements[:len(e)])
	case i.Opcode == hlo.CopyDone && first >= 0 && len(t.values[first].elements) > 0:
		return t.values[first].elements[0]
	}
	if n.pure(i) {
		if v, ok := n.fusion(i, i.Shape); ok {
			return v
		}
	}
	key := n.operation(i)
	for _, o := range i.Operands {
		key = numberKey(key, n.of[o.ID], t.shape(o.Shape))
	}
	if at, ok := place[i]; ok {
		if key = append(key, " effect "...); n.m.Scheduled {
			key = numberKey(key, int32(at))
		} else {
			key = append(key, i.Name...)
		}
	}
	v := t.intern(key)
	if t.values[v].shape < 0 {
		t.values[v].shape = t.shape(i.Shape)
	}
	return v
}

// pure reports whether an instruction is a fusion without effects.
func (n *numbered) pure(i *hlo.Instruction) bool {
	return i.Opcode == hlo.Fusion && n.classes[i.ID]&effect == 0 && i.Call("calls") != nil && len(i.Call("calls").Parameters()) == len(i.Operands)
}

// fusion returns the number of a fusion without effects whose result has a shape: of an array a
// key with what the root of its computation makes of the operands, and of a tuple one for each
// element. ok is false if an operand has another shape or layout than its parameter, as then the
// fusion is no more than a call.
func (n *numbered) fusion(i *hlo.Instruction, result *hlo.Shape) (int32, bool) {
	c := i.Call("calls")
	args := numberKey(nil, n.functions[c].number)
	for k, p := range c.Parameters() {
		o := i.Operands[k]
		if n.t.shape(o.Shape) != n.t.shape(p.Shape) {
			return 0, false // the bytes of the operand are not those of the parameter
		}
		args = numberKey(args, n.of[o.ID])
	}
	roots, ok := n.fused[string(args)]
	if !ok {
		if n.left -= len(c.Instructions); n.left < 0 {
			return 0, false
		}
		for k, p := range c.Parameters() {
			n.of[p.ID] = n.of[i.Operands[k].ID]
		}
		for _, x := range operandsFirst(c) {
			if x.Opcode != hlo.Parameter {
				n.of[x.ID] = n.instruction(x, nil)
			}
		}
		if roots = []int32{n.of[c.Root.ID]}; c.Root.Shape.Type == hlo.Tuple {
			roots = n.t.values[roots[0]].elements
		}
		n.fused[string(args)] = roots
	}
	how := n.attributes([]byte("fusion "), i, false)
	number := func(root int32, by *hlo.Instruction, s *hlo.Shape) int32 {
		if n.loops != nil && n.moves(by, root) && sameShape(by.Shape, s) {
			return root
		}
		v := n.t.intern(numberKey(slices.Clone(how), root, n.t.shape(s)))
		if n.t.values[v].shape < 0 {
			n.t.values[v].shape = n.t.shape(s)
		}
		if n.loops != nil {
			n.updated(v, root, how)
		}
		return v
	}
	if result.Type != hlo.Tuple {
		return number(roots[0], c.Root, result), true
	}
	if len(roots) != len(result.Elements) || len(c.Root.Operands) != len(roots) {
		return 0, false
	}
	elements := make([]int32, len(roots))
	for k, s := range result.Elements {
		elements[k] = number(roots[k], c.Root.Operands[k], s)
	}
	return n.tuple(numberKey([]byte("tuple "), n.t.shape(result)), elements), true
}

// tuple returns the number of a tuple of elements. key is what its key begins with.
func (n *numbered) tuple(key []byte, elements []int32) int32 {
	v := n.t.intern(numberKey(key, elements...))
	n.t.values[v].elements = elements
	return v
}

// seen returns the number of a value whose bytes are seen under another shape.
func (n *numbered) seen(v int32, from, to *hlo.Shape) int32 {
	t := n.t
	if t.values[v].shape < 0 { // an element of a tuple, or a parameter
		t.values[v].shape = t.shape(from)
	}
	base := t.values[v].base
	s := t.shape(to)
	if t.values[base].shape == s {
		return base
	}
	w := t.intern(numberKey([]byte("bitcast "), base, s))
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

// operation is the key of what an instruction does to its operands: its opcode, shape,
// attributes and callees. It leaves out metadata, and the channel of a collective that is not
// a send or receive: a clone has another one.
func (n *numbered) operation(i *hlo.Instruction) []byte {
	key := append([]byte(i.Opcode), ' ')
	key = numberKey(key, n.t.shape(i.Shape))
	switch i.Opcode {
	case hlo.Parameter:
		return numberKey(key, int32(i.Parameter))
	case hlo.Constant:
		key = append(key, i.Literal...)
		if strings.Contains(i.Literal, "...") {
			key = append(key, original(i.Name)...) // the value was left out: by its name
		}
	default:
		key = append(key, i.Literal...)
	}
	return n.attributes(key, i, true)
}

// attributes appends the attributes of an instruction to a key, and what it calls if calls is set.
func (n *numbered) attributes(key []byte, i *hlo.Instruction, calls bool) []byte {
	list := i.Attributes
	if !slices.IsSortedFunc(list, byKey) {
		list = slices.Clone(list)
		slices.SortStableFunc(list, byKey)
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
				key = numberKey(key, n.functions[c].number)
			}
		}
	}
	return append(key, 0)
}

func byKey(a, b hlo.Attribute) int { return strings.Compare(a.Key, b.Key) }

// original is the name without what planners append to those of clones.
func original(name string) string {
	for _, suffix := range []string{".remat", ".clone"} {
		if at := strings.Index(name, suffix); at > 0 {
			name = name[:at]
		}
	}
	return name
}
