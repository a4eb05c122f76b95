package load

// Binary modules, written: the message that a changed module has.
//
// A planner gets a module, clones some of its instructions and computations, and puts them
// into another order. What it does not change must stay as it was, also what has no text. So
// nothing is written anew: each instruction is the message of its original, with the name,
// the id, and the ids of what it reads, waits for and calls in place of the original's.
//
// In the entry of a planned module stands s.remat = fusion(p), calls=f.remat, a clone of
// s = fusion(p), calls=f. The message of s is copied, under the name s.remat and an id that is
// free in the entry; f.remat is the computation f with another id, and the name of each
// instruction in it is made unique, as XLA wants names to be. The schedule is the order of
// the planned module. A loop whose state has other elements is the message of the original with
// another shape, and so are its body's parameter and result. Of what is new, as the slices of a
// stack, only some operations can be written, in computations that are new or not.

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/xla/internal/hlo"
)

// Rewrite returns the HloModuleProto of a module that was made of the module in original by
// a planner: instructions were cloned, moved or removed, computations cloned, and fusions lost
// outputs and operands that nothing needs. But for that it is original's own message. What is
// returned was read again, and is the module that was to be written.
func Rewrite(original []byte, m *hlo.Module) ([]byte, error) {
	d, err := decode(original, nil)
	if err != nil {
		return nil, err
	}
	e := &encoder{
		d: d, m: m,
		texts:        map[string]*instruction{},
		originals:    map[string]*instruction{},
		shapes:       map[string][]byte{},
		read:         map[*hlo.Computation]*computation{},
		of:           map[*hlo.Computation]*computation{},
		computations: map[*hlo.Computation]int64{},
		ids:          map[*hlo.Instruction]int64{},
		names:        map[string]bool{},
		kept:         map[*hlo.Computation][]*instruction{},
		reshaped:     map[*hlo.Instruction]bool{},
	}
	b, err := e.module()
	if err == nil {
		err = e.checkWritten(b)
	}
	if err != nil {
		return nil, fmt.Errorf("xla/internal/load: %s as a binary module: %w", m.Name, err)
	}
	return b, nil
}

type encoder struct {
	d *decoder
	m *hlo.Module

	texts        map[string]*instruction             // originals by opcode, shape and attributes
	originals    map[string]*instruction             // by name; of several the first
	shapes       map[string][]byte                   // ShapeProtos by text
	read         map[*hlo.Computation]*computation   // what d.m's computations were read from
	of           map[*hlo.Computation]*computation   // originals of m's computations
	computations map[*hlo.Computation]int64          // their ids
	ids          map[*hlo.Instruction]int64          // of m's instructions
	names        map[string]bool                     // of instructions, the original's and those that are written
	kept         map[*hlo.Computation][]*instruction // sources of a computation's instructions
	written      map[int64]bool                      // computations
	reshaped     map[*hlo.Instruction]bool           // those that have another shape or number than their source
}

func (e *encoder) module() ([]byte, error) {
	var built []*computation
	for _, c := range e.d.computations {
		built = append(built, c)
	}
	slices.SortFunc(built, func(a, b *computation) int { return int(a.id - b.id) })
	// Callers come first here, so that the original of what they call is known.
	order := e.m.CalleesFirst()
	if err := e.findOriginals(built, order); err != nil {
		return nil, err
	}
	e.number(built, order)

	// What a text has within the operation that starts it, see async.go, stays as it was.
	// That is written where what calls it is.
	w := &writer{done: map[int64]bool{}, write: map[int64]func() ([]byte, []int64){}}
	inText := map[*hlo.Computation]bool{}
	for _, c := range e.d.m.Computations {
		inText[c] = true
	}
	for _, c := range built {
		if !inText[c.c] {
			w.write[c.id] = func() (b []byte, calls []int64) {
				for _, i := range c.list {
					calls = append(calls, i.called...)
				}
				return c.raw, calls
			}
		}
	}
	for _, c := range order {
		w.write[e.computations[c]] = func() ([]byte, []int64) { return e.computation(c) }
	}

	var b []byte
	err := walk(e.d.raw, func(x field) error {
		switch x.n {
		case moduleComputations:
			for _, c := range order { // all at the place of the first
				w.visit(e.computations[c])
			}
			e.written = w.done
			b, w.b = append(b, w.b...), nil
		case moduleSchedule:
			if e.d.m.Scheduled {
				b = e.appendSchedule(b, x)
			}
		default:
			b = appendField(b, x)
		}
		return nil
	})
	if e.m.Scheduled && !e.d.m.Scheduled {
		b = e.appendSchedule(b, field{n: moduleSchedule})
	}
	return b, err
}

// findOriginals finds the original of each computation and instruction.
func (e *encoder) findOriginals(built []*computation, order []*hlo.Computation) error {
	byName := map[string]*computation{}
	for _, c := range built {
		byName[c.c.Name], e.read[c.c] = c, c
		for _, i := range c.list {
			e.names[i.i.Name] = true
			if err := e.knowInstruction(i); err != nil {
				return err
			}
		}
	}
	e.of[e.m.Entry] = byName[e.m.Entry.Name]
	runs := map[*hlo.Computation]bool{e.m.Entry: true} // all but those that only fusions call
	for i := range e.m.All() {
		for _, callee := range i.Called() {
			runs[callee] = runs[callee] || i.Opcode != hlo.Fusion
		}
	}
	for _, c := range slices.Backward(order) {
		if e.of[c] == nil {
			e.of[c] = byName[c.Name]
		}
		if e.of[c] == nil && runs[c] {
			return fmt.Errorf("computation %s is none of the original's, and no clone of one", c.Name)
		}
		if err := e.findSources(c); err != nil {
			return err
		}
	}
	return nil
}

// number gives the computations and their instructions ids: originals keep theirs.
func (e *encoder) number(built []*computation, order []*hlo.Computation) {
	last := int64(0)
	for _, c := range built {
		last = max(last, c.id)
	}
	for _, c := range order {
		if o := e.of[c]; o != nil && o.c.Name == c.Name {
			e.computations[c] = o.id
		} else {
			last++
			e.computations[c] = last
		}
	}
	for _, c := range order {
		e.numberInstructions(c)
	}
}

// A writer writes computations behind those that they call, each once.
type writer struct {
	b     []byte
	done  map[int64]bool
	write map[int64]func() (b []byte, calls []int64)
}

func (w *writer) visit(id int64) {
	if w.done[id] || w.write[id] == nil {
		return
	}
	w.done[id] = true
	b, calls := w.write[id]()
	for _, c := range calls {
		w.visit(c)
	}
	w.b = appendBytes(w.b, moduleComputations, b)
}

// knowInstruction enters an original instruction, and its shapes.
func (e *encoder) knowInstruction(i *instruction) error {
	if key := textButNames(i.i); e.texts[key] == nil {
		e.texts[key] = i
	}
	if e.originals[i.i.Name] == nil {
		e.originals[i.i.Name] = i
	}
	return walk(i.raw, func(x field) error {
		if x.n != instructionShape {
			return nil
		}
		return e.knowShape(x.bytes, i.i.Shape)
	})
}

func (e *encoder) knowShape(b []byte, s *hlo.Shape) error {
	if name := s.String(); e.shapes[name] == nil {
		e.shapes[name] = b
	}
	n := 0
	return walk(b, func(x field) error {
		if x.n != shapeTupleShapes || n >= len(s.Elements) {
			return nil
		}
		n++
		return e.knowShape(x.bytes, s.Elements[n-1])
	})
}

// textButNames is what two instructions have in common whose messages differ in names and ids alone.
func textButNames(i *hlo.Instruction) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", i.Opcode, i.Shape, i.Literal)
	for _, a := range i.Attributes {
		fmt.Fprintf(&b, " %s=%s", a.Key, a.Value)
		if len(a.Calls) > 0 {
			fmt.Fprintf(&b, " %d", len(a.Calls))
		}
	}
	return b.String()
}

// reshaped reports whether an instruction is an original with another shape, or a parameter or
// get-tuple-element with another number.
func reshaped(o, i *hlo.Instruction) bool {
	same := func(a, b hlo.Attribute) bool {
		return a.Key == b.Key && (a.Value == b.Value || a.Key == "index") && len(a.Calls) == len(b.Calls)
	}
	return o.Opcode == i.Opcode && (o.Literal == i.Literal || i.Opcode == hlo.Parameter) && slices.EqualFunc(o.Attributes, i.Attributes, same)
}

// writable reports whether an instruction without an original can be written: of few opcodes, with
// attributes that their rules can write.
func writable(i *hlo.Instruction) bool {
	switch i.Opcode {
	case hlo.Bitcast, hlo.GetTupleElement, hlo.TupleOp, hlo.OptBarrier:
		return true
	case hlo.Parameter, hlo.Add, hlo.Subtract, hlo.DynamicUpdateSlice, hlo.DynamicSlice, hlo.Fusion:
	case hlo.Constant:
		if _, known := constantBytes(i); !known {
			return false
		}
	case hlo.Broadcast:
		if v, _ := i.Attribute("dimensions"); v != "{}" {
			return false
		}
	default:
		return false
	}
	return !slices.ContainsFunc(i.Attributes, func(a hlo.Attribute) bool {
		written := func(r rule) bool { return r.key == a.Key && r.form.write != nil }
		return len(a.Calls) == 0 && !slices.ContainsFunc(opcodeRules[i.Opcode], written)
	})
}

// constantBytes returns the elements of a scalar constant: 0 of some types, any of s32 from 0 on.
func constantBytes(i *hlo.Instruction) (b []byte, known bool) {
	n, err := strconv.ParseUint(i.Literal, 10, 31)
	switch {
	case err != nil || len(i.Shape.Dims) > 0:
		return nil, false
	case i.Shape.Type == "s32":
		return protowire.AppendVarint(nil, n), true
	}
	of := elementFields[i.Shape.Type]
	return make([]byte, of.bytes), i.Literal == "0" && slices.Contains([]hlo.Type{"u32", "f32", "f64", "f16", "bf16"}, i.Shape.Type)
}

// findSources finds the original of each instruction of a computation, nil for one that has none,
// and of the computations that they call.
func (e *encoder) findSources(c *hlo.Computation) error {
	originals := map[string]*instruction{}
	if o := e.of[c]; o != nil {
		for _, i := range o.list {
			originals[i.i.Name] = i
		}
	}
	list := make([]*instruction, len(c.Instructions))
	for n, i := range c.Instructions {
		want := textButNames(i)
		name, _, _ := strings.Cut(i.Name, ".remat")
		home := []*instruction{originals[i.Name], originals[name]}
		same := func(o *instruction) bool { return o != nil && textButNames(o.i) == want }
		like := func(o *instruction) bool { return o != nil && reshaped(o.i, i) }
		if k := slices.IndexFunc(home, same); k >= 0 {
			list[n] = home[k]
		} else if k := slices.IndexFunc(home, like); k >= 0 {
			list[n], e.reshaped[i] = home[k], true
		} else if o := e.texts[want]; o != nil {
			list[n] = o
		} else if o := e.originals[name]; like(o) {
			list[n], e.reshaped[i] = o, true
		}
		if list[n] == nil {
			if !writable(i) {
				return fmt.Errorf("%s in %s (%s) is a clone of no instruction", i.Name, c.Name, i.Opcode)
			}
			continue
		}
		called := list[n].i.Called()
		for k, callee := range i.Called() {
			if e.of[callee] == nil || e.of[callee].c.Name != callee.Name {
				e.of[callee] = e.read[called[k]]
			}
		}
	}
	e.kept[c] = list
	return nil
}

// numberInstructions gives the instructions of a computation ids: originals at home keep theirs.
func (e *encoder) numberInstructions(c *hlo.Computation) {
	o, id := e.of[c], e.computations[c]
	high, last := int64(0), int64(-1)
	like := o // whose ids are of the same kind
	if o == nil {
		like = e.of[e.m.Entry]
	}
	for _, i := range like.list {
		high, last = i.id&^(1<<32-1), max(last, i.id&(1<<32-1))
	}
	if high != 0 { // the number of the computation
		high = id << 32
	}
	for n, i := range c.Instructions {
		x := e.kept[c][n]
		if x != nil && o != nil && id == o.id && o.find(x.id) == x && x.i.Name == i.Name {
			e.ids[i] = x.id
			continue
		}
		last++
		e.ids[i] = high | last
	}
}

// computation returns the message of a computation, and the ids of what it calls. The walk
// has no error, here and in instruction, as the message was read before.
func (e *encoder) computation(c *hlo.Computation) (b []byte, calls []int64) {
	appendInstructions := func() {
		for n, i := range c.Instructions {
			m, called := e.instruction(i, e.kept[c][n])
			b = appendBytes(b, computationInstructions, m)
			calls = append(calls, called...)
		}
	}
	if e.of[c] == nil {
		b = appendBytes(b, computationName, []byte(c.Name))
		appendInstructions()
		b = appendBytes(b, computationProgramShape, e.programMessage(c))
		b = appendInt(b, computationID, e.computations[c])
		b = appendInt(b, computationRootID, e.ids[c.Root])
		return appendInt(b, computationIsFusionComputation, 1), calls
	}
	written := false
	_ = walk(e.of[c].raw, func(x field) error {
		switch x.n {
		case computationProgramShape:
			if e.sameProgram(c) {
				b = appendField(b, x)
			} else {
				b = appendBytes(b, x.n, e.programMessage(c))
			}
		case computationName:
			b = appendBytes(b, x.n, []byte(c.Name))
		case computationID, computationRootID: // an id of 0 has no field
		case computationInstructions:
			if !written {
				appendInstructions()
			}
			written = true
		default:
			b = appendField(b, x)
		}
		return nil
	})
	b = appendInt(b, computationID, e.computations[c])
	return appendInt(b, computationRootID, e.ids[c.Root]), calls
}

// sameProgram reports whether a computation has the parameters and the result of its original.
func (e *encoder) sameProgram(c *hlo.Computation) bool {
	o := e.of[c].c
	same := func(i, j *hlo.Instruction) bool { return i != nil && j != nil && i.Shape.String() == j.Shape.String() }
	return same(c.Root, o.Root) && slices.EqualFunc(c.Parameters(), o.Parameters(), same)
}

// programMessage returns the message of what a computation takes and returns.
func (e *encoder) programMessage(c *hlo.Computation) (b []byte) {
	for _, p := range c.Parameters() {
		b = appendBytes(b, programParameters, e.shapeMessage(p.Shape))
	}
	b = appendBytes(b, programResult, e.shapeMessage(c.Root.Shape))
	for _, p := range c.Parameters() {
		b = appendBytes(b, programParameterNames, []byte(p.Name))
	}
	return b
}

// instruction returns the message of an instruction, and the ids of what it calls.
func (e *encoder) instruction(i *hlo.Instruction, from *instruction) (b []byte, called []int64) {
	b = appendBytes(b, instructionName, []byte(e.uniqueName(i, from)))
	if from == nil {
		b = appendBytes(b, instructionOpcode, []byte(i.Opcode))
		b = e.appendNew(b, i)
		for _, callee := range i.Called() {
			called = append(called, e.computations[callee])
		}
	} else {
		if e.reshaped[i] {
			b = e.appendReshaped(b, i)
		}
		_ = walk(from.raw, func(x field) error {
			switch x.n {
			case instructionName, instructionID, instructionOperandIDs, instructionControlPredecessorIDs, instructionCalledComputationIDs:
				return nil
			case instructionShape, instructionParameterNumber, instructionTupleIndex:
				if e.reshaped[i] {
					return nil
				}
			}
			b = appendField(b, x)
			return nil
		})
		theirs, ours := from.i.Called(), i.Called()
		for _, id := range from.called {
			if k := slices.Index(theirs, e.d.computations[id].c); k >= 0 {
				id = e.computations[ours[k]]
			}
			called = append(called, id)
		}
	}
	b = appendInt(b, instructionID, e.ids[i])
	b = appendInts(b, instructionOperandIDs, e.idsOf(i.Operands))
	b = appendInts(b, instructionControlPredecessorIDs, e.idsOf(i.After))
	return appendInts(b, instructionCalledComputationIDs, called), called
}

// uniqueName returns the name of an instruction, with a number if it is of another one.
func (e *encoder) uniqueName(i *hlo.Instruction, from *instruction) string {
	if from != nil && e.ids[i] == from.id {
		return i.Name
	}
	name := i.Name
	for n := 1; e.names[name]; n++ {
		name = fmt.Sprintf("%s.%d", i.Name, n)
	}
	e.names[name] = true
	return name
}

func (e *encoder) idsOf(list []*hlo.Instruction) []int64 {
	ids := make([]int64, len(list))
	for n, i := range list {
		ids[n] = e.ids[i]
	}
	return ids
}

// appendReshaped appends the shape of an instruction, and the number of a parameter or of the
// element that it gets.
func (e *encoder) appendReshaped(b []byte, i *hlo.Instruction) []byte {
	b = appendBytes(b, instructionShape, e.shapeMessage(i.Shape))
	switch i.Opcode {
	case hlo.Parameter:
		return appendInt(b, instructionParameterNumber, int64(i.Parameter))
	case hlo.GetTupleElement:
		return appendRules(b, i)
	}
	return b
}

// appendNew appends the shape, the value and the attributes of an instruction without an original.
func (e *encoder) appendNew(b []byte, i *hlo.Instruction) []byte {
	b = e.appendReshaped(b, i)
	switch i.Opcode {
	case hlo.Constant:
		elements, _ := constantBytes(i)
		l := appendBytes(nil, literalShape, e.shapeMessage(i.Shape))
		return appendBytes(b, instructionLiteral, appendBytes(l, elementFields[i.Shape.Type].n, elements))
	case hlo.DynamicSlice, hlo.Broadcast, hlo.Fusion:
		return appendRules(b, i)
	}
	return b
}

// appendRules appends the attributes that the rules of an opcode can write.
func appendRules(b []byte, i *hlo.Instruction) []byte {
	for _, r := range opcodeRules[i.Opcode] {
		if text, has := i.Attribute(r.key); has && r.form.write != nil {
			b = r.form.write(b, r.field, text)
		}
	}
	return b
}

// shapeMessage returns the message of a shape: the original's, or that of a new tuple; nil if it has none.
func (e *encoder) shapeMessage(s *hlo.Shape) []byte {
	b := e.shapes[s.String()]
	if b == nil && s.Type == hlo.Tuple {
		b = appendInt(nil, shapeElementType, tupleType)
		for _, x := range s.Elements {
			b = appendBytes(b, shapeTupleShapes, e.shapeMessage(x))
		}
	}
	if b == nil {
		b = e.arrayMessage(s)
	}
	return b
}

// arrayMessage returns the message of an array's shape, made of that of another array with dimensions and
// the same type; nil if there is none, or if the layout says more than the order.
func (e *encoder) arrayMessage(s *hlo.Shape) (b []byte) {
	order, ok := s.MinorToMajor()
	if !ok || len(s.Dims) == 0 || s.Dynamic != nil || strings.Contains(s.Layout, ":") {
		return nil
	}
	var like []byte
	for name, x := range e.shapes {
		rest, sameType := strings.CutPrefix(name, string(s.Type)+"[")
		plain := sameType && rest[0] != ']' && !strings.ContainsAny(rest, ":<?")
		if plain && (like == nil || bytes.Compare(x, like) < 0) {
			like = x
		}
	}
	minor := make([]int64, len(order))
	for n, d := range order {
		minor[n] = int64(d)
	}
	_ = walk(like, func(x field) error {
		switch x.n {
		case shapeElementType:
			b = appendInts(appendField(b, x), shapeDimensions, s.Dims)
		case shapeLayout:
			l := appendInts(nil, layoutMinorToMajor, minor)
			_ = walk(x.bytes, func(y field) error {
				if y.n != layoutMinorToMajor {
					l = appendField(l, y)
				}
				return nil
			})
			b = appendBytes(b, x.n, l)
		case shapeIsDynamicDimension:
			if x.typ == protowire.BytesType {
				b = appendBytes(b, x.n, make([]byte, len(s.Dims)))
			}
		}
		return nil
	})
	return b
}

// appendSchedule appends the schedule, field x of the module: that of each computation of the
// original, then of the clones of those that have one. What the module does not have as a
// computation, see async.go, stays as it was.
func (e *encoder) appendSchedule(b []byte, x field) []byte {
	var all []byte
	add := func(id int64, ids []int64) {
		key := protowire.AppendVarint(protowire.AppendTag(nil, entryKey, protowire.VarintType), uint64(id)) // of a map: 0 is written
		all = appendBytes(all, scheduleSequences, appendBytes(key, entryValue, appendInts(nil, sequenceInstructionIDs, ids)))
	}
	named := map[string]*hlo.Computation{}
	for _, c := range e.m.Computations {
		named[c.Name] = c
	}
	scheduled := map[int64]bool{}
	e.d.fields(x.bytes).messages(scheduleSequences, func(f *fields) {
		id := f.int(entryKey)
		scheduled[id] = true
		if c := named[e.d.computations[id].c.Name]; c != nil {
			add(id, e.idsOf(c.Instructions))
		} else if e.written[id] && !slices.Contains(e.d.m.Computations, e.d.computations[id].c) {
			add(id, f.message(entryValue).ints(sequenceInstructionIDs))
		}
	})
	// A schedule has the computations that run, and not as a part of an operation such as a fusion.
	run := e.m.Running(func(i *hlo.Instruction) bool {
		return i.Opcode == hlo.While || i.Opcode == hlo.Conditional || i.Opcode == hlo.Call || i.Opcode == hlo.AsyncStart
	})
	for _, c := range e.m.Computations {
		switch o := e.of[c]; {
		case !e.d.m.Scheduled && run[c], o != nil && o.c.Name != c.Name && scheduled[o.id]:
			add(e.computations[c], e.idsOf(c.Instructions))
		}
	}
	return appendBytes(b, x.n, all)
}

// checkWritten reads what was written, and reports how it differs from what was to be written.
func (e *encoder) checkWritten(b []byte) error {
	got, _, err := Decode(b, nil)
	if err != nil {
		return err
	}
	summary := func(m *hlo.Module) string {
		return fmt.Sprintf("%d computations, entry %s, scheduled %v", len(m.Computations), m.Entry.Name, m.Scheduled)
	}
	if is, want := summary(got), summary(e.m); is != want {
		return fmt.Errorf("it reads back with %s; want %s", is, want)
	}
	got.Style = e.m.Style
	named := map[string]*hlo.Computation{}
	for _, c := range got.Computations {
		named[c.Name] = c
	}
	for _, c := range e.m.Computations {
		d := named[c.Name]
		if d == nil || len(d.Instructions) != len(c.Instructions) {
			return fmt.Errorf("computation %s reads back otherwise", c.Name)
		}
		for n, i := range c.Instructions {
			d.Instructions[n].Name = i.Name // which may have a number
		}
		if d.Root.Name != c.Root.Name {
			return fmt.Errorf("the root of %s reads back otherwise", c.Name)
		}
		for n, i := range c.Instructions {
			if i.Text() != d.Instructions[n].Text() {
				return fmt.Errorf("%s in %s reads back otherwise", i.Name, c.Name)
			}
		}
	}
	return nil
}

// appendField appends a field as it was read.
func appendField(b []byte, x field) []byte {
	switch b = protowire.AppendTag(b, x.n, x.typ); x.typ {
	case protowire.VarintType:
		return protowire.AppendVarint(b, x.value)
	case protowire.Fixed32Type:
		return protowire.AppendFixed32(b, uint32(x.value))
	case protowire.Fixed64Type:
		return protowire.AppendFixed64(b, x.value)
	}
	return protowire.AppendBytes(b, x.bytes)
}

func appendBytes(b []byte, n no, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
}

// appendInt appends a number, and nothing if it is 0, which a missing field is.
func appendInt(b []byte, n no, v int64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(v))
}

// appendInts appends a packed list, and nothing if it is empty.
func appendInts(b []byte, n no, list []int64) []byte {
	if len(list) == 0 {
		return b
	}
	var packed []byte
	for _, v := range list {
		packed = protowire.AppendVarint(packed, uint64(v))
	}
	return appendBytes(b, n, packed)
}
