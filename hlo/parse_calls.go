package hlo

// Reading the attributes that name computations and other instructions.

// attribute reads the value of an instruction's attribute.
func (p *parser) attribute(i *Instruction, a *Attribute) (bool, error) {
	switch {
	case a.Key == "control-predecessors":
		if i.After != nil {
			return false, p.fail(p.at, "a second attribute %s", a.Key)
		}
		return false, p.predecessors(i)
	case callsComputations(i.Opcode, a.Key):
		return true, p.calls(i, a)
	}
	var err error
	a.Value, err = p.value(a.Key)
	return true, err
}

// callsComputations says whether an attribute names computations.
func callsComputations(op Opcode, key string) bool {
	switch key {
	case "to_apply", "calls", "condition", "body", "branch_computations", "true_computation", "false_computation", "called_computations":
		return true
	case "select", "scatter":
		return op == SelectAndScatter
	}
	return false
}

func (p *parser) predecessors(i *Instruction) error {
	if err := p.expect('{', "before control predecessors"); err != nil {
		return err
	}
	seen := map[*Instruction]bool{}
	for p.peek() != '}' {
		at := p.at
		name, err := p.name("a control predecessor")
		if err != nil {
			return err
		}
		o := p.of(name)
		if o == nil {
			return p.fail(at, "no instruction %s before this one; control predecessors are printed before", quote(name))
		}
		if !seen[o] {
			seen[o] = true
			i.After = append(i.After, o)
		}
		if !p.eat(',') {
			break
		}
	}
	return p.expect('}', "behind control predecessors")
}

// calls reads a computation, or a list of them in braces. Each is a name or stands
// here with its instructions.
func (p *parser) calls(i *Instruction, a *Attribute) error {
	list := a.Key == "branch_computations" || a.Key == "called_computations"
	if !list && p.peek() == '{' {
		list = !p.atBody()
	}
	if !list {
		c, err := p.callee(i, a.Key)
		a.Calls = []*Computation{c}
		return err
	}
	a.List = true
	if err := p.expect('{', "before computations"); err != nil {
		return err
	}
	for p.peek() != '}' {
		c, err := p.callee(i, a.Key)
		if err != nil {
			return err
		}
		a.Calls = append(a.Calls, c)
		if !p.eat(',') {
			break
		}
	}
	return p.expect('}', "behind computations")
}

// atBody says whether the brace here begins with an instruction, and not with
// the name of a computation.
func (p *parser) atBody() bool {
	start := p.at
	defer func() { p.at = start }()
	p.eat('{')
	if p.keyword("ROOT") {
		return true
	}
	_, err := p.name("")
	p.skip()
	return err == nil && p.peek() == '='
}

// callee reads one computation that an instruction calls.
func (p *parser) callee(i *Instruction, key string) (*Computation, error) {
	if p.peek() != '{' {
		at := p.at
		name, err := p.name("a computation")
		if err != nil {
			return nil, err
		}
		c := p.computations[name]
		if c == nil {
			return nil, p.fail(at, "no computation %s before this one; computations are printed before their callers", quote(name))
		}
		return c, nil
	}
	if err := p.deeper(); err != nil {
		return nil, err
	}
	outer := p.scope
	p.scope = &scope{instructions: map[string]*Instruction{}}
	defer func() { p.scope = outer; p.depth-- }()
	c, err := p.body("")
	if err == nil {
		p.inline = append(p.inline, inlined{c, i.Name + "." + key})
	}
	return c, err
}
