package pack

// Search for a smaller heap than XLA's two orders give: orders that learn from where
// they failed, each followed with a limited amount of backtracking. Three ideas are from
// MiniMalloc (Moffitt, ASPLOS 2023): blocks are placed from the bottom up, what cannot fit
// above the present floor is given up at once, and sections of time stand for all times.
//
// A heap of which BestFit makes 1300 steps of the alignment, where 1000 live at once: the
// tries have goals of 1000, 1149, 1224, 1000, 1074 and 1261 steps, and so on from the first.
// Say that the second one succeeds with a heap of 1140: from then on 1140 is the best known,
// and all goals are below. A try that fails has learned which groups did not fit
// (failed), and gives these a better rank the next time: so each try is another order, and
// hard groups come early. The search ends with its work, or at 1000.

import (
	"cmp"
	"math"
	"slices"
)

// Search is [BestFit] with up to work more steps to find a smaller heap. It
// returns one that is at most BestFit's and, for the same blocks, alignment and
// work, always the same. A core does 800 million steps in a second; with
// none, it is BestFit.
//
// It ends early where the heap is what lives at once, each block rounded up to the
// alignment: there is none smaller. Elsewhere it proves nothing. BestFit ends 26 to 40 %
// above the known capacity of MiniMalloc's cases A to E, of 154 to 215 blocks; 800
// million steps end 0 to 0.3 % above it. That is luck in part: with eleven other draws
// A to D ended at most 2.8 % above it, E 2.7 to 9.9.
//
// More than 16384 groups, or too many that live at the same time, are left to BestFit.
// The errors are those of BestFit.
func Search(blocks []Block, alignment uint64, work int) (heap uint64, offsets []uint64, err error) {
	heap, offsets, err = BestFit(blocks, alignment)
	if err != nil || work <= 0 || heap > maxHeap/4 {
		return heap, offsets, err
	}
	p, err := newPacker(blocks, alignment)
	if err != nil {
		return 0, nil, err
	}
	s := newSearch(p, work)
	if s == nil {
		return heap, offsets, nil
	}
	// The most that lives at once in any section is a lower bound on the heap: a heap of this
	// size cannot be improved, and a goal below it need not be tried.
	least := slices.Max(s.left)
	for try := 0; s.work > 0; try++ {
		most := int64((heap + alignment - 1) / alignment)
		if most <= least {
			break
		}
		// A success lowers most, and with it all goals of later tries.
		s.order()
		// A try gets an eighth of the work at most, so that there are several orders.
		if !s.place(least+(most-1-least)*goals[try%len(goals)]/8, work/8) {
			continue
		}
		if h, o := s.result(); h < heap {
			heap, offsets = h, o
		}
	}
	return heap, offsets, nil
}

// goals are the heaps to try for in turn, in eighths of the way from the least
// possible to the best known. The least is worth most of the tries: where every
// byte is needed, wrong turns are seen at once.
var goals = []int64{0, 4, 6, 0, 2, 7}

// order ranks the blocks of a try: a product of powers, drawn anew, of what lives
// at once with a block, its size and its life, a little noise, and more for those
// that did not fit before. What failed long ago counts less with each try. Sums of logarithms
// stand for the product.
func (s *search) order() {
	crowd, size, life := 8*float64(s.random.IntN(2)), float64(s.random.IntN(2)), float64(s.random.IntN(3))/2
	noise := 0.1 * s.random.Float64()
	failed := max(1, slices.Max(s.failed))
	score := make([]float64, len(s.size))
	list := make([]int32, len(s.size))
	for u := range score {
		list[u] = int32(u)
		score[u] = crowd*math.Log(float64(s.crowd[u])) +
			size*math.Log(float64(s.size[u])) +
			life*math.Log(float64(len(s.sections[u]))) +
			noise*s.random.NormFloat64() +
			math.Log(1+100*s.failed[u]/failed)/2
		s.failed[u] *= 0.9
	}
	slices.SortFunc(list, func(a, b int32) int { return cmp.Or(cmp.Compare(score[b], score[a]), cmp.Compare(a, b)) })
	for r, u := range list {
		s.rank[u] = int32(r)
	}
}

// result is the heap of a placed search, in bytes. It may be smaller than the goal, as the last
// blocks need not fill their steps of the alignment.
func (s *search) result() (heap uint64, offsets []uint64) {
	offsets = make([]uint64, len(s.p.blocks))
	for u, k := range s.first {
		at := uint64(s.at[u]) * s.p.alignment
		heap = max(heap, at+s.p.bytes(s.p.groups[k]))
		for _, b := range s.p.groups[k] {
			offsets[b] = at
		}
	}
	return heap, offsets
}
