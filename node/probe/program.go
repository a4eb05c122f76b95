// Readings of the programs: who they are, what they have loaded, and what their
// environment asks for.

package probe

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"gpumem/device/open"
	"gpumem/internal/proc"
	"gpumem/node/internal/hook"
	"gpumem/node/machine"
	"gpumem/node/share"
	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
	"gpumem/size"
)

// reading is what the system shows of a process.
type reading struct {
	info             proc.Info
	err              error // of reading it at all
	loaded           []proc.Framework
	environ          []string
	loadErr, readErr error // of the two above
}

// asks reports whether it is known what the process's frameworks ask for.
func (r *reading) asks() bool { return len(r.loaded) > 0 && r.loadErr == nil && r.readErr == nil }

// readAll reads processes, several at once: the list of what a framework has mapped is
// long, and the kernel writes it slowly.
func readAll(pids []int) map[int]*reading {
	all := make([]reading, len(pids))
	concurrently(len(pids), func(i int) {
		r, pid := &all[i], pids[i]
		if r.info, r.err = proc.Look(pid); r.err != nil {
			return
		}
		r.loaded, r.loadErr = proc.Frameworks(pid)
		r.environ, r.readErr = proc.Environ(pid)
	})
	byPID := map[int]*reading{}
	for i, pid := range pids {
		byPID[pid] = &all[i]
	}
	return byPID
}

// concurrently calls do for each number below n, on as many goroutines as there are
// processors.
func concurrently(n int, do func(i int)) {
	next := make(chan int)
	var group sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		group.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
}

// describe adds who a program is. p.Start is that of the GPU's process, if the GPU knows it.
// With real its number is from a driver, which has the machine's; here it may be another
// process's.
func describe(p *machine.Program, r *reading, real bool) {
	isAnotherName := p.Name != "" && p.Name != r.info.Name
	isAnotherStart := p.Start != 0 && p.Start != r.info.Start
	switch {
	case r.err != nil:
		p.Unknown = r.err.Error()
		return
	case isAnotherName || isAnotherStart:
		p.Unknown = fmt.Sprintf("process %d is %s here, and the GPU's is %s: its number is another one's here", p.PID, r.info.Name, p.Name)
		return
	case real && !proc.HostPIDs() && !usesGPU(p.PID):
		p.Unknown = fmt.Sprintf("process %d here has no GPU open: the GPU's is another, outside this container", p.PID)
		return
	}
	i := &r.info
	p.Name, p.User, p.Command, p.Container = i.Name, i.User, i.Command, i.Container
	p.ParentGone, p.Parent, p.Started, p.Start = &i.ParentGone, &i.Parent, &i.Started, i.Start
	if r.loadErr == nil {
		p.Frameworks = []string{}
	}
	for _, f := range r.loaded {
		p.Frameworks, p.Releases = append(p.Frameworks, f.Name), append(p.Releases, f.Version)
	}
}

// underLease adds what concerns the lease of a program: a process that had it and has
// ended, and the Python hook. The hook's folder in a container is not this one's.
func underLease(p *machine.Program, l share.Entry, r *reading) {
	for _, c := range l.Containers {
		if p.Container != "" && strings.HasPrefix(c.ID, p.Container) {
			c := machine.Container(c)
			p.Pod = &c
		}
	}
	if l.Ended && len(l.Containers) == 0 {
		p.LeftBy = l.PID
	}
	isReadHere := p.Started != nil && p.Container == "" && r.readErr == nil
	if isReadHere && !servedByPool(r.environ) {
		hooked := hook.Found(r.environ)
		p.Hooked = &hooked
	}
}

// usesGPU reports whether a process has the driver open: NVIDIA's, or Windows' under
// WSL.
func usesGPU(pid int) bool {
	for _, prefix := range []string{"/dev/nvidia", "/dev/dxg"} {
		if ok, _ := proc.Opens(pid, prefix); ok {
			return true
		}
	}
	return false
}

// fillAsks adds what programs ask for. Reading an environment takes long, and programs
// that are started together mostly ask for the same.
func fillAsks(devices []machine.Device, listed []open.Listed, read map[int]*reading) {
	type question struct {
		from     *reading
		on       policy.Device
		programs []*machine.Program
	}
	same := map[string]*question{}
	for n := range devices {
		for i := range devices[n].Programs {
			p := &devices[n].Programs[i]
			r := read[p.PID]
			if p.Started == nil || !r.asks() {
				continue
			}
			on := asFound(listed[n], p.Holds())
			key := fmt.Sprintf("%v %v %q", on, r.loaded, slices.DeleteFunc(slices.Clone(r.environ), everyday))
			if same[key] == nil {
				same[key] = &question{from: r, on: on}
			}
			same[key].programs = append(same[key].programs, p)
		}
	}
	all := slices.Collect(maps.Values(same))
	concurrently(len(all), func(i int) {
		q := all[i]
		asks := asksFor(environment(q.from.info.PID, q.from.environ), q.from.loaded, q.on)
		for _, p := range q.programs {
			p.Asks = asks
		}
	})
}

// everyday reports whether a line of an environment is of a variable that shells set
// anew for each program.
func everyday(line string) bool {
	name, _, _ := strings.Cut(line, "=")
	return slices.Contains([]string{"_", "PWD", "OLDPWD", "SHLVL", "HOSTNAME"}, name)
}

// environment is a process's environment, with the files that its values name where the
// process finds them.
func environment(pid int, environ []string) policy.Environment {
	return policy.Environ(environ).In(fmt.Sprintf("/proc/%d/root", pid), fmt.Sprintf("/proc/%d/cwd", pid))
}

// asFound returns the device as a program found it that now holds bytes there: they
// were free then.
func asFound(d open.Listed, holds uint64) policy.Device {
	free := d.Total // if the driver does not report it
	if d.Free > 0 || d.Used > 0 {
		free = min(d.Total, d.Free+holds)
	}
	return policy.Device{Ordinal: d.Ordinal, Total: d.Total, Free: free, Granularity: d.Granularity, CCMajor: d.CCMajor, NoPages: !d.HasPages, NoPools: !d.HasPools}
}

// asksFor returns what an environment asks for as the first known framework reads it,
// in its release where that is known. It is nil if no framework is.
func asksFor(env policy.Environment, loaded []proc.Framework, d policy.Device) *machine.Asks {
	for _, f := range loaded {
		for _, version := range []string{f.Version, ""} {
			if a, err := explain.Environment(env, frameworks.Release{Name: f.Name, Version: version}, d); err == nil {
				return &machine.Asks{
					Framework: a.Framework, Version: a.Version, Summary: a.Summary(), Brief: brief(&a), Allocator: a.Allocator,
					First: a.First, Limit: a.Limit, Warnings: len(a.Warnings), Errors: len(a.Errors),
				}
			}
		}
	}
	return nil
}

// brief is an answer's summary in a few words.
func brief(a *explain.Answer) string {
	s := "as needed"
	switch {
	case len(a.Errors) > 0 && a.Errors[0].CPU:
		s = "runs on the CPU"
	case len(a.Errors) > 0:
		s = a.Errors[0].Name + " is refused"
	case a.Allocator == "":
		s = "sees no GPU"
	case a.Policy.Kind == policy.Platform, a.Policy.Kind == policy.Address:
		s = "as needed, keeps nothing"
	case a.AtOnce():
		s = size.Format(a.First) + " at once"
	case a.Limit != nil:
		s = "up to " + size.Format(*a.Limit)
	}
	switch n := len(a.Warnings); {
	case n == 1:
		s += " (1 warning)"
	case n > 1:
		s += fmt.Sprintf(" (%d warnings)", n)
	}
	return s
}

// Process reads a running process: what it has loaded, and the variables about GPU
// memory that it was started with. Others are private. note is the reason if the
// environment is hidden, as processes that set their title hide it.
func Process(pid int) (p *machine.Process, note string, err error) {
	loaded, err := proc.Frameworks(pid)
	if err != nil {
		return nil, "", err
	}
	p = &machine.Process{PID: pid, Frameworks: []string{}, Versions: map[string]string{}}
	for _, f := range loaded {
		p.Frameworks = append(p.Frameworks, f.Name)
		if f.Version != "" {
			p.Versions[f.Name] = f.Version
		}
	}
	environ, err := proc.Environ(pid)
	if err != nil {
		return p, err.Error(), nil
	}
	env := policy.Environ(environ)
	p.Env = map[string]string{}
	for _, v := range frameworks.Variables() {
		if value, set := env.Lookup(v.Name); set {
			p.Env[v.Name] = value
		}
	}
	return p, "", nil
}
