// Package policy describes how memory is taken from a GPU and shared out, as one
// struct, [Policy], that allocators are built from, and computes the limit on a
// device from it ([Policy.LimitBytes]).
//
// It also has what the packages that fill in a Policy work with: environments
// ([Environment]), release numbers and tables of releases ([Version], [Row]), and
// the result of a reading ([Reading]). The package itself knows no framework:
//
//   - policy/frameworks reads an environment as a release of a framework does, and
//     a policy's name from a command line;
//   - policy/torchconf does so for PyTorch, whose settings are a language;
//   - policy/explain explains to a person what was read.
//
// No package here touches a device or keeps state, and the only files read are
// those that XLA_FLAGS names.
package policy

import (
	"fmt"
	"math"
	"slices"
)

// Kind is the allocator that a policy is for.
type Kind uint8

// The kinds of allocator. Not every kind is built everywhere: see alloc/build.
const (
	BFC      Kind = iota // best fit with coalescing in regions that are kept: XLA's and TensorFlow's default
	Platform             // every allocation is one of the driver's
	Address              // as Platform; JAX has had two names for it since 0.11.0
	Async                // the driver's stream-ordered pool (cudaMallocAsync)
	VMM                  // the framework's allocator on CUDA virtual memory management
	Elastic              // ours: one large address range, pages behind it only where something lives
	Caching              // PyTorch's and CuPy's own pools; CuPy's is explained but not built here
)

var kindNames = [...]string{"bfc", "platform", "address", "async", "vmm", "elastic", "caching"}

// String returns the kind's name on the command line.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Basis is what a fraction is a fraction of.
type Basis uint8

// The two bases.
const (
	Total Basis = iota // all memory of the device
	Free               // what is free when the allocator is built
)

// String returns "total" or "free".
func (b Basis) String() string {
	switch b {
	case Total:
		return "total"
	case Free:
		return "free"
	}
	return fmt.Sprintf("Basis(%d)", uint8(b))
}

// Policy is how memory is taken from a device and shared out. It is a plain
// value: copy it, compare it with ==, change fields. Fields that do not apply to
// its Kind are zero when it comes from this package.
type Policy struct {
	// Spec is the policy as the user wrote it, shown in results
	// ("jax:preallocate=false").
	Spec string
	// Name is the name in Spec without version and keys ("jax", "bfc", "env").
	Name string
	// Version is the release that was asked for ("0.4.0"); empty means the newest.
	Version string

	Kind Kind

	// Preallocate takes the whole limit at the first allocation; without it
	// memory is taken in steps as it is needed.
	Preallocate bool
	// Fraction of the basis Of that may be used: for JAX the value after its way
	// through a 32-bit float. May be above 1; from an environment it may also be
	// 0, negative, infinite or NaN, as in the framework. Read it with LimitBytes.
	Fraction float64
	// Of is the basis of Fraction.
	Of Basis
	// Leave is TensorFlow's way: the limit is what is free less a part for the
	// driver and libraries, instead of a fraction. The zero value means none.
	Leave Leave
	// Limit in bytes, taken as it is: neither rounded nor cut to the device.
	// 0 means none: the limit is computed from Leave or Fraction.
	Limit uint64
	// RoundLimit rounds a computed limit up to a multiple of this, in bytes; 0 and
	// 1 leave it alone.
	RoundLimit uint64

	// FirstRegion is what a growing pool asks for first, in bytes; 0 means 2 MiB.
	FirstRegion uint64
	// RegionUnit is what the sizes of the pool's regions are multiples of: 2 MiB
	// where they are made of pages, 256 bytes where they are plain allocations of
	// the driver, used as far as they were asked for. 0 takes what the device
	// grants.
	RegionUnit uint64
	// Cap lets the pool grow beyond Fraction, in addresses that it reserves, to this part of
	// the total, above Fraction and at most 1 (JAX's next release). 0 means that it does not
	// grow. Only with TopDown, and without Limit.
	Cap float64
	// Spatial serves collective memory from the far end of the same pool: the
	// upper one, or the lower one with TopDown. Only with Preallocate.
	Spatial bool
	// TopDown serves ordinary memory from the upper end of the pool, as JAX does
	// since 0.12. Only with Spatial.
	TopDown bool
	// CollectiveAlign is the least alignment in bytes of collective memory in the
	// same pool: a power of two, or 0 for Align. Only with Spatial.
	CollectiveAlign uint64
	// GC gives regions without a live block back before a request is refused.
	GC bool
	// Coalesce merges regions whose addresses touch.
	Coalesce bool
	// Fragmentation is the part of the limit, from 0 to 1, that may be wasted
	// inside one block before it is split. 0 means 128 MiB, whatever the limit.
	Fragmentation float64
	// Align is the least alignment in bytes of every block, at both ends of the
	// pool: a power of two, or 0 for the pool's own 256.
	Align uint64
	// GrantLimit is the most that one grant of the device may be, in bytes
	// (TF_PER_DEVICE_MEMORY_LIMIT_MB): more is refused as if there were no room.
	// 0 means no such limit.
	GrantLimit uint64
	// IgnoreAlign is set for releases before JAX 0.10.1, whose pool ignores the
	// alignment asked for, Align included.
	IgnoreAlign bool

	// AsyncPrealloc is how many bytes Async asks for at the start when Preallocate
	// is off. -1 means as many as would be preallocated by default, which is
	// LimitBytes. Where less is free it gets none and goes on.
	AsyncPrealloc int64
	// AsyncKeep lets the driver's pool keep up to LimitBytes when it is
	// synchronised (the pool's release threshold). With Preallocate it does so
	// in any case; without either, all that is unused goes back then.
	AsyncKeep bool

	// Managed puts unified memory behind the pool, which the driver moves
	// between the GPU and the host, so that the pool may be larger than the GPU.
	// A Fraction below 1 then counts as 1, as in XLA. Only BFC.
	Managed bool

	// Reserve is how many bytes of idle pages Elastic keeps mapped.
	Reserve uint64
	// Eager makes Elastic unmap pages as soon as nothing lives on them.
	Eager bool

	// Torch is the settings of PyTorch's pool. Only Caching.
	Torch Torch

	// CollectiveBytes is the size of the separate pool for collective memory,
	// from XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB. 0 lets that pool grow. It
	// has no meaning with Spatial.
	CollectiveBytes uint64
}

// Torch is the settings of PyTorch's caching allocator that decide where blocks lie.
// The zero value is those of the newest release with nothing set.
type Torch struct {
	MaxSplit   uint64     // max_split_size_mb in bytes; 0 means no limit
	NonSplit   uint64     // max_non_split_rounding_mb in bytes; 0 means 20 MiB
	Segment    uint64     // large_segment_size_mb in bytes; 0 means 20 MiB
	Divisions  [16]uint64 // roundup_power2_divisions, for 1, 2, 4 ... 32768 MiB; 0 and 1 mean none
	GC         float64    // garbage_collection_threshold; 0 means off
	Expandable bool       // expandable_segments
	// Addresses and AddressPart are expandable_segments_reserve, in bytes and as a
	// fraction of the total; both 0 mean 9/8 of the total.
	Addresses   uint64
	AddressPart float64
	TorchRules
}

// TorchRules is what a release of PyTorch does whatever is set. The zero value is the
// newest release's.
type TorchRules struct {
	Order         BlockOrder // of free blocks of the same size
	KeepSizes     bool       // a division of 1 leaves sizes above 512 bytes as they are (up to 2.3)
	CaptureEvents bool       // blocks freed during a capture wait for streams of the capture, too (up to 2.3)
	PrivateGrants bool       // private pools have no expandable segments (up to 2.4)
	PoolCaptures  bool       // each use of a private pool counts as a capture (up to 2.12)
	FloorLimit    bool       // a fraction's limit is rounded down (up to 2.12), not to the nearest byte
}

// BlockOrder is which of several free blocks of the same size PyTorch takes.
type BlockOrder uint8

// The orders.
const (
	OldestSegment BlockOrder = iota // the one whose segment was made first, then the lowest address
	LowestAddress                   // the lowest address
	OldestBlock                     // the one whose block was made first
)

var orders = []string{"segment", "address", "block"}

// MarshalText writes "segment", "address" or "block".
func (o BlockOrder) MarshalText() ([]byte, error) {
	if int(o) >= len(orders) {
		return nil, fmt.Errorf("order %d: want %d, %d or %d", uint8(o), OldestSegment, LowestAddress, OldestBlock)
	}
	return []byte(orders[o]), nil
}

// UnmarshalText reads what MarshalText writes.
func (o *BlockOrder) UnmarshalText(text []byte) error {
	i := slices.Index(orders, string(text))
	if i < 0 {
		return fmt.Errorf("order %q: want segment, address or block", text)
	}
	*o = BlockOrder(i)
	return nil
}

// Device is what must be known of a GPU to say how much a policy takes of it.
type Device struct {
	Ordinal     int    // number of the device, from 0
	Total       uint64 // bytes that the driver reports as the total
	Free        uint64 // of them free
	Granularity uint64 // a grant is rounded up to a multiple of this; 0 means 2 MiB
	CCMajor     int    // compute capability, such as 9 of 9.0
	NoPages     bool   // without virtual memory management (cuMemCreate), as some virtual GPUs are
	NoPools     bool   // without the driver's stream-ordered pools (cuMemAllocAsync)
}

// LimitBytes returns the most that the policy takes of a device. It is
//
//   - the total for Platform and Address, which have no limit, and for Caching
//     without one;
//   - else Limit, if that is set;
//   - else, for a pool that grows ([Policy.Grows]), the total times Cap, rounded down to a
//     multiple of RoundLimit;
//   - else what Leave leaves of the free memory, if that is set;
//   - else the basis times Fraction, computed as a float64, cut to whole bytes,
//     and rounded up to a multiple of RoundLimit.
//
// What makes no sense gives what XLA makes of it, for its pool takes such limits,
// too: NaN and what is too large for an int64 give 2^63, and a negative product
// -n gives 2^64-n, before rounding. The result may exceed the total: the pool
// then gets less than it asks for. For Async it is what is reserved by default
// and no limit at all: the driver's pool may grow beyond it.
func (p Policy) LimitBytes(d Device) uint64 {
	if p.Kind == Platform || p.Kind == Address {
		return d.Total
	}
	if p.Limit != 0 {
		return p.Limit
	}
	if p.Kind == Caching && p.Fraction == 0 {
		return d.Total
	}
	if p.Grows() {
		unit := max(p.RoundLimit, 1)
		return uint64(float64(d.Total)*p.Cap) / unit * unit
	}
	return p.fractionBytes(d)
}

// Grows reports whether the pool takes InitialBytes first and grows to LimitBytes in
// addresses that it reserves.
func (p Policy) Grows() bool {
	divided := p.Kind == BFC && p.Preallocate && p.TopDown
	return divided && p.Cap > 0 && p.Cap > p.Fraction && p.Limit == 0 && !p.Managed
}

// InitialBytes returns what a pool that preallocates takes of a device first: LimitBytes,
// or the fraction's part of it where the pool grows.
func (p Policy) InitialBytes(d Device) uint64 {
	limit := p.LimitBytes(d)
	if p.Grows() {
		return min(p.fractionBytes(d), limit) // rounded up, and down
	}
	return limit
}

// fractionBytes returns the limit of Leave or of Fraction.
func (p Policy) fractionBytes(d Device) uint64 {
	if limit, ok := p.Leave.limit(d); ok {
		return limit
	}
	basis := d.Total
	if p.Of == Free {
		basis = d.Free
	}
	fraction := p.Fraction
	if p.Managed && p.Name != "tensorflow" && !(fraction >= 1) { // std::max(1.0, fraction): 1 for NaN
		fraction = 1
	}
	n := uint64(1 << 63)
	if product := float64(basis) * fraction; product < 1<<63 && product >= -1<<63 { // false for NaN
		if p.Kind == Caching && !p.Torch.FloorLimit {
			product = math.Round(product)
		}
		n = uint64(int64(product))
	}
	if p.RoundLimit > 1 && n%p.RoundLimit != 0 {
		n += p.RoundLimit - n%p.RoundLimit
	}
	return n
}

// GoesByFree reports whether LimitBytes looks at what is free.
func (p Policy) GoesByFree() bool {
	limited := p.Kind != Platform && p.Kind != Address
	return limited && p.Limit == 0 && (p.Of == Free || p.Leave != Leave{})
}

// FirstGrant returns what the policy asks of a device first, before any back-off, if
// the first request is a small one: the whole limit, cut to 256 bytes, where it
// preallocates; the first region of a growing pool, at most 2 MiB; what the
// driver's pool is made to reserve. 0 where only what is requested is taken.
func (p Policy) FirstGrant(d Device) uint64 {
	limit := p.InitialBytes(d)
	switch p.Kind {
	case BFC:
		if !p.Preallocate {
			first := p.FirstRegion
			if first == 0 {
				first = 2 << 20
			}
			limit = min(limit, first)
		}
		return limit &^ 255
	case Async:
		_, first := p.AsyncBytes(d)
		return first
	case Caching:
		// PyTorch's segment for requests of up to 1 MiB (kSmallBuffer).
		if p.Name == "pytorch" && limit >= 2<<20 {
			return 2 << 20
		}
	}
	return 0
}

// Granted returns what the device grants of FirstGrant, in bytes. Where that much is
// not free, a pool of XLA or TensorFlow asks for 0.9 times as much until the
// device grants it (BFCAllocator::Extend, in 32-bit floats). The driver's pool gets
// all or nothing: XLA asks once more for as much, and then goes on without.
func (p Policy) Granted(d Device) uint64 {
	ask := p.FirstGrant(d)
	switch {
	case p.Kind == Async && !d.hasFree(ask):
		return 0
	case p.Kind != BFC || p.Managed:
		return ask
	}
	for ask > 0 {
		got := roundUp(ask, max(p.RegionUnit, 1))
		if (p.GrantLimit == 0 || ask <= p.GrantLimit) && d.hasFree(got) {
			return got
		}
		next := (uint64(float32(ask)*float32(0.9)) + 255) &^ 255
		if next >= ask {
			break
		}
		ask = next
	}
	return 0
}

// hasFree reports whether n bytes are free, in whole units of the device's.
func (d Device) hasFree(n uint64) bool {
	unit := d.Granularity
	if unit == 0 {
		unit = 2 << 20
	}
	return n <= d.Free && roundUp(n, unit) <= d.Free
}

func roundUp(n, unit uint64) uint64 { return (n + unit - 1) / unit * unit }

// AsyncBytes is, for the kind Async, what the driver's pool keeps when it is
// synchronised, and what it is asked for at once; both in bytes. See Granted for
// what it gets of that.
func (p Policy) AsyncBytes(d Device) (keep, first uint64) {
	limit := p.LimitBytes(d)
	switch {
	case p.Preallocate:
		return limit, limit
	case p.AsyncPrealloc > 0:
		first = uint64(p.AsyncPrealloc)
	case p.AsyncPrealloc < 0 && p.AsyncKeep:
		first = limit
	}
	if !p.AsyncKeep {
		return 0, first
	}
	if p.Name == "jax" || p.Name == "tensorflow" { // whose AsyncPrealloc does not raise the threshold
		return limit, first
	}
	return max(limit, first), first
}

// Check is the error of a policy that the framework refuses on a device, in its
// own words; nil if it builds the pool. It is TensorFlow's alone: below compute
// capability 6.0 it makes no pool of unified memory.
func (p Policy) Check(d Device) error {
	if p.Name == "tensorflow" && p.Managed && d.CCMajor < 6 {
		return &SettingError{
			Name: "per_process_gpu_memory_fraction",
			Text: "Unified memory on GPUs with compute capability lower than 6.0 (pre-Pascal class GPUs) does not support oversubscription.",
			Then: "TensorFlow makes no GPU device: the session fails",
		}
	}
	return nil
}
