// Package oracle is the original's rules written down once more, slow and
// obvious, for tests to compare the pool with and benchmarks to measure it by.
//
// It shares nothing with the pool. Chunks are structs with pointers, each bin
// is an ordered tree of them, an address is looked up in a map, and a request
// walks its bin from the smallest chunk as the original does. No bit tricks, no
// reuse of memory, no thought of speed.
package oracle

import "math"

// Config says how the pool works and on what device. Fields that bfc.Config
// has, too, mean the same.
type Config struct {
	Limit           uint64
	Align           uint64
	Growth          bool
	Spatial         bool
	TopDown         bool
	CollectiveAlign uint64
	GC              bool
	Coalesce        bool
	Fragmentation   float64
	Initial         uint64 // as bfc.Config has it; RegionUnit is then what mappings are multiples of

	DeviceTotal uint64 // what the device can grant in all
	Granularity uint64 // it rounds a grant up to a multiple of this
	RegionUnit  uint64 // what is asked of it is rounded up to a multiple of this, and no more is used; 0: no such rule

	// SkipSmall begins a walk at the first chunk that is large enough. The
	// original begins at the bin's first; what is found is the same.
	SkipSmall bool
}

// Tag is the end of the pool that a chunk belongs to.
type Tag int

const (
	Lower Tag = iota
	Upper
	Gap
)

// Chunk is a piece of a region, linked to its neighbours.
type Chunk struct {
	Addr, Size uint64 // the address counts from the first grant
	Live       bool
	Tag        Tag
	Next       *Chunk

	prev      *Chunk
	requested uint64
	binned    bool
}

// Region is one grant.
type Region struct {
	Addr, Size uint64
	First      *Chunk
}

// Pool is the oracle. Its counters may be read at any time.
type Pool struct {
	NumAllocs                                           int64
	InUse, PeakInUse, Largest, PoolBytes, PeakPoolBytes uint64
	Regions                                             []*Region

	cfg      Config
	bins     [21]*node
	live     map[uint64]*Chunk
	gap      *Chunk
	next     uint64
	maxWaste uint64
	rand     uint64 // for the trees' shape

	held, place uint64 // of the device
	initial     uint64 // with Config.Initial: the size of the first region, in which collective memory stays
}

// node is a node of a bin's tree, ordered by size, tag, address: a treap, in
// the textbook's recursive form.
type node struct {
	c           *Chunk
	pri         uint64
	left, right *node
}

// less is the order of a bin: size, tag, address. With TopDown the ordinary
// chunks, those of the upper end, go by descending address.
func (m *Pool) less(a, b *Chunk) bool {
	if a.Size != b.Size {
		return a.Size < b.Size
	}
	if a.Tag != b.Tag {
		return a.Tag < b.Tag
	}
	if m.cfg.TopDown && a.Tag == Upper {
		return a.Addr > b.Addr
	}
	return a.Addr < b.Addr
}

func (m *Pool) insert(n *node, c *Chunk, pri uint64) *node {
	if n == nil {
		return &node{c: c, pri: pri}
	}
	if m.less(c, n.c) {
		n.left = m.insert(n.left, c, pri)
		if n.left.pri > n.pri {
			l := n.left
			n.left, l.right = l.right, n
			return l
		}
		return n
	}
	n.right = m.insert(n.right, c, pri)
	if n.right.pri > n.pri {
		r := n.right
		n.right, r.left = r.left, n
		return r
	}
	return n
}

func (m *Pool) remove(n *node, c *Chunk) *node {
	if n.c == c {
		return join(n.left, n.right)
	}
	if m.less(c, n.c) {
		n.left = m.remove(n.left, c)
	} else {
		n.right = m.remove(n.right, c)
	}
	return n
}

func join(a, b *node) *node {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	if a.pri > b.pri {
		a.right = join(a.right, b)
		return a
	}
	b.left = join(a, b.left)
	return b
}

// walk visits chunks of at least size in order until f says stop.
func walk(n *node, size uint64, f func(*Chunk) bool) bool {
	if n == nil {
		return true
	}
	if n.c.Size >= size && !walk(n.left, size, f) {
		return false
	}
	if n.c.Size >= size && !f(n.c) {
		return false
	}
	return walk(n.right, size, f)
}

// New makes an oracle.
func New(cfg Config) *Pool {
	cfg.Align = max(cfg.Align, 256)
	m := &Pool{cfg: cfg, live: map[uint64]*Chunk{}, rand: 1, maxWaste: 128 << 20}
	m.next = round256(cfg.Limit)
	if cfg.Initial > 0 {
		m.cfg.Limit = cfg.Limit / cfg.RegionUnit * cfg.RegionUnit
		m.next = round256(min(cfg.Initial, m.cfg.Limit))
	}
	if cfg.Growth {
		m.next = round256(min(cfg.Limit, 2<<20))
	}
	if cfg.Fragmentation > 0 {
		m.maxWaste = uint64(cfg.Fragmentation * float64(cfg.Limit))
	}
	return m
}

func round256(n uint64) uint64 { return (n + 255) / 256 * 256 }

func binOf(size uint64) int {
	bin := 0
	for bin < 20 && size >= 512<<bin {
		bin++
	}
	return bin
}

func (m *Pool) grant(n uint64) (addr, got uint64, ok bool) {
	if unit := m.cfg.RegionUnit; unit > 0 {
		n = (n + unit - 1) / unit * unit
		defer func() { got = n }()
	}
	got = (n + m.cfg.Granularity - 1) / m.cfg.Granularity * m.cfg.Granularity
	if got > m.cfg.DeviceTotal-m.held {
		return 0, 0, false
	}
	addr = m.place
	m.held += got
	m.place = (m.place + got + 2<<20 - 1) / (2 << 20) * (2 << 20)
	return addr, got, true
}

func (m *Pool) bin(c *Chunk) {
	c.binned = true
	m.rand = m.rand*6364136223846793005 + 1442695040888963407
	b := &m.bins[binOf(c.Size)]
	*b = m.insert(*b, c, m.rand>>11)
}

func (m *Pool) unbin(c *Chunk) {
	c.binned = false
	b := &m.bins[binOf(c.Size)]
	*b = m.remove(*b, c)
}

func (m *Pool) put(c *Chunk) {
	if c.Tag == Gap && m.gap == nil {
		m.gap = c
		return
	}
	if c.Tag == Gap {
		c.Tag = m.home() // the rule of ours: one gap only
	}
	m.bin(c)
}

func (m *Pool) take(c *Chunk) {
	if m.gap == c {
		m.gap = nil
		return
	}
	m.unbin(c)
}

func (m *Pool) fits(c *Chunk, upper bool, r, align uint64) bool {
	if c.Size < r {
		return false
	}
	if upper {
		return (c.Addr+c.Size-r)/align*align >= c.Addr
	}
	start := (c.Addr + align - 1) / align * align
	if m.cfg.Initial > 0 && start+r > m.initial {
		return false
	}
	return start-c.Addr+r <= c.Size
}

func (m *Pool) find(upper bool, r, align uint64) *Chunk {
	want := Lower
	if upper {
		want = Upper
	}
	var found *Chunk
	for b := binOf(r); b < 21 && found == nil; b++ {
		from := uint64(0)
		if m.cfg.SkipSmall {
			from = r
		}
		walk(m.bins[b], from, func(c *Chunk) bool {
			if c.Tag == want && m.fits(c, upper, r, align) {
				found = c
			}
			return found == nil
		})
	}
	if found == nil && m.gap != nil && m.fits(m.gap, upper, r, align) {
		found = m.gap
	}
	return found
}

func (m *Pool) split(c *Chunk, size uint64) *Chunk {
	n := &Chunk{Addr: c.Addr + size, Size: c.Size - size, prev: c, Next: c.Next, Tag: c.Tag}
	if n.Next != nil {
		n.Next.prev = n
	}
	c.Next, c.Size = n, size
	return n
}

// home is the end of ordinary blocks.
func (m *Pool) home() Tag {
	if m.cfg.TopDown {
		return Upper
	}
	return Lower
}

// Alloc is one request for n bytes; ok is false if it is refused.
func (m *Pool) Alloc(n, align uint64, collective bool) (addr uint64, ok bool) {
	if n == 0 {
		return 0, true
	}
	if n > math.MaxUint64-255 {
		return 0, false
	}
	r := round256(n)
	align = max(align, m.cfg.Align)
	collective = collective && m.cfg.Spatial
	upper := collective != m.cfg.TopDown
	if collective {
		align = max(align, m.cfg.CollectiveAlign)
	}
	c := m.find(upper, r, align)
	if m.cfg.Initial > 0 {
		if c == nil && len(m.Regions) == 0 && m.begin(r, collective) {
			c = m.find(upper, r, align)
		}
		if c == nil && len(m.Regions) > 0 && !collective && m.grow(r, align) {
			c = m.find(upper, r, align)
		}
	} else if c == nil && m.extend(r) {
		c = m.find(upper, r, align)
	}
	if c == nil && m.cfg.GC && m.collect(r) && m.extend(r) {
		c = m.find(upper, r, align)
	}
	if c == nil {
		return 0, false
	}
	m.take(c)
	if upper {
		start := (c.Addr + c.Size - r) / align * align
		if rest := start - c.Addr; !collective && c.Addr%align == 0 && rest < r && rest < m.maxWaste {
			start, r = c.Addr, r+rest // not worth a cut: all of it
		}
		if start > c.Addr {
			rest := m.split(c, start-c.Addr)
			m.put(c)
			c = rest
		}
		if c.Size > r {
			rest := m.split(c, r)
			rest.Tag = Upper
			m.put(rest)
		}
		c.Tag = Upper
	} else {
		if start := (c.Addr + align - 1) / align * align; start > c.Addr {
			rest := m.split(c, start-c.Addr)
			c.Tag = Lower
			m.put(c)
			c = rest
		}
		if c.Size > r && (collective || c.Size >= 2*r || c.Size-r >= m.maxWaste) {
			m.put(m.split(c, r))
		}
		c.Tag = Lower
	}
	c.Live, c.requested = true, n
	m.live[c.Addr] = c
	m.NumAllocs++
	m.InUse += c.Size
	m.PeakInUse = max(m.PeakInUse, m.InUse)
	m.Largest = max(m.Largest, c.Size)
	return c.Addr, true
}

// Free frees the block at addr, which is live.
func (m *Pool) Free(addr uint64) {
	c := m.live[addr]
	delete(m.live, addr)
	c.Live = false
	m.InUse -= c.Size
	if m.cfg.Spatial {
		if c.Tag == Lower && (c.Next == nil || c.Next.Tag != Lower) ||
			c.Tag == Upper && (c.prev == nil || c.prev.Tag != Upper) {
			c.Tag = Gap
		}
	}
	m.put(m.coalesce(c))
}

func (m *Pool) coalesce(c *Chunk) *Chunk {
	if n := c.Next; n != nil && !n.Live {
		m.take(n)
		m.merge(c, n)
	}
	if p := c.prev; p != nil && !p.Live {
		m.take(p)
		m.merge(p, c)
		return p
	}
	return c
}

func (m *Pool) merge(lo, hi *Chunk) {
	lo.Size += hi.Size
	if lo.Tag != hi.Tag {
		lo.Tag = Gap
	}
	lo.Next = hi.Next
	if hi.Next != nil {
		hi.Next.prev = lo
	}
}

func (m *Pool) extend(r uint64) bool {
	if m.PoolBytes > m.cfg.Limit {
		return false
	}
	avail := (m.cfg.Limit - m.PoolBytes) / 256 * 256
	if r > avail || m.cfg.TopDown && len(m.Regions) > 0 {
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
		ask = min(round256(step), ask-256)
		if ask < r {
			return false
		}
		addr, got, ok = m.grant(ask)
	}
	if !doubled {
		m.next *= 2
	}
	m.PoolBytes += got
	m.PeakPoolBytes = max(m.PeakPoolBytes, m.PoolBytes)
	c := &Chunk{Addr: addr, Size: got, Tag: m.home()}
	if m.cfg.Spatial && m.gap == nil {
		c.Tag = Gap
	}
	if m.cfg.Coalesce {
		for _, old := range m.Regions {
			if old.Addr+old.Size == addr {
				last := old.First
				for last.Next != nil {
					last = last.Next
				}
				c.prev, last.Next = last, c
				old.Size += got
				m.put(m.coalesce(c))
				return true
			}
		}
	}
	m.Regions = append(m.Regions, &Region{Addr: addr, Size: got, First: c})
	m.put(c)
	return true
}

// begin takes the first region of a pool that grows in reserved addresses.
func (m *Pool) begin(r uint64, collective bool) bool {
	ask := m.next
	if ask == 0 || collective && r > ask {
		return false
	}
	least := min(r, ask)
	addr, got, ok := m.grant(ask)
	for !ok {
		ask = min(round256(uint64(float32(ask)*float32(0.9))), ask-256)
		if ask < least {
			return false
		}
		addr, got, ok = m.grant(ask)
	}
	m.next *= 2
	m.initial = got
	m.PoolBytes = got
	m.PeakPoolBytes = got
	c := &Chunk{Addr: addr, Size: got, Tag: Gap}
	m.Regions = []*Region{{Addr: addr, Size: got, First: c}}
	m.put(c)
	return true
}

// grow maps more behind the region: the next usual size first, then less in whole units,
// down to the least with which an ordinary block fits at the end. That is found by trying
// each size from one unit on.
func (m *Pool) grow(r, align uint64) bool {
	region, unit := m.Regions[0], m.cfg.RegionUnit
	last := region.First
	for last.Next != nil {
		last = last.Next
	}
	from, end := region.Size, region.Size
	if !last.Live {
		from = last.Addr
	}
	least := uint64(0)
	for more := unit; end+more <= m.cfg.Limit; more += unit {
		if end+more >= r && (end+more-r)/align*align >= from {
			least = more
			break
		}
	}
	if least == 0 {
		return false
	}
	doubled := false
	for r > m.next {
		m.next *= 2
		doubled = true
	}
	ask := max(min(m.next, m.cfg.Limit-end), least)
	_, got, ok := m.grant(ask)
	for !ok {
		if ask == least {
			return false
		}
		less := min(round256(uint64(float32(ask)*float32(0.9))), ask-256)
		ask = max(less/unit*unit, least)
		_, got, ok = m.grant(ask)
	}
	if !doubled {
		m.next *= 2
	}
	m.PoolBytes += got
	m.PeakPoolBytes = max(m.PeakPoolBytes, m.PoolBytes)
	c := &Chunk{Addr: end, Size: got, Tag: Upper, prev: last}
	last.Next = c
	region.Size += got
	m.put(m.coalesce(c))
	return true
}

func (m *Pool) collect(r uint64) bool {
	var idle uint64
	var kept, free []*Region
	for _, reg := range m.Regions {
		used := false
		for c := reg.First; c != nil; c = c.Next {
			used = used || c.Live
		}
		if used {
			kept = append(kept, reg)
		} else {
			free = append(free, reg)
			idle += reg.Size
		}
	}
	if idle == 0 || r > m.cfg.Limit-m.PoolBytes+idle {
		return false
	}
	for _, reg := range free {
		for c := reg.First; c != nil; c = c.Next {
			m.take(c)
		}
		m.PoolBytes -= reg.Size
		m.held -= reg.Size
	}
	m.Regions = kept
	return true
}

// LargestFree is the largest hole, by a walk.
func (m *Pool) LargestFree() uint64 {
	n := uint64(0)
	for _, reg := range m.Regions {
		for c := reg.First; c != nil; c = c.Next {
			if !c.Live {
				n = max(n, c.Size)
			}
		}
	}
	return n
}
