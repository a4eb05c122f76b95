package memory

import (
	"math"
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

// steps know what a look at all spans finds, over several pages.
func TestStepsThatAreTaken(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const most = 3*pageSteps + 70
	for range 50 {
		var s steps
		var all []span
		some := func() span {
			start := r.IntN(most)
			return span{start, min(most, start+r.IntN(1<<r.IntN(14)))}
		}
		for range 12 {
			x := some()
			s.add(x)
			all = append(all, x)
			for range 50 {
				y := some()
				want := slices.ContainsFunc(all, func(x span) bool { return max(x.start, y.start) < min(x.end, y.end) })
				if got := s.any([]span{y}); got != want {
					t.Fatalf("%v among %v: %t, want %t", y, all, got, want)
				}
			}
		}
		if fullPage[0] != math.MaxUint64 || s.any(nil) {
			t.Fatal("a full page changed, or an empty list has a step")
		}
	}
}
