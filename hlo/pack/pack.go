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
package pack

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
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
	heap, offsets, err = p.place(p.bySize())
	if err != nil {
		return 0, nil, err
	}
	if h, o, err := p.place(p.byDuration()); err == nil && h < heap {
		heap, offsets = h, o
	}
	return heap, offsets, nil
}

// A packer has what both orders need.
type packer struct {
	blocks    []Block
	alignment uint64
	groups    [][]int32 // by the first block of a group: all of it; nil for others
	// Times, numbered in their order from 0.
	start, end []int32
	times      int
	looked     int // spans that were looked at, for tests
}

func newPacker(blocks []Block, alignment uint64) (*packer, error) {
	if alignment == 0 || alignment > maxHeap {
		return nil, fmt.Errorf("pack: alignment %d: expected 1 or more", alignment)
	}
	p := &packer{blocks: blocks, alignment: alignment, groups: make([][]int32, len(blocks)), start: make([]int32, len(blocks)), end: make([]int32, len(blocks))}
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

// bytes is what a group takes: the most of its blocks.
func (p *packer) bytes(group []int32) (n uint64) {
	for _, k := range group {
		n = max(n, p.blocks[k].Bytes)
	}
	return n
}

// order is the first blocks of all groups that take memory, sorted.
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

// bySize is XLA's spatial order: the first block's size, then its duration.
func (p *packer) bySize() []int32 {
	return p.order(func(a, b int32) int {
		x, y := &p.blocks[a], &p.blocks[b]
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.End-y.Start, x.End-x.Start))
	})
}

// byDuration is XLA's temporal order: from the group's first start to its last
// end, then the first block's size.
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

// place puts groups down in an order.
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
	p.looked += t.looked
	return heap, offsets, nil
}

// A span is bytes that are taken.
type span struct{ from, to uint64 }

// hole is the smallest hole between sorted spans that holds bytes, the lowest of equal
// ones. Behind the last span there is one without end.
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
type timeline struct {
	leaves      int
	alignment   uint64
	whole, some [][]span
	looked      int // spans that were looked at, for tests
}

func newTimeline(times int, alignment uint64) *timeline {
	leaves := 1
	for leaves < times {
		leaves *= 2
	}
	return &timeline{leaves: leaves, alignment: alignment, whole: make([][]span, 2*leaves), some: make([][]span, 2*leaves)}
}

// add takes a span from start to end, both included.
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
// with some of it more than once.
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

// cover calls f with the nodes that together are the time from start to end.
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

// join puts a span into a sorted list, as one with those that it leaves no hole to.
func (t *timeline) join(list []span, s span) []span {
	i, _ := slices.BinarySearchFunc(list, s.from, func(x span, from uint64) int { return cmp.Compare(t.up(x.to), from) })
	j := i
	for end := t.up(s.to); j < len(list) && list[j].from <= end; j++ {
		s.from, s.to = min(s.from, list[j].from), max(s.to, list[j].to)
		end = t.up(s.to)
	}
	return slices.Replace(list, i, j, s)
}

// up is where the next block can begin.
func (t *timeline) up(to uint64) uint64 { return (to + t.alignment - 1) / t.alignment * t.alignment }

// A merger makes one sorted list of several.
type merger struct {
	lists [][]span
	spare [2][]span // in which lists are merged by turns
}

// merge returns all spans of the lists, sorted, and leaves lists to be filled anew. The
// result is valid until the next call.
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

// mergeTwo appends the spans of two sorted lists in order, and those that overlap as one.
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
