// Requests, from the first pass to leases. One pass:
//
//	lock the GPUs, all or none
//	on each
//		read the leases and the names of the tickets, remove those of ended processes
//		a waiter before this one holds it up: wait for that one to leave
//		read the GPU's status
//		not settled: read it again in 50 ms
//		not enough memory: refuse, or read it again later
//	enough memory on all: make the leases, remove the tickets
//	else take a ticket on each, or note on it what was found
//	unlock
//
// A request that finds no waiter, nothing moving and enough memory makes one pass and
// no ticket. One that waits and is not next waits in the kernel, for the lock on the
// nearest ticket before its own that holds it up. So only the next one reads the
// status, and each end of a wait wakes one process.
//
// A request for several GPUs holds none of them while it waits. Its tickets are taken
// together, under the locks of all its GPUs: requests for several have one order in
// time, each waits only for those before it, and no circle of them can wait for each
// other. If one of its tickets is removed it therefore takes all of them again, at the
// end of each queue.
//
// While it waits for a ticket on one GPU, its tickets on the others name that one, and
// requests behind it that do not want that GPU go before it. Those that do want it
// would wait there as well, so they wait for this one: of many requests for the same
// GPUs each waits for the one before it, and the end of one wakes one. When a request
// is next on all its GPUs it waits for memory as any other does, so it is served in
// the end.

package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"gpumem/device"
	"gpumem/internal/proc"
)

const (
	// apart is the time between two readings that must agree, and settling is the
	// most that this may take.
	apart    = 50 * time.Millisecond
	settling = 2 * time.Second
	// poll is how long the next waiter sleeps between readings. Nothing announces
	// that memory of programs without a lease becomes free.
	poll = 25 * time.Millisecond
)

// Acquire takes the requested leases, all or none. A refusal is a *[InsufficientMemoryError]. With
// Wait it waits in the queue and for memory until ctx is done; the *InsufficientMemoryError then
// wraps ctx's error; if ctx was done before the first look at the GPU, another error
// does. A request that would not fit on an otherwise unused GPU is refused
// at once. Without Wait the call takes at most 2 s, plus as much for each request
// before it that is being decided.
//
// An abandoned wait may leave a thread of this process in the kernel until the waiter
// before it has left the queue: one for each such waiter, however many calls wait for it.
func (r *Registry) Acquire(ctx context.Context, q Request) ([]*Lease, error) {
	leases, err := r.AcquireAll(ctx, q)
	if err != nil {
		return nil, err
	}
	return leases[0], nil
}

// AcquireAll is [Registry.Acquire] for several requests, each for another GPU: it
// takes the leases of all of them or none, and none is held while it waits. Either
// all requests have Wait, or none has.
func (r *Registry) AcquireAll(ctx context.Context, qs ...Request) ([][]*Lease, error) {
	a := &acquisition{r: r, begun: time.Now(), wants: map[string]bool{}, woken: make(chan bool, 1)}
	leases := make([][]*Lease, len(qs))
	asked := map[string]bool{}
	for i, q := range qs {
		q, err := q.checked()
		if err != nil {
			return nil, err
		}
		if asked[keyOf(q.Device)] {
			return nil, fmt.Errorf("share: %s is asked for twice; want one request for each GPU", q.Device)
		}
		asked[keyOf(q.Device)] = true
		if (q.Wait == nil) != (qs[0].Wait == nil) {
			return nil, errors.New("share: some requests wait and others do not")
		}
		if q.Nested {
			e, ok, err := r.Enclosing(q.Device)
			if err != nil {
				return nil, err
			}
			if ok {
				if leases[i], err = r.parts(q, e); err != nil {
					return nil, err
				}
				continue
			}
		}
		b := &bid{r: r, a: a, q: q, key: keyOf(q.Device), at: i}
		a.bids, a.wants[b.key] = append(a.bids, b), true
	}
	slices.SortFunc(a.bids, func(x, y *bid) int { return strings.Compare(x.key, y.key) })
	if len(a.bids) == 0 { // nothing, or parts of enclosing leases: nothing is taken
		return leases, nil
	}
	if err := a.run(ctx); err != nil {
		return nil, err
	}
	for _, b := range a.bids {
		leases[b.at] = b.leases
	}
	return leases, nil
}

// parts returns parts of an enclosing lease. Nothing is taken.
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
		return nil, &InsufficientMemoryError{Device: q.Device, Want: want, Copies: q.Copies, Free: most, Inside: &e}
	}
	var leases []*Lease
	for range q.Copies {
		leases = append(leases, &Lease{r: r, key: keyOf(q.Device), within: e.Bytes, rec: record{Kind: leaseKind, ID: e.ID, Device: e.Device, Bytes: each, Ledger: e.Ledger}})
	}
	return leases, nil
}

// acquisition is one call of AcquireAll: a bid for each GPU, in the order of the keys.
type acquisition struct {
	r     *Registry
	bids  []*bid
	wants map[string]bool // the keys of its GPUs
	begun time.Time
	woken chan bool // has a value when a wait for a ticket has ended
}

func (a *acquisition) run(ctx context.Context) error {
	defer func() {
		for _, b := range a.bids {
			b.leave()
		}
	}()
	for {
		if err := ctx.Err(); err != nil {
			return a.stopped(err)
		}
		steps, err := a.pass(ctx)
		if err != nil && err == ctx.Err() {
			err = a.stopped(err)
		}
		if err != nil || steps == nil {
			return err
		}
		for i, b := range a.bids {
			if steps[i].no {
				return b.refused()
			}
		}
		for i, b := range a.bids {
			b.report(steps[i].place)
		}
		if err := a.pause(ctx, steps); err != nil {
			return err
		}
	}
}

// stopped returns the error of a request whose context is done: that of a GPU on which
// it was not served, for lack of memory if there is one.
func (a *acquisition) stopped(err error) error {
	var on *bid
	for _, b := range a.bids {
		if b.why != nil && (on == nil || b.lack() > on.lack()) {
			on = b
		}
	}
	if on == nil {
		return fmt.Errorf("share: %s was not asked for memory: %w", a.bids[0].q.Device, err)
	}
	no := on.refused()
	no.Waited, no.After = err, time.Since(a.begun)
	return no
}

// lack ranks what a request lacks on a GPU: memory before its turn before nothing.
func (b *bid) lack() int {
	switch {
	case b.missing > 0 || b.why.Blocked != nil:
		return 2
	case b.behind:
		return 1
	}
	return 0
}

// touch shows that the waiter is alive.
func (a *acquisition) touch() {
	for _, b := range a.bids {
		b.touch()
	}
}

// pass makes one pass, under the locks of all GPUs. The steps are nil when the leases
// are made.
func (a *acquisition) pass(ctx context.Context) ([]step, error) {
	guards, err := a.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock(guards)
	a.missed()
	steps := make([]step, len(a.bids))
	ready, short := 0, false
	for i, b := range a.bids {
		s, err := b.examine(guards[i])
		if err != nil {
			return nil, err
		}
		steps[i] = s
		if s.no {
			return steps, nil
		}
		if s.ready {
			ready++
		}
		short = short || s.short
	}
	if ready == len(a.bids) {
		done, err := a.grant(guards, steps)
		if done || err != nil {
			return nil, err
		}
		return steps, nil
	}
	for i, b := range a.bids {
		var waitsFor []string
		for j, other := range a.bids {
			if before := steps[j].before; before != nil && j != i {
				waitsFor = append(waitsFor, other.key+"."+before.ID)
			}
		}
		if err := b.queue(steps[i].tickets, steps[i].before, short, waitsFor); err != nil {
			return nil, err
		}
	}
	return steps, nil
}

// lock takes the locks of all GPUs. It waits for one only while it has no other: behind
// a process that is stopped with the lock of one GPU, requests for the other GPUs go on.
func (a *acquisition) lock(ctx context.Context) ([]*guard, error) {
	guards := make([]*guard, len(a.bids))
	for next := 0; ; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		g, err := a.r.lock(ctx, a.bids[next].key, patience, a.touch)
		if err != nil {
			return nil, err
		}
		guards[next] = g
		busy := -1
		for i, b := range a.bids {
			if i == next {
				continue
			}
			if guards[i], err = a.r.tryLock(b.key); err != nil {
				unlock(guards)
				return nil, err
			}
			if guards[i] == nil {
				busy = i
				break
			}
		}
		if busy < 0 {
			return guards, nil
		}
		unlock(guards)
		next = busy
	}
}

// unlock releases the locks of those guards that are not nil, and makes them nil.
func unlock(guards []*guard) {
	for i, g := range guards {
		if g != nil {
			g.unlock()
		}
		guards[i] = nil
	}
}

// missed drops tickets that somebody has removed. One request for one GPU makes its
// ticket again, with its number. Others take all of theirs again, so that they are
// behind the same requests on all GPUs. Caller holds the locks of all GPUs.
func (a *acquisition) missed() {
	lost := false
	for _, b := range a.bids {
		if b.ticket != nil && !b.stands() {
			b.drop()
			lost = true
		}
	}
	if lost && len(a.bids) > 1 {
		for _, b := range a.bids {
			b.leave()
			b.number = 0
		}
	}
}

// grant makes the leases. It reports false if they have to be decided anew. Caller
// holds the locks of all GPUs.
func (a *acquisition) grant(guards []*guard, steps []step) (done bool, err error) {
	defer func() {
		if done {
			return
		}
		for _, b := range a.bids {
			b.undo()
		}
	}()
	for i, b := range a.bids {
		if err := b.make(steps[i].figures); err != nil {
			return false, err
		}
	}
	at("grant: made")
	for _, g := range guards {
		if !g.stands() {
			// Somebody removed the lock's file, and another may be deciding beside this
			// one: the request is decided anew, by the lock that stands now.
			return false, nil
		}
	}
	for _, b := range a.bids {
		for _, l := range b.leases {
			taken.Store(l.rec.ID, l)
		}
		b.leave()
	}
	return true, nil
}

// bid is the part of a request that is for one GPU.
type bid struct {
	r   *Registry
	a   *acquisition
	q   Request
	key string
	at  int // its index among what was asked for

	// As of the last look at the GPU.
	why     *InsufficientMemoryError // nil: not yet looked at
	each    uint64
	missing uint64
	behind  bool // a waiter before this one held it up

	reported *Position
	place
	settle settle

	leases []*Lease
}

// step is the result of one pass on one GPU.
type step struct {
	ready   bool   // it is next, the memory is enough, and the GPU has settled
	no      bool   // refused
	before  *claim // the nearest waiter that holds this one up; nil: this one is next
	short   bool   // it is next, and the memory is not enough
	place   int
	pause   time.Duration
	tickets []string
	figures figures
}

// examine reads the registry and the GPU, under its lock.
func (b *bid) examine(g *guard) (step, error) {
	l, blocked := b.r.scan(g, b.key)
	if blocked != nil && (b.q.Wait == nil || !errors.Is(blocked, ErrVersion)) {
		return step{}, blocked
	}
	q := b.queueOf(l)
	b.behind = q.before != nil
	s := step{place: q.place, before: q.before, pause: poll, tickets: l.tickets}
	if q.before != nil && b.q.Wait != nil && b.why != nil {
		b.settle = settle{}
		return s, nil
	}
	if blocked != nil {
		b.why = &InsufficientMemoryError{Device: b.q.Device, Want: times(b.q.Bytes, b.q.Copies), Copies: b.q.Copies, Ahead: q.first, Before: q.place, Blocked: blocked}
		b.missing = 0
		s.short = true
		return s, nil
	}

	st := device.Status{Info: device.Info{Total: b.q.Total}, Free: b.q.Total}
	if b.q.Meter != nil {
		var err error
		if st, err = b.q.Meter.Status(); err != nil {
			return step{}, fmt.Errorf("status of %s: %w", b.q.Device, err)
		}
	}
	leases := l.leases
	var f figures
	var kin *ancestry
	fits := false
	reckon := func() (err error) {
		b.r.identify(leases)
		kin = newAncestry(proc.ReadStat, records(leases), b.r.namespace)
		if f, err = count(st, records(leases), b.q.Reserve, kin.owner); err != nil {
			return fmt.Errorf("%s: %w", b.q.Device, err)
		}
		b.each, fits = b.q.want(f)
		return nil
	}
	err := reckon()
	if err == nil && fits { // the table is long on a busy machine: it is read last
		if lost := b.r.lost(b.key, leases); len(lost) > 0 {
			leases = append(leases, lost...)
			err = reckon()
		}
	}
	if err != nil {
		return step{}, err
	}
	b.why = b.refusal(st, f, leases, q)
	b.missing = less(b.why.Want, f.left())
	if fits {
		b.missing = 0
	}
	s.figures = f
	recent, ending := false, uint64(0)
	if !b.q.Settled {
		recent, ending = g.recent() || movement(leases, f, kin), b.r.ending(leases)
	}
	switch {
	case b.why.Never, s.before != nil && q.waits && b.q.Wait == nil:
		s.no = true
	case s.before != nil:
		b.settle = settle{}
	case fits && b.settle.done(time.Now(), recent, f.shareable):
		s.ready = true
	case fits:
		s.pause = apart
	case b.q.Wait != nil:
		b.settle = settle{}
		s.short = true
	case (recent || ending > 0) && times(b.each, b.q.Copies) <= less(f.most, less(f.leased, ending)) && !b.settle.over(time.Now()):
		// Leases that go on would leave room, and memory may be about to become free.
		s.pause = apart
	default:
		s.no = true
	}
	return s, nil
}

// make makes the leases of a bid. They are in b.leases, also after an error. Caller holds the GPU's lock.
func (b *bid) make(f figures) error {
	if b.each > mostBytes {
		return fmt.Errorf("share: a lease of %d bytes; want at most %d", b.each, uint64(mostBytes))
	}
	for range b.q.Copies {
		rec := b.record(leaseKind, newID(), b.each)
		file, err := b.r.lease(b.key, rec)
		if err != nil {
			return err
		}
		b.leases = append(b.leases, &Lease{r: b.r, key: b.key, f: file, rec: rec, display: f.display, host: f.host})
	}
	return nil
}

// undo ends the leases that make has made.
func (b *bid) undo() {
	for _, l := range b.leases {
		_ = b.r.remove(b.key, l.rec.ID)
		l.f.Close()
	}
	b.leases = nil
}

// refused is the refusal as of the last look, with the processes that hold leases
// of ended ones. The callback of the request may still read what it was given, so it is
// a copy.
func (b *bid) refused() *InsufficientMemoryError {
	no := *b.why
	no.Holders = slices.Clone(no.Holders)
	findHolders(no.Holders)
	return &no
}

// report calls Wait if the position has changed.
func (b *bid) report(place int) {
	p := Position{place, b.missing, b.why}
	if b.q.Wait == nil || p.Place == 0 && p.Missing == 0 && (b.why == nil || b.why.Blocked == nil) {
		return
	}
	if t := b.reported; t == nil || t.Place != p.Place || t.Missing != p.Missing || (t.Why.Blocked == nil) != (p.Why.Blocked == nil) || !reflect.DeepEqual(t.Why.Holders, p.Why.Holders) {
		b.reported = &p
		b.q.Wait(p)
	}
}

// refusal describes a request that is not granted.
func (b *bid) refusal(st device.Status, f figures, leases []claim, q queueState) *InsufficientMemoryError {
	holders := b.r.holders(leases)
	for i, e := range holders {
		whose := record{ID: e.ID, PID: e.PID, Start: e.Start}
		holders[i].Over = f.over[whose.identity()]
		if len(e.Containers) > 0 {
			holders[i].Over = f.over[whose.inside()]
		}
	}
	return &InsufficientMemoryError{Device: b.q.Device, Want: times(b.each, b.q.Copies), Copies: b.q.Copies, Total: st.Total, Shareable: f.shareable, Free: f.left(),
		Never: b.q.never(f, b.each), Holders: holders, Ahead: q.first, Before: q.place, Foreign: f.foreign, Display: f.display, Reserve: b.q.Reserve}
}

// record returns the record of a new file.
func (b *bid) record(kind, id string, bytes uint64) record {
	self, _ := proc.ReadStat(os.Getpid())
	return record{Kind: kind, ID: id, Device: b.q.Device, Bytes: bytes, PID: os.Getpid(), Start: self.Start, Namespace: b.r.namespace,
		Since: time.Now().UnixNano(), Command: b.q.Command}
}

// movement reports whether a process started within the last second.
func movement(leases []claim, f figures, kin *ancestry) bool {
	for _, x := range leases {
		if time.Since(time.Unix(0, x.Since)).Abs() < recently {
			return true
		}
	}
	up := proc.Uptime()
	for _, p := range f.foreign {
		if kin.young(p.PID, up) {
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

// done reports whether the present reading can be believed.
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

// over reports whether it has moved for so long that it is believed anyway. The clock
// starts with the first call.
func (s *settle) over(now time.Time) bool {
	if s.begun.IsZero() {
		s.begun, s.last = now, now
	}
	return now.Sub(s.begun) >= settling
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
