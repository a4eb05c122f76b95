// Package sum counts bytes beyond 2^64. A recording may ask for 2^64-1 bytes more than
// once (a wrong length, recorded faithfully), and the running sum must come back down
// exactly when such blocks are freed.
package sum

import (
	"math"
	"math/bits"
)

// Sum is a count of bytes in 128 bits. The zero value is 0.
type Sum struct{ hi, lo uint64 }

// Of returns the sum that is n.
func Of(n uint64) Sum { return Sum{lo: n} }

// Add adds n.
func (s *Sum) Add(n uint64) {
	var c uint64
	s.lo, c = bits.Add64(s.lo, n, 0)
	s.hi += c
}

// Sub subtracts n, which was added before.
func (s *Sum) Sub(n uint64) {
	var c uint64
	s.lo, c = bits.Sub64(s.lo, n, 0)
	s.hi -= c
}

// Add256 adds n rounded up to 256, which may be 2^64 itself.
func (s *Sum) Add256(n uint64) {
	r, c := bits.Add64(n, 255, 0)
	s.Add(r &^ 255)
	s.hi += c
}

// Sub256 undoes [Sum.Add256].
func (s *Sum) Sub256(n uint64) {
	r, c := bits.Add64(n, 255, 0)
	s.Sub(r &^ 255)
	s.hi -= c
}

// Raise makes s at least o.
func (s *Sum) Raise(o Sum) {
	if o.hi > s.hi || (o.hi == s.hi && o.lo > s.lo) {
		*s = o
	}
}

// Cap returns s, or the largest uint64 if it is more.
func (s Sum) Cap() uint64 {
	if s.hi != 0 {
		return math.MaxUint64
	}
	return s.lo
}
