// A program on a simulated GPU.

package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"

	"gpumem/device/open"
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
	asksForMore := p.Copies > 1 || p.GPUs != "" || p.Pool != "" || p.Record != ""
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
	words := "a simulated GPU of "
	if len(list) > 1 {
		words = fmt.Sprintf("%d simulated GPUs of ", len(list))
	}
	first := list[0]
	if value, ok := policy.Environ(p.env).Lookup(open.VisibleVar); ok {
		if seen, err := spec.Visible(value); err == nil && len(seen) == 0 {
			p.say("%s=%s hides the simulated GPU from the program; unset it, or name one that is there", open.VisibleVar, value)
		}
	}
	p.say("%s%s, compute capability %d.%d: kernels do nothing, so results mean nothing", words, size.Format(first.Total), first.CCMajor, first.CCMinor)
	return first.Total, nil
}

// mostUses is how many processes sayUsed lists.
const mostUses = 4

// sayUsed says what the program's processes held of a GPU of total bytes.
func (p *Plan) sayUsed(total uint64) {
	used, err := p.gpu.Used()
	switch {
	case err != nil:
		p.say("what the program held of the simulated GPU is unknown: %v", err)
	case len(used) == 0:
		p.say("no process of the program has used the simulated GPU")
	}
	for _, u := range used[:min(len(used), mostUses)] {
		about := ""
		if !u.Ended {
			about = ", or up to a 64th more, for it was ended before it could say"
		}
		p.say("simulated GPU %d: total %s, peak %s, of process %d%s", u.Device, size.Format(total), size.Format(u.Peak), u.PID, about)
	}
	if more := len(used) - mostUses; more > 0 {
		p.say("and %d more lines of this kind", more)
	}
}

// simulatedChanges is what the simulated GPU changes in the environment of this process.
func (p *Plan) simulatedChanges() (list []runenv.Change) {
	before := os.Environ()
	for _, line := range p.env {
		name, value, _ := strings.Cut(line, "=")
		old := ""
		for _, b := range before {
			if n, v, _ := strings.Cut(b, "="); n == name {
				old = v
			}
		}
		if old != value {
			list = append(list, runenv.Change{Name: name, Old: old, New: value, Set: true, Why: "the simulated GPU; its files are removed when the program ends"})
		}
	}
	return list
}
