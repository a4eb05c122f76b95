package sim

import "time"

// Costs is what the simulated driver's calls take: modelled time, which no
// call really waits for. The zero value means [DefaultCosts].
//
// Nothing here was measured by this project yet. Each constant names the
// public measurement that it rests on; where those disagree it lies between
// them. A figure from a real GPU belongs here with its source instead of the
// public one. Of two public files the repository could not be told: those for
// an H100 are from a write-up of a shared cache, run partly under strace, and
// those for an RTX 3070 Laptop from an nsys profile; both tools add to a call.
type Costs struct {
	// SmallAlloc is a plain allocation that fits into a 2 MiB block which the
	// driver already holds open, and a refused one of any size (an assumption:
	// the driver finds out before it does any work). 4.5-6.9 us on an A100
	// (ayush-os/nsight-systems-deep-dive). A managed grant is charged as a plain
	// one, here and below: an assumption, no figure was found.
	SmallAlloc time.Duration
	// BlockAlloc is a plain allocation that makes the driver open a block, up
	// to 2 MiB. 165 us on an A100 (same source).
	BlockAlloc time.Duration
	// AllocPerMiB is added for each MiB past the first two. An assumption: no
	// trustworthy curve against size was found for a current data-centre GPU.
	AllocPerMiB time.Duration
	// SmallFree releases a part of a block that stays open, or fails: 2.6-9.9 us on an
	// A100 (same source).
	SmallFree time.Duration
	// BlockFree releases a whole block: 110-167 us on an A100 (same source).
	// The wait for running work comes on top on a real device; a simulated one
	// has none.
	BlockFree time.Duration
	// FreePerMiB is added for each MiB past the first two. Assumed equal to
	// AllocPerMiB.
	FreePerMiB time.Duration
	// MemInfo asks for free and total: 5-12 us on cards from a laptop's to a
	// B300 (pytorch#174625, sglang#25225, MatX#863).
	MemInfo time.Duration

	// Copy is a copy between the host and the device that the host waits for,
	// before any bytes. An assumption: a few calls to the driver's queue, each
	// 2-3 us on a laptop's RTX 3070, and one wait.
	Copy time.Duration
	// CopyPerMiB is added for each MiB. It assumes ordinary memory of the host,
	// which the driver copies through a buffer of its own: 10 GiB/s. Memory that
	// the device reads by itself goes at the bus's rate, 25 to 100 GiB/s.
	CopyPerMiB time.Duration
	// Fill is a fill that the host waits for, before any bytes: queueing one took
	// 2.6 us on an RTX 3070 (as Copy).
	Fill time.Duration
	// FillPerMiB is added for each MiB. An assumption: 2 TiB/s, well below the
	// 3.35 TB/s that NVIDIA's data sheet gives for an H100's memory.
	FillPerMiB time.Duration

	// AddressReserve reserves addresses, less than a GiB of them: 1.4 us on an
	// H100, 15 us on an RTX 3070 (nsys, which adds to it).
	AddressReserve time.Duration
	// AddressReserveLarge is the same from a GiB on: 9-19 us for 8 GiB (kvcached
	// bench_vmm on an A100 and on another card).
	AddressReserveLarge time.Duration
	// AddressFree: 1.0 us on an H100, 5.6 us on an RTX 3070.
	AddressFree time.Duration
	// MemCreate takes physical memory, before any bytes: 19 us on an H100, 31 us
	// on an RTX 3070. On one A100 it was 195 us (kvcached bench_vmm), which no one
	// has explained.
	MemCreate time.Duration
	// MemCreatePerMiB is added for each MiB. An assumption: the longest of 43
	// calls on an RTX 3070, 145 us, would fit 1.4 GiB.
	MemCreatePerMiB time.Duration
	// MemMap: 1.4 us on an A100 (kvcached bench_vmm) and on an H100, 3.5 us on an
	// RTX 3070. The size does not matter.
	MemMap time.Duration
	// MemSetAccess is for each handle in the range, which is what it goes by
	// (pytorch#96995): 36 us on an A100 (kvcached bench_vmm), 50-67 us on an H100,
	// 49 us on an RTX 3070.
	MemSetAccess time.Duration
	// MemSetAccessPerMiB is added for each MiB of a handle past the first two. An
	// assumption: the longest of 43 calls on an RTX 3070, 1,595 us, would fit 1.4
	// GiB.
	MemSetAccessPerMiB time.Duration
	// MemUnmap is for each handle in the range: 26 us on an A100 (kvcached
	// bench_vmm), 30-38 us on an H100. It does not wait for work (pytorch#196258).
	MemUnmap time.Duration
	// MemUnmapPerMiB is added for each MiB of a handle past the first two. An
	// assumption as MemSetAccessPerMiB, from 2,095 us.
	MemUnmapPerMiB time.Duration
	// MemRelease ends a handle: 12 us on an RTX 3070, 34 us on an H100 under
	// strace.
	MemRelease time.Duration
	// MemReleasePerMiB is added for each MiB that is released, to the
	// call that releases it: this one, or the last unmap after it. An
	// assumption, as MemCreatePerMiB.
	MemReleasePerMiB time.Duration

	Async AsyncCosts // of streams, events and pools
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

	Copy:       10 * time.Microsecond,
	CopyPerMiB: 100 * time.Microsecond,
	Fill:       5 * time.Microsecond,
	FillPerMiB: 500 * time.Nanosecond,

	AddressReserve:      2 * time.Microsecond,
	AddressReserveLarge: 15 * time.Microsecond,
	AddressFree:         1500 * time.Nanosecond,
	MemCreate:           25 * time.Microsecond,
	MemCreatePerMiB:     100 * time.Nanosecond,
	MemMap:              2 * time.Microsecond,
	MemSetAccess:        40 * time.Microsecond,
	MemSetAccessPerMiB:  1 * time.Microsecond,
	MemUnmap:            28 * time.Microsecond,
	MemUnmapPerMiB:      1500 * time.Nanosecond,
	MemRelease:          20 * time.Microsecond,
	MemReleasePerMiB:    100 * time.Nanosecond,

	Async: defaultAsync,
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

// byMiB is a cost that goes by the bytes: perMiB for each MiB and its share for
// the rest. Sizes past a petabyte cost the same as one.
func byMiB(perMiB time.Duration, bytes uint64) time.Duration {
	bytes = min(bytes, 1<<50)
	return time.Duration(bytes>>20)*perMiB + time.Duration(bytes%(1<<20))*perMiB>>20
}
