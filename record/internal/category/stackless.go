package category

// The passes of a run of which no stacks are known.
//
// What is kept for a backward pass is made all through the forward pass and freed from then
// on, last first. So the number of blocks that live rises and falls once a step, as a saw's
// tooth does, and the passes meet at its tip. Gradients and what an update makes would blur
// it: they have the sizes of parameters, so blocks of a size that some block has that is never
// freed are not counted.

import (
	"cmp"
	"slices"
	"sort"
)

const (
	// leastTooth is the least height of a tooth: in blocks, and as a part of the highest.
	leastTooth, leastHeight = 4, 0.3
	// leastGradients is how many gradients a step has at least: those of one layer.
	leastGradients = 2
	// mostLater is the part of a tooth's blocks that may be freed before one that is younger.
	mostLater = 0.35
)

// A tooth is a step: the number of counted blocks that live rises from the foot to the tip
// and falls to the heel, which is 0 where the recording ends before.
type tooth struct{ foot, tip, heel uint64 }

// lifetimes returns the passes of a run by the lifetimes of its blocks.
func (s *span) lifetimes() phases {
	kept := s.kept()
	least := max(1024, s.bytes/100_000) // no scalars
	var counted []*block
	for i := range s.blocks {
		if b := &s.blocks[i]; !b.seed && !b.refused && kept[b.bytes] == 0 && b.bytes >= least {
			counted = append(counted, b)
		}
	}
	list := s.steps(counted, kept)
	if len(list) > 0 {
		return list
	}
	// With checkpoints the backward pass makes again what it needs, a part at a time.
	var period uint64
	if t := teeth(counted); len(t) > 1 {
		period = t[1].tip - t[0].tip
	} else if len(t) == 1 {
		period = t[0].heel - min(t[0].heel, t[0].foot)
	}
	counted = slices.DeleteFunc(counted, func(b *block) bool { return b.died != never && b.died-b.born < period/16 })
	return s.steps(counted, kept)
}

// steps returns the passes of the steps that blocks show.
func (s *span) steps(counted []*block, kept map[uint64]int) phases {
	var list phases
	all := slices.DeleteFunc(teeth(counted), func(t tooth) bool { return t.heel != 0 && !lastFirst(counted, t) })
	// Gradients that are never forgotten are made in the first step alone.
	if !slices.ContainsFunc(all, func(t tooth) bool { return t.heel != 0 && s.leavesGradients(t, kept) }) {
		return nil
	}
	for _, t := range all {
		low, high := t.tip, t.tip
		if t.heel != 0 {
			t.tip, low, high = sharpen(counted, t)
		}
		if n := len(list); n > 0 && list[n-1].last+1 < t.foot {
			list = append(list, phase{role: update, first: list[n-1].last + 1, last: t.foot - 1})
		}
		list = append(list, phase{role: forward, first: t.foot, last: t.tip})
		if t.heel != 0 {
			list = append(list, phase{backward, t.tip + 1, t.heel, low, high})
		}
	}
	if n := len(list); n > 0 && list[n-1].last < s.last {
		list = append(list, phase{role: update, first: list[n-1].last + 1, last: s.last})
	}
	return list
}

// sharpen returns the tip of a tooth without what comes and goes there, and between which
// events it lies for sure: the last block that is made to stay for a good part of the tooth,
// and the first such frees.
func sharpen(counted []*block, t tooth) (tip, from, to uint64) {
	long := (t.heel - t.foot) / 16
	from = t.foot
	var near []*block
	var deaths []uint64
	for _, b := range bornIn(counted, t.foot, t.heel) {
		near = append(near, b)
		if b.died != never && b.died-b.born < long || b.died > t.heel {
			continue
		}
		if b.born <= t.tip {
			from = max(from, b.born)
			deaths = append(deaths, b.died)
		}
	}
	tip, to = t.tip, t.tip
	if len(deaths) > 0 { // a few are freed in the forward pass
		slices.Sort(deaths)
		to = deaths[len(deaths)/10]
	}
	n, most := 0, 0
	at := map[uint64]int{}
	for _, b := range near {
		at[b.born]++
		if b.died != never {
			at[b.died]--
		}
	}
	for e := t.foot; e <= t.heel; e++ {
		n += at[e]
		if e >= from && e < to && n > most {
			most, tip = n, e
		}
	}
	return tip, from, max(to, tip)
}

// bornIn returns the blocks, which are in order, that are born from one event up to another.
func bornIn(blocks []*block, first, last uint64) []*block {
	from := sort.Search(len(blocks), func(i int) bool { return blocks[i].born >= first })
	n := sort.Search(len(blocks)-from, func(i int) bool { return blocks[from+i].born > last })
	return blocks[from : from+n]
}

// leavesGradients reports whether blocks with the sizes of parameters are made while a tooth
// falls, and outlive it.
func (s *span) leavesGradients(t tooth, kept map[uint64]int) bool {
	n := 0
	from := sort.Search(len(s.blocks), func(i int) bool { return s.blocks[i].born > t.tip })
	for i := from; i < len(s.blocks) && s.blocks[i].born <= t.heel; i++ {
		if b := &s.blocks[i]; b.died > t.heel && kept[b.bytes] > 0 {
			n++
		}
	}
	return n >= leastGradients
}

// stays reports whether a block lives to the end, or until a trainer moves its model away there.
func (s *span) stays(b *block) bool {
	return b.died == never || b.born-s.first <= (s.last-s.first)/4 && b.died-s.first >= (s.last-s.first)*19/20
}

// kept returns how many blocks of each size there are of what is made early and never freed: parameters and an optimizer's
// state, whatever else the last step may leave.
func (s *span) kept() map[uint64]int {
	sizes := map[uint64]int{}
	for i := range s.blocks {
		if b := &s.blocks[i]; s.stays(b) && s.isEarly(b) {
			sizes[b.bytes]++
		}
	}
	return sizes
}

// isEarly reports whether a block is made in the first half of what was read.
func (s *span) isEarly(b *block) bool { return b.born-s.first <= (s.last-s.first)/2 }

// A change is an event at which one counted block more lives, or one less.
type change struct {
	event uint64
	by    int
}

// teeth returns the teeth of the number of blocks that live.
func teeth(blocks []*block) []tooth {
	var changes []change
	for _, b := range blocks {
		changes = append(changes, change{b.born, 1})
		if b.died != never {
			changes = append(changes, change{b.died, -1})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.event, b.event) })
	level := make([]int, len(changes)) // after each change
	n, most := 0, 0
	for i, c := range changes {
		n += c.by
		level[i] = n
		most = max(most, n)
	}
	least := max(leastTooth, int(leastHeight*float64(most)))

	var list []tooth
	add := func(foot, tip, end int, falls bool) {
		t := tooth{foot: changes[foot].event, tip: changes[tip].event}
		if falls {
			low := slices.Min(level[tip:end])
			enough := low + (level[tip]-low)/20 // what a variable holds is freed later
			t.heel = changes[tip+slices.IndexFunc(level[tip:end], func(n int) bool { return n <= enough })].event
		}
		list = append(list, t)
	}
	var foot, tip int // indices: behind the last lowest before the tip, the last highest
	low, falling := 0, false
	next := 0 // the foot of the next tooth
	for i, n := range level {
		switch {
		case falling && n <= low:
			low, next = n, i+1
		case falling && n >= low+least:
			add(foot, tip, i, true)
			falling, foot, tip = false, next, i
		case falling:
		case n >= level[tip]:
			tip = i
		case n <= level[tip]-least && level[tip] >= low+least:
			falling, low, next = true, n, i+1
		case n <= low:
			low, foot, tip = n, i+1, i
		}
	}
	switch {
	case falling:
		add(foot, tip, len(level), true)
	case len(level) > 0 && level[tip] >= low+least:
		add(foot, tip, len(level), false)
	}
	return list
}

// lastFirst reports whether the blocks of a tooth are freed last first, as an engine does
// that goes back through what was done.
func lastFirst(blocks []*block, t tooth) bool {
	var list []*block
	for _, b := range bornIn(blocks, t.foot, t.tip) {
		if b.died > t.tip && b.died <= t.heel {
			list = append(list, b)
		}
	}
	slices.SortFunc(list, func(a, b *block) int { return cmp.Compare(a.died, b.died) })
	// Layers free a few of their blocks in any order, so blocks some way apart are compared.
	apart := max(1, len(list)/4)
	later := 0
	for i := apart; i < len(list); i++ {
		if list[i].born > list[i-apart].born {
			later++
		}
	}
	return len(list) >= leastTooth/2 && float64(later) <= mostLater*float64(len(list)-apart)
}
