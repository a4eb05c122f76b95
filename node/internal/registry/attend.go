// The mark of a process that attends a lease.
//
// The keeper of a program holds the lease until it has seen the program's end, which
// takes milliseconds. A request that lacks just this memory waits for it instead of
// being refused. The mark is a lock for reading on the first byte of the lock file:
// the lease's own lock is far behind, and locks for reading do not count as leases.
// Any process could set one, which costs others at most the 2 s of a request without
// Wait.

package registry

import (
	"os"

	"gpumem/internal/ofd"
)

// mark is the lock that means it.
func mark(lock *os.File) ofd.Lock { return ofd.Lock{FD: lock.Fd(), Len: 1} }

// Attend marks a lease as one whose program another process attends, and that process as
// not the program. lock is the lease's lock file, open by the attending process. The mark
// lasts as long as its description.
func Attend(lock *os.File) error { return mark(lock).Try(ofd.Read) }

// isAttended reports whether another description has the mark on a lock file.
func isAttended(lock *os.File) bool {
	_, marked, err := mark(lock).Other(ofd.Write)
	return err == nil && marked
}
