// The members of a family: which processes with its mark belong to it.
//
// All users can read a mark, in /proc/PID/limits, and each can set it for its own processes.
// So the mark alone would let any user prolong another's lease. A process of the family's
// user with the mark is a member: that user could keep the lease by other means, too. A process
// with other users, such as a daemon that has given up root, is one only where the kernel shows
// of it what a process inherits and cannot choose by itself: its control groups, and the session
// of the audit system. Where all processes have the same, as in one container without sessions,
// such a process cannot be told from a daemon of the family; lists name it with its user.

package launch

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// A family is its mark, and what the first of its processes has, see the head of this file.
type family struct {
	mark    mark
	user    int
	groups  []string // the lines of /proc/PID/cgroup; none where this kernel has no control groups
	session string   // of the audit system; empty where this kernel has none
	read    func(pid int, name string) (text string, err error)
}

// familyOf returns the family with a mark that this process, its keeper, has just been
// started for: it has inherited its control groups and session from what started both.
func familyOf(m mark) *family { return familyLike(m, os.Geteuid(), os.Getpid(), readProcess) }

// familyLike returns the family of a user with what a process has, as read reads it.
func familyLike(m mark, user, pid int, read func(int, string) (string, error)) *family {
	f := &family{mark: m, user: user, read: read}
	if text, err := read(pid, "cgroup"); err == nil {
		f.groups = slices.Collect(strings.Lines(text))
	}
	if text, err := read(pid, "sessionid"); err == nil {
		f.session = text
	}
	return f
}

// has reports whether a process is of the family. The error is syscall.ESRCH if there is no
// such process.
func (f *family) has(pid int) (bool, error) {
	of, err := markOf(pid)
	return err == nil && of == f.mark && f.admits(pid), err
}

// admits reports whether a process with the mark may be of the family. One of which nothing can
// be read is: it has ended meanwhile, or its mark was read without /proc, as root or its own user.
func (f *family) admits(pid int) bool {
	status, err := f.read(pid, "status")
	if err != nil || isOnlyOf(f.user, status) {
		return true
	}
	if groups, err := f.read(pid, "cgroup"); err == nil {
		// Those that were mounted since are not among the family's.
		lines := slices.Collect(strings.Lines(groups))
		for _, line := range f.groups {
			if !slices.Contains(lines, line) {
				return false
			}
		}
	}
	session, err := f.read(pid, "sessionid")
	return err != nil || f.session == "" || session == f.session
}

// isOnlyOf reports whether all users of a process are the same: the real, the effective, the
// saved and that for files. Otherwise anybody's sudo would be root's.
func isOnlyOf(user int, status string) bool {
	_, line, _ := strings.Cut(status, "\nUid:")
	line, _, _ = strings.Cut(line, "\n")
	users := strings.Fields(line)
	isOther := func(n string) bool { return n != strconv.Itoa(user) }
	return len(users) == 4 && !slices.ContainsFunc(users, isOther)
}

// readProcess reads a file of a process from /proc.
func readProcess(pid int, name string) (string, error) {
	if !isProcOurs() {
		return "", os.ErrNotExist
	}
	text, err := os.ReadFile(procFolder + "/" + strconv.Itoa(pid) + "/" + name)
	return string(text), err
}

// isProcOurs reports whether /proc has the processes by the numbers that they have here: it may
// be that of another pid namespace.
func isProcOurs() bool {
	self, err := os.Readlink(procFolder + "/self")
	return err == nil && self == strconv.Itoa(os.Getpid())
}
