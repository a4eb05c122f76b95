// Measurement of the memory that a program holds outside of its pool, for its next run.

package launch

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"gpumem/device"
	"gpumem/internal/proc"
	"gpumem/node/internal/beside"
	"gpumem/node/internal/overhead"
	"gpumem/node/ledger"
	"gpumem/node/machine"
	"gpumem/node/runenv"
	"gpumem/node/share"
	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
	"gpumem/size"
)

// When a running program is measured: often enough to see what it holds once its
// libraries are loaded, seldom enough to cost nothing.
const (
	firstSample = 2 * time.Second
	nextSample  = 10 * time.Second
)

// sampler measures one program while it runs.
type sampler struct {
	pid     int
	run     string // the identity of the lease; "" if env has it
	env     []string
	meter   share.Meter
	parent  func(pid int) int // of a process; 0: none, or unknown
	loaded  func(pid int) []proc.Framework
	environ func(pid int) ([]string, error)
	most    map[overhead.Key]uint64  // the most held outside of the pool
	given   map[overhead.Key]*uint64 // what the run was taken to hold there; nil: unknown
	gpu     device.Info              // what was measured on
	unsure  bool                     // not all else was counted: nothing is learned from this run
	found   func()                   // called where memory was taken beside the lease, while the program lives; nil if nobody is to know

	mu     sync.Mutex
	beside map[int]*machine.Beside // the most that each process took beside the lease; guarded by mu
}

func newSampler(pid int, env []string, meter share.Meter) *sampler {
	return &sampler{
		pid: pid, env: env, meter: meter, most: map[overhead.Key]uint64{}, given: map[overhead.Key]*uint64{},
		parent: parentOf, loaded: loadedBy, environ: proc.Environ,
	}
}

// watch measures the program until ctx is done.
func (s *sampler) watch(ctx context.Context) {
	t := time.NewTimer(firstSample)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.sample()
			t.Reset(nextSample)
		}
	}
}

// note keeps a measurement.
func (s *sampler) note(st device.Status, framework, release string, bytes uint64, given *uint64) {
	k := overhead.Key{Framework: framework, Release: release, GPU: overhead.GPUName(st.Info)}
	s.most[k], s.given[k], s.gpu = max(s.most[k], bytes), given, st.Info
}

// lease returns the identity of the run's lease.
func (s *sampler) lease() string { return cmp.Or(s.run, policy.Environ(s.env).Get(runenv.EnvLeaseID)) }

// sample measures once. Only a framework that takes its whole pool at once can be
// measured from outside: what more the program holds is not the pool's. Where the driver
// library serves the memory, its ledger has what is the pool's.
func (s *sampler) sample() {
	before := s.members()
	st, err := s.meter.Status()
	if err != nil {
		return
	}
	if before != nil {
		after := s.members()
		s.sampleBeside(st, before, after)
		s.sampleMembers(st, before, after)
		return
	}
	var used uint64
	for _, p := range st.Processes {
		if p.Known && s.ours(p.PID) {
			used += p.Used
		}
	}
	loaded := s.loaded(s.pid)
	if used == 0 || len(loaded) != 1 { // of several it is unknown whose the memory is
		return
	}
	f := loaded[0]
	pool := poolOf(frameworks.Release{Name: f.Name, Version: f.Version}, s.env, st)
	if pool > 0 && used > pool {
		var given *uint64
		if part, ok := runenv.Shares(s.env)[s.lease()]; ok {
			rest := part - min(part, pool)
			given = &rest
		}
		s.note(st, f.Name, f.Version, used-pool, given)
	}
}

// members returns the processes of the run that count in the ledger of the first GPU; nil if
// there is no ledger. Those around it, and those of other runs that share the GPU by turns, count
// there, too.
func (s *sampler) members() []ledger.Figures {
	paths := policy.Environ(s.env).Get(runenv.EnvLedger)
	path, _, _ := strings.Cut(paths, runenv.LedgerSeparator)
	if path == "" {
		return nil
	}
	var own uint64 // the innermost part
	if parts, err := ledger.ParseParts(policy.Environ(s.env).Get(runenv.EnvParts)); err == nil && len(parts) > 0 {
		for _, part := range parts[0] {
			own = part.ID
		}
	}
	l, err := ledger.Open(path)
	if err != nil {
		return nil
	}
	defer l.Close()
	isOthers := func(m ledger.Figures) bool { return !m.In(own) }
	return slices.DeleteFunc(append([]ledger.Figures{}, l.Members()...), isOthers)
}

// sampleMembers measures each process in the ledger that has neither taken nor given
// while the GPU's status was read. What more it holds lies outside only if all else is counted
// to the byte: a process with memory beside the pool or with several contexts, of which the
// ledger says so, makes the run none to learn from. Of a process that has a context and has taken
// no memory yet its libraries are still to come.
func (s *sampler) sampleMembers(st device.Status, before, after []ledger.Figures) {
	if s.unsure = s.unsure || slices.ContainsFunc(after, func(m ledger.Figures) bool { return m.Uncertain }); s.unsure {
		return
	}
	var given *uint64
	if _, says := policy.Environ(s.env).Lookup(runenv.EnvOutside); says {
		outside := beside.Outside(s.env)
		given = &outside
	}
	for _, p := range st.Processes {
		i, j := memberOf(p, before), memberOf(p, after)
		if !p.Known || i < 0 || !isSteady(before, after, i, j) {
			continue
		}
		counted := after[j].Held + after[j].Charged
		begun := after[j].PeakHeld+after[j].Charged > 0
		if !begun || p.Used <= counted {
			continue
		}
		name, release := "cuda", ""
		if loaded := s.loaded(p.PID); len(loaded) == 1 {
			name, release = loaded[0].Name, loaded[0].Version
		}
		s.note(st, name, release, p.Used-counted, given)
	}
}

// memberOf returns the index of a process among members; -1 if it is none.
func memberOf(p device.Process, ms []ledger.Figures) int {
	return slices.IndexFunc(ms, func(m ledger.Figures) bool {
		stat, ok := proc.ReadStat(m.PID) // of another pid namespace, it is another process here
		return m.PID == p.PID && ok && stat.Start == m.Start
	})
}

// sampleBeside looks for memory that the program and its descendants took beside the lease. A
// process that has taken or given while the GPU's status was read is left for the next time.
func (s *sampler) sampleBeside(st device.Status, before, after []ledger.Figures) {
	for _, p := range st.Processes {
		i, j := memberOf(p, before), memberOf(p, after)
		if !isSteady(before, after, i, j) || !s.ours(p.PID) {
			continue
		}
		environ, err := s.environ(p.PID)
		if err != nil {
			continue
		}
		one := beside.Process{
			PID: p.PID, Environ: environ, Used: p.Used, Known: p.Known, GPU: st.Info, Outside: beside.Outside(s.env), Steady: true,
		}
		if j >= 0 {
			one.Member = &after[j]
		}
		if b := beside.Of(one); b != nil {
			s.noteBeside(p.PID, b)
		}
	}
}

// isSteady reports whether a process, member i and then member j, has neither come, gone, taken
// nor given.
func isSteady(before, after []ledger.Figures, i, j int) bool {
	if i < 0 || j < 0 {
		return i < 0 && j < 0
	}
	return before[i].Changes == after[j].Changes
}

// noteBeside keeps the most that a process took beside the lease.
func (s *sampler) noteBeside(pid int, b *machine.Beside) {
	s.unsure = true
	if s.found != nil {
		s.found()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.beside == nil {
		s.beside = map[int]*machine.Beside{}
	}
	if old := s.beside[pid]; old == nil || isMore(b, old) {
		s.beside[pid] = b
	}
}

// isMore reports whether b is a larger number of bytes than old, or the first.
func isMore(b, old *machine.Beside) bool {
	return old.Bytes == nil || b.Bytes != nil && *b.Bytes > *old.Bytes
}

// besideLine returns what the run took beside its lease, as one line; "" for nothing. It names
// the process with the most.
func (s *sampler) besideLine() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	bytes := func(pid int) (n uint64) {
		if b := s.beside[pid].Bytes; b != nil {
			n = *b
		}
		return n
	}
	pids := slices.SortedFunc(maps.Keys(s.beside), func(a, b int) int { return cmp.Or(cmp.Compare(bytes(b), bytes(a)), cmp.Compare(a, b)) })
	if len(pids) == 0 {
		return ""
	}
	text := fmt.Sprintf("process %d %s", pids[0], s.beside[pids[0]])
	if n := len(pids) - 1; n > 0 {
		text += fmt.Sprintf("; %d more of this run took some", n)
	}
	return text
}

// ours reports whether a process is the program or a descendant of it.
func (s *sampler) ours(pid int) bool {
	for range 32 {
		if pid == s.pid {
			return true
		}
		if pid = s.parent(pid); pid <= 1 {
			return false
		}
	}
	return false
}

// poolOf returns what a framework's pool preallocates, in bytes; 0 if it allocates on
// demand.
func poolOf(f frameworks.Release, env []string, s device.Status) uint64 {
	d := policy.Device{Ordinal: s.Ordinal, Total: s.Total, Free: s.Total, Granularity: s.Granularity, CCMajor: s.CCMajor}
	a, err := explain.Environment(policy.Environ(env), f, d)
	if err != nil {
		f.Version = "" // an unknown release
		if a, err = explain.Environment(policy.Environ(env), f, d); err != nil {
			return 0
		}
	}
	if !a.Preallocate {
		return 0
	}
	unit := max(s.Granularity, 1)
	return (a.Gets + unit - 1) / unit * unit
}

// save saves the measurements of a run in which all else was counted.
func (s *sampler) save(where overhead.Store, program string, say func(string, ...any)) {
	if s.unsure {
		return
	}
	for of, bytes := range s.most {
		one := overhead.Measurement{Bytes: bytes, When: time.Now().UTC().Truncate(time.Second), Run: s.lease(), Given: s.given[of]}
		if err := where.Save(program, of, s.gpu, one); err != nil {
			say("%s", strings.TrimSpace(err.Error()))
			return
		}
		if bound := overhead.Bound(s.gpu.Total); bytes > bound && !s.gpu.Simulated {
			const text = "%s was held outside of the pool, of which the next run is told %s, a quarter of the GPU; gpumem ps --overhead has it"
			say(text, size.Format(bytes), size.Format(bound))
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
