package elastic

import (
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/size"
)

// chunks walks every chunk in address order. The chunk that was given last may be
// freed or joined with the one below, but not with the one above.
func (a *Allocator) chunks() func(yield func(chunks.H, *chunks.Chunk) bool) {
	return func(yield func(chunks.H, *chunks.Chunk) bool) {
		for _, sp := range []*space{&a.large, &a.small} {
			for h := sp.first; h != 0; {
				c := a.store.At(h)
				next := c.Next
				if !yield(h, c) {
					return
				}
				h = next
			}
		}
	}
}

// Walk visits the blocks and the free pieces with memory behind them, in address
// order. A region is a run of pages.
func (a *Allocator) Walk(yield func(alloc.Chunk) bool) {
	region, at := -1, uint64(0)
	for _, c := range a.chunks() {
		if c.Tag == tagStuck || c.State == chunks.Free && c.Tag == tagUnmapped {
			continue
		}
		if c.Addr != at || region < 0 {
			region++
		}
		at = end(c)
		out := alloc.Chunk{Addr: c.Addr, Size: c.Size, Region: region, Tag: "lower"}
		if c.State == chunks.Live {
			out.Live, out.Requested, out.Stream, out.Site = true, c.Requested, c.Stream, alloc.Site(c.Site())
		}
		if !yield(out) {
			return
		}
	}
}

// Idle returns how many bytes are owned and hold no live byte: what Trim could
// release but for Config.Reserve.
func (a *Allocator) Idle() uint64 { return (a.owned() - a.held) << a.shift }

// Stats returns JAX's statistics. PoolBytes is what the device counts as this
// pool's. LargestFreeBlock is the largest block that could be had without more
// memory from the device: all idle pages make one, and a mapped chunk may be a little
// larger by its odd ends. So Stats.Fragmentation is about the free memory in pages
// that something else lives on.
func (a *Allocator) Stats() alloc.Stats {
	s := a.stats
	s.NumAllocs = int64(a.lastID)
	s.PoolBytes = a.owned() << a.shift
	if a.closed {
		return s
	}
	s.LargestFreeBlock = (a.owned() - a.held) << a.shift
	for _, sp := range []*space{&a.large, &a.small} {
		if h := sp.mapped.Largest(); h != 0 {
			s.LargestFreeBlock = max(s.LargestFreeBlock, a.store.At(h).Size)
		}
	}
	return s
}

// MetadataBytes returns the bytes of host memory that describe the pool.
func (a *Allocator) MetadataBytes() int {
	n := a.store.Cap() + len(a.handles)*24 + cap(a.spare)*8
	for _, leaf := range a.handles {
		n += len(leaf) * 8
	}
	for _, sp := range []*space{&a.large, &a.small} {
		n += sp.mapped.Cap() + sp.unmapped.Cap()
	}
	if a.live != nil {
		n += a.live.Cap()
	}
	return n
}

// PeakChunks returns the most chunks that the addresses were ever cut into.
func (a *Allocator) PeakChunks() int { return a.store.Peak() }

// Report describes a refused request: what it needs, and where the pages are. It makes
// one driver call, MemInfo.
func (a *Allocator) Report(r alloc.Request) alloc.Report {
	var out alloc.Report
	add := func(s alloc.Severity, format string, args ...any) {
		out = append(out, alloc.Message{Severity: s, Text: fmt.Sprintf(format, args...)})
	}
	page := a.mask + 1
	need := (r.Bytes + a.mask) >> a.shift
	if r.Bytes > 1<<63 {
		need = r.Bytes >> a.shift
	}
	kind := ""
	if r.OneHandle {
		kind = " in one handle"
	}
	add(alloc.Warning, "Allocator (%s) ran out of memory trying to allocate %s%s: %d pages of %s",
		a.name, size.Format(r.Bytes), kind, need, size.Format(page))
	add(alloc.Info, "pages: %d held by blocks, %d idle, limit %d; blocks have %s, and %s in held pages is free in gaps",
		a.held, a.owned()-a.held, a.limit, size.Format(a.stats.BytesInUse), size.Format(a.held*page-a.stats.BytesInUse))
	free, total, err := a.dev.MemInfo()
	switch {
	case err != nil:
		add(alloc.Info, "the free memory of the device is unknown: %v", err)
	default:
		add(alloc.Info, "the device has %s free of %s", size.Format(free), size.Format(total))
		if a.owned() < a.limit && free < (a.limit-a.owned())*page {
			add(alloc.Info, "others hold the rest of the limit")
		}
	}
	return out
}
