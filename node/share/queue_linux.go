// The queue of a GPU: tickets, and the wait for those before one.

package share

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// A waiter's place is read again after refresh, and the later the longer the
	// queue is: all places of n waiters together cost n log n names a second.
	refresh      = time.Second
	refreshPlace = 100 * time.Millisecond // for each place
)

// beats returns how often a waiter shows that it is alive, and checks the one that it
// waits for.
func beats() time.Duration { return silence / 2 }

// place is a request's place in the queue of one GPU.
type place struct {
	ticket *os.File // nil: none
	number uint64   // that the request has or had; 0: none yet
	rec    record   // of the ticket
	beat   time.Time
}

// queueState describes the tickets before a request.
type queueState struct {
	place  int    // tickets before it
	before *claim // the nearest that holds this one up; nil: none
	waits  bool   // the first of those has found too little memory
	first  []Entry
}

// queueOf reads the tickets before this request's: the first ones, for messages,
// and the nearest ones until one holds this one up. It removes those of the dead
// that it comes across.
func (b *bid) queueOf(l contents) (q queueState) {
	ahead := l.tickets
	if b.number > 0 {
		n, _ := slices.BinarySearch(ahead, ticketID(b.number))
		ahead = ahead[:n]
	}
	q.place = len(ahead)
	read := map[string]*claim{}
	get := func(id string) *claim {
		if t, ok := read[id]; ok {
			return t
		}
		t, err := b.r.readTicket(b.key, id)
		if err == nil {
			read[id] = &t
			return &t
		}
		if errors.Is(err, errDead) {
			_ = os.Remove(b.r.path(b.key, id, ticketKind))
			at("look: a dead ticket removed")
		}
		read[id] = nil
		q.place--
		return nil
	}
	passing := map[string]bool{} // of those that were read
	for _, id := range slices.Backward(ahead) {
		t := get(id)
		if t == nil {
			continue
		}
		if passing[id] = b.mayPass(t.record); !passing[id] && b.r.running(*t) {
			q.before = t
			break
		}
	}
	known := q.before == nil // the first of those is looked up below
	if known {               // those that let it pass are not before it
		all := len(ahead)
		ahead = slices.DeleteFunc(slices.Clone(ahead), func(id string) bool { return passing[id] })
		q.place -= all - len(ahead)
	}
	for _, id := range ahead {
		if known && len(q.first) >= shown {
			break
		}
		t := get(id)
		if t == nil {
			continue
		}
		if !known && b.heldUpBy(*t) {
			known, q.waits = true, t.Waiting
		}
		if len(q.first) < shown {
			e := b.r.entry(*t)
			e.Place = len(q.first)
			q.first = append(q.first, e)
		}
	}
	return q
}

func ticketID(number uint64) string { return fmt.Sprintf("%016x", number) }

// numberOf returns the number that a ticket's name has; ok is false if it is no
// name of a ticket.
func numberOf(id string) (n uint64, ok bool) {
	n, err := strconv.ParseUint(id, 16, 64)
	return n, err == nil && n > 0 && id == ticketID(n)
}

// farthest is how far a ticket's number may be from the one before it. Numbers count up
// by one and begin again when the queue is empty, so honest ones are near.
const farthest = 1 << 40

// ticketsAmong returns the tickets among names in order. Other names are left out, and
// numbers beyond a gap that counting does not leave: so no file of another user,
// locked or not, makes the numbers run out.
func ticketsAmong(ids []string) []string {
	last := uint64(0)
	return slices.DeleteFunc(ids, func(id string) bool {
		n, ok := numberOf(id)
		if !ok || n-last > farthest {
			return true
		}
		last = n
		return false
	})
}

// queue takes a ticket if there is none yet, and notes on it whether the request was
// next and short of memory, and the tickets on other GPUs that it waits for. Caller
// holds the locks of all GPUs of the request. before is the waiter that holds it up.
func (b *bid) queue(tickets []string, before *claim, waiting bool, waitsFor []string) error {
	if b.ticket != nil {
		waiting = waiting || b.rec.Waiting
		if waiting == b.rec.Waiting && slices.Equal(waitsFor, b.rec.WaitsFor) {
			return nil
		}
		b.rec.Waiting, b.rec.WaitsFor = waiting, waitsFor
		_, err := b.ticket.WriteAt(b.rec.encode(), 0)
		at("queue: noted")
		if err != nil {
			return b.r.why(b.path(), err)
		}
		return nil
	}
	if _, taken := slices.BinarySearch(tickets, ticketID(b.number)); b.number == 0 || taken {
		b.number = b.r.lastNumber(b.key, tickets) + 1
		if before != nil && b.number <= before.Number {
			// The last waiter has left since it was read. With its number, and the inode
			// that the file system gives again, this request would wait for itself.
			b.number = before.Number + 1
		}
	}
	for {
		b.rec = b.record(ticketKind, ticketID(b.number), times(b.each, b.q.Copies))
		b.rec.Number, b.rec.Waiting, b.rec.WaitsFor = b.number, waiting, waitsFor
		f, err := b.r.publish(b.path(), 0o644, func(f *os.File) error {
			if _, err := f.WriteAt(b.rec.encode(), 0); err != nil {
				return err
			}
			return setLock(f)
		})
		switch {
		case err == nil:
			b.ticket, b.beat = f, time.Now()
			return nil
		case !errors.Is(err, fs.ErrExist):
			return b.r.why(b.path(), err)
		}
		b.number++ // the name is that of a dead file of another user, who alone can remove it
	}
}

// lastNumber returns the highest number of a waiter, or 0 if there is none.
func (r *Registry) lastNumber(key string, tickets []string) uint64 {
	for _, id := range slices.Backward(tickets) {
		if _, err := r.readTicket(key, id); err == nil {
			n, _ := numberOf(id)
			return n
		}
	}
	return 0
}

// path is the ticket's name.
func (b *bid) path() string { return b.r.path(b.key, b.rec.ID, ticketKind) }

// leave leaves the queue.
func (b *bid) leave() {
	if b.ticket == nil {
		return
	}
	if b.stands() { // else the name may be another's by now
		os.Remove(b.path())
	}
	at("leave: removed")
	b.drop()
}

// stands reports whether the ticket's name is still that of its file.
func (b *bid) stands() bool {
	mine, err := b.ticket.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(b.path())
	return err == nil && os.SameFile(mine, named)
}

// drop closes the ticket, which wakes the waiter behind it.
func (b *bid) drop() {
	unsetLock(b.ticket)
	b.ticket.Close()
	b.ticket = nil
}

// touch shows that the waiter is alive.
func (b *bid) touch() {
	if now := time.Now(); b.ticket != nil && now.Sub(b.beat) >= beats()/2 {
		// If the file is gone the next pass makes it again.
		_ = os.Chtimes(b.path(), time.Time{}, now)
		b.beat = now
	}
}

// watch is a wait in the kernel for a ticket's owner to leave the queue. All requests
// of this process that wait for one ticket share it, and the thread that it takes.
type watch struct {
	f     *os.File
	gone  chan struct{} // closed when the ticket's lock is gone
	woken map[chan<- bool]bool
}

// watches are the waits of this process by device and inode of the ticket's file, which
// is open, so its inode is no other file's. The mutex guards their woken, too.
var watches = struct {
	sync.Mutex
	of map[fileID]*watch
}{of: map[fileID]*watch{}}

type fileID struct{ dev, inode uint64 }

func idOf(info fs.FileInfo) fileID {
	st := info.Sys().(*syscall.Stat_t)
	return fileID{uint64(st.Dev), st.Ino}
}

// over reports whether the wait has ended.
func (w *watch) over() bool {
	select {
	case <-w.gone:
		return true
	default:
		return false
	}
}

// watchTicket returns the wait for a ticket. The error is that of a ticket that is gone.
// The wait ends only when the ticket's owner leaves the queue, for whatever reason.
// woken, a channel with room for one value, then has one, unless [watch.leave] came
// before.
func watchTicket(t claim, woken chan<- bool) (*watch, error) {
	f, err := os.OpenFile(t.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && inodeOf(info) != t.inode {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	id := idOf(info)
	watches.Lock()
	defer watches.Unlock()
	if w := watches.of[id]; w != nil {
		f.Close()
		w.woken[woken] = true
		return w, nil
	}
	w := &watch{f, make(chan struct{}), map[chan<- bool]bool{woken: true}}
	watches.of[id] = w
	go func() {
		// A lock for reading: the ticket is another user's. It is dropped at once.
		_ = fcntl(f, ofdSetlkw, &syscall.Flock_t{Type: syscall.F_RDLCK})
		watches.Lock()
		defer watches.Unlock()
		delete(watches.of, id)
		close(w.gone)
		f.Close()
		for c := range w.woken {
			select {
			case c <- true:
			default:
			}
		}
	}()
	return w, nil
}

// leave ends the wait of one request.
func (w *watch) leave(woken chan<- bool) {
	watches.Lock()
	defer watches.Unlock()
	delete(w.woken, woken)
}

// pause waits until the next pass is worth while: for the waiter before this request.
func (a *acquisition) pause(ctx context.Context, steps []step) error {
	type waitFor struct {
		*watch
		by *bid
		t  claim
	}
	var watched []waitFor
	defer func() {
		for _, w := range watched {
			w.leave(a.woken)
		}
	}()
	longest, pause := 0, poll
	for i, s := range steps {
		pause, longest = max(pause, s.pause), max(longest, s.place)
		if s.before == nil {
			continue
		}
		w, err := watchTicket(*s.before, a.woken)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has left the queue
		}
		if err != nil { // such as no descriptor for a moment: it is looked at again later
			sleep(ctx, poll)
			return nil
		}
		watched = append(watched, waitFor{w, a.bids[i], *s.before})
	}
	if watched == nil {
		a.touch()
		sleep(ctx, pause)
		return nil
	}
	over := func() bool { return slices.ContainsFunc(watched, func(w waitFor) bool { return w.over() }) }
	if a.bids[0].q.Wait == nil {
		// It is refused as soon as one before it is found to wait for memory.
		ctx, cancel := context.WithTimeout(ctx, apart+time.Duration(longest)*time.Millisecond)
		defer cancel()
		for ctx.Err() == nil && !over() {
			select {
			case <-ctx.Done():
			case <-a.woken:
			}
		}
		a.touch()
		return nil
	}
	beat := time.NewTicker(beats())
	defer beat.Stop()
	again := func() time.Duration { return max(refresh, time.Duration(longest)*refreshPlace) }
	fresh := time.NewTimer(again())
	defer fresh.Stop()
	for !over() {
		select {
		case <-ctx.Done():
			return nil
		case <-a.woken:
		case <-beat.C:
			a.touch()
			for _, b := range a.bids {
				if !b.stands() {
					return nil
				}
			}
			for _, w := range watched {
				if !w.by.heldUpStillBy(w.watch, w.t) {
					return nil
				}
			}
		case <-fresh.C:
			longest = 0
			for _, b := range a.bids {
				files, err := a.r.files(b.key)
				if err != nil {
					return err
				}
				place, _ := slices.BinarySearch(files[b.key][ticketKind], b.rec.ID)
				b.report(place)
				longest = max(longest, place)
			}
			fresh.Reset(again())
		}
	}
	return nil
}

// heldUpBy reports whether the request has to wait for a waiter before it.
func (b *bid) heldUpBy(t claim) bool { return !b.mayPass(t.record) && b.r.running(t) }

// mayPass reports whether a waiter waits for a ticket on a GPU that this request does
// not want, so that this one may go before it.
func (b *bid) mayPass(t record) bool {
	return slices.ContainsFunc(t.WaitsFor, func(name string) bool {
		key, id, ok := strings.Cut(name, ".")
		if _, number := numberOf(id); !ok || !number || strings.ContainsRune(key, '/') || b.a.wants[key] {
			return false
		}
		_, err := b.r.readTicket(key, id)
		return err == nil
	})
}

// heldUpStillBy is heldUpBy for a watched waiter, read again.
func (b *bid) heldUpStillBy(w *watch, t claim) bool {
	info, err := w.f.Stat()
	if err != nil {
		return false
	}
	if t.beat = info.ModTime(); !b.r.running(t) {
		return false
	}
	file := make([]byte, fileSize)
	n, _ := w.f.ReadAt(file, 0)
	rec, err := decode(file[:n])
	return err != nil || !b.mayPass(rec) // what cannot be read of a waiter holds others up
}
