package elastic

import (
	"fmt"

	"gpumem/alloc"
	"gpumem/size"
)

// Why returns what stands in the way of the request that was refused last, a sentence a
// line: too few pages, wherever they lie, or no addresses in one piece. deviceFree is the bytes free on the device, negative
// if that is unknown.
func (a *Allocator) Why(r alloc.Request, deviceFree int64) []string {
	page := a.mask + 1
	need := r.Bytes>>a.shift + (r.Bytes&a.mask+a.mask)>>a.shift
	if need > a.limit {
		return []string{fmt.Sprintf("It needs %d pages of %s, and the limit is %d; no free would help.", need, size.Format(page), a.limit)}
	}
	out := []string{fmt.Sprintf("It needs %d pages of %s. Of %d that may be held, blocks hold %d and %d are idle; holes do not matter.",
		need, size.Format(page), a.limit, a.held, a.owned()-a.held)}
	if a.scattered {
		out[0] = fmt.Sprintf("It needs %d pages of %s, and as many are free, but its addresses must be in one piece: of %s reserved for the pool, blocks lie scattered over all.",
			need, size.Format(page), size.Format(a.bytes))
	}
	if a.held > 0 {
		out = append(out, fmt.Sprintf("In the pages held %s is live; %s lies between blocks, for smaller ones.",
			size.Format(a.stats.BytesInUse), size.Format(a.held<<a.shift-a.stats.BytesInUse)))
	}
	if deviceFree >= 0 {
		free := uint64(deviceFree) >> a.shift
		line := fmt.Sprintf("The device has %s free, which is %d of such pages.", size.Format(uint64(deviceFree)), free)
		if a.owned() < a.limit && free < a.limit-a.owned() {
			line += " Others hold what is missing to the limit."
		}
		out = append(out, line)
	}
	return out
}
