package timeline

// The tree of callers, cut where it says most: the recording's stacks from the outermost
// frame inwards, or the names of operations from the first word on. Beginning with all, the
// heaviest part is divided by what it calls next, until there are as many parts as colours.
// So a model's layers come out as groups whatever they are called.

import (
	"cmp"
	"slices"
	"strings"

	"gpumem/record/trace"
)

// A caller is a node of the tree.
type caller struct {
	name     string
	parent   *caller
	children map[string]*caller
	weight   float64 // with the children's
	split    bool    // a part with others inside
}

// leastPart is the least weight of a part, of the whole.
const leastPart = 1. / 40

// framesOf returns a stack from its outermost frame inwards, or the words of an operation's
// name.
func framesOf(text string) []string {
	if strings.Contains(text, "\n") {
		frames := strings.Split(text, "\n")
		slices.Reverse(frames)
		return frames
	}
	// Behind a blank and a bracket stands a shape, or a file with its path.
	name, _, _ := strings.Cut(text, " (")
	words := strings.Split(name, "/")
	words[len(words)-1] += text[len(name):]
	return words
}

// add returns the node of a stack.
func (c *caller) add(frames []string, weight float64) *caller {
	c.weight += weight
	if len(frames) == 0 {
		return c
	}
	next := c.children[frames[0]]
	if next == nil {
		next = &caller{name: frames[0], parent: c}
		if c.children == nil {
			c.children = map[string]*caller{}
		}
		c.children[frames[0]] = next
	}
	return next.add(frames[1:], weight)
}

// next returns the children, the heaviest first.
func (c *caller) next() (list []*caller) {
	for _, child := range c.children {
		list = append(list, child)
	}
	slices.SortFunc(list, func(a, b *caller) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.name, b.name))
	})
	return list
}

// spread returns the parts that a node is divided into: the large children of the first
// node inwards that has several. What branches off on the way stays with the node. It is nil
// if the node is not to be divided.
func (c *caller) spread(least float64) []*caller {
	for at := c; ; {
		var large []*caller
		for _, child := range at.next() {
			if child.weight >= least {
				large = append(large, child)
			}
		}
		switch {
		case len(large) > 1:
			return large
		case len(large) == 1:
			at = large[0]
		case c.weight-at.weight >= least:
			return []*caller{at}
		default:
			return nil
		}
	}
}

// divide chooses the parts of the tree.
func divide(top *caller, most int) (parts []*caller) {
	parts = []*caller{top}
	least := leastPart * top.weight
	own := map[*caller]float64{top: top.weight} // without the parts inside
	for len(parts) < most {
		var best *caller
		var into []*caller
		for _, p := range parts {
			if p.split || best != nil && own[p] <= own[best] {
				continue
			}
			if large := p.spread(least); large != nil {
				best, into = p, large
			}
		}
		if best == nil {
			break
		}
		best.split = true
		for _, child := range into[:min(len(into), most-len(parts))] {
			parts = append(parts, child)
			own[child] = child.weight
			own[best] -= child.weight
		}
	}
	parts = slices.DeleteFunc(parts, func(p *caller) bool { return p.split && own[p] < top.weight*1e-6 })
	slices.SortStableFunc(parts, func(a, b *caller) int { return cmp.Compare(own[b], own[a]) })
	return parts
}

// words returns a part's name and, innermost first, how the program gets there.
func (c *caller) words() bandName {
	if c.parent == nil {
		return bandName{"elsewhere", ""}
	}
	name := c.name
	var way []string
	for at := c; at.parent != nil; at = at.parent {
		way = append(way, at.name)
	}
	if c.split {
		name = "elsewhere in " + name
	}
	return bandName{name, strings.Join(way, "\n")}
}

// byCaller has a band for each part of the tree; nil if there is nothing to divide.
func (o *outline) byCaller() *grouping {
	weights := o.siteParts()
	top := &caller{}
	nodes := map[int]*caller{}
	deep := false
	for _, site := range heaviest(weights, maxCallers) {
		frames := framesOf(stack(o.trace, uint32(site)))
		deep = deep || len(frames) > 1
		nodes[site] = top.add(frames, weights[site])
	}
	parts := divide(top, maxBands)
	if !deep || len(parts) < 2 {
		return nil
	}
	index := map[*caller]int{}
	var names []bandName
	for k, p := range parts {
		index[p] = k
		names = append(names, p.words())
	}
	bands := o.bandsOfSites(func(site int) (int, bool) {
		for at := nodes[site]; at != nil; at = at.parent {
			if k, ok := index[at]; ok {
				return k, true
			}
		}
		return 0, false
	})
	const rest = "all others"
	// In a list, a group is called as its band.
	texts := make([]int, len(names))
	for k, n := range names {
		texts[k] = o.texts.IndexOf(n.name)
	}
	before, others := o.texts.IndexOf(beforeName), o.texts.IndexOf(rest)
	return o.newGrouping("caller", names, rest, func(b *trace.Block) int { return int(bands[b.Site]) }, func(b *trace.Block) int {
		switch {
		case o.isSeed(b):
			return before
		case bands[b.Site] >= 0:
			return texts[bands[b.Site]]
		}
		return others
	})
}
