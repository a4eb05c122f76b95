// Requests: from the first look to leases. One pass:
//
//	lock the GPU
//	read the leases and the names of the tickets, remove those of the dead
//	a waiter before this one is awake: take a ticket, wait for that one to leave
//	ask the GPU how it stands
//	not settled: take a ticket, look again in 50 ms
//	there is room: make the leases, remove the ticket
//	no room: that is the answer; or take a ticket, look again later
//	unlock
//
// A request that finds nobody before it, nothing moving and room makes one pass
// and no ticket. One that waits and is not next waits in the kernel, for the lock
// on the nearest ticket before its own whose owner is awake; so only the next one
// looks, and each end of a wait wakes one process.

package share

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strconv"
	"syscall"
	"time"

	"gpumem/device"
)

const (
	// apart is how long lies between two looks that must agree, and settling is
	// how long this goes on at most.
	apart    = 50 * time.Millisecond
	settling = 2 * time.Second
	// poll is how long the next one sleeps between looks. Memory of programs
	// without a lease becomes free without a sign, so that it has to look.
	poll = 25 * time.Millisecond
	// A waiter's place is read again after refresh, and the later the longer the
	// queue is: all places of n waiters together cost n log n names a second.
	refresh      = time.Second
	refreshPlace = 100 * time.Millisecond // for each place
)

// beats is how often a waiter shows that it is alive, and looks whether the one
// that it waits for is.
func beats() time.Duration { return asleep / 2 }

// Acquire takes the leases that are asked for, all or none. A refusal is a
// *[NoRoomError]. With Wait it waits for its turn and for room until ctx is done,
// which then is a *NoRoomError too, that wraps ctx's error; but what would not
// fit if nobody else used the GPU is refused at once. Without Wait it takes at
// most 2 s, plus as much for each that came before and is being decided.
//
// A caller that takes leases on several GPUs takes them in the order of their
// keys, or two may wait for each other.
//
// A wait that is given up may leave a thread of this process in the kernel until
// the waiter before it has left the queue.
func (r *Registry) Acquire(ctx context.Context, q Request) ([]*Lease, error) {
	q, err := q.checked()
	if err != nil {
		return nil, err
	}
	if q.Nested {
		e, ok, err := r.Enclosing(q.Device)
		if err != nil {
			return nil, err
		}
		if ok {
			return r.parts(q, e)
		}
	}
	a := &attempt{r: r, q: q, key: keyOf(q.Device), begun: time.Now()}
	defer a.leave()
	for {
		if err := ctx.Err(); err != nil {
			return nil, a.stopped(err)
		}
		s, err := a.pass(ctx)
		if err != nil && err == ctx.Err() {
			err = a.stopped(err)
		}
		if err != nil {
			return nil, err
		}
		if s.leases != nil {
			return s.leases, nil
		}
		if s.no {
			return nil, a.refused()
		}
		a.report(s.place)
		if err := a.pause(ctx, s); err != nil {
			return nil, err
		}
	}
}

// parts are parts of an enclosing lease: nothing is taken.
func (r *Registry) parts(q Request, e Entry) ([]*Lease, error) {
	most := e.Bytes
	if part, ok := q.Parts[e.ID]; ok {
		most = min(most, part)
	}
	each := most / uint64(q.Copies)
	switch {
	case q.Bytes != 0:
		each = q.Bytes
	case q.Share != 0:
		each = min(uint64(q.Share*float64(most)), most)
	}
	if want := times(each, q.Copies); want > most {
		return nil, &NoRoomError{Device: q.Device, Want: want, Copies: q.Copies, Free: most, Inside: &e}
	}
	var leases []*Lease
	for range q.Copies {
		leases = append(leases, &Lease{r: r, key: keyOf(q.Device), within: e.Bytes, rec: record{Kind: leaseKind, ID: e.ID, Device: e.Device, Bytes: each}})
	}
	return leases, nil
}

// stopped is the error of a request whose context is done.
func (a *attempt) stopped(err error) error {
	if a.why == nil {
		return fmt.Errorf("share: %s was not asked for memory: %w", a.q.Device, err)
	}
	a.why.Waited, a.why.After = err, time.Since(a.begun)
	return a.refused()
}

// refused is the refusal as of the last look, with the processes that hold leases
// of ended ones.
func (a *attempt) refused() error {
	findHolders(a.why.Holders)
	return a.why
}

// report calls Wait if there is news.
func (a *attempt) report(place int) {
	p := Position{place, a.missing, a.why}
	if a.q.Wait == nil || p.Place == 0 && p.Missing == 0 && (a.why == nil || a.why.Blocked == nil) {
		return
	}
	if t := a.reported; t == nil || t.Place != p.Place || t.Missing != p.Missing || (t.Why.Blocked == nil) != (p.Why.Blocked == nil) || !reflect.DeepEqual(t.Why.Holders, p.Why.Holders) {
		a.reported = &p
		a.q.Wait(p)
	}
}

// attempt is a request under way.
type attempt struct {
	r   *Registry
	q   Request
	key string

	begun time.Time

	// As of the last look at the GPU.
	why     *NoRoomError // nil: not yet looked at
	each    uint64
	missing uint64

	reported *Position

	ticket  *os.File // nil: none
	number  uint64   // that the request has or had; 0: none yet
	rec     record   // of the ticket
	beat    time.Time
	watches []*watch

	settle settle
}

// step is the outcome of a pass. Neither leases nor no: look again.
type step struct {
	leases []*Lease
	no     bool
	place  int
	before *found // the nearest waiter before this one that is awake; nil: this one is next
	pause  time.Duration
}

// pass makes one, under the lock of the GPU.
func (a *attempt) pass(ctx context.Context) (step, error) {
	g, err := a.r.lock(ctx, a.key, a.touch)
	if err != nil {
		return step{}, err
	}
	defer g.unlock()
	l, blocked := a.r.look(g, a.key)
	if blocked != nil && (a.q.Wait == nil || !errors.Is(blocked, ErrVersion)) {
		return step{}, blocked
	}
	if _, ok := slices.BinarySearch(l.tickets, a.rec.ID); a.ticket != nil && !ok {
		a.drop() // somebody removed it; it is made again, with its number
	}
	q := a.queueOf(l)
	s := step{place: q.place, before: q.before, pause: poll}
	if q.before != nil && a.q.Wait != nil && a.why != nil {
		a.settle = settle{}
		return s, a.queue(l, false)
	}
	if blocked != nil {
		a.why = &NoRoomError{Device: a.q.Device, Want: times(a.q.Bytes, a.q.Copies), Copies: a.q.Copies, Ahead: q.first, Before: q.place, Blocked: blocked}
		a.missing = 0
		return s, a.queue(l, true)
	}

	st, err := a.q.Meter.Status()
	if err != nil {
		return step{}, fmt.Errorf("how %s stands: %w", a.q.Device, err)
	}
	leases := l.leases
	var f figures
	var fam *family
	fits := false
	reckon := func() (err error) {
		a.r.identify(leases)
		fam = newFamily(readStat, records(leases), a.r.namespace)
		if f, err = count(st, records(leases), a.q.Reserve, fam.owner); err != nil {
			return fmt.Errorf("%s: %w", a.q.Device, err)
		}
		a.each, fits = a.q.want(f)
		return nil
	}
	err = reckon()
	if err == nil && fits { // the table is long on a busy machine: it is read last
		if lost := a.r.lost(a.key, leases); len(lost) > 0 {
			leases = append(leases, lost...)
			err = reckon()
		}
	}
	if err != nil {
		return step{}, err
	}
	a.why = a.noRoom(st, f, leases, q)
	a.missing = less(a.why.Want, f.left())
	if fits {
		a.missing = 0
	}
	recent, ending := g.recent() || movement(leases, f, fam), a.r.ending(leases)
	switch {
	case a.why.Never, s.before != nil && q.waits && a.q.Wait == nil:
		s.no = true
		return s, nil
	case s.before != nil:
		a.settle = settle{}
		return s, a.queue(l, false)
	case fits && a.settle.done(time.Now(), recent, f.shareable):
		s.leases, err = a.grant(g, f)
		return s, err
	case fits:
		s.pause = apart
		return s, a.queue(l, false)
	case a.q.Wait != nil:
		a.settle = settle{}
		return s, a.queue(l, true)
	case (recent || ending > 0) && times(a.each, a.q.Copies) <= less(f.most, less(f.leased, ending)) && !a.settle.over(time.Now()):
		// Leases that go on would leave room, and memory may be about to become free.
		s.pause = apart
		return s, a.queue(l, false)
	}
	s.no = true
	return s, nil
}

// queueState is what is before a request in the queue.
type queueState struct {
	place  int    // tickets before it
	before *found // the nearest that is awake; nil: none
	waits  bool   // the first that is awake has found no room
	first  []Entry
}

// queueOf reads the tickets before this request's: the first ones, for messages,
// and the nearest ones until one is awake. It removes those of the dead that it
// comes across.
func (a *attempt) queueOf(l look) (q queueState) {
	ahead := l.tickets
	if a.number > 0 {
		n, _ := slices.BinarySearch(ahead, ticketID(a.number))
		ahead = ahead[:n]
	}
	q.place = len(ahead)
	read := map[string]*found{}
	get := func(id string) *found {
		if t, ok := read[id]; ok {
			return t
		}
		t, err := a.r.readTicket(a.key, id)
		if err == nil {
			read[id] = &t
			return &t
		}
		if errors.Is(err, errDead) {
			_ = os.Remove(a.r.path(a.key, id, ticketKind))
			at("look: a dead ticket removed")
		}
		read[id] = nil
		q.place--
		return nil
	}
	for _, id := range slices.Backward(ahead) {
		if t := get(id); t != nil && a.r.awake(*t) {
			q.before = t
			break
		}
	}
	awake := q.before == nil // looked for in what follows
	for _, id := range ahead {
		if awake && len(q.first) >= shown {
			break
		}
		t := get(id)
		if t == nil {
			continue
		}
		if !awake && a.r.awake(*t) {
			awake, q.waits = true, t.Waiting
		}
		if len(q.first) < shown {
			e := a.r.entry(*t)
			e.Place = len(q.first)
			q.first = append(q.first, e)
		}
	}
	return q
}

// movement reports whether a process started within the last second.
func movement(leases []found, f figures, fam *family) bool {
	for _, x := range leases {
		if time.Since(time.Unix(0, x.Since)).Abs() < recently {
			return true
		}
	}
	up := uptime()
	for _, p := range f.foreign {
		if fam.young(p.PID, up) {
			return true
		}
	}
	return false
}

// settle watches whether what can be shared moves.
type settle struct {
	begun, last time.Time
	shareable   uint64
}

// done reports whether what was seen now can be believed.
func (s *settle) done(now time.Time, recent bool, shareable uint64) bool {
	if !recent {
		*s = settle{}
		return true
	}
	if s.begun.IsZero() {
		*s = settle{now, now, shareable}
		return false
	}
	if shareable != s.shareable {
		s.last, s.shareable = now, shareable
	}
	return now.Sub(s.last) >= apart || s.over(now)
}

// over reports whether it has moved so long that it is believed anyway; the clock
// starts with the first call.
func (s *settle) over(now time.Time) bool {
	if s.begun.IsZero() {
		s.begun, s.last = now, now
	}
	return now.Sub(s.begun) >= settling
}

func ticketID(number uint64) string { return fmt.Sprintf("%016x", number) }

// numberOf returns the number that a ticket's name has; ok is false if it is no
// name of a ticket.
func numberOf(id string) (n uint64, ok bool) {
	n, err := strconv.ParseUint(id, 16, 64)
	return n, err == nil && n > 0 && id == ticketID(n)
}

// farthest is how far a ticket's number may be from the one before it. Numbers
// count up by one and begin again when nobody waits, so honest ones are near.
const farthest = 1 << 40

// turns returns the tickets among names in order. Other names are left out, and
// numbers beyond a gap that counting does not leave: so no file of another user,
// locked or not, makes the numbers run out.
func turns(ids []string) []string {
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

// queue takes a ticket if there is none yet, and notes on it that there was no
// room at its turn. Caller holds the GPU's lock.
func (a *attempt) queue(l look, waiting bool) error {
	if a.ticket != nil {
		if !waiting || a.rec.Waiting {
			return nil
		}
		a.rec.Waiting = true
		_, err := a.ticket.WriteAt(a.rec.encode(), 0)
		at("queue: noted")
		if err != nil {
			return a.r.why(a.path(), err)
		}
		return nil
	}
	if _, taken := slices.BinarySearch(l.tickets, ticketID(a.number)); a.number == 0 || taken {
		a.number = a.r.lastNumber(a.key, l.tickets) + 1
	}
	for {
		a.rec = a.record(ticketKind, ticketID(a.number), times(a.each, a.q.Copies))
		a.rec.Number, a.rec.Waiting = a.number, waiting
		f, err := a.r.publish(a.path(), 0o644, func(f *os.File) error {
			if _, err := f.WriteAt(a.rec.encode(), 0); err != nil {
				return err
			}
			return setLock(f)
		})
		switch {
		case err == nil:
			a.ticket, a.beat = f, time.Now()
			return nil
		case !errors.Is(err, fs.ErrExist):
			return a.r.why(a.path(), err)
		}
		a.number++ // the name is that of a dead file of another user, who alone can remove it
	}
}

// lastNumber returns the highest number of those who wait; 0: nobody waits.
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
func (a *attempt) path() string { return a.r.path(a.key, a.rec.ID, ticketKind) }

// record is a new file's.
func (a *attempt) record(kind, id string, bytes uint64) record {
	self, _ := readStat(os.Getpid())
	return record{Kind: kind, ID: id, Device: a.q.Device, Bytes: bytes, PID: os.Getpid(), Start: self.start, Namespace: a.r.namespace,
		Since: time.Now().UnixNano(), Command: a.q.Command}
}

// grant makes the leases. Caller holds the GPU's lock.
func (a *attempt) grant(g *guard, left figures) ([]*Lease, error) {
	var leases []*Lease
	undo := func() {
		for _, l := range leases {
			_ = a.r.remove(a.key, l.rec.ID)
			l.f.Close()
		}
	}
	if a.each > mostBytes {
		return nil, fmt.Errorf("share: a lease of %d bytes; want at most %d", a.each, uint64(mostBytes))
	}
	for range a.q.Copies {
		rec := a.record(leaseKind, newID(), a.each)
		f, err := a.r.lease(a.key, rec)
		if err != nil {
			undo()
			return nil, err
		}
		leases = append(leases, &Lease{r: a.r, key: a.key, f: f, rec: rec, display: left.display, host: left.host})
	}
	at("grant: made")
	if !g.stands() {
		// Somebody removed the lock's file, and another may be deciding beside this
		// one: the request is decided anew, by the lock that stands now.
		undo()
		return nil, nil
	}
	for _, l := range leases {
		taken.Store(l.rec.ID, true)
	}
	a.leave()
	return leases, nil
}

// leave gives up the place in the queue.
func (a *attempt) leave() {
	if a.ticket == nil {
		return
	}
	os.Remove(a.path())
	at("leave: removed")
	a.drop()
}

// drop lets go of the ticket, which wakes the waiter behind it.
func (a *attempt) drop() {
	unsetLock(a.ticket)
	a.ticket.Close()
	a.ticket = nil
}

// noRoom describes how a request stands that is not granted.
func (a *attempt) noRoom(st device.Status, f figures, leases []found, q queueState) *NoRoomError {
	holders := a.r.holders(leases)
	for i, e := range holders {
		holders[i].Over = f.over[who{e.PID, e.Start}]
	}
	return &NoRoomError{Device: a.q.Device, Want: times(a.each, a.q.Copies), Copies: a.q.Copies, Total: st.Total, Shareable: f.shareable, Free: f.left(),
		Never: a.q.never(f, a.each), Holders: holders, Ahead: q.first, Before: q.place, Foreign: f.foreign, Display: f.display, Reserve: a.q.Reserve}
}

// touch shows that the waiter is alive.
func (a *attempt) touch() {
	if now := time.Now(); a.ticket != nil && now.Sub(a.beat) >= beats()/2 {
		// If the file is gone the next pass makes it again.
		_ = os.Chtimes(a.path(), time.Time{}, now)
		a.beat = now
	}
}

// watch is a wait in the kernel for a ticket's owner to leave the queue.
type watch struct {
	f    *os.File
	t    found
	gone chan struct{} // closed when its lock is gone
}

// watch returns the wait for a ticket; a second wait for one is the first. The
// error is that of a ticket that is gone. A wait ends when the ticket's owner
// leaves the queue, however that is; nothing else ends it.
func (a *attempt) watch(t found) (*watch, error) {
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
	a.watches = slices.DeleteFunc(a.watches, func(w *watch) bool {
		select {
		case <-w.gone:
			return true
		default:
			return false
		}
	})
	for _, w := range a.watches {
		if w.t.inode == t.inode {
			f.Close()
			return w, nil
		}
	}
	w := &watch{f, t, make(chan struct{})}
	a.watches = append(a.watches, w)
	go func() {
		// A lock for reading: the ticket is another user's. It is dropped at once.
		_ = fcntl(f, ofdSetlkw, &syscall.Flock_t{Type: syscall.F_RDLCK})
		close(w.gone)
		f.Close()
	}()
	return w, nil
}

// pause waits until it is worth while to look again.
func (a *attempt) pause(ctx context.Context, s step) error {
	if s.before == nil {
		a.touch()
		sleep(ctx, s.pause)
		return nil
	}
	w, err := a.watch(*s.before)
	if err != nil {
		return nil // it has left the queue
	}
	if a.q.Wait == nil {
		// It is refused as soon as one before it is found to wait for room.
		ctx, cancel := context.WithTimeout(ctx, apart+time.Duration(s.place)*time.Millisecond)
		defer cancel()
		select {
		case <-ctx.Done():
		case <-w.gone:
		}
		a.touch()
		return nil
	}
	beat := time.NewTicker(beats())
	defer beat.Stop()
	again := func(place int) time.Duration { return max(refresh, time.Duration(place)*refreshPlace) }
	fresh := time.NewTimer(again(s.place))
	defer fresh.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.gone:
			return nil
		case <-beat.C:
			a.touch()
			if _, err := os.Lstat(a.path()); err != nil {
				return nil
			}
			info, err := w.f.Stat()
			if err != nil {
				return nil
			}
			if w.t.beat = info.ModTime(); !a.r.awake(w.t) {
				return nil
			}
		case <-fresh.C:
			files, err := a.r.files(a.key)
			if err != nil {
				return err
			}
			place, _ := slices.BinarySearch(files[a.key][ticketKind], a.rec.ID)
			a.report(place)
			fresh.Reset(again(place))
		}
	}
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
