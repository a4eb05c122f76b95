// The mark of a process that attends a lease.
//
// The keeper of a program holds the lease until it has seen the program's end, which
// takes milliseconds. A request that lacks just this memory waits for it instead of
// being refused. The mark is a lock for reading on the first byte of the lock file:
// the lease's own lock is far behind, and locks for reading do not count as leases.
// Any process could set one, which costs others at most the 2 s of a request without
// Wait.

package share

import (
	"os"
	"strings"
	"syscall"

	"gpumem/internal/proc"
)

// Attending marks a lease as one whose program another process attends, and that
// process as not the program. lock is the lease's lock file, open by the description
// that is later given to [Attend]. The mark lasts as long as the description.
func Attending(lock *os.File) error {
	return fcntl(lock, ofdSetlk, &syscall.Flock_t{Type: syscall.F_RDLCK, Len: 1})
}

// attended reports whether another description has the mark on a lock file.
func attended(f *os.File) bool {
	l := syscall.Flock_t{Type: syscall.F_WRLCK, Len: 1}
	return fcntl(f, ofdGetlk, &l) == nil && l.Type != syscall.F_UNLCK
}

// parseMark reads the mark in a line of /proc/locks, see parseLock.
func parseMark(line string) (inode uint64, ok bool) {
	before, after, _ := strings.Cut(line, " READ ")
	l, ok := parseLock(before + " WRITE " + after)
	return l.inode, ok && l.extent == extent{0, 1}
}

// ending returns the bytes of leases whose program has ended and whose attendant is
// about to see that.
func (r *Registry) ending(leases []claim) (bytes uint64) {
	for _, l := range leases {
		if l.attended && r.ended(l) {
			bytes = plus(bytes, l.Bytes)
		}
	}
	return bytes
}

// ended reports whether the process of a lease is known to have ended.
func (r *Registry) ended(f claim) bool {
	if f.PID <= 0 || f.Namespace != r.namespace {
		return false
	}
	s, ok := proc.ReadStat(f.PID)
	return !ok || s.Start != f.Start || s.Ended()
}
