package pytorch

// Segments: what is taken from the device when no free block serves a request, and
// what goes back to it. See pytorch.go for an overview.

import (
	"errors"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/device"
)

// segment is memory that was taken from the device in one piece, or the addresses of
// an expandable segment.
type segment struct {
	addr    uint64
	size    uint64 // bytes that its chunks tile
	granted uint64 // by the device, which may round up; 0 if expandable
	first   chunks.H
	list    int32
	serial  uint64          // in the order of their making
	page    uint64          // of an expandable segment; 0 otherwise
	pages   []device.Handle // behind each page of addresses; 0: none
}

// grow is what is tried when no free block serves n bytes: new memory, and giving
// memory back for it, in PyTorch's order. The chunk that it returns is in no list.
// There is no second search of the free blocks.
func (a *Allocator) grow(l int32, n uint64) (chunks.H, *chunks.Chunk, error) {
	a.quiet = false
	if err := a.collect(); err != nil {
		return 0, nil, err
	}
	h, c, err := a.newMemory(l, n)
	if h == 0 && err == nil && a.cfg.MaxSplit != 0 {
		var enough bool
		if enough, err = a.releaseOversize(l, n); enough && err == nil {
			h, c, err = a.newMemory(l, n)
		}
	}
	if h == 0 && err == nil && a.capturing == 0 {
		if err = a.releaseAll(0); err == nil {
			a.mem.Retries++
			h, c, err = a.newMemory(l, n)
		}
	}
	switch {
	case err != nil:
		return 0, nil, err
	case h != 0:
		return h, c, nil
	}
	a.mem.OOMs++
	if a.segmentSize(n) > a.stats.BytesLimit {
		return 0, nil, alloc.ErrNever
	}
	return 0, nil, alloc.ErrNoMemory
}

// newMemory takes memory for n bytes from the device, and returns a chunk that is in
// no list; 0 without an error if the limit or the device refuses (alloc_block). The
// limit counts a whole segment also where fewer pages would be mapped.
func (a *Allocator) newMemory(l int32, n uint64) (chunks.H, *chunks.Chunk, error) {
	size := a.segmentSize(n)
	if a.cfg.Limit != 0 && a.mem.Reserved+size > a.cfg.Limit {
		return 0, nil, nil
	}
	if a.cfg.Expandable && !(a.cfg.PrivateGrants && a.lists[l].pool > 1) {
		return a.expand(l, n)
	}
	return a.takeSegment(l, size)
}

// takeSegment takes a segment from the device, and returns its chunk, which is in no
// list; 0 without an error if the device refuses.
func (a *Allocator) takeSegment(l int32, size uint64) (chunks.H, *chunks.Chunk, error) {
	got, err := a.dev.Alloc(size)
	if err != nil {
		return 0, nil, a.refused(err)
	}
	s := a.addSegment(segment{addr: got.Addr, size: size, granted: got.Bytes, list: l})
	h, c := a.wholeChunk(s)
	a.hold(got.Bytes)
	a.reserve(l, size)
	m := &a.mem
	m.Segments++
	m.SegmentsPeak = max(m.SegmentsPeak, m.Segments)
	m.SegmentsMade++
	if size >= a.maxSplit {
		m.OversizeSegments++
	}
	return h, c, nil
}

// refused is nil for a device that has not enough memory, which is no error here.
func (a *Allocator) refused(err error) error {
	if !errors.Is(err, device.ErrOutOfMemory) {
		return err
	}
	if a.cfg.Log != nil {
		a.cfg.Log(alloc.Message{Severity: alloc.Error, Text: err.Error()})
	}
	return nil
}

// hold counts bytes that the device granted.
func (a *Allocator) hold(bytes uint64) {
	a.stats.PoolBytes += bytes
	a.stats.PeakPoolBytes = max(a.stats.PeakPoolBytes, a.stats.PoolBytes)
}

// reserve counts bytes of a segment, or of mapped pages.
func (a *Allocator) reserve(l int32, bytes uint64) {
	m := &a.mem
	m.Reserved += bytes
	m.ReservedPeak = max(m.ReservedPeak, m.Reserved)
	if a.pools[a.lists[l].pool].small {
		m.ReservedSmall += bytes
	}
}

// unreserve is the contrary of reserve.
func (a *Allocator) unreserve(l int32, bytes uint64) {
	a.mem.Reserved -= bytes
	if a.pools[a.lists[l].pool].small {
		a.mem.ReservedSmall -= bytes
	}
}

// addSegment enters a segment and returns its number.
func (a *Allocator) addSegment(s segment) int32 {
	a.serial++
	s.serial = a.serial
	if s.addr < a.highest {
		a.rising = false
	}
	a.highest = max(a.highest, s.addr)
	a.arenaOf(s.list).segments++
	if n := len(a.spare); n > 0 {
		i := a.spare[n-1]
		a.spare = a.spare[:n-1]
		a.segments[i] = s
		return i
	}
	a.segments = append(a.segments, s)
	return int32(len(a.segments) - 1)
}

// dropSegment forgets a segment that has no chunk.
func (a *Allocator) dropSegment(i int32) {
	a.arenaOf(a.segments[i].list).segments--
	a.segments[i] = segment{}
	a.spare = append(a.spare, i)
}

// wholeChunk makes the one chunk of a new segment, free and in no list.
func (a *Allocator) wholeChunk(i int32) (chunks.H, *chunks.Chunk) {
	h, c := a.newChunk(i)
	s := &a.segments[i]
	s.first = h
	c.Addr, c.Size, c.Stream, c.Tag, c.State, c.Requested = s.addr, s.size, uint32(s.list), 0, chunks.Free, 0
	return h, c
}

// whole reports whether a free chunk is all of a segment that was taken in one piece.
func whole(c *chunks.Chunk) bool { return c.Prev|c.Next == 0 && c.Tag&expand == 0 }

// freeSegment gives the segment of the free chunk h, which is all of it, back to the
// device. After an error it stays.
func (a *Allocator) freeSegment(h chunks.H, c *chunks.Chunk) error {
	if err := a.quiesce(false); err != nil {
		return err
	}
	i := a.more[h].segment
	s := &a.segments[i]
	if err := a.dev.Free(s.addr); err != nil {
		return err
	}
	a.stats.PoolBytes -= s.granted
	a.unreserve(s.list, s.size)
	a.mem.Segments--
	a.takeFree(h, c)
	a.store.Drop(h)
	a.dropSegment(i)
	return nil
}

// collect gives segments of the large pool back that have been idle for longer than
// the mean, until less than the threshold is reserved (garbage_collect_cached_blocks).
// A round is not cut short when enough is free.
func (a *Allocator) collect() error {
	if a.cfg.GC == 0 {
		return nil
	}
	threshold := uint64(a.cfg.GC * float64(a.cfg.Limit))
	if a.mem.Reserved <= threshold {
		return nil
	}
	target := a.mem.Reserved - threshold
	p := &a.pools[0]
	var ages, freed uint64
	idle := 0
	for h, c := range a.freeOf(p) {
		if whole(c) {
			ages += p.searches - a.more[h].stamp
			idle++
		}
	}
	for again := idle > 0; freed < target && again && idle > 0; {
		mean := float64(ages) / float64(idle)
		again = false
		for h, c := range a.freeOf(p) {
			age := p.searches - a.more[h].stamp
			if !whole(c) || float64(age) < mean {
				continue
			}
			bytes := c.Size
			if err := a.freeSegment(h, c); err != nil {
				return err
			}
			again = true
			freed += bytes
			ages -= age
			idle--
		}
	}
	return nil
}

// freeOf visits the free chunks of a pool in order. The chunk that is visited may be
// taken out meanwhile.
func (a *Allocator) freeOf(p *pool) func(yield func(chunks.H, *chunks.Chunk) bool) {
	return func(yield func(chunks.H, *chunks.Chunk) bool) {
		for _, l := range p.lists {
			x := a.lists[l].mapped
			for h := x.Find(0); h != 0; {
				next := x.After(h)
				if !yield(h, a.store.At(h)) {
					return
				}
				h = next
			}
		}
	}
}

// releaseOversize releases blocks that are too large to be split, and reports
// whether those were enough for n bytes (release_available_cached_blocks): the
// smallest one that is large enough, or else the largest ones.
func (a *Allocator) releaseOversize(l int32, n uint64) (bool, error) {
	target := max(n, a.maxSplit)
	x := a.lists[l].mapped
	end := x.Find(target)
	if end != 0 {
		if c := a.store.At(end); c.Tag&expand == 0 {
			err := a.freeSegment(end, c)
			return err == nil, err
		}
	}
	large := a.scratch[:0]
	for h := x.Find(a.maxSplit); h != end && h != 0; h = x.After(h) {
		if a.store.At(h).Tag&expand == 0 {
			large = append(large, h)
		}
	}
	a.scratch = large
	freed := uint64(0)
	for i := len(large) - 1; i >= 0 && freed < target; i-- {
		c := a.store.At(large[i])
		bytes := c.Size
		if err := a.freeSegment(large[i], c); err != nil {
			return false, err
		}
		freed += bytes
	}
	return freed >= target, nil
}

// releaseAll waits for all events and releases everything that is free, until at most
// keep bytes are held (release_cached_blocks): the large pool's first, then the small
// one's, then those of private pools that nothing uses any more.
func (a *Allocator) releaseAll(keep uint64) error {
	if a.streams.Deferred() && a.mem.Reserved > a.stats.BytesInUse {
		// The caller has to unlock and wait, before anything has changed.
		if err := a.quiesce(false); err != nil {
			return err
		}
	}
	if err := a.awaitEvents(); err != nil {
		return err
	}
	a.releaseOrphans()
	if err := a.releasePools(keep, 0, 1); err != nil {
		return err
	}
	for _, i := range a.freeable() {
		if err := a.releasePools(keep, 2*i+1, 2*i); err != nil {
			return err
		}
		a.endArena(i)
	}
	return nil
}

// releasePools gives the free blocks of two pools back, in that order.
func (a *Allocator) releasePools(keep uint64, first, second int) error {
	if err := a.releasePool(&a.pools[first], keep); err != nil {
		return err
	}
	return a.releasePool(&a.pools[second], keep)
}

// releasePool gives the free blocks of a pool back: whole segments in order, then the
// whole pages of free blocks of expandable segments.
func (a *Allocator) releasePool(p *pool, keep uint64) error {
	paged := a.scratch[:0]
	for h, c := range a.freeOf(p) {
		if a.stats.PoolBytes <= keep {
			return nil
		}
		switch {
		case c.Tag&expand != 0:
			paged = append(paged, h)
		case whole(c):
			if err := a.freeSegment(h, c); err != nil {
				return err
			}
		}
	}
	a.scratch = paged
	for _, h := range paged {
		if a.stats.PoolBytes <= keep {
			return nil
		}
		if err := a.unmapPages(h, a.store.At(h)); err != nil {
			return err
		}
	}
	return nil
}

// quiesce waits for the work on the device before memory goes back, once in an
// operation. cudaFree waits by itself; where the owner waits without its lock, and
// before pages are unmapped, the wait has to be made.
func (a *Allocator) quiesce(pages bool) error {
	if a.quiet || a.streams.Repeated() || !pages && !a.streams.Deferred() {
		return nil
	}
	if err := a.streams.Synchronize(); err != nil {
		return err
	}
	a.quiet = true
	return nil
}

// Trim releases what is free to the device until at most keep bytes are held, as
// torch.cuda.empty_cache does with all of it. During a capture it does nothing, as that
// does since 2.8; before, it failed an assertion.
func (a *Allocator) Trim(keep uint64) (released uint64, err error) {
	if a.closed {
		return 0, alloc.ErrClosed
	}
	before := a.stats.PoolBytes
	if before <= keep || a.capturing > 0 {
		return 0, nil
	}
	a.quiet = false
	err = a.releaseAll(keep)
	return before - a.stats.PoolBytes, err
}

// Close releases every segment, whatever lives in it. A device that fails does not
// keep the others from being released; its errors are joined.
func (a *Allocator) Close() error {
	if a.closed {
		return alloc.ErrClosed
	}
	a.closed = true
	for _, q := range a.queues {
		for _, e := range q.events {
			a.streams.Release(e.mark)
		}
	}
	errs := []error{a.streams.Close()}
	if a.cfg.Expandable && a.stats.PoolBytes > 0 {
		errs = append(errs, a.dev.Synchronize())
	}
	for i := range a.segments {
		s := &a.segments[i]
		switch {
		case s.size == 0:
		case s.page != 0:
			errs = append(errs, a.closePages(s))
		default:
			if err := a.dev.Free(s.addr); err != nil {
				errs = append(errs, err)
				continue
			}
			a.stats.PoolBytes -= s.granted
		}
	}
	errs = append(errs, a.releaseOrphans())
	a.segments, a.spare, a.lists, a.pools, a.arenas, a.queues, a.others, a.more = nil, nil, nil, nil, nil, nil, nil, nil
	a.routes, a.orphans, a.unused, a.scratch, a.deferred = nil, nil, nil, nil, nil
	a.store = chunks.Store{}
	a.live = nil
	a.stats.BytesInUse = 0
	a.mem = MemoryStats{}
	return errors.Join(errs...)
}
