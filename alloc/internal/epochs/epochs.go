// Package epochs reports when the work on freed memory is done, for an allocator that unmaps
// memory (elastic).
package epochs

import (
	"math"

	"gpumem/alloc/streams"
)

// maxEpochs is how many closed epochs are kept apart, each with a mark in every stream.
// More would only make it likelier that the oldest memory needs no wait.
const maxEpochs = 16

// Epochs tell when the work on freed memory is done, for an allocator that
// unmaps memory. To record an event at each free would cost more than the free.
// So time is cut into epochs: a free stamps the memory with the number of the
// open epoch and makes no driver call. When the driver is called for pages anyway, the
// epoch is closed by a mark in every stream in use. When these have passed, all
// work is done that was queued before anything in that epoch was freed, and
// before anything in the epochs before.
//
// Memory that is used in several streams needs no record of them: an epoch is over
// when all streams have got that far.
//
// Three frees, with streams 0 and 1 in use:
//
//	free A       stamped 1
//	free B       stamped 1
//	Close        pages are mapped: marks in streams 0 and 1 close epoch 1; 2 is open
//	free C       stamped 2
//	Passed(1)    both marks are queried. If they have passed, A and B may be unmapped
//	Passed(2)    false: epoch 2 is open, and nothing marks the end of C's work
//	Wait(2)      closes epoch 2 with two more marks, and waits for these
//
// The safety of all this is one comparison: memory stamped n is unmapped only if n <= past.
// Stamps must therefore never be too small. Where two pieces of memory are joined, the
// larger stamp is kept; where numbers run out, all stamps become 1 and nothing is past.
type Epochs struct {
	t *streams.Tracker
	// Deterministic never queries whether an epoch happens to be over: Passed
	// reports what earlier waits showed.
	deterministic bool
	renumber      func()

	now    uint32 // number of the open epoch
	dirty  bool   // something was freed in it
	past   uint32 // all up to this epoch is over
	closed []epoch
	unused [][]*streams.Mark // slices for marks
}

// epoch is a closed one.
type epoch struct {
	number uint32
	marks  []*streams.Mark
}

// New begins with epoch 1. Deterministic epochs are never queried, so that
// runs repeat. When the numbers run out renumber is called, to replace every
// stamp by 1.
func New(t *streams.Tracker, deterministic bool, renumber func()) Epochs {
	return Epochs{t: t, deterministic: deterministic, renumber: renumber, now: 1}
}

// Stamp returns the number of the open epoch for memory that is freed now.
func (e *Epochs) Stamp() uint32 {
	e.dirty = true
	return e.now
}

// Now returns the number of the open epoch. No stamp is larger.
func (e *Epochs) Now() uint32 { return e.now }

// SkipTo makes it as if all epochs before n had been closed and are over. It is
// for tests of what happens when the numbers run out.
func (e *Epochs) SkipTo(n uint32) {
	e.forget(0, len(e.closed))
	e.now, e.past = n, n-1
}

// Close closes the open epoch if memory was freed in it. If the device fails it
// stays open.
func (e *Epochs) Close() error {
	if !e.dirty {
		return nil
	}
	var marks []*streams.Mark
	if n := len(e.unused); n > 0 {
		marks = e.unused[n-1]
		e.unused = e.unused[:n-1]
	}
	marks, err := e.t.MarkAll(marks, math.MaxUint64)
	if err != nil {
		e.unused = append(e.unused, marks)
		return err
	}
	if n := len(e.closed); n == maxEpochs {
		// The new marks stand for both epochs then: what was stamped with the newest
		// one's number waits a little longer than it must.
		e.forget(n-1, n)
	}
	e.closed = append(e.closed, epoch{e.now, marks})
	e.dirty = false
	if e.now++; e.now == math.MaxUint32 {
		// All begins again in epoch 1, which is open: nothing is known of any.
		e.forget(0, len(e.closed))
		e.now, e.past, e.dirty = 1, 0, true
		e.renumber()
	}
	return nil
}

// Passed reports whether an epoch is known to be over.
func (e *Epochs) Passed(number uint32) bool {
	if number <= e.past {
		return true
	}
	if e.deterministic {
		return false
	}
	e.t.Look()
	for len(e.closed) > 0 && e.past < number {
		for _, m := range e.closed[0].marks {
			if !e.t.Passed(m) {
				return false
			}
		}
		e.past = e.closed[0].number
		e.forget(0, 1)
	}
	return number <= e.past
}

// Wait waits until an epoch is over, as streams.Tracker.Wait does: it may return a
// *Pending. It closes the epoch if that is the open one.
func (e *Epochs) Wait(number uint32) error {
	for number >= e.now {
		e.dirty = true
		before := e.now
		if err := e.Close(); err != nil {
			return err
		}
		if e.now < before {
			number = 1
		}
	}
	if number <= e.past {
		return nil
	}
	for i, c := range e.closed {
		if c.number < number {
			continue
		}
		if err := e.t.Wait(c.marks...); err != nil {
			return err
		}
		e.past = c.number
		e.forget(0, i+1)
		break
	}
	return nil
}

// forget drops closed epochs [from, to).
func (e *Epochs) forget(from, to int) {
	for _, c := range e.closed[from:to] {
		e.t.Release(c.marks...)
		e.unused = append(e.unused, c.marks[:0])
	}
	e.closed = append(e.closed[:from], e.closed[to:]...)
}

// End releases all marks. The epochs are not used afterwards.
func (e *Epochs) End() { e.forget(0, len(e.closed)) }
