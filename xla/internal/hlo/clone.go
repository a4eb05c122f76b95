package hlo

// Copying a module as a whole, without its text.

// Clone is a copy that may be changed by itself: what [ParseString] makes of the
// module's text, in a small part of the time. As there, computations stand behind
// those they call, and IDs and users are in the order of the text. Shapes are shared,
// and lines stay those of the original. The module must pass xla/internal/verify.Graph.
func (m *Module) Clone() *Module {
	d := *m
	d.Attributes = cloneAttributes(m.Attributes, make([]Attribute, 0, len(m.Attributes)), nil)
	d.Aliases = append([]Alias(nil), m.Aliases...) // their indices are never changed
	order := m.CalleesFirst()
	d.Computations, d.ids = make([]*Computation, len(order)), m.Instructions()
	computations := make(map[*Computation]*Computation, len(order))
	for n, c := range order {
		d.Computations[n] = &Computation{Name: c.Name, Module: &d, Thread: c.Thread}
		computations[c] = d.Computations[n]
	}
	d.Entry = computations[m.Entry]

	// All lists of one kind lie in one piece of memory. None can grow into the next.
	var operands, after, attributes int
	for _, c := range order {
		for _, i := range c.Instructions {
			operands, after, attributes = operands+len(i.Operands), after+len(i.After), attributes+len(i.Attributes)
		}
	}
	instructions, list := make([]Instruction, d.ids), make([]*Instruction, d.ids)
	edges := make([]*Instruction, 0, 2*operands+after)
	allAttributes := make([]Attribute, 0, attributes)
	of := make([]*Instruction, m.ids) // copies, by ID of the original
	id := 0
	for n, c := range order {
		to := d.Computations[n]
		first := id
		for _, i := range c.Instructions {
			x := &instructions[id]
			*x = *i
			x.ID, x.Parent = id, to
			of[i.ID], list[id] = x, x
			id++
		}
		to.Instructions = list[first:id:id]
		to.Root = of[c.Root.ID]
		copies := func(from []*Instruction) []*Instruction {
			if len(from) == 0 {
				return nil
			}
			at := len(edges)
			for _, i := range from {
				edges = append(edges, of[i.ID])
			}
			return edges[at:len(edges):len(edges)]
		}
		for _, x := range to.Instructions {
			// Users are allocated here, and sorted by link.
			users := copies(x.Users)
			x.Operands, x.After, x.Users = copies(x.Operands), copies(x.After), users[:0]
			x.Attributes = cloneAttributes(x.Attributes, allAttributes, computations)
			allAttributes = allAttributes[:len(allAttributes)+len(x.Attributes)]
		}
		link(to)
	}
	return &d
}

// cloneAttributes copies attributes to the end of a list with room for them.
func cloneAttributes(from, to []Attribute, computations map[*Computation]*Computation) []Attribute {
	if len(from) == 0 {
		return nil
	}
	at := len(to)
	to = append(to, from...)
	for n := at; n < len(to); n++ {
		if calls := to[n].Calls; len(calls) > 0 {
			to[n].Calls = make([]*Computation, len(calls))
			for k, c := range calls {
				to[n].Calls[k] = computations[c]
			}
		}
	}
	return to[at:len(to):len(to)]
}
