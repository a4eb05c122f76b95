package category

import (
	"testing"

	"gpumem/record/internal/kineto"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

// A memory timeline of three steps of six layers with Adam has the categories that PyTorch's
// profiler found: 397,322 numbers of parameters, as many gradients, two of state for each. None
// is sure, for PyTorch's rules are not ours.
func TestTimelineHasPyTorchsOwnCategories(t *testing.T) {
	tr := tracetest.MustRead(t, tape.Formats{kineto.Timeline}, tracetest.Sample(t, "timeline.raw.json.gz"), tape.Options{})
	peak, err := Of(t.Context(), tr, tr.Pools[0])
	if err != nil {
		t.Fatal(err)
	}
	const parameters = 4 * (6*(256*256+256) + 256*10 + 10)
	const blocks = parameters + 512 - 4*10 // of PyTorch's pool; the profiler has parameters as they are
	want := map[Category]uint64{Parameters: parameters, Gradients: blocks, State: 2 * blocks}
	sum := uint64(0)
	for _, p := range peak.Parts {
		if n := want[p.Category]; n > 0 && n != p.Bytes || p.Sure > 0 && p.Category != Unknown {
			t.Errorf("%+v, want %d", p, n)
		}
		delete(want, p.Category)
		sum += p.Bytes
	}
	if len(want) > 0 || sum != peak.Bytes {
		t.Errorf("%v is missing; %d bytes of %d", want, sum, peak.Bytes)
	}
}

// What a pool held before a trace is one block of which nothing is known but its bytes.
func TestWhatATraceDoesNotSayOfItsPastIsUnknown(t *testing.T) {
	tr := tracetest.MustRead(t, tape.Formats{kineto.Format}, tracetest.Sample(t, "kineto.json.gz"), tape.Options{})
	peak, err := Of(t.Context(), tr, tr.Pools[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range peak.Parts {
		for _, l := range p.Lines {
			if l.Where == tape.Rest {
				if p.Category != Unknown || l.Bytes != 34_969_600 {
					t.Errorf("%s: %+v", p.Category, l)
				}
				return
			}
		}
	}
	t.Errorf("%+v", peak)
}
