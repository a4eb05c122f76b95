// Process ancestry, read from /proc: the lease that memory, or this process,
// belongs to.

package account

import (
	"strings"

	"gpumem/device"
	"gpumem/internal/proc"
)

// idDigits is the length of a container's id.
const idDigits = 64

// Ancestry finds the leases that processes belong to. It reads each process once, so
// it is good for one pass.
type Ancestry struct {
	read       func(pid int) (proc.Stat, bool)
	Cgroup     func(pid int) string // of /proc; tests have another
	known      map[int]*proc.Stat   // nil: there is none
	leases     map[int]uint64
	containers map[string]string // leases by the ids of their containers
	first      map[identity]int  // the first lease of each owner
}

// NewAncestry returns the ancestry for these leases. read reads a process. The processes of
// other namespaces are left out: their pids mean nothing here. The ids of containers mean
// the same everywhere.
func NewAncestry(read func(int) (proc.Stat, bool), leases []Lease, namespace uint64) *Ancestry {
	f := &Ancestry{read, proc.Cgroup, map[int]*proc.Stat{}, map[int]uint64{}, map[string]string{}, map[identity]int{}}
	for i, l := range leases {
		if _, ok := f.first[l.process()]; !ok {
			f.first[l.process()] = i
		}
		f.first[l.inside()] = i
		if l.Namespace == namespace {
			f.leases[l.PID] = l.Start
		}
		for _, id := range l.Containers {
			f.containers[id] = l.ID
		}
	}
	return f
}

func (f *Ancestry) stat(pid int) *proc.Stat {
	s, ok := f.known[pid]
	if !ok {
		if got, there := f.read(pid); there {
			s = &got
		}
		f.known[pid] = s
	}
	return s
}

// Owner returns whose memory that of pid is: the lease's whose container it is in, else
// that of the nearest of pid and its ancestors that has a lease, or that is in a session
// or process group led by a process with a lease.
func (f *Ancestry) Owner(pid int) (identity, bool) {
	if len(f.containers) > 0 && pid > 0 {
		if lease, ok := containerOf(f.Cgroup(pid), f.containers); ok {
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

// LeaseOf returns the index of the lease that a process belongs to, of several that its owner
// has the first; ok is false if it belongs to none.
func (f *Ancestry) LeaseOf(pid int) (i int, ok bool) {
	w, ok := f.Owner(pid)
	return f.first[w], ok
}

// IsMoving reports whether a lease or one of the foreign processes began within the last
// second.
func (f *Ancestry) IsMoving(leases []Lease, foreign []device.Process) bool {
	for _, l := range leases {
		if IsRecent(l.Since) {
			return true
		}
	}
	up := proc.Uptime()
	for _, p := range foreign {
		if s := f.stat(p.PID); s != nil && s.Age(up) < Recently {
			return true
		}
	}
	return false
}

// containerOf returns the lease whose container a process is in, by the lines of its
// /proc/PID/cgroup. Of containers one inside the other it is the innermost.
func containerOf(cgroup string, leases map[string]string) (lease string, ok bool) {
	for line := range strings.Lines(cgroup) {
		for part := range strings.SplitSeq(strings.TrimSuffix(line, "\n"), "/") {
			for at := 0; at+idDigits <= len(part); at++ {
				if id, found := leases[part[at:at+idDigits]]; found {
					lease, ok = id, true
				}
			}
		}
	}
	return lease, ok
}
