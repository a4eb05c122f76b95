package xla

// The default algorithm: once through the schedule.

import (
	"gpumem/hlo"
)

// choose frees memory at the item in progress once, and reports whether it could.
// costs are what costs are calculated from.
func (t *tracker) choose(costs int64, lo, hi int) (chosen int, effort int64, err error) {
	p := t.p
	p.watch()
	best, err := t.pick(costs, lo, hi, p.peaks[t.c])
	if err != nil || len(best.block) == 0 {
		return 0, best.effort, err
	}
	before := t.now
	originals := make([]*hlo.Instruction, len(best.block))
	for n, k := range best.block {
		originals[n] = t.items[k].i
	}
	var added int
	switch best.strategy {
	case Compress:
		added, err = t.compress(best.block[0], best.compact)
	case Offload:
		added, err = t.offload(best.block[0])
	default:
		added, err = t.recompute(best.block)
	}
	if err != nil {
		return 0, best.effort, err
	}
	p.result.Chosen += len(best.block)
	p.result.Added += added
	p.result.LargestBlock = max(p.result.LargestBlock, hi)
	if p.o.OnStep != nil {
		p.o.OnStep(Step{At: t.items[t.current].i, Strategy: best.strategy, Chosen: originals, Added: added, Before: before, After: t.now})
	}
	return len(best.block), best.effort, nil
}

// sweep goes once through a computation and acts wherever the limit is exceeded. It
// reports whether it changed anything.
func (p *pass) sweep(c *hlo.Computation, limit int64) (changed bool, err error) {
	if p.peaks[c] <= limit {
		return false, nil
	}
	l := newList(c)
	t, err := newTracker(p, l)
	if err != nil {
		return false, err
	}
	l.promote(func(k int32) bool { return uint64(t.defines(k)) >= p.o.MinSize })
	var peak int64
	for k := l.first; k != none; k = l.items[k].next {
		i := l.items[k].i
		called, err := p.called(i)
		if err != nil {
			return changed, err
		}
		t.begin(k)
		if t.defines(k)+called > 0 {
			did, err := t.reduce(limit, called)
			if err != nil {
				return changed, err
			}
			changed = changed || did
		}
		if t.now+called > limit {
			for _, callee := range p.memory.Calls(i) {
				if p.done[callee] {
					continue
				}
				did, err := p.sweep(callee, max(0, limit-t.now))
				if err != nil {
					return changed, err
				}
				changed = changed || did
			}
			if called, err = p.called(i); err != nil {
				return changed, err
			}
		}
		peak = max(peak, t.now+called)
		if err := t.end(); err != nil {
			return changed, err
		}
	}
	p.peaks[c] = peak
	c.Instructions = l.order()
	p.done[c] = true
	return changed, nil
}

// reduce frees memory until the limit holds at the item in progress, or nothing
// is left to try. Blocks of several instructions are tried where single ones are of no
// help, until that takes BlockFactor times the effort.
func (t *tracker) reduce(limit, called int64) (changed bool, err error) {
	lo, hi, single := 1, 1, true
	var firstEffort, laterEffort int64
	for t.now+called > limit {
		chosen, effort, err := t.choose(limit, lo, hi)
		if err != nil {
			return changed, err
		}
		if single {
			firstEffort += effort
		} else {
			laterEffort += effort
		}
		if chosen == 0 {
			lo, hi, single = hi+1, 2*hi, false
		} else {
			changed = true
			lo, hi = 1, 1
		}
		if hi > t.p.o.BlockLimit || laterEffort > int64(t.p.o.BlockFactor)*firstEffort {
			break
		}
	}
	return changed, nil
}
