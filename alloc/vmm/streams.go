// This file knows the streams and what work in them is done.
//
// A set of streams is the bits of a word: bit i is the stream whose number was
// seen i-th. From the 64th on they share the last bit, and are marked and waited
// for together, which is never too little.

package vmm

import "gpumem/device"

// streams are those that blocks were used in.
type streams struct {
	byNumber map[uint32]int // of those in list
	list     []device.Stream
	spare    []device.Event // to be recorded again

	last    uint32 // number that was asked for last
	lastBit uint64 // its bit; 0: none was
}

// bitOf is the bit of the i-th stream.
func bitOf(i int) uint64 { return 1 << min(i, 63) }

// stream is the bit of the stream with that number. A program that stays in one
// stream pays a comparison.
func (a *Allocator) stream(number uint32) (uint64, error) {
	s := &a.streams
	if a.cfg.StreamOf == nil {
		number = 0
	}
	if s.lastBit != 0 && s.last == number {
		return s.lastBit, nil
	}
	i, ok := s.byNumber[number]
	if !ok {
		var handle device.Stream
		if a.cfg.StreamOf != nil {
			var err error
			if handle, err = a.cfg.StreamOf(number); err != nil {
				return 0, err
			}
		}
		if s.byNumber == nil {
			s.byNumber = map[uint32]int{}
		}
		i = len(s.list)
		s.list = append(s.list, handle)
		s.byNumber[number] = i
	}
	s.last, s.lastBit = number, bitOf(i)
	return s.lastBit, nil
}

// closeBatch marks the end of the work on the open batch's blocks, which is
// queued by now. If the device fails the batch stays open.
func (a *Allocator) closeBatch() error {
	q := &a.pending
	if q.open == 0 {
		return nil
	}
	b := &q.batches[q.open]
	b.streams = 0
	for h := q.tail; h != 0 && a.more[h].batch == q.open; h = a.store.At(h).Prev {
		b.streams |= a.more[h].streams
	}
	for i, s := range a.streams.list {
		if b.streams&bitOf(i) == 0 {
			continue
		}
		e, err := a.event()
		if err == nil {
			b.marks = append(b.marks, mark{e, bitOf(i)})
			err = a.dev.EventRecord(e, s)
		}
		if err != nil {
			a.spare(b)
			return err
		}
	}
	q.open = 0
	return nil
}

// event is one that may be recorded.
func (a *Allocator) event() (device.Event, error) {
	s := &a.streams
	if n := len(s.spare); n > 0 {
		e := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return e, nil
	}
	return a.dev.EventCreate()
}

// spare takes a batch's marks away.
func (a *Allocator) spare(b *batch) {
	for _, m := range b.marks {
		a.streams.spare = append(a.streams.spare, m.event)
	}
	b.marks = b.marks[:0]
}

// finish says that the work on a closed batch's blocks is done.
func (a *Allocator) finish(b *batch) {
	b.done = true
	a.spare(b)
}

// poll finds out which closed batches are done, without waiting. A mark that has
// not passed stands for the later ones in its stream.
func (a *Allocator) poll() error {
	q := &a.pending
	var running uint64
	for i := q.oldest; i != 0 && i != q.open; i = q.batches[i].newer {
		b := &q.batches[i]
		done := true
		for _, m := range b.marks {
			if running&m.bit == 0 {
				passed, err := a.dev.EventQuery(m.event)
				if err != nil {
					return err
				}
				if !passed {
					running |= m.bit
				}
			}
			done = done && running&m.bit == 0
		}
		if done {
			a.finish(b)
		}
	}
	return nil
}

// wait closes the open batch and waits for the batches that are wanted. A mark
// that has passed stands for the earlier ones in its stream, so in a program of
// one stream this is one wait.
func (a *Allocator) wait() error {
	q := &a.pending
	err := a.closeBatch()
	var passed uint64
	for i := q.newest; i != 0; i = q.batches[i].older {
		b := &q.batches[i]
		if !b.wanted {
			continue
		}
		b.wanted = false
		for _, m := range b.marks {
			if err == nil && passed&m.bit == 0 {
				err = a.dev.EventSynchronize(m.event)
			}
		}
		if err == nil {
			passed |= b.streams
			a.finish(b)
		}
	}
	return err
}

// destroyEvents gives all events back. The streams are their owner's.
func (a *Allocator) destroyEvents() (errs []error) {
	q := &a.pending
	for i := q.oldest; i != 0; i = q.batches[i].newer {
		a.spare(&q.batches[i])
	}
	for _, e := range a.streams.spare {
		if err := a.dev.EventDestroy(e); err != nil {
			errs = append(errs, err)
		}
	}
	a.streams = streams{}
	return errs
}
