// A plan: the leases are taken, the environment is made, and the command is started.

package launch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpumem/device"
	"gpumem/device/open"
	"gpumem/node/internal/hook"
	"gpumem/node/internal/overhead"
	"gpumem/node/runenv"
	"gpumem/node/share"
	"gpumem/node/simulate"
	"gpumem/size"
)

// Plan describes a program and the memory that it runs in. It is used once.
type Plan struct {
	Command []string // the program and its arguments
	GPUs    string   // numbers with commas between, such as "0,1"; empty: the one that Device names
	Device  string   // as a command line names it, see package device/open; empty: as the environment says
	Bytes   uint64   // of the lease on each GPU, for each copy; 0: by Share
	Share   float64  // of what can be shared, for all copies together, or for each with Lend or Turns; 0 means all of it
	Copies  int      // at least 1
	Reserve uint64   // bytes left for the desktop and others
	// Wait is how long to wait for memory; below 0 means without a limit, 0 not at
	// all.
	Wait   time.Duration
	Limits runenv.Limits // Leases, Copies, Hook, Measured and Record are filled in
	// Pool is the policy of the pool from which the driver library serves the program's
	// memory, such as "elastic"; NoPool: no library. Empty: as the lease around this
	// program has it, else none.
	Pool string
	// Lend is after how long without work a process of the program lends its memory to the others of
	// its lease and of this user's other leases with Lend or Turns on the GPU, and Turns how long its turns
	// last, or AutoTurns; 0: not at all. Both need a Pool of movable memory, one GPU, and room for the
	// lease on the host.
	Lend, Turns time.Duration
	// LendPinned keeps what has left a process once in pinned memory of the host, until it ends.
	LendPinned bool
	Record     string // a new file for the program's memory, see [runenv.Limits].Record; empty for none
	// Simulate has the program run on a simulated GPU in the driver's place, see
	// [simulate.New]; empty for none. Without anything else that the plan asks for, the program has all of it
	// and no lease.
	Simulate string
	// Keeper is what follows this program's name on the command line of the process
	// that stays beside the program and calls [Keep]; nil starts none.
	Keeper []string
	// Release is called before the program takes this process's place: signals are no longer
	// caught. The error is that one has come.
	Release func() error
	Say     func(line string) // messages for people; nil discards them

	env       []string     // of this process
	inherited map[int]bool // descriptors of its caller

	gpu       *simulate.GPU // with Simulate
	registry  *share.Registry
	targets   []target // at least one
	program   string   // measurements of the command are kept under this name
	simulated string   // the simulated device that the program has, for its environment; empty for none
	witness   []string // the command line of the witness, but for its last word
	keeper    []string // the command line of the keeper, but for its arguments

	idle sync.Once // before the first message about a wait
}

// prepare checks what does not depend on the leases and opens the registry.
func (p *Plan) prepare() (err error) {
	if p.Record != "" {
		if err := p.checkRecord(); err != nil {
			return err
		}
	}
	if err := p.choose(); err != nil {
		return err
	}
	if p.registry, err = share.Open(""); err != nil {
		return err
	}
	if err := p.findPool(); err != nil {
		return err
	}
	dir, _ := os.Getwd()
	p.program = programName(p.Command, dir)
	if p.Limits.Measured, err = overhead.NewStore().Load(p.program); err != nil {
		p.say("%v", err) // the table has other figures
	}
	if p.Limits.Pool != nil && !p.Limits.CPUTensorFlow {
		return nil
	}
	return p.hook()
}

func (p *Plan) say(format string, args ...any) {
	if p.Say != nil {
		p.Say(fmt.Sprintf(format, args...))
	}
}

// take takes the leases of all copies, by copy and then by target, and returns the
// status of each target before. The caller closes the leases.
func (p *Plan) take(ctx context.Context) (leases [][]*share.Lease, status []device.Status, err error) {
	if p.Wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.Wait)
		defer cancel()
	}
	status = make([]device.Status, len(p.targets))
	var requests []share.Request
	for i, t := range p.targets {
		if status[i], err = t.meter.Status(); err != nil {
			return nil, nil, err
		}
		q := share.Request{
			Device: t.key, Meter: t.meter, Bytes: p.Bytes, Copies: p.Copies, Reserve: p.Reserve,
			Command: p.Command, Nested: true, Parts: runenv.Shares(p.env), Turns: p.byTurns(),
		}
		if q.Bytes == 0 {
			if q.Share = p.Share; q.Share == 0 {
				q.Share = 1
			}
			if !q.Turns { // the copies have that one after the other
				q.Share /= float64(p.Copies)
			}
		}
		if p.Wait != 0 {
			on := ""
			if len(p.targets) > 1 {
				on = " on " + t.words
			}
			q.Wait = func(at share.Position) { p.position(on, at) }
		}
		requests = append(requests, q)
	}
	byTarget, err := p.registry.AcquireAll(ctx, requests...)
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

// position reports the place in the queue; on names the GPU if there are several.
func (p *Plan) position(on string, at share.Position) {
	p.idle.Do(debug.FreeOSMemory) // thousands may wait, for hours
	missing := "its turn has not come"
	if at.Why != nil && at.Why.Blocked != nil {
		missing = strings.ReplaceAll(at.Why.Blocked.Error(), "\n", "; ")
	} else if at.Missing > 0 {
		missing = size.Format(at.Missing) + " are missing"
	}
	if at.Why != nil {
		for _, g := range at.Why.ByTurns {
			missing += "; " + g.String()
		}
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

// pythonHook is hook.Install. Tests have another.
var pythonHook = hook.Install

// hook makes the folder of the Python hook. Without one the program is started all the
// same, with a message, unless a flag needs the hook.
func (p *Plan) hook() error {
	path, err := pythonHook()
	if err == nil {
		p.Limits.Hook = path
		return nil
	}
	for _, asked := range []struct {
		flag string
		is   bool
	}{{"--cpu-tensorflow", p.Limits.CPUTensorFlow}, {"--record", p.Record != ""}, {"--remat", p.Limits.Remat != ""}} {
		if asked.is {
			return fmt.Errorf("%s: Python hook: %w", asked.flag, err)
		}
	}
	p.say("the lease is not enforced for TensorFlow, nor for PyTorch before 2.10: Python hook: %v", err)
	return nil
}

// RematLimit returns a limit for [runenv.Limits].Remat in the form that the hook and the command
// take: a number of bytes as 4096B, a part above 0 and up to 100 % as 60%, or auto. It accepts
// what [size.ParseFlag] does, and blanks. node/internal/hook/gpumem_remat.py accepts the same.
func RematLimit(limit string) (string, error) {
	text := strings.TrimSpace(limit)
	if part, ok := strings.CutSuffix(text, "%"); ok {
		part = strings.TrimSpace(part)
		if f, err := strconv.ParseFloat(part, 64); err == nil && f > 0 && f <= 100 && strings.Trim(part, "0123456789.") == "" {
			return strconv.FormatFloat(f, 'f', -1, 64) + "%", nil
		}
	} else if text == "auto" {
		return text, nil
	} else if n, err := size.ParseFlag(text); err == nil && n > 0 {
		return strconv.FormatUint(n, 10) + "B", nil
	}
	return "", fmt.Errorf("%q: want what temporaries may take, such as 12GiB, a part of what they take such as 60%%, or auto", limit)
}

// environment returns the environment of one copy.
func (p *Plan) environment(copy int, leases []*share.Lease, status []device.Status) (runenv.Environment, error) {
	g := p.Limits
	g.Copies = p.Copies
	g.Record = recordFile(p.Record, copy, p.Copies)
	if g.Remat != "" {
		var err error
		if g.Command, err = os.Executable(); err != nil {
			return runenv.Environment{}, err
		}
	}
	for i, l := range leases {
		s := status[i]
		part := uint64(0)
		for l.Within() > 0 && part == 0 {
			part = rand.Uint64() // of the part in the ledger: the lease has one identity
		}
		g.Leases = append(g.Leases, runenv.Lease{
			Part: part, TurnsPart: l.Part(),
			Visible: p.targets[i].visible, ID: l.ID(), Path: l.Path(), Ledger: l.Ledger(), Bytes: l.Bytes(), Within: l.Within(),
			Ordinal: s.Ordinal, Total: s.Total, CCMajor: s.CCMajor, GPU: overhead.GPUName(s.Info),
			Context: s.Context, Simulated: s.Simulated,
		})
	}
	env := p.env
	if p.simulated != "" {
		isDevice := func(line string) bool { return strings.HasPrefix(line, open.EnvVar+"=") }
		env = append([]string{open.EnvVar + "=" + p.simulated}, slices.DeleteFunc(slices.Clone(env), isDevice)...)
	}
	e, err := runenv.For(env, p.Command, g)
	if p.simulated != "" {
		e.Changes = append([]runenv.Change{{Name: open.EnvVar, New: p.simulated, Set: true, Why: "the simulated GPU of the lease"}}, e.Changes...)
	}
	return e, err
}

// Show takes the leases, returns the first copy's environment and ends the leases. In a
// container with leases the environment stays as it is.
func (p *Plan) Show(ctx context.Context) (env runenv.Environment, err error) {
	p.env, p.inherited = os.Environ(), inherited()
	var changes []runenv.Change
	if p.Simulate != "" {
		if err := p.simulate(); err != nil {
			return runenv.Environment{}, err
		}
		defer func() { err = errors.Join(err, p.gpu.Close()) }()
		if changes = p.simulatedChanges(); !p.needsLease() {
			return runenv.Environment{Env: p.env, Changes: changes}, nil
		}
	} else if ok, err := p.inContainer(); ok || err != nil {
		return runenv.Environment{Env: p.env}, err
	}
	if err := p.prepare(); err != nil {
		return runenv.Environment{}, err
	}
	leases, status, err := p.take(ctx)
	if err != nil {
		return runenv.Environment{}, err
	}
	defer closeAll(leases)
	e, err := p.environment(0, leases[0], status)
	e.Changes = append(changes, e.Changes...)
	return e, err
}

// Run runs the command. Without Simulate one copy takes the place of this process, so Run
// returns only with an error then. Several copies run at once, each in its own leases, which
// end when the copy and what it leaves behind have ended; the status is that of the first
// copy that did not end well, else 0. In the first process of a pid namespace, such as the
// entry point of a container, one copy runs as several do, and so it does with Simulate. The error is about the leases or
// the start. In a container with leases the command starts in those.
func (p *Plan) Run(ctx context.Context) (status int, err error) {
	if p.Keeper != nil {
		exe, err := os.Executable()
		if err != nil {
			return 0, err
		}
		p.witness = append([]string{exe}, p.Keeper...)
	}
	p.env, p.inherited = os.Environ(), inherited() // before a library opens more
	if p.Simulate != "" {
		return p.runSimulated(ctx)
	}
	if ok, err := p.inContainer(); err != nil {
		return 0, err
	} else if ok {
		return p.start(ctx, [][]string{p.env}, make([][]*share.Lease, 1)) // there is no lease to keep
	}
	return p.runInLeases(ctx)
}

// runInLeases takes the leases and runs the command in them.
func (p *Plan) runInLeases(ctx context.Context) (status int, err error) {
	if err := p.prepare(); err != nil {
		return 0, err
	}
	if p.Keeper != nil {
		p.keeper = append(slices.Clone(p.witness), "--device="+p.targets[0].words, "--")
	}
	leases, devices, err := p.take(ctx)
	if err != nil {
		return 0, err
	}
	defer closeAll(leases)
	envs := make([][]string, p.Copies)
	for c := range envs {
		e, err := p.environment(c, leases[c], devices)
		if err != nil {
			return 0, err
		}
		envs[c] = e.Env
		for _, change := range e.Changes {
			if c == 0 && change.Remark { // a setting of the user's that defeats the lease, or the recording
				p.say("%s: %s", change.Name, change.Why)
			}
		}
	}
	if err := p.makeLedgers(leases, devices); err != nil {
		return 0, err
	}
	p.tellOutside(leases, envs)
	p.sayPool(leases[0], devices)
	return p.start(ctx, envs, leases)
}

// start starts the copies with these environments, each in its leases. It returns what Run
// does.
func (p *Plan) start(ctx context.Context, envs [][]string, leases [][]*share.Lease) (status int, err error) {
	// The first process of a pid namespace adopts all orphans, which most programs do not
	// expect, so it stays. It stays beside a simulated GPU, too, which ends with the program.
	if len(envs) == 1 && os.Getpid() != 1 && p.gpu == nil {
		return 0, p.become(envs[0], holdings(leases[0]))
	}
	statuses, err := p.copies(ctx, envs, leases)
	return firstFailure(statuses), err
}

// firstFailure returns the first status that is not 0, or 0.
func firstFailure(statuses []int) int {
	for _, s := range statuses {
		if s != 0 {
			return s
		}
	}
	return 0
}

// release is called when the program is about to start.
func (p *Plan) release() error {
	p.sayRecord()
	if p.Release == nil {
		return nil
	}
	return p.Release()
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
