package main

import (
	"testing"

	"gpumem/record/advise"
)

// For how long it fits is about, and said only where something fits.
func TestGrowsText(t *testing.T) {
	n := uint64(13_362)
	g := &advise.Grows{BytesPerStep: 1 << 20, Where: "main (rec.py:8)", RecordedSteps: 64, FitsSteps: &n}
	const want = "It grows by 1 MiB in each step, at main (rec.py:8): it fits 14.55 GiB for about 13,000 steps. gpumem leaks says more. Of the 64 steps that were recorded:"
	if got := growsText(g, "14.55 GiB"); got != want {
		t.Errorf("%s", got)
	}
	g.FitsSteps = nil
	if got := growsText(g, "1 MiB"); got != "It grows by 1 MiB in each step, at main (rec.py:8). gpumem leaks says more. Of the 64 steps that were recorded:" {
		t.Errorf("%s", got)
	}
	for of, want := range map[uint64]uint64{0: 0, 7: 7, 99: 99, 101: 100, 14_327: 14_000, 1<<64 - 1: 18_000_000_000_000_000_000} {
		if got := round(of); got != want {
			t.Errorf("%d: %d, want %d", of, got, want)
		}
	}
}
