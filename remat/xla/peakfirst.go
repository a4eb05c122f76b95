package xla

// The other algorithm: the highest peak first.

import (
	"fmt"

	"gpumem/hlo"
	"gpumem/hlo/memory"
	"gpumem/hlo/passes"
)

// leastLimit is what costs are calculated from at least: divided by a small limit they
// would all be 0 (kMinimumCostEstimateMemoryLimitBytes).
const leastLimit = 1 << 30

// peakFirst lowers the highest peak of a computation until the limit holds or
// nothing helps. It reports whether it changed anything.
func (p *pass) peakFirst(c *hlo.Computation, limit int64) (changed bool, err error) {
	peak, err := p.measure(c)
	if err != nil || peak.Bytes <= limit {
		return false, err
	}
	l := newList(c)
	for {
		did, err := p.round(l, peak, limit)
		if err != nil {
			return changed, err
		}
		if !did {
			p.peaks[c] = peak.Bytes
			break
		}
		changed = true
		// The order is what it is now; what may not be chosen again stays so.
		c.Instructions = l.order()
		next := newList(c)
		for k := range next.items {
			old := &l.items[l.item(next.items[k].i)]
			next.items[k].denied, next.items[k].recomputable, next.items[k].moved = old.denied, old.recomputable, old.moved
		}
		l = next
		before := peak.Bytes
		if peak, err = p.measure(c); err != nil {
			return changed, err
		}
		if before-peak.Bytes < before/100 {
			p.warn(TooLittle, fmt.Sprintf("a round saved %d of %d bytes in %s, less than one percent", before-peak.Bytes, before, c.Name))
		}
		p.peaks[c] = peak.Bytes
		if peak.Bytes <= limit {
			break
		}
	}
	p.done[c] = true
	return changed, nil
}

func (p *pass) measure(c *hlo.Computation) (memory.Peak, error) {
	b, err := memory.Analyze(c, p.o.Size)
	if err != nil {
		return memory.Peak{}, err
	}
	return p.memory.Peak(b, p.called)
}

// round places a computation up to its peak and frees memory there. Calls on the way
// that exceed the limit are treated first. It ends after the first change.
func (p *pass) round(l *list, peak memory.Peak, limit int64) (changed bool, err error) {
	t, err := newTracker(p, l)
	if err != nil {
		return false, err
	}
	t.fromPeak = true
	l.promote(func(k int32) bool { return uint64(t.defines(k)) >= p.o.MinSize })
	for k := l.first; k != none && !changed; k = l.items[k].next {
		i := l.items[k].i
		if passes.Dead(i) {
			l.items[k].passed = true
			continue
		}
		called, err := p.called(i)
		if err != nil {
			return false, err
		}
		t.begin(k)
		if i == peak.At {
			if changed, err = t.reducePeak(peak.Bytes, max(leastLimit, limit), called); err != nil {
				return false, err
			}
		}
		if t.now+called > limit {
			for _, callee := range p.memory.Calls(i) {
				if p.done[callee] {
					continue
				}
				did, err := p.peakFirst(callee, max(0, limit-t.now))
				if err != nil {
					return false, err
				}
				changed = changed || did
			}
		}
		if err := t.end(); err != nil {
			return false, err
		}
	}
	return changed, nil
}

// reducePeak frees memory at the peak until it is lower, or nothing is left to try.
func (t *tracker) reducePeak(peak, costs, called int64) (changed bool, err error) {
	hi := 1
	for t.now+called >= peak && hi <= t.p.o.BlockLimit {
		chosen, _, err := t.choose(costs, 1, hi)
		if err != nil {
			return changed, err
		}
		if chosen == 0 {
			hi *= 2
		} else {
			changed = true
			hi = 1
		}
	}
	return changed, nil
}
