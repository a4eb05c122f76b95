package hlo

// The parser of attributes that name computations and other instructions.

// attribute reads the value of an instruction's attribute.
func (p *parser) attribute(i *Instruction, a *Attribute) (keep bool) {
	switch {
	case a.Key == "control-predecessors":
		if i.After != nil {
			panic(p.fail(p.at, "a second attribute %s", a.Key))
		}
		p.predecessors(i)
		return false
	case callsComputations(i.Opcode, a.Key):
		p.calls(i, a)
	default:
		a.Value = p.value(a.Key)
	}
	return true
}

// callsComputations reports whether an attribute names computations.
func callsComputations(op Opcode, key string) bool {
	switch key {
	case "to_apply", "calls", "condition", "body", "branch_computations", "true_computation", "false_computation", "called_computations":
		return true
	case "select", "scatter":
		return op == SelectAndScatter
	}
	return false
}

func (p *parser) predecessors(i *Instruction) {
	seen := map[*Instruction]bool{}
	p.list("control predecessors", func() {
		at := p.at
		name := p.name("a control predecessor")
		o := p.of(name)
		if o == nil {
			panic(p.fail(at, "no instruction %s before this one; control predecessors are printed before", quote(name)))
		}
		if !seen[o] {
			seen[o] = true
			i.After = append(i.After, o)
		}
	})
}

// calls reads a computation, or a list of them in braces. Each is a name or stands
// here with its instructions.
func (p *parser) calls(i *Instruction, a *Attribute) {
	a.List = a.Key == "branch_computations" || a.Key == "called_computations"
	if !a.List && p.peek() == '{' {
		a.List = !p.atBody()
	}
	callee := func() { a.Calls = append(a.Calls, p.callee(i, a.Key)) }
	if a.List {
		p.list("computations", callee)
	} else {
		callee()
	}
}

// atBody reports whether the brace here begins with an instruction, and not with
// the name of a computation.
func (p *parser) atBody() bool {
	start := p.at
	defer func() { p.at = start }()
	p.eat('{')
	if p.keyword("ROOT") {
		return true
	}
	if p.peek() == '%' {
		p.at++
	}
	name := p.word()
	p.skip()
	return name != "" && p.peek() == '='
}

// callee reads one computation that an instruction calls.
func (p *parser) callee(i *Instruction, key string) *Computation {
	if p.peek() != '{' {
		at := p.at
		name := p.name("a computation")
		c := p.computations[name]
		if c == nil {
			panic(p.fail(at, "no computation %s before this one; computations are printed before their callers", quote(name)))
		}
		return c
	}
	p.deeper()
	outer := p.scope
	p.scope = &scope{instructions: map[string]*Instruction{}}
	c := p.body("")
	p.scope = outer
	p.depth--
	p.inline = append(p.inline, inlineComputation{c, i.Name + "." + key})
	return c
}
