// The releases of JAX, TensorFlow and CuPy, by the tables jax.txt,
// tensorflow.txt and cupy.txt, and the policies of JAX's. Nothing else in this
// module knows versions of them.

package frameworks

import (
	_ "embed" // the tables

	"gpumem/policy"
	"gpumem/policy/internal/releases"
)

// The tables' texts.
var (
	//go:embed jax.txt
	jaxText string
	//go:embed tensorflow.txt
	tensorflowText string
	//go:embed cupy.txt
	cupyText string
)

// The tables.
var (
	jaxReleases  = releases.Lazy[jaxRelease]("jax.txt", jaxText)
	tfReleases   = releases.Lazy[tfRelease]("tensorflow.txt", tensorflowText)
	cupyReleases = releases.Lazy[cupyRelease]("cupy.txt", cupyText)
)

// The newest releases that were looked at.
var (
	newestJAX        = policy.Version{0, 12, 0, 1}
	newestTensorFlow = policy.Version{2, 21}
	newestCuPy       = policy.Version{14, 2}
)

// jaxRelease is what a release of JAX does.
type jaxRelease struct {
	Fraction     float64             // the default
	OfFree       bool                // it is a fraction of what is free, not of the total
	Float32      bool                // a fraction passes through a 32-bit float on its way into XLA
	BoolAsText   bool                // every PREALLOCATE means yes, and a fraction of 0 means unset
	NewFraction  bool                // reads XLA_CLIENT_MEM_FRACTION, too
	Collective   bool                // reads XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB
	Abort, TFRT  bool                // reads a variable that is not about memory, but can raise
	Allocators   releases.Words      // that XLA_PYTHON_CLIENT_ALLOCATOR may name
	PlatformPool bool                // "platform" gives a growing pool of the whole device
	AsyncKeep    bool                // cuda_async keeps its fraction without preallocation, too
	IgnoreAlign  bool                // the pool ignores the alignment asked for
	RoundLimit   uint64              // bytes
	PoolByPages  bool                // the pool's regions are made of pages (cuMemCreate), no longer of cuMemAlloc
	TFRTAsync    bool                // the client of XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT has cuda_async, too
	Spatial      bool                // whenever preallocating
	TopDown      bool                // and then ordinary memory comes from the upper end
	Grow         bool                // and grows to the whole device unless a fraction is set
	Plus         bool                // a number in XLA's variables may begin with a plus sign
	HostFails    bool                // a variable about pinned host memory that makes no sense is an error
	HostFirst    bool                // XLA_PJRT_GPU_HOST_MEMORY_PREALLOCATE is read before an allocator is made
	Remat        bool                // reads JAX_COMPILER_ENABLE_REMAT_PASS
	RematAdds    bool                // and leaves other passes of xla_disable_hlo_passes disabled
	NeedPages    bool                // refuses a device without virtual memory management
	Platforms    releases.Words      // that JAX_PLATFORMS may name without a plugin
	NoHostMemory policy.SettingError // what becomes of a limit of 0 for pinned host memory
}

// tfRelease is what a release of TensorFlow does.
type tfRelease struct {
	Leave          policy.LeaveRule
	FirstRegionMiB uint64 // of a growing pool
	HostLimitGiB   uint64 // of the pinned host pool
	Async          bool   // knows cuda_malloc_async
	System         bool   // reads TF_DEVICE_MIN_SYS_MEMORY_IN_MB
	Wraps          bool   // counts the bytes of TF_DEVICE_MIN_SYS_MEMORY_IN_MB in 32 bits
	AsyncOption    bool   // honours use_cuda_malloc_async
	Deterministic  bool   // the driver's pool reads TF_DETERMINISTIC_ALLOCATOR
	Plus           bool   // a number may begin with a plus sign
}

// cupyRelease is what a release of CuPy does.
type cupyRelease struct {
	Limit bool // reads CUPY_GPU_MEMORY_LIMIT
}

// of returns what the fraction is of.
func (r *jaxRelease) of() policy.Basis {
	if r.OfFree {
		return policy.Free
	}
	return policy.Total
}

// convert returns a fraction after its way into XLA.
func (r *jaxRelease) convert(f float64) float64 {
	if r.Float32 {
		return float64(float32(f))
	}
	return f
}

// Default returns the policy of the newest JAX with nothing set.
func Default() policy.Policy {
	p, _ := JAX("") // which is known
	return p
}

// JAX returns the policy of a JAX release with nothing set. The version is jaxlib's,
// such as "0.4.30" or "0.10.2"; the empty one means the newest, and one newer
// than the newest known is taken to do as that does. "next" is what JAX's documentation
// describes ahead of its releases. A version before 0.1.16
// (2019-05, the first with a pool by default), or a text that is no version, is
// an error.
func JAX(version string) (policy.Policy, error) {
	name := Release{"jax", version}
	_, v, err := name.Find()
	if err != nil {
		return policy.Policy{}, err
	}
	r := jaxReleases().At(v)
	p := r.policy()
	p.Spec, p.Version = name.String(), version
	return p, nil
}

func (r *jaxRelease) policy() policy.Policy {
	p := policy.Policy{
		Name:        "jax",
		Kind:        policy.BFC,
		Preallocate: true,
		// Never passed on, but XLA's own double.
		Fraction:    r.Fraction,
		Of:          r.of(),
		RoundLimit:  r.RoundLimit,
		RegionUnit:  r.regionUnit(),
		IgnoreAlign: r.IgnoreAlign,
	}
	setEnds(&p, r.Spatial, r.TopDown)
	if r.Grow {
		p.Cap = 1
	}
	return p
}

// setEnds divides the pool of p between two ends, or makes it one again. Only with
// ordinary memory at the upper one can it grow.
func setEnds(p *policy.Policy, spatial, topDown bool) {
	if !spatial || !topDown {
		p.Cap = 0
	}
	p.Spatial, p.TopDown, p.CollectiveAlign = spatial, spatial && topDown, 0
	if spatial {
		p.CollectiveAlign = collectiveAlign
	}
}

// collectiveAlign is the alignment that XLA asks for collective memory: the
// least granularity of multicast objects, 2 MiB where the GPU has none, too.
const collectiveAlign = 2 << 20

// regionUnit returns the RegionUnit of a release.
func (r *jaxRelease) regionUnit() uint64 {
	if r.PoolByPages {
		return 2 << 20
	}
	return plainUnit
}

// plainUnit is the RegionUnit of a pool that is made of cuMemAlloc or
// cuMemAllocManaged.
const plainUnit = 256
