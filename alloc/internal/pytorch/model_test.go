package pytorch_test

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"gpumem/alloc/internal/pytorch"
)

// model is PyTorch's rules written down once more, slow and obvious: blocks are structs
// with pointers, a pool is an unordered slice that is sorted whenever an order matters,
// and nothing is reused. It shares nothing with the allocator but its Config. Its device
// is a count of bytes and a rule for addresses.
type model struct {
	cfg      pytorch.Config
	total    uint64
	place    func(bytes uint64) uint64 // the address of a grant or reservation
	gone     func(addr uint64)
	granted  uint64
	reserved uint64
	log      []string

	arenas    map[int]*mArena
	order     []*mArena // as they were made
	routes    []*mArena
	capturing int
	deferred  []*mBlock
	made      int                  // blocks and segments, for the ties
	events    map[uint32][]*mBlock // of each stream, in order; nil where one was dealt with
	passed    map[uint32]int       // how many of them have passed
	done      map[uint32]int       // how many were dealt with
	ooms      int
	retries   int
}

type mArena struct {
	id           int
	users        int
	large, small *mPool
	segments     int
}

type mPool struct {
	arena    *mArena
	small    bool
	free     []*mBlock
	unmapped []*mBlock
	finds    uint64
}

type mBlock struct {
	addr, size uint64
	prev, next *mBlock
	pool       *mPool
	stream     uint32
	segment    *mSegment
	used       bool // also while it waits
	mapped     bool
	made       int
	born       uint64
	waits      int
	others     []uint32
	captured   []uint32 // of others, those of a capture
}

type mSegment struct {
	addr, size uint64
	page       uint64 // 0: one grant
	made       int
}

func newModel(cfg pytorch.Config, total uint64) *model {
	m := &model{cfg: cfg, total: total, arenas: map[int]*mArena{}, events: map[uint32][]*mBlock{}, passed: map[uint32]int{}, done: map[uint32]int{}}
	if m.cfg.Slack == 0 {
		m.cfg.Slack = 20 << 20
	}
	if m.cfg.Segment == 0 {
		m.cfg.Segment = 20 << 20
	}
	m.arena(0)
	return m
}

func (m *model) arena(id int) *mArena {
	if x := m.arenas[id]; x != nil {
		return x
	}
	x := &mArena{id: id}
	x.large, x.small = &mPool{arena: x}, &mPool{arena: x, small: true}
	m.arenas[id] = x
	m.order = append(m.order, x)
	return x
}

func (m *model) call(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

func up(n, unit uint64) uint64 { return (n + unit - 1) / unit * unit }

func (m *model) block(b mBlock) *mBlock {
	m.made++
	b.made = m.made
	return &b
}

// before is the order of blocks in a pool.
func (m *model) before(a, b *mBlock) int {
	tie := 0
	switch m.cfg.Tie {
	case pytorch.ByObject:
		tie = cmp.Compare(a.made, b.made)
	case pytorch.BySegment:
		tie = cmp.Compare(a.segment.made, b.segment.made)
	}
	return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.size, b.size), tie, cmp.Compare(a.addr, b.addr))
}

func (m *model) sorted(blocks []*mBlock) []*mBlock {
	return slices.SortedFunc(slices.Values(blocks), m.before)
}

func (p *mPool) drop(b *mBlock) {
	isB := func(x *mBlock) bool { return x == b }
	p.free = slices.DeleteFunc(p.free, isB)
	p.unmapped = slices.DeleteFunc(p.unmapped, isB)
}

func (p *mPool) add(b *mBlock) {
	if !b.mapped {
		p.unmapped = append(p.unmapped, b)
		return
	}
	b.born = p.finds
	p.free = append(p.free, b)
}

func (m *model) round(n uint64) uint64 {
	if n < 512 {
		return 512
	}
	i := 0
	for i < 15 && n >= 2<<20<<i {
		i++
	}
	d := m.cfg.Divisions[i]
	if d == 1 && m.cfg.KeepSizes {
		return n
	}
	if d > 1 && n > 512*d {
		low := uint64(1) << (bits.Len64(n) - 1)
		if n == low {
			return n
		}
		return up(n, low/d)
	}
	return up(n, 512)
}

func (m *model) segmentSize(n uint64) uint64 {
	if n <= 1<<20 {
		return 2 << 20
	}
	if n < 10<<20 {
		return m.cfg.Segment
	}
	return up(n, 2<<20)
}

func (m *model) collects() bool { return m.cfg.Limit > 0 && m.cfg.GC > 0 }

func (m *model) maxSplit() uint64 {
	if m.cfg.MaxSplit == 0 {
		return 1 << 63
	}
	return m.cfg.MaxSplit
}

// alloc is nil if the request is refused.
func (m *model) alloc(n uint64, stream uint32) *mBlock {
	if m.capturing == 0 {
		m.processEvents()
	}
	n = m.round(n)
	arena := m.arenas[0]
	if len(m.routes) > 0 {
		arena = m.routes[0]
	}
	p := arena.large
	if n <= 1<<20 {
		p = arena.small
	}
	b := m.find(p, n, stream)
	if b == nil {
		m.collect()
		b = m.newMemory(p, n, stream)
		if b == nil && m.cfg.MaxSplit > 0 && m.releaseOversize(p, n, stream) {
			b = m.newMemory(p, n, stream)
		}
		if b == nil && m.capturing == 0 {
			m.releaseAll()
			m.retries++
			b = m.newMemory(p, n, stream)
		}
	}
	if b == nil {
		m.ooms++
		return nil
	}
	rest := b.size - n
	if (p.small || m.cfg.Expandable) && rest >= 512 || !p.small && !m.cfg.Expandable && n < m.maxSplit() && rest > 1<<20 {
		low := m.block(mBlock{addr: b.addr, size: n, prev: b.prev, next: b, pool: p, stream: stream, segment: b.segment, mapped: true})
		if low.prev != nil {
			low.prev.next = low
		}
		b.prev = low
		b.addr += n
		b.size -= n
		p.add(b)
		b = low
	}
	b.used = true
	return b
}

func (m *model) find(p *mPool, n uint64, stream uint32) *mBlock {
	if m.collects() {
		p.finds++
	}
	room := func(b *mBlock) uint64 {
		if b.next != nil && !b.next.mapped {
			return b.size + b.next.size
		}
		return b.size
	}
	var fits []*mBlock
	for _, b := range m.sorted(p.free) {
		if b.stream == stream && b.size >= n {
			fits = append(fits, b)
		}
	}
	if len(fits) == 0 {
		return nil
	}
	for fits[0].segment.page > 0 && len(fits) > 1 && room(fits[1]) < room(fits[0]) {
		fits = fits[1:]
	}
	b := fits[0]
	if n < m.maxSplit() && b.size >= m.maxSplit() || n >= m.maxSplit() && b.size >= n+m.cfg.Slack {
		return nil
	}
	p.drop(b)
	return b
}

func (m *model) newMemory(p *mPool, n uint64, stream uint32) *mBlock {
	size := m.segmentSize(n)
	if m.cfg.Limit > 0 && m.reserved+size > m.cfg.Limit {
		return nil
	}
	if m.cfg.Expandable && !(m.cfg.PrivateGrants && p.arena.id != 0) {
		return m.expand(p, n, stream)
	}
	if m.granted+size > m.total {
		m.call("X %d", size)
		return nil
	}
	m.granted += size
	m.reserved += size
	addr := m.place(size)
	m.call("M %#x %d", addr, size)
	m.made++
	p.arena.segments++
	return m.block(mBlock{addr: addr, size: size, pool: p, stream: stream, mapped: true, segment: &mSegment{addr: addr, size: size, made: m.made}})
}

func (b *mBlock) whole() bool { return b.prev == nil && b.next == nil && b.segment.page == 0 }

func (m *model) freeSegment(b *mBlock) {
	m.call("F %#x", b.addr)
	m.granted -= b.size
	m.reserved -= b.size
	b.pool.arena.segments--
	b.pool.drop(b)
	m.gone(b.addr)
}

func (m *model) collect() {
	threshold := uint64(m.cfg.GC * float64(m.cfg.Limit))
	if !m.collects() || m.reserved <= threshold {
		return
	}
	p := m.arenas[0].large
	target, freed := m.reserved-threshold, uint64(0)
	for {
		var idle []*mBlock
		var ages uint64
		for _, b := range m.sorted(p.free) {
			if b.whole() {
				idle = append(idle, b)
				ages += p.finds - b.born
			}
		}
		if freed >= target || len(idle) == 0 {
			return
		}
		mean := float64(ages) / float64(len(idle))
		for _, b := range idle {
			if float64(p.finds-b.born) >= mean {
				freed += b.size
				m.freeSegment(b)
			}
		}
	}
}

func (m *model) releaseOversize(p *mPool, n uint64, stream uint32) bool {
	target := max(n, m.maxSplit())
	var below []*mBlock
	for _, b := range m.sorted(p.free) {
		switch {
		case b.stream != stream:
		case b.size < target:
			below = append(below, b)
		case b.segment.page == 0:
			m.freeSegment(b)
			return true
		}
		if b.stream == stream && b.size >= target {
			break
		}
	}
	freed := uint64(0)
	for _, b := range slices.Backward(below) {
		if freed >= target || b.size < m.maxSplit() {
			break
		}
		if b.segment.page == 0 {
			freed += b.size
			m.freeSegment(b)
		}
	}
	return freed >= target
}

func (m *model) releaseAll() {
	m.awaitDeferred()
	for stream, list := range m.events {
		m.passed[stream] = len(list)
	}
	m.processEvents()
	for _, x := range slices.Clone(m.order) {
		pools := []*mPool{x.large, x.small}
		if x.id != 0 {
			if x.users > 0 {
				continue
			}
			slices.Reverse(pools)
		}
		for _, p := range pools {
			blocks := m.sorted(p.free)
			for _, b := range blocks {
				if b.whole() {
					m.freeSegment(b)
				}
			}
			for _, b := range blocks {
				if b.segment.page > 0 {
					m.unmap(b)
				}
			}
		}
		if x.id != 0 && x.segments == 0 {
			delete(m.arenas, x.id)
			m.order = slices.DeleteFunc(m.order, func(y *mArena) bool { return y == x })
		}
	}
}

// expand maps pages.
func (m *model) expand(p *mPool, n uint64, stream uint32) *mBlock {
	var start *mBlock
	slices.SortFunc(p.unmapped, func(a, b *mBlock) int { return cmp.Compare(a.addr, b.addr) })
	for _, b := range p.unmapped {
		if b.stream != stream {
			continue
		}
		if b.prev != nil && !b.prev.used {
			b = b.prev
		}
		room := uint64(0)
		for c := b; c != nil && !c.used; c = c.next {
			room += c.size
		}
		if room >= n {
			start = b
			break
		}
	}
	if start == nil {
		page := m.cfg.Segment
		if p.small {
			page = 2 << 20
		}
		bytes := m.total + m.total/8
		if m.cfg.Addresses > 0 {
			bytes = max(min(bytes, m.cfg.Addresses), n)
		}
		bytes = up(bytes, page)
		addr := m.place(bytes)
		m.call("V %#x %d", addr, bytes)
		m.made++
		p.arena.segments++
		start = m.block(mBlock{addr: addr, size: bytes, pool: p, stream: stream, segment: &mSegment{addr: addr, size: bytes, page: page, made: m.made}})
		p.add(start)
	}
	if !start.mapped && !m.mapPages(start, min(start.size, n)) {
		return nil
	}
	for start.size < n {
		next := start.next
		if next == nil || !m.mapPages(next, min(n-start.size, next.size)) {
			return nil
		}
		start = next
	}
	p.drop(start)
	return start
}

func (m *model) mapPages(b *mBlock, n uint64) bool {
	page := b.segment.page
	n = up(n, page)
	if m.granted+n > m.total {
		m.call("X %d", page)
		return false
	}
	for at := b.addr; at < b.addr+n; at += page {
		m.call("m %#x", at)
	}
	m.granted += n
	m.reserved += n
	b.pool.drop(b)
	b.mapped = true
	if n < b.size {
		rest := m.block(mBlock{addr: b.addr + n, size: b.size - n, prev: b, next: b.next, pool: b.pool, stream: b.stream, segment: b.segment})
		if b.next != nil {
			b.next.prev = rest
		}
		b.next = rest
		b.size = n
		b.pool.add(rest)
	}
	m.join(b)
	return true
}

func (m *model) unmap(b *mBlock) {
	page := b.segment.page
	lo := b.segment.addr + up(b.addr-b.segment.addr, page)
	hi := b.segment.addr + (b.addr+b.size-b.segment.addr)/page*page
	if lo >= hi {
		return
	}
	for at := lo; at < hi; at += page {
		m.call("u %#x", at)
	}
	m.granted -= hi - lo
	m.reserved -= hi - lo
	b.pool.drop(b)
	if lo > b.addr {
		x := m.block(mBlock{addr: b.addr, size: lo - b.addr, prev: b.prev, next: b, pool: b.pool, stream: b.stream, segment: b.segment, mapped: true})
		if b.prev != nil {
			b.prev.next = x
		}
		b.prev = x
		b.pool.add(x)
	}
	if end := b.addr + b.size; hi < end {
		x := m.block(mBlock{addr: hi, size: end - hi, prev: b, next: b.next, pool: b.pool, stream: b.stream, segment: b.segment, mapped: true})
		if b.next != nil {
			b.next.prev = x
		}
		b.next = x
		b.pool.add(x)
	}
	b.addr, b.size, b.mapped = lo, hi-lo, false
	m.join(b)
	if b.prev == nil && b.next == nil {
		m.call("A %#x", b.addr)
		b.pool.arena.segments--
		b.pool.drop(b)
		m.gone(b.addr)
	}
}

// join joins a free block with its neighbours and puts it into its pool.
func (m *model) join(b *mBlock) {
	if p := b.prev; p != nil && !p.used && p.mapped == b.mapped {
		b.pool.drop(p)
		b.addr, b.size, b.prev = p.addr, b.size+p.size, p.prev
		if b.prev != nil {
			b.prev.next = b
		}
	}
	if n := b.next; n != nil && !n.used && n.mapped == b.mapped {
		b.pool.drop(n)
		b.size, b.next = b.size+n.size, n.next
		if b.next != nil {
			b.next.prev = b
		}
	}
	b.pool.add(b)
}

func (m *model) free(b *mBlock) {
	switch {
	case len(b.others) == 0:
		b.used = false
		m.join(b)
	case m.capturing > 0:
		m.deferred = append(m.deferred, b)
	default:
		m.await(b)
	}
}

// await has a block wait for an event in each of its other streams.
func (m *model) await(b *mBlock) {
	for _, stream := range b.others {
		m.events[stream] = append(m.events[stream], b)
		b.waits++
	}
	b.others, b.captured = nil, nil
}

// awaitDeferred has the blocks wait that were freed during a capture.
func (m *model) awaitDeferred() {
	for _, b := range m.deferred {
		if !m.cfg.CaptureEvents {
			b.others = slices.DeleteFunc(b.others, func(s uint32) bool { return slices.Contains(b.captured, s) })
		}
		m.await(b)
		if b.waits == 0 {
			b.used = false
			m.join(b)
		}
	}
	m.deferred = nil
}

// record says that a block is used in another stream.
func (m *model) record(b *mBlock, stream uint32) {
	if stream == b.stream {
		return
	}
	if !slices.Contains(b.others, stream) {
		b.others = append(b.others, stream)
	}
	if m.capturing > 0 {
		b.captured = append(b.captured, stream)
	}
}

// processEvents goes from stream to stream in their order, where PyTorch has that of a
// hash table.
func (m *model) processEvents() {
	m.awaitDeferred()
	for stream := uint32(0); stream < modelStreams; stream++ {
		for m.done[stream] < m.passed[stream] {
			b := m.events[stream][m.done[stream]]
			m.done[stream]++
			if b.waits--; b.waits == 0 {
				b.used = false
				m.join(b)
			}
		}
	}
}
