// A pool whose memory leaves the GPU and comes back.

package shim

import "errors"

// ErrNoHostMemory is the error of a [Config].Room that the host has not.
var ErrNoHostMemory = errors.New("the host has not enough free memory")

// ErrStays is the error of memory that cannot leave: the pool was not opened for it, or its
// policy has the driver's own pool beneath, whose memory has no pages that could.
var ErrStays = errors.New("the memory of this pool cannot leave the GPU")

// Moved is what [Pool.Leave] or [Pool.Return] moved, in bytes.
type Moved struct {
	GPU  uint64 // of the GPU's memory released, or taken
	Host uint64 // copied to the host, or from it
}

// Leave moves what lies in the pool's memory to the host, and releases the memory. The caller
// has seen to it that no work is under way, and that none is submitted before [Pool.Return] has
// returned nil. Addresses stay the program's. Allocations and frees are served meanwhile, from
// what the pool has, or by what it will have.
//
// After an error [Pool.IsAway] says where the memory is: mostly on the GPU, as before. It is
// ErrStays, ErrKept, ErrCapturing, that of Config.Room, or the driver's.
func (p *Pool) Leave() (Moved, error) {
	if p.dev.pages == nil {
		return Moved{}, ErrStays
	}
	if err := p.dev.pages.mayLeave(); err != nil {
		return Moved{}, err
	}
	if p.waiting.Load() > 0 {
		if err := p.flush(); err != nil {
			return Moved{}, err
		}
	}
	if err := p.Trim(); err != nil {
		return Moved{}, err
	}
	m, err := p.dev.pages.leave()
	p.publish()
	return m, err
}

// Return brings the memory back to its addresses. The error wraps device.ErrOutOfMemory where
// there is no room for it yet, and it can be called again.
func (p *Pool) Return() (Moved, error) {
	if p.dev.pages == nil {
		return Moved{}, nil
	}
	m, err := p.dev.pages.comeBack()
	p.publish()
	return m, err
}

// movable returns the bytes of the GPU's memory that would be free if the pool left.
func (p *Pool) movable() uint64 {
	if p.dev.pages == nil {
		return 0
	}
	return p.dev.pages.movable()
}

// IsAway reports whether the memory has left, and how much it takes to return.
func (p *Pool) IsAway() (needs uint64, away bool) {
	if p.dev.pages == nil {
		return 0, false
	}
	return p.dev.pages.isAway()
}
