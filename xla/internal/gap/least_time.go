package gap

// The least time that less memory costs.
//
// Each instruction first runs at its place in the given order. Then each value lives from
// one use to the next, unless it is dropped in this gap and recomputed. Where more is live
// than the limit, the values dropped there must make up for the excess: a covering problem.
//
// An example: the limit is 6, and at one instruction 10 is live, an excess of 4. Two values
// lie in a gap there: a of 3 bytes, which takes 1 s to recompute, and b of 5 bytes and 4 s.
// Any price per byte of excess gives a lower bound (weak duality of the relaxation): the
// price of the excess, less what values in gaps earn by it beyond their seconds. At 0.8 s
// per byte the excess costs 3.2 s, a earns 1.4 s and b nothing: 1.8 s is proven. The best
// plan drops b and costs 4 s. ascend improves the prices step by step.
//
// The bound is a theorem for plans that run every instruction at its place, and some again,
// each for at least its seconds. Plans that move a definition may do better, since its
// operands are then read later, too. To allow for that, the stretch from a definition to
// its first use counts as free to drop.

import (
	"math"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
)

// A pause is a gap between uses in which a value can be dropped. Its places count
// instructions, not slots: what is recomputed for an instruction is computed before it, and
// the bound gives that away.
type pause struct {
	from, to int // the first and the last instruction of it
	bytes    float64
	seconds  float64
}

// LeastSeconds returns a lower bound in seconds on the extra time of plans for m's entry that run
// each instruction at its place in the text. limit is in bytes, as the meter
// counts. The bound is +Inf if no such plan meets the limit. Of what the entry calls, only
// the bound of LeastMemory counts. seconds returns what an instruction takes, 0 or more.
func LeastSeconds(m *hlo.Module, meter *memory.Meter, limit uint64, seconds func(*hlo.Instruction) float64) (float64, error) {
	c := m.Entry
	b, err := meter.Buffers(c)
	if err != nil {
		return 0, err
	}
	excess, gaps, err := covering(c, b, newBounds(meter), int64(min(limit, 1<<62)), seconds)
	if err != nil || excess == nil {
		return 0, err
	}
	// The limit is out of reach if dropping everything is not enough. Sums of floats are
	// compared with a little room, so that rounding proves nothing.
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
	excess, gaps = crowded(excess, gaps)
	// ascend needs a guess at the optimum. What dropping everything costs is above it, often
	// far above.
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

// covering returns the bytes over the limit at each instruction, nil if there are none, and
// the gaps.
//
// In the example of planner.go with a limit of 3 KiB the excess is 1 KiB at instruction 4, c.
// The only gap there is that of s, from 4 to 4, between b and d, for the seconds of s. It
// covers the excess, and so a plan takes at least as long as s: 1 s. The plan that gap
// splitting finds takes 2 s, for a and s: that a has to be there again is not in the bound.
func covering(c *hlo.Computation, b *memory.Buffers, inside *bounds, limit int64, seconds func(*hlo.Instruction) float64) (excess []float64, gaps []pause, err error) {
	n := len(c.Instructions)
	change := make([]int64, n+1)
	for id := range b.List {
		x := &b.List[id]
		size := x.Temp
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
				g := pause{before + 1, u - 1, float64(size), seconds(definer)}
				if k == 0 {
					// A move is free, and frees the place of the definition, too.
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
		for _, callee := range memory.ControlFlow(i) {
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

// crowded returns the instructions at which too much is live, and the gaps at these, counted
// among these: at others a byte has no price.
func crowded(excess []float64, gaps []pause) ([]float64, []pause) {
	before := make([]int, len(excess)+1) // such instructions before each
	var over []float64
	for p, e := range excess {
		if e > 0 {
			over = append(over, e)
		}
		before[p+1] = len(over)
	}
	var at []pause
	for _, g := range gaps {
		if g.from, g.to = before[g.from], before[g.to+1]-1; g.from <= g.to {
			at = append(at, g)
		}
	}
	return over, at
}

// ascend returns the best bound of some rounds of subgradient ascent on the prices, with steps
// as for an optimum of target seconds (Polyak, 1969).
func ascend(excess []float64, gaps []pause, target float64) float64 {
	// prices are those of a byte over the limit at each instruction, in seconds, 0 or more.
	// sums has the sum of the prices before each instruction, so that what a gap earns is one
	// subtraction, and slope what the gaps worth dropping there cover, as changes from one
	// instruction to the next.
	n := len(excess)
	prices := make([]float64, n)
	sums := make([]float64, n+1)
	slope := make([]float64, n+1)
	best := 0.0
	scale := 1.0
	const rounds = 300
	for round := range rounds {
		sums[0] = 0
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
		// Each round's bound is proven by itself, so the best is kept. Without progress for
		// some rounds the steps were too long.
		if bound > best {
			best = bound
		} else if round%20 == 19 {
			scale *= .7
		}
		// The direction is the part of the excess that is not covered.
		var dropped, norm float64
		for p, e := range excess {
			dropped += slope[p]
			d := e + dropped
			if prices[p] == 0 && d < 0 {
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
