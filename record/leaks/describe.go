package leaks

// The description of a place for the report: the survivors that count, its stack, and
// places of the same name together.

import (
	"slices"
	"sort"

	"gpumem/record/trace"
)

// describe returns a leak as it is reported. Survivors that are not part of the even
// growth are left out: those of a warm-up and of the last step.
func describe(g *gathered, p *place, s span, names *names) Place {
	var count [windows]int
	for _, b := range p.born {
		count[g.window(b.event)]++
	}
	middle := p.bornIn(s.lowEvent, s.highEvent)
	mean := float64(len(middle)) / float64(s.high-s.low)
	most := max(int(3*mean)+3, slices.Max(count[s.low:s.high])) // it may grow in bursts
	empty := int(5/mean) + 1                                    // windows without a survivor that still belong to it
	low, high := s.low, s.high
	for gap := 0; low > 0 && count[low-1] <= most && gap < empty; low-- {
		if gap++; count[low-1] > 0 {
			gap = 0
		}
	}
	for gap := 0; high < windows && count[high] <= most && gap < empty; high++ {
		if gap++; count[high] > 0 {
			gap = 0
		}
	}
	var kept []birth
	for _, b := range p.born {
		if w := g.window(b.event); w >= low && w < high {
			kept = append(kept, b)
		}
	}
	one := held(g, p, kept, names)
	one.keepers, one.even = keepersOf(g, middle), total(middle)
	one.nameKeeper()
	one.rate = float64(total(middle)) / float64(s.highEvent-s.lowEvent)
	return one
}

// held returns a place with these survivors.
func held(g *gathered, p *place, kept []birth, names *names) Place {
	one := Place{
		keepers: keepersOf(g, kept), even: total(kept),
		Site: names.of(p, g.coarse), Bytes: total(kept), Blocks: uint64(len(kept)),
		FirstEvent: kept[0].event + 1, GrowsToEvent: kept[len(kept)-1].event + 1,
	}
	bySite := map[uint32]uint64{}
	for _, b := range kept {
		bySite[b.site] += b.bytes
	}
	site := p.site
	for i, n := range bySite {
		if n > bySite[site] || n == bySite[site] && i < site {
			site = i
		}
	}
	if p.site != 0 {
		one.Stack = names.stack(site)
	}
	one.nameKeeper()
	return one
}

// keepersOf returns the bytes that each container keeps of survivors.
func keepersOf(g *gathered, list []birth) map[trace.Keeper]uint64 {
	found := map[trace.Keeper]uint64{}
	for _, b := range list {
		if k, ok := g.pool.Keeper(b.event + 1); ok {
			found[k] += b.bytes
		}
	}
	return found
}

// nameKeeper names the container that keeps more than half of what grew evenly, if one does. A
// block of the beginning, such as a library's workspace, is not asked.
func (p *Place) nameKeeper() {
	p.Keeper = nil
	for k, n := range p.keepers {
		if n > p.even/2 {
			p.Keeper = &k
		}
	}
}

// add adds a place, to one with the same name if there is one.
func add(list []Place, p Place) []Place {
	for i := range list {
		o := &list[i]
		if o.Site != p.Site {
			continue
		}
		if p.Bytes > o.Bytes {
			o.Stack = p.Stack
		}
		if o.BytesPerStep != nil && p.BytesPerStep != nil {
			n := *o.BytesPerStep + *p.BytesPerStep
			o.BytesPerStep = &n
		}
		o.Bytes += p.Bytes
		o.Blocks += p.Blocks
		o.FirstEvent, o.GrowsToEvent = min(o.FirstEvent, p.FirstEvent), max(o.GrowsToEvent, p.GrowsToEvent)
		o.rate += p.rate
		for k, n := range p.keepers {
			o.keepers[k] += n
		}
		o.even += p.even
		o.nameKeeper()
		return list
	}
	return append(list, p)
}

// bornIn returns the survivors of events from low on and below high.
func (p *place) bornIn(low, high uint64) []birth {
	at := func(event uint64) int {
		return sort.Search(len(p.born), func(i int) bool { return p.born[i].event >= event })
	}
	return p.born[at(low):at(high)]
}

func total(list []birth) (bytes uint64) {
	for _, b := range list {
		bytes += b.bytes
	}
	return bytes
}
