// Package direct passes every request on to the device: JAX's platform
// allocator, and the one it calls address, which since XLA of July 2026 is the same.
//
// Each block is one grant and each free releases it, so the program holds
// exactly what it uses (rounded up by the device), and pays a driver call for
// every operation. JAX's documentation recommends it for debugging: a refusal
// is about this very request, and names what is allocated by who requested it.
//
// # One block
//
// On a device that grants in units of 2 MiB, with a limit of 4 MiB:
//
//	Alloc 4 bytes    the device grants 2 MiB: 2 MiB are in use and held
//	Alloc 2 MiB      another 2 MiB; the limit is reached
//	Alloc 1 byte     out of memory, without a driver call
//	Free the first   the driver waits for all work, and takes 2 MiB back
//
// So 1,000 scalars take 2 GB. XLA's own has no limit and no statistics; the limit
// here is that of the policy, or the device's total.
//
// # Locks
//
// None: the owner's lock guards all of it. A free waits for the work on the whole
// device in the driver, so that the owner synchronises before it takes its lock
// (alloc.PassThrough).
package direct

import (
	"errors"
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/device"
	"gpumem/internal/invariants"
	"gpumem/size"
)

// Allocator is one device's passthrough. It is not safe for concurrent use.
type Allocator struct {
	dev    device.Device
	info   device.Info
	blocks chunks.Blocks
	owed   []device.Range // granted, of no use, and not released yet because the device failed; counted in PoolBytes
}

var (
	_ alloc.Allocator = (*Allocator)(nil)
	_ alloc.Reporter  = (*Allocator)(nil)

	_ alloc.PassThrough = (*Allocator)(nil)
)

// New makes a passthrough to dev. limit is the bytes that may be held at once; 0 means as
// many as the device has.
func New(dev device.Device, limit uint64) *Allocator {
	a := &Allocator{dev: dev, info: dev.Info()}
	if limit == 0 {
		limit = a.info.Total
	}
	a.blocks.Init(limit)
	return a
}

// Alloc asks the device. A block begins where its grant does, so an alignment
// that the device does not give by itself is a bad request. That shows only when
// the grant is there, so that it is released again, or owed if the device fails.
//
// The limit is checked before the call by the requested bytes, since what the device
// will make of them is unknown: it can be passed by less than one unit.
func (a *Allocator) Alloc(r alloc.Request) (alloc.Block, error) {
	if invariants.Enabled {
		defer func() { invariants.Must(a.Check()) }()
	}
	s := &a.blocks.Count
	if done, err := a.blocks.Begin(r, s.BytesLimit); done {
		return alloc.Block{}, err
	}
	_ = a.settle() // tried again with the next request
	if r.Bytes > s.BytesLimit {
		return alloc.Block{}, alloc.ErrNever
	}
	if r.Bytes > s.BytesLimit-s.PoolBytes {
		return alloc.Block{}, alloc.ErrNoMemory
	}
	got, err := a.dev.Alloc(r.Bytes)
	if errors.Is(err, device.ErrOutOfMemory) {
		return alloc.Block{}, alloc.ErrNoMemory
	}
	if err != nil {
		return alloc.Block{}, err
	}
	if r.Align > 1 && got.Addr%r.Align != 0 {
		err := fmt.Errorf("%w: alignment %d: the device granted %#x", alloc.ErrBadRequest, r.Align, got.Addr)
		a.owed = append(a.owed, got)
		a.blocks.Held(got.Bytes)
		return alloc.Block{}, errors.Join(err, a.settle())
	}
	_, b := a.blocks.Add(r, got.Addr, got.Bytes)
	a.blocks.Held(got.Bytes)
	return b, nil
}

// settle releases the grants that no request could use. Those that the device
// does not take are tried again with the next request.
func (a *Allocator) settle() error {
	for n := len(a.owed); n > 0; n-- {
		if err := a.dev.Free(a.owed[n-1].Addr); err != nil {
			return err
		}
		a.blocks.Count.PoolBytes -= a.owed[n-1].Bytes
		a.owed = a.owed[:n-1]
	}
	return nil
}

// Live reports why a block is not live.
func (a *Allocator) Live(b alloc.Block) error { return a.blocks.Live(b) }

// BlockAt returns the live block that starts at addr.
func (a *Allocator) BlockAt(addr uint64) (alloc.Block, error) { return a.blocks.BlockAt(addr) }

// Free releases a block to the device.
func (a *Allocator) Free(b alloc.Block) error {
	h, c, err := a.blocks.Find("free", b)
	if c == nil {
		return err
	}
	return a.release(h, c)
}

// FreeAddr releases the block that starts at addr to the device.
func (a *Allocator) FreeAddr(addr uint64) error {
	h, c, err := a.blocks.FindAddr(addr)
	if c == nil {
		return err
	}
	return a.release(h, c)
}

// release releases a live block. If the device does not take it, it stays
// live: it still counts against what is free.
func (a *Allocator) release(h chunks.H, c *chunks.Chunk) error {
	if invariants.Enabled {
		defer func() { invariants.Must(a.Check()) }()
	}
	if err := a.dev.Free(c.Addr); err != nil {
		return err
	}
	a.blocks.Count.PoolBytes -= c.Size
	a.blocks.Drop(h, c)
	return nil
}

// Stats count whole grants, as the device rounded them. JAX itself has none
// for this allocator.
func (a *Allocator) Stats() alloc.Stats { return a.blocks.Count }

// Trim has nothing to release but what the device did not take before, whatever is to be
// kept.
func (a *Allocator) Trim(uint64) (uint64, error) {
	if a.blocks.Closed {
		return 0, alloc.ErrClosed
	}
	before := a.blocks.Count.PoolBytes
	err := a.settle()
	return before - a.blocks.Count.PoolBytes, err
}

// Walk visits the live blocks in address order. There are no free ones: what
// is free is the device's.
func (a *Allocator) Walk(yield func(alloc.Chunk) bool) { a.blocks.Walk(yield) }

// PassThrough marks that each block is a grant of the device. See alloc.PassThrough.
func (a *Allocator) PassThrough() {}

// Report is the line that XLA logs when the device refuses.
func (a *Allocator) Report(r alloc.Request) alloc.Report {
	return alloc.Report{{Severity: alloc.Error, Text: fmt.Sprintf("[%d] Failed to allocate device memory of %s (%d bytes): %v",
		a.info.Ordinal, size.XLA(int64(min(r.Bytes, 1<<63-1))), r.Bytes, device.ErrOutOfMemory)}}
}

// Check looks at the whole structure and returns the first thing that does not
// hold: see [chunks.Blocks.Check], and all that is held is in a block or owed.
func (a *Allocator) Check() error {
	if a.blocks.Closed {
		return nil
	}
	pool := a.blocks.Count.BytesInUse
	for _, r := range a.owed {
		pool += r.Bytes
	}
	if held := a.blocks.Count.PoolBytes; pool != held {
		return fmt.Errorf("statistics say %d bytes are held, %d are in blocks or owed", held, pool)
	}
	return a.blocks.Check()
}

// Close releases every block. A device that fails does not keep the others
// from being released; its errors are joined.
func (a *Allocator) Close() error {
	if a.blocks.Closed {
		return alloc.ErrClosed
	}
	a.blocks.Closed = true
	errs := []error{a.settle()}
	for _, h := range a.blocks.Sorted() {
		c := a.blocks.Store.At(h)
		if err := a.dev.Free(c.Addr); err != nil {
			errs = append(errs, err)
			continue
		}
		a.blocks.Count.PoolBytes -= c.Size
	}
	a.blocks.Reset()
	return errors.Join(errs...)
}
