package elastic

// Blocks of one handle. Other processes and network cards are given memory by its
// handle, so a block for them has a dedicated one, at separate addresses. Its pages are
// shared with no other block, and it is released to the device when it is freed.
//
// A block of 5 MiB takes one handle of 3 pages, 6 MiB, all of which count as held. If
// 4 pages are idle and only 2 more may be owned, shrink releases one first, for idle
// pages cannot become a part of a handle.
//
// The steps are create, find addresses, map, give access. Each failure undoes what the
// steps before it did. If even that fails the handle is kept: as an orphan if it is
// mapped nowhere, as a stuck chunk if it is. Both count as held and are tried again, at
// Trim and at Close.

import (
	"errors"
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/device"
)

// whole makes a block of that many pages with one handle. errPressure means that the
// cap was lowered and miss is to try again, or that idle pages were unmapped to make
// room in the driver's tables.
func (a *Allocator) whole(need, align uint64) (chunks.H, *chunks.Chunk, error) {
	if a.held+need > a.cap {
		return 0, nil, alloc.ErrNoMemory
	}
	if err := a.shrink(a.cap - need); err != nil {
		return 0, nil, err
	}
	bytes := need << a.shift
	p, err := a.dev.MemCreate(bytes)
	if errors.Is(err, device.ErrOutOfMemory) {
		// Others have it, or what is idle here is in the way.
		if err := a.shrink(a.held); err != nil {
			return 0, nil, err
		}
		if p, err = a.dev.MemCreate(bytes); errors.Is(err, device.ErrOutOfMemory) {
			a.setCap(a.owned())
			return 0, nil, errPressure
		}
	}
	if err != nil {
		return 0, nil, err
	}
	h, x := a.vacancy(bytes, align)
	if h == 0 {
		// There are no addresses in one piece. Idle pages may lie in between.
		if err = a.steal(a.mapped, 0, 0, true); err == nil {
			if h, x = a.vacancy(bytes, align); h == 0 {
				err = errAddresses
			}
		}
		if err != nil {
			return 0, nil, a.discard(p, need, err)
		}
	}
	err = a.dev.MemMap(x, bytes, p)
	if err == nil {
		if err = a.dev.MemSetAccess(x, bytes); err != nil {
			if undo := a.dev.MemUnmap(x, bytes); undo != nil {
				*a.handle(x) = p
				a.mapped += need
				a.grew()
				a.strand(h, x, x+bytes)
				return 0, nil, errors.Join(err, undo)
			}
		}
	}
	if err != nil {
		full := errors.Is(err, device.ErrOutOfMemory) // of the driver's tables
		if full {
			err = fmt.Errorf("%w: the driver maps no more than %d pages: %w", alloc.ErrNoMemory, a.mapped, err)
		}
		orphans := len(a.orphans)
		err = a.discard(p, need, err)
		if !full || len(a.orphans) > orphans || a.owned() == a.held {
			return 0, nil, err
		}
		if err := a.shrink(a.held); err != nil {
			return 0, nil, err
		}
		return 0, nil, errPressure
	}
	*a.handle(x) = p
	a.mapped += need
	a.held += need
	a.moves.Mapped += need
	a.grew()
	h, c := a.isolate(h, a.store.At(h), x, x+bytes)
	c.Tag = tagWhole
	return h, c, nil
}

// vacancy finds addresses with nothing behind them, without air around them: the chunk
// that they lie in, 0 if there are none, and the first of them.
func (a *Allocator) vacancy(bytes, align uint64) (chunks.H, uint64) {
	slip := uint64(0)
	if align > a.mask {
		slip = align - a.mask - 1
	}
	h := a.large.unmapped.Find(bytes + slip)
	if h == 0 {
		return 0, 0
	}
	return h, (a.store.At(h).Addr + align - 1) &^ (align - 1)
}

// discard releases the handle of a block that err kept from being made, and returns
// err, joined with the error of the release.
func (a *Allocator) discard(p device.Handle, pages uint64, err error) error {
	if undo := a.dev.MemRelease(p); undo != nil {
		a.orphan(p, pages)
		return errors.Join(err, undo)
	}
	return err
}

// orphan keeps a handle that the driver did not take back. Its pages count as held, so
// that Idle does not promise them and Trim does not wait for them.
func (a *Allocator) orphan(p device.Handle, pages uint64) {
	a.orphans = append(a.orphans, orphan{p, pages})
	a.held += pages
	a.grew()
}

// releaseWhole frees the block h, which has a dedicated handle, when all work
// is done that is queued now: unlike other blocks it is unmapped at once, so that the
// epoch that its free would be stamped with must be over. If that has to be waited for
// by the owner, or the driver does not unmap it, the block stays live.
func (a *Allocator) releaseWhole(h chunks.H, c *chunks.Chunk) error {
	if !a.streams.Repeated() {
		if err := a.epochs.Wait(a.epochs.Stamp()); err != nil {
			return err
		}
	}
	if err := a.dev.MemUnmap(c.Addr, c.Size); err != nil {
		return err
	}
	p := a.handle(c.Addr)
	pages := c.Size >> a.shift
	a.mapped -= pages
	a.held -= pages
	if err := a.dev.MemRelease(*p); err != nil {
		a.orphan(*p, pages)
		a.warnf("%s: %d pages of a freed block were not released: %v", a.name, pages, err)
	}
	*p = 0
	a.settle(h, c, tagUnmapped)
	return nil
}
