package leaks_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"gpumem/record/formats"
	"gpumem/record/leaks"
	"gpumem/record/trace"
)

// TestPeak: what is live when most is, a refused request included, the largest first.
func TestPeak(t *testing.T) {
	for _, tc := range []struct{ name, events, want string }{
		{"before the end", "a w 100\na x 30\na y 30\nf x\nf y\na z 5\n", "100 in 1 of requests of 100 B, 60 in 2 of requests of 30 B"},
		{"the first of two", "a w 100\nf w\na x 60\na y 40\n", "100 in 1 of requests of 100 B"},
		{"overflow", "a w 18446744073709551615\na x 18446744073709551615\nf w\nf x\n", "18446744073709551615 in 1 of requests of 16.00 EiB"},
		{"nothing", "a w 0\n", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr, err := formats.Read(context.Background(), strings.NewReader(tc.events), "run.txt", trace.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			held, err := leaks.Peak(context.Background(), tr, leaks.Config{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, h := range held {
				got = append(got, fmt.Sprintf("%d in %d of %s", h.Bytes, h.Blocks, h.Site))
			}
			if strings.Join(got, ", ") != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// TestPeakOfSnapshot: blocks of one line are added up, and a request that was refused is live.
func TestPeakOfSnapshot(t *testing.T) {
	tr, err := formats.Open(context.Background(), "../trace/testdata/torch2150.pickle", trace.Options{KeepPaths: true})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	held, err := leaks.Peak(context.Background(), tr, leaks.Config{})
	if err != nil {
		t.Fatal(err)
	}
	sum := uint64(0)
	for _, h := range held {
		sum += h.Bytes
	}
	if sum != tr.Pools[0].PeakLive || held[0].Bytes < 5368709120 || !strings.Contains(held[0].Site, ".py:") {
		t.Errorf("%d of %d, %+v", sum, tr.Pools[0].PeakLive, held[0])
	}
	if _, err := leaks.Peak(context.Background(), tr, leaks.Config{Pool: "x"}); err == nil {
		t.Error("no error for a pool that is not there")
	}
}
