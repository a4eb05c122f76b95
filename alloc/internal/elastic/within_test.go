package elastic

import (
	"testing"

	"gpumem/alloc/internal/chunks"
)

// slowWithin is within as the head of place.go describes it: it scores all six spots.
func slowWithin(a *Allocator, lo, hi, n uint64) (x, newHeld uint64, ok bool) {
	var waste uint64
	for _, s := range a.starts(lo, hi, n) {
		if s < lo || s+n > hi || !a.legal(s, n) {
			continue
		}
		held := uint64(0)
		for page := a.up(lo); page+a.mask < hi; page += a.mask + 1 {
			if page < s+n && s < page+a.mask+1 {
				held++
			}
		}
		w := a.below(lo, s) + a.above(s+n, hi)
		if !ok || held < newHeld || held == newHeld && (w < waste || w == waste && s < x) {
			x, newHeld, waste, ok = s, held, w, true
		}
	}
	return x, newHeld, ok
}

// TestWithin tries every block in every chunk of up to nine pages of eight bytes, wherever
// the chunk begins.
func TestWithin(t *testing.T) {
	a := &Allocator{shift: 3, mask: 7}
	for lo := uint64(64); lo < 72; lo++ {
		for size := a.mask + 2; size <= 72; size++ {
			for n := a.mask + 1; n <= size; n++ {
				x, held, ok := a.within(&chunks.Chunk{Addr: lo, Size: size}, n)
				wantX, wantHeld, wantOK := slowWithin(a, lo, lo+size, n)
				if ok != wantOK || ok && (x != wantX || held != wantHeld) {
					t.Fatalf("%d bytes in [%d, %d): at %d with %d pages more, %v; want %d, %d, %v",
						n, lo, lo+size, x, held, ok, wantX, wantHeld, wantOK)
				}
			}
		}
	}
}
