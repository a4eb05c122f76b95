package timeline

// The passes over a recording without an allocator: what the program requested, whatever
// the policy. See timeline.go for an overview.
//
// Events are numbered as the reader of the page counts them: the first recorded one is 1,
// and 0 is what was live before, which stands in the recording as blocks that are allocated
// at its start (seeds). Only cursor.n counts seeds, too.

import (
	"cmp"
	"context"
	"math/bits"
	"slices"

	"gpumem/internal/report"
	"gpumem/record/internal/sum"
	"gpumem/record/trace"
)

const (
	// maxBuckets is the most buckets of one policy on one pool; more than fullLayers of
	// these share what fullLayers have. maxStretches is the most stretches of the run, at
	// whose peaks what lives is listed and the pool is visited.
	maxBuckets   = 2048
	maxStretches = 100
	fullLayers   = 8
	// peakWindow is the number of events on each side of the peak, and of each policy's
	// first refusal, that have one bucket each.
	peakWindow = 512
	// exactEvents is the most events of a pool whose page lists every block: some 300 kB
	// of the page.
	exactEvents = 60_000
)

// An outline is what all policies on a pool have in common.
type outline struct {
	trace    *trace.Trace
	pool     *trace.Pool
	texts    *textTable
	timeline *report.Timeline
	ends     []uint64 // of the policies' buckets
	// stretches are the events at which the pool is visited and what lives is listed, in
	// order: the most of each stretch of the run, the peak, and the end.
	stretches []uint64
	sizes     sizeTable
	weights   weights
}

// A live block while a pass plays the events.
type liveBlock struct {
	bytes uint64
	born  uint64 // event
	site  uint32
	is    bool // live
	seed  bool
}

// A player plays a pool's events and knows what lives.
type player struct {
	seeds  uint64
	n      uint64 // events so far, seeds included
	slots  []liveBlock
	live   sum.Sum
	blocks uint64
}

// event returns the number of the last event.
func (p *player) event() uint64 { return p.n - min(p.seeds, p.n) }

// seeding reports whether more seeds follow.
func (p *player) seeding() bool { return p.n < p.seeds }

// play calls f after each event; b is the block that it allocated or freed. The block of a
// refused request lives during the call.
func (o *outline) play(ctx context.Context, progress func(part float64), f func(p *player, e *trace.Event, b *liveBlock)) error {
	p := &player{seeds: o.pool.Seeds, slots: make([]liveBlock, o.pool.Slots)}
	return o.pool.Batches(ctx, progress, func(events []trace.Event) error {
		for i := range events {
			e := &events[i]
			p.n++
			b := &p.slots[e.Slot]
			if e.Op == trace.Free {
				b.is = false
				p.live.Sub(b.bytes)
				p.blocks--
			} else {
				*b = liveBlock{bytes: e.Bytes, born: p.event(), site: e.Site, is: true, seed: p.n <= p.seeds}
				p.live.Add(e.Bytes)
				p.blocks++
			}
			f(p, e, b)
			if e.Refused && e.Op == trace.Alloc {
				b.is = false
				p.live.Sub(b.bytes)
				p.blocks--
			}
		}
		return nil
	})
}

// newOutline finds the peak and what weighs most, in two passes. share is the number of
// layers that share the buckets and snapshots of one.
func newOutline(ctx context.Context, t *trace.Trace, pool *trace.Pool, texts *textTable, share int, progress func(part float64)) (*outline, error) {
	tl := &report.Timeline{Pool: pool.Name, Events: pool.Events - pool.Seeds, Seeds: pool.Seeds}
	o := &outline{trace: t, pool: pool, texts: texts, timeline: tl}
	stretches := min(uint64(max(1, maxStretches/share)), tl.Events)
	var end, most uint64 // of the stretch
	o.weights = newWeights(t.Sites())
	err := o.play(ctx, progress, func(p *player, e *trace.Event, b *liveBlock) {
		n, live := p.event(), p.live.Cap()
		if !e.Refused {
			tl.Lived = max(tl.Lived, live)
		}
		if e.Op == trace.Alloc {
			o.sizes.note(e.Bytes)
		} else if !b.seed {
			o.weights.add(b, n)
		}
		if p.seeding() {
			return
		}
		if n > 0 && n > end {
			end = (uint64(len(o.stretches)) + 1) * tl.Events / max(stretches, 1)
			o.stretches, most = append(o.stretches, n), live
		}
		if live > most && n > 0 {
			o.stretches[len(o.stretches)-1], most = n, live
		}
		if e.Refused && e.Op == trace.Alloc && len(tl.Refused) < maxRefusals {
			tl.Refused = append(tl.Refused, report.Refusal{Event: n, Bytes: e.Bytes, Stack: o.siteName(e.Site), Live: live - min(live, e.Bytes)})
		}
		if live > tl.Peak || n <= 1 && tl.Peak == 0 {
			tl.Peak, tl.PeakAt = live, n
		}
		if n == 0 {
			tl.SeedBytes = live
		}
		if p.n == o.pool.Events {
			for i := range p.slots {
				if b := &p.slots[i]; b.is && !(b.seed && o.before()) {
					o.weights.add(b, n+1)
				}
			}
		}
	})
	if err != nil {
		return nil, err
	}
	o.stretches = append(o.stretches, tl.PeakAt, tl.Events)
	slices.Sort(o.stretches)
	o.stretches = slices.Compact(o.stretches)
	o.ends = ends(tl.Events, uint64(max(1, maxBuckets/share)), []uint64{tl.PeakAt}, uint64(peakWindow/share), pool.Seeds > 0)
	tl.Ends = o.ends
	k, highest := 0, uint64(0)
	err = o.play(ctx, progress, func(p *player, _ *trace.Event, _ *liveBlock) {
		if p.seeding() {
			return
		}
		n := p.event()
		highest = max(highest, p.live.Cap())
		if n == o.ends[k] {
			tl.Asked = append(tl.Asked, highest)
			k, highest = k+1, 0
		}
		if n == tl.PeakAt {
			for i := range p.slots {
				if b := &p.slots[i]; b.is && !(b.seed && o.before()) {
					o.weights.addPeak(b)
				}
			}
		}
	})
	o.recorded()
	return o, err
}

// ends returns the last events of about that many buckets, from event 1, or from 0 if
// something was live before. Each event near one of the places has a bucket to itself, and
// every event if there are few.
func ends(events, buckets uint64, near []uint64, window uint64, before bool) (list []uint64) {
	if events <= 2*buckets {
		buckets = events
	}
	for k := uint64(1); k <= buckets; k++ {
		hi, lo := bits.Mul64(k, events)
		end, _ := bits.Div64(hi, lo, buckets)
		list = append(list, end)
	}
	if buckets < events {
		for _, at := range near {
			for n := max(1, at-min(at, window+1)); n <= min(at+window, events); n++ {
				list = append(list, n)
			}
		}
	}
	if before || events == 0 {
		list = append(list, 0)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// recorded takes over what the recorded program's pool held: the most of each bucket, and
// its segments at the end.
func (o *outline) recorded() {
	if held := o.pool.Reserved(); len(held) > 0 {
		k := 0
		for _, end := range o.ends {
			most := held[k].Bytes
			for k+1 < len(held) && (held[k+1].Event <= end+o.pool.Seeds || end == o.timeline.Events) {
				k++
				most = max(most, held[k].Bytes)
			}
			o.timeline.Recorded = append(o.timeline.Recorded, most)
		}
	}
	final := o.pool.Final()
	if len(final) > maxSegments {
		return
	}
	for _, s := range final {
		out := &report.Segment{Addr: hex(s.Addr), Bytes: s.Bytes, Free: s.Bytes, Small: s.Small, Stream: s.Stream}
		for _, b := range s.Blocks {
			name := uint64(0)
			if b.Site != 0 {
				name = uint64(o.texts.of(o.trace.Site(b.Site))) + 1
			}
			out.Blocks = append(out.Blocks, [3]uint64{b.Addr - s.Addr, b.Bytes, name})
			out.Free -= min(b.Bytes, out.Free)
		}
		o.timeline.Segments = append(o.timeline.Segments, out)
	}
	slices.SortStableFunc(o.timeline.Segments, func(a, b *report.Segment) int { return cmp.Compare(b.Bytes, a.Bytes) })
}

// siteName returns the text of a site, -1 if there is none.
func (o *outline) siteName(site uint32) int {
	if site == 0 {
		return -1
	}
	return o.texts.of(o.trace.Site(site))
}

// exact reports whether all blocks are listed.
func (o *outline) exact() bool { return o.pool.Events <= exactEvents }

// bands fills in what lives: the groupings, the lists, and the blocks if they are few.
// refusals are the policies' first ones.
func (o *outline) bands(ctx context.Context, refusals []uint64, share int, progress func(part float64)) error {
	tl := o.timeline
	groupings := o.groupings()
	near := append(slices.Clone(refusals), tl.PeakAt)
	finer := ends(tl.Events, uint64(max(1, maxBuckets/share)), near, uint64(peakWindow/share), tl.Seeds > 0)
	listed := slices.Clone(o.stretches)
	listed = append(listed, refusals...)
	slices.Sort(listed)
	listed = slices.Compact(listed)
	if o.exact() {
		tl.Allocations = &report.Allocations{}
	}
	at := make([]int, o.pool.Slots) // of each slot in Allocations
	k, next := 0, 0
	var time, live, blocks, moment uint64
	begun := false // in the bucket
	flush := func() {
		tl.Starts = append(tl.Starts, start(finer, k))
		tl.Moments = append(tl.Moments, moment)
		tl.Live, tl.Blocks = append(tl.Live, live), append(tl.Blocks, blocks)
		if o.trace.Timed {
			tl.Times = append(tl.Times, time)
		}
		for _, g := range groupings {
			g.flush()
		}
		begun = false
		k++
	}
	err := o.play(ctx, progress, func(p *player, e *trace.Event, b *liveBlock) {
		n := p.event()
		for _, g := range groupings {
			g.play(e, b)
		}
		if a := tl.Allocations; a != nil {
			o.list(a, at, e, b, n)
		}
		if !p.seeding() {
			if now := p.live.Cap(); !begun || now > live {
				begun, live, blocks, moment, time = true, now, p.blocks, n, e.Time
				for _, g := range groupings {
					g.sample(p.slots)
				}
			}
			if next < len(listed) && listed[next] == n {
				next++
				tl.Lists = append(tl.Lists, o.listAt(p, e, groupings))
			}
			if n == finer[k] {
				flush()
			}
		}
		if e.Refused && e.Op == trace.Alloc {
			for _, g := range groupings {
				g.drop(e, b)
			}
		}
	})
	for _, g := range groupings {
		tl.Groupings = append(tl.Groupings, g.done())
	}
	return err
}

// start returns the first event of bucket k.
func start(ends []uint64, k int) uint64 {
	if k == 0 {
		return min(1, ends[0])
	}
	return ends[k-1] + 1
}

// list notes an event's block.
func (o *outline) list(a *report.Allocations, at []int, e *trace.Event, b *liveBlock, n uint64) {
	if e.Op == trace.Free {
		k := at[e.Slot]
		a.For[k] = max(1, n-a.From[k])
		return
	}
	at[e.Slot] = len(a.From)
	until := uint64(0)
	if e.Refused {
		until = 1
	}
	a.From, a.For, a.Bytes = append(a.From, n), append(a.For, until), append(a.Bytes, e.Bytes)
	a.Names = append(a.Names, o.siteName(e.Site))
}
