package schedule

import (
	"slices"
	"testing"
)

func TestSizesFollowTheMixture(t *testing.T) {
	c := Config{Claims: 10000, Mixture: Mixture, Seed: 1}
	sizes := c.Sizes()
	for _, p := range c.Mixture {
		n := 0
		for _, s := range sizes {
			if s == p.Bytes {
				n++
			}
		}
		if want := p.Weight * 100; n < want*9/10 || n > want*11/10 {
			t.Errorf("%d claims have %d bytes, want about %d", n, p.Bytes, want)
		}
	}
	if !slices.Equal(sizes, c.Sizes()) {
		t.Error("the same seed has other sizes")
	}
}

func TestFirstFitTakesTheLargestFirst(t *testing.T) {
	for _, tc := range []struct {
		name  string
		sizes []int64
		want  int
	}{
		{"none", nil, 0},
		{"one", []int64{80 * gib}, 1},
		{"two halves", []int64{40 * gib, 40 * gib}, 1},
		{"order does not matter", []int64{20 * gib, 60 * gib, 20 * gib, 60 * gib}, 2},
		{"one byte too many", []int64{40 * gib, 40*gib + 1<<20}, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := firstFit(tc.sizes, 80*gib); got != tc.want {
				t.Errorf("%d GPUs, want %d", got, tc.want)
			}
		})
	}
}

func TestPackFindsClaimsBeyondMemory(t *testing.T) {
	p := Pack([]int64{60 * gib, 40 * gib, 10 * gib}, map[string]int64{"a/0": 100 * gib, "b/0": 10 * gib}, 2, 80*gib)
	if want := (Packing{Placed: 3, Bytes: 110 * gib, Used: 2, Least: 2, Nodes: 2, Over: 1, Largest: 70 * gib}); p != want {
		t.Errorf("%+v, want %+v", p, want)
	}
}
