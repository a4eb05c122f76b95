// Package gap recomputes by splitting gaps (live-range splitting): our own planner, which
// looks at the whole schedule.
//
// A walk. The forward pass computes a = mul(x, w) and s = sin(a), and uses s soon. The
// backward pass uses s again, 500 instructions later. In between s lies there for nothing:
// that stretch is a gap. To split the gap is to drop s after its first use and to recompute
// it just before the second. For that, a must be live there. If it is, it is read. If it has
// died, it lives on until there, provided that no place on the way is over the limit.
// Otherwise a is recomputed, too, from x and w, and so on: that is the closure of the split.
//
// If s has 4 MiB and 300 instructions of its gap are over the limit, the split is worth
// 4 MiB times 300, less what its closure adds at such places, divided by the seconds of the
// closure. The best split goes first. The splits that it affects are scored again. At the
// end those that became superfluous are undone, the most expensive first.
//
// The same with numbers, which the comments of this package go on with and a test pins:
//
//	                                       slots  live at both    with the split
//	0  p = f32[256] parameter(0)           0  1    0     0         0     0
//	1  a = f32[256] multiply(p, p)         2  3    0     1 KiB     0     1 KiB
//	2  s = f32[256] sine(a)                4  5    1     2         1     2
//	3  b = f32[512] concatenate(s, s)      6  7    1     3         1     3
//	4  c = f32[256] slice(b)               8  9    3     4         2     3
//	5  d = f32[256] add(c, s)             10 11    2     3         3     3
//	6  r = f32[256] negate(d)             12 13    1     1         1     1
//
// p is the caller's and r is returned, so that neither counts. With a limit of 3 KiB slot 9,
// where c is computed, is 1 KiB over. s lives from slot 5 to slot 11 and is read in slots 7
// and 11. Its gap is slots 8 and 9. Dropped there, it is recomputed in slot 10, before d. a
// has died at slot 5 and cannot live on through slot 7, which is full, so it is recomputed,
// too: the closure is a and s, of 2 s if each takes 1 s. The split is worth 1 KiB times one
// slot over the limit, that is 512 bytes per second, and no other one is worth anything. The
// plan has a.remat and s.remat before d.
//
// Files: gap.go plans for a module and what it calls, planner.go for one computation.
// closure.go finds what a split needs, segments.go changes a plan, profile.go is memory
// over time, improve.go searches for better plans, build.go writes the plan into the module,
// and rules.go says what may be recomputed.
package gap

import (
	"container/heap"
	"slices"

	"gpumem/xla/internal/hlo"
)

// Time is counted in slots, two for each instruction in the order of the list: in slot 2p
// values are recomputed before instruction p, and 2p+1 is the instruction itself. So a slot
// shifted right by one is the instruction's place, and a slot is even if clones are computed
// in it. All that is recomputed for one instruction shares its even slot: see phase.

// A reading is a slot in which a value is read, and by how many: by the instruction if the
// slot is odd, and by clones if it is even. n is 0 where a value only lives on for a closure
// whose readers are entered later (addUse counts them).
type reading struct {
	slot int32
	n    int32
}

// A segment is a stretch of a value's life: from its definition, or from where a clone
// recomputes it, to the last use. The split of the example makes of s, which had one segment
// from slot 5 with readings in 7 and 11, two: 5 to 7, and 10 to 11.
type segment struct {
	start int32
	uses  []reading // by slot
	first bool      // it begins with the value's definition
}

// end returns the last slot in which the segment lives: its last reading, or its own slot if
// nothing reads it.
func (s *segment) end() int32 {
	if len(s.uses) == 0 {
		return s.start
	}
	return s.uses[len(s.uses)-1].slot
}

// A value is a buffer with its plan: when it is live, and where it is recomputed. Its segments
// are in the order of their starts, and no two of them overlap. The first one is the
// definition and stays in the list when nothing reads it any more: then moved is set, it
// takes no memory, and build leaves the instruction out.
type value struct {
	size         int64
	recomputable bool
	definer      int32   // place of the instruction
	operands     []int32 // buffers that computing it reads
	seconds      float64
	inside       int64 // bytes that the definer's callees take meanwhile
	segments     []segment
	moved        bool // nothing reads the first definition any more: it goes
	// until is the last slot in which what is there can be read, and last the last in which it
	// can be recomputed, as what it reads is overwritten then. direct are the operands that it
	// reads themselves, not by way of a loop's result or the like. See deadline.go.
	until, last int32
	direct      []int32
	version     int // counts the changes of segments
}

// maxClosure is how many values a split may recompute. More was never worth it in the real
// modules of docs/remat.md.
const maxClosure = 200

// A planner chooses recomputations for one computation. Between changes, the profile is the
// sum of the segments, the phases and what the instructions call, and is counted.
//
// What holds between changes, and what a change must keep: readings of a segment ascend and
// lie within it; a clone has at least one reading; each operand of size above 0 of a clone
// has a reading in the clone's slot; a private segment (see there) is in its phase and not in
// the profile by itself. hold takes a segment out of the profile before it is changed and
// puts it in afterwards, and settle does so for a phase: a change that leaves one of them
// out makes the profile drift from the plan, and the plan miss its limit when it is measured.
type planner struct {
	c       *hlo.Computation
	limit   int64
	values  []value
	called  []int64 // by instruction: the bytes that its callees take
	profile profile
	phases  map[int32]*phase
	changed []int32 // values whose segments the present split changed
	splits  int
	still   bool // tests: definitions stay where they are
	// By value: the last closure that looked at it, numbered by closures, and the readers
	// that are left in sequence.
	seen     []int
	closures int
	left     []int32
	// By value: a factor on the worth of splits, 0 to allow none; nil for 1 everywhere.
	bias   []float64
	enough int // stop at this number of splits; 0 for no bound
	// fault is a fault of the planner: the plan must not be used.
	fault error
}

// touch records that the segments of a value change. Splits of it that stand in the queue are
// out of date from here on: run drops them by the version and pushes new ones for changed.
func (g *planner) touch(id int32) {
	g.values[id].version++
	g.changed = append(g.changed, id)
}

// A phase is the values that are recomputed in one slot, in the order of their definitions.
// Those that live on are in the profile by their segments. Those that are only read in the
// slot come and go within it: the profile has the most that all of it takes at once.
//
// In the example the phase of slot 10 is a and s. a.remat is read by s.remat alone and gone
// after it; s.remat lives on to slot 11 and is in the profile as a segment. While sine runs
// both are there, 2 KiB, of which 1 KiB is the segment: the phase adds 1 KiB to slot 10, for
// 3 KiB with c.
type phase struct {
	values []int32
	bytes  int64 // its part of the profile
}

// private reports whether a segment is a clone that is read only where it is computed: a.remat
// of the example. Such a segment is part of a phase, and hold leaves it alone.
func (s *segment) private() bool { return !s.first && s.end() == s.start }

// hold adds the bytes of a segment to the profile, or takes them out (sign -1).
func (g *planner) hold(v *value, s *segment, sign int64) {
	if !s.private() && !(s.first && v.moved) {
		g.profile.add(int(s.start), int(s.end()), sign*v.size)
	}
}

// settle updates the bytes of a phase in the profile after a change to it: one of its values
// came or went, or began or ceased to live beyond the slot.
func (g *planner) settle(at int32) {
	p := g.phases[at]
	if p == nil {
		return
	}
	now := g.sequence(p.values, func(id int32) bool { return g.values[id].lasts(at) })
	g.profile.add(int(at), int(at), now-p.bytes)
	p.bytes = now
}

// sequence returns the most that computing values one after the other takes at once, beside
// those that stay. order is by definers. Values that do not stay die with their last reader
// among the others, and at once if there is none.
//
// Of a and s of the example, where s stays: after a 1 KiB is live, after s 2 KiB, the most;
// then a dies. s is counted elsewhere, so 1 KiB is returned. What the callees of an
// instruction take (inside) counts while it runs. The result is never negative.
func (g *planner) sequence(order []int32, stays func(id int32) bool) int64 {
	// Twice the readers, and one for a value that is computed here and does not stay.
	for _, id := range order {
		for _, o := range g.values[id].operands {
			g.left[o] += 2
		}
	}
	for _, id := range order {
		if !stays(id) {
			g.left[id]++
		}
	}
	var staying, now, most int64
	for _, id := range order {
		v := &g.values[id]
		now += v.size
		most = max(most, now+v.inside)
		switch {
		case g.left[id]&1 == 0:
			staying += v.size
		case g.left[id] == 1:
			now -= v.size
		}
		for _, o := range v.operands {
			if g.left[o] -= 2; g.left[o] == 1 {
				now -= g.values[o].size
			}
		}
	}
	for _, id := range order {
		g.left[id] = 0
	}
	return max(0, most-staying)
}

// starting returns the number of the clone that begins in a slot, or -1.
func (v *value) starting(at int32) int {
	return slices.IndexFunc(v.segments, func(s segment) bool { return s.start == at && !s.first })
}

// lasts reports whether the clone that begins in a slot is read after it: then it is in the
// profile as a segment, and its phase leaves it out.
func (v *value) lasts(at int32) bool {
	n := v.starting(at)
	return n >= 0 && !v.segments[n].private()
}

// join puts a clone into the phase of its slot, in the order of definitions: that is the order
// in which build computes them, and the one that sequence measures.
func (g *planner) join(id, at int32) {
	p := g.phases[at]
	if p == nil {
		p = new(phase)
		g.phases[at] = p
	}
	n, _ := slices.BinarySearchFunc(p.values, g.values[id].definer, func(x, definer int32) int { return int(g.values[x].definer - definer) })
	p.values = slices.Insert(p.values, n, id)
}

// leave takes a clone out of the phase of its slot. The phase stays, empty if it was the last.
func (g *planner) leave(id, at int32) {
	if p := g.phases[at]; p != nil {
		if n := slices.Index(p.values, id); n >= 0 {
			p.values = slices.Delete(p.values, n, n+1)
		}
	}
}

// newPlanner returns a planner that has split nothing.
//
// Not recomputable, besides what rules.go forbids: values that are returned or that reach a
// user by way of more than bitcasts, since a reader could not be pointed at the clone; parts
// of tuples; and what has control dependencies, which a clone would have to take over.
func (p *modulePlan) newPlanner(c *hlo.Computation, limit int64) (*planner, error) {
	b, err := p.meter.Buffers(c)
	if err != nil {
		return nil, err
	}
	g := &planner{c: c, limit: limit, called: make([]int64, len(c.Instructions)), phases: map[int32]*phase{}}
	g.values, g.seen, g.left = make([]value, len(b.List)), make([]int, len(b.List)), make([]int32, len(b.List))
	// What waits for others, or is waited for, by control dependencies stays where it is.
	pinned := make(map[*hlo.Instruction]bool)
	for _, i := range c.Instructions {
		for _, p := range i.After {
			pinned[p], pinned[i] = true, true
		}
	}
	recomputable := make([]bool, len(c.Instructions))
	for n, i := range c.Instructions {
		g.called[n] = p.called(i)
		recomputable[n] = len(b.Defined[n]) == 1 && i.Shape.IsArray() && !pinned[i] && p.rules.allow(i)
	}
	for id := range b.List {
		x, v := &b.List[id], &g.values[id]
		n := x.Definer
		v.size, v.definer = x.Temp, n
		v.recomputable = recomputable[n] && !x.LiveOut && !x.Indirect && v.size > 0 && len(x.Index) == 0
		if v.recomputable {
			v.operands, v.seconds, v.inside = b.Used[n], p.o.Seconds(c.Instructions[n]), g.called[n]
		}
		v.segments = []segment{{start: 2*n + 1, first: true}}
	}
	if p.deadlines == nil {
		p.deadlines = newDeadlines(c.Module)
	}
	p.deadlines.set(g, b)
	for n := range c.Instructions {
		for _, id := range b.Used[n] {
			s := &g.values[id].segments[0]
			s.uses = append(s.uses, reading{int32(2*n + 1), 1})
		}
	}
	// The profile begins with one segment for each value, and what the instructions call, as
	// the meter counts them: its most is the peak.
	g.profile = newProfile(2 * len(c.Instructions))
	change := make([]int64, 2*len(c.Instructions)+1)
	for id := range g.values {
		v := &g.values[id]
		s := &v.segments[0]
		change[s.start] += v.size
		change[s.end()+1] -= v.size
	}
	for n, bytes := range g.called {
		change[2*n+1] += bytes
		change[2*n+2] -= bytes
	}
	for slot := 1; slot < len(change); slot++ {
		change[slot] += change[slot-1]
	}
	g.profile.set(change)
	g.count()
	return g, p.err
}

// count counts the slots over the limit, so that overIn knows them. In the example it is
// slot 9 alone.
func (g *planner) count() { g.profile.count(g.limit) }

// overIn returns how many slots from..to, both included, are over the limit, as of the last
// count.
func (g *planner) overIn(from, to int32) int64 { return g.profile.overIn(int(from), int(to), g.limit) }

// A split is a gap to be split: the value is recomputed before a use of its segment, for that
// use and those after it. use is the number of a reading, so that a segment with n readings
// has n splits, the first of which is possible for a definition only.
type split struct {
	value, segment, use int32
	score               float64
	version             int // of the value's segments when it was found
}

// before returns the slot in which a value is recomputed for a use: the even slot of the
// instruction that reads it, or in which the clone that reads it is computed.
func before(slot int32) int32 { return slot &^ 1 }

// gap returns the slots from..to that a split frees, and the slot at in which the value is
// recomputed: before the use, or earlier if what it reads is overwritten by then. ok is false if
// there is no gap. Before its first use (u is 0) a definition can
// only move: nothing is left of it in its old place, so that the slot of the definition is
// freed as well.
func (g *planner) gap(v, s, u int32) (from, to, at int32, ok bool) {
	x := &g.values[v]
	seg := &x.segments[s]
	at = before(min(seg.uses[u].slot, x.last))
	if u > 0 {
		from = seg.uses[u-1].slot + 1
	} else {
		if !seg.first || g.still {
			return 0, 0, 0, false // a clone stands before its first use already
		}
		from = seg.start
	}
	to = at - 1
	// Right after its definition it would be recomputed at the same place.
	return from, to, at, to >= from && at > seg.start+1
}

// free is a price in seconds that is added to all: splits that cost nothing are ordered by
// their worth.
const free = 1e-12

// score returns what a split is worth per second, and its closure. It is 0 if the split is not
// possible, or worth nothing. The worth is bytes times slots that are over the limit, without
// what the closure adds to such slots: memory that is freed below the limit is no use.
func (g *planner) score(v, s, u int32) (float64, *closure) {
	from, to, at, ok := g.gap(v, s, u)
	if !ok || g.bias != nil && g.bias[v] == 0 {
		return 0, nil
	}
	slots := g.overIn(from, to)
	if slots == 0 {
		return 0, nil
	}
	k := g.closureOf(v, at)
	if k == nil {
		return 0, nil
	}
	worth := float64(g.values[v].size)*float64(slots) - k.lost
	if worth <= 0 {
		return 0, nil
	}
	price := k.seconds
	if u == 0 && g.values[v].segments[s].first {
		price -= g.values[v].seconds // a move: the first definition goes
	}
	// Only in a search: see improve.go.
	if g.bias != nil {
		return worth / (price + free) * g.bias[v], k
	}
	return worth / (price + free), k
}

// hope returns an upper bound on the score. In a search it is found without the closure, which
// is the expensive part. A bound is enough for the queue: run scores what comes to its top,
// and puts it back if the true score is lower than the next hope.
func (g *planner) hope(v, s, u int32) float64 {
	if g.bias == nil {
		score, _ := g.score(v, s, u)
		return score
	}
	from, to, _, ok := g.gap(v, s, u)
	if !ok {
		return 0
	}
	worth := float64(g.values[v].size) * float64(g.overIn(from, to)) * g.bias[v]
	if u == 0 && g.values[v].segments[s].first {
		return worth / free
	}
	return worth / (g.values[v].seconds + free)
}

// A split makes the stretch over the limit a little shorter, and with it the score of all
// others. In a large module of equal layers all would be scored again for each, and time would
// grow as the square. So after some of them, one with almost the score of the next is made.
const (
	rescored = 64
	almost   = .99
)

// A splitQueue is a heap of splits, the best first.
type splitQueue []split

func (q splitQueue) Len() int           { return len(q) }
func (q splitQueue) Less(a, b int) bool { return q[a].score > q[b].score }
func (q splitQueue) Swap(a, b int)      { q[a], q[b] = q[b], q[a] }
func (q *splitQueue) Push(x any)        { *q = append(*q, x.(split)) }
func (q *splitQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// run splits gaps until nothing is over the limit, or nothing helps. A pass ends when the
// queue is empty. Splits that were worth nothing may be worth something after others, so
// there are up to four passes, as long as each still splits.
func (g *planner) run() {
	var q splitQueue
	push := func(id int32) {
		v := &g.values[id]
		if !v.recomputable {
			return
		}
		for s := range v.segments {
			if v.segments[s].first && v.moved {
				continue
			}
			for u := range v.segments[s].uses {
				if score := g.hope(id, int32(s), int32(u)); score > 0 {
					heap.Push(&q, split{id, int32(s), int32(u), score, v.version})
				}
			}
		}
	}
	for range 4 {
		before := g.splits
		q = q[:0]
		for id := range g.values {
			push(int32(id))
		}
		waited := 0 // splits that went back since the last one
		for len(q) > 0 && g.profile.total() > 0 && (g.enough == 0 || g.splits < g.enough) {
			top := heap.Pop(&q).(split)
			if top.version != g.values[top.value].version {
				continue // its segments have changed, and what is left of it was pushed again
			}
			score, k := g.score(top.value, top.segment, top.use)
			if score <= 0 {
				continue
			}
			// The score may have fallen since it was pushed, by splits of other values. It
			// goes back unless it still is the best, so the queue need not be kept up to date.
			least := 1.0
			if waited >= rescored {
				least = almost
			}
			if len(q) > 0 && score < least*q[0].score {
				waited++
				top.score = score
				heap.Push(&q, top)
				continue
			}
			waited = 0
			g.changed = g.changed[:0]
			g.apply(top, k)
			slices.Sort(g.changed)
			for _, id := range slices.Compact(g.changed) {
				push(id)
			}
		}
		if g.profile.total() == 0 || g.splits == before {
			break
		}
	}
	g.undo()
}

// apply makes a split with its closure. The order matters: segments change first, then
// readings, and phases are settled last, when all segments that begin in their slots are
// known. The closure must be that of the present plan: run scores right before.
func (g *planner) apply(t split, k *closure) {
	v := &g.values[t.value]
	seg := &v.segments[t.segment]
	_, _, at, _ := g.gap(t.value, t.segment, t.use)
	g.splits++
	g.touch(t.value)
	touched := []int32{at}
	if !seg.first {
		touched = append(touched, seg.start)
	}
	// The segment is cut in two: what is read before the gap, and a clone for the rest.
	rest := segment{start: at, uses: slices.Clone(seg.uses[t.use:])}
	g.hold(v, seg, -1)
	seg.uses = seg.uses[:t.use:t.use]
	if t.use == 0 {
		// It is a move: the definition goes, with what it reads and calls.
		v.moved = true
		g.profile.add(int(2*v.definer+1), int(2*v.definer+1), -v.inside)
	}
	g.hold(v, seg, 1)
	v.segments = slices.Insert(v.segments, int(t.segment)+1, rest)
	g.hold(v, &rest, 1)
	g.join(t.value, at)
	// What lives on reaches the slot by a reading without readers, which are added below.
	for _, l := range k.longer {
		o := l.value
		x := &g.values[o]
		last, _ := x.around(at)
		s := &x.segments[last]
		g.hold(x, s, -1)
		s.uses = append(s.uses, reading{at, 0})
		g.hold(x, s, 1)
		touched = append(touched, s.start)
		g.touch(o)
	}
	// The rest of the closure are clones that begin in the slot, so far without readings.
	for _, o := range k.again[:len(k.again)-1] {
		g.values[o].insert(segment{start: at})
		g.join(o, at)
		g.touch(o)
	}
	// What is recomputed reads its operands in the slot.
	for _, o := range k.again {
		for _, r := range g.values[o].operands {
			if g.values[r].size > 0 {
				g.addUse(r, at)
			}
		}
	}
	// A definition that moved reads nothing in its old place. Its operands may die earlier.
	if t.use == 0 {
		for _, o := range v.operands {
			g.dropUse(o, 2*v.definer+1)
		}
	}
	for _, slot := range touched {
		g.settle(slot)
	}
	g.count()
}
