package bfc

// Frees: a live chunk becomes free and is joined with its free neighbours. This is
// TryToCoalesce of the original.
//
// Each chunk has at most one free neighbour on either side, since two free chunks are
// never neighbours. So one look above and one below are enough: between free [0, 1)
// and free [3, 4), in MiB, freeing [1, 3) makes [0, 4). The lowest chunk's number stays,
// as in the original, whose report prints the numbers.
//
// A block is found again by the numbers of its chunk and of its allocation, which Free
// compares with the chunk. Where the original ends the process on a bad free, these
// tell a block that was freed before from one that is not of this pool.

import (
	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/internal/invariants"
)

// Free takes a block back. It makes no driver call. The zero block does nothing. Errors:
// alloc.ErrDoubleFree, alloc.ErrNotAllocated or alloc.ErrClosed; nothing changed then.
func (a *Allocator) Free(b alloc.Block) error {
	if a.closed {
		return alloc.ErrClosed
	}
	h, gen := b.Ref.Key()
	if h == 0 && b.Addr == 0 {
		return nil
	}
	c := a.store.Live(h, gen, b.Addr)
	if c == nil {
		return a.badFree("free", b)
	}
	if a.live != nil {
		a.live.RemoveChunk(h, b.Addr)
	}
	a.release(h, c)
	return nil
}

// Live returns nil if a block is live or zero, and else why it is not.
func (a *Allocator) Live(b alloc.Block) error {
	if a.closed {
		return alloc.ErrClosed
	}
	h, gen := b.Ref.Key()
	if b.IsZero() || a.store.Live(h, gen, b.Addr) != nil {
		return nil
	}
	return a.badFree("use", b)
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

// BlockAt returns the live block that starts at addr. The first call builds the
// table of addresses, too.
func (a *Allocator) BlockAt(addr uint64) (alloc.Block, error) {
	if a.closed {
		return alloc.Block{}, alloc.ErrClosed
	}
	return a.byAddr().Block(addr)
}

// byAddr returns the table of addresses, and builds it first if there is none. From then
// on every request and free keeps it, which costs them some 10 ns.
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

// release makes a live chunk free and joins it with its free neighbours. Requested stays
// what it was: the original's report shows it for free chunks, too.
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

// bordersGap reports whether a chunk that was live is the innermost of its end, so that
// what becomes free there is part of the gap. The innermost lower chunk has nothing
// above it that is lower: the gap, an upper chunk, or the region's end.
func (a *Allocator) bordersGap(c *chunks.Chunk) bool {
	if c.Tag == tagUpper {
		return c.Prev == 0 || a.store.At(c.Prev).Tag != tagUpper
	}
	return c.Next == 0 || a.store.At(c.Next).Tag != tagLower
}

// join joins the free chunk h, which is in no index, with its free neighbours,
// first the one above, then the one below, and returns the chunk that is left, in no
// index either. The order decides which numbers become unused, and so which ones the
// next chunks get.
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
// number is dropped by the caller. Free chunks of different tags side by side become the
// gap: nothing that lives separates the two ends there any more.
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

// badFree is the error of an operation on a block that is not live; what names the
// operation. A block whose address is in no region was never of this pool, or its
// region was released since. It is kept out of Free, whose common path would otherwise
// carry its arguments.
//
//go:noinline
func (a *Allocator) badFree(what string, b alloc.Block) error {
	return a.store.NotLive(what, b, a.regionOf(b.Addr) >= 0)
}

// badAddr says what is wrong with an address at which no live block starts. It walks the
// region's chunks; only errors are so slow.
func (a *Allocator) badAddr(addr uint64) error {
	if i := a.regionOf(addr); i >= 0 {
		for _, c := range a.tiles(&a.regions[i]) {
			if addr < c.Addr+c.Size {
				return chunks.NoBlockAt(addr, c)
			}
		}
	}
	return chunks.NoBlockAt(addr, nil)
}
