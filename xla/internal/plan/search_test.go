package plan

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/gap"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/test/remattest"
	"gpumem/xla/internal/verify"
)

// TestSearch: the same number of rounds finds the same plan each time, in what is called, too. A
// search never makes the best plan worse, and what a module computes stays the same.
func TestSearch(t *testing.T) {
	rates := cost.Rates{Bytes: 1e9, Flops: 1e9}
	rapid.Check(t, func(t *rapid.T) {
		text := remattest.Random(t)
		m, err := hlo.ParseString(text)
		if err != nil {
			t.Fatal(err)
		}
		before, _, err := memory.TempPeak(m, memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		sum := remattest.Meaning(m)
		limit := uint64(float64(before) * rapid.Float64Range(0.2, 1).Draw(t, "limit"))
		o := gap.Options{Limit: limit, Seconds: remattest.BySize, Rounds: 5}
		var texts [2]string
		for k := range texts {
			c, err := hlo.ParseString(text)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := gap.Run(c, o); err != nil {
				t.Fatal(err)
			}
			if err := verify.Module(c); err != nil || remattest.Meaning(c) != sum {
				t.Fatalf("%v, or it computes something else\n%s\n%s", err, text, c)
			}
			texts[k] = c.String()
		}
		if texts[0] != texts[1] {
			t.Errorf("once\n%s\nand once\n%s", texts[0], texts[1])
		}
		greedy, err := bestPlan(m, limit, rates)
		if err != nil {
			t.Fatal(err)
		}
		planner, err := newPlanner(m, Options{Rates: rates})
		if err != nil {
			t.Fatal(err)
		}
		best, err := planner.Best(limit, time.Microsecond)
		if err != nil {
			t.Fatal(err)
		}
		if best.worseThan(greedy, limit) {
			t.Errorf("after the search %d bytes in %v s by %s, before %d in %v by %s", best.Peak, best.Seconds, best.By, greedy.Peak, greedy.Seconds, greedy.By)
		}
		if remattest.Meaning(best.Module) != sum {
			t.Errorf("it computes something else\n%s\n%s", text, best.Module)
		}
	})
}

// worseThan reports whether a search must not return p where q is known. If q misses the limit, p
// may take little more than q, but only if it is faster.
func (p *Plan) worseThan(q *Plan, limit uint64) bool {
	if q.Meets(limit) || p.Meets(limit) {
		return q.betterThan(p, limit)
	}
	return p.Peak > uint64(nearly*float64(q.Peak)) || p.Peak > q.Peak && p.Seconds >= q.Seconds || p.Peak == q.Peak && p.Seconds > q.Seconds
}

// TestMissedLimitTakesFasterPlanOfLittleMore: what misses the limit by little more is better if it is faster,
// and worse if it only is as fast.
func TestMissedLimitTakesFasterPlanOfLittleMore(t *testing.T) {
	const limit = 20000
	given := &Plan{Peak: 90000, Seconds: 1e-4, By: "off"}
	gap := &Plan{Peak: 29696, Seconds: 1.87e-4, By: "gap"}
	for _, c := range []struct {
		name     string
		searched Plan
		want     string
	}{
		{"faster", Plan{Peak: 29712, Seconds: 1.79e-4}, "searched"},
		{"faster, and too large", Plan{Peak: 30912, Seconds: 1.79e-4}, "gap"},
		{"as fast", Plan{Peak: 29712, Seconds: 1.87e-4}, "gap"},
		{"smaller", Plan{Peak: 29700, Seconds: 3e-4}, "gap"},
	} {
		c.searched.By = "searched"
		k := &candidates{Planner: &Planner{Given: given}, limit: limit, best: given}
		k.takePlan(&c.searched) // the order of plans must not matter
		k.takePlan(gap)
		k.preferFaster()
		if k.best.By != c.want {
			t.Errorf("%s: %s is chosen, want %s", c.name, k.best.By, c.want)
		}
		if k.best.worseThan(gap, limit) {
			t.Errorf("%s: %d bytes in %v s are worse than %d in %v", c.name, k.best.Peak, k.best.Seconds, gap.Peak, gap.Seconds)
		}
	}

	// A slower plan that takes least must not bring back the larger of two that are as fast.
	k := &candidates{Planner: &Planner{Given: &Plan{Peak: 30100, Seconds: 1e-4, By: "off"}}, limit: limit}
	k.best = k.Given
	k.takePlan(&Plan{Peak: 29900, Seconds: 1e-4, By: "rescheduled"})
	k.takePlan(&Plan{Peak: 29712, Seconds: 3e-4, By: "searched"})
	if k.preferFaster(); k.best.By != "rescheduled" {
		t.Errorf("%s is chosen, want the smaller of two that are as fast", k.best.By)
	}
}

// TestSearchFinds: the greedy does not come to these limits, or not as cheaply.
func TestSearchFinds(t *testing.T) {
	met, cheaper := 0, 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := randomSmall(r)
		var peaks [2]uint64
		var extra [2]float64
		limit := uint64(float64(remattest.TempPeak(t, remattest.Parsed(t, s.text(s.given())))) * (.4 + .6*r.Float64()))
		for k, rounds := range []int{0, 100} {
			m := remattest.Parsed(t, s.text(s.given()))
			if _, err := gap.Run(m, gap.Options{Limit: limit, Seconds: remattest.BySize, Rounds: rounds}); err != nil {
				t.Fatal(err)
			}
			for v := range s.names {
				s.prices[v] = float64(s.sizes[v])
			}
			peaks[k], extra[k] = remattest.TempPeak(t, m), s.extra(t, m)
		}
		switch {
		case peaks[0] > limit && peaks[1] <= limit:
			met++
		case peaks[0] <= limit && peaks[1] <= limit && extra[1] < extra[0]:
			cheaper++
		case peaks[0] <= limit && peaks[1] > limit:
			t.Errorf("seed %d: %d bytes, before the search %d, limit %d", seed, peaks[1], peaks[0], limit)
		}
	}
	t.Logf("%d limits are met that were not, %d plans are cheaper", met, cheaper)
	if met == 0 || cheaper == 0 {
		t.Error("a search finds nothing")
	}
}
