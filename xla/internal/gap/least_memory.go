package gap

// The least memory: what no plan goes below.
//
// In the example of planner.go b reads s and makes 2 KiB: 3 KiB are there while it runs,
// however the rest is arranged. c reads b and makes 1 KiB: again 3 KiB. d has 3 KiB, too.
// So the bound is 3 KiB, and the plan for this limit is the smallest there is.
//
// What is never computed again adds to that. A loop stacks up 4 GiB for the backward pass, and the
// loss between both takes 1 GiB: whoever computes the loss first has the loop behind him, and
// what reads the stacks ahead, so that 5 GiB are there.

import (
	"cmp"
	"slices"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
)

// LeastMemory returns the bytes that the entry takes at least, in any order and with any amount of
// recomputing, as the meter counts. While an instruction runs, what it
// reads, what it makes and what it calls are there together; the largest such sum is the
// bound. With once, plans are those of gap splitting and of XLA's pass, which run loops, custom
// calls and what has an effect once and move nothing to the host: then what these have made
// before the instruction and is read after it is there, too. Loops in open may get another
// state: they and what is computed for them alone count nothing. The error is that of
// [memory.Meter.Buffers].
func LeastMemory(m *hlo.Module, meter *memory.Meter, once bool, open ...*hlo.Instruction) (uint64, error) {
	b := newBounds(meter)
	b.open = open
	if once {
		b.rules = newRules(true)
	}
	n, err := b.of(m.Entry)
	return uint64(max(n, 0)), err
}

// bounds are the bounds of the computations of a module. Each is found once, however often it
// is called; recursion ends because a verified module has none.
type bounds struct {
	meter   *memory.Meter
	done    map[*hlo.Computation]int64
	effects hlo.Effects
	rules   *rules // of what runs more than once; nil: anything may
	open    []*hlo.Instruction
}

func newBounds(meter *memory.Meter) *bounds {
	return &bounds{meter: meter, done: map[*hlo.Computation]int64{}, effects: hlo.Effects{}}
}

// of returns the bound of one computation.
func (b *bounds) of(c *hlo.Computation) (int64, error) {
	if n, ok := b.done[c]; ok {
		return n, nil
	}
	buffers, err := b.meter.Buffers(c)
	if err != nil {
		return 0, err
	}
	runs := needed(c, b.effects, b.open)
	held := b.held(c, buffers, runs)
	// Nothing may be counted that a better order or a clone could have elsewhere: so neither
	// what lives across the instruction nor what its operands were made of.
	var most int64
	for place, i := range c.Instructions {
		// An instruction that only hands its operands on reads nothing.
		if !runs[i] || memory.HandsOn(i) || i.Opcode == hlo.TupleOp || slices.Contains(b.open, i) {
			continue
		}
		sum := held[place]
		for _, id := range buffers.Used[place] {
			if buffers.List[id].Shape.IsArray() { // a plan may read an element without the tuple's table
				sum += buffers.List[id].Temp
			}
		}
		for _, id := range buffers.Defined[place] {
			if x := &buffers.List[id]; i.Opcode != hlo.Fusion || i.Shape.IsArray() || wanted(c, i, x.Index, runs) {
				sum += x.Temp
			}
		}
		for _, callee := range memory.ControlFlow(i) {
			n, err := b.of(callee)
			if err != nil {
				return 0, err
			}
			sum += n
		}
		most = max(most, sum)
	}
	b.done[c] = most
	return most, nil
}

// wanted reports whether something that runs reads an output of a fusion. Others may go, and the
// table with them if one is left.
func wanted(c *hlo.Computation, i *hlo.Instruction, index []int, runs map[*hlo.Instruction]bool) bool {
	return slices.ContainsFunc(i.Users, func(u *hlo.Instruction) bool {
		n, err := u.TupleIndex()
		return runs[u] && (u.Opcode != hlo.GetTupleElement || err != nil || len(index) > 0 && index[0] == n)
	}) || i == c.Root
}

// mostHeld is how many values held looks at, the largest: each takes a walk through the computation.
const mostHeld = 256

// A once is a value that is computed once.
type once struct {
	buffer  int32
	place   int          // of what computes it
	readers map[int]bool // places
}

// held returns, by place, the bytes of values that are computed once, before any run of the
// instruction there, and read after the first one by something that needs its result. What the
// instruction reads or makes itself is left out.
func (b *bounds) held(c *hlo.Computation, buffers *memory.Buffers, runs map[*hlo.Instruction]bool) []int64 {
	held := make([]int64, len(c.Instructions))
	if b.rules == nil {
		return held
	}
	place := make(map[*hlo.Instruction]int, len(c.Instructions))
	for n, i := range c.Instructions {
		place[i] = n
	}
	var all []once
	add := func(from int, i *hlo.Instruction) {
		if out := buffers.Outputs[place[i]]; i.Shape.IsArray() && len(out) == 1 && buffers.List[out[0]].Temp > 0 {
			x := once{out[0], from, map[int]bool{}}
			for work := []*hlo.Instruction{i}; len(work) > 0; {
				last := work[len(work)-1]
				work = work[:len(work)-1]
				for _, u := range last.Users {
					if memory.HandsOn(u) {
						work = append(work, u)
					} else if runs[u] {
						x.readers[place[u]] = true
					}
				}
			}
			all = append(all, x)
		}
	}
	for n, i := range c.Instructions {
		if !runs[i] || slices.Contains(b.open, i) || !b.rules.runsOnce(i) {
			continue
		}
		add(n, i)
		for _, u := range i.Users {
			if u.Opcode == hlo.GetTupleElement {
				add(n, u)
			}
		}
	}
	slices.SortStableFunc(all, func(x, y once) int {
		return cmp.Compare(buffers.List[y.buffer].Temp, buffers.List[x.buffer].Temp)
	})
	counted := map[[2]int]bool{} // by place and buffer: loops after one another have one buffer
	before, after := make([]bool, len(held)), make([]bool, len(held))
	for _, x := range all[:min(len(all), mostHeld)] {
		clear(before)
		clear(after)
		for n := len(held) - 1; n > x.place; n-- { // what a reader needs
			if after[n] || x.readers[n] {
				for _, o := range c.Instructions[n].Operands {
					after[place[o]] = true
				}
			}
		}
		before[x.place] = true
		for n := x.place + 1; n < len(held); n++ {
			i := c.Instructions[n]
			if before[n] = slices.ContainsFunc(i.Operands, func(o *hlo.Instruction) bool { return before[place[o]] }); !before[n] || !after[n] {
				continue
			}
			key := [2]int{n, int(x.buffer)}
			if !counted[key] && !slices.Contains(buffers.Used[n], x.buffer) && !slices.Contains(buffers.Defined[n], x.buffer) {
				counted[key] = true
				held[n] += buffers.List[x.buffer].Temp
			}
		}
	}
	return held
}

// needed returns the instructions that have to run: those with a side effect, the root, and all
// that these need, but for open loops. A module may have others before it is optimized, and a
// plan may drop them.
func needed(c *hlo.Computation, effects hlo.Effects, open []*hlo.Instruction) map[*hlo.Instruction]bool {
	needed := make(map[*hlo.Instruction]bool, len(c.Instructions))
	var work []*hlo.Instruction
	need := func(i *hlo.Instruction) {
		if !needed[i] {
			needed[i] = true
			work = append(work, i)
		}
	}
	need(c.Root)
	for _, i := range c.Instructions {
		if i.Opcode != hlo.Parameter && !effects.Repeatable(i) {
			need(i)
		}
	}
	for len(work) > 0 {
		i := work[len(work)-1]
		work = work[:len(work)-1]
		if slices.Contains(open, i) {
			continue
		}
		for _, o := range i.Operands {
			if n, err := i.TupleIndex(); err == nil && i.Opcode == hlo.GetTupleElement && o.Opcode == hlo.TupleOp && n < len(o.Operands) {
				o = o.Operands[n] // a plan may read it without the tuple
			}
			need(o)
		}
	}
	return needed
}
