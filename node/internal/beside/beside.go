// Package beside finds GPU memory that programs in a lease with a pool took past the pool
// library: by a driver that is preloaded or found by a path, without the environment of the
// lease, by a copy of it under another name, or as a static program.
//
// There are two signs. The libraries in a process's memory show a driver that the pool library
// did not load. And the GPU shows more memory of the process than the ledger counts. A driver
// that the program opens by the path by which the pool library has it is the same mapping:
// then only the GPU's figure shows it, and on a GPU that is not simulated only beyond what may
// lie outside of a pool, see [overhead.Bound].
package beside

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpumem/device"
	"gpumem/internal/proc"
	"gpumem/node/internal/overhead"
	"gpumem/node/ledger"
	"gpumem/node/library"
	"gpumem/node/machine"
	"gpumem/node/runenv"
	"gpumem/policy"
)

// Process is one that the GPU lists and that is in a lease with a pool.
type Process struct {
	PID     int
	Environ []string
	Used    uint64 // by the GPU's word
	Known   bool   // the GPU reports Used
	GPU     device.Info
	Member  *ledger.Figures // what the ledger counts; nil if the process is not in it
	// Outside is what each process of the lease is taken to hold outside of the pool. It is
	// for those whose environment does not say it.
	Outside uint64
	// Steady is set if the ledger did not change while the GPU was read. Otherwise the peak
	// of the pool is the measure, and what has no peak makes the answer nil.
	Steady bool
}

// Outside returns what an environment says that a process holds outside of its pool, 0 if it
// says nothing.
func Outside(environ []string) uint64 {
	n, _ := strconv.ParseUint(policy.Environ(environ).Get(runenv.EnvOutside), 10, 64)
	return n
}

// Of returns what a process took beside its lease; nil if it took nothing, was started without
// the library on purpose, or cannot be looked into.
func Of(p Process) *machine.Beside {
	env := policy.Environ(p.Environ)
	inLease := isServed(env.Get(runenv.EnvPool))
	if isLeftAlone(env) {
		return nil
	}
	front, others, err := drivers(p.PID, env)
	if err != nil || p.Known && p.Used == 0 {
		return nil
	}
	outside := p.Outside
	if _, says := env.Lookup(runenv.EnvOutside); says {
		outside = Outside(p.Environ)
	}
	b := &machine.Beside{Outside: outside, Drivers: others}
	if p.Known {
		b.Bytes = &p.Used
	}
	if p.Member == nil && !front {
		b.How = withoutLibrary(inLease, others)
		b.Outside = min(b.Outside, p.Used)
		return b
	}
	b.How = "it has loaded " + strings.Join(others, " and ") + " beside the pool library"
	if len(others) == 0 {
		b.How = "the GPU reports that much more than the ledger counts"
	}
	if !p.isMeasured() {
		b.Bytes, b.Outside = nil, 0
		if len(others) == 0 { // no sign at all
			return nil
		}
		return b
	}
	var counted, most uint64
	if m := p.Member; m != nil {
		counted, most = m.Sum(), m.Sum()
		if !p.Steady {
			most += m.PeakHeld - min(m.PeakHeld, m.Held)
		}
		outside = max(outside, m.Outside)
	} else {
		most = outside // which it has taken, and not yet counted
	}
	// What lies outside of the pool may be more than is reckoned with.
	margin := outside
	switch {
	case p.GPU.Simulated:
		margin = p.GPU.Context
	case len(others) == 0:
		margin = max(outside, overhead.Bound(p.GPU.Total))
	}
	if p.Used <= most+margin {
		return nil
	}
	more := p.Used - counted
	b.Bytes, b.Outside = &more, min(outside, more)
	return b
}

// isServed reports whether a value of the variable of the pool has the library serve one.
func isServed(pool string) bool { return pool != "" && pool != "off" }

// isLeftAlone reports whether a program is not served because somebody wanted that: the library
// passes its calls on, or it was started by --pool off.
func isLeftAlone(env policy.Environment) bool {
	off := env.Get(runenv.EnvOff)
	passesOn := off != "" && off != "0"
	return passesOn || !isServed(env.Get(runenv.EnvPool)) && env.Get(runenv.EnvLeaseID) != ""
}

// isMeasured reports whether it is known to the byte what the process may hold.
func (p Process) isMeasured() bool {
	switch {
	case !p.Known:
		return false
	case p.Member == nil:
		return true
	case p.Member.Uncertain:
		return false
	}
	return p.Steady || p.Member.Charged == 0
}

// withoutLibrary says how a process came to memory that the pool library has not served it.
func withoutLibrary(inLease bool, drivers []string) string {
	names := strings.Join(drivers, " and ")
	switch {
	case len(drivers) > 0 && inLease:
		return "it has loaded " + names + " and not the pool library"
	case len(drivers) > 0:
		return "it was started without the environment of the lease, and has loaded " + names
	case inLease:
		return "it has loaded neither the pool library nor a driver under its name: it is a static program, or has a copy of the driver"
	}
	return "it was started without the environment of the lease"
}

// loaded is proc.Loaded. Tests have others.
var loaded = proc.Loaded

// drivers reports whether a process has loaded the pool library, and returns the drivers'
// libraries that it has loaded past it.
func drivers(pid int, env policy.Environment) (front bool, others []string, err error) {
	list, err := loaded(pid, "libcuda.so")
	if err != nil {
		return false, nil, err
	}
	folder, behind := resolved(pid, env.Get(library.EnvFolder)), resolved(pid, env.Get(library.EnvDriver))
	inFront := func(l proc.Library) bool {
		return slices.Contains(folder, path.Dir(l.Path))
	}
	front = slices.ContainsFunc(list, inFront)
	mayBeBehind := func(l proc.Library) bool { // the library
		return front && l.Copies <= 1 && (l.Deleted || len(behind) < 2 || slices.Contains(behind, l.Path))
	}
	for _, l := range list {
		isStub := path.Base(path.Dir(l.Path)) == "stubs" // it links, and has no driver behind it
		if !inFront(l) && !isStub && !mayBeBehind(l) {
			others = append(others, l.Path)
		}
	}
	return front, others, nil
}

// resolved returns a path as a process has it, and without symbolic links: one of both where
// that is unknown, as in another file system, and none for no path.
func resolved(pid int, name string) []string {
	if name == "" {
		return nil
	}
	if root, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/root"); err == nil && root != "/" {
		return []string{name}
	}
	to, err := filepath.EvalSymlinks(name)
	if err != nil {
		return []string{name}
	}
	return []string{name, to}
}
