package gap

// Changes of a plan: readers that come and go, and splits that are undone.
//
// To undo the split of planner.go's example, merge joins the second segment of s, slots 10
// to 11, with the first: s lives from 5 to 11 again. The clone s.remat read a in slot 10, and
// this reading is dropped. a.remat has no reader then, and goes as well: dropUse follows from
// reader to operand, as far as clones lose their last one.

import (
	"cmp"
	"fmt"
	"slices"

	"gpumem/xla/internal/hlo"
)

// insert puts a segment in its place among the others, which ascend by their starts: around
// and starting rely on it.
func (v *value) insert(s segment) {
	n, _ := slices.BinarySearchFunc(v.segments, s.start, func(x segment, start int32) int { return int(x.start - start) })
	if n < len(v.segments) && v.segments[n].start == s.start {
		n++
	}
	v.segments = slices.Insert(v.segments, n, s)
}

// addUse adds a reader of a value in a slot in which it is live. If it is not live there, that
// is a fault of the planner, which Run returns.
func (g *planner) addUse(id, slot int32) {
	v := &g.values[id]
	n, live := v.around(slot)
	if !live {
		g.fault = fmt.Errorf("remat: gap: %s is read in slot %d, where it does not live", hlo.Where(g.c.Instructions[v.definer]), slot)
		return
	}
	// The profile stays as it is: the slot is within the segment.
	s := &v.segments[n]
	k, found := slices.BinarySearchFunc(s.uses, slot, func(u reading, at int32) int { return int(u.slot - at) })
	if !found {
		s.uses = slices.Insert(s.uses, k, reading{slot: slot})
	}
	s.uses[k].n++
	g.touch(id)
}

// dropUse removes a reader. A segment may end earlier then, and a clone without readers goes,
// with its own reading of its operands. A reading in a slot in which the value does not live
// is none: it went with the segment. Definitions stay without readers, as build removes only
// those that moved.
func (g *planner) dropUse(id, slot int32) {
	v := &g.values[id]
	if v.size == 0 {
		return
	}
	n, live := v.around(slot)
	if !live {
		return
	}
	s := &v.segments[n]
	k, found := slices.BinarySearchFunc(s.uses, slot, func(u reading, at int32) int { return int(u.slot - at) })
	if !found {
		return
	}
	// Others may read it in the slot, too: two clones of one phase with the same operand.
	if s.uses[k].n--; s.uses[k].n > 0 {
		return
	}
	g.touch(id)
	g.hold(v, s, -1)
	s.uses = slices.Delete(s.uses, k, k+1)
	start := s.start
	if len(s.uses) > 0 || s.first {
		g.hold(v, s, 1)
		g.settle(start)
		return
	}
	v.segments = slices.Delete(v.segments, n, n+1)
	g.leave(id, start)
	for _, o := range v.operands {
		g.dropUse(o, start)
	}
	g.settle(start)
}

// A copyOf is one recomputation of a value, known by the slot in which it stands: no value is
// recomputed twice in one slot.
type copyOf struct{ value, start int32 }

// clones returns the recomputations of all values.
func (g *planner) clones() (all []copyOf) {
	for id := range g.values {
		for _, s := range g.values[id].segments {
			if !s.first {
				all = append(all, copyOf{int32(id), s.start})
			}
		}
	}
	return all
}

// undo takes back splits that are not needed any more, the most expensive first. A later split
// may have freed the same slots with more bytes, so that an early one is not needed any more.
// It is taken back only if the value fits in all slots between its segments.
func (g *planner) undo() {
	all := g.clones()
	slices.SortStableFunc(all, func(a, b copyOf) int { return cmp.Compare(g.values[b.value].seconds, g.values[a.value].seconds) })
	for _, k := range all {
		v := &g.values[k.value]
		n := v.starting(k.start)
		if n < 1 || v.segments[n-1].first && v.moved {
			continue // it went with another, or is a move, which costs nothing
		}
		if v.spans(v.segments[n-1].start, v.segments[n].end()) {
			continue
		}
		from := v.segments[n-1].end() + 1
		// In the clone's own slot its bytes are counted already, unless it is private: then
		// it is in its phase, and living on would add to that slot, too.
		to := k.start - 1
		if v.segments[n].private() {
			to++
		}
		if from <= to && g.profile.above(int(from), int(to), g.limit-v.size, 1) > 0 {
			continue
		}
		g.merge(k.value, n)
	}
	g.count()
}

// merge joins clone n with the segment before it: the value lives on until there instead. n is
// at least 1. If the segment before is a definition that moved, unmove has to come first.
func (g *planner) merge(id int32, n int) {
	v := &g.values[id]
	// Both leave the profile before they are joined, and the joined one enters it. Phases are
	// settled last: that of the clone has lost it, and that of the segment before, if it is a
	// clone, may have had it as private and now has not.
	last, start := v.segments[n-1].start, v.segments[n].start
	g.hold(v, &v.segments[n-1], -1)
	g.hold(v, &v.segments[n], -1)
	v.segments[n-1].uses = append(v.segments[n-1].uses, v.segments[n].uses...)
	v.segments = slices.Delete(v.segments, n, n+1)
	g.leave(id, start)
	g.hold(v, &v.segments[n-1], 1)
	for _, o := range v.operands {
		g.dropUse(o, start)
	}
	g.settle(start)
	g.settle(last)
}
