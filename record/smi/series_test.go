package smi

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestSummaries(t *testing.T) {
	const mib = 1 << 20
	csv := func(rows ...string) string {
		return "timestamp, index, memory.used [MiB], memory.total [MiB]\n" + strings.Join(rows, "\n")
	}
	hours := func() string { // 8 hours, a sample a second, 1 MiB a minute more, and down at the end
		var b strings.Builder
		start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		for i := range 8 * 3600 {
			fmt.Fprintf(&b, "%s, 0, %d MiB, 81559 MiB\n", start.Add(time.Duration(i)*time.Second).Format("2006/01/02 15:04:05.000"), 100+i/60)
		}
		return csv(b.String() + start.Add(8*time.Hour).Format("2006/01/02 15:04:05.000") + ", 0, 50 MiB, 81559 MiB")
	}
	for _, c := range []struct{ name, text, want string }{
		{"one reading is no series", csv("2026/01/02 03:04:05.000, 0, 5 MiB, 10 MiB"), ""},
		{"of a short recording the second half", csv("2026/01/02 03:04:05.000, 0, 5 MiB, 10 MiB", "2026/01/02 03:05:05.000, 0, 9 MiB, 10 MiB", "2026/01/02 03:06:05.000, 0, 8 MiB, 10 MiB"),
			"0: 5 9@3 8 of 10, 3 samples in 2m0s, -1 in 1m0s\n"},
		{"a time that cannot be read is the one before", csv("2026/01/02 03:04:05.000, 0, 5 MiB, 10 MiB", "2026/01/02 03:0?:05.000, 0, 9 MiB, 10 MiB", "2026/01/02 03:06:05.000, 0, 8 MiB, 10 MiB"),
			"0: 5 9@3 8 of 10, 3 samples in 2m0s, -1 in 2m0s\n"},
		{"two GPUs by index", csv("2026/01/02 03:04:05.000, 0, 5 MiB, 10 MiB", "2026/01/02 03:04:05.010, 1, 1 MiB, 10 MiB",
			"2026/01/02 03:04:06.000, 0, 6 MiB, 10 MiB", "2026/01/02 03:04:06.010, 1, 1 MiB, 10 MiB"),
			"0: 5 6@4 6 of 10, 2 samples in 1s, +1 in 1s\n1: 1 1@3 1 of 10, 2 samples in 1s, +0 in 1s\n"},
		{"two GPUs by place in their sweep", "timestamp, memory.used [MiB]\n2026/01/02 03:04:05.100, 5 MiB\n2026/01/02 03:04:05.120, 1 MiB\n2026/01/02 03:04:07.100, 7 MiB\n2026/01/02 03:04:07.125, 2 MiB",
			"-1: 5 7@4 7 of 0, 2 samples in 2s, +2 in 2s\n-1: 1 2@5 2 of 0, 2 samples in 2s, +1 in 2s\n"},
		{"sixteen rows that nothing tells apart are GPUs", "memory.used [MiB], memory.total [MiB]\n" + strings.Repeat("5 MiB, 10 MiB\n", 16), ""},
		{"more are one GPU", "memory.used [MiB], memory.total [MiB]\n" + strings.Repeat("5 MiB, 10 MiB\n", 16) + "9 MiB, 10 MiB\n8 MiB, 10 MiB\n",
			"-1: 5 9@18 8 of 10, 18 samples in 0s, +3 in 0s\n"},
		{"a heading before each run", strings.Repeat("memory.used [MiB], memory.total [MiB]\n5 MiB, 10 MiB\n6 MiB, 10 MiB\n", 20), "-1: 5 5@2 5 of 10, 20 samples in 0s, +0 in 0s\n-1: 6 6@3 6 of 10, 20 samples in 0s, +0 in 0s\n"},
		{"one column without units", "memory.used [MiB]\n" + strings.Repeat("5\n", 20) + "noise\n7\n", "-1: 5 5@2 5 of 0, 20 samples in 0s, +0 in 0s\n"},
		{"over midnight by the time of the day", "#Time        gpu    fb  bar1\n#HH:MM:SS    Idx    MB    MB\n 23:59:50      0   100     3\n 00:00:10      0   150     3\n",
			"0: 100 150@4 150 of 0, 2 samples in 20s, +50 in 20s\n"},
		{"over two midnights", "#Time        gpu    fb  bar1\n#HH:MM:SS    Idx    MB    MB\n 23:00:00      0   100     3\n 01:00:00      0   150     3\n 23:00:00      0   160     3\n 01:00:00      0   170     3\n",
			"0: 100 170@6 170 of 0, 4 samples in 26h0m0s, +10 in 2h0m0s\n"},
		{"never used", csv("2026/01/02 03:04:05.000, 0, 0 MiB, 10 MiB", "2026/01/02 03:05:05.000, 0, 0 MiB, 10 MiB"), "0: 0 0@2 0 of 10, 2 samples in 1m0s, +0 in 1m0s\n"},
		{"tables one after the other", strings.Repeat("|   0  Tesla T4  Off | 00000000:00:04.0 Off | 0 |\n| N/A 54C P8 16W / 70W | 10MiB / 15079MiB | 0% Default |\n", 3),
			"0: 10 10@2 10 of 15079, 3 samples in 0s, +0 in 0s\n"},
		{"eight hours", hours(), "0: 100 579@28742 50 of 81559, 28801 samples in 8h0m0s, -519 in 10m40s\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sums, err := Summary(strings.NewReader(c.text))
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for _, s := range sums {
				fmt.Fprintf(&b, "%d: %d %d@%d %d of %d, %d samples in %v, %+d in %v\n", s.Index, s.First/mib, s.Peak/mib, s.PeakLine, s.Last/mib, s.Total/mib, s.Samples, s.Over, s.LastRise/mib, s.LastOver)
			}
			if b.String() != c.want {
				t.Errorf("got\n%swant\n%s", b.String(), c.want)
			}
		})
	}
}

// However many GPUs a recording names, as one of many machines may, the first 64 are kept.
func TestSeriesAreBounded(t *testing.T) {
	var text strings.Builder
	text.WriteString("timestamp, uuid, memory.used [MiB], memory.total [MiB]\n")
	for i := range 3 * (maxSeries + 10) {
		fmt.Fprintf(&text, "2026/01/02 03:04:%02d.000, GPU-%08x-0000-0000-0000-000000000000, 5 MiB, 10 MiB\n", i%3, i/3)
	}
	sums, err := Summary(strings.NewReader(text.String()))
	if err != nil || len(sums) != maxSeries {
		t.Errorf("%d GPUs, %v", len(sums), err)
	}
}
