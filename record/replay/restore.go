package replay

// The pool's state at the first event of the recording, for a policy that can begin with
// it: that of the framework which was recorded.

import (
	"errors"

	"gpumem/alloc"
	"gpumem/policy"
)

// seed is a block that lived at the first event, and where.
type seed struct {
	segment      placer
	offset, size uint64
}

func (s *seed) place(r alloc.Request) (alloc.Block, error) {
	return s.segment(r, s.offset, s.size)
}

// placer makes a live block at an offset of a restored segment.
type placer = func(r alloc.Request, offset, size uint64) (alloc.Block, error)

// restorer is an allocator that can begin with the segments of a recorded pool: PyTorch's.
type restorer interface {
	alloc.Allocator
	Restore(bytes uint64, stream uint32, small bool) (placer, error)
}

// restore gives the allocator the segments that the recorded pool had, and returns where
// its seeds lie in them, in their order. There are none if the recording or the policy
// has no such state, if the policy has settings, which that pool did not have, or if the
// device is too small.
func (p *Pass) restore() ([]seed, error) {
	a, ok := p.Allocator.(restorer)
	defaults := policy.Policy{Spec: p.Policy.Spec, Name: p.Policy.Name, Version: p.Policy.Version, Kind: policy.Caching}
	defaults.Torch.TorchRules = p.Policy.Torch.TorchRules
	if !ok || p.Policy != defaults {
		return nil, nil
	}
	var seeds []seed
	for _, s := range p.Pool.Segments() {
		r, err := a.Restore(s.Bytes, s.Stream, s.Small)
		if errors.Is(err, alloc.ErrNoMemory) {
			_, err = a.Trim(0)
			return nil, err
		}
		if err != nil {
			return nil, err
		}
		for _, b := range s.Blocks {
			seeds = append(seeds, seed{r, b.Addr - s.Addr, b.Bytes})
		}
	}
	return seeds, nil
}
