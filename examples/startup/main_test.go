package main

import (
	"errors"
	"testing"

	"gpumem/device"
	"gpumem/internal/test/story"
)

func TestStory(t *testing.T) { story.Check(t, run) }

func TestStart(t *testing.T) {
	for _, c := range []struct {
		spec   string
		backs  bool // the pool gets less than it asks for
		starts bool
	}{
		{"jax", true, false},
		{"jax:fraction=.5", false, true},
		{"jax:preallocate=false", false, true}, // the page's other cure
		{"platform", false, true},
	} {
		o, err := start(c.spec)
		if err != nil {
			t.Errorf("%s: %v", c.spec, err)
			continue
		}
		if (o.refusals > 0) != c.backs {
			t.Errorf("%s: %d refusals; backs off is %v, want %v", c.spec, o.refusals, !c.backs, c.backs)
		}
		if (o.cudnn == nil) != c.starts {
			t.Errorf("%s: cuDNN's answer is %v; starts is %v, want %v", c.spec, o.cudnn, !c.starts, c.starts)
		}
		if o.cudnn != nil && !errors.Is(o.cudnn, device.ErrOutOfMemory) {
			t.Errorf("%s: %v, want the device's out of memory", c.spec, o.cudnn)
		}
	}
	if _, err := start("nonsense"); err == nil {
		t.Error("an unknown policy is not an error")
	}
}
