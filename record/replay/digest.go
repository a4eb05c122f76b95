package replay

import (
	"fmt"
	"math"
)

// A digest identifies all placements: FNV-1a over eight bytes for each allocation, low
// byte first, with the basis of the recorded results (which is not the usual one).
type digest uint64

// nowhere stands for the offset of an allocation that has no place.
const nowhere = math.MaxUint64

func newDigest() digest { return 1469598103934665603 }

func (d *digest) add(offset uint64) {
	h := uint64(*d)
	for range 8 {
		h = (h ^ offset&0xff) * 1099511628211
		offset >>= 8
	}
	*d = digest(h)
}

func (d digest) text() string { return fmt.Sprintf("%016x", uint64(d)) }
