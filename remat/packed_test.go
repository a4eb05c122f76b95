package remat

import (
	"fmt"
	"testing"

	"gpumem/internal/test/remattest"
)

func TestBestPacked(t *testing.T) {
	for _, n := range []int{2, 5, 9} {
		m := remattest.Parsed(t, remattest.Layers(n, true))
		given, err := (&plan{Module: m}).heap()
		if err != nil {
			t.Fatal(err)
		}
		text := m.String()
		var last float64
		for part := 1.0; part > .5; part -= .1 {
			limit := uint64(part * float64(given))
			p, err := bestPacked(m, limit, options{})
			if err != nil {
				t.Fatal(err)
			}
			remattest.Same(t, m, p.Module)
			heap, err := (&plan{Module: p.Module}).heap() // not what the planner measured
			if err != nil {
				t.Fatal(err)
			}
			if heap > given {
				t.Errorf("%d layers at %.1f: a heap of %d, and %d as given", n, part, heap, given)
			}
			if part > .95 && p.By != "off" {
				t.Errorf("%d layers: planned by %s for what it takes as it is", n, p.By)
			}
			if heap > limit {
				t.Logf("%d layers at %.1f: %d of %d", n, part, heap, limit)
			}
			last = p.Seconds
		}
		if last == 0 {
			t.Error("a plan takes no time")
		}
		if m.String() != text {
			t.Error("the module has changed")
		}
	}
}

// The best plan is the fastest of those that meet the limit, unless its heap is larger than
// that of plans that are no worse in that. All plans here are the given module, with figures.
func TestHeapDecides(t *testing.T) {
	const limit = 80
	type figures struct {
		peak, heap uint64
		seconds    float64
	}
	given := figures{100, 100, 1}
	for _, tc := range []struct {
		name  string
		given figures
		xla   figures
		other []figures
		want  string
	}{
		{"the fastest", given, figures{80, 75, 3}, []figures{{80, 78, 2}}, "other 0"},
		{"its heap is over the limit, XLA's is not", given, figures{80, 70, 3}, []figures{{80, 93, 2}}, "xla"},
		{"so is XLA's, by more", given, figures{80, 95, 3}, []figures{{80, 93, 2}}, "other 0"},
		{"so is XLA's, by less", given, figures{80, 85, 3}, []figures{{80, 93, 2}}, "xla"},
		{"a slower one that is not", given, figures{80, 70, 3}, []figures{{80, 93, 2}, {79, 80, 2.5}}, "other 1"},
		{"XLA's misses the limit", given, figures{90, 70, 3}, []figures{{80, 93, 2}}, "other 0"},
		{"larger than both, and XLA's misses the limit", given, figures{90, 102, 3}, []figures{{80, 103, 2}, {80, 101, 2.5}}, "other 1"},
		{"larger than both, alone", given, figures{90, 99, 3}, []figures{{80, 103, 2}}, "xla"},
		{"the given heap is below the limit", figures{100, 60, 1}, figures{80, 55, 3}, []figures{{80, 70, 2}}, "xla"},
		{"nothing meets the limit", given, figures{90, 90, 3}, []figures{{85, 85, 4}}, "other 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := remattest.Parsed(t, remattest.Layers(2, true))
			made := func(f figures, by string) *plan {
				return &plan{Module: m, Peak: f.peak, Seconds: f.seconds, By: by, packed: f.heap}
			}
			k := &plans{limit: limit, given: made(tc.given, "off"), theirs: made(tc.xla, "xla")}
			k.best = k.given
			k.take(k.theirs)
			for n, f := range tc.other {
				k.take(made(f, fmt.Sprint("other ", n)))
			}
			p, err := k.withHeap()
			if err != nil || p.By != tc.want {
				t.Errorf("%s, %v, want %s", p.By, err, tc.want)
			}
		})
	}
}
