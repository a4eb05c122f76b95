package gpumem

import (
	"context"
	"runtime"
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
	_     noCopy
	pool  *Pool
	block Block
	entry int // in the table of the pool's buffers, if it has one
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
		r.Site = p.stacks.caller()
	}
	t := p.buffers
	if t != nil {
		t.reserve(r.Bytes)
	}
	p.mu.Lock()
	block, err := p.alloc(ctx, r)
	p.mu.Unlock()
	if err != nil {
		block, err = p.wait(ctx, r, err)
	}
	var b *Buffer
	if err == nil {
		b = &Buffer{pool: p, block: block}
	}
	if t != nil {
		t.reserved(r, b)
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
	if t := b.pool.buffers; t != nil && err == nil {
		t.remove(b)
	}
	// Not before it has left the table may the Buffer be found unreachable.
	runtime.KeepAlive(b)
	return err
}
