package leaks

import (
	"context"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"gpumem/record/trace"
)

const mib = 1 << 20

// TestLoops: one loop for each thing that a leak may hide behind, and for each
// that is none.
func TestLoops(t *testing.T) {
	one := []leaker{{site: 700, bytes: mib, every: 1}}
	for _, tc := range []struct {
		name    string
		loop    loop
		verdict verdict
		leaks   int
		steps   bool // told
	}{
		{"nothing else", loop{steps: 50, leaks: one}, Leak, 1, true},
		{"nothing else, no sites", loop{steps: 50, leaks: one, text: true}, Leak, 1, true},
		{"a training loop", loop{steps: 50, sites: 40, load: 100, leaks: one}, Leak, 1, true},
		{"hundreds of blocks of its size", loop{steps: 50, sites: 10, same: 300, leaks: one}, Leak, 1, true},
		{"hundreds of blocks of its size, no sites", loop{steps: 50, sites: 10, same: 300, leaks: one, text: true}, Leak, 1, true},
		{"the end frees everything", loop{steps: 50, sites: 10, leaks: one, ends: true}, Leak, 1, true},
		{"cut in a step", loop{steps: 50, sites: 10, leaks: one, cut: true}, Leak, 1, true},
		{"a warm-up", loop{steps: 50, sites: 10, leaks: one, warm: 5}, Leak, 1, true},
		{"a long load", loop{steps: 50, sites: 10, load: 2500, leaks: one}, Leak, 1, true},
		{"noise", loop{steps: 80, sites: 30, noise: true, leaks: one}, Leak, 1, true},
		{"every fifth step", loop{steps: 50, sites: 10, leaks: []leaker{{site: 700, bytes: mib, every: 5}}}, Leak, 1, true},
		{"freed for a part", loop{steps: 60, sites: 10, leaks: []leaker{{site: 700, bytes: mib, every: 1, lose: .5}}}, Leak, 1, true},
		{"two", loop{steps: 60, sites: 10, leaks: []leaker{{site: 700, bytes: mib, every: 1}, {site: 701, bytes: 8 * mib, every: 3}}}, Leak, 2, true},
		{"beside caches", loop{steps: 80, sites: 10, cache: 30, ring: 6, random: 20, leaks: one}, Leak, 1, true},

		{"a loop", loop{steps: 50, sites: 10}, None, 0, true},
		{"a loop, no sites", loop{steps: 50, sites: 10, text: true}, None, 0, true},
		{"a warm-up alone", loop{steps: 50, sites: 10, warm: 5}, None, 0, true},
		{"a cache that fills", loop{steps: 50, sites: 10, cache: 30}, None, 0, true},
		{"a cache that learns", loop{steps: 200, sites: 10, learns: 30}, None, 0, true},
		{"a cache that forgets at random", loop{steps: 200, sites: 10, random: 100}, None, 0, true},
		{"a ring", loop{steps: 50, sites: 10, ring: 10}, None, 0, true},
		{"one step over the next", loop{steps: 50, sites: 10, overlap: true}, None, 0, true},
		{"cut in a step, no leak", loop{steps: 50, sites: 60, cut: true}, None, 0, true},
		{"noise alone", loop{steps: 80, sites: 30, noise: true}, None, 0, true},
		{"four steps", loop{steps: 4, sites: 200}, TooShort, 0, false},
		{"few events", loop{steps: 2, sites: 2}, TooShort, 0, false},
		{"forward through 48 layers", loop{oneStep: 48}, Growth, 3, true},
		{"forward and backward", loop{oneStep: 48, backward: true}, Growth, 3, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rep := look(t, tc.loop)
			if rep.Verdict != tc.verdict || len(rep.Leaks) != tc.leaks {
				t.Fatalf("%s, want %s with %d leaks: %+v", rep.Verdict, tc.verdict, tc.leaks, rep)
			}
			if (rep.Steps != nil) != tc.steps {
				t.Errorf("steps: %v", rep.Steps)
			}
			if tc.loop.steps == 0 {
				return
			}
			if s := rep.Steps; s != nil && math.Abs(float64(*s)-float64(tc.loop.steps)) > float64(tc.loop.steps)/5 {
				t.Errorf("%d steps, want %d", *s, tc.loop.steps)
			}
			for _, k := range tc.loop.leaks {
				for _, p := range rep.Leaks {
					if p.Site == tc.loop.nameOf(k) {
						checkPlace(t, tc.loop, k, p)
					}
				}
			}
		})
	}
}

// checkPlace: the figures of a leak are near those that were planted.
func checkPlace(t *testing.T, l loop, k leaker, p Place) {
	t.Helper()
	near := func(what string, got uint64, want float64, off float64) {
		if math.Abs(float64(got)-want) > off*want {
			t.Errorf("%s: %d, want about %.0f", what, got, want)
		}
	}
	blocks := float64(l.steps) / float64(k.every) * (1 - k.lose)
	near("blocks", p.Blocks, blocks, .35)
	near("bytes", p.Bytes, blocks*float64(k.bytes), .35)
	if p.BytesPerStep == nil {
		t.Error("no bytes for a step")
	} else {
		near("a step", *p.BytesPerStep, float64(k.bytes)/float64(k.every)*(1-k.lose), .4)
	}
	if p.FirstEvent == 0 || p.FirstEvent > p.GrowsToEvent {
		t.Errorf("events %d to %d", p.FirstEvent, p.GrowsToEvent)
	}
}

// TestGrew: a cache that filled up is told as such.
func TestGrew(t *testing.T) {
	rep := look(t, loop{steps: 100, sites: 10, cache: 50, leaks: []leaker{{site: 700, bytes: mib, every: 1}}})
	if len(rep.Grew) != 1 || rep.Grew[0].Bytes != 50*3*mib || rep.Grew[0].Blocks != 50 {
		t.Errorf("%+v", rep.Grew)
	}
}

// TestSameAnswer: what does not matter does not change the answer: more blocks
// before the first event, sizes times two, sites with other numbers.
func TestSameAnswer(tb *testing.T) {
	rapid.Check(tb, func(t *rapid.T) {
		l := anyLoop(rapid.Uint64Range(0, 1<<40).Draw(t, "seed"), rapid.Bool().Draw(t, "leaky"))
		l.text = false
		find := func(l loop, change func(*trace.Event)) *Report {
			r := l.play()
			for i := range r.events {
				change(&r.events[i])
			}
			rep, err := Find(context.Background(), r.recording(tb), Config{})
			if err != nil {
				t.Fatal(err)
			}
			return rep
		}
		a := find(l, func(*trace.Event) {})
		b := find(l, func(e *trace.Event) { e.Bytes *= 2 })
		c := find(l, func(e *trace.Event) {
			if e.Site != 0 {
				e.Site += 100
			}
		})
		for _, o := range []*Report{b, c} {
			if o.Verdict != a.Verdict || len(o.Leaks) != len(a.Leaks) {
				t.Fatalf("%+v\nand\n%+v", a, o)
			}
		}
		for i := range a.Leaks {
			if b.Leaks[i].Bytes != 2*a.Leaks[i].Bytes || b.Leaks[i].Blocks != a.Leaks[i].Blocks {
				t.Fatalf("%+v\nand\n%+v", a.Leaks[i], b.Leaks[i])
			}
		}
	})
}

// TestAnyEvents: any recording at all has an answer.
func TestAnyEvents(tb *testing.T) {
	rapid.Check(tb, func(t *rapid.T) {
		r := &run{bytes: map[uint32]int{}, text: rapid.Bool().Draw(t, "text")}
		sizes := rapid.SampledFrom([]int{0, 1, 1000, mib, math.MaxInt64})
		for range rapid.IntRange(1, 200).Draw(t, "events") {
			if len(r.bytes) > 0 && rapid.Bool().Draw(t, "free") {
				for slot := range r.bytes {
					r.release(slot)
					break
				}
				continue
			}
			r.alloc(rapid.IntRange(0, 5).Draw(t, "site"), sizes.Draw(t, "size"))
		}
		allocs := slices.IndexFunc(r.events, func(e trace.Event) bool { return e.Op == trace.Free }) // at the front
		if allocs < 0 {
			allocs = len(r.events)
		}
		r.seeds = rapid.IntRange(0, allocs).Draw(t, "seeds")
		rep, err := Find(context.Background(), r.recording(tb), Config{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range append(rep.Leaks, rep.Grew...) {
			if p.FirstEvent <= uint64(r.seeds) || p.GrowsToEvent > uint64(len(r.events)) || p.Blocks == 0 {
				t.Fatalf("%+v", p)
			}
		}
	})
}

// TestCoarse: a line that is reached by many ways, each of which keeps too
// little to be told, is found as a line; and sizes that differ in every step as
// a class of sizes.
func TestCoarse(t *testing.T) {
	for _, text := range []bool{false, true} {
		r := &run{bytes: map[uint32]int{}, text: text}
		for step := range 100 {
			var live []uint32
			for site := range 12 {
				live = append(live, r.alloc(1+site, sizeOf(site)))
			}
			r.alloc(100+step, 5*mib+step*512)
			if step < 35 { // what stopped is shown as it was asked for
				r.alloc(50, 9*mib)
			}
			r.release(live...)
		}
		r.name = func(s uint32) string {
			if s >= 100 {
				return "keep (train.py:7)\nby many ways (train.py:" + string(rune('0'+s%10)) + ")"
			}
			return "f" + string(rune('a'+s)) + " (train.py:1)"
		}
		rep := r.found(t)
		want, grew := "keep (train.py:7)", "f"+string(rune('a'+50))+" (train.py:1)"
		if text {
			want, grew = "requests of 4 MiB to 8 MiB", "requests of 9 MiB"
		}
		if rep.Verdict != Leak || len(rep.Leaks) != 1 || rep.Leaks[0].Site != want || len(rep.Grew) != 1 || rep.Grew[0].Site != grew {
			t.Errorf("%+v", rep)
		}
	}
}

// TestRegrown: a list that is joined anew in each step, each time in a larger
// block.
func TestRegrown(t *testing.T) {
	r := &run{bytes: map[uint32]int{}}
	kept := r.alloc(800, mib)
	for step := range 60 {
		var live []uint32
		for site := 1; site < 12; site++ {
			live = append(live, r.alloc(site, sizeOf(site)))
		}
		next := r.alloc(800, (step+2)*mib)
		r.release(kept)
		kept = next
		r.release(live...)
	}
	rep := r.found(t)
	if rep.Verdict != Leak || len(rep.Leaks) != 1 || rep.Steps == nil || *rep.Steps != 60 {
		t.Fatalf("%+v", rep)
	}
	p := rep.Leaks[0]
	if !p.Regrows || p.Site != "f800 (train.py:800)" || p.Bytes != 61*mib || p.BytesPerStep == nil ||
		*p.BytesPerStep < mib*8/10 || *p.BytesPerStep > mib*12/10 {
		t.Errorf("%+v", p)
	}
}

// In a later part of the run alone, seven survivors of its middle are no leak and eight
// are; of the whole run five are enough (docs/advice.md).
func TestSurvivorsThatAreEnough(t *testing.T) {
	g := &gathered{end: 6400} // 64 windows of 100 events
	all := spans(g)
	for _, c := range []struct {
		span  int
		later bool
		k     int
		want  bool
	}{{0, false, 4, false}, {0, false, 5, true}, {3, true, 7, false}, {3, true, 8, true}} {
		s := all[c.span]
		p := &place{curve: &curve{}}
		step := (s.highEvent - s.lowEvent) / uint64(c.k)
		for at := s.lowEvent + step/2; at < s.end; at += step { // k of them in the middle
			p.born = append(p.born, birth{event: at, bytes: mib})
		}
		for w := range p.least {
			for _, b := range p.born {
				if b.event < uint64(w)*100 {
					p.least[w] += mib
				}
			}
		}
		if n := len(p.bornIn(s.lowEvent, s.highEvent)); n != c.k {
			t.Fatalf("%d survivors in the middle, want %d", n, c.k)
		}
		if got := grows(p, s, c.later, false); got != c.want {
			t.Errorf("%d survivors in the middle of span %d: %v, want %v", c.k, c.span, got, c.want)
		}
	}
}

// Survivors of a later part that come in bursts are no leak: six of ten windows must have
// one.
func TestSurvivorsOfALaterPartAreEverywhere(t *testing.T) {
	s := spans(&gathered{end: 6400})[3] // windows of 100 events, the middle from 5200 to 6200
	if s.lowEvent != 5200 || s.highEvent != 6200 || s.high-s.low != 10 {
		t.Fatalf("%+v", s)
	}
	for _, c := range []struct {
		offsets []uint64
		want    bool
	}{
		{[]uint64{10, 20, 210, 220, 410, 420, 610, 620, 810, 820, 1050, 1150}, false},
		{[]uint64{10, 20, 210, 220, 410, 420, 610, 620, 810, 910, 1050, 1150}, true},
	} {
		p := &place{curve: &curve{}}
		for _, o := range c.offsets {
			p.born = append(p.born, birth{event: s.lowEvent + o, bytes: mib})
		}
		for w := range p.least {
			for _, b := range p.born {
				if b.event < uint64(w)*100 {
					p.least[w] += mib
				}
			}
		}
		if got := grows(p, s, true, false); got != c.want {
			t.Errorf("survivors at %v: %v, want %v", c.offsets, got, c.want)
		}
	}
}

// What is allocated for each weight of a model has at least four sizes, the largest 16
// times the smallest.
func TestPerWeight(t *testing.T) {
	s := span{highEvent: 100}
	for _, c := range []struct {
		sizes []uint64
		want  bool
	}{
		{[]uint64{1024, 2048, 4096, 16384}, true},
		{[]uint64{1024, 2048, 4096, 16383}, false},
		{[]uint64{1024, 2048, 16384}, false},
		{[]uint64{4096, 4096, 4096, 4096}, false},
	} {
		p := &place{}
		for i, n := range c.sizes {
			p.born = append(p.born, birth{event: uint64(i), bytes: n})
		}
		if got := perWeight(p, s); got != c.want {
			t.Errorf("%d: %v", c.sizes, got)
		}
	}
}

// Places of one name become one, with the stack of the larger.
func TestAddJoinsPlacesOfAName(t *testing.T) {
	step := func(n uint64) *uint64 { return &n }
	small := Place{Site: "f", Stack: "f\nsmall", Bytes: 10, Blocks: 1, FirstEvent: 3, GrowsToEvent: 7, BytesPerStep: step(1), rate: 1}
	large := Place{Site: "f", Stack: "f\nlarge", Bytes: 20, Blocks: 2, FirstEvent: 5, GrowsToEvent: 9, BytesPerStep: step(2), rate: 2}
	other := Place{Site: "g", Stack: "g", Bytes: 5}
	for _, order := range [][]Place{{small, other, large}, {large, other, small}} {
		var list []Place
		for _, p := range order {
			p.BytesPerStep = step(p.Bytes / 10)
			list = add(list, p)
		}
		if len(list) != 2 || list[1].Site != "g" {
			t.Fatalf("%+v", list)
		}
		if p := list[0]; p.Stack != "f\nlarge" || p.Bytes != 30 || p.Blocks != 3 || p.FirstEvent != 3 || p.GrowsToEvent != 9 || *p.BytesPerStep != 3 || p.rate != 3 {
			t.Errorf("%+v, %d a step", p, *p.BytesPerStep)
		}
	}
}

// Memory that rises at once, and not from part to part, is no leak, though its survivors
// come evenly.
func TestMemoryThatRisesAtOnceIsNoLeak(t *testing.T) {
	s := spans(&gathered{end: 6400})[0]
	for jump, want := range map[bool]bool{true: false, false: true} {
		p := &place{curve: &curve{}}
		for at := uint64(0); at < 6400; at += 100 {
			p.born = append(p.born, birth{event: at, bytes: mib})
		}
		for w := range p.least {
			if p.least[w] = int64(w) * mib; jump {
				p.least[w] = int64(w) / 50 * 64 * mib
			}
		}
		if got := grows(p, s, false, false); got != want {
			t.Errorf("jump %v: %v", jump, got)
		}
	}
}

// A place that stopped growing is listed if it is a hundredth of the peak, and if it grew into the
// middle of the run: what a load keeps is none.
func TestPlacesThatStopped(t *testing.T) {
	for _, c := range []struct{ size, from, to, want int }{{mib, 100, 300, 1}, {mib / 64, 100, 300, 0}, {mib, 0, 100, 0}} {
		r := &run{bytes: map[uint32]int{}}
		r.alloc(3, 1024*mib)
		for i := range 600 {
			if i >= c.from && i < c.to {
				r.alloc(1, c.size)
			}
			r.release(r.alloc(2, 10))
		}
		if rep := r.found(t); len(rep.Grew) != c.want {
			t.Errorf("%d blocks of %d: %+v", c.to-c.from, c.size, rep.Grew)
		}
	}
}

// Counts that differ by one, because the recording ends within a step, are of the same
// steps, also if there are few.
func TestStepsOfARecordingThatEndsWithinOne(t *testing.T) {
	r := &run{bytes: map[uint32]int{}}
	for n := range 13 {
		for site := 1; site <= 10 && (n < 12 || site <= 5); site++ {
			r.release(r.alloc(site, 100*site))
		}
	}
	if rep := r.found(t); rep.Steps == nil || *rep.Steps < 12 || *rep.Steps > 13 {
		t.Errorf("%+v", rep)
	}
}

// An estimated rate of equal blocks is a whole number of them, if it is nearly that.
func TestWholeBlocks(t *testing.T) {
	for name, c := range map[string]struct {
		sizes []uint64
		rate  float64
		want  uint64
	}{
		"one, and a little less":         {[]uint64{1000, 1000, 1000}, 977, 1000},
		"two, and a little more":         {[]uint64{1000, 1000, 1000}, 2060, 2000},
		"one in every tenth step":        {[]uint64{1000, 1000, 1000}, 100, 100},
		"three in two steps":             {[]uint64{1000, 1000, 1000}, 1500, 1500},
		"of two sizes there is no whole": {[]uint64{1000, 900, 1000}, 977.4, 977},
	} {
		p := &place{}
		for i, n := range c.sizes {
			p.born = append(p.born, birth{event: uint64(i), bytes: n})
		}
		if got := wholeBlocks(p, c.rate); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
