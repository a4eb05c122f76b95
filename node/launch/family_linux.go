// The family of a program: the program and all that it leaves behind.
//
// A daemon closes its descriptors, loses its parents, begins a session, and may start
// programs with another environment. One thing stays: its limits, which every fork and
// every exec hands on. Linux still keeps one that it has ignored since 2.4.25, RLIMIT_LOCKS,
// so its soft value is free to carry a random number, the mark of the family. Any process
// may read that of another process of its user by prlimit(2), which needs no /proc, and
// that of others in /proc/PID/limits.
//
// A search for the mark must not miss a member that hands on to a child and ends while the
// search goes by. It visits processes by rising number, and a child has a higher number
// than its parent but for one case, below. So as long as the family lives, a member is
// ahead of the search, and the search meets it, unless it
//
//   - has ended between the listing and the visit, or has ended and not been waited for:
//     then its child may have come behind the listing, and the search begins again;
//   - has handed on to a child with a lower number. Numbers begin again below after the
//     last, so that happens to one line of descent once in some 32,000 forks. Two searches
//     one after the other, which take milliseconds, do not both meet with it.
//
// See keeper_linux.go for who searches, and member_linux.go for which processes with the mark
// are members.

package launch

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"gpumem/internal/proc"
)

// A mark is the number that all processes of a family have; 0 is no mark.
type mark uint64

// newMark returns a mark that no other family has.
func newMark() (mark, error) {
	var own unix.Rlimit
	if err := prlimit(0, nil, &own); err != nil {
		return 0, fmt.Errorf("limit of file locks: %w", err)
	}
	most, err := highestMark(own.Max)
	if err != nil {
		return 0, err
	}
	return mark(1 + rand.Uint64N(most)), nil
}

// highestMark returns the highest mark below a hard limit of file locks.
func highestMark(hard uint64) (uint64, error) {
	const room = 1 << 40 // below it two families could have the same
	if hard < room {
		const text = "the hard limit of file locks is %d, too low for a mark, which needs %d; only root can raise it (ulimit -Hx unlimited)"
		return 0, fmt.Errorf(text, hard, uint64(room))
	}
	return min(hard, 1<<63-1), nil // larger numbers are negative to some tools
}

// put gives the mark to this process, and so to those that it starts, until undo. Mark 0
// changes nothing.
func (m mark) put() (undo func()) {
	nothing := func() {}
	if m == 0 {
		return nothing
	}
	var own unix.Rlimit
	if prlimit(0, nil, &own) != nil || prlimit(0, &unix.Rlimit{Cur: uint64(m), Max: own.Max}, nil) != nil {
		return nothing
	}
	return func() { _ = prlimit(0, &own, nil) }
}

// unmark takes every mark off this process, and so off those that it starts.
func unmark() {
	var own unix.Rlimit
	if prlimit(0, nil, &own) == nil {
		_ = prlimit(0, &unix.Rlimit{Cur: own.Max, Max: own.Max}, nil)
	}
}

// prlimit sets and reads the limit of a process; 0 is this one.
func prlimit(pid int, set, get *unix.Rlimit) error {
	return unix.Prlimit(pid, unix.RLIMIT_LOCKS, set, get)
}

// markOf returns a process's mark, or a number that is none. The error is syscall.ESRCH if
// there is no such process.
func markOf(pid int) (mark, error) {
	var of unix.Rlimit
	err := prlimit(pid, nil, &of)
	if err != syscall.EPERM {
		return mark(of.Cur), err
	}
	text, err := readProcess(pid, "limits") // of another user
	if err != nil {
		return 0, err
	}
	return markIn(text), nil
}

// markIn returns the mark in the text of /proc/PID/limits; 0 where there is none.
func markIn(limits string) mark {
	_, line, _ := strings.Cut(limits, "\nMax file locks ")
	soft, _, _ := strings.Cut(strings.TrimLeft(line, " "), " ")
	n, _ := strconv.ParseUint(soft, 10, 64) // else it is unlimited
	return mark(n)
}

// survivor returns a living process of the family and its pidfd, which is nil where this
// kernel has none. The number is 0 if the family has ended.
func (f *family) survivor() (pid int, pidfd *os.File) { return search(visit, f.look) }

// search is survivor by these functions: visit calls another with processes and reports
// whether they come from a list, look returns the state of one.
func search(visit func(func(pid int) bool) (listed bool), look func(pid int) (*os.File, state)) (pid int, pidfd *os.File) {
	ended := map[int]bool{} // members that were seen when they had ended
	for sure := 0; sure < 2; sure++ {
		behind := false // a member may be behind the list
		listed := visit(func(n int) bool {
			f, is := look(n)
			if is == living {
				pid, pidfd = n, f
			}
			hasJustEnded := is == over && !ended[n]
			behind = behind || is == gone || hasJustEnded
			ended[n] = is == over
			return pid == 0
		})
		if pid != 0 {
			break
		}
		if listed && behind {
			sure = -1
		}
	}
	return pid, pidfd
}

// A state is what is known of a process.
type state int

const (
	other  state = iota // not of the family
	gone                // there is no such process any more
	over                // of the family, and it has ended
	living              // of the family
)

// openProcess is pidfdOf. Tests have others.
var openProcess = pidfdOf

// look returns the state of a process. Of a living one it returns a pidfd, which is nil
// where this kernel has none.
func (f *family) look(pid int) (*os.File, state) {
	if isMember, err := f.has(pid); err == syscall.ESRCH {
		return nil, gone
	} else if !isMember {
		return nil, other
	}
	pidfd, err := openProcess(pid)
	switch {
	case err == syscall.ENOSYS || err == syscall.EPERM: // or a filter of system calls forbids it
		switch s, ok := proc.ReadStat(pid); {
		case !ok:
			return nil, gone
		case s.Ended() && s.Threads <= 1: // else its first thread alone has
			return nil, over
		}
		return nil, living
	case err == syscall.ESRCH:
		return nil, gone
	case err != nil: // a thread: its process has another number
		return nil, other
	}
	// The number is the same process's as long as that lives.
	isMember, _ := f.has(pid)
	if hasEnded(pidfd, 0) {
		pidfd.Close()
		return nil, over
	}
	if !isMember {
		pidfd.Close()
		return nil, other
	}
	return pidfd, living
}

// procFolder is where /proc is. Tests have another.
var procFolder = "/proc"

// visit calls f with the numbers of all processes, rising, until it returns false. Where
// /proc is not there, or is that of another pid namespace, they are all numbers that a
// process can have, which takes up to seconds; it reports which. Where /proc hides the
// processes of others (hidepid=2) it lists those that this one may read.
func visit(f func(pid int) bool) (listed bool) {
	dir, err := os.Open(procFolder)
	if err == nil {
		defer dir.Close()
	}
	if err != nil || !isProcOurs() {
		for pid, end := 1, highestPID(); pid < end && f(pid); pid++ {
		}
		return false
	}
	buffer := make([]byte, 256) // a few at a time, so that few have ended when they are visited
	for {
		n, err := syscall.ReadDirent(int(dir.Fd()), buffer)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return true
		}
		_, _, names := syscall.ParseDirent(buffer[:n], -1, nil)
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil && !f(pid) {
				return true
			}
		}
	}
}

// highestPID returns what no number of a process reaches.
func highestPID() int {
	const limit = 1 << 22 // PID_MAX_LIMIT of Linux's threads.h
	text, _ := os.ReadFile("/proc/sys/kernel/pid_max")
	if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		return n
	}
	return limit
}
