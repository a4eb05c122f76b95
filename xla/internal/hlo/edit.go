package hlo

// Changing a module, with operands and users kept in step.

import (
	"slices"
	"strconv"
	"strings"
)

// NewInstruction makes an instruction that is in no computation yet: see [Computation.Insert].
// The name is made unique when it is inserted.
func (m *Module) NewInstruction(name string, op Opcode, shape *Shape, operands ...*Instruction) *Instruction {
	i := &Instruction{Name: name, Opcode: op, Shape: shape, ID: m.ids}
	m.ids++
	for _, o := range operands {
		i.AddOperand(o)
	}
	return i
}

// NewComputation adds an empty computation after the others but before the entry.
func (m *Module) NewComputation(name string) *Computation {
	c := &Computation{Name: name, Module: m}
	at := len(m.Computations)
	if at > 0 && m.Computations[at-1] == m.Entry {
		at--
	}
	m.Computations = slices.Insert(m.Computations, at, c)
	return c
}

// AddOperand appends an operand.
func (i *Instruction) AddOperand(o *Instruction) {
	if !i.uses(o) {
		o.Users = append(o.Users, i)
	}
	i.Operands = append(i.Operands, o)
}

// uses reports whether o is an operand. Operands may be thousands, and so may users: the
// shorter list is searched.
func (i *Instruction) uses(o *Instruction) bool {
	if len(o.Users) < len(i.Operands) {
		return slices.Contains(o.Users, i)
	}
	return slices.Contains(i.Operands, o)
}

// SetOperand replaces operand n, which must exist.
func (i *Instruction) SetOperand(n int, o *Instruction) {
	old := i.Operands[n]
	if old == o {
		return
	}
	if !i.uses(o) {
		o.Users = append(o.Users, i)
	}
	i.Operands[n] = o
	if !slices.Contains(i.Operands, old) {
		old.dropUser(i)
	}
}

// ReplaceUses makes all users of i use o instead, except o itself and those for which keep
// is true. If keep is nil, the computation also returns o if it returned i.
func (i *Instruction) ReplaceUses(o *Instruction, keep func(user *Instruction) bool) {
	for _, u := range slices.Clone(i.Users) {
		if u == o || keep != nil && keep(u) {
			continue
		}
		for n, x := range u.Operands {
			if x == i {
				u.SetOperand(n, o)
			}
		}
	}
	if i.Parent != nil && i.Parent.Root == i && keep == nil {
		i.Parent.Root = o
	}
}

// AddAfter makes p a control predecessor of i: i runs after p.
func (i *Instruction) AddAfter(p *Instruction) {
	if !slices.Contains(i.After, p) {
		i.After = append(i.After, p)
	}
}

func (i *Instruction) dropUser(u *Instruction) {
	if n := slices.Index(i.Users, u); n >= 0 {
		i.Users = slices.Delete(i.Users, n, n+1)
	}
}

// Insert puts instructions before the place at in the list, with names that the computation
// does not have yet. It takes time linear in the computation: see [Computation.Reorder].
func (c *Computation) Insert(at int, list ...*Instruction) {
	taken := make(map[string]bool, len(c.Instructions))
	for _, i := range c.Instructions {
		taken[i.Name] = true
	}
	for _, i := range list {
		i.Name = unique(i.Name, taken)
		i.Parent = c
		taken[i.Name] = true
	}
	c.Instructions = slices.Insert(c.Instructions, at, list...)
}

// Reorder sets the list, which must have the same instructions or more; new ones
// get a name that is free. Instructions that are left out must have no user.
func (c *Computation) Reorder(list []*Instruction) {
	taken := make(map[string]bool, len(list))
	for _, i := range list {
		if i.Parent == c {
			taken[i.Name] = true
		}
	}
	for _, i := range list {
		if i.Parent != c {
			i.Name = unique(i.Name, taken)
			i.Parent = c
			taken[i.Name] = true
		}
	}
	c.Instructions = list
}

// unique is a name that is not taken: name, or name with .1, .2 and so on.
func unique(name string, taken map[string]bool) string {
	if !taken[name] {
		return name
	}
	base, n := name, 1
	if dot := strings.LastIndexByte(name, '.'); dot > 0 {
		if k, err := strconv.Atoi(name[dot+1:]); err == nil && k > 0 {
			base, n = name[:dot], k+1
		}
	}
	for ; ; n++ {
		if s := base + "." + strconv.Itoa(n); !taken[s] {
			return s
		}
	}
}

// Remove takes an instruction without users out of its computation. What ran after
// it now runs after what it ran after.
func (c *Computation) Remove(i *Instruction) {
	for _, x := range c.Instructions {
		if n := slices.Index(x.After, i); n >= 0 {
			x.After = slices.Delete(x.After, n, n+1)
			for _, p := range i.After {
				x.AddAfter(p)
			}
		}
	}
	i.Detach()
	if n := slices.Index(c.Instructions, i); n >= 0 {
		c.Instructions = slices.Delete(c.Instructions, n, n+1)
	}
	i.Parent = nil
}

// Detach removes an instruction's operands, and the instruction from their users.
func (i *Instruction) Detach() {
	for _, o := range i.Operands {
		o.dropUser(i)
	}
	i.Operands = nil
}

// Clone is a copy with the same operands, attributes and control predecessors,
// that is in no computation yet. It calls the same computations.
func (i *Instruction) Clone(name string) *Instruction {
	c := i.module().NewInstruction(name, i.Opcode, i.Shape, i.Operands...)
	c.Literal, c.Parameter, c.After = i.Literal, i.Parameter, slices.Clone(i.After)
	c.Attributes = slices.Clone(i.Attributes)
	for n := range c.Attributes {
		c.Attributes[n].Calls = slices.Clone(c.Attributes[n].Calls)
	}
	return c
}

// CloneOwning is Clone for an instruction that has to be the only caller of what it calls: a
// fusion, the start of an asynchronous operation, a call, a loop or a conditional. The copy calls
// copies, and so does what they call in this way. All share other callees, such as the function
// of a reduce.
func (i *Instruction) CloneOwning(name string) *Instruction {
	c := i.Clone(name)
	if !owns(i) {
		return c
	}
	kept, seen := map[*Computation]*Computation{}, map[*Computation]bool{}
	for n := range c.Attributes {
		for k, callee := range c.Attributes[n].Calls {
			keepShared(callee, runs(i), kept, seen)
			c.Attributes[n].Calls[k] = callee.Clone(".clone", kept)
		}
	}
	return c
}

// owns reports whether an instruction has to be the only caller of what it calls.
func owns(i *Instruction) bool {
	return i.Opcode == Fusion || runs(i) || i.Opcode.WrapsStart()
}

// runs reports whether an instruction runs what it calls as a part of the program.
func runs(i *Instruction) bool {
	return i.Opcode == Call || i.Opcode == While || i.Opcode == Conditional
}

// keepShared adds to kept the computations that a clone of c shares with it: all that it
// calls, except those of its fusions, and of its calls, loops and conditionals if deep is set.
// XLA's pass, which clones none of these, shares them. seen are the computations that were looked at: a chain of fusions may
// reach one on many ways.
func keepShared(c *Computation, deep bool, kept map[*Computation]*Computation, seen map[*Computation]bool) {
	if seen[c] {
		return
	}
	seen[c] = true
	for _, i := range c.Instructions {
		for _, callee := range i.Called() {
			if i.Opcode == Fusion || deep && runs(i) {
				keepShared(callee, deep, kept, seen)
			} else {
				kept[callee] = callee
			}
		}
	}
}

func (i *Instruction) module() *Module { return i.Parent.Module }

// Clone is a copy of a computation and of all that it calls, under new names. Each copy stands
// right after its original, so before its callers.
// called maps what was copied already, and may be nil.
func (c *Computation) Clone(suffix string, called map[*Computation]*Computation) *Computation {
	if called == nil {
		called = map[*Computation]*Computation{}
	}
	if done := called[c]; done != nil {
		return done
	}
	for _, i := range c.Instructions {
		for _, callee := range i.Called() {
			callee.Clone(suffix, called)
		}
	}
	m := c.Module
	// Of all names only those matter that unique may try.
	name, taken := c.Name+suffix, map[string]bool{}
	base := name
	if dot := strings.LastIndexByte(name, '.'); dot > 0 {
		base = name[:dot]
	}
	for _, other := range m.Computations {
		if strings.HasPrefix(other.Name, base) {
			taken[other.Name] = true
		}
	}
	copied := &Computation{Name: unique(name, taken), Module: m, Thread: c.Thread}
	m.Computations = slices.Insert(m.Computations, slices.Index(m.Computations, c)+1, copied)
	called[c] = copied
	of := make(map[*Instruction]*Instruction, len(c.Instructions))
	list := make([]*Instruction, 0, len(c.Instructions))
	for _, i := range c.Instructions {
		d := c.Module.NewInstruction(i.Name, i.Opcode, i.Shape)
		d.Literal, d.Parameter, d.Parent = i.Literal, i.Parameter, copied
		d.Attributes = cloneAttributes(i.Attributes, nil, called)
		of[i] = d
		list = append(list, d)
	}
	for _, i := range c.Instructions {
		for _, o := range i.Operands {
			of[i].AddOperand(of[o])
		}
		for _, p := range i.After {
			of[i].AddAfter(of[p])
		}
	}
	copied.Instructions, copied.Root = list, of[c.Root]
	return copied
}
