// Package card knows NVIDIA's cards by name: their memory and compute capability.
package card

import (
	_ "embed"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gpumem/internal/spelling"
)

// Card is a card by its name. Cards of one name may differ in size.
type Card struct {
	// Name is its name in small letters, without the maker, the form and the kind of
	// memory. A size at its end belongs to the name where cards of one name differ.
	Name             string
	CCMajor, CCMinor int
	// SMI is the total in nvidia-smi's table, in MiB, from driver 510 on.
	SMI uint64
	// Seen are totals that programs see (cuMemGetInfo), in GiB with the two decimals that
	// PyTorch and vLLM print. They differ by driver, and on Windows they are
	// nvidia-smi's. Empty if none was found.
	Seen []float64
}

// All returns the cards, see cards.txt. It is not to be changed.
func All() []Card { return cards }

var cards = parse(text)

//go:embed cards.txt
var text string

// parse reads the table, which is part of the program, and tested: what it does not
// understand counts as 0.
func parse(text string) (list []Card) {
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ": ")
		if !ok || name[0] == '#' {
			continue
		}
		c := Card{Name: name}
		for i, f := range strings.Fields(rest) {
			n, _ := strconv.ParseFloat(f, 64)
			switch i {
			case 0:
				major, minor, _ := strings.Cut(f, ".")
				c.CCMajor, _ = strconv.Atoi(major)
				c.CCMinor, _ = strconv.Atoi(minor)
			case 1:
				c.SMI = uint64(n)
			default:
				c.Seen = append(c.Seen, n)
			}
		}
		list = append(list, c)
	}
	return list
}

// Least returns the smallest total that is known of the card, in bytes. Where none was
// found it is nvidia-smi's less what the driver was seen to keep at most: 819 MiB of an
// A100, and a twentieth of a card of 8 GiB.
func (c Card) Least() uint64 {
	if len(c.Seen) == 0 {
		return (c.SMI - min(c.SMI/20, 820)) << 20
	}
	return uint64((slices.Min(c.Seen) - 0.005) * (1 << 30))
}

// Smallest returns the card with the least memory on which programs see at least so many
// bytes, and whether there is one. Cards before Volta (2017) are left out: present releases
// of the frameworks do not run on them.
func Smallest(bytes uint64) (smallest Card, ok bool) {
	for _, c := range cards {
		if c.CCMajor >= 7 && c.Least() >= bytes && (!ok || c.Least() < smallest.Least()) {
			smallest, ok = c, true
		}
	}
	return smallest, ok
}

// Title is the name for people.
func (c Card) Title() string { return strings.ToUpper(c.Name) }

// gib is nvidia-smi's total in whole GiB: what the box says, or a little less where ECC
// takes a part.
func (c Card) gib() string { return strconv.Itoa(int(math.Round(float64(c.SMI) / 1024))) }

var (
	// plainWords say nothing of a card's memory.
	plainWords = regexp.MustCompile(`^(?:nvidia|geforce|tesla|quadro|gpu|graphics|generation|with|max|q|design|pcie|` +
		`sxm\d?|dgxs|fhhl|hbm\d\w?|ac|blackwell|server|workstation|edition)$`)
	sizeWord   = regexp.MustCompile(`^(\d{1,3})gb?$`)
	nameBreaks = regexp.MustCompile(`[^a-z0-9]+`)
)

// key is a name's words without the plain ones, and the size in it or "".
func key(name string) (key, size string) {
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

// keyOf is what key returns for a card's name.
type keyOf struct{ key, size string }

// keys are those of cards, in their order.
var keys = sync.OnceValue(func() []keyOf {
	list := make([]keyOf, len(cards))
	for i, c := range cards {
		list[i].key, list[i].size = key(c.Name)
	}
	return list
})

// Named returns the cards that a name as the driver has it may mean: those of its size
// if it has one. There are none for a name that is not known, slices and virtual GPUs.
func Named(name string) []Card {
	want, size := key(name)
	return named(size, func(k string) bool { return k == want })
}

func named(size string, is func(key string) bool) []Card {
	var all, sized []Card
	for i, c := range cards {
		k := keys()[i]
		switch {
		case !is(k.key):
		case size != "" && k.size == size, size != "" && c.gib() == size:
			sized = append(sized, c)
		case size == "" || k.size == "":
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

// lines are the words that people leave out of a name: A6000, 4090.
var lines = []string{"RTX", "GTX"}

// Full returns a name with the word that was left out of it, RTX 4090 for 4090, or "" if no card has it.
func Full(name string) string {
	want, size := key(name)
	for _, line := range lines {
		full := strings.ToLower(line) + strings.ReplaceAll(want, " ", "")
		if len(named(size, func(k string) bool { return strings.ReplaceAll(k, " ", "") == full })) > 0 {
			return line + " " + strings.ToUpper(name)
		}
	}
	return ""
}

// Find returns the card that a person means: "T4", "A100-80GB", "rtx4090". The error is
// of a name that is not known, with the nearest that is, or of one that several have.
func Find(name string) (Card, error) {
	want, size := key(name)
	want = strings.ReplaceAll(want, " ", "")
	list := named(size, func(k string) bool { return strings.ReplaceAll(k, " ", "") == want })
	if len(list) > 0 && !slices.ContainsFunc(list, func(c Card) bool { return c.SMI != list[0].SMI }) {
		return list[0], nil
	}
	if len(list) > 1 {
		return Card{}, fmt.Errorf("%q is several cards: %s", name, shown(list))
	}
	if others := named("", func(k string) bool { return strings.ReplaceAll(k, " ", "") == want }); len(others) > 0 {
		return Card{}, fmt.Errorf("there is no %q; there are %s", name, shown(others))
	}
	if full := Full(name); full != "" {
		return Find(full)
	}
	var names []string
	for i, c := range cards {
		names = append(names, c.Name, keys()[i].key)
	}
	near := spelling.Nearest(strings.ReplaceAll(strings.ToLower(name), "-", " "), names)
	if near == "" {
		return Card{}, fmt.Errorf("no card is known by the name %q; known are T4, L4, A100-80GB, H100, RTX 4090 and others", name)
	}
	return Card{}, fmt.Errorf("no card is known by the name %q; did you mean %s?", name, strings.ToUpper(near))
}

// shown returns names that Find accepts.
func shown(list []Card) string {
	var names []string
	for _, c := range list {
		k, _ := key(c.Name)
		names = append(names, strings.ToUpper(k)+"-"+c.gib()+"GB")
	}
	return strings.Join(names, ", ")
}
