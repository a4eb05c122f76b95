package hlo

// Whether a module is one: the graph holds together and shapes agree. What XLA
// lets pass (layouts that differ, f32 beside bf16 in arithmetic, an opcode it has
// and this package does not know) passes here too.

import (
	"fmt"
	"slices"
)

// A VerifyError is the first thing that is wrong with a module.
type VerifyError struct {
	Computation *Computation // nil: the module as a whole
	Instruction *Instruction // nil: the computation as a whole
	Problem     string       // what is wrong, and what was expected
}

// Error is one line: "line 12: add.3 in main: what is wrong".
func (e *VerifyError) Error() string {
	switch {
	case e.Instruction != nil:
		return Where(e.Instruction) + ": " + e.Problem
	case e.Computation != nil:
		return "computation " + e.Computation.Name + ": " + e.Problem
	}
	return "module: " + e.Problem
}

// Verify checks all that [Module.VerifyGraph] does, that shapes agree where an
// opcode's rule is plain, and that aliases name what exists and has the same size. It
// takes time linear in the module. The error is a [*VerifyError].
func (m *Module) Verify() error {
	if err := m.VerifyGraph(); err != nil {
		return err
	}
	for _, c := range m.Computations {
		for _, i := range c.Instructions {
			if problem := checkShapes(i); problem != "" {
				return &VerifyError{c, i, problem}
			}
		}
	}
	return m.checkAliases()
}

// VerifyGraph checks that users and operands are in step, that operands come before
// their users where the module is scheduled and that no instruction waits for
// itself otherwise, that computations are called without recursion, that names
// and parameter numbers are each there once, and that roots are in their
// computations. The error is a [*VerifyError].
func (m *Module) VerifyGraph() error {
	v := &verifier{m: m, seen: make([]int, m.ids), place: make([]int, m.ids)}
	if err := v.computations(); err != nil {
		return err
	}
	for _, c := range m.Computations {
		if err := v.graph(c); err != nil {
			return err
		}
	}
	return v.recursion()
}

type verifier struct {
	m     *Module
	place []int // by ID: 1 + where the instruction stands in its list, 0: nowhere
	seen  []int // by ID: a mark
	mark  int
}

func (v *verifier) computations() error {
	names := map[string]bool{}
	for _, c := range v.m.Computations {
		switch {
		case c == nil:
			return &VerifyError{nil, nil, "a computation is nil"}
		case c.Module != v.m:
			return &VerifyError{c, nil, "it belongs to another module"}
		case names[c.Name]:
			return &VerifyError{c, nil, "a second one of this name: names have to be unique"}
		}
		names[c.Name] = true
	}
	if v.m.Entry == nil || !slices.Contains(v.m.Computations, v.m.Entry) {
		return &VerifyError{nil, nil, "no entry computation"}
	}
	return nil
}

// graph checks one computation's list, edges, names, parameters and root.
func (v *verifier) graph(c *Computation) error {
	names := make(map[string]bool, len(c.Instructions))
	parameters := 0
	for n, i := range c.Instructions {
		fail := func(format string, a ...any) error {
			return &VerifyError{c, i, fmt.Sprintf(format, a...)}
		}
		switch {
		case i == nil:
			return &VerifyError{c, nil, "an instruction is nil"}
		case i.Shape == nil:
			return fail("it has no shape")
		case i.ID < 0 || i.ID >= v.m.ids || v.place[i.ID] != 0:
			return fail("ID %d is not its own: instructions are made by NewInstruction and stand once", i.ID)
		case i.Parent != c:
			return fail("it stands here but its parent is another computation")
		case names[i.Name]:
			return fail("a second instruction of this name")
		}
		names[i.Name] = true
		v.place[i.ID] = n + 1
		if i.Opcode == Parameter {
			parameters++
		}
	}
	for n, i := range c.Parameters() {
		if i == nil {
			return &VerifyError{c, nil, fmt.Sprintf("parameter %d is missing", n)}
		}
		parameters--
	}
	if parameters != 0 {
		return &VerifyError{c, nil, "a parameter number is there twice or out of range"}
	}
	if c.Root == nil || !v.in(c, c.Root) {
		return &VerifyError{c, nil, "the root is not in it"}
	}
	if err := v.edges(c); err != nil {
		return err
	}
	return v.order(c)
}

// in says whether an instruction stands in c.
func (v *verifier) in(c *Computation, i *Instruction) bool {
	return i != nil && i.Parent == c && i.ID >= 0 && i.ID < v.m.ids &&
		v.place[i.ID] > 0 && c.Instructions[v.place[i.ID]-1] == i
}

// edges checks that users are exactly those that have the instruction as operand.
func (v *verifier) edges(c *Computation) error {
	// users are the true ones, in the order of the list.
	users := make([][]*Instruction, len(c.Instructions))
	total := 0
	for _, i := range c.Instructions {
		total += len(i.Users)
	}
	room := make([]*Instruction, total)
	for n, i := range c.Instructions { // as many as there should be; more make it larger
		users[n], room = room[:0:len(i.Users)], room[len(i.Users):]
	}
	for _, i := range c.Instructions {
		v.mark++
		for _, o := range i.Operands {
			if !v.in(c, o) {
				return &VerifyError{c, i, "operand " + nameOf(o) + " is not in this computation"}
			}
			if v.seen[o.ID] != v.mark {
				v.seen[o.ID] = v.mark
				users[v.place[o.ID]-1] = append(users[v.place[o.ID]-1], i)
			}
		}
		for _, p := range i.After {
			if !v.in(c, p) {
				return &VerifyError{c, i, "control predecessor " + nameOf(p) + " is not in this computation"}
			}
		}
	}
	for n, i := range c.Instructions {
		v.mark++
		for _, u := range users[n] {
			v.seen[u.ID] = v.mark
		}
		missing := len(users[n])
		for _, u := range i.Users {
			if !v.in(c, u) || v.seen[u.ID] != v.mark {
				return &VerifyError{c, i, "user " + nameOf(u) + " does not use it, or is listed twice"}
			}
			v.seen[u.ID] = 0
			missing--
		}
		if missing > 0 {
			for _, u := range users[n] {
				if v.seen[u.ID] == v.mark {
					return &VerifyError{c, i, "user " + u.Name + " is not among its users"}
				}
			}
		}
	}
	return nil
}

func nameOf(i *Instruction) string {
	if i == nil {
		return "nil"
	}
	return i.Name
}

// order checks that each instruction can run after all that it waits for.
func (v *verifier) order(c *Computation) error {
	forward := false
	for n, i := range c.Instructions {
		for _, list := range [][]*Instruction{i.Operands, i.After} {
			for _, o := range list {
				if v.place[o.ID]-1 < n {
					continue
				}
				if v.m.Scheduled || o == i {
					return &VerifyError{c, i, "it stands before " + o.Name + ", which it needs"}
				}
				forward = true
			}
		}
	}
	if !forward {
		return nil
	}
	// The list is no order: look for one, taking what waits for nothing.
	waits := make([]int, len(c.Instructions))
	next := make([][]int, len(c.Instructions))
	var ready []int
	for n, i := range c.Instructions {
		for _, list := range [][]*Instruction{i.Operands, i.After} {
			for _, o := range list {
				waits[n]++
				at := v.place[o.ID] - 1
				next[at] = append(next[at], n)
			}
		}
		if waits[n] == 0 {
			ready = append(ready, n)
		}
	}
	for len(ready) > 0 {
		n := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		for _, u := range next[n] {
			if waits[u]--; waits[u] == 0 {
				ready = append(ready, u)
			}
		}
	}
	for n, w := range waits {
		if w > 0 {
			return &VerifyError{c, c.Instructions[n], "it waits for itself: a cycle of operands or control predecessors"}
		}
	}
	return nil
}

// recursion checks that what is called is in the module and never calls its
// caller. It keeps its own stack: a chain of calls may be as long as the module.
func (v *verifier) recursion() error {
	const fresh, open, done = 0, 1, 2
	state := make(map[*Computation]int, len(v.m.Computations))
	for _, c := range v.m.Computations {
		state[c] = fresh
	}
	type step struct {
		c     *Computation
		calls []call
	}
	for _, c := range v.m.Computations {
		if state[c] != fresh {
			continue
		}
		state[c] = open
		stack := []step{{c, calls(c)}}
		for len(stack) > 0 {
			top := &stack[len(stack)-1]
			if len(top.calls) == 0 {
				state[top.c] = done
				stack = stack[:len(stack)-1]
				continue
			}
			next := top.calls[0]
			top.calls = top.calls[1:]
			s, ok := state[next.to]
			switch {
			case !ok:
				return &VerifyError{top.c, next.from, "it calls a computation that is not in the module"}
			case s == open:
				return &VerifyError{top.c, next.from, "it calls " + next.to.Name + ", which calls it: recursion"}
			case s == fresh:
				state[next.to] = open
				stack = append(stack, step{next.to, calls(next.to)})
			}
		}
	}
	return nil
}

type call struct {
	from *Instruction
	to   *Computation
}

func calls(c *Computation) (list []call) {
	for _, i := range c.Instructions {
		for _, a := range i.Attributes {
			for _, to := range a.Calls {
				list = append(list, call{i, to})
			}
		}
	}
	return list
}

// checkAliases checks that outputs and parameters that share memory exist and are
// arrays of the same size.
func (m *Module) checkAliases() error {
	parameters := m.Entry.Parameters()
	for _, a := range m.Aliases {
		fail := func(problem string) error {
			return &VerifyError{m.Entry, nil, fmt.Sprintf("alias of output %v and parameter %d %v: %s", a.Output, a.Parameter, a.Index, problem)}
		}
		out := m.Entry.Root.Shape.At(a.Output...)
		if out == nil {
			return fail("no such output")
		}
		if a.Parameter < 0 || a.Parameter >= len(parameters) {
			return fail("no such parameter")
		}
		in := parameters[a.Parameter].Shape.At(a.Index...)
		if in == nil {
			return fail("the parameter has no such element")
		}
		inBytes, err1 := in.Bytes()
		outBytes, err2 := out.Bytes()
		if err1 == nil && err2 == nil && inBytes != outBytes {
			return fail(fmt.Sprintf("they have %d and %d bytes", outBytes, inBytes))
		}
	}
	return nil
}
