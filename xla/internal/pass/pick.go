package pass

// The choice of the value to free.
//
// At c of xla.go's walk the limit is 14 KiB and 16 KiB are live. Of the placed items x is a
// parameter and is denied; n is used by c itself; c is the current one. b frees 4 KiB, at a
// cost of 14 KiB divided by 4 KiB, that is 3. It is the only choice. A value of 1 MiB would
// cost 0, as the division leaves no remainder: XLA's costs are whole numbers, so that all
// values larger than the limit cost the same, and the first of them in the list is chosen.

import (
	"math"
	"slices"
)

// A choice is an item and what to do with it. item is none if nothing helps: then the sweep goes
// on above the limit, as XLA's does.
type choice struct {
	item    int32
	offload bool // move it to the host; otherwise recompute it
}

// pick chooses among the items that were placed, the current one excluded. The cost of an
// item is the limit divided by the bytes that it frees, and 0 if it only moves. The lowest
// cost wins. Of equal costs the first in the list wins, and offloading before recomputing.
//
// Only items with a live buffer can free anything. They are in t.lane, so that a large
// module is not searched from its beginning for each choice. Items that have none any more
// leave the lane here, and come back by enlist if a clone makes a dead operand live again.
func (t *tracker) pick(limit int64) choice {
	best := choice{item: none}
	least := int64(math.MaxInt64)
	kept := t.lane[:0]
	for _, k := range t.lane {
		if k != t.current && !slices.ContainsFunc(t.items[k].defined, t.live) {
			t.items[k].inLane = false
			continue
		}
		kept = append(kept, k)
		if k == t.current || t.items[k].denied {
			continue
		}
		if t.p.o.Host != nil {
			if cost, ok := t.offloadCost(k, limit); ok && cost < least {
				least, best = cost, choice{k, true}
			}
		}
		if !t.p.o.offloadOnly {
			if cost, ok := t.recomputeCost(k, limit); ok && cost < least {
				least, best = cost, choice{k, false}
			}
		}
	}
	t.lane = kept
	return best
}

// enlist puts a placed item into the lane, which is in the order of placement: of equal costs
// the first wins, so the order is part of the result.
func (t *tracker) enlist(k int32) {
	x := &t.items[k]
	if x.inLane || !x.placed {
		return
	}
	x.inLane = true
	at, _ := slices.BinarySearchFunc(t.lane, x.turn, func(j, turn int32) int { return int(t.items[j].turn) - int(turn) })
	t.lane = slices.Insert(t.lane, at, k)
}

// recomputeCost returns the cost of recomputing item k for its later users. ok is false if
// that is not possible, or frees nothing.
func (t *tracker) recomputeCost(k int32, limit int64) (cost int64, ok bool) {
	x := &t.items[k]
	var freed int64
	for _, id := range x.defined {
		b := &t.buffers[id]
		if b.indirect || b.liveOut || len(b.index) > 1 || t.inUse(id) {
			return 0, false
		}
		if t.live(id) {
			freed += b.cost
		}
	}
	// Whatever has to run after the original has to run after the clone, too. If it has run
	// already, there is no place for a clone.
	if slices.ContainsFunc(x.after, func(s int32) bool { return t.items[s].placed }) {
		return 0, false
	}
	// An operand that is dead now has to live until the clone reads it. If it takes as much as
	// the value frees, nothing is gained.
	for _, id := range x.used {
		if !t.live(id) {
			freed -= t.buffers[id].cost
		}
	}
	switch {
	case freed <= 0:
		return 0, false
	case !slices.ContainsFunc(x.i.Users, t.placed):
		return 0, true // nothing has used it so far: it only moves
	}
	return limit / freed, true
}
