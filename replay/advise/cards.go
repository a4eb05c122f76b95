package advise

// card is a size of cards on the market: its nominal size, and what programs see of it,
// the least among cards of that size.
type card struct{ nominal, total uint64 }

const mib = 1 << 20

// cards are NVIDIA's of 2018 to 2026. What programs see is what PyTorch and vLLM
// print in public messages of 2023 to 2026 ("has a total capacity of"); it is 1
// to 9 % below the name, most with ECC in cards without separate memory for it. In
// GiB: RTX 3070 7.65, RTX 3060 11.63, T4 14.56, L4 21.95, RTX 5090 about 31.3, A100
// 39.38, A40 44.34, H100 79.10, GH200 94.50, H200 139.72, B200 178.35, B300 267.70.
var cards = []card{
	{8 << 30, 7833 * mib},
	{12 << 30, 11909 * mib},
	{16 << 30, 14909 * mib},
	{24 << 30, 22476 * mib},
	{32 << 30, 32051 * mib},
	{40 << 30, 40325 * mib},
	{48 << 30, 45404 * mib},
	{80 << 30, 80998 * mib},
	{96 << 30, 96768 * mib},
	{141 << 30, 143073 * mib},
	{180 << 30, 182630 * mib},
	{288 << 30, 274124 * mib},
}

// Usable returns what programs see of a card of this nominal size, in bytes; 0 if there
// is no card of that size.
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
