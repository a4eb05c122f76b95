package compare

// The pass over one pool of a recording.

import (
	"context"
	"math/bits"

	"gpumem/record/trace"
)

const (
	// maxSizes bounds the sizes whose allocations are counted: a text recording may
	// have a new size in every line. What is live at the peak and at the end is known by
	// every size, because it is counted from the blocks.
	maxSizes = 1 << 18
	// curvePoints is the number of stretches of a run, of the same length in events,
	// whose least and most live memory is kept.
	curvePoints = 1024
)

// A recording is one of the two, with what is known of its stacks.
type recording struct {
	trace     *trace.Trace
	keepPaths bool
	allocs    []allocated // by site; zeros between two passes
	keys      map[uint32]*stackKeys
}

func newRecording(t *trace.Trace, keepPaths bool) *recording {
	return &recording{trace: t, keepPaths: keepPaths, allocs: make([]allocated, t.Sites()), keys: map[uint32]*stackKeys{}}
}

// A place is where memory comes from: a stack, or a requested size where there is none.
type place struct {
	site  uint32
	bytes uint64 // 0 if there is a stack
}

// A count is blocks and their bytes.
type count struct{ bytes, blocks uint64 }

// An allocated is the number of allocations, and the sum of their bytes modulo 2^64, by which
// a place is known again.
type allocated struct{ allocs, bytes uint64 }

// An amount is what one place has.
type amount struct {
	peak, end count
	allocated
}

func (a *amount) add(b amount) {
	a.peak.bytes, a.peak.blocks = a.peak.bytes+b.peak.bytes, a.peak.blocks+b.peak.blocks
	a.end.bytes, a.end.blocks = a.end.bytes+b.end.bytes, a.end.blocks+b.end.blocks
	a.allocs += b.allocs
}

// gathered is one pool of one recording. Of a pool that the recording does not have, side
// is nil and there are no places.
type gathered struct {
	side    *side
	places  map[place]*amount
	uncount bool // more sizes than maxSizes: allocs of the others are missing
}

// A curve is the live memory of a run in stretches of the same number of events.
type curve struct {
	least, most []uint64
	times       []uint64 // at the end of each; nil if the recording has none
}

// gather reads a pool once. bySize takes every block as one without a stack.
func (r *recording) gather(ctx context.Context, p *trace.Pool, bySize bool, progress func(part float64)) (*gathered, error) {
	g := &gathered{places: map[place]*amount{}}
	if p == nil {
		return g, nil
	}
	s := &side{Pool: p.Name, Events: p.Events, Seeds: p.Seeds, Allocs: p.Allocs - p.Seeds, Refused: p.Refused, Peak: p.PeakLive, End: p.EndLive, EndBlocks: p.EndBlocks}
	g.side = s
	sizes := map[uint64]uint64{} // allocations without a stack, by size
	points := newPoints(p.Events-p.Seeds, r.trace.Timed)
	w := p.Walk()
	err := w.Each(ctx, progress, func(e *trace.Event, _ *trace.Block) {
		most := w.Bytes.Cap()
		if w.Number > p.Seeds {
			after, _ := w.Kept()
			points.add(w.Number-p.Seeds, most, after.Cap(), e.Time)
		} else {
			points.start(most)
		}
		if e.Op == trace.Free {
			return
		}
		if e.Site != 0 {
			s.Stacks = true
		}
		switch {
		case w.Number <= p.Seeds: // not of this run
		case e.Site != 0 && !bySize:
			r.allocs[e.Site].allocs++
			r.allocs[e.Site].bytes += e.Bytes
		case len(sizes) < maxSizes || sizes[e.Bytes] > 0:
			sizes[e.Bytes]++
		default:
			g.uncount = true
		}
		if s.PeakEvent > 0 || most != p.PeakLive || most == 0 {
			return
		}
		s.PeakEvent = w.Number
		if r.trace.Timed {
			s.PeakTime = &[]uint64{e.Time}[0]
		}
		if e.Refused {
			s.PeakRefused = e.Bytes
		}
		g.each(w.Slots, bySize, func(a *amount, bytes uint64) {
			a.peak.bytes, a.peak.blocks = a.peak.bytes+bytes, a.peak.blocks+1
			s.PeakBlocks++
		})
	})
	if err != nil {
		return nil, r.trace.Failed(ctx, err)
	}
	g.each(w.Slots, bySize, func(a *amount, bytes uint64) {
		a.end.bytes, a.end.blocks = a.end.bytes+bytes, a.end.blocks+1
	})
	for site, n := range r.allocs {
		if n.allocs > 0 {
			g.at(place{site: uint32(site)}).allocated = n
			r.allocs[site] = allocated{}
		}
	}
	for bytes, n := range sizes {
		g.at(place{bytes: bytes}).allocs = n
	}
	points.fill(curvePoints)
	s.curve = points.curve
	return g, nil
}

// each calls f for every live block with the amount of its place.
func (g *gathered) each(slots []trace.Block, bySize bool, f func(a *amount, bytes uint64)) {
	for i := range slots {
		b := &slots[i]
		switch {
		case !b.Live:
		case b.Site != 0 && !bySize:
			f(g.at(place{site: b.Site}), b.Bytes)
		default:
			f(g.at(place{bytes: b.Bytes}), b.Bytes)
		}
	}
}

// at returns the amount of a place.
func (g *gathered) at(p place) *amount {
	a := g.places[p]
	if a == nil {
		a = &amount{}
		g.places[p] = a
	}
	return a
}

// points collects a curve.
type points struct {
	curve
	events     uint64
	next       int    // the stretch after that of the last event
	until      uint64 // the last event of the one before
	live, time uint64 // after the last event
}

func newPoints(events uint64, timed bool) *points {
	p := &points{events: events}
	p.least, p.most = make([]uint64, curvePoints), make([]uint64, curvePoints)
	if timed {
		p.times = make([]uint64, curvePoints)
	}
	return p
}

// start sets what is live before the first event.
func (p *points) start(live uint64) { p.live = live }

// add adds event n, counted from 1, with what is live at it and after it.
func (p *points) add(n, at, after, time uint64) {
	if n > p.until { // the first of its stretch
		k := stretch(n, p.events)
		p.fill(k)
		p.least[k], p.most[k] = after, at
		if k == 0 {
			p.most[k] = max(at, p.live)
		}
		p.next, p.until = k+1, starts(uint64(k+1), p.events)
	}
	k := p.next - 1
	p.least[k], p.most[k] = min(p.least[k], after), max(p.most[k], at)
	p.live, p.time = after, time
	if p.times != nil {
		p.times[k] = time
	}
}

// fill gives the stretches before k that have no event what is live after the last one.
func (p *points) fill(k int) {
	for ; p.next < k; p.next++ {
		p.least[p.next], p.most[p.next] = p.live, p.live
		if p.times != nil {
			p.times[p.next] = p.time
		}
	}
}

// stretch returns the stretch of a curve that event n of that many is in; the first for
// what is older than the events, 0.
func stretch(n, events uint64) int {
	if n == 0 {
		return 0
	}
	hi, lo := bits.Mul64(n-1, curvePoints)
	q, _ := bits.Div64(hi, lo, events)
	return int(q)
}
