package elastic_test

import (
	"flag"
	"os"
	"runtime/debug"
	"testing"

	"gpumem/alloc/internal/elastic"
	"gpumem/internal/invariants"
)

// TestMain lets garbage pile up to eight times what is live: the tables of the many pools that
// are made for a moment.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

// What the policy promises, on recorded programs. The figures are in pages
// counted, so they are the same on every machine.

// goals are the traces, and the most that the smallest device which serves one
// may have, as a multiple of what lives at most.
var goals = []struct {
	trace string
	most  float64
	short bool
}{
	{"bfc/train_lifo", 1.002, false},
	{"peers/mltrain", 1.002, true},
	{"bfc/steady_1000", 1.015, false},
	{"bfc/loguniform_200k", 1.015, false},
	{"bfc/pressure_oom", 1.015, false},
	{"peers/minimalloc_A", 1.012, true},
	{"peers/minimalloc_B", 1.012, true},
	{"peers/minimalloc_C", 1.012, true},
	{"peers/minimalloc_D", 1.012, true},
	{"peers/minimalloc_E", 1.012, true},
}

// beyond is how many sizes above the smallest are tried one by one: with what
// is placed by what happens to be mapped, a larger device may refuse what a
// smaller one serves.
var beyond = flag.Uint64("beyond", 6, "how many sizes above the smallest TestSmallest tries one by one")

// TestSmallest looks for the smallest device by bisection and then tries every
// size above it. What counts is the size from which on none refuses.
func TestSmallest(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the checks of an invariants build take too long")
	}
	sum, n := 0.0, 0
	for _, g := range goals {
		if testing.Short() && !g.short {
			continue
		}
		tr := readTrace(t, g.trace)
		known := map[uint64]bool{} // what bisection has tried is not tried again
		fits := func(size uint64) bool {
			ok, tried := known[size]
			if !tried {
				ok = tr.fits(t, size)
				known[size] = ok
			}
			return ok
		}
		found := tr.smallest(fits)
		safe := found
		for size := found + 1; size <= found+*beyond; size++ {
			if !fits(size) {
				safe = size + 1
			}
		}
		ratio := float64(safe*page) / float64(tr.peak)
		t.Logf("%-20s %5d pages %.4f; by bisection %d, %.4f", g.trace, safe, ratio, found, float64(found*page)/float64(tr.peak))
		if ratio > g.most {
			t.Errorf("%s: %.4f of the peak is needed, more than %.3f", g.trace, ratio, g.most)
		}
		if g.most == 1.012 {
			sum += ratio
			n++
		}
	}
	if mean := sum / float64(n); mean > 1.008 {
		t.Errorf("minimalloc: %.4f on average, more than 1.008", mean)
	} else {
		t.Logf("minimalloc: %.4f on average", mean)
	}
}

// TestNoDriverCalls: with 5 % to spare a program that repeats its steps does not
// call the driver. In train_lifo the fourth step is the first of the longest.
func TestNoDriverCalls(t *testing.T) {
	if testing.Short() || invariants.Enabled {
		t.Skip("long")
	}
	for _, g := range []struct {
		trace string
		steps int
		after int // these many steps
		most  int // allocations that may call the driver
	}{
		{"bfc/train_lifo", 300, 4, 0},
		{"bfc/steady_1000", 1000, 3, 10},
	} {
		tr := readTrace(t, g.trace)
		for _, spare := range []float64{1.05, 1.25, 4} {
			dev := newSim(t, uint64(float64(tr.peak)*spare/page))
			a := newPool(t, dev, elastic.Config{})
			calls, late := uint64(0), 0
			if !tr.replay(t, a, func(i int) {
				if c := dev.Counters().Calls; c != calls {
					calls = c
					if i >= g.after*len(tr.ops)/g.steps {
						late++
					}
				}
			}) {
				t.Fatalf("%s is refused", g.trace)
			}
			t.Logf("%s with %.0f %% to spare: %d late, %+v", g.trace, spare*100-100, late, a.Moves())
			if late > g.most {
				t.Errorf("%s with %.0f %% to spare: %d allocations after step %d call the driver, more than %d", g.trace, spare*100-100, late, g.after, g.most)
			}
		}
	}
}

// TestPeakHeld: a program that has the whole device takes hardly more than it needs. One of
// JAX, whose first steps map anew, takes a fifth more.
func TestPeakHeld(t *testing.T) {
	if invariants.Enabled {
		t.Skip("long")
	}
	for trace, most := range map[string]float64{"bfc/train_lifo": 1.05, "peers/mltrain": 1.05, "bfc/steady_1000": 1.05, "../examples/training": 1.2} {
		tr := readTrace(t, trace)
		a := newPool(t, newSim(t, 80<<9), elastic.Config{})
		if !tr.replay(t, a, nil) {
			t.Fatalf("%s is refused", trace)
		}
		ratio := float64(a.Stats().PeakPoolBytes) / float64(tr.peak)
		t.Logf("%s: %.4f", trace, ratio)
		if ratio > most {
			t.Errorf("%s: %.4f of the peak is held, more than %.2f", trace, ratio, most)
		}
	}
}

// TestEager: what is held by blocks is on average less than if each had whole
// pages of its own, as the driver gives them.
func TestEager(t *testing.T) {
	if testing.Short() || invariants.Enabled {
		t.Skip("long")
	}
	for _, g := range goals {
		tr := readTrace(t, g.trace)
		a := newPool(t, newSim(t, 80<<9), elastic.Config{Eager: true})
		size := make([]uint64, tr.blocks)
		now, platform, held, live, lives := uint64(0), 0.0, 0.0, uint64(0), 0.0
		if !tr.replay(t, a, func(i int) {
			op := &tr.ops[i]
			if op.Free {
				live -= size[op.Block]
				now -= (size[op.Block] + page - 1) / page
			} else {
				size[op.Block] = op.Bytes
				live += op.Bytes
				now += (op.Bytes + page - 1) / page
			}
			platform += float64(now * page)
			held += float64(a.Owned() * page)
			lives += float64(live)
		}) {
			t.Fatalf("%s is refused", g.trace)
		}
		t.Logf("%-20s %.4f of the platform's, %.4f of what lives", g.trace, held/platform, held/lives)
		most := 1.0
		if g.trace == "bfc/steady_1000" {
			most = 0.75
		}
		if held/platform > most {
			t.Errorf("%s: the mean held is %.4f of the platform's, more than %.2f", g.trace, held/platform, most)
		}
	}
}
