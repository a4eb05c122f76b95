package doctor

// Claims: each sentence of an answer is held against the numbers that it names before anybody
// reads it. A size in it is one of the log or of the state, or follows from such by a sum, a
// difference or a fraction that is set; the sizes are of one subject where the log names
// subjects; and what the words say of them, such as "A of B" or "does not fit", is so: see
// claims_words.go.

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/cause"
	"gpumem/doctor/internal/statement"
)

// dropped is called with every sentence that is not borne out, and why: tests count them.
var dropped = func(why, sentence string) {}

// A figure is a size that is told, and of what. A subject that is not named is -1.
type figure struct {
	n         float64
	gpu, heap int
}

// A claim is a size in a sentence, with half a unit of its last digit.
type claim struct{ n, half float64 }

// is reports whether a number of bytes is printed like this, within what whole numbers lose.
func (a claim) is(bytes float64) bool { return math.Abs(a.n-bytes) <= a.half+4 }

// claims are what the sentences of one answer are held against.
type claims struct {
	*account.Case
	known     []figure // by the state or a card's name, or as a sum of many
	fractions []float64
}

func newClaims(e *account.Case) *claims {
	c := &claims{Case: e}
	know := func(gpu int, all ...uint64) {
		for _, n := range all {
			if n > 0 {
				c.known = append(c.known, figure{float64(n), gpu, -1})
			}
		}
	}
	used, all := e.GPUUsed()
	live, _ := e.LiveHere()
	others, _ := e.Others()
	absurd, _ := e.AbsurdRequest()
	_, small := e.SmallDevice()
	total := e.Total()
	if c.known = append(c.known, those(claim{float64(total.Bytes), 0}, figures(nil, total.From.Text, -1))...); len(c.known) == 0 {
		know(-1, total.Bytes) // by a card's name
	}
	know(-1, used, all, used+used/10, live, absurd, small, account.HeldBy(others), e.OwnUsed(), e.NamedCard().Bytes, e.Compiled.Buffers.Bytes)
	for _, r := range e.Failed {
		if strings.Contains(r.St.Text, "shape") { // of a tensor
			know(r.Device, r.Want)
		}
	}
	if s := e.Shortfall; s != nil {
		know(s.Device, s.Reserved, s.Others, s.Limit)
	}
	if g := e.Engine; g != nil {
		know(g.Device, g.More)
		if s := g.Stages; s != nil { // whose unit is in the line's label
			know(-1, s.Total.Bytes, s.Left.Bytes, s.Start, s.LargestTook)
		}
	}
	if p := e.Plan; p != nil {
		know(p.Device, p.Parts, p.Planned, p.Available)
	}
	if d := e.Dump; d != nil {
		know(-1, d.Pool, d.InUse, d.Free(), d.LargestFree, d.Limit, d.Request.Bytes)
	}
	if s := e.State(); s != nil {
		for _, d := range s.Devices {
			gpu := d.Index
			if len(s.Devices) == 1 {
				gpu = -1
			}
			know(gpu, d.Total, d.InUse())
			for _, p := range d.Programs {
				know(gpu, p.Holds())
			}
		}
	}
	jax, _ := e.Fraction()
	torch, _ := e.TorchFraction()
	c.fractions = []float64{jax, torch, .75, .9, e.Number("gpu_memory_utilization"), e.Number("mem_fraction_static")}
	return c
}

// keep drops of an explanation what is not borne out. It is false if no line shows anything then.
func (c *claims) keep(x cause.Explanation) (kept cause.Explanation, shows bool) {
	var lines []int
	var near []figure
	for _, q := range x.Evidence {
		lines, near = append(lines, q.Line), figures(near, q.Text, -1)
	}
	near = append(near, c.near(lines)...)
	x.Evidence = slices.Clone(x.Evidence)
	for i := range x.Evidence {
		q := &x.Evidence[i]
		if !c.bear(near, q.Reading, "") {
			q.Reading = ""
		}
		shows = shows || q.Reading != ""
	}
	not := func(s string) bool { return !c.bear(near, s, "") }
	x.Certain, x.Remedy.Steps = slices.DeleteFunc(slices.Clone(x.Certain), not), slices.DeleteFunc(slices.Clone(x.Remedy.Steps), not)
	x.Remedy.Settings = slices.DeleteFunc(slices.Clone(x.Remedy.Settings), func(s Advice) bool { return !c.bear(near, s.Why, s.Value) })
	return x, shows
}

// certain drops what is not borne out of what is sure in any case.
func (c *claims) certain(all []string) []string {
	lines := []int{}
	for _, r := range c.Failed {
		lines = append(lines, r.St.Line)
	}
	if l := c.Library; l != nil {
		lines = append(lines, l.St.Line)
	}
	near := c.near(lines)
	return slices.DeleteFunc(all, func(s string) bool { return !c.bear(near, s, "") })
}

// near are the figures of the lines, and of those beside them; of all lines if nil.
func (c *claims) near(lines []int) (list []figure) {
	for _, st := range c.Statements() {
		if len(st.Amounts) > 0 && (lines == nil || slices.ContainsFunc(lines, func(l int) bool { return l > 0 && st.Line >= l-8 && st.Line <= l+12 })) {
			list = figures(list, st.Text, account.DeviceOf(st.Head()))
			for _, a := range st.Amounts {
				if a.N < statement.Mib { // without a unit
					list = append(list, figure{float64(a.N), -1, -1})
				}
			}
		}
	}
	return list
}

var subjectName = regexp.MustCompile(`(?i)\b(?:(heap)|gpu|cuda|device)(?:[ _:#]|\[){1,2}(\d{1,2})\b`)

// figures adds the sizes of a text, each of the only subject that is named, else of the last before it.
func figures(list []figure, text string, gpu int) []figure {
	text = statement.Clipped64(text)
	marks, heap := subjectName.FindAllStringSubmatchIndex(text, -1), -1
	single := !slices.ContainsFunc(marks, func(m []int) bool { return text[m[0]:m[1]] != text[marks[0][0]:marks[0][1]] })
	for _, s := range statement.Sizes(text) {
		for ; len(marks) > 0 && (single || marks[0][0] < s.At); marks = marks[1:] {
			n, _ := strconv.Atoi(text[marks[0][4]:marks[0][5]])
			if marks[0][2] >= 0 {
				heap = n
			} else {
				gpu = n
			}
		}
		list = append(list, figure{s.N, gpu, heap})
	}
	return list
}

// constants are what the doctor's pages name: see package account, and 64 MiB of /dev/shm.
var constants = []float64{account.FirstLibrary, 1.5 * account.FirstLibrary, account.ContextMost, 256 << 20, 64 << 20, 20 << 20, 8 << 30, 20 << 30}

var fractionName = regexp.MustCompile(`\b0?\.\d+\b`)

// bear reports whether the numbers bear a sentence. value is that of the setting it is about.
func (c *claims) bear(near []figure, sentence, value string) bool {
	if strings.HasPrefix(sentence, "it ends with: ") {
		return true // a quotation
	}
	var sizes []claim
	var told [][]figure // for each that is told
	var made []float64  // of those that are not
	var derived []string
	words, last := "", 0
	terms := slices.Concat(c.known, near)
	fractions := slices.Clone(c.fractions)
	for _, f := range append(fractionName.FindAllString(sentence, -1), value) {
		n, _ := strconv.ParseFloat(f, 64)
		fractions = append(fractions, n)
	}
	each := 1.
	if m := readings.FindStringSubmatch(sentence); m != nil {
		n, _ := strconv.Atoi(m[1])
		each /= float64(max(n-1, 1))
	}
	for _, s := range statement.Sizes(sentence) {
		a := claim{s.N, s.Half}
		words += sentence[last:s.At] + fmt.Sprintf("#%d", len(sizes))
		last, sizes = s.End, append(sizes, a)
		direct := those(a, terms)
		if before := sentence[:s.At]; strings.HasSuffix(before, "GPU's ") || strings.HasSuffix(before, "GPU has ") {
			direct = slices.DeleteFunc(direct, func(f figure) bool { return f.heap >= 0 }) // a heap is a part of it
		}
		if direct == nil {
			if n, ok := follows(a, terms, made, fractions, each); ok {
				made, derived = append(made, n), append(derived, fmt.Sprintf("#%d", len(sizes)-1))
				continue
			}
			if direct = those(a, c.near(nil)); direct == nil {
				dropped("size", sentence)
				return false
			}
		}
		told, terms = append(told, direct), append(terms, direct...)
	}
	words += sentence[last:]
	why := ""
	switch {
	case slices.ContainsFunc(derived, func(a string) bool { return toldOnly(words, a) }):
		why = "derived"
	case !together(told, func(f figure) int { return f.gpu }) || !together(told, func(f figure) int { return f.heap }):
		why = "subject"
	case !holds(words, sizes):
		why = "relation"
	}
	if why != "" {
		dropped(why, sentence)
	}
	return why == ""
}

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
func together(told [][]figure, name func(figure) int) bool {
	named := false
	for _, of := range slices.Concat(told...) {
		if name(of) < 0 {
			continue
		}
		named = true
		if !slices.ContainsFunc(told, func(list []figure) bool {
			return !slices.ContainsFunc(list, func(f figure) bool { return name(f) < 0 || name(f) == name(of) })
		}) {
			return true
		}
	}
	return !named
}

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
		fits = append(fits, math.Exp2(64)-x)
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

// Of three figures together only few count, for of many some fit by chance; of two not so few.
const (
	maxTerms  = 16
	mostTerms = 100
)
