package leaks_test

import (
	"context"
	"strings"
	"testing"

	"gpumem/record/formats"
	"gpumem/record/leaks"
	"gpumem/record/trace"
)

// A profile of two devices, and its programs: each line once for each pool, and the sum of
// the lines is what the recording holds.
func TestLiveAddsUpToTheProfile(t *testing.T) {
	tr := open(t, "../trace/testdata/jax092.pprof")
	held, err := leaks.Live(context.Background(), tr, leaks.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var bytes uint64
	seen := map[[2]string]bool{}
	for i, h := range held {
		bytes += h.Bytes
		if i > 0 && h.Bytes > held[i-1].Bytes {
			t.Errorf("%v after %v", h, held[i-1])
		}
		if key := [2]string{h.Pool, h.Site}; seen[key] {
			t.Errorf("%v twice", key)
		} else {
			seen[key] = true
		}
		if strings.Contains(h.Site, "site-packages") || h.Pool != "executable" && h.Stack == "" {
			t.Errorf("%+v", h)
		}
	}
	if bytes != tr.PeakLive {
		t.Errorf("%d bytes, want %d", bytes, tr.PeakLive)
	}
}

func TestLiveCountsBlocksThatAreNotFreed(t *testing.T) {
	tr, err := formats.Read(context.Background(), strings.NewReader("a x 5\na y 7\nf x\na z 0\na x 9\n"), "a.txt", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	held, err := leaks.Live(context.Background(), tr, leaks.Config{})
	if err != nil || len(held) != 1 || held[0] != (leaks.Held{Bytes: 16, Blocks: 2}) {
		t.Errorf("%+v, %v", held, err)
	}
}
