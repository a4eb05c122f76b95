package main

// Advice on a plan: what holds the memory, and how to come near the plan by hand.

import (
	"fmt"
	"strings"

	"gpumem/hlo"
	"gpumem/hlo/cost"
	"gpumem/remat"
	"gpumem/report"
	"gpumem/size"
)

// A holderAnswer is a part of the program that holds memory at the peak.
type holderAnswer struct {
	Part   string `json:"part"`
	Bytes  uint64 `json:"bytes"`
	Values int    `json:"values"`
}

// A handAnswer is what jax.checkpoint alone would do.
type handAnswer struct {
	Layer    string   `json:"layer"`
	Layers   int      `json:"layers"`
	Marked   int      `json:"marked"`
	Policy   string   `json:"policy"`
	After    uint64   `json:"temp_peak_after"`
	Extra    float64  `json:"extra_compute_percent"`
	Patterns []string `json:"patterns"`
}

// How many are told.
const (
	holdersTold = 5
	handsTold   = 2
)

// advise says what holds the memory of the module as given, and what marking
// layers by hand would do.
func (a *rematAnswer) advise(m *hlo.Module, rates cost.Rates, before float64) error {
	holders, err := remat.Holders(m)
	if err != nil {
		return err
	}
	for _, h := range holders[:min(len(holders), holdersTold)] {
		a.Holders = append(a.Holders, holderAnswer(h))
	}
	plans, err := remat.ByHandPlans(m, a.Limit, rates)
	if err != nil {
		return err
	}
	for _, p := range plans[:min(len(plans), handsTold)] {
		k := handAnswer{Layer: p.Layer, Layers: p.Layers, Marked: p.Marked, Policy: p.Policy, After: p.Peak, Patterns: p.Patterns}
		if before > 0 {
			k.Extra = percentMore(p.Seconds, before)
		}
		a.ByHand = append(a.ByHand, k)
	}
	return nil
}

// writeAdvice is the advice in words.
func (a *rematAnswer) writeAdvice(t *text, width int) {
	line := func(format string, args ...any) { t.raw(report.Wrap(clean(fmt.Sprintf(format, args...)), width)) }
	if len(a.Holders) > 0 {
		t.section("What holds the memory at the peak")
		for _, h := range a.Holders {
			t.raw(fit(fmt.Sprintf("  %10s  %5s  %s", size.Format(h.Bytes), partOf(h.Bytes, a.Before), tailOf(oneLine(h.Part), width-24)), width))
		}
	}
	if len(a.ByHand) == 0 {
		return
	}
	t.section("By hand, with jax.checkpoint alone")
	for n, k := range a.ByHand {
		which := "each"
		if k.Marked < k.Layers {
			which = fmt.Sprintf("the first %d", k.Marked)
		}
		line("  around %s of the %d %s*, policy %s: %s (%s), at %.1f %% more compute", which, k.Layers, k.Layer, k.Policy, size.Format(k.After), partOf(k.After, a.Before), k.Extra)
		if n == 0 {
			layer := strings.TrimRight(k.Layer, "_.")
			line("    Flax: nn.remat(%s, policy=jax.checkpoint_policies.%s); else jax.checkpoint(f, policy=...) around what applies one layer", layer, k.Policy)
		}
	}
}
