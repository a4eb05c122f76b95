package gap

// The module that a plan makes: clones before the instructions that need them.
//
// In the example of planner.go the plan has two clones in slot 10, of a and of s. Before
// instruction 5, d, come a.remat, which reads p as a did, and s.remat. s.remat is redirected
// to what is live in slot 10: a has a segment there that begins in slot 10, so a.remat. Then d
// is redirected: of its operands c is live by its definition and stays, and s by the segment
// of slot 10: it reads s.remat. The list is 2 longer than before.
//
// Bitcasts take no memory and have no plan. A reader behind a bitcast of s would get a
// bitcast of s.remat, made once for each clone and bitcast.

import (
	"cmp"
	"slices"

	"gpumem/xla/internal/hlo"
)

// build changes the computation as planned. It returns how many instructions that added, those
// that went taken off. Clones in one slot stand in the order of their originals, so that
// operands come before their readers.
func (g *planner) build() int {
	w := &builder{planner: g, clones: map[copyOf]*hlo.Instruction{}, chains: map[chainOf]*hlo.Instruction{}}
	w.base = make(map[*hlo.Instruction]int32, len(g.values))
	for id := range g.values {
		if v := &g.values[id]; v.recomputable {
			w.base[g.c.Instructions[v.definer]] = int32(id)
		}
	}
	// Clones by the instruction before which they stand, in the order of their originals.
	at := make([][]copyOf, len(g.c.Instructions))
	for _, k := range g.clones() {
		at[k.start/2] = append(at[k.start/2], k)
	}
	// Originals come to read clones. A clone begins with what its original read at first.
	w.reads = make(map[*hlo.Instruction][]*hlo.Instruction, len(g.c.Instructions))
	waited := map[*hlo.Instruction]bool{} // by control dependencies
	for _, i := range g.c.Instructions {
		w.reads[i] = slices.Clone(i.Operands)
		for _, p := range i.After {
			waited[p], waited[i] = true, true
		}
	}
	before := len(g.c.Instructions)
	list := make([]*hlo.Instruction, 0, before+before/8)
	for p, i := range g.c.Instructions {
		slices.SortFunc(at[p], func(a, b copyOf) int { return cmp.Compare(g.values[a.value].definer, g.values[b.value].definer) })
		for _, k := range at[p] {
			original := g.c.Instructions[g.values[k.value].definer]
			d := w.clone(original)
			w.clones[k] = d
			list = append(w.redirect(list, d, k.start), d)
		}
		list = append(w.redirect(list, i, int32(2*p+1)), i)
	}
	// Definitions and bitcasts that nothing reads any more go. From the end on, users come
	// before what they use, so that one pass finds chains of them. A value that did not move
	// keeps its definition even without users: it was there for nothing before, too, and the
	// plan is about what it adds.
	gone := map[*hlo.Instruction]bool{}
	for n := len(list) - 1; n >= 0; n-- {
		i := list[n]
		id, ok := w.base[i]
		chain := i.Opcode == hlo.Bitcast && i != g.c.Root && !waited[i]
		if (ok && g.values[id].moved || chain) && len(i.Users) == 0 {
			i.Detach()
			gone[i] = true
		}
	}
	list = slices.DeleteFunc(list, func(i *hlo.Instruction) bool { return gone[i] })
	g.c.Reorder(list)
	return len(list) - before
}

// A chainOf is a bitcast as it reads a clone.
type chainOf struct {
	copyOf
	i *hlo.Instruction
}

// A builder writes a plan into its computation.
type builder struct {
	*planner
	base map[*hlo.Instruction]int32 // values by definer
	// reads are the operands that each instruction had at first. Originals are redirected
	// while the list is made, but a clone has to begin with what its original read.
	reads  map[*hlo.Instruction][]*hlo.Instruction
	clones map[copyOf]*hlo.Instruction
	chains map[chainOf]*hlo.Instruction
}

// clone returns a copy that reads what the original read at first. Reorder gives it a name that
// is free, such as s.remat.1 for the second clone of s. A fusion or a call gets copies of its
// computations, which XLA lets one instruction call.
func (w *builder) clone(original *hlo.Instruction) *hlo.Instruction {
	d := original.CloneOwning(original.Name + ".remat")
	for n, o := range w.reads[original] {
		d.SetOperand(n, o)
	}
	return d
}

// redirect makes an instruction that runs in a slot read the clones that are live there.
// Bitcasts between them are cloned, too, and put into the list, which it returns.
func (w *builder) redirect(list []*hlo.Instruction, i *hlo.Instruction, slot int32) []*hlo.Instruction {
	for n, o := range i.Operands {
		var found *hlo.Instruction
		if list, found = w.version(list, o, slot); found != o {
			i.SetOperand(n, found)
		}
	}
	return list
}

// version returns what an instruction in a slot reads for an operand: the operand itself if
// it is not recomputable or is live there by its definition, and otherwise the clone.
func (w *builder) version(list []*hlo.Instruction, o *hlo.Instruction, slot int32) ([]*hlo.Instruction, *hlo.Instruction) {
	root := o
	for root.Opcode == hlo.Bitcast {
		root = w.reads[root][0]
	}
	id, ok := w.base[root]
	if !ok {
		return list, o
	}
	v := &w.values[id]
	n, live := v.around(slot)
	if !live || v.segments[n].first {
		return list, o
	}
	k := copyOf{id, v.segments[n].start}
	return w.chain(list, o, k)
}

// chain returns an operand, clone by clone of its bitcasts, that reads clone k of its root: of
// v = bitcast(s) it is a bitcast of s.remat, which stands right before its first reader.
func (w *builder) chain(list []*hlo.Instruction, o *hlo.Instruction, k copyOf) ([]*hlo.Instruction, *hlo.Instruction) {
	if o.Opcode != hlo.Bitcast {
		return list, w.clones[k]
	}
	if done := w.chains[chainOf{k, o}]; done != nil {
		return list, done
	}
	list, below := w.chain(list, w.reads[o][0], k)
	d := w.clone(o)
	d.SetOperand(0, below)
	w.chains[chainOf{k, o}] = d
	return append(list, d), d
}
