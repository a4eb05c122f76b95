package replay

// This file is for whether blocks lie where they lay in the recorded program.
//
// The recording has addresses of its own device, and does not say where a region
// of its pool begins. So each region of the replay is laid over the recording
// where most of its blocks agree: at one distance between the addresses here and
// there. A block is as recorded if it has its region's distance. Two regions
// that live at once cannot lie over each other; the one that fewer blocks speak
// for has none then.
//
// What is kept is bounded by the regions that live at once.

import (
	"cmp"
	"math"
	"slices"

	"gpumem/alloc"
	"gpumem/device"
	"gpumem/policy"
	"gpumem/trace"
)

// maxMoves is how many distances of a region are counted. The rarest is given up
// for a new one.
const maxMoves = 64

// places compares; nil where there is nothing to compare.
type places struct {
	recorded *trace.Places
	total    uint64 // addresses in the recording
	gone     uint64 // blocks as recorded in regions that were given back
	regions  []*region
	last     *region // in which the last block lay
}

// region is a grant of the device, or a range of addresses that was reserved.
type region struct {
	device.Range
	moves []move
}

// move is a distance from here to the recording, and how many blocks have it.
type move struct{ by, blocks uint64 }

// places begins to compare. Other policies have no regions with several blocks:
// the driver places each.
func (r *runner) places() *places {
	kind := r.policy.Kind
	if r.pool.Placed == 0 || kind != policy.BFC && kind != policy.Elastic {
		return nil
	}
	return &places{recorded: r.pool.Places(), total: r.pool.Placed}
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

// region finds the one that an address lies in.
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

// best is the distance that most blocks have; of several the first that was seen.
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

// watched is a device that says which regions there are.
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
