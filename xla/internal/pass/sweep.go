package pass

// The sweep: once through the schedule of each computation.
//
// An entry with a limit of 10 GiB calls a loop that takes 4 GiB, at a place where 7 GiB of
// its own are live. First values of the entry are freed there, as long as pick finds any: say
// that leaves 6.5 GiB, 0.5 too many. Then the body and the condition of the loop are swept
// with what the entry leaves them, 3.5 GiB. The loop is not swept again for a second call,
// even if that leaves it less.
//
// The peak that is noted for a computation is what the sweep saw. Later clones may let an
// operand live on through places that were passed, which is not looked at again, as in XLA.

import (
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
)

// sweep goes once through a computation and frees memory wherever the limit is exceeded.
// What an instruction calls is swept after that, if the limit is still exceeded. Each
// computation is swept at most once, for the first call that needs it.
func (p *pass) sweep(c *hlo.Computation, limit int64) error {
	if p.peaks[c] <= limit {
		return nil
	}
	t, err := newTracker(p, c)
	if err != nil {
		return err
	}
	var peak int64
	for k := t.first; k != none; k = t.items[k].next {
		i := t.items[k].i
		called := p.called(i)
		t.begin(k)
		// What defines and calls nothing cannot have raised memory above the limit: XLA does
		// not look at it, even if memory is over the limit there.
		if t.defines(k)+called > 0 {
			t.reduce(limit, called)
		}
		if t.now+called > limit {
			for _, callee := range memory.ControlFlow(i) {
				if p.done[callee] {
					continue
				}
				if err := p.sweep(callee, max(0, limit-t.now)); err != nil {
					return err
				}
			}
			called = p.called(i)
		}
		// The peak counts what is left over the limit, if nothing helped.
		peak = max(peak, t.now+called)
		t.end()
		if p.fault != nil {
			return p.fault
		}
	}
	p.peaks[c] = peak
	c.Instructions = t.order()
	p.done[c] = true
	return nil
}

// reduce frees memory until the current item is within the limit, or nothing helps. Each
// choice makes at least one value dead here, so that it ends.
func (t *tracker) reduce(limit, called int64) {
	for t.now+called > limit && t.p.fault == nil {
		best := t.pick(limit)
		if best.item == none {
			return
		}
		t.p.result.Chosen++
		if best.offload {
			t.p.result.Added += t.offload(best.item)
		} else {
			t.p.result.Added += t.recompute(best.item)
		}
	}
}
