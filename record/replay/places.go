package replay

// The comparison of placements with those of the recorded program.
//
// The recording has addresses of its device, and not where the regions of its pool
// begin. So each region of the replay is laid over the recording at the distance
// between the addresses here and there that most of its blocks have. A block is placed
// as recorded if it has its region's distance. Two regions that live at once cannot
// lie over each other; the one with fewer such blocks then has no distance.
//
// Memory is bounded by the number of regions that live at once.

import (
	"cmp"
	"math"
	"slices"

	"gpumem/alloc"
	"gpumem/device"
	"gpumem/policy"
	"gpumem/record/internal/tape"
	"gpumem/record/trace"
)

// maxMoves is the number of distances that are counted for a region. The rarest is
// replaced by a new one.
const maxMoves = 64

// places compares placements; nil if there is nothing to compare.
type places struct {
	recorded *tape.Places
	total    uint64 // addresses in the recording
	gone     uint64 // blocks as recorded in regions that were released
	regions  []*region
	last     *region // in which the last block lay
}

// region is a device allocation, or a range of reserved addresses.
type region struct {
	device.Range
	moves []move
}

// move is a distance from here to the recording, and how many blocks have it.
type move struct{ by, blocks uint64 }

// places returns what compares the placements of a pass. Policies other than BFC,
// elastic and PyTorch's have no regions with several blocks: the driver places each.
func (r *runner) places() *places {
	if r.pool.Placed == 0 {
		return nil
	}
	switch r.policy.Kind {
	case policy.BFC, policy.Elastic, policy.Caching:
		return &places{recorded: r.pool.Places(), total: r.pool.Placed}
	}
	return nil
}

// watch returns the device, watched if there is something to compare.
func (p *places) watch(dev device.GPU) device.GPU {
	if p == nil {
		return dev
	}
	return &watched{dev, p}
}

// hook returns the hook that compares and puts the outcome into res.
func (p *places) hook(res *Result) Hook {
	if p == nil {
		return Hook{}
	}
	return Hook{Event: p.compare, End: func() error {
		n := p.matched()
		res.Placed, res.AsRecorded = &p.total, &n
		return nil
	}}
}

// compare counts the block of an allocation, the zero block if it was refused.
func (p *places) compare(e *trace.Event, b alloc.Block) error {
	if e.Op == trace.Free {
		return nil
	}
	addr, err := p.recorded.Of(e)
	if err != nil || addr == 0 || b.IsZero() {
		return err
	}
	if r := p.region(b.Addr); r != nil {
		r.add(addr - b.Addr)
	}
	return nil
}

// region returns the one that an address lies in, nil if there is none.
func (p *places) region(addr uint64) *region {
	if r := p.last; r != nil && addr-r.Addr < r.Bytes {
		return r
	}
	i, found := p.find(addr)
	if !found {
		i--
	}
	if i < 0 || addr-p.regions[i].Addr >= p.regions[i].Bytes {
		return nil
	}
	p.last = p.regions[i]
	return p.last
}

func (p *places) find(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(p.regions, addr, func(r *region, addr uint64) int { return cmp.Compare(r.Addr, addr) })
}

// add counts a block.
func (r *region) add(by uint64) {
	rarest, least := 0, uint64(math.MaxUint64)
	for i := range r.moves {
		m := &r.moves[i]
		if m.by == by {
			m.blocks++
			return
		}
		if m.blocks < least {
			rarest, least = i, m.blocks
		}
	}
	if len(r.moves) < maxMoves {
		r.moves = append(r.moves, move{by, 1})
		return
	}
	r.moves[rarest] = move{by, 1}
}

// best returns the distance that most blocks have, the first of equal ones.
func (r *region) best() (m move) {
	for _, c := range r.moves {
		if c.blocks > m.blocks {
			m = c
		}
	}
	return m
}

// matched returns how many blocks are placed as recorded.
func (p *places) matched() uint64 {
	n := p.gone
	var taken []device.Range
	slices.SortStableFunc(p.regions, func(a, b *region) int { return cmp.Compare(b.best().blocks, a.best().blocks) })
	for _, r := range p.regions {
		best := r.best()
		over := device.Range{Addr: r.Addr + best.by, Bytes: r.Bytes}
		if slices.ContainsFunc(taken, func(t device.Range) bool {
			return over.Addr-t.Addr < t.Bytes || t.Addr-over.Addr < over.Bytes
		}) {
			continue
		}
		n += best.blocks
		taken = append(taken, over)
	}
	return n
}

// watched is a device whose regions are known.
type watched struct {
	device.GPU
	places *places
}

func (w *watched) add(r device.Range, err error) (device.Range, error) {
	if err == nil {
		i, _ := w.places.find(r.Addr)
		w.places.regions = slices.Insert(w.places.regions, i, &region{Range: r})
	}
	return r, err
}

func (w *watched) remove(addr uint64, err error) error {
	i, found := w.places.find(addr)
	if err != nil || !found {
		return err
	}
	p := w.places
	p.gone += p.regions[i].best().blocks
	p.regions = slices.Delete(p.regions, i, i+1)
	p.last = nil
	return nil
}

func (w *watched) Alloc(bytes uint64) (device.Range, error) { return w.add(w.GPU.Alloc(bytes)) }

func (w *watched) AllocManaged(bytes uint64) (device.Range, error) {
	return w.add(w.GPU.AllocManaged(bytes))
}

func (w *watched) Free(addr uint64) error { return w.remove(addr, w.GPU.Free(addr)) }

func (w *watched) AddressReserve(bytes, align uint64) (uint64, error) {
	addr, err := w.GPU.AddressReserve(bytes, align)
	_, err = w.add(device.Range{Addr: addr, Bytes: bytes}, err)
	return addr, err
}

func (w *watched) AddressFree(addr, bytes uint64) error {
	return w.remove(addr, w.GPU.AddressFree(addr, bytes))
}
