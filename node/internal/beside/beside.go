// Package beside finds GPU memory that programs in a lease with a pool took past the pool
// library: by a driver that is preloaded or found by a path, without the environment of the
// lease, or as a static program.
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
	// Steady is set if the ledger did not change while the GPU was read. Otherwise the peak
	// of the pool is the measure, and what has no peak makes the answer nil.
	Steady bool
}

// Of returns what a process took beside its lease; nil if it took nothing, was started without
// the library on purpose, or cannot be looked into.
func Of(p Process) *machine.Beside {
	env := policy.Environ(p.Environ)
	pool, off := env.Get(runenv.EnvPool), env.Get(runenv.EnvOff)
	inLease := pool != "" && pool != "off"
	if off != "" && off != "0" || !inLease && env.Get(runenv.EnvLeaseID) != "" { // --pool off
		return nil
	}
	front, others, err := drivers(p.PID, env)
	if err != nil || p.Known && p.Used == 0 {
		return nil
	}
	outside, _ := strconv.ParseUint(env.Get(runenv.EnvOutside), 10, 64)
	b := &machine.Beside{Outside: outside, Drivers: others}
	if p.Known {
		b.Bytes = &p.Used
	}
	names := strings.Join(others, " and ")
	if p.Member == nil && !front {
		switch {
		case len(others) > 0 && inLease:
			b.How = "it has loaded " + names + " and not the pool library"
		case len(others) > 0:
			b.How = "it was started without the environment of the lease, and has loaded " + names
		case inLease:
			b.How = "neither the pool library nor a driver's is in its memory, as in a static program"
		default:
			b.How = "it was started without the environment of the lease"
		}
		b.Outside = min(b.Outside, p.Used)
		return b
	}
	b.How = "it has loaded " + names + " beside the pool library"
	if len(others) == 0 {
		b.How = "the GPU reports that much more than the ledger counts"
	}
	if !p.Known || p.Member != nil && (p.Member.Uncertain || !p.Steady && p.Member.Charged > 0) {
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
	for _, l := range list {
		switch {
		case inFront(l), path.Base(path.Dir(l.Path)) == "stubs": // a stub links, and has no driver behind it
		case front && l.Copies <= 1 && (l.Deleted || len(behind) < 2 || slices.Contains(behind, l.Path)): // it may be the one behind the library
		default:
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
