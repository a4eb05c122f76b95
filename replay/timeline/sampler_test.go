package timeline

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/internal/sum"
	"gpumem/internal/test/replaytest"
	"gpumem/replay"
	"gpumem/report"
	"gpumem/trace"
	"gpumem/trace/formats"
)

// drawTrace is a text recording of some events, which may ask for anything.
func drawTrace(t *rapid.T) string {
	var b strings.Builder
	var live []int
	size := rapid.OneOf(rapid.Uint64Range(0, 3000), rapid.Uint64Range(1, 64<<20), rapid.SampledFrom([]uint64{1 << 20, 2 << 20, math.MaxUint64}))
	for id := range rapid.IntRange(1, 120).Draw(t, "events") {
		if len(live) > 0 && rapid.IntRange(0, 2).Draw(t, "free") == 0 {
			k := rapid.IntRange(0, len(live)-1).Draw(t, "which")
			fmt.Fprintf(&b, "f %d\n", live[k])
			live = slices.Delete(live, k, k+1)
			continue
		}
		fmt.Fprintf(&b, "a %d %d\n", id, size.Draw(t, "size"))
		live = append(live, id)
	}
	return b.String()
}

// state is what a slow run sees after an event.
type state struct {
	asked      uint64 // of all that was asked for
	stats      alloc.Stats
	live       uint64 // asked for, of the blocks that live
	blocks     int
	refused    bool
	allRefused uint64
}

// watch runs a recording and looks at everything after every event.
func watch(tb rapid.TB, tr *trace.Trace, cfg replay.Config) (states []state) {
	dev, err := cfg.Device(cfg.Total)
	if err != nil {
		tb.Fatal(err)
	}
	defer dev.Close()
	a, err := build.New(dev, cfg.Policies[0], build.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	defer a.Close()
	cur := tr.Pools[0].Cursor()
	asked, served := map[uint32]uint64{}, map[uint32]alloc.Block{}
	event := make([]trace.Event, 1)
	var s state
	for {
		if _, err := cur.Next(event); err == io.EOF {
			return states
		} else if err != nil {
			tb.Fatal(err)
		}
		e := event[0]
		s.refused = false
		if e.Op == trace.Free {
			if err := a.Free(served[e.Slot]); err != nil {
				tb.Fatal(err)
			}
			delete(asked, e.Slot)
			delete(served, e.Slot)
		} else {
			asked[e.Slot] = e.Bytes
			if served[e.Slot], err = a.Alloc(alloc.Request{Bytes: e.Bytes}); err != nil {
				s.refused = true
				s.allRefused++
			}
		}
		sum := new(big.Int)
		for _, n := range asked {
			sum.Add(sum, new(big.Int).SetUint64(n))
		}
		if s.asked = math.MaxUint64; sum.IsUint64() {
			s.asked = sum.Uint64()
		}
		s.live, s.blocks = 0, 0
		for slot, b := range served {
			if !b.IsZero() {
				s.live += asked[slot]
				s.blocks++
			}
		}
		s.stats = a.Stats()
		states = append(states, s)
	}
}

// TestLayer: what a page shows is what a slow run sees after every event.
func TestLayer(t *testing.T) {
	for _, s := range []string{"jax", "jax:preallocate=false", "platform", "async", "vmm", "elastic"} {
		cfg := replaytest.Config(t, "sim:96MiB", s)
		t.Run(s, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				// Beside others, each has fewer buckets and snapshots.
				policies := rapid.SampledFrom([]int{1, 1, 400, 4000}).Draw(t, "policies")
				share := (policies + fullLayers - 1) / fullLayers
				tr, err := formats.Read(context.Background(), strings.NewReader(drawTrace(t)), "in", trace.Options{})
				if err != nil {
					t.Fatal(err)
				}
				defer tr.Close()
				states := watch(t, tr, cfg)
				o, l := sampled(t, tr, cfg, share, false)
				checkTimeline(t, o.timeline, states)
				checkLayer(t, o.timeline, l, states)
			})
		})
	}
}

// sampled replays a recording under one policy and returns its outline and layer;
// listed makes snapshots list what is live.
func sampled(tb rapid.TB, tr *trace.Trace, cfg replay.Config, share int, listed bool) (*outline, *report.Layer) {
	o, err := newOutline(context.Background(), tr, tr.Pools[0], &textTable{}, share, nil)
	if err != nil {
		tb.Fatal(err)
	}
	if listed {
		o.timeline.Blocks = nil
	}
	var s *sampler
	cfg.Untimed = true
	cfg.Hooks = []func(*replay.Pass) replay.Hook{func(p *replay.Pass) replay.Hook { s = o.sample(p); return s.hook() }}
	if _, err := replay.Run(context.Background(), tr, cfg); err != nil {
		tb.Fatal(err)
	}
	return o, s.layer
}

// buckets calls f with the states of each bucket.
func buckets(ends []uint64, states []state, f func(k int, in []state)) {
	from := uint64(0)
	for k, end := range ends {
		f(k, states[from:end])
		from = end
	}
}

func span(in []state, of func(state) uint64) (least, most uint64) {
	by := func(a, b state) int { return cmp.Compare(of(a), of(b)) }
	return of(slices.MinFunc(in, by)), of(slices.MaxFunc(in, by))
}

func checkTimeline(t *rapid.T, tl *report.Timeline, states []state) {
	asked := func(s state) uint64 { return s.asked }
	if _, most := span(states, asked); tl.Peak != most || states[tl.PeakAt-1].asked != most {
		t.Fatalf("peak %d at %d, want %d", tl.Peak, tl.PeakAt, most)
	}
	buckets(tl.Ends, states, func(k int, in []state) {
		if least, most := span(in, asked); tl.Asked.Min[k] != least || tl.Asked.Max[k] != most {
			t.Fatalf("bucket %d: asked for %d to %d, want %d to %d", k, tl.Asked.Min[k], tl.Asked.Max[k], least, most)
		}
	})
	// The blocks alive at each event add up to what was asked for.
	for n, s := range states {
		var all sum.Sum
		for k, from := range tl.Blocks.From {
			if at := uint64(n + 1); from <= at && (tl.Blocks.For[k] == 0 || at < from+tl.Blocks.For[k]) {
				all.Add(tl.Blocks.Bytes[k])
			}
		}
		if all.Cap() != s.asked {
			t.Fatalf("event %d: blocks of %d are alive, want %d", n+1, all.Cap(), s.asked)
		}
	}
}

func checkLayer(t *rapid.T, tl *report.Timeline, l *report.Layer, states []state) {
	buckets(tl.Ends, states, func(k int, in []state) {
		least, most := span(in, func(s state) uint64 { return s.stats.BytesInUse })
		low, high := span(in, func(s state) uint64 { return s.stats.PoolBytes })
		end := in[len(in)-1]
		got := []uint64{l.Used.Min[k], l.Used.Max[k], l.Held.Min[k], l.Held.Max[k], l.Hole[k], l.Free[k], l.Refused[k]}
		want := []uint64{least, most, low, high, end.stats.LargestFreeBlock, end.stats.PoolBytes - end.stats.BytesInUse, end.allRefused}
		if !slices.Equal(got, want) {
			t.Fatalf("bucket %d: %d, want %d", k, got, want)
		}
	})
	if !slices.IsSorted(l.Calls) {
		t.Fatalf("calls %d", l.Calls)
	}
	if near := l.Near; near != nil {
		for k, used := range near.Used {
			s := states[near.From-1+uint64(k)]
			if used != s.stats.BytesInUse || near.Held[k] != s.stats.PoolBytes || near.Refused[k] != s.allRefused {
				t.Fatalf("event %d: %d used, %d held, %d refused", near.From+uint64(k), used, near.Held[k], near.Refused[k])
			}
		}
		if first := l.First.Event - near.From; near.Refused[first] != 1 || first > 0 && near.Refused[first-1] != 0 {
			t.Fatalf("refused near the first: %d", near.Refused)
		}
	}
	if few := len(tl.Ends) < len(states); (l.Near != nil) != (few && l.First != nil) {
		t.Fatalf("few buckets: %v, refused: %v, near: %v", few, l.First, l.Near)
	}
	seen := map[uint64]bool{}
	for k, in := range l.Snapshots {
		s := states[in.Event-1]
		if k > 0 && in.Event <= l.Snapshots[k-1].Event {
			t.Fatalf("event %d after %d", in.Event, l.Snapshots[k-1].Event)
		}
		if in.Used != s.stats.BytesInUse || in.Held != s.stats.PoolBytes || in.Asked != s.live || in.Blocks != s.blocks {
			t.Fatalf("event %d: %+v, want %+v", in.Event, in, s)
		}
		if len(in.Map) > keyCells || in.Held > 0 != (in.Map != "") {
			t.Fatalf("event %d: a map of %d cells of %d bytes", in.Event, len(in.Map), in.Held)
		}
		// The largest blocks, whole and apart, on what the map shows as used.
		end, free := uint64(0), uint64(0)
		top := slices.SortedFunc(slices.Values(in.Top), func(a, b [3]uint64) int { return cmp.Compare(a[0], b[0]) })
		for n, b := range top {
			if b[0] < end || n > 0 && in.Top[n][1] > in.Top[n-1][1] {
				t.Fatalf("event %d: blocks %d", in.Event, in.Top)
			}
			free += b[0] - end
			end = b[0] + b[1]
		}
		if len(in.Top) != min(in.Blocks, len(in.Top)) || len(in.Top) < min(in.Blocks, topBlocks) || end-free > in.Used {
			t.Fatalf("event %d: %d blocks, %d on the map with %d bytes of %d", in.Event, in.Blocks, len(in.Top), end-free, in.Used)
		}
		seen[in.Event] = true
	}
	var refused []uint64
	for n, s := range states {
		if s.refused {
			refused = append(refused, uint64(n+1))
		}
	}
	want := []uint64{tl.PeakAt, tl.Events}
	if len(refused) > 0 {
		want = append(want, refused[0])
		if l.First == nil || l.First.Event != refused[0] {
			t.Fatalf("first refused %+v, want %d", l.First, refused[0])
		}
	}
	if !slices.Equal(l.RefusedAt, refused) || len(l.Refusals) != min(len(refused), maxRefusals) {
		t.Fatalf("refused at %d, want %d", l.RefusedAt, refused)
	}
	for _, event := range want {
		if !seen[event] {
			t.Fatalf("no snapshot at event %d", event)
		}
	}
}

// TestAliveListed: recordings of too many events for all blocks have lists instead;
// here they are made for a short one.
func TestAliveListed(t *testing.T) {
	cfg := replaytest.Config(t, "sim:1GiB", "jax")
	rapid.Check(t, func(t *rapid.T) {
		tr, err := formats.Read(context.Background(), strings.NewReader(drawTrace(t)), "in", trace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		_, layer := sampled(t, tr, cfg, 1, true)
		for _, in := range layer.Snapshots {
			bytes, blocks := sumOf(in.Sizes), 0
			for k, g := range in.Sizes {
				blocks += g.Blocks
				if low := g.Key * uint64(g.Blocks); !in.Ranges && g.Bytes != low || g.Bytes < low || k > 0 && g.Bytes > in.Sizes[k-1].Bytes {
					t.Fatalf("event %d: %+v", in.Event, in.Sizes)
				}
			}
			if full := len(in.Sizes) < listRows; bytes > in.Asked || full && (bytes != in.Asked || blocks != in.Blocks) {
				t.Fatalf("event %d: %d bytes in %d blocks, want %d in %d", in.Event, bytes, blocks, in.Asked, in.Blocks)
			}
		}
	})
}

// TestSnapshotHoldsNoMoreThanItShows: its memory does not follow the number of live
// blocks or of holes.
func TestSnapshotHoldsNoMoreThanItShows(t *testing.T) {
	defer func(was int) { maxSizes = was }(maxSizes)
	maxSizes = 100
	var b strings.Builder
	const n = 1000
	for k := range n { // of many sizes, and large ones of one
		fmt.Fprintf(&b, "a %d %d\na x%[1]d 100000\n", k, 1000+k)
	}
	tr, err := formats.Read(context.Background(), strings.NewReader(b.String()), "in", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	cfg := replaytest.Config(t, "sim:1GiB", "jax")
	_, layer := sampled(t, tr, cfg, 1, true)
	list := layer.Snapshots
	in := list[len(list)-1]
	if !in.Ranges || len(in.Sizes) != 3 || in.Sizes[0].Key != 65536 || in.Sizes[0].Blocks != n || sumOf(in.Sizes) != in.Asked {
		t.Errorf("%d blocks: ranges %v, %+v", in.Blocks, in.Ranges, in.Sizes)
	}

	m := newMap(10, 3*n*n)
	var holes [][2]uint64
	for k := range uint64(n) {
		m.add(1, true, false)
		holes = append(holes, [2]uint64{m.known, 1 + k*7919%n})
		m.add(1+k*7919%n, false, false)
		if len(m.largest.list) > 2*holeRows {
			t.Fatalf("%d holes are held", len(m.largest.list))
		}
	}
	slices.SortStableFunc(holes, func(a, b [2]uint64) int { return cmp.Compare(b[1], a[1]) })
	if _, got, largest := m.done(); got != n || !slices.Equal(largest, holes[:holeRows]) {
		t.Errorf("%d holes, the largest %v, want %v", got, largest, holes[:holeRows])
	}
}

// TestEnds: buckets follow each other to the last event, are not too many, and
// those around the peak have one event each.
func TestEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events := rapid.OneOf(rapid.Uint64Range(1, 500), rapid.Uint64Range(1, 1<<40)).Draw(t, "events")
		n := rapid.Uint64Range(1, 100).Draw(t, "buckets")
		window := rapid.Uint64Range(0, 20).Draw(t, "window")
		peak := rapid.Uint64Range(1, events).Draw(t, "peak")
		got := ends(events, n, peak, window)
		if got[len(got)-1] != events || got[0] == 0 || uint64(len(got)) > 2*n+2*window+3 {
			t.Fatalf("%d buckets, %d to %d", len(got), got[0], got[len(got)-1])
		}
		for k := 1; k < len(got); k++ {
			if got[k] <= got[k-1] {
				t.Fatalf("%d after %d", got[k], got[k-1])
			}
		}
		for e := max(1, peak-min(peak, window)); e <= min(peak+window, events); e++ {
			k, ok := slices.BinarySearch(got, e)
			if !ok || k > 0 && got[k-1] != e-1 || k == 0 && e != 1 {
				t.Fatalf("event %d has no bucket of its own near the peak at %d: %d", e, peak, got)
			}
		}
	})
}

// TestMap: the cells of a map are those of a map of single bytes.
func TestMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type piece struct {
			size        uint64
			live, apart bool
		}
		var pieces []piece
		var bytes []float64
		holes, hole := 0, false
		for range rapid.IntRange(1, 12).Draw(t, "pieces") {
			p := piece{rapid.Uint64Range(1, 9).Draw(t, "size"), rapid.Bool().Draw(t, "live"), rapid.Bool().Draw(t, "apart")}
			pieces = append(pieces, p)
			for range p.size {
				bytes = append(bytes, map[bool]float64{true: 1}[p.live])
			}
			if !p.live && (!hole || p.apart) {
				holes++
			}
			hole = !p.live
		}
		known := len(bytes)
		total := known + rapid.IntRange(0, 20).Draw(t, "untold")
		cells := rapid.IntRange(1, 70).Draw(t, "cells")
		m := newMap(cells, uint64(total))
		for _, p := range pieces {
			m.add(p.size, p.live, p.apart)
		}
		text, n, largest := m.done()
		cells = min(cells, total)
		if len(text) != cells || n != holes || len(largest) > holeRows || n > 0 && len(largest) == 0 {
			t.Fatalf("%q, %d holes, %d", text, n, largest)
		}
		// Each byte is cut into so many parts, so that a cell is whole parts.
		for c := range cells {
			used, told := 0.0, false
			for part := range total {
				at := (c*total + part) / cells // byte of this part
				if at < known {
					used += bytes[at] / float64(total)
					told = true
				}
			}
			got := text[c]
			switch {
			case !told && got != '?' && c*total >= known*cells+total, told && c*total < known*cells && got == '?':
				t.Fatalf("cell %d of %q; %d of %d known", c, text, known, total)
			case got == '?':
			case used < 1e-6 && got != '0', used > 1-1e-6 && got != '8', math.Abs(float64(got-'0')/8-used) > 1.0/8:
				t.Fatalf("cell %d of %q is used to %v", c, text, used)
			}
		}
	})
}

// TestNames: each text once, long ones cut, and not without end.
func TestNames(t *testing.T) {
	var n textTable
	if a, b := n.of("x"), n.of("y"); a != 0 || b != 1 || n.of("x") != 0 {
		t.Error("a text has two indexes")
	}
	if long := n.list[n.of(strings.Repeat("z", 3*maxNameBytes))]; len(long) != maxNameBytes+3 {
		t.Errorf("%d bytes", len(long))
	}
	for k := range maxNames / maxNameBytes * 2 {
		n.of(fmt.Sprint(k) + strings.Repeat("z", maxNameBytes))
	}
	total := 0
	for _, s := range n.list {
		total += len(s)
	}
	if total > maxNames+200 || n.of("another") != len(n.list)-1 {
		t.Errorf("%d bytes of names", total)
	}
}

// TestLongRecordingIsNotTimed: a page of a long recording does without the time, and
// says so.
func TestLongRecordingIsNotTimed(t *testing.T) {
	defer func(n uint64) { longPool = n }(longPool)
	longPool = 3
	cfg := replaytest.Config(t, "sim:1GiB", "jax")
	for _, tt := range []struct {
		text  string
		page  bool
		timed bool
	}{
		{"a 1 1\nf 1\na 2 1\nf 2\n", true, false},
		{"a 1 1\nf 1\na 2 1\n", true, true},
		{"a 1 1\nf 1\na 2 1\nf 2\n", false, true},
	} {
		tr, err := formats.Read(context.Background(), strings.NewReader(tt.text), "in", trace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		rep, err := replay.Run(context.Background(), tr, cfg)
		if tt.page {
			rep, _, err = Run(context.Background(), tr, cfg)
		}
		if err != nil {
			t.Fatal(err)
		}
		r := rep.Results[0]
		if (r.Seconds > 0) != tt.timed || (r.OwnTime() != "-") != tt.timed || (len(rep.Trace.Notes) == 0) != tt.timed {
			t.Errorf("%q, page %v: %v s, %s, notes %q", tt.text, tt.page, r.Seconds, r.OwnTime(), rep.Trace.Notes)
		}
		_ = tr.Close()
	}
}

// A policy that serves another pool of the recording is no remedy for this one.
func TestRemedyIsForTheSamePool(t *testing.T) {
	const gib = 1 << 30
	first := &replay.Result{Policy: "jax", Pool: "cuda:0", LowerBound: 2 * gib, DeviceBytes: 4 * gib}
	other := &replay.Result{Policy: "vmm", Pool: "cuda:1", Fits: true, HeldPeak: gib}
	same := &replay.Result{Policy: "platform", Pool: "cuda:0", Fits: true, HeldPeak: 3 * gib}
	for want, fit := range map[string][]*replay.Result{
		"None of the policies that were tried served it; any allocator must hold 2 GiB at the peak, and the device has 4 GiB.": {other},
		"On the same device platform served every request; it held 3 GiB at most.":                                             {other, same},
	} {
		if got := remedy(fit, first); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
