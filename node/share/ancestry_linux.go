// Process ancestry, read from /proc: the lease that memory, or this process,
// belongs to.

package share

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"gpumem/internal/proc"
)

// namespace returns the inode of this process's pid namespace, or 0 if it is unknown.
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

// ancestry finds the leases that processes belong to. It reads each process once, so
// it is good for one pass.
type ancestry struct {
	read       func(pid int) (proc.Stat, bool)
	cgroup     func(pid int) string // of /proc; tests have another
	known      map[int]*proc.Stat   // nil: there is none
	leases     map[int]uint64
	containers map[string]string // leases by the ids of their containers
}

// newAncestry is for these leases. The processes of other namespaces are left out: their
// pids mean nothing here. The ids of containers mean the same everywhere.
func newAncestry(read func(int) (proc.Stat, bool), leases []record, namespace uint64) *ancestry {
	f := &ancestry{read, proc.Cgroup, map[int]*proc.Stat{}, map[int]uint64{}, map[string]string{}}
	for _, l := range leases {
		if l.Namespace == namespace {
			f.leases[l.PID] = l.Start
		}
		for _, c := range l.Containers {
			f.containers[c.ID] = l.ID
		}
	}
	return f
}

func (f *ancestry) stat(pid int) *proc.Stat {
	s, ok := f.known[pid]
	if !ok {
		if got, there := f.read(pid); there {
			s = &got
		}
		f.known[pid] = s
	}
	return s
}

// owner returns whose memory that of pid is: the lease's whose container it is in, else
// that of the nearest of pid and its ancestors that has a lease, or that is in a session
// or process group led by a process with a lease.
func (f *ancestry) owner(pid int) (identity, bool) {
	if len(f.containers) > 0 && pid > 0 {
		if lease, ok := containerOf(f.cgroup(pid), f.containers); ok {
			return identity{lease: lease}, true
		}
	}
	// A parent that ends meanwhile could close a circle.
	for range 1000 {
		s := f.stat(pid)
		if s == nil || pid <= 0 {
			return identity{}, false
		}
		if start, ok := f.leases[pid]; ok && start == s.Start {
			return identity{pid: pid, start: start}, true
		}
		for _, leader := range []int{s.Group, s.Session} {
			// The number of a group is not used again while it has members; so
			// if there is such a process, it is the leader.
			start, ok := f.leases[leader]
			if l := f.stat(leader); ok && start <= s.Start && (l == nil || l.Start == start) {
				return identity{pid: leader, start: start}, true
			}
		}
		pid = s.Parent
	}
	return identity{}, false
}

// young reports whether a process started within the last second.
func (f *ancestry) young(pid int, up time.Duration) bool {
	s := f.stat(pid)
	return s != nil && s.Age(up) < recently
}

// Owners finds the leases that processes belong to, as the registry counts their
// memory. It reads each process once, so it is good for one reading of the GPU.
type Owners struct {
	f     *ancestry
	first map[identity]Entry
	held  map[int]Entry
}

// NewOwners returns the owners among the leases in entries. A lease whose process has
// ended owns the processes that hold it.
func NewOwners(entries []Entry) *Owners {
	o := &Owners{first: map[identity]Entry{}, held: map[int]Entry{}}
	var leases []record
	for _, e := range entries {
		if e.State != Holds {
			continue
		}
		r := record{ID: e.ID, PID: e.PID, Start: e.Start, Namespace: e.Namespace, Containers: e.Containers}
		leases = append(leases, r)
		if len(e.Containers) > 0 {
			o.first[r.inside()] = e
		}
		if _, ok := o.first[r.identity()]; !ok {
			o.first[r.identity()] = e
		}
		for _, h := range e.HeldBy {
			o.held[h.PID] = e
		}
	}
	o.f = newAncestry(proc.ReadStat, leases, namespace())
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

// taken are the leases that this process took and has not closed, by id. It keeps them
// from the garbage collector, which would close the file of a lease that the program has
// dropped, and so end the lease.
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
	leases, _, _ := r.all(key, files[key]) // an unreadable lease encloses no process
	leases = slices.DeleteFunc(leases, func(l claim) bool { _, ok := taken.Load(l.ID); return ok })
	inherited := locksIn(strconv.Itoa(os.Getpid()))
	for _, l := range leases {
		if inherited[l.inode] || inherited[l.Lost] {
			return r.entry(l), true, nil
		}
	}
	pid := os.Getpid()
	for range 1000 { // parents that end meanwhile could make it go round
		s, there := proc.ReadStat(pid)
		if !there {
			break
		}
		for _, l := range leases {
			if l.PID == pid && l.Start == s.Start && l.Namespace == r.namespace && (!ok || l.Bytes > e.Bytes) {
				e, ok = r.entry(l), true
			}
		}
		if ok {
			return e, true, nil
		}
		pid = s.Parent
	}
	return Entry{}, false, nil
}
