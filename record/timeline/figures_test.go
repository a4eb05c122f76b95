package timeline

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gpumem/internal/input"
	"gpumem/internal/report"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/replaytest"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

// A recorder builds recordings that no text format can say: with blocks that are older, with
// requests that were refused, with stacks.
type recorder struct {
	*tape.PoolBuilder
	b     *tape.Builder
	t     testing.TB
	slots map[string]uint32
}

func (r *recorder) seed(name string, bytes uint64, site string) {
	slot, err := r.Seed(trace.Event{Bytes: bytes, Site: r.b.Site([]byte(site))})
	if err != nil {
		r.t.Fatal(err)
	}
	r.slots[name] = slot
}

func (r *recorder) alloc(name string, bytes uint64, site string) {
	slot, err := r.Alloc(trace.Event{Bytes: bytes, Site: r.b.Site([]byte(site))}, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	r.slots[name] = slot
}

func (r *recorder) refuse(bytes uint64) {
	if _, err := r.Alloc(trace.Event{Bytes: bytes, Refused: true}, 0); err != nil {
		r.t.Fatal(err)
	}
}

func (r *recorder) free(name string) {
	if err := r.Free(trace.Event{Slot: r.slots[name]}); err != nil {
		r.t.Fatal(err)
	}
}

// made returns a recording of one pool.
func made(t testing.TB, record func(r *recorder)) *trace.Trace {
	t.Helper()
	tr, err := trace.Formats{{Name: "made", Looks: func([]byte) bool { return true }, Read: func(_ *input.Reader, b *tape.Builder) error {
		record(&recorder{b.Pool("pool"), b, t, map[string]uint32{}})
		return nil
	}}}.Read(t.Context(), strings.NewReader("x"), "in", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.Close() })
	return tr
}

// outlined returns the outline of a recording's first pool, with what lives.
func outlined(t testing.TB, tr *trace.Trace) *outline {
	t.Helper()
	o, err := newOutline(t.Context(), tr, tr.Pools[0], newTexts(tr), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.bands(t.Context(), nil, 1, nil); err != nil {
		t.Fatal(err)
	}
	return o
}

// groups returns the rows of a list, with their names.
func (o *outline) groups(t testing.TB, event uint64, by string) map[string]report.Group {
	t.Helper()
	n := slices.IndexFunc(o.timeline.Groupings, func(g *report.Grouping) bool { return g.By == by })
	k := slices.IndexFunc(o.timeline.Lists, func(l *report.List) bool { return l.Event == event })
	if n < 0 || k < 0 {
		t.Fatalf("no list at event %d by %s", event, by)
	}
	out := map[string]report.Group{}
	for _, g := range o.timeline.Lists[k].Groups[n] {
		name := "all others"
		if g.Name >= 0 {
			name = o.texts.List[g.Name]
		}
		out[name] = g
	}
	return out
}

const kib, mib, gib = 1 << 10, 1 << 20, 1 << 30

// TestRecordedRunCountsFromTheFirstEvent: what the recorded pool held stands at the events at
// which it did, also if blocks are older; and of each event the most.
func TestRecordedRunCountsFromTheFirstEvent(t *testing.T) {
	tr := made(t, func(r *recorder) {
		r.seed("s1", 1, "")
		r.seed("s2", 1, "")
		r.Reserved(10) // from the beginning
		r.alloc("a", 1, "")
		r.Reserved(20) // before event 2
		r.alloc("b", 1, "")
		r.Reserved(30) // before event 3
		r.free("a")
		r.Reserved(5) // before event 4: there was more when it came
		r.alloc("c", 1, "")
		r.alloc("d", 1, "")
	})
	tl := outlined(t, tr).timeline
	if want := []uint64{10, 10, 20, 30, 30, 5}; !slices.Equal(tl.Recorded, want) || !slices.Equal(tl.Ends, []uint64{0, 1, 2, 3, 4, 5}) {
		t.Errorf("%d at %d, want %d", tl.Recorded, tl.Ends, want)
	}
}

// TestRefusedWhenRecorded: a request that the recorded run was refused counts in the peak, not
// in what lived, and its block lives for its event alone.
func TestRefusedWhenRecorded(t *testing.T) {
	tl := outlined(t, made(t, func(r *recorder) {
		r.alloc("a", 100, "")
		r.refuse(1000)
		r.alloc("b", 30, "")
		r.free("a")
	})).timeline
	if tl.Peak != 1100 || tl.PeakAt != 2 || tl.Lived != 130 {
		t.Errorf("peak %d at %d, %d lived", tl.Peak, tl.PeakAt, tl.Lived)
	}
	if a := tl.Allocations; !slices.Equal(a.From, []uint64{1, 2, 3}) || !slices.Equal(a.For, []uint64{3, 1, 0}) || !slices.Equal(a.Bytes, []uint64{100, 1000, 30}) {
		t.Errorf("blocks of %d bytes from %d for %d", a.Bytes, a.From, a.For)
	}
	if want := []uint64{100, 1100, 130, 30}; !slices.Equal(tl.Live, want) {
		t.Errorf("%d live, want %d", tl.Live, want)
	}
}

// TestManyLayersShare: as many policies as there are, the page does not grow with them.
func TestManyLayersShare(t *testing.T) {
	events := strings.Repeat("a 1 1\na 2 2\nf 1\nf 2\n", 5000) + "a 3 9\n"
	const all = 20_001
	for _, c := range []struct{ policies, share int }{{1, 1}, {8, 1}, {9, 2}, {17, 3}} {
		_, page, err := Run(t.Context(), replaytest.Text(t, events), replaytest.Config(t, "sim:1GiB", slices.Repeat([]string{"platform"}, c.policies)...))
		if err != nil {
			t.Fatal(err)
		}
		tl := page.Pools[0]
		buckets, window := maxBuckets/c.share, peakWindow/c.share // of the peak, at the end
		for what, n := range map[string]int{"curves": len(tl.Ends), "bands": len(tl.Starts)} {
			if n < buckets || n > buckets+window+2 || n >= all {
				t.Errorf("%d policies: the %s have %d buckets, want %d and up to %d near the peak", c.policies, what, n, buckets, window)
			}
		}
		if most := maxStretches / c.share; len(tl.Lists) < most || len(tl.Lists) > most+2 || len(tl.Layers[0].Snapshots) > most+2 {
			t.Errorf("%d policies: %d lists, %d snapshots, want %d", c.policies, len(tl.Lists), len(tl.Layers[0].Snapshots), most)
		}
	}
}

// TestSegmentsAreTheLargestFirst, with what is free in each, and none if they are too many.
func TestSegmentsAreTheLargestFirst(t *testing.T) {
	of := func(final []tape.Segment) []*report.Segment {
		return outlined(t, made(t, func(r *recorder) {
			site := r.b.Site([]byte("f"))
			if len(final) > 0 && len(final[0].Blocks) > 0 {
				final[0].Blocks[0].Site = site
			}
			r.alloc("a", 1, "f")
			r.Final(final)
		})).timeline.Segments
	}
	got := of([]tape.Segment{
		{Addr: 0x100, Bytes: 10, Blocks: []tape.SegmentBlock{{Addr: 0x102, Bytes: 3}, {Addr: 0x106, Bytes: 2}}},
		{Addr: 0x200, Bytes: 30, Small: true, Stream: 2},
		{Addr: 0x300, Bytes: 20},
		{Addr: 0x400, Bytes: 30},
	})
	var text []string
	for _, s := range got {
		text = append(text, fmt.Sprintln(s.Addr, s.Bytes, s.Free, s.Small, s.Stream, len(s.Blocks)))
	}
	if want := []string{"0x200 30 30 true 2 0\n", "0x400 30 30 false 0 0\n", "0x300 20 20 false 0 0\n", "0x100 10 5 false 0 2\n"}; !slices.Equal(text, want) {
		t.Errorf("%q, want %q", text, want)
	} else if b := got[3].Blocks; b[0][0] != 2 || b[0][1] != 3 || b[0][2] == 0 || b[1] != [3]uint64{6, 2, 0} {
		t.Errorf("blocks %d", b)
	}
	for n, want := range map[int]int{maxSegments: maxSegments, maxSegments + 1: 0} {
		final := make([]tape.Segment, n)
		for k := range final {
			final[k] = tape.Segment{Addr: uint64(k+1) << 12, Bytes: 1}
		}
		if got := of(final); len(got) != want {
			t.Errorf("of %d segments %d are drawn, want %d", n, len(got), want)
		}
	}
}

// TestRestOfAList: what a list leaves out has the bytes, the blocks and the oldest of all that
// it stands for.
func TestRestOfAList(t *testing.T) {
	for _, c := range []struct {
		name string
		size func(k uint64) uint64 // of event k
		want report.Group
	}{
		{"the smallest are the oldest", func(k uint64) uint64 { return k }, report.Group{Name: -1, Bytes: 2 + 3 + 4 + 5 + 6 + 7, Blocks: 6, Since: 2, Kinds: 6}},
		{"the smallest are the latest", func(k uint64) uint64 { return 100 - k }, report.Group{Name: -1, Bytes: 54 + 55 + 56 + 57 + 58 + 59, Blocks: 6, Since: 41, Kinds: 6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := outlined(t, made(t, func(r *recorder) {
				r.alloc("large", gib, "") // so that sizes are groups
				for k := uint64(2); k <= 46; k++ {
					r.alloc(fmt.Sprint(k), c.size(k), "")
				}
			}))
			rows := o.groups(t, 46, "size")
			if got := rows["all others"]; got != c.want || len(rows) != listRows+1 {
				t.Errorf("%+v of %d rows, want %+v", got, len(rows), c.want)
			}
		})
	}
}

// bandsBySize are the names of the bands by size.
func (o *outline) bandsBySize() (names []string) {
	for _, b := range o.timeline.Groupings[len(o.timeline.Groupings)-1].Bands {
		names = append(names, o.texts.List[b.Name])
	}
	return names
}

// TestThePeakHasABand, however short it is: ten sizes weigh more over the run.
func TestThePeakHasABand(t *testing.T) {
	o := outlined(t, made(t, func(r *recorder) {
		for k := range uint64(10) {
			r.alloc(fmt.Sprint(k), (10+k)*mib, "")
		}
		for range 500 {
			r.alloc("s", 1, "")
			r.free("s")
		}
		r.alloc("huge", gib, "")
		r.free("huge")
		for range 500 {
			r.alloc("s", 1, "")
			r.free("s")
		}
	}))
	if names := o.bandsBySize(); !slices.Contains(names, "1 GiB") || !slices.Contains(names, "19 MiB") {
		t.Errorf("%q", names)
	}
}

// TestRefusedRequestHasABand, however short it is, too: ten sizes weigh more over the run, and the
// peak is elsewhere.
func TestRefusedRequestHasABand(t *testing.T) {
	tr := made(t, func(r *recorder) {
		for k := range uint64(10) {
			r.alloc(fmt.Sprint(k), (10+k)*mib, "")
		}
		for _, huge := range []uint64{200, 355} {
			r.alloc("huge", huge*mib, "")
			r.free("huge")
			for range 500 {
				r.alloc("s", 1, "")
				r.free("s")
			}
		}
	})
	o, layer := sampled(t, tr, replaytest.Config(t, "sim:256MiB", "platform"), 1)
	if names := o.bandsBySize(); layer.Times != 2 || !slices.Contains(names, "200 MiB") || !slices.Contains(names, "355 MiB") {
		t.Errorf("%d refused, %q", layer.Times, names)
	}
}

// TestManyRefusalsAreCounted, and the first hundred are listed.
func TestManyRefusalsAreCounted(t *testing.T) {
	tr := replaytest.Text(t, strings.Repeat("a 1 2097152\nf 1\n", maxRefusals+50))
	_, layer := sampled(t, tr, replaytest.Config(t, "sim:1MiB", "platform"), 1)
	if layer.Times != maxRefusals+50 || len(layer.Refusals) != maxRefusals || len(layer.Refused) != maxRefusals {
		t.Errorf("%d, %d of them listed, %d marked", layer.Times, len(layer.Refusals), len(layer.Refused))
	}
}

// TestOlderBlocksAreThereAtOnce: a page begins with all of them.
func TestOlderBlocksAreThereAtOnce(t *testing.T) {
	tr := made(t, func(r *recorder) {
		r.seed("a", 2*mib, "")
		r.seed("b", 2*mib, "")
		r.alloc("c", 2*mib, "")
	})
	if _, layer := sampled(t, tr, replaytest.Config(t, "sim:1GiB", "platform"), 1); !slices.Equal(layer.Used, []uint64{4 * mib, 6 * mib}) {
		t.Errorf("%d", layer.Used)
	}
}

// TestSizesOrRanges: sizes have bands where eight of them are half of what lives, else ranges.
func TestSizesOrRanges(t *testing.T) {
	for _, c := range []struct {
		sizes  uint64
		ranges bool
	}{{3, false}, {12, false}, {15, false}, {18, true}, {24, true}} {
		o := outlined(t, made(t, func(r *recorder) {
			for k := range c.sizes { // as heavy as each other, nearly
				r.alloc(fmt.Sprint(k), mib+512*k, "")
			}
			for range 100 {
				r.alloc("s", 0, "")
				r.free("s")
			}
		}))
		names := o.bandsBySize()
		if ranges := slices.Contains(names, "1 MiB to 2 MiB"); ranges != c.ranges {
			t.Errorf("%d sizes: %q", c.sizes, names)
		}
	}
}

// TestOlderBlocksAreMarked in each list, and are not mixed with later ones of their kind.
func TestOlderBlocksAreMarked(t *testing.T) {
	o := outlined(t, made(t, func(r *recorder) {
		r.seed("s", 4*kib, "net/one/dot")
		r.alloc("a", 4*kib, "net/one/dot")
		r.alloc("b", 8*kib, "net/two/dot")
		r.alloc("c", 8*kib, "net/two/add")
	}))
	for by, names := range map[string][2]string{
		"size":   {"4 KiB (from before the recording)", "4 KiB"},
		"stack":  {"net/one/dot (from before the recording)", "net/one/dot"},
		"caller": {"from before the recording", "one"},
	} {
		rows := o.groups(t, 3, by)
		older, later := rows[names[0]], rows[names[1]]
		if older.Bytes != 4*kib || older.Blocks != 1 || older.Since != 0 || by != "caller" && (later.Bytes != 4*kib || later.Blocks != 1 || later.Since != 1) {
			t.Errorf("by %s: %+v", by, rows)
		}
		// Their lines are marked, too.
		for name, g := range rows {
			if line := o.texts.List[g.Label]; strings.Contains(line, beforeName) != (name == names[0]) {
				t.Errorf("by %s: %s is called %q", by, name, line)
			}
			if name != names[0] && g.Since == 0 {
				t.Errorf("by %s: %s is older than the recording: %+v", by, name, g)
			}
		}
	}
	// Of one instant all is older, and nothing is marked.
	o = outlined(t, made(t, func(r *recorder) { r.seed("s", 4*kib, "") }))
	if rows := o.groups(t, 0, "size"); rows["4 KiB"].Bytes != 4*kib {
		t.Errorf("%+v", rows)
	}
}

// TestLookAt: the framework that was recorded goes first, else a policy that refuses, else the
// first.
func TestLookAt(t *testing.T) {
	layers := func(words string) (list []*report.Layer) {
		for word := range strings.FieldsSeq(words) {
			name, refuses := strings.CutSuffix(word, "!")
			l := &report.Layer{Policy: name}
			if refuses {
				l.First = &report.Refusal{Event: 1}
			}
			list = append(list, l)
		}
		return list
	}
	for _, c := range []struct {
		layers string
		want   int
	}{
		{"jax vmm elastic", 0},
		{"jax pytorch elastic", 1},
		{"jax vmm! elastic!", 1},
		{"jax vmm! pytorch!", 2},
		{"pytorch vmm elastic!", 0},
		{"jax! pytorch", 1},
	} {
		if got := lookAt(layers(c.layers), []string{"pytorch"}); got != c.want {
			t.Errorf("%s: %d, want %d", c.layers, got, c.want)
		}
	}
	if got := lookAt(layers("jax vmm! pytorch!"), nil); got != 1 {
		t.Errorf("of no framework: %d, want 1", got)
	}
}

// TestServed: of several pools the one with the highest peak speaks, for itself alone.
func TestServed(t *testing.T) {
	res := func(policy, pool string, held uint64) *replay.Result {
		return &replay.Result{Policy: policy, Pool: pool, HeldPeak: held, Fits: true}
	}
	a := &report.Timeline{Pool: "a", Peak: 3 * mib, Events: 30}
	b := &report.Timeline{Pool: "b", Peak: 5 * mib, Events: 50}
	for _, c := range []struct {
		name    string
		pools   []*report.Timeline
		refused uint64
		fit     []*replay.Result
		want    []string
	}{
		{"one pool", []*report.Timeline{a}, 0, []*replay.Result{res("jax", "a", 4*mib)},
			[]string{"The program requested at most 3 MiB at once, in 30 events.", "jax on a held 4 MiB of the device's 1 GiB at most.", "Nothing was refused."}},
		{"two pools", []*report.Timeline{a, b}, 0, []*replay.Result{res("jax", "a", 1*mib), res("jax", "b", 9*mib), res("vmm", "a", 99*mib), res("vmm", "b", 7*mib)},
			[]string{"Pool b requested at most 5 MiB at once, in 50 events.", "Of the policies vmm on b held least, 7 MiB at most, and jax on b held most, 9 MiB of the device's 1 GiB.", "Nothing was refused."}},
		{"an instant", []*report.Timeline{{Pool: "a", Peak: 3 * mib}}, 0, []*replay.Result{res("jax", "a", 4*mib)},
			[]string{"The program had 3 MiB live at the instant of the recording.", "jax on a held 4 MiB of the device's 1 GiB at most.", "Nothing was refused."}},
		{"refused when recorded", []*report.Timeline{a}, 1200, []*replay.Result{res("jax", "a", 4*mib)},
			[]string{"The program requested at most 3 MiB at once, in 30 events.", "jax on a held 4 MiB of the device's 1 GiB at most.", "Every request was served, also the 1,200 that the recorded run was refused."}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rep := &replay.Report{}
			rep.Trace.PoolNames, rep.Trace.PeakLive, rep.Trace.Events, rep.Trace.Refused = []string{"a", "b"}, 8*mib, 80, c.refused
			if got := served(rep, c.pools, c.fit, "1 GiB"); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestWalksHaveABudget: a pool of very many pieces is visited at the peak and in the end, and
// as often in between as the budget allows, which comes evenly over the run.
func TestWalksHaveABudget(t *testing.T) {
	tr := replaytest.Text(t, "a p 1048576\nf p\n"+strings.Repeat("a 1 1\na 2 2\nf 1\nf 2\n", 500))
	const events = 2002
	for _, c := range []struct {
		name     string
		walked   int // already
		least    int
		most     int
		from, to uint64 // where those other than the peak's and the last one are
	}{
		{"nothing walked", 0, 99, 102, 20, events},
		{"all walked", walkBudget, 2, 3, events - 20, events},
		{"half walked", walkBudget / 2, 50, 54, events/2 - 20, events},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, err := newOutline(t.Context(), tr, tr.Pools[0], newTexts(tr), 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			var s *sampler
			cfg := replaytest.Config(t, "sim:1GiB", "platform")
			cfg.Untimed = true
			cfg.Hooks = []func(*replay.Pass) replay.Hook{func(p *replay.Pass) replay.Hook { s = o.sample(p); s.walked = c.walked; return s.hook() }}
			if _, err := replay.Run(context.Background(), tr, cfg); err != nil {
				t.Fatal(err)
			}
			list := s.layer.Snapshots
			pieces := 0
			for _, in := range list {
				pieces += in.Blocks
			}
			if n := len(list); n < c.least || n > c.most || list[0].Event != 1 || list[n-1].Event != events || list[1].Event < c.from || list[1].Event > c.to {
				t.Errorf("%d snapshots, the second at event %d of %d", n, list[1].Event, events)
			}
			if s.walked != c.walked+pieces {
				t.Errorf("%d pieces walked, and there were %d", s.walked-c.walked, pieces)
			}
		})
	}
}
