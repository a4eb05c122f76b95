package bfc

// The way back: a live chunk becomes free and is joined with its neighbours.

import (
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/internal/invariants"
)

// Free takes a block back.
func (a *Allocator) Free(b alloc.Block) error {
	if a.closed {
		return alloc.ErrClosed
	}
	h, gen := b.Key()
	if h == 0 && b.Addr == 0 {
		return nil
	}
	c := a.store.Live(h, gen, b.Addr)
	if c == nil {
		return a.badFree(b)
	}
	if a.live != nil {
		a.live.RemoveChunk(h, b.Addr)
	}
	a.release(h, c)
	return nil
}

// Live reports why a block is not live.
func (a *Allocator) Live(b alloc.Block) error {
	if a.closed {
		return alloc.ErrClosed
	}
	h, gen := b.Key()
	if b.IsZero() || a.store.Live(h, gen, b.Addr) != nil {
		return nil
	}
	return a.badFree(b)
}

// tableOrder makes a first table of addresses of 8,192 slots, 64 KiB: most
// programs have some hundred blocks live at once and never fill an eighth of it.
const tableOrder = 13

// FreeAddr takes back the block that starts at addr. The first call builds the
// table of addresses, so that a program which frees by block never pays for it.
func (a *Allocator) FreeAddr(addr uint64) error {
	if a.closed {
		return alloc.ErrClosed
	}
	if addr == 0 {
		return nil
	}
	h := a.byAddr().Remove(addr)
	if h == 0 {
		return a.badAddr(addr)
	}
	a.release(h, a.store.At(h))
	return nil
}

// BlockAt is the live block that starts at addr. The first call builds the
// table of addresses, too.
func (a *Allocator) BlockAt(addr uint64) (alloc.Block, error) {
	if a.closed {
		return alloc.Block{}, alloc.ErrClosed
	}
	return a.byAddr().Block(addr)
}

// byAddr is the table of addresses.
func (a *Allocator) byAddr() *chunks.Table {
	if a.live == nil {
		a.live = chunks.NewTable(&a.store, tableOrder)
		for h, c := range a.chunks() {
			if c.State == chunks.Live {
				a.live.Insert(h, c.Addr)
			}
		}
	}
	return a.live
}

// release makes a live chunk free and joins it with its free neighbours.
func (a *Allocator) release(h chunks.H, c *chunks.Chunk) {
	if invariants.Enabled {
		defer func() { invariants.Must(a.Check()) }()
	}
	a.stats.BytesInUse -= c.Size
	c.State = chunks.Free
	if a.spatial && a.bordersGap(c) {
		c.Tag = tagGap
	}
	a.putFree(a.join(h, c))
}

// bordersGap reports whether a chunk that was live is the last of its end, so that
// what becomes free there is part of the gap.
func (a *Allocator) bordersGap(c *chunks.Chunk) bool {
	if c.Tag == tagUpper {
		return c.Prev == 0 || a.store.At(c.Prev).Tag != tagUpper
	}
	return c.Next == 0 || a.store.At(c.Next).Tag != tagLower
}

// join joins the free chunk h, which is in no index, with its free neighbours,
// first the one above, then the one below, and returns the chunk that is left.
func (a *Allocator) join(h chunks.H, c *chunks.Chunk) (chunks.H, *chunks.Chunk) {
	if n := c.Next; n != 0 {
		if d := a.store.At(n); d.State == chunks.Free {
			a.takeFree(n, d)
			a.merge(h, c, d)
			a.store.Drop(n)
		}
	}
	if p := c.Prev; p != 0 {
		if d := a.store.At(p); d.State == chunks.Free {
			a.takeFree(p, d)
			a.merge(p, d, c)
			a.store.Drop(h)
			return p, d
		}
	}
	return h, c
}

// merge joins the chunk d, which lies right above chunk lo, into that; d's
// number is dropped by the caller. Different tags mean that the gap between the
// ends closed or opened there.
func (a *Allocator) merge(lo chunks.H, c, d *chunks.Chunk) {
	c.Size += d.Size
	if c.Tag != d.Tag {
		c.Tag = tagGap
	}
	c.Next = d.Next
	if d.Next != 0 {
		a.store.At(d.Next).Prev = lo
	}
}

// badFree says what is wrong with a block that is not live.
func (a *Allocator) badFree(b alloc.Block) error {
	if h, _ := b.Key(); !a.store.Valid(h) || a.regionOf(b.Addr) < 0 {
		return fmt.Errorf("free of %v: %w: it is not of this pool", b, alloc.ErrNotAllocated)
	}
	return fmt.Errorf("free of %v: %w", b, alloc.ErrDoubleFree)
}

// badAddr says what is wrong with an address at which no live block starts.
func (a *Allocator) badAddr(addr uint64) error {
	i := a.regionOf(addr)
	if i < 0 {
		return fmt.Errorf("free of %#x: %w: the address is not in this pool", addr, alloc.ErrNotAllocated)
	}
	for h := a.regions[i].first; h != 0; {
		c := a.store.At(h)
		if addr < c.Addr+c.Size {
			if c.State == chunks.Free {
				return fmt.Errorf("free of %#x: %w: the memory there is free", addr, alloc.ErrDoubleFree)
			}
			return fmt.Errorf("free of %#x: %w: it lies %d bytes into the live block at %#x", addr, alloc.ErrNotAllocated, addr-c.Addr, c.Addr)
		}
		h = c.Next
	}
	return fmt.Errorf("free of %#x: %w", addr, alloc.ErrNotAllocated)
}
