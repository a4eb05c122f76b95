package account

// Memory sizes of the usual GPUs: to tell a card's total from a pool's
// limit where a log has only one of them.

import (
	"math"
	"regexp"

	"gpumem/device/card"
	"gpumem/doctor/internal/statement"
)

// largestGPU is the most memory, in bytes, of any single GPU that is sold: the
// 432 GB of AMD's Instinct MI455X (announced in November 2025 for the second half of 2026).
// NVIDIA's largest is the GB300 with 284,208 MiB.
const largestGPU = 432 << 30

// cardTotals is between what totals, in bytes, a GPU with this name is seen by
// programs and nvidia-smi. Names that several cards have give a range over all of them.
// It is false for a name that is not known, and for slices and virtual GPUs.
func cardTotals(name string) (least, most uint64, ok bool) {
	for _, c := range card.Named(name) {
		if !ok {
			least = c.Least()
		}
		least, most, ok = min(least, c.Least()), max(most, c.SMI<<20), true
	}
	return least, most, ok
}

// unifieds are devices that share the host's memory, and whose total no
// discrete card has. A GB10's 119.2 to 121.7 GiB are in messages of
// PyTorch and vLLM, as are a Thor's 122.8; an Orin's 61 are in tmcdonell/cuda#77.
var unifieds = []struct {
	name        string
	least, most float64 // GiB
}{
	{"Jetson AGX Orin 64GB", 61.0, 61.6},
	{"GB10", 119.0, 122.0},
	{"Jetson AGX Thor", 122.0, 123.5},
}

// unifiedTotal reports whether a total, in bytes, is that of a device which
// shares the host's memory and of no other, and which one that is.
func unifiedTotal(total uint64) (string, bool) {
	for _, u := range unifieds {
		if gib := float64(total) / (1 << 30); gib >= u.least && gib < u.most {
			return u.name, true
		}
	}
	return "", false
}

var unifiedWords = regexp.MustCompile(`(?i)\b(?:GB10|Orin|Thor|Xavier|Tegra|Jetson)\b`)

// unifiedName reports whether a GPU of this name shares the host's memory.
func unifiedName(name string) bool { return unifiedWords.MatchString(name) }

// knownTotal reports whether bytes are what programs see of a card as its total, to the
// two digits that are known.
func knownTotal(bytes uint64) bool {
	for _, c := range card.All() {
		for _, total := range c.Seen {
			if math.Abs(float64(bytes)/statement.Gib-total) < .0201 {
				return true
			}
		}
	}
	return false
}
