// From a request to leases. One pass:
//
//	lock the GPU
//	read the leases and tickets, remove those of the dead
//	somebody awake is before me: take a ticket, look again later
//	ask the GPU how it stands
//	not settled: take a ticket, look again in 50 ms
//	there is room: make the leases, remove the ticket
//	no room: that is the answer; or take a ticket, look again later
//	unlock
//
// So who finds nobody before him, nothing moving and room makes one pass and no
// ticket.

package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	"gpumem/device"
)

const (
	// apart is how long lies between two looks that must agree, and settling is
	// how long this goes on at most.
	apart    = 50 * time.Millisecond
	settling = 2 * time.Second
	// poll is how long one that waits sleeps between looks. Memory of programs
	// without a lease becomes free without a sign, so that it has to look.
	poll = 25 * time.Millisecond
	// refresh is how often one that is not next looks at more than who is before
	// it; and beats is how often it shows that it is alive.
	refresh = time.Second
	beats   = time.Second
)

// Acquire takes the leases that are asked for, all or none. "No" is a
// *[NoRoomError]. With Wait it waits for its turn and for room until ctx is done,
// which then is a *NoRoomError too, that wraps ctx's error; but what would not
// fit if nobody else used the GPU is refused at once. Without Wait it takes at
// most 2 s, plus as much for each that came before and is being decided.
//
// Who takes leases on several GPUs takes them in the order of their keys, or two
// may wait for each other.
func (r *Registry) Acquire(ctx context.Context, q Request) ([]*Lease, error) {
	q, err := q.checked()
	if err != nil {
		return nil, err
	}
	a := &attempt{r: r, q: q, key: keyOf(q.Device)}
	defer a.leave()
	var told *Position
	for {
		if err := ctx.Err(); err != nil {
			return nil, a.stopped(err)
		}
		step, err := a.pass(ctx)
		if err != nil && err == ctx.Err() {
			err = a.stopped(err)
		}
		if err != nil {
			return nil, err
		}
		if step.leases != nil {
			return step.leases, nil
		}
		if step.no {
			return nil, a.why
		}
		p := Position{step.place, step.missing, a.why}
		if q.Wait != nil && p.Place+int(min(p.Missing, 1)) > 0 && (told == nil || differ(*told, p)) {
			told = &p
			q.Wait(p)
		}
		if err := a.pause(ctx, step); err != nil {
			return nil, err
		}
	}
}

// stopped is the error of a request whose context is done.
func (a *attempt) stopped(err error) error {
	if a.why == nil {
		return fmt.Errorf("share: nothing was asked of %s: %w", a.q.Device, err)
	}
	a.why.Waited = err
	return a.why
}

// differ: there is something to tell.
func differ(a, b Position) bool {
	return a.Place != b.Place || a.Missing != b.Missing || !reflect.DeepEqual(a.Why.Holders, b.Why.Holders)
}

// attempt is a request under way.
type attempt struct {
	r   *Registry
	q   Request
	key string
	why *NoRoomError // as of the last pass

	ticket *os.File // nil: none
	path   string
	rec    record
	beat   time.Time

	settle settle
}

// step is what came out of a pass. Neither leases nor no: look again.
type step struct {
	leases  []*Lease
	no      bool
	place   int
	missing uint64
	before  string // the ticket right before this one; "": this is next
	pause   time.Duration
}

// pass makes one, under the lock of the GPU.
func (a *attempt) pass(ctx context.Context) (step, error) {
	g, err := a.r.lock(ctx, a.key)
	if err != nil {
		return step{}, err
	}
	defer g.unlock()
	l, err := a.r.look(g, a.key)
	if err != nil {
		return step{}, err
	}
	var ahead []found
	there := false
	for _, t := range l.tickets {
		if there = a.ticket != nil && t.ID == a.rec.ID; there {
			break
		}
		ahead = append(ahead, t)
	}
	if a.ticket != nil && !there {
		return step{}, fmt.Errorf("registry %s: somebody has removed %s, the place of this request in the queue; ask again", a.r.dir, a.path)
	}

	st, err := a.q.Meter.Status()
	if err != nil {
		return step{}, fmt.Errorf("how %s stands: %w", a.q.Device, err)
	}
	records := l.records()
	fam := newFamily(readStat, records, a.r.namespace)
	f, err := count(st, records, a.q.Reserve, fam.owner)
	if err != nil {
		return step{}, fmt.Errorf("%s: %w", a.q.Device, err)
	}
	each, fits := a.q.want(f)
	a.why = a.noRoom(st, f, l, ahead, each)

	s := step{place: len(ahead), missing: less(a.why.Want, f.left()), pause: poll}
	if fits {
		s.missing = 0
	}
	waits := false // somebody before this one has found no room
	for _, t := range ahead {
		if t.awake() {
			s.before = t.path
			waits = waits || t.Waiting
		}
	}
	recent := g.recent() || movement(l, f, fam)
	switch {
	case a.why.Never, s.before != "" && waits && a.q.Wait == nil:
		s.no = true
		return s, nil
	case s.before != "":
		a.settle = settle{}
		return s, a.queue(l, false, each)
	case fits && a.settle.done(time.Now(), recent, f.shareable):
		s.leases, err = a.grant(each, f)
		return s, err
	case fits:
		s.pause = apart
		return s, a.queue(l, false, each)
	case a.q.Wait != nil:
		a.settle = settle{}
		return s, a.queue(l, true, each)
	case recent && times(each, a.q.Copies) <= less(f.most, f.leased) && !a.settle.over(time.Now()):
		// Leases alone would leave room, and memory may be about to become free.
		s.pause = apart
		return s, a.queue(l, false, each)
	}
	s.no = true
	return s, nil
}

// movement says whether somebody started within the last second.
func movement(l look, f figures, fam *family) bool {
	for _, x := range l.leases {
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

// done says whether what was seen now can be believed.
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

// over says whether it has moved so long that it is believed anyway; the clock
// starts with the first call.
func (s *settle) over(now time.Time) bool {
	if s.begun.IsZero() {
		s.begun, s.last = now, now
	}
	return now.Sub(s.begun) >= settling
}

// queue takes a ticket if there is none yet, and notes on it that there was no
// room at its turn. Caller holds the GPU's lock.
func (a *attempt) queue(l look, waiting bool, each uint64) error {
	if a.ticket != nil {
		if !waiting || a.rec.Waiting {
			return nil
		}
		a.rec.Waiting = true
		_, err := a.ticket.WriteAt(a.rec.encode(), 0)
		at("queue: noted")
		if err != nil {
			return a.r.why(a.path, err)
		}
		return nil
	}
	a.rec = a.record(ticketKind, times(each, a.q.Copies))
	a.rec.Number, a.rec.Waiting = 1, waiting
	if n := len(l.tickets); n > 0 {
		a.rec.Number = l.tickets[n-1].Number + 1
	}
	var err error
	a.ticket, a.path, err = a.r.create(a.key, &a.rec)
	a.beat = time.Now()
	return err
}

// record is a new file's.
func (a *attempt) record(kind string, bytes uint64) record {
	self, _ := readStat(os.Getpid())
	return record{Kind: kind, Device: a.q.Device, Bytes: bytes, PID: os.Getpid(), Start: self.start, Namespace: a.r.namespace,
		Since: time.Now().UnixNano(), Command: a.q.Command}
}

// grant makes the leases. Caller holds the GPU's lock.
func (a *attempt) grant(each uint64, left figures) ([]*Lease, error) {
	var leases []*Lease
	for range a.q.Copies {
		rec := a.record(leaseKind, each)
		f, path, err := a.r.create(a.key, &rec)
		if err != nil {
			for _, l := range leases {
				os.Remove(l.path)
				l.f.Close()
			}
			return nil, err
		}
		leases = append(leases, &Lease{r: a.r, key: a.key, path: path, f: f, rec: rec, display: left.display, host: left.host})
	}
	at("grant: made")
	a.leave()
	return leases, nil
}

// leave gives the ticket back.
func (a *attempt) leave() {
	if a.ticket == nil {
		return
	}
	os.Remove(a.path)
	at("leave: removed")
	a.ticket.Close()
	a.ticket = nil
}

// noRoom says how a request stands that is not granted.
func (a *attempt) noRoom(st device.Status, f figures, l look, ahead []found, each uint64) *NoRoomError {
	e := &NoRoomError{Device: a.q.Device, Want: times(each, a.q.Copies), Copies: a.q.Copies, Total: st.Total, Shareable: f.shareable, Free: f.left(),
		Never: a.q.never(f, each), Holders: l.holders(), Foreign: f.foreign, Display: f.display, Reserve: a.q.Reserve}
	for i, t := range ahead {
		w := t.entry()
		w.Place = i
		e.Ahead = append(e.Ahead, w)
	}
	return e
}

// pause waits until it is worth while to look again. One that is not next looks
// at who is right before it only, and at the rest once a second, so that a long
// queue costs little.
func (a *attempt) pause(ctx context.Context, s step) error {
	full := time.Now().Add(refresh)
	if a.q.Wait == nil {
		full = time.Now().Add(apart)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.pause):
		}
		now := time.Now()
		if now.Sub(a.beat) >= beats {
			if err := os.Chtimes(a.path, time.Time{}, now); err != nil && !errors.Is(err, os.ErrNotExist) {
				return a.r.why(a.path, err)
			}
			a.beat = now
		}
		if s.before == "" || !now.Before(full) {
			return nil
		}
		if f, err := os.Open(s.before); err != nil {
			return nil
		} else if info, err := f.Stat(); err != nil || !(found{beat: info.ModTime()}).awake() {
			f.Close()
			return nil
		} else if alive, err := locked(f); f.Close() != nil || err != nil || !alive {
			return nil
		}
	}
}
