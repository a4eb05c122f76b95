// Whose memory is it: what Linux tells about the family of a process.

package share

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// stat is what /proc/PID/stat tells, see proc(5).
type stat struct {
	parent, group, session int
	start                  uint64 // in ticks since the machine's start
}

// ticks is USER_HZ, 100 a second on every architecture that Go runs on.
const ticks = 100

// readStat is a process as it is now; ok is false if there is none, or none
// that this user may see.
func readStat(pid int) (s stat, ok bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return s, false
	}
	return parseStat(data)
}

func parseStat(data []byte) (s stat, ok bool) {
	// The second field is the name in brackets, and may have any in it.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return s, false
	}
	number := func(i int) uint64 { // of the field that proc(5) calls i
		n, err := strconv.ParseUint(fields[i-3], 10, 64)
		ok = ok && err == nil
		return n
	}
	ok = true
	s = stat{int(number(4)), int(number(5)), int(number(6)), number(22)}
	return s, ok
}

// namespace is the inode of the pid namespace that this process lives in, 0 if
// it cannot be told.
func namespace() uint64 {
	text, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return 0
	}
	var n uint64
	if _, err := fmt.Sscanf(text, "pid:[%d]", &n); err != nil {
		return 0
	}
	return n
}

// family finds the leases that processes belong to. It asks about each process
// once, so it is good for one look.
type family struct {
	read   func(pid int) (stat, bool)
	known  map[int]*stat // nil: there is none
	leases map[int]uint64
}

// newFamily is for these leases; those of other namespaces have pids that mean
// nothing here.
func newFamily(read func(int) (stat, bool), leases []record, namespace uint64) *family {
	f := &family{read, map[int]*stat{}, map[int]uint64{}}
	for _, l := range leases {
		if l.Namespace == namespace {
			f.leases[l.PID] = l.Start
		}
	}
	return f
}

func (f *family) stat(pid int) *stat {
	s, ok := f.known[pid]
	if !ok {
		if got, there := f.read(pid); there {
			s = &got
		}
		f.known[pid] = s
	}
	return s
}

// owner is the process whose lease memory of pid belongs to: the nearest of it
// and its ancestors that has one, or that is in a session or group which one
// with a lease leads.
func (f *family) owner(pid int) (who, bool) {
	// A parent that ends while this goes upward could make it go round.
	for range 1000 {
		s := f.stat(pid)
		if s == nil || pid <= 0 {
			return who{}, false
		}
		if start, ok := f.leases[pid]; ok && start == s.start {
			return who{pid, start}, true
		}
		for _, leader := range []int{s.group, s.session} {
			// The number of a group is not used again while it has members; so
			// if there is such a process, it is the leader.
			start, ok := f.leases[leader]
			if l := f.stat(leader); ok && start <= s.start && (l == nil || l.start == start) {
				return who{leader, start}, true
			}
		}
		pid = s.parent
	}
	return who{}, false
}

// young says whether a process started within the last second.
func (f *family) young(pid int, up time.Duration) bool {
	s := f.stat(pid)
	return s != nil && up-time.Duration(s.start)*(time.Second/ticks) < recently
}

// uptime is the time since the machine started; 0 if it cannot be told, when
// every process counts as young.
func uptime() time.Duration {
	data, _ := os.ReadFile("/proc/uptime")
	text, _, _ := strings.Cut(string(data), " ")
	seconds, _ := strconv.ParseFloat(text, 64)
	return time.Duration(seconds * float64(time.Second))
}
