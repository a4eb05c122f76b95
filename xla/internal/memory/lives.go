package memory

// The values that lie in one allocation, by time.
//
// A buffer of steps 40 to 60 fits into an allocation with lives 0 to 12, 12 to 40, 61 to 90
// and 90 to 95 only if the second, which it touches, is no obstacle: whether one value may be
// made where the other ends is for the caller to say, so that Each shows lives that touch.
// It does not show the first and the last two. The allocation of a large result may hold
// thousands of values, and thousands of buffers are tried: a search by halves in chunks of
// 256 keeps both a try and an addition short.

import (
	"math"
	"slices"
)

// A lifeList has lives that at most touch, in order. Its chunks have at most maxChunk
// lives each, so that adding one moves few others. The zero value is empty.
type lifeList struct {
	chunks [][]life
	Looked int // lives that Each has looked at, for tests
}

// A life is the steps at which a value lives, from Start to End, both included.
type life struct {
	Start, End int
	Value      int32
}

const maxChunk = 256

// Each calls f with the lives that have a step in common with one from start to end, in
// order, until f returns false. f must not add to the list.
func (l *lifeList) Each(start, end int, f func(value int32) bool) {
	at := l.chunk(start)
	for _, c := range l.chunks[min(at, len(l.chunks)):] {
		k, _ := slices.BinarySearchFunc(c, start, func(s life, start int) int { return s.End - start })
		// Of equal ends the search finds the first, so that none that touches is missed.
		for _, s := range c[k:] {
			l.Looked++
			if s.Start > end || !f(s.Value) {
				return
			}
		}
	}
}

// Add puts a life in, which at most touches the others: the caller has seen by Each that it
// does. A chunk that grows above maxChunk becomes two of half its size.
func (l *lifeList) Add(s life) {
	if len(l.chunks) == 0 {
		l.chunks = [][]life{{s}}
		return
	}
	// Starts and ends are in order together: a life that only touches another at its
	// start stands behind it. So one search serves both.
	at := min(l.chunk(s.End), len(l.chunks)-1)
	c := l.chunks[at]
	k, _ := slices.BinarySearchFunc(c, s, func(x, s life) int {
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

// chunk returns the first chunk with a life that ends at start or later, and the number of
// chunks if all end before.
func (l *lifeList) chunk(start int) int {
	k, _ := slices.BinarySearchFunc(l.chunks, start, func(c []life, start int) int { return c[len(c)-1].End - start })
	return k
}

// A span is steps, both included.
type span struct{ start, end int }

// steps has a bit for each step that two lives in one allocation cannot share: bit k is set if
// something lives both at step k and at step k+1. Two lives with such a step in common need
// memory at the same time, while those that only touch may not. The zero value is empty. Bits
// are in pages, of which empty ones are nil and full ones are one, as what is returned lives
// from somewhere to the end.
type steps struct{ pages []*page }

type page [64]uint64

const pageSteps = 64 * len(page{})

var fullPage = func() (p page) {
	for k := range p {
		p[k] = math.MaxUint64
	}
	return p
}()

// add sets the bits of a span.
func (s *steps) add(x span) {
	for len(s.pages)*pageSteps < x.end {
		s.pages = append(s.pages, nil)
	}
	for x.start < x.end {
		at, stop := x.start/pageSteps, min(x.end, (x.start/pageSteps+1)*pageSteps)
		switch {
		case s.pages[at] == &fullPage:
			x.start = stop
			continue
		case stop-x.start == pageSteps:
			s.pages[at] = &fullPage
			x.start = stop
			continue
		case s.pages[at] == nil:
			s.pages[at] = new(page)
		}
		for p := s.pages[at]; x.start < stop; {
			word, bits, next := x.word(stop)
			p[word] |= bits
			x.start = next
		}
	}
}

// any reports whether a bit of a span of a list is set.
func (s *steps) any(list []span) bool {
	for _, x := range list {
		for end := min(x.end, len(s.pages)*pageSteps); x.start < end; {
			p, stop := s.pages[x.start/pageSteps], min(end, (x.start/pageSteps+1)*pageSteps)
			if p == nil {
				x.start = stop
			}
			for x.start < stop {
				word, bits, next := x.word(stop)
				if p[word]&bits != 0 {
					return true
				}
				x.start = next
			}
		}
	}
	return false
}

// word returns the word of a page that the start of a span is in, the bits of it up to stop,
// and where the next word begins.
func (x span) word(stop int) (word int, bits uint64, next int) {
	n := min(stop-x.start, 64-x.start%64)
	return x.start % pageSteps / 64, math.MaxUint64 >> (64 - n) << (x.start % 64), x.start + n
}
