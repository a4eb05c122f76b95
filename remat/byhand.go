package remat

// Advice for a person who cannot change the compiler: the layers to put under
// jax.checkpoint for nearly the same.

import (
	"regexp"
	"slices"

	"gpumem/hlo"
	"gpumem/hlo/cost"
	"gpumem/remat/mark"
)

// A ByHand is what jax.checkpoint alone does for the layers of one name.
type ByHand struct {
	Layer   string  `json:"layer"`  // name without its number, such as "MixerBlock_"
	Layers  int     `json:"layers"` // how many there are
	Marked  int     `json:"marked"` // of them under jax.checkpoint
	Policy  string  `json:"policy"` // of jax.checkpoint_policies
	Peak    uint64  `json:"temp_peak_after"`
	Seconds float64 `json:"-"`                     // that one run takes
	Extra   float64 `json:"extra_compute_percent"` // filled in by Run
	// Patterns are regular expressions for [mark.Apply], one for each layer.
	Patterns []string `json:"patterns"`
}

// byHandPlans are what putting the numbered layers of the program under
// jax.checkpoint comes to, each by itself: for each name of layers and each of two
// policies as many as the limit needs, or all. The best for the limit comes first. There
// are none where op_name has no numbered layers, or marking them saves nothing.
func byHandPlans(m *hlo.Module, limit uint64, rates cost.Rates) ([]ByHand, error) {
	given, err := asGiven(m, rates)
	if err != nil {
		return nil, err
	}
	var plans []ByHand
	for _, name := range mark.Layers(m) {
		for _, policy := range []struct {
			name string
			save mark.Policy
		}{{"nothing_saveable", mark.SaveNothing}, {"dots_saveable", mark.SaveDots}} {
			try := func(count int) (*plan, error) {
				c := given.Module.Clone()
				for _, pattern := range name.Patterns[:count] {
					if _, err := mark.Apply(c, regexp.MustCompile(pattern), policy.save); err != nil {
						return nil, err
					}
				}
				c = c.Clone() // users in order
				p, err := options{}.taking(c, "mark", 0, rates)
				if err != nil {
					return nil, err
				}
				// XLA chooses another order for what was marked.
				other, err := options{}.reordered(c, p.Peak)
				if err != nil || other == nil {
					return p, err
				}
				return options{}.taking(other, "mark", 0, rates)
			}
			count := len(name.Patterns)
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
			plans = append(plans, ByHand{Layer: name.Name, Layers: len(name.Patterns), Marked: count, Policy: policy.name, Peak: p.Peak, Seconds: p.Seconds, Patterns: name.Patterns[:count]})
		}
	}
	slices.SortStableFunc(plans, func(a, b ByHand) int {
		p, q := plan{Peak: a.Peak, Seconds: a.Seconds}, plan{Peak: b.Peak, Seconds: b.Seconds}
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
