package main

import (
	"strings"
	"testing"

	"gpumem/internal/report"
	"gpumem/record/advise"
)

// For how long it fits is about, and said only where something fits.
func TestGrowsText(t *testing.T) {
	n := uint64(13_362)
	g := &advise.Grows{BytesPerStep: 1 << 20, Where: "main (rec.py:8)", RecordedSteps: 64, FitsSteps: &n}
	const want = "It grows by 1 MiB in each step, at main (rec.py:8): if it goes on as in the 64 steps that were seen, it fits 14.55 GiB for about 13,000 steps. gpumem leaks says more. Of the 64 steps that were recorded:"
	if got := growsText(g, true, "14.55 GiB", 0); got != want {
		t.Errorf("%s", got)
	}
	for steps, begins := range map[uint64]string{13_362: "It fits for 13,362 steps. It grows by ", 13_363: "It does not fit for 13,363 steps, if it goes on so. It grows by "} {
		if got := growsText(g, true, "14.55 GiB", steps); !strings.HasPrefix(got, begins) {
			t.Errorf("%s", got)
		}
	}
	g.FitsSteps = nil
	const unknown = "It grows by 1 MiB in each step, at main (rec.py:8). What it needs at the peaks of the 64 steps that were seen did not grow evenly, " +
		"or too few ran: for how many it fits 14.55 GiB is unknown. gpumem leaks says more. Of the 64 steps that were recorded:"
	for steps, begins := range map[uint64]string{0: "", 64: "It fits for 64 steps. ", 65: "Whether it fits for 65 steps is unknown. "} {
		if got := growsText(g, true, "14.55 GiB", steps); got != begins+unknown {
			t.Errorf("%s", got)
		}
	}
	if got := growsText(g, false, "1 MiB", 5); got != "It grows by 1 MiB in each step, at main (rec.py:8). gpumem leaks says more. Of the 64 steps that were recorded:" {
		t.Errorf("%s", got)
	}
	for of, want := range map[uint64]uint64{0: 0, 7: 7, 99: 99, 101: 100, 14_327: 14_000, 1<<64 - 1: 18_000_000_000_000_000_000} {
		if got := report.Round(of); got != want {
			t.Errorf("%d: %d, want %d", of, got, want)
		}
	}
}
