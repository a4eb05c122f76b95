package gap

import (
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/test/remattest"
)

// TestHoldsAddsUp: the parts are the peak, and what is called is what the meter has for it.
func TestHoldsAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := remattest.Parsed(t, remattest.Random(t))
		meter := memory.NewMeter(memory.Options{})
		h, err := HoldsAt(m, meter)
		if err != nil {
			t.Fatal(err)
		}
		var called uint64
		for _, c := range memory.ControlFlow(h.At) {
			p, err := meter.Peak(c)
			if err != nil {
				t.Fatal(err)
			}
			called += uint64(p.Bytes)
		}
		if sum := h.Once + h.Own + h.Called + h.Others; sum != remattest.TempPeak(t, m) || h.Called != called {
			t.Errorf("%+v, want %d in all and %d called\n%s", h, remattest.TempPeak(t, m), called, m)
		}
	})
}
