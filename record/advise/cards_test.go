package advise

import (
	"testing"

	"gpumem/device/card"
)

// TestCardsAgree: no card that a user can name has less than its size is said to have. The
// answer would be that a recording does not fit the card, and that a card of its size does.
func TestCardsAgree(t *testing.T) {
	of := map[uint64]int{}
	for _, c := range card.All() {
		gib := nominalOf(c)
		if c.CCMajor < 7 || gib == 0 {
			continue
		}
		of[gib]++
		if n := Usable(gib << 30); c.Least() < n {
			t.Errorf("%s has %d, cards of %d GiB have %d at least", c.Name, c.Least(), gib, n)
		}
	}
	for _, gib := range nominal {
		if n := Usable(gib << 30); of[gib] == 0 || n >= gib<<30 || n < gib<<30*8/9 {
			t.Errorf("%d cards of %d GiB have %d at least", of[gib], gib, n)
		}
	}
	for name, want := range map[string]uint64{"T4": 16, "L4": 24, "A40": 48, "H200": 141, "B200": 180, "RTX 3060": 12, "RTX 2080 Ti": 0, "A100-64GB": 0} {
		c, err := card.Find(name)
		if err != nil || nominalOf(c) != want {
			t.Errorf("%s: %d, %v, want %d", name, nominalOf(c), err, want)
		}
	}
}
