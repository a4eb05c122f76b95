package doctor

// How much memory the usual GPUs have: to tell a card's total from a pool's
// limit where a log has only one of them.

import (
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

// cards are NVIDIA's since 2014. nvidia-smi's totals are those of pasted
// tables; modal-labs/modal-client#2797 has those of H100, A100, A10, L40S, L4 and
// T4 together, rcgsheffield/sheffield_hpc#1030 that of the K80, NVIDIA/gpu-operator
// that of Blackwell. What programs see is from PyTorch's and vLLM's messages of 2023
// to 2026 ("has a total capacity of"), and for older cards from bytes that XLA, nvbench and
// deviceQuery print (jax-ml/jax#28752, Reactant.jl#891). ECC is as it comes: on in the data centre, off in workstations.
var cards = []card{
	// Kepler to Pascal: nvidia-smi's total was then what programs see.
	{"k80", 11441, []float64{11.17}},
	{"m40", 11443, nil},
	{"m40 24gb", 22945, nil},
	{"m60", 7618, nil},
	{"p4", 7680, nil},
	{"p40", 23040, []float64{22.38}},
	{"p100 12gb", 12288, []float64{11.91}},
	{"p100 16gb", 16384, []float64{15.90}},
	// Volta and Turing.
	{"v100 16gb", 16384, []float64{15.75, 15.77, 15.78}},
	{"v100 32gb", 32768, []float64{31.72, 31.73, 31.75}},
	{"t4", 15360, []float64{14.56, 14.73, 14.75, 14.76}},
	// Ampere and Ada in the data centre.
	{"a2", 15356, nil},
	{"a10", 23028, []float64{21.98, 22.06, 22.15, 22.19}},
	{"a10g", 23028, []float64{21.98, 22.06, 22.15, 22.19}},
	{"a16", 15356, nil},
	{"a30", 24576, []float64{23.50}},
	{"a40", 46068, []float64{44.34, 44.42, 44.56}},
	{"a100 40gb", 40960, []float64{39.38, 39.49, 39.56, 39.59}},
	{"a100 64gb", 65536, []float64{63.42}},
	{"a100 80gb", 81920, []float64{79.14, 79.20, 79.25, 79.33}},
	{"a800 80gb", 81920, []float64{79.14, 79.20, 79.25, 79.33}},
	{"l4", 23034, []float64{21.95, 22.03, 22.17}},
	{"l20", 46068, []float64{44.40, 44.52}},
	{"l40", 46068, []float64{44.40, 44.52}},
	{"l40s", 46068, []float64{44.39, 44.42, 44.47, 44.53}},
	// Hopper and Blackwell.
	{"h20", 97871, []float64{94.97, 95.10, 95.22}},
	{"h100 80gb", 81559, []float64{79.10, 79.18, 79.25}},
	{"h100 nvl", 95830, nil},
	{"h800", 81559, []float64{79.10, 79.18, 79.25}},
	{"gh200 120gb", 97871, []float64{94.50}},
	{"gh200 480gb", 97871, []float64{94.50}},
	{"h200", 143771, []float64{139.72, 139.80}},
	{"h200 nvl", 143771, []float64{139.72, 139.80}},
	{"b200", 183359, []float64{178.35}},
	{"gb200", 189471, nil},
	{"b300", 275040, []float64{267.70}},
	{"gb300", 284208, nil},
	// Workstations.
	{"gv100", 32768, []float64{31.75}},
	{"p5000", 16384, nil},
	{"p6000", 24576, nil},
	{"rtx 4000", 8192, nil},
	{"rtx 5000", 16384, nil},
	{"rtx 6000", 24576, nil},
	{"rtx 8000", 49152, nil},
	{"rtx a2000", 6138, []float64{5.66}},
	{"rtx a2000 12gb", 12282, []float64{11.63}},
	{"rtx a4000", 16376, []float64{15.60, 15.73}},
	{"rtx a4500", 20470, nil},
	{"rtx a5000", 24564, []float64{23.57, 23.68}},
	{"rtx a5500", 24564, []float64{23.57, 23.68}},
	{"rtx a6000", 49140, []float64{47.40, 47.43, 47.53}},
	{"rtx 2000 ada", 16380, nil},
	{"rtx 4000 ada", 20475, nil},
	{"rtx 4500 ada", 24570, nil},
	{"rtx 5000 ada", 32760, nil},
	{"rtx 6000 ada", 49140, []float64{47.27, 47.40, 47.50}},
	{"rtx pro 4000", 24467, nil},
	{"rtx pro 4500", 32623, nil},
	{"rtx pro 5000", 48935, nil},
	{"rtx pro 6000", 97887, []float64{94.97, 95.00}},
	// GeForce; the last total is that of Windows and WSL.
	{"gtx 970", 4096, []float64{3.94}},
	{"gtx 980", 4096, []float64{3.94}},
	{"gtx 980 ti", 6144, []float64{5.94}},
	{"gtx titan x", 12288, []float64{11.92}},
	{"gtx 1050 ti", 4096, []float64{3.94, 4.00}},
	{"gtx 1060 3gb", 3072, []float64{2.95, 3.00}},
	{"gtx 1060 6gb", 6144, []float64{5.93, 6.00}},
	{"gtx 1070", 8192, []float64{7.92, 8.00}},
	{"gtx 1070 ti", 8192, []float64{7.92, 8.00}},
	{"gtx 1080", 8192, []float64{7.92, 8.00}},
	{"gtx 1080 ti", 11264, []float64{10.91, 11.00}},
	{"gtx 1650", 4096, []float64{3.81, 4.00}},
	{"gtx 1660", 6144, []float64{5.79, 6.00}},
	{"gtx 1660 ti", 6144, []float64{5.79, 6.00}},
	{"gtx 1660 super", 6144, []float64{5.79, 6.00}},
	{"titan x", 12288, []float64{11.91}},
	{"titan xp", 12288, []float64{11.91}},
	{"titan v", 12288, nil},
	{"titan rtx", 24576, []float64{23.65}},
	{"rtx 2060", 6144, []float64{5.79, 6.00}},
	{"rtx 2060", 12288, []float64{11.76, 12.00}},
	{"rtx 2060 super", 8192, []float64{7.79, 8.00}},
	{"rtx 2070", 8192, []float64{7.79, 8.00}},
	{"rtx 2070 super", 8192, []float64{7.79, 8.00}},
	{"rtx 2080", 8192, []float64{7.79, 8.00}},
	{"rtx 2080 super", 8192, []float64{7.79, 8.00}},
	{"rtx 2080 ti", 11264, []float64{10.76, 11.00}},
	{"rtx 3050", 8192, []float64{7.79, 8.00}},
	{"rtx 3050 6gb", 6144, []float64{5.66, 6.00}},
	{"rtx 3050 laptop", 4096, []float64{3.81, 4.00}},
	{"rtx 3050 ti laptop", 4096, []float64{3.81, 4.00}},
	{"rtx 3060", 12288, []float64{11.63, 11.76, 12.00}},
	{"rtx 3060 laptop", 6144, []float64{5.66, 5.80, 6.00}},
	{"rtx 3060 ti", 8192, []float64{7.65, 7.79, 8.00}},
	{"rtx 3070", 8192, []float64{7.65, 7.79, 8.00}},
	{"rtx 3070 laptop", 8192, []float64{7.65, 7.79, 8.00}},
	{"rtx 3070 ti", 8192, []float64{7.65, 7.79, 8.00}},
	{"rtx 3080", 10240, []float64{9.64, 9.77, 10.00}},
	{"rtx 3080", 12288, []float64{11.63, 11.76, 12.00}},
	{"rtx 3080 laptop", 8192, []float64{7.79, 8.00}},
	{"rtx 3080 laptop", 16384, []float64{15.74, 16.00}},
	{"rtx 3080 ti", 12288, []float64{11.63, 11.76, 12.00}},
	{"rtx 3080 ti laptop", 16384, []float64{15.74, 16.00}},
	{"rtx 3090", 24576, []float64{23.56, 23.69, 24.00}},
	{"rtx 3090 ti", 24564, []float64{23.56, 23.68, 23.99}},
	{"rtx 4050 laptop", 6141, []float64{5.64, 6.00}},
	{"rtx 4060", 8188, []float64{7.63, 8.00}},
	{"rtx 4060 laptop", 8188, []float64{7.63, 8.00}},
	{"rtx 4060 ti", 8188, []float64{7.63, 8.00}},
	{"rtx 4060 ti", 16380, []float64{15.60, 16.00}},
	{"rtx 4070", 12282, []float64{11.63, 11.99}},
	{"rtx 4070 laptop", 8188, []float64{7.62, 8.00}},
	{"rtx 4070 super", 12282, []float64{11.63, 11.99}},
	{"rtx 4070 ti", 12282, []float64{11.63, 11.99}},
	{"rtx 4070 ti super", 16376, []float64{15.57, 15.99}},
	{"rtx 4080", 16376, []float64{15.57, 15.99}},
	{"rtx 4080 laptop", 12282, []float64{11.63, 11.99}},
	{"rtx 4080 super", 16376, []float64{15.57, 15.99}},
	{"rtx 4090", 24564, []float64{23.52, 23.64, 23.99}},
	{"rtx 4090 d", 24564, []float64{23.52, 23.64, 23.99}},
	{"rtx 4090 laptop", 16376, []float64{15.57, 15.99}},
	{"rtx 5050", 8151, nil},
	{"rtx 5060", 8151, []float64{7.60, 7.96}},
	{"rtx 5060 ti", 8151, []float64{7.60, 7.96}},
	{"rtx 5060 ti", 16311, []float64{15.48, 15.93}},
	{"rtx 5070", 12227, []float64{11.49, 11.94}},
	{"rtx 5070 laptop", 8151, []float64{7.60, 7.96}},
	{"rtx 5070 ti", 16303, []float64{15.48, 15.92}},
	{"rtx 5070 ti laptop", 12227, []float64{11.49, 11.94}},
	{"rtx 5080", 16303, []float64{15.48, 15.92}},
	{"rtx 5080 laptop", 16303, []float64{15.48, 15.92}},
	{"rtx 5090", 32607, []float64{31.36, 31.84}},
	{"rtx 5090 d", 32607, []float64{31.36, 31.84}},
	{"rtx 5090 laptop", 24463, nil},
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
// card with memory of its own has. A GB10's 119.2 to 121.7 GiB are in messages of
// PyTorch and vLLM, as are a Thor's 122.8; an Orin's 61 are in tmcdonell/cuda#77.
var unifieds = []struct {
	name        string
	least, most float64 // GiB
}{
	{"Jetson AGX Orin 64GB", 61.0, 61.6},
	{"GB10", 119.0, 122.0},
	{"Jetson AGX Thor", 122.0, 123.5},
}

// unifiedTotal says whether a total, in bytes, is that of a device which
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

// unifiedName says whether a GPU of this name shares the host's memory.
func unifiedName(name string) bool { return unifiedWords.MatchString(name) }

// knownTotal reports whether bytes are what programs see of a card as its total, to the
// two digits that are known.
func knownTotal(bytes uint64) bool {
	for _, c := range cards {
		for _, total := range c.cuda {
			if math.Abs(float64(bytes)/gib-total) < .0201 {
				return true
			}
		}
	}
	return false
}
