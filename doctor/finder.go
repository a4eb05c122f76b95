package doctor

import (
	"bytes"
	"slices"
)

// minAnchor is the least length of an anchor. The search may skip as many
// bytes as an anchor is long, so that longer is faster.
const minAnchor = 6

// A hit is an anchor's place in a line.
type hit struct{ at, pattern int }

// A finder finds any of many words, as Wu and Manber do ("A fast algorithm
// for multi-pattern searching", University of Arizona, 1994): it looks at
// blocks of three bytes and skips as far as no word can have begun.
type finder struct {
	shift [1 << 15]uint8
	// lists[list[b]] are the words whose first minAnchor bytes end with block b.
	list  [1 << 15]uint16
	lists [][]word
}

type word struct {
	text    []byte
	pattern int
}

// block hashes three bytes to 15 bits.
func block(a, b, c byte) uint16 { return (uint16(a)<<10 ^ uint16(b)<<5 ^ uint16(c)) & (1<<15 - 1) }

// newFinder makes a finder of the anchors of patterns and of the keys of messages.
func newFinder(patterns []pattern) *finder {
	f := &finder{lists: [][]word{nil}}
	for i := range f.shift {
		f.shift[i] = minAnchor - 2
	}
	f.add(messageKeys, messageKey)
	for i, p := range patterns {
		f.add(p.anchors, i)
	}
	return f
}

func (f *finder) add(anchors []string, pattern int) {
	for _, a := range anchors {
		for end := 2; end < minAnchor; end++ {
			b := block(a[end-2], a[end-1], a[end])
			f.shift[b] = min(f.shift[b], uint8(minAnchor-1-end))
			if end == minAnchor-1 {
				if f.list[b] == 0 {
					f.list[b] = uint16(len(f.lists))
					f.lists = append(f.lists, nil)
				}
				f.lists[f.list[b]] = append(f.lists[f.list[b]], word{[]byte(a), pattern})
			}
		}
	}
}

// find adds the places of all anchors in text to hits, by place, then by
// pattern.
func (f *finder) find(text []byte, hits []hit) []hit {
	for i := minAnchor - 1; i < len(text); {
		b := block(text[i-2], text[i-1], text[i])
		if skip := f.shift[b]; skip > 0 {
			i += int(skip)
			continue
		}
		at, before := i-minAnchor+1, len(hits)
		for _, w := range f.lists[f.list[b]] {
			if bytes.HasPrefix(text[at:], w.text) {
				hits = append(hits, hit{at, w.pattern})
			}
		}
		if len(hits) > before+1 {
			slices.SortFunc(hits[before:], func(a, b hit) int { return a.pattern - b.pattern })
		}
		i++
	}
	return hits
}
