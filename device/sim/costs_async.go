package sim

import "time"

// AsyncCosts are what calls on streams, events and pools take on the host, and
// what queued work takes on the device.
//
// The public figures for streams and events are medians under a profiler on a
// laptop's RTX 3070 (driver 560), which adds 0.3 to 1 us to each.
type AsyncCosts struct {
	// Launch queues a kernel, a copy or a fill: 2.6-2.9 us there, and the same
	// on an A100.
	Launch time.Duration
	// StreamCreate and StreamDestroy: assumptions, no figure was found.
	StreamCreate, StreamDestroy time.Duration
	// EventCreate 0.38-0.68 us there, EventDestroy 0.30-0.38, EventRecord 1.29.
	EventCreate, EventDestroy, EventRecord time.Duration
	// WaitEvent makes a stream wait: assumed to be half of about 2 us for
	// recording and waiting together (chelsea0x3b/cudarc#335).
	WaitEvent time.Duration
	// Query asks about a stream or an event: 0.47 us for record and query of an
	// event without timing (ICLDisco/parsec#576), so this is on the high side.
	Query time.Duration
	// Synchronize is added to the wait of a call that waits. At least 0.44 us
	// there where there is nothing to wait for.
	Synchronize time.Duration

	// CopyPerMiB and FillPerMiB are the time on the device. An H100 moves 3.35
	// TB/s by its data sheet, of which 2.8 are seen in practice
	// (mikamirai.com/blog/gpu-memory-bandwidth); a copy moves each byte twice.
	CopyPerMiB, FillPerMiB time.Duration

	// PoolAlloc and PoolFree are served from what the pool has. 0.8-1.8 us for
	// either (CUDA.jl#746, #792); the median free was 1.6 on the RTX 3070.
	PoolAlloc, PoolFree time.Duration
	// PoolGrow is one growth, and PoolGrowPerMiB what each MiB of it adds;
	// PoolRelease and PoolReleasePerMiB are the same for releasing. Growing
	// and releasing together were 0.7 ms a round of little memory
	// (Cytnx#850), and 32 ms for a GiB (vortex#7815). How that splits into the
	// four is an assumption.
	PoolGrow, PoolGrowPerMiB       time.Duration
	PoolRelease, PoolReleasePerMiB time.Duration
	// PoolManage makes or ends a pool, or asks or sets something of one. An
	// assumption.
	PoolManage time.Duration
}

// defaultAsync is the model of an H100-class card.
var defaultAsync = AsyncCosts{
	Launch:            2700 * time.Nanosecond,
	StreamCreate:      5 * time.Microsecond,
	StreamDestroy:     5 * time.Microsecond,
	EventCreate:       600 * time.Nanosecond,
	EventDestroy:      350 * time.Nanosecond,
	EventRecord:       1300 * time.Nanosecond,
	WaitEvent:         1 * time.Microsecond,
	Query:             500 * time.Nanosecond,
	Synchronize:       1 * time.Microsecond,
	CopyPerMiB:        750 * time.Nanosecond,
	FillPerMiB:        375 * time.Nanosecond,
	PoolAlloc:         1300 * time.Nanosecond,
	PoolFree:          1300 * time.Nanosecond,
	PoolGrow:          150 * time.Microsecond,
	PoolGrowPerMiB:    15 * time.Microsecond,
	PoolRelease:       100 * time.Microsecond,
	PoolReleasePerMiB: 10 * time.Microsecond,
	PoolManage:        1 * time.Microsecond,
}
