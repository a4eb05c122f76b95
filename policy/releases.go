// What a release of a framework does with GPU memory: the one place in this
// module that knows versions. A release that changes something is one new row,
// which says what changes, in words and in code, and where that is known from.

package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// A row is a release from which on something is different.
type row[R any] struct {
	version version
	date    string // of the release
	change  string // for the documentation
	source  string
	apply   func(*R)
}

// at is what a framework does at a version: the changes up to it, in order.
func at[R any](rows []row[R], v version) R {
	var r R
	for _, row := range rows {
		if v.less(row.version) {
			break
		}
		row.apply(&r)
	}
	return r
}

// changesOf are the rows for people.
func changesOf[R any](rows []row[R]) []Change {
	var list []Change
	for _, r := range rows {
		list = append(list, Change{r.version.String(), r.date, r.change, r.source})
	}
	return list
}

// jaxRelease is what a release of JAX does.
//
// Versions are jaxlib's, whose part all this is. Since 0.4.0 those of jax are
// the same; before, jax 0.1.x to 0.3.x ran with a jaxlib of another number.
type jaxRelease struct {
	fraction    float64  // the default
	of          Basis    // what it is a fraction of
	float32     bool     // a fraction passes through a 32-bit float on its way into XLA
	boolAsText  bool     // every PREALLOCATE means yes, and a fraction of 0 means unset
	newFraction bool     // reads XLA_CLIENT_MEM_FRACTION, too
	collective  bool     // reads XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB
	abort, tfrt bool     // reads a variable that is not about memory, but can raise
	allocators  []string // that XLA_PYTHON_CLIENT_ALLOCATOR may name
	platform    Kind     // what "platform" gives; BFC: a growing pool of the whole device
	asyncKeep   bool     // cuda_async keeps its fraction without preallocation, too
	ignoreAlign bool     // the pool ignores the alignment asked for
	roundLimit  uint64   // bytes
	poolByPages bool     // the pool's regions are made of pages (cuMemCreate), no longer of cuMemAlloc
	tfrtAsync   bool     // the client of XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT has cuda_async, too
	spatialFlag bool     // knows xla_gpu_enable_allocator_spatial_partitioning
	updateModes []string // what xla_gpu_command_buffer_update_mode may be; none: the flag is not known
	spatial     bool     // whenever preallocating
}

// jaxReleases, oldest first. All of them preallocate with BFC.
var jaxReleases = []row[jaxRelease]{
	{version{0, 1, 16}, "2019-05",
		"A pool (BFC) by default, of 90 % of what is free when it is made.",
		"JAX's documentation of 2019-07; `AllocatorConfig` in xla/python of that time",
		func(r *jaxRelease) {
			*r = jaxRelease{fraction: 0.9, of: Free, platform: Platform, asyncKeep: true, ignoreAlign: true,
				allocators: []string{"default", "platform", "bfc", "cuda_async"}}
		}},
	{version{0, 4, 1}, "2022-12-13",
		"The fraction is of the total memory, no longer of what is free.",
		"JAX's CHANGELOG, jaxlib 0.4.1",
		func(r *jaxRelease) { r.of = Total }},
	{version{0, 4, 4}, "2023-02-16",
		"The default fraction is 0.75, to leave room for NCCL.",
		"XLA of 2023-02-09 (0.8) and 02-15 (0.75); in no CHANGELOG, and 0.4.4 is the first release whose XLA is newer",
		func(r *jaxRelease) { r.fraction = 0.75 }},
	{version{0, 4, 21}, "2023-12-04",
		"`XLA_PYTHON_CLIENT_PREALLOCATE=false` has no effect, nor has a fraction of 0.",
		"jaxlib/xla_client.py of 0.4.21 to 0.4.23: `make_gpu_client` compares a truth value with texts; repaired by XLA commit 45c41c43",
		func(r *jaxRelease) { r.boolAsText = true }},
	{version{0, 4, 24}, "2024-02-06",
		"`XLA_PYTHON_CLIENT_PREALLOCATE` works again. `XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB` is read.",
		"jaxlib/xla_client.py of 0.4.24",
		func(r *jaxRelease) { r.boolAsText, r.collective = false, true }},
	// Until here XLA's GPU client was in jaxlib itself and a fraction stayed
	// Python's double (GpuAllocatorConfig.memory_fraction).
	{version{0, 4, 30}, "2024-06-18",
		"XLA is a plugin behind the PJRT C API, through which a fraction passes as a 32-bit float.",
		"JAX's CHANGELOG, jaxlib 0.4.30; xla/pjrt/c/pjrt_c_api_gpu_internal.cc",
		func(r *jaxRelease) { r.float32 = true }},
	{version{0, 4, 31}, "2024-07-29",
		"Without preallocation, `cuda_async` keeps nothing when the GPU is synchronised.",
		"XLA of 2024-06-14",
		func(r *jaxRelease) { r.asyncKeep = false }},
	{version{0, 4, 32}, "2024-09-11",
		"`XLA_CLIENT_MEM_FRACTION`. The old name `XLA_PYTHON_CLIENT_MEM_FRACTION` still works, but not beside it.",
		"XLA PR 16457; jaxlib/xla_client.py of 0.4.32",
		func(r *jaxRelease) { r.newFraction = true }},
	{version{0, 7, 0}, "2025-07-22",
		"`XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE` is read: not about memory, but a text that is no integer is an error.",
		"jaxlib/xla_client.py of 0.7.0",
		func(r *jaxRelease) { r.abort = true }},
	{version{0, 7, 1}, "2025-08-20",
		"`XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT` is read, likewise.",
		"jaxlib/xla_client.py of 0.7.1",
		func(r *jaxRelease) { r.tfrt = true }},
	{version{0, 10, 0}, "2026-04-15",
		"The allocator `vmm`.",
		"jaxlib/xla_client.py of 0.10.0",
		func(r *jaxRelease) {
			r.allocators = []string{"default", "platform", "bfc", "cuda_async", "vmm"}
			r.tfrtAsync, r.updateModes = true, []string{"ALWAYS_UPDATE", "NEVER_UPDATE", "CAPTURE_CMD_NEVER_UPDATE"}
		}},
	{version{0, 10, 1}, "2026-05-18",
		"The allocator `platform` silently gives a growing pool of the whole GPU. The pool honours the alignment asked for.",
		"openxla/xla#41761, #41659; XLA's BFCAllocator of 2026-04",
		func(r *jaxRelease) { r.platform, r.ignoreAlign = BFC, false }},
	{version{0, 10, 2}, "2026-06-17",
		"The limit is rounded up to 2 MiB.",
		"XLA of 2026-06-03",
		func(r *jaxRelease) { r.roundLimit, r.poolByPages = 2<<20, true }},
	{version{0, 11, 0}, "2026-07-16",
		"The pool serves collective memory from its upper end. `platform` is a pass-through again; `address` is another name for it.",
		"XLA of 2026-06-15 (xla_gpu_enable_allocator_spatial_partitioning) and commit 604c077c",
		func(r *jaxRelease) {
			r.spatial, r.platform = true, Platform
			r.spatialFlag, r.updateModes = true, []string{"ALWAYS_UPDATE", "SKIP_TEMP"}
			r.allocators = []string{"default", "platform", "bfc", "cuda_async", "vmm", "address"}
		}},
	{version{0, 11, 1}, "2026-08-17",
		"The out-of-memory error names the allocator and the device.",
		"the plugin jax-cuda12-pjrt 0.11.1 itself",
		func(r *jaxRelease) { r.updateModes = []string{"ALWAYS_UPDATE", "SKIP_TEMP", "SKIP_PROFILED"} }},
	{version{0, 12, 0}, "2026-10-16",
		"Ordinary memory comes from the upper end of the pool, collective memory from the lower (a replay places as 0.11.2 does: where blocks lie changes, how many bytes are taken does not). The client option `memory_fraction_policy`, which only `JAX_PJRT_CLIENT_CREATE_OPTIONS` reaches.",
		"XLA PR 48834; the plugin jax-cuda12-pjrt 0.12.0 itself",
		func(*jaxRelease) {}},
}

// convert is a fraction after its way into XLA.
func (r *jaxRelease) convert(f float64) float64 {
	if r.float32 {
		return float64(float32(f))
	}
	return f
}

// version is major, minor, patch, and the fourth number of a repaired release
// (0.9.0.1).
type version [4]int

func (v version) String() string {
	s := fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2])
	if v[3] != 0 {
		s += "." + strconv.Itoa(v[3])
	}
	return s
}

func (v version) less(w version) bool { return slices.Compare(v[:], w[:]) < 0 }

// versionText is a release as Python packages write it. Development builds,
// candidates and local builds (0.11.1.dev20260808+cec06d11, 2.16.0rc0) count as
// the release that they lead to.
var versionText = regexp.MustCompile(`^([0-9]+)\.([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?(?:(?:\.dev|\.post|a|b|rc|\+)[0-9A-Za-z.+]*)?$`)

// parseVersion reads a version; framework and like are for the error.
func parseVersion(text, framework, like string) (version, error) {
	var v version
	m := versionText.FindStringSubmatch(text)
	if m == nil {
		return v, fmt.Errorf("%q is not a %s release; want one such as %s", text, framework, like)
	}
	for i, digits := range m[1:] {
		if digits == "" { // fewer numbers
			continue
		}
		n, err := strconv.Atoi(digits)
		if err != nil {
			return v, fmt.Errorf("%q is not a %s release: the number %s is too large", text, framework, digits)
		}
		v[i] = n
	}
	return v, nil
}

// newest is a version after all others: what is newer than the newest row is
// taken to do as that does.
var newest = version{1 << 30}

// newestJAX is the newest release that was looked at.
var newestJAX = version{0, 12, 0, 1}

// jaxAt is the row of a version; "" means the newest.
func jaxAt(text string) (jaxRelease, version, error) {
	v := newest
	if text != "" {
		var err error
		if v, err = parseVersion(text, "JAX", "0.4.30"); err != nil {
			return jaxRelease{}, v, err
		}
	}
	if first := jaxReleases[0].version; v.less(first) {
		return jaxRelease{}, v, fmt.Errorf("JAX %s is not known; the oldest known release is jaxlib %s", text, first)
	}
	return at(jaxReleases, v), v, nil
}

// Default is the policy of the newest JAX with nothing set.
func Default() Policy {
	r := at(jaxReleases, newest)
	p := r.policy()
	p.Spec = "jax"
	return p
}

// JAX is the policy of a JAX release with nothing set. The version is jaxlib's,
// such as "0.4.30" or "0.10.2"; the empty one means the newest, and one newer
// than the newest known is taken to do as that does. A version before 0.1.16
// (2019-05, the first with a pool by default), or a text that is no version, is
// an error.
func JAX(version string) (Policy, error) {
	if version == "" {
		return Default(), nil
	}
	r, _, err := jaxAt(version)
	if err != nil {
		return Policy{}, err
	}
	p := r.policy()
	p.Spec, p.Version = "jax@"+version, version
	return p, nil
}

func (r *jaxRelease) policy() Policy {
	return Policy{
		Name:        "jax",
		Kind:        BFC,
		Preallocate: true,
		// Never passed on, but XLA's own double.
		Fraction:    r.fraction,
		Of:          r.of,
		RoundLimit:  r.roundLimit,
		Spatial:     r.spatial,
		IgnoreAlign: r.ignoreAlign,
	}
}
