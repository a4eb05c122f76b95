package remat

import (
	"slices"
	"testing"

	"gpumem/hlo/memory"
	"gpumem/internal/test/remattest"
)

func TestHolders(t *testing.T) {
	m := remattest.Parsed(t, remattest.Layers(6, true))
	got, err := holders(m, memory.NewMeter(memory.Options{}), nil)
	if err != nil || len(got) == 0 {
		t.Fatal(got, err)
	}
	var sum uint64
	for n, h := range got {
		sum += h.Bytes
		if h.Values == 0 || n > 0 && h.Bytes > got[n-1].Bytes {
			t.Errorf("%+v", got)
		}
	}
	if sum != remattest.TempPeak(t, m) {
		t.Errorf("%d bytes held, and the peak is %d", sum, remattest.TempPeak(t, m))
	}
	if !slices.ContainsFunc(got, func(h Holder) bool { return h.Part == "layer_*/tanh" && h.Bytes >= 5*1024 }) {
		t.Errorf("no layers among %+v", got)
	}
}
