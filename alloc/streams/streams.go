// Package streams tells allocators whether the work on a piece of memory is done.
//
// A GPU works through queues, its streams. Memory that a program frees may still
// be read or written by work that was queued before the free. An allocator may
// hand such memory out again if it orders the new work after the old, and may
// unmap it only when the old work is done. Both need the same things: which
// streams there are, marks in them, and a way to wait. A [Tracker] has them for
// one pool.
//
// # Parts
//
//   - [Tracker] (streams.go): streams by number. A number is given out once: a
//     stream that is destroyed takes its number with it, even if the driver uses
//     the handle again.
//   - [Mark] (mark.go): a point in a stream. It has passed when all work queued
//     before it is done.
//   - Epochs (package alloc/internal/epochs): one number for "everything freed until
//     then", for allocators that unmap memory (elastic).
//   - [Guard] (guard.go, notes.go): orders streams where memory passes from one
//     to another, for allocators that reuse memory at once (bfc, elastic, vmm).
//
// # One stream, from its first block to its end
//
//	Number(h)     handle h gets number 3, and the identity of its stream is noted
//	Use(3)        a request names it: the number is valid, and it has a bit from now on
//	Mark(3)       a block of it is freed: an event is recorded, the stream's mark 1
//	Mark(3)       another one: mark 2
//	Passed(m2)    the event of mark 2 is queried. If it has passed, so has mark 1
//	Retire(h)     the program is about to destroy it: a last event is recorded, mark 3.
//	              Blocks that are freed later have that mark, and the number is
//	              refused from now on
//	Number(h)     the driver has given the handle to a new stream: that is number 4
//
// A program may destroy a stream without Retire, as CUDA allows. The identity of
// its handle is then another one, or none (Streams.StreamID). The stream is lost:
// what was queued in it may still run, and no event can show when it is done. The only
// call that waits for it is Synchronize. It is made outside the pool's lock, and only
// when the stream's memory is needed, or 64 streams were lost.
//
// # Waiting
//
// [Tracker.Wait] waits in place, which suits an owner without a lock, such as a
// replay. After [Tracker.Defer] it returns a [Pending] error instead. The
// operation that returns one has changed nothing that its owner could see. The
// owner unlocks, calls Pending.Wait, locks, calls Pending.Settle, and repeats the
// operation. So the pool's lock is never held during a wait for the GPU.
//
// An example: thread 1 allocates, and the only pages left may still be in use.
//
//	thread 1, locked     Alloc calls Wait(m), which shares m and returns a Pending
//	thread 1, unlocked   Pending.Wait: EventSynchronize
//	thread 2, locked     frees a block meanwhile, or even closes the tracker: m's event
//	                     lives on, for the Pending is one of m's users
//	thread 1, locked     Pending.Settle: m has passed, and its use ends. Alloc is repeated
//
// # Locks
//
// Nothing here is safe for concurrent use but Pending.Wait, which reads only what does
// not change while a mark has users. The pool's lock guards the rest. No lock is taken in
// this package; the device has its own.
package streams

import (
	"errors"
	"fmt"
	"slices"

	"gpumem/alloc"
	"gpumem/device"
)

// Tracker knows the streams of one pool and how far they are. A stream is
//
//	known     it has a number
//	in use    a request named it: it is in used and has a slot
//	ended     end is set, by Retire or because it is lost; its number is refused
//	dropped   it has ended and end has passed: nothing of it is left
type Tracker struct {
	dev  device.Streams
	open func(number uint32) (device.Stream, error) // resolves numbers that Number did not give; nil: none are valid
	one  bool                                       // every number is stream 0

	recent   *stream // of the last Use, which has not ended; nil: none
	byNumber map[uint32]*stream
	byHandle map[device.Stream]uint32 // of streams that have not ended
	next     uint32                   // the next number that Number gives; below it, a number that byNumber lacks has ended and passed
	used     []*stream                // that blocks were used in, in order of their first use; those that have ended, until their work is done
	lost     int                      // of used: destroyed without Retire, and not waited for yet
	slots    uint64                   // the slots that streams in used have; see Bit

	tidyAt int // how many streams there may be before those that have ended are looked for

	round    uint64 // of Look
	spare    []*Mark
	marks    int // in use
	deferred bool
	blind    bool // Wait does not query
	repeated bool // see Repeated
	closed   bool
}

// manyLost is how many destroyed streams are kept before the device is waited
// for: they can be forgotten only then. A program that creates and destroys a stream in
// each step so waits once in 64 steps.
const manyLost = 64

// stream is one of the device's. Marks in it are numbered from 1.
type stream struct {
	number uint32
	handle device.Stream
	id     uint64 // the device's, which no later stream has
	slot   int
	inUse  bool // it is in used
	joined bool // it waits for all that was freed while there was one stream; see Guard

	last   uint64 // number of the last mark
	passed uint64 // the marks up to this have passed
	round  uint64 // in this round
	busy   uint64 // the marks from this on had not passed
	end    *Mark  // after its last work; nil while it lives
}

// New makes a tracker whose numbers come from [Tracker.Number]. Number 0 is the
// device's stream 0.
func New(dev device.Streams) *Tracker { return Of(dev, nil) }

// Of makes a tracker that calls open once for each number that it does not
// know. Number 0 is open's to resolve, too. A nil open is New.
func Of(dev device.Streams, open func(number uint32) (device.Stream, error)) *Tracker {
	t := &Tracker{dev: dev, open: open, byNumber: map[uint32]*stream{}, byHandle: map[device.Stream]uint32{}}
	if open == nil {
		t.add(0, 0)
		t.next = 1
	}
	return t
}

// Single makes a tracker for which every number is stream 0.
func Single(dev device.Streams) *Tracker {
	t := New(dev)
	t.one = true
	return t
}

// Creating makes a tracker that creates a stream of the device for each number
// but 0. The streams end with the device.
func Creating(dev device.Streams) *Tracker {
	return Of(dev, func(n uint32) (device.Stream, error) {
		if n == 0 {
			return 0, nil
		}
		return dev.StreamCreate()
	})
}

// Deferred reports whether Wait returns a *Pending.
func (t *Tracker) Deferred() bool { return t.deferred }

// SetRepeated sets whether the operation that follows is the repetition of one
// that has waited.
func (t *Tracker) SetRepeated(on bool) { t.repeated = on }

// Repeated reports whether the operation has waited already, for what it would
// wait for now if the wait is for everything that is queued. Such a wait is made
// once: others may queue work all the time.
func (t *Tracker) Repeated() bool { return t.repeated }

// Defer makes Wait return a *Pending for its caller's owner to wait for. With
// deterministic Wait does not query whether the work happens to be done.
func (t *Tracker) Defer(deterministic bool) { t.deferred, t.blind = true, deterministic }

// add makes the stream of a handle known.
func (t *Tracker) add(number uint32, h device.Stream) *stream {
	s := &stream{number: number, handle: h}
	s.id, _ = t.dev.StreamID(h) // a handle that is no stream's is noticed at its first use
	t.byNumber[number] = s
	t.byHandle[h] = number
	return s
}

// Number returns the number of a stream of the device. A handle that the driver
// gives to a new stream gets a new number.
func (t *Tracker) Number(h device.Stream) uint32 {
	if n, ok := t.byHandle[h]; ok {
		s := t.byNumber[n]
		if !t.gone(s) {
			return n
		}
		t.lose(s)
	}
	t.tidy()
	n := t.next
	t.next++
	t.add(n, h)
	return n
}

// gone reports whether the program has destroyed a stream: its handle is another
// stream's now, or none's.
func (t *Tracker) gone(s *stream) bool {
	if s.handle == 0 {
		return false
	}
	id, err := t.dev.StreamID(s.handle)
	return err != nil || id != s.id
}

// lose ends a stream that the program has destroyed without Retire.
func (t *Tracker) lose(s *stream) {
	s.last++
	s.finish(t, &Mark{s: s, seq: s.last, users: 1, lost: true})
	if s.inUse {
		t.lost++
	} else { // nothing of the pool was ever used there
		delete(t.byNumber, s.number)
	}
}

// finish ends a stream whose last work is before m.
func (s *stream) finish(t *Tracker, m *Mark) {
	s.end = m
	t.recent = nil
	if t.byHandle[s.handle] == s.number {
		delete(t.byHandle, s.handle)
	}
}

// Use reports whether requests may name the number: nil, or an error that wraps
// alloc.ErrBadRequest, or that of the callback of Of. MarkAll includes the stream
// from now on.
func (t *Tracker) Use(number uint32) error {
	if s := t.recent; s != nil && s.number == number {
		return nil
	}
	_, err := t.use(number)
	return err
}

func (t *Tracker) use(number uint32) (*stream, error) {
	s, err := t.find(number)
	if err != nil {
		return nil, err
	}
	switch {
	case s == nil || s.end != nil:
		return nil, fmt.Errorf("%w: stream number %d: its stream was retired or destroyed; Pool.Stream gives the number of another", alloc.ErrBadRequest, number)
	case !s.inUse:
		if t.lost >= manyLost {
			if err := t.waitLost(); err != nil {
				return nil, err
			}
			t.tidyAt = 0 // all of them can be forgotten now
		}
		t.tidy()
		s.inUse = true
		for s.slot = 0; s.slot < 63 && t.slots&(1<<s.slot) != 0; s.slot++ {
		}
		t.slots |= 1 << s.slot
		t.used = append(t.used, s)
	}
	t.recent = s
	return s, nil
}

// find returns the stream of a number. It is nil if the stream has ended and its
// work is done: numbers are given in order, so that one below next was given once.
func (t *Tracker) find(number uint32) (*stream, error) {
	if t.one {
		number = 0
	}
	if s := t.recent; s != nil && s.number == number {
		return s, nil
	}
	if s := t.byNumber[number]; s != nil {
		return s, nil
	}
	if t.open == nil {
		if number < t.next {
			return nil, nil
		}
		return nil, fmt.Errorf("%w: stream number %d: no such stream; Pool.Stream gives numbers", alloc.ErrBadRequest, number)
	}
	h, err := t.open(number)
	if err != nil {
		return nil, err
	}
	return t.add(number, h), nil
}

// Handle returns the device's stream for a number; ok is false if the stream has
// ended, as far as can be known. Errors are those of Use.
func (t *Tracker) Handle(number uint32) (h device.Stream, ok bool, err error) {
	s, err := t.find(number)
	if err != nil || s == nil {
		return 0, false, err
	}
	if s.end == nil && t.gone(s) {
		t.lose(s)
	}
	return s.handle, s.end == nil, nil
}

// Gone reports whether err, of a call in the stream of that number, means that
// the program has destroyed the stream. It has ended then.
func (t *Tracker) Gone(number uint32, err error) bool {
	if err == nil || t.one {
		return false
	}
	s := t.byNumber[number]
	if s == nil || s.end != nil || !t.gone(s) {
		return false
	}
	t.lose(s)
	return true
}

// Bit returns the bit of a stream in sets of streams. No more streams share it
// than are alive at once beyond 63. It is another stream's when this one has
// ended and its work is done. Errors are those of Use.
func (t *Tracker) Bit(number uint32) (uint64, error) {
	s, err := t.use(number)
	if err != nil {
		return 0, err
	}
	return 1 << s.slot, nil
}

// Retire ends a stream that the program is about to destroy, or has destroyed.
// What was queued in it counts as before; requests can no longer name its number.
// A stream without a number is ignored. Stream 0 cannot end: alloc.ErrBadRequest.
func (t *Tracker) Retire(h device.Stream) error {
	if h == 0 {
		return fmt.Errorf("%w: retire stream 0: it always exists", alloc.ErrBadRequest)
	}
	n, ok := t.byHandle[h]
	if !ok {
		return nil
	}
	s := t.byNumber[n]
	if !s.inUse { // nothing of the pool was ever used there
		s.finish(t, nil)
		delete(t.byNumber, n)
		return nil
	}
	m, err := t.mark(s)
	if err != nil {
		return err
	}
	if s.end == nil {
		s.finish(t, m)
	} else {
		t.Release(m) // it was destroyed before
	}
	return nil
}

// fewStreams is how many streams are kept without a look at them.
const fewStreams = 16

// tidy drops the streams that have ended and whose work is done, and finds those
// that were destroyed without Retire. It looks when there are twice as many as
// were left the last time, so that each stream costs O(1). Their slots become free:
// vmm keeps sets of slots in its pending blocks, where the bit of a dropped stream then
// stands for the new one as well, so that one mark more is waited for and none less.
func (t *Tracker) tidy() {
	if len(t.byNumber) < max(t.tidyAt, fewStreams) {
		return
	}
	t.Look()
	for _, s := range t.byNumber {
		if s.end == nil && t.gone(s) {
			t.lose(s)
		}
	}
	t.used = slices.DeleteFunc(t.used, func(s *stream) bool {
		if s.end == nil || !t.Passed(s.end) {
			return false
		}
		t.drop(s)
		return true
	})
	t.slots = 0
	for _, s := range t.used {
		t.slots |= 1 << s.slot
	}
	t.tidyAt = 2 * len(t.byNumber)
}

// drop forgets a stream whose last work is done.
func (t *Tracker) drop(s *stream) {
	if s.end.lost {
		t.lost--
	}
	t.Release(s.end)
	delete(t.byNumber, s.number)
}

// waitLost waits for all lost streams, with one Synchronize.
func (t *Tracker) waitLost() error {
	var lost []*Mark
	for _, s := range t.used {
		if s.end != nil && s.end.lost {
			lost = append(lost, s.end)
		}
	}
	return t.Wait(lost...)
}

// Close destroys the events. Those that a Pending still has are destroyed when it
// is settled. The streams are the program's.
func (t *Tracker) Close() error {
	if t.closed {
		return nil
	}
	t.closed = true
	for _, s := range t.used {
		if s.end != nil {
			t.Release(s.end)
		}
	}
	var errs []error
	for _, m := range t.spare {
		errs = append(errs, t.dev.EventDestroy(m.event))
	}
	t.spare, t.used = nil, nil
	return errors.Join(errs...)
}
