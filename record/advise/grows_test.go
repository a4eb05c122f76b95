package advise

import (
	"context"
	"testing"

	"gpumem/device/sim"
	"gpumem/record/formats"
	"gpumem/record/trace"
)

func advised(t *testing.T, path string, total uint64) *Report {
	t.Helper()
	tr, err := formats.Open(context.Background(), path, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	rep, err := Run(t.Context(), tr, Config{Sim: sim.Config{Total: total}})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// A program that keeps something in each step fits for a time: twice the room that is left is
// twice the steps. One that keeps nothing has no such line.
func TestWhatGrowsFitsForATime(t *testing.T) {
	const masks = "../leaks/testdata/masks.gpumem"
	small, large := advised(t, masks, 8<<30), advised(t, masks, 16<<30)
	g := large.Grows
	if g == nil || g.BytesPerStep == 0 || g.RecordedSteps == 0 || g.FitsSteps == nil || g.Where == "" {
		t.Fatalf("%+v", g)
	}
	if got, want := *g.FitsSteps-*small.Grows.FitsSteps, uint64(8<<30)/g.BytesPerStep; got > want+1 || got+1 < want {
		t.Errorf("8 GiB more are %d steps more, want %d", got, want)
	}
	if end := (*g.FitsSteps-g.RecordedSteps)*g.BytesPerStep + large.Advice.UsedPeak; end > large.DeviceBytes || end+g.BytesPerStep < large.DeviceBytes {
		t.Errorf("at the last step %d of %d bytes are taken", end, large.DeviceBytes)
	}
	if none := advised(t, "../../examples/training.txt.gz", 16<<30).Grows; none != nil {
		t.Errorf("%+v", none)
	}
	if tiny := advised(t, masks, 1<<20).Grows; tiny == nil || tiny.FitsSteps != nil {
		t.Errorf("on a card that is too small: %+v", tiny)
	}
}
