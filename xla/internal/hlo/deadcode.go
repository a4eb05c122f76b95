package hlo

// Removal of dead code (xla/hlo/transforms/simplifiers/hlo_dce.cc, 2026).

import (
	"fmt"
	"slices"
	"strconv"
)

// RemoveDead removes from the module what nothing uses, until nothing more is found:
// instructions without users or side effects, outputs and parameters of fusions, and
// computations that nothing calls. It reports whether there was any. Modules have such
// instructions before they are optimized, and passes leave some: a plan that did not count
// them would seem to save their cost.
func RemoveDead(m *Module) (changed bool, err error) {
	effects := Effects{}
	for {
		again, err := removeOnce(m, effects)
		if err != nil || !again {
			return changed, err
		}
		changed = true
	}
}

func removeOnce(m *Module, effects Effects) (changed bool, err error) {
	callers := map[*Computation][]*Instruction{}
	for i := range m.All() {
		for _, callee := range i.Called() {
			callers[callee] = append(callers[callee], i)
		}
	}
	// Callers first: then the users of a fusion are known when its computation is visited.
	reached := map[*Computation]bool{m.Entry: true}
	agenda := []*Computation{m.Entry}
	for len(agenda) > 0 {
		c := agenda[len(agenda)-1]
		agenda = agenda[:len(agenda)-1]
		var fusion *Instruction
		if by := callers[c]; len(by) == 1 && by[0].Opcode == Fusion && by[0].Parent != nil {
			fusion = by[0]
			did, err := removeOutputs(c, fusion, effects)
			if err != nil {
				return changed, err
			}
			changed = changed || did
		}
		changed = removeInstructions(c, effects) || changed
		if fusion != nil {
			changed = removeParameters(c, fusion) || changed
		}
		for _, i := range c.Instructions {
			for _, callee := range i.Called() {
				if !reached[callee] {
					reached[callee] = true
					agenda = append(agenda, callee)
				}
			}
		}
	}
	n := len(m.Computations)
	m.Computations = slices.DeleteFunc(m.Computations, func(c *Computation) bool { return !reached[c] })
	return changed || len(m.Computations) < n, nil
}

// removeInstructions takes out what nothing in a computation uses.
func removeInstructions(c *Computation, effects Effects) bool {
	before := predecessors(c)
	removed := 0
	// Backwards, operands come after their users.
	for k := len(c.Instructions) - 1; k >= 0; k-- {
		i := c.Instructions[k]
		ordered := len(i.After) > 0 || before[i]
		if !dead(i) || i.Opcode == Parameter || ordered || keepsSharding(i) || effects.Of(i) {
			continue
		}
		i.Detach()
		i.Parent = nil
		removed++
	}
	if removed > 0 {
		c.Instructions = slices.DeleteFunc(c.Instructions, func(i *Instruction) bool { return i.Parent == nil })
	}
	return removed > 0
}

// predecessors are the control predecessors of a computation's instructions.
func predecessors(c *Computation) map[*Instruction]bool {
	found := map[*Instruction]bool{}
	for _, i := range c.Instructions {
		for _, p := range i.After {
			found[p] = true
		}
	}
	return found
}

// keepsSharding reports whether an annotation without users still says something.
func keepsSharding(i *Instruction) bool {
	if i.Opcode != CustomCall || len(i.Operands) == 0 {
		return false
	}
	target, _ := i.Attribute("custom_call_target")
	o := i.Operands[0]
	return target == `"Sharding"` && (o.Parent.Root == o || o.Opcode == Parameter || len(o.Users) != 1)
}

// removeOutputs takes out the outputs of a fusion that no get-tuple-element gets.
func removeOutputs(c *Computation, fusion *Instruction, effects Effects) (bool, error) {
	root := c.Root
	if !mayLoseOutputs(fusion, root) {
		return false, nil
	}
	used := make([]bool, len(root.Operands))
	for _, u := range fusion.Users {
		// What a get-tuple-element waits for, the fusion need not be able to wait for.
		if u.Opcode != GetTupleElement || len(u.After) > 0 {
			return false, nil
		}
		n, err := u.TupleIndex()
		if err != nil {
			return false, err
		}
		if n >= len(used) {
			return false, fmt.Errorf("%s: %s has no element %d", Where(u), fusion.Name, n)
		}
		used[n] = true
	}
	now := make([]int, len(used)) // the new index of each
	var shapes []*Shape
	var operands []*Instruction
	for n := range used {
		if used[n] || effects.Of(root.Operands[n]) {
			now[n] = len(shapes)
			shapes = append(shapes, fusion.Shape.Elements[n])
			operands = append(operands, root.Operands[n])
		}
	}
	if len(shapes) == len(used) {
		return false, nil
	}
	if len(shapes) == 1 {
		fusion.Shape = shapes[0]
		for _, u := range slices.Clone(fusion.Users) {
			passOver(u, fusion)
		}
		c.Root = operands[0]
		return true, nil
	}
	fusion.Shape = &Shape{Type: Tuple, Elements: shapes}
	for _, u := range fusion.Users {
		n, _ := u.TupleIndex()
		for k := range u.Attributes {
			if u.Attributes[k].Key == "index" {
				u.Attributes[k].Value = strconv.Itoa(now[n])
			}
		}
	}
	root.Detach()
	root.Shape, root.Attributes = fusion.Shape, nil // XLA makes a new tuple, without metadata
	for _, o := range operands {
		root.AddOperand(o)
	}
	return true, nil
}

// mayLoseOutputs reports whether a fusion with that root may have fewer outputs.
func mayLoseOutputs(fusion, root *Instruction) bool {
	kind, _ := fusion.Attribute("kind")
	_, aliased := fusion.Attribute("output_to_operand_aliasing")
	_, sharded := root.Attribute("sharding")
	if sharded || aliased || kind == "kCustom" {
		return false
	}
	ordered := len(fusion.After) > 0 || predecessors(fusion.Parent)[fusion]
	if ordered || len(fusion.Users) == 0 || fusion.Parent.Root == fusion {
		return false
	}
	return root.Opcode == TupleOp && len(fusion.Shape.Elements) == len(root.Operands)
}

// passOver makes the users of a get-tuple-element use o instead, and what has to run
// after it run after o.
func passOver(i, o *Instruction) {
	i.ReplaceUses(o, nil)
	for _, j := range i.Parent.Instructions {
		if n := slices.Index(j.After, i); n >= 0 {
			j.After = slices.Delete(j.After, n, n+1)
			j.AddAfter(o)
		}
	}
}

// removeParameters takes out the parameters of a fusion that it does not use, with their operands.
func removeParameters(c *Computation, fusion *Instruction) bool {
	list := c.Parameters()
	if len(list) != len(fusion.Operands) || slices.Contains(list, nil) {
		return false
	}
	var operands []*Instruction
	gone := map[*Instruction]bool{}
	for n, p := range list {
		if dead(p) {
			gone[p] = true
			continue
		}
		operands = append(operands, fusion.Operands[n])
		p.Parameter = n - len(gone)
		p.Literal = strconv.Itoa(p.Parameter)
	}
	if len(gone) == 0 {
		return false
	}
	fusion.Detach()
	for _, o := range operands {
		fusion.AddOperand(o)
	}
	c.Instructions = slices.DeleteFunc(c.Instructions, func(i *Instruction) bool { return gone[i] })
	return true
}

// dead reports whether nothing uses an instruction.
func dead(i *Instruction) bool {
	return i.Parent == nil || len(i.Users) == 0 && i.Parent.Root != i
}
