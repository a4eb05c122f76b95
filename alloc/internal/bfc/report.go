package bfc

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/size"
)

// The out-of-memory report: DumpMemoryLog of the original, record for record. Users paste
// it, and doctor and other tools read it, so that its odd blanks and doubled lines are
// kept. testdata/bfc/golden has whole reports of both layouts.
//
// A line of it, of the case in the package comment after free A and free C:
//
//	Free  at 7f0000000000 of size 300032 tag lower next 1
//
// next is the number of the chunk above, counted from 0 as the original does; ours
// begin with 1. So the numbers that the store hands out are a part of the format.

// xla formats bytes as the original does (HumanReadableNumBytes of tsl/platform/
// numbers.cc). Sizes past 2^63 do not occur in it.
func xla(n uint64) string { return size.XLA(int64(min(n, math.MaxInt64))) }

// Report returns the original's report for a request that was refused, record for
// record, in the layout of today or of 2025: the summary of the 21
// bins, the free chunks of the request's bin, every chunk, the sums, the
// statistics and a map of 100 columns.
func (a *Allocator) Report(r alloc.Request) alloc.Report {
	n, ok := round256(r.Bytes)
	if !ok {
		n = math.MaxUint64 &^ (MinAllocation - 1)
	}
	w := reporter{a: a, old: a.cfg.Report2025}
	end := a.end(r)
	w.head(r, n, end)
	w.bins()
	w.binOf(n)
	w.regions()
	w.sizes()
	w.sums(n, end)
	w.stats()
	w.add(alloc.Warning, a.occupancy())
	return w.out
}

// reporter collects the records of one report. Its methods write a part each, in the
// order of the report.
type reporter struct {
	a   *Allocator
	old bool // the layout of 2025: see Config.Report2025
	out alloc.Report
}

func (w *reporter) add(s alloc.Severity, text string) {
	w.out = append(w.out, alloc.Message{Severity: s, Text: text})
}

func (w *reporter) info(format string, args ...any) {
	w.add(alloc.Info, fmt.Sprintf(format, args...))
}

// head writes the line that begins the report, which doctor and scripts look for, and
// the pool's name.
func (w *reporter) head(r alloc.Request, n uint64, end uint8) {
	if w.old {
		// The missing blank before "requested", the blank at the second line's
		// end and the doubled last line are the original's.
		w.add(alloc.Warning, fmt.Sprintf("Allocator (%s) ran out of memory trying to allocate %s (rounded to %d)requested by op \n"+
			"If the cause is memory fragmentation maybe the environment variable 'TF_GPU_ALLOCATOR=cuda_malloc_async' will improve the situation. \n"+
			"Current allocation summary follows.\nCurrent allocation summary follows.",
			w.a.cfg.Name, xla(r.Bytes), n))
	} else {
		w.add(alloc.Warning, fmt.Sprintf("Allocator (%s) ran out of memory trying to allocate %s (rounded to %d) from the %s end requested by op \n"+
			"If this is caused by memory fragmentation, the environment variable 'TF_GPU_ALLOCATOR=cuda_malloc_async' may improve the situation.\n"+
			"Current allocation summary follows.",
			w.a.cfg.Name, xla(r.Bytes), n, tagNames[end]))
	}
	w.info("BFCAllocator dump for %s", w.a.cfg.Name)
}

// binStats is the report's line on one bin.
type binStats struct {
	chunks, inUse           int
	bytes, used, clientUsed uint64
}

// binTable sums chunks, live and free, by the bin of their size. The central
// gap is in no bin. Live chunks are in none in the original either, but its report
// counts them by their size all the same.
func (a *Allocator) binTable() [numBins]binStats {
	var bins [numBins]binStats
	for h, c := range a.chunks() {
		if h == a.gap {
			continue
		}
		b := &bins[binOf(c.Size)]
		b.chunks++
		b.bytes += c.Size
		if c.State == chunks.Live {
			b.inUse++
			b.used += c.Size
			b.clientUsed += c.Requested
		}
	}
	return bins
}

// bins writes a line for each of the 21 bins, empty ones included.
func (w *reporter) bins() {
	for i, b := range w.a.binTable() {
		w.info("Bin (%d): \tTotal Chunks: %d, Chunks in use: %d. %s allocated for chunks. %s in use in bin. %s client-requested in use in bin.",
			MinAllocation<<i, b.chunks, b.inUse, xla(b.bytes), xla(b.used), xla(b.clientUsed))
	}
}

// binOf lists the free chunks of the bin that the request falls into, with their
// neighbours. Those of the lower and the upper end are one list, ordered as the
// original's set is: by size, then tag, then address. Chunks of larger bins would serve
// the request, so after a refusal there are none but for the alignment or the other end.
func (w *reporter) binOf(n uint64) {
	a := w.a
	bin := binOf(n)
	w.info("Bin for %s was %s, Chunk State: ", xla(n), xla(MinAllocation<<bin))
	var free []*chunks.Chunk
	for _, x := range a.free {
		if x == nil {
			continue
		}
		for h := x.Find(MinAllocation << bin); h != 0; h = x.After(h) {
			c := a.store.At(h)
			if binOf(c.Size) != bin {
				break
			}
			free = append(free, c)
		}
	}
	slices.SortFunc(free, func(c, d *chunks.Chunk) int {
		return cmp.Or(cmp.Compare(c.Size, d.Size), cmp.Compare(c.Tag, d.Tag), cmp.Compare(c.Addr, d.Addr))
	})
	for _, c := range free {
		var b strings.Builder
		b.WriteString(w.chunk(c, bin))
		if c.Prev != 0 {
			b.WriteString(", prev: " + w.neighbour(c.Prev))
		}
		if c.Next != 0 {
			b.WriteString(", next: " + w.neighbour(c.Next))
		}
		w.add(alloc.Info, b.String())
	}
}

// neighbour describes a chunk next to a free one: live, or the central gap. Both are in
// no bin, which is printed as -1 (kInvalidBinNum).
func (w *reporter) neighbour(h chunks.H) string {
	c := w.a.store.At(h)
	bin := -1
	if c.State == chunks.Free && h != w.a.gap {
		bin = binOf(c.Size)
	}
	return w.chunk(c, bin)
}

// chunk describes a chunk as Chunk::DebugString of the original does.
func (w *reporter) chunk(c *chunks.Chunk, bin int) string {
	inUse := 0
	if c.State == chunks.Live {
		inUse = 1
	}
	return fmt.Sprintf("  Size: %s | Requested Size: %s | in_use: %d | bin_num: %d", xla(c.Size), xla(c.Requested), inUse, bin)
}

// regions lists every chunk. Handles are printed as the original counts them,
// from 0, with the largest number for none.
func (w *reporter) regions() {
	a := w.a
	for i := range a.regions {
		w.info("Next region of size %d", a.regions[i].size)
		for _, c := range a.tiles(&a.regions[i]) {
			var b strings.Builder
			state := "Free "
			if c.State == chunks.Live {
				state = "InUse"
			}
			fmt.Fprintf(&b, "%s at %x of size %d", state, c.Addr, c.Size)
			if !w.old {
				b.WriteString(" tag " + tagNames[c.Tag])
			}
			next := uint64(math.MaxUint64)
			if c.Next != 0 {
				next = uint64(c.Next - 1)
			}
			b.WriteString(" next " + strconv.FormatUint(next, 10))
			w.add(alloc.Info, b.String())
		}
	}
}

// sizes writes how many live chunks there are of each size, in ascending order, and the
// sum of all.
func (w *reporter) sizes() {
	w.info("     Summary of in-use Chunks by size: ")
	count := map[uint64]uint64{}
	var total uint64
	for _, c := range w.a.chunks() {
		if c.State == chunks.Live {
			count[c.Size]++
			total += c.Size
		}
	}
	var sizes []uint64
	for s := range count {
		sizes = append(sizes, s)
	}
	slices.Sort(sizes)
	for _, s := range sizes {
		w.info("%d Chunks of size %d totalling %s", count[s], s, xla(s*count[s]))
	}
	w.info("Sum Total of in-use chunks: %s", xla(total))
}

// sums writes what the pool has in all. The original of 2025 printed unallocated bytes
// under the name of available ones.
func (w *reporter) sums(n uint64, end uint8) {
	a := w.a
	s := a.stats
	unallocated := s.BytesLimit - min(s.PoolBytes, s.BytesLimit)
	if w.old {
		w.info("Total bytes in pool: %d memory_limit_: %d available bytes: %d curr_region_allocation_bytes_: %d",
			s.PoolBytes, s.BytesLimit, unallocated, a.next)
		return
	}
	w.info("Allocator memory summary: rounded request %s, total free in pool %s, largest free chunk usable by %s end %s, unallocated bytes %s, pool size %s, pool limit %s",
		xla(n), xla(s.PoolBytes-s.BytesInUse), tagNames[end], xla(a.usable(end)), xla(unallocated), xla(s.PoolBytes), xla(s.BytesLimit))
	if a.gap != 0 {
		w.info("Spatial partitioning summary for %s end: central gap %s, largest same-end binned free chunk %s, largest binned free chunk from any end %s. "+
			"The central gap is shared by lower/upper allocations and is not inserted into a bin.",
			tagNames[end], xla(a.store.At(a.gap).Size), xla(a.largestHole(end)), xla(a.largestHole(tagLower, tagUpper)))
	}
	hint := "(growth enabled)."
	if !a.cfg.Growth && a.arena == nil {
		hint = "(growth disabled; fixed-size pool; not an attempted allocation)."
	}
	w.info("Allocator region growth hint: next region allocation target %s %s", xla(a.next), hint)
}

// stats writes JAX's statistics, in bytes in the layout of 2025 and in IEC units since.
func (w *reporter) stats() {
	s := w.a.Stats()
	form := xla
	if w.old {
		form = func(n uint64) string { return strconv.FormatUint(n, 10) }
		s.LargestFreeBlock = 0 // was never filled in then
	}
	var b strings.Builder
	b.WriteString("Stats: \n")
	line := func(label, value string) { fmt.Fprintf(&b, "%-18s%20s\n", label, value) }
	line("Limit:", form(s.BytesLimit))
	line("InUse:", form(s.BytesInUse))
	line("MaxInUse:", form(s.PeakBytesInUse))
	line("NumAllocs:", strconv.FormatInt(s.NumAllocs, 10))
	line("MaxAllocSize:", form(s.LargestAllocSize))
	line("Reserved:", form(s.BytesReserved))
	line("PeakReserved:", form(s.PeakBytesReserved))
	if !w.old {
		// Never filled in by the original, and four columns off.
		fmt.Fprintf(&b, "%-22s%20s\n", "PeakAllocated:", form(0))
	}
	line("LargestFreeBlock:", form(s.LargestFreeBlock))
	w.add(alloc.Info, b.String())
}

// occupancy draws the regions, back to back, as a line of 100 columns: live
// bytes as *, what a live chunk has beyond its request as x, the rest as _.
//
// A column is 1 % of the bytes, and a span covers all columns from that of its first
// byte to that of its last. What is drawn later covers what is there: so a block of a
// few bytes shows, and free memory of less than a column between two blocks does not.
// A pool of 1,000 bytes with a block of 95 in a chunk of 120 begins with ten * and two x.
func (a *Allocator) occupancy() string {
	const columns = 100
	var total uint64
	for i := range a.regions {
		total += a.regions[i].size
	}
	if total == 0 {
		return "<allocator contains no memory>"
	}
	line := []byte(strings.Repeat("_", columns))
	draw := func(from, to uint64, mark byte) { // [from, to) in bytes from the start
		lo, hi := column(from, columns, total), column(to-1, columns, total)
		for i := lo; i <= hi; i++ {
			line[i] = mark
		}
	}
	var base uint64
	for i := range a.regions {
		r := &a.regions[i]
		for _, c := range a.tiles(r) {
			if c.State == chunks.Live {
				at := base + c.Addr - r.addr
				if c.Size > c.Requested {
					draw(at+c.Requested, at+c.Size, 'x')
				}
				draw(at, at+c.Requested, '*')
			}
		}
		base += r.size
	}
	return string(line)
}

// column returns floor(off*columns/total) without passing 2^64.
func column(off, columns, total uint64) int {
	if off < math.MaxUint64/columns {
		return int(off * columns / total)
	}
	return int(float64(off) / float64(total) * float64(columns))
}
