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

	"gpumem/xla/hlo"
	"gpumem/xla/internal/alias"
	"gpumem/xla/memory"
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
			d.walk(int32(w), g, b)
		}
	}
}

func (d *deadlines) walk(w int32, g *planner, b *memory.Buffers) {
	f, x := d.flow, &d.flow.Walks[w]
	end := func(place int) int32 { return int32(2 * f.Step(x.First+alias.Node(place))) }
	// at returns the place during which a time falls, and whether there is one.
	at := func(time int32) (int, bool) {
		n := sort.Search(len(x.Instructions), func(n int) bool { return end(n) >= time })
		return n, n < len(x.Instructions) && time >= int32(2*x.Start)
	}
	read := map[int32]int{} // by value: the last place that reads it
	parts := func(o *hlo.Instruction) []int32 {
		n, _ := f.Node(w, o)
		return f.Parts(n)
	}
	for n, i := range x.Instructions {
		if i.Opcode == hlo.TupleOp || memory.HandsOn(i) {
			continue
		}
		for _, o := range i.Operands {
			for _, v := range parts(o) {
				read[v] = n
			}
		}
	}
	for _, v := range f.Parts(f.Root(w)) {
		read[v] = len(x.Instructions)
	}
	// until returns the last slot in which a value can be read.
	until := func(v int32) int32 {
		if n, ok := at(d.next[v]); d.next[v] != never && ok && read[v] <= n {
			return int32(2*n + 1)
		}
		return never
	}
	own := make(map[int32]int32, len(b.List)) // the buffer that a value is
	for id := range b.List {
		n := b.List[id].Definer
		if list := f.Parts(x.First + alias.Node(n)); len(b.List[id].Index) == 0 {
			own[list[0]] = int32(id)
			g.values[id].until = min(g.values[id].until, until(list[0]))
		} else if part := partAt(x.Instructions[n].Shape, b.List[id].Index); part < len(list) {
			own[list[part]] = int32(id)
			g.values[id].until = min(g.values[id].until, until(list[part]))
		}
	}
	for id := range g.values {
		v := &g.values[id]
		if !v.recomputable {
			continue
		}
		for _, o := range x.Instructions[v.definer].Operands {
			for _, part := range parts(o) {
				k, ok := own[part]
				// A fusion may not read all of a tuple, but its operand has to be there.
				if ok && g.values[k].size > 0 && slices.Contains(v.operands, k) {
					if !slices.Contains(v.direct, k) {
						v.direct = append(v.direct, k)
					}
				} else {
					v.last = min(v.last, until(part))
				}
			}
		}
	}
	// What overwrites is not recomputed.
	for n := sort.Search(len(d.writes), func(n int) bool { return d.writes[n].at >= int32(2*x.Start) }); n < len(d.writes); n++ {
		place, ok := at(d.writes[n].at)
		if !ok {
			break
		}
		begin := int32(2 * x.Start)
		if place > 0 {
			begin = end(place-1) + 2
		}
		if d.writes[n].since < begin {
			for _, id := range b.Defined[place] {
				g.values[id].recomputable = false
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
