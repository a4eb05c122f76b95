package replay

// What a page shows of a run. It is gathered in the pass that looks, never in
// one that is timed, and its size does not follow the recording's length: curves
// have so many buckets, and the whole pool is looked at so many times.
//
// Where to look is known before a policy runs: a pass over the recording alone
// (findShape) finds the event with the most bytes alive in each stretch, so that
// no peak falls between two looks.

import (
	"cmp"
	"context"
	"math"
	"math/bits"
	"slices"

	"gpumem/alloc"
	"gpumem/report"
	"gpumem/trace"
)

const (
	// pictureBuckets and pictureInstants are for one policy; many policies on
	// many pools share those of pictureLayers.
	pictureBuckets  = 4096
	pictureInstants = 300
	pictureLayers   = 8
	// peakWindow is how many events on both sides of the peak have a bucket of
	// their own, and how many around the first refusal are known one by one.
	peakWindow = 1024
	// walkBudget is how many pieces of the pool all looks of a policy may visit,
	// those at the peak, at the first refusal and at the end aside: a second.
	walkBudget = 20_000_000

	// maxRefusals is how many refusals are listed.
	maxRefusals = 100
	// exactEvents is how many events a recording may have for its page to have
	// every block: 2 MB of it.
	exactEvents = 200_000
)

// wide is a sum of bytes that may pass 2^64, for the requests of a recording may.
type wide struct{ hi, lo uint64 }

func (w *wide) add(n uint64) {
	var c uint64
	w.lo, c = bits.Add64(w.lo, n, 0)
	w.hi += c
}

func (w *wide) sub(n uint64) {
	var c uint64
	w.lo, c = bits.Sub64(w.lo, n, 0)
	w.hi -= c
}

// cap stops at the largest uint64.
func (w wide) cap() uint64 {
	if w.hi != 0 {
		return math.MaxUint64
	}
	return w.lo
}

// A shape is what all policies' pictures of a pool have in common.
type shape struct {
	timeline *report.Timeline
	looks    []uint64 // events after which the pool is looked at, in order
}

// findShape reads a pool's events twice. share is how many layers there are for
// each that has everything.
func (r *runner) findShape(ctx context.Context, share int) (*shape, error) {
	t := &report.Timeline{Pool: r.pool.Name, Events: r.pool.Events}
	stretches := min(uint64(max(1, pictureInstants/share)), t.Events)
	looks := make([]uint64, 0, stretches+1)
	var end, most uint64 // of the stretch
	err := r.asked(ctx, func(n, live, _ uint64) {
		if n > end {
			end = (uint64(len(looks)) + 1) * t.Events / stretches
			looks, most = append(looks, n), live
		}
		if live > most {
			looks[len(looks)-1], most = n, live
		}
		if live > t.Peak || n == 1 {
			t.Peak, t.PeakAt = live, n
		}
	})
	if err != nil {
		return nil, err
	}
	if looks[len(looks)-1] != t.Events {
		looks = append(looks, t.Events)
	}
	t.Ends = ends(t.Events, uint64(max(1, pictureBuckets/share)), t.PeakAt, uint64(peakWindow/share))
	b := bucket{ends: t.Ends}
	err = r.asked(ctx, func(n, live, time uint64) {
		if b.add(live); n == b.end() {
			b.close(&t.Asked)
			b.at++
			if r.trace.Timed {
				t.Times = append(t.Times, time)
			}
		}
	})
	if err == nil && r.trace.Events <= exactEvents {
		err = r.blocks(ctx, t)
	}
	return &shape{t, looks}, err
}

// blocks are all of a pool's.
func (r *runner) blocks(ctx context.Context, t *report.Timeline) error {
	t.Blocks = &report.Blocks{}
	b := t.Blocks
	sites := map[uint32]int{}
	at := make([]int, r.pool.Slots) // the last block of each slot
	var n uint64
	return r.pass(ctx, "looking", func(events []trace.Event) error {
		for i := range events {
			e := &events[i]
			n++
			if e.Op == trace.Free {
				b.For[at[e.Slot]] = n - b.From[at[e.Slot]]
				continue
			}
			at[e.Slot] = len(b.From)
			b.From, b.For, b.Bytes = append(b.From, n), append(b.For, 0), append(b.Bytes, e.Bytes)
			if e.Refused {
				b.For[len(b.For)-1] = 1
			}
			if r.trace.Sites() > 1 {
				k, ok := sites[e.Site]
				if !ok {
					k = r.names.of(stack(r.trace, e.Site))
					sites[e.Site] = k
				}
				b.Stacks = append(b.Stacks, k)
			}
		}
		return nil
	})
}

// stack is a site's, in words.
func stack(t *trace.Trace, site uint32) string {
	return cmp.Or(t.Site(site), "(no stack was recorded)")
}

// asked tells after each event how many requested bytes are live, and its time.
func (r *runner) asked(ctx context.Context, f func(n, live, time uint64)) error {
	bytes := make([]uint64, r.pool.Slots)
	var live wide
	var n uint64
	return r.pass(ctx, "looking", func(events []trace.Event) error {
		for i := range events {
			e := &events[i]
			if e.Op == trace.Free {
				live.sub(bytes[e.Slot])
			} else {
				bytes[e.Slot] = e.Bytes
				live.add(e.Bytes)
			}
			n++
			f(n, live.cap(), e.Time)
			if e.Refused {
				live.sub(e.Bytes)
			}
		}
		return nil
	})
}

// ends are the last events of about so many buckets; each event near the peak
// has one to itself, and all have where there are few.
func ends(events, buckets, peak, window uint64) report.Numbers {
	if events <= 2*buckets {
		buckets = events
	}
	low, high := peak-min(peak, window+1), min(peak+window, events)
	var list report.Numbers
	for k := uint64(1); k <= buckets; k++ {
		hi, lo := bits.Mul64(k, events)
		end, _ := bits.Div64(hi, lo, buckets)
		if end <= low || end > high {
			list = append(list, end)
		}
	}
	for n := max(1, low); n <= high; n++ {
		list = append(list, n)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// A bucket gathers a curve's values.
type bucket struct {
	ends        []uint64
	at          int
	some        bool
	least, most uint64
}

// end is the last event of the bucket.
func (b *bucket) end() uint64 { return b.ends[b.at] }

func (b *bucket) add(v uint64) {
	if !b.some {
		b.some, b.least, b.most = true, v, v
	}
	b.least, b.most = min(b.least, v), max(b.most, v)
}

func (b *bucket) close(c *report.Curve) {
	c.Min, c.Max = append(c.Min, b.least), append(c.Max, b.most)
	b.some = false
}

// A picture is gathered while one policy runs.
type picture struct {
	layer  *report.Layer
	trace  *trace.Trace
	names  *names
	shape  *shape
	next   int    // in shape.looks
	walked int    // pieces that were visited
	used   bucket // its index is that of held, too
	held   bucket
	// Before the first refusal, what was used and held after the last events, by
	// their number; nil where each event has a bucket anyway.
	ring  [][2]uint64
	sites map[alloc.Site][2]int // stack and frame of a site, in names
	a     alloc.Allocator
	stats func() alloc.Stats
	calls func() uint64 // of the driver, so far
}

// after is called after each event, n of them so far, with what is in use and
// held then.
func (p *picture) after(n, used, held, refused uint64, blocks int) {
	p.used.add(used)
	p.held.add(held)
	if p.ring != nil {
		p.nearby(n, used, held, refused)
	}
	if n == p.used.end() {
		p.close(refused)
	}
	if p.next < len(p.shape.looks) && n == p.shape.looks[p.next] {
		p.next++
		key := n == p.shape.timeline.PeakAt || n == p.shape.timeline.Events
		if !key && p.walked+blocks > walkBudget/len(p.shape.looks)*p.next {
			return
		}
		p.look(n, key)
	}
}

func (p *picture) close(refused uint64) {
	l := p.layer
	p.used.close(&l.Used)
	p.held.close(&l.Held)
	s := p.stats()
	l.Free = append(l.Free, s.PoolBytes-min(s.BytesInUse, s.PoolBytes))
	l.Hole = append(l.Hole, s.LargestFreeBlock)
	l.Calls = append(l.Calls, p.calls())
	l.Refused = append(l.Refused, refused)
	p.used.at++
}

// nearby keeps the events around the first refusal.
func (p *picture) nearby(n, used, held, refused uint64) {
	near, window := p.layer.Near, uint64(len(p.ring))
	switch {
	case refused == 0:
		p.ring[n%window] = [2]uint64{used, held}
		return
	case near == nil:
		near = &report.Near{From: max(1, n-min(n, window))}
		for e := near.From; e < n; e++ {
			v := p.ring[e%window]
			near.Used, near.Held, near.Refused = append(near.Used, v[0]), append(near.Held, v[1]), append(near.Refused, 0)
		}
		p.layer.Near = near
	}
	if n-near.From < 2*window {
		near.Used, near.Held, near.Refused = append(near.Used, used), append(near.Held, held), append(near.Refused, refused)
	}
}

// refuse is called for each refusal, before after.
func (p *picture) refuse(n uint64, e *trace.Event) {
	if p.shape.timeline.Blocks != nil {
		p.layer.RefusedAt = append(p.layer.RefusedAt, n)
	}
	if len(p.layer.Refusals) == maxRefusals {
		return
	}
	r := report.Refusal{Event: n, Bytes: e.Bytes, Stack: -1}
	if e.Site != 0 {
		r.Stack = p.names.of(p.trace.Site(e.Site))
	}
	if p.layer.Refusals = append(p.layer.Refusals, r); len(p.layer.Refusals) > 1 {
		return
	}
	p.layer.First = &r
	if p.next == len(p.shape.looks) || p.shape.looks[p.next] != n {
		p.look(n, true)
	}
}
