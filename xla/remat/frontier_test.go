package remat

import (
	"testing"
	"time"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/test/remattest"
)

func TestStrideLeavesTimeForTheRest(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		name          string
		percent, step int
		took, left    time.Duration
		want          int
	}{
		{"enough time", 95, 5, s, 60 * s, 5},
		{"just enough", 95, 5, s, 18 * s, 5},
		{"half of it", 95, 5, s, 9 * s, 10},
		{"for three plans", 95, 5, s, 3 * s, 25},
		{"for one", 95, 5, s, s, 50},
		{"none left", 95, 5, s, -s, 90},
		{"at once", 100, 10, 0, s, 10},
		{"at the end", 5, 5, s, 0, 5},
	} {
		if got := stride(test.percent, test.step, test.took, test.left); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}

// TestFrontierHasTheOwnPlan: the plan for the limit is on the curve, so that it has one figure.
func TestFrontierHasTheOwnPlan(t *testing.T) {
	at := func(after uint64, extra float64) *Answer {
		return &Answer{Peaks: Peaks{After: after}, Costs: Costs{Extra: extra}, Request: &Request{Limit: Percent(50)}}
	}
	all := func() []*Answer { return []*Answer{at(100, 0), at(80, 2), at(60, 5.4), at(40, 20)} }
	for _, test := range []struct {
		name string
		own  *Answer
		want []uint64
		has  bool
	}{
		{"cheaper than the curve", at(60, 5.3), []uint64{100, 80, 60, 40}, true},
		{"cheaper and smaller", at(59, 1.9), []uint64{100, 59, 40}, true},
		{"between two", at(70, 3), []uint64{100, 80, 70, 60, 40}, true},
		{"equal to one", at(60, 5.4), []uint64{100, 80, 60, 40}, true},
		{"the smallest", at(10, 90), []uint64{100, 80, 60, 40, 10}, true},
		{"dearer than the curve", at(60, 6), []uint64{100, 80, 60, 40}, false},
	} {
		test.own.setFrontier(all())
		list := test.own.Frontier
		has := false
		for k, p := range list {
			has = has || p == test.own
			if k < len(test.want) && p.After != test.want[k] {
				t.Errorf("%s: plan %d takes %d bytes, want %d", test.name, k, p.After, test.want[k])
			}
		}
		if len(list) != len(test.want) || has != test.has {
			t.Errorf("%s: %d plans, want %d; the own plan among them: %t", test.name, len(list), len(test.want), has)
		}
	}
}

// TestFrontierEndsInTime: without time there is no plan but what is ready at once, and what is
// left out is counted.
func TestFrontierEndsInTime(t *testing.T) {
	m := remattest.Parsed(t, remattest.Layers(6, true))
	a, err := Run(t.Context(), m, Request{Algorithm: "gap", Frontier: 5, FrontierTime: 1, Rates: cost.Rates{Bytes: 3e12, Flops: 4e14}})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(a.Frontier) + a.FrontierLeft; a.FrontierLeft == 0 || n > 20 {
		t.Errorf("%d plans and %d left out, of 20 limits", len(a.Frontier), a.FrontierLeft)
	}
}
