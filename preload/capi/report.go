//go:build libgpumem

// The largest groups of live blocks, for the report.

package main

import (
	"cmp"
	"slices"
)

// group is the live blocks of one size.
type group struct{ bytes, count uint64 }

// largest returns the n groups that hold the most, largest first.
func (p *pool) largest(n int) []group {
	p.mu.Lock()
	counts := map[uint64]uint64{}
	for _, b := range p.blocks {
		counts[b.bytes]++
	}
	p.mu.Unlock()
	groups := make([]group, 0, len(counts))
	for bytes, count := range counts {
		groups = append(groups, group{bytes, count})
	}
	slices.SortFunc(groups, func(a, b group) int {
		return cmp.Or(cmp.Compare(b.bytes*b.count, a.bytes*a.count), cmp.Compare(b.bytes, a.bytes))
	})
	return groups[:min(n, len(groups))]
}
