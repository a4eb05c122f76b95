package replay

// The pool's state at the first event of the recording, for a policy that can begin with
// it: that of the framework which was recorded, with its settings.

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/device"
	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/record/internal/tape"
	"gpumem/record/trace"
	"gpumem/size"
)

// seed is a block that lived at the first event, and where.
type seed struct {
	segment       build.Placer
	offset, bytes uint64
}

func (s *seed) place(r alloc.Request) (alloc.Block, error) {
	return s.segment(r, s.offset, s.bytes)
}

// AsRecorded returns the policy of the program that was recorded, in a release; "" means the
// newest. ok is false if the recording does not say, or if the release refuses its settings.
func AsRecorded(t *trace.Trace, version string) (p policy.Policy, ok bool) {
	if !isOfPyTorch(t) {
		return p, false
	}
	name := torchPolicy
	if version != "" {
		name += "@" + version
	}
	if t.Settings != "" {
		name += ":" + t.Settings
	}
	p, err := frameworks.Parse(name)
	return p, err == nil
}

// isAsRecorded reports whether a policy is that of the recorded program. A limit makes no
// difference: a snapshot does not have the fraction that the program may set in a call.
func isAsRecorded(t *trace.Trace, p policy.Policy) bool {
	r, ok := AsRecorded(t, p.Version)
	return ok && r.Kind == p.Kind && r.Torch == p.Torch
}

// restore gives the allocator the segments that the recorded pool had, and returns where
// its seeds lie in them, in their order. There are none if the recording or the policy
// has no such state, if the policy's settings are not those of that pool, or if the device
// is too small.
func (p *Pass) restore() ([]seed, error) {
	a, ok := p.Allocator.(build.Restorer)
	if !ok || p.recorded == nil {
		return nil, nil
	}
	seeds, err := p.restoreAll(a)
	if err == nil {
		p.recorded.restored = true
		return seeds, nil
	}
	if !errors.Is(err, alloc.ErrNoMemory) && !errors.Is(err, alloc.ErrBadRequest) {
		return nil, err
	}
	for _, s := range p.Pool.Segments() {
		if s.Private != 0 { // its memory goes back when it has no user; the error says that it has none
			_ = a.ReleasePool(uint64(s.Private))
		}
	}
	_, err = a.Trim(0)
	return nil, err
}

// restoreAll restores the segments, which are in the order of their addresses.
func (p *Pass) restoreAll(a build.Restorer) ([]seed, error) {
	segments := p.Pool.Segments()
	placers := make([]build.Placer, len(segments))
	paged := map[build.Recorded][]int{}
	var lists []build.Recorded
	for i, s := range segments {
		of := recordedPool(s)
		if s.Base != 0 {
			if paged[of] == nil {
				lists = append(lists, of)
			}
			paged[of] = append(paged[of], i)
			continue
		}
		var err error
		if placers[i], err = a.Restore(of, s.Bytes); err != nil {
			return nil, err
		}
	}
	for _, of := range lists {
		var ranges []build.Pages
		for _, i := range paged[of] {
			ranges = append(ranges, build.Pages{Offset: segments[i].Addr - segments[i].Base, Bytes: segments[i].Bytes})
		}
		list, err := a.RestorePaged(of, ranges)
		if err != nil {
			return nil, err
		}
		for k, i := range paged[of] {
			placers[i] = list[k]
		}
	}
	return seat(a, segments, placers)
}

func recordedPool(s tape.Segment) build.Recorded {
	return build.Recorded{Stream: s.Stream, Small: s.Small, Private: uint64(s.Private)}
}

// seat returns where the seeds lie in the segments.
func seat(a build.Restorer, segments []tape.Segment, placers []build.Placer) ([]seed, error) {
	var seeds []seed
	for i, s := range segments {
		for k, b := range s.Blocks {
			bytes := b.Bytes
			if bytes == 0 { // as the allocator would cut it
				end := s.Addr + s.Bytes
				if k+1 < len(s.Blocks) {
					end = s.Blocks[k+1].Addr
				}
				if bytes = a.Occupies(recordedPool(s), b.Requested, end-b.Addr); bytes == 0 {
					return nil, fmt.Errorf("%w: a block of %d bytes does not fit where it was recorded", alloc.ErrBadRequest, b.Requested)
				}
			}
			seeds = append(seeds, seed{placers[i], b.Addr - s.Addr, bytes})
		}
	}
	return seeds, nil
}

// recorded is a device that gives its memory at the addresses that the recorded program's
// had: those of the restored segments, and then of each that it took, the first of the same
// size. Where there is none the address lies above all that were recorded. So blocks of the
// same size are in the order of the recording, which decides between them in most releases.
// Reservations are not among it: only offsets in them matter.
type recorded struct {
	device.GPU
	left  []device.Range // recorded, and not given yet, in the order of the events
	given []given        // by address
	above uint64         // is added to the device's own address where none is recorded
	// restored reports that the pool began with the recorded segments.
	restored bool
}

// given is a grant of the device at a recorded address.
type given struct{ addr, bytes, own uint64 }

// newRecorded returns the device of a pool; nil if the addresses are those of a damaged recording.
func newRecorded(dev device.GPU, pool *trace.Pool) *recorded {
	d := &recorded{GPU: dev}
	for _, list := range [][]tape.Segment{pool.Segments(), pool.Granted()} {
		for _, s := range list {
			if s.Base != 0 {
				continue
			}
			d.left = append(d.left, device.Range{Addr: s.Addr, Bytes: s.Bytes})
			d.above = max(d.above, size.Add(s.Addr, s.Bytes))
		}
	}
	if d.above >= 1<<62 {
		return nil
	}
	return d
}

// maxAhead is how many recorded segments are looked at for one of the same size.
const maxAhead = 1 << 10

// Alloc gives memory, at the address that is recorded for that many bytes.
func (d *recorded) Alloc(bytes uint64) (device.Range, error) {
	r, err := d.GPU.Alloc(bytes)
	if err != nil {
		return r, err
	}
	own := r.Addr
	r.Addr += d.above
	for i, want := range d.left[:min(len(d.left), maxAhead)] {
		if want.Bytes != bytes {
			continue
		}
		d.left = slices.Delete(d.left, i, i+1)
		if d.isFree(want.Addr, r.Bytes) {
			r.Addr = want.Addr
		}
		break
	}
	i, _ := d.find(r.Addr)
	d.given = slices.Insert(d.given, i, given{r.Addr, r.Bytes, own})
	return r, nil
}

func (d *recorded) isFree(addr, bytes uint64) bool {
	i, _ := d.find(addr)
	belowIsOver := i == 0 || d.given[i-1].addr+d.given[i-1].bytes <= addr
	aboveIsLater := i == len(d.given) || addr+bytes <= d.given[i].addr
	return belowIsOver && aboveIsLater
}

func (d *recorded) find(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(d.given, addr, func(g given, addr uint64) int { return cmp.Compare(g.addr, addr) })
}

// Free releases what Alloc gave.
func (d *recorded) Free(addr uint64) error {
	i, found := d.find(addr)
	if !found {
		return d.GPU.Free(addr)
	}
	if err := d.GPU.Free(d.given[i].own); err != nil {
		return err
	}
	d.given = slices.Delete(d.given, i, i+1)
	return nil
}
