package memory

// The values that lie in one allocation, by time.

import "slices"

// A lifeList has lives that at most touch, in order. Its chunks have at most
// maxChunk lives each, so that adding one moves few others.
type lifeList struct {
	chunks [][]life
	looked int // lives that each has looked at, for tests
}

// A life is the steps at which a value lives, from start to end, both included.
type life struct {
	start, end int
	value      int32
}

const maxChunk = 256

// each calls f with the lives that have a step in common with one from start to end, in
// order, until f returns false.
func (l *lifeList) each(start, end int, f func(value int32) bool) {
	at := l.chunk(start)
	for _, c := range l.chunks[min(at, len(l.chunks)):] {
		k, _ := slices.BinarySearchFunc(c, start, func(s life, start int) int { return s.end - start })
		// Of equal ends the search finds the first.
		for _, s := range c[k:] {
			l.looked++
			if s.start > end || !f(s.value) {
				return
			}
		}
	}
}

// add puts a life in, which at most touches the others.
func (l *lifeList) add(s life) {
	if len(l.chunks) == 0 {
		l.chunks = [][]life{{s}}
		return
	}
	// Starts and ends are in order together: a life that only touches another at its
	// start stands behind it.
	at := min(l.chunk(s.end), len(l.chunks)-1)
	c := l.chunks[at]
	k, _ := slices.BinarySearchFunc(c, s, func(x, s life) int {
		if x.start == s.start {
			return x.end - s.end
		}
		return x.start - s.start
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
func (l *lifeList) chunk(start int) int {
	k, _ := slices.BinarySearchFunc(l.chunks, start, func(c []life, start int) int { return c[len(c)-1].end - start })
	return k
}
