package pytorch_test

import (
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/pytorch"
	"gpumem/device/sim"
)

// TestCauseOfARefusal: the account of a refusal has the size that PyTorch rounds to.
func TestCauseOfARefusal(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 100 << 20})
	if err != nil {
		t.Fatal(err)
	}
	a, err := pytorch.New(dev, pytorch.Config{Divisions: [16]uint64{0, 0, 0, 0, 0, 0, 4}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ bytes, want uint64 }{{1, 512}, {600, 1024}, {1000001, 1000448}, {65 << 20, 80 << 20}} {
		if got := alloc.Explain(a, alloc.Request{Bytes: c.bytes}, -1).Rounded; got != c.want {
			t.Errorf("%d bytes are rounded to %d, want %d", c.bytes, got, c.want)
		}
	}
}
