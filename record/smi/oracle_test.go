package smi

import (
	"os"
	"testing"
	"time"
)

// TestRecordingOfOneGPUPeakAndRise is a public recording: 10,904 MiB at the end, 318 more
// than in the sample before, 77 minutes earlier. It has no sample within ten minutes of its
// last two, so the rise is within "the last minutes" only as far as anybody knows.
func TestRecordingOfOneGPUPeakAndRise(t *testing.T) {
	f, err := os.Open("../../../shared/data/field3/smi-rpf.csv")
	if err != nil {
		t.Skip("the field recordings are not here: ", err)
	}
	defer f.Close()
	all, err := Summary(f)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d series, %v; want 1", len(all), err)
	}
	got := all[0]
	want := Series{
		Index: -1, Total: 24576 << 20, First: 1 << 20, Peak: 10904 << 20, Last: 10904 << 20, PeakLine: 8, LastLine: 9,
		PeakTime: time.Unix(1764194301, 0).UTC(), Samples: 8, Over: 5347 * time.Second, LastRise: 318 << 20, LastOver: 4747 * time.Second,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
