package category

// The blocks of a recording: what each was asked as, where, and from which event to which it
// lived.

import (
	"context"
	"math"

	"gpumem/record/internal/tape"
)

// mostEvents bounds what is held of a recording: some 170 MB, for about 170 bytes an allocation
// are taken in all. A longer one is read around its peak alone, as if it had been recorded
// only there. It is a variable for tests.
var mostEvents = uint64(2_000_000)

// never is the death of a block that lives at the end of what was read.
const never = math.MaxUint64

// A block is an allocation and its free. Who freed it is not known: PyTorch gives a free the
// stack of its allocation (CUDACachingAllocator.cpp, context_when_allocated).
type block struct {
	born, died uint64 // events, from 1; died is never for what lives at the end
	bytes      uint64
	site       uint32 // that allocated it
	stream     uint32
	seed       bool // older than what was read
	refused    bool
}

// lives reports whether the block lives after an event.
func (b *block) lives(event uint64) bool { return b.born <= event && event < b.died }

// A span is what was read of a pool: the events from first to last.
type span struct {
	blocks      []block // by born
	first, last uint64
	peak        uint64 // the event at which most is live, for the first time
	bytes       uint64 // live at the peak
	unlisted    bool   // what is older than the recording is known as a sum alone
}

// read reads a pool, a long one around its peak.
func read(ctx context.Context, p *tape.Pool) (*span, error) {
	s := &span{first: 1, last: p.Events}
	w := p.Walk()
	err := w.Each(ctx, nil, func(e *tape.Event, _ *tape.Block) {
		if live := w.Bytes.Cap(); e.Op == tape.Alloc && live > s.bytes {
			s.bytes, s.peak = live, w.Number
		}
	})
	if err != nil {
		return nil, err
	}
	if p.Events > mostEvents {
		s.first = s.peak - min(s.peak-1, mostEvents/2)
		s.last = min(p.Events, s.first+mostEvents-1)
	}
	w = p.Walk()
	open := make([]int, p.Slots) // the block of each slot
	err = w.Each(ctx, nil, func(e *tape.Event, _ *tape.Block) {
		switch {
		case w.Number < s.first || w.Number > s.last:
			if w.Number+1 == s.first {
				s.seeds(w, open)
			}
		case e.Op == tape.Free:
			s.blocks[open[e.Slot]].died = w.Number
		default:
			open[e.Slot] = len(s.blocks)
			b := block{born: w.Number, died: never, bytes: e.Bytes, site: e.Site, stream: e.Stream, seed: w.Number <= p.Seeds, refused: e.Refused}
			if e.Refused {
				b.died = w.Number + 1
			}
			s.blocks = append(s.blocks, b)
		}
	})
	return s, err
}

// seeds adds what lives before the first event that is read.
func (s *span) seeds(w *tape.Walk, open []int) {
	for _, e := range w.Live() {
		open[e.Slot] = len(s.blocks)
		s.blocks = append(s.blocks, block{born: w.Slots[e.Slot].Number, died: never, bytes: e.Bytes, site: e.Site, stream: e.Stream, seed: true})
	}
}

// A process is what was read of one process of several, and where its blocks are among all.
type process struct {
	*span
	at []int
}

// byPart returns what was read of each process: each has passes of its own.
func (s *span) byPart(parts []tape.Part) []process {
	if len(parts) == 0 {
		parts = []tape.Part{{Streams: math.MaxUint32}}
	}
	list := make([]process, len(parts))
	for i := range list {
		one := *s
		one.blocks = nil
		list[i].span = &one
	}
	for i, b := range s.blocks {
		for k, p := range parts {
			if b.stream-p.Stream < p.Streams {
				list[k].blocks, list[k].at = append(list[k].blocks, b), append(list[k].at, i)
			}
		}
	}
	return list
}
