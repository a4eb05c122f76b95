package xla

// The choice of what to free.

import (
	"math"
	"slices"

	"gpumem/hlo"
	"gpumem/hlo/passes"
)

// A choice is a block of consecutive items and what to do with them.
type choice struct {
	block    []int32
	strategy Strategy
	compact  *hlo.Shape
	// effort is how many blocks were looked at, each once for each strategy.
	effort int64
}

// recomputable reports whether an item may be computed again.
func (t *tracker) recomputable(k int32) bool {
	x := &t.items[k]
	if x.recomputable == 0 {
		x.recomputable = no
		if t.p.effects.Recomputable(x.i) {
			x.recomputable = yes
		}
	}
	return x.recomputable == yes
}

// pick chooses among all blocks of lo to hi items that have been placed, the item in
// progress not included. The cost of a block is the limit divided by the bytes that it
// frees here, and 0 if it is only moved. The lowest cost wins, the first of equals.
// peak is that of the computation.
func (t *tracker) pick(limit int64, lo, hi int, peak int64) (choice, error) {
	if t.lean {
		return t.pickSingle(limit), nil
	}
	var best choice
	least := int64(math.MaxInt64)
	block := make([]int32, 0, min(hi, 16))
	offer := func(cost int64, ok bool, s Strategy, compact *hlo.Shape) {
		if best.effort++; ok && cost < least {
			least, best.strategy, best.compact = cost, s, compact
			best.block = append(best.block[:0], block...)
		}
	}
	for start := t.firstExpress; start != none; start = t.items[start].nextExpress {
		if passes.Dead(t.items[start].i) {
			continue
		}
		block = block[:0]
		for k := start; len(block) < lo && k != none && t.items[k].placed && k != t.current; k = t.items[k].next {
			block = append(block, k)
		}
		if len(block) < lo {
			break
		}
		if !t.allAble(block) {
			continue
		}
		if t.p.o.Strategies&Compress != 0 && len(block) == 1 {
			cost, compact, err := t.compressionCost(start, limit, peak)
			if err != nil {
				return best, err
			}
			offer(cost, compact != nil, Compress, compact)
		}
		if t.p.o.Strategies&Offload != 0 && len(block) == 1 {
			cost, ok := t.offloadCost(start, limit)
			offer(cost, ok, Offload, nil)
		}
		if t.p.o.Strategies&Recompute == 0 {
			continue
		}
		sum := t.newSum(block)
		for {
			cost, ok := sum.cost(limit)
			offer(cost, ok, Recompute, nil)
			next := t.items[block[len(block)-1]].next
			if len(block) >= hi || next == none || t.items[next].denied || !t.items[next].placed || next == t.current || !t.recomputable(next) {
				break
			}
			block = append(block, next)
			sum.add(next)
		}
	}
	return best, nil
}

// pickSingle is pick for single items that are computed again, without the effort, which
// then does not matter. It looks at what is live alone: nothing else frees anything.
func (t *tracker) pickSingle(limit int64) (best choice) {
	least := int64(math.MaxInt64)
	kept := t.lane[:0]
	for _, k := range t.lane {
		if k != t.current && (passes.Dead(t.items[k].i) || !t.holds(k)) {
			t.items[k].inLane = false
			continue
		}
		kept = append(kept, k)
		if k == t.current || t.items[k].denied || !t.recomputable(k) {
			continue
		}
		one := [1]int32{k}
		sum := t.newSum(one[:])
		if cost, ok := sum.cost(limit); ok && cost < least {
			least = cost
			best.strategy, best.block = Recompute, append(best.block[:0], k)
		}
	}
	t.lane = kept
	return best
}

// holds reports whether one of an item's own buffers is live.
func (t *tracker) holds(k int32) bool {
	for _, id := range t.items[k].defined {
		if t.live(id) {
			return true
		}
	}
	return false
}

// enlist puts a placed item among those that are live, which are in the order in which they run.
func (t *tracker) enlist(k int32) {
	x := &t.items[k]
	if !t.lean || x.inLane || !x.placed {
		return
	}
	x.inLane = true
	at, _ := slices.BinarySearchFunc(t.lane, x.turn, func(j, turn int32) int { return int(t.items[j].turn) - int(turn) })
	t.lane = slices.Insert(t.lane, at, k)
}

func (t *tracker) allAble(block []int32) bool {
	for _, k := range block {
		if t.items[k].denied || !t.recomputable(k) {
			return false
		}
	}
	return true
}

// A sum is what computing a block again frees.
type sum struct {
	t     *tracker
	bytes int64
	bad   bool // the block is out of the question, and all longer ones
	used  bool // a user of the block has been: it is not only moved
	mark  int64
}

func (t *tracker) newSum(block []int32) sum {
	t.marks++
	s := sum{t: t, mark: t.marks}
	for _, k := range block {
		s.add(k)
	}
	return s
}

// add takes one more item into the block.
func (s *sum) add(k int32) {
	if s.bad {
		return
	}
	t := s.t
	x := &t.items[k]
	for _, id := range x.defined {
		b := &t.buffers[id]
		if b.indirect || b.liveOut || len(b.index) > 1 || t.inUse(id) {
			s.bad = true
			return
		}
		if t.live(id) {
			s.bytes += b.cost
		}
	}
	for _, next := range x.after {
		if t.items[next].placed {
			s.bad = true
			return
		}
	}
	// What it needs has to stay until it is computed again, unless that is, too.
	for _, id := range x.used {
		if !t.live(id) && t.items[t.buffers[id].definer].mark != s.mark {
			s.bytes -= t.buffers[id].cost
		}
	}
	x.mark = s.mark
	if !s.used {
		for _, u := range x.i.Users {
			if t.placed(u) {
				s.used = true
				break
			}
		}
	}
}

func (s *sum) cost(limit int64) (int64, bool) {
	if s.bad || s.bytes <= 0 {
		return 0, false
	}
	if !s.used {
		return 0, true
	}
	return limit / s.bytes, true
}
