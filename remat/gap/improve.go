package gap

// The search for better plans: a large neighbourhood search (Shaw, 1998).
//
// A round in a plan with 400 clones: it picks one of them, and takes back the 20 splits
// nearest to it, so that memory is short there again. Random factors on the worth of splits
// then lead the greedy planner to other splits than before. If the result is no worse, the
// search goes on from it, and otherwise from the plan before.

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// A saved is a plan to which the planner can return.
type saved struct {
	values  []value
	phases  map[int32]phase
	bytes   []int64
	splits  int
	quality quality
}

// copySegments copies the segments of all values, with two allocations.
func copySegments(to, from []value) {
	var segments, uses int
	for id := range from {
		segments += len(from[id].segments)
		for k := range from[id].segments {
			uses += len(from[id].segments[k].uses)
		}
	}
	allSegments, allUses := make([]segment, 0, segments), make([]reading, 0, uses)
	for id := range from {
		begin := len(allSegments)
		for _, s := range from[id].segments {
			u := len(allUses)
			allUses = append(allUses, s.uses...)
			s.uses = allUses[u:len(allUses):len(allUses)]
			allSegments = append(allSegments, s)
		}
		to[id].segments = allSegments[begin:len(allSegments):len(allSegments)]
		to[id].moved = from[id].moved
	}
}

// save returns a copy of the plan.
func (g *planner) save() *saved {
	s := &saved{values: make([]value, len(g.values)), phases: make(map[int32]phase, len(g.phases)), bytes: slices.Clone(g.profile.bytes), splits: g.splits, quality: g.quality()}
	copySegments(s.values, g.values)
	for at, p := range g.phases {
		s.phases[at] = phase{slices.Clone(p.values), p.bytes}
	}
	return s
}

// restore returns to a saved plan.
func (g *planner) restore(s *saved) {
	copySegments(g.values, s.values)
	clear(g.phases)
	for at, p := range s.phases {
		g.phases[at] = &phase{slices.Clone(p.values), p.bytes}
	}
	copy(g.profile.bytes, s.bytes)
	for b := range g.profile.top {
		g.profile.summarise(b)
	}
	g.splits = s.splits
	g.count()
}

// A quality is how good a plan is: the most bytes over the limit, the number of slots that are
// as far over it, and the seconds of all clones.
type quality struct {
	beyond  int64
	slots   int
	seconds float64
}

func (g *planner) quality() (q quality) {
	for _, bytes := range g.profile.bytes {
		switch over := bytes - g.limit; {
		case over <= 0 || over < q.beyond:
		case over > q.beyond:
			q.beyond, q.slots = over, 1
		default:
			q.slots++
		}
	}
	for id := range g.values {
		v := &g.values[id]
		n := len(v.segments) - 1
		if v.moved {
			n--
		}
		q.seconds += float64(n) * v.seconds
	}
	return q
}

// noWorse reports whether q is as good as r.
func (q quality) noWorse(r quality) bool {
	switch {
	case q.beyond != r.beyond:
		return q.beyond < r.beyond
	case q.slots != r.slots:
		return q.slots < r.slots
	}
	return q.seconds <= r.seconds
}

// improve searches for a better plan, for a number of rounds or until a time, whichever is
// first. A zero time sets no end. The same number of rounds finds the same plan.
func (g *planner) improve(rounds int, until time.Time) {
	if rounds == 0 {
		return
	}
	r := rand.New(rand.NewPCG(1, 1))
	best := g.save()
	g.bias = make([]float64, len(g.values))
	idle := 0
	for n := range rounds {
		if !until.IsZero() && !time.Now().Before(until) || g.splits == 0 && n == patience || idle == mostIdle || g.fault != nil {
			break
		}
		g.round(r)
		idle++
		// The search also goes on from a plan that is as good: it is another place.
		if q := g.quality(); q.noWorse(best.quality) {
			if q != best.quality {
				idle = 0
			}
			best = g.save()
		} else {
			g.restore(best)
		}
	}
	g.bias, g.enough = nil, 0
}

// mostIdle is how many rounds in a row may find nothing. For small modules that is a part of
// a second, for large ones more than the usual Options.Time.
const mostIdle = 3000

// patience is how many rounds to try if nothing could be split at all.
const patience = 20

// round takes back some splits and makes others.
func (g *planner) round(r *rand.Rand) {
	freed := g.neighbourhood(r)
	wide := []float64{0, .2, .5, 1}[r.IntN(4)]
	for id := range g.bias {
		g.bias[id] = math.Exp(wide * r.NormFloat64())
	}
	if r.IntN(2) == 0 { // some of those taken back are not split again
		for _, k := range freed {
			if r.IntN(4) == 0 {
				g.bias[k.value] = 0
			}
		}
	}
	for _, k := range freed {
		g.free(k)
	}
	g.count()
	// A plan with far more splits than before is no better.
	g.enough = g.splits + 4*len(freed) + 50
	g.run()
}

// mostFreed is the most splits that a round takes back. More take longer and found no better
// plans for real modules.
const mostFreed = 50

// neighbourhood returns some of the clones: those nearest to one of them by their own place or
// by that of their definition, or any.
func (g *planner) neighbourhood(r *rand.Rand) []copyOf {
	all := g.clones()
	if len(all) == 0 {
		return nil
	}
	// Small numbers are as likely as large ones.
	n := int(math.Ceil(math.Pow(float64(min(len(all), mostFreed)), r.Float64())))
	centre := all[r.IntN(len(all))]
	var far func(copyOf) int32
	switch r.IntN(3) {
	case 0:
		far = func(k copyOf) int32 { return k.start - centre.start }
	case 1:
		far = func(k copyOf) int32 { return g.values[k.value].definer - g.values[centre.value].definer }
	default:
		r.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
		return all[:n]
	}
	slices.SortStableFunc(all, func(a, b copyOf) int { return cmp.Compare(max(far(a), -far(a)), max(far(b), -far(b))) })
	return all[:n]
}

// free removes a clone: the value lives on until there from the segment before.
func (g *planner) free(k copyOf) {
	v := &g.values[k.value]
	n := v.starting(k.start)
	if n < 1 {
		return // it went with another
	}
	if v.segments[n-1].first && v.moved {
		g.unmove(k.value)
	}
	g.merge(k.value, n)
}

// unmove puts a definition back in its place.
func (g *planner) unmove(id int32) {
	v := &g.values[id]
	v.moved = false
	g.hold(v, &v.segments[0], 1)
	slot := 2*v.definer + 1
	g.profile.add(int(slot), int(slot), v.inside)
	for _, o := range v.operands {
		if g.values[o].size > 0 {
			g.reach(o, slot)
			g.addUse(o, slot)
		}
	}
}

// reach makes a value live on until a slot.
func (g *planner) reach(id, slot int32) {
	v := &g.values[id]
	n, live := v.around(slot)
	if live {
		return
	}
	if n < 0 {
		g.unmove(id)
		n = 0
	}
	s := &v.segments[n]
	g.hold(v, s, -1)
	s.uses = append(s.uses, reading{slot: slot})
	g.hold(v, s, 1)
	g.settle(s.start)
}
