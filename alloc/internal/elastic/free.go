package elastic

// Frees: a block becomes a mapped chunk. And what else finds a block, by the value that
// Alloc gave or by its address.
//
// A block carries the number of its chunk and of its allocation. Free compares both and
// the address with the chunk, so that a block freed twice is noticed even when its
// chunk has another block by then.

import (
	"errors"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/alloc/streams"
	"gpumem/internal/invariants"
)

// Free takes a block back. The driver is called only for a block of one handle,
// which is unmapped and released when all work that is queued is done, and by
// Eager.
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
	return a.release(h, c)
}

// tableOrder makes a first table of addresses of 8,192 slots, 64 KiB.
const tableOrder = 13

// byAddr returns the table of addresses. The first call builds it, so that a program
// which frees by block never pays for it; from then on Alloc and Free keep it.
func (a *Allocator) byAddr() *chunks.Table {
	if a.live == nil {
		a.live = chunks.NewTable(&a.store, tableOrder)
		for h, c := range a.chunks() {
			if isBlock(c) {
				a.live.Insert(h, c.Addr)
			}
		}
	}
	return a.live
}

// FreeAddr takes back the block that starts at addr, as Free does; 0 does
// nothing.
func (a *Allocator) FreeAddr(addr uint64) error {
	if a.closed {
		return alloc.ErrClosed
	}
	if addr == 0 {
		return nil
	}
	h := a.byAddr().Find(addr)
	if h == 0 {
		return a.badAddr(addr)
	}
	return a.release(h, a.store.At(h))
}

// BlockAt is the live block that starts at addr. The first call builds the
// table of addresses, too.
func (a *Allocator) BlockAt(addr uint64) (alloc.Block, error) {
	if a.closed {
		return alloc.Block{}, alloc.ErrClosed
	}
	return a.byAddr().Block(addr)
}

// release makes a block free, and with Config.Eager tries to release its pages.
func (a *Allocator) release(h chunks.H, c *chunks.Chunk) error {
	if invariants.Enabled {
		defer func() { invariants.Must(a.Check()) }()
	}
	size, addr := c.Size, c.Addr
	if c.Tag == tagWhole {
		if err := a.releaseWhole(h, c); err != nil {
			return err // it is live still
		}
	} else {
		a.free(h, c)
	}
	if a.live != nil {
		a.live.RemoveChunk(h, addr)
	}
	a.stats.BytesInUse -= size
	if a.ops++; a.ops%window == 0 {
		a.turn()
	}
	if a.eager {
		// The block is free whatever happens to its pages; they are tried again
		// at the next free.
		if pending := a.Finish(); pending != nil {
			pending.Settle(pending) // the owner calls Finish
		}
	}
	return nil
}

// Finish does what a Free under Config.Eager leaves to be done when the device
// has finished with the pages: it releases idle ones. If that has to be waited
// for first it returns a Pending, and is called again then.
func (a *Allocator) Finish() *streams.Pending {
	if !a.eager || a.closed {
		return nil
	}
	err := a.shrink(a.held + a.cfg.Reserve>>a.shift)
	if pending := (*streams.Pending)(nil); errors.As(err, &pending) {
		return pending
	}
	if err != nil {
		a.warnf("%s: idle pages were not released: %v", a.name, err)
	}
	return nil
}

// Live reports why a block is not live.
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

// renumber stamps all free memory with epoch 1, because the numbers of epochs have run
// out after 2^32 of them; see epochs.Epochs.
func (a *Allocator) renumber() {
	for _, c := range a.chunks() {
		if c.State == chunks.Free && c.Tag == tagMapped {
			c.Stream = 1
		}
	}
}

// badFree is the error of an operation on a block that is not live. It is kept out of
// Free, whose common path would otherwise carry its arguments.
//
//go:noinline
func (a *Allocator) badFree(what string, b alloc.Block) error {
	return a.store.NotLive(what, b, b.Addr-a.base < a.bytes)
}

// badAddr says what is wrong with an address at which no live block starts.
func (a *Allocator) badAddr(addr uint64) error {
	if addr-a.base >= a.bytes {
		return chunks.NoBlockAt(addr, nil)
	}
	return chunks.NoBlockAt(addr, a.store.At(a.holding(a.space(addr).first, addr)))
}
