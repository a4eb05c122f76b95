package advice

// Advice for those who cannot change the compiler: which layers to put under jax.checkpoint.

import (
	"regexp"
	"slices"

	"gpumem/xla/internal/mark"
	"gpumem/xla/internal/opname"
	"gpumem/xla/internal/plan"
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

// planByHand returns what putting the numbered layers of the program under jax.checkpoint
// does, the best for the limit first: one plan for each name of layers and each of two
// policies, with as many layers as the limit needs, or all. There is none if op_name has no
// numbered layers, or if marking them saves nothing. heap is what the temporaries of a scheduled
// module take, in bytes, 0 if that is unknown: plans for it are predictions. For others it is not
// looked at.
func planByHand(given *plan.Plan, limit, heap uint64, o plan.Options) ([]ByHand, error) {
	m, now := given.Module, given.Peak
	if m.Scheduled {
		if now = heap; heap == 0 {
			return nil, nil
		}
	}

	var list []ByHand
	for _, l := range opname.Layers(m) {
		for _, policy := range []struct {
			name        string
			save, fused mark.Policy
		}{{"nothing_saveable", mark.SaveNothing, mark.SaveNothing}, {"dots_saveable", mark.SaveDots, product}} {
			try := func(count int) (*plan.Plan, error) {
				if m.Scheduled {
					return predict(o, given, l, count, policy.fused)
				}
				return markLayers(o, given, l.Patterns[:count], policy.save)
			}
			p, err := try(len(l.Patterns))
			if err != nil {
				return nil, err
			}
			if p.Peak >= now {
				continue
			}
			p, count, err := markFewest(p, len(l.Patterns), limit, try)
			if err != nil {
				return nil, err
			}
			list = append(list, ByHand{
				Layer: l.Name, Layers: len(l.Patterns), Marked: count, Policy: policy.name, Patterns: l.Patterns[:count],
				Peak: p.Peak, Before: now, Estimate: !m.Scheduled, Seconds: p.Seconds,
			})
		}
	}

	slices.SortStableFunc(list, func(a, b ByHand) int {
		p, q := plan.Plan{Peak: a.Peak, Seconds: a.Seconds}, plan.Plan{Peak: b.Peak, Seconds: b.Seconds}
		return p.Compare(&q, limit)
	})
	return list, nil
}

// markFewest returns the plan that marks the fewest layers that meet the limit, and their number. best
// marks all, as is done where the limit is missed. The values of the first layers wait longest.
func markFewest(best *plan.Plan, all int, limit uint64, try func(count int) (*plan.Plan, error)) (*plan.Plan, int, error) {
	if !best.Meets(limit) {
		return best, all, nil
	}

	few, enough := 0, all
	for few+1 < enough {
		half := (few + enough) / 2
		p, err := try(half)
		if err != nil {
			return nil, 0, err
		}
		if p.Meets(limit) {
			best, enough = p, half
		} else {
			few = half
		}
	}

	return best, enough, nil
}

// predict returns what jax.checkpoint around the first layers leaves of a scheduled module, by
// its heap. The plan has no module.
func predict(o plan.Options, given *plan.Plan, l opname.Layer, count int, save mark.Policy) (*plan.Plan, error) {
	c, more, err := checkpointed(given.Module, l, count, save, o.Rates)
	if err != nil {
		return nil, err
	}
	p := &plan.Plan{Module: c, Seconds: given.Seconds + more}
	p.Peak, err = p.Heap()
	return p, err
}

// markLayers returns the plan that marks layers in a module that is not scheduled.
func markLayers(o plan.Options, given *plan.Plan, patterns []string, save mark.Policy) (*plan.Plan, error) {
	c := given.Module.Clone()
	for _, pattern := range patterns {
		if _, err := mark.Mark(c, regexp.MustCompile(pattern), save); err != nil {
			return nil, err
		}
	}

	c = c.Clone() // users in order
	p, err := o.Cost(c, "mark", 0)
	if err != nil {
		return nil, err
	}

	// XLA chooses another order for what was marked.
	other, err := o.Reorder(c, p.Peak)
	if err != nil || other == nil {
		return p, err
	}
	return o.Cost(other, "mark", 0)
}
