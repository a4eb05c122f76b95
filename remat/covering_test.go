package remat

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"gpumem/hlo"
	"gpumem/hlo/memory"
	"gpumem/internal/test/remattest"
)

// TestMinimumExtraHolds: no plan that runs all instructions at their places is
// cheaper than the bound.
func TestMinimumExtraHolds(t *testing.T) {
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
		bound, err := MinimumExtra(m, limit, price)
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
		p := &gapPlan{o: GapOptions{Seconds: price}, peaks: memory.Options{}.NewMeter(), rules: newGapRules(false), result: &GapResult{}}
		g, err := newGapper(m.Entry, int64(limit), memory.Options{}, price, p.called, p.rules)
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
		if extra := total() - was; peak <= limit && extra < bound*(1-1e-6)-1e-6 {
			t.Errorf("limit %d of %d: at least %v, and %v suffices\n%s", limit, before, bound, extra, text)
		}
	})
}

func TestMinimumExtra(t *testing.T) {
	m := remattest.Parsed(t, remattest.Layers(8, true))
	was := remattest.TempPeak(t, m)
	if got, err := MinimumExtra(m, was, remattest.BySize); err != nil || got != 0 {
		t.Errorf("what fits costs %v, %v", got, err)
	}
	if got, err := MinimumExtra(m, 100, remattest.BySize); err != nil || !math.IsInf(got, 1) {
		t.Errorf("what is out of reach costs %v, %v", got, err)
	}
	last := 0.0
	for _, part := range []float64{.9, .7, .5} {
		got, err := MinimumExtra(m, uint64(part*float64(was)), remattest.BySize)
		if err != nil || got < last*.99 {
			t.Errorf("%v of the peak: %v, %v, and more memory %v", part, got, err, last)
		}
		last = got
	}
	if last == 0 {
		t.Error("nothing is proven of half of the peak")
	}
}
