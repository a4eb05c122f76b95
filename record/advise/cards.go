package advise

import (
	"slices"

	"gpumem/device/card"
)

const mib = 1 << 20

// nominal are the sizes in GiB by which NVIDIA's cards are sold. Those that one or two cards
// have are left out: 10, 11, 20, 64 and 186.
var nominal = []uint64{4, 6, 8, 12, 16, 24, 32, 40, 48, 80, 94, 96, 141, 180, 288}

// cardSize is a size of cards, in bytes: the nominal one, and what programs see of it at
// least.
type cardSize struct{ nominal, total uint64 }

// cards are the sizes of the cards that package card knows, the smallest first. Those
// before Volta (2017) are left out: present releases of the frameworks do not run on them.
var cards = func() (list []cardSize) {
	for _, gib := range nominal {
		size := cardSize{nominal: gib << 30, total: gib << 30}
		for _, c := range card.All() {
			if c.CCMajor >= 7 && nominalOf(c) == gib {
				size.total = min(size.total, c.Least())
			}
		}
		list = append(list, size)
	}
	return list
}()

// nominalOf returns the size of a card in GiB as it is sold; 0 if that is none of nominal. A
// card shows up to 6.7 % less (T4, L4, A40), which ECC takes where it has no memory for itself.
func nominalOf(c card.Card) uint64 {
	i := slices.IndexFunc(nominal, func(gib uint64) bool { return c.SMI <= gib<<10 && c.SMI*100 >= gib<<10*93 })
	if i < 0 {
		return 0
	}
	return nominal[i]
}

// Usable returns what programs see at least of a card of this nominal size, in bytes; 0 if
// there is no card of that size.
func Usable(nominal uint64) uint64 {
	for _, c := range cards {
		if c.nominal == nominal {
			return c.total
		}
	}
	return 0
}

// Smaller returns the nominal size of the next smaller card, in bytes; 0 if there is none.
func Smaller(nominal uint64) (next uint64) {
	for _, c := range cards {
		if c.nominal < nominal {
			next = c.nominal
		}
	}
	return next
}
