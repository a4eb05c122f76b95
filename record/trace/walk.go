package trace

// A pass over a pool's events that knows what is live.

import (
	"cmp"
	"context"
	"io"
	"slices"

	"gpumem/record/internal/sum"
)

// Walk reads the events of a pool in order and keeps those blocks that are live. One
// goroutine uses it at a time.
type Walk struct {
	cursor *Cursor
	buf    [1024]Event
	rest   []Event // of buf: the events that Next has not returned
	blocks []held  // by slot; those of 0 bytes are free
	count  uint64  // events that Next has returned
}

// held is a block with the number of its event.
type held struct {
	Event
	number uint64
}

// Walk returns a walk before the first event.
func (p *Pool) Walk() *Walk {
	return &Walk{cursor: p.Cursor(), blocks: make([]held, p.Slots)}
}

// Next returns the next event, which is valid until the call after it; nil at the end. A
// Free has the bytes of the block that it frees. It stops with the context's cause, or with
// an error of [Cursor.Next].
func (w *Walk) Next(ctx context.Context) (*Event, error) {
	if len(w.rest) == 0 {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		n, err := w.cursor.Next(w.buf[:])
		if err == io.EOF {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		w.rest = w.buf[:n]
	}
	e := &w.rest[0]
	w.rest = w.rest[1:]
	w.count++
	switch b := &w.blocks[e.Slot]; {
	case e.Op == Free:
		e.Bytes = b.Bytes
		*b = held{}
	case !e.Refused:
		*b = held{*e, w.count}
	}
	return e, nil
}

// Live returns the allocations of the blocks that are live, in their order, without those
// of 0 bytes.
func (w *Walk) Live() []Event {
	blocks := slices.DeleteFunc(slices.Clone(w.blocks), func(b held) bool { return b.Bytes == 0 })
	slices.SortFunc(blocks, func(a, b held) int { return cmp.Compare(a.number, b.number) })
	list := make([]Event, len(blocks))
	for i, b := range blocks {
		list[i] = b.Event
	}
	return list
}

// AtPeak returns the allocations of what is live when most is for the first time, in their
// order. A request that was refused there is the last. The errors are those of [Walk.Next].
func (p *Pool) AtPeak(ctx context.Context) ([]Event, error) {
	if p.PeakLive == 0 {
		return nil, nil
	}
	w := p.Walk()
	var live sum.Sum
	for {
		e, err := w.Next(ctx)
		if e == nil || err != nil {
			return nil, err
		}
		if e.Op == Free {
			live.Sub(e.Bytes)
			continue
		}
		live.Add(e.Bytes)
		switch {
		case live.Cap() == p.PeakLive && e.Refused:
			return append(w.Live(), *e), nil
		case live.Cap() == p.PeakLive:
			return w.Live(), nil
		case e.Refused:
			live.Sub(e.Bytes)
		}
	}
}
