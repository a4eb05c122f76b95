package pack

// Backtracking search for offsets in a heap of a given size. See search.go for an
// overview.
//
// The example of pack.go, with a goal of 6 bytes. There are two sections: at step 2 d, a and c
// live, which take 6 bytes, and at step 5 a and b, which take 5. Say that the ranks are a, c,
// d, b. All may lie at 0 at first.
//
//	put a at 0   lifts those that live with it, c, d and b, to 2
//	put c at 2   lifts d to 4; b does not live with it and stays at 2
//	put b at 2   the lowest place of those that are left
//	put d at 4   ends at 6: all are placed
//
// With a goal of 5 the first section is hopeless before anything is placed: 6 bytes of
// groups, whose lowest place is 0, end at 6 or above. The try ends there.
//
// In general a section fails when the lowest place that one of its groups may get, plus all
// of them, is beyond the goal. Then something below has to lie elsewhere. The reasons are
// those groups that the section stands on. A group that is not among them is not the cause,
// so that another place or turn for it would fail in the same way: the search goes back at
// once to the last group that is (conflict-directed backjumping).

import (
	"math"
	"math/rand/v2"
	"slices"
)

// What a search may hold: groups, and pairs of them or of them and a section. Pairs take 4 bytes
// each, twice over for conflicts, so that a search stays below some 200 MB.
const (
	maxGroups = 1 << 14
	maxPairs  = 1 << 24
)

// A search puts groups down one by one, none below the one before. Any packing
// can be reached so: push everything down as far as it goes, then sort it by
// place. What it skips when it turns round may have led to one, though. Places
// and sizes are in steps of the alignment.
//
// Between calls of next these agree: left is the sum of the sizes of a section's groups that
// are not placed, floor the least of their places, and at of a group that is not placed the
// end of the highest placed group that lives with it, which is on, or 0 and -1. put changes
// them and notes what was before; takeBack undoes it in the reverse order.
type search struct {
	p      *packer
	work   int // steps left
	random *rand.Rand
	goal   int64 // how high the heap may be
	nodes  int   // how many more may be put down in this try
	spare  int   // steps to leave for other tries

	// Of a group.
	first     []int32 // its first block
	size      []int64
	crowd     []int64   // the most that lives at once with it
	failed    []float64 // how often it did not fit, of late
	rank      []int32   // which comes first at the same place
	at        []int64   // the lowest place it may get, or where it is
	on        []int32   // the group below it that says so, or -1
	placed    []bool
	sections  [][]int32
	conflicts [][]int32

	// Of a section: a time at which some group lives that does not live at the next
	// one, and at which all live that did since the section before. Those of the example are
	// step 2, with d, a and c, and step 5, with a and b.
	members [][]int32
	left    []int64 // what its groups take that are not put down
	floor   []int64 // the lowest place that one of those may get
	dirty   []bool

	// What to put back when turning round.
	raised  []raise
	floors  []floor
	reasons []set // by depth: why nothing fits
}

type (
	raise struct {
		group, on int32
		at        int64
	}
	floor struct {
		section int32
		at      int64
	}
	// A set of groups.
	set []uint64
)

func (s set) has(u int32) bool { return s[u>>6]>>(u&63)&1 == 1 }
func (s set) add(u int32)      { s[u>>6] |= 1 << (u & 63) }
func (s set) all(of set) {
	for k := range s {
		s[k] |= of[k]
	}
}

// newSearch is nil if there is nothing to search, or too much. Groups of 0 bytes take no part:
// they may lie anywhere. The random numbers begin the same each time.
func newSearch(p *packer, work int) *search {
	s := &search{p: p, work: work, random: rand.New(rand.NewPCG(1, 2))}
	for k, g := range p.groups {
		if g == nil || p.bytes(g) == 0 {
			continue
		}
		s.first = append(s.first, int32(k))
		s.size = append(s.size, int64((p.bytes(g)+p.alignment-1)/p.alignment))
	}
	n := len(s.size)
	if n == 0 || n > maxGroups {
		return nil
	}
	s.crowd, s.failed = make([]int64, n), make([]float64, n)
	s.rank, s.at, s.on, s.placed = make([]int32, n), make([]int64, n), make([]int32, n), make([]bool, n)
	s.sections, s.conflicts = make([][]int32, n), make([][]int32, n)
	if !s.findSections() || !s.findConflicts() {
		return nil
	}
	s.left, s.floor, s.dirty = make([]int64, len(s.members)), make([]int64, len(s.members)), make([]bool, len(s.members))
	s.clear()
	for u := range s.crowd {
		for _, t := range s.sections[u] {
			s.crowd[u] = max(s.crowd[u], s.left[t])
		}
	}
	for range n + 1 {
		s.reasons = append(s.reasons, make(set, (n+63)/64))
	}
	return s
}

// findSections goes through the times and makes a section of the groups that live whenever
// one of them ends and another has begun since the section before: all that live at another
// time live together in one of the sections, too, so that checking these is enough. It
// reports whether they are not too many.
func (s *search) findSections() bool {
	p := s.p
	starts, ends := make([][]int32, p.times), make([][]int32, p.times)
	for u, k := range s.first {
		for _, b := range p.groups[k] {
			starts[p.start[b]] = append(starts[p.start[b]], int32(u))
			ends[p.end[b]] = append(ends[p.end[b]], int32(u))
		}
	}
	blocks := make([]int, len(s.size)) // of a group, that live
	var live []int32
	pairs, grown := 0, false
	for t := range p.times {
		for _, u := range starts[t] {
			if blocks[u]++; blocks[u] == 1 {
				live = append(live, u)
				grown = true
			}
		}
		// As long as nothing ends, the next time has all groups of this one, and maybe more.
		if len(ends[t]) == 0 {
			continue
		}
		if grown {
			if pairs += len(live); pairs > maxPairs {
				return false
			}
			for _, u := range live {
				s.sections[u] = append(s.sections[u], int32(len(s.members)))
			}
			s.members = append(s.members, slices.Clone(live))
			grown = false
		}
		for _, u := range ends[t] {
			blocks[u]--
		}
		live = slices.DeleteFunc(live, func(u int32) bool { return blocks[u] == 0 })
	}
	return true
}

// findConflicts finds which groups share a section. A pair is noted for both in the first
// section in which one of them is new.
func (s *search) findConflicts() bool {
	last := make([]int, len(s.size)) // by group: 1 + the last section that it was in
	pairs := 0
	for t, m := range s.members {
		for _, u := range m {
			if t > 0 && last[u] == t {
				continue
			}
			if pairs += 2 * len(m); pairs > 2*maxPairs {
				return false
			}
			for _, v := range m {
				if v != u {
					s.conflicts[u] = append(s.conflicts[u], v)
					s.conflicts[v] = append(s.conflicts[v], u)
				}
			}
		}
		for _, u := range m {
			last[u] = t + 1
		}
	}
	seen := make([]int32, len(s.size)) // by group: 1 + the last that has it
	for u, list := range s.conflicts {
		s.conflicts[u] = slices.DeleteFunc(list, func(v int32) bool {
			again := seen[v] == int32(u)+1
			seen[v] = int32(u) + 1
			return again
		})
	}
	return true
}

// clear takes everything out of the heap. failed is kept: it is what a try has learned.
func (s *search) clear() {
	clear(s.at)
	clear(s.placed)
	clear(s.floor)
	for u := range s.on {
		s.on[u] = -1
	}
	for t, m := range s.members {
		s.left[t] = 0
		for _, u := range m {
			s.left[t] += s.size[u]
		}
	}
	s.raised, s.floors = s.raised[:0], s.floors[:0]
}

// place reports whether it found places for all groups in a heap of goal steps. It
// gives up after most steps of work, or earlier: false is no proof that there are none.
func (s *search) place(goal int64, most int) bool {
	s.clear()
	// Beyond this the next order is the better bet: sixteen times as many groups as there are
	// were put down, and most of them taken back again.
	s.goal, s.nodes, s.spare = goal, 16*len(s.size), s.work-most
	return s.next(0, -1)
}

// next places what is left, from the group placed last upwards. If it cannot,
// reasons at depth are groups of which one has to lie elsewhere. It calls itself once for
// each group, so that its depth is at most maxGroups.
func (s *search) next(depth int, last int32) bool {
	if depth == len(s.size) {
		return true
	}
	why := s.reasons[depth]
	clear(why)
	from, rank := int64(0), int32(-1)
	if last >= 0 {
		from, rank = s.at[last], s.rank[last]
	}
	// Work is counted in elements that are looked at, so that it is the same on all machines.
	s.nodes--
	s.work -= len(s.members) + len(why)
	for t, floor := range s.floor {
		if s.left[t] > 0 && max(floor, from)+s.left[t] > s.goal {
			s.blame(why, int32(t), last, from)
			return false
		}
	}
	// Without a candidate, though groups are left, each would fit below the place of another:
	// an order that is reached elsewhere. Which groups are the reason is not known, so that
	// all are, and the search goes back by one.
	u := s.candidate(from, from, rank, nil)
	if u < 0 {
		for k := range why {
			why[k] = math.MaxUint64
		}
		return false
	}
	// The next one to try is one that is itself among the reasons why the one before failed:
	// to put another first would change nothing about those.
	for ; u >= 0; u = s.candidate(from, s.at[u], s.rank[u], why) {
		raised, floors := len(s.raised), len(s.floors)
		s.put(u)
		if s.next(depth+1, u) {
			return true
		}
		s.takeBack(u, raised, floors)
		if s.work <= s.spare || s.nodes <= 0 {
			return false
		}
		below := s.reasons[depth+1]
		if !below.has(u) {
			// It fails wherever this one lies, and so does any other in its place.
			copy(why, below)
			return false
		}
		why.all(below)
	}
	return false
}

// candidate is the group that may come next: the lowest one, then that of the first
// rank, after a place and rank, and among those of the set if there is one; -1: none.
// One above which another would fit below its own place is none: the other comes
// first. No group may lie below from.
func (s *search) candidate(from, place int64, rank int32, among set) int32 {
	end := int64(math.MaxInt64)
	best := int32(-1)
	for u, at := range s.at {
		if s.placed[u] {
			continue
		}
		end = min(end, max(at, from)+s.size[u])
		if at < place || at == place && s.rank[u] <= rank || among != nil && !among.has(int32(u)) {
			continue
		}
		if best < 0 || at < s.at[best] || at == s.at[best] && s.rank[u] < s.rank[best] {
			best = int32(u)
		}
	}
	s.work -= len(s.at)
	// end is the lowest end that any group could have if it came next. What lies at end or
	// above leaves room below it for that group.
	if best >= 0 && s.at[best] >= end {
		return -1
	}
	return best
}

// put puts a group down, and lifts those that have to lie above it. A section's floor is only
// computed anew if the group that had the lowest place has left or was lifted (touch).
func (s *search) put(u int32) {
	s.placed[u] = true
	floors := len(s.floors)
	touch := func(v int32, at int64) {
		for _, t := range s.sections[v] {
			if s.floor[t] == at && !s.dirty[t] {
				s.dirty[t] = true
				s.floors = append(s.floors, floor{t, at})
			}
		}
		s.work -= len(s.sections[v])
	}
	for _, t := range s.sections[u] {
		s.left[t] -= s.size[u]
	}
	touch(u, s.at[u])
	end := s.at[u] + s.size[u]
	for _, v := range s.conflicts[u] {
		if at := s.at[v]; !s.placed[v] && at < end {
			s.raised = append(s.raised, raise{v, s.on[v], at})
			s.at[v], s.on[v] = end, u
			touch(v, at)
		}
	}
	s.work -= len(s.conflicts[u])
	for _, f := range s.floors[floors:] {
		low := int64(math.MaxInt64)
		for _, v := range s.members[f.section] {
			if !s.placed[v] {
				low = min(low, s.at[v])
			}
		}
		s.floor[f.section], s.dirty[f.section] = low, false
		s.work -= len(s.members[f.section])
	}
}

// takeBack undoes put of a group: raised and floors are the lengths of the notes before it.
func (s *search) takeBack(u int32, raised, floors int) {
	for _, r := range s.raised[raised:] {
		s.at[r.group], s.on[r.group] = r.at, r.on
	}
	s.raised = s.raised[:raised]
	for _, f := range s.floors[floors:] {
		s.floor[f.section] = f.at
	}
	s.floors = s.floors[:floors]
	for _, t := range s.sections[u] {
		s.left[t] += s.size[u]
	}
	s.placed[u] = false
}

// blame notes why the groups of a section do not fit: they themselves, those that
// lie in it, and all that these lie upon. If a group could lie lower but for the rule that
// places ascend, the group that was placed last is a reason, too.
func (s *search) blame(why set, section, last int32, from int64) {
	for _, u := range s.members[section] {
		if !s.placed[u] {
			s.failed[u]++
			if s.at[u] <= from {
				s.stack(why, last)
			}
		}
		s.stack(why, u)
	}
	s.work -= len(s.members[section])
}

// stack adds a group and what it lies upon, down to the bottom, to a set of reasons.
func (s *search) stack(why set, u int32) {
	for ; u >= 0 && !why.has(u); u = s.on[u] {
		why.add(u)
	}
}
