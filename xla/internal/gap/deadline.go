package gap

// Deadlines: how long a value can be read before its memory is overwritten.
//
// A donated parameter p gives its memory to an output u that is written by
// dynamic-update-slice(p, ..). Until u is written p can be read, and after that it cannot: XLA
// inserts no copies after scheduling. The same goes for what a loop has as state, and for the
// operand of each operation in place. So what reads p may be recomputed up to u, and what u is
// made of lives on only up to there. u itself is not recomputed: a clone would overwrite the
// memory of p a second time.
//
// A value that the given module reads after it was overwritten has no deadline: XLA has to keep
// a copy of it in any case.

import (
	"math"
	"slices"
	"sort"

	"gpumem/xla/internal/alias"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
)

// never is the deadline of what is not overwritten.
const never = math.MaxInt32

// deadlines are those of a module as it was analysed. Times are twice the step, and of a
// parameter one less than the first of its computation, as its value is there before.
type deadlines struct {
	flow *alias.Flow
	// next is, by value, when its memory is overwritten, or never.
	next []int32
	// writes are the times at which memory is overwritten, ascending.
	writes []overwrite
}

// An overwrite is a value that is written to memory which has had a value since a time.
type overwrite struct{ at, since int32 }

// newDeadlines finds the deadlines of a module; nil if its values are too many to tell.
func newDeadlines(m *hlo.Module) *deadlines {
	f, err := alias.Analyze(m)
	if err != nil {
		return nil
	}

	groups, err := f.Buffers()
	if err != nil {
		return nil
	}

	d := &deadlines{flow: f, next: make([]int32, len(f.Values))}
	for v := range d.next {
		d.next[v] = never
	}

	begin := func(v int32) int32 {
		x := &f.Values[v]
		if x.Instruction.Opcode == hlo.Parameter {
			return int32(2*f.Walks[f.Walk(x.Node)].Start - 1)
		}
		return int32(2 * f.Step(x.Node))
	}

	for _, group := range groups {
		if len(group) < 2 || f.Values[group[0]].Shape.Type == hlo.Tuple {
			continue
		}
		group = slices.Clone(group)
		slices.SortStableFunc(group, func(v, w int32) int { return int(begin(v) - begin(w)) })
		for n, v := range group {
			if n > 0 && f.Values[v].Instruction.Opcode != hlo.Parameter {
				d.writes = append(d.writes, overwrite{begin(v), begin(group[0])})
			}
			for _, w := range group[n+1:] {
				if begin(w) > begin(v) {
					d.next[v] = begin(w)
					break
				}
			}
		}
	}

	slices.SortFunc(d.writes, func(a, b overwrite) int { return int(a.at - b.at) })
	return d
}

// set gives the values of a planner their deadlines, for each walk through its computation.
func (d *deadlines) set(g *planner, b *memory.Buffers) {
	for id := range g.values {
		g.values[id].until, g.values[id].last = never, never
	}

	if d == nil {
		return
	}

	for w := range d.flow.Walks {
		if d.flow.Walks[w].Computation == g.c {
			d.setWalk(int32(w), g, b)
		}
	}
}

// A deadlineWalk sets the deadlines of one walk through a planner's computation.
type deadlineWalk struct {
	*deadlines
	walk *alias.Walk
	w    int32 // its number
	g    *planner
	b    *memory.Buffers
	read map[int32]int // by value: the last place that reads it
}

func (d *deadlines) setWalk(w int32, g *planner, b *memory.Buffers) {
	k := &deadlineWalk{d, &d.flow.Walks[w], w, g, b, map[int32]int{}}
	k.findReads()
	k.setOperands(k.setValues())
	k.forbidWriters()
}

// end returns the time of a place, and placeAt the place during which a time falls, and whether there
// is one.
func (k *deadlineWalk) end(place int) int32 {
	return int32(2 * k.flow.Step(k.walk.First+alias.Node(place)))
}

func (k *deadlineWalk) placeAt(time int32) (int, bool) {
	places := len(k.walk.Instructions)
	n := sort.Search(places, func(n int) bool { return k.end(n) >= time })
	return n, n < places && time >= int32(2*k.walk.Start)
}

// parts returns the values of an operand.
func (k *deadlineWalk) parts(o *hlo.Instruction) []int32 {
	n, _ := k.flow.Node(k.w, o)
	return k.flow.Parts(n)
}

// findReads finds where values are read for the last time.
func (k *deadlineWalk) findReads() {
	for n, i := range k.walk.Instructions {
		if i.Opcode == hlo.TupleOp || memory.HandsOn(i) {
			continue
		}
		for _, o := range i.Operands {
			for _, v := range k.parts(o) {
				k.read[v] = n
			}
		}
	}

	for _, v := range k.flow.Parts(k.flow.Root(k.w)) {
		k.read[v] = len(k.walk.Instructions)
	}
}

// until returns the last slot in which a value can be read.
func (k *deadlineWalk) until(v int32) int32 {
	if n, ok := k.placeAt(k.next[v]); k.next[v] != never && ok && k.read[v] <= n {
		return int32(2*n + 1)
	}
	return never
}

// setValues sets the deadlines of the planner's values, and returns the buffer that each value of the
// flow is.
func (k *deadlineWalk) setValues() map[int32]int32 {
	own := make(map[int32]int32, len(k.b.List))
	for id := range k.b.List {
		x, v := &k.b.List[id], &k.g.values[id]
		list := k.flow.Parts(k.walk.First + alias.Node(x.Definer))
		if part := partAt(k.walk.Instructions[x.Definer].Shape, x.Index); part < len(list) {
			own[list[part]] = int32(id)
			v.until = min(v.until, k.until(list[part]))
		}
	}

	return own
}

// setOperands sets which operands values read themselves, and how long they can be recomputed.
func (k *deadlineWalk) setOperands(own map[int32]int32) {
	for id := range k.g.values {
		v := &k.g.values[id]
		if !v.recomputable {
			continue
		}
		for _, o := range k.walk.Instructions[v.definer].Operands {
			for _, part := range k.parts(o) {
				x, ok := own[part]
				// A fusion may not read all of a tuple, but its operand has to be there.
				if !ok || k.g.values[x].size == 0 || !slices.Contains(v.operands, x) {
					v.last = min(v.last, k.until(part))
				} else if !slices.Contains(v.direct, x) {
					v.direct = append(v.direct, x)
				}
			}
		}
	}
}

// forbidWriters keeps what overwrites a value from being recomputed.
func (k *deadlineWalk) forbidWriters() {
	start := int32(2 * k.walk.Start)
	first, _ := slices.BinarySearchFunc(k.writes, start, func(x overwrite, at int32) int { return int(x.at - at) })
	for _, write := range k.writes[first:] {
		place, ok := k.placeAt(write.at)
		if !ok {
			break
		}
		begin := start
		if place > 0 {
			begin = k.end(place-1) + 2
		}
		if write.since < begin {
			for _, id := range k.b.Defined[place] {
				k.g.values[id].recomputable = false
			}
		}
	}
}

// partAt returns the number of the part at an index, counted in preorder.
func partAt(s *hlo.Shape, index []int) (n int) {
	var count func(s *hlo.Shape) int
	count = func(s *hlo.Shape) int {
		n := 1
		for _, e := range s.Elements {
			n += count(e)
		}
		return n
	}

	for _, k := range index {
		n++
		for _, e := range s.Elements[:k] {
			n += count(e)
		}
		s = s.Elements[k]
	}

	return n
}

// spans reports whether a value that is there from a slot on would be read in another after its
// memory was overwritten.
func (v *value) spans(from, to int32) bool { return from <= v.until && to > v.until }
