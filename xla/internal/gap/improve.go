package gap

// The search for better plans: a large neighbourhood search (Shaw, 1998).
//
// A round in a plan with 400 clones: it picks one of them, and takes back the 20 splits
// nearest to it, so that memory is short there again. Random factors on the worth of splits
// then lead the greedy planner to other splits than before. If the result is no worse, the
// search goes on from it, and otherwise from the plan before.
//
// A plan that misses the limit of 6 GiB by 40 MiB in three slots, and takes 0.8 s, is worse
// than one that misses it by 40 MiB in two slots and takes 0.9 s: first the most bytes over
// the limit count, then the slots, then the time. A plan of the same quality is another place
// to go on from, but does not count as progress: after 3000 such rounds the search ends.
//
// The random numbers begin the same each time, so that a number of rounds gives one plan.
// With a time the number of rounds differs, and so may the plan.

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// A saved is a plan to which the planner can return: all that changes by splits, and what it
// is worth. What the planner found out about the computation (definers, operands, sizes)
// does not change and is not copied.
type saved struct {
	values  []value
	phases  map[int32]phase
	bytes   []int64
	splits  int
	quality quality
}

// copySegments copies the segments of all values, with two allocations. The lists cannot grow
// into each other: each has no more capacity than length, so that an append copies it.
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
	s := &saved{values: make([]value, len(g.values)), phases: make(map[int32]phase, len(g.phases)), splits: g.splits}
	s.bytes, s.quality = g.profile.bytes(), g.quality()
	copySegments(s.values, g.values)
	for at, p := range g.phases {
		s.phases[at] = phase{slices.Clone(p.values), p.bytes}
	}
	return s
}

// restore returns to a saved plan, which may be restored again.
func (g *planner) restore(s *saved) {
	copySegments(g.values, s.values)
	clear(g.phases)
	for at, p := range s.phases {
		g.phases[at] = &phase{slices.Clone(p.values), p.bytes}
	}
	g.profile.set(s.bytes)
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

// quality returns what the present plan is worth. A definition that moved is no clone, and its
// first segment no computation.
func (g *planner) quality() (q quality) {
	for _, bytes := range g.profile.bytes() {
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
// first. A zero time sets no end. The same number of rounds finds the same plan. It leaves the
// planner with the best plan that it knows, which is never worse than the one it began with.
func (g *planner) improve(rounds int, until time.Time) {
	if rounds == 0 {
		return
	}
	r := rand.New(rand.NewPCG(1, 1))
	best := g.save()
	g.bias = make([]float64, len(g.values))
	idle := 0
	for n := range rounds {
		late := !until.IsZero() && !time.Now().Before(until)
		hopeless := g.splits == 0 && n == patience || idle == mostIdle
		if late || hopeless || g.fault != nil {
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
	// The factors spread by 0 to some 3 times: without any the same splits would come back,
	// except that others compete for the freed slots now.
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
	// free changed the profile, but splits are scored by over.
	g.count()
	// A plan with far more splits than before is no better.
	g.enough = g.splits + 4*len(freed) + 50
	g.run()
}

// mostFreed is the most splits that a round takes back. More take longer and found no better
// plans for real modules.
const mostFreed = 50

// neighbourhood returns some of the clones: those nearest to one of them by their own place or
// by that of their definition, or any. Clones near each other compete for the same slots, so
// that another choice among them is what may be better; any clones now and then lead out of
// a plan that each neighbourhood by itself cannot improve.
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
	if n < 1 || v.spans(v.segments[n-1].start, v.segments[n].end()) {
		return // it went with another, or has to stay: the segment before is overwritten
	}
	// A move is taken back by putting the definition in its place first: then there is a
	// segment that the clone's readings can be joined to.
	if v.segments[n-1].first && v.moved {
		g.unmove(k.value)
	}
	g.merge(k.value, n)
}

// unmove puts a definition back in its place, with what it reads there: its operands have to
// live until its slot again, and they may have moved as well (reach).
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

// reach makes a value live on until a slot, from the last segment that begins before it, or
// from its definition, put back if that has moved.
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
	// The reading has no reader yet: unmove, which asks for it, adds its own.
	s := &v.segments[n]
	g.hold(v, s, -1)
	s.uses = append(s.uses, reading{slot: slot})
	g.hold(v, s, 1)
	g.settle(s.start)
}
