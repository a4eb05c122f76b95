package balance

// Memory sizes of the usual GPUs: to tell a card's total from a pool's
// limit where a log has only one of them.

import (
	_ "embed"
	"gpumem/doctor/quantity"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A card is a GPU by name.
type card struct {
	// name is its name without the maker, the form and the kind of memory. A size
	// at its end belongs to the name where cards of one name differ.
	name string
	// smi is the total in nvidia-smi's table, in MiB, from driver 510 on.
	smi uint64
	// cuda are totals that programs see (cuMemGetInfo), in GiB with the two
	// decimals that PyTorch and vLLM print. They differ by driver, and on
	// Windows they are nvidia-smi's. Empty: none was found.
	cuda []float64
}

// cards are NVIDIA's since 2014; see cards.txt.
var cards = parseCards(cardsText)

//go:embed cards.txt
var cardsText string

// parseCards reads the table. What it does not understand counts as 0: the text is part of
// the program, and tested.
func parseCards(text string) (list []card) {
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ": ")
		if !ok || name[0] == '#' {
			continue
		}
		c := card{name: name}
		for i, f := range strings.Fields(rest) {
			if n, _ := strconv.ParseFloat(f, 64); i == 0 {
				c.smi = uint64(n)
			} else {
				c.cuda = append(c.cuda, n)
			}
		}
		list = append(list, c)
	}
	return list
}

// largestGPU is the most memory, in bytes, of any single GPU that is sold: the
// 432 GB of AMD's Instinct MI455X (announced in November 2025 for the second half of 2026).
// NVIDIA's largest is the GB300 with 284,208 MiB.
const largestGPU = 432 << 30

var (
	// plainWords say nothing of a card's memory.
	plainWords = regexp.MustCompile(`^(?:nvidia|geforce|tesla|quadro|gpu|graphics|generation|with|max|q|design|pcie|sxm\d?|dgxs|fhhl|hbm\d\w?|ac|blackwell|server|workstation|edition)$`)
	sizeWord   = regexp.MustCompile(`^(\d{1,3})gb?$`)
	nameBreaks = regexp.MustCompile(`[^a-z0-9]+`)
)

// cardKey is a name's words without the plain ones, and the size in it or "".
func cardKey(name string) (key, size string) {
	var words []string
	for _, w := range nameBreaks.Split(strings.ToLower(name), -1) {
		switch {
		case w == "" || plainWords.MatchString(w):
		case sizeWord.MatchString(w):
			size = sizeWord.FindStringSubmatch(w)[1]
		case w == "v100s":
			words = append(words, "v100")
		default:
			words = append(words, w)
		}
	}
	return strings.Join(words, " "), size
}

// cardsOf are the cards that a name may mean: those of its size if it has one.
func cardsOf(name string) []card {
	key, size := cardKey(name)
	var all, sized []card
	for _, c := range cards {
		k, s := cardKey(c.name)
		switch {
		case k != key:
		case size != "" && s == size, size != "" && c.gib() == size:
			sized = append(sized, c)
		case size == "" || s == "":
			all = append(all, c)
		}
	}
	if len(sized) > 0 {
		return sized
	}
	if size != "" && len(all) > 1 {
		return nil // none of its size
	}
	return all
}

// gib is nvidia-smi's total in whole GiB: what the box says, or a little less
// where ECC takes a part.
func (c card) gib() string { return strconv.Itoa(int(math.Round(float64(c.smi) / 1024))) }

// least is the smallest total that is known of the card, in bytes. Where none
// was found it is nvidia-smi's less what the driver was seen to keep at most: 819
// MiB of an A100, and a twentieth of a card of 8 GiB.
func (c card) least() uint64 {
	if len(c.cuda) == 0 {
		return (c.smi - min(c.smi/20, 820)) << 20
	}
	return uint64((slices.Min(c.cuda) - 0.005) * (1 << 30))
}

// cardTotals is between what totals, in bytes, a GPU with this name is seen by
// programs and nvidia-smi. Names that several cards have give a range over all of them.
// It is false for a name that is not known, and for slices and virtual GPUs.
func cardTotals(name string) (least, most uint64, ok bool) {
	for _, c := range cardsOf(name) {
		if !ok {
			least = c.least()
		}
		least, most, ok = min(least, c.least()), max(most, c.smi<<20), true
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
	for _, c := range cards {
		for _, total := range c.cuda {
			if math.Abs(float64(bytes)/quantity.Gib-total) < .0201 {
				return true
			}
		}
	}
	return false
}
