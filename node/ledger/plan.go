// The choice of who is to leave. It follows from what the ledger has alone, so that all
// processes choose alike.

package ledger

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Plan is what is to happen in a ledger by turns.
type Plan struct {
	// Leave are the slots that are to leave now, those that do so already among them. Who
	// leaves and is not there may stay.
	Leave []int
	// Queue are the slots that wait, in the order of their tickets, but for those that hold nobody
	// up: a pause keeps them from what they wait for, or they are [Silent].
	Queue []int
	// Serve are the slots in the queue that may take what they wait for, in its order.
	Serve []int
	// Blocked are those in the queue that cannot be served now, even if all left that may be
	// asked.
	Blocked []Blocked
}

// Blocked is a process that waits in vain.
type Blocked struct {
	Slot    int
	Wants   uint64 // bytes that it waits for
	Left    uint64 // bytes that are left
	Never   bool   // also when all others have worked for their turns; it holds nobody up
	Holders []Holder
}

// Holder is a process that holds memory which it cannot be asked for.
type Holder struct {
	Slot   int
	Bytes  uint64
	Reason Reason
}

// PlanTurns returns who is to leave, and who may take, of all processes in a ledger with a
// limit.
//
// Nobody leaves as long as nobody waits, but for those that are paused. The queue is walked in
// the order of its tickets: who fits into what is left is served. For the first who does not
// fit, and fits if those left that may be asked now, these leave; whoever is behind waits for
// that. Those are asked first that leave already or are paused, then those that have not worked
// for the longest time, if they lend, then those that wait in the queue behind, who cannot go on, the last one
// first, then those whose turn has lasted the longest, if it is over. They are as few of these,
// from the front, as are enough.
//
// Let the limit be 100, and A and B hold 50 each. A waits for 30 more, then B does. B cannot
// go on before A has left, so B leaves, and A takes 30. Now B waits for 80, which it had and
// wants. It has them once A's turn is over.
//
// Who cannot be served yet holds up those behind who would delay it: they take nothing that it
// needs to be served as early as without them. Who can never be served holds up nobody, nor does
// one that is paused or [Silent]. Behind eight that wait for their time (mostAhead) nobody is looked at.
func PlanTurns(now Moment, limit uint64, all []Entry) Plan {
	p := planner{now: now, all: all, left: limit}
	for i := range all {
		e := &all[i]
		p.left = less(p.left, e.Sum())
		if e.Waits() && e.Asked != Pause && !e.IsSilent(now) {
			p.queue = append(p.queue, e)
		}
	}
	slices.SortFunc(p.queue, func(a, b *Entry) int {
		return cmp.Or(cmp.Compare(a.Ticket, b.Ticket), cmp.Compare(a.Slot, b.Slot))
	})
	for _, e := range p.queue {
		p.plan.Queue = append(p.plan.Queue, e.Slot)
	}
	p.serveQueue()
	for i := range all {
		if e := &all[i]; e.Asked == Pause && p.whyNever(e) == NoReason {
			p.leave(e)
		}
	}
	return p.plan
}

// planner makes a plan.
type planner struct {
	now   Moment
	all   []Entry
	left  uint64
	queue []*Entry // who waits, in the order of the tickets
	ahead []*Entry // who waits and cannot be served yet, of those that were looked at
	never []*Entry // who waits and can never be served
	plan  Plan
}

// mostAhead is how many may wait for their time before those behind are not looked at, whose
// service would have to be compared with the times of all of them.
const mostAhead = 8

// serveQueue walks the queue up to the first that is served by others that leave.
func (p *planner) serveQueue() {
	rest := p.left
	for _, w := range p.queue {
		if len(p.ahead) == mostAhead {
			return
		}
		if w.Wants <= rest && p.delaysNobody(w, nil, rest, rest-w.Wants) {
			p.plan.Serve = append(p.plan.Serve, w.Slot)
			rest -= w.Wants
			continue
		}
		if w.Wants > rest {
			_, ok := p.servedAt(w, p.left, nil)
			leavers, free := p.chooseLeavers(w, w.Wants-rest)
			switch {
			case leavers == nil:
				p.plan.Blocked = append(p.plan.Blocked, p.blocked(w, !ok))
			case p.delaysNobody(w, leavers, rest, rest+free-w.Wants):
				for _, e := range leavers {
					p.leave(e)
				}
				return
			}
			if !ok {
				p.never = append(p.never, w)
				continue
			}
		}
		p.ahead = append(p.ahead, w)
	}
}

// leave makes a process leave.
func (p *planner) leave(e *Entry) {
	if !slices.Contains(p.plan.Leave, e.Slot) {
		p.plan.Leave = append(p.plan.Leave, e.Slot)
	}
}

// candidate is a process that w may ask at some time.
type candidate struct {
	*Entry
	rank int    // of those that leave now; the least leave first
	age  int64  // within a rank, the least leave first
	at   Moment // when it may be asked
	why  Reason // why not now
}

// The ranks. Those up to rankPaused leave anyway.
const (
	rankLeaving = iota
	rankPaused
	rankIdle
	rankWaiting
	rankOver
)

// unknownTime is when a process may be asked that does not say when it will have no work.
const unknownTime = math.MaxInt64

// candidateFor returns what another process e is to w, which waits.
func (p *planner) candidateFor(w, e *Entry) candidate {
	c := candidate{Entry: e, at: p.now, why: p.whyNever(e)}
	lastWork := max(e.Worked, e.Since)
	switch {
	case c.why != NoReason:
	case e.State == Leaving:
		c.rank = rankLeaving
	case e.Asked == Pause:
		c.rank = rankPaused
	case e.Waits() && (e.Ticket > w.Ticket || slices.Contains(p.never, e)):
		c.rank, c.age = rankWaiting, -int64(e.Ticket)
	case e.Waits():
		c.at, c.why = unknownTime, Before
	case e.State == In && e.LendAfter > 0 && p.now.Sub(lastWork) >= e.LendAfter:
		c.rank, c.age = rankIdle, int64(lastWork)
	case e.State == In && e.Quantum != 0 && p.now.Sub(e.Since) >= e.TurnTime():
		c.rank, c.age = rankOver, int64(e.Since)
	case e.Quantum != 0:
		c.at, c.why = max(p.now+1, e.Since.Add(e.TurnTime())), InTurn
	default:
		c.at, c.why = unknownTime, AtWork
	}
	return c
}

// whyNever says why a process cannot be asked at any time, or NoReason.
func (p *planner) whyNever(e *Entry) Reason {
	switch {
	case e.Reason != NoReason:
		return e.Reason
	case e.IsSilent(p.now):
		return Silent
	case e.State == Away || movable(e) == 0:
		return Unmovable
	case e.LendAfter == 0 && e.Quantum == 0 && e.Asked != Pause && !e.Waits():
		return LendsNothing
	}
	return NoReason
}

// IsSilent reports whether the process gives no sign of life.
func (e *Entry) IsSilent(now Moment) bool { return now.Sub(e.Seen) > Silence }

// movable returns what is free when a process has left: no more than its pool holds, which may have
// released some since it said that.
func movable(e *Entry) uint64 { return min(e.Movable, e.Held) }

// TurnTime returns how long a turn lasts, 0 if there are none.
func (t *Turn) TurnTime() time.Duration {
	if t.Quantum == AutoQuantum {
		return min(max(10*t.Cost, 2*time.Second), time.Minute)
	}
	return t.Quantum
}

// candidates returns the others that w may ask at some time, but for some.
func (p *planner) candidates(w *Entry, but []*Entry) (list []candidate) {
	for i := range p.all {
		e := &p.all[i]
		if e == w || slices.Contains(but, e) {
			continue
		}
		if c := p.candidateFor(w, e); p.whyNever(e) == NoReason {
			list = append(list, c)
		}
	}
	return list
}

// servedAt returns the earliest time at which w can be served if rest is left now, by others but
// for some. ok is false if all of them are not enough.
func (p *planner) servedAt(w *Entry, rest uint64, but []*Entry) (at Moment, ok bool) {
	if w.Wants <= rest {
		return p.now, true
	}
	list := p.candidates(w, but)
	slices.SortFunc(list, func(a, b candidate) int { return cmp.Compare(a.at, b.at) })
	for _, c := range list {
		if rest += movable(c.Entry); w.Wants <= rest {
			return c.at, true
		}
	}
	return 0, false
}

// delaysNobody reports whether those ahead can be served as early as without w, if leavers leave
// for it, and it takes what it waits for: rest is left before that, and after after.
func (p *planner) delaysNobody(w *Entry, leavers []*Entry, rest, after uint64) bool {
	gone := append([]*Entry{w}, leavers...)
	for _, a := range p.ahead {
		without, _ := p.servedAt(a, rest, nil)
		with, ok := p.servedAt(a, after, gone)
		if !ok || with > without {
			return false
		}
	}
	return true
}

// chooseLeavers returns those that are to leave now, so that w has need bytes more, and what is
// free then. There are none if all that may be asked now are not enough.
func (p *planner) chooseLeavers(w *Entry, need uint64) (leavers []*Entry, free uint64) {
	now := slices.DeleteFunc(p.candidates(w, nil), func(c candidate) bool { return c.why != NoReason })
	slices.SortFunc(now, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.age, b.age), cmp.Compare(a.Slot, b.Slot))
	})
	asked := 0 // of the leavers, those that leave anyway come first
	for _, c := range now {
		if c.rank > rankPaused && free >= need {
			break
		}
		if c.rank <= rankPaused {
			asked++
		}
		leavers = append(leavers, c.Entry)
		free += movable(c.Entry)
	}
	if free < need {
		return nil, 0
	}
	for i := len(leavers) - 1; i >= asked; i-- { // without the last one it was not enough
		if n := movable(leavers[i]); free-n >= need {
			leavers = slices.Delete(leavers, i, i+1)
			free -= n
		}
	}
	return leavers, free
}

// blocked says who holds the memory that w lacks.
func (p *planner) blocked(w *Entry, never bool) Blocked {
	b := Blocked{Slot: w.Slot, Wants: w.Wants, Left: p.left, Never: never}
	for i := range p.all {
		e := &p.all[i]
		if e == w {
			continue
		}
		c := p.candidateFor(w, e)
		h := Holder{Slot: e.Slot, Bytes: e.Sum(), Reason: c.why}
		if canLeave := c.why == NoReason || never && p.whyNever(e) == NoReason; canLeave {
			h.Bytes, h.Reason = h.Bytes-movable(e), Unmovable
		}
		if h.Bytes > 0 {
			b.Holders = append(b.Holders, h)
		}
	}
	slices.SortFunc(b.Holders, func(a, c Holder) int {
		return cmp.Or(cmp.Compare(c.Bytes, a.Bytes), cmp.Compare(a.Slot, c.Slot))
	})
	return b
}
