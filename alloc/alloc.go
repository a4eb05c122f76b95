// Package alloc defines what an allocator of device memory is, for the policies
// that implement it (async, bfc, direct, elastic, vmm) and for the code that uses one.
//
// # The contract
//
// An [Allocator] takes memory from a device in grants and hands it out in
// blocks. It is not safe for concurrent use: its owner holds one lock around
// it, taken once for one operation or once for a whole batch. The root package
// is such an owner; replay is another, which needs no lock.
//
//   - A request of 0 bytes gives the zero [Block] and counts nothing.
//   - A block lies inside memory that the device granted, overlaps no other
//     live block, and is aligned as asked, to at least 256 bytes where the
//     allocator rounds at all.
//   - A refused request returns [ErrNoMemory] and changes nothing visible but the
//     statistics of the device.
//   - Freeing what is not live is an error and changes nothing.
//   - An allocator takes nothing from the device before the first request of more than 0
//     bytes, and releases everything at Close.
//   - Where the work on the device has to be waited for, and the owner waits without its
//     lock, an operation returns a *streams.Pending, has changed nothing visible, and is
//     repeated after the wait.
//
// The suite in package alloctest checks this for every implementation.
package alloc

import (
	"errors"
	"fmt"

	"gpumem/alloc/internal/ref"
	"gpumem/size"
)

// Errors of every allocator. Messages that wrap them name the block or address.
var (
	// ErrNoMemory: the request cannot be served now. Something that is freed
	// later may change that, unless errors.Is(err, ErrNever).
	ErrNoMemory = errors.New("out of memory")
	// ErrNever wraps ErrNoMemory: the request is larger than the allocator may
	// ever hold, so waiting for a free is useless.
	ErrNever = fmt.Errorf("%w: the request is larger than the limit", ErrNoMemory)
	// ErrTooLarge wraps ErrNever: the rounded size exceeds 2^64 bytes.
	ErrTooLarge = fmt.Errorf("%w: rounded up it passes 2^64 bytes", ErrNever)
	// ErrDoubleFree: the block was freed before.
	ErrDoubleFree = errors.New("double free")
	// ErrNotAllocated: no live block starts at that address.
	ErrNotAllocated = errors.New("not allocated here")
	// ErrClosed: the allocator was closed.
	ErrClosed = errors.New("closed")
	// ErrBadRequest: a request that makes no sense, such as an alignment that
	// is no power of two.
	ErrBadRequest = errors.New("bad request")
)

// End is the kind of memory that a request is for, named after the end of the
// pool that JAX 0.11 takes it from. A pool that works top down, as JAX 0.12's,
// takes each from the other end. Where a pool has one end both are the same.
type End uint8

const (
	Lower End = iota // ordinary memory
	Upper            // collective memory
)

// String returns "lower" or "upper".
func (e End) String() string {
	if e == Upper {
		return "upper"
	}
	return "lower"
}

// Site identifies an allocation site: a stack or name that the caller keeps. 0 means
// unknown.
type Site uint32

// Request asks for a block.
type Request struct {
	Bytes     uint64 // at least this many
	Align     uint64 // a power of two; 0 means what the allocator gives anyway
	Stream    uint32 // on which the block will be used first: a number of package streams
	Site      Site
	End       End
	OneHandle bool // its memory must be a dedicated allocation, for export to others (elastic, vmm); elsewhere it always is
}

// Block is allocated memory. It is a value: copying it copies no memory. The
// zero Block is what a request of 0 bytes gives, and freeing it does nothing.
type Block struct {
	Addr uint64 // device address
	Size uint64 // bytes that may be used; at least as many as requested
	Ref  Ref    // set by the allocator
}

// Ref identifies a block to the allocator that set it, and to no other.
type Ref = ref.Ref

// IsZero reports whether the block is that of an empty request.
func (b Block) IsZero() bool { return b == Block{} }

// String returns a text for messages, such as "block of 2 MiB at 0x7f0000000000".
func (b Block) String() string {
	return fmt.Sprintf("block of %s at %#x", size.Format(b.Size), b.Addr)
}

// Stats are JAX's memory statistics, in bytes but for NumAllocs. The keys are
// those of jax.Device.memory_stats().
type Stats struct {
	NumAllocs         int64  `json:"num_allocs"`               // successful allocations so far
	BytesInUse        uint64 `json:"bytes_in_use"`             // sum of the blocks' sizes, which are at least what was asked for
	PeakBytesInUse    uint64 `json:"peak_bytes_in_use"`        // most of it so far
	LargestAllocSize  uint64 `json:"largest_alloc_size"`       // largest block handed out
	BytesLimit        uint64 `json:"bytes_limit"`              // most that may be taken from the device
	BytesReserved     uint64 `json:"bytes_reserved"`           // always 0, as in JAX
	PeakBytesReserved uint64 `json:"peak_bytes_reserved"`      // always 0
	LargestFreeBlock  uint64 `json:"largest_free_block_bytes"` // largest free block
	PoolBytes         uint64 `json:"pool_bytes"`               // reserved from the device now
	PeakPoolBytes     uint64 `json:"peak_pool_bytes"`          // most of it so far
}

// Fragmentation returns the fraction of the pool's free memory that is not in the
// largest free block: 0 when it is all in one piece, or nothing is free, towards 1 when
// it is in many. With 748,544 bytes free, 448,512 of them in one piece, it is 0.4. It is
// 0 where the driver places blocks and the largest free block is unknown.
func (s Stats) Fragmentation() float64 {
	free := s.PoolBytes - s.BytesInUse
	if free == 0 || s.LargestFreeBlock == 0 {
		return 0
	}
	return float64(free-s.LargestFreeBlock) / float64(free)
}

// Chunk is one chunk of a pool, live or free, as Walk describes it.
type Chunk struct {
	Addr      uint64
	Size      uint64
	Requested uint64 // what the live block was asked for; of a free piece, what its last block was
	Region    int    // number of the grant that it lies in, from 0 in address order
	Live      bool
	Tag       string // "lower", "upper", "central_gap" in a partitioned pool
	Site      Site   // of a live block
	Stream    uint32
}

// Allocator is a policy at work on one device. See the package's contract.
type Allocator interface {
	// Alloc allocates a block. Errors: ErrNoMemory (or ErrNever), ErrBadRequest,
	// ErrClosed, or the device's for any other failure than out of memory.
	Alloc(Request) (Block, error)
	// Free releases a block. Errors: ErrDoubleFree, ErrNotAllocated,
	// ErrClosed, or the device's; then the block is live as before.
	Free(Block) error
	// FreeAddr releases the block that starts at addr; 0 does nothing. Errors are
	// those of Free.
	FreeAddr(addr uint64) error
	// Live reports why a block is not live: nil if it is, or the zero block.
	// Errors: ErrDoubleFree, ErrNotAllocated, ErrClosed.
	Live(Block) error
	// BlockAt returns the live block that starts at addr, as Alloc did. 0 gives
	// the zero block. Errors: ErrNotAllocated, ErrClosed.
	BlockAt(addr uint64) (Block, error)
	// Stats returns the statistics. It costs more than an allocation, but may be
	// called often.
	Stats() Stats
	// Trim releases idle memory to the device until at most keep bytes are held, as
	// far as the policy can, and returns how many bytes it released.
	Trim(keep uint64) (released uint64, err error)
	// Walk visits every chunk in address order until yield returns false. The
	// allocator must not be used meanwhile.
	Walk(yield func(Chunk) bool)
	// Close releases everything, live blocks included. Later calls return
	// ErrClosed.
	Close() error
}
