package memory

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestListFindsWhatLookingAtAllFinds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		var l lifeList
		var all []life
		// Lives that at most touch, put in without order.
		at := 0
		for v := range 1500 {
			end := at + r.IntN(3)
			all = append(all, life{at, end, int32(v)})
			at = end + r.IntN(2)
		}
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for k, x := range all {
			l.Add(x)
			if k%10 != 0 {
				continue
			}
			start := r.IntN(at + 1)
			end := start + r.IntN(20)
			var got, want []int32
			l.Each(start, end, func(v int32) bool { got = append(got, v); return true })
			for _, y := range all[:k+1] {
				if y.Start <= end && start <= y.End {
					want = append(want, y.Value)
				}
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Fatalf("from %d to %d: %v, want %v", start, end, got, want)
			}
		}
		if len(l.chunks) < 2 {
			t.Fatal("one chunk: nothing was split")
		}
	}
}
