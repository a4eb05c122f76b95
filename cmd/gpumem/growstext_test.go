package main

import (
	"strings"
	"testing"

	"gpumem/internal/report"
	"gpumem/record/advise"
	"gpumem/record/fit"
)

// For how long it fits is about, and said only where something fits.
func TestGrowsText(t *testing.T) {
	n := uint64(13_362)
	for _, tc := range []struct {
		name string
		of   advise.Grows
		fits bool
		want string
	}{
		{"evenly", advise.Grows{BytesPerStep: 1 << 20, Where: "main (rec.py:8)", RecordedSteps: 64, FitsSteps: &n}, true,
			"It grows by 1 MiB in each step, at main (rec.py:8): if it goes on as in the 64 steps that were seen, it fits 14.55 GiB for about 13,000 steps. "},
		{"unevenly", advise.Grows{BytesPerStep: 1 << 20, Where: "main (rec.py:8)", RecordedSteps: 64}, true,
			"It grows by 1 MiB in each step, at main (rec.py:8). What it needs at the peaks of the 64 steps that were seen did not grow evenly, " +
				"or too few ran: for how many it fits 14.55 GiB is unknown. "},
		{"fits for none", advise.Grows{BytesPerStep: 1 << 20, Where: "main (rec.py:8)", RecordedSteps: 64}, false, "It grows by 1 MiB in each step, at main (rec.py:8). "},
		{"at no place", advise.Grows{BytesPerStep: 1 << 20, RecordedSteps: 64, FitsSteps: &n}, true,
			"It grows by about 1 MiB in each step, at no one place: if it goes on as in the 64 steps that were seen, it fits 14.55 GiB for about 13,000 steps. "},
		{"in unknown steps", advise.Grows{Grown: 35 << 20}, true,
			"It grows by 35 MiB at least in the recording, at no one place, and in how many steps is unknown: for how many it fits 14.55 GiB is unknown. "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := growsText(&tc.of, tc.fits, "14.55 GiB"); got != tc.want+"gpumem leaks says more." {
				t.Errorf("%s", got)
			}
		})
	}
	for of, want := range map[uint64]uint64{0: 0, 7: 7, 99: 99, 101: 100, 14_327: 14_000, 1<<64 - 1: 18_000_000_000_000_000_000} {
		if got := report.Round(of); got != want {
			t.Errorf("%d: %d, want %d", of, got, want)
		}
	}
}

// TestForSteps: what the text says of the steps that a program is to make is what Fits, and with it the exit status, says. What
// it says of fewer steps names them: it said last that a program fits as it is which does not.
func TestForSteps(t *testing.T) {
	n := uint64(2_400)
	for _, tc := range []struct {
		name     string
		fits     bool
		steps    uint64
		grows    *advise.Grows
		begin    string // of the answer
		recorded string // of the verdict
	}{
		{"fits", true, 2000, &advise.Grows{BytesPerStep: 1, RecordedSteps: 61, FitsSteps: &n}, "It fits 4 GiB for 2,000 steps. It grows by ", "For the 61 steps that were recorded, it fits as it is: "},
		{"does not", false, 8000, &advise.Grows{BytesPerStep: 1, RecordedSteps: 61, FitsSteps: &n}, "It does not fit 4 GiB for 8,000 steps, if it goes on so. It grows by ",
			"For the 61 steps that were recorded, it fits as it is: "},
		{"is unknown", false, 62, &advise.Grows{BytesPerStep: 1, RecordedSteps: 61}, "It is not known to fit 4 GiB for 62 steps. It grows by ", "For the 61 steps that were recorded, it fits as it is: "},
		{"of unknown steps", false, 1, &advise.Grows{Grown: 1 << 20}, "It is not known to fit 4 GiB for 1 step. It grows by ", "For the steps that were recorded, it fits as it is: "},
		{"not asked for", true, 0, &advise.Grows{BytesPerStep: 1, RecordedSteps: 61, FitsSteps: &n}, "It grows by ", "For the 61 steps that were recorded, it fits as it is: "},
		{"too slowly", true, 8000, nil, "It fits as it is: ", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			card := uint64(4 << 30)
			c := &advise.Candidate{Fits: true}
			rep := &fit.Report{
				Report: &advise.Report{DeviceBytes: 4 << 30, FitsAsItIs: true, Advice: c, Candidates: []*advise.Candidate{c}, Grows: tc.grows, SmallestCard: &card},
				Peaks:  []fit.Peak{{}},
			}
			rep.Fits, rep.For = tc.fits, tc.steps
			if tc.grows != nil {
				rep.Doubts = []fit.Doubt{{Kind: fit.Grows}}
			} else {
				rep.Grows = &advise.Grows{BytesPerStep: 4, RecordedSteps: 61}
			}
			got := strings.Join(pageLines(func(t *text) { writeFit(t, rep) }), "\n")
			if !strings.HasPrefix(got, tc.begin) || !strings.Contains(got, "\n"+tc.recorded) || strings.Count(got, "it fits as it is: ")+strings.Count(got, "It fits as it is: ") != 1 {
				t.Errorf("%s", got)
			}
			if !strings.Contains(got, "\nThe smallest card for the ") {
				t.Errorf("the smallest card is for any number of steps: %s", got)
			}
		})
	}
}
