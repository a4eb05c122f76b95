package memory

// Where in one heap blocks lie whose lives are known beforehand: what XLA's
// buffer assignment does (GlobalDecreasingSizeBestFitHeap, 2026).

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// A Block is memory of which the life is known.
type Block struct {
	Bytes uint64
	// Start and End are when it is made and freed, both included: blocks of
	// which one ends when the other starts lie side by side. Nothing happens
	// between.
	Start, End int
	// With is another block in whose memory this one has to lie, named by its
	// place in the list; itself: none. Blocks that lie together may live at
	// different times, and others may lie there in between.
	With int
}

// Alignment is that of values in XLA's heaps on GPUs: 256 bytes
// (kXlaAllocatedBufferAlignBytes, 2026).
const Alignment = 256

// maxHeap is where addresses end, as in XLA.
const maxHeap = math.MaxInt64

// Pack places blocks in one heap so that no two overlap that live at the same
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
func Pack(blocks []Block, alignment uint64) (heap uint64, offsets []uint64, err error) {
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
}

func newPacker(blocks []Block, alignment uint64) (*packer, error) {
	if alignment == 0 || alignment > maxHeap {
		return nil, fmt.Errorf("memory: alignment %d: expected 1 or more", alignment)
	}
	p := &packer{blocks: blocks, alignment: alignment, groups: make([][]int32, len(blocks)), start: make([]int32, len(blocks)), end: make([]int32, len(blocks))}
	var times []int
	top := make([]int32, len(blocks)) // the first block of the group, -1: not known yet
	for k, b := range blocks {
		if b.End < b.Start {
			return nil, fmt.Errorf("memory: block %d ends at %d, before it starts at %d", k, b.End, b.Start)
		}
		if b.With < 0 || b.With >= len(blocks) {
			return nil, fmt.Errorf("memory: block %d lies with block %d: there is none", k, b.With)
		}
		if b.Bytes > maxHeap {
			return nil, fmt.Errorf("memory: block %d of %d bytes: a heap ends at 2^63-1", k, b.Bytes)
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
			return fmt.Errorf("memory: block %d lies with itself, by way of others", k)
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

var errHeap = errors.New("memory: a heap of more than 2^63-1 bytes, or of more places than can be told apart")

// place puts groups down in an order.
func (p *packer) place(order []int32) (heap uint64, offsets []uint64, err error) {
	offsets = make([]uint64, len(p.blocks))
	spans := make([]span, len(order))
	t := newTimeline(p.times)
	// A key is a span's place, in steps of the alignment, then its number: so that
	// numbers are sorted, which takes most of the time.
	shift := bits.Len(uint(len(order)))
	var used []uint64
	for n, k := range order {
		group := p.groups[k]
		used = used[:0]
		for _, b := range group {
			used = t.overlapping(used, p.start[b], p.end[b])
		}
		slices.Sort(used)
		bytes := p.bytes(group)
		at, ok := p.hole(used, spans, 1<<shift-1, bytes)
		if !ok || bits.Len64(at/p.alignment) > 64-shift {
			return 0, nil, errHeap
		}
		spans[n] = span{at, at + bytes}
		heap = max(heap, at+bytes)
		for _, b := range group {
			offsets[b] = at
			t.add(p.start[b], p.end[b], at/p.alignment<<shift|uint64(n))
		}
	}
	return heap, offsets, nil
}

// A span is bytes that are taken.
type span struct{ from, to uint64 }

// hole is the smallest hole between the spans of sorted keys that holds bytes, the
// lowest of equal ones. Behind the last span there is one without end.
func (p *packer) hole(used []uint64, spans []span, mask, bytes uint64) (at uint64, ok bool) {
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
		s := spans[used[k]&mask]
		start, end := s.from, s.to
		for k++; k < len(used) && spans[used[k]&mask].from < end; k++ {
			end = max(end, spans[used[k]&mask].to)
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

// A timeline knows which keys are there when. Those that are at a time lie in the
// nodes above that time's leaf of a binary tree; those that begin in a stretch of
// time are found by their beginning. So none is found twice.
type timeline struct {
	leaves int
	nodes  [][]uint64
	begin  [][]uint64
}

func newTimeline(times int) *timeline {
	leaves := 1
	for leaves < times {
		leaves *= 2
	}
	return &timeline{leaves, make([][]uint64, 2*leaves), make([][]uint64, times)}
}

func (t *timeline) add(start, end int32, key uint64) {
	t.begin[start] = append(t.begin[start], key)
	for l, r := t.leaves+int(start), t.leaves+int(end)+1; l < r; l, r = l/2, r/2 {
		if l&1 == 1 {
			t.nodes[l] = append(t.nodes[l], key)
			l++
		}
		if r&1 == 1 {
			r--
			t.nodes[r] = append(t.nodes[r], key)
		}
	}
}

func (t *timeline) overlapping(list []uint64, start, end int32) []uint64 {
	for n := t.leaves + int(start); n > 0; n /= 2 {
		list = append(list, t.nodes[n]...)
	}
	for _, keys := range t.begin[start+1 : end+1] {
		list = append(list, keys...)
	}
	return list
}
