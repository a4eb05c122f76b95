// What a JAX release does with GPU memory when nothing is set: one table. A
// release that changes a default is one new row.

package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// release is the row that holds from its version up to the next row's.
//
// Versions are jaxlib's, whose part all this is. Since 0.4.0 those of jax are
// the same; before, jax 0.1.x to 0.3.x ran with a jaxlib of another number.
type release struct {
	version     version
	fraction    float64 // as written in XLA; see float32Fraction
	of          Basis
	ignoreAlign bool
	roundLimit  uint64 // bytes
	spatial     bool   // whenever preallocating
}

// releases, oldest first. All of them preallocate with BFC.
var releases = []release{
	// 2019-05, jaxlib 0.1.15/16: BFC becomes the default. JAX's documentation of
	// 2019-07: 90 % of the currently available memory.
	{version{0, 1, 16}, 0.9, Free, true, 0, false},
	// 2022-12-13. JAX's CHANGELOG for jaxlib 0.4.1: the fraction is now of the
	// total memory, not of what is free.
	{version{0, 4, 1}, 0.9, Total, true, 0, false},
	// 2023-02-16. XLA of 2023-02-09 and 02-15: 0.9 to 0.8 to 0.75, to leave room
	// for NCCL. In no CHANGELOG; 0.4.4 is the first whose XLA is newer than that.
	{version{0, 4, 4}, 0.75, Total, true, 0, false},
	// 2026-05-18, JAX 0.10.1: XLA's BFCAllocator honours the alignment asked for.
	// In this release and the next one the setting "platform" gives a growing BFC
	// of the whole device.
	{version{0, 10, 1}, 0.75, Total, false, 0, false},
	// 2026-06-17, JAX 0.10.2: XLA rounds the limit up to 2 MiB (2026-06-03).
	{version{0, 10, 2}, 0.75, Total, false, 2 << 20, false},
	// 2026-07-16, JAX 0.11.0: xla_gpu_enable_allocator_spatial_partitioning is
	// true by default (XLA of 2026-06-15). "platform" is a passthrough again and
	// "address" another name for it (XLA commit 604c077c).
	{version{0, 11, 0}, 0.75, Total, false, 2 << 20, true},
}

// version is major, minor, patch.
type version [3]int

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

// versionText is a release as Python packages write it. Development builds,
// candidates and local builds (0.11.1.dev20260808+cec06d11) count as the
// release that they lead to.
var versionText = regexp.MustCompile(`^([0-9]+)\.([0-9]+)(?:\.([0-9]+))?(?:(?:\.dev|\.post|rc|\+)[0-9A-Za-z.+]*)?$`)

// releaseOf finds the row of a version. A version beyond the last row is
// like the last row.
func releaseOf(text string) (release, error) {
	m := versionText.FindStringSubmatch(text)
	if m == nil {
		return release{}, fmt.Errorf("%q is not a JAX release; want one such as 0.4.30", text)
	}
	var v version
	for i, digits := range m[1:] {
		if digits == "" { // no patch number
			continue
		}
		n, err := strconv.Atoi(digits)
		if err != nil {
			return release{}, fmt.Errorf("%q is not a JAX release: the number %s is too large", text, digits)
		}
		v[i] = n
	}
	for _, r := range slices.Backward(releases) {
		if slices.Compare(v[:], r.version[:]) >= 0 {
			return r, nil
		}
	}
	return release{}, fmt.Errorf("JAX %s is not known; the oldest known release is jaxlib %s", text, releases[0].version)
}

// Default is the policy of the newest JAX with nothing set.
func Default() Policy {
	p := releases[len(releases)-1].policy()
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
	r, err := releaseOf(version)
	if err != nil {
		return Policy{}, err
	}
	p := r.policy()
	p.Spec, p.Version = "jax@"+version, version
	return p, nil
}

func (r release) policy() Policy {
	return Policy{
		Name:        "jax",
		Kind:        BFC,
		Preallocate: true,
		Fraction:    float32Fraction(r.fraction),
		Of:          r.of,
		RoundLimit:  r.roundLimit,
		Spatial:     r.spatial,
		IgnoreAlign: r.ignoreAlign,
	}
}
