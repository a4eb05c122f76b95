package bisect

import (
	"errors"
	"slices"
	"testing"
)

// TestLeastTriesInOrder: what is tried, in which order, and what comes out. It refuses a
// search that tries a number twice, that halves from the wrong end, or that is off by one.
func TestLeastTriesInOrder(t *testing.T) {
	double := func(hi uint64) uint64 {
		if hi >= 1024 {
			return 0
		}
		return 2 * hi
	}
	for _, tc := range []struct {
		name   string
		search Search
		enough uint64
		tried  []uint64
		want   uint64
		ok     bool
	}{
		{"the first is enough", Search{Lo: 4, Hi: 8, Grow: double}, 7, []uint64{8, 6, 7}, 7, true},
		{"it grows", Search{Hi: 8, Grow: double}, 20, []uint64{8, 16, 32, 24, 20, 18, 19}, 20, true},
		{"a middle that is given", Search{Hi: 8, Mid: 7, Grow: double}, 8, []uint64{8, 7}, 8, true},
		{"a middle that is given, and growth", Search{Hi: 8, Mid: 7, Grow: double}, 9, []uint64{8, 16, 12, 10, 9}, 9, true},
		{"nothing is enough", Search{Hi: 512, Grow: double}, 5000, []uint64{512, 1024}, 0, false},
		{"near is enough", Search{Lo: 100, Hi: 200, Grow: double, Near: func(lo, hi uint64) bool { return hi-lo <= 50 }}, 101, []uint64{200, 150}, 150, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var tried []uint64
			tc.search.Enough = func(n uint64) (bool, error) {
				tried = append(tried, n)
				return n >= tc.enough, nil
			}
			if n, ok, err := tc.search.Least(); n != tc.want || ok != tc.ok || err != nil || !slices.Equal(tried, tc.tried) {
				t.Errorf("%d, %v, %v after %v, want %d after %v", n, ok, err, tried, tc.want, tc.tried)
			}
		})
	}
}

// TestLeastEndsWithAnError of a try, of the first one and of one between.
func TestLeastEndsWithAnError(t *testing.T) {
	failed := errors.New("no device")
	for _, at := range []uint64{8, 4} {
		_, ok, err := Search{Hi: 8, Enough: func(n uint64) (bool, error) {
			if n == at {
				return false, failed
			}
			return true, nil
		}}.Least()
		if ok || err != failed {
			t.Errorf("at %d: %v, %v", at, ok, err)
		}
	}
}
