package doctor

// Claims: each sentence of an answer is held against the numbers that it names before anybody
// reads it. A size in it is one of the log or of the state, or follows from such by a sum, a
// difference or a fraction that is set; the sizes are of one subject where the log names
// subjects; and what the words say of them is so: see claims_words.go.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/cause"
)

// dropped is called with every sentence that is not borne out, and why: tests count them.
var dropped = func(why, sentence string) {}

// A figure is a size that is told, and of what: gpu 1, heap 2; empty if nothing is named.
type figure struct {
	n  float64
	of string
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
	jax, _ := e.Fraction()
	torch, _ := e.TorchFraction()
	c := &claims{Case: e, fractions: []float64{jax, torch, .75, .9, e.Number("gpu_memory_utilization"), e.Number("mem_fraction_static")}}
	know := func(of string, all ...uint64) {
		for _, n := range all {
			if n > 0 {
				c.known = append(c.known, figure{float64(n), of})
			}
		}
	}
	total := e.Total()
	if those(claim{float64(total.Bytes), 0}, c.near([]int{total.From.Line})) == nil {
		know("", total.Bytes) // by a card's name
	}
	for _, r := range e.Failed {
		if strings.Contains(r.St.Text, "shape") { // of a tensor
			know("", r.Want)
		}
	}
	used, all := e.GPUUsed()
	live, _ := e.LiveHere()
	others, _ := e.Others()
	absurd, _ := e.AbsurdRequest()
	_, small := e.SmallDevice()
	know("", used, all, used+used/10, live, absurd, small, account.HeldBy(others), e.OwnUsed(), e.NamedCard().Bytes, e.Compiled.Buffers.Bytes)
	if s := e.Shortfall; s != nil {
		know("", s.Reserved, s.Others, s.Limit)
	}
	if g := e.Engine; g != nil {
		know("", g.More)
		if s := g.Stages; s != nil { // whose unit is in the line's label
			know("", s.Total.Bytes, s.Left.Bytes, s.Start, s.LargestTook)
		}
	}
	if p := e.Plan; p != nil {
		know("", p.Parts, p.Planned, p.Available)
	}
	if d := e.Dump; d != nil {
		know("", d.Pool, d.InUse, d.Free(), d.LargestFree, d.Limit, d.Request.Bytes)
	}
	if s := e.State(); s != nil {
		for _, d := range s.Devices {
			of := ""
			if len(s.Devices) > 1 {
				of = fmt.Sprintf("gpu %d", d.Index)
			}
			know(of, d.Total, d.InUse())
			for _, p := range d.Programs {
				know(of, p.Holds())
			}
		}
	}
	return c
}

// keep drops of an explanation what is not borne out. It is false if no line shows anything then.
func (c *claims) keep(x cause.Explanation) (kept cause.Explanation, shows bool) {
	var lines []int
	for _, q := range x.Evidence {
		lines = append(lines, q.Line)
	}
	near := c.near(lines)
	for _, q := range x.Evidence {
		near = quoted(near, q.Text)
	}
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
	near := c.near([]int{everywhere})
	return slices.DeleteFunc(all, func(s string) bool { return !c.bear(near, s, "") })
}

// near are the figures of these lines, and of those beside them.
func (c *claims) near(lines []int) (list []figure) {
	for _, st := range c.Statements() {
		if slices.ContainsFunc(lines, func(l int) bool { return l == everywhere || l > 0 && st.Line >= l-8 && st.Line <= l+12 }) {
			var named []string
			for _, a := range st.Amounts {
				named = appendNew(named, a.Subject)
			}
			of := "" // the only subject that is named, else the last before it
			if named = slices.DeleteFunc(named, func(n string) bool { return n == "" }); len(named) == 1 {
				of = named[0]
			}
			for _, a := range st.Amounts {
				of = cmp.Or(a.Subject, of)
				list = append(list, figure{float64(a.N), of})
			}
		}
	}
	return list
}

// everywhere is beside every line.
const everywhere = -1

// bear reports whether the numbers bear a sentence. value is that of the setting it is about.
func (c *claims) bear(near []figure, sentence, value string) bool {
	words, sizes := sizesOf(sentence)
	if len(sizes) == 0 || quotation.MatchString(sentence) {
		return true
	}
	fractions := slices.DeleteFunc(slices.Clone(c.fractions), func(f float64) bool { return f == 0 })
	for _, f := range append(fractionName.FindAllString(sentence, -1), value) {
		if n, _ := strconv.ParseFloat(f, 64); n > 0 {
			fractions = append(fractions, n)
		}
	}
	terms := slices.Concat(c.known, near)
	var told [][]figure // for each size that is told
	var made []float64  // of those that follow
	why := ""
	for i, a := range sizes {
		find := func(all []figure) []figure {
			return slices.DeleteFunc(those(a, all), func(f figure) bool { return strings.HasPrefix(f.of, "heap") && marked(ofGPU, words, i) })
		}
		direct := find(terms)
		if len(direct) == 0 && !marked(wholes, words, i) && !marked(requests, words, i) {
			if n, ok := follows(a, terms, made, fractions, each(words)); ok {
				made = append(made, n)
				continue
			}
		}
		if len(direct) == 0 {
			direct = find(c.near([]int{everywhere}))
		}
		if len(direct) == 0 {
			why = "size"
		}
		told, terms = append(told, direct), append(terms, direct...)
	}
	switch {
	case why != "":
	case !together(told):
		why = "subject"
	case !holds(words, sizes):
		why = "relation"
	default:
		return true
	}
	dropped(why, sentence)
	return false
}
