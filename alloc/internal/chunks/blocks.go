package chunks

import (
	"cmp"
	"fmt"
	"slices"

	"gpumem/alloc"
	"gpumem/alloc/internal/ref"
)

// Blocks are the blocks of an allocator that takes separate memory for each: one
// chunk a block, found by handle or by address, and the statistics. The allocators
// direct, async and vmm share it.
//
// A chunk of the store is live, or free and kept for reuse (vmm). Memory that no block
// can use (direct's owed grants, vmm's stuck records) counts as PoolBytes; it has no chunk
// or one that is Stuck.
type Blocks struct {
	Store  Store
	Count  alloc.Stats // what the methods here count, and the owner's figures
	Closed bool

	table *Table // live and free chunks by address; nil until a block is looked up so

	lastID   uint64 // allocations are numbered from 1
	firstGen uint32 // added to that number in blocks
}

// Init makes an empty set. limit is in bytes, for the statistics.
func (b *Blocks) Init(limit uint64) {
	b.firstGen = ref.FirstGen()
	b.Count.BytesLimit = limit
	b.Reset()
}

// Reset forgets every chunk.
func (b *Blocks) Reset() {
	b.Store = Store{}
	b.table = nil
	b.Count.BytesInUse = 0
}

// Begin is the first part of every request. done reports that nothing is left to do: the
// allocator is closed, the request is empty, or CheckRequest refuses it under the
// limit, in bytes.
func (b *Blocks) Begin(r alloc.Request, limit uint64) (done bool, err error) {
	if b.Closed {
		return true, alloc.ErrClosed
	}
	if r.Bytes == 0 {
		return true, nil
	}
	err = CheckRequest(r, limit)
	return err != nil, err
}

// CheckRequest reports why no allocator of at most limit bytes can serve a
// request: an error that wraps alloc.ErrBadRequest for an alignment that is no power of
// two, alloc.ErrNever for one above the limit.
func CheckRequest(r alloc.Request, limit uint64) error {
	if r.Align&(r.Align-1) != 0 {
		return fmt.Errorf("%w: alignment %d is not a power of two", alloc.ErrBadRequest, r.Align)
	}
	if r.Align > limit {
		return alloc.ErrNever
	}
	return nil
}

// Add enters memory that was taken for a request.
func (b *Blocks) Add(r alloc.Request, addr, size uint64) (H, alloc.Block) {
	h, c := b.Store.New()
	c.Addr, c.Size = addr, size
	b.Enter(h, c)
	return h, b.HandOut(h, c, r)
}

// Enter notes a new chunk by its address.
func (b *Blocks) Enter(h H, c *Chunk) {
	if b.table != nil {
		b.table.Insert(h, c.Addr)
	}
}

// Leave is the opposite of Enter, for a chunk whose memory is released next.
func (b *Blocks) Leave(h H, c *Chunk) {
	if b.table != nil {
		b.table.RemoveChunk(h, c.Addr)
	}
}

// byAddr returns the table of addresses, and builds it first if there is none: a program
// that frees by block never pays for it.
func (b *Blocks) byAddr() *Table {
	if b.table == nil {
		b.table = NewTable(&b.Store, 0)
		for h, c := range b.chunks {
			b.table.Insert(h, c.Addr)
		}
	}
	return b.table
}

// chunks visits the live and free chunks in the order of their numbers.
func (b *Blocks) chunks(yield func(H, *Chunk) bool) {
	for h := H(1); b.Store.Valid(h); h++ {
		if c := b.Store.At(h); (c.State == Live || c.State == Free) && !yield(h, c) {
			return
		}
	}
}

// HandOut makes the block of a request of a chunk that was entered.
func (b *Blocks) HandOut(h H, c *Chunk, r alloc.Request) alloc.Block {
	b.lastID++
	c.Requested, c.Stream = r.Bytes, r.Stream
	c.SetLive(b.firstGen+uint32(b.lastID), uint32(r.Site))
	s := &b.Count
	s.NumAllocs++
	s.BytesInUse += c.Size
	s.PeakBytesInUse = max(s.PeakBytesInUse, s.BytesInUse)
	s.LargestAllocSize = max(s.LargestAllocSize, c.Size)
	return c.Block(h)
}

// Drop takes a live chunk out, whose memory was released. PoolBytes is the caller's to
// change: it knows what the device had granted.
func (b *Blocks) Drop(h H, c *Chunk) {
	b.Leave(h, c)
	b.Count.BytesInUse -= c.Size
	b.Store.Drop(h)
}

// Held counts bytes that the device granted, and keeps their peak. What is released is
// subtracted from Count.PoolBytes by the owner.
func (b *Blocks) Held(bytes uint64) {
	b.Count.PoolBytes += bytes
	b.Count.PeakPoolBytes = max(b.Count.PeakPoolBytes, b.Count.PoolBytes)
}

// Find returns the chunk of a live block, nil for the zero block. what names the
// operation for the error.
func (b *Blocks) Find(what string, block alloc.Block) (H, *Chunk, error) {
	if b.Closed {
		return 0, nil, alloc.ErrClosed
	}
	h, gen := block.Ref.Key()
	if h == 0 && block.Addr == 0 {
		return 0, nil, nil
	}
	if c := b.Store.Live(h, gen, block.Addr); c != nil {
		return h, c, nil
	}
	return 0, nil, b.Store.NotLive(what, block, true)
}

// NotLive is the error of an operation on a block for which Live returned nil. what
// names the operation; within reports whether the block's address is in the pool.
func (s *Store) NotLive(what string, block alloc.Block, within bool) error {
	if h, _ := block.Ref.Key(); !within || !s.Valid(h) {
		return fmt.Errorf("%s of %v: %w: it is not of this pool", what, block, alloc.ErrNotAllocated)
	}
	return fmt.Errorf("%s of %v: %w", what, block, alloc.ErrDoubleFree)
}

// NoBlockAt is the error of a free of addr, at which no live block starts. c is the
// chunk that it lies in, nil if it is not in the pool.
func NoBlockAt(addr uint64, c *Chunk) error {
	switch {
	case c == nil:
		return fmt.Errorf("free of %#x: %w: the address is not in this pool", addr, alloc.ErrNotAllocated)
	case c.State == Free:
		return fmt.Errorf("free of %#x: %w: the memory there is free (freed before, or never handed out)", addr, alloc.ErrDoubleFree)
	}
	return fmt.Errorf("free of %#x: %w: it lies %d bytes into the live block at %#x", addr, alloc.ErrNotAllocated, addr-c.Addr, c.Addr)
}

// FindAddr returns the chunk of the live block that starts at addr, for a free; nil for
// 0.
func (b *Blocks) FindAddr(addr uint64) (H, *Chunk, error) {
	if b.Closed {
		return 0, nil, alloc.ErrClosed
	}
	if addr == 0 {
		return 0, nil, nil
	}
	h := b.byAddr().Find(addr)
	if h == 0 {
		return 0, nil, fmt.Errorf("free of %#x: %w: no live block starts there (freed before, or never handed out)", addr, alloc.ErrNotAllocated)
	}
	c := b.Store.At(h)
	if c.State != Live {
		return 0, nil, fmt.Errorf("free of %#x: %w", addr, alloc.ErrDoubleFree)
	}
	return h, c, nil
}

// Live reports why a block is not live.
func (b *Blocks) Live(block alloc.Block) error {
	_, _, err := b.Find("use", block)
	return err
}

// BlockAt returns the live block that starts at addr.
func (b *Blocks) BlockAt(addr uint64) (alloc.Block, error) {
	if b.Closed {
		return alloc.Block{}, alloc.ErrClosed
	}
	return b.byAddr().Block(addr)
}

// Sorted returns the live and free chunks in address order.
func (b *Blocks) Sorted() []H {
	var all []H
	for h := range b.chunks {
		all = append(all, h)
	}
	slices.SortFunc(all, func(x, y H) int { return cmp.Compare(b.Store.At(x).Addr, b.Store.At(y).Addr) })
	return all
}

// Walk visits the live and free chunks in address order, each as a separate region.
func (b *Blocks) Walk(yield func(alloc.Chunk) bool) {
	for i, h := range b.Sorted() {
		c := b.Store.At(h)
		k := alloc.Chunk{
			Addr: c.Addr, Size: c.Size, Requested: c.Requested, Region: i,
			Live: c.State == Live, Tag: alloc.End(c.Tag).String(), Stream: c.Stream,
		}
		if k.Live {
			k.Site = alloc.Site(c.Site())
		}
		if !yield(k) {
			return
		}
	}
}

// CheckTable reports an error unless the live and free chunks are all that is in the
// table of addresses, if there is one.
func (b *Blocks) CheckTable() error {
	if b.table == nil {
		return nil
	}
	n := 0
	for h, c := range b.chunks {
		if n++; b.table.Find(c.Addr) != h {
			return fmt.Errorf("block %d at %#x is not in the table", h, c.Addr)
		}
	}
	if n != b.table.Len() {
		return fmt.Errorf("%d blocks are mapped or live, the table has %d", n, b.table.Len())
	}
	return nil
}

// Check returns the first thing that does not hold of a set in which every chunk is
// live: none overlaps another, the statistics equal the sum, and the table is right.
func (b *Blocks) Check() error {
	var used, end uint64
	all := b.Sorted()
	for _, h := range all {
		c := b.Store.At(h)
		if c.Addr < end {
			return fmt.Errorf("block at %#x begins inside the one below", c.Addr)
		}
		used, end = used+c.Size, c.Addr+c.Size
	}
	if used != b.Count.BytesInUse || len(all) != b.Store.Len() {
		return fmt.Errorf("statistics say %d bytes in use and the store has %d blocks; a walk counts %d bytes, %d blocks",
			b.Count.BytesInUse, b.Store.Len(), used, len(all))
	}
	return b.CheckTable()
}
