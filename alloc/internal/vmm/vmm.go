// Package vmm is JAX's allocator vmm (XLA_PYTHON_CLIENT_ALLOCATOR=vmm), which
// XLA calls DeviceAddressVmmAllocator: every block is separate physical memory
// at separate addresses, and a block that was freed stays mapped until it is
// wanted again or the memory is.
//
// The program takes no memory before it needs some, and never holds more than
// its budget. What it holds beside live blocks is pending: freed, but with work
// on the device that may not be done. Pending memory is reused only for a
// request that rounds to the same number of pages; for any other it is given
// back to the device first. So nothing fragments, and a program whose sizes
// change pays for it in driver calls and waits.
//
// # The states of a block's memory
//
//	live      handed out
//	pending   freed, mapped, and in a batch: open, closed, or done (its marks have passed)
//	stuck     to be released, but a driver call failed; tried again before more is taken
//
//	live -> pending      Free
//	pending -> live      Alloc of the same number of pages and end
//	pending -> nothing   reclaimDone, reclaim: only if the batch is done
//
// # One request
//
// A request of 3 MiB, pages of 2 MiB, so 4 MiB:
//
//  1. Of the pending blocks of 4 MiB of the same end, the one freed first is
//     handed out as it is, at its old address: no driver call, no wait
//     (pending.go). Its last work comes before the new one's in their stream.
//  2. There is none: if 4 MiB more stay within the budget, memory is created,
//     addresses are reserved, the one is mapped onto the other and access is
//     granted (memory.go).
//  3. The budget or the driver refuses: all that is pending and known to be done
//     is released, and step 2 is tried again.
//  4. Refused again: of what is pending, the first 4.4 MiB or more, in the order
//     of the frees, are waited for and released; step 2 is tried a last time.
//
// Say the budget is 10 MiB, of which 4 are live and 6 pending, as three blocks of 2 MiB
// freed in the order A, B, C. Step 1 finds no block of 4 MiB. Step 2 is refused: 10 + 4
// is more than 10. Step 3 releases nothing if the work on them is not known to be done.
// Step 4 waits for all three, since A and B have only 4 of the 4.4 MiB, and releases
// them: 4 + 4 fit.
//
// Free waits for nothing. It puts the block into the open batch; a batch that is
// full is closed by a mark in every stream that its blocks were used in, and
// when the marks have passed its blocks may be unmapped. XLA's mark is a 64-bit
// word that the stream writes and the host polls every 50 microseconds, its lock
// released; ours is an event, and the wait for it is the driver's.
//
// Pending memory of the upper end, which is collective memory, is never released in
// steps 3 and 4: other devices may have it mapped. Trim and Close do release it.
//
// # Streams
//
// XLA has one stream for each device that all blocks are used in. Here a block
// may be used in others (Record), and no memory is unmapped before all of
// them are past it. Reuse does not wait: where a block passes from one stream to
// another, to order the two is the owner's part, as with the other allocators
// that reuse memory (streams.Guard).
//
// # Locks
//
// None: the owner's lock guards all of it. Steps 3 and 4, Trim and Record may return a
// *streams.Pending where the tracker is deferred. The operation is then repeated; what
// it released before stays released, and marks that passed are known.
//
// Files: vmm.go the requests, pending.go the freed blocks and their batches, streams.go
// marks and waits, memory.go the driver's calls, report.go statistics, report and the
// invariants. The original is XLA's DeviceAddressVmmAllocator of August 2026.
package vmm

import (
	"errors"
	"fmt"
	"math"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/internal/invariants"
)

// Device is what the allocator asks of a GPU.
type Device interface {
	device.Device
	device.Pages
	device.Streams
}

// Config says what to make.
type Config struct {
	// Budget is the most physical memory that may be held, in bytes; pending
	// blocks count. 0: the device's total. JAX's is the fraction of the total
	// that its options say, cut to a whole number and not rounded.
	Budget uint64
	// Streams has the streams that requests name; nil means that all is in
	// stream 0. Close closes it.
	Streams *streams.Tracker
	// Log, if set, is called with the message that XLA logs at the beginning.
	Log func(alloc.Message)
}

// Allocator is one device's. It is not safe for concurrent use. Between operations
// PoolBytes is the memory of all records and at most the budget, and each pending block
// is in the order, in its class and in one batch; see Check.
type Allocator struct {
	dev  Device
	cfg  Config
	info device.Info

	blocks  chunks.Blocks // what is live, pending or stuck; the figures but for LargestFreeBlock
	more    []record      // by handle: what the store does not say
	stuck   []chunks.H    // to be released, but the device failed; memory.go
	pending pending
	streams *streams.Tracker
}

var (
	_ alloc.Allocator = (*Allocator)(nil)
	_ alloc.Reporter  = (*Allocator)(nil)
)

// New makes the allocator; it makes no driver call. A device that lacks what it
// takes is refused with an error that is device.ErrNotSupported and names what
// to use there.
func New(dev Device, cfg Config) (*Allocator, error) {
	info := dev.Info()
	switch {
	case info.CCMajor < 7:
		return nil, fmt.Errorf("vmm: UNIMPLEMENTED: Device %d does not support 64-bit stream memory operations "+
			"(cuStreamWriteValue64 requires compute capability >= 7.0). "+
			"Query CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS returned false. "+
			"%s has %d.%d; use bfc or platform there: %w", info.Ordinal, info.Name, info.CCMajor, info.CCMinor, device.ErrNotSupported)
	case !info.HasPages:
		return nil, fmt.Errorf("vmm: device %d, %s, lacks the calls for virtual memory, as some virtual GPUs do; "+
			"use bfc or platform there, or async if it has pools: %w", info.Ordinal, info.Name, device.ErrNotSupported)
	}
	if cfg.Budget == 0 {
		cfg.Budget = info.Total
	}
	a := &Allocator{dev: dev, cfg: cfg, info: info, streams: cfg.Streams, pending: newPending()}
	if a.streams == nil {
		a.streams = streams.Single(dev)
	}
	a.blocks.Init(cfg.Budget)
	if cfg.Log != nil {
		cfg.Log(alloc.Message{Severity: alloc.Info, Text: fmt.Sprintf(
			"VMM device-address allocator pa_budget for device %d: %d bytes.", info.Ordinal, cfg.Budget)})
	}
	return a, nil
}

// Name returns "vmm", as JAX's options call it.
func (a *Allocator) Name() string { return "vmm" }

// Alloc allocates a block of whole pages. It waits for work on the device only
// where the memory is short and pending frees can help. An alignment above the
// page is a bad request. An error of the device while it gives pending memory
// back, or of the request's stream, ends the request, too.
func (a *Allocator) Alloc(r alloc.Request) (alloc.Block, error) {
	if invariants.Enabled {
		defer func() { invariants.Must(a.Check()) }()
	}
	limit := a.blocks.Count.BytesLimit
	if done, err := a.blocks.Begin(r, limit); done {
		return alloc.Block{}, err
	}
	p, ok := a.pages(r.Bytes)
	if !ok {
		return alloc.Block{}, alloc.ErrTooLarge
	}
	if p > limit {
		// XLA also releases pending memory first, which cannot help here.
		return alloc.Block{}, alloc.ErrNever
	}
	if r.Align > 1 && a.info.Page%r.Align != 0 {
		return alloc.Block{}, fmt.Errorf("%w: alignment %d: blocks of vmm are aligned to the page, %d bytes", alloc.ErrBadRequest, r.Align, a.info.Page)
	}
	bit, err := a.streams.Bit(r.Stream)
	if err != nil {
		return alloc.Block{}, err
	}
	h := a.pending.first(p, r.End)
	if h != 0 {
		a.unqueue(h)
	} else if h, err = a.obtain(p, r.End); err != nil {
		return alloc.Block{}, err
	} else if h == 0 {
		return alloc.Block{}, alloc.ErrNoMemory
	}
	// The streams of its former life stay: that their work is past this memory
	// is not known here.
	a.more[h].streams |= bit
	return a.blocks.HandOut(h, a.blocks.Store.At(h), r), nil
}

// pages rounds bytes up to whole pages, which need be no power of two; false where that
// passes 2^64.
func (a *Allocator) pages(n uint64) (uint64, bool) {
	if n > math.MaxUint64-(a.info.Page-1) {
		return 0, false
	}
	n += a.info.Page - 1
	return n - n%a.info.Page, true
}

// obtain is steps 2 to 4 of a request: it returns memory that is not pending, or 0 if
// there is none. The 1.1 times the request of step 4 are XLA's; they spare a next
// request the same wait.
func (a *Allocator) obtain(p uint64, end alloc.End) (chunks.H, error) {
	h, err := a.fresh(p, end)
	if h != 0 || err != nil {
		return h, err
	}
	// Where nothing went back, a second try would meet the same refusal.
	before := a.blocks.Count.PoolBytes
	if err := a.reclaimDone(); err != nil {
		return 0, err
	}
	if a.blocks.Count.PoolBytes < before {
		if h, err = a.fresh(p, end); h != 0 || err != nil {
			return h, err
		}
	}
	before = a.blocks.Count.PoolBytes
	if err := a.reclaim(p+p/10, false); err != nil {
		return 0, err
	}
	if a.blocks.Count.PoolBytes < before {
		return a.fresh(p, end)
	}
	return 0, nil
}

// Live reports why a block is not live.
func (a *Allocator) Live(b alloc.Block) error { return a.blocks.Live(b) }

// BlockAt returns the live block that starts at addr.
func (a *Allocator) BlockAt(addr uint64) (alloc.Block, error) { return a.blocks.BlockAt(addr) }

// Free makes a block pending. It waits for nothing. Where the open batch is full
// and the device fails to mark its end, the block stays live. Errors:
// alloc.ErrDoubleFree, alloc.ErrNotAllocated, alloc.ErrClosed, or the device's.
func (a *Allocator) Free(b alloc.Block) error {
	h, c, err := a.blocks.Find("free", b)
	if c == nil {
		return err
	}
	return a.release(h, c)
}

// FreeAddr makes the block that starts at addr pending, as Free does.
func (a *Allocator) FreeAddr(addr uint64) error {
	h, c, err := a.blocks.FindAddr(addr)
	if c == nil {
		return err
	}
	return a.release(h, c)
}

// release makes a live block pending. Its bytes are in use no more, but held.
func (a *Allocator) release(h chunks.H, c *chunks.Chunk) error {
	if invariants.Enabled {
		defer func() { invariants.Must(a.Check()) }()
	}
	if err := a.queue(h); err != nil {
		return err
	}
	a.blocks.Count.BytesInUse -= c.Size
	return nil
}

// Record says that a live block is used in a stream beside the one that it
// was asked for: once it is freed, its memory does not go back to the device
// before that stream is past it. Saying it twice does nothing more. Errors:
// alloc.ErrNotAllocated for a block that is not live, alloc.ErrClosed, or that of
// streams.Tracker.Use.
func (a *Allocator) Record(b alloc.Block, stream uint32) error {
	h, c, err := a.blocks.Find(fmt.Sprintf("use in stream %d", stream), b)
	if c == nil {
		if errors.Is(err, alloc.ErrDoubleFree) {
			err = fmt.Errorf("use of %v in stream %d: %w: it was freed", b, stream, alloc.ErrNotAllocated)
		}
		return err
	}
	bit, err := a.streams.Bit(stream)
	if err != nil {
		return err
	}
	a.more[h].streams |= bit
	return nil
}

// Trim waits for pending blocks, the first freed first, and releases them to
// the device until at most keep bytes are held, or nothing is pending. It returns how
// many bytes were released, also with an error. The original has no such call.
func (a *Allocator) Trim(keep uint64) (released uint64, err error) {
	if invariants.Enabled {
		defer func() { invariants.Must(a.Check()) }()
	}
	if a.blocks.Closed {
		return 0, alloc.ErrClosed
	}
	before := a.blocks.Count.PoolBytes
	err = a.settle()
	if err == nil && a.blocks.Count.PoolBytes > keep {
		err = a.reclaim(a.blocks.Count.PoolBytes-keep, true)
	}
	return before - a.blocks.Count.PoolBytes, err
}

// Close waits for all work on the device and releases everything. A device
// that fails does not keep the rest from being released; its errors are
// joined. If it does not even say that the work is done, all stays mapped, for
// work may still use it.
func (a *Allocator) Close() error {
	if a.blocks.Closed {
		return alloc.ErrClosed
	}
	a.blocks.Closed = true
	q := &a.pending
	for i := q.oldest; i != 0; i = q.batches[i].newer {
		a.streams.Release(q.batches[i].marks...)
	}
	errs := []error{a.streams.Close()}
	if a.blocks.Store.Len() > 0 {
		if err := a.dev.Synchronize(); err != nil {
			errs = append(errs, err)
		} else {
			for h := range a.held {
				if err := a.releaseMemory(h); err != nil {
					errs = append(errs, err)
				}
			}
		}
	}
	a.blocks.Reset()
	a.more, a.stuck, a.pending = nil, nil, newPending()
	return errors.Join(errs...)
}

// held visits all records that something of the device is held for: live, pending and
// stuck ones.
func (a *Allocator) held(yield func(chunks.H) bool) {
	for h := chunks.H(1); a.blocks.Store.Valid(h); h++ {
		if a.blocks.Store.At(h).State != chunks.Unused && !yield(h) {
			return
		}
	}
}
