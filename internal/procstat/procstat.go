// Package procstat reads /proc/PID/stat: a process's state, parents and start, for those who
// look at many processes. It is apart from package proc, because the pool library needs it
// and has no room for the rest.
package procstat

import (
	"os"
	"strconv"
	"strings"
	"time"
)

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

// TicksPerSecond is USER_HZ, which is 100 on every system that Go runs on.
const TicksPerSecond = 100

// Age returns the time since the process's start, for the machine's [Uptime].
func (s Stat) Age(up time.Duration) time.Duration {
	return up - time.Duration(s.Start)*(time.Second/TicksPerSecond)
}

// Read returns a process's state; ok is false if the process does not exist or is not
// readable, and on systems without /proc.
func Read(pid int) (s Stat, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, false
	}
	return Parse(string(text))
}

// Self returns this process's state, which is empty where it is not readable. It is that of
// its own pid namespace, which the files of /proc may not be.
func Self() Stat {
	text, _ := os.ReadFile("/proc/self/stat")
	s, _ := Parse(string(text))
	return s
}

// Parse reads PID (NAME) STATE PARENT ..., where the name may have anything
// in it.
func Parse(text string) (s Stat, ok bool) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return s, false
	}
	f := strings.Fields(text[end+1:])
	if len(f) < 20 || len(f[0]) != 1 { // from field 3 to 22, the start
		return s, false
	}
	s.Name, s.State = text[open+1:end], f[0][0]
	for i, to := range map[int]*int{1: &s.Parent, 2: &s.Group, 3: &s.Session, 17: &s.Threads} {
		n, err := strconv.ParseInt(f[i], 10, 32)
		if err != nil || n < 0 {
			return Stat{}, false
		}
		*to = int(n)
	}
	var err error
	if s.Start, err = strconv.ParseUint(f[19], 10, 64); err != nil {
		return Stat{}, false
	}
	return s, true
}
