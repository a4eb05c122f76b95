package remat

import (
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
