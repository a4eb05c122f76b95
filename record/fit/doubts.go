// What is not known of a program on a card, although it ran: the answer carries it.

package fit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gpumem/internal/report"
	"gpumem/record/advise"
	"gpumem/size"
)

// The kinds of a Doubt.
const (
	Ended   = "ended"   // the program was ended before its end
	Sizes   = "sizes"   // sizes of its results depend on values of the GPU, which were zeros
	Read    = "read"    // it read integers of the GPU, which were 0, and may make sizes of them
	Grows   = "grows"   // it keeps more in each step, and fits for some
	Short   = "short"   // too few steps ran to see whether it does
	Caught  = "caught"  // it was refused memory, and went on
	Steps   = "steps"   // it made no step that Config.Steps could count
	Watched = "watched" // PyTorch frees something of it when a thread next looks
	Assumed = "assumed" // such sizes or integers were what Config.Assume says
)

// Doubt is a reason why the answer about a program may not hold on a card.
type Doubt struct {
	Kind  string     `json:"kind"`
	Text  string     `json:"text"`            // a sentence
	Calls []SizeCall `json:"calls,omitempty"` // the most frequent first
}

// SizeCall is a call by which a program gets a size that depends on values of the GPU.
type SizeCall struct {
	Name  string `json:"call"`  // nonzero, for masks, too; unique, "unique with dim", bincount, repeat_interleave; item for an integer that is read
	Where string `json:"where"` // FILE:LINE of the program; "" in the backward pass
	Count uint64 `json:"count"`
}

// addCalls adds calls of another process.
func addCalls(list, more []SizeCall) []SizeCall {
	for _, c := range more {
		same := func(x SizeCall) bool { return x.Name == c.Name && x.Where == c.Where }
		if i := slices.IndexFunc(list, same); i >= 0 {
			list[i].Count += c.Count
		} else {
			list = append(list, c)
		}
	}
	slices.SortStableFunc(list, func(a, b SizeCall) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Where, b.Where), strings.Compare(a.Name, b.Name))
	})
	return list
}

// Assume is what a run assumes of values of the GPU, by the name of a SizeCall: of nonzero and
// unique which part of the elements they find, of item which integer is read in place of 0.
type Assume map[string]string

// ParseAssume reads NAME=VALUE,NAME=VALUE...
func ParseAssume(s string) (Assume, error) {
	all := Assume{}
	for pair := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(pair, "=")
		part, err := strconv.ParseFloat(value, 64)
		n, bad := strconv.ParseUint(value, 10, 63)
		switch {
		case all[name] != "":
			return nil, fmt.Errorf("%q: %s is given twice", s, name)
		case name == "item" && bad == nil:
			value = strconv.FormatUint(n, 10)
		case (name == "nonzero" || name == "unique") && err == nil && part >= 0 && part <= 1:
			value = strconv.FormatFloat(part, 'f', -1, 64)
		default:
			return nil, fmt.Errorf("%q: want nonzero=PART or unique=PART, from 0 to 1, or item=INTEGER", pair)
		}
		all[name] = value
	}
	return all, nil
}

// text returns the variable that sizes.py reads.
func (a Assume) text() string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(a)) {
		pairs = append(pairs, name+"="+a[name])
	}
	return strings.Join(pairs, ",")
}

// doubts returns those about a program that was served, which was to make steps, or 0.
func doubts(p *program, a Assume, steps int) []Doubt {
	list := []Doubt{}
	if text := p.endedText(); text != "" {
		list = append(list, Doubt{Kind: Ended, Text: text})
	}
	if p.Caught > 0 {
		list = append(list, Doubt{Kind: Caught, Text: fmt.Sprintf("It was refused memory %s, as on the card, and caught the error (%s): what it did then "+
			"is in this answer, and not what it would do on another card.", timesText(p.Caught), strings.Join(p.CaughtAt, ", "))})
	}
	if steps > 0 && p.Steps == 0 && !p.Stepped {
		const text = "No step was seen that --steps could count: runs of JAX's largest function or of a tf.function, or updates of an optimizer of PyTorch."
		list = append(list, Doubt{Kind: Steps, Text: text})
	}
	if p.buckets > 0 {
		list = append(list, Doubt{Kind: Watched, Text: fmt.Sprintf("DistributedDataParallel's first buckets, %s, were free in the second step. "+
			"PyTorch frees them when its thread that watches NCCL next looks, each .1 s: where that is later, as much more is live in that step.", size.Format(p.buckets))})
	}
	of := map[string][]SizeCall{} // by the kind of doubt; of what is assumed by name
	for _, c := range p.sizes {
		switch {
		case a[c.Name] != "":
			of[c.Name] = append(of[c.Name], c)
		case c.Name == "item":
			of[Read] = append(of[Read], c)
		default:
			of[Sizes] = append(of[Sizes], c)
		}
	}
	add := func(kind, what, text string, calls []SizeCall) {
		if len(calls) > 0 {
			list = append(list, Doubt{kind, fmt.Sprintf(text, what), calls})
		}
	}
	add(Sizes, callsText(of[Sizes]), "Sizes from %s were those of zeros.", of[Sizes])
	for _, name := range []string{"nonzero", "unique"} {
		add(Assumed, callsText(of[name]), "Sizes from %s were "+a[name]+" of the elements, as --assume says.", of[name])
	}
	add(Assumed, placesText(of["item"]), "Integers that it read from the GPU (%s) were "+a["item"]+", as --assume says.", of["item"])
	add(Read, placesText(of[Read]), "Integers that it read from the GPU (%s) were 0: sizes that it makes of them are those of 0.", of[Read])
	return list
}

const (
	// knownSteps is how many steps show whether a program grows.
	knownSteps = 10
	// endless is more steps than programs make: one that fits for them does not grow by what matters,
	// such as a loss that is kept.
	endless = 1_000_000
)

// growth decides about a program that is to make steps, and returns what is not known of them.
func (r *Report) growth(steps uint64) []Doubt {
	r.For = steps
	g, ran := r.Grows, r.Program.Steps
	if r.Advice == nil { // it fits for none
		return nil
	}
	if g != nil && steps > max(g.RecordedSteps, ran) {
		r.SmallestDevice, r.Card = nil, "" // found for the steps that ran
	}
	switch {
	case g == nil && steps > max(1, ran) && ran < knownSteps:
		return []Doubt{{Kind: Short, Text: fmt.Sprintf("Whether it grows over %s is not known: %s, and it takes %d to see.",
			report.Counted(steps, "step"), ranText(ran), knownSteps)}}
	case g == nil || about(g, r.DeviceBytes) > max(endless, steps):
		return nil
	}
	if steps > max(known(g), ran) {
		r.Fits, r.Settings = false, []pair{}
	}
	return []Doubt{{Kind: Grows, Text: growsText(g)}}
}

// growsText says how a program grows, and for how many steps it fits.
func growsText(g *advise.Grows) string {
	seen := report.Counted(g.RecordedSteps, "step")
	switch {
	case g.FitsSteps != nil:
		return fmt.Sprintf("%s: if it goes on as in the %s that were seen, it fits for about %s steps.",
			g.Sentence(), seen, report.Count(report.Round(*g.FitsSteps)))
	case g.RecordedSteps == 0:
		return g.Sentence() + ": for how many it fits is unknown."
	}
	return fmt.Sprintf("%s; what it needs at the peaks of the %s that were seen did not grow evenly, "+
		"or too few ran: for how many it fits is unknown.", g.Sentence(), seen)
}

// known returns for how many steps a program that grows is known to fit, if it goes on as it ran.
func known(g *advise.Grows) uint64 {
	if g.FitsSteps != nil {
		return *g.FitsSteps
	}
	return g.RecordedSteps
}

// about returns an order of it, also where it is unknown; where the steps are, too, how many of the recording fit.
func about(g *advise.Grows, card uint64) uint64 {
	switch {
	case g.FitsSteps != nil:
		return *g.FitsSteps
	case g.BytesPerStep == 0:
		return card / max(g.Grown, 1)
	}
	return card / g.BytesPerStep
}

// ranText says how many steps ran.
func ranText(steps uint64) string {
	if steps == 0 {
		return "how many ran is unknown"
	}
	return report.Counted(steps, "step") + " ran"
}

// timesText says how often something was.
func timesText(n uint64) string {
	if n == 1 {
		return "once"
	}
	return report.Counted(n, "time")
}

// sizesText returns what a program that failed got in place of sizes, which may be why it did.
func sizesText(p *program, a Assume) string {
	for _, d := range doubts(p, a, 0) {
		if d.Kind == Sizes {
			return d.Text + " --assume has others: gpumem fit --help"
		}
	}
	return ""
}

// endedText says why the program was ended before its end; "" if it was not.
func (p *program) endedText() string {
	why := ""
	switch {
	case p.Repeats:
		why = " when its memory repeated"
	case p.Stepped:
		why = " as --steps asks for"
	case p.Interrupted:
		why = " by Ctrl-C"
	default:
		return ""
	}
	if p.Steps > 0 {
		why = " after " + report.Counted(p.Steps, "step") + why
	}
	if !p.Interrupted {
		why += "; --full runs it to its end"
	}
	return "What came later, such as an evaluation, is not in this answer: it was ended" + why + "."
}

// callsText names calls with their places.
func callsText(calls []SizeCall) string {
	var names, texts []string
	of := map[string][]SizeCall{}
	for _, c := range calls {
		if of[c.Name] == nil {
			names = append(names, c.Name)
		}
		of[c.Name] = append(of[c.Name], c)
	}
	for _, name := range names {
		function, with, _ := strings.Cut(name, " ") // "unique with dim"
		what := strings.TrimSpace(function + "() " + with)
		if name == "nonzero" {
			what = "nonzero() or a mask"
		}
		texts = append(texts, fmt.Sprintf("%s (%s)", what, placesText(of[name])))
	}
	return strings.Join(texts, ", ")
}

// mostPlaces is how many places a sentence names.
const mostPlaces = 3

// placesText names the places of calls, and how many came from each.
func placesText(calls []SizeCall) string {
	var texts []string
	for _, c := range calls[:min(mostPlaces, len(calls))] {
		texts = append(texts, cmp.Or(c.Where, "the backward pass")+", "+report.Counted(c.Count, "call"))
	}
	if more := len(calls) - mostPlaces; more > 0 {
		texts = append(texts, "and "+report.Counted(uint64(more), "more place"))
	}
	return strings.Join(texts, "; ")
}
