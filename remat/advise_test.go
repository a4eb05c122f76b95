package remat

import (
	"regexp"
	"slices"
	"testing"

	"gpumem/hlo/cost"
	"gpumem/internal/test/remattest"
)

func TestHolders(t *testing.T) {
	m := remattest.Parsed(t, remattest.Layers(6, true))
	got, err := Holders(m)
	if err != nil || len(got) == 0 {
		t.Fatal(got, err)
	}
	var sum uint64
	for n, h := range got {
		sum += h.Bytes
		if h.Values == 0 || n > 0 && h.Bytes > got[n-1].Bytes {
			t.Errorf("%+v", got)
		}
	}
	if sum != remattest.TempPeak(t, m) {
		t.Errorf("%d bytes held, and the peak is %d", sum, remattest.TempPeak(t, m))
	}
	if !slices.ContainsFunc(got, func(h Holder) bool { return h.Part == "layer_*/tanh" && h.Bytes >= 5*1024 }) {
		t.Errorf("no layers among %+v", got)
	}
}

func TestByHandPlans(t *testing.T) {
	m := remattest.Parsed(t, remattest.Layers(12, true))
	was := remattest.TempPeak(t, m)
	for _, part := range []float64{.9, .7, .1} {
		limit := uint64(part * float64(was))
		plans, err := byHandPlans(m, limit, cost.Rates{})
		if err != nil || len(plans) == 0 {
			t.Fatal(plans, err)
		}
		for _, p := range plans {
			if p.Layer != "layer_" || p.Layers != 12 || p.Marked < 1 || p.Marked > 12 || len(p.Patterns) != p.Marked {
				t.Errorf("%+v", p)
			}
			if met := p.Peak <= limit; part > .5 && !met || part < .5 && met {
				t.Errorf("limit %d of %d: %+v", limit, was, p)
			}
			// What is told is what the patterns do.
			c := remattest.Parsed(t, remattest.Layers(12, true))
			save := SaveNothing
			if p.Policy == "dots_saveable" {
				save = SaveDots
			}
			for _, pattern := range p.Patterns {
				if _, err := Mark(c, regexp.MustCompile(pattern), save); err != nil {
					t.Fatal(err)
				}
			}
			if got := remattest.TempPeak(t, remattest.Written(t, c)); got != p.Peak {
				t.Errorf("%d bytes, and %d are told", got, p.Peak)
			}
			remattest.Same(t, m, c)
		}
	}
	if plans, err := byHandPlans(remattest.Parsed(t, remattest.Layers(4, false)), 0, cost.Rates{}); err != nil || len(plans) > 0 {
		t.Errorf("without names: %+v, %v", plans, err)
	}
}
