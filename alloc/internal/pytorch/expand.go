package pytorch

// Expandable segments: addresses behind which pages are mapped as they are needed.
//
// One case, on a device of 100 MiB with pages of 20 MiB. A request of 25,000,000 bytes
// finds no segment. 120 MiB of addresses are reserved (9/8 of the total, in whole
// pages): one unmapped block. Two pages are created and mapped at its start, and the
// block is then one of 40 MiB, which is split as any other, and an unmapped one of 80
// MiB. A second request of 25,000,000 begins in the free rest of 16,943,040 bytes and
// needs one page more behind it. When the device is full the pages that lie whole in
// free blocks are unmapped: the first block, freed, keeps the 4,028,480 bytes above its
// only whole page as a free block, and before it lies an unmapped one of 20 MiB.

import (
	"cmp"
	"errors"
	"slices"

	"gpumem/alloc/internal/chunks"
	"gpumem/device"
)

// position is where an unmapped chunk at addr is in the list, or would be.
func (f *freeList) position(st *chunks.Store, addr uint64) int {
	i, _ := slices.BinarySearchFunc(f.unmapped, addr, func(h chunks.H, addr uint64) int {
		return cmp.Compare(st.At(h).Addr, addr)
	})
	return i
}

func (f *freeList) addUnmapped(st *chunks.Store, h chunks.H, addr uint64) {
	f.unmapped = slices.Insert(f.unmapped, f.position(st, addr), h)
}

func (f *freeList) dropUnmapped(st *chunks.Store, addr uint64) {
	i := f.position(st, addr)
	f.unmapped = slices.Delete(f.unmapped, i, i+1)
}

// expand maps pages for a block of n bytes (try_allocate_expandable_block). What was
// mapped before a refusal stays, as free memory.
func (a *Allocator) expand(l int32, n uint64) (chunks.H, *chunks.Chunk, error) {
	h := a.expandable(l, n)
	if h == 0 {
		var err error
		if h, err = a.newExpandable(l, n); h == 0 {
			return 0, nil, err
		}
	}
	c := a.store.At(h)
	if c.Tag&unmapped != 0 {
		if ok, err := a.mapPages(h, c, min(c.Size, n)); !ok {
			return 0, nil, err
		}
	}
	for c.Size < n {
		next := c.Next
		if next == 0 { // larger than the addresses
			return 0, nil, nil
		}
		d := a.store.At(next)
		if ok, err := a.mapPages(next, d, min(n-c.Size, d.Size)); !ok {
			return 0, nil, err
		}
		h, c = next, d
	}
	a.takeFree(h, c)
	return h, c, nil
}

// expandable is the chunk from which free and unmapped ones in a row add up to n
// bytes; 0 if there is none (find_expandable_block).
func (a *Allocator) expandable(l int32, n uint64) chunks.H {
	for _, h := range a.lists[l].unmapped {
		if p := a.store.At(h).Prev; p != 0 {
			if c := a.store.At(p); c.State == chunks.Free && c.Tag == expand {
				h = p
			}
		}
		room := uint64(0)
		for k := h; k != 0 && room < n; {
			c := a.store.At(k)
			if c.State != chunks.Free || c.Tag&waiting != 0 {
				break
			}
			room += c.Size
			k = c.Next
		}
		if room >= n {
			return h
		}
	}
	return 0
}

// newExpandable reserves the addresses of a segment, and returns its unmapped chunk.
func (a *Allocator) newExpandable(l int32, n uint64) (chunks.H, error) {
	page := uint64(smallSegment)
	if !a.pools[a.lists[l].pool].small {
		page = a.cfg.Segment
	}
	bytes := a.info.Total + a.info.Total/8
	if a.cfg.Addresses != 0 {
		bytes = max(min(bytes, a.cfg.Addresses), n)
	}
	pages := (bytes + page - 1) / page
	addr, err := a.dev.AddressReserve(pages*page, 0)
	if err != nil {
		return 0, a.refused(err)
	}
	s := a.addSegment(segment{addr: addr, size: pages * page, list: l, page: page, pages: make([]device.Handle, pages)})
	h, c := a.wholeChunk(s)
	c.Tag = expand | unmapped
	a.putFree(h, c)
	return h, nil
}

// mapPages maps the pages of an unmapped chunk that its first n bytes need, and joins
// the result with its neighbours into a free block. ok is false if it did not: the
// device has not enough memory, or failed with an error. All pages are created before
// the first is mapped.
func (a *Allocator) mapPages(h chunks.H, c *chunks.Chunk, n uint64) (ok bool, err error) {
	s := &a.segments[a.more[h].segment]
	lo := (c.Addr - s.addr) / s.page
	hi := (c.Addr + n - s.addr + s.page - 1) / s.page
	bytes := (hi - lo) * s.page
	if err := a.backPages(s, lo, hi); err != nil {
		for i := lo; i < hi; i++ {
			if s.pages[i] != 0 {
				_ = a.unmapPage(s, i) // a page that stays is used when this is tried again
			}
		}
		return false, a.refused(err)
	}

	a.takeFree(h, c)
	c.Tag = expand
	if bytes < c.Size {
		rest, d := a.newChunk(a.more[h].segment)
		d.Addr, d.Size, d.Stream, d.Tag, d.State, d.Requested = c.Addr+bytes, c.Size-bytes, c.Stream, expand|unmapped, chunks.Free, 0
		d.Prev, d.Next = h, c.Next
		if d.Next != 0 {
			a.store.At(d.Next).Prev = rest
		}
		c.Next = rest
		c.Size = bytes
		a.putFree(rest, d)
	}
	a.putBack(h, c)
	a.reserve(int32(c.Stream), bytes)
	return true, nil
}

// backPages creates the pages from lo to hi of an unmapped chunk, maps them and makes
// them accessible. After an error some may be mapped. A page that an earlier failure
// left mapped is used as it is.
func (a *Allocator) backPages(s *segment, lo, hi uint64) (err error) {
	created := a.created[:0] // 0 for a page that is mapped
	defer func() {
		for _, handle := range created {
			if handle != 0 {
				a.releasePage(handle, s.page)
			}
		}
		a.created = created[:0]
	}()
	for i := lo; i < hi; i++ {
		handle := device.Handle(0)
		if s.pages[i] == 0 {
			if handle, err = a.dev.MemCreate(s.page); err != nil {
				return err
			}
			a.hold(s.page)
		}
		created = append(created, handle)
	}
	for i, handle := range created {
		if handle == 0 {
			continue
		}
		at := lo + uint64(i)
		if err := a.dev.MemMap(s.addr+at*s.page, s.page, handle); err != nil {
			return err
		}
		s.pages[at], created[i] = handle, 0
	}
	return a.dev.MemSetAccess(s.addr+lo*s.page, (hi-lo)*s.page)
}

// unmapPage unmaps one page and releases it.
func (a *Allocator) unmapPage(s *segment, i uint64) error {
	if err := a.dev.MemUnmap(s.addr+i*s.page, s.page); err != nil {
		return err
	}
	a.releasePage(s.pages[i], s.page)
	s.pages[i] = 0
	return nil
}

// orphan is a page that is mapped nowhere, and that the device did not release.
type orphan struct {
	handle device.Handle
	bytes  uint64
}

// releasePage releases a page that is mapped nowhere. One that the device does not
// release is kept, to be tried again.
func (a *Allocator) releasePage(handle device.Handle, bytes uint64) {
	a.orphans = append(a.orphans, orphan{handle, bytes})
	if err := a.dev.MemRelease(handle); err == nil {
		a.orphans = a.orphans[:len(a.orphans)-1]
		a.stats.PoolBytes -= bytes
	}
}

// releaseOrphans tries again what the device did not release before.
func (a *Allocator) releaseOrphans() error {
	var errs []error
	a.orphans = slices.DeleteFunc(a.orphans, func(o orphan) bool {
		if err := a.dev.MemRelease(o.handle); err != nil {
			errs = append(errs, err)
			return false
		}
		a.stats.PoolBytes -= o.bytes
		return true
	})
	return errors.Join(errs...)
}

// unmapPages unmaps the whole pages in a free chunk of an expandable segment, in
// rising order, and releases them. What is left below and above them stays free. A
// segment of which nothing is mapped goes with its addresses.
func (a *Allocator) unmapPages(h chunks.H, c *chunks.Chunk) error {
	i := a.more[h].segment
	s := &a.segments[i]
	lo := (c.Addr - s.addr + s.page - 1) / s.page
	end := (c.Addr + c.Size - s.addr) / s.page
	if lo >= end {
		return nil
	}
	if err := a.quiesce(true); err != nil {
		return err
	}
	var err error
	hi := lo
	for ; hi < end; hi++ {
		if err = a.unmapPage(s, hi); err != nil {
			break
		}
	}
	if hi == lo {
		return err
	}
	a.takeFree(h, c)
	from, to := s.addr+lo*s.page, s.addr+hi*s.page
	if n := from - c.Addr; n > 0 {
		low, d := a.cut(h, c, n)
		a.putFree(low, d)
	}
	if n := c.Addr + c.Size - to; n > 0 {
		high, d := a.newChunk(i)
		d.Addr, d.Size, d.Stream, d.Tag, d.State, d.Requested = to, n, c.Stream, c.Tag, chunks.Free, 0
		d.Prev, d.Next = h, c.Next
		if d.Next != 0 {
			a.store.At(d.Next).Prev = high
		}
		c.Next = high
		c.Size -= n
		a.putFree(high, d)
	}
	c.Tag = expand | unmapped
	a.unreserve(int32(c.Stream), to-from)
	a.putBack(h, c)
	if err == nil && c.Prev|c.Next == 0 {
		if err = a.dev.AddressFree(s.addr, s.size); err == nil {
			a.takeFree(h, c)
			a.store.Drop(h)
			a.dropSegment(i)
		}
	}
	return err
}

// closePages gives the pages and addresses of an expandable segment back, whatever
// lives in it.
func (a *Allocator) closePages(s *segment) error {
	var errs []error
	for i, handle := range s.pages {
		if handle != 0 {
			errs = append(errs, a.unmapPage(s, uint64(i)))
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		err = a.dev.AddressFree(s.addr, s.size)
	}
	return err
}
