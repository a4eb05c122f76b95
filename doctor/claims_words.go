package doctor

// What words say of sizes, and what follows from which numbers: see claims.go.

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

// sizesOf are the words of a sentence, with # and a number in place of each size, and the sizes.
func sizesOf(sentence string) (words string, sizes []claim) {
	last := 0
	for i, s := range statement.Sizes(sentence) {
		words += fmt.Sprintf("%s#%d", sentence[last:s.At], i)
		last, sizes = s.End, append(sizes, claim{s.N, s.Half})
	}
	return words + sentence[last:], sizes
}

// A relation is a form of words with sizes (@) and other numbers (&) in it, and what it says.
type relation struct {
	re   *regexp.Regexp
	says func(v []claim) bool
}

// say makes a relation. The dots are words of one clause, without a size.
func say(form string, says func(v []claim) bool) relation {
	form = strings.NewReplacer("@", `(#\d+)`, "&", `(\d+)`, "...", `[^#,:;]*?`, " OF ", ofWords).Replace(form)
	return relation{regexp.MustCompile(form), says}
}

// ofWords may stand between the sizes of "@ of @".
const ofWords = `(?: of which| was left| is left)? of (?:(?:the|its|a|engine's|pool's|GPU's|limit|lease|quota|of) )*`

func less(a, b claim) bool           { return a.n-a.half <= b.n+b.half } // within what is printed, as the rest
func plus(a, b claim) claim          { return claim{a.n + b.n, a.half + b.half} }
func times(f float64, a claim) claim { return claim{f * a.n, f * a.half} }
func below(v []claim) bool           { return less(v[0], v[1]) }
func above(v []claim) bool           { return less(v[1], v[0]) }

// share reports whether a is n percent of b, rounded up or down.
func share(n, a, b claim) bool {
	return less(times((n.n-1)/100, b), a) && less(a, times((n.n+1)/100, b))
}

// slack is what a pool's own rounding adds to a request: a segment, and a thousandth of the limit.
func slack(limit claim) claim { return claim{20<<20 + limit.n/500, 0} }

var relations = []relation{
	say(`@ OF @`, below),
	say(`@ OF @[^#]*\(& %\)`, func(v []claim) bool { return share(v[2], v[0], v[1]) }),
	say(`@: & % of @`, func(v []claim) bool { return share(v[1], v[0], v[2]) }),
	say(`@ and a reserve of @ are & % of @`, func(v []claim) bool { return share(v[2], plus(v[0], v[1]), v[3]) }),
	say(`holds @[^#]*\(& % of @\) and a context`, func(v []claim) bool { return less(times(v[1].n/100, v[2]), v[0]) }),
	say(`@ OF @ is (?:neither free nor|not) of this program's pool`, func(v []claim) bool { return v[0].n < v[1].n }),
	say(`@ OF @ is in use, and ... (?:reserved|are) @ of it`, func(v []claim) bool { return less(v[2], v[0]) }),
	say(`holds @, of which its pool reserved @: @`, func(v []claim) bool { return less(v[1], v[0]) && less(v[2], v[0]) }),
	// More and less.
	say(`@(?: in one piece)? is (?:more than|above|larger than)...@`, above),
	say(`@(?: in one piece)? is (?:less than|below|smaller than)...@`, below),
	say(`alone is @, more than the GPU's @`, above),
	say(`request of @ is more than...@`, above),
	say(`@ is more than the pool's (0?\.\d+) of @`, func(v []claim) bool { return less(times(v[1].n, v[2]), v[0]) }),
	say(`@ in use and @ requested are more than...@`, func(v []claim) bool { return less(v[2], plus(v[0], v[1])) }),
	say(`^@ of ...@ is free, which is more than the @`, func(v []claim) bool { return less(v[2], v[0]) }),
	say(`@ would be in use, @ above ...@`, func(v []claim) bool { return less(plus(v[1], v[2]), v[0]) && less(v[0], plus(v[1], v[2])) }),
	say(`@ is reserved and unused, too little for @`, below),
	say(`needs @, and the device has @`, above),
	say(`alone are @, and the limit is @`, above),
	say(`alone take @ of @`, below),
	say(`@ is allocated on a GPU of @: the driver has moved`, above),
	say(`@ was estimated, and @ was free`, below),
	say(`got @, and this GPU has @`, below),
	say(`have @, and the GPU @`, below),
	say(`needs @; its pool may take[^#]*@[^#]*which is @`, func(v []claim) bool { return less(v[2], v[0]) }),
	say(`needs @ only, and @ was live`, below),
	say(`recomputing brings @ to @`, above),
	say(`@ in one piece is more than any device has`, func(v []claim) bool { return v[0].n > 80<<30 }),
	// Fits, and does not.
	say(`@ is free: @ more does not fit`, below),
	say(`@ and @ more would fit into @`, func(v []claim) bool { return less(plus(v[0], v[1]), v[2]) }),
	say(`@ would fit into @`, below),
	say(`each then takes @, and up to @[^#]*; both fit into @`, func(v []claim) bool { return less(times(2, plus(v[0], v[1])), v[2]) }),
	say(`@...in use, and @ is free: together enough for the @`, func(v []claim) bool {
		return less(v[2], plus(v[0], v[1])) && less(v[1], plus(v[2], claim{64 << 20, 0}))
	}),
	say(`@...in use: enough for the @`, above),
	say(`@ is free,? and @ was (?:requested|refused): the GPU was not full`, above),
	say(`@ is reserved and not in use, and @ is free: whether that is enough for the @`, func(v []claim) bool {
		return less(v[2], times(1.05, plus(v[0], v[1]))) && less(times(.95, plus(v[0], v[1])), v[2])
	}),
	say(`@ more is needed; the engine may use (0?\.\d+) of @`, func(v []claim) bool { return less(plus(v[0], times(v[1].n, v[2])), v[2]) }),
	say(`a pool of @: @ are needed, and @ of the GPU's @`, func(v []claim) bool { return less(plus(v[0], v[2]), v[3]) }),
	say(`@ OF @ free \(& %\) is what JAX's default pool leaves`,
		func(v []claim) bool { return less(times(.25, v[1]), plus(v[0], claim{account.ContextMost, 0})) }),
	say(`had @ free when @ was refused`, above),
	say(`@ requested, @ free: @ was lacking, and others hold @ of @`, func(v []claim) bool {
		return less(plus(v[1], v[2]), v[0]) && less(v[0], plus(v[1], v[2])) && less(v[2], v[3]) && less(v[3], v[4])
	}),
	say(`@ was lacking: others hold @, and @...; neither alone is enough`,
		func(v []claim) bool { return less(v[1], v[0]) && less(v[2], v[0]) }),
	say(`@ taken and @ requested pass the limit of @`, func(v []claim) bool { return less(v[2], plus(plus(v[0], v[1]), slack(v[2]))) }),
	say(`the pool has @, and with the request it would pass & % of @`, func(v []claim) bool {
		return less(v[0], plus(times(v[1].n/100, v[2]), slack(v[2])))
	}),
	say(`@ was requested, and @ was left of the lease of @`, func(v []claim) bool { return less(v[1], v[0]) && less(v[1], v[2]) }),
	// Times.
	say(`asked for @, & times as much`, func(v []claim) bool { return v[1].n > 1 }),
	say(`@ after & readings`, func(v []claim) bool { return v[1].n > 1 }),
}

// Nothing derives a whole or a request, and no heap is all of the GPU.
var (
	ofGPU    = say(`GPU(?:'s| has) @`, nil).re
	wholes   = say(`#\d+ OF @`, nil).re
	requests = say(`@ (?:was )?(?:requested|refused|in one piece|more (?:does|was|refused|while))`, nil).re
)

// marked reports whether an expression finds size i in the words.
func marked(re *regexp.Regexp, words string, i int) bool {
	return slices.ContainsFunc(re.FindAllStringSubmatch(words, -1), func(m []string) bool { return m[1] == fmt.Sprintf("#%d", i) })
}

// holds reports whether all that a sentence says of its sizes is so. In words each of them is #
// and its number.
func holds(words string, sizes []claim) bool {
	for _, r := range relations {
		for _, m := range r.re.FindAllStringSubmatch(words, -1) {
			var v []claim
			for _, g := range m[1:] {
				if k, ok := strings.CutPrefix(g, "#"); ok {
					i, _ := strconv.Atoi(k)
					v = append(v, sizes[i])
				} else {
					f, _ := strconv.ParseFloat(g, 64)
					v = append(v, claim{f, 0})
				}
			}
			if !r.says(v) {
				return false
			}
		}
	}
	return true
}

// constants are what the doctor's pages name: see package account, and 64 MiB of /dev/shm.
var constants = []float64{account.FirstLibrary, 1.5 * account.FirstLibrary, account.ContextMost, 256 << 20, 64 << 20, 20 << 20, 4 << 30,
	8 << 30, 20 << 30}

// follows returns what a claim says, where that is a constant, a sum, a difference, or a fraction of
// what is told, or of what was made of it before. each is what one reading has of a difference.
func follows(a claim, terms []figure, made, fractions []float64, each float64) (float64, bool) {
	n := slices.Clone(made)
	for _, t := range terms {
		if len(n) < mostTerms && !slices.Contains(n, t.n) {
			n = append(n, t.n)
		}
	}
	fits := slices.Clone(constants)
	for i, x := range n {
		fits = append(fits, math.Exp2(64)-x, x+x) // two figures may be the same
		for _, f := range fractions {
			fits = append(fits, f*x, x-f*x)
			for _, m := range made {
				fits = append(fits, f*x-m)
			}
		}
		for k, y := range n[:i] {
			fits = append(fits, x+y, math.Abs(x-y)*each)
			for _, z := range n[:k] {
				if len(n) <= maxTerms {
					fits = append(fits, x+y+z, math.Abs(x-y-z), math.Abs(y-x-z), math.Abs(z-x-y))
				}
			}
		}
	}
	if i := slices.IndexFunc(fits, a.is); i >= 0 {
		return fits[i], true
	}
	return 0, false
}

var readings = regexp.MustCompile(`after (\d+) readings`)

// each is what one of several readings has of a difference.
func each(words string) float64 {
	if m := readings.FindStringSubmatch(words); m != nil {
		n, _ := strconv.Atoi(m[1])
		return 1 / float64(max(n-1, 1))
	}
	return 1
}

// Of three figures together only few count, for of many some fit by chance; of two not so few.
const (
	maxTerms  = 16
	mostTerms = 100
)

// those are the figures that are printed like a claim.
func those(a claim, all []figure) (list []figure) {
	for _, f := range all {
		if a.is(f.n) {
			list = append(list, f)
		}
	}
	return list
}

// together reports whether sizes, each told by one of some figures, may be of one subject.
func together(told [][]figure) bool {
	named := false
	for _, one := range slices.Concat(told...) {
		named = named || one.of != ""
		if one.of != "" && !slices.ContainsFunc(told, func(list []figure) bool {
			return !slices.ContainsFunc(list, func(f figure) bool { return f.of == "" || f.of == one.of })
		}) {
			return true
		}
	}
	return !named
}

// quoted adds what a text has that is not among the figures.
func quoted(list []figure, text string) []figure {
	for _, s := range statement.Sizes(statement.Clipped64(text)) {
		if those(claim{s.N, 0}, list) == nil {
			list = append(list, figure{s.N, ""})
		}
	}
	return list
}

var (
	fractionName = regexp.MustCompile(`\b0?\.\d+\b`)
	quotation    = regexp.MustCompile(`^(?:it ends with|the last failure in it is line \d+|the program itself advises): `)
)
