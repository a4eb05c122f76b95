package torch

// Private pools of segments that are gone at the end, as those of a graph that was destroyed.
// The snapshot does not say which they were of. But a request takes a new segment only if its
// pool has no room for it: so one that is taken while the default pool has room is of another.
// And an emptied cache releases what is free of the default pools: so what stays is of another.

import (
	"cmp"
	"slices"

	"gpumem/record/internal/tape"
)

const (
	// maxVanished bounds the segments at once, and maxScans the blocks that are looked at, so
	// that a long recording does not take long.
	maxVanished = 1 << 12
	maxScans    = 1 << 28
)

// lived is a segment while the events are gone through.
type lived struct {
	tape.Segment
	taken  int // its number in device.changed; -1 of the first event, with that in start
	first  int
	blocks map[uint64]uint64 // live, with their requested sizes
}

// vanished is what is known while the events are gone through.
type vanished struct {
	d     *device
	held  []*lived          // by address
	now   map[uint32]uint32 // the pool that served each stream last
	fresh map[uint32][]int  // of each stream: new segments just before, that may be of the next pool
	pools map[int]uint32    // the answer, by the number in device.changed
	next  uint32            // the number of the next pool
	atEnd map[uint64]bool   // addresses of segments at the end
	stays map[int]bool      // segments that were taken and are there at the end, where their pool is known
	scans int
}

// findVanished adds to pools those of segments that were taken from the device and released.
// It does nothing for a program without private pools at its end, with blocks that do not
// serve smaller requests, or with expandable segments.
func (d *device) findVanished(start []tape.Segment, pools map[int]uint32) {
	isPaged := func(c change) bool { return c.paged }
	if len(d.privates) == 0 || d.maxSplit || slices.ContainsFunc(d.changed, isPaged) {
		return
	}
	v := &vanished{d: d, now: map[uint32]uint32{}, fresh: map[uint32][]int{}, pools: pools, next: uint32(len(d.privates)) + 1}
	last := d.lastTaken()
	for k, s := range start {
		if s.Base != 0 {
			return
		}
		l := &lived{s, -1, k, map[uint64]uint64{}}
		for _, b := range s.Blocks {
			l.blocks[b.Addr] = b.Requested
		}
		v.held = append(v.held, l)
	}
	v.stays, v.atEnd = map[int]bool{}, map[uint64]bool{}
	for _, i := range last {
		v.stays[i] = true
	}
	for _, s := range d.final {
		v.atEnd[s.Addr] = true
	}
	emptied := map[int]bool{}
	for _, at := range d.trims {
		emptied[at] = true
	}
	next := 0
	for i := range d.events {
		taken := -1
		if emptied[i] { // a capture begins with that
			v.emptied(i, next, start)
		}
		for ; next < len(d.changed) && d.changed[next].before <= i; next++ {
			if c := d.changed[next]; c.freed {
				v.drop(c.Addr)
			} else {
				c.Private = pools[next]
				v.add(c.Segment, next)
				taken = next
			}
		}
		if len(v.held) > maxVanished || v.scans > maxScans {
			return
		}
		v.event(&d.events[i], taken)
	}
}

// emptied looks at what stays when the program empties the cache before an event.
func (v *vanished) emptied(event, next int, start []tape.Segment) {
	v.now, v.fresh = map[uint32]uint32{}, map[uint32][]int{}
	v.scans += len(v.held)
	released := map[uint64]bool{}
	for _, c := range v.d.changed[next:] {
		if c.before > event {
			break
		}
		released[c.Addr] = released[c.Addr] || c.freed
	}
	for _, l := range v.held {
		isKnown := l.taken >= 0 && v.stays[l.taken] || l.taken < 0 && v.atEnd[l.Addr]
		if len(l.blocks) > 0 || l.Private != 0 || released[l.Addr] || isKnown {
			continue
		}
		l.Private = v.next
		v.next++
		if l.taken < 0 {
			start[l.first].Private = l.Private
		} else {
			v.pools[l.taken] = l.Private
		}
	}
}

func (v *vanished) find(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(v.held, addr, func(l *lived, addr uint64) int { return cmp.Compare(l.Addr, addr) })
}

func (v *vanished) add(s tape.Segment, taken int) {
	i, _ := v.find(s.Addr)
	v.held = slices.Insert(v.held, i, &lived{s, taken, 0, map[uint64]uint64{}})
}

func (v *vanished) drop(addr uint64) {
	if i, ok := v.find(addr); ok {
		v.held = slices.Delete(v.held, i, i+1)
	}
}

// at returns the segment that an address lies in, nil if there is none.
func (v *vanished) at(addr uint64) *lived {
	i, ok := v.find(addr)
	if !ok {
		i--
	}
	if i < 0 || addr-v.held[i].Addr >= v.held[i].Bytes {
		return nil
	}
	return v.held[i]
}

// event follows an event, before which a segment was taken; -1 for none.
func (v *vanished) event(e *event, taken int) {
	l := v.at(e.addr)
	switch {
	case l == nil || e.action != allocated && e.action != freeCompleted:
		return
	case e.action == freeCompleted:
		delete(l.blocks, e.addr)
		return
	}
	s := e.stream
	if taken >= 0 && l.Addr == v.d.changed[taken].Addr && l.Private == 0 && !v.stays[taken] {
		l.Private = v.choose(l, e, taken)
		if l.Private != 0 {
			v.pools[taken] = l.Private
		}
	} else if l.Private == 0 {
		v.fresh[s] = nil
	}
	v.now[s] = l.Private
	l.blocks[e.addr] = e.size
}

// choose returns the pool of a new segment.
func (v *vanished) choose(l *lived, e *event, taken int) uint32 {
	s, now := e.stream, v.now[e.stream]
	hasRoom := v.room(l, 0, e.size)
	switch {
	case now != 0 && !v.room(l, now, e.size):
		return now
	case now == 0 && !hasRoom: // of the default pool, unless the next one shows that a capture has begun
		v.fresh[s] = append(v.fresh[s], taken)
		return 0
	case now != 0 && !hasRoom && s == 0:
		return 0
	}
	pool := v.next
	v.next++
	if s != 0 { // captures have separate streams
		for _, k := range v.fresh[s] {
			v.pools[k] = pool
			if before := v.at(v.d.changed[k].Addr); before != nil {
				before.Private = pool
			}
		}
	}
	v.fresh[s] = nil
	return pool
}

// room reports whether a segment of a pool, of the same kind as one, has room for a request
// for sure: whatever it is rounded up to, and whatever blocks have at their ends.
func (v *vanished) room(one *lived, pool uint32, bytes uint64) bool {
	want := 2*bytes + 512
	if !one.Small {
		want += smallRequest
	}
	for _, l := range v.held {
		if l == one || l.Private != pool || l.Stream != one.Stream || l.Small != one.Small || l.Bytes < want {
			continue
		}
		v.scans += len(l.blocks) + 1
		at := l.Addr
		var addrs []uint64
		for addr := range l.blocks {
			addrs = append(addrs, addr)
		}
		slices.Sort(addrs)
		for _, addr := range append(addrs, l.Addr+l.Bytes) {
			if addr > at && addr-at >= want {
				return true
			}
			at = addr + l.blocks[addr]
		}
	}
	return false
}
