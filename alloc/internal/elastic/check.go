package elastic

import (
	"fmt"

	"gpumem/alloc/internal/chunks"
)

// Check verifies the whole structure and returns the first thing that does not hold. It
// takes a walk over every chunk and every page. Tests call it, and with the build tag
// invariants every operation does. It shares no code with what it checks but the
// rounding functions.
//
// What holds between operations:
//
//   - the chunks of a space tile it, linked both ways, each of a multiple of 256
//     bytes; no two free neighbours are of one kind;
//   - unmapped chunks are whole pages and have no handles; every other page has
//     one, or lies in a block of one handle;
//   - a free chunk is in the index of its kind and space, once;
//   - no stamp of a mapped chunk is of an epoch or an operation to come;
//   - the counts of pages and the statistics equal what a walk counts; no more
//     than the limit is owned.
func (a *Allocator) Check() error {
	if a.closed || a.split == 0 {
		return nil
	}
	var w walk
	if err := a.checkSpace(&a.large, a.base, a.split, &w); err != nil {
		return fmt.Errorf("large blocks: %w", err)
	}
	if err := a.checkSpace(&a.small, a.split, a.base+a.bytes, &w); err != nil {
		return fmt.Errorf("small blocks: %w", err)
	}
	for _, o := range a.orphans {
		w.held += o.pages
	}
	handles := 0
	for _, leaf := range a.handles {
		for _, p := range leaf {
			if p != 0 {
				handles++
			}
		}
	}
	switch {
	case w.held != a.held || w.mapped != a.mapped || w.handles != handles:
		return fmt.Errorf("a walk counts %d pages held, %d mapped, %d handles; the counters say %d, %d, %d", w.held, w.mapped, w.handles, a.held, a.mapped, handles)
	case w.used != a.stats.BytesInUse || a.stats.PeakBytesInUse < w.used:
		return fmt.Errorf("statistics say %d bytes in use, a walk counts %d", a.stats.BytesInUse, w.used)
	case a.owned() > a.cap || a.cap > a.limit || a.stats.PeakPoolBytes < a.owned()<<a.shift:
		return fmt.Errorf("%d pages are owned; %d may be, of %d", a.owned(), a.cap, a.limit)
	case a.live != nil && a.live.Len() != w.blocks:
		return fmt.Errorf("the table holds %d chunks, %d are live", a.live.Len(), w.blocks)
	case a.store.Len() != w.chunks:
		return fmt.Errorf("the store holds %d chunks, the spaces %d", a.store.Len(), w.chunks)
	}
	return nil
}

// walk is what was counted.
type walk struct {
	chunks, blocks, handles int
	held, mapped, used      uint64
}

func (a *Allocator) checkSpace(sp *space, lo, hi uint64, w *walk) error {
	indexed := map[chunks.H]uint8{}
	for _, tag := range []uint8{tagMapped, tagUnmapped} {
		for h := range sp.index(tag).Ascend {
			if _, twice := indexed[h]; twice {
				return fmt.Errorf("chunk %d is in an index twice", h)
			}
			indexed[h] = tag
		}
	}
	at, prev := lo, chunks.H(0)
	held := make(map[uint64]bool)   // pages with a live byte
	mapped := make(map[uint64]bool) // and all with memory
	for h := sp.first; h != 0; {
		c := a.store.At(h)
		w.chunks++
		if c.Addr != at || c.Prev != prev || c.Size == 0 || c.Size%unit != 0 {
			return fmt.Errorf("chunk %d at %#x of %d bytes above %d: want it at %#x", h, c.Addr, c.Size, c.Prev, at)
		}
		tag, in := indexed[h]
		if in != (c.State == chunks.Free) || in && tag != c.Tag {
			return fmt.Errorf("chunk %d of state %d and tag %d: in an index %v, of %d", h, c.State, c.Tag, in, tag)
		}
		delete(indexed, h)
		if in && tag == tagMapped && (c.Stream > a.epochs.Now() || c.Requested > a.ops) {
			return fmt.Errorf("chunk %d was freed in epoch %d by operation %d, which are to come", h, c.Stream, c.Requested)
		}
		if prev != 0 && c.State == chunks.Free {
			if p := a.store.At(prev); p.State == chunks.Free && p.Tag == c.Tag {
				return fmt.Errorf("free chunks %d and %d of one kind are neighbours", prev, h)
			}
		}
		aligned := c.Addr&a.mask == 0 && c.Size&a.mask == 0
		if !aligned && (c.Tag == tagWhole || c.Tag == tagStuck || c.Tag == tagUnmapped) {
			return fmt.Errorf("chunk %d of tag %d is not of whole pages", h, c.Tag)
		}
		if isBlock(c) {
			w.blocks++
			w.used += c.Size
			if a.live != nil && a.live.Find(c.Addr) != h {
				return fmt.Errorf("live chunk %d at %#x is not in the table", h, c.Addr)
			}
		}
		for p := a.down(c.Addr); p < end(c); p += a.mask + 1 {
			if c.Tag == tagUnmapped && c.State == chunks.Free {
				if i := (p - a.base) >> a.shift; a.handles[i>>leafBits] == nil {
					p = a.base + (i|(leafPages-1))<<a.shift // none in a GiB; addresses are many
				} else if *a.handle(p) != 0 {
					return fmt.Errorf("the unmapped page %#x has a handle", p)
				}
				continue
			}
			mapped[p] = true
			if c.State == chunks.Live {
				held[p] = true
			}
			first := p == c.Addr || c.Tag != tagWhole && c.Tag != tagStuck
			if first && *a.handle(p) == 0 || !first && c.Tag == tagWhole && *a.handle(p) != 0 {
				return fmt.Errorf("the page %#x of chunk %d has a handle: %v", p, h, *a.handle(p) != 0)
			}
		}
		at, prev = end(c), h
		h = c.Next
	}
	if at != hi || len(indexed) > 0 {
		return fmt.Errorf("the chunks end at %#x, the space at %#x; %d chunks are in an index only", at, hi, len(indexed))
	}
	w.held += uint64(len(held))
	w.mapped += uint64(len(mapped))
	for p := range mapped {
		if *a.handle(p) != 0 {
			w.handles++
		}
	}
	return nil
}
