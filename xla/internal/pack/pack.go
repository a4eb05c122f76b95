// Package pack places blocks in one heap when their lifetimes are known beforehand.
//
// [BestFit] places them as XLA's buffer assignment does
// (GlobalDecreasingSizeBestFitHeap, 2026). [Search] spends more time and finds a heap
// that is at most as large.
//
// For example, of four blocks {bytes, start, end}, a {2, 2, 5}, b {3, 5, 8}, c {2, 2, 2}
// and d {2, 0, 3}, BestFit places the largest first: b at 0. a lives at step 5 as b does
// and goes above it, to 3; d does not meet b and goes to 0. That leaves no hole for c,
// which goes to 5: a heap of 7 bytes. Search finds 6, with a at 0, b and c at 2, d at 4.
//
// Bytes upwards, steps 0 to 8 to the right:
//
//	BestFit                 Search
//	6  . . c . . . . . .
//	5  . . c . . . . . .    d d d d . . . . .
//	4  . . a a a a . . .    d d d d . b b b b
//	3  . . a a a a . . .    . . c . . b b b b
//	2  . . . . . b b b b    . . c . . b b b b
//	1  d d d d . b b b b    . . a a a a . . .
//	0  d d d d . b b b b    . . a a a a . . .
//
// At step 2 a, c and d live, 6 bytes in all, so that no heap is smaller than 6.
//
// A step counts for each block that lives at its beginning or its end: one that ends at 5 and
// one that begins at 5 are there together. Package memory counts times in smaller steps, so
// that a value which takes over the memory of another comes after it, and puts values that
// have to lie together into one group (With).
//
// Files: pack.go has XLA's two orders, and the tree that finds what is taken when. search.go
// has the tries of Search, backtrack.go what one try does.
package pack

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// A Block is memory whose lifetime is known.
type Block struct {
	Bytes uint64
	// Start and End are the steps at which it is allocated and freed, both included:
	// a block that ends when another starts cannot share its memory.
	Start, End int
	// With is the index of a block whose offset this one must have, or its own index
	// if there is none. Blocks with the same offset may live at different times, and
	// others may lie there in between.
	With int
}

// Alignment is the alignment of values in XLA's heaps on GPUs: 256 bytes
// (kXlaAllocatedBufferAlignBytes, 2026).
const Alignment = 256

// AlignmentCPU is that in XLA's heaps on CPUs (cpu_function_runtime::MinAlign).
const AlignmentCPU = 64

// maxHeap is where addresses end, as in XLA.
const maxHeap = math.MaxInt64

// BestFit places blocks in one heap so that no two overlap that live at the same
// time. It returns the heap's size in bytes, and the blocks' offsets, multiples
// of alignment (at least 1), in bytes.
//
// Like XLA, it tries two orders and keeps the better heap, the first if they are
// equal: the largest blocks first, and the longest-lived groups first. Each block
// in turn goes to the smallest hole that is free for its life and that of the blocks
// that lie with it. This is no optimum: heaps of 1.3 to 1.4 times what lives
// at once are known for hard cases.
//
// The error is of blocks that end before they start, lie with none or in a
// circle, or make a heap of more than 2^63-1 bytes.
func BestFit(blocks []Block, alignment uint64) (heap uint64, offsets []uint64, err error) {
	p, err := newPacker(blocks, alignment)
	if err != nil {
		return 0, nil, err
	}
	// The two orders are placed at the same time.
	var second struct {
		heap    uint64
		offsets []uint64
		err     error
	}
	var beside sync.WaitGroup
	beside.Go(func() { second.heap, second.offsets, second.err = p.place(p.byDuration()) })
	heap, offsets, err = p.place(p.bySize())
	beside.Wait()
	if err != nil {
		return 0, nil, err
	}
	// A second order that fails leaves the first one's heap, which holds everything.
	if second.err == nil && second.heap < heap {
		heap, offsets = second.heap, second.offsets
	}
	return heap, offsets, nil
}

// A packer has what both orders need. Only the order of times counts, not how far apart they
// are: of the example 0, 2, 3, 5 and 8 become 0 to 4, so that a lives from 1 to 3.
//
// A group is the blocks that lie together, known by the first of them: by following With to a
// block that lies with itself. A group is placed as a whole, at one offset, and takes as many
// bytes as its largest block while any of them lives. In between others may lie there.
type packer struct {
	blocks    []Block
	alignment uint64
	groups    [][]int32 // by the first block of a group: all of it; nil for others
	// Times, numbered in their order from 0.
	start, end []int32
	times      int
	looked     atomic.Int64 // spans that were looked at, for tests
}

// newPacker checks the blocks, numbers their times and finds the groups.
func newPacker(blocks []Block, alignment uint64) (*packer, error) {
	if alignment == 0 || alignment > maxHeap {
		return nil, fmt.Errorf("pack: alignment %d: expected 1 or more", alignment)
	}
	p := &packer{blocks: blocks, alignment: alignment, groups: make([][]int32, len(blocks))}
	p.start, p.end = make([]int32, len(blocks)), make([]int32, len(blocks))
	var times []int
	top := make([]int32, len(blocks)) // the first block of the group, -1: not known yet
	for k, b := range blocks {
		if b.End < b.Start {
			return nil, fmt.Errorf("pack: block %d ends at %d, before it starts at %d", k, b.End, b.Start)
		}
		if b.With < 0 || b.With >= len(blocks) {
			return nil, fmt.Errorf("pack: block %d lies with block %d: there is none", k, b.With)
		}
		if b.Bytes > maxHeap {
			return nil, fmt.Errorf("pack: block %d of %d bytes: a heap ends at 2^63-1", k, b.Bytes)
		}
		times = append(times, b.Start, b.End)
		top[k] = -1
	}
	slices.Sort(times)
	times = slices.Compact(times)
	p.times = len(times)
	for k, b := range blocks {
		s, _ := slices.BinarySearch(times, b.Start)
		e, _ := slices.BinarySearch(times, b.End)
		p.start[k], p.end[k] = int32(s), int32(e)
		if err := findTop(blocks, top, k); err != nil {
			return nil, err
		}
		p.groups[top[k]] = append(p.groups[top[k]], int32(k))
	}
	return p, nil
}

// findTop sets top of a block and of all on the way to the first of its group. The way is
// followed once for each block, however long the chains are.
func findTop(blocks []Block, top []int32, k int) error {
	var path []int
	for top[k] < 0 && blocks[k].With != k {
		if path = append(path, k); len(path) > len(blocks) {
			return fmt.Errorf("pack: block %d lies with itself, by way of others", k)
		}
		k = blocks[k].With
	}
	if top[k] < 0 {
		top[k] = int32(k)
	}
	for _, q := range path {
		top[q] = top[k]
	}
	return nil
}

// bytes is what a group takes: the most of its blocks. It may be 0: then it has no place.
func (p *packer) bytes(group []int32) (n uint64) {
	for _, k := range group {
		n = max(n, p.blocks[k].Bytes)
	}
	return n
}

// order is the first blocks of all groups that take memory, sorted. Equal ones stay in the
// order of their numbers, so that the result does not depend on the sort.
func (p *packer) order(compare func(a, b int32) int) []int32 {
	var list []int32
	for k, g := range p.groups {
		if g != nil && p.bytes(g) > 0 {
			list = append(list, int32(k))
		}
	}
	slices.SortFunc(list, func(a, b int32) int { return cmp.Or(compare(a, b), cmp.Compare(a, b)) })
	return list
}

// bySize is XLA's spatial order: the first block's size, then its duration. Of a group the
// first block counts, not the largest, as in XLA.
func (p *packer) bySize() []int32 {
	return p.order(func(a, b int32) int {
		x, y := &p.blocks[a], &p.blocks[b]
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.End-y.Start, x.End-x.Start))
	})
}

// byDuration is XLA's temporal order: from the group's first start to its last
// end, then the first block's size. What lives longest meets most others, and lies at the
// bottom, where it divides no hole.
func (p *packer) byDuration() []int32 {
	long := make([]int, len(p.blocks))
	for k, g := range p.groups {
		if g == nil {
			continue
		}
		from, to := math.MaxInt, math.MinInt
		for _, b := range g {
			from, to = min(from, p.blocks[b].Start), max(to, p.blocks[b].End)
		}
		long[k] = to - from
	}
	return p.order(func(a, b int32) int {
		return cmp.Or(cmp.Compare(long[b], long[a]), cmp.Compare(p.blocks[b].Bytes, p.blocks[a].Bytes))
	})
}

var errHeap = errors.New("pack: a heap of more than 2^63-1 bytes")

// place puts groups down in an order: each into the smallest hole that is free whenever one of
// its blocks lives. In the example, b first: offset 0. a: at step 5 the bytes 0 to 3 are
// taken, so it goes to 3. d meets a alone, which has 3 to 5: the hole below it, of 3 bytes,
// is smaller than the endless one above, so it goes to 0. c meets a and d, which leave 1 byte
// between them, too few: it goes to 5.
func (p *packer) place(order []int32) (heap uint64, offsets []uint64, err error) {
	offsets = make([]uint64, len(p.blocks))
	t := newTimeline(p.times, p.alignment)
	var used merger
	for _, k := range order {
		group := p.groups[k]
		used.lists = used.lists[:0]
		for _, b := range group {
			used.lists = t.overlapping(used.lists, p.start[b], p.end[b])
		}
		bytes := p.bytes(group)
		at, ok := p.hole(used.merge(), bytes)
		if !ok {
			return 0, nil, errHeap
		}
		heap = max(heap, at+bytes)
		for _, b := range group {
			offsets[b] = at
			t.add(p.start[b], p.end[b], span{at, at + bytes})
		}
	}
	p.looked.Add(int64(t.looked))
	return heap, offsets, nil
}

// A span is bytes that are taken, from the first to the one behind the last.
type span struct{ from, to uint64 }

// hole is the smallest hole between sorted spans that holds bytes, the lowest of equal
// ones. Behind the last span there is one without end. Spans may overlap. A hole begins at a
// multiple of the alignment, so that a little of it may be lost.
func (p *packer) hole(used []span, bytes uint64) (at uint64, ok bool) {
	best := uint64(math.MaxUint64)
	from := uint64(0)
	try := func(to uint64) {
		if to < from || to-from < bytes {
			return
		}
		if size := to - from; !ok || size < best {
			at, ok, best = from, true, size
		}
	}
	// Spans that overlap or touch are one, from start to end; the holes are between those.
	for k := 0; k < len(used); {
		start, end := used[k].from, used[k].to
		for k++; k < len(used) && used[k].from < end; k++ {
			end = max(end, used[k].to)
		}
		try(start)
		if end > maxHeap-p.alignment {
			return at, ok
		}
		from = max(from, (end+p.alignment-1)/p.alignment*p.alignment)
	}
	try(maxHeap)
	return at, ok
}

// A timeline knows which bytes are taken when, in a binary tree over time. What is taken
// for a stretch of time lies in the few nodes that make it up (whole), and in all nodes
// above its ends (some). Spans between which there is no hole are one: blocks that are
// packed well make few, however many they are.
//
// With five times there are eight leaves, nodes 8 to 15. b of the example lives at times 3
// and 4, leaves 11 and 12. No node covers just these two, so that whole of 11 and of 12 has
// the span 0 to 3, and some of all nodes above them has it, too: 5, 6, 2, 3 and 1. To find
// what is taken from time 1 to 3, look at some of the nodes that make up this stretch, 9 and
// 5, and at whole of its ends and all above them: 9, 4, 2 and 1 at the left, 11, 5, 2 and 1
// at the right. To add a span costs the depth of the tree; to look, the depth and the spans
// that are found.
type timeline struct {
	leaves      int
	alignment   uint64
	whole, some [][]span
	looked      int // spans that were looked at, for tests
}

func newTimeline(times int, alignment uint64) *timeline {
	// A power of two, so that the parent of node n is n/2 and the root is 1.
	leaves := 1
	for leaves < times {
		leaves *= 2
	}
	return &timeline{leaves: leaves, alignment: alignment, whole: make([][]span, 2*leaves), some: make([][]span, 2*leaves)}
}

// add takes a span from start to end, both included. Whether it is free is not checked: place
// has looked for a hole before.
func (t *timeline) add(start, end int32, s span) {
	first, last := t.leaves+int(start), t.leaves+int(end)
	t.cover(start, end, func(n int) {
		t.whole[n] = t.join(t.whole[n], s)
		t.some[n] = t.join(t.some[n], s)
	})
	for l, r := first, last; l > 0; l, r = l/2, r/2 {
		t.some[l] = t.join(t.some[l], s)
		if r != l {
			t.some[r] = t.join(t.some[r], s)
		}
	}
}

// overlapping appends lists of what is taken at some time from start to end, each sorted,
// with some of it more than once. The lists are the tree's own and must not be changed.
func (t *timeline) overlapping(lists [][]span, start, end int32) [][]span {
	add := func(list []span) {
		if len(list) > 0 {
			lists = append(lists, list)
			t.looked += len(list)
		}
	}
	t.cover(start, end, func(n int) { add(t.some[n]) })
	for l, r := t.leaves+int(start), t.leaves+int(end); l > 0; l, r = l/2, r/2 {
		add(t.whole[l])
		if r != l {
			add(t.whole[r])
		}
	}
	return lists
}

// cover calls f with the nodes that together are the time from start to end: at most two on
// each level of the tree.
func (t *timeline) cover(start, end int32, f func(node int)) {
	for l, r := t.leaves+int(start), t.leaves+int(end)+1; l < r; l, r = l/2, r/2 {
		if l&1 == 1 {
			f(l)
			l++
		}
		if r&1 == 1 {
			r--
			f(r)
		}
	}
}

// join puts a span into a sorted list, as one with those that it leaves no hole to: less than
// the alignment is no hole, as nothing can begin in it.
func (t *timeline) join(list []span, s span) []span {
	// From the first span that reaches up to s, rounded up, to the last one that s reaches.
	i, _ := slices.BinarySearchFunc(list, s.from, func(x span, from uint64) int { return cmp.Compare(t.up(x.to), from) })
	j := i
	for end := t.up(s.to); j < len(list) && list[j].from <= end; j++ {
		s.from, s.to = min(s.from, list[j].from), max(s.to, list[j].to)
		end = t.up(s.to)
	}
	return slices.Replace(list, i, j, s)
}

// up is where the next block can begin.
func (t *timeline) up(to uint64) uint64 {
	to += t.alignment - 1
	if t.alignment&(t.alignment-1) == 0 { // as in XLA, and much faster than to divide
		return to &^ (t.alignment - 1)
	}
	return to / t.alignment * t.alignment
}

// A merger makes one sorted list of several.
type merger struct {
	lists [][]span
	spare [2][]span // in which lists are merged by turns
}

// merge returns all spans of the lists, sorted, and leaves lists to be filled anew. The
// result is valid until the next call. Lists are merged two by two, round after round, so
// that a span is moved as often as the logarithm of the number of lists.
func (m *merger) merge() []span {
	for turn := 0; len(m.lists) > 1; turn ^= 1 {
		out := m.spare[turn][:0]
		n := 0
		for k := 0; k < len(m.lists); k += 2 {
			from := len(out)
			if k+1 < len(m.lists) {
				out = mergeTwo(out, m.lists[k], m.lists[k+1])
			} else {
				out = append(out, m.lists[k]...)
			}
			m.lists[n] = out[from:] // what is appended later may lie elsewhere, and this stays
			n++
		}
		m.lists, m.spare[turn] = m.lists[:n], out
	}
	if len(m.lists) == 0 {
		return nil
	}
	return m.lists[0]
}

// mergeTwo appends the spans of two sorted lists in order, and those that overlap as one. It
// never joins a span to what out had before.
func mergeTwo(out, a, b []span) []span {
	from := len(out)
	for len(a) > 0 || len(b) > 0 {
		var s span
		if len(b) == 0 || len(a) > 0 && a[0].from <= b[0].from {
			s, a = a[0], a[1:]
		} else {
			s, b = b[0], b[1:]
		}
		if n := len(out) - 1; n >= from && s.from <= out[n].to {
			out[n].to = max(out[n].to, s.to)
		} else {
			out = append(out, s)
		}
	}
	return out
}
