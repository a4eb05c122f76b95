// Package verify checks that a module is well formed: that its graph holds together and
// that shapes agree.
//
// What XLA lets pass also passes here: layouts that differ, f32 beside bf16 in arithmetic,
// and opcodes that this package does not know.
package verify

import (
	"fmt"
	"slices"

	"gpumem/xla/internal/hlo"
)

// An Error is the first defect found in a module.
type Error struct {
	Computation *hlo.Computation // nil if the defect is in the module as a whole
	Instruction *hlo.Instruction // nil if it is in the computation as a whole
	Problem     string           // what was found, and what was expected
}

// Error returns one line, such as "line 12: add.3 in main: " and the problem.
func (e *Error) Error() string {
	switch {
	case e.Instruction != nil:
		return hlo.Where(e.Instruction) + ": " + e.Problem
	case e.Computation != nil:
		return "computation " + e.Computation.Name + ": " + e.Problem
	}
	return "module: " + e.Problem
}

// Module checks the graph as [Graph] does, the shapes of each instruction whose opcode has
// a plain rule, and that aliases name parts that exist and have the same size. It takes
// time linear in the size of the module. The error is an [*Error].
func Module(m *hlo.Module) error {
	if err := Graph(m); err != nil {
		return err
	}
	for i := range m.All() {
		if problem := checkShapes(i); problem != "" {
			return &Error{i.Parent, i, problem}
		}
	}
	return checkAliases(m)
}

// Graph checks the edges and names of a module: users mirror operands; operands come
// before their users if the module is scheduled, and no instruction depends on itself
// otherwise; calls are not recursive; names and parameter numbers are unique; roots are in
// their computations. The error is an [*Error].
func Graph(m *hlo.Module) error {
	v := &verifier{m: m, seen: make([]int, m.IDs()), place: make([]int, m.IDs())}
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
	m     *hlo.Module
	place []int // by ID: 1 + where the instruction stands in its list, 0: nowhere
	seen  []int // by ID: a mark
	mark  int
}

func (v *verifier) computations() error {
	names := map[string]bool{}
	for _, c := range v.m.Computations {
		switch {
		case c == nil:
			return &Error{nil, nil, "a computation is nil"}
		case c.Module != v.m:
			return &Error{c, nil, "it belongs to another module"}
		case names[c.Name]:
			return &Error{c, nil, "a second one of this name: names have to be unique"}
		}
		names[c.Name] = true
	}
	if v.m.Entry == nil || !slices.Contains(v.m.Computations, v.m.Entry) {
		return &Error{nil, nil, "no entry computation"}
	}
	return nil
}

// graph checks one computation's list, edges, names, parameters and root.
func (v *verifier) graph(c *hlo.Computation) error {
	names := make(map[string]bool, len(c.Instructions))
	parameters := 0
	for n, i := range c.Instructions {
		fail := func(format string, a ...any) error {
			return &Error{c, i, fmt.Sprintf(format, a...)}
		}
		switch {
		case i == nil:
			return &Error{c, nil, "an instruction is nil"}
		case i.Shape == nil:
			return fail("it has no shape")
		case i.ID < 0 || i.ID >= v.m.IDs() || v.place[i.ID] != 0:
			return fail("ID %d is not its own: instructions are made by NewInstruction and stand once", i.ID)
		case i.Parent != c:
			return fail("it stands here but its parent is another computation")
		case names[i.Name]:
			return fail("a second instruction of this name")
		}
		names[i.Name] = true
		v.place[i.ID] = n + 1
		if i.Opcode == hlo.Parameter {
			parameters++
		}
	}
	for n, i := range c.Parameters() {
		if i == nil {
			return &Error{c, nil, fmt.Sprintf("parameter %d is missing", n)}
		}
		parameters--
	}
	if parameters != 0 {
		return &Error{c, nil, "a parameter number is there twice or out of range"}
	}
	if c.Root == nil || !v.in(c, c.Root) {
		return &Error{c, nil, "the root is not in it"}
	}
	if err := v.edges(c); err != nil {
		return err
	}
	return v.order(c)
}

// in reports whether an instruction stands in c.
func (v *verifier) in(c *hlo.Computation, i *hlo.Instruction) bool {
	return i != nil && i.Parent == c && i.ID >= 0 && i.ID < v.m.IDs() &&
		v.place[i.ID] > 0 && c.Instructions[v.place[i.ID]-1] == i
}

// edges checks that users are exactly those that have the instruction as operand.
func (v *verifier) edges(c *hlo.Computation) error {
	// users are the true ones, in the order of the list.
	users := make([][]*hlo.Instruction, len(c.Instructions))
	total := 0
	for _, i := range c.Instructions {
		total += len(i.Users)
	}
	room := make([]*hlo.Instruction, total)
	for n, i := range c.Instructions { // as many as there should be; more make it larger
		users[n], room = room[:0:len(i.Users)], room[len(i.Users):]
	}
	for _, i := range c.Instructions {
		v.mark++
		for _, o := range i.Operands {
			if !v.in(c, o) {
				return &Error{c, i, "operand " + nameOf(o) + " is not in this computation"}
			}
			if v.seen[o.ID] != v.mark {
				v.seen[o.ID] = v.mark
				users[v.place[o.ID]-1] = append(users[v.place[o.ID]-1], i)
			}
		}
		for _, p := range i.After {
			if !v.in(c, p) {
				return &Error{c, i, "control predecessor " + nameOf(p) + " is not in this computation"}
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
				return &Error{c, i, "user " + nameOf(u) + " does not use it, or is listed twice"}
			}
			v.seen[u.ID] = 0
			missing--
		}
		if missing > 0 {
			for _, u := range users[n] {
				if v.seen[u.ID] == v.mark {
					return &Error{c, i, "user " + u.Name + " is not among its users"}
				}
			}
		}
	}
	return nil
}

func nameOf(i *hlo.Instruction) string {
	if i == nil {
		return "nil"
	}
	return i.Name
}

// order checks that each instruction can run after all that it waits for.
func (v *verifier) order(c *hlo.Computation) error {
	forward := false
	for n, i := range c.Instructions {
		for _, list := range [][]*hlo.Instruction{i.Operands, i.After} {
			for _, o := range list {
				if v.place[o.ID]-1 < n {
					continue
				}
				if v.m.Scheduled || o == i {
					return &Error{c, i, "it stands before " + o.Name + ", which it needs"}
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
		for _, list := range [][]*hlo.Instruction{i.Operands, i.After} {
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
			return &Error{c, c.Instructions[n], "it waits for itself: a cycle of operands or control predecessors"}
		}
	}
	return nil
}

// recursion checks that what is called is in the module and never calls its caller.
func (v *verifier) recursion() error {
	place := make(map[*hlo.Computation]int, len(v.m.Computations))
	for _, c := range v.m.Computations {
		place[c] = 0
	}
	for i := range v.m.All() {
		for _, to := range i.Called() {
			if _, in := place[to]; !in {
				return &Error{i.Parent, i, "it calls a computation that is not in the module"}
			}
		}
	}
	for n, c := range v.m.CalleesFirst() {
		place[c] = n
	}
	for i := range v.m.All() {
		for _, to := range i.Called() {
			if place[to] >= place[i.Parent] { // callees come first, unless they call a caller
				return &Error{i.Parent, i, "it calls " + to.Name + ", which calls it: recursion"}
			}
		}
	}
	return nil
}

// checkAliases checks that outputs and parameters that share memory exist and are
// arrays of the same size.
func checkAliases(m *hlo.Module) error {
	parameters := m.Entry.Parameters()
	for _, a := range m.Aliases {
		fail := func(problem string) error {
			return &Error{m.Entry, nil, fmt.Sprintf("alias of output %v and parameter %d %v: %s", a.Output, a.Parameter, a.Index, problem)}
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
