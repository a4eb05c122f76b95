package bfc_test

import (
	"math"

	"gpumem/alloc/bfc"
)

// The oracle: the original's rules written down once more, as plainly as can
// be, sharing nothing with the package but the configuration. Chunks are
// structs with pointers, each bin is an ordered tree of them, an address is
// looked up in a map, and a request walks its bin from the smallest chunk as
// the original does. No bit tricks, no reuse of memory, no thought of speed.

type mTag int

const (
	mLower mTag = iota
	mUpper
	mGap
)

type mChunk struct {
	addr, size, requested uint64
	prev, next            *mChunk
	live                  bool
	tag                   mTag
	freedAt               uint64
	binned                bool
	gone                  bool // merged into another
	handle                int  // its number, which another chunk gets when it is gone
}

// mNode is a node of a bin's tree, ordered by size, tag, address: a treap, in
// the textbook's recursive form.
type mNode struct {
	c           *mChunk
	pri         uint64
	left, right *mNode
}

func mLess(a, b *mChunk) bool {
	if a.size != b.size {
		return a.size < b.size
	}
	if a.tag != b.tag {
		return a.tag < b.tag
	}
	return a.addr < b.addr
}

func mInsert(n *mNode, c *mChunk, pri uint64) *mNode {
	if n == nil {
		return &mNode{c: c, pri: pri}
	}
	if mLess(c, n.c) {
		n.left = mInsert(n.left, c, pri)
		if n.left.pri > n.pri {
			l := n.left
			n.left, l.right = l.right, n
			return l
		}
		return n
	}
	n.right = mInsert(n.right, c, pri)
	if n.right.pri > n.pri {
		r := n.right
		n.right, r.left = r.left, n
		return r
	}
	return n
}

func mDelete(n *mNode, c *mChunk) *mNode {
	if n.c == c {
		return mJoin(n.left, n.right)
	}
	if mLess(c, n.c) {
		n.left = mDelete(n.left, c)
	} else {
		n.right = mDelete(n.right, c)
	}
	return n
}

func mJoin(a, b *mNode) *mNode {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	if a.pri > b.pri {
		a.right = mJoin(a.right, b)
		return a
	}
	b.left = mJoin(a, b.left)
	return b
}

// mWalk visits chunks of at least size in order until f says stop.
func mWalk(n *mNode, size uint64, f func(*mChunk) bool) bool {
	if n == nil {
		return true
	}
	if n.c.size >= size && !mWalk(n.left, size, f) {
		return false
	}
	if n.c.size >= size && !f(n.c) {
		return false
	}
	return mWalk(n.right, size, f)
}

type mRegion struct {
	addr, size uint64
	first      *mChunk
}

type model struct {
	cfg bfc.Config
	// skip lets a walk begin at the first chunk that is large enough. The
	// original begins at the bin's first; what is found is the same.
	skip bool

	bins    [21]*mNode
	live    map[uint64]*mChunk
	gap     *mChunk
	regions []*mRegion
	next    uint64
	rand    uint64

	count    uint64 // the timing counter
	frontier uint64
	// The original remembers freed chunks by number, and numbers are reused,
	// last in first out: what is looked at may by then be another chunk.
	stamped []int
	byNum   []*mChunk
	unused  []int

	// the device
	capacity, granularity, held, place uint64

	numAllocs                                                    int64
	inUse, peakInUse, largest, pool, peakPool, minAlign, maxWast uint64
}

func newModel(cfg bfc.Config, capacity, granularity uint64) *model {
	m := &model{cfg: cfg, live: map[uint64]*mChunk{}, capacity: capacity, granularity: granularity, rand: 1}
	m.next = mRound(cfg.Limit)
	if cfg.Growth {
		m.next = mRound(min(cfg.Limit, 2<<20))
	}
	m.minAlign = max(cfg.Align, 256)
	m.maxWast = 128 << 20
	if cfg.Fragmentation > 0 {
		m.maxWast = uint64(cfg.Fragmentation * float64(cfg.Limit))
	}
	return m
}

func mRound(n uint64) uint64 {
	for n%256 != 0 {
		n++
	}
	return n
}

func mBin(size uint64) int {
	bin := 0
	for bin < 20 && size >= 512<<bin {
		bin++
	}
	return bin
}

func (m *model) grant(n uint64) (addr, got uint64, ok bool) {
	got = (n + m.granularity - 1) / m.granularity * m.granularity
	if got > m.capacity-m.held {
		return 0, 0, false
	}
	addr = m.place
	m.held += got
	m.place = (m.place + got + 2<<20 - 1) / (2 << 20) * (2 << 20)
	return addr, got, true
}

func (m *model) bin(c *mChunk) {
	c.binned = true
	m.rand = m.rand*6364136223846793005 + 1442695040888963407
	b := &m.bins[mBin(c.size)]
	*b = mInsert(*b, c, m.rand>>11)
}

func (m *model) unbin(c *mChunk) {
	c.binned = false
	b := &m.bins[mBin(c.size)]
	*b = mDelete(*b, c)
}

func (m *model) put(c *mChunk) {
	if c.tag == mGap && m.gap == nil {
		m.gap = c
		return
	}
	if c.tag == mGap {
		c.tag = mLower // the rule of ours: one gap only
	}
	m.bin(c)
}

func (m *model) take(c *mChunk) {
	if m.gap == c {
		m.gap = nil
		return
	}
	m.unbin(c)
}

func (m *model) fits(c *mChunk, upper bool, r, align, before uint64) bool {
	if before > 0 && c.freedAt > before || c.size < r {
		return false
	}
	if upper {
		return (c.addr+c.size-r)/align*align >= c.addr
	}
	return (c.addr+align-1)/align*align-c.addr+r <= c.size
}

func (m *model) find(upper bool, r, align, before uint64) *mChunk {
	want := mLower
	if upper {
		want = mUpper
	}
	var found *mChunk
	for b := mBin(r); b < 21 && found == nil; b++ {
		from := uint64(0)
		if m.skip {
			from = r
		}
		mWalk(m.bins[b], from, func(c *mChunk) bool {
			if c.tag == want && m.fits(c, upper, r, align, before) {
				found = c
			}
			return found == nil
		})
	}
	if found == nil && m.gap != nil && m.fits(m.gap, upper, r, align, before) {
		found = m.gap
	}
	return found
}

// number gives a new chunk its number.
func (m *model) number(c *mChunk) *mChunk {
	if n := len(m.unused); n > 0 {
		c.handle = m.unused[n-1]
		m.unused = m.unused[:n-1]
		m.byNum[c.handle] = c
		return c
	}
	c.handle = len(m.byNum)
	m.byNum = append(m.byNum, c)
	return c
}

func (m *model) drop(c *mChunk) {
	c.gone = true
	m.unused = append(m.unused, c.handle)
}

func (m *model) split(c *mChunk, size uint64) *mChunk {
	n := m.number(&mChunk{addr: c.addr + size, size: c.size - size, prev: c, next: c.next, tag: c.tag, freedAt: c.freedAt})
	if n.next != nil {
		n.next.prev = n
	}
	c.next, c.size = n, size
	return n
}

// alloc is one request; ok is false if it is refused.
func (m *model) alloc(n, align, before uint64, upper bool) (addr uint64, ok bool) {
	if n == 0 {
		return 0, true
	}
	if n > math.MaxUint64-255 {
		return 0, false
	}
	r := mRound(n)
	align = max(align, m.minAlign)
	upper = upper && m.cfg.Spatial
	m.mergeStamped(0)
	c := m.find(upper, r, align, before)
	if c == nil && m.extend(r) {
		c = m.find(upper, r, align, before)
	}
	if c == nil && before == 0 && len(m.stamped) > 0 && m.mergeStamped(r) {
		c = m.find(upper, r, align, before)
	}
	if c == nil && m.cfg.GC && m.collect(r) && m.extend(r) {
		c = m.find(upper, r, align, before)
	}
	if c == nil {
		return 0, false
	}
	m.take(c)
	if upper {
		start := (c.addr + c.size - r) / align * align
		if start > c.addr {
			rest := m.split(c, start-c.addr)
			m.put(c)
			c = rest
		}
		if c.size > r {
			rest := m.split(c, r)
			rest.tag = mUpper
			m.put(rest)
		}
		c.tag = mUpper
	} else {
		if start := (c.addr + align - 1) / align * align; start > c.addr {
			rest := m.split(c, start-c.addr)
			c.tag = mLower
			m.put(c)
			c = rest
		}
		if c.size > r && (c.size >= 2*r || c.size-r >= m.maxWast) {
			m.put(m.split(c, r))
		}
		c.tag = mLower
	}
	c.live, c.requested, c.freedAt = true, n, 0
	m.live[c.addr] = c
	m.numAllocs++
	m.inUse += c.size
	m.peakInUse = max(m.peakInUse, m.inUse)
	m.largest = max(m.largest, c.size)
	return c.addr, true
}

func (m *model) free(addr uint64) {
	c := m.live[addr]
	delete(m.live, addr)
	c.live = false
	m.inUse -= c.size
	if m.cfg.Counter != nil {
		m.count++
		c.freedAt = m.count
		m.stamped = append(m.stamped, c.handle)
		m.put(c)
		return
	}
	if m.cfg.Spatial {
		if c.tag == mLower && (c.next == nil || c.next.tag != mLower) ||
			c.tag == mUpper && (c.prev == nil || c.prev.tag != mUpper) {
			c.tag = mGap
		}
	}
	m.put(m.coalesce(c, false))
}

func (m *model) coalesce(c *mChunk, force bool) *mChunk {
	if c.freedAt > 0 && !force {
		return c
	}
	if n := c.next; n != nil && !n.live && (n.freedAt == 0 || force) {
		m.take(n)
		m.merge(c, n)
	}
	if p := c.prev; p != nil && !p.live && (p.freedAt == 0 || force) {
		m.take(p)
		m.merge(p, c)
		return p
	}
	return c
}

func (m *model) merge(lo, hi *mChunk) {
	lo.size += hi.size
	lo.freedAt = max(lo.freedAt, hi.freedAt)
	if lo.tag != hi.tag {
		lo.tag = mGap
	}
	lo.next = hi.next
	if hi.next != nil {
		hi.next.prev = lo
	}
	m.drop(hi)
}

func (m *model) mergeStamped(need uint64) bool {
	var kept []int
	var ready []*mChunk
	for _, h := range m.stamped {
		c := m.byNum[h]
		if c.live || c.gone || !c.binned {
			continue
		}
		if c.freedAt != 0 && c.freedAt < m.frontier {
			c.freedAt = 0
		}
		if c.freedAt == 0 || need > 0 {
			ready = append(ready, c)
		} else {
			kept = append(kept, h)
		}
	}
	m.stamped = kept
	done := false
	for _, c := range ready {
		if c.gone {
			continue
		}
		if done {
			m.stamped = append(m.stamped, c.handle)
			continue
		}
		m.take(c)
		n := m.coalesce(c, need > 0)
		m.put(n)
		if need > 0 {
			if n != c && n.freedAt > 0 {
				m.stamped = append(m.stamped, n.handle)
			}
			done = n.size >= need
		}
	}
	return done
}

func (m *model) extend(r uint64) bool {
	if m.pool > m.cfg.Limit {
		return false
	}
	avail := (m.cfg.Limit - m.pool) / 256 * 256
	if r > avail {
		return false
	}
	doubled := false
	for r > m.next {
		m.next *= 2
		doubled = true
	}
	ask := min(m.next, avail)
	addr, got, ok := m.grant(ask)
	for !ok {
		step := uint64(float32(ask) * float32(0.9))
		ask = min(mRound(step), ask-256)
		if ask < r {
			return false
		}
		addr, got, ok = m.grant(ask)
	}
	if !doubled {
		m.next *= 2
	}
	m.pool += got
	m.peakPool = max(m.peakPool, m.pool)
	c := m.number(&mChunk{addr: addr, size: got})
	if m.cfg.Spatial && m.gap == nil {
		c.tag = mGap
	}
	if m.cfg.Coalesce {
		for _, old := range m.regions {
			if old.addr+old.size == addr {
				last := old.first
				for last.next != nil {
					last = last.next
				}
				c.prev, last.next = last, c
				old.size += got
				m.put(m.coalesce(c, false))
				return true
			}
		}
	}
	m.regions = append(m.regions, &mRegion{addr: addr, size: got, first: c})
	m.put(c)
	return true
}

func (m *model) collect(r uint64) bool {
	var idle uint64
	var kept, free []*mRegion
	for _, reg := range m.regions {
		used := false
		for c := reg.first; c != nil; c = c.next {
			used = used || c.live
		}
		if used {
			kept = append(kept, reg)
		} else {
			free = append(free, reg)
			idle += reg.size
		}
	}
	if idle == 0 || r > m.cfg.Limit-m.pool+idle {
		return false
	}
	for _, reg := range free {
		for c := reg.first; c != nil; c = c.next {
			m.take(c)
			m.drop(c)
		}
		m.pool -= reg.size
		m.held -= reg.size
	}
	m.regions = kept
	return true
}

func (m *model) largestFree() uint64 {
	n := uint64(0)
	for _, reg := range m.regions {
		for c := reg.first; c != nil; c = c.next {
			if !c.live {
				n = max(n, c.size)
			}
		}
	}
	return n
}
