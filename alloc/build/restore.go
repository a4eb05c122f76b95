package build

// Pools that begin as a recorded one did, and the private pools of recorded programs.

import (
	"gpumem/alloc"
	"gpumem/alloc/internal/pytorch"
)

type (
	// Recorded is a pool of one stream in which a recorded program had segments.
	Recorded = pytorch.Recorded
	// Placer makes a live block at an offset of a restored segment.
	Placer = pytorch.Placer
	// Pages is a range of an expandable segment that has memory.
	Pages = pytorch.Pages
)

// Restorer is an allocator that can begin with the segments of a recorded pool: PyTorch's.
type Restorer interface {
	alloc.Allocator
	// Restore takes a segment of so many bytes. Errors: alloc.ErrNoMemory, alloc.ErrBadRequest.
	Restore(r Recorded, bytes uint64) (Placer, error)
	// RestorePaged makes an expandable segment with memory behind the given ranges.
	RestorePaged(r Recorded, ranges []Pages) ([]Placer, error)
	// Occupies returns how many of the free bytes at its place a block takes, 0 if it does not fit.
	Occupies(r Recorded, bytes, free uint64) uint64
	// BeginPool has a private pool serve the streams that uses accepts, all for nil, until
	// EndPool. ReleasePool says that one user less is there.
	BeginPool(id uint64, uses func(stream uint32) bool) error
	EndPool(id uint64) error
	ReleasePool(id uint64) error
}
