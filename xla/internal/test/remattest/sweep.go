package remattest

// An independent model of XLA's sweep, for modules of [Random]: it keeps no account of what
// is live, but finds it anew in the instructions before each choice.

import (
	"fmt"
	"slices"
	"strings"

	"gpumem/xla/internal/hlo"
)

// A sweep is the model's run over one module.
type sweep struct {
	replay *replay
	peaks  map[*hlo.Computation]int64
	done   map[*hlo.Computation]bool
	// helpers are new get-tuple-elements and bitcasts, left those that lost their users to
	// helpers, and moved the clones whose original has no user.
	helpers, left, moved map[*hlo.Instruction]bool
	names                int
	// twice is what XLA takes off twice in the current computation: with a tuple that it
	// recomputes, elements that were dead already.
	twice int64
}

// Sweep recomputes values of a module as XLA's pass does for a limit in bytes on its
// temporaries. What nothing uses any more is left in the module.
func Sweep(m *hlo.Module, limit int64) {
	s := &sweep{&replay{size: Bytes, memo: map[*hlo.Computation]int64{}}, map[*hlo.Computation]int64{}, map[*hlo.Computation]bool{},
		map[*hlo.Instruction]bool{}, map[*hlo.Instruction]bool{}, map[*hlo.Instruction]bool{}, 0, 0}
	for _, c := range m.Computations {
		s.peaks[c] = s.replay.peak(c)
	}
	s.computation(m.Entry, limit)
}

func (s *sweep) called(i *hlo.Instruction) (sum int64) {
	if i.Opcode == "call" || i.Opcode == "while" {
		for _, c := range i.Called() {
			sum += s.peaks[c]
		}
	}
	return sum
}

func (s *sweep) computation(c *hlo.Computation, limit int64) {
	if s.peaks[c] <= limit {
		return
	}
	outer := s.twice
	peak := int64(0)
	s.twice = 0
	for at := 0; at < len(c.Instructions); at++ {
		i := c.Instructions[at]
		called := s.called(i)
		state := s.look(c, at)
		if state.defines(i)+called > 0 {
			for state.live+called > limit {
				best := state.best(limit)
				if best == nil {
					break
				}
				state.recompute(best)
				state = s.look(c, at)
			}
		}
		if called > 0 && state.live+called > limit {
			for _, callee := range i.Called() {
				if !s.done[callee] {
					s.computation(callee, max(0, limit-state.live))
				}
			}
			called = s.called(i)
		}
		peak = max(peak, state.live+called)
	}
	s.peaks[c], s.done[c], s.twice = peak, true, outer
}

// A reader is an operand through which an instruction reads a cell.
type reader struct {
	i       *hlo.Instruction
	operand int
	direct  bool // by way of bitcasts and get-tuple-elements alone
}

// A state is a computation while one of its instructions runs.
type state struct {
	*sweep
	c       *hlo.Computation
	at      int
	placed  map[*hlo.Instruction]bool
	cells   []cell
	readers map[cell][]reader
	result  map[cell]bool // cells that the computation returns
	live    int64
}

func (s *sweep) look(c *hlo.Computation, at int) *state {
	t := &state{sweep: s, c: c, at: at, placed: map[*hlo.Instruction]bool{}, readers: map[cell][]reader{}, result: map[cell]bool{}}
	for n, i := range c.Instructions {
		t.placed[i] = n <= at
		for _, path := range paths(i.Shape, "") {
			if x := (cell{i, path}); origin(i, path) == x {
				t.cells = append(t.cells, x)
			}
		}
		for n, o := range i.Operands {
			for _, path := range paths(o.Shape, "") {
				x := origin(o, path)
				if !s.left[i] && reads(i, n, x) {
					t.readers[x] = append(t.readers[x], reader{i, n, direct(o, path)})
				}
			}
		}
	}
	for _, path := range paths(c.Root.Shape, "") {
		t.result[origin(c.Root, path)] = true
	}
	t.live = -t.twice
	for _, x := range t.cells {
		if t.isLive(x) || x.maker == c.Instructions[at] {
			t.live += t.size(x)
		}
	}
	return t
}

func direct(i *hlo.Instruction, path string) bool {
	switch i.Opcode {
	case "bitcast":
		return direct(i.Operands[0], path)
	case "get-tuple-element":
		index, _ := i.Attribute("index")
		return direct(i.Operands[0], "."+index+path)
	}
	return origin(i, path) == cell{i, path}
}

func (t *state) size(x cell) int64 {
	if x.maker.Opcode == "parameter" || t.result[x] {
		return 0
	}
	return t.replay.size(shapeAt(x.maker.Shape, x.path))
}

func (t *state) of(i *hlo.Instruction) []cell {
	return slices.Collect(func(yield func(cell) bool) {
		for _, x := range t.cells {
			if x.maker == i && !yield(x) {
				return
			}
		}
	})
}

func (t *state) defines(i *hlo.Instruction) (sum int64) {
	for _, x := range t.of(i) {
		sum += t.size(x)
	}
	return sum
}

// isLive reports whether a placed instruction made the cell, and one that has not ended reads it.
func (t *state) isLive(x cell) bool {
	return t.placed[x.maker] && slices.ContainsFunc(t.readers[x], func(r reader) bool { return !t.placed[r.i] || r.i == t.c.Instructions[t.at] })
}

// best returns the instruction of the lowest cost, the first of equals; nil if there is none.
func (t *state) best(limit int64) (best *hlo.Instruction) {
	now := t.c.Instructions[t.at]
	least := int64(0)
	for _, i := range t.c.Instructions[:t.at] {
		switch i.Opcode {
		case "parameter", "constant", "call", "while", "copy":
			continue
		}
		freed := int64(0)
		ok := !t.helpers[i]
		for _, x := range t.of(i) {
			ok = ok && !t.result[x] && strings.Count(x.path, ".") < 2
			for _, r := range t.readers[x] {
				// A while hands its whole operand on.
				ok = ok && r.direct && r.i != now && r.i.Opcode != "while"
			}
			if t.isLive(x) {
				freed += t.size(x)
			}
		}
		for _, x := range t.cells {
			if !t.isLive(x) && slices.ContainsFunc(t.readers[x], func(r reader) bool { return r.i == i }) {
				freed -= t.size(x)
			}
		}
		for _, s := range t.c.Instructions[:t.at+1] {
			ok = ok && !slices.Contains(s.After, i)
		}
		if !ok || freed <= 0 {
			continue
		}
		cost := int64(0)
		if slices.ContainsFunc(i.Users, func(u *hlo.Instruction) bool { return t.placed[u] }) {
			cost = limit / freed
		}
		if best == nil || cost < least {
			best, least = i, cost
		}
	}
	return best
}

// recompute clones an instruction for its readers that are not placed.
func (t *state) recompute(i *hlo.Instruction) {
	m := t.c.Module
	name := func() string {
		t.names++
		return fmt.Sprint("model.", t.names)
	}
	clone := i.Clone(name())
	for n := range clone.Attributes {
		if i.Opcode == "fusion" {
			for k, callee := range clone.Attributes[n].Calls {
				clone.Attributes[n].Calls[k] = callee.Clone(".model", nil)
			}
		}
	}
	for _, s := range t.c.Instructions {
		if slices.Contains(s.After, i) {
			s.AddAfter(clone)
		}
	}
	var helpers []*hlo.Instruction
	help := func(op hlo.Opcode, shape *hlo.Shape, o *hlo.Instruction) *hlo.Instruction {
		h := m.NewInstruction(name(), op, shape, o)
		t.helpers[h] = true
		helpers = append(helpers, h)
		return h
	}
	elements := map[string]*hlo.Instruction{}
	for _, x := range t.of(i) {
		if !t.isLive(x) {
			t.twice += t.size(x)
		}
		for _, r := range t.readers[x] {
			old := r.i.Operands[r.operand]
			if t.placed[r.i] {
				continue
			}
			if r.i.Opcode == "bitcast" || r.i.Opcode == "get-tuple-element" {
				t.left[r.i] = true
			}
			if old == clone {
				continue
			}
			now := clone
			if x.path != "" && old.Shape.String() != clone.Shape.String() {
				if elements[x.path] == nil {
					e := help("get-tuple-element", shapeAt(clone.Shape, x.path), clone)
					e.Attributes = []hlo.Attribute{{Key: "index", Value: x.path[1:]}}
					elements[x.path] = e
				}
				now = elements[x.path]
			}
			if old.Shape.String() != now.Shape.String() {
				now = help("bitcast", old.Shape, now)
			}
			r.i.SetOperand(r.operand, now)
		}
	}
	// The clone stands before the first of its users, of those of its operands that are
	// still to come, and of those that have to run after it.
	users := append(slices.Clone(helpers), clone)
	first := slices.IndexFunc(t.c.Instructions, func(u *hlo.Instruction) bool {
		reads := func(o *hlo.Instruction) bool { return slices.Contains(u.Operands, o) }
		return slices.ContainsFunc(users, reads) || !t.placed[u] && slices.ContainsFunc(clone.Operands, reads) || slices.Contains(u.After, clone)
	})
	t.c.Insert(first, append([]*hlo.Instruction{clone}, helpers...)...)
	if unused(i) {
		if t.moved[i] {
			t.helpers[clone] = true // it does not move again
		}
		t.moved[clone] = true
	}
}

// unused reports whether nothing but bitcasts and get-tuple-elements without users reads it.
func unused(i *hlo.Instruction) bool {
	return !slices.ContainsFunc(i.Users, func(u *hlo.Instruction) bool {
		return u.Opcode != "bitcast" && u.Opcode != "get-tuple-element" || !unused(u)
	})
}

// Outline returns a module without names, computation by computation: each instruction
// with the numbers of those that it reads and waits for. New bitcasts and
// get-tuple-elements are written where they are read.
func Outline(m *hlo.Module) string { return outline(m.Entry) }

func outline(c *hlo.Computation) string {
	var b strings.Builder
	number := map[*hlo.Instruction]int{}
	var name func(o *hlo.Instruction) string
	name = func(o *hlo.Instruction) string {
		if n, ok := number[o]; ok {
			return fmt.Sprint(n)
		}
		index, _ := o.Attribute("index")
		return fmt.Sprintf("%s%s(%s)", o.Opcode, index, name(o.Operands[0]))
	}
	for _, i := range c.Instructions {
		if i.Line == 0 && (i.Opcode == "bitcast" || i.Opcode == "get-tuple-element") {
			continue
		}
		number[i] = len(number)
		fmt.Fprintf(&b, "%d %s %s%s", number[i], i.Shape, i.Opcode, i.Literal)
		for _, o := range i.Operands {
			b.WriteString(" " + name(o))
		}
		var after []int
		for _, p := range i.After {
			after = append(after, number[p])
		}
		slices.Sort(after)
		fmt.Fprint(&b, " after ", after)
		for _, callee := range i.Called() {
			b.WriteString(" {\n" + outline(callee) + "}")
		}
		b.WriteString("\n")
	}
	return b.String()
}
