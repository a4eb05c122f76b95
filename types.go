package gpumem

import (
	"gpumem/alloc"
)

// The types of a Pool's methods. Each has the fields of the type of package alloc with
// the same name, so that one converts to the other at no cost.

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
