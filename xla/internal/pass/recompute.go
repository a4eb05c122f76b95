package pass

// Recomputation: clones for all users still to come.
//
// In xla.go's walk b is recomputed at c. Its users are n, which is placed, and d, which is
// not. The clone b.remat reads x as b does (clone), d reads the clone (redirect), b's buffer
// keeps the use by n alone and is dead, and the clone's buffer gets the use by d (account).
// The clone stands before the first of: its users; the users of its operands that are not
// placed, so that x need not live longer than now; and what has to run after b (placeBefore).
// That is d. One instruction was added.
//
// Had nothing used b so far, all of its users would read the clone: b has moved, which adds
// no instruction. The dead original goes at the end, with the removal of dead code.

import (
	"slices"
	"strconv"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
)

// recompute clones item best for all of its users that are not placed, and returns how many
// instructions that adds. A clone that leaves its original without users does not count: it
// is the original at another place.
func (t *tracker) recompute(best int32) (added int) {
	i := t.items[best].i
	clone := t.clone(i)
	k := t.add(clone)
	// The clone waits for what the original waits for, and what waits for that waits for both.
	t.follow(k)
	t.items[k].after = slices.Clone(t.items[best].after)
	for _, s := range t.items[k].after {
		t.items[s].i.AddAfter(clone)
	}
	helpers := t.redirect(best, k)
	t.account(best, k, helpers)
	before := t.placeBefore(k, helpers)
	if len(before) == 0 {
		t.p.fail(i, "its clone has no user")
		return 0
	}
	t.insertBeforeFirst(k, before)
	for _, h := range helpers {
		t.insertBeforeFirst(h, before)
		t.items[h].denied = true
	}
	// What the clone costs is counted here, for Result.Added: helpers always, the clone unless
	// the original is dead now.
	added = len(helpers)
	if usedNowhere(i) {
		// A clone of a clone, both only to move it, would move on for ever.
		t.items[k].denied = t.items[best].moved
		t.items[k].moved = true
	} else {
		added++
	}
	if asyncEnd(i) && len(i.Users) == 0 {
		t.remove(best)
	}
	return added
}

// clone copies an instruction. A fusion and the start of an asynchronous operation get copies
// of their computations, which may have one caller only.
func (t *tracker) clone(i *hlo.Instruction) *hlo.Instruction {
	c := i.CloneOwning(t.p.names.free(cloneName(i.Name)))
	t.p.setChannel(c)
	return c
}

// redirect makes the users of best that are not placed use clone k. A user of an element
// of a tuple gets a get-tuple-element, a user of another shape a bitcast. These are the
// helpers. All users of one element share its get-tuple-element.
//
// Uses are by buffer, so that a user is found that reads the value through bitcasts and
// get-tuple-elements of the original: its operand is then such an instruction, and the
// helper takes the place of that.
func (t *tracker) redirect(best, k int32) (helpers []int32) {
	clone := t.items[k].i
	elements := map[int32]*hlo.Instruction{}
	help := func(name string, op hlo.Opcode, shape *hlo.Shape, of *hlo.Instruction) *hlo.Instruction {
		h := t.c.Module.NewInstruction(t.p.names.free(name), op, shape, of)
		helpers = append(helpers, t.add(h))
		return h
	}
	for _, id := range t.items[best].defined {
		for _, u := range t.buffers[id].uses {
			if t.items[u.User].placed {
				continue
			}
			user := t.items[u.User].i
			old := user.Operands[u.Operand]
			if old == clone {
				continue
			}
			now := clone
			// A user of the whole tuple uses its elements, too.
			if u.Index >= 0 && !now.Shape.Equal(old.Shape) {
				if elements[u.Index] == nil {
					e := help("gte.remat", hlo.GetTupleElement, clone.Shape.At(int(u.Index)), clone)
					e.Attributes = []hlo.Attribute{{Key: "index", Value: strconv.Itoa(int(u.Index))}}
					elements[u.Index] = e
				}
				now = elements[u.Index]
			}
			if !old.Shape.Equal(now.Shape) {
				now = help("bitcast.remat", hlo.Bitcast, old.Shape, now)
			}
			user.SetOperand(int(u.Operand), now)
		}
	}
	return helpers
}

// account updates the live buffers after best was cloned as k: the clone's buffers have the
// users that are not placed, and the clone is one more user of what best reads. It runs after
// redirect, whose helpers are users of the clone's buffers, and before the clone has a place.
func (t *tracker) account(best, k int32, helpers []int32) {
	t.items[k].used = slices.Clone(t.items[best].used)
	for _, id := range t.items[best].used {
		b := &t.buffers[id]
		if b.left == 0 {
			t.now += b.cost // it has to live until the clone
			t.enlist(b.definer)
		}
		b.left++
		for _, u := range b.uses {
			if u.User == best {
				b.uses = append(b.uses, memory.Use{User: k, Operand: u.Operand, Index: u.Index})
			}
		}
	}
	t.marks++
	for _, h := range helpers {
		t.items[h].mark = t.marks
	}
	for _, old := range t.items[best].defined {
		placed, unplaced := t.split(t.buffers[old].uses)
		// The helpers take over from the original's bitcasts and get-tuple-elements that are
		// not placed: these have lost their users.
		keep := unplaced[:0]
		for _, u := range unplaced {
			x := &t.items[u.User]
			if memory.HandsOn(x.i) && x.mark != t.marks {
				x.output, x.used = nil, nil
				continue
			}
			keep = append(keep, u)
		}
		// The original's users to come are the clone's now, so that it is dead here.
		b := &t.buffers[old]
		b.uses, b.left = placed, 0
		t.now -= b.cost // as in XLA, also for an element of a tuple that was dead already
		id := t.newBuffer(k, b.index, b.cost, keep...)
		x := &t.items[k]
		x.defined, x.output = append(x.defined, id), append(x.output, id)
		for _, u := range keep {
			user := &t.items[u.User]
			replace(user.used, old, id)
			replace(user.output, old, id)
		}
	}
	for _, h := range helpers {
		t.accountHelper(h)
	}
}

// accountHelper sets what a new bitcast or get-tuple-element uses and hands on. A bitcast of a
// get-tuple-element uses what that hands on; a get-tuple-element of a clone uses its table.
func (t *tracker) accountHelper(h int32) {
	x := &t.items[h]
	source := &t.items[t.item(x.i.Operands[0])]
	if x.i.Opcode == hlo.Bitcast {
		from := source.defined
		if memory.HandsOn(source.i) {
			from = source.output
		}
		x.used, x.output = slices.Clone(from), slices.Clone(from)
	} else {
		index, _ := x.i.TupleIndex() // redirect has set it
		for _, id := range source.defined {
			b := &t.buffers[id]
			if len(b.index) == 1 && b.index[0] == index {
				x.output = append(x.output, id)
			}
			if len(b.index) == 0 {
				x.used = append(x.used, id) // the tuple's table
			}
		}
	}
	for _, id := range x.used {
		t.buffers[id].left++
		t.buffers[id].uses = append(t.buffers[id].uses, memory.Use{User: h, Index: -1})
	}
}

// placeBefore returns the items before which clone k has to stand: its users, the users of
// its operands that are not placed, so that the operands need not live longer, and its
// control successors. Helpers are users of the clone that stand with it, so that their users
// count in their place.
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
		for _, u := range o.Users {
			if u != clone && !t.placed(u) {
				before = append(before, t.item(u))
			}
		}
	}
	return append(before, t.items[k].after...)
}

// usedNowhere reports whether nothing uses an instruction but bitcasts and get-tuple-elements
// that nothing uses: then its clone was a move.
func usedNowhere(i *hlo.Instruction) bool {
	for _, u := range i.Users {
		if !memory.HandsOn(u) || !usedNowhere(u) {
			return false
		}
	}
	return true
}

// asyncEnd reports whether an instruction begins or ends an asynchronous operation. Its
// original has to go when it was cloned, as each start has one end. Other originals without
// users are left to the removal of dead code at the end of the pass.
func asyncEnd(i *hlo.Instruction) bool {
	switch i.Opcode {
	case hlo.Send, hlo.Recv:
		return true
	}
	return i.Opcode.IsAsyncStart() || i.Opcode.IsAsyncDone()
}
