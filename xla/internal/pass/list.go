package pass

// The order of a computation's instructions, while clones are put between them.
//
// The list of xla.go's walk has the positions x 0, b 1, n 2, c 3, s 4, d 5. b.remat is put
// before d and gets its position, 5: positions do not rise with each item, but they do not
// fall either. To find which of several items is the first, positions are compared, and only
// among those with the same one the list is walked: insertBeforeFirst goes back to the first
// item of the lowest position and from there on to the first of the set. That is what XLA
// does, and the place of a clone depends on it.
//
// Items are known by number, as they move in memory when the slice grows: a pointer to an
// item is good until the next add.

import (
	"slices"

	"gpumem/xla/internal/hlo"
)

// none is no item.
const none = int32(-1)

// An item is an instruction in the list, known by its number in list.items. It is not
// placed until the sweep reaches it, and placed from then on.
type item struct {
	i          *hlo.Instruction
	next, prev int32
	// position does not fall along the list. An item that is inserted later has the
	// position of the item behind it.
	position int32
	placed   bool
	denied   bool    // not a candidate
	moved    bool    // a clone that left its original without users
	turn     int32   // its number in the order of placement, from 1
	inLane   bool    // it is in tracker.lane
	mark     int64   // equal to list.marks if the item is in the set that is being looked at
	defined  []int32 // buffers that it defines
	output   []int32 // buffers that its result consists of
	used     []int32 // buffers that it reads
	after    []int32 // control successors: items that have to run after it
}

// A list is the order of a computation's instructions.
type list struct {
	c     *hlo.Computation
	items []item
	of    []int32 // by Instruction.ID
	first int32
	marks int64
}

func newList(c *hlo.Computation) *list {
	l := &list{c: c, of: slices.Repeat([]int32{none}, c.Module.IDs()), first: none}
	l.items = make([]item, 0, len(c.Instructions)+len(c.Instructions)/4)
	last := none
	for _, i := range c.Instructions {
		k := l.add(i)
		l.items[k].position = k
		l.items[k].prev = last
		if last == none {
			l.first = k
		} else {
			l.items[last].next = k
		}
		last = k
	}
	for k := range l.items {
		l.follow(int32(k))
	}
	return l
}

// add makes an item that stands nowhere yet. The instruction belongs to the computation from
// now on, but is in its list only when order is written back.
func (l *list) add(i *hlo.Instruction) int32 {
	i.Parent = l.c
	for len(l.of) <= i.ID {
		l.of = append(l.of, none)
	}
	k := int32(len(l.items))
	l.items = append(l.items, item{i: i, next: none, prev: none})
	l.of[i.ID] = k
	return k
}

// follow notes an item with those that it has to run after. Instruction.After is what it waits
// for; item.after is the reverse, the items that wait for it, which pick and placeBefore need.
func (l *list) follow(k int32) {
	for _, p := range l.items[k].i.After {
		if o := l.item(p); o != none {
			l.items[o].after = append(l.items[o].after, k)
		}
	}
}

// item returns the item of an instruction, none for one of another computation.
func (l *list) item(i *hlo.Instruction) int32 {
	if i.ID >= len(l.of) {
		return none
	}
	return l.of[i.ID]
}

// insertBeforeFirst puts item k before the first of some items.
func (l *list) insertBeforeFirst(k int32, before []int32) {
	l.marks++
	at := before[0]
	for _, b := range before {
		l.items[b].mark = l.marks
		if l.items[b].position < l.items[at].position {
			at = b
		}
	}
	// Others of them may have the same position.
	for p := l.items[at].prev; p != none && l.items[p].position == l.items[at].position; p = l.items[p].prev {
		at = p
	}
	for l.items[at].mark != l.marks {
		at = l.items[at].next
	}
	l.insert(k, at)
}

// insertAfter puts item k after another, which is not the last: a value that is offloaded has
// a user behind it.
func (l *list) insertAfter(k, after int32) { l.insert(k, l.items[after].next) }

// insert puts item k before another.
func (l *list) insert(k, before int32) {
	x := &l.items[k]
	x.prev, x.next = l.items[before].prev, before
	l.items[before].prev = k
	if x.prev == none {
		l.first = k
	} else {
		l.items[x.prev].next = k
	}
	x.position = l.items[before].position
}

// order returns the instructions in their order, without those that were removed: their items
// stay in the list, so that neighbours need no change while the sweep stands at one of them.
func (l *list) order() []*hlo.Instruction {
	all := make([]*hlo.Instruction, 0, len(l.items))
	for k := l.first; k != none; k = l.items[k].next {
		if l.items[k].i.Parent != nil {
			all = append(all, l.items[k].i)
		}
	}
	return all
}

// remove takes an instruction without users out of the graph. Nothing waits for it any more.
// The sweep goes on past its item, whose buffers have no users.
func (l *list) remove(k int32) {
	x := &l.items[k]
	for _, p := range x.i.After {
		if o := l.item(p); o != none {
			l.items[o].after = slices.DeleteFunc(l.items[o].after, func(s int32) bool { return s == k })
		}
	}
	for _, s := range x.after {
		after := l.items[s].i
		after.After = slices.DeleteFunc(after.After, func(p *hlo.Instruction) bool { return p == x.i })
	}
	x.i.After, x.after = nil, nil
	x.i.Detach()
	x.i.Parent = nil
}
