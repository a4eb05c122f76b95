package elastic

// The end of a pool: all is unmapped and released, whatever lives in it.
//
// The order is that of the driver's manual: wait for all work, unmap every run, release
// the handles, free the addresses. A handle that is still mapped after a failed unmap is
// not released, and then the addresses are not freed either.

import (
	"errors"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/device"
)

// Close waits for all work on the device and gives every page and the addresses
// back. A call that fails does not keep the others from being made, unless the
// device is lost. The error is the first one. A second Close returns alloc.ErrClosed.
func (a *Allocator) Close() error {
	if a.closed {
		return alloc.ErrClosed
	}
	a.closed = true
	var first error
	failed := func(err error) bool {
		if err != nil && first == nil {
			first = err
		}
		return err != nil
	}
	if a.mapped > 0 {
		failed(a.dev.Synchronize())
	}
	a.runs(func(lo, hi uint64) {
		if errors.Is(first, device.ErrLost) || failed(a.dev.MemUnmap(lo, hi-lo)) {
			return
		}
		for at := lo; at < hi; {
			p := *a.handle(at)
			from := at
			for at += a.mask + 1; at < hi && *a.handle(at) == 0; at += a.mask + 1 {
			}
			n := (at - from) >> a.shift
			a.mapped -= n
			a.orphans = append(a.orphans, orphan{p, n})
		}
	})
	for n := len(a.spare); n > 0; n-- {
		a.orphans = append(a.orphans, orphan{a.spare[n-1], 1})
	}
	a.spare = nil
	kept := a.orphans[:0]
	for _, o := range a.orphans {
		if errors.Is(first, device.ErrLost) || failed(a.dev.MemRelease(o.handle)) {
			kept = append(kept, o)
		}
	}
	a.orphans = kept
	if a.bytes > 0 && a.mapped == 0 && !errors.Is(first, device.ErrLost) {
		failed(a.dev.AddressFree(a.base, a.bytes))
	}
	a.epochs.End()
	failed(a.streams.Close())
	a.stats.BytesInUse = 0
	a.store = chunks.Store{}
	a.large, a.small, a.live, a.handles = space{}, space{}, nil, nil
	return first
}

// runs visits the runs of pages that are mapped, in address order. No handle
// reaches over the end of one. Two live chunks that meet inside a page are one run, as
// that page has one mapping.
func (a *Allocator) runs(yield func(lo, hi uint64)) {
	lo, hi := uint64(0), uint64(0)
	for _, c := range a.chunks() {
		if c.State == chunks.Free && c.Tag == tagUnmapped {
			continue
		}
		if from := a.down(c.Addr); from > hi || hi == 0 {
			if hi > lo {
				yield(lo, hi)
			}
			lo = from
		}
		hi = a.up(end(c))
	}
	if hi > lo {
		yield(lo, hi)
	}
}
