// Releases: how their tables (tables.go) are read, how versions are written, and
// the policies of JAX's.

package frameworks

import (
	"fmt"

	"gpumem/policy"
)

// convert is a fraction after its way into XLA.
func (r *jaxRelease) convert(f float64) float64 {
	if r.float32 {
		return float64(float32(f))
	}
	return f
}

// jaxAt is what a version does; "" means the newest.
func jaxAt(text string) (jaxRelease, error) {
	v := policy.Newest
	if text != "" {
		var err error
		if v, err = policy.ParseVersion(text, "JAX", "0.4.30"); err != nil {
			return jaxRelease{}, err
		}
	}
	if first := jaxReleases[0].Version; v.Less(first) {
		return jaxRelease{}, fmt.Errorf("JAX %s is not known; the oldest known release is jaxlib %s", text, first)
	}
	return policy.At(jaxReleases, v), nil
}

// Default is the policy of the newest JAX with nothing set.
func Default() policy.Policy {
	r := policy.At(jaxReleases, policy.Newest)
	p := r.policy()
	p.Spec = "jax"
	return p
}

// JAX is the policy of a JAX release with nothing set. The version is jaxlib's,
// such as "0.4.30" or "0.10.2"; the empty one means the newest, and one newer
// than the newest known is taken to do as that does. A version before 0.1.16
// (2019-05, the first with a pool by default), or a text that is no version, is
// an error.
func JAX(version string) (policy.Policy, error) {
	if version == "" {
		return Default(), nil
	}
	r, err := jaxAt(version)
	if err != nil {
		return policy.Policy{}, err
	}
	p := r.policy()
	p.Spec, p.Version = "jax@"+version, version
	return p, nil
}

func (r *jaxRelease) policy() policy.Policy {
	p := policy.Policy{
		Name:        "jax",
		Kind:        policy.BFC,
		Preallocate: true,
		// Never passed on, but XLA's own double.
		Fraction:    r.fraction,
		Of:          r.of,
		RoundLimit:  r.roundLimit,
		RegionUnit:  r.regionUnit(),
		IgnoreAlign: r.ignoreAlign,
	}
	setEnds(&p, r.spatial, r.topDown)
	return p
}

// setEnds divides the pool of p between two ends, or makes it one again.
func setEnds(p *policy.Policy, spatial, topDown bool) {
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
