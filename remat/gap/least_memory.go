package gap

// The least memory: what no plan goes below.
//
// In the example of planner.go b reads s and makes 2 KiB: 3 KiB are there while it runs,
// however the rest is arranged. c reads b and makes 1 KiB: again 3 KiB. d has 3 KiB, too.
// So the bound is 3 KiB, and the plan for this limit is the smallest there is.

import (
	"gpumem/hlo"
	"gpumem/hlo/memory"
)

// LeastMemory returns the bytes that the entry takes at least, in any order and with any amount of
// recomputing, as the meter counts. While an instruction runs, what it
// reads, what it makes and what it calls are there together; the largest such sum is the
// bound. The error is that of [memory.Meter.Buffers].
func LeastMemory(m *hlo.Module, meter *memory.Meter) (uint64, error) {
	n, err := newBounds(meter).of(m.Entry)
	return uint64(max(n, 0)), err
}

// bounds are the bounds of the computations of a module. Each is found once, however often it
// is called; recursion ends because a verified module has none.
type bounds struct {
	meter   *memory.Meter
	done    map[*hlo.Computation]int64
	effects hlo.Effects
}

func newBounds(meter *memory.Meter) *bounds {
	return &bounds{meter, map[*hlo.Computation]int64{}, hlo.Effects{}}
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
	runs := needed(c, b.effects)
	// Nothing may be counted that a better order or a clone could have elsewhere: so neither
	// what lives across the instruction nor what its operands were made of.
	var most int64
	for place, i := range c.Instructions {
		// An instruction that only hands its operand on reads nothing.
		if !runs[i] || memory.HandsOn(i) {
			continue
		}
		var sum int64
		for _, id := range buffers.Used[place] {
			sum += buffers.List[id].Temp
		}
		for _, id := range buffers.Defined[place] {
			sum += buffers.List[id].Temp
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

// needed returns the instructions that have to run: those with a side effect, the root, and all
// that these need. A module may have others before it is optimized, and a plan may drop them.
func needed(c *hlo.Computation, effects hlo.Effects) map[*hlo.Instruction]bool {
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
		for _, o := range i.Operands {
			need(o)
		}
	}
	return needed
}
