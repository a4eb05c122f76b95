// The turns of processes whose memory leaves the GPU and comes back.

package probe

import (
	"cmp"
	"slices"
	"time"

	"gpumem/internal/proc"
	"gpumem/node/ledger"
	"gpumem/node/machine"
	"gpumem/node/share"
)

// Seat is a process in a ledger by turns.
type Seat struct {
	Ledger string // its path
	Owner  int    // its user
	PID    int    // of the process here; 0 if it cannot be seen from here
	ledger.Entry
	Turn *machine.Turn
}

// Seats returns the processes in the ledgers by turns that this user may read. leases is that of
// [Options], and may be nil.
func Seats(leases func(keys []string) ([]share.Entry, error)) (list []Seat, err error) {
	if leases == nil {
		leases = registered
	}
	all, err := leases(nil)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	read := map[string]bool{}
	for _, l := range all {
		if read[l.Ledger] || l.Ledger == "" {
			continue
		}
		read[l.Ledger] = true
		f, err := ledger.OpenOf(l.Ledger, l.UID)
		if err != nil {
			continue // another user's, or one that has just ended
		}
		entries := f.Turns()
		turns := turnsOf(now, ledger.MomentOf(now), f.Limit(), entries, figuresOf(entries))
		_ = f.Close()
		for i, e := range entries {
			s := Seat{Ledger: l.Ledger, Owner: l.UID, Entry: e, Turn: turns[i]}
			if here(e.Figures) {
				s.PID = e.PID
			}
			list = append(list, s)
		}
	}
	return list, nil
}

// figuresOf returns what processes of a ledger by turns hold.
func figuresOf(entries []ledger.Entry) []ledger.Figures {
	list := make([]ledger.Figures, len(entries))
	for i, e := range entries {
		list[i] = e.Figures
	}
	return list
}

// turnsOf returns the turns of all processes of a ledger with a limit, in their order. at is
// now on the wall clock. ms are the same processes with the numbers that they have here.
func turnsOf(at time.Time, now ledger.Moment, limit uint64, entries []ledger.Entry,
	ms []ledger.Figures) []*machine.Turn {
	plan := ledger.PlanTurns(now, limit, entries)
	list := make([]*machine.Turn, len(entries))
	for i := range entries {
		list[i] = turnOf(at, now, &entries[i])
	}
	pids := map[int]int{} // by slot
	for i, m := range ms {
		if here(m) {
			pids[entries[i].Slot] = m.PID
		}
	}
	bySlot := func(slot int) *machine.Turn {
		return list[slices.IndexFunc(entries, func(e ledger.Entry) bool { return e.Slot == slot })]
	}
	for place, slot := range plan.Queue {
		bySlot(slot).Place = new(place)
	}
	for _, b := range plan.Blocked {
		t := bySlot(b.Slot)
		t.Never, t.HeldBy = b.Never, holdersOf(&b, pids)
	}
	return list
}

// unknownState is the State of a process whose record is damaged.
const unknownState = "unknown"

// turnOf returns what a process says of its turn. at is now on the wall clock.
func turnOf(at time.Time, now ledger.Moment, e *ledger.Entry) *machine.Turn {
	if e.Reason == ledger.Unreadable {
		return &machine.Turn{State: unknownState, NotAsked: e.Reason.String()}
	}
	t := &machine.Turn{State: e.State.String(), OnHost: e.OnHost, Movable: e.Movable, Paused: e.Asked == ledger.Pause,
		NotAsked: e.Reason.String(), Wants: e.Wants, Swaps: e.Swaps, Seconds: e.Cost.Seconds()}
	if t.Paused {
		t.Wants = 0 // until it is resumed it waits for nothing
	}
	if e.Since != 0 {
		t.Since = at.Add(-now.Sub(e.Since))
	}
	t.NotAsked = cmp.Or(t.NotAsked, whySilent(now, e))
	return t
}

// whySilent says why a process gives no sign of life; "" if it does.
func whySilent(now ledger.Moment, e *ledger.Entry) string {
	switch {
	case !e.IsSilent(now):
		return ""
	case isStopped(e.Figures):
		return "it is stopped"
	case e.Seen == e.Since: // it has joined, and said nothing since
		return "it takes no turns"
	}
	return ledger.Silent.String()
}

// isStopped reports whether a process that can be seen from here is stopped, as by Ctrl-Z.
func isStopped(m ledger.Figures) bool {
	s, ok := proc.ReadStat(m.PID)
	return ok && s.Start == m.Start && s.Stopped()
}

// holdersOf returns those that hold what a process waits for in vain.
func holdersOf(b *ledger.Blocked, pids map[int]int) (list []machine.TurnHolder) {
	for _, h := range b.Holders {
		list = append(list, machine.TurnHolder{PID: pids[h.Slot], Bytes: h.Bytes, Why: h.Reason.String()})
	}
	return list
}
