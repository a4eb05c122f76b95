package remat

import (
	"regexp"
	"testing"

	"gpumem/internal/test/remattest"
)

func TestByHandPlans(t *testing.T) {
	m := remattest.Parsed(t, remattest.Layers(12, true))
	was := remattest.TempPeak(t, m)
	for _, part := range []float64{.9, .7, .1} {
		limit := uint64(part * float64(was))
		plans, err := byHandPlans(m, limit, options{})
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
	if plans, err := byHandPlans(remattest.Parsed(t, remattest.Layers(4, false)), 0, options{}); err != nil || len(plans) > 0 {
		t.Errorf("without names: %+v, %v", plans, err)
	}
}
