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
	Cgroup     func(pid int) string                                 // of /proc; tests have another
	Inner      func(pid int) (namespace uint64, inner int, ok bool) // of /proc, as Cgroup
	namespace  uint64                                               // this process's own
	known      map[int]*proc.Stat                                   // nil: there is none
	leases     map[place]uint64                                     // the starts of their processes
	elsewhere  map[identity]bool                                    // the processes of leases that are of other namespaces
	containers map[string]string                                    // leases by the ids of their containers
	first      map[identity]int                                     // the first lease of each owner
}

// place is where a process has a number.
type place struct {
	namespace uint64
	pid       int
}

// NewAncestry returns the ancestry for these leases. read reads a process; namespace is this
// process's own. A lease's pid means nothing in another namespace: there its process is found
// by the pids that the kernel shows to namespaces around its own, or by its start. The ids of
// containers mean the same everywhere.
func NewAncestry(read func(int) (proc.Stat, bool), leases []Lease, namespace uint64) *Ancestry {
	f := &Ancestry{
		read: read, Cgroup: proc.Cgroup, Inner: proc.Inner, namespace: namespace,
		known: map[int]*proc.Stat{}, leases: map[place]uint64{}, elsewhere: map[identity]bool{},
		containers: map[string]string{}, first: map[identity]int{},
	}
	for i, l := range leases {
		if _, ok := f.first[l.process()]; !ok {
			f.first[l.process()] = i
		}
		f.first[l.inside()] = i
		f.leases[place{l.Namespace, l.PID}] = l.Start
		if f.IsElsewhere(l) {
			f.elsewhere[l.process()] = true
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

// A Sight is what is seen of a process that a GPU names.
type Sight int

// The sights.
const (
	Unseen  Sight = iota // it is not among the processes here: of another namespace, or ended
	Foreign              // it belongs to no lease
	Owned                // it belongs to a lease
)

// OwnerOf returns whose memory that of a GPU's process is, as [Ancestry.Owner]. Where the GPU
// knows its start, its number is not taken for that of another process of this namespace.
func (f *Ancestry) OwnerOf(p device.Process) (identity, Sight) {
	s := f.stat(p.PID)
	if s == nil || isOf(*s, p) {
		if w, ok := f.Owner(p.PID); ok {
			return w, Owned
		}
		if s != nil {
			return identity{}, Foreign
		}
	}
	if w := (identity{pid: p.PID, start: p.Start}); f.elsewhere[w] {
		return w, Owned
	}
	return identity{}, Unseen
}

// isOf reports whether a process here may be the GPU's with its number.
func isOf(s proc.Stat, p device.Process) bool { return p.Start == 0 || p.Start == s.Start }

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
		for _, at := range f.places(pid) {
			if start, ok := f.leases[at]; ok && start == s.Start {
				return identity{pid: at.pid, start: start}, true
			}
		}
		for _, leader := range []int{s.Group, s.Session} {
			for _, at := range f.places(leader) {
				// The number of a group is not used again while it has members; so
				// if there is such a process, it is the leader.
				start, ok := f.leases[at]
				if ok && start <= s.Start && f.mayLead(leader, start) {
					return identity{pid: at.pid, start: start}, true
				}
			}
		}
		pid = s.Parent
	}
	return identity{}, false
}

// mayLead reports whether the process with this number is one with this start, or has ended.
func (f *Ancestry) mayLead(pid int, start uint64) bool {
	l := f.stat(pid)
	return l == nil || l.Start == start
}

// IsElsewhere reports whether a lease's process is of another namespace.
func (f *Ancestry) IsElsewhere(l Lease) bool { return l.Namespace != f.namespace }

// places are the numbers of a process that leases may name it by: that of this namespace, and
// that of its own, if it is of one below this and a lease is.
func (f *Ancestry) places(pid int) []place {
	here := []place{{f.namespace, pid}}
	if len(f.elsewhere) == 0 {
		return here
	}
	if namespace, inner, ok := f.Inner(pid); ok && namespace != f.namespace {
		return append(here, place{namespace, inner})
	}
	return here
}

// LeaseOf returns the index of the lease that a process belongs to, of several that its owner
// has the first; ok is false if it belongs to none.
func (f *Ancestry) LeaseOf(p device.Process) (i int, ok bool) {
	w, sight := f.OwnerOf(p)
	return f.first[w], sight == Owned
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
