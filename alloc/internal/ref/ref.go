// Package ref is what an allocator finds its blocks by.
package ref

import "sync/atomic"

// Ref identifies a block to the allocator that set it, and to no other.
type Ref struct {
	handle int32
	gen    uint32
}

// Make makes the Ref of a block that is found by its handle. gen distinguishes it from a later
// one with the same handle.
func Make(handle int32, gen uint32) Ref { return Ref{handle, gen} }

// Key returns the handle and gen that Make was given.
func (r Ref) Key() (handle int32, gen uint32) { return r.handle, r.gen }

// allocators counts those that were made.
var allocators atomic.Uint32

// FirstGen returns the number at which a new allocator begins to number its blocks. Each
// begins at another, for two pools on two devices may hand out the same address
// under the same handle, and a block of one must not free one of the other.
func FirstGen() uint32 {
	return allocators.Add(1) * 0x9E3779B1 // 2^32 / the golden ratio: neighbours are far apart
}
