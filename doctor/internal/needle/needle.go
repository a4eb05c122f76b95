// Package needle tells where an expression need not be tried. Needles are what must stand in a text
// that an expression matches; they follow from the expression. A Regexp looks for its own first. A
// Finder looks for those of many expressions in one pass over the text.
package needle

import (
	"cmp"
	"iter"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

// needles are texts in small letters. Where exact is set the expression matches these, in any case,
// and nothing else; else one of them stands in whatever it matches, and none if it has none.
type needles struct {
	texts []string
	exact bool
}

// maxNeedles bounds those of one expression.
const maxNeedles = 100

// needlesOf finds those of a parsed expression.
func needlesOf(re *syntax.Regexp) needles {
	switch re.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpBeginText, syntax.OpEndLine, syntax.OpEndText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return needles{[]string{""}, true}
	case syntax.OpLiteral:
		return needles{[]string{strings.ToLower(string(re.Rune))}, true}
	case syntax.OpCharClass:
		return needlesOfClass(re.Rune)
	case syntax.OpCapture:
		return needlesOf(re.Sub[0])
	case syntax.OpQuest:
		if n := needlesOf(re.Sub[0]); n.exact {
			return needles{append(n.texts, ""), true}
		}
	case syntax.OpPlus, syntax.OpRepeat:
		if re.Op == syntax.OpPlus || re.Min > 0 {
			return needles{needlesOf(re.Sub[0]).texts, false}
		}
	case syntax.OpConcat:
		return needlesOfAll(re.Sub)
	case syntax.OpAlternate:
		return needlesOfAny(re.Sub)
	}
	return needles{}
}

// needlesOfClass are the characters of a small class.
func needlesOfClass(ranges []rune) needles {
	n := needles{exact: true}
	for i := 0; i < len(ranges); i += 2 {
		if ranges[i+1]-ranges[i] > 4 {
			return needles{}
		}
		for c := ranges[i]; c <= ranges[i+1]; c++ {
			n.texts = append(n.texts, strings.ToLower(string(c)))
		}
	}
	slices.Sort(n.texts)
	n.texts = slices.Compact(n.texts)
	n.exact = len(n.texts) <= 4
	return n
}

// needlesOfAny are those of an alternation: each of its expressions must have some.
func needlesOfAny(subs []*syntax.Regexp) needles {
	all := needles{exact: true}
	for _, sub := range subs {
		n := needlesOf(sub)
		if len(n.texts) == 0 || len(all.texts)+len(n.texts) > maxNeedles {
			return needles{}
		}
		all.texts, all.exact = append(all.texts, n.texts...), all.exact && n.exact
	}
	return all
}

// needlesOfAll are the best of what stands one behind the other: exact ones are put together.
func needlesOfAll(subs []*syntax.Regexp) needles {
	best, run, exact := []string(nil), []string{""}, true
	for _, sub := range subs {
		n := needlesOf(sub)
		if n.exact && len(run)*len(n.texts) <= maxNeedles {
			run = products(run, n.texts)
			continue
		}
		best, run = better(better(best, run), n.texts), []string{""}
		if exact = false; n.exact {
			run = n.texts
		}
	}
	if exact {
		return needles{run, true}
	}
	return needles{better(best, run), false}
}

// products are each of a with each of b behind it.
func products(a, b []string) (all []string) {
	for _, x := range a {
		for _, y := range b {
			all = append(all, x+y)
		}
	}
	return all
}

// better are the needles whose shortest is longer; of five letters and more, those that are fewer.
func better(a, b []string) []string {
	if c := cmp.Compare(shortest(a), shortest(b)); c < 0 || c == 0 && len(b) <= len(a) {
		return b
	}
	return a
}

// shortest is the length of the shortest of them, five at most.
func shortest(texts []string) int {
	n := 5 * min(len(texts), 1)
	for _, t := range texts {
		n = min(n, len(t))
	}
	return n
}

// Beginnings are the bytes that a match of an expression may begin with.
func Beginnings(re *regexp.Regexp) (may [256]bool) {
	prog, err := syntax.Compile(parse(re).Simplify())
	if err != nil {
		panic(err) // it was compiled
	}
	seen := make([]bool, len(prog.Inst))
	var walk func(at uint32)
	walk = func(at uint32) {
		if seen[at] {
			return
		}
		seen[at] = true
		switch in := &prog.Inst[at]; in.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			walk(in.Out)
			walk(in.Arg)
		case syntax.InstCapture, syntax.InstEmptyWidth, syntax.InstNop:
			walk(in.Out)
		case syntax.InstFail:
		default:
			for b := range may {
				may[b] = may[b] || b >= utf8.RuneSelf || in.Op == syntax.InstMatch || in.MatchRune(rune(b))
			}
		}
	}
	walk(uint32(prog.Start))
	return may
}

// parse is an expression as a tree.
func parse(re *regexp.Regexp) *syntax.Regexp {
	parsed, err := syntax.Parse(re.String(), syntax.Perl)
	if err != nil {
		panic(err) // it was compiled
	}
	return parsed
}

// A Regexp is an expression that is tried where one of its needles stands.
type Regexp struct {
	*regexp.Regexp
	needles []string
}

// MustCompile compiles an expression, as regexp.MustCompile does.
func MustCompile(expression string) *Regexp {
	re := &Regexp{Regexp: regexp.MustCompile(expression)}
	re.needles = shortestOf(needlesOf(parse(re.Regexp)).texts)
	return re
}

// may reports whether the text may match.
func (re *Regexp) may(text string) bool {
	if len(re.needles) == 0 {
		return true
	}
	text = strings.ToLower(text)
	return slices.ContainsFunc(re.needles, func(n string) bool { return strings.Contains(text, n) })
}

// MatchString is that of regexp.Regexp, as are the methods below.
func (re *Regexp) MatchString(text string) bool { return re.may(text) && re.Regexp.MatchString(text) }

func (re *Regexp) FindStringIndex(text string) []int {
	if !re.may(text) {
		return nil
	}
	return re.Regexp.FindStringIndex(text)
}

func (re *Regexp) FindAllStringIndex(text string, n int) [][]int {
	if !re.may(text) {
		return nil
	}
	return re.Regexp.FindAllStringIndex(text, n)
}

func (re *Regexp) FindStringSubmatch(text string) []string {
	if !re.may(text) {
		return nil
	}
	return re.Regexp.FindStringSubmatch(text)
}

// shortestOf leaves out the needles in which another one stands.
func shortestOf(texts []string) (all []string) {
	for _, t := range texts {
		if !slices.ContainsFunc(texts, func(u string) bool { return u != t && strings.Contains(t, u) }) && !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return all
}

// A Finder finds which of its expressions a text may match.
type Finder struct {
	n      int
	always []int // have no needles
	at     [1 << 12][]entry
}

// An entry is a needle of an expression.
type entry struct {
	text string
	of   int
}

// window is how many letters of a needle are looked up.
const window = 3

func slotOf(text string) uint32 {
	return (uint32(text[0]) | uint32(text[1])<<8 | uint32(text[2])<<16) * 0x9E3779B1 >> 20
}

// NewFinder makes the finder of some expressions.
func NewFinder(all iter.Seq[*regexp.Regexp]) *Finder {
	f := &Finder{}
	for re := range all {
		texts := shortestOf(needlesOf(parse(re)).texts)
		if shortest(texts) < window {
			f.always = append(f.always, f.n)
			texts = nil
		}
		for _, t := range texts {
			f.at[slotOf(t)] = append(f.at[slotOf(t)], entry{t, f.n})
		}
		f.n++
	}
	return f
}

// In are the expressions that a text may match, by their numbers, in their order.
func (f *Finder) In(text string) []int {
	text = strings.ToLower(text)
	list := slices.Clone(f.always)
	for i := 0; i+window <= len(text); i++ {
		for _, e := range f.at[slotOf(text[i:])] {
			if strings.HasPrefix(text[i:], e.text) {
				list = append(list, e.of)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
