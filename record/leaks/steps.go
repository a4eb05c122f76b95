package leaks

// The number of steps. It is not recorded, but a place that allocates m times in each
// step has m times as many allocations as there are steps, so most counts are multiples
// of it.

import (
	"slices"
)

// clock has the number of steps.
type clock struct {
	steps float64 // in the span; 0 if unknown
	// most is the number of allocations in the middle of the busiest steady place; it
	// repeats, even if the number of steps is unknown.
	most  float64
	alone bool // there is only one steady place
}

// clockOf finds the number of steps in s; steps is 0 if it is unknown.
func clockOf(g *gathered, s span) clock {
	var list []float64 // allocations of each steady place
	most := 0.0
	for _, p := range g.places {
		if p.curve == nil || !steady(p.curve, s) {
			continue
		}
		list = append(list, allocs(p.curve, s.first, windows))
		most = max(most, allocs(p.curve, s.low, s.high))
	}
	slices.Sort(list)
	// A count that is off by one at the ends, or by a few where steps differ, is
	// the same count.
	near := func(a, b, c float64) bool { return max(a-b, b-a) <= max(1, c*0.05) }
	like := make([]int, len(list)) // how many places have the same count, where it may be that of the steps
	best := 0
	for i, t := range list {
		above, fit := 0, 0
		for _, u := range list {
			if near(u, t, t) {
				like[i]++
			}
			if u >= t-max(1, t*0.05) {
				above++
				if times := float64(int(u/t + 0.5)); near(u, times*t, t) {
					fit++
				}
			}
		}
		if t < 3 || fit*10 < above*7 || (len(list)-above)*3 > len(list) {
			like[i] = 0
		}
		best = max(best, like[i])
	}
	for i, t := range list {
		// The smallest such count, unless only few places have it: those that
		// allocate in every tenth step do not count the steps.
		if like[i] == 0 || like[i]*4 < best || len(list) >= 4 && like[i] < 2 {
			continue
		}
		c := clock{most: most, alone: len(list) == 1}
		for _, u := range list {
			if near(u, t, t) {
				c.steps += u / float64(like[i])
			}
		}
		return c
	}
	return clock{most: most}
}

// steady reports whether a place allocates all through the middle.
func steady(c *curve, s span) bool {
	var count, gap, longest int
	var used int
	for w := s.low; w < s.high; w++ {
		count += int(c.counts[w])
		if gap++; c.counts[w] > 0 {
			used++
			gap = 0
		}
		longest = max(longest, gap)
	}
	wide := s.high - s.low
	want := wide * 4 / 5
	if count < 2*wide {
		want = min(count, wide) / 2
	}
	return count >= 4 && used >= want && longest*5 <= wide*2
}
