package bound

// The least time that less memory costs.
//
// Instructions that run first in the given order, each value lives between its
// uses unless it is dropped in between and computed again. So at each instruction
// where too much lives, what is dropped there has to make up for the excess: a
// covering problem. Its relaxation has a price for each byte too much at each
// instruction; whatever the prices are, what they come to less what the gaps
// would gain by them is a lower bound (weak duality). The prices are made better
// step by step.
//
// The bound is a theorem for plans that run every instruction at its place in the
// order, and some of them again, each at its own seconds at least. Plans that move
// a definition may do better, for what it reads is then read later, too. To be
// fair to them the stretch from a definition to the first use counts as free to drop.

import (
	"math"

	"gpumem/hlo"
	"gpumem/hlo/memory"
)

// A droppable is a gap of a value.
type droppable struct {
	from, to int // instructions at which nothing reads it
	bytes    float64
	seconds  float64
}

// Time is a lower bound in seconds on the extra time of any plan of m's entry for
// a limit in bytes, as memory.TempPeak counts, that runs each instruction at its
// place in the text. It is +Inf where the limit is proven out of reach in that way. Of
// loops and calls only what no plan for them goes below counts. Plans that move
// definitions, or change the order, may do better.
func Time(m *hlo.Module, limit uint64, seconds func(*hlo.Instruction) float64) (float64, error) {
	c := m.Entry
	b, err := memory.Analyze(c, nil)
	if err != nil {
		return 0, err
	}
	excess, gaps, err := covering(c, b, int64(min(limit, 1<<62)), seconds)
	if err != nil || excess == nil {
		return 0, err
	}
	// Out of reach: all that may be dropped is not enough.
	all := make([]float64, len(excess)+1)
	for _, g := range gaps {
		all[g.from] += g.bytes
		all[g.to+1] -= g.bytes
	}
	var now float64
	for p, e := range excess {
		if now += all[p]; e > now*(1+1e-9)+1 {
			return math.Inf(1), nil
		}
	}
	// What dropping everything would cost is above the optimum, often far: steps for
	// several guesses at it.
	target := 0.0
	for _, g := range gaps {
		target += g.seconds
	}
	best := 0.0
	for range 5 {
		best = max(best, ascend(excess, gaps, target))
		target /= 4
	}
	return best, nil
}

// covering is how many bytes too much live at each instruction, nil where none do, and
// what may be dropped.
func covering(c *hlo.Computation, b *memory.Buffers, limit int64, seconds func(*hlo.Instruction) float64) (excess []float64, gaps []droppable, err error) {
	o := memory.Options{}
	n := len(c.Instructions)
	change := make([]int64, n+1)
	inside := newBounds(memory.Options{})
	for id := range b.List {
		x := &b.List[id]
		size := o.Allocated(b, int32(id))
		if size == 0 {
			continue
		}
		definer := c.Instructions[x.Definer]
		last := int(x.Definer)
		pure := inside.effects.Repeatable(definer)
		uses := make([]int, 0, len(x.Uses))
		for _, u := range x.Uses { // by place
			if k := int(u.User); k != last || len(uses) == 0 {
				uses = append(uses, k)
				last = max(last, k)
			}
		}
		change[x.Definer] += size
		change[last+1] -= size
		if !pure {
			continue
		}
		before := int(x.Definer)
		for k, u := range uses {
			if u > before+1 {
				g := droppable{before + 1, u - 1, float64(size), seconds(definer)}
				if k == 0 {
					// A move is free, and so is the definition's own place.
					g.from, g.seconds = before, 0
				}
				gaps = append(gaps, g)
			}
			before = max(before, u)
		}
	}
	excess = make([]float64, n)
	over := false
	var now int64
	for p, i := range c.Instructions {
		now += change[p]
		usage := now
		for _, callee := range o.Calls(i) {
			least, err := inside.of(callee)
			if err != nil {
				return nil, nil, err
			}
			usage += least
		}
		if usage > limit {
			excess[p], over = float64(usage-limit), true
		}
	}
	if !over {
		return nil, nil, nil
	}
	return excess, gaps, nil
}

// ascend makes prices better until a bound is as good as it gets, with steps as
// for an optimum of target.
func ascend(excess []float64, gaps []droppable, target float64) float64 {
	n := len(excess)
	prices := make([]float64, n)
	sums := make([]float64, n+1)
	slope := make([]float64, n+1)
	best := 0.0
	scale := 1.0
	const rounds = 300
	for round := range rounds {
		for p, x := range prices {
			sums[p+1] = sums[p] + x
		}
		clear(slope)
		var bound float64
		for p, e := range excess {
			bound += prices[p] * e
		}
		for _, g := range gaps {
			if gain := g.bytes*(sums[g.to+1]-sums[g.from]) - g.seconds; gain > 0 {
				bound -= gain
				slope[g.from] -= g.bytes
				slope[g.to+1] += g.bytes
			}
		}
		if bound > best {
			best = bound
		} else if round%20 == 19 {
			scale *= .7
		}
		// The direction: how much of the excess is not covered.
		var dropped, norm float64
		for p, e := range excess {
			dropped += slope[p]
			d := e + dropped
			if prices[p] == 0 && (d < 0 || e == 0) {
				d = 0
			}
			sums[p] = d // used as a buffer until the next round
			norm += d * d
		}
		if norm == 0 {
			break
		}
		step := scale * max(target-bound, 1e-12) / norm
		for p := range prices {
			prices[p] = max(0, prices[p]+step*sums[p])
		}
		if best > 0 {
			target = min(target, 4*best)
		}
	}
	return best
}
