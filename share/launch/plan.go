// A command in its lease: the leases are taken, its environment is made, and it is
// started.

package launch

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"gpumem/device"
	"gpumem/share"
	"gpumem/share/hook"
	"gpumem/share/runenv"
	"gpumem/size"
)

// Target is a GPU that the command is to use.
type Target struct {
	Key     string // of the registry, see [share.Request]
	Visible string // for CUDA_VISIBLE_DEVICES; empty where the GPU is simulated
	Words   string // the device as a command line names it, see package device/open
	Meter   share.Meter
	Context uint64 // bytes of a CUDA context, where that is known; 0: by a table
}

// Plan describes a command and the memory that it runs in.
type Plan struct {
	Registry *share.Registry
	Targets  []Target // at least one
	Bytes    uint64   // for each copy, on each GPU; 0: by Share
	Share    float64  // of what can be shared, for all copies together; 0 means all of it
	Copies   int      // at least 1
	Reserve  uint64   // left for the desktop and others
	// Wait is how long room is waited for; below 0 means as long as it takes, 0
	// not at all.
	Wait      time.Duration
	Limits    runenv.Limits // Leases, Copies and Hook are filled in, and Record is made of what RecordFile says for each copy
	Command   []string
	Program   string // what is learnt of the command is kept under this name, see [Program]
	Env       []string
	Extra     []string          // NAME=value set in any case, such as the simulated device
	Inherited map[int]bool      // descriptors of the caller, see [Inherited]
	Keeper    []string          // the command line of the keeper, see [NewKeeper]; nil starts none
	Release   func() error      // called before the program takes this process's place: signals are no longer caught. The error is that one has come
	Say       func(line string) // messages for people; nil discards them

	idle sync.Once // before the first message about a wait
}

// Outcome is how several copies ended.
type Outcome struct {
	Statuses []int // by copy: the exit status, or 128 and the number of the signal that ended it
}

// Status returns that of the first copy that did not end well, else 0.
func (o Outcome) Status() int {
	for _, s := range o.Statuses {
		if s != 0 {
			return s
		}
	}
	return 0
}

func (p *Plan) say(format string, args ...any) {
	if p.Say != nil {
		p.Say(fmt.Sprintf(format, args...))
	}
}

// take takes the leases of all copies, by copy and then by target, and says how
// each target stood before. The leases are the caller's to close.
func (p *Plan) take(ctx context.Context) (leases [][]*share.Lease, status []device.Status, err error) {
	if p.Wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.Wait)
		defer cancel()
	}
	status = make([]device.Status, len(p.Targets))
	var requests []share.Request
	for i, t := range p.Targets {
		if status[i], err = t.Meter.Status(); err != nil {
			return nil, nil, err
		}
		q := share.Request{Device: t.Key, Meter: t.Meter, Bytes: p.Bytes, Copies: p.Copies, Reserve: p.Reserve, Command: p.Command, Nested: true, Parts: runenv.Shares(p.Env)}
		if q.Bytes == 0 {
			if q.Share = p.Share; q.Share == 0 {
				q.Share = 1
			}
			q.Share /= float64(p.Copies)
		}
		if p.Wait != 0 {
			on := ""
			if len(p.Targets) > 1 {
				on = " on " + t.Words
			}
			q.Wait = func(at share.Position) { p.position(on, at) }
		}
		requests = append(requests, q)
	}
	byTarget, err := p.Registry.AcquireAll(ctx, requests...)
	if err != nil {
		return nil, nil, err
	}
	leases = make([][]*share.Lease, p.Copies)
	for i, got := range byTarget {
		for c := range leases {
			leases[c] = append(leases[c], got[c])
		}
		display, host := got[0].Left()
		if display > 0 {
			p.say("%s draws a display: %s are left for it", status[i].Name, size.Format(display))
		}
		if host > 0 {
			p.say("the memory of %s is the host's: %s are left for it", status[i].Name, size.Format(host))
		}
	}
	return leases, status, nil
}

// position says how the wait goes; on names the GPU where there are several.
func (p *Plan) position(on string, at share.Position) {
	p.idle.Do(debug.FreeOSMemory) // there may be thousands of us, for hours
	missing := "its turn has not come"
	if at.Why != nil && at.Why.Blocked != nil {
		missing = strings.ReplaceAll(at.Why.Blocked.Error(), "\n", "; ")
	} else if at.Missing > 0 {
		missing = size.Format(at.Missing) + " are missing"
	}
	place := "next"
	if at.Place > 0 {
		place = fmt.Sprintf("%d before it", at.Place)
	}
	p.say("waiting for room%s (%s): %s", on, place, missing)
}

func closeAll(leases [][]*share.Lease) {
	for _, copies := range leases {
		for _, l := range copies {
			if l != nil {
				_ = l.Close()
			}
		}
	}
}

// RecordFile is the file to which one of several copies records: the file that was
// asked for, with the copy's number behind it where there are several. copy is
// counted from 0.
func RecordFile(file string, copy, copies int) string {
	if file == "" || copies == 1 {
		return file
	}
	return fmt.Sprintf("%s.%d", file, copy+1)
}

// pythonHook is hook.Install. Tests have another.
var pythonHook = hook.Install

// hook makes the folder of the Python hook. Without one the program is started all
// the same, and what is lost is said; but not where something was asked for that
// nothing else can do.
func (p *Plan) hook() error {
	path, err := pythonHook()
	if err == nil {
		p.Limits.Hook = path
		return nil
	}
	for _, asked := range []struct {
		flag string
		is   bool
	}{{"--cpu-tensorflow", p.Limits.CPUTensorFlow}, {"--record", p.Limits.Record != ""}} {
		if asked.is {
			return fmt.Errorf("%s: Python hook: %w", asked.flag, err)
		}
	}
	p.say("the lease is not enforced for TensorFlow, nor for PyTorch before 2.10: Python hook: %v", err)
	return nil
}

// environment is the environment of one copy.
func (p *Plan) environment(copy int, leases []*share.Lease, status []device.Status) (runenv.Environment, error) {
	g := p.Limits
	g.Copies = p.Copies
	g.Record = RecordFile(g.Record, copy, p.Copies)
	for i, l := range leases {
		s := status[i]
		g.Leases = append(g.Leases, runenv.Lease{
			Visible: p.Targets[i].Visible, ID: l.ID(), Path: l.Path(), Ordinal: s.Ordinal, Bytes: l.Bytes(), Within: l.Within(), Total: s.Total, CCMajor: s.CCMajor,
			Context: p.Targets[i].Context, Simulated: s.Simulated,
		})
	}
	env := p.Env
	for _, e := range p.Extra {
		name, _, _ := strings.Cut(e, "=")
		env = append([]string{e}, slices.DeleteFunc(slices.Clone(env), func(l string) bool { return strings.HasPrefix(l, name+"=") })...)
	}
	o, err := runenv.For(env, p.Command, g)
	for _, e := range p.Extra {
		name, value, _ := strings.Cut(e, "=")
		o.Changes = append([]runenv.Change{{Name: name, New: value, Set: true, Why: "the simulated GPU of the lease"}}, o.Changes...)
	}
	return o, err
}

// Show takes the leases, returns the first copy's environment and lets go again.
func (p *Plan) Show(ctx context.Context) (runenv.Environment, error) {
	if err := p.hook(); err != nil {
		return runenv.Environment{}, err
	}
	leases, status, err := p.take(ctx)
	if err != nil {
		return runenv.Environment{}, err
	}
	defer closeAll(leases)
	return p.environment(0, leases[0], status)
}

// Run runs the command. One copy takes the place of this process, so Run returns
// only with an error then. Several copies run at once, each in its own leases, which
// end when the copy has ended. The error is about the leases or the start; how the
// copies ended is in the Outcome.
func (p *Plan) Run(ctx context.Context) (Outcome, error) {
	if err := p.hook(); err != nil {
		return Outcome{}, err
	}
	leases, status, err := p.take(ctx)
	if err != nil {
		return Outcome{}, err
	}
	defer closeAll(leases)
	envs := make([][]string, p.Copies)
	for c := range envs {
		o, err := p.environment(c, leases[c], status)
		if err != nil {
			return Outcome{}, err
		}
		envs[c] = o.Env
		for _, change := range o.Changes {
			if c == 0 && change.Remark { // a setting of the user's that defeats the lease, or the recording
				p.say("%s: %s", change.Name, change.Why)
			}
		}
	}
	if p.Copies == 1 {
		return Outcome{}, p.become(envs[0], holdings(leases[0]))
	}
	return p.copies(ctx, envs, leases)
}

// A holding is a lease as its program has it.
type holding struct {
	file   *os.File // holds the lease
	record string   // see [share.Lease.Path]
}

// holdings returns what holds leases; a part of an enclosing lease needs nothing.
func holdings(leases []*share.Lease) []holding {
	var list []holding
	for _, l := range leases {
		if f := l.File(); f != nil {
			list = append(list, holding{f, l.Path()})
		}
	}
	return list
}
