package leaks

// The names of places: lines of the program, or sizes.

import (
	"gpumem/record/internal/stacks"
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
