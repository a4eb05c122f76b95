package remat

// Advice for a person who cannot change the compiler: what holds the memory at
// the peak, and which layers to put under jax.checkpoint for nearly the same.

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gpumem/hlo"
	"gpumem/hlo/cost"
	"gpumem/hlo/memory"
)

// A Holder is what of one part of a program lives at the peak.
type Holder struct {
	Part   string `json:"part"` // of op_name, its numbers as *; "(no name)"
	Bytes  uint64 `json:"bytes"`
	Values int    `json:"values"`
}

// Holders say what lives in the entry at the peak of its temporaries, as
// memory.TempPeak counts, by part of the program, the largest first. What
// the called computations hold there is not among it.
func Holders(m *hlo.Module) ([]Holder, error) {
	_, at, err := memory.TempPeak(m, memory.Options{})
	if err != nil {
		return nil, err
	}
	b, err := memory.Analyze(m.Entry, nil)
	if err != nil {
		return nil, err
	}
	place := int32(slices.Index(m.Entry.Instructions, at))
	parts := map[string]*Holder{}
	var list []*Holder
	for id := range b.List {
		x := &b.List[id]
		n := memory.Options{}.Allocated(b, int32(id))
		if n == 0 || x.Definer > place {
			continue
		}
		last := x.Definer
		for _, u := range x.Uses {
			last = max(last, u.User)
		}
		if last < place {
			continue
		}
		name := partOf(m.Entry.Instructions[x.Definer])
		h := parts[name]
		if h == nil {
			h = &Holder{Part: name}
			parts[name], list = h, append(list, h)
		}
		h.Bytes += uint64(n)
		h.Values++
	}
	slices.SortStableFunc(list, func(a, b *Holder) int { return cmp.Compare(b.Bytes, a.Bytes) })
	out := make([]Holder, len(list))
	for n, h := range list {
		out[n] = *h
	}
	return out, nil
}

var (
	wrapper = regexp.MustCompile(`^(?:jit|jvp|transpose|vmap|pjit|remat|checkpoint)\((.*)\)$`)
	counted = regexp.MustCompile(`^(.*?\D)(\d+)$`)
)

// parts are the words of an op_name on its way, without the wrappers of
// transformations, without the function that is compiled, and without the
// operation at the end.
func parts(i *hlo.Instruction) []string {
	words := strings.Split(i.OpName(), "/")
	if len(words) < 2 {
		return nil
	}
	var out []string
	for n, w := range words[:len(words)-1] {
		jit := strings.HasPrefix(w, "jit(") || strings.HasPrefix(w, "pjit(")
		for {
			f := wrapper.FindStringSubmatch(w)
			if f == nil {
				break
			}
			w = f[1]
		}
		if w != "" && !(jit && (n == 0 || w == "main")) && w != "rematted_computation" && w != "checkpoint" {
			out = append(out, w)
		}
	}
	return out
}

// partOf is the way of an instruction's op_name with numbers as *, and the operation.
func partOf(i *hlo.Instruction) string {
	words := parts(i)
	for n, w := range words {
		if f := counted.FindStringSubmatch(w); f != nil {
			words[n] = f[1] + "*"
		}
	}
	name := i.OpName()
	if name == "" {
		return "(no name)"
	}
	return strings.Join(append(words, name[strings.LastIndexByte(name, '/')+1:]), "/")
}

// A ByHand is what jax.checkpoint alone does for the layers of one name.
type ByHand struct {
	Layer   string  `json:"layer"`  // name without its number, such as "MixerBlock_"
	Layers  int     `json:"layers"` // how many there are
	Marked  int     `json:"marked"` // of them under jax.checkpoint
	Policy  string  `json:"policy"` // of jax.checkpoint_policies
	Peak    uint64  `json:"temp_peak_after"`
	Seconds float64 `json:"-"`                     // that one run takes
	Extra   float64 `json:"extra_compute_percent"` // filled in by Run
	// Patterns are regular expressions for [Mark], one for each layer.
	Patterns []string `json:"patterns"`
}

// maxLayers is how many layers of one name are tried.
const maxLayers = 200

// byHandPlans are what putting the numbered layers of the program under
// jax.checkpoint comes to, each by itself: for each name of layers and each of two
// policies as many as the limit needs, or all. The best for the limit comes first. There
// are none where op_name has no numbered layers, or marking them saves nothing.
func byHandPlans(m *hlo.Module, limit uint64, rates cost.Rates) ([]ByHand, error) {
	given, err := AsGiven(m, rates)
	if err != nil {
		return nil, err
	}
	var plans []ByHand
	for _, name := range layerNames(m) {
		for _, policy := range []struct {
			name string
			save Policy
		}{{"nothing_saveable", SaveNothing}, {"dots_saveable", SaveDots}} {
			try := func(count int) (*Plan, error) {
				c := given.Module.Clone()
				for _, pattern := range name.patterns[:count] {
					if _, err := Mark(c, regexp.MustCompile(pattern), policy.save); err != nil {
						return nil, err
					}
				}
				c = c.Clone() // users in order
				p, err := BestOptions{}.taking(c, "mark", 0, rates)
				if err != nil {
					return nil, err
				}
				// XLA makes an order of its own of what was marked.
				other, err := BestOptions{}.reordered(c, p.Peak)
				if err != nil || other == nil {
					return p, err
				}
				return BestOptions{}.taking(other, "mark", 0, rates)
			}
			count := len(name.patterns)
			p, err := try(count)
			if err != nil {
				return nil, err
			}
			if p.Peak >= given.Peak {
				continue
			}
			// Fewer may do: the first layers' values wait longest.
			if p.meets(limit) {
				low := 0 // too few
				for low+1 < count {
					half := (low + count) / 2
					q, err := try(half)
					if err != nil {
						return nil, err
					}
					if q.meets(limit) {
						p, count = q, half
					} else {
						low = half
					}
				}
			}
			plans = append(plans, ByHand{Layer: name.base, Layers: len(name.patterns), Marked: count, Policy: policy.name, Peak: p.Peak, Seconds: p.Seconds, Patterns: name.patterns[:count]})
		}
	}
	slices.SortStableFunc(plans, func(a, b ByHand) int {
		p, q := Plan{Peak: a.Peak, Seconds: a.Seconds}, Plan{Peak: b.Peak, Seconds: b.Seconds}
		switch {
		case p.betterThan(&q, limit):
			return -1
		case q.betterThan(&p, limit):
			return 1
		}
		return 0
	})
	return plans, nil
}

// A layerName is a word with a number that occurs with at least two of them.
type layerName struct {
	base     string
	patterns []string
}

// layerNames are the numbered words of forward instructions, those with most
// instructions first, three at most.
func layerNames(m *hlo.Module) []layerName {
	type found struct {
		base    string
		numbers map[string]bool
		order   []string
		n       int
	}
	by := map[string]*found{}
	var list []*found
	for _, c := range m.Computations {
		for _, i := range c.Instructions {
			if backward(i) || !strings.Contains(i.OpName(), "jvp(") {
				continue
			}
			for _, w := range parts(i) {
				f := counted.FindStringSubmatch(w)
				if f == nil {
					continue
				}
				k := by[f[1]]
				if k == nil {
					k = &found{base: f[1], numbers: map[string]bool{}}
					by[f[1]], list = k, append(list, k)
				}
				k.n++
				if !k.numbers[f[2]] && len(k.order) < maxLayers {
					k.numbers[f[2]] = true
					k.order = append(k.order, f[2])
				}
				break // the outermost
			}
		}
	}
	slices.SortStableFunc(list, func(a, b *found) int { return b.n - a.n })
	var out []layerName
	for _, k := range list {
		if len(k.order) < 2 || len(out) == 3 {
			continue
		}
		l := layerName{base: k.base}
		for _, n := range k.order {
			l.patterns = append(l.patterns, fmt.Sprintf(`(^|[/(])%s([/)]|$)`, regexp.QuoteMeta(k.base+n)))
		}
		out = append(out, l)
	}
	return out
}
