package leaks

// The decision which places leak. The numbers here are chosen so that a leak of one block in
// every fifth step is found within 50 steps, and checked on random loops
// (loop_test.go, rates_test.go), where they find nearly all leaks and suspect hardly
// anything else; docs/advice.md has the rates.

import (
	"math"
	"slices"
)

const (
	// leastBlocks is the least survivors in the middle of a run that can be a leak.
	leastBlocks = 5
	// leastLater is the same if only a later part of the run is examined.
	leastLater = 8
	// mostKept is the part of a size's blocks that survive, at least, where one place of the program has that size.
	mostKept = 0.9
	// parts is the number of parts of the middle whose least live memory is compared.
	parts = 6
)

// span is a part of a run: from is its first event, low and high are the bounds of its
// middle, in events and in windows.
type span struct {
	from, lowEvent, highEvent, end uint64
	first, low, high               int
}

// spans returns the whole run, and the rest of it after a quarter, a half and three
// quarters: a program may take long to load before its steps begin.
func spans(g *gathered) []span {
	var list []span
	for q := range uint64(4) {
		s := span{end: g.end, first: int(q) * windows / 4}
		left := windows - s.first
		s.low, s.high = s.first+left/4, s.first+left*9/10
		s.from, s.lowEvent, s.highEvent = g.firstOf(s.first), g.firstOf(s.low), g.firstOf(s.high)
		list = append(list, s)
	}
	return list
}

// findings are what was found in one pool: the places that leak, each in a part of the run.
type findings struct {
	g     *gathered
	all   span
	leaky []*place
	of    []span // of each of these
	// latest is the latest part of the run in which something leaks. The steps are counted there.
	latest span
	clock  clock
	known  *steps
}

// judge examines every place. known is the steps that stacks show, nil if they show none.
func judge(g *gathered, names *names, known *steps) *Report {
	rep := &Report{Verdict: TooShort, Leaks: []Place{}, Grew: []Place{}}
	if g.end-g.start < 2*leastBlocks || known.one() { // what one step keeps, it needs
		return rep
	}
	f := &findings{g: g, known: known}
	f.findLeaky()
	f.clock = clockOf(g, f.latest)
	f.clock.steps = known.count(f.clock.steps)
	if f.clock.steps > 0 && (len(f.leaky) > 0 || !f.clock.alone) {
		n := uint64(math.Round(f.clock.steps))
		rep.Steps = &n
	}
	for i, p := range f.leaky {
		one := describe(g, p, f.of[i], names)
		one.BytesPerStep = f.bytesPerStep(p)
		rep.Leaks = add(rep.Leaks, one)
	}
	rep.KeptPart = math.Round(keptPart(g, f.leaky, f.latest.low, f.latest.high)*1000) / 1000
	rep.Unnamed = unnamed(g, f.all, f.leaky)
	rep.Repeats = rep.Unnamed > 0 && repeats(g, f.all)
	rep.Grew = stopped(g, f.all, f.leaky, names)
	regrown := regrown(g, f.all, f.leaky, rep, f.clock, names)
	switch {
	case len(f.leaky) > 0:
		rep.Verdict = f.verdict(rep.KeptPart)
	case regrown && repeats(g, f.all):
		rep.Verdict = Leak
	case regrown || rep.Unnamed > 0:
		rep.Verdict = Growth
	case known.few():
		// A warm-up takes as long.
	case f.clock.most >= leastLater || keptPart(g, g.places, f.all.low, f.all.high) < 0.05:
		rep.Verdict = None
	}
	return rep
}

// findLeaky finds the places that leak, in the whole run or in a later part of it.
func (f *findings) findLeaky() {
	run := spans(f.g)
	f.all, f.latest = run[0], run[0]
	for _, p := range f.g.places {
		for i, s := range run {
			if p.curve == nil || !grows(p, s, i > 0, f.g.coarse) {
				continue
			}
			f.leaky, f.of = append(f.leaky, p), append(f.of, s)
			if s.from > f.latest.from {
				f.latest = s
			}
			break
		}
	}
}

// bytesPerStep returns what a place that leaks keeps in each step; nil if that is unknown.
func (f *findings) bytesPerStep(p *place) *uint64 {
	s := f.latest
	middle := allocs(p.curve, s.low, s.high)
	if f.clock.steps == 0 || middle == 0 {
		return nil
	}
	// What it keeps of what it allocates, times its allocations a step: both counts end alike,
	// so that half a step at an end cancels out.
	born := p.bornIn(s.lowEvent, s.highEvent)
	all := allocs(p.curve, s.first, windows)
	isCounted := all <= f.clock.steps/mostKept // each of its allocations was taken for a step
	if p.site == 0 && f.known == nil && isCounted && float64(len(born)) < mostKept*middle {
		return nil // its size is of several places of the program, and a step has as many
	}
	kept := float64(total(born)) / middle
	n := wholeBlocks(p, kept*all/f.clock.steps)
	if exact, ok := f.known.rate(p, f.clock.steps); ok {
		n = exact
	}
	return &n
}

// verdict returns the answer where places leak, which keep a part of all allocations.
func (f *findings) verdict(kept float64) verdict {
	if f.known.all(f.leaky) {
		return Leak
	}
	s := f.latest
	isMany := f.g.coarse || len(f.leaky) > 3
	isMostKept := kept > 0.5 && len(f.leaky) > 1 || kept > 0.25 && isMany
	// Before it something else was done, and not only loaded.
	hasPhases := s.first > 0 && keptPart(f.g, f.g.places, 0, s.first) < 0.25
	arePerWeight := !slices.ContainsFunc(f.leaky, func(p *place) bool { return !perWeight(p, s) })
	if isMostKept || hasPhases || arePerWeight || !repeats(f.g, s) {
		return Growth
	}
	return Leak
}

// perWeight reports whether the survivors of a place have very different sizes, as what
// is allocated for each weight of a model has: gradients, or an optimizer's state, which
// come in one step and are then kept.
func perWeight(p *place, s span) bool {
	sizes := map[uint64]bool{}
	least, most := uint64(math.MaxUint64), uint64(0)
	for _, b := range p.bornIn(s.lowEvent, s.highEvent) {
		sizes[b.bytes] = true
		least, most = min(least, b.bytes), max(most, b.bytes)
	}
	return len(sizes) >= 4 && most/16 >= least
}

// allocs returns a curve's allocations in the windows from low on and below high.
func allocs(c *curve, low, high int) (n float64) {
	for _, k := range c.counts[low:high] {
		n += float64(k)
	}
	return n
}

// keptPart returns the fraction of the allocations in some windows that places keep; 1
// if there are hardly any.
func keptPart(g *gathered, list []*place, low, high int) float64 {
	all := allocs(&g.total, low, high)
	if all < leastBlocks {
		return 1
	}
	kept := 0
	for _, p := range list {
		for _, b := range p.born {
			if w := g.window(b.event); w >= low && w < high {
				kept++
			}
		}
	}
	return float64(kept) / all
}

// repeats reports whether most of what is allocated in the middle comes from places
// that allocate all through it. A single step is made of phases instead: forward
// through the layers, backward, then an update of each weight.
func repeats(g *gathered, s span) bool {
	steadily := 0.0
	for _, p := range g.places {
		if p.curve != nil && steady(p.curve, s) {
			steadily += allocs(p.curve, s.low, s.high)
		}
	}
	return 2*steadily >= allocs(&g.total, s.low, s.high)
}

// grows reports whether a place leaks in s. The conditions are stricter for a part of
// the run, and for a coarse place, which is many things at once.
func grows(p *place, s span, later, coarse bool) bool {
	middle := p.bornIn(s.lowEvent, s.highEvent)
	k := uint64(len(middle))
	if k < leastBlocks || later && k < leastLater || coarse && k < 2*leastLater {
		return false
	}
	// Born all through the middle, and on to the end.
	wide := s.highEvent - s.lowEvent
	longest := wide * 2 / 5
	if k >= 20 {
		longest = wide / 4
	}
	at, half := s.lowEvent, 0
	for _, b := range middle {
		if b.event-at > longest {
			return false
		}
		at = b.event
		if at < s.lowEvent+wide/2 {
			half++
		}
	}
	if s.highEvent-at > longest {
		return false
	}
	tail := s.end - p.born[len(p.born)-1].event
	if tail > max(5*wide/k, (s.end-s.from)/20) {
		return false
	}
	if slower(p, middle, s, half) {
		return false
	}
	if later && !everywhere(middle, s) || p.site != 0 && cleared(p.curve, s) {
		return false
	}
	// And what lives grows with them.
	rise, ups, _ := rising(p.curve, s)
	if coarse && ups < parts-1 {
		return false
	}
	return ups >= parts/2 && 2*rise >= float64(total(middle))*(parts-1)/parts
}

// slower reports whether survivors become ever fewer, as those of a cache that is soon
// complete; half is the number of those in the middle that are from its first half.
func slower(p *place, middle []birth, s span, half int) bool {
	if len(middle) >= 12 && 3*(len(middle)-half) < half {
		return true
	}
	third := (s.end - s.from) / 3
	a, b, c := len(p.bornIn(s.from, s.from+third)), len(p.bornIn(s.from+third, s.from+2*third)), len(p.bornIn(s.from+2*third, s.end))
	return a >= 2*b && b >= 2*c
}

// cleared reports whether a place had grown and was emptied, as what an epoch collects: then it
// will be again. What it had was as much, nearly, as what it has at the end of the middle.
func cleared(c *curve, s span) bool {
	most := int64(0) // so far
	for _, least := range c.least[:s.high] {
		if 4*least <= most && 2*most >= c.least[s.high-1] {
			return true
		}
		most = max(most, least)
	}
	return false
}

// everywhere reports whether six of ten windows have a survivor.
func everywhere(middle []birth, s span) bool {
	wide := (s.highEvent - s.lowEvent) / uint64(s.high-s.low)
	used, last := 0, uint64(math.MaxUint64)
	for _, b := range middle {
		if w := (b.event - s.lowEvent) / max(wide, 1); w != last {
			used, last = used+1, w
		}
	}
	return used*10 >= (s.high-s.low)*6
}

// rising compares the least live memory in each part of the middle: by how much the
// last is above the first, how often it rises from one to the next, and by how much it
// rises at the end.
func rising(c *curve, s span) (rise float64, ups int, last float64) {
	wide := s.high - s.low
	var least [parts]int64
	for i := range least {
		from, to := s.low+i*wide/parts, s.low+(i+1)*wide/parts
		least[i] = slices.Min(c.least[from:to])
		if i > 0 && least[i] > least[i-1] {
			ups++
		}
	}
	return float64(least[parts-1] - least[0]), ups, float64(least[parts-1] - least[parts-2])
}

// unnamed returns by how much all live memory grows, steadily, beyond what leaks.
func unnamed(g *gathered, s span, leaky []*place) uint64 {
	rise, ups, last := rising(&g.total, s)
	for _, p := range leaky {
		one, _, end := rising(p.curve, s)
		rise, last = rise-one, last-end
	}
	if ups < parts-1 || rise*20 < float64(g.peak) || last*2*(parts-1) < rise {
		return 0
	}
	return uint64(rise)
}

// wholeBlocks returns a rate, in bytes a step, that is an estimate: where it is nearly a whole number of
// equal blocks it is that number.
func wholeBlocks(p *place, rate float64) uint64 {
	const near = 0.05
	one := p.born[0].bytes
	if slices.ContainsFunc(p.born, func(b birth) bool { return b.bytes != one }) {
		return uint64(math.Round(rate))
	}
	blocks := math.Round(rate / float64(one))
	if blocks == 0 || math.Abs(rate-blocks*float64(one)) > near*rate {
		return uint64(math.Round(rate))
	}
	return uint64(blocks) * one
}

// regrown finds the places whose blocks are replaced by larger ones, such as a list that
// is concatenated in each step: live memory grows steadily, and next to nothing
// survives. Only stacks show it, because the sizes differ. Where most of it survives, the place grows in
// bursts: each few steps it keeps many blocks.
func regrown(g *gathered, s span, leaky []*place, rep *Report, c clock, names *names) (found bool) {
	for _, p := range g.places {
		if rep.Unnamed == 0 || p.curve == nil || p.site == 0 || len(p.born) == 0 || slices.Contains(leaky, p) {
			continue
		}
		rise, ups, last := rising(p.curve, s)
		if ups < parts-1 || last*2*(parts-1) < rise || 2*rise < float64(rep.Unnamed) {
			continue
		}
		one := held(g, p, p.born, names)
		if survives := float64(total(p.bornIn(s.lowEvent, s.highEvent))); 2*survives < rise {
			one = held(g, p, p.born[len(p.born)-1:], names)
			one.Regrows = true
		}
		// The rise is from the first part of the middle to the last.
		events := float64(s.highEvent-s.lowEvent) * (parts - 1) / parts
		one.rate = rise / events
		if c.steps > 0 {
			n := uint64(math.Round(one.rate * float64(s.end-s.from) / c.steps))
			one.BytesPerStep = &n
		}
		rep.Leaks = append(rep.Leaks, one)
		rep.Unnamed -= min(rep.Unnamed, uint64(rise))
		found = true
	}
	if found && rep.Unnamed*20 < uint64(g.peak) {
		rep.Unnamed = 0
	}
	if found && c.steps > 0 {
		n := uint64(math.Round(c.steps))
		rep.Steps = &n
	}
	return found
}

// stopped returns the places that grew into the middle of the run and no further.
func stopped(g *gathered, s span, leaky []*place, names *names) []Place {
	list := []Place{}
	run := s.end - s.from
	for _, p := range g.places {
		k := uint64(len(p.born))
		if k < leastLater || slices.Contains(leaky, p) {
			continue
		}
		first, last := p.born[0].event, p.born[k-1].event
		grew := last - first
		if last < s.lowEvent || s.end-last < max(run/10, 5*grew/k) || grew < run/10 || total(p.born) < uint64(g.peak)/100 {
			continue
		}
		list = add(list, held(g, p, p.born, names))
	}
	return list
}
