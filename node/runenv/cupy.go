// CuPy: the limit of its pool, in bytes (since CuPy 7.0).

package runenv

import (
	"strconv"
	"strings"
)

const cupyVar = "CUPY_GPU_MEMORY_LIMIT"

// cupy sets CuPy's limit. One value holds for every GPU, so it is the least.
func (e *editor) cupy(lim Limits) error {
	var limits []uint64
	for _, l := range lim.Leases {
		bytes, err := lim.pool("cupy", l)
		if err != nil {
			return err
		}
		limits = append(limits, bytes)
	}
	most, i := least(limits)
	text, why := e.get(cupyVar), lim.why("cupy", i)
	ours := strconv.FormatUint(most, 10)
	within, number := true, true
	for i, l := range lim.Leases {
		theirs, ok := cupyLimit(text, l.Total)
		number = number && ok
		within = within && theirs > 0 && theirs <= limits[i] // 0 is no limit
	}
	switch {
	case !e.has(cupyVar):
		e.set(cupyVar, ours, why)
	case !number:
		e.keep(cupyVar, "left as it is: neither a number of bytes nor a percentage, which CuPy reports at its first allocation")
	case within:
		e.set(cupyVar, text, "the user's own limit is within "+why)
	default:
		e.set(cupyVar, ours, why+"; "+text+" would be outside of it")
	}
	return nil
}

// cupyLimit returns a text as bytes of a GPU; 0 is no limit.
func cupyLimit(text string, total uint64) (bytes uint64, ok bool) {
	text = strings.TrimSpace(text)
	if percent, is := strings.CutSuffix(text, "%"); is {
		f, err := strconv.ParseFloat(strings.TrimSpace(percent), 64)
		if err != nil || !(f >= 0 && f <= 100) {
			return 0, false
		}
		return uint64(f / 100 * float64(total)), true
	}
	n, err := strconv.ParseUint(strings.ReplaceAll(text, "_", ""), 10, 64)
	return n, err == nil
}
