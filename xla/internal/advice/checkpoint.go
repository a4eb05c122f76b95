package advice

// A compiled program as jax.checkpoint around its numbered layers would leave it.
//
// In a compiled module it is known what is fused, what the scheduler made of the order, and
// what has memory: so what checkpoints would leave is made, and measured as any module is.
// Say that layer 3 computes h from x, y from h, and that its backward pass reads h and y long
// after:
//
//	x  forward pass of layer 2, stays: layer 3 begins with it
//	h  is computed again, as h.remat, before the first of layer 3's backward pass that reads it
//	y  likewise, from h.remat; layer 4 begins with y, so that it stays for layer 4, too
//
// The originals of h and y are read by the forward pass alone. Two things that the compiler does
// across layers end at the border of a checkpoint, and so they do here: that the backward pass
// of one layer reads the inside of another (see inputs), and that what several layers
// add to the gradient waits until the last of them is done (see join).
//
// The module that comes of it is for measuring only: it is never written or compiled.

import (
	"cmp"
	"slices"
	"strings"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/mark"
	"gpumem/xla/internal/opname"
)

// A checkpointer makes such a module of the entry of a compiled one.
type checkpointer struct {
	c        *hlo.Computation
	count    int                       // of layers under jax.checkpoint, the first ones
	save     mark.Policy               // of fused products, too: see product
	layer    map[*hlo.Instruction]int  // that an instruction belongs to, from 0; -1: none
	backward map[*hlo.Instruction]bool // of the backward pass, clones included
	at       map[*hlo.Instruction]int  // place in the list as it was given
	before   map[int][]*hlo.Instruction
	again    []*hlo.Instruction // the originals of the clones
}

// checkpointed returns a copy of a scheduled module with jax.checkpoint around the first count
// layers, and what one run of it computes again, in seconds.
func checkpointed(m *hlo.Module, l opname.Layer, count int, save mark.Policy, rates cost.Rates) (*hlo.Module, float64, error) {
	m = m.Clone()
	prices, err := cost.New(m, rates)
	if err != nil {
		return nil, 0, err
	}

	k := &checkpointer{c: m.Entry, count: count, save: save, at: map[*hlo.Instruction]int{}, before: map[int][]*hlo.Instruction{}}
	for n, i := range k.c.Instructions {
		k.at[i] = n
	}

	k.assign(l)
	k.recompute()
	k.inputs()
	k.narrow()
	k.join()
	seconds := 0.0
	for _, i := range k.again {
		seconds += prices.Seconds(i)
	}

	// In a module that was planned before, a clone may read one that stands further down.
	list, listed := make([]*hlo.Instruction, 0, len(k.c.Instructions)+len(k.again)), map[*hlo.Instruction]bool{}
	var enlist func(i *hlo.Instruction)
	enlist = func(i *hlo.Instruction) {
		if listed[i] {
			return
		}
		listed[i] = true
		for _, o := range i.Operands {
			enlist(o)
		}
		for _, o := range i.After {
			enlist(o)
		}
		list = append(list, i)
	}

	for n, i := range k.c.Instructions {
		for _, b := range k.before[n] {
			enlist(b)
		}
		enlist(i)
	}

	k.c.Reorder(list)
	_, err = hlo.RemoveDead(m)
	return m, seconds, err
}

// product is mark.SaveDots for compiled modules, in which fusions and libraries compute products.
func product(i *hlo.Instruction) bool {
	name := i.OpName()
	return mark.SaveDots(i) || contracts(i) && (strings.HasSuffix(name, "dot_general") || strings.HasSuffix(name, "conv_general_dilated"))
}

// isInput reports whether an instruction is there before anything runs.
func isInput(i *hlo.Instruction) bool { return i.Opcode == hlo.Parameter || i.Opcode == hlo.Constant }

// assign finds the layer and the pass of each instruction. One that the compiler made without a
// name, such as a copy, belongs to what it reads, or to what alone reads it.
func (k *checkpointer) assign(l opname.Layer) {
	k.layer, k.backward = map[*hlo.Instruction]int{}, map[*hlo.Instruction]bool{}
	for _, i := range k.c.Instructions {
		k.layer[i] = -1
		if isInput(i) {
			continue
		}
		if i.OpName() != "" {
			k.backward[i] = opname.Backward(i)
			k.layer[i] = l.IndexOf(i)
			continue
		}
		for _, o := range i.Operands {
			n := k.layer[o]
			switch {
			case isInput(o) || k.backward[i] && !k.backward[o]:
			case k.backward[o] && !k.backward[i]:
				k.layer[i], k.backward[i] = n, true
			case k.backward[o] && n >= 0: // the backward pass goes from the last layer to the first
				k.layer[i] = min(n, k.layer[i])
			case !k.backward[o]:
				k.layer[i] = max(n, k.layer[i])
			}
		}
	}

	for _, i := range slices.Backward(k.c.Instructions) {
		if i.OpName() != "" || isInput(i) || len(i.Users) == 0 || k.backward[i] {
			continue
		}
		n := k.layer[i.Users[0]]
		if n > k.layer[i] && !slices.ContainsFunc(i.Users, func(u *hlo.Instruction) bool { return k.layer[u] != n }) {
			k.layer[i] = n
		}
	}
}

// recompute makes the clones, and makes the backward pass read them.
func (k *checkpointer) recompute() {
	effects := hlo.Effects{}
	members := make([][]*hlo.Instruction, k.count) // that may run again
	again := map[*hlo.Instruction]bool{}
	for _, i := range k.c.Instructions {
		if n := k.layer[i]; n >= 0 && n < k.count && !k.backward[i] && !k.save(i) && effects.Repeatable(i) {
			members[n], again[i] = append(members[n], i), true
		}
	}

	for n, list := range members {
		need, late := map[*hlo.Instruction]bool{}, map[*hlo.Instruction]bool{}
		first := len(k.c.Instructions)
		for _, i := range slices.Backward(list) {
			for _, u := range i.Users {
				switch {
				case need[u]:
					need[i] = true
				// What a layer behind this one reads is its input.
				case k.backward[u] && k.layer[u] >= 0 && k.layer[u] <= n:
					need[i], late[u] = true, true
					first = min(first, k.at[u])
				}
			}
		}
		clones := map[*hlo.Instruction]*hlo.Instruction{}
		for _, i := range list {
			if !need[i] {
				continue
			}
			d := i.CloneOwning(i.Name + ".remat")
			d.After = nil // those of the original have run
			for x, o := range i.Operands {
				if clones[o] != nil {
					d.SetOperand(x, clones[o])
				}
			}
			clones[i] = d
			k.add(d, n, first)
			k.again = append(k.again, i)
		}
		for i, d := range clones {
			i.ReplaceUses(d, func(u *hlo.Instruction) bool { return !late[u] })
		}
	}
}

// add puts an instruction of the backward pass of a layer before what was at a place.
func (k *checkpointer) add(i *hlo.Instruction, layer, place int) {
	k.layer[i], k.backward[i], k.at[i] = layer, true, place
	k.before[place] = append(k.before[place], i)
}

// all returns the instructions of the entry and those that were added, in no order.
func (k *checkpointer) all() []*hlo.Instruction {
	list := slices.Clone(k.c.Instructions)
	for n := range k.c.Instructions {
		list = append(list, k.before[n]...)
	}
	return list
}

// inputs makes the backward pass of a layer read what its forward pass begins with. The
// compiler computes what is cheap from the inside of the layer before, where it is needed, and
// jax.checkpoint keeps the result: of values of one size the last of that layer.
func (k *checkpointer) inputs() {
	type key struct {
		layer, from int // from: -1 for any
		bytes       uint64
	}

	size := func(i *hlo.Instruction) uint64 { n, _ := i.Shape.Bytes(); return n }
	comes := func(o, u *hlo.Instruction) bool { // from the forward pass of a layer before
		return !k.backward[o] && k.layer[o] >= 0 && k.layer[o] < k.layer[u] && k.layer[u] < k.count && o.Shape.IsArray()
	}

	input := map[key]*hlo.Instruction{}
	for _, u := range k.c.Instructions {
		if k.backward[u] || u.OpName() == "" {
			continue
		}
		for _, o := range u.Operands {
			if o = through(o); !comes(o, u) {
				continue
			}
			for _, x := range []key{{k.layer[u], k.layer[o], size(o)}, {k.layer[u], -1, size(o)}} {
				if f := input[x]; f == nil || k.at[f] < k.at[o] {
					input[x] = o
				}
			}
		}
	}

	for _, u := range k.all() {
		if !k.backward[u] {
			continue
		}
		for n, o := range u.Operands {
			if !comes(o, u) {
				continue
			}
			x := key{k.layer[u], k.layer[o], size(o)}
			if f := cmp.Or(input[x], input[key{x.layer, -1, x.bytes}]); f != nil && f != through(o) {
				u.SetOperand(n, f)
			}
		}
	}
}

// narrow keeps products in the smaller type that all convert them to that read them: a CPU
// multiplies bfloat16 as float32, and jax.checkpoint keeps the bfloat16.
func (k *checkpointer) narrow() {
	for _, i := range slices.Clone(k.c.Instructions) {
		n := k.layer[i]
		if n < 0 || n >= k.count || k.backward[i] || !k.save(i) {
			continue
		}
		to := converted(i)
		if to == nil {
			continue
		}
		shape := *i.Shape
		shape.Type = to.Type
		was, err := i.Shape.Bytes()
		if now, failed := shape.Bytes(); err != nil || failed != nil || now >= was {
			continue
		}
		d := k.c.Module.NewInstruction(i.Name+".narrow", hlo.Convert, &shape, i)
		k.add(d, n, k.at[i]+1)
		k.backward[d] = false
		i.ReplaceUses(d, func(u *hlo.Instruction) bool { return !k.backward[u] })
	}
}

// converted returns a shape to which all users convert a value, nil if one reads it otherwise.
func converted(i *hlo.Instruction) (to *hlo.Shape) {
	for _, u := range i.Users {
		switch c := u.Call("calls"); {
		case u.Opcode == hlo.Convert:
			to = u.Shape
		case u.Opcode == hlo.Fusion && c != nil:
			to = converted(c.Parameters()[slices.Index(u.Operands, i)])
		case u.Opcode == hlo.Bitcast || u.Opcode == hlo.Copy || u.Opcode == hlo.Reshape || u.Opcode == hlo.Transpose || u.Opcode == hlo.Slice:
			to = converted(u)
		default:
			return nil
		}
		if to == nil {
			return nil
		}
	}

	return to
}

// join makes one gradient, for each size, of what flows from the backward pass of a layer and
// of all behind it to the layers before. Across a checkpoint's border it flows as one value.
// Without one the compiler fuses the sums into what reads them: each layer reads anew what the
// layers behind it added, and all of that lives until the first layer has read it.
func (k *checkpointer) join() {
	comes := func(o *hlo.Instruction, n int) bool { // from layer n or behind it
		return k.backward[o] && (k.layer[o] >= n || k.layer[o] < 0) && o.Shape.IsArray()
	}

	var readers []*hlo.Instruction // of another layer's gradient
	for _, u := range k.all() {
		foreign := func(o *hlo.Instruction) bool { return k.layer[o] != k.layer[u] && k.backward[o] }
		if k.backward[u] && k.layer[u] >= 0 && slices.ContainsFunc(u.Operands, foreign) {
			readers = append(readers, u)
		}
	}

	slices.SortStableFunc(readers, func(a, b *hlo.Instruction) int { return cmp.Compare(k.at[a], k.at[b]) })
	for n := k.count; n > 0; n-- {
		first := -1
		var sizes []uint64
		parts := map[uint64][]*hlo.Instruction{}
		for _, u := range readers {
			if k.layer[u] >= n {
				continue
			}
			for _, o := range u.Operands {
				bytes, _ := o.Shape.Bytes()
				if bytes < smallest || !comes(o, n) || slices.Contains(parts[bytes], o) {
					continue
				}
				if first < 0 {
					first = k.at[u]
				}
				if parts[bytes] == nil {
					sizes = append(sizes, bytes)
				}
				parts[bytes] = append(parts[bytes], o)
			}
		}
		for _, bytes := range sizes {
			list := parts[bytes]
			if len(list) < 2 {
				continue
			}
			place := first
			for _, o := range list {
				// What was added stands before its place, and the others at theirs.
				place = max(place, k.at[o]+1)
			}
			sum := list[0]
			for _, o := range list[1:] {
				sum = k.c.Module.NewInstruction("gradient", hlo.Add, o.Shape, sum, o)
				k.add(sum, n, place)
			}
			for _, o := range list {
				o.ReplaceUses(sum, func(u *hlo.Instruction) bool {
					return !k.backward[u] || k.layer[u] < 0 || k.layer[u] >= n || k.at[u] < place
				})
			}
		}
	}
}

// smallest is how many bytes a gradient has that join looks at.
const smallest = 64
