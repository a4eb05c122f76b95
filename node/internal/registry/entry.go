// Leases and waiters as lists show them.

package registry

import (
	"time"

	"gpumem/node/internal/account"
)

// State distinguishes leases from waiters.
type State int

// The states.
const (
	Holds State = iota // has a lease
	Waits              // has a ticket
)

// String returns "holds" or "waits".
func (s State) String() string {
	if s == Waits {
		return "waits"
	}
	return "holds"
}

// Entry is a lease that lives, or a waiter for one.
type Entry struct {
	ID, Device string // empty where the record cannot be read
	State      State
	Bytes      uint64    // of the lease; of a waiter: wanted in all, 0 where that was not known when it came
	PID        int       // of the program if its launcher has told it, else of the requesting process; 0: unknown
	Start      uint64    // of that process, in clock ticks since the machine's
	Namespace  uint64    // inode of the pid namespace that PID is of
	UID        int       // the owner of the files; -1: unknown
	Command    []string  // of the request
	Since      time.Time // when the lease was granted or the wait began; zero: unknown
	Place      int       // of a waiter, in the queue of its GPU; 0: next
	Stopped    bool      // of a waiter: it gives no sign of life, and is passed over meanwhile
	Elsewhere  bool      // PID is of another pid namespace than this process's
	Ended      bool      // the process PID has ended, and others hold the lease
	// HeldBy are the processes that have the lease's lock, with their pids in this
	// namespace. It is set where PID is unknown, ended, or of another namespace.
	// Only processes that this user may read are found.
	HeldBy []Holder // the youngest first
	// Containers are those that the lease is for, see [Record.Use], and MoreContainers
	// is the number of those that its record has no room for.
	Containers     []Container
	MoreContainers int
	// Ledger is the file in which the lease's programs count what they hold, see package
	// ledger; empty if there is none.
	Ledger string
	// Part is the lease's identity as a part of Ledger, where other leases count there, too; 0
	// where that is the lease's own.
	Part uint64
	// Outside is what each process of the lease is taken to hold outside of the pool that the
	// driver library serves; 0 also where there is none.
	Outside uint64
	// Over is what its processes hold beyond Bytes; set only in a refusal.
	Over uint64

	inode uint64 // of the file with the lock
}

// Holder is a process that has a lease's lock.
type Holder struct {
	PID     int
	Command []string
	start   uint64
}

// Counted returns what counts of a lease.
func (e Entry) Counted() account.Lease {
	l := account.Lease{ID: e.ID, Bytes: e.Bytes, PID: e.PID, Start: e.Start, Namespace: e.Namespace, Since: e.Since}
	for _, c := range e.Containers {
		l.Containers = append(l.Containers, c.ID)
	}
	return l
}
