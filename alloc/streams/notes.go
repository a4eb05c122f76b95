package streams

import "sort"

// Notes of free memory, by address: what a Guard knows of work that may still use it.
//
// Blocks [0, 8) and [8, 12) are freed in stream 1, in KiB, with marks m1 and m2. Another
// stream gets [4, 10):
//
//	add [0, 8) m1, add [8, 12) m2    notes [0, 8) m1, [8, 12) m2
//	over [4, 10)                     visits both: the new stream waits for m1 and m2
//	cut [4, 10)                      notes [0, 4) m1, [10, 12) m2
//
// A note that is cut in the middle becomes two with the same marks, which are shared, so
// that each releases them once.

// note is about free memory: the marks after the work that may still use it.
type note struct {
	addr, bytes uint64
	marks       []*Mark // not changed once made: the parts of a note that is cut share it
}

func (n note) end() uint64 { return n.addr + n.bytes }

// notes are ordered by address and do not overlap. There are at most as many as
// there are pieces of memory freed and not reused since: hundreds in
// most programs, a hundred thousand where the GPU lags behind. They lie in leaves
// of leafNotes at most, so that an insertion moves few of them.
type notes struct {
	leaves [][]note // none is empty
	n      int
	limit  int // many reports true above it
}

const (
	leafNotes = 128
	// firstLimit is how many notes are kept before they are looked through.
	firstLimit = 256
)

// many reports whether it is time to look for notes that have passed: there are
// twice as many as were left the last time. So a look costs each note O(1).
func (n *notes) many() bool { return n.n > max(n.limit, firstLimit) }

// find returns the place of the first note that ends above addr; leaf is
// len(n.leaves) if there is none.
func (n *notes) find(addr uint64) (leaf, i int) {
	leaf = sort.Search(len(n.leaves), func(k int) bool {
		l := n.leaves[k]
		return l[len(l)-1].end() > addr
	})
	if leaf < len(n.leaves) {
		l := n.leaves[leaf]
		i = sort.Search(len(l), func(k int) bool { return l[k].end() > addr })
	}
	return leaf, i
}

// over visits the notes that overlap [addr, addr+bytes), until yield is false.
func (n *notes) over(addr, bytes uint64, yield func(note) bool) {
	leaf, i := n.find(addr)
	for ; leaf < len(n.leaves); leaf, i = leaf+1, 0 {
		for ; i < len(n.leaves[leaf]); i++ {
			one := n.leaves[leaf][i]
			if one.addr >= addr+bytes || !yield(one) {
				return
			}
		}
	}
}

// cut takes [addr, addr+bytes) out. gone is called with the marks of each note
// that nothing is left of.
func (n *notes) cut(addr, bytes uint64, gone func(...*Mark)) {
	top := addr + bytes
	for {
		leaf, i := n.find(addr)
		if leaf == len(n.leaves) || n.leaves[leaf][i].addr >= top {
			return
		}
		one := &n.leaves[leaf][i]
		above := note{top, one.end() - top, one.marks}
		below := one.addr < addr
		switch {
		case below && one.end() > top:
			one.bytes = addr - one.addr
			for _, m := range above.marks {
				m.Share()
			}
			n.insert(leaf, i+1, above)
			return
		case below:
			one.bytes = addr - one.addr
		case one.end() > top:
			*one = above
			return
		default:
			gone(one.marks...)
			n.remove(leaf, i)
		}
	}
}

// add adds a note where there is none.
func (n *notes) add(one note) {
	leaf, i := n.find(one.addr)
	if leaf == len(n.leaves) && leaf > 0 {
		leaf--
		i = len(n.leaves[leaf])
	}
	n.insert(leaf, i, one)
}

func (n *notes) insert(leaf, i int, one note) {
	n.n++
	if len(n.leaves) == 0 {
		n.leaves = [][]note{{one}}
		return
	}
	l := append(n.leaves[leaf], note{})
	copy(l[i+1:], l[i:])
	l[i] = one
	n.leaves[leaf] = l
	if len(l) <= leafNotes {
		return
	}
	half := len(l) / 2
	upper := append(make([]note, 0, leafNotes+1), l[half:]...)
	clear(l[half:])
	n.leaves[leaf] = l[:half]
	n.leaves = append(n.leaves, nil)
	copy(n.leaves[leaf+2:], n.leaves[leaf+1:])
	n.leaves[leaf+1] = upper
}

func (n *notes) remove(leaf, i int) {
	n.n--
	l := n.leaves[leaf]
	copy(l[i:], l[i+1:])
	l[len(l)-1] = note{}
	if l = l[:len(l)-1]; len(l) > 0 {
		n.leaves[leaf] = l
		return
	}
	n.leaves = append(n.leaves[:leaf], n.leaves[leaf+1:]...)
}

// drop removes the notes for which passed is true. gone is called with the marks
// of each.
func (n *notes) drop(passed func(note) bool, gone func(...*Mark)) {
	var kept [][]note
	n.n = 0
	for _, l := range n.leaves {
		left := l[:0]
		for _, one := range l {
			if passed(one) {
				gone(one.marks...)
				continue
			}
			left = append(left, one)
		}
		clear(l[len(left):])
		if len(left) > 0 {
			kept = append(kept, left)
			n.n += len(left)
		}
	}
	n.leaves = kept
	n.limit = 2 * n.n
}
