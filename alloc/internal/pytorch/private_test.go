package pytorch_test

import (
	"errors"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/pytorch"
	"gpumem/device/sim"
)

// TestEndOfNoCapture: a capture that did not begin cannot end. A count below 0 would have
// later captures pass unseen.
func TestEndOfNoCapture(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  pytorch.Config
		want error
	}{
		{"captures are counted", pytorch.Config{}, alloc.ErrBadRequest},
		{"pools are counted in their place", pytorch.Config{PoolCaptures: true}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dev, err := sim.New(sim.Config{Total: 1 << 30})
			if err != nil {
				t.Fatal(err)
			}
			a, err := pytorch.New(dev, tc.cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := a.BeginCapture(); err != nil {
				t.Error(err)
			}
			if err := a.EndCapture(); err != nil {
				t.Error(err)
			}
			if err := a.EndCapture(); !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
			if err := a.EndCapture(); !errors.Is(err, alloc.ErrClosed) {
				t.Error(err)
			}
		})
	}
}
