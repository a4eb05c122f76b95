// The wait for a process to do what it was asked.

package turns

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"gpumem/node/internal/view"
	"gpumem/node/ledger"
	"gpumem/node/probe"
	"gpumem/size"
)

const (
	// lookAgain is how often the ledger is read: processes look at it as often.
	lookAgain = 20 * time.Millisecond
	// queued is how long a process may be in the queue until it is said to wait: one that finds
	// room is served with its next look.
	queued = time.Second
)

// verdict is what has become of a request so far. The zero value is that it goes on.
type verdict struct {
	done    bool
	refused string // why it will not be done
	waits   bool   // it is done, and the process waits in the queue
}

// passing are the reasons not to leave that may pass within seconds.
var passing = []ledger.Reason{ledger.NoReason, ledger.Capturing, ledger.NotDrained, ledger.NoHostMemory}

// hasLeft judges a request to leave that began at a time. Only what the process has said since
// then counts as that it has nothing to leave with.
func hasLeft(s *probe.Seat, began time.Time) verdict {
	switch {
	case s.State == ledger.Away || s.State == ledger.Waiting:
		return verdict{done: true}
	case !slices.Contains(passing, s.Reason), s.Reason == ledger.NoReason && s.Turn.NotAsked != "":
		return verdict{refused: s.Turn.NotAsked}
	}
	hasSpoken := s.Seen > ledger.MomentOf(began)
	if s.State != ledger.In || s.Movable != 0 || !hasSpoken {
		return verdict{}
	}
	if s.Charged > 0 { // a pause would free nothing of what the program itself has taken
		return verdict{refused: fmt.Sprintf("what it holds (%s) is outside of a pool that can leave", size.Format(s.Sum()))}
	}
	return verdict{done: true}
}

// isBack judges a request to come back that began at a time.
func isBack(s *probe.Seat, began time.Time) verdict {
	switch {
	case s.State == ledger.In:
		return verdict{done: true}
	case s.Reason == ledger.NoReason && s.Turn.NotAsked != "":
		return verdict{refused: s.Turn.NotAsked}
	case s.State == ledger.Waiting && time.Since(began) > queued:
		return verdict{done: true, waits: true}
	}
	return verdict{}
}

// judge judges what a process says of a request that began at a time.
type judge func(s *probe.Seat, began time.Time) verdict

// await waits until all seats of a process are judged, at most for the time of the request.
func (r *Request) await(ctx context.Context, seats []probe.Seat, began time.Time, judge judge) (Answer, error) {
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for {
		now, err := r.lookAgain(seats)
		if err != nil {
			return Answer{PID: r.PID}, err
		}
		a, over := r.sumUp(now, began, judge)
		if over {
			return a, nil
		}
		if time.Since(began) >= r.Wait {
			a.Why += fmt.Sprintf(" (waited %s)", r.Wait)
			return a, nil
		}
		select {
		case <-ctx.Done():
			return a, ctx.Err()
		case <-again.C:
		}
	}
}

// lookAgain reads the seats of the process anew. The error is that it has ended.
func (r *Request) lookAgain(seats []probe.Seat) (now []probe.Seat, err error) {
	all, err := probe.Seats(r.Leases)
	if err != nil {
		return nil, fmt.Errorf("leases: %w", err)
	}
	for _, s := range seats {
		i := slices.IndexFunc(all, func(t probe.Seat) bool {
			return t.Ledger == s.Ledger && t.Slot == s.Slot && t.Start == s.Start && t.PID == s.PID
		})
		if i < 0 {
			return nil, errEnded(r.PID)
		}
		now = append(now, all[i])
	}
	return now, nil
}

// stillWhere says where the memory of a process is that has not done what it was asked.
var stillWhere = map[ledger.State]string{
	ledger.In: "it is still on the GPU", ledger.Leaving: "it is still leaving", ledger.Away: "it is still away",
	ledger.Waiting: "it still waits for room", ledger.Returning: "it is still returning",
}

// sumUp judges the seats of a process. over is false while one of them goes on.
func (r *Request) sumUp(seats []probe.Seat, began time.Time, judge judge) (a Answer, over bool) {
	a = Answer{PID: r.PID, Done: true}
	for i := range seats {
		s := &seats[i]
		a.OnHost += s.OnHost
		a.OnGPU += s.Sum()
		v := judge(s, began)
		if a.State == "" || !v.done {
			a.State = s.Turn.State
		}
		switch {
		case v.waits:
			t := *s.Turn
			t.Since = time.Time{} // of the state, which may have begun before the request
			a.waits = view.TurnText(&t, r.PID, time.Now())
		case v.refused != "":
			a.Done, over, a.Why = false, true, v.refused
		case !v.done && !over:
			a.Done, a.Why = false, cmp.Or(s.Turn.NotAsked, stillWhere[s.State])
		}
	}
	return a, over || a.Done
}
