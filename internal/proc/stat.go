// A process's state, parents and start, for those who look at many processes.

package proc

import "time"

// Stat is part of what /proc/PID/stat says of a process, see proc(5).
type Stat struct {
	Name                            string // as the kernel has it, up to 15 bytes
	State                           byte   // a letter, such as R or S
	Parent, Group, Session, Threads int
	Start                           uint64 // in clock ticks since the machine's start
}

// Stopped reports whether a signal or a debugger has stopped the process.
func (s Stat) Stopped() bool { return s.State == 'T' || s.State == 't' }

// Ended reports whether only the process's exit status is left. It is true, too, of a
// process whose first thread alone has ended.
func (s Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' }

// ticksPerSecond is USER_HZ, which is 100 on every system that Go runs on.
const ticksPerSecond = 100

// Age returns the time since the process's start, for the machine's [Uptime].
func (s Stat) Age(up time.Duration) time.Duration {
	return up - time.Duration(s.Start)*(time.Second/ticksPerSecond)
}

// ReadStat returns a process's state; ok is false if the process does not exist or is
// not readable. It reads one file, where [Look] reads several.
func ReadStat(pid int) (s Stat, ok bool) { return readStat(pid) }

// Self returns this process's state, which is empty where it is not readable. It is that of
// its own pid namespace, which the files of /proc may not be.
func Self() Stat { return self() }

// Cgroup returns a process's /proc/PID/cgroup, or "" if it is not readable.
func Cgroup(pid int) string { return cgroup(pid) }

// Command returns a process's command line, or nil.
func Command(pid int) []string { return command(pid) }

// Uptime returns the time since the machine's start, or 0 if it is unknown.
func Uptime() time.Duration { return uptime() }
