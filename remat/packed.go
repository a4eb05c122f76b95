package remat

// Plans for the packed heap. It is larger than what is live at once, because of the free
// blocks between buffers, or smaller, if a result takes over the memory of an operand.

import (
	"gpumem/hlo"
	"gpumem/hlo/cost"
	"gpumem/hlo/memory"
)

// packTries is how many live limits bestPacked tries. Packing loses a few percent,
// about the same at each limit: two or three do.
const packTries = 5

// bestPacked is [bestFor] for a limit in bytes on the heap of temporaries as
// [memory.Assign] packs it, and gives that heap. It plans for live limits that are
// corrected by what packing made of the plan before. If none meets the limit, it
// is the plan with the smallest heap.
func bestPacked(m *hlo.Module, limit uint64, rates cost.Rates, o options) (best *plan, heap uint64, err error) {
	o.Search /= packTries
	if best, err = o.measured(m.String(), "off", 0, rates); err != nil {
		return nil, 0, err
	}
	s, err := memory.Assign(best.Module)
	if err != nil {
		return nil, 0, err
	}
	heap = s.Temp
	live := best.Peak
	for try := 0; try < packTries && s.Temp > limit; try++ {
		live = uint64(.99 * float64(live) * float64(limit) / float64(s.Temp)) // a little more, so that it ends
		p, err := bestFor(m, live, rates, o)
		if err != nil {
			return nil, 0, err
		}
		if s, err = memory.Assign(p.Module); err != nil {
			return nil, 0, err
		}
		if s.Temp < heap {
			best, heap = p, s.Temp
		}
		if p.Peak > live { // it goes no further
			break
		}
	}
	return best, heap, nil
}
