package inventory

import (
	"slices"
	"testing"
	"time"

	"gpumem/record/smi"
)

// What rises to the end of a recording is said with the time that the free memory lasts at that
// rate; nothing is said of the future where the use fell again, or where times or the total are
// unknown.
func TestReadingsThatRiseSayHowLongTheRestLasts(t *testing.T) {
	const gib = 1 << 30
	rising := smi.Series{Index: 1, Total: 40 * gib, First: gib, Peak: 7 * gib, Last: 7 * gib, Samples: 4, LastRise: 2 * gib, LastOver: 10 * time.Minute}
	with := func(change func(*smi.Series)) smi.Series {
		s := rising
		change(&s)
		return s
	}
	for name, test := range map[string]struct {
		series smi.Series
		want   string
	}{
		"rising":      {rising, "GPU 1: in use rose by 2 GiB in the last 10m0s, to 7 GiB, the most of the recording; at that rate the 33 GiB that are free last for about 3 hours"},
		"slowly":      {with(func(s *smi.Series) { s.LastOver = 30 * time.Hour }), "GPU 1: in use rose by 2 GiB in the last 30h0m0s, to 7 GiB, the most of the recording; at that rate the 33 GiB that are free last for about 21 days"},
		"nearly full": {with(func(s *smi.Series) { s.Total = 7*gib + gib/100 }), "GPU 1: in use rose by 2 GiB in the last 10m0s, to 7 GiB, the most of the recording; at that rate the 10.24 MiB that are free last for about some minutes"},
		"no times":    {with(func(s *smi.Series) { s.LastOver = 0 }), "GPU 1: in use rose by 2 GiB in the last readings, to 7 GiB, the most of the recording"},
		"no total":    {with(func(s *smi.Series) { s.Total = 0 }), "GPU 1: in use rose by 2 GiB in the last 10m0s, to 7 GiB, the most of the recording"},
		"fell before": {with(func(s *smi.Series) { s.Peak = 9 * gib }), "GPU 1: in use rose by 2 GiB in the last 10m0s, to 7 GiB"},
		"steady":      {with(func(s *smi.Series) { s.LastRise = 0 }), ""},
	} {
		var a Account
		a.overTime(test.series)
		want := []string{test.want}
		if test.want == "" {
			want = nil
		}
		if !slices.Equal(a.Odd, want) {
			t.Errorf("%s: %q\nwant %q", name, a.Odd, want)
		}
	}
}
