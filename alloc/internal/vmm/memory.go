// This file takes memory from the device and releases it. Both are several
// driver calls, each of which may fail: a record says how far it is, so that it
// can be continued.
//
// A block of 4 MiB whose MemMap fails: has is memory and addresses, 4 MiB count as held.
// releaseMemory releases both, in the reverse order. If MemRelease fails, the record is
// stuck with what it has left, still counts as held, and settle tries again before the
// next request gives up, in Trim and in Close.

package vmm

import (
	"errors"
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/device"
)

// record is what the store's chunk does not say of a piece of memory.
type record struct {
	has     has
	handle  device.Handle
	streams uint64 // whose work may use it; streams.go

	// While it is pending, pending.go. The order of all frees is linked by the
	// chunks' Prev and Next.
	class         int32
	batch         int32
	before, after chunks.H // in its class
}

// has says what is held of the device for a record.
type has uint8

const (
	hasMemory    has = 1 << iota // a handle; its bytes are in PoolBytes
	hasAddresses                 // a reservation at Addr
	hasMapping                   // the one is mapped onto the other

	hasAll = hasMemory | hasAddresses | hasMapping
)

// fresh takes p bytes of memory from the device, at separate addresses. It returns 0 if
// the budget or the driver refuses. Free addresses are not kept: each block's are
// reserved and freed with it, as in XLA.
func (a *Allocator) fresh(p uint64, end alloc.End) (chunks.H, error) {
	if p > a.blocks.Count.BytesLimit-a.blocks.Count.PoolBytes {
		return 0, nil
	}
	h, c := a.blocks.Store.New()
	for int(h) >= len(a.more) {
		a.more = append(a.more, record{})
	}
	a.more[h] = record{}
	// Free until it is handed out: Close and Check count it from here on.
	c.Addr, c.Size, c.State, c.Tag = 0, p, chunks.Free, uint8(end)
	err := a.take(c, &a.more[h])
	if err == nil {
		a.blocks.Enter(h, c)
		return h, nil
	}
	if back := a.releaseMemory(h); back != nil {
		a.keep(h)
		return 0, fmt.Errorf("%w; memory taken before the failure is held until it can be released: %w", err, back)
	}
	if errors.Is(err, device.ErrOutOfMemory) {
		return 0, nil
	}
	return 0, err
}

// take makes the driver calls of fresh, in XLA's order, and records each that succeeded.
func (a *Allocator) take(c *chunks.Chunk, r *record) (err error) {
	if r.handle, err = a.dev.MemCreate(c.Size); err != nil {
		return err
	}
	r.has |= hasMemory
	a.blocks.Held(c.Size)
	if c.Addr, err = a.dev.AddressReserve(c.Size, 0); err != nil {
		return err
	}
	r.has |= hasAddresses
	if err := a.dev.MemMap(c.Addr, c.Size, r.handle); err != nil {
		return err
	}
	r.has |= hasMapping
	return a.dev.MemSetAccess(c.Addr, c.Size)
}

// releaseMemory releases what is held for h, which nothing on the device uses any
// more, and forgets h. After an error it can be called again.
func (a *Allocator) releaseMemory(h chunks.H) error {
	c, r := a.blocks.Store.At(h), &a.more[h]
	if r.has&hasMapping != 0 {
		if err := a.dev.MemUnmap(c.Addr, c.Size); err != nil {
			return err
		}
		r.has &^= hasMapping
	}
	if r.has&hasMemory != 0 {
		if err := a.dev.MemRelease(r.handle); err != nil {
			return err
		}
		r.has &^= hasMemory
		a.blocks.Count.PoolBytes -= c.Size
	}
	if r.has&hasAddresses != 0 {
		if err := a.dev.AddressFree(c.Addr, c.Size); err != nil {
			return err
		}
	}
	a.blocks.Store.Drop(h)
	return nil
}

// retire releases the memory of a pending block whose work is done.
func (a *Allocator) retire(h chunks.H) error {
	a.unqueue(h)
	a.blocks.Leave(h, a.blocks.Store.At(h))
	if err := a.releaseMemory(h); err != nil {
		a.keep(h)
		return err
	}
	return nil
}

// keep keeps a record whose memory the device did not take back.
func (a *Allocator) keep(h chunks.H) {
	a.blocks.Store.At(h).State = chunks.Stuck
	a.stuck = append(a.stuck, h)
}

// settle tries again to release what is stuck, the last first, up to the first failure.
func (a *Allocator) settle() error {
	for len(a.stuck) > 0 {
		last := len(a.stuck) - 1
		if err := a.releaseMemory(a.stuck[last]); err != nil {
			return err
		}
		a.stuck = a.stuck[:last]
	}
	return nil
}

// reclaimDone releases all pending memory whose work is done, but for the
// upper end's. It waits for nothing. The open batch is closed first, or its blocks could
// never be found to be done.
func (a *Allocator) reclaimDone() error {
	if err := a.settle(); err != nil {
		return err
	}
	if err := a.closeBatch(); err != nil {
		return err
	}
	a.poll()
	for h := a.pending.head; h != 0; {
		c := a.blocks.Store.At(h)
		next := c.Next
		if c.Tag != uint8(alloc.Upper) && a.pending.batches[a.more[h].batch].done {
			if err := a.retire(h); err != nil {
				return err
			}
		}
		h = next
	}
	return nil
}

// reclaim waits for the pending blocks that were freed first, as many as have
// bytes together (or all), and releases their memory. Those of the upper end
// are passed over unless upper. An operation that has waited before releases
// what is done by now.
func (a *Allocator) reclaim(bytes uint64, upper bool) error {
	var chosen uint64
	var end chunks.H // the first that is not looked at
	for end = a.pending.head; end != 0 && chosen < bytes; end = a.blocks.Store.At(end).Next {
		if c := a.blocks.Store.At(end); upper || c.Tag != uint8(alloc.Upper) {
			chosen += c.Size
			a.pending.batches[a.more[end].batch].wanted = true
		}
	}
	if chosen == 0 {
		return nil
	}
	if err := a.wait(); err != nil {
		return err
	}
	for h := a.pending.head; h != end; {
		c := a.blocks.Store.At(h)
		next := c.Next
		if (upper || c.Tag != uint8(alloc.Upper)) && a.pending.batches[a.more[h].batch].done {
			if err := a.retire(h); err != nil {
				return err
			}
		}
		h = next
	}
	return nil
}
