// A process's state, parents and start, for those who look at many processes.

package proc

import (
	"time"

	"gpumem/internal/procstat"
)

// Stat is what package procstat reads of a process.
type Stat = procstat.Stat

// ReadStat returns a process's state; ok is false if the process does not exist or is
// not readable. It reads one file, where [Look] reads several.
func ReadStat(pid int) (s Stat, ok bool) { return procstat.Read(pid) }

// Cgroup returns a process's /proc/PID/cgroup, or "" if it is not readable.
func Cgroup(pid int) string { return cgroup(pid) }

// Inner returns the pid namespace of a process, by its inode, and the number that it has there;
// ok is false where the kernel does not show them. It is of this process's namespace or of one
// below.
func Inner(pid int) (namespace uint64, number int, ok bool) { return inner(pid) }

// Command returns a process's command line, or nil.
func Command(pid int) []string { return command(pid) }

// Uptime returns the time since the machine's start, or 0 if it is unknown.
func Uptime() time.Duration { return uptime() }
