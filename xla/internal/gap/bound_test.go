package gap

import (
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/test/remattest"
)

// TestTimeBoundHolds: no plan that runs all instructions at their places is
// cheaper than the bound.
func TestTimeBoundHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := remattest.Random(t)
		if rapid.Bool().Draw(t, "training") {
			text = remattest.Layers(rapid.IntRange(2, 9).Draw(t, "layers"), true)
		}
		m, err := hlo.ParseString(text)
		if err != nil {
			t.Fatal(err)
		}
		before, _, err := memory.TempPeak(m, memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		price := func(i *hlo.Instruction) float64 {
			if i.Opcode == hlo.Bitcast || i.Opcode == hlo.GetTupleElement || i.Opcode == hlo.Constant {
				return 0
			}
			return remattest.BySize(i)
		}
		limit := uint64(float64(before) * rapid.Float64Range(0.1, 1).Draw(t, "limit"))
		least, err := LeastSeconds(m, memory.NewMeter(memory.Options{}), limit, price)
		if err != nil {
			t.Fatal(err)
		}
		total := func() (sum float64) {
			for _, i := range m.Entry.Instructions {
				sum += price(i)
			}
			return sum
		}
		was := total()
		p := newModulePlan(Options{Seconds: price})
		g, err := p.newPlanner(m.Entry, int64(limit))
		if err != nil {
			t.Fatal(err)
		}
		g.still = true
		g.run()
		g.build()
		peak, _, err := memory.TempPeak(m, memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if extra := total() - was; peak <= limit && extra < least*(1-1e-6)-1e-6 {
			t.Errorf("limit %d of %d: at least %v, and %v suffices\n%s", limit, before, least, extra, text)
		}
	})
}
