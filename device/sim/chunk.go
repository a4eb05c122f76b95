// The memory of pools: what of it is free and since when, which streams may
// have it, and how a pool grows and shrinks.
//
// Free memory is a list of spans, each with the mark of its free. A stream may
// always have what has no mark or one of its own, so for each stream that
// allocates there is, beside the spans, a list of the holes that it may have so,
// sorted by size (holes.go). Only where none of these will do are the spans gone
// through one by one.

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
	idle        uint64          // bytes that are free without a mark
	pages       map[uint64]page // what lies in it; that of all its blocks' memory
}

// span is a free part of a chunk. Spans side by side are joined only if none has
// a mark, so each byte keeps its own.
type span struct {
	hole
	freed *mark // nil: never used, or the host knows that the free is done
}

func (s span) before(o span) bool { return s.addr < o.addr }

// mark is when a free happens.
type mark struct {
	stream device.Stream
	lane   int // the free is this lane's n-th work
	n      uint64
	seen   clock         // what comes before, itself included
	at     time.Duration // when it is done
}

// block is the memory of a new block: its notes (hazard.go) are its own, so that
// they are few, and its contents a part of the chunk's. Used ones are used again.
func (p *pools) block(c *chunk) *memory {
	if n := len(p.spare); n > 0 {
		m := p.spare[n-1]
		p.spare = p.spare[:n-1]
		m.bytes, m.pages = c.bytes, c.pages
		return m
	}
	return &memory{bytes: c.bytes, pages: c.pages}
}

// unblock takes the memory of a block that is no longer used.
func (p *pools) unblock(m *memory) {
	m.uses, m.pages = m.uses[:0], nil
	p.spare = append(p.spare, m)
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
	var kept sorted[span]
	for s := range p.spans.all {
		if s.freed != nil && host.knows(s.freed.lane, s.freed.n) {
			s.freed = nil
			s.in.idle += s.bytes
		}
		if end := kept.prev(place{len(kept.leaves), 0}); end != nil && end.freed == nil && s.freed == nil && end.in == s.in && end.addr+end.bytes == s.addr {
			end.bytes += s.bytes
		} else {
			kept.put(*s)
		}
	}
	p.spans, p.lanes = kept, nil
}

// lane is the holes that a lane's streams may have as they are.
func (p *pool) lane(lane int) *holes {
	for lane >= len(p.lanes) {
		p.lanes = append(p.lanes, nil)
	}
	if p.lanes[lane] == nil {
		own := new(holes)
		for s := range p.spans.all {
			if s.freed == nil || s.freed.lane == lane {
				own.add(s.hole)
			}
		}
		p.lanes[lane] = own
	}
	return p.lanes[lane]
}

// give adds a free span where nothing is free.
func (p *pool) give(s span) {
	p.spans.put(s)
	if s.freed == nil {
		s.in.idle += s.bytes
	}
	for lane, own := range p.lanes {
		if own != nil && (s.freed == nil || s.freed.lane == lane) {
			own.add(s.hole)
		}
	}
}

// take takes [addr, addr+n), which begins with a span and is free in one chunk,
// and says what marks were on it.
func (p *pool) take(addr, n uint64) (marks []*mark) {
	for _, own := range p.lanes {
		if own != nil {
			own.cut(addr, n)
		}
	}
	for at := p.spans.seek(span{hole: hole{addr: addr}}); n > 0; {
		s := p.spans.at(at)
		part := min(s.bytes, n)
		if s.freed == nil {
			s.in.idle -= part
		} else {
			marks = append(marks, s.freed)
		}
		n -= part
		if part < s.bytes {
			s.addr, s.bytes = s.addr+part, s.bytes-part
			break
		}
		at = p.spans.drop(at)
	}
	return marks
}

// scan looks for the smallest run of usable spans side by side with at least n
// bytes, the lowest of those.
func (p *pool) scan(n uint64, usable func(*mark) bool) (addr uint64, ok bool) {
	var run hole
	least := uint64(0)
	end := func() {
		if run.bytes >= n && (!ok || run.bytes < least) {
			addr, least, ok = run.addr, run.bytes, true
		}
		run = hole{}
	}
	for s := range p.spans.all {
		if run.in != s.in || run.addr+run.bytes != s.addr {
			end()
		}
		if !usable(s.freed) {
			end()
			continue
		}
		if run.bytes == 0 {
			run = hole{s.addr, 0, s.in}
		}
		run.bytes += s.bytes
	}
	end()
	return addr, ok
}

// find looks for n bytes that q may have, the gentlest way first, and in each
// the best fit; false where there are none. Caller holds d.mu.
func (d *Device) find(p *pool, q *queue, n uint64) (addr uint64, ok bool) {
	p.settle(d.work.host)
	own := p.lane(q.lane)
	if addr, ok := own.fit(n); ok || own.total == p.free() {
		return addr, ok
	}
	for most := ordered; most <= waiting; most++ {
		if addr, ok := p.scan(n, func(m *mark) bool { return d.reuse(p, q, m) <= most }); ok {
			return addr, true
		}
	}
	return 0, false
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
	case m == nil || m.lane == q.lane:
		return asIs
	case p.attrs[device.PoolReuseFollowEventDependencies] == 1 && q.seen.knows(m.lane, m.n):
		return ordered
	case p.attrs[device.PoolReuseAllowOpportunistic] == 1 && m.at <= d.now():
		return finished
	case p.attrs[device.PoolReuseAllowInternalDependencies] == 1:
		return waiting
	}
	return never
}

// grow adds a chunk with room for n bytes, and says where. Caller holds d.mu.
func (d *Device) grow(p *pool, n uint64) (uint64, error) {
	for _, unit := range []uint64{poolChunk, driverBlock} {
		size, ok := roundUp(n, unit)
		if !ok || p.max != 0 && (size > p.max || p.attrs[device.PoolReservedCurrent] > p.max-size) {
			continue
		}
		if err := d.take(size); errors.Is(err, device.ErrOutOfMemory) {
			continue
		} else if err != nil {
			return 0, err
		}
		addr, ok := d.addresses(size, addrStep)
		if !ok {
			return 0, errors.Join(device.ErrOutOfMemory, d.give(size))
		}
		c := &chunk{addr: addr, bytes: size, pages: map[uint64]page{}}
		p.chunks = append(p.chunks, c) // no address below comes again
		p.give(span{hole: hole{addr, size, c}})
		p.raise(device.PoolReservedCurrent, size)
		d.count.Time += d.costs.Async.PoolGrow + byMiB(d.costs.Async.PoolGrowPerMiB, size)
		return addr, nil
	}
	return 0, device.ErrOutOfMemory
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
		p.take(c.addr, c.bytes)
	}
	p.chunks = slices.DeleteFunc(p.chunks, func(c *chunk) bool { return slices.Contains(gone, c) })
	p.attrs[device.PoolReservedCurrent] = left
	d.count.Time += d.costs.Async.PoolRelease + byMiB(d.costs.Async.PoolReleasePerMiB, bytes)
	return nil
}
