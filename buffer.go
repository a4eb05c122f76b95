package gpumem

import (
	"context"
	"errors"
	"runtime"

	"gpumem/alloc"
	"gpumem/internal/owned"
)

// Buffer owns a block. Unlike a [Block], which is a value and may be copied, it
// is an object with an identity, so that the garbage collector can find out when it
// becomes unreachable: see [WithLeaks] and [WithCollect]. Without these options a
// Buffer is a handle like any other. It is safe for concurrent use.
//
// The collector sees references to the Buffer, not uses of its memory. A caller that
// passes the address to the device must keep the Buffer reachable until the work is in
// a stream:
//
//	launch(kernel, buf.Addr())
//	runtime.KeepAlive(buf)
//
// From then on the order of streams guards the memory, as after an early Free:
// the stream that it was requested for, and those of [Pool.RecordStream].
type Buffer struct {
	_      noCopy
	pool   *Pool
	block  Block
	handle owned.Handle // for the pool's table of owners, if it has one
}

// noCopy lets go vet find copies, of which the collector would see only one.
type noCopy struct{}

func (noCopy) Lock()   {}
func (noCopy) Unlock() {}

// AllocBuffer is Alloc with an owner. The errors are those of Alloc.
func (p *Pool) AllocBuffer(ctx context.Context, bytes uint64) (*Buffer, error) {
	return p.RequestBuffer(ctx, Request{Bytes: bytes})
}

// RequestBuffer is Request with an owner.
func (p *Pool) RequestBuffer(ctx context.Context, r Request) (*Buffer, error) {
	if p.stacks != nil {
		r.Site = alloc.Site(p.stacks.Caller())
	}
	if p.owners != nil {
		p.owners.Reserve(r.Bytes)
	}
	p.mu.Lock()
	block, err := p.attempt(r)
	if err != nil {
		block, err = p.resolve(ctx, r, block, err, true)
	}
	p.mu.Unlock()
	var b *Buffer
	var handle *owned.Handle
	if err == nil {
		b = &Buffer{pool: p, block: block}
		handle = &b.handle
	}
	if p.owners != nil {
		p.owners.Reserved(handle, owned.Holding[Block]{Block: block, Size: block.Size, Bytes: r.Bytes, Site: uint32(r.Site)})
	}
	return b, err
}

// Addr returns the device address of the memory; 0 for a Buffer of 0 bytes.
func (b *Buffer) Addr() uint64 { return b.block.Addr }

// Bytes returns how many bytes may be used: at least as many as were requested.
func (b *Buffer) Bytes() uint64 { return b.block.Size }

// Block returns the block that the Buffer owns, for calls such as [Pool.RecordStream].
// It must not be freed by itself.
func (b *Buffer) Block() Block { return b.block }

// Free releases the memory. Later calls change nothing and return ErrDoubleFree, so
// that a deferred Free may follow an early one. A Buffer of 0 bytes may be freed any
// number of times. Errors: ErrDoubleFree, ErrClosed, or the device's; the Buffer then
// owns the memory as before.
func (b *Buffer) Free() error {
	err := b.pool.Free(b.block)
	if t := b.pool.owners; t != nil && err == nil {
		t.Remove(&b.handle, b.block)
	}
	// Not before it has left the table may the Buffer be found unreachable.
	runtime.KeepAlive(b)
	return err
}

// collectFloor is the least goal in bytes, or a 64th of a device with less than 1 GiB: a
// collection for every megabyte would cost more than the memory is worth. The heap's own
// floor is 4 MiB (GOGC in package runtime's documentation).
const collectFloor = 16 << 20

// WithLeaks calls f once for each [Buffer] that is found unreachable and not freed.
// That happens after a collection of the Go runtime, so some time later (the
// runtime collects every two minutes at least); call [Pool.Collect] to find all
// now. Buffers that exist at Close are not reported. Stacks are kept unless
// WithStacks(false) is given.
//
// f is called by a separate goroutine, or by one that is in AllocBuffer, Alloc,
// Request or Collect, and possibly by several at once. No lock is held, and f may
// use the pool. The memory stays allocated unless the pool has WithCollect.
func WithLeaks(f func(Leak)) Option { return func(c *config) { c.leaks = f } }

// WithCollect frees each [Buffer] that is found unreachable, so that a program
// may drop its Buffers as it does Go memory. The pool asks for a collection
// (runtime.GC) when its Buffers would pass twice what was alive after the last
// such, as GOGC=100 does for the heap, but not below 16 MiB or a 64th of a
// smaller device; and before Alloc, Request and the like give up or wait for room
// (TryAlloc and AllocBatch do not). So Buffers take no more than two live sets,
// where a request larger than a live set counts as a part of it, and so does a dropped
// Buffer that the runtime takes for alive because of what lies on a preempted stack,
// which lasts until the next collection.
//
// A collection delays the caller for as long as marking the Go heap takes: 0.2 ms
// for a small program and 0.3 ms for each MB of objects with pointers, on two idle cores,
// and ten times that on busy ones (docs/performance.md). A program that frees all its
// Buffers by hand runs no collection but the first few.
func WithCollect() Option { return func(c *config) { c.collect = true } }

// Collect runs a collection of the Go runtime, reports and frees the Buffers that it
// finds unreachable, as WithLeaks and WithCollect demand, and returns how many it found.
// Those that the runtime's own collections found before do not count, but are freed
// when Collect returns. Without these options it does nothing.
func (p *Pool) Collect() (found int) {
	if p.owners == nil {
		return 0
	}
	return p.owners.Collect()
}

// newOwners returns the table of the pool's Buffers; nil unless WithLeaks or WithCollect is
// set.
func (p *Pool) newOwners(leaks func(Leak), collect bool) *owned.Table[Block] {
	if leaks == nil && !collect {
		return nil
	}
	c := owned.Config[Block]{Floor: min(collectFloor, p.dev.Info().Total/64)}
	if collect {
		c.Free = p.freeFound
	}
	if leaks != nil {
		c.Report = func(f owned.Found[Block]) {
			l := Leak{Block: f.Block, Bytes: f.Bytes, Err: f.Err}
			if p.stacks != nil {
				l.Stack = p.stacks.Text(f.Site)
			}
			leaks(l)
		}
	}
	return owned.New(c)
}

// freeFound frees the blocks of Buffers that are unreachable.
func (p *Pool) freeFound(found []owned.Found[Block]) {
	p.quiesce()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range found {
		f := &found[i]
		f.Err = p.free(f.Block)
		f.Gone = errors.Is(f.Err, ErrDoubleFree)
		f.Again = f.Err != nil && !f.Gone && !errors.Is(f.Err, ErrNotAllocated) && !errors.Is(f.Err, ErrClosed)
	}
	p.wake()
}
