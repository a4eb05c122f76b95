package sim

import "time"

// Costs is what the simulated driver's calls take: modelled time, which no
// call really waits for. The zero value means [DefaultCosts].
//
// Nothing here was measured by this project yet. Each constant names the
// public measurement that it rests on; where those disagree it lies between
// them. A figure from a real GPU belongs here with its source in place of the
// public one.
type Costs struct {
	// SmallAlloc is a plain allocation that fits into a 2 MiB block which the
	// driver already holds open, and a refused one of any size (an assumption:
	// the driver finds out before it does any work). 4.5-6.9 us on an A100
	// (ayush-os/nsight-systems-deep-dive).
	SmallAlloc time.Duration
	// BlockAlloc is a plain allocation that makes the driver open a block, up
	// to 2 MiB. 165 us on an A100 (same source).
	BlockAlloc time.Duration
	// AllocPerMiB is added for each MiB past the first two. An assumption: no
	// trustworthy curve against size was found for a current data-centre GPU.
	AllocPerMiB time.Duration
	// SmallFree gives back a part of a block that stays open, or fails: 2.6-9.9 us on an
	// A100 (same source).
	SmallFree time.Duration
	// BlockFree gives a whole block back: 110-167 us on an A100 (same source).
	// The wait for running work comes on top on a real device; a simulated one
	// has none.
	BlockFree time.Duration
	// FreePerMiB is added for each MiB past the first two. Assumed equal to
	// AllocPerMiB.
	FreePerMiB time.Duration
	// MemInfo asks for free and total: 5-12 us on cards from a laptop's to a
	// B300 (pytorch#174625, sglang#25225, MatX#863).
	MemInfo time.Duration
}

// DefaultCosts is the model of an H100-class card.
var DefaultCosts = Costs{
	SmallAlloc:  5 * time.Microsecond,
	BlockAlloc:  160 * time.Microsecond,
	AllocPerMiB: 1 * time.Microsecond,
	SmallFree:   5 * time.Microsecond,
	BlockFree:   160 * time.Microsecond,
	FreePerMiB:  1 * time.Microsecond,
	MemInfo:     8 * time.Microsecond,
}

// driverBlock is the unit in which the driver opens memory for plain
// allocations: requests share a block until it is full, and larger ones are
// rounded up to it (signalnine/q27#1: 98.44 and 100 MiB use the same).
const driverBlock = 2 << 20

// ofSize is a cost that grows past the first block: base for up to 2 MiB, then
// perMiB more for each further MiB of the blocks that hold the bytes. Sizes
// past a petabyte cost the same as one, so that the product cannot overflow.
func ofSize(base, perMiB time.Duration, bytes uint64) time.Duration {
	blocks := (min(bytes, 1<<50) + driverBlock - 1) / driverBlock
	if blocks <= 1 {
		return base
	}
	return base + time.Duration(blocks-1)*(driverBlock>>20)*perMiB
}
