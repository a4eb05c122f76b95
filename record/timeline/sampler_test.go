package timeline

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/internal/report"
	"gpumem/record/formats"
	"gpumem/record/internal/sum"
	"gpumem/record/internal/test/replaytest"
	"gpumem/record/replay"
	"gpumem/record/trace"
	"gpumem/size"
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
				o, l := sampled(t, tr, cfg, share)
				checkTimeline(t, o, tr, states)
				checkLayer(t, o, l, states)
			})
		})
	}
}

// sampled replays a recording under one policy and returns its outline and layer.
func sampled(tb rapid.TB, tr *trace.Trace, cfg replay.Config, share int) (*outline, *report.Layer) {
	o, err := newOutline(context.Background(), tr, tr.Pools[0], newTexts(tr), share, nil)
	if err != nil {
		tb.Fatal(err)
	}
	var s *sampler
	cfg.Untimed = true
	cfg.Hooks = []func(*replay.Pass) replay.Hook{func(p *replay.Pass) replay.Hook { s = o.sample(p); return s.hook() }}
	if _, err := replay.Run(context.Background(), tr, cfg); err != nil {
		tb.Fatal(err)
	}
	var refusals []uint64
	if s.layer.First != nil {
		refusals = append(refusals, s.layer.First.Event)
	}
	if err := o.bands(context.Background(), refusals, share, nil); err != nil {
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

func checkTimeline(t *rapid.T, o *outline, tr *trace.Trace, states []state) {
	tl := o.timeline
	asked := func(s state) uint64 { return s.asked }
	if _, most := span(states, asked); tl.Peak != most || states[tl.PeakAt-1].asked != most {
		t.Fatalf("peak %d at %d, want %d", tl.Peak, tl.PeakAt, most)
	}
	buckets(tl.Ends, states, func(k int, in []state) {
		if _, most := span(in, asked); tl.Asked[k] != most {
			t.Fatalf("bucket %d: at most %d requested, want %d", k, tl.Asked[k], most)
		}
	})
	checkBands(t, o, tr)
}

// liveBlock is a block of the plain model.
type liveBlock struct {
	bytes, born uint64
	site        uint32
	seed        bool
}

// checkBands compares what lives with a plain model: the blocks that live at an event, in a
// map. The bands of each bucket are those of the first of its events with the most live
// bytes, they add up, and the lists have the same.
func checkBands(t rapid.TB, o *outline, tr *trace.Trace) {
	tl := o.timeline
	live := map[uint32]liveBlock{}
	list, k := 0, 0
	var best uint64
	var moment map[uint32]liveBlock
	var at uint64
	cur, event := o.pool.Cursor(), make([]trace.Event, 1)
	for n := uint64(1); ; n++ {
		if _, err := cur.Next(event); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		e := event[0]
		number := n - min(n, o.pool.Seeds)
		if e.Op == trace.Free {
			delete(live, e.Slot)
		} else {
			live[e.Slot] = liveBlock{bytes: e.Bytes, born: number, site: e.Site, seed: n <= o.pool.Seeds}
		}
		if n >= o.pool.Seeds {
			var all sum.Sum
			for _, b := range live {
				all.Add(b.bytes)
			}
			if number == tl.Starts[k] && moment == nil || moment == nil || all.Cap() > best {
				best, moment, at = all.Cap(), maps.Clone(live), number
			}
			if list < len(tl.Lists) && tl.Lists[list].Event == number {
				listed := maps.Clone(live)
				if e.Refused { // it never lived
					delete(listed, e.Slot)
				}
				checkList(t, o, tl.Lists[list], listed)
				list++
			}
			if number == tl.Events || k+1 < len(tl.Starts) && number+1 == tl.Starts[k+1] {
				checkMoment(t, o, tr, k, at, best, moment)
				moment, best = nil, 0
				k++
			}
		}
		if e.Refused {
			delete(live, e.Slot)
		}
	}
	if list != len(tl.Lists) || k != len(tl.Starts) {
		t.Fatalf("%d of %d lists, %d of %d buckets", list, len(tl.Lists), k, len(tl.Starts))
	}
}

// checkMoment checks the bands of a bucket.
func checkMoment(t rapid.TB, o *outline, tr *trace.Trace, k int, at, bytes uint64, live map[uint32]liveBlock) {
	tl := o.timeline
	if tl.Moments[k] != at || tl.Live[k] != bytes || tl.Blocks[k] != uint64(len(live)) {
		t.Fatalf("bucket %d: %d bytes in %d blocks at event %d, want %d in %d at %d", k, tl.Live[k], tl.Blocks[k], tl.Moments[k], bytes, len(live), at)
	}
	names := o.texts.List
	for _, g := range tl.Groupings {
		type figures struct{ bytes, blocks, since uint64 }
		want := make([]figures, len(g.Bands))
		var all sum.Sum
		var blocks uint64
		for n, b := range g.Bands {
			all.Add(b.Bytes[k])
			blocks += b.Blocks[k]
			want[n].since = math.MaxUint64
		}
		if all.Cap() != bytes || blocks != uint64(len(live)) {
			t.Fatalf("by %s, bucket %d: bands of %d bytes in %d blocks, want %d in %d", g.By, k, all.Cap(), blocks, bytes, len(live))
		}
		if g.By == "caller" || g.By == "purpose" {
			continue
		}
		for _, b := range live {
			n := slices.IndexFunc(g.Bands, func(band *report.Band) bool {
				switch {
				case b.seed && o.before() || band.Kind == report.Before:
					return b.seed && band.Kind == report.Before
				case band.Kind == report.Rest:
					return true
				case g.By == "size":
					return names[band.Name] == o.sizes.name(o.sizes.key(b.bytes)) && (band.Detail < 0 || names[band.Detail] == report.Count(b.bytes)+" B")
				}
				return names[band.Detail] == cmp.Or(tr.FullSite(b.site), "(no stack was recorded)")
			})
			if n < 0 {
				t.Fatalf("by %s: no band has %+v", g.By, b)
			}
			want[n].bytes, want[n].blocks, want[n].since = size.Add(want[n].bytes, b.bytes), want[n].blocks+1, min(want[n].since, b.born)
		}
		for n, b := range g.Bands {
			if want[n].blocks == 0 {
				want[n].since = 0
			}
			if got := (figures{b.Bytes[k], b.Blocks[k], b.Since[k]}); got != want[n] {
				t.Fatalf("by %s, bucket %d, %s: %+v, want %+v", g.By, k, names[b.Name], got, want[n])
			}
		}
	}
}

// checkList checks that the groups of a list add up to what lives.
func checkList(t rapid.TB, o *outline, l *report.List, live map[uint32]liveBlock) {
	var bytes sum.Sum
	for _, b := range live {
		bytes.Add(b.bytes)
	}
	if l.Bytes != bytes.Cap() || l.Blocks != uint64(len(live)) {
		t.Fatalf("event %d: %d bytes in %d blocks, want %d in %d", l.Event, l.Bytes, l.Blocks, bytes.Cap(), len(live))
	}
	for n, groups := range l.Groups {
		var all sum.Sum
		var blocks uint64
		for k, g := range groups {
			all.Add(g.Bytes)
			blocks += g.Blocks
			if g.Name >= 0 && k > 0 && g.Bytes > groups[k-1].Bytes {
				t.Fatalf("event %d, grouping %d: %+v", l.Event, n, groups)
			}
		}
		if all.Cap() != l.Bytes || blocks != l.Blocks || len(groups) > listRows+1 {
			t.Fatalf("event %d, grouping %d: %d groups of %d bytes in %d blocks, want %d in %d", l.Event, n, len(groups), all.Cap(), blocks, l.Bytes, l.Blocks)
		}
	}
}

// TestBandsOfPyTorch: recordings with stacks and with blocks that are older.
func TestBandsOfPyTorch(t *testing.T) {
	for _, name := range []string{"torch2023.pickle", "torch2025.pickle", "torch2026.pickle", "torch201.pickle", "torch2150.pickle"} {
		t.Run(name, func(t *testing.T) {
			tr := replaytest.File(t, "..", "trace", "testdata", name)
			for k, pool := range tr.Pools {
				one := *tr
				one.Pools = []*trace.Pool{pool}
				o, l := sampled(t, &one, replaytest.Config(t, "sim:24GiB", "pytorch"), 1)
				checkBands(t, o, tr)
				if tl := o.timeline; tl.Events != pool.Events-pool.Seeds || tl.Peak != pool.PeakLive || tl.SeedBytes > tl.Peak {
					t.Errorf("pool %d: %d events, peak %d, seeds of %d", k, tl.Events, tl.Peak, tl.SeedBytes)
				}
				if got := len(o.timeline.Recorded); got != 0 && got != len(l.Held) {
					t.Errorf("pool %d: %d values of the recorded run, %d of the policy", k, got, len(l.Held))
				}
			}
		})
	}
}

// TestRecordedIsWhatPyTorchHeld: on these recordings of PyTorch the policy pytorch holds what
// the recorded run held, at every event.
func TestRecordedIsWhatPyTorchHeld(t *testing.T) {
	for name, policy := range map[string]string{"torch280.pickle": "pytorch@2.8.0", "torch2150.pickle": "pytorch"} {
		t.Run(name, func(t *testing.T) {
			tr := replaytest.File(t, "..", "trace", "testdata", name)
			o, l := sampled(t, tr, replaytest.Config(t, "sim:1GiB", policy), 1)
			if len(o.timeline.Recorded) == 0 || len(o.timeline.Segments) == 0 {
				t.Fatal("nothing is known of the recorded run")
			}
			var held uint64
			for _, s := range o.timeline.Segments {
				held += s.Bytes
			}
			if last := o.timeline.Recorded[len(o.timeline.Recorded)-1]; last != held {
				t.Errorf("the recorded run held %d in the end, and its segments have %d", last, held)
			}
			same := 0
			for k, got := range o.timeline.Recorded {
				if got == l.Held[k] {
					same++
				}
			}
			if same < len(l.Held)-1 { // what is taken for the first event is there from the beginning, or not
				t.Errorf("%d of %d values are the same", same, len(l.Held))
			}
		})
	}
}

func checkLayer(t *rapid.T, o *outline, l *report.Layer, states []state) {
	tl := o.timeline
	buckets(tl.Ends, states, func(k int, in []state) {
		_, most := span(in, func(s state) uint64 { return s.stats.BytesInUse })
		_, high := span(in, func(s state) uint64 { return s.stats.PoolBytes })
		// A bucket begins where the one before ended.
		if k > 0 {
			before := states[tl.Ends[k-1]-1].stats
			most, high = max(most, before.BytesInUse), max(high, before.PoolBytes)
		}
		end := in[len(in)-1]
		got := []uint64{l.Used[k], l.Held[k], l.Hole[k], l.Free[k]}
		want := []uint64{most, high, end.stats.LargestFreeBlock, end.stats.PoolBytes - end.stats.BytesInUse}
		if !slices.Equal(got, want) {
			t.Fatalf("bucket %d: %d, want %d", k, got, want)
		}
		if frag := l.Frag[k]; frag < 0 || frag > 100 || l.Free[k] == 0 && frag != 0 {
			t.Fatalf("bucket %d: fragmentation %v", k, frag)
		}
	})
	if !slices.IsSorted(l.Calls) {
		t.Fatalf("calls %d", l.Calls)
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
	if !slices.Equal(l.Refused, refused[:min(len(refused), maxRefusals)]) || l.Times != uint64(len(refused)) {
		t.Fatalf("refused at %d, want %d", l.Refused, refused)
	}
	for _, event := range want {
		if !seen[event] {
			t.Fatalf("no snapshot at event %d", event)
		}
	}
}

// TestSnapshotHoldsNoMoreThanItShows: its memory does not follow the number of live
// blocks or of holes.
func TestSnapshotHoldsNoMoreThanItShows(t *testing.T) {
	const n = 1000
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

// TestManySizesAreRanges: the number of groups does not follow the number of sizes.
func TestManySizesAreRanges(t *testing.T) {
	defer func(was int) { maxSizes = was }(maxSizes)
	maxSizes = 100
	var b strings.Builder
	for k := range 1000 { // of many sizes, and large ones of one
		fmt.Fprintf(&b, "a %d %d\na x%[1]d 100000\n", k, 1000+k)
	}
	tr, err := formats.Read(context.Background(), strings.NewReader(b.String()), "in", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	o, _ := sampled(t, tr, replaytest.Config(t, "sim:1GiB", "jax"), 1)
	var names []string
	for _, band := range o.timeline.Groupings[0].Bands {
		names = append(names, o.texts.List[band.Name])
	}
	if want := []string{"64 KiB to 128 KiB", "1 KiB to 2 KiB", "512 B to 1 KiB"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

// TestCallersAreDividedWhereTheySayMost: parts of a model come out whatever they are called.
func TestCallersAreDividedWhereTheySayMost(t *testing.T) {
	for _, c := range []struct {
		name   string
		stacks map[string]float64 // innermost first, as Trace.Site has them
		want   []string
	}{
		{"one place", map[string]float64{"alloc (a.py:1)\nmain (m.py:1)": 1}, []string{"elsewhere"}},
		{"two layers below three common frames", map[string]float64{
			"empty (t.py:1)\nforward (l.py:3)\nblock0 (m.py:1)\nstep (m.py:9)\nmain (m.py:20)": 3,
			"empty (t.py:1)\nforward (l.py:3)\nblock1 (m.py:2)\nstep (m.py:9)\nmain (m.py:20)": 2,
		}, []string{"block0 (m.py:1)", "block1 (m.py:2)"}},
		{"a small thread beside the program", map[string]float64{
			"a (x.py:1)\nmain (m.py:20)": 50, "b (x.py:2)\nmain (m.py:20)": 49, "c (y.py:1)\nthread (t.py:1)": 1,
		}, []string{"a (x.py:1)", "b (x.py:2)", "elsewhere"}},
		{"words of an operation", map[string]float64{"jit(f)/layer0/dot": 5, "jit(f)/layer1/dot": 4, "jit(f)/layer1/add": 1},
			[]string{"layer0", "dot", "add"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			top := &caller{}
			for text, weight := range c.stacks {
				top.add(framesOf(text), weight)
			}
			var names []string
			for _, p := range divide(top, maxBands) {
				names = append(names, p.words().name)
			}
			if !slices.Equal(names, c.want) {
				t.Errorf("%q, want %q", names, c.want)
			}
		})
	}
}

// TestStacksAreNamedApart: where innermost frames are the same, the first that differs names
// the stack.
func TestStacksAreNamedApart(t *testing.T) {
	got := shorten([]string{"a\nb\nc", "a\nb\nd", "x\ny", "a"})
	if want := []string{"c", "d", "x", "a"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestEnds: buckets follow each other to the last event, are not too many, and
// those around the peak have one event each.
func TestEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		events := rapid.OneOf(rapid.Uint64Range(1, 500), rapid.Uint64Range(1, 1<<40)).Draw(t, "events")
		n := rapid.Uint64Range(1, 100).Draw(t, "buckets")
		window := rapid.Uint64Range(0, 20).Draw(t, "window")
		peak := rapid.Uint64Range(0, events).Draw(t, "peak")
		before := rapid.Bool().Draw(t, "before")
		got := ends(events, n, []uint64{peak}, window, before)
		if got[len(got)-1] != events || (got[0] == 0) != before || uint64(len(got)) > 2*n+2*window+4 {
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
				t.Fatalf("event %d has no separate bucket near the peak at %d: %d", e, peak, got)
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
		if got := remedy(fit, first, append(fit, first)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
