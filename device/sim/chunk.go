// This file has the memory of pools: what of it is free and since when, who may
// have it, and how a pool grows and gives back.

package sim

import (
	"errors"
	"slices"
	"time"

	"gpumem/device"
)

// chunk is memory that a pool has from the device, at addresses in a row. What
// of it is free is a list of spans; the rest is allocated.
type chunk struct {
	addr uint64
	mem  *memory
	free []span // by offset. Spans side by side are joined only if none has a mark, so each byte keeps its own
}

// span is a free part of a chunk.
type span struct {
	off, bytes uint64
	freed      *mark // nil: never used, or the host knows that the free is done
}

// mark says when a free happens.
type mark struct {
	stream device.Stream
	lane   int // the free is this lane's n-th work
	n      uint64
	seen   clock         // what comes before, itself included
	at     time.Duration // when it is done
}

func newChunk(addr, bytes uint64) *chunk {
	return &chunk{addr: addr, mem: &memory{bytes: bytes}, free: []span{{0, bytes, nil}}}
}

// unused says whether all of it is free without a mark.
func (c *chunk) unused() bool {
	return len(c.free) == 1 && c.free[0].bytes == c.mem.bytes && c.free[0].freed == nil
}

// settle takes the marks away that the host knows to be done.
func (c *chunk) settle(host clock) {
	for i := range c.free {
		if m := c.free[i].freed; m != nil && host.knows(m.lane, m.n) {
			c.free[i].freed = nil
		}
	}
	joined := c.free[:0]
	for _, s := range c.free {
		if n := len(joined) - 1; n >= 0 && joined[n].freed == nil && s.freed == nil && joined[n].off+joined[n].bytes == s.off {
			joined[n].bytes += s.bytes
		} else {
			joined = append(joined, s)
		}
	}
	clear(c.free[len(joined):])
	c.free = joined
}

// fit is the smallest run of usable spans side by side with at least n bytes:
// the number of its first span, and the bytes of all. 0 bytes: there is none.
func (c *chunk) fit(n uint64, usable func(*mark) bool) (first int, size uint64) {
	for i := 0; i < len(c.free); {
		end, run := i, uint64(0)
		for end < len(c.free) && usable(c.free[end].freed) && c.free[end].off == c.free[i].off+run {
			run += c.free[end].bytes
			end++
		}
		if run >= n && (size == 0 || run < size) {
			first, size = i, run
		}
		i = max(end, i+1)
	}
	return first, size
}

// take allocates n bytes from the start of span first on, which has that many
// with those beside it, and says where that is and what marks were on it.
func (c *chunk) take(first int, n uint64) (off uint64, marks []*mark) {
	off = c.free[first].off
	i := first
	for ; n > 0; i++ {
		s := &c.free[i]
		if s.freed != nil {
			marks = append(marks, s.freed)
		}
		if s.bytes > n {
			s.off, s.bytes = s.off+n, s.bytes-n
			break
		}
		n -= s.bytes
	}
	c.free = slices.Delete(c.free, first, i)
	return off, marks
}

// give adds a free span where all is allocated.
func (c *chunk) give(s span) {
	i := slices.IndexFunc(c.free, func(o span) bool { return o.off > s.off })
	if i < 0 {
		i = len(c.free)
	}
	c.free = slices.Insert(c.free, i, s)
}

// find looks for n bytes that q may have, the gentlest way first, and in each
// the best fit: the chunk, and the number of the first free span. Caller holds
// d.mu.
func (d *Device) find(p *pool, q *queue, n uint64) (*chunk, int) {
	for _, c := range p.chunks {
		c.settle(d.work.host)
	}
	for most := asIs; most <= waiting; most++ {
		var best *chunk
		var first int
		var least uint64
		for _, c := range p.chunks {
			i, size := c.fit(n, func(m *mark) bool { return d.reuse(p, q, m) <= most })
			if size > 0 && (best == nil || size < least) {
				best, first, least = c, i, size
			}
		}
		if best != nil {
			return best, first
		}
	}
	return nil, 0
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

// grow adds a chunk with room for n bytes. Caller holds d.mu.
func (d *Device) grow(p *pool, n uint64) (*chunk, error) {
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
		c := newChunk(addr, size)
		p.chunks = append(p.chunks, c)
		p.raise(device.PoolReservedCurrent, size)
		d.count.Time += d.costs.Async.PoolGrow + byMiB(d.costs.Async.PoolGrowPerMiB, size)
		return c, nil
	}
	return nil, device.ErrOutOfMemory
}

// release gives free chunks back, the newest first, as long as the pool keeps
// at least keep bytes. All go or none. Caller holds d.mu.
func (d *Device) release(p *pool, keep uint64) error {
	left := p.attrs[device.PoolReservedCurrent]
	stay := make([]*chunk, 0, len(p.chunks))
	for i := len(p.chunks) - 1; i >= 0; i-- {
		c := p.chunks[i]
		c.settle(d.work.host)
		if c.unused() && left-c.mem.bytes >= keep {
			left -= c.mem.bytes
		} else {
			stay = append(stay, c)
		}
	}
	gone := p.attrs[device.PoolReservedCurrent] - left
	if gone == 0 {
		return nil
	}
	if err := d.give(gone); err != nil {
		return err
	}
	slices.Reverse(stay)
	p.chunks = stay
	p.attrs[device.PoolReservedCurrent] = left
	d.count.Time += d.costs.Async.PoolRelease + byMiB(d.costs.Async.PoolReleasePerMiB, gone)
	return nil
}
