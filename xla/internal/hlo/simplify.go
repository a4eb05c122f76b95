package hlo

// Steps of XLA's compiler that decide what a module takes: call_inliner.cc, what
// algebraic_simplifier.cc does to operations that move no byte, and the end of barriers (2026).

import (
	"fmt"
	"slices"
	"strings"
)

// Simplify puts the instructions of called computations in the place of the calls, and makes
// bitcasts of reshapes and transposes that leave each byte where it is. A call with control
// dependencies stays. Results stay the same. The module must have passed xla/internal/verify.
func Simplify(m *Module) error {
	for _, c := range m.CalleesFirst() {
		inlineIn(c)
		for _, i := range c.Instructions {
			if (i.Opcode == Reshape || i.Opcode == Transpose) && inPlace(i) {
				i.Opcode, i.Attributes = Bitcast, slices.DeleteFunc(i.Attributes, func(a Attribute) bool { return a.Key != "metadata" })
			}
		}
	}
	_, err := RemoveDead(m)
	return err
}

// inPlace reports whether a reshape or a transpose leaves each byte where it is: in memory, the
// dimensions stand in the same order before and after. Those of one element do not count.
func inPlace(i *Instruction) bool {
	from, ok := inMemory(i.Operands[0].Shape)
	to, okTo := inMemory(i.Shape)
	if !ok || !okTo || i.Operands[0].Shape.Type != i.Shape.Type {
		return false
	}
	if i.Opcode == Reshape { // which keeps the order in which the dimensions are written
		return slices.IsSorted(from) && slices.IsSorted(to)
	}
	moved, err := i.Ints("dimensions")
	if err != nil || len(moved) != len(i.Shape.Dims) {
		return false
	}
	for n, d := range to {
		to[n] = int(moved[d])
	}
	return slices.Equal(from, to)
}

// inMemory returns the dimensions of more than one element in the order of the layout, the one
// that runs slowest first. ok is false for a layout with more than that, such as tiles.
func inMemory(s *Shape) (order []int, ok bool) {
	if !s.IsArray() || s.Dynamic != nil || strings.Contains(s.Layout, ":") {
		return nil, false
	}
	all, ok := s.MinorToMajor()
	slices.Reverse(all)
	return slices.DeleteFunc(all, func(d int) bool { return s.Dims[d] == 1 }), ok
}

// mostInlined bounds the instructions of a module in which calls are inlined, as a chain of
// computations that call the next one twice would double with each.
const mostInlined = 1 << 18

// inlineIn inlines the calls of one computation. What they call was inlined in before.
func inlineIn(c *Computation) {
	waited := map[*Instruction]bool{}
	for _, i := range c.Instructions {
		for _, p := range i.After {
			waited[p] = true
		}
	}
	var list []*Instruction
	for _, i := range c.Instructions {
		callee := i.Call("to_apply")
		if flags, _ := i.Attribute("frontend_attributes"); i.Opcode != Call || callee == nil || callee.Thread != c.Thread ||
			len(i.After) > 0 || waited[i] || strings.Contains(flags, "inlineable") || c.Module.ids > mostInlined {
			list = append(list, i)
			continue
		}
		of := make(map[*Instruction]*Instruction, len(callee.Instructions))
		for _, x := range callee.Instructions {
			if x.Opcode == Parameter {
				of[x] = i.Operands[x.Parameter]
				continue
			}
			d := x.CloneOwning("")
			base, _, _ := strings.Cut(x.Name, ".in.")
			d.Name = fmt.Sprintf("%s.in.%d", base, d.ID) // found without a search: there may be many
			for n, o := range x.Operands {
				d.SetOperand(n, of[o])
			}
			for n, p := range d.After {
				d.After[n] = of[p]
			}
			of[x] = d
			list = append(list, d)
		}
		i.ReplaceUses(of[callee.Root], nil)
		i.Detach()
		i.Parent = nil
	}
	c.Reorder(list)
}

// RemoveBarriers removes the optimization barriers of a scheduled module, as the compiler does
// between the schedule and buffer assignment (optimization_barrier_expander.cc, 2026): they hold
// no memory in the program that runs. One with control dependencies stays. It returns how many
// were removed. What only they read goes with them.
func RemoveBarriers(m *Module) (removed int) {
	for _, c := range m.Computations {
		waited := map[*Instruction]bool{}
		for _, i := range c.Instructions {
			for _, p := range i.After {
				waited[p] = true
			}
		}
		bound := func(i *Instruction) bool { return waited[i] || len(i.After) > 0 }
		gone := map[*Instruction]bool{}
		drop := func(i *Instruction) {
			if len(i.Users) == 0 && i != c.Root && !gone[i] && !bound(i) {
				gone[i] = true
				i.Detach()
			}
		}
		for _, i := range c.Instructions {
			if i.Opcode != OptBarrier || len(i.Operands) != 1 || bound(i) {
				continue
			}
			removed++
			o := i.Operands[0]
			for _, u := range slices.Clone(i.Users) {
				if n, err := u.TupleIndex(); u.Opcode == GetTupleElement && o.Opcode == TupleOp && err == nil && n < len(o.Operands) {
					u.ReplaceUses(o.Operands[n], nil)
					drop(u)
				}
			}
			i.ReplaceUses(o, nil)
			drop(i)
			if o.Opcode == TupleOp {
				drop(o)
			}
		}
		if len(gone) > 0 {
			c.Reorder(slices.DeleteFunc(slices.Clone(c.Instructions), func(i *Instruction) bool { return gone[i] }))
		}
	}
	return removed
}
