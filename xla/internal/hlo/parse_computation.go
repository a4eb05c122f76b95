package hlo

// The parser of computations and their instructions.

import (
	"fmt"
	"strconv"
	"strings"
)

// computation reads one that stands by itself.
func (p *parser) computation() {
	at := p.at
	entry := p.keyword("ENTRY")
	if entry && p.m.Entry != nil {
		panic(p.fail(at, "a second ENTRY; the first is %s", quote(p.m.Entry.Name)))
	}
	at = p.at
	what := "a computation"
	if len(p.m.Computations) == 0 && p.m.Name == "" {
		what = "HloModule or a computation"
	}
	name := p.defined(what)
	if p.computations[name] != nil {
		panic(p.fail(at, "a second computation %s", quote(name)))
	}
	p.skip()
	at = p.at
	var result *Shape
	if p.peek() == '(' {
		p.m.Style.Signatures = true
		result = p.signature()
	}
	c := p.body(name)
	if result != nil && !c.Root.Shape.Compatible(result) {
		is, root := shapeText(result), shapeText(c.Root.Shape)
		panic(p.fail(at, "the result of %s is %s, but its root %s is %s", quote(name), is, quote(c.Root.Name), root))
	}
	p.computations[name] = c
	if entry {
		p.m.Entry = c
	}
	var none []Attribute
	p.attributes(&none, func(a *Attribute) (keep bool) {
		at := p.at
		if a.Key != "execution_thread" || p.peek() != '"' && p.peek() != '\'' {
			panic(p.fail(at, "expected execution_thread=\"...\" behind a computation, found %s", quote(a.Key)))
		}
		thread := p.quoted()
		if strings.Contains(strings.ReplaceAll(thread, `\"`, ""), `"`) {
			panic(p.fail(at, "a thread's name with a \" in it"))
		}
		if thread != "main" {
			c.Thread = thread
		}
		return false
	})
}

// defined reads the name of what is defined here. One % makes it the module's style: some names
// need it, such as %ROOT.
func (p *parser) defined(what string) string {
	if p.peek() == '%' {
		p.m.Style.Percent = true
	}
	return p.name(what)
}

// signature reads "(x: f32[2], y: f32[]) -> f32[2]" and returns the result. The
// parameters are those of the body.
func (p *parser) signature() *Shape {
	p.eat('(')
	for p.peek() != ')' {
		p.name("a parameter's name")
		// Some who write by hand leave the colon out.
		p.skip()
		if c := p.peek(); c != '(' && (c < 'a' || c > 'z') {
			p.expect(':', "behind a parameter's name")
		}
		if p.shape(); !p.eat(',') {
			break
		}
	}
	p.expect(')', "or ',' behind a parameter")
	if !strings.HasPrefix(p.text[p.at:], "->") {
		panic(p.wanted(`"->" and the result's shape`))
	}
	p.at += 2
	p.skip()
	return p.shape()
}

// body reads a computation's instructions with their braces.
func (p *parser) body(name string) *Computation {
	p.expect('{', "before a computation's instructions")
	c := &Computation{Name: name, Module: p.m}
	s := p.scope
	s.c, s.parameters, s.unnamed, s.parts = c, s.parameters[:0], s.unnamed[:0], nil
	for len(c.Instructions) == 0 || p.peek() != '}' {
		p.instruction()
		p.skip()
	}
	p.at++
	for _, i := range s.unnamed {
		// Both as XLA does.
		base := string(i.Opcode) + ".anon"
		if i.Opcode == GetTupleElement && len(i.Attributes) > 0 {
			base = i.Operands[0].Name + "_" + i.Attributes[0].Value
		}
		i.Name = p.makeName(base, func(name string) bool { return s.of(name) != nil })
		s.instructions[i.Name] = i
	}
	if c.Root == nil {
		c.Root = c.Instructions[len(c.Instructions)-1]
	}
	p.checkParameters()
	link(c)
	p.m.Computations = append(p.m.Computations, c)
	return c
}

// of is the instruction of this name that was read, nil if there is none.
func (s *scope) of(name string) *Instruction {
	// Computations that stand by themselves share a map.
	if i := s.instructions[name]; i != nil && i.Parent == s.c {
		return i
	}
	return nil
}

// checkParameters finds numbers that are there twice or not at all.
func (p *parser) checkParameters() {
	seen := make([]*Instruction, len(p.parameters))
	for _, q := range p.parameters {
		n := q.i.Parameter
		if n >= len(seen) {
			panic(p.fail(q.at, "parameter %d of a computation that has %d parameters", n, len(seen)))
		}
		if seen[n] != nil {
			panic(p.fail(q.at, "a second parameter %d; the first is %s", n, quote(seen[n].Name)))
		}
		seen[n] = q.i
	}
}

// link finds the users of each instruction.
func link(c *Computation) {
	for _, i := range c.Instructions {
		for _, o := range i.Operands {
			if n := len(o.Users); n == 0 || o.Users[n-1] != i {
				o.Users = append(o.Users, i)
			}
		}
	}
}

// instruction reads "[ROOT] name = ..." and appends it.
func (p *parser) instruction() {
	p.count()
	at := p.at
	root := p.keyword("ROOT")
	if root && p.c.Root != nil {
		panic(p.fail(at, "a second ROOT; the first is %s", quote(p.c.Root.Name)))
	}
	at = p.at
	name := p.defined("an instruction or '}'")
	if old := p.of(name); old != nil {
		panic(p.fail(at, "a second instruction %s; the first is in line %d", quote(name), old.Line))
	}
	p.expect('=', "behind an instruction's name")
	i := &Instruction{Name: name}
	p.operation(i, at, true)
	p.instructions[name] = i
	if root {
		p.c.Root = i
	}
}

// operation reads what stands behind the =, and appends the instruction. at is where
// it begins.
func (p *parser) operation(i *Instruction, at int, attributes bool) {
	p.line += strings.Count(p.text[p.lineAt:at], "\n")
	p.lineAt = at
	i.Line, i.Parent = p.line, p.c
	if p.atShape() {
		i.Shape = p.shape()
		p.skip()
	}
	opAt := p.at
	i.Opcode = Opcode(p.word())
	if i.Opcode == "" {
		if i.Shape == nil {
			panic(p.wanted("a shape or an opcode"))
		}
		panic(p.wanted("an opcode"))
	}
	p.expect('(', "behind an opcode")
	switch i.Opcode {
	case Parameter:
		start := p.at
		i.Parameter = p.small("the number of a parameter")
		i.Literal = p.text[start:p.at]
		p.parameters = append(p.parameters, parameterAt{i, at})
	case Constant:
		i.Literal = p.raw(false)
	default:
		p.operands(i)
	}
	if !p.eat(')') { // expect, without a message for each instruction
		panic(p.wanted(fmt.Sprintf("%q behind the operands of %s", ')', quote(string(i.Opcode)))))
	}
	if attributes {
		p.attributes(&i.Attributes, func(a *Attribute) bool { return p.attribute(i, a) })
	}
	if i.Shape == nil {
		var why string
		if i.Shape, why = infer(i); i.Shape == nil {
			panic(p.fail(opAt, "%s has no shape, and %s; write the shape before the opcode", quote(string(i.Opcode)), why))
		}
	}
	p.append(i)
}

func (p *parser) append(i *Instruction) {
	i.ID = p.m.ids
	p.m.ids++
	p.c.Instructions = append(p.c.Instructions, i)
	p.held += 264 + 32*len(i.Operands) + 96*len(i.Attributes)
}

// count tells hold of the memory that was taken.
func (p *parser) count() {
	if p.held < 1<<20 || p.hold == nil {
		return
	}
	n := p.held
	p.held = 0
	if err := p.hold(int64(n)); err != nil {
		panic(stop{err})
	}
}

// operands reads the list between the brackets.
func (p *parser) operands(i *Instruction) {
	for p.peek() != ')' {
		i.Operands = append(i.Operands, p.operand())
		if !p.eat(',') {
			break
		}
		if p.peek() == ')' {
			panic(p.wanted("another operand"))
		}
	}
}

// operand reads "[shape] name", "[shape] name#1" or a nested instruction.
func (p *parser) operand() *Instruction {
	start := p.at
	var shape *Shape
	if p.atShape() {
		shape = p.shape()
		p.skip()
	}
	at := p.at
	name := p.name("an operand")
	if p.text[at] != '%' {
		if p.skip(); p.peek() == '(' {
			p.at = start // its shape is read again
			return p.nested()
		}
	}
	o := p.of(name)
	if o == nil {
		panic(p.fail(at, "no instruction %s before this one; operands are printed before their users", quote(name)))
	}
	for p.peek() == '#' {
		o = p.part(o)
	}
	if shape != nil {
		p.m.Style.OperandShapes = true
		if shape != o.Shape && !o.Shape.Compatible(shape) {
			panic(p.fail(start, "the operand %s is %s here, but it was %s", quote(name), shapeText(shape), shapeText(o.Shape)))
		}
	}
	return o
}

// nested reads an instruction that stands where an operand does.
func (p *parser) nested() *Instruction {
	p.deeper()
	i := &Instruction{}
	p.operation(i, p.at, false)
	p.depth--
	p.unnamed = append(p.unnamed, i)
	return i
}

// part reads #index, and is the get-tuple-element of it: one for all uses.
func (p *parser) part(of *Instruction) *Instruction {
	at := p.at
	p.at++
	n := p.integer("an index")
	if of.Shape.Type != Tuple || n >= int64(len(of.Shape.Elements)) {
		panic(p.fail(at, "no element %d in %s", n, shapeText(of.Shape)))
	}
	key := part{of, n}
	if g := p.parts[key]; g != nil {
		return g
	}
	g := &Instruction{
		Opcode: GetTupleElement, Shape: of.Shape.Elements[n], Parent: p.c, Line: p.line,
		Operands:   []*Instruction{of},
		Attributes: []Attribute{{Key: "index", Value: strconv.FormatInt(n, 10)}},
	}
	if p.parts == nil {
		p.parts = map[part]*Instruction{}
	}
	p.parts[key] = g
	p.unnamed = append(p.unnamed, g)
	p.append(g)
	return g
}
