package hlo

// Reading computations and their instructions.

import (
	"fmt"
	"strconv"
	"strings"
)

// computation reads one that stands by itself.
func (p *parser) computation() error {
	at := p.at
	entry := p.keyword("ENTRY")
	if entry && p.m.Entry != nil {
		return p.fail(at, "a second ENTRY; the first is %s", quote(p.m.Entry.Name))
	}
	at = p.at
	what := "a computation"
	if len(p.m.Computations) == 0 && p.m.Name == "" {
		what = "HloModule or a computation"
	}
	name, err := p.defined(what)
	if err != nil {
		return err
	}
	if p.computations[name] != nil {
		return p.fail(at, "a second computation %s", quote(name))
	}
	p.skip()
	at = p.at
	var result *Shape
	if p.peek() == '(' {
		p.m.Style.Signatures = true
		if result, err = p.signature(); err != nil {
			return err
		}
	}
	c, err := p.body(name)
	if err != nil {
		return err
	}
	if result != nil && !c.Root.Shape.Compatible(result) {
		return p.fail(at, "the result of %s is %s, but its root %s is %s", quote(name), shapeText(result), quote(c.Root.Name), shapeText(c.Root.Shape))
	}
	p.computations[name] = c
	if entry {
		p.m.Entry = c
	}
	var none []Attribute
	return p.attributes(&none, func(a *Attribute) (bool, error) {
		at := p.at
		if a.Key != "execution_thread" || p.peek() != '"' && p.peek() != '\'' {
			return false, p.fail(at, "expected execution_thread=\"...\" behind a computation, found %s", quote(a.Key))
		}
		thread, err := p.quoted()
		if strings.Contains(strings.ReplaceAll(thread, `\"`, ""), `"`) {
			return false, p.fail(at, "a thread's name with a \" in it")
		}
		if thread != "main" {
			c.Thread = thread
		}
		return false, err
	})
}

// defined reads the name of what is defined here. One % makes it the module's style: some names
// need it, such as %ROOT.
func (p *parser) defined(what string) (string, error) {
	if p.peek() == '%' {
		p.m.Style.Percent = true
	}
	return p.name(what)
}

// signature reads "(x: f32[2], y: f32[]) -> f32[2]" and returns the result. The
// parameters are those of the body.
func (p *parser) signature() (*Shape, error) {
	p.eat('(')
	for p.peek() != ')' {
		if _, err := p.name("a parameter's name"); err != nil {
			return nil, err
		}
		if err := p.expect(':', "behind a parameter's name"); err != nil {
			return nil, err
		}
		if _, err := p.shape(); err != nil {
			return nil, err
		}
		if !p.eat(',') {
			break
		}
	}
	if err := p.expect(')', "or ',' behind a parameter"); err != nil {
		return nil, err
	}
	if err := p.arrow(); err != nil {
		return nil, err
	}
	return p.shape()
}

// body reads a computation's instructions with their braces.
func (p *parser) body(name string) (*Computation, error) {
	if err := p.expect('{', "before a computation's instructions"); err != nil {
		return nil, err
	}
	c := &Computation{Name: name, Module: p.m}
	s := p.scope
	s.c, s.parameters, s.unnamed, s.parts = c, s.parameters[:0], s.unnamed[:0], nil
	for len(c.Instructions) == 0 || p.peek() != '}' {
		if err := p.instruction(); err != nil {
			return nil, err
		}
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
	if err := p.checkParameters(); err != nil {
		return nil, err
	}
	link(c)
	p.m.Computations = append(p.m.Computations, c)
	return c, nil
}

// of is the instruction of this name that was read, and nil.
func (s *scope) of(name string) *Instruction {
	// Computations that stand by themselves share a map.
	if i := s.instructions[name]; i != nil && i.Parent == s.c {
		return i
	}
	return nil
}

// checkParameters finds numbers that are there twice or not at all.
func (p *parser) checkParameters() error {
	seen := make([]*Instruction, len(p.parameters))
	for _, q := range p.parameters {
		n := q.i.Parameter
		if n >= len(seen) {
			return p.fail(q.at, "parameter %d of a computation that has %d parameters", n, len(seen))
		}
		if seen[n] != nil {
			return p.fail(q.at, "a second parameter %d; the first is %s", n, quote(seen[n].Name))
		}
		seen[n] = q.i
	}
	return nil
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
func (p *parser) instruction() error {
	if err := p.count(); err != nil {
		return err
	}
	at := p.at
	root := p.keyword("ROOT")
	if root && p.c.Root != nil {
		return p.fail(at, "a second ROOT; the first is %s", quote(p.c.Root.Name))
	}
	at = p.at
	name, err := p.defined("an instruction or '}'")
	if err != nil {
		return err
	}
	if old := p.of(name); old != nil {
		return p.fail(at, "a second instruction %s; the first is in line %d", quote(name), old.Line)
	}
	if err := p.expect('=', "behind an instruction's name"); err != nil {
		return err
	}
	i := &Instruction{Name: name}
	if err := p.operation(i, at, true); err != nil {
		return err
	}
	p.instructions[name] = i
	if root {
		p.c.Root = i
	}
	return nil
}

// operation reads what stands behind the =, and appends the instruction. at is where
// it begins.
func (p *parser) operation(i *Instruction, at int, attributes bool) error {
	p.line += strings.Count(p.text[p.lineAt:at], "\n")
	p.lineAt = at
	i.Line, i.Parent = p.line, p.c
	if p.atShape() {
		var err error
		if i.Shape, err = p.shape(); err != nil {
			return err
		}
		p.skip()
	}
	opAt := p.at
	i.Opcode = Opcode(p.word())
	if i.Opcode == "" {
		if i.Shape == nil {
			return p.wanted("a shape or an opcode")
		}
		return p.wanted("an opcode")
	}
	if err := p.expect('(', "behind an opcode"); err != nil {
		return err
	}
	var err error
	switch i.Opcode {
	case Parameter:
		start := p.at
		i.Parameter, err = p.small("the number of a parameter")
		i.Literal = p.text[start:p.at]
		p.parameters = append(p.parameters, placed{i, at})
	case Constant:
		i.Literal, err = p.raw(false)
	default:
		err = p.operands(i)
	}
	if err != nil {
		return err
	}
	if !p.eat(')') { // expect, without a message for each instruction
		return p.wanted(fmt.Sprintf("%q behind the operands of %s", ')', quote(string(i.Opcode))))
	}
	if attributes {
		err := p.attributes(&i.Attributes, func(a *Attribute) (bool, error) { return p.attribute(i, a) })
		if err != nil {
			return err
		}
	}
	if i.Shape == nil {
		var why string
		if i.Shape, why = infer(i); i.Shape == nil {
			return p.fail(opAt, "%s has no shape, and %s; write the shape before the opcode", quote(string(i.Opcode)), why)
		}
	}
	p.append(i)
	return nil
}

func (p *parser) append(i *Instruction) {
	i.ID = p.m.ids
	p.m.ids++
	p.c.Instructions = append(p.c.Instructions, i)
	p.held += 264 + 32*len(i.Operands) + 96*len(i.Attributes)
}

// count tells hold of the memory that was taken.
func (p *parser) count() error {
	if p.held < 1<<20 || p.hold == nil {
		return nil
	}
	n := p.held
	p.held = 0
	return p.hold(int64(n))
}

// operands reads the list between the brackets.
func (p *parser) operands(i *Instruction) error {
	for p.peek() != ')' {
		o, err := p.operand()
		if err != nil {
			return err
		}
		i.Operands = append(i.Operands, o)
		if !p.eat(',') {
			break
		}
		if p.peek() == ')' {
			return p.wanted("another operand")
		}
	}
	return nil
}

// operand reads "[shape] name", "[shape] name#1" or a nested instruction.
func (p *parser) operand() (*Instruction, error) {
	start := p.at
	var shape *Shape
	if p.atShape() {
		var err error
		if shape, err = p.shape(); err != nil {
			return nil, err
		}
		p.skip()
	}
	at := p.at
	name, err := p.name("an operand")
	if err != nil {
		return nil, err
	}
	if p.text[at] != '%' {
		if p.skip(); p.peek() == '(' {
			p.at = start // its shape is read again
			return p.nested()
		}
	}
	o := p.of(name)
	if o == nil {
		return nil, p.fail(at, "no instruction %s before this one; operands are printed before their users", quote(name))
	}
	for p.peek() == '#' {
		if o, err = p.part(o); err != nil {
			return nil, err
		}
	}
	if shape != nil {
		p.m.Style.OperandShapes = true
		if shape != o.Shape && !o.Shape.Compatible(shape) {
			return nil, p.fail(start, "the operand %s is %s here, but it was %s", quote(name), shapeText(shape), shapeText(o.Shape))
		}
	}
	return o, nil
}

// nested reads an instruction that stands where an operand does.
func (p *parser) nested() (*Instruction, error) {
	if err := p.deeper(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	i := &Instruction{}
	if err := p.operation(i, p.at, false); err != nil {
		return nil, err
	}
	p.unnamed = append(p.unnamed, i)
	return i, nil
}

// part reads #index, and is the get-tuple-element of it: one for all uses.
func (p *parser) part(of *Instruction) (*Instruction, error) {
	at := p.at
	p.at++
	n, err := p.integer("an index")
	if err != nil {
		return nil, err
	}
	if of.Shape.Type != Tuple || n >= int64(len(of.Shape.Elements)) {
		return nil, p.fail(at, "no element %d in %s", n, shapeText(of.Shape))
	}
	key := part{of, n}
	if g := p.parts[key]; g != nil {
		return g, nil
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
	return g, nil
}
