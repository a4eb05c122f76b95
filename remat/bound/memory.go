// Package bound proves what no plan can go below, in memory and in time.
package bound

// The least memory.

import (
	"gpumem/hlo"
	"gpumem/hlo/memory"
	"gpumem/hlo/passes"
)

// Memory returns the bytes that the entry takes at least, in any order and with any amount of
// recomputing, as [memory.TempPeak] counts with o. While an instruction runs, what it
// reads, what it makes and what it calls are there together; the largest such sum is the
// bound. The error is that of [memory.Analyze].
func Memory(m *hlo.Module, o memory.Options) (uint64, error) {
	n, err := newBounds(o).of(m.Entry)
	return uint64(max(n, 0)), err
}

// bounds are the bounds of the computations of a module.
type bounds struct {
	options memory.Options
	done    map[*hlo.Computation]int64
	effects passes.Effects
}

func newBounds(o memory.Options) *bounds {
	return &bounds{o, map[*hlo.Computation]int64{}, passes.Effects{}}
}

// of returns the bound of one computation.
func (b *bounds) of(c *hlo.Computation) (int64, error) {
	if n, ok := b.done[c]; ok {
		return n, nil
	}
	buffers, err := memory.Analyze(c, nil)
	if err != nil {
		return 0, err
	}
	needed := live(c, b.effects)
	var most int64
	for place, i := range c.Instructions {
		// An instruction that only hands its operand on reads nothing.
		if !needed[i] || memory.HandsOn(i) {
			continue
		}
		var sum int64
		for _, id := range buffers.Used[place] {
			sum += b.options.Allocated(buffers, id)
		}
		for _, id := range buffers.Defined[place] {
			sum += b.options.Allocated(buffers, id)
		}
		for _, callee := range b.options.Calls(i) {
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

// live returns the instructions that have to run: those with a side effect, the root, and all
// that these need.
func live(c *hlo.Computation, effects passes.Effects) map[*hlo.Instruction]bool {
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
