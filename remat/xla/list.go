package xla

// The instructions of a computation in the order in which they run, while
// clones are put between them.

import (
	"slices"

	"gpumem/hlo"
)

// none is no item.
const none = int32(-1)

// An item is an instruction in the list, by its number in list.items.
type item struct {
	i          *hlo.Instruction
	next, prev int32
	// The express lane has the items at which a candidate may begin.
	nextExpress, prevExpress int32
	express                  bool
	// position does not fall along the list. Items that are put in later share that
	// of the item behind them.
	position     int32
	placed       bool // the sweep has been here
	passed       bool // nothing used it when the sweep was here: it is not placed
	denied       bool // not to be computed again
	moved        bool // a clone that made its original superfluous
	recomputable verdict
	mark         int64
	turn         int32   // which item it was to be placed, from 1
	inLane       bool    // it is in tracker.lane
	defined      []int32 // buffers
	output       []int32
	used         []int32
	after        []int32 // items that have to run behind it: control successors
}

// A verdict is whether an instruction may be computed again; the zero value is unknown.
type verdict int8

const (
	yes verdict = iota + 1
	no
)

// A list is the order of a computation's instructions.
type list struct {
	c            *hlo.Computation
	items        []item
	of           []int32 // by ID
	first        int32
	firstExpress int32
	lastExpress  int32
	marks        int64
}

func newList(c *hlo.Computation) *list {
	l := &list{c: c, of: make([]int32, c.Module.IDs()), first: none, firstExpress: none, lastExpress: none}
	for k := range l.of {
		l.of[k] = none
	}
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
		for _, p := range l.items[k].i.After {
			if o := l.item(p); o != none {
				l.items[o].after = append(l.items[o].after, int32(k))
			}
		}
	}
	return l
}

// add makes an item that stands nowhere yet.
func (l *list) add(i *hlo.Instruction) int32 {
	for len(l.of) <= i.ID {
		l.of = append(l.of, none)
	}
	k := int32(len(l.items))
	l.items = append(l.items, item{i: i, next: none, prev: none, nextExpress: none, prevExpress: none})
	l.of[i.ID] = k
	return k
}

// item is the item of an instruction, and none for one of another computation.
func (l *list) item(i *hlo.Instruction) int32 {
	if i.ID >= len(l.of) {
		return none
	}
	return l.of[i.ID]
}

// promote puts items on the express lane.
func (l *list) promote(which func(int32) bool) {
	for k := l.first; k != none; k = l.items[k].next {
		if !which(k) {
			continue
		}
		x := &l.items[k]
		x.express, x.prevExpress = true, l.lastExpress
		if l.lastExpress == none {
			l.firstExpress = k
		} else {
			l.items[l.lastExpress].nextExpress = k
		}
		l.lastExpress = k
	}
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

// insertAfter puts item k behind another, which is not the last.
func (l *list) insertAfter(k, after int32) { l.insert(k, l.items[after].next) }

// insert puts item k before another, and on the express lane.
func (l *list) insert(k, before int32) {
	cursor := before
	for cursor != none && !l.items[cursor].express {
		cursor = l.items[cursor].next
	}
	x := &l.items[k]
	x.express = true
	if cursor == none {
		// XLA does not link the last item to this one: no candidate begins here.
		x.prevExpress, x.nextExpress = l.lastExpress, none
		l.lastExpress = k
	} else {
		x.prevExpress, x.nextExpress = l.items[cursor].prevExpress, cursor
		if x.prevExpress != none {
			l.items[x.prevExpress].nextExpress = k
		}
		l.items[cursor].prevExpress = k
	}
	if l.firstExpress == cursor {
		l.firstExpress = k
	}
	x.prev, x.next = l.items[before].prev, before
	l.items[before].prev = k
	if x.prev == none {
		l.first = k
	} else {
		l.items[x.prev].next = k
	}
	x.position = l.items[before].position
}

// order is the list without what was removed.
func (l *list) order() []*hlo.Instruction {
	all := make([]*hlo.Instruction, 0, len(l.items))
	for k := l.first; k != none; k = l.items[k].next {
		if l.items[k].i.Parent != nil {
			all = append(all, l.items[k].i)
		}
	}
	return all
}

// remove takes an instruction without users out of the graph and lets nothing wait for it.
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
