// What a program holds outside of its pool is estimated before its first run,
// and measured in every run: next time it has the room that it really needs.

package launch

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"gpumem/device"
	"gpumem/internal/proc"
	"gpumem/policy"
	"gpumem/share"
	"gpumem/share/overhead"
)

// When a running program is looked at: often enough to see what it holds once
// its libraries are loaded, seldom enough to cost nothing.
const (
	firstLook = 2 * time.Second
	nextLook  = 10 * time.Second
)

// learner watches one program.
type learner struct {
	pid    int
	env    []string
	meter  share.Meter
	parent func(pid int) int // of a process; 0: none, or not known
	loaded func(pid int) []proc.Framework
	most   map[string]uint64 // by framework: the most held outside of the pool
}

func newLearner(pid int, env []string, meter share.Meter) *learner {
	return &learner{pid: pid, env: env, meter: meter, parent: parentOf, loaded: loadedBy, most: map[string]uint64{}}
}

// watch looks at the program until ctx is done.
func (l *learner) watch(ctx context.Context) {
	t := time.NewTimer(firstLook)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			l.look()
			t.Reset(nextLook)
		}
	}
}

// look measures once. Only a framework that takes its whole pool at once can be
// measured from outside: what more the program holds is not the pool's.
func (l *learner) look() {
	s, err := l.meter.Status()
	if err != nil {
		return
	}
	var used uint64
	for _, p := range s.Processes {
		if p.Known && l.ours(p.PID) {
			used += p.Used
		}
	}
	frameworks := l.loaded(l.pid)
	if used == 0 || len(frameworks) != 1 { // of several nobody can tell whose it is
		return
	}
	f := frameworks[0]
	pool := poolOf(policy.Framework{Name: f.Name, Version: f.Version}, l.env, s)
	if pool > 0 && used > pool {
		l.most[f.Name] = max(l.most[f.Name], used-pool)
	}
}

// ours says whether a process is the program or a descendant of it.
func (l *learner) ours(pid int) bool {
	for range 32 {
		if pid == l.pid {
			return true
		}
		if pid = l.parent(pid); pid <= 1 {
			return false
		}
	}
	return false
}

// poolOf is what a framework's pool has taken at its first operation; 0 where it
// takes what it needs.
func poolOf(f policy.Framework, env []string, s device.Status) uint64 {
	d := policy.Device{Ordinal: s.Ordinal, Total: s.Total, Free: s.Total, Granularity: s.Granularity, CCMajor: s.CCMajor}
	a, err := policy.Explain(policy.Environ(env), f, d)
	if err != nil {
		f.Version = "" // a release that is not known
		if a, err = policy.Explain(policy.Environ(env), f, d); err != nil {
			return 0
		}
	}
	if !a.Preallocate {
		return 0
	}
	unit := max(s.Granularity, 1)
	return (a.Gets + unit - 1) / unit * unit
}

// save keeps what was measured.
func (l *learner) save(where overhead.Store, program string, say func(string, ...any)) {
	for framework, bytes := range l.most {
		if err := where.Save(program, framework, bytes); err != nil {
			say("%s", strings.TrimSpace(err.Error()))
			return
		}
	}
}

func parentOf(pid int) int {
	s, _ := proc.ReadStat(pid)
	return s.Parent
}

func loadedBy(pid int) []proc.Framework {
	list, err := proc.Frameworks(pid)
	if err != nil {
		return nil
	}
	return list
}

// interpreter is a Python, such as python3.11.
var interpreter = regexp.MustCompile(`^python([0-9.]*)$`)

// programName is the name under which a command's measurements are kept: the program
// and, if it is an interpreter's, the script or module (-m), with absolute paths
// of what is a file in dir.
func programName(command []string, dir string) string {
	if len(command) == 0 {
		return ""
	}
	name := filepath.Base(command[0])
	if !interpreter.MatchString(name) {
		return name
	}
	for i, w := range command[1:] {
		switch {
		case w == "-m" && i+2 < len(command):
			return name + " -m " + command[i+2]
		case w == "-c":
			return name + " -c"
		case strings.HasPrefix(w, "-"):
			continue
		case !filepath.IsAbs(w):
			w = filepath.Join(dir, w)
		}
		return name + " " + w
	}
	return name
}
