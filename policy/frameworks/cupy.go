// CuPy: its one variable about memory, the limit of the pool.

package frameworks

import (
	"math"
	"strconv"
	"strings"

	"gpumem/size"

	"gpumem/policy"
	"gpumem/policy/internal/literal"
)

// cupyLimit is the limit of the pool: bytes, or a percentage of the GPU's memory.
const cupyLimit = "CUPY_GPU_MEMORY_LIMIT"

// readCuPy returns what a release of CuPy does with an environment.
func readCuPy(env policy.Environment, v policy.Version) (policy.Reading, *policy.SettingError) {
	r := cupyReleases().At(v)
	n := newNotes(env)
	p := policy.Policy{Name: "cupy", Kind: policy.Caching}
	text, set := env.Lookup(cupyLimit)
	switch {
	case set && !r.Limit:
		n.Warn(cupyLimit, "-"+cupyLimit, "this release does not read it, only CuPy 7.0 and later do; here the program calls cupy.get_default_memory_pool().set_limit")
	case set:
		bytes, fraction, problem := cupyParse(text)
		if problem != "" {
			return policy.Reading{Notes: n.Notes}, &policy.SettingError{Name: cupyLimit, Text: problem,
				Then: "CuPy raises it at the first allocation on a GPU, not at import", Fix: cupyRepair(text)}
		}
		p.Limit, p.Fraction = bytes, fraction
		n.cupyLimit(bytes, fraction, strings.HasSuffix(text, "%"))
	}
	return policy.Reading{Policy: p, Pools: func(d policy.Device) []policy.Pool { return cupyPools(p, d) }, Notes: n.Notes}, nil
}

// cupyParse is _parse_limit_string and set_limit of cupy/cuda/memory.pyx: a
// number of bytes, or a fraction of the total memory; both 0 mean no limit.
// problem is the text of the exception.
func cupyParse(text string) (bytes uint64, fraction float64, problem string) {
	if number, ok := strings.CutSuffix(text, "%"); ok {
		f, ok := literal.PyFloat(number)
		if !ok {
			return 0, 0, "could not convert string to float: " + literal.PyRepr(number)
		}
		if f /= 100; !(f >= 0 && f <= 1) {
			return 0, 0, "memory limit fraction out of range: " + literal.PyFloatText(f)
		}
		return 0, math.Abs(f), "" // of -0
	}
	n, problem := literal.PyInt(text)
	switch {
	case problem != "":
		return 0, 0, problem
	case n.Sign() < 0:
		return 0, 0, "memory limit size out of range: " + n.String()
	case !n.IsUint64():
		return 0, 0, "Python int too large to convert to C unsigned long"
	}
	return n.Uint64(), 0, ""
}

// cupyLimit says what the limit does.
func (n *notes) cupyLimit(bytes uint64, fraction float64, percentage bool) {
	switch {
	case percentage && fraction == 0:
		n.Warn(cupyLimit, "-"+cupyLimit, "0 %% is no limit, not a small one")
	case percentage && fraction < 0.001: // 80 MB of 80 GB
		n.Warn(cupyLimit, "", "%s of the GPU's memory is very little; a percentage is written as 50%%", literal.Percent(fraction))
	case percentage:
		n.Effect(cupyLimit, "the pool may take %s of the GPU's memory; the CUDA context and other allocators come on top", literal.Percent(fraction))
	case bytes == 0:
		n.Effect(cupyLimit, "no limit, as by default")
	case bytes < 1<<20:
		n.Warn(cupyLimit, "", "%d bytes is very little; the number is of bytes (8 GiB are 8589934592), or a percentage such as 50%%", bytes)
	default:
		n.Effect(cupyLimit, "the pool may take %s of each GPU; the CUDA context and other allocators come on top", size.Format(bytes))
	}
}

// cupyRepair returns what was meant by a text that CuPy refuses, where that is
// plain: blanks around it, a fraction, or a size with a unit.
func cupyRepair(text string) string {
	trimmed := strings.TrimSpace(text)
	if trimmed == "" {
		return "-" + cupyLimit
	}
	if _, _, problem := cupyParse(trimmed); problem == "" {
		return cupyLimit + "=" + trimmed
	}
	if f, ok := literal.PyFloat(trimmed); ok && f > 0 && f < 1 {
		return cupyLimit + "=" + strconv.FormatFloat(float64(float32(f*100)), 'g', 6, 64) + "%"
	}
	if n, err := size.Parse(trimmed); err == nil && n >= 1<<20 {
		return cupyLimit + "=" + strconv.FormatUint(n, 10)
	}
	return ""
}

// cupyPools returns the pools of a device.
func cupyPools(p policy.Policy, d policy.Device) []policy.Pool {
	main := policy.Pool{Name: "SingleDeviceMemoryPool", Space: "device", Text: "takes what is requested, in steps of 512 bytes, and keeps it"}
	limit := p.Limit
	if limit == 0 {
		limit = uint64(float64(d.Total) * p.Fraction)
	}
	if limit != 0 {
		main.Limit = &limit
	}
	return []policy.Pool{main, {Name: "PinnedMemoryPool", Space: "host", Text: "pinned host memory as the program asks for it, in powers of two; kept"}}
}
