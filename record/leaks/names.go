package leaks

// The names of places: lines of the program, or sizes.

import (
	"cmp"
	"slices"

	"gpumem/record/internal/stacks"
	"gpumem/record/trace"
	"gpumem/size"
)

// names has the stacks of a recording. Each is put together once.
type names struct {
	site      func(uint32) string
	keepPaths bool
	groups    []uint32          // first site with the same frame of the program, plus 1
	byFrame   map[string]uint32 // that site by the frame
}

func newNames(site func(uint32) string, sites uint32, keepPaths bool) *names {
	return &names{site, keepPaths, make([]uint32, sites), map[string]uint32{}}
}

// group returns the first site whose innermost frame of the program is that of site.
func (n *names) group(site uint32) uint32 {
	if site == 0 {
		return 0
	}
	if n.groups[site] == 0 {
		frame := stacks.OwnFrame(n.site(site))
		first, ok := n.byFrame[frame]
		if !ok {
			first = site
			n.byFrame[frame] = site
		}
		n.groups[site] = first + 1
	}
	return n.groups[site] - 1
}

// of returns the name of a place.
func (n *names) of(p *place, coarse bool) string {
	switch {
	case p.site != 0:
		return n.shown(stacks.OwnFrame(n.site(p.site)))
	case coarse:
		return "requests of " + size.Format(p.bytes) + " to " + size.Format(2*p.bytes)
	}
	return "requests of " + size.Format(p.bytes)
}

// stack returns the whole stack of a site.
func (n *names) stack(site uint32) string { return n.shown(n.site(site)) }

// shown leaves the directories of files out, unless they are kept.
func (n *names) shown(stack string) string {
	if n.keepPaths {
		return stack
	}
	return stacks.WithoutPaths(stack)
}

// heldBy adds up live blocks by pool and line, or by size where there is no line.
type heldBy struct {
	*names
	list []Held
	at   map[heldKey]int
}

type heldKey struct {
	pool  string
	site  uint32
	bytes uint64 // of each block, where there is no site
}

func newHeldBy(t *trace.Trace, keepPaths bool) *heldBy {
	return &heldBy{names: newNames(t.FullSite, t.Sites(), keepPaths), list: []Held{}, at: map[heldKey]int{}}
}

// add adds blocks of one site. A line is shown with the stack that comes first. each is the
// bytes of a block that tell it from others without a site; 0: nothing does.
func (h *heldBy) add(pool string, site uint32, each, bytes, blocks uint64) {
	key := heldKey{pool: pool, site: h.group(site)}
	if site == 0 {
		key.bytes = each
	}
	i, ok := h.at[key]
	if !ok {
		i = len(h.list)
		h.at[key] = i
		one := Held{Pool: pool}
		switch {
		case site != 0:
			one.Site, one.Stack = h.shown(stacks.OwnFrame(h.site(site))), h.stack(site)
		case each > 0:
			one.Site = "requests of " + size.Format(each)
		}
		h.list = append(h.list, one)
	}
	h.list[i].Bytes = size.Add(h.list[i].Bytes, bytes)
	h.list[i].Blocks += blocks
}

// largest returns what was added, the largest first.
func (h *heldBy) largest() []Held {
	slices.SortStableFunc(h.list, func(a, b Held) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return h.list
}
