package remat

// Plans for the packed heap. It is larger than what is live at once, because of the free
// blocks between buffers, or smaller where a result takes the place of an operand.

import (
	"gpumem/hlo"
)

// packTries is how many limits bestPacked tries. Packing loses a few percent, about the same
// at each limit, so that two or three are enough in most cases.
const packTries = 5

// bestPacked is [bestFor] for a limit in bytes on the heap of temporaries as
// [memory.Analysis.Assign] packs it. It plans for live bytes, corrected each time by what
// packing made of the plan before. If no plan meets the limit, it returns the one with the
// smallest heap.
func bestPacked(m *hlo.Module, limit uint64, o options) (best *plan, err error) {
	o.Search /= packTries
	if best, err = o.measured(m, "off", 0); err != nil {
		return nil, err
	}
	now, err := best.heap()
	if err != nil {
		return nil, err
	}
	least, live := now, best.Peak
	for try := 0; try < packTries && now > limit; try++ {
		live = uint64(.99 * float64(live) * float64(limit) / float64(now)) // a little less, so that it ends
		p, err := bestFor(m, live, o)
		if err != nil {
			return nil, err
		}
		if now, err = p.heap(); err != nil {
			return nil, err
		}
		if now < least {
			best, least = p, now
		}
		if p.Peak > live { // there is no smaller plan
			break
		}
	}
	return best, nil
}
