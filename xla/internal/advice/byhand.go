package advice

// Advice for those who cannot change the compiler: which layers to put under jax.checkpoint.

import (
	"gpumem/xla/internal/mark"
	"gpumem/xla/internal/opname"
	"gpumem/xla/internal/plan"
	"regexp"
	"slices"

	"gpumem/xla/hlo"
)

// A ByHand is what jax.checkpoint alone does for the layers of one name.
type ByHand struct {
	Layer  string `json:"layer"`  // name without its number, such as "MixerBlock_"
	Layers int    `json:"layers"` // with that name
	Marked int    `json:"marked"` // of them under jax.checkpoint
	Policy string `json:"policy"` // of jax.checkpoint_policies
	// Peak is what temporaries take then: of a scheduled module their heap, as predicted (see
	// checkpoint.go), of Before bytes now.
	Peak   uint64 `json:"temp_peak_after"`
	Before uint64 `json:"temp_peak_before"`
	// Estimate reports that the module is not compiled, so that the figures are estimates,
	// mostly too high: nothing is fused yet.
	Estimate bool    `json:"estimate"`
	Seconds  float64 `json:"-"` // of one run
	Extra    float64 `json:"extra_compute_percent"`
	// Patterns are regular expressions for [mark.Mark], one for each layer.
	Patterns []string `json:"patterns"`
}

// ByHandPlans returns what putting the numbered layers of the program under jax.checkpoint
// does, the best for the limit first: one plan for each name of layers and each of two
// policies, with as many layers as the limit needs, or all. There is none if op_name has no
// numbered layers, or if marking them saves nothing. heap is what the temporaries of a scheduled
// module take, in bytes, 0 if that is unknown: plans for it are predictions. For others it is not
// looked at.
func ByHandPlans(m *hlo.Module, limit, heap uint64, o plan.Options) ([]ByHand, error) {
	given, err := o.Measured(m, "off", 0)
	if err != nil {
		return nil, err
	}
	now := given.Peak
	if m.Scheduled {
		if now = heap; heap == 0 {
			return nil, nil
		}
	}
	var plans []ByHand
	for _, name := range opname.Layers(m) {
		for _, policy := range []struct {
			name        string
			save, fused mark.SavePolicy
		}{{"nothing_saveable", mark.SaveNothing, mark.SaveNothing}, {"dots_saveable", mark.SaveDots, product}} {
			try := func(count int) (*plan.Plan, error) {
				if m.Scheduled {
					return predicted(o, given, name, count, policy.fused)
				}
				return marked(o, given, name.Patterns[:count], policy.save)
			}
			count := len(name.Patterns)
			p, err := try(count)
			if err != nil {
				return nil, err
			}
			if p.Peak >= now {
				continue
			}
			// Fewer may be enough: the values of the first layers wait longest.
			if p.Meets(limit) {
				low := 0 // too few
				for low+1 < count {
					half := (low + count) / 2
					q, err := try(half)
					if err != nil {
						return nil, err
					}
					if q.Meets(limit) {
						p, count = q, half
					} else {
						low = half
					}
				}
			}
			plans = append(plans, ByHand{Layer: name.Name, Layers: len(name.Patterns), Marked: count, Policy: policy.name, Peak: p.Peak, Before: now, Estimate: !m.Scheduled, Seconds: p.Seconds, Patterns: name.Patterns[:count]})
		}
	}
	slices.SortStableFunc(plans, func(a, b ByHand) int {
		p, q := plan.Plan{Peak: a.Peak, Seconds: a.Seconds}, plan.Plan{Peak: b.Peak, Seconds: b.Seconds}
		switch {
		case p.BetterThan(&q, limit):
			return -1
		case q.BetterThan(&p, limit):
			return 1
		}
		return 0
	})
	return plans, nil
}

// predicted returns what jax.checkpoint around the first layers leaves of a scheduled module, by
// its heap. The plan has no module.
func predicted(o plan.Options, given *plan.Plan, l opname.Layer, count int, save mark.SavePolicy) (*plan.Plan, error) {
	c, more, err := checkpointed(given.Module, l, count, save, o.Rates)
	if err != nil {
		return nil, err
	}
	p := &plan.Plan{Module: c, Seconds: given.Seconds + more}
	p.Peak, err = p.Heap()
	return p, err
}

// marked returns the plan that marks layers in a module that is not scheduled.
func marked(o plan.Options, given *plan.Plan, patterns []string, save mark.SavePolicy) (*plan.Plan, error) {
	c := given.Module.Clone()
	for _, pattern := range patterns {
		if _, err := mark.Mark(c, regexp.MustCompile(pattern), save); err != nil {
			return nil, err
		}
	}
	c = c.Clone() // users in order
	p, err := o.Costs(c, "mark", 0)
	if err != nil {
		return nil, err
	}
	// XLA chooses another order for what was marked.
	other, err := o.Reordered(c, p.Peak)
	if err != nil || other == nil {
		return p, err
	}
	return o.Costs(other, "mark", 0)
}
