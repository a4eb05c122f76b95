// Package dump reads what the BFC allocator of XLA and TensorFlow writes about
// its whole pool when a request is refused: the text report in a log, of any
// release, and the binary one (TF_BFC_MEMORY_DUMP). A report has a line for
// every chunk, thousands of them. [Dump.Summary] shows on one screen what filled
// the pool, and [Dump.Trace] writes a recording that rebuilds it.
//
// # One report
//
// A pool of 1 MiB has three blocks, the middle one is freed, and 400 KiB are requested:
//
//	Allocator (GPU_0_bfc) ran out of memory trying to allocate 400.0KiB (rounded to 409600)
//	...
//	Next region of size 1048576
//	InUse at 7f0000000000 of size 204800 next 2
//	Free  at 7f0000032000 of size 307200 next 3
//	InUse at 7f000007d000 of size 536576 next 18446744073709551615
//	...
//	Sum Total of in-use chunks: 724.0KiB
//
// The chunks tile the region, and those in use come to 741376 bytes, which is the printed
// sum: the [Dump] is complete. Its free bytes are 307200 in one chunk, so LargestFree is
// 307200, and the request of 409600 lacks 102400 bytes however the free ones lie.
//
// # Forms
//
// The text has five parts: the request; the 21 bins; every chunk in address
// order, region by region; the sums by size; the statistics. It changed over
// the years, and all forms are read:
//
//   - TensorFlow 1: "Chunk at 0x.. of size N" for each live chunk, then "Free
//     at .." for the free ones, no regions; the last of them "InUse at 0x..
//     next N of size N".
//   - until December 2025: "InUse at .. of size N next N", plain integers in
//     the totals and the statistics.
//   - December 2025 to June 2026: the same with human-readable totals.
//   - since: chunks have a tag, the end of the pool that they belong to.
//
// Chunk lines are exact in all of them. A human-readable number is only as
// exact as it is printed. So figures are computed from the chunks where possible, and
// the printed numbers serve to check that nothing is missing.
//
// XLA's compiler writes another report when a program does not fit; [ReadLog] reads
// that one, too.
//
// Files: dump.go the types, text.go and binary.go the two readers, number.go the
// numbers of the text, check.go the comparison at the end, summary.go the screen,
// picture.go its map, trace.go the recording, program.go the compiler's report.
package dump

import (
	"cmp"
	"slices"

	"gpumem/size"
)

// MinAllocation is the unit of chunks, in bytes (kMinAllocationSize of XLA's
// tsl/framework/bfc_allocator.h).
const MinAllocation = 256

// tag is the end of a partitioned pool to which a chunk belongs (XLA, 2026).
type tag uint8

const (
	Unknown tag = iota // an older dump, or a binary one
	Lower              // ordinary blocks
	Upper              // collective memory
	Central            // the free chunk between the two, which both may use
)

var tagNames = [...]string{Unknown: "", Lower: "lower", Upper: "upper", Central: "central_gap"}

// String returns the tag's name in a dump, "" for Unknown and for any other value.
func (t tag) String() string {
	if int(t) >= len(tagNames) {
		return ""
	}
	return tagNames[t]
}

// A Chunk is one piece of a pool, 32 bytes in memory.
type Chunk struct {
	Addr      uint64 // where it begins, in bytes
	Size      uint64 // bytes
	Requested uint64 // what the caller asked for, in bytes; 0 in text dumps
	Name      uint32 // of the operation or annotation: an index for [Dump.Name]
	Live      bool
	Tag       tag
}

// A Region is a stretch of device memory, tiled by chunks in address order.
type Region struct {
	Addr   uint64 // of the first chunk
	Size   uint64 // bytes, as printed, or the sum of the chunks
	Chunks []Chunk
}

// A Row is the live chunks of one size.
type Row struct {
	Size, Count, Bytes uint64 // Bytes is Size times Count
}

// A bin has a dump's own figures about the chunks from Size to twice that.
type bin struct {
	Size          uint64 // bytes: 256, 512, ... 256 MiB; the last has no upper limit
	Chunks, InUse uint64 // how many chunks there are, and how many are live
	Bytes, Used   uint64 // their bytes
}

// request is the refused request. It is empty in a binary dump.
type request struct {
	Bytes   uint64 // as exact as the log prints it
	Rounded uint64 // to 256 bytes, exact; 0 if unknown
	Tag     tag    // the end it was for
	Op      string // the operation's name; empty in JAX
}

// stats is the block of statistics at a dump's end, in bytes but for NumAllocs.
// Unknown figures are 0.
type stats struct {
	Limit, InUse, MaxInUse, NumAllocs, MaxAllocSize     uint64
	Reserved, PeakReserved, PeakAllocated, LargestBlock uint64
}

// A Dump is one pool at one moment.
type Dump struct {
	Allocator string // such as GPU_0_bfc; "" if unknown
	Request   request
	// Limit is the most that the pool may take from the device, in bytes, as
	// exact as it is printed; 0 if unknown.
	Limit uint64
	// Pool is what it has taken: the sum of the regions.
	Pool uint64
	// InUse is the sum of Rows, in bytes.
	InUse uint64
	// LargestFree is the largest free chunk that the request's end may use, of
	// all chunks if the end is unknown. Without chunk lines it is the figure of
	// the statistics, 0 if they have none. A request of at most so many bytes fits the pool
	// as it stands: chunks are multiples of 256, so one that is rounded up to that fits, too.
	// What a growing pool could still take from the device (Limit - Pool) does not count,
	// because the dump does not show whether the device had it.
	LargestFree uint64
	Regions     []Region // in the dump's order, which is that of addresses
	Rows        []Row    // what is live, by size, ascending
	Bins        []bin    // the dump's own, those with chunks
	Stats       stats
	Sum         string   // "Sum Total of in-use chunks", as printed; "" where missing
	Complete    bool     // nothing is missing and the sums agree
	Notes       []string // what is missing or contradicts itself, a sentence each
	Line        int      // of the log at which the dump begins, from 1; 0 in binary
	Dumps       int      // number of dumps in the log
	Snapshots   int      // of the pool's size over time, in binary dumps of debug builds

	names   []string          // of chunks; names[0] is ""
	actions map[uint64]uint64 // of chunks by address, see action
}

// Name returns the name of an operation or annotation by its index, which is
// [Chunk.Name]. It is "" for 0 and for any index that no chunk has.
func (d *Dump) Name(i uint32) string {
	if int(i) >= len(d.names) {
		return ""
	}
	return d.names[i]
}

// action returns a number that orders the allocations of chunks. It is 0 but in binary
// dumps of debug builds.
func (d *Dump) action(c *Chunk) uint64 { return d.actions[c.Addr] }

// Free returns the bytes in free chunks.
func (d *Dump) Free() uint64 { return d.Pool - min(d.Pool, d.InUse) }

// Fragmentation returns the fraction of the free bytes outside the largest free
// chunk, from 0 to 1: (free - largest) / free. It is 0 if nothing is free.
func (d *Dump) Fragmentation() float64 {
	free := d.Free()
	if free == 0 {
		return 0
	}
	return float64(free-min(free, d.LargestFree)) / float64(free)
}

// Chunks calls yield with every chunk in the dump's order, until it returns false.
func (d *Dump) Chunks(yield func(*Chunk) bool) {
	for i := range d.Regions {
		cs := d.Regions[i].Chunks
		for k := range cs {
			if !yield(&cs[k]) {
				return
			}
		}
	}
}

// binaryHead is how much of a file tells a binary dump: a name's length in one byte, the
// name, one tag.
const binaryHead = 130

// builder makes one dump.
type builder struct {
	d       Dump
	byName  map[string]uint32
	regions bool // the dump has lines for regions
	bad     int  // lines that could not be read
	sizes   []Row
	sum     number // of d.Sum
	pool    number // as printed
	limit   number
	inUse   number // of the statistics
	stats   bool   // its statistics were reached
}

func newBuilder(line int) *builder {
	return &builder{d: Dump{Line: line, Dumps: 1, names: []string{""}}}
}

const (
	maxNames = 1 << 16 // different names that are kept
	maxName  = 200     // bytes of one
)

// name returns the index of a name. Past maxNames all share the last.
func (b *builder) name(text []byte) uint32 {
	if len(text) == 0 {
		return 0
	}
	text = text[:min(len(text), maxName)]
	if i, ok := b.byName[string(text)]; ok {
		return i
	}
	if b.byName == nil {
		b.byName = map[string]uint32{}
	}
	n := uint32(len(b.d.names))
	name := string(text)
	if n > maxNames {
		return maxNames
	}
	if n == maxNames {
		name = "(other names)"
	}
	b.d.names = append(b.d.names, name)
	b.byName[name] = n
	return n
}

// region begins a region of a known size.
func (b *builder) region(size uint64) {
	b.regions = true
	b.d.Regions = append(b.d.Regions, Region{Size: size})
}

// chunk adds one. Without lines for regions all go to one; split divides it.
func (b *builder) chunk(c Chunk) {
	if len(b.d.Regions) == 0 {
		b.d.Regions = append(b.d.Regions, Region{})
	}
	r := &b.d.Regions[len(b.d.Regions)-1]
	r.Chunks = append(r.Chunks, c)
}

// split makes a region of each run of chunks without a leap, in a dump without
// lines for regions. TensorFlow 1 lists all live chunks first and then the free
// ones, so they are sorted before.
func (b *builder) split() {
	if b.regions || len(b.d.Regions) == 0 {
		return
	}
	cs := b.d.Regions[0].Chunks
	byAddr := func(a, b Chunk) int { return cmp.Compare(a.Addr, b.Addr) }
	if !slices.IsSortedFunc(cs, byAddr) {
		slices.SortStableFunc(cs, byAddr)
	}
	b.d.Regions = nil
	for from, i := 0, 1; i <= len(cs); i++ {
		if i < len(cs) && cs[i-1].Addr+cs[i-1].Size >= cs[i].Addr {
			continue // the next one, or an overlap, which is noted
		}
		b.d.Regions = append(b.d.Regions, Region{Chunks: cs[from:i:i]})
		from = i
	}
}

// rows sums live chunks by size.
func (d *Dump) rows() []Row {
	at := map[uint64]int{}
	var rows []Row
	for c := range d.Chunks {
		if !c.Live {
			continue
		}
		i, ok := at[c.Size]
		if !ok {
			i = len(rows)
			at[c.Size] = i
			rows = append(rows, Row{Size: c.Size})
		}
		rows[i].Count++
		rows[i].Bytes = size.Add(rows[i].Bytes, c.Size)
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.Size, b.Size) })
	return rows
}
