package gap

// The closure of a split: what has to be computed again or live on for it.

import (
	"math"
	"slices"
)

// A stretch is that of a value which lives on, from where it died until the slot.
type stretch struct{ value, from int32 }

// A closure is what a split needs.
type closure struct {
	g       *planner
	at      int32
	seconds float64
	bytes   int64   // what the slot takes besides, while things are computed again
	lost    float64 // bytes times slots over the limit that it adds, all together
	again   []int32 // computed again, the value itself last
	longer  []stretch
	room    int64 // what the longer ones take at the slot
	failed  bool
}

// need makes the operand live at the slot.
func (k *closure) need(o int32) {
	if k.g.seen[o] == k.g.closures || k.failed {
		return
	}
	k.g.seen[o] = k.g.closures
	v := &k.g.values[o]
	if v.size == 0 {
		return // a parameter, or what is returned: there in any case
	}
	last, live := v.around(k.at)
	if live {
		return
	}
	if last < 0 {
		k.failed = true // it is not there before: it was moved behind
		return
	}
	from := v.segments[last].end() + 1
	if v.recomputable && k.g.profile.above(int(from), int(k.at), k.g.limit-v.size, 1) > 0 {
		k.compute(o)
		return
	}
	k.longer = append(k.longer, stretch{o, from})
	k.room += v.size
}

// compute makes a value anew at the slot.
func (k *closure) compute(o int32) {
	v := &k.g.values[o]
	for _, x := range v.operands {
		k.need(x)
	}
	k.again = append(k.again, o)
	k.seconds += v.seconds
	if len(k.again) > maxClosure {
		k.failed = true
	}
}

// around is the last segment that begins before a slot, and whether the value
// lives there.
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

// harm is the bytes times slots from..to at which size more would be over the
// limit.
func (g *planner) harm(from, to int32, size int64) float64 {
	if to < from {
		return 0
	}
	return float64(size) * float64(g.profile.above(int(from), int(to), g.limit-size, math.MaxInt64))
}

// closureOf is what splitting takes, nil where it cannot be.
func (g *planner) closureOf(v, at int32) *closure {
	k := &closure{g: g, at: at}
	g.closures++
	g.seen[v] = g.closures
	k.compute(v)
	if k.failed {
		return nil
	}
	k.bytes = g.closureBytes(k.again)
	// What lives on comes together, the more the nearer the slot, and there with what is
	// computed. The value's own bytes are there from the slot on in any case.
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
// definitions, beside the value that it is for: its last.
func (g *planner) closureBytes(again []int32) int64 {
	v := again[len(again)-1]
	if len(again) == 1 {
		return g.values[v].inside
	}
	order := slices.Clone(again)
	slices.SortFunc(order, func(a, b int32) int { return int(g.values[a].definer - g.values[b].definer) })
	return g.sequence(order, func(id int32) bool { return id == v })
}
