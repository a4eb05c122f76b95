package plan

// Plans for the packed heap. It is larger than what is live at once, because of the free
// blocks between buffers, or smaller where a result takes the place of an operand.

import (
	"slices"
	"time"
)

// packTries is how many limits Packed tries.
const packTries = 8

// ladder are limits, as parts of the peak, for a module of which no plan meets the limit: the
// same for each limit, so that a smaller one does not end with more.
var ladder = []float64{.9, .8, .7, .6, .5, .4}

// Packed is Best for a limit in bytes on the heap of temporaries as
// [memory.Analysis.Assign] packs it. Packing loses a few percent, about the same at each
// limit, so it plans for live bytes, corrected each time by what packing made of the plan
// before; then for more, as long as there is room. If no plan meets the limit, it returns the
// fastest of those whose heap is little more than the smallest.
func (p *Planner) Packed(limit uint64, search time.Duration) (*Plan, error) {
	if p.stacks != nil {
		clear(p.stacks.plans)
	}
	return packedBy(p.best, p.Given, limit, search/packTries)
}

// packedBy is Packed with the planner for live bytes.
func packedBy(best func(live uint64, search time.Duration) (*Plan, error), given *Plan, limit uint64, search time.Duration) (*Plan, error) {
	now, err := given.Heap()
	if err != nil || now <= limit {
		return given, err
	}

	all := []*Plan{given}
	live := float64(given.Peak) // the limit for live bytes, tried last
	fits, over := 0.0, live     // the largest whose heap fits, and the smallest whose does not
	rung := -1
	for range packTries {
		switch {
		case fits == 0 && (rung >= 0 || all[len(all)-1].Peak > uint64(live)): // out of reach
			if rung++; rung == len(ladder) {
				return fastest(all, limit)
			}
			live = ladder[rung] * float64(given.Peak)
		case fits > 0 && over-fits < .05*fits:
			return fastest(all, limit)
		case fits > 0:
			live = (fits + over) / 2
		default:
			live *= .99 * float64(limit) / float64(now) // a little less, so that it ends
		}
		p, err := best(uint64(live), search)
		if err != nil {
			return nil, err
		}
		if now, err = p.Heap(); err != nil {
			return nil, err
		}
		all = append(all, p)
		if now <= limit {
			fits = live // larger than the last one: halfway to over
			if now > limit/100*95 {
				break
			}
		} else {
			over = min(over, live)
		}
	}

	return fastest(all, limit)
}

// fastest returns the fastest plan whose heap is at most limit, and if there is none, the
// fastest whose heap is little more than the smallest.
func fastest(all []*Plan, limit uint64) (best *Plan, err error) {
	heaps := make([]uint64, len(all))
	for n, p := range all {
		if heaps[n], err = p.Heap(); err != nil {
			return nil, err
		}
	}

	if least := slices.Min(heaps); least > limit {
		limit = uint64(nearly * float64(least))
	}

	for n, p := range all {
		if heaps[n] <= limit && (best == nil || p.Seconds < best.Seconds) {
			best = p
		}
	}
	return best, nil
}

// heapTries is how often gap splitting tries to make a heap smaller that is too large.
const heapTries = 2

// chooseByHeap returns the best of the plans whose heap is not too large: none takes more than the
// given module and XLA's plan, and where XLA's plan meets the limit, none takes more than the
// limit and XLA's plan. A plan that meets the limit by what lives at once may lose in the
// heap what it gained; where the best one does, gap splitting tries for less first, as it
// is mostly faster than XLA's plan. Without a heap, as of a module too large, it is the best.
func (k *candidates) chooseByHeap() (*Plan, error) {
	if k.best == k.Given {
		return k.best, nil
	}

	heap, err := k.best.Heap()
	if err != nil {
		return k.best, nil
	}

	most, err := k.mostHeap(heap)
	if err != nil || heap <= most {
		return k.best, nil
	}

	for try, to := 0, k.limit; try < heapTries && len(k.sources) > 0; try++ {
		to = uint64(.99 * float64(to) * float64(most) / float64(heap))
		if err := k.splitGaps(to); err != nil {
			return nil, err
		}
		if heap, err = k.gap.Heap(); err != nil || heap <= most {
			break
		}
	}

	list := []*Plan{k.Given}
	for _, p := range k.made {
		if p.Meets(k.limit) || p == k.theirs {
			list = append(list, p)
		}
	}

	slices.SortStableFunc(list, func(p, q *Plan) int { return p.Compare(q, k.limit) })
	for _, p := range list {
		if heap, err := p.Heap(); err == nil && heap <= most {
			return p, nil
		}
	}
	return k.best, nil
}

// mostHeap returns what the heap of a plan may take: see chooseByHeap. It is at least heap if that
// is seen without packing others.
func (k *candidates) mostHeap(heap uint64) (uint64, error) {
	most, err := k.Given.Heap()
	if err != nil || heap <= min(most, k.limit) {
		return heap, err
	}
	if !slices.Contains(k.made, k.theirs) || heap <= most && !k.theirs.Meets(k.limit) {
		return most, nil
	}

	theirs, err := k.theirs.Heap()
	if err != nil {
		return heap, err
	}

	most = max(most, theirs)
	if k.theirs.Meets(k.limit) {
		most = min(most, max(k.limit, theirs))
	}
	return most, nil
}
