// A program on a simulated GPU.

package launch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/internal/proc"
	"gpumem/node/runenv"
	"gpumem/node/share"
	"gpumem/node/simulate"
	"gpumem/policy"
	"gpumem/size"
)

// simulate makes the simulated GPU, and has the plan use it. The caller closes p.gpu.
func (p *Plan) simulate() (err error) {
	if p.Device != "" {
		return errors.New("--simulate and --device both name the GPU; leave one of them out")
	}
	if _, inLease := os.LookupEnv(runenv.EnvLeaseID); inLease { // whose limits are parts of another GPU
		return errors.New("--simulate: this process is in a lease of another GPU; start the simulated one outside of that run, with --mem for a lease on it")
	}
	if p.gpu, err = simulate.New(p.Simulate, os.Getenv); err != nil {
		return fmt.Errorf("--simulate: %w", err)
	}
	p.Device = p.gpu.Words
	p.env = p.gpu.Environ(p.env)
	return nil
}

// needsLease reports whether the plan asks for more than a simulated GPU. A program that is alone on
// it has no lease, so that its framework takes what it takes of such a card.
func (p *Plan) needsLease() bool {
	asksForMemory := p.Bytes != 0 || p.Share != 0 || p.Reserve != 0 || p.Wait != 0
	asksForMore := p.Copies > 1 || p.GPUs != "" || p.Pool != "" || p.Record != "" || p.byTurns()
	plain := runenv.Limits{Procs: p.Limits.Procs}
	return asksForMemory || asksForMore || p.Limits.Procs > 1 || !reflect.DeepEqual(p.Limits, plain)
}

// runSimulated does what Run does, on a simulated GPU. It says what that was, and what the program
// made of it.
func (p *Plan) runSimulated(ctx context.Context) (status int, err error) {
	if err := p.simulate(); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.gpu.Close()) }()
	total, err := p.sayGPU()
	if err != nil {
		return 0, err
	}
	if p.needsLease() {
		status, err = p.runInLeases(ctx)
	} else {
		status, err = p.start(ctx, [][]string{p.env}, make([][]*share.Lease, 1))
	}
	if err == nil {
		p.sayUsed(total)
	}
	return status, err
}

// sayGPU says which GPU it is, and returns its total.
func (p *Plan) sayGPU() (total uint64, err error) {
	spec, err := open.Parse(p.Device)
	if err != nil {
		return 0, err
	}
	list, err := spec.Status()
	if err != nil {
		return 0, err
	}
	first := list[0]
	name := first.Name
	if strings.HasPrefix(name, "sim:") { // a size, which follows
		name = "GPU"
	}
	words := "a simulated " + name
	if len(list) > 1 {
		words = fmt.Sprintf("%d simulated GPUs, each a %s", len(list), name)
		if name == "GPU" {
			words = fmt.Sprintf("%d simulated GPUs", len(list))
		}
	}
	context := ""
	if first.Context > 0 {
		context = fmt.Sprintf(", of which the context of each process takes %s", size.Format(first.Context))
	}
	if value, ok := policy.Environ(p.env).Lookup(open.VisibleVar); ok {
		if seen, err := spec.Visible(value); err == nil && len(seen) == 0 {
			p.say("%s=%s hides the simulated GPU from the program; unset it, or name one that is there", open.VisibleVar, value)
		}
	}
	const text = "%s of %s%s, compute capability %d.%d: kernels do nothing, so results mean nothing"
	p.say(text, words, size.Format(first.Total), context, first.CCMajor, first.CCMinor)
	return first.Total, nil
}

// mostUses is how many lines sayUsed has of processes.
const mostUses = 4

// sayUsed says what the program's processes held of GPUs of total bytes.
func (p *Plan) sayUsed(total uint64) {
	used, err := p.gpu.Used()
	if err != nil {
		p.say("what the program held of the simulated GPU is unknown: %v", err)
		return
	}
	if len(used.List) == 0 {
		p.say("no process of the program has used the simulated GPU")
	}
	if len(used.Unprepared) > 0 {
		p.say("process %d, a Python, has not read the start-up file that prepares frameworks: run it without -I, -E and -S, and add to PYTHONPATH instead of replacing it", used.Unprepared[0])
	}
	if used.Unread > 0 {
		p.say("what some processes held is unknown: %d lines of theirs are cut, as on a full disk", used.Unread)
	}
	of := map[int]int{} // processes by GPU
	for i, u := range used.List {
		of[u.Device]++
		if i >= mostUses {
			continue
		}
		about := ""
		switch {
		case u.Ended:
		case runs(u.PID):
			about = ", which runs on"
		default:
			about = ", or up to a 64th more, for it was ended before it could say"
		}
		p.say("simulated GPU %d: total %s, peak %s, of process %d%s", u.Device, size.Format(total), size.Format(u.Peak), u.PID, about)
	}
	if more := len(used.List) - mostUses; more > 0 {
		p.say("and %d more that held less", more)
	}
	for _, gpu := range slices.Sorted(maps.Keys(of)) {
		if of[gpu] > 1 {
			p.say("simulated GPU %d: at most %s held by all at once", gpu, size.Format(used.All(gpu)))
		}
	}
	p.sayBusy()
}

// sayBusy says how long the engines of GPUs worked, where work takes time.
func (p *Plan) sayBusy() {
	all, err := p.gpu.Busy()
	if err != nil {
		p.say("how long the simulated GPU worked is unknown: %v", err)
	}
	for gpu, busy := range all {
		if busy == ([sim.Engines]time.Duration{}) {
			continue
		}
		var words []string
		for e, t := range busy {
			words = append(words, fmt.Sprintf("%v %v", sim.Engine(e), t.Round(time.Millisecond)))
		}
		p.say("simulated GPU %d: time of its work: %s", gpu, strings.Join(words, ", "))
	}
}

// runs reports whether a process is there.
func runs(pid int) bool {
	_, ok := proc.ReadStat(pid)
	return ok
}

// simulatedChanges is what the simulated GPU changes in the environment of this process.
func (p *Plan) simulatedChanges() []runenv.Change {
	list := []runenv.Change{{Name: "--simulate", Kept: true, Why: "the files of the simulated GPU are made anew for each run, so that these names hold in none"}}
	before, after := policy.Environ(os.Environ()), policy.Environ(p.env)
	for _, s := range p.gpu.Settings() {
		if old, value := before.Get(s.Name), after.Get(s.Name); old != value {
			list = append(list, runenv.Change{Name: s.Name, Old: old, New: value, Set: true, Why: s.Why})
		}
	}
	return list
}
