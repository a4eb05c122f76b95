package tape

// What a pool has beside its events, in our own format: the segments of the recorded program's
// pool, what it did between two events, and what keeps its blocks. See binary.go for the format.

import (
	"encoding/binary"
	"math"

	"gpumem/internal/input"
)

// The lists of segments of a pool, by their numbers in a file.
const (
	heldFirst = iota // Pool.Segments
	heldLater        // Pool.Granted
	heldLast         // Pool.Final
	heldLists
)

// uvarints writes a record of numbers.
func (b *blockWriter) uvarints(kind byte, numbers ...uint64) {
	b.room()
	b.buf = append(b.buf, kind)
	for _, n := range numbers {
		b.buf = binary.AppendUvarint(b.buf, n)
	}
}

// segments writes the segments of pool number n. A list that is not known is not written.
func (b *blockWriter) segments(n uint32, p *Pool) {
	for which, list := range [heldLists][]Segment{p.segments, p.granted, p.final} {
		if list == nil {
			continue
		}
		b.uvarints(binSegments, uint64(n), uint64(which))
		for _, s := range list {
			b.uvarints(binSegment, s.Addr, s.Bytes, uint64(s.Stream), uint64(s.Private), s.Base, bit(s.Small))
			for _, k := range s.Blocks {
				b.uvarints(binSegmentBlock, k.Addr-s.Addr, k.Bytes, k.Requested, uint64(k.Site))
			}
		}
	}
}

func bit(set bool) uint64 {
	if set {
		return 1
	}
	return 0
}

// keepersOf are the keepers that are written, by their numbers in the file.
type keepersOf map[Keeper]uint64

// write writes what keeps the Alloc that follows.
func (list keepersOf) write(b *blockWriter, k Keeper) {
	n, ok := list[k]
	if !ok {
		n = uint64(len(list))
		list[k] = n
		b.text(binNewKeeper, input.Cut(k.Container, maxFrameBytes))
		line := input.Cut(k.Line, maxFrameBytes)
		b.buf = binary.AppendUvarint(b.buf, uint64(len(line)))
		b.buf = append(b.buf, line...)
	}
	b.about = binary.AppendUvarint(append(b.about, binKept), n)
}

// beside is what happened to a pool beside its events, in the order of those.
type beside struct {
	pool     uint64
	reserved []Reserved
	trims    []uint64
	privates []Private
	waits    []Wait
}

func besideEvents(n uint32, p *Pool) *beside {
	return &beside{uint64(n), p.reserved, p.trims, p.privates, p.waits}
}

// write writes what happened between so many events and the next; slots are the file's, by the
// recording's.
func (s *beside) write(b *blockWriter, done uint64, slots []uint32) {
	for ; len(s.reserved) > 0 && s.reserved[0].Event <= done+1; s.reserved = s.reserved[1:] {
		b.uvarints(binReserved, s.pool, s.reserved[0].Bytes)
	}
	for ; len(s.trims) > 0 && s.trims[0] <= done; s.trims = s.trims[1:] {
		b.uvarints(binTrim, s.pool)
	}
	for ; len(s.privates) > 0 && s.privates[0].Event <= done; s.privates = s.privates[1:] {
		b.uvarints(binPrivate, s.pool, uint64(s.privates[0].Pool), bit(s.privates[0].Ended))
	}
	for ; len(s.waits) > 0 && s.waits[0].From <= done; s.waits = s.waits[1:] {
		w := s.waits[0]
		b.uvarints(binWait, s.pool, uint64(slots[w.Slot]), w.To-min(w.From, w.To))
	}
}

// beside plays a record of what a pool has beside its events.
func (r *binaryReader) beside(tag byte, f *fields) error {
	switch tag {
	case binSegment:
		return r.segment(f)
	case binSegmentBlock:
		return r.segmentBlock(f)
	}
	n := f.uvarint()
	if n >= uint64(len(r.pools)) {
		return recordError("something is of a pool that is not known")
	}
	if err := r.file.Take(24); err != nil {
		return err
	}
	pool := r.pools[n].pool
	switch tag {
	case binSegments:
		which := f.uvarint()
		if which >= heldLists {
			return recordError("segments are of a list that is not known")
		}
		r.list = [heldLists]*[]Segment{&pool.p.segments, &pool.p.granted, &pool.p.final}[which]
		*r.list = []Segment{}
	case binReserved:
		pool.Reserved(f.uvarint())
	case binTrim:
		pool.Trim()
	case binPrivate:
		private, ended := f.uvarint(), f.uvarint()
		if private > math.MaxUint32 || ended > 1 {
			return recordError("a private pool has a number that cannot be")
		}
		pool.Private(uint32(private), ended == 1)
	case binWait:
		slot, later := f.uvarint(), f.uvarint()
		if slot >= uint64(len(pool.bytes)) {
			return recordError("a block waits that is not known")
		}
		w := Wait{Slot: uint32(slot), From: pool.p.Events}
		if later > 0 {
			w.To = w.From + later
		}
		pool.p.waits = append(pool.p.waits, w)
	}
	return nil
}

func (r *binaryReader) segment(f *fields) error {
	s := Segment{Addr: f.uvarint(), Bytes: f.uvarint()}
	stream, private := f.uvarint(), f.uvarint()
	s.Base = f.uvarint()
	small := f.uvarint()
	switch {
	case r.list == nil:
		return recordError("a segment is of no list")
	case stream >= math.MaxUint32 || private > math.MaxUint32 || small > 1 || s.Addr+s.Bytes < s.Addr:
		return recordError("a segment has numbers that cannot be")
	}
	s.Stream, s.Private, s.Small = uint32(stream), uint32(private), small == 1
	*r.list = append(*r.list, s)
	if err := r.b.stream(s.Stream); err != nil {
		return err
	}
	return r.file.Take(2 * 80)
}

func (r *binaryReader) segmentBlock(f *fields) error {
	at := f.uvarint()
	b := SegmentBlock{Bytes: f.uvarint(), Requested: f.uvarint()}
	site := f.uvarint()
	if r.list == nil || len(*r.list) == 0 {
		return recordError("a block is of no segment")
	}
	s := &(*r.list)[len(*r.list)-1]
	if at > s.Bytes || b.Bytes > s.Bytes-at || site >= uint64(r.b.trace.sites.len()) {
		return recordError("a block does not fit its segment")
	}
	b.Addr, b.Site = s.Addr+at, uint32(site)
	s.Blocks = append(s.Blocks, b)
	return r.file.Take(2 * 32)
}

// checkSegments reports whether the segments of all pools can be: they do not overlap, neither do
// their blocks, and those of the first event are the seeds.
func (r *binaryReader) checkSegments() error {
	for _, p := range r.pools {
		first, blocks := areApart(p.pool.p.segments)
		last, _ := areApart(p.pool.p.final)
		if !first || !last || p.pool.p.segments != nil && blocks != p.pool.p.Seeds {
			return r.file.FailAt(r.off, "the segments of pool %q cannot be; the file was not written by gpumem", p.pool.p.Name)
		}
	}
	return nil
}

// areApart reports whether segments and their blocks are in order and do not overlap, and how
// many blocks there are.
func areApart(list []Segment) (ok bool, blocks uint64) {
	var end uint64
	for _, s := range list {
		if s.Addr < end {
			return false, 0
		}
		end = s.Addr
		for _, b := range s.Blocks {
			if b.Addr < end {
				return false, 0
			}
			end = b.Addr + b.Bytes
		}
		end = s.Addr + s.Bytes
		blocks += uint64(len(s.Blocks))
	}
	return true, blocks
}

// newKeeper plays a record of a keeper.
func (r *binaryReader) newKeeper(f *fields) error {
	k := Keeper{f.text(), f.text()}
	r.keepers = append(r.keepers, k)
	return r.file.Take(int64(len(k.Container)+len(k.Line)) + 2*32)
}

// noteKept notes what keeps the Alloc that was the last event of a pool.
func (r *binaryReader) noteKept(p *Pool) error {
	if p.keepers == nil {
		p.keepers = map[uint64]Keeper{}
	}
	p.keepers[p.Events] = r.keepers[r.keeper]
	return r.file.Take(2 * 48)
}
