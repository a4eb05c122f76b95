// Package bisect searches for the smallest device or lease that is enough, where each try
// costs a replay.
package bisect

// Search is the search for the least number that is enough. Hi is tried first and grows
// until it is; then the distance to the largest that is known to be too little is halved.
type Search struct {
	Lo, Hi uint64 // Lo is too little
	// Mid is tried after the first Hi, if that is enough; 0: the middle.
	Mid uint64
	// Enough tries a number. An error ends the search.
	Enough func(n uint64) (bool, error)
	// Grow returns what is tried after hi, which is too little; 0 gives up.
	Grow func(hi uint64) uint64
	// Near reports whether a distance needs no more halving; nil: each is halved down to 1.
	Near func(lo, hi uint64) bool
}

// Least returns a number that is enough where the next smaller one, or one that is near, is
// too little; ok is false if Grow gave up.
func (s Search) Least() (n uint64, ok bool, err error) {
	lo, hi, mid := s.Lo, s.Hi, s.Mid
	for {
		if ok, err = s.Enough(hi); err != nil {
			return 0, false, err
		}
		if ok {
			break
		}
		lo, mid = hi, 0
		if hi = s.Grow(hi); hi == 0 {
			return 0, false, nil
		}
	}
	for hi-lo > 1 && (s.Near == nil || !s.Near(lo, hi)) {
		if mid == 0 {
			mid = lo + (hi-lo)/2
		}
		if ok, err = s.Enough(mid); err != nil {
			return 0, false, err
		}
		if ok {
			hi = mid
		} else {
			lo = mid
		}
		mid = 0
	}
	return hi, true, nil
}
