package pytorch

// Blocks that are used in several streams: at their free an event is recorded in each
// of the other streams, and they are free blocks only when all of them have passed.
// See pytorch.go for an overview.

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"gpumem/alloc"
	"gpumem/alloc/internal/chunks"
	"gpumem/alloc/streams"
)

// queue is the events of one stream, in the order in which they were recorded.
type queue struct {
	stream uint32
	events []event
}

// use is another stream that uses a live chunk.
type use struct {
	stream  uint32
	capture bool // it was recorded during a capture, perhaps for the second time
}

// event is one that a waiting chunk waits for.
type event struct {
	mark  *streams.Mark
	chunk chunks.H
}

// Record says that a live block is used in a stream beside its own
// (record_stream): once it is freed, its memory is not used again before that stream
// is past it. Saying it twice does nothing more, nor does naming its own stream.
// Errors: alloc.ErrNotAllocated for a block that is not live, alloc.ErrClosed, or that
// of streams.Tracker.Use.
func (a *Allocator) Record(b alloc.Block, stream uint32) error {
	h, c, err := a.lookup(fmt.Sprintf("use in stream %d", stream), b)
	if c == nil {
		if errors.Is(err, alloc.ErrDoubleFree) {
			err = fmt.Errorf("use of %v in stream %d: %w: it was freed", b, stream, alloc.ErrNotAllocated)
		}
		return err
	}
	if err := a.streams.Use(stream); err != nil {
		return err
	}
	if stream == a.lists[c.Stream].stream {
		return nil
	}
	r := &a.more[h]
	if r.others == 0 {
		if n := len(a.unused); n > 0 {
			r.others = a.unused[n-1]
			a.unused = a.unused[:n-1]
		} else {
			a.others = append(a.others, nil)
			r.others = int32(len(a.others) - 1)
		}
	}
	others := &a.others[r.others]
	i := slices.IndexFunc(*others, func(u use) bool { return u.stream == stream })
	if i < 0 {
		i = len(*others)
		*others = append(*others, use{stream: stream})
	}
	if a.capturing > 0 {
		(*others)[i].capture = true
	}
	return nil
}

// recordDeferred records the events of the chunks that were freed during a capture
// (insert_events_deferred_until_no_capture). What a captured graph did in other streams
// it has joined, so these count only if they used the chunk outside of a capture.
func (a *Allocator) recordDeferred() error {
	for len(a.deferred) > 0 {
		h := a.deferred[0]
		if r := &a.more[h]; !a.cfg.CaptureEvents {
			a.others[r.others] = slices.DeleteFunc(a.others[r.others], func(u use) bool { return u.capture })
		}
		if err := a.recordEvents(h); err != nil {
			return err
		}
		a.deferred = slices.Delete(a.deferred, 0, 1)
		if a.more[h].events == 0 {
			a.awaited(h)
		}
	}
	return nil
}

// recordEvents records an event for chunk h in each other stream that it was used in
// (insert_events). After an error there is none.
func (a *Allocator) recordEvents(h chunks.H) error {
	r := &a.more[h]
	for _, u := range a.others[r.others] {
		mark, err := a.streams.Mark(u.stream)
		if err != nil {
			for i := range a.queues {
				q := &a.queues[i]
				if n := len(q.events); n > 0 && q.events[n-1].chunk == h {
					a.streams.Release(q.events[n-1].mark)
					q.events = q.events[:n-1]
				}
			}
			r.events = 0
			return err
		}
		q := a.queue(u.stream)
		q.events = append(q.events, event{mark, h})
		r.events++
	}
	a.others[r.others] = a.others[r.others][:0]
	a.unused = append(a.unused, r.others)
	r.others = 0
	return nil
}

// queue is the queue of a stream, which is made.
func (a *Allocator) queue(stream uint32) *queue {
	i, ok := slices.BinarySearchFunc(a.queues, stream, func(q queue, stream uint32) int { return cmp.Compare(q.stream, stream) })
	if !ok {
		a.queues = slices.Insert(a.queues, i, queue{stream: stream})
	}
	return &a.queues[i]
}

// processEvents frees the blocks whose events have passed, without waiting
// (process_events). In each stream it ends at the first event that has not.
func (a *Allocator) processEvents() error {
	if err := a.recordDeferred(); err != nil {
		return err
	}
	a.streams.Look()
	for i := range a.queues {
		q := &a.queues[i]
		n := 0
		for n < len(q.events) && a.streams.Passed(q.events[n].mark) {
			n++
		}
		a.passed(q, n)
	}
	a.queues = slices.DeleteFunc(a.queues, func(q queue) bool { return len(q.events) == 0 })
	return nil
}

// passed takes the first n events of a queue out.
func (a *Allocator) passed(q *queue, n int) {
	for _, e := range q.events[:n] {
		a.streams.Release(e.mark)
		r := &a.more[e.chunk]
		if r.events--; r.events == 0 {
			a.awaited(e.chunk)
		}
	}
	q.events = slices.Delete(q.events, 0, n)
}

// awaited makes a chunk that waited a free one.
func (a *Allocator) awaited(h chunks.H) {
	c := a.store.At(h)
	c.Tag &^= waiting
	a.mem.Waiting -= c.Size
	a.putBack(h, c)
	a.mem.InactiveSplitPeak = max(a.mem.InactiveSplitPeak, a.mem.InactiveSplit)
}

// awaitEvents waits for all events and frees the blocks (synchronize_and_free_events).
func (a *Allocator) awaitEvents() error {
	if a.mem.Waiting == 0 {
		return nil
	}
	if err := a.recordDeferred(); err != nil {
		return err
	}
	var marks []*streams.Mark
	for _, q := range a.queues {
		for _, e := range slices.Backward(q.events) { // the latest first
			marks = append(marks, e.mark)
		}
	}
	if err := a.streams.Wait(marks...); err != nil {
		return err
	}
	for i := range a.queues {
		a.passed(&a.queues[i], len(a.queues[i].events))
	}
	a.queues = a.queues[:0]
	return nil
}
