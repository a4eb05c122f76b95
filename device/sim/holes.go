// This file has the lists that a pool keeps of what is free in it, made so that
// an allocation looks at a few entries and not at all: a replay makes millions
// in pools of 10,000 blocks.

package sim

import "slices"

// orderly is what a sorted list holds.
type orderly[T any] interface{ before(T) bool }

// sorted is a list in order. No two entries are equal. It is cut into leaves as a
// space is (space.go), for the same reason.
type sorted[T orderly[T]] struct {
	leaves [][]T // none is empty
	spare  []T   // the room of a leaf that became empty
}

// place is where an entry of a sorted list is. It is good until the next put or
// drop.
type place struct{ leaf, i int }

// seek is the place of the first entry that is not before x.
func (s *sorted[T]) seek(x T) place {
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
func (s *sorted[T]) at(p place) *T {
	if p.leaf == len(s.leaves) {
		return nil
	}
	return &s.leaves[p.leaf][p.i]
}

// prev is the entry before p, nil where there is none.
func (s *sorted[T]) prev(p place) *T {
	switch {
	case p.i > 0:
		return &s.leaves[p.leaf][p.i-1]
	case p.leaf > 0:
		leaf := s.leaves[p.leaf-1]
		return &leaf[len(leaf)-1]
	}
	return nil
}

// put adds an entry.
func (s *sorted[T]) put(x T) {
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
func (s *sorted[T]) drop(p place) place {
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

// all visits the entries in order. None may be put or dropped meanwhile.
func (s *sorted[T]) all(yield func(*T) bool) {
	for _, leaf := range s.leaves {
		for i := range leaf {
			if !yield(&leaf[i]) {
				return
			}
		}
	}
}

// hole is a run of addresses in a chunk that a stream may have.
type hole struct {
	addr, bytes uint64
	in          *chunk
}

// bySize has the smallest first, and of those alike the one at the lowest
// address; byAddr has that alone.
type (
	bySize hole
	byAddr hole
)

func (h bySize) before(o bySize) bool {
	return h.bytes < o.bytes || h.bytes == o.bytes && h.addr < o.addr
}

func (h byAddr) before(o byAddr) bool { return h.addr < o.addr }

// holes are runs that do not overlap. Those that touch in one chunk are one.
type holes struct {
	sizes sorted[bySize]
	addrs sorted[byAddr] // the same
	total uint64         // bytes of all
}

// fit is the address of the smallest hole of at least n bytes, the lowest of
// those; false where there is none.
func (hs *holes) fit(n uint64) (addr uint64, ok bool) {
	if h := hs.sizes.at(hs.sizes.seek(bySize{bytes: n})); h != nil {
		return h.addr, true
	}
	return 0, false
}

// add adds a run, of which nothing is there yet.
func (hs *holes) add(h hole) {
	hs.total += h.bytes
	p := hs.addrs.seek(byAddr(h))
	before, after := hs.addrs.prev(p), hs.addrs.at(p)
	joinBefore := before != nil && before.in == h.in && before.addr+before.bytes == h.addr
	joinAfter := after != nil && after.in == h.in && h.addr+h.bytes == after.addr
	if joinAfter {
		hs.unsize(hole(*after))
		h.bytes += after.bytes
	}
	switch {
	case joinBefore:
		hs.unsize(hole(*before))
		before.bytes += h.bytes
		h = hole(*before)
		if joinAfter {
			hs.addrs.drop(p)
		}
	case joinAfter:
		*after = byAddr(h)
	default:
		hs.addrs.put(byAddr(h))
	}
	hs.sizes.put(bySize(h))
}

// cut removes the parts that lie in [addr, addr+bytes).
func (hs *holes) cut(addr, bytes uint64) {
	end := addr + bytes
	p := hs.addrs.seek(byAddr{addr: addr})
	if h := hs.addrs.prev(p); h != nil && h.addr+h.bytes > addr {
		// It begins before: its first part stays where it is in the list.
		rest := h.addr + h.bytes
		hs.unsize(hole(*h))
		h.bytes = addr - h.addr
		hs.sizes.put(bySize(*h))
		hs.total -= rest - addr
		if rest > end {
			hs.add(hole{end, rest - end, h.in})
			return
		}
	}
	for h := hs.addrs.at(p); h != nil && h.addr < end; h = hs.addrs.at(p) {
		hs.unsize(hole(*h))
		if h.addr+h.bytes > end {
			hs.total -= end - h.addr
			h.addr, h.bytes = end, h.addr+h.bytes-end
			hs.sizes.put(bySize(*h))
			return
		}
		hs.total -= h.bytes
		p = hs.addrs.drop(p)
	}
}

// unsize takes a hole out of the list of sizes.
func (hs *holes) unsize(h hole) { hs.sizes.drop(hs.sizes.seek(bySize(h))) }
