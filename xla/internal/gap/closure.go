package gap

// The closure of a split: the values that have to be recomputed or live on for it.
//
// In the example of planner.go s is to be recomputed in slot 10. It reads a, which died in
// slot 5. a could live on from slot 6 to slot 10, but slot 7 has 3 KiB, as much as the limit
// allows. So a is recomputed, too, and reads p, a parameter, which is always there: the
// closure is a, s. If slots 6 to 10 had room for 1 KiB, a would live on instead: it would be
// a longer one, from slot 6 on, and the closure s alone.
//
// Recomputing is not chosen where living on is possible, although it may be the cheaper for
// memory: what lives on costs no time. The search of improve.go finds the exceptions.

import (
	"math"
	"slices"
)

// A stretch is the time for which a value lives on: from where it died to the slot of the
// split.
type stretch struct{ value, from int32 }

// A closure is what a split needs in the slot in which it recomputes its value.
type closure struct {
	g       *planner
	at      int32
	seconds float64
	bytes   int64   // that recomputing takes in the slot, beside the value itself
	lost    float64 // bytes times slots over the limit that it adds
	again   []int32 // recomputed values, the one that is split last
	longer  []stretch
	room    int64 // bytes of the longer ones in the slot
	failed  bool  // there is none, or it is too large
}

// need makes an operand live in the slot. seen keeps each value from being looked at twice in
// one closure: it has the number of the closure that looked last, so that nothing is cleared.
//
// What is read directly must not have been overwritten: then it is recomputed, even if it is live
// for other readers.
func (k *closure) need(o int32, direct bool) {
	if k.failed {
		return
	}
	v := &k.g.values[o]
	if v.size == 0 {
		return // a parameter or a result of the computation: always live, and see value.last
	}
	last, live := v.around(k.at)
	if last < 0 {
		k.failed = true // it was moved to a later slot
		return
	}
	stale := direct && v.spans(v.segments[last].start, k.at)
	if k.g.seen[o] == k.g.closures {
		k.failed = stale && !slices.Contains(k.again, o) // it lives on for another reader
		return
	}
	k.g.seen[o] = k.g.closures
	if live {
		k.failed = stale
		return
	}
	if stale {
		if k.failed = !v.recomputable; !k.failed {
			k.compute(o)
		}
		return
	}
	// It died. From there to the slot it may live on if no slot would be over the limit by
	// that; otherwise it is recomputed if it can be, and lives on at a loss if not.
	from := v.segments[last].end() + 1
	if v.recomputable && k.g.profile.above(int(from), int(k.at), k.g.limit-v.size, 1) > 0 {
		k.compute(o)
		return
	}
	k.longer = append(k.longer, stretch{o, from})
	k.room += v.size
}

// compute recomputes a value in the slot: first what it needs, so that again is in an order in
// which operands come before their readers, and the value that is split is the last.
func (k *closure) compute(o int32) {
	v := &k.g.values[o]
	if k.at > v.last {
		k.failed = true
		return
	}
	for _, x := range v.operands {
		k.need(x, slices.Contains(v.direct, x))
	}
	k.again = append(k.again, o)
	k.seconds += v.seconds
	if len(k.again) > maxClosure {
		k.failed = true
	}
}

// around returns the number of the last segment that begins at or before a slot, -1 if there
// is none, and reports whether the value is live in the slot. The first segment of a value
// that moved counts as not there. After the split of the example s is live in slot 7 (0,
// true), not in slot 9 (0, false), and live again in slot 11 (1, true).
func (v *value) around(slot int32) (last int, live bool) {
	last = -1
	for n := range v.segments {
		if s := &v.segments[n]; s.start <= slot && !(s.first && v.moved) {
			if s.end() >= slot {
				return n, true
			}
			last = n
		}
	}
	return last, false
}

// harm returns size times the number of the slots from..to that would be over the limit with
// size bytes more. It is in the unit of a split's worth, from which it is subtracted.
func (g *planner) harm(from, to int32, size int64) float64 {
	if to < from {
		return 0
	}
	return float64(size) * float64(g.profile.above(int(from), int(to), g.limit-size, math.MaxInt64))
}

// closureOf returns the closure for recomputing value v in a slot, nil if there is none:
// an operand has moved behind the slot, or the closure is larger than maxClosure.
func (g *planner) closureOf(v, at int32) *closure {
	k := &closure{g: g, at: at}
	g.closures++
	g.seen[v] = g.closures
	k.compute(v)
	if k.failed {
		return nil
	}
	// bytes leaves out what other clones in the slot could share: a phase with both may take
	// less than their sum. settle has the exact figure once the split is made.
	k.bytes = g.closureBytes(k.again)
	// What the closure does to other slots than the last one comes from values that live on.
	// The longer ones add up: each slot has those that died before it, and the last one what
	// is recomputed, too. The value itself is live from there on in any case.
	slices.SortFunc(k.longer, func(a, b stretch) int { return int(a.from - b.from) })
	var together int64
	for n, s := range k.longer {
		together += g.values[s.value].size
		to := at - 1
		if n+1 < len(k.longer) {
			to = min(to, k.longer[n+1].from-1)
		}
		k.lost += g.harm(s.from, to, together)
	}
	k.lost += g.harm(at, at, k.room+k.bytes)
	return k
}

// closureBytes returns the most that computing a closure takes at once in the order of
// definitions, beside the value that it is for: its last. That value is not counted because
// its segment is in the profile from the slot on. Of a and s of the example it is 1 KiB: a.
func (g *planner) closureBytes(again []int32) int64 {
	v := again[len(again)-1]
	if len(again) == 1 {
		return g.values[v].inside
	}
	order := slices.Clone(again)
	slices.SortFunc(order, func(a, b int32) int { return int(g.values[a].definer - g.values[b].definer) })
	return g.sequence(order, func(id int32) bool { return id == v })
}
