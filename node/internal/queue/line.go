// Package queue has the order in which requests for a GPU are served: their tickets, and the
// wait for those before one. Package registry has the files of the tickets, and package share
// says what the order is.
package queue

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"gpumem/node/internal/registry"
)

const (
	// Poll is how long the next waiter sleeps between readings. Nothing announces
	// that memory of programs without a lease becomes free.
	Poll = 25 * time.Millisecond
	// shortWait is how long a request that does not wait gives the one before it to be
	// decided, and so much more for each that is before that one.
	shortWait      = 50 * time.Millisecond
	shortWaitPlace = time.Millisecond
	// A waiter's place is read again after refresh, and the later the longer the
	// queue is: all places of n waiters together cost n log n names a second.
	refresh      = time.Second
	refreshPlace = 100 * time.Millisecond // for each place
)

// Line has the tickets of one request, one for each of its GPUs.
type Line struct {
	Tickets []*Ticket
	woken   chan bool // has a value when a wait for a ticket has ended
}

// NewLine returns the tickets of a request for some GPUs. None is taken yet.
func NewLine(gpus []registry.GPU) *Line {
	l := &Line{woken: make(chan bool, 1)}
	wants := map[string]bool{}
	for _, g := range gpus {
		wants[g.Key] = true
		l.Tickets = append(l.Tickets, &Ticket{gpu: g, wants: wants})
	}
	return l
}

// Take takes a ticket on each GPU where the request has none yet, and notes on each whether
// the request was next and short of memory, and what it waits for on other GPUs. record
// returns the record of a new ticket. Caller holds the locks of all GPUs.
func (l *Line) Take(turns []Turn, short bool, record func(i int) registry.Record) error {
	for i, t := range l.Tickets {
		var waitsFor []string
		for j, other := range turns {
			if other.Before != nil && j != i {
				waitsFor = append(waitsFor, l.Tickets[j].gpu.Key+"."+other.Before.ID)
			}
		}
		if t.file != nil {
			if err := t.note(short, waitsFor); err != nil {
				return err
			}
			continue
		}
		rec := record(i)
		rec.Waiting, rec.WaitsFor = short, waitsFor
		if err := t.take(turns[i], rec); err != nil {
			return err
		}
	}
	return nil
}

// Leave leaves all queues.
func (l *Line) Leave() {
	for _, t := range l.Tickets {
		t.leave()
	}
}

// Touch shows that the waiter is alive.
func (l *Line) Touch() {
	for _, t := range l.Tickets {
		t.touch()
	}
}

// DropLost drops tickets that somebody has removed. One request for one GPU makes its
// ticket again, with its number. Others take all of theirs again, so that they are
// behind the same requests on all GPUs. Caller holds the locks of all GPUs.
func (l *Line) DropLost() {
	lost := false
	for _, t := range l.Tickets {
		if t.file != nil && !t.isStanding() {
			t.drop()
			lost = true
		}
	}
	if lost && len(l.Tickets) > 1 {
		for _, t := range l.Tickets {
			t.leave()
			t.number = 0
		}
	}
}

// Pause waits until the next pass is worth while: for the waiter before this request, or
// for a while where it is next on all GPUs. report is called with a ticket's place as it
// changes. It is nil for a request that does not wait, which is refused as soon as one
// before it is found to wait for memory.
func (l *Line) Pause(ctx context.Context, turns []Turn, while time.Duration, report func(i, place int)) error {
	w := &wait{Line: l, report: report}
	defer w.leave()
	err := w.watchBefore(turns)
	switch {
	case errors.Is(err, fs.ErrNotExist): // one before it has left the queue
	case err != nil: // such as no descriptor for a moment: it is looked at again later
		sleep(ctx, Poll)
	case len(w.watched) == 0:
		l.Touch()
		sleep(ctx, while)
	case report == nil:
		w.untilDecided(ctx)
	default:
		return w.untilServed(ctx)
	}
	return nil
}

// wait is one wait for the waiters before a request.
type wait struct {
	*Line
	watched []watched
	report  func(i, place int)
	longest int // the last place of the tickets
}

// watched is a waiter that holds a ticket up.
type watched struct {
	*watch
	t  *Ticket
	by registry.Claim
}

// watchBefore watches the waiters that hold the request up.
func (w *wait) watchBefore(turns []Turn) error {
	for i, turn := range turns {
		w.longest = max(w.longest, turn.Place)
		if turn.Before == nil {
			continue
		}
		one, err := watchTicket(*turn.Before, w.woken)
		if err != nil {
			return err
		}
		w.watched = append(w.watched, watched{one, w.Tickets[i], *turn.Before})
	}
	return nil
}

// leave ends the watches.
func (w *wait) leave() {
	for _, one := range w.watched {
		one.leave(w.woken)
	}
}

// isOver reports whether one of the waiters has left its queue.
func (w *wait) isOver() bool {
	return slices.ContainsFunc(w.watched, func(one watched) bool { return one.isOver() })
}

// untilDecided waits for a moment that depends on the number of waiters.
func (w *wait) untilDecided(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, shortWait+time.Duration(w.longest)*shortWaitPlace)
	defer cancel()
	for ctx.Err() == nil && !w.isOver() {
		select {
		case <-ctx.Done():
		case <-w.woken:
		}
	}
	w.Touch()
}

// untilServed waits until a waiter has left its queue, or something is not as it was.
func (w *wait) untilServed(ctx context.Context) error {
	beat := time.NewTicker(beats())
	defer beat.Stop()
	places := time.NewTimer(w.untilRefresh())
	defer places.Stop()

	for !w.isOver() {
		select {
		case <-ctx.Done():
			return nil
		case <-w.woken:
		case <-beat.C:
			w.Touch()
			if !w.isHeldUp() {
				return nil
			}
		case <-places.C:
			if err := w.reportPlaces(); err != nil {
				return err
			}
			places.Reset(w.untilRefresh())
		}
	}
	return nil
}

// untilRefresh returns when the places are read again.
func (w *wait) untilRefresh() time.Duration {
	return max(refresh, time.Duration(w.longest)*refreshPlace)
}

// reportPlaces reads the places of the tickets.
func (w *wait) reportPlaces() error {
	w.longest = 0
	for i, t := range w.Tickets {
		ids, err := t.gpu.Tickets()
		if err != nil {
			return err
		}
		place, _ := slices.BinarySearch(ids, t.rec.ID)
		w.report(i, place)
		w.longest = max(w.longest, place)
	}
	return nil
}

// isHeldUp reports whether all tickets of the request are still there, and the watched
// waiters still hold it up.
func (w *wait) isHeldUp() bool {
	for _, t := range w.Tickets {
		if !t.isStanding() {
			return false
		}
	}
	for _, one := range w.watched {
		by, err := registry.ReadOpenTicket(one.f, one.by)
		if err != nil || !one.t.gpu.IsRunning(by) || one.t.mayPass(by.Record) {
			return false
		}
	}
	return true
}

// sleep waits for a while, or until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
