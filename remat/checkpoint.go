package remat

// A compiled program as jax.checkpoint around its numbered layers would make it.

import (
	"cmp"
	"slices"
	"strings"

	"gpumem/hlo"
)

// A passes is where the instructions of an entry belong.
type passes struct {
	layer    map[*hlo.Instruction]int  // number of the layer from 0; -1: none
	backward map[*hlo.Instruction]bool // of the backward pass
	again    map[*hlo.Instruction]bool // clones, of the backward pass, too
}

// passesOf finds the layers of the entry's instructions by the patterns of the layers. What
// the compiler added without a name, such as copies and parts of tuples, belongs to what it reads.
func passesOf(m *hlo.Module, l layer) passes {
	p := passes{map[*hlo.Instruction]int{}, map[*hlo.Instruction]bool{}, map[*hlo.Instruction]bool{}}
	at := map[string]int{}
	for n, pattern := range l.Patterns {
		at[pattern] = n
	}
	for _, i := range m.Entry.Instructions {
		p.layer[i] = -1
		if i.Opcode == hlo.Parameter || i.Opcode == hlo.Constant {
			continue
		}
		if i.OpName() == "" {
			for _, o := range i.Operands {
				k, known := p.layer[o]
				switch {
				case !known || o.Opcode == hlo.Parameter || o.Opcode == hlo.Constant:
				case p.backward[o] && !p.backward[i]:
					p.layer[i], p.backward[i] = k, true
				case p.backward[o] && k >= 0:
					p.layer[i] = min(k, p.layer[i])
				case !p.backward[o] && !p.backward[i]:
					p.layer[i] = max(k, p.layer[i])
				}
			}
			continue
		}
		p.backward[i] = backward(i)
		if base, number := numbered(parts(i), l.Name); base != "" {
			if n, ok := at[patternOf(base+number)]; ok {
				p.layer[i] = n
			}
		}
	}
	// What the compiler made of parameters belongs to what reads it.
	for _, i := range slices.Backward(m.Entry.Instructions) {
		if i.OpName() != "" || len(i.Operands) == 0 || len(i.Users) == 0 || i.Opcode == hlo.Constant || p.backward[i] {
			continue
		}
		k := p.layer[i.Users[0]]
		if k > p.layer[i] && !slices.ContainsFunc(i.Users, func(u *hlo.Instruction) bool { return p.layer[u] != k }) {
			p.layer[i] = k
		}
	}
	p.early(m.Entry)
	return p
}

// early makes those of the backward pass forward ones that need no gradient from outside of
// their layer: the compiler computes them when it likes, and with the values of the layer.
func (p passes) early(c *hlo.Computation) {
	last := -1 // its backward pass may begin with a loss that the compiler fused into it
	for _, k := range p.layer {
		last = max(last, k)
	}
	real := map[*hlo.Instruction]bool{}  // made of more than constants
	waits := map[*hlo.Instruction]bool{} // for a gradient
	for _, i := range c.Instructions {
		real[i] = i.Opcode == hlo.Parameter
		for _, o := range i.Operands {
			real[i] = real[i] || real[o]
			waits[i] = waits[i] || waits[o] || p.backward[i] && p.backward[o] && real[o] && p.layer[o] != p.layer[i]
		}
		if p.backward[i] && p.layer[i] < 0 {
			waits[i] = real[i]
		}
		if !real[i] {
			p.layer[i], p.backward[i] = -1, false // the compiler makes it once for all layers
		}
		if p.backward[i] && p.layer[i] >= 0 && p.layer[i] < last && !waits[i] {
			p.backward[i] = false
		}
	}
}

// product reports whether an instruction of a compiled module is a matrix product or a
// convolution, which dots_saveable keeps.
func product(i *hlo.Instruction) bool {
	name := i.OpName()
	return SaveDots(i) || contracts(i) && (strings.HasSuffix(name, "dot_general") || strings.HasSuffix(name, "conv_general_dilated"))
}

// checkpointed returns a copy of a scheduled module in which the backward pass of the first
// count layers computes their values again, from what flows into the layer and what the
// policy saves.
func checkpointed(m *hlo.Module, l layer, count int, save SavePolicy) (*hlo.Module, error) {
	m = m.Clone()
	p := passesOf(m, l)
	c := m.Entry
	effects := hlo.Effects{}
	at := map[*hlo.Instruction]int{}
	for n, i := range c.Instructions {
		at[i] = n
	}
	again := func(i *hlo.Instruction, k int) bool {
		return p.layer[i] == k && !p.backward[i] && !save(i) && effects.Repeatable(i)
	}
	for k := range count {
		var wanted []*hlo.Instruction
		late := map[*hlo.Instruction]bool{}
		first := len(c.Instructions)
		for _, i := range slices.Clone(c.Instructions) {
			if !again(i, k) {
				continue
			}
			used := false
			for _, u := range i.Users {
				if !p.backward[u] || p.layer[u] < 0 || p.layer[u] > k {
					continue
				}
				used, late[u] = true, true
				first = min(first, at[u])
			}
			if used {
				wanted = append(wanted, i)
			}
		}
		if len(wanted) == 0 {
			continue
		}
		need := map[*hlo.Instruction]bool{}
		var walk func(i *hlo.Instruction)
		walk = func(i *hlo.Instruction) {
			if need[i] {
				return
			}
			need[i] = true
			for _, o := range i.Operands {
				if again(o, k) {
					walk(o)
				}
			}
		}
		for _, i := range wanted {
			walk(i)
		}
		clones := map[*hlo.Instruction]*hlo.Instruction{}
		var added []*hlo.Instruction
		for _, i := range c.Instructions {
			if !need[i] {
				continue
			}
			d := i.CloneOwning(i.Name + ".remat")
			d.After = nil
			for n, o := range i.Operands {
				if clones[o] != nil {
					d.SetOperand(n, clones[o])
				}
			}
			clones[i] = d
			added = append(added, d)
			p.layer[d], p.backward[d] = k, true
			p.again[d] = true
		}
		for _, i := range wanted {
			i.ReplaceUses(clones[i], func(u *hlo.Instruction) bool { return !late[u] })
		}
		where := c.Instructions[slices.IndexFunc(c.Instructions, func(i *hlo.Instruction) bool { return late[i] })]
		c.Insert(slices.Index(c.Instructions, where), added...)
	}
	p.inputs(c, count)
	for _, i := range slices.Clone(c.Instructions) {
		if k := p.layer[i]; k >= 0 && k < count && !p.backward[i] && save(i) {
			p.narrow(i)
		}
	}
	p.join(c, count)
	p.gates(c, count)
	if _, err := hlo.RemoveDead(m); err != nil {
		return nil, err
	}
	return m, nil
}

// join makes one gradient of those that flow from the backward pass of one of the first count
// layers to the layers before it. Without the barrier of jax.checkpoint, the compiler adds
// up what the layers add to the gradient where it is read, again and again, and all
// of it lives until the first layer has read it.
func (p passes) join(c *hlo.Computation, count int) {
	m := c.Module
	for k := count; k > 0; k-- {
		// What layers behind read of this layer, and of those that the program has run before.
		var first int
		cross := map[uint64][]*hlo.Instruction{}
		reads := map[*hlo.Instruction]bool{}
		for n, u := range c.Instructions {
			if !p.backward[u] || p.layer[u] < 0 || p.layer[u] >= k {
				continue
			}
			for _, o := range u.Operands {
				if p.backward[o] && (p.layer[o] >= k || p.layer[o] < 0) && !reads[o] && o.Shape.IsArray() {
					if len(reads) == 0 {
						first = n
					}
					reads[o] = true
					bytes, _ := o.Shape.Bytes()
					cross[bytes] = append(cross[bytes], o)
				}
			}
		}
		at := map[*hlo.Instruction]int{}
		for n, i := range c.Instructions {
			at[i] = n
		}
		for bytes, list := range cross {
			if bytes < 64 || len(list) < 2 {
				continue
			}
			var added []*hlo.Instruction
			sum := list[0]
			place := first
			for _, o := range list {
				place = max(place, at[o]+1)
			}
			for _, o := range list[1:] {
				sum = m.NewInstruction("gradient", hlo.Add, o.Shape, sum, o)
				p.layer[sum], p.backward[sum] = k, true
				added = append(added, sum)
			}
			for _, o := range list {
				o.ReplaceUses(sum, func(u *hlo.Instruction) bool {
					return !(p.backward[u] && p.layer[u] >= 0 && p.layer[u] < k && at[u] >= place)
				})
			}
			c.Insert(place, added...)
		}
	}
}

// narrow keeps a value in the smaller type to which all convert it that read it: a CPU multiplies
// bfloat16 as float32, and jax.checkpoint keeps the bfloat16.
func (p passes) narrow(i *hlo.Instruction) {
	var to *hlo.Shape
	for _, u := range i.Users {
		s := convertedTo(u, i)
		if s == nil {
			return
		}
		to = s
	}
	if to == nil {
		return
	}
	shape := *i.Shape
	shape.Type = to.Type
	was, err := i.Shape.Bytes()
	if now, err2 := shape.Bytes(); err != nil || err2 != nil || now >= was {
		return
	}
	d := i.Parent.Module.NewInstruction(i.Name+".narrow", hlo.Convert, &shape, i)
	p.layer[d] = p.layer[i]
	i.ReplaceUses(d, func(u *hlo.Instruction) bool { return !p.backward[u] })
	i.Parent.Insert(slices.Index(i.Parent.Instructions, i)+1, d)
}

// convertedTo returns the shape to which an instruction converts what it reads, nil if it reads
// it otherwise.
func convertedTo(u, i *hlo.Instruction) *hlo.Shape {
	switch u.Opcode {
	case hlo.Convert:
		return u.Shape
	case hlo.Bitcast, hlo.Copy, hlo.Reshape, hlo.Transpose, hlo.Slice:
	case hlo.Fusion:
		c := u.Call("calls")
		n := slices.Index(u.Operands, i)
		if c == nil || n >= len(c.Parameters()) {
			return nil
		}
		i = c.Parameters()[n]
		return convertedToAll(i)
	default:
		return nil
	}
	return convertedToAll(u)
}

func convertedToAll(i *hlo.Instruction) (to *hlo.Shape) {
	for _, u := range i.Users {
		if to = convertedTo(u, i); to == nil {
			return nil
		}
	}
	return to
}

// inputs makes the backward pass of a layer read what its forward pass reads of the layers before
// it, and not what the compiler would compute that from.
func (p passes) inputs(c *hlo.Computation, count int) {
	type size struct {
		from  int // layer; -1: any
		bytes uint64
	}
	flows := make([]map[size]*hlo.Instruction, count) // into each layer, the last of them
	of := func(i *hlo.Instruction) size {
		bytes, _ := i.Shape.Bytes()
		return size{p.layer[i], bytes}
	}
	// before reports whether a value is made by the forward pass of a layer before the one of u.
	before := func(i, u *hlo.Instruction) bool {
		return !p.backward[i] && p.layer[i] >= 0 && p.layer[i] < p.layer[u] && i.Shape.IsArray()
	}
	at := map[*hlo.Instruction]int{}
	for n, u := range c.Instructions {
		at[u] = n
		k := p.layer[u]
		if p.backward[u] || k < 0 || k >= count || u.OpName() == "" {
			continue
		}
		for _, o := range u.Operands {
			if o = through(o); !before(o, u) {
				continue
			}
			if flows[k] == nil {
				flows[k] = map[size]*hlo.Instruction{}
			}
			for _, z := range []size{of(o), {-1, of(o).bytes}} {
				if f := flows[k][z]; f == nil || at[f] < at[o] {
					flows[k][z] = o
				}
			}
		}
	}
	for _, u := range c.Instructions {
		k := p.layer[u]
		if !p.backward[u] || k < 0 || k >= count {
			continue
		}
		for n, o := range u.Operands {
			if !before(o, u) {
				continue
			}
			z := of(o)
			if f := cmp.Or(flows[k][z], flows[k][size{-1, z.bytes}]); f != nil && f != through(o) {
				u.SetOperand(n, f)
			}
		}
	}
}

// gates lets no clone run before the gradient is there that its layer waits for.
func (p passes) gates(c *hlo.Computation, count int) {
	at := map[*hlo.Instruction]int{}
	gate := make([]*hlo.Instruction, count)
	for n, i := range c.Instructions {
		at[i] = n
		k := p.layer[i]
		if !p.backward[i] || p.again[i] || k < 0 || k >= count || gate[k] != nil {
			continue
		}
		for _, o := range i.Operands {
			if p.backward[o] && p.layer[o] != k {
				gate[k] = o
				break
			}
		}
	}
	for i := range p.again {
		if g := gate[p.layer[i]]; g != nil && i.Parent != nil && at[g] < at[i] {
			i.AddAfter(g)
		}
	}
}
