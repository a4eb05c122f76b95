package timeline

// The passes over a recording without an allocator: what the program requested, whatever
// the policy. See timeline.go for an overview.
//
// Events are numbered as the reader of the page counts them: the first recorded one is 1,
// and 0 is what was live before, which stands in the recording as blocks that are allocated
// at its start (seeds). Only trace.Walk counts seeds, too.

import (
	"cmp"
	"context"
	"iter"
	"math/bits"
	"slices"

	"gpumem/internal/report"
	"gpumem/record/internal/category"
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
	reading   *category.Reading // what blocks are for; nil before it is read
}

// newOutline finds the peak and what weighs most, in two passes. share is the number of
// layers that share the buckets and snapshots of one.
func newOutline(ctx context.Context, t *trace.Trace, pool *trace.Pool, texts *textTable, share int, progress func(part float64)) (*outline, error) {
	tl := &report.Timeline{Pool: pool.Name, Events: pool.Events - pool.Seeds, Seeds: pool.Seeds}
	o := &outline{trace: t, pool: pool, texts: texts, timeline: tl}
	o.weights = newWeights(t.Sites())
	if err := o.findPeak(ctx, share, progress); err != nil {
		return nil, err
	}
	o.stretches = append(o.stretches, tl.PeakAt, tl.Events)
	slices.Sort(o.stretches)
	o.stretches = slices.Compact(o.stretches)
	o.ends = ends(tl.Events, uint64(max(1, maxBuckets/share)), []uint64{tl.PeakAt}, uint64(peakWindow/share), pool.Seeds > 0)
	tl.Ends = o.ends
	if err := o.weighPeak(ctx, progress); err != nil {
		return nil, err
	}
	o.recorded()
	var err error
	o.reading, err = category.Read(ctx, t, pool)
	return o, err
}

// findPeak finds the peak, the most of each stretch of the run and what was refused, and weighs
// what is freed.
func (o *outline) findPeak(ctx context.Context, share int, progress func(part float64)) error {
	tl, pool := o.timeline, o.pool
	stretches := min(uint64(max(1, maxStretches/share)), tl.Events)
	var end, most uint64 // of the stretch
	w := pool.Walk()
	return w.Each(ctx, progress, func(e *trace.Event, b *trace.Block) {
		n, live := pool.Recorded(w.Number), w.Bytes.Cap()
		kept, _ := w.Kept()
		tl.Lived = max(tl.Lived, kept.Cap())
		if e.Op == trace.Alloc {
			o.sizes.note(e.Bytes)
		} else if !o.isSeed(b) {
			o.weights.add(b, n-o.born(b))
		}
		if w.Number < pool.Seeds {
			return
		}
		if n > 0 && n > end {
			end = (uint64(len(o.stretches)) + 1) * tl.Events / max(stretches, 1)
			o.stretches, most = append(o.stretches, n), live
		}
		if live > most && n > 0 {
			o.stretches[len(o.stretches)-1], most = n, live
		}
		if e.Refused && len(tl.Refused) < maxRefusals {
			tl.Refused = append(tl.Refused, report.Refusal{Event: n, Bytes: e.Bytes, Stack: o.siteName(e.Site), Live: kept.Cap()})
		}
		if live > tl.Peak || n <= 1 && tl.Peak == 0 {
			tl.Peak, tl.PeakAt = live, n
		}
		if n == 0 {
			tl.SeedBytes = live
		}
		if w.Number == pool.Events {
			for b := range o.named(w) {
				o.weights.add(b, n+1-o.born(b))
			}
		}
	})
}

// weighPeak weighs what is live at the peak, and finds the most of each bucket.
func (o *outline) weighPeak(ctx context.Context, progress func(part float64)) error {
	tl, pool := o.timeline, o.pool
	k, highest := 0, uint64(0)
	w := pool.Walk()
	return w.Each(ctx, progress, func(*trace.Event, *trace.Block) {
		if w.Number < pool.Seeds {
			return
		}
		n := pool.Recorded(w.Number)
		highest = max(highest, w.Bytes.Cap())
		if n == o.ends[k] {
			tl.Asked = append(tl.Asked, highest)
			k, highest = k+1, 0
		}
		if n == tl.PeakAt {
			for b := range o.named(w) {
				o.weights.addPeak(b.Site, b.Bytes)
			}
		}
	})
}

// isSeed reports whether a block is older than the recording.
func (o *outline) isSeed(b *trace.Block) bool { return b.Number <= o.pool.Seeds }

// born returns the event that allocated a block, 0 if it is older than the recording.
func (o *outline) born(b *trace.Block) uint64 { return o.pool.Recorded(b.Number) }

// named returns the live blocks of a walk without those of the band for what is older.
func (o *outline) named(w *trace.Walk) iter.Seq[*trace.Block] {
	return func(yield func(*trace.Block) bool) {
		for i := range w.Slots {
			if b := &w.Slots[i]; b.Live && !(o.before() && o.isSeed(b)) && !yield(b) {
				return
			}
		}
	}
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
				name = uint64(o.texts.IndexOf(o.trace.FullSite(b.Site))) + 1
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
	return o.texts.IndexOf(o.trace.FullSite(site))
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
	var most moment // of the bucket
	begun := false  // in the bucket
	w := o.pool.Walk()
	err := w.Each(ctx, progress, func(e *trace.Event, b *trace.Block) {
		n := o.pool.Recorded(w.Number)
		for _, g := range groupings {
			g.play(e, b)
		}
		if a := tl.Allocations; a != nil {
			o.list(a, at, e, n)
		}
		if w.Number >= o.pool.Seeds {
			if now := w.Bytes.Cap(); !begun || now > most.live {
				begun, most = true, moment{n, e.Time, now, w.Blocks}
				for _, g := range groupings {
					g.sample(w.Slots)
				}
			}
			if next < len(listed) && listed[next] == n {
				next++
				tl.Lists = append(tl.Lists, o.listAt(w, groupings))
			}
			if n == finer[k] {
				o.addMoment(start(finer, k), most)
				for _, g := range groupings {
					g.flush()
				}
				begun = false
				k++
			}
		}
		if e.Refused {
			for _, g := range groupings {
				g.drop(e)
			}
		}
	})
	for _, g := range groupings {
		tl.Groupings = append(tl.Groupings, g.done())
	}
	return err
}

// moment is what lives after an event.
type moment struct{ event, time, live, blocks uint64 }

// addMoment adds a bucket by its first event and the moment of it at which the most lives.
func (o *outline) addMoment(start uint64, m moment) {
	tl := o.timeline
	tl.Starts, tl.Moments = append(tl.Starts, start), append(tl.Moments, m.event)
	tl.Live, tl.Blocks = append(tl.Live, m.live), append(tl.Blocks, m.blocks)
	if o.trace.Timed {
		tl.Times = append(tl.Times, m.time)
	}
}

// start returns the first event of bucket k.
func start(ends []uint64, k int) uint64 {
	if k == 0 {
		return min(1, ends[0])
	}
	return ends[k-1] + 1
}

// list notes an event's block.
func (o *outline) list(a *report.Allocations, at []int, e *trace.Event, n uint64) {
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
