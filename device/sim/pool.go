// The driver's stream-ordered pools: AllocAsync and FreeAsync.
//
// A pool takes memory from the device in chunks (chunk.go) and allocates parts
// of them. Both calls are queued in a stream, but the pool decides at once,
// when they are called. So a block may be allocated again while the work that
// used it before still runs, as long as the new user comes after that work in
// every run. What is free therefore has a mark of its free: in which stream,
// after what.
//
// One block and its memory:
//
//  1. AllocAsync of 1 MiB in stream 1 finds nothing and grows: the ledger gives
//     32 MiB, a chunk, all free without a mark. Its first MiB is the block.
//  2. FreeAsync in stream 1 checks that the work that used the block comes before, and
//     leaves its MiB free with a mark: stream 1, number 7.
//  3. AllocAsync in stream 1 may have it at once: what comes in stream 1 comes
//     after. In stream 2 it may have it if stream 2 waits for an event after
//     number 7; or number 7 happens to be done by now; or stream 2 is made to
//     wait for it; in this order, each if the pool's attribute allows it, and
//     all before the pool grows.
//  4. A synchronise tells the host that number 7 is done. Marks that the host
//     knows to be done are taken away, since whatever is queued from now on
//     comes after them. A chunk that is free without marks is released to the
//     device if that leaves the pool at least its release threshold.
//
// Where the driver's manual is silent the rules here are the simplest that fit:
// the best fit, at the lowest address; no chunk is released in parts; a pool
// takes nothing from another one.

package sim

import (
	"slices"

	"gpumem/device"
)

const (
	// callPoolAlloc also marks the note of an allocation (hazard.go).
	callPoolAlloc = "cuMemAllocFromPoolAsync"
	callPoolFree  = "cuMemFreeAsync"
	// poolStep: an allocation is rounded up to a multiple of it, as those of
	// cuMemAlloc are. Assumed to be the same.
	poolStep = 512
	// poolChunk: a pool grows by multiples of it, or if that does not fit, of
	// driverBlock. 32 MiB is from memory; no source for it was found.
	poolChunk = 32 << 20
)

// pool is a pool of the driver. Ended ones stay until all their chunks are
// released.
type pool struct {
	handle device.Pool // 0: ended
	max    uint64      // bytes; 0: no limit
	attrs  [device.PoolUsedHigh + 1]uint64
	chunks []*chunk // by address

	// Of chunk.go.
	lanes []*holes // by lane: what its streams may have as it is; nil: they never asked
	known clock    // what the host knew when marks were last taken away
	spare *part    // parts that are in no chunk any more
	fresh []part   // and those that never were
}

// pools are those of a device, and what is freed to no pool but waits for its
// stream as well.
type pools struct {
	all     []*pool // in the order of their making; the first is the device's own
	last    device.Pool
	pending []pendingFree
	blocks  blockTable
	looked  map[*part]*memory // of the blocks whose memory somebody has looked at
}

// pendingFree is a plain grant that was freed in a stream. It is released to the
// device at the first synchronise that tells the host that the free is done.
type pendingFree struct {
	grant segment
	freed mark
}

// newPools are those of a new device: its own.
func newPools() pools {
	p := pools{blocks: newTable(), looked: map[*part]*memory{}}
	p.open(0)
	return p
}

func (p *pools) open(limit uint64) device.Pool {
	p.last++
	made := &pool{handle: p.last, max: limit}
	for _, a := range []device.PoolAttribute{device.PoolReuseFollowEventDependencies,
		device.PoolReuseAllowOpportunistic, device.PoolReuseAllowInternalDependencies} {
		made.attrs[a] = 1
	}
	p.all = append(p.all, made)
	return p.last
}

// raise changes one of the two current values, and its high mark with it.
func (p *pool) raise(current device.PoolAttribute, n uint64) {
	p.attrs[current] += n
	p.attrs[current+1] = max(p.attrs[current+1], p.attrs[current])
}

// DefaultPool returns the device's own pool.
func (d *Device) DefaultPool() (h device.Pool, err error) {
	err = d.doIf(d.info.HasPools, "cuDeviceGetDefaultMemPool", 0, d.costs.Async.PoolManage, func() error {
		h = d.pools.all[0].handle
		return nil
	})
	return h, err
}

// PoolCreate makes a pool that holds at most limit bytes; 0 means no limit.
func (d *Device) PoolCreate(limit uint64) (h device.Pool, err error) {
	err = d.doIf(d.info.HasPools, "cuMemPoolCreate", 0, d.costs.Async.PoolManage, func() error {
		h = d.pools.open(limit)
		return nil
	})
	return h, err
}

// PoolDestroy ends a pool. What is free in it, and known by the host to be, is released
// to the device at once; the rest at the first synchronise after it has become so. For
// the device's own pool it returns device.ErrInvalidValue.
func (d *Device) PoolDestroy(h device.Pool) error {
	return d.onPool("cuMemPoolDestroy", h, func(p *pool) error {
		if p == d.pools.all[0] {
			return device.ErrInvalidValue
		}
		if err := d.release(p, 0); err != nil {
			return err
		}
		p.handle, p.attrs[device.PoolReleaseThreshold] = 0, 0
		d.pools.tidy()
		return nil
	})
}

// PoolGetAttribute reads a property of a pool.
func (d *Device) PoolGetAttribute(h device.Pool, a device.PoolAttribute) (v uint64, err error) {
	err = d.onPool("cuMemPoolGetAttribute", h, func(p *pool) error {
		if a < 1 || int(a) >= len(p.attrs) {
			return device.ErrInvalidValue
		}
		v = p.attrs[a]
		return nil
	})
	return v, err
}

// PoolSetAttribute sets a property of a pool. A lower release threshold has its
// effect at the next synchronise. A high mark is set to 0 to start again from
// what is current; other values answer device.ErrInvalidValue.
func (d *Device) PoolSetAttribute(h device.Pool, a device.PoolAttribute, v uint64) error {
	return d.onPool("cuMemPoolSetAttribute", h, func(p *pool) error {
		switch {
		case device.PoolReuseFollowEventDependencies <= a && a <= device.PoolReuseAllowInternalDependencies && v <= 1,
			a == device.PoolReleaseThreshold:
			p.attrs[a] = v
		case (a == device.PoolReservedHigh || a == device.PoolUsedHigh) && v == 0:
			p.attrs[a] = p.attrs[a-1]
		default:
			return device.ErrInvalidValue
		}
		return nil
	})
}

// PoolTrim releases chunks that are free, as far as the host knows, and that
// leave the pool at least keep bytes. cuMemPoolTrimTo promises the latter, so
// more than keep may stay: up to a chunk, and what is in use.
func (d *Device) PoolTrim(h device.Pool, keep uint64) error {
	return d.onPool("cuMemPoolTrimTo", h, func(p *pool) error { return d.release(p, keep) })
}

// AllocAsync allocates bytes, at least 1, rounded up to 512. Where the pool has
// no room, may not grow, or the device has not that much left, it answers
// device.ErrOutOfMemory and nothing changes; a synchronise may help.
func (d *Device) AllocAsync(h device.Pool, bytes uint64, s device.Stream) (r device.Range, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err = d.call(callPoolAlloc, bytes, d.costs.Async.PoolAlloc); err == nil {
		r, err = d.allocAsync(h, bytes, s)
	}
	return r, d.refuse(callPoolAlloc, bytes, err)
}

// allocAsync is AllocAsync without the gate. Caller holds d.mu.
func (d *Device) allocAsync(h device.Pool, bytes uint64, s device.Stream) (device.Range, error) {
	p, q := d.pools.named(h), d.work.stream(s)
	switch {
	case !d.info.HasPools:
		return device.Range{}, device.ErrNotSupported
	case p == nil:
		return device.Range{}, device.ErrInvalidValue
	case q == nil:
		return device.Range{}, device.ErrInvalidHandle
	case bytes == 0:
		return device.Range{}, device.ErrInvalidValue
	}
	n, ok := roundUp(bytes, poolStep)
	if !ok {
		return device.Range{}, device.ErrOutOfMemory
	}
	first := d.find(p, q, n)
	if first == nil {
		var err error
		if first, err = d.grow(p, n); err != nil {
			return device.Range{}, err
		}
	}
	block, last := p.reach(first, n)
	for s := block; s != last.next; s = s.next {
		if s.from != nil && s.from.lane != q.lane {
			// After a free that q comes after this changes nothing; after one that
			// it does not, it does now.
			q.await(s.at, s.from.seen)
			q.seen.set(s.from.lane, max(s.n, q.seen.at(s.from.lane)))
		}
	}
	p.take(block, last)
	p.raise(device.PoolUsedCurrent, n)
	d.pools.blocks.put(block)
	// No check: all that touched these bytes comes before their free. The mark is the
	// note, until somebody looks at the memory.
	if d.cfg.PromptAllocs && d.work.idle(q) {
		block.mark = mark{}
	} else {
		d.commit(callPoolAlloc, q, 0)
		block.mark = q.mark()
	}
	return device.Range{Addr: block.addr, Bytes: n}, nil
}

// FreeAsync frees what AllocAsync or Alloc gave, when the work that is in s now
// is done; addr is its start. From here on it must not be used. A plain grant goes
// back to the device at the next synchronise that tells the host that the free
// is done.
func (d *Device) FreeAsync(addr uint64, s device.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.call(callPoolFree, 0, d.costs.Async.PoolFree)
	if err == nil {
		err = d.freeAsync(addr, s)
	}
	return d.refuse(callPoolFree, 0, err)
}

// freeAsync is FreeAsync without the gate. Caller holds d.mu.
func (d *Device) freeAsync(addr uint64, s device.Stream) error {
	q := d.work.stream(s)
	switch {
	case !d.info.HasPools:
		return device.ErrNotSupported
	case q == nil:
		return device.ErrInvalidHandle
	}
	block, g := d.pools.blocks.find(addr), (*segment)(nil)
	if block == nil {
		if g = d.space.starting(addr); g == nil || g.kind != granted {
			return device.ErrInvalidValue
		}
	}
	// Memory that was never looked at has no notes but that of its allocation.
	var all []access
	switch {
	case block == nil && g.mem != nil:
		all = []access{{[]piece{{mem: g.mem, off: g.off, bytes: g.bytes, addr: addr}}, true}}
	case block != nil && (d.pools.looked[block] != nil || !block.known(d.work.host) && !block.known(q.seen)):
		all = []access{{[]piece{d.pools.piece(block, addr, block.bytes)}, true}}
	}
	if err := d.check(callPoolFree, q, all...); err != nil {
		return err
	}
	// No note: who gets the memory next comes after this, and leaves one.
	d.commit(callPoolFree, q, 0)
	if block == nil {
		d.pools.pending = append(d.pools.pending, pendingFree{*g, q.mark()})
		d.space.remove(addr)
		return nil
	}
	d.pools.blocks.drop(addr)
	delete(d.pools.looked, block)
	p := d.pools.all[0]
	if len(d.pools.all) > 1 {
		p, _ = d.pools.holding(addr)
	}
	p.attrs[device.PoolUsedCurrent] -= block.bytes
	p.give(block, q.mark())
	return nil
}

// releaseUnused is what a synchronise does last: plain grants whose free is done
// go back, and what pools have above their thresholds. Caller holds d.mu.
func (d *Device) releaseUnused() error {
	for i := 0; i < len(d.pools.pending); {
		f := d.pools.pending[i]
		if !f.freed.known(d.work.host) {
			i++
			continue
		}
		if err := d.give(f.grant.bytes); err != nil {
			return err
		}
		d.chargeFree(f.grant)
		d.pools.pending = slices.Delete(d.pools.pending, i, i+1)
	}
	for _, p := range d.pools.all {
		if err := d.release(p, p.attrs[device.PoolReleaseThreshold]); err != nil {
			return err
		}
	}
	d.pools.tidy()
	return nil
}

// tidy forgets ended pools that hold nothing any more.
func (p *pools) tidy() {
	p.all = slices.DeleteFunc(p.all, func(one *pool) bool { return one.handle == 0 && len(one.chunks) == 0 })
}

// block is the block that addr lies in, nil if there is none.
func (p *pools) block(addr uint64) *part {
	b := p.blocks.find(addr)
	if b != nil {
		return b
	}
	if _, c := p.holding(addr); c != nil {
		for b = c.first; addr >= b.end(); b = b.next {
		}
		if b.used() {
			return b
		}
	}
	return nil
}

// holding is the pool and the chunk that addr lies in, nil if it lies in none.
func (p *pools) holding(addr uint64) (*pool, *chunk) {
	for _, one := range p.all {
		if c := one.in(addr); c != nil {
			return one, c
		}
	}
	return nil, nil
}

// InPool reports whether a range lies in memory that a pool has from the device, of one block or
// not. A program that uses it after its free, or past a block's end, gets away with that on a
// GPU; see [Hazard].
func (d *Device) InPool(addr, bytes uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, c := d.pools.holding(addr)
	return c != nil && bytes <= c.addr+c.bytes-addr
}

// freedIn reports whether a part of r is free in a pool, or a plain grant that was
// freed in a stream, and records in h where and by which stream. Caller holds d.mu.
func (d *Device) freedIn(r device.Range, h *Hazard) bool {
	tell := func(at, bytes uint64, m *mark) bool {
		end := min(at+bytes, r.Addr+r.Bytes)
		if at = max(at, r.Addr); at >= end {
			return false
		}
		h.Addr, h.Bytes, h.Reason = at, end-at, Freed
		if m.from != nil {
			h.Earlier, h.EarlierStream = callPoolFree, m.from.stream
		}
		return true
	}
	for _, f := range d.pools.pending {
		if tell(f.grant.addr, f.grant.bytes, &f.freed) {
			return true
		}
	}
	for _, p := range d.pools.all {
		for s := range p.parts {
			if !s.used() && tell(s.addr, s.bytes, &s.mark) {
				return true
			}
		}
	}
	return false
}

// named is the pool with that handle, nil if there is none.
func (p *pools) named(h device.Pool) *pool {
	for _, one := range p.all {
		if one.handle == h && h != 0 {
			return one
		}
	}
	return nil
}

// onPool is do for a call that manages a pool.
func (d *Device) onPool(call string, h device.Pool, body func(*pool) error) error {
	return d.doIf(d.info.HasPools, call, 0, d.costs.Async.PoolManage, func() error {
		p := d.pools.named(h)
		if p == nil {
			return device.ErrInvalidValue
		}
		return body(p)
	})
}
