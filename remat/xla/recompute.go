package xla

// Recomputation: clones for all users still to come.

import (
	"fmt"
	"slices"
	"strconv"

	"gpumem/hlo"
	"gpumem/hlo/memory"
)

// recompute computes a block again for its users still to come, and says how many instructions that
// adds, those not counted that only move.
func (t *tracker) recompute(block []int32) (added int, err error) {
	// Backwards, so that a clone's operands are cloned after it.
	for n := len(block) - 1; n >= 0; n-- {
		// What is in the block without being needed later is of no use.
		if !t.hasUnplaced(block[n]) {
			continue
		}
		k, err := t.again(block[n])
		if err != nil {
			return added, err
		}
		added += k
	}
	return added, nil
}

// again clones one item, best, for its users still to come.
func (t *tracker) again(best int32) (added int, err error) {
	i := t.items[best].i
	clone := t.clone(i)
	k := t.addInstruction(clone)
	if t.fromPeak {
		t.items[k].recomputable = no
	}
	// The control dependencies are those of the original.
	for _, p := range clone.After {
		if o := t.item(p); o != none {
			t.items[o].after = append(t.items[o].after, k)
		}
	}
	t.items[k].after = slices.Clone(t.items[best].after)
	for _, s := range t.items[k].after {
		t.items[s].i.AddAfter(clone)
	}
	if t.p.o.OnClone != nil {
		t.p.o.OnClone(i, clone)
	}
	helpers, err := t.redirect(best, k)
	if err != nil {
		return 0, err
	}
	if err := t.account(best, k, helpers); err != nil {
		return 0, err
	}
	before := t.placeBefore(k, helpers)
	if len(before) == 0 {
		return 0, fmt.Errorf("%s: its clone has no user", hlo.Where(i))
	}
	t.insertBeforeFirst(k, before)
	for _, h := range helpers {
		t.insertBeforeFirst(h, before)
	}

	added = len(helpers)
	if usedNowhere(i) {
		// The step was a move. A clone that moved its original and is moved again
		// would be moved for ever.
		if t.items[best].moved {
			t.items[k].denied = true
		}
		if t.fromPeak {
			t.removeTree(best)
		}
		t.items[k].moved = true
	} else {
		added++
	}
	for _, h := range helpers {
		t.items[h].denied = true
	}
	if asyncEnd(i) && i.Parent != nil && len(i.Users) == 0 {
		t.remove(best)
	}
	return added, nil
}

// addInstruction makes an item of a new instruction.
func (t *tracker) addInstruction(i *hlo.Instruction) int32 {
	i.Parent = t.c
	return t.add(i)
}

// clone copies an instruction. A fusion and the start of an asynchronous
// operation get copies of their computations: each of these has one caller.
func (t *tracker) clone(i *hlo.Instruction) *hlo.Instruction {
	c := i.Clone(t.p.names.free(cloneName(i.Name)))
	c.Parent = t.c
	if i.Opcode == hlo.Fusion || i.Opcode.WrapsStart() {
		kept, seen := map[*hlo.Computation]*hlo.Computation{}, map[*hlo.Computation]bool{}
		for n := range c.Attributes {
			for k, callee := range c.Attributes[n].Calls {
				keepShared(callee, kept, seen)
				c.Attributes[n].Calls[k] = callee.Clone(".clone", kept)
			}
		}
	}
	if _, ok := channel(c); ok {
		setChannel(c, t.p.channel)
		t.p.channel++
	}
	return c
}

// keepShared notes computations that clones of c are to share with it: all that
// it calls but for those of fusions. seen are those that were looked at.
func keepShared(c *hlo.Computation, kept map[*hlo.Computation]*hlo.Computation, seen map[*hlo.Computation]bool) {
	if seen[c] {
		return
	}
	seen[c] = true
	for _, i := range c.Instructions {
		for _, callee := range i.Called() {
			if i.Opcode == hlo.Fusion {
				keepShared(callee, kept, seen)
			} else {
				kept[callee] = callee
			}
		}
	}
}

// redirect makes the users of best still to come use clone k. Users of an
// element get a get-tuple-element, users of another shape a bitcast: the helpers.
func (t *tracker) redirect(best, k int32) (helpers []int32, err error) {
	clone := t.items[k].i
	elements := map[int32]*hlo.Instruction{}
	help := func(name string, op hlo.Opcode, shape *hlo.Shape, of *hlo.Instruction) *hlo.Instruction {
		h := t.c.Module.NewInstruction(t.p.names.free(name), op, shape, of)
		n := t.addInstruction(h)
		if t.fromPeak {
			t.items[n].recomputable = no
		}
		helpers = append(helpers, n)
		return h
	}
	var uses []bufferUse
	for _, id := range t.items[best].defined {
		uses = append(uses, t.buffers[id].uses...)
	}
	for _, u := range uses {
		if t.items[u.user].placed {
			continue
		}
		user := t.items[u.user].i
		old := user.Operands[u.operand]
		if old == clone {
			continue
		}
		now := clone
		// A user of the whole tuple uses its elements, too.
		if u.index >= 0 && !sameShape(now.Shape, old.Shape) {
			element := elements[u.index]
			if element == nil {
				shape := clone.Shape.At(int(u.index))
				if shape == nil {
					return nil, fmt.Errorf("%s: it has no element %d", hlo.Where(clone), u.index)
				}
				element = help("gte.remat", hlo.GetTupleElement, shape, clone)
				element.Attributes = []hlo.Attribute{{Key: "index", Value: strconv.Itoa(int(u.index))}}
				elements[u.index] = element
			}
			now = element
		}
		if !sameShape(old.Shape, now.Shape) {
			now = help("bitcast.remat", hlo.Bitcast, old.Shape, now)
		}
		user.SetOperand(int(u.operand), now)
		if t.p.o.OnClone != nil {
			t.p.o.OnClone(old, now)
		}
	}
	return helpers, nil
}

// account brings what is live up to date after best was cloned as k.
func (t *tracker) account(best, k int32, helpers []int32) error {
	t.items[k].used = slices.Clone(t.items[best].used)
	for _, id := range t.items[best].used {
		b := &t.buffers[id]
		if b.left == 0 {
			t.now += b.cost // it has to live again
			t.enlist(b.definer)
		}
		b.left++
		for _, u := range b.uses {
			if u.user == best {
				b.uses = append(b.uses, bufferUse{k, u.operand, u.index})
			}
		}
	}
	t.marks++
	for _, h := range helpers {
		t.items[h].mark = t.marks
	}
	for _, old := range t.items[best].defined {
		placed, unplaced := t.split(t.buffers[old].uses)
		// Bitcasts and get-tuple-elements of the original that were still to come have
		// been passed over: what they do, the helpers do.
		keep := unplaced[:0]
		for _, u := range unplaced {
			x := &t.items[u.user]
			if memory.HandsOn(x.i) && x.mark != t.marks {
				x.output, x.used = nil, nil
				continue
			}
			keep = append(keep, u)
		}
		b := &t.buffers[old]
		b.uses, b.left = placed, 0
		t.now -= b.cost
		id, err := t.newBuffer(k, b.shape, b.index, keep)
		if err != nil {
			return err
		}
		x := &t.items[k]
		x.defined, x.output = append(x.defined, id), append(x.output, id)
		for _, u := range keep {
			user := &t.items[u.user]
			user.used, user.output = replaced(user.used, old, id), replaced(user.output, old, id)
		}
	}
	for _, h := range helpers {
		if err := t.accountHelper(h); err != nil {
			return err
		}
	}
	return nil
}

// accountHelper says what a new bitcast or get-tuple-element uses and hands on.
func (t *tracker) accountHelper(h int32) error {
	x := &t.items[h]
	source := &t.items[t.item(x.i.Operands[0])]
	if x.i.Opcode == hlo.Bitcast {
		from := source.defined
		if memory.HandsOn(source.i) {
			from = source.output
		}
		x.used, x.output = slices.Clone(from), slices.Clone(from)
	} else {
		index, err := x.i.TupleIndex()
		if err != nil {
			return err
		}
		for _, id := range source.defined {
			b := &t.buffers[id]
			if len(b.index) == 1 && b.index[0] == index {
				x.output = append(x.output, id)
			}
			if len(b.index) == 0 {
				x.used = append(x.used, id) // the table
			}
		}
	}
	for _, id := range x.used {
		t.buffers[id].left++
		t.buffers[id].uses = append(t.buffers[id].uses, bufferUse{h, 0, -1})
	}
	return nil
}

// placeBefore are the items before which clone k has to stand: its users, the
// users of its operands that are still to come, so that the operands need not live longer,
// and its control successors.
func (t *tracker) placeBefore(k int32, helpers []int32) (before []int32) {
	t.marks++
	for _, h := range helpers {
		t.items[h].mark = t.marks
	}
	users := func(i *hlo.Instruction) {
		for _, u := range i.Users {
			if n := t.item(u); t.items[n].mark != t.marks {
				before = append(before, n)
			}
		}
	}
	clone := t.items[k].i
	users(clone)
	for _, h := range helpers {
		users(t.items[h].i)
	}
	for _, o := range clone.Operands {
		if t.fromPeak && t.usedBytes(t.item(o), false) < t.usedBytes(k, false) {
			continue // the clone is larger than the operand: that may rather live longer
		}
		for _, u := range o.Users {
			if n := t.item(u); u != clone && !t.items[n].placed && !t.tooEarly(n, clone) {
				before = append(before, n)
			}
		}
	}
	return append(before, t.items[k].after...)
}

// tooEarly reports whether an item that the sweep has passed over stands before what the
// clone needs. XLA's modules have nothing superfluous at this point, so there it does not come up.
func (t *tracker) tooEarly(k int32, clone *hlo.Instruction) bool {
	if !t.items[k].passed {
		return false
	}
	for ; k != none; k = t.items[k].next {
		if i := t.items[k].i; slices.Contains(clone.Operands, i) || slices.Contains(clone.After, i) {
			return true
		}
	}
	return false
}

// usedNowhere reports whether only bitcasts and get-tuple-elements use an
// instruction, and nothing uses these.
func usedNowhere(i *hlo.Instruction) bool {
	for _, u := range i.Users {
		if !memory.HandsOn(u) || !usedNowhere(u) {
			return false
		}
	}
	return true
}

// removeTree takes an instruction that is used nowhere out, with its users.
func (t *tracker) removeTree(k int32) {
	for _, u := range slices.Clone(t.items[k].i.Users) {
		t.removeTree(t.item(u))
	}
	t.remove(k)
}

// asyncEnd reports whether an instruction begins or ends an asynchronous
// operation: of those there is one begin for one end.
func asyncEnd(i *hlo.Instruction) bool {
	switch i.Opcode {
	case hlo.Send, hlo.Recv:
		return true
	}
	return i.Opcode.IsAsyncStart() || i.Opcode.IsAsyncDone()
}

// sameShape reports whether two shapes are equal, layouts included.
func sameShape(s, t *hlo.Shape) bool {
	if s == t {
		return true
	}
	return s.Type == t.Type && slices.Equal(s.Dims, t.Dims) && s.Buffer == t.Buffer &&
		(s.Dynamic == nil && t.Dynamic == nil || slices.Equal(s.Dynamic, t.Dynamic)) &&
		s.FullLayout() == t.FullLayout() && slices.EqualFunc(s.Elements, t.Elements, sameShape)
}
