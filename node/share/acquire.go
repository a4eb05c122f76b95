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
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"gpumem/device"
	"gpumem/internal/crashpoint"
	"gpumem/internal/proc"
	"gpumem/node/internal/account"
	"gpumem/node/internal/lease"
	"gpumem/node/internal/queue"
	"gpumem/node/internal/registry"
)

// Registry is a folder with leases. It may be used by several goroutines.
type Registry struct{ r *registry.Registry }

// Open opens the registry in a folder, which is made if it is missing, with mode
// 1777: all may add files, and remove only their own. "" means the folder that
// GPUMEM_RUN_DIR names, an absolute path, else /run/gpumem if all may write there,
// else /dev/shm/gpumem. (/run/gpumem is not made: only root could, and where others
// already use the second there would be two registries.)
//
// A folder that another user than root owns, or that others may write to without
// the sticky bit, is refused with [ErrUntrusted]: there another user could remove
// or rename the files of a lease. An error names the folder and the way out.
func Open(dir string) (*Registry, error) {
	r, err := registry.Open(dir)
	if err != nil {
		return nil, err
	}
	return &Registry{r}, nil
}

// Look is [Open] for a caller that only lists: it makes nothing, and need not be allowed to
// write in the folder. One that is missing has no leases.
func Look(dir string) (*Registry, error) {
	r, err := registry.Look(dir)
	if err != nil {
		return nil, err
	}
	return &Registry{r}, nil
}

// List returns every lease that lives and every waiter, of all GPUs: by device,
// leases before waiters, those in order. Leases whose files were removed are there,
// too, on GPUs that other files or the given device keys show. It takes no lock. An
// error names the files that cannot be read; the list has the others.
func (r *Registry) List(devices ...string) ([]Entry, error) { return r.r.List(devices...) }

// enclosing returns the lease on a GPU that this process runs in: one whose lock it
// has inherited, else that of this process or its nearest ancestor, of several the
// largest. A lease that this process took itself does not count. ok is false if
// there is none.
func (r *Registry) enclosing(device string) (e Entry, ok bool, err error) {
	return r.r.GPU(device).Enclosing(func(id string) bool { _, own := lease.Taken.Load(id); return own })
}

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
	a := &acquisition{begun: time.Now()}
	leases := make([][]*Lease, len(qs))
	asked := map[string]bool{}
	for i, q := range qs {
		q, err := q.checked()
		if err != nil {
			return nil, err
		}
		if asked[q.Device] {
			return nil, fmt.Errorf("share: %s is asked for twice; want one request for each GPU", q.Device)
		}
		asked[q.Device] = true
		if (q.Wait == nil) != (qs[0].Wait == nil) {
			return nil, errors.New("share: some requests wait and others do not")
		}
		if q.Nested {
			e, ok, err := r.enclosing(q.Device)
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
		a.bids = append(a.bids, &bid{gpu: r.r.GPU(q.Device), q: q, at: i})
	}
	if len(a.bids) == 0 { // nothing, or parts of enclosing leases: nothing is taken
		return leases, nil
	}
	slices.SortFunc(a.bids, func(x, y *bid) int { return strings.Compare(x.gpu.Key, y.gpu.Key) })
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
	together := q.Copies
	if q.Turns {
		together = 1
	}
	each := most / uint64(together)
	switch {
	case q.Bytes != 0:
		each = q.Bytes
	case q.Share != 0:
		each = min(uint64(q.Share*float64(most)), most)
	}
	if want := account.Times(each, together); want > most {
		return nil, &InsufficientMemoryError{Device: q.Device, Want: want, Copies: q.Copies, Free: most, Inside: &e}
	}
	var leases []*Lease
	for range q.Copies {
		leases = append(leases, lease.PartOf(r.r.GPU(q.Device), e, each))
	}
	return leases, nil
}

// acquisition is one call of AcquireAll: a bid for each GPU, in the order of the keys.
type acquisition struct {
	bids  []*bid
	line  *queue.Line // its places in the queues, by bid
	begun time.Time
}

// run makes one pass after the other until the leases are made or refused.
func (a *acquisition) run(ctx context.Context) error {
	var gpus []registry.GPU
	for _, b := range a.bids {
		gpus = append(gpus, b.gpu)
	}
	a.line = queue.NewLine(gpus)
	defer a.line.Leave()
	for {
		if err := ctx.Err(); err != nil {
			return a.stopped(err)
		}
		steps, err := a.makePass(ctx)
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
		if err := a.pause(ctx, steps); err != nil {
			return err
		}
	}
}

// pause reports the places and waits for the next pass.
func (a *acquisition) pause(ctx context.Context, steps []step) error {
	turns, while := make([]queue.Turn, len(steps)), queue.Poll
	for i, s := range steps {
		a.bids[i].report(s.turn.Place)
		turns[i], while = s.turn, max(while, s.pause)
	}
	report := func(i, place int) { a.bids[i].report(place) }
	if a.bids[0].q.Wait == nil {
		report = nil
	}
	return a.line.Pause(ctx, turns, while, report)
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

// makePass makes one pass, under the locks of all GPUs. The steps are nil when the leases
// are made.
func (a *acquisition) makePass(ctx context.Context) ([]step, error) {
	guards, err := a.lockAll(ctx)
	if err != nil {
		return nil, err
	}
	defer unlockAll(guards)
	a.line.DropLost()
	steps, turns := make([]step, len(a.bids)), make([]queue.Turn, len(a.bids))
	ready, short := 0, false
	for i, b := range a.bids {
		s, err := b.examine(guards[i], a.line.Tickets[i])
		if err != nil {
			return nil, err
		}
		steps[i], turns[i] = s, s.turn
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
	return steps, a.line.Take(turns, short, func(i int) registry.Record {
		b := a.bids[i]
		return b.newRecord(registry.TicketKind, "", b.ask().Want(b.each))
	})
}

// lockAll takes the locks of all GPUs. It waits for one only while it has no other: behind
// a process that is stopped with the lock of one GPU, requests for the other GPUs go on.
func (a *acquisition) lockAll(ctx context.Context) ([]*registry.Guard, error) {
	guards := make([]*registry.Guard, len(a.bids))
	for next := 0; ; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		g, err := a.bids[next].gpu.Lock(ctx, a.line.Touch)
		if err != nil {
			return nil, err
		}
		guards[next] = g
		busy := -1
		for i, b := range a.bids {
			if i == next {
				continue
			}
			if guards[i], err = b.gpu.TryLock(); err != nil {
				unlockAll(guards)
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
		unlockAll(guards)
		next = busy
	}
}

// unlockAll releases the locks of those guards that are not nil, and makes them nil.
func unlockAll(guards []*registry.Guard) {
	for i, g := range guards {
		if g != nil {
			g.Unlock()
		}
		guards[i] = nil
	}
}

// grant makes the leases. It reports false if they have to be decided anew. Caller
// holds the locks of all GPUs.
func (a *acquisition) grant(guards []*registry.Guard, steps []step) (done bool, err error) {
	defer func() {
		if done {
			return
		}
		for _, b := range a.bids {
			b.undoLeases()
		}
	}()
	for i, b := range a.bids {
		if err := b.makeLeases(steps[i].found); err != nil {
			return false, err
		}
	}
	crashpoint.At("grant: made")
	for _, g := range guards {
		if !g.IsStanding() {
			// Somebody removed the lock's file, and another may be deciding beside this
			// one: the request is decided anew, by the lock that stands now.
			return false, nil
		}
	}
	for _, b := range a.bids {
		for _, l := range b.leases {
			lease.Taken.Store(l.ID(), l)
		}
	}
	a.line.Leave()
	return true, nil
}

// bid is the part of a request that is for one GPU.
type bid struct {
	gpu registry.GPU
	q   Request
	at  int // its index among what was asked for

	// As of the last look at the GPU.
	why     *InsufficientMemoryError // nil: not yet looked at
	each    uint64
	missing uint64
	behind  bool // a waiter before this one held it up

	reported *Position
	settle   account.Settle
	leases   []*Lease
}

// step is the result of one pass on one GPU.
type step struct {
	ready bool // it is next, the memory is enough, and the GPU has settled
	no    bool // refused
	short bool // it is next, and the memory is not enough
	turn  queue.Turn
	pause time.Duration
	found reading
}

// examine reads the registry and the GPU, under its lock.
func (b *bid) examine(g *registry.Guard, ticket *queue.Ticket) (step, error) {
	found, blocked := b.gpu.Scan(g)
	if blocked != nil && (b.q.Wait == nil || !errors.Is(blocked, ErrVersion)) {
		return step{}, blocked
	}
	s := step{turn: ticket.ReadTurn(found.Tickets), pause: queue.Poll}
	b.behind = s.turn.Before != nil
	if b.behind && b.q.Wait != nil && b.why != nil {
		b.settle = account.Settle{}
		return s, nil
	}
	if blocked != nil {
		b.why = &InsufficientMemoryError{Device: b.q.Device, Want: b.ask().Want(b.q.Bytes), Copies: b.q.Copies,
			Ahead: s.turn.First, Before: s.turn.Place, Blocked: blocked}
		b.missing = 0
		s.short = true
		return s, nil
	}
	r, err := b.read(found.Leases)
	if err != nil {
		return step{}, err
	}
	b.each, b.why = r.each, b.refusal(r, s.turn)
	b.missing = account.Less(b.why.Want, b.why.Free)
	if r.fits {
		b.missing = 0
	}
	s.found = r
	b.decide(&s, g, r)
	return s, nil
}

// reading is what one look at a GPU and its leases found.
type reading struct {
	account.Figures
	status device.Status
	leases []registry.Claim
	counts []account.Lease // of each of leases
	kin    *account.Ancestry
	each   uint64 // the size of each lease
	fits   bool
}

// read reads the GPU's status and counts its leases.
func (b *bid) read(leases []registry.Claim) (r reading, err error) {
	r.status = device.Status{Info: device.Info{Total: b.q.Total}, Free: b.q.Total}
	if b.q.Meter != nil {
		if r.status, err = b.q.Meter.Status(); err != nil {
			return r, fmt.Errorf("status of %s: %w", b.q.Device, err)
		}
	}
	if err = b.count(&r, leases); err != nil || !r.fits {
		return r, err
	}
	// The table is long on a busy machine: it is read last.
	if lost := b.gpu.Lost(leases); len(lost) > 0 {
		err = b.count(&r, append(leases, lost...))
	}
	return r, err
}

// count counts these leases.
func (b *bid) count(r *reading, leases []registry.Claim) (err error) {
	b.gpu.Identify(leases)
	r.leases, r.counts = leases, b.accountsOf(leases)
	r.kin = account.NewAncestry(proc.ReadStat, r.counts, b.gpu.PIDNamespace())
	if r.Figures, err = account.Count(r.status, r.counts, b.q.Reserve, r.kin); err != nil {
		return fmt.Errorf("%s: %w", b.q.Device, err)
	}
	r.each, r.fits = b.ask().Size(r.Figures)
	return nil
}

// decide fills in what follows from a reading. Of the waiters only those before this
// request matter.
func (b *bid) decide(s *step, g *registry.Guard, r reading) {
	recent, ending := false, false
	if !b.q.Settled {
		recent = account.IsRecent(g.End()) || r.kin.IsMoving(r.counts, r.Foreign)
		ending = slices.ContainsFunc(r.leases, b.isEnding)
	}
	now := time.Now()
	switch {
	case b.why.Never, b.behind && s.turn.Waits && b.q.Wait == nil:
		s.no = true
	case b.behind:
		b.settle = account.Settle{}
	case r.fits && b.settle.Done(now, recent, r.Shareable):
		s.ready = true
	case r.fits:
		s.pause = account.Apart
	case b.q.Wait != nil:
		b.settle = account.Settle{}
		s.short = true
	case (recent || ending) && b.wouldFitInTheEnd(r) && !b.settle.Over(now):
		// Memory may be about to become free.
		s.pause = account.Apart
	default:
		s.no = true
	}
}

// wouldFitInTheEnd reports whether the leases that go on leave enough memory.
func (b *bid) wouldFitInTheEnd(r reading) bool {
	var others []account.Lease
	for i, l := range r.counts {
		isShared := l.Group != "" && l.Group == b.group()
		if !isShared && !b.isEnding(r.leases[i]) {
			others = append(others, l)
		}
	}
	return b.ask().Want(b.each) <= account.Less(r.Most, account.Leased(others))
}

// isEnding reports whether the program of a lease has ended, which its attendant is about to see.
func (b *bid) isEnding(l registry.Claim) bool { return l.Attended && b.gpu.IsEnded(l) }

// makeLeases makes the leases of a bid. They are in b.leases, also after an error. Caller
// holds the GPU's lock.
func (b *bid) makeLeases(r reading) error {
	if b.each > registry.MostBytes {
		return fmt.Errorf("share: a lease of %d bytes; want at most %d", b.each, uint64(registry.MostBytes))
	}
	turns, err := b.joinTurns(r)
	if err != nil {
		return err
	}
	for range b.q.Copies {
		rec := b.newRecord(registry.LeaseKind, registry.NewID(), b.each)
		if turns != 0 {
			rec.TurnsInode, rec.Ledger = turns, b.group()
		}
		l, err := lease.Make(b.gpu, rec, r.Display, r.Host)
		if err != nil {
			return err
		}
		b.leases = append(b.leases, l)
	}
	return nil
}

// undoLeases ends the leases that makeLeases has made.
func (b *bid) undoLeases() {
	for _, l := range b.leases {
		l.Undo()
	}
	b.leases = nil
}

// newRecord returns the record of a new file.
func (b *bid) newRecord(kind, id string, bytes uint64) registry.Record {
	return b.gpu.NewRecord(kind, id, b.q.Device, bytes, b.q.Command)
}

// refused is the refusal as of the last look, with the processes that hold leases
// of ended ones. The callback of the request may still read what it was given, so it is
// a copy.
func (b *bid) refused() *InsufficientMemoryError {
	no := *b.why
	no.Holders = slices.Clone(no.Holders)
	registry.FindHolders(no.Holders)
	return &no
}

// report calls Wait if the position has changed.
func (b *bid) report(place int) {
	p := Position{place, b.missing, b.why}
	isBlocked := b.why != nil && b.why.Blocked != nil
	if b.q.Wait == nil || place == 0 && b.missing == 0 && !isBlocked {
		return
	}
	if b.reported == nil || !b.reported.isLike(p) {
		b.reported = &p
		b.q.Wait(p)
	}
}

// isLike reports whether two positions are the same for whoever waits.
func (p Position) isLike(q Position) bool {
	if p.Place != q.Place || p.Missing != q.Missing {
		return false
	}
	return (p.Why.Blocked == nil) == (q.Why.Blocked == nil) && reflect.DeepEqual(p.Why.Holders, q.Why.Holders)
}

// refusal describes a request that is not granted.
func (b *bid) refusal(r reading, turn queue.Turn) *InsufficientMemoryError {
	return &InsufficientMemoryError{Device: b.q.Device, Want: b.ask().Want(r.each), Copies: b.q.Copies,
		Total: r.status.Total, Shareable: r.Shareable, Free: b.ask().Room(r.Figures), Never: b.ask().Never(r.Figures, r.each),
		Holders: b.holders(r), ByTurns: byTurns(r.Figures), Turns: b.q.Turns,
		Ahead: turn.First, Before: turn.Place, Foreign: r.Foreign, Display: r.Display, Reserve: b.q.Reserve}
}

// holders lists the leases, the largest first, with what is held beyond each.
func (b *bid) holders(r reading) []Entry {
	var all []Entry
	for i, l := range r.counts {
		e := b.gpu.Entry(r.leases[i])
		e.Over = r.Over(l)
		all = append(all, e)
	}
	slices.SortFunc(all, func(x, y Entry) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.ID, y.ID)) })
	return all
}
