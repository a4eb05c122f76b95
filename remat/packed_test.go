package remat

import (
	"testing"

	"gpumem/hlo/memory"
	"gpumem/internal/test/remattest"
)

func TestBestPacked(t *testing.T) {
	for _, n := range []int{2, 5, 9} {
		m := remattest.Parsed(t, remattest.Layers(n, true))
		s, err := memory.Assign(m)
		if err != nil {
			t.Fatal(err)
		}
		text := m.String()
		var last float64
		for part := 1.0; part > .5; part -= .1 {
			limit := uint64(part * float64(s.Temp))
			p, err := bestPacked(m, limit, options{})
			if err != nil {
				t.Fatal(err)
			}
			remattest.Same(t, m, p.Module)
			got, err := memory.Assign(p.Module)
			if err != nil {
				t.Fatal(err)
			}
			heap := got.Temp
			if heap > s.Temp {
				t.Errorf("%d layers at %.1f: a heap of %d, and %d as given", n, part, heap, s.Temp)
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
