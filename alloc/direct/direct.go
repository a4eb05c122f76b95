// Package direct passes every request on to the device: JAX's platform
// allocator, and the one it calls address, which today is the same.
//
// Each block is one grant and each free releases it, so the program holds
// exactly what it uses (rounded up by the device), and pays a driver call for
// every operation. That is why the page recommends it for debugging: a refusal
// is about this very request, and names what is alive by who asked for it.
package direct

import (
	"errors"
	"fmt"
	"slices"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/device"
	"gpumem/internal/invariants"
	"gpumem/size"
)

// Config says what to make.
type Config struct {
	Name  string // for messages; "" means platform
	Limit uint64 // bytes that may be held at once; 0: as many as the device has
}

// Allocator is one device's passthrough. It is not safe for concurrent use.
type Allocator struct {
	dev  device.Device
	cfg  Config
	info device.Info

	store    chunks.Store
	live     *chunks.Table
	lastID   uint64
	firstGen uint32 // added to that number in blocks
	stats    alloc.Stats
	owed     []device.Range // granted, of no use, and not released yet: the device failed
	closed   bool
}

var (
	_ alloc.Allocator = (*Allocator)(nil)
	_ alloc.Reporter  = (*Allocator)(nil)

	_ alloc.PassThrough = (*Allocator)(nil)
)

// New makes a passthrough to dev.
func New(dev device.Device, cfg Config) *Allocator {
	if cfg.Name == "" {
		cfg.Name = "platform"
	}
	a := &Allocator{dev: dev, cfg: cfg, info: dev.Info(), firstGen: alloc.FirstGen()}
	a.live = chunks.NewTable(&a.store, 0)
	a.stats.BytesLimit = a.info.Total
	if cfg.Limit != 0 {
		a.stats.BytesLimit = cfg.Limit
	}
	return a
}

// Alloc asks the device. A block begins where its grant does, so an alignment
// that the device does not give by itself is a bad request.
func (a *Allocator) Alloc(r alloc.Request) (alloc.Block, error) {
	if invariants.Enabled {
		defer func() { invariants.Must(a.Check()) }()
	}
	if a.closed {
		return alloc.Block{}, alloc.ErrClosed
	}
	if r.Bytes == 0 {
		return alloc.Block{}, nil
	}
	if err := alloc.CheckRequest(r, a.stats.BytesLimit); err != nil {
		return alloc.Block{}, err
	}
	_ = a.settle() // tried again with the next request
	if r.Bytes > a.stats.BytesLimit {
		return alloc.Block{}, alloc.ErrNever
	}
	if r.Bytes > a.stats.BytesLimit-a.stats.PoolBytes {
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
		a.held(got.Bytes)
		return alloc.Block{}, errors.Join(err, a.settle())
	}
	h, c := a.store.New()
	a.lastID++
	c.Addr, c.Size, c.Requested = got.Addr, got.Bytes, r.Bytes
	c.SetLive(a.firstGen+uint32(a.lastID), uint32(r.Site))
	c.Stream = r.Stream
	a.live.Insert(h, got.Addr)

	s := &a.stats
	s.NumAllocs++
	s.BytesInUse += got.Bytes
	s.PeakBytesInUse = max(s.PeakBytesInUse, s.BytesInUse)
	s.LargestAllocSize = max(s.LargestAllocSize, got.Bytes)
	a.held(got.Bytes)
	return alloc.MakeBlock(c.Addr, c.Size, h, c.Gen()), nil
}

// held counts bytes that the device granted.
func (a *Allocator) held(bytes uint64) {
	a.stats.PoolBytes += bytes
	a.stats.PeakPoolBytes = max(a.stats.PeakPoolBytes, a.stats.PoolBytes)
}

// settle releases the grants that no request could use. Those that the device
// does not take are tried again with the next request.
func (a *Allocator) settle() error {
	for n := len(a.owed); n > 0; n-- {
		if err := a.dev.Free(a.owed[n-1].Addr); err != nil {
			return err
		}
		a.stats.PoolBytes -= a.owed[n-1].Bytes
		a.owed = a.owed[:n-1]
	}
	return nil
}

// Live reports why a block is not live.
func (a *Allocator) Live(b alloc.Block) error {
	_, _, err := a.find("use", b)
	return err
}

// find returns the chunk of a live block, nil for the zero block.
func (a *Allocator) find(what string, b alloc.Block) (chunks.H, *chunks.Chunk, error) {
	if a.closed {
		return 0, nil, alloc.ErrClosed
	}
	h, gen := b.Key()
	if h == 0 && b.Addr == 0 {
		return 0, nil, nil
	}
	c := a.store.Live(h, gen, b.Addr)
	switch {
	case c != nil:
		return h, c, nil
	case !a.store.Valid(h):
		return 0, nil, fmt.Errorf("%s of %v: %w: it is not of this allocator", what, b, alloc.ErrNotAllocated)
	}
	return 0, nil, fmt.Errorf("%s of %v: %w", what, b, alloc.ErrDoubleFree)
}

// Free releases a block to the device.
func (a *Allocator) Free(b alloc.Block) error {
	h, c, err := a.find("free", b)
	if c == nil {
		return err
	}
	return a.release(h, c)
}

// FreeAddr gives the block that starts at addr back.
func (a *Allocator) FreeAddr(addr uint64) error {
	if a.closed {
		return alloc.ErrClosed
	}
	if addr == 0 {
		return nil
	}
	h := a.live.Find(addr)
	if h == 0 {
		return fmt.Errorf("free of %#x: %w: no live block starts there (freed before, or never handed out)", addr, alloc.ErrNotAllocated)
	}
	return a.release(h, a.store.At(h))
}

// BlockAt is the live block that starts at addr.
func (a *Allocator) BlockAt(addr uint64) (alloc.Block, error) {
	if a.closed {
		return alloc.Block{}, alloc.ErrClosed
	}
	return a.live.Block(addr)
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
	a.live.RemoveChunk(h, c.Addr)
	a.stats.BytesInUse -= c.Size
	a.stats.PoolBytes -= c.Size
	a.store.Drop(h)
	return nil
}

// Stats count whole grants, as the device rounded them. JAX itself has none
// for this allocator.
func (a *Allocator) Stats() alloc.Stats { return a.stats }

// Trim has nothing to release but what the device did not take before.
func (a *Allocator) Trim(uint64) (uint64, error) {
	if a.closed {
		return 0, alloc.ErrClosed
	}
	before := a.stats.PoolBytes
	err := a.settle()
	return before - a.stats.PoolBytes, err
}

// blocks are the live chunks in address order.
func (a *Allocator) blocks() []chunks.H {
	var out []chunks.H
	for h := chunks.H(1); a.store.Valid(h); h++ {
		if a.store.At(h).State == chunks.Live {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(x, y chunks.H) int {
		if a.store.At(x).Addr < a.store.At(y).Addr {
			return -1
		}
		return 1
	})
	return out
}

// Walk visits the live blocks in address order. There are no free ones: what
// is free is the device's.
func (a *Allocator) Walk(yield func(alloc.Chunk) bool) {
	for i, h := range a.blocks() {
		c := a.store.At(h)
		if !yield(alloc.Chunk{
			Addr: c.Addr, Size: c.Size, Requested: c.Requested, Region: i,
			Live: true, Tag: "lower", Site: alloc.Site(c.Site()), Stream: c.Stream,
		}) {
			return
		}
	}
}

// PassThrough marks that each block is a grant of the device's own.
func (a *Allocator) PassThrough() {}

// Report is the line that XLA logs when the device refuses.
func (a *Allocator) Report(r alloc.Request) alloc.Report {
	return alloc.Report{{Severity: alloc.Error, Text: fmt.Sprintf("[%d] Failed to allocate device memory of %s (%d bytes): %v",
		a.info.Ordinal, size.XLA(int64(min(r.Bytes, 1<<63-1))), r.Bytes, device.ErrOutOfMemory)}}
}

// Check looks at the whole structure and returns the first thing that does not
// hold: every live block is in the table, and the statistics equal the sum.
func (a *Allocator) Check() error {
	if a.closed {
		return nil
	}
	var used uint64
	hs := a.blocks()
	end := uint64(0)
	for _, h := range hs {
		c := a.store.At(h)
		used += c.Size
		if a.live.Find(c.Addr) != h {
			return fmt.Errorf("block at %#x is not in the table", c.Addr)
		}
		if c.Addr < end {
			return fmt.Errorf("block at %#x begins inside the one below", c.Addr)
		}
		end = c.Addr + c.Size
	}
	pool := used
	for _, r := range a.owed {
		pool += r.Bytes
	}
	if used != a.stats.BytesInUse || pool != a.stats.PoolBytes || len(hs) != a.live.Len() || len(hs) != a.store.Len() {
		return fmt.Errorf("statistics say %d bytes in use and %d held, %d blocks; a walk counts %d bytes, %d blocks",
			a.stats.BytesInUse, a.stats.PoolBytes, a.live.Len(), used, len(hs))
	}
	return nil
}

// Close releases every block. A device that fails does not keep the others
// from being released; its errors are joined.
func (a *Allocator) Close() error {
	if a.closed {
		return alloc.ErrClosed
	}
	a.closed = true
	errs := []error{a.settle()}
	for _, h := range a.blocks() {
		c := a.store.At(h)
		if err := a.dev.Free(c.Addr); err != nil {
			errs = append(errs, err)
			continue
		}
		a.stats.PoolBytes -= c.Size
	}
	a.stats.BytesInUse = 0
	a.store = chunks.Store{}
	a.live = chunks.NewTable(&a.store, 0)
	return errors.Join(errs...)
}
