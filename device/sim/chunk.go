// The memory of pools: what of it is free and since when, which streams may
// have it, and how a pool grows and shrinks.
//
// A chunk is a list of parts in order of addresses: blocks, and free parts, each
// with the mark of its free. A stream may always have what has no mark or one of
// its own, so for each lane that allocates there is, beside the parts, an index
// of the holes that it may have so (holes.go). Only where none of these will do
// are the parts gone through one by one.
//
// A replay makes millions of blocks in pools of 10,000. So nothing here takes
// memory of the host for a block, once there were as many, and a block that comes
// and goes in one stream is one step in a table, a few in the list, and one or two in
// the index.

package sim

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"gpumem/device"
)

// chunk is memory that a pool has from the device, at addresses in a row.
type chunk struct {
	addr, bytes uint64
	first       *part
	idle        uint64          // bytes that are free without a mark
	pages       map[uint64]page // what lies in it; that of all its blocks' memory
}

// part is a run of addresses of a chunk: a block, or what one free left of it. Free
// parts side by side are joined only if none has a mark, so each byte keeps its own.
// A part is 64 bytes, a line of the processor's cache: a replay looks at parts all over
// the pool. What few have is elsewhere.
type part struct {
	addr, bytes uint64
	prev, next  *part // in the chunk; next also in the list of spare parts
	hole        *hole // inUse: a block; else, of the first and last part of a hole of lane 0, that hole
	mark              // of a block when it was allocated, else of its free
}

// atOnce is how many parts or holes are made at once.
const atOnce = 64

// inUse marks blocks.
var inUse = new(hole)

func (p *part) used() bool { return p.hole == inUse }

// mark is when an allocation or a free happens: it is work n of a lane. One without an
// origin never was, or the host knows that it is done.
type mark struct {
	from *origin
	n    uint64
	at   time.Duration // when it is done; only of a free
}

// origin is what marks of a stream have in common.
type origin struct {
	stream device.Stream
	lane   int
	seen   clock // what comes before, of other lanes
}

// mark is that of the newest work of a stream.
func (q *queue) mark() mark {
	if q.origin == nil {
		q.origin = &origin{q.stream, q.lane, slices.Clone(q.seen)}
	}
	return mark{q.origin, q.last, q.end}
}

// known reports whether a clock has what the mark stands for.
func (m *mark) known(c clock) bool { return m.from == nil || c.knows(m.from.lane, m.n) }

func (p *part) end() uint64 { return p.addr + p.bytes }

// split cuts the first n bytes off a part, which are returned.
func (p *pool) split(rest *part, n uint64) *part {
	f := p.spare
	if f != nil {
		p.spare = f.next
	} else {
		if len(p.fresh) == 0 {
			p.fresh = make([]part, atOnce)
		}
		f, p.fresh = &p.fresh[0], p.fresh[1:]
	}
	f.addr, f.bytes, f.mark, f.hole = rest.addr, n, rest.mark, nil
	rest.addr, rest.bytes = rest.addr+n, rest.bytes-n
	f.prev, f.next, rest.prev = rest.prev, rest, f
	if f.prev == nil {
		p.in(f.addr).first = f
	} else {
		f.prev.next = f
	}
	for _, own := range p.lanes {
		if own == nil {
			continue
		}
		if h := own.of(rest); h != nil && h.first == rest {
			h.first = f
			own.tag(f, h)
		}
	}
	return f
}

// join adds the part behind one to it.
func (p *pool) join(a *part) {
	b := a.next
	a.bytes += b.bytes
	if a.next = b.next; a.next != nil {
		a.next.prev = a
	}
	for _, own := range p.lanes {
		if own == nil {
			continue
		}
		if h := own.of(b); h != nil && h.last == b {
			h.last = a
			own.tag(a, h)
		}
	}
	p.drop(b)
}

// drop keeps a part that is in no chunk any more for the next block.
func (p *pool) drop(b *part) {
	for _, own := range p.lanes {
		if own != nil {
			own.tag(b, nil)
		}
	}
	*b = part{next: p.spare}
	p.spare = b
}

// memory is the memory of a block, with the note of its allocation if nobody has looked
// before. The notes (hazard.go) are its own, so that they are few, and the contents
// a part of the chunk's.
func (p *pools) memory(b *part) *memory {
	m := p.looked[b]
	if m == nil {
		_, c := p.holding(b.addr)
		m = &memory{bytes: c.bytes, pages: c.pages}
		if b.from != nil {
			m.uses = []use{{b.addr - c.addr, b.bytes, c.addr, b.from.lane, b.n, true, callPoolAlloc}}
		}
		p.looked[b] = m
	}
	return m
}

// piece is the memory behind a part of a block.
func (p *pools) piece(b *part, addr, bytes uint64) piece {
	_, c := p.holding(addr)
	return piece{p.memory(b), addr - c.addr, bytes, addr}
}

// in is the chunk that addr lies in, nil if there is none.
func (p *pool) in(addr uint64) *chunk {
	i, found := slices.BinarySearchFunc(p.chunks, addr, func(c *chunk, addr uint64) int { return cmp.Compare(c.addr, addr) })
	if found {
		return p.chunks[i]
	}
	if i > 0 && addr-p.chunks[i-1].addr < p.chunks[i-1].bytes {
		return p.chunks[i-1]
	}
	return nil
}

// parts visits the parts in order of addresses. They stay as they are meanwhile.
func (p *pool) parts(yield func(*part) bool) {
	for _, c := range p.chunks {
		for one := c.first; one != nil; one = one.next {
			if !yield(one) {
				return
			}
		}
	}
}

// free is how many bytes no block has.
func (p *pool) free() uint64 {
	return p.attrs[device.PoolReservedCurrent] - p.attrs[device.PoolUsedCurrent]
}

// settle takes the marks away that the host knows to be done. A mark is never
// known when it is made, so there are some to be taken only once the host has
// learnt something.
func (p *pool) settle(host clock) {
	if slices.Equal(p.known, host) {
		return
	}
	p.known = append(p.known[:0], host...)
	for _, c := range p.chunks {
		for s := c.first; s != nil; s = s.next {
			if s.used() || !s.known(host) {
				continue
			}
			if s.from != nil {
				lane := s.from.lane
				s.from = nil
				c.idle += s.bytes
				for other, own := range p.lanes {
					if own != nil && other != lane {
						own.add(s)
					}
				}
			}
			if b := s.prev; b != nil && !b.used() && b.from == nil {
				p.join(b)
				s = b
			}
		}
	}
}

// lane is the holes that a lane's streams may have as they are.
func (p *pool) lane(lane int) *holes {
	for lane >= len(p.lanes) {
		p.lanes = append(p.lanes, nil)
	}
	if p.lanes[lane] == nil {
		own := newHoles(lane)
		for s := range p.parts {
			if own.may(s) {
				own.add(s)
			}
		}
		p.lanes[lane] = own
	}
	return p.lanes[lane]
}

// give makes a part free.
func (p *pool) give(s *part, freed mark) {
	s.hole, s.mark = nil, freed
	if s.from == nil {
		p.in(s.addr).idle += s.bytes
	}
	for _, own := range p.lanes {
		if own != nil && own.may(s) {
			own.add(s)
		}
	}
}

// reach cuts the part in which n bytes from the beginning of a free part end, so that
// they are whole parts, and returns the first and the last.
func (p *pool) reach(first *part, n uint64) (from, to *part) {
	to = first
	for n > to.bytes {
		n -= to.bytes
		to = to.next
	}
	if n == to.bytes {
		return first, to
	}
	f := p.split(to, n)
	if to == first {
		return f, f
	}
	return first, f
}

// take makes one used part of free ones.
func (p *pool) take(from, to *part) {
	for _, own := range p.lanes {
		if own != nil {
			own.cut(from, to)
		}
	}
	for s := from; ; s = s.next {
		if s.from == nil {
			p.in(s.addr).idle -= s.bytes
		}
		if s == to {
			break
		}
	}
	for end := to.end(); from.end() < end; {
		p.join(from)
	}
	from.hole = inUse
}

// scan looks for the smallest run of usable free parts side by side with at least n
// bytes, the lowest of those. It returns the first.
func (p *pool) scan(n uint64, usable func(*mark) bool) (first *part) {
	var start *part
	var bytes, least uint64
	end := func() {
		if start != nil && bytes >= n && (first == nil || bytes < least) {
			first, least = start, bytes
		}
		start, bytes = nil, 0
	}
	for s := range p.parts {
		if s.prev == nil { // of another chunk
			end()
		}
		if s.used() || !usable(&s.mark) {
			end()
			continue
		}
		if start == nil {
			start = s
		}
		bytes += s.bytes
	}
	end()
	return first
}

// find looks for n bytes that q may have, the gentlest way first, and in each
// the best fit: the part that they begin with, nil where there are none. Caller
// holds d.mu.
func (d *Device) find(p *pool, q *queue, n uint64) *part {
	p.settle(d.work.host)
	own := p.lane(q.lane)
	if h := own.fit(n); h != nil || own.total == p.free() {
		if h == nil {
			return nil
		}
		return h.first
	}
	for most := ordered; most <= waiting; most++ {
		if s := p.scan(n, func(m *mark) bool { return d.reuse(p, q, m) <= most }); s != nil {
			return s
		}
	}
	return nil
}

// The ways in which a stream may have what is free, the gentlest first. NVIDIA's
// guide has them in this order, and says that no attribute is asked where the
// host has synchronised with the free.
const (
	asIs     = iota // freed in the same stream, never used, or known by the host to be done
	ordered         // freed in another one that the stream comes after
	finished        // its free happens to be done
	waiting         // the stream is made to wait for its free
	never
)

// reuse is the gentlest way in which q may have what has that mark.
func (d *Device) reuse(p *pool, q *queue, m *mark) int {
	switch {
	case m.from == nil || m.from.lane == q.lane:
		return asIs
	case p.attrs[device.PoolReuseFollowEventDependencies] == 1 && m.known(q.seen):
		return ordered
	case p.attrs[device.PoolReuseAllowOpportunistic] == 1 && m.at <= d.now():
		return finished
	case p.attrs[device.PoolReuseAllowInternalDependencies] == 1:
		return waiting
	}
	return never
}

// grow adds a chunk with room for n bytes: one free part. Caller holds d.mu.
func (d *Device) grow(p *pool, n uint64) (*part, error) {
	for _, unit := range []uint64{poolChunk, driverBlock} {
		size, ok := roundUp(n, unit)
		if !ok || p.max != 0 && (size > p.max || p.attrs[device.PoolReservedCurrent] > p.max-size) {
			continue
		}
		if err := d.take(size); errors.Is(err, device.ErrOutOfMemory) {
			continue
		} else if err != nil {
			return nil, err
		}
		addr, ok := d.addresses(size, addrStep)
		if !ok {
			return nil, errors.Join(device.ErrOutOfMemory, d.give(size))
		}
		c := &chunk{addr: addr, bytes: size, pages: map[uint64]page{}}
		c.first = &part{addr: addr, bytes: size}
		p.chunks = append(p.chunks, c) // no address below comes again
		p.give(c.first, mark{})
		d.space.add(segment{addr: addr, bytes: size, kind: pooled})
		p.raise(device.PoolReservedCurrent, size)
		d.count.Time += d.costs.Async.PoolGrow + byMiB(d.costs.Async.PoolGrowPerMiB, size)
		return c.first, nil
	}
	return nil, device.ErrOutOfMemory
}

// release releases free chunks, the newest first, as long as the pool keeps
// at least keep bytes. All go or none. Caller holds d.mu.
func (d *Device) release(p *pool, keep uint64) error {
	p.settle(d.work.host)
	left := p.attrs[device.PoolReservedCurrent]
	var gone []*chunk
	for _, c := range slices.Backward(p.chunks) {
		if c.idle == c.bytes && left-c.bytes >= keep {
			left -= c.bytes
			gone = append(gone, c)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	bytes := p.attrs[device.PoolReservedCurrent] - left
	if err := d.give(bytes); err != nil {
		return err
	}
	for _, c := range gone {
		p.take(p.reach(c.first, c.bytes))
		p.drop(c.first)
		d.space.remove(c.addr)
	}
	p.chunks = slices.DeleteFunc(p.chunks, func(c *chunk) bool { return slices.Contains(gone, c) })
	p.attrs[device.PoolReservedCurrent] = left
	d.count.Time += d.costs.Async.PoolRelease + byMiB(d.costs.Async.PoolReleasePerMiB, bytes)
	return nil
}
