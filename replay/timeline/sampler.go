package timeline

// The curves, counters and snapshots of a page. They are gathered in the pass with
// hooks, never in one that is timed, and their size does not follow the recording's
// length: curves have a bounded number of buckets, and the whole pool is visited a
// bounded number of times.
//
// The moments of the snapshots are known before a policy runs: a pass over the recording
// alone (newOutline) finds the event with the most live bytes in each stretch, so that
// no peak falls between two snapshots.

import (
	"cmp"
	"context"
	"math/bits"
	"slices"

	"gpumem/alloc"
	"gpumem/internal/sum"
	"gpumem/replay"
	"gpumem/report"
	"gpumem/trace"
)

const (
	// maxBuckets and maxSnapshots are the most of one policy on one pool; more than
	// fullLayers of these share what fullLayers have.
	maxBuckets   = 4096
	maxSnapshots = 300
	fullLayers   = 8
	// peakWindow is the number of events on each side of the peak that have one
	// bucket each, and of those around the first refusal that are kept singly.
	peakWindow = 1024
	// walkBudget is the most pieces of the pool that the snapshots of a policy visit,
	// those at the peak, at the first refusal and at the end aside: about a second.
	walkBudget = 20_000_000

	// maxRefusals is the most refusals that are listed.
	maxRefusals = 100
	// exactEvents is the most events of a recording whose page lists every block: 2 MB
	// of the page.
	exactEvents = 200_000
)

// An outline is what all policies on a pool have in common.
type outline struct {
	trace     *trace.Trace
	pool      *trace.Pool
	texts     *textTable
	timeline  *report.Timeline
	snapshots []uint64 // events after which a snapshot is taken, in order
}

// newOutline reads a pool's events twice, three times if all its blocks are listed.
// share is the number of layers that share the buckets and snapshots of one.
func newOutline(ctx context.Context, t *trace.Trace, pool *trace.Pool, texts *textTable, share int, progress func(part float64)) (*outline, error) {
	tl := &report.Timeline{Pool: pool.Name, Events: pool.Events}
	o := &outline{trace: t, pool: pool, texts: texts, timeline: tl}
	stretches := min(uint64(max(1, maxSnapshots/share)), tl.Events)
	o.snapshots = make([]uint64, 0, stretches+1)
	var end, most uint64 // of the stretch
	err := o.requested(ctx, progress, func(n, live, _ uint64) {
		if n > end {
			end = (uint64(len(o.snapshots)) + 1) * tl.Events / stretches
			o.snapshots, most = append(o.snapshots, n), live
		}
		if live > most {
			o.snapshots[len(o.snapshots)-1], most = n, live
		}
		if live > tl.Peak || n == 1 {
			tl.Peak, tl.PeakAt = live, n
		}
	})
	if err != nil {
		return nil, err
	}
	if o.snapshots[len(o.snapshots)-1] != tl.Events {
		o.snapshots = append(o.snapshots, tl.Events)
	}
	tl.Ends = ends(tl.Events, uint64(max(1, maxBuckets/share)), tl.PeakAt, uint64(peakWindow/share))
	b := bucket{ends: tl.Ends}
	err = o.requested(ctx, progress, func(n, live, time uint64) {
		if b.add(live); n == b.end() {
			b.close(&tl.Asked)
			b.at++
			if t.Timed {
				tl.Times = append(tl.Times, time)
			}
		}
	})
	if err == nil && t.Events <= exactEvents {
		err = o.listBlocks(ctx, progress)
	}
	return o, err
}

// listBlocks lists all blocks of the pool.
func (o *outline) listBlocks(ctx context.Context, progress func(part float64)) error {
	b := &report.Blocks{}
	o.timeline.Blocks = b
	sites := map[uint32]int{}
	at := make([]int, o.pool.Slots) // the last block of each slot
	var n uint64
	return o.pool.Batches(ctx, progress, func(events []trace.Event) error {
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
			if o.trace.Sites() > 1 {
				k, ok := sites[e.Site]
				if !ok {
					k = o.texts.of(stack(o.trace, e.Site))
					sites[e.Site] = k
				}
				b.Stacks = append(b.Stacks, k)
			}
		}
		return nil
	})
}

// stack returns a site's stack as text.
func stack(t *trace.Trace, site uint32) string {
	return cmp.Or(t.Site(site), "(no stack was recorded)")
}

// requested calls f after each event with the requested bytes that are live and the
// event's time.
func (o *outline) requested(ctx context.Context, progress func(part float64), f func(n, live, time uint64)) error {
	bytes := make([]uint64, o.pool.Slots)
	var live sum.Sum
	var n uint64
	return o.pool.Batches(ctx, progress, func(events []trace.Event) error {
		for i := range events {
			e := &events[i]
			if e.Op == trace.Free {
				live.Sub(bytes[e.Slot])
			} else {
				bytes[e.Slot] = e.Bytes
				live.Add(e.Bytes)
			}
			n++
			f(n, live.Cap(), e.Time)
			if e.Refused {
				live.Sub(e.Bytes)
			}
		}
		return nil
	})
}

// ends returns the last events of about that many buckets. Each event near the peak has
// one to itself, and every event if there are few.
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

// A bucket collects the values of a curve.
type bucket struct {
	ends        []uint64
	at          int
	some        bool
	least, most uint64
}

// end returns the last event of the bucket.
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

// A sampler fills a layer while one policy runs.
type sampler struct {
	*outline
	pass   *replay.Pass
	layer  *report.Layer
	next   int    // in snapshots
	walked int    // pieces of the pool that were visited
	used   bucket // its index is that of held, too
	held   bucket
	// Before the first refusal, what was used and held after the last events, by
	// their number; nil where each event has a bucket anyway.
	ring  [][2]uint64
	sites map[alloc.Site][2]int // stack and frame of a site, in texts
}

// sample returns a sampler of a pass.
func (o *outline) sample(p *replay.Pass) *sampler {
	s := &sampler{
		outline: o, pass: p, layer: &report.Layer{Policy: p.Policy.Spec},
		used: bucket{ends: o.timeline.Ends}, sites: map[alloc.Site][2]int{},
	}
	if uint64(len(o.timeline.Ends)) < o.timeline.Events {
		s.ring = make([][2]uint64, peakWindow)
	}
	return s
}

// hook returns the sampler's hook.
func (s *sampler) hook() replay.Hook {
	return replay.Hook{Event: s.event, Refused: s.refused}
}

// event samples the pass after an event.
func (s *sampler) event(*trace.Event, alloc.Block) error {
	n := s.pass.Event
	s.used.add(s.pass.Used)
	s.held.add(s.pass.Held)
	if s.ring != nil {
		s.near()
	}
	if n == s.used.end() {
		s.closeBucket()
	}
	if s.next < len(s.snapshots) && n == s.snapshots[s.next] {
		s.next++
		key := n == s.timeline.PeakAt || n == s.timeline.Events
		if key || s.walked+s.pass.Blocks <= walkBudget/len(s.snapshots)*s.next {
			s.snapshot(key)
		}
	}
	return nil
}

func (s *sampler) closeBucket() {
	l := s.layer
	s.used.close(&l.Used)
	s.held.close(&l.Held)
	stats := s.pass.Stats()
	l.Free = append(l.Free, stats.PoolBytes-min(stats.BytesInUse, stats.PoolBytes))
	l.Hole = append(l.Hole, stats.LargestFreeBlock)
	l.Calls = append(l.Calls, s.pass.Calls)
	l.Refused = append(l.Refused, s.pass.Refused)
	s.used.at++
}

// near keeps the events around the first refusal.
func (s *sampler) near() {
	p, near, window := s.pass, s.layer.Near, uint64(len(s.ring))
	switch {
	case p.Refused == 0:
		s.ring[p.Event%window] = [2]uint64{p.Used, p.Held}
		return
	case near == nil:
		near = &report.Near{From: max(1, p.Event-min(p.Event, window))}
		for e := near.From; e < p.Event; e++ {
			v := s.ring[e%window]
			near.Used, near.Held, near.Refused = append(near.Used, v[0]), append(near.Held, v[1]), append(near.Refused, 0)
		}
		s.layer.Near = near
	}
	if p.Event-near.From < 2*window {
		near.Used, near.Held, near.Refused = append(near.Used, p.Used), append(near.Held, p.Held), append(near.Refused, p.Refused)
	}
}

// refused lists a refusal, and takes a snapshot at the first.
func (s *sampler) refused(e *trace.Event) error {
	n := s.pass.Event
	if s.timeline.Blocks != nil {
		s.layer.RefusedAt = append(s.layer.RefusedAt, n)
	}
	if len(s.layer.Refusals) == maxRefusals {
		return nil
	}
	r := report.Refusal{Event: n, Bytes: e.Bytes, Stack: -1}
	if e.Site != 0 {
		r.Stack = s.texts.of(s.trace.Site(e.Site))
	}
	if s.layer.Refusals = append(s.layer.Refusals, r); len(s.layer.Refusals) > 1 {
		return nil
	}
	s.layer.First = &r
	if s.next == len(s.snapshots) || s.snapshots[s.next] != n {
		s.snapshot(true)
	}
	return nil
}
