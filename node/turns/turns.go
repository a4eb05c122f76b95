// Package turns has processes that share a GPU by turns leave it, and come back, when somebody
// asks for it by hand: gpumem pause and gpumem resume. See package node/ledger for the turns.
package turns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpumem/internal/proc"
	"gpumem/node/ledger"
	"gpumem/node/probe"
	"gpumem/node/share"
	"gpumem/size"
)

// DefaultWait is how long a process is waited for. One whose work did not end in time is asked
// again after 10 s, so there are three attempts in it.
const DefaultWait = 30 * time.Second

// Request names a process.
type Request struct {
	PID  int
	Wait time.Duration // at most, above 0
	// Leases lists the leases of this machine; nil is the registry that $GPUMEM_RUN_DIR names, or
	// the machine's.
	Leases func(keys []string) ([]share.Entry, error)
}

// Answer says what has become of a request.
type Answer struct {
	PID    int    `json:"pid"`
	Done   bool   `json:"done"`
	Why    string `json:"why,omitempty"` // not, half a sentence
	State  string `json:"state"`         // as in machine.Turn
	Paused bool   `json:"paused"`
	OnHost uint64 `json:"on_host_bytes"`
	OnGPU  uint64 `json:"on_gpu_bytes"` // that it holds, with its context

	resumed bool   // it was asked to come back
	waits   string // what a process in the queue waits for
}

// String returns the answer in a sentence without a period.
func (a Answer) String() string {
	who := fmt.Sprintf("process %d", a.PID)
	switch {
	case !a.Done && a.resumed:
		return who + " is not back: " + a.Why
	case !a.Done:
		return who + " is not paused: " + a.Why
	case a.Paused && a.OnHost > 0:
		return fmt.Sprintf("%s is paused: %s of its memory are on the host, and %s stay on the GPU", who, size.Format(a.OnHost), size.Format(a.OnGPU))
	case a.Paused:
		return fmt.Sprintf("%s is paused: it has nothing on the GPU that could leave (%s stay), and what it takes leaves at once", who, size.Format(a.OnGPU))
	case a.waits != "":
		return who + " " + a.waits
	}
	return fmt.Sprintf("%s is on the GPU, with %s", who, size.Format(a.OnGPU))
}

// Pause has the memory of a process leave the GPU, and stay away until [Resume]. It returns when
// the memory is free. Where it cannot leave, or has not within the time, the answer says why and
// the request is withdrawn. The error is that of a process that is in no ledger by turns.
func Pause(ctx context.Context, r Request) (Answer, error) {
	began := time.Now()
	seats, err := r.find("pause")
	if err != nil {
		return Answer{}, err
	}
	withdraw := func() {
		for _, s := range seats {
			if s.Asked != ledger.Pause {
				_ = ask(s, ledger.NotAsked) // unless it has ended
			}
		}
	}
	for _, s := range seats {
		if err := ask(s, ledger.Pause); err != nil {
			withdraw()
			return Answer{}, err
		}
	}
	a, err := r.await(ctx, seats, began, hasLeft)
	a.Paused = a.Done
	if !a.Done {
		withdraw()
	}
	switch wasAsked := slices.ContainsFunc(seats, func(s probe.Seat) bool { return s.Asked == ledger.Pause }); {
	case !errors.Is(err, context.Canceled):
	case wasAsked:
		a.Why += "; it was asked to pause before, and still is"
	default:
		a.Why += "; it goes on as before"
	}
	return a, err
}

// Resume has the memory of a process come back to the GPU. It returns when it is there, or waits
// in the queue for room. Where it is neither within the time, the answer says why; the request
// stays.
func Resume(ctx context.Context, r Request) (Answer, error) {
	began := time.Now()
	seats, err := r.find("resume")
	if err != nil {
		return Answer{}, err
	}
	for _, s := range seats {
		if s.Asked != ledger.Pause && s.State != ledger.Away && s.State != ledger.Leaving {
			continue
		}
		if err := ask(s, ledger.Resume); err != nil {
			return Answer{}, err
		}
	}
	a, err := r.await(ctx, seats, began, isBack)
	a.resumed = true
	if errors.Is(err, context.Canceled) {
		a.Why += "; it comes back once it can"
	}
	return a, err
}

// find returns the seats of the process, one for each GPU that it uses by turns.
func (r *Request) find(verb string) ([]probe.Seat, error) {
	all, err := probe.Seats(r.Leases)
	if err != nil {
		return nil, fmt.Errorf("leases: %w", err)
	}
	var others []string
	for _, s := range all {
		if s.PID > 0 && s.PID != r.PID {
			others = append(others, strconv.Itoa(s.PID))
		}
	}
	all = slices.DeleteFunc(all, func(s probe.Seat) bool { return s.PID != r.PID })
	if len(all) > 0 {
		return all, nil
	}
	info, err := proc.Look(r.PID)
	switch {
	case err != nil:
		return nil, err
	case os.Geteuid() != 0 && info.User != proc.UserName(os.Geteuid()):
		return nil, fmt.Errorf("process %d is %s's: only %s and root can %s it", r.PID, info.User, info.User, verb)
	}
	text := fmt.Sprintf("process %d shares no GPU by turns, as programs of gpumem run --lend and --turns do", r.PID)
	if len(others) > 0 {
		slices.Sort(others)
		text += "; those that do: " + strings.Join(slices.Compact(others), ", ")
	}
	return nil, errors.New(text)
}

// ask asks a process by hand.
func ask(s probe.Seat, what ledger.Ask) error {
	l, err := ledger.OpenOf(s.Ledger, s.Owner)
	if err != nil {
		return err
	}
	err = l.Ask(s.Entry, what)
	if errors.Is(err, ledger.ErrGone) {
		err = errEnded(s.PID)
	}
	return errors.Join(err, l.Close())
}

func errEnded(pid int) error { return fmt.Errorf("process %d has ended", pid) }
