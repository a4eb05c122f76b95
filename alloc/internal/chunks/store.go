// Package chunks holds the structures that an allocator of device memory is built from:
//
//	Store   the chunks themselves: flat pages of structs, linked by number
//	Index   the free ones, ordered by size and then address (best fit)
//	Lists   the same with less order among equal sizes, and faster
//	Table   the live ones, found by address
//	Blocks  a Store, a Table and statistics, for allocators whose chunks are never cut
//
// One block of 300,032 bytes, in bfc:
//
//	New       the store hands out chunk 1, which bfc makes the whole region, 1 MiB
//	Insert    the index puts it into the class of 4,096 units of 256 bytes
//	Take      asked for 300,032 bytes, 1,172 units, the index finds the next class that
//	          is not empty, 4,096, and takes chunk 1 out
//	New       chunk 2 becomes the rest, and is inserted into class 2,924
//	SetLive   chunk 1 is live: the two words that linked it in the index are from now on
//	          the number of its allocation and its site
//	Insert    if blocks are freed by address, the table gets chunk 1
//	Drop      after the free chunk 2 is joined into chunk 1, and its number is unused
//
// Memory is described from outside: no header lies in it, and no Go pointer
// points at it. A chunk's number (its handle) is an int32, and no structure
// here holds a pointer into another, so that the garbage collector has nothing
// to follow however many chunks there are, and an operation allocates nothing
// on the Go heap except when a structure has to grow.
//
// Nothing in this package locks: the lock of the allocator's owner guards it.
package chunks

import (
	"gpumem/alloc"
	"gpumem/alloc/internal/ref"
)

// H is a chunk's number in its Store. 0 is no chunk.
type H = int32

// Chunk is one piece of a region, live or free. Its neighbours in address
// order tile the region without gaps.
//
// It has 48 bytes (chunkBytes): an operation touches few chunks but touches each in
// many fields, and a pool of 100,000 blocks is as fast as its chunks are dense.
// So two words serve twice: a free chunk's children in the index are a live
// chunk's number and site. Nothing may therefore read Gen or Site of a free chunk, or
// insert a live one. Owners reuse fields as well: elastic keeps the operation that freed a chunk
// in Requested and the epoch of that in Stream, vmm queues chunks through Prev and Next.
type Chunk struct {
	Addr      uint64
	Size      uint64 // bytes, neighbours' boundaries included
	Requested uint64 // bytes last asked for; kept after a free, as the original's report shows it
	Prev      H      // neighbour below, 0 at the region's start
	Next      H      // neighbour above, 0 at the region's end; links the Store's free list when the chunk is unused

	// Children in an Index or neighbours in Lists while free; while live left is Gen and
	// right Site.
	left, right H

	Stream uint32 // on which stream it was last used
	State  State
	Tag    uint8 // the owner's
}

// SetLive makes a chunk, which is in no index, live. gen numbers the
// allocation, to tell a stale block from a live one; site says who asked.
func (c *Chunk) SetLive(gen, site uint32) {
	c.State, c.left, c.right = Live, H(gen), H(site)
}

// Gen returns the number of the allocation that lives here. Only for a live chunk.
func (c *Chunk) Gen() uint32 { return uint32(c.left) }

// Block returns the block of a live chunk, whose number is h.
func (c *Chunk) Block(h H) alloc.Block {
	return alloc.Block{Addr: c.Addr, Size: c.Size, Ref: ref.Make(h, c.Gen())}
}

// Site returns the allocation site. Only for a live chunk.
func (c *Chunk) Site() uint32 { return uint32(c.right) }

// State says what a chunk is.
type State uint8

const (
	// Unused: not a part of any region; on the Store's free list.
	Unused State = iota
	// Live: handed out.
	Live
	// Free: not handed out, whether or not it is in an Index.
	Free
	// Stuck: to be released, but the device failed (vmm). No block can use it.
	Stuck
)

const (
	chunkBytes = 48

	// 1,024 chunks are 48 KiB: little for a pool with one block, and a pool of 100,000
	// allocates a page every thousand requests.
	pageBits = 10
	pageSize = 1 << pageBits // chunks
)

// Store holds chunks in pages that never move, so that growth costs the same
// however many there are: a slice that doubles would copy them all at once,
// which at 80,000 chunks stops the world of one allocation for milliseconds.
//
// The first handle is 1. Freed handles are reused last in, first out, which
// is what the original does: its report prints them. A stale handle may so be that of
// another chunk; Live tells them apart by the number of the allocation.
type Store struct {
	pages []*[pageSize]Chunk
	free  H // most recently freed
	used  H // handles 1..used have been handed out at some time
}

// At returns the chunk with number h, which must have come from New. It is good for as
// long as the Store: pages do not move.
func (s *Store) At(h H) *Chunk {
	return &s.pages[uint32(h)>>pageBits][uint32(h)&(pageSize-1)]
}

// New hands out a chunk. Its fields are as its last owner left them (zero at
// first), but for State and the links, which are zeroed: the original shows the
// Requested of a recycled chunk, so it must survive.
func (s *Store) New() (H, *Chunk) {
	if h := s.free; h != 0 {
		c := s.At(h)
		s.free = c.Next
		c.Prev, c.Next, c.left, c.right = 0, 0, 0, 0
		return h, c
	}
	s.used++
	if int(uint32(s.used)>>pageBits) == len(s.pages) {
		p := new([pageSize]Chunk)
		// The operating system provides memory at the first write to each 4 KiB, which
		// takes a microsecond: once for all of a page instead of at every 85th chunk.
		clear(p[:])
		s.pages = append(s.pages, p)
	}
	return s.used, s.At(s.used)
}

// Drop takes a chunk back, which is in no index and no table. Its fields but State and
// Next stay until New hands it out again.
func (s *Store) Drop(h H) {
	c := s.At(h)
	c.State = Unused
	c.Next = s.free
	s.free = h
}

// Len returns how many chunks are in use, by a walk along the free list.
func (s *Store) Len() int {
	n := int(s.used)
	for h := s.free; h != 0; h = s.At(h).Next {
		n--
	}
	return n
}

// Peak returns the most chunks that were in use at once: a number is only made when
// none is unused.
func (s *Store) Peak() int { return int(s.used) }

// Cap returns the bytes of host memory that the store holds.
func (s *Store) Cap() int { return len(s.pages) * pageSize * chunkBytes }

// Valid reports whether h can be given to At: whether it was ever handed out.
func (s *Store) Valid(h H) bool { return h > 0 && h <= s.used }

// Live returns the live chunk of a block with that handle, number and address, nil if
// there is none: the block is stale, or not from here.
func (s *Store) Live(h H, gen uint32, addr uint64) *Chunk {
	if h <= 0 || h > s.used {
		return nil
	}
	if c := s.At(h); c.State == Live && c.Gen() == gen && c.Addr == addr {
		return c
	}
	return nil
}
