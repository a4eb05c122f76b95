package torch

// Private pools, which a program has for CUDA graphs and torch.cuda.MemPool: they have
// separate segments. Events do not name the pool, but a request was served by the one in
// whose segment it lies.

import (
	"cmp"
	"slices"

	"gpumem/record/internal/tape"
)

// private returns the number of the private pool that a segment of the snapshot is of, from
// 1; 0 if it is of the default pools. ok is false if the snapshot has it in a form that is
// not known.
func (d *device) private(seg *dict) (number uint32, ok bool) {
	id, _ := seg.get("segment_pool_id")
	if id == nil {
		return 0, true
	}
	l, isList := id.(*list)
	if !isList || len(l.items) != 2 {
		return 0, false
	}
	var key [2]int64
	for i, v := range l.items {
		if key[i], ok = v.(int64); !ok {
			return 0, false
		}
	}
	if key == [2]int64{} {
		return 0, true
	}
	if number, ok = d.privates[key]; !ok {
		number = uint32(len(d.privates) + 1)
		d.privates[key] = number
	}
	return number, true
}

// maxPrivate bounds the segments of private pools that are followed.
const maxPrivate = 1 << 13

// findPrivate finds which events are served by private pools, and when those end: with the
// first of their segments that is released.
func (d *device) findPrivate(start []tape.Segment) {
	var held pageList
	add := func(s tape.Segment) {
		if s.Private != 0 && len(held) < maxPrivate {
			held.add(s.Addr, s.Bytes, kindOf(s))
		}
	}
	if len(d.privates) == 0 || start == nil {
		return
	}
	known := d.pageKinds()
	later := d.privateSegments()
	d.findVanished(start, later)
	for _, s := range start {
		add(s)
	}
	var now uint32
	next := 0
	for i := range d.events {
		for ; next < len(d.changed) && d.changed[next].before <= i; next++ {
			c := d.changed[next]
			switch {
			case c.freed:
				if s := held.at(c.Addr); s != nil && !c.paged {
					d.served = append(d.served, tape.Private{Event: uint64(i), Pool: s.Private, Ended: true})
				}
				held.remove(c.Addr, c.Addr+c.Bytes)
			case c.paged:
				c.Private = known.of(c).private
				add(c.Segment)
			default:
				c.Private = later[next]
				add(c.Segment)
			}
		}
		e := &d.events[i]
		if e.action != allocated {
			continue
		}
		pool := uint32(0)
		if s := held.at(e.addr); s != nil {
			pool = s.Private
		}
		if pool != now {
			d.served = append(d.served, tape.Private{Event: uint64(i), Pool: pool})
			now = pool
		}
	}
}

// privateSegments returns the private pools of segments that were taken from the device, by
// their number in changed: those that are there at the end.
func (d *device) privateSegments() map[int]uint32 {
	last := d.lastTaken()
	pools := map[int]uint32{}
	for _, s := range d.final {
		if i, ok := last[s.Addr]; ok && s.Base == 0 && s.Private != 0 {
			pools[i] = s.Private
		}
	}
	return pools
}

// lastTaken returns the segments that were taken from the device and are there at the end, by
// address: their numbers in changed.
func (d *device) lastTaken() map[uint64]int {
	last := map[uint64]int{}
	for i, c := range d.changed {
		if !c.paged && !c.freed {
			last[c.Addr] = i
		} else if !c.paged {
			delete(last, c.Addr)
		}
	}
	return last
}

// serve tells the pool which requests private pools serve, up to the next event.
func (d *device) serve() {
	n, _ := slices.BinarySearchFunc(d.served, uint64(d.next)+1, func(s tape.Private, next uint64) int { return cmp.Compare(s.Event, next) })
	for _, s := range d.served[:n] {
		d.pool.Private(s.Pool, s.Ended)
	}
	d.served = d.served[n:]
}
