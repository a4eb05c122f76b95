// This file has the lists that a pool keeps of what is free in it, made so that
// an allocation looks at a few entries, not at all of them: a replay makes millions
// in pools of 10,000 blocks.

package sim

import (
	"math/bits"
	"slices"
)

// entry is a hole in a sorted list.
type entry struct {
	bytes, addr uint64
	hole        *hole
}

// before has the smallest first, and of those alike the one at the lowest address.
func (e entry) before(o entry) bool {
	return e.bytes < o.bytes || e.bytes == o.bytes && e.addr < o.addr
}

// sorted is a list in order. No two entries are equal. It is cut into leaves as a
// space is (space.go), for the same reason.
type sorted struct {
	leaves [][]entry // none is empty
	spare  []entry   // the room of a leaf that became empty
}

// place is where an entry of a sorted list is. It is good until the next put or
// drop.
type place struct{ leaf, i int }

// seek is the place of the first entry that is not before x.
func (s *sorted) seek(x entry) place {
	// The last leaf that begins before x.
	lo, hi := 0, len(s.leaves)
	for lo < hi {
		if mid := (lo + hi) / 2; s.leaves[mid][0].before(x) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return place{0, 0}
	}
	leaf := s.leaves[lo-1]
	a, b := 1, len(leaf)
	for a < b {
		if mid := (a + b) / 2; leaf[mid].before(x) {
			a = mid + 1
		} else {
			b = mid
		}
	}
	if a == len(leaf) {
		return place{lo, 0}
	}
	return place{lo - 1, a}
}

// at is the entry at a place, nil past the last one. It may be changed if it
// stays in order.
func (s *sorted) at(p place) *entry {
	if p.leaf == len(s.leaves) {
		return nil
	}
	return &s.leaves[p.leaf][p.i]
}

// put adds an entry.
func (s *sorted) put(x entry) {
	p := s.seek(x)
	if p.i == 0 && p.leaf > 0 { // as well at the end of the leaf before
		p = place{p.leaf - 1, len(s.leaves[p.leaf-1])}
	}
	if p.leaf == len(s.leaves) {
		s.leaves = append(s.leaves, append(s.spare, x))
		s.spare = nil
		return
	}
	leaf := s.leaves[p.leaf]
	if len(leaf) < leafMax {
		s.leaves[p.leaf] = slices.Insert(leaf, p.i, x)
		return
	}
	// Those that come in order leave full leaves behind.
	cut := leafMax / 2
	if p.i == len(leaf) {
		cut = p.i
	}
	high := append(s.spare, leaf[cut:]...)
	s.spare = nil
	clear(leaf[cut:])
	s.leaves[p.leaf] = leaf[:cut]
	if p.i <= cut && cut < len(leaf) {
		s.leaves[p.leaf] = slices.Insert(leaf[:cut], p.i, x)
	} else {
		high = slices.Insert(high, p.i-cut, x)
	}
	s.leaves = slices.Insert(s.leaves, p.leaf+1, high)
}

// drop takes the entry at a place out; the next one is then there.
func (s *sorted) drop(p place) place {
	leaf := slices.Delete(s.leaves[p.leaf], p.i, p.i+1)
	s.leaves[p.leaf] = leaf
	switch {
	case len(leaf) == 0:
		s.spare = leaf
		s.leaves = slices.Delete(s.leaves, p.leaf, p.leaf+1)
	case p.i == len(leaf):
		return place{p.leaf + 1, 0}
	}
	return p
}

// hole is free parts of a chunk side by side, as many as there are, that a lane's streams
// may have. Its first and last part point to it.
type hole struct {
	addr, bytes uint64
	first, last *part
	next        *hole // in the list of spare ones
}

func (h *hole) entry() entry { return entry{h.bytes, h.addr, h} }

// Sizes are in units of poolStep. Those below exactClasses have a class each; above there
// are as many classes for each power of two as subBits says. That makes less than 64 * 64
// classes, for two levels of bits.
const (
	stepBits     = 9 // poolStep is 1 << stepBits
	exactBits    = 11
	exactClasses = 1 << exactBits
	subBits      = 5
	classCount   = exactClasses + (64-stepBits-exactBits)<<subBits
)

// class of a size in bytes: 512 bytes are in class 1, 1 MiB and up to 32 KiB more in
// 2048.
func class(bytes uint64) int {
	n := bytes >> stepBits
	if n < exactClasses {
		return int(n)
	}
	e := bits.Len64(n) - 1
	return exactClasses + (e-exactBits)<<subBits + int(n>>(e-subBits)&(1<<subBits-1))
}

// holes are those of one lane, by size.
type holes struct {
	which   int    // the lane
	total   uint64 // bytes of all
	classes [classCount]alike
	some    [(classCount + 63) / 64]uint64 // a bit for each class that is not empty
	top     uint64                         // a bit for each word of some
	spare   *hole
	unused  []hole          // as spare, but they never were in use
	tags    map[*part]*hole // of lanes other than 0: the holes of their first and last parts
}

// alike is the holes of a class: often there is one. Several are in the list.
type alike struct {
	one  *hole
	many *sorted // nil: there never were several
}

func newHoles(lane int) *holes {
	hs := &holes{which: lane}
	if lane != 0 {
		hs.tags = map[*part]*hole{}
	}
	return hs
}

// of returns the hole of which the free part is the first or last. Of another part it may
// be any.
func (hs *holes) of(s *part) *hole {
	if hs.which == 0 {
		return s.hole
	}
	return hs.tags[s]
}

// tag notes the hole of its first or last part; nil if it is none any more.
func (hs *holes) tag(s *part, h *hole) {
	switch {
	case hs.which == 0:
		s.hole = h
	case h == nil:
		delete(hs.tags, s)
	default:
		hs.tags[s] = h
	}
}

// may reports whether the lane's streams may have a part as it is; nil is none.
func (hs *holes) may(s *part) bool {
	return s != nil && !s.used() && (s.from == nil || s.from.lane == hs.which)
}

// fit is the smallest hole of at least n bytes, the lowest of those; nil if there is none.
func (hs *holes) fit(n uint64) *hole {
	k := class(n)
	if k >= exactClasses { // its own class has smaller ones, too
		c := &hs.classes[k]
		if c.one != nil {
			if c.one.bytes >= n {
				return c.one
			}
		} else if c.many != nil {
			if h := c.many.at(c.many.seek(entry{bytes: n})); h != nil {
				return h.hole
			}
		}
		k++
	}
	if k >= classCount {
		return nil
	}
	w := k >> 6
	m := hs.some[w] >> (k & 63) << (k & 63)
	if m == 0 {
		t := hs.top >> (w + 1) << (w + 1) // a shift by 64 leaves nothing
		if t == 0 {
			return nil
		}
		w = bits.TrailingZeros64(t)
		m = hs.some[w]
	}
	c := &hs.classes[w<<6+bits.TrailingZeros64(m)]
	if c.one != nil {
		return c.one
	}
	return c.many.leaves[0][0].hole
}

// put enters a hole by its size.
func (hs *holes) put(h *hole) {
	k := class(h.bytes)
	c, bit := &hs.classes[k], uint64(1)<<(k&63)
	if hs.some[k>>6]&bit == 0 {
		hs.some[k>>6] |= bit
		hs.top |= 1 << (k >> 6)
		c.one = h
		return
	}
	if c.many == nil {
		c.many = new(sorted)
	}
	if c.one != nil {
		c.many.put(c.one.entry())
		c.one = nil
	}
	c.many.put(h.entry())
}

// out is the opposite of put.
func (hs *holes) out(h *hole) {
	k := class(h.bytes)
	c := &hs.classes[k]
	if c.one == nil {
		if c.many.drop(c.many.seek(h.entry())); len(c.many.leaves) > 0 {
			return
		}
	}
	c.one = nil
	if hs.some[k>>6] &^= 1 << (k & 63); hs.some[k>>6] == 0 {
		hs.top &^= 1 << (k >> 6)
	}
}

// enter makes h the hole from first to last.
func (hs *holes) enter(h *hole, first, last *part) {
	h.addr, h.bytes, h.first, h.last = first.addr, last.end()-first.addr, first, last
	hs.tag(first, h)
	hs.tag(last, h)
	hs.put(h)
}

// fresh is a hole that enter fills in.
func (hs *holes) fresh() *hole {
	if h := hs.spare; h != nil {
		hs.spare = h.next
		return h
	}
	if len(hs.unused) == 0 {
		hs.unused = make([]hole, atOnce)
	}
	h := &hs.unused[0]
	hs.unused = hs.unused[1:]
	return h
}

// forget keeps a hole that is no more for the next one.
func (hs *holes) forget(h *hole) {
	*h = hole{next: hs.spare}
	hs.spare = h
}

// add adds a part that the lane's streams may have from now on.
func (hs *holes) add(s *part) {
	hs.total += s.bytes
	first, last := s, s
	var h *hole
	if hs.may(s.prev) {
		h = hs.of(s.prev)
		hs.out(h)
		first = h.first
	}
	if hs.may(s.next) && hs.of(s.next) != nil {
		o := hs.of(s.next)
		hs.out(o)
		last = o.last
		if h != nil {
			hs.forget(o)
		} else {
			h = o
		}
	}
	if h == nil {
		h = hs.fresh()
	}
	hs.enter(h, first, last)
}

// cut removes the free parts from one to another of the chunk.
func (hs *holes) cut(from, to *part) {
	s, end := from, to.next
	if hs.may(s) && hs.may(s.prev) {
		// The hole begins before: of another lane's free, or the scan would have it.
		first := s.prev
		for hs.may(first.prev) {
			first = first.prev
		}
		h := hs.of(first)
		last := h.last
		hs.out(h)
		hs.enter(h, first, s.prev)
		hs.total -= min(last.end(), to.end()) - s.addr
		if last.addr > to.addr {
			hs.enter(hs.fresh(), end, last)
			return
		}
		s = last.next
	}
	for s != end {
		if !hs.may(s) {
			s = s.next
			continue
		}
		h := hs.of(s)
		last := h.last
		hs.out(h)
		hs.total -= min(last.end(), to.end()) - s.addr
		if last.addr > to.addr {
			hs.enter(h, end, last)
			return
		}
		hs.forget(h)
		s = last.next
	}
}
