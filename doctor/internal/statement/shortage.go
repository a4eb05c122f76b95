package statement

// Words for a lack of memory besides "out of memory" and "could not allocate": what is too big,
// does not fit, is full, or has reached its limit.

import "strings"

// things are what takes memory.
var things = []string{"buffer", "tensor", "array", "texture", "allocation", "request", "model", "image", "matrix", "bvh", "mesh", "dataset", "dag", "plan", "size", "variable"}

// lacksRoom reports whether word k says that something found no room.
func (st *Statement) lacksRoom(w *words, k int) bool {
	if st.Topic("own") != nil || st.Says(cThing) {
		return false
	}
	device := st.HasAny("device", "gpu", "vram", "video", "card")
	switch {
	case w.is(k, "too") && w.is(k+1, "big", "large"):
		return len(st.Amounts) > 0 && w.before(k, 4, 0, things...)
	case w.has(k, CNot) && w.is(k+1, "fit", "fits"):
		return w.within(k+1, 6, cMemory) && w.before(k, 12, cMemory, things...)
	case w.has(k, CFail) && st.HasAny("ioctl", "amdgpu", "drm", "ttm", "dma", "kfd", "gem", "nvkms"):
		return w.follows(k, -12) // ENOMEM, as kernels return it
	case w.is(k, "full"):
		return w.is(k-1, "is", "are", "was") && w.has(k-2, cMemory)
	case w.has(k, cLimit):
		return w.is(k+1, "reached", "hit") && w.has(k-1, cMemory)
	case w.has(k, CNot|CFail) && w.within(k, 3, 0, "satisfied", "fulfilled", "granted"):
		return len(st.Amounts) > 0
	case w.has(k, CFail) && w.within(k, 2, 0, "map", "get", "grow", "extend", "commit"):
		return st.Amount(RoleFree) == nil && len(st.Amounts) > 0 && w.within(k, 8, cMemory)
	case w.is(k, "resources") && device && !st.HasAny("schedule", "scheduling", "cluster", "placement"):
		return w.before(k, 2, cScarce) || w.before(k, 3, 0, "enough") && w.before(k, 4, CNot)
	case w.is(k, "exceeded"):
		return device && w.before(k, 9, cLimit) && w.before(k, 9, cPeak) && w.before(k, 9, cSize|cMemory)
	}
	return false
}

// fewer reports whether word k says that what is taken is less than a limit, which is well.
func (w *words) fewer(k int) bool {
	return w.is(k, "below", "under", "less", "smaller") && w.before(k, 4, cUse) && !w.before(k, 8, cFree|cTotal)
}

// follows reports whether a number stands right behind word k, but for marks.
func (w *words) follows(k int, n float64) bool {
	i := w.at[k] + 1
	for i < len(w.toks) && strings.IndexByte(":=(", w.toks[i].kind) >= 0 {
		i++
	}
	if i+1 < len(w.toks) && w.toks[i].kind == '-' { // a sign without a blank before it
		return w.toks[i+1].kind == 'n' && w.toks[i+1].value == -n
	}
	return i < len(w.toks) && w.toks[i].kind == 'n' && w.toks[i].value == n
}

// before reports whether one of a class, or one of these, is among the n words before word k.
func (w *words) before(k, n int, c class, any ...string) bool {
	for j := max(k-n, 0); j < k; j++ {
		if w.has(j, c) || w.is(j, any...) {
			return true
		}
	}
	return false
}
