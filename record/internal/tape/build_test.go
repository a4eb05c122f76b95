package tape

// The times that the builder gives to events.

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// times lists the times of a pool's events.
func times(t testing.TB, p *Pool) []uint64 {
	var out []uint64
	for _, ev := range events(t, p, 3) {
		out = append(out, ev.Time)
	}
	return out
}

// TestTimes: the first at is the origin, a pool's clock never goes back, and
// what comes before the first at has time 0.
func TestTimes(t *testing.T) {
	b := testBuilder("text", Options{})
	x, y := b.Pool("x"), b.Pool("y")
	alloc := func(p *PoolBuilder) {
		t.Helper()
		if _, err := p.alloc(1, 0, 0, false); err != nil {
			t.Fatal(err)
		}
	}
	alloc(x) // a seed
	for _, ns := range []uint64{5000, 5000, 7000, 6500, 9001, 4000, 10_000} {
		b.At(ns)
		alloc(x)
	}
	b.At(6500)
	alloc(y) // a clock of its own
	b.At(5000 + math.MaxInt64 + 10)
	alloc(y)
	if err := b.finish(); err != nil {
		t.Fatal(err)
	}
	defer b.trace.Close()
	if want := []uint64{0, 0, 0, 2000, 2000, 4001, 4001, 5000}; !slices.Equal(times(t, x.p), want) {
		t.Errorf("got %d, want %d", times(t, x.p), want)
	}
	if want := []uint64{1500, math.MaxInt64}; !slices.Equal(times(t, y.p), want) {
		t.Errorf("got %d, want %d", times(t, y.p), want)
	}
	if !b.trace.Timed {
		t.Error("Timed is false")
	}
	if err := checkTrace(b.trace); err != nil {
		t.Error(err)
	}
}

// TestTimesAcrossBlocks: each block has its times from its own start.
func TestTimesAcrossBlocks(t *testing.T) {
	b := testBuilder("text", Options{SpoolLimit: -1, TempDir: t.TempDir()})
	p := b.Pool("")
	const n = 100_000
	for i := range uint64(n) {
		b.At(1e18 + i*1001)
		if _, err := p.alloc(i, 0, 0, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.finish(); err != nil {
		t.Fatal(err)
	}
	defer b.trace.Close()
	if len(p.p.blocks) < 2 {
		t.Fatalf("%d block", len(p.p.blocks))
	}
	for i, ev := range events(t, p.p, 1000) {
		if ev.Time != uint64(i)*1001 {
			t.Fatalf("event %d at %d", i, ev.Time)
		}
	}
}

// What a pool held from its device moves with the blocks that turn out to be older: those found
// later alone, or a page would show it at later events.
func TestReservedMovesWithOlderBlocks(t *testing.T) {
	b := testBuilder("torch", Options{})
	p := b.Pool("")
	p.Reserved(10)
	if err := p.freeOlder(1, Event{Bytes: 5}); err != nil {
		t.Fatal(err)
	}
	p.Reserved(20) // from the third event on: the first is the older block's Alloc
	if _, err := p.Alloc(Event{Bytes: 7}, 0); err != nil {
		t.Fatal(err)
	}
	if err := p.freeOlder(2, Event{Bytes: 5}); err != nil { // all events are one later
		t.Fatal(err)
	}
	if err := b.finish(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]Reserved{{0, 10}, {4, 20}}, b.trace.Pools[0].Reserved()); d != "" {
		t.Error(d)
	}
}
