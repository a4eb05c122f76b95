// Package lives keeps the values that lie in one allocation, by time.
package lives

import "slices"

// A List has lives that at most touch, in order. Its chunks have at most maxChunk
// lives each, so that adding one moves few others. The zero value is empty.
type List struct {
	chunks [][]Life
	Looked int // lives that Each has looked at, for tests
}

// A Life is the steps at which a value lives, from Start to End, both included.
type Life struct {
	Start, End int
	Value      int32
}

const maxChunk = 256

// Each calls f with the lives that have a step in common with one from start to end, in
// order, until f returns false.
func (l *List) Each(start, end int, f func(value int32) bool) {
	at := l.chunk(start)
	for _, c := range l.chunks[min(at, len(l.chunks)):] {
		k, _ := slices.BinarySearchFunc(c, start, func(s Life, start int) int { return s.End - start })
		// Of equal ends the search finds the first.
		for _, s := range c[k:] {
			l.Looked++
			if s.Start > end || !f(s.Value) {
				return
			}
		}
	}
}

// Add puts a life in, which at most touches the others.
func (l *List) Add(s Life) {
	if len(l.chunks) == 0 {
		l.chunks = [][]Life{{s}}
		return
	}
	// Starts and ends are in order together: a life that only touches another at its
	// start stands behind it.
	at := min(l.chunk(s.End), len(l.chunks)-1)
	c := l.chunks[at]
	k, _ := slices.BinarySearchFunc(c, s, func(x, s Life) int {
		if x.Start == s.Start {
			return x.End - s.End
		}
		return x.Start - s.Start
	})
	c = slices.Insert(c, k, s)
	if len(c) <= maxChunk {
		l.chunks[at] = c
		return
	}
	half := len(c) / 2
	l.chunks[at] = c[:half:half]
	l.chunks = slices.Insert(l.chunks, at+1, slices.Clone(c[half:]))
}

// chunk returns the first chunk with a life that ends at start or later.
func (l *List) chunk(start int) int {
	k, _ := slices.BinarySearchFunc(l.chunks, start, func(c []Life, start int) int { return c[len(c)-1].End - start })
	return k
}
