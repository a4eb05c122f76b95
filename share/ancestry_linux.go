// Process ancestry, read from /proc: the lease that memory, or this process,
// belongs to.

package share

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// stat is part of /proc/PID/stat, see proc(5).
type stat struct {
	parent, group, session int
	start                  uint64 // in ticks since the machine's start
	state                  byte
}

// stopped reports whether a signal or a debugger has stopped the process.
func (s stat) stopped() bool { return s.state == 'T' || s.state == 't' }

// ended reports whether only the process's exit status is left.
func (s stat) ended() bool { return s.state == 'Z' || s.state == 'X' }

// ticks is USER_HZ, 100 a second on every architecture that Go runs on.
const ticks = 100

// readStat reads a process's state; ok is false if the process does not exist or is
// not readable.
func readStat(pid int) (s stat, ok bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return s, false
	}
	return parseStat(data)
}

// commandOf returns a process's command line, or nil.
func commandOf(pid int) []string {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if text := strings.TrimRight(string(data), "\x00"); err == nil && text != "" {
		return strings.Split(text, "\x00")
	}
	return nil
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
	s = stat{int(number(4)), int(number(5)), int(number(6)), number(22), fields[0][0]}
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

// young reports whether a process started within the last second.
func (f *family) young(pid int, up time.Duration) bool {
	s := f.stat(pid)
	return s != nil && up-time.Duration(s.start)*(time.Second/ticks) < recently
}

// Owners finds the leases that processes belong to, as the registry counts their
// memory. It reads each process once, so it is good for one look.
type Owners struct {
	f     *family
	first map[who]Entry
	held  map[int]Entry
}

// NewOwners is for the leases among the entries. A lease that lives on in processes
// that its own has left behind owns those, too.
func NewOwners(entries []Entry) *Owners {
	o := &Owners{first: map[who]Entry{}, held: map[int]Entry{}}
	var leases []record
	for _, e := range entries {
		if e.State != Holds {
			continue
		}
		r := record{PID: e.PID, Start: e.Start, Namespace: e.Namespace}
		leases = append(leases, r)
		if _, ok := o.first[r.who()]; !ok {
			o.first[r.who()] = e
		}
		for _, h := range e.HeldBy {
			o.held[h.PID] = e
		}
	}
	o.f = newFamily(readStat, leases, namespace())
	return o
}

// Of returns the lease that a process belongs to, of several that its owner has the
// first; ok is false if it belongs to none.
func (o *Owners) Of(pid int) (e Entry, ok bool) {
	if w, ok := o.f.owner(pid); ok {
		return o.first[w], true
	}
	e, ok = o.held[pid]
	return e, ok
}

// taken are the ids of leases that this process took and has not closed.
var taken sync.Map

// Enclosing returns the lease on a GPU that this process runs in: one whose lock it
// has inherited, else that of this process or its nearest ancestor, of several the
// largest. A lease that this process took itself does not count. ok is false if
// there is none.
func (r *Registry) Enclosing(device string) (e Entry, ok bool, err error) {
	key := keyOf(device)
	files, err := r.files(key)
	if err != nil {
		return Entry{}, false, err
	}
	leases, _, _ := r.all(key, files[key]) // what cannot be read encloses nobody
	leases = slices.DeleteFunc(leases, func(l found) bool { _, ok := taken.Load(l.ID); return ok })
	inherited := locksIn(strconv.Itoa(os.Getpid()))
	for _, l := range leases {
		if inherited[l.inode] || inherited[l.Lost] {
			return r.entry(l), true, nil
		}
	}
	pid := os.Getpid()
	for range 1000 { // parents that end meanwhile could make it go round
		s, there := readStat(pid)
		if !there {
			break
		}
		for _, l := range leases {
			if l.PID == pid && l.Start == s.start && l.Namespace == r.namespace && (!ok || l.Bytes > e.Bytes) {
				e, ok = r.entry(l), true
			}
		}
		if ok {
			return e, true, nil
		}
		pid = s.parent
	}
	return Entry{}, false, nil
}

// uptime is the time since the machine started; 0 if it cannot be told, when
// every process counts as young.
func uptime() time.Duration {
	data, _ := os.ReadFile("/proc/uptime")
	text, _, _ := strings.Cut(string(data), " ")
	seconds, _ := strconv.ParseFloat(text, 64)
	return time.Duration(seconds * float64(time.Second))
}
