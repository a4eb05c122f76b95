package tape

// The walk over a pool's events that knows what is live. All that looks at a recording
// without an allocator is one: timelines, leaks, comparisons, what lives at the peak.

import (
	"cmp"
	"context"
	"io"
	"slices"

	"gpumem/record/internal/sum"
)

// Walk reads the events of a pool in order and knows what is live after each. The block of
// a request that the recorded program was refused is live at its event and gone before the
// next one. One goroutine uses a walk at a time.
type Walk struct {
	Number uint64  // of the last event, from 1, seeds included
	Bytes  sum.Sum // live, as they were requested
	Blocks uint64  // live, those of 0 bytes included
	Slots  []Block // by Event.Slot

	pool    *Pool
	cursor  *Cursor
	buf     []Event // of Next
	rest    []Event // of buf: the events that Next has not returned
	refused *Block  // by the last event; nil if there is none
}

// Block is what a slot has: a block that is live, or the last one that was.
type Block struct {
	Bytes  uint64 // requested
	Number uint64 // of the event that allocated it, as in Walk
	Site   uint32 // that allocated it
	Live   bool
}

// Walk returns a walk before the first event.
func (p *Pool) Walk() *Walk {
	return &Walk{pool: p, cursor: p.Cursor(), Slots: make([]Block, p.Slots)}
}

// Next returns the next event, which is valid until the call after it; nil at the end. A
// Free has the bytes of the block that it frees. It stops with the context's cause, or with
// an error of [Cursor.Next].
func (w *Walk) Next(ctx context.Context) (*Event, error) {
	if len(w.rest) == 0 {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if w.buf == nil {
			w.buf = make([]Event, 1024)
		}
		n, err := w.cursor.Next(w.buf)
		if err == io.EOF {
			w.dropRefused()
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		w.rest = w.buf[:n]
	}
	one := w.rest[:1]
	w.rest = w.rest[1:]
	w.play(one, func(*Event, *Block) {})
	return &one[0], nil
}

// Each calls f after every event, with the block that it allocated or freed. A Free has the
// bytes of its block. The events are those that Next has not returned. Progress and errors
// are those of [Pool.Batches].
func (w *Walk) Each(ctx context.Context, progress func(part float64), f func(e *Event, b *Block)) error {
	err := w.pool.Batches(ctx, progress, func(events []Event) error {
		w.play(events, f)
		return nil
	})
	w.dropRefused()
	return err
}

// Kept returns the bytes and the blocks that are live, without a request that the program was
// refused at the last event.
func (w *Walk) Kept() (bytes sum.Sum, blocks uint64) {
	bytes, blocks = w.Bytes, w.Blocks
	if w.refused != nil {
		bytes.Sub(w.refused.Bytes)
		blocks--
	}
	return bytes, blocks
}

// Keeps reports whether a block of Slots is live, and no such request.
func (w *Walk) Keeps(b *Block) bool { return b.Live && b != w.refused }

// play goes over events that follow those so far.
func (w *Walk) play(events []Event, f func(e *Event, b *Block)) {
	for i := range events {
		w.dropRefused()
		e := &events[i]
		w.Number++
		b := &w.Slots[e.Slot]
		if e.Op == Free {
			e.Bytes = b.Bytes
			w.drop(b)
		} else {
			*b = Block{Bytes: e.Bytes, Number: w.Number, Site: e.Site, Live: true}
			w.Bytes.Add(e.Bytes)
			w.Blocks++
			if e.Refused {
				w.refused = b
			}
		}
		f(e, b)
	}
}

// drop takes a block out of what is live.
func (w *Walk) drop(b *Block) {
	b.Live = false
	w.Bytes.Sub(b.Bytes)
	w.Blocks--
}

// dropRefused ends the life of the block that the last event was refused.
func (w *Walk) dropRefused() {
	if w.refused != nil {
		w.drop(w.refused)
		w.refused = nil
	}
}

// Live returns the allocations of the blocks that are live, in their order, without those
// of 0 bytes and without a request that the last event was refused. Of each it has the
// bytes, the site and the slot.
func (w *Walk) Live() []Event {
	var slots []uint32
	for i := range w.Slots {
		if b := &w.Slots[i]; w.Keeps(b) && b.Bytes > 0 {
			slots = append(slots, uint32(i))
		}
	}
	slices.SortFunc(slots, func(i, k uint32) int { return cmp.Compare(w.Slots[i].Number, w.Slots[k].Number) })
	list := make([]Event, len(slots))
	for i, slot := range slots {
		b := &w.Slots[slot]
		list[i] = Event{Bytes: b.Bytes, Site: b.Site, Slot: slot}
	}
	return list
}

// AtPeak returns the allocations of what is live when most is for the first time, see
// [Walk.Live]. A request that was refused there is the last. The errors are those of
// [Walk.Next].
func (p *Pool) AtPeak(ctx context.Context) ([]Event, error) {
	if p.PeakLive == 0 {
		return nil, nil
	}
	w := p.Walk()
	for {
		e, err := w.Next(ctx)
		switch {
		case e == nil || err != nil:
			return nil, err
		case e.Op == Free || w.Bytes.Cap() < p.PeakLive:
		case e.Refused:
			return append(w.Live(), *e), nil
		default:
			return w.Live(), nil
		}
	}
}
