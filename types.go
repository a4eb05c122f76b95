package gpumem

// The values that a Pool takes and returns, and its errors.
//
// Block, Request, Stats and Message have the fields of the types of package alloc with the
// same names, so that one converts to the other at no cost.

import (
	"gpumem/alloc"
	"gpumem/alloc/build"
)

// Errors of a Pool. Each comes wrapped in one that names the block or request.
var (
	ErrOutOfMemory  = alloc.ErrNoMemory     // wrapped in an *OutOfMemoryError
	ErrDoubleFree   = alloc.ErrDoubleFree   // the block was freed before
	ErrNotAllocated = alloc.ErrNotAllocated // no live block of this pool starts there
	ErrTooLarge     = alloc.ErrTooLarge     // the rounded size exceeds 2^64 bytes; also ErrOutOfMemory
	ErrBadRequest   = alloc.ErrBadRequest   // such as an alignment that is not a power of two
	ErrClosed       = alloc.ErrClosed       // the pool was closed
	ErrNoPolicy     = build.ErrNoPolicy
)

// Block is memory allocated by a [Pool]. It is a value: copying it copies no memory.
// The zero Block is what a request of 0 bytes gives, and freeing it does nothing.
type Block struct {
	Addr uint64    // device address
	Size uint64    // bytes that may be used; at least as many as requested
	Ref  alloc.Ref // set by the pool
}

// IsZero reports whether the block is that of an empty request.
func (b Block) IsZero() bool { return b == Block{} }

// String returns a text for messages, such as "block of 2 MiB at 0x7f0000000000".
func (b Block) String() string { return alloc.Block(b).String() }

// Request asks a [Pool] for a block.
type Request struct {
	Bytes     uint64     // at least as many are handed out
	Align     uint64     // of the address: a power of two; 0 means what the policy gives anyway, at least 256
	Stream    uint32     // on which the block will be used first: a number of Pool.Stream; 0 is the device's zero stream
	Site      alloc.Site // set by a pool that keeps stacks; otherwise the caller's number of the allocation site
	End       alloc.End  // alloc.Upper for collective memory, where the pool is partitioned
	OneHandle bool       // the memory must be a dedicated allocation, for export to others (elastic, vmm); elsewhere it always is
}

// Stats are JAX's memory statistics, in bytes but for NumAllocs. The JSON keys are
// those of jax.Device.memory_stats().
type Stats struct {
	NumAllocs         int64  `json:"num_allocs"`               // successful allocations so far
	BytesInUse        uint64 `json:"bytes_in_use"`             // sum of the blocks' sizes
	PeakBytesInUse    uint64 `json:"peak_bytes_in_use"`        // largest value of it so far
	LargestAllocSize  uint64 `json:"largest_alloc_size"`       // size of the largest block so far
	BytesLimit        uint64 `json:"bytes_limit"`              // most that may be reserved from the device
	BytesReserved     uint64 `json:"bytes_reserved"`           // always 0, as in JAX
	PeakBytesReserved uint64 `json:"peak_bytes_reserved"`      // always 0
	LargestFreeBlock  uint64 `json:"largest_free_block_bytes"` // largest free block
	PoolBytes         uint64 `json:"pool_bytes"`               // reserved from the device now
	PeakPoolBytes     uint64 `json:"peak_pool_bytes"`          // largest value of it so far
}

// Fragmentation returns the fraction of the pool's free memory that is not in the
// largest free block: 0 when it is all in one piece, or nothing is free, towards 1
// when it is in many. It is 0 where the driver places blocks, as under async.
func (s Stats) Fragmentation() float64 { return alloc.Stats(s).Fragmentation() }

// Message is one record of what the framework would log, see [WithLog].
type Message struct {
	Severity alloc.Severity
	Text     string // may have several lines
}

// Use is what one allocation site holds.
type Use struct {
	Site   alloc.Site
	Stack  string // a line for each frame, innermost first
	Blocks int
	Bytes  uint64 // of whole blocks
}

// Recorder receives what a pool does, see [WithRecord]. A record/trace.Writer is one. Each
// pool calls it from one goroutine at a time; several pools may have the same one.
type Recorder = alloc.Recorder

// Leak is a [Buffer] that was not freed and has become unreachable.
type Leak struct {
	Block Block
	Bytes uint64 // as requested
	Stack string // of the request, innermost first, a line for each frame; "" if stacks are not kept
	Err   error  // why it could not be freed; under WithCollect that is tried again after the next collection; nil if it was freed, or without WithCollect
}
