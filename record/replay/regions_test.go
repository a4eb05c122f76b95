package replay

import (
	"testing"

	"gpumem/device"
)

// TestPlacementsOfRegionsThatWereGivenBackCount: and a later region at the same address
// is another.
func TestPlacementsOfRegionsThatWereGivenBackCount(t *testing.T) {
	p := &places{total: 4}
	w := &watched{places: p}
	for _, r := range []device.Range{{Addr: 1000, Bytes: 100}, {Addr: 1000, Bytes: 200}} {
		if _, err := w.add(r, nil); err != nil {
			t.Fatal(err)
		}
		p.region(1050).add(r.Bytes) // its distance
		p.region(1060).add(r.Bytes)
		if r.Bytes == 100 {
			if err := w.remove(1000, nil); err != nil {
				t.Fatal(err)
			}
			if p.region(1050) != nil {
				t.Error("the region that was given back is found")
			}
		}
	}
	if n := p.matched(); n != 4 {
		t.Errorf("%d of 4 as recorded", n)
	}
}

// TestRegionGivesUpTheRarestDistance: neither a distance that begins late nor the one
// that most blocks have is lost.
func TestRegionGivesUpTheRarestDistance(t *testing.T) {
	for first := range maxMoves {
		var r region
		for k := range uint64(maxMoves) {
			r.add(k)
			r.add(k)
		}
		r.add(uint64(first)) // three of these, two of the others
		for k := range uint64(100) {
			r.add(1000 + k)
		}
		if b := r.best(); b != (move{uint64(first), 3}) || len(r.moves) != maxMoves {
			t.Fatalf("best %+v of %d, want 3 of distance %d", b, len(r.moves), first)
		}
		for range 5 {
			r.add(5000)
		}
		if b := r.best(); b != (move{5000, 5}) {
			t.Fatalf("best %+v, want 5 of distance 5000", b)
		}
	}
}
