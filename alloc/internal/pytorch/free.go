package pytorch

// Frees: a live chunk becomes free and is joined with its neighbours. See pytorch.go
// for an overview.

import (
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/internal/invariants"
)

// Free takes a block back. A block that was recorded in other streams waits for
// events there; if the device fails to record them, the block stays live.
func (a *Allocator) Free(b alloc.Block) error {
	h, c, err := a.lookup("free", b)
	if c == nil {
		return err
	}
	return a.release(h, c)
}

// FreeAddr takes back the block that starts at addr, as Free does. The first call
// builds the table of addresses, so that a program which frees by block never pays
// for it.
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

// Live reports why a block is not live.
func (a *Allocator) Live(b alloc.Block) error {
	_, _, err := a.lookup("use", b)
	return err
}

// BlockAt is the live block that starts at addr. The first call builds the table of
// addresses, too.
func (a *Allocator) BlockAt(addr uint64) (alloc.Block, error) {
	if a.closed {
		return alloc.Block{}, alloc.ErrClosed
	}
	return a.byAddr().Block(addr)
}

// tableOrder makes a first table of addresses of 8,192 slots, 64 KiB.
const tableOrder = 13

// byAddr is the table of addresses.
func (a *Allocator) byAddr() *chunks.Table {
	if a.live == nil {
		a.live = chunks.NewTable(&a.store, tableOrder)
		for h, c := range a.chunks {
			if c.State == chunks.Live {
				a.live.Insert(h, c.Addr)
			}
		}
	}
	return a.live
}

// lookup returns the chunk of a live block; nil without an error for the zero block.
func (a *Allocator) lookup(what string, b alloc.Block) (chunks.H, *chunks.Chunk, error) {
	if a.closed {
		return 0, nil, alloc.ErrClosed
	}
	h, gen := b.Ref.Key()
	if h == 0 && b.Addr == 0 {
		return 0, nil, nil
	}
	if c := a.store.Live(h, gen, b.Addr); c != nil {
		return h, c, nil
	}
	if !a.store.Valid(h) {
		return 0, nil, fmt.Errorf("%s of %v: %w: it is not of this pool", what, b, alloc.ErrNotAllocated)
	}
	return 0, nil, fmt.Errorf("%s of %v: %w", what, b, alloc.ErrDoubleFree)
}

// badAddr is the error of an address at which no live block starts.
func (a *Allocator) badAddr(addr uint64) error {
	for _, c := range a.chunks {
		switch {
		case addr < c.Addr || addr-c.Addr >= c.Size || c.Tag&unmapped != 0:
		case c.State == chunks.Free:
			return fmt.Errorf("free of %#x: %w: the memory there is free", addr, alloc.ErrDoubleFree)
		default:
			return fmt.Errorf("free of %#x: %w: it lies %d bytes into the live block at %#x", addr, alloc.ErrNotAllocated, addr-c.Addr, c.Addr)
		}
	}
	return fmt.Errorf("free of %#x: %w: the address is not in this pool", addr, alloc.ErrNotAllocated)
}

// release makes a live chunk free, or has it wait for events.
func (a *Allocator) release(h chunks.H, c *chunks.Chunk) error {
	if invariants.Enabled {
		defer func() { invariants.Must(a.Check()) }()
	}
	others := a.more[h].others
	if others != 0 && a.capturing > 0 {
		a.deferred = append(a.deferred, h)
	} else if others != 0 {
		if err := a.recordEvents(h); err != nil {
			return err
		}
	}
	if a.live != nil {
		a.live.RemoveChunk(h, c.Addr)
	}
	a.stats.BytesInUse -= c.Size
	a.mem.Requested -= c.Requested
	c.State = chunks.Free
	if others != 0 {
		c.Tag |= waiting
		a.mem.Waiting += c.Size
		return nil
	}
	a.putBack(h, c)
	a.mem.InactiveSplitPeak = max(a.mem.InactiveSplitPeak, a.mem.InactiveSplit)
	return nil
}

// putBack joins a free chunk that is in no list with its free neighbours, and puts
// it into its list. The chunk that is freed stays, its neighbours go (free_block).
func (a *Allocator) putBack(h chunks.H, c *chunks.Chunk) {
	a.join(h, c)
	a.putFree(h, c)
}

// join joins a free chunk that is in no list with its free neighbours. One that
// waits for events is not free, and mapped and unmapped ones stay apart: their flags
// differ.
func (a *Allocator) join(h chunks.H, c *chunks.Chunk) {
	if p := c.Prev; p != 0 {
		if d := a.store.At(p); d.State == chunks.Free && d.Tag == c.Tag {
			a.takeFree(p, d)
			c.Addr, c.Prev = d.Addr, d.Prev
			c.Size += d.Size
			if c.Prev != 0 {
				a.store.At(c.Prev).Next = h
			} else {
				a.segments[a.more[h].segment].first = h
			}
			a.store.Drop(p)
		}
	}
	if n := c.Next; n != 0 {
		if d := a.store.At(n); d.State == chunks.Free && d.Tag == c.Tag {
			a.takeFree(n, d)
			c.Next = d.Next
			c.Size += d.Size
			if c.Next != 0 {
				a.store.At(c.Next).Prev = h
			}
			a.store.Drop(n)
		}
	}
}
