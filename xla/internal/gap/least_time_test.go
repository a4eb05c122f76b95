package gap

import (
	"math"
	"testing"

	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/test/remattest"
)

func TestLeastSeconds(t *testing.T) {
	m := remattest.Parsed(t, remattest.Layers(8, true))
	was := remattest.TempPeak(t, m)
	if got, err := LeastSeconds(m, memory.NewMeter(memory.Options{}), was, remattest.BySize); err != nil || got != 0 {
		t.Errorf("what fits costs %v, %v", got, err)
	}
	if got, err := LeastSeconds(m, memory.NewMeter(memory.Options{}), 100, remattest.BySize); err != nil || !math.IsInf(got, 1) {
		t.Errorf("what is out of reach costs %v, %v", got, err)
	}
	last := 0.0
	for _, part := range []float64{.9, .7, .5} {
		got, err := LeastSeconds(m, memory.NewMeter(memory.Options{}), uint64(part*float64(was)), remattest.BySize)
		if err != nil || got < last*.99 {
			t.Errorf("%v of the peak: %v, %v, and more memory %v", part, got, err, last)
		}
		last = got
	}
	if last == 0 {
		t.Error("nothing is proven of half of the peak")
	}
}
