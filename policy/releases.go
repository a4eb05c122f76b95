// Releases: how their tables (tables.go) are read, how versions are written, and
// the policies of JAX's.

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
	p := Policy{
		Name:        "jax",
		Kind:        BFC,
		Preallocate: true,
		// Never passed on, but XLA's own double.
		Fraction:    r.fraction,
		Of:          r.of,
		RoundLimit:  r.roundLimit,
		RegionUnit:  r.regionUnit(),
		IgnoreAlign: r.ignoreAlign,
	}
	p.ends(r.spatial, r.topDown)
	return p
}

// ends divides a pool between two ends, or does not.
func (p *Policy) ends(spatial, topDown bool) {
	p.Spatial, p.TopDown, p.CollectiveAlign = spatial, spatial && topDown, 0
	if spatial {
		p.CollectiveAlign = collectiveAlign
	}
}

// collectiveAlign is the alignment that XLA asks for collective memory: the
// least granularity of multicast objects, 2 MiB where the GPU has none, too.
const collectiveAlign = 2 << 20

// regionUnit is the RegionUnit of a release.
func (r *jaxRelease) regionUnit() uint64 {
	if r.poolByPages {
		return 2 << 20
	}
	return plainUnit
}

// plainUnit is the RegionUnit of a pool that is made of cuMemAlloc or
// cuMemAllocManaged.
const plainUnit = 256
