package remat

// What no plan can go below.

import (
	"gpumem/hlo"
	"gpumem/hlo/memory"
)

// LowerBound is what the entry takes at least in bytes, in any order and with
// any amount of recomputing, in the pass's own count ([memory.TempPeak]):
// while an instruction runs, what it reads, what it makes and what it calls are
// there at once. Parameters and results count for nothing, as there; nor, with
// o.HostFree, does what lies on the host.
func LowerBound(m *hlo.Module, o memory.Options) (uint64, error) {
	b := newBounds(o)
	n, err := b.of(m.Entry)
	return uint64(max(n, 0)), err
}

type bounds struct {
	options memory.Options
	done    map[*hlo.Computation]int64
	effects map[*hlo.Computation]bool // see sideEffect
}

func newBounds(o memory.Options) bounds {
	return bounds{o, map[*hlo.Computation]int64{}, map[*hlo.Computation]bool{}}
}

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
		// What hands its operands on reads nothing.
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

// live are the instructions that have to run: those that the result needs, and those
// with an effect: effects is what is known of computations, see sideEffect.
func live(c *hlo.Computation, effects map[*hlo.Computation]bool) map[*hlo.Instruction]bool {
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
		if i.Opcode != hlo.Parameter && !again(i, effects) {
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

// RemoveDead takes out of a module what nothing uses, as the pass does when it
// has changed something, and says whether there was any. Modules as they are before
// optimization have such instructions, so that without it a plan seems to save
// their cost.
func RemoveDead(m *hlo.Module) (bool, error) { return removeDead(m, map[*hlo.Computation]bool{}) }
