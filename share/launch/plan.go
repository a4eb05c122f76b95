// A command in its lease: take the leases, make its environment, start it, and
// say what happened where it died of lack of memory.

package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"gpumem/device"
	"gpumem/share"
	"gpumem/share/given"
	"gpumem/size"
)

// Target is a GPU that the command is to use.
type Target struct {
	Key     string // of the registry, see [share.Request]
	Visible string // for CUDA_VISIBLE_DEVICES; empty where the GPU is simulated
	Meter   share.Meter
	Context uint64 // bytes of a CUDA context, where that is known; 0: by a table
}

// Plan is what to run, and on how much.
type Plan struct {
	Registry *share.Registry
	Dir      string   // the registry's folder, for the Python hook and what is learnt
	Targets  []Target // at least one
	Bytes    uint64   // for each copy, on each GPU; 0: by Share
	Share    float64  // of what can be shared, for all copies together; 0 means all of it
	Copies   int      // at least 1
	Reserve  uint64   // left for the desktop and others
	// Wait is how long room is waited for; below 0 means as long as it takes, 0
	// not at all.
	Wait    time.Duration
	Grant   given.Grant // Leases are filled in, and Record is made of what RecordFile says for each copy
	Command []string
	Program string // what is learnt of the command is kept under this name, see [given.Program]
	Env     []string
	Extra   []string          // NAME=value set in any case, such as the simulated device
	Say     func(line string) // messages for people; nil: nobody

	idle sync.Once // before the first message about a wait
}

// Outcome is how it went.
type Outcome struct {
	Results []Result // by copy
}

// Status is that of the first copy that did not end well, else 0.
func (o Outcome) Status() int {
	for _, r := range o.Results {
		if r.Status != 0 {
			return r.Status
		}
	}
	return 0
}

// End ends this process as the command ended.
func (o Outcome) End() {
	if len(o.Results) == 1 {
		o.Results[0].End()
	}
	os.Exit(o.Status())
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
	leases = make([][]*share.Lease, p.Copies)
	// In the order of the keys, so that two who want the same GPUs do not each
	// wait for the other's.
	order := make([]int, len(p.Targets))
	for i := range order {
		order[i] = i
		for c := range leases {
			leases[c] = append(leases[c], nil)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(p.Targets[a].Key, p.Targets[b].Key) })
	status = make([]device.Status, len(p.Targets))
	for _, i := range order {
		t := p.Targets[i]
		if status[i], err = t.Meter.Status(); err != nil {
			closeAll(leases)
			return nil, nil, err
		}
		q := share.Request{Device: t.Key, Meter: t.Meter, Bytes: p.Bytes, Copies: p.Copies, Reserve: p.Reserve, Command: p.Command, Nested: true}
		if q.Bytes == 0 {
			if q.Share = p.Share; q.Share == 0 {
				q.Share = 1
			}
			q.Share /= float64(p.Copies)
		}
		if p.Wait != 0 {
			q.Wait = p.position
		}
		got, err := p.Registry.Acquire(ctx, q)
		if err != nil {
			closeAll(leases)
			return nil, nil, err
		}
		for c := range leases {
			leases[c][i] = got[c]
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

// position tells how the wait goes.
func (p *Plan) position(at share.Position) {
	p.idle.Do(debug.FreeOSMemory) // there may be thousands of us, for hours
	missing := "its turn comes"
	if at.Missing > 0 {
		missing = size.Format(at.Missing) + " are missing"
	}
	p.say("waiting for room, place %d in the queue: %s", at.Place+1, missing)
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

// outfit is the environment of one copy.
func (p *Plan) outfit(copy int, leases []*share.Lease, status []device.Status) (given.Outfit, error) {
	g := p.Grant
	g.Record = RecordFile(g.Record, copy, p.Copies)
	g.HookDir = p.Dir
	for i, l := range leases {
		s := status[i]
		g.Leases = append(g.Leases, given.Lease{
			Visible: p.Targets[i].Visible, Ordinal: s.Ordinal, Bytes: l.Bytes(), Total: s.Total, CCMajor: s.CCMajor,
			Context: p.Targets[i].Context, Simulated: s.Simulated,
		})
	}
	env := p.Env
	for _, e := range p.Extra {
		name, _, _ := strings.Cut(e, "=")
		env = append([]string{e}, slices.DeleteFunc(slices.Clone(env), func(l string) bool { return strings.HasPrefix(l, name+"=") })...)
	}
	return given.For(env, p.Command, g)
}

// Show takes the leases, gives the first copy's environment and lets go again.
func (p *Plan) Show(ctx context.Context) (given.Outfit, error) {
	leases, status, err := p.take(ctx)
	if err != nil {
		return given.Outfit{}, err
	}
	defer closeAll(leases)
	return p.outfit(0, leases[0], status)
}

// Run runs the command, all copies at once, each in leases of its own. A lease
// ends when its copy has ended. The error is about the leases or the start; how
// the copies ended is in the Outcome.
func (p *Plan) Run(ctx context.Context) (Outcome, error) {
	leases, status, err := p.take(ctx)
	if err != nil {
		return Outcome{}, err
	}
	defer closeAll(leases)
	outfits := make([]given.Outfit, p.Copies)
	for c := range outfits {
		if outfits[c], err = p.outfit(c, leases[c], status); err != nil {
			return Outcome{}, err
		}
	}
	for _, change := range outfits[0].Changes {
		if change.Kept { // a setting of the user's that defeats the lease, or the recording
			p.say("%s: %s", change.Name, change.Why)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return Outcome{}, err
	}
	defer null.Close()
	o := Outcome{Results: make([]Result, p.Copies)}
	errs := make([]error, p.Copies)
	var all sync.WaitGroup
	for c := range p.Copies {
		all.Go(func() {
			defer closeAll(leases[c : c+1])
			cfg := Config{Command: p.Command, Env: outfits[c].Env}
			if c > 0 { // one of them has the keyboard
				cfg.Stdin = null
			}
			for _, l := range leases[c] {
				if f := l.File(); f != nil { // nil: a part of the lease that we run in
					cfg.Keep = append(cfg.Keep, f)
				}
			}
			watching, stop := context.WithCancel(context.Background())
			var watch sync.WaitGroup
			l := &learner{env: outfits[c].Env, meter: p.Targets[0].Meter, parent: parentOf, loaded: loadedBy, most: map[string]uint64{}}
			cfg.Started = func(pid int) {
				for _, lease := range leases[c] {
					_ = lease.Tell(pid) // for lists; it may have ended already
				}
				l.pid = pid
				watch.Go(func() { l.watch(watching) })
			}
			defer func() {
				stop()
				watch.Wait()
				l.save(given.NewLearned(p.Dir), p.Program, p.say)
			}()
			// An interrupt is the program's to answer: we go on until it ends.
			o.Results[c], errs[c] = Run(context.WithoutCancel(ctx), cfg)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, e := range errs { // one is enough: all start the same program
			if e != nil {
				return o, e
			}
		}
	}
	for c, r := range o.Results {
		if line := lackOfMemory(r); line != "" {
			p.explain(c, r, line, leases[c], status)
			break
		}
	}
	return o, nil
}

// lacks are words of a program that died of lack of GPU memory, as JAX,
// TensorFlow, PyTorch, CuPy and the driver put it.
var lacks = regexp.MustCompile(`(?i)RESOURCE_EXHAUSTED|ResourceExhaustedError|CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|OutOfMemoryError|out of memory (?:while )?(?:trying to )?allocat|cudaErrorMemoryAllocation|Not enough PA budget`)

// lackOfMemory is the last line in which a program that failed says that memory
// of the GPU was missing; empty if it does not.
func lackOfMemory(r Result) string {
	if r.Status == 0 {
		return ""
	}
	lines := bytes.Split(r.Tail, []byte("\n"))
	for _, line := range slices.Backward(lines) {
		if lacks.Match(line) {
			return strings.TrimSpace(string(line[:min(len(line), 300)]))
		}
	}
	return ""
}

// explain says in a few lines what a program that ran out of memory had, and
// what there is.
func (p *Plan) explain(copy int, r Result, line string, leases []*share.Lease, status []device.Status) {
	who := p.Command[0]
	if p.Copies > 1 {
		who = fmt.Sprintf("copy %d of %s", copy+1, who)
	}
	p.say("%s ended with status %d after %s, out of GPU memory: %s", who, r.Status, r.Ran.Round(100*time.Millisecond), line)
	for i, l := range leases {
		s := status[i]
		text := fmt.Sprintf("its lease on %s was %s of %s", s.Name, size.Format(l.Bytes()), size.Format(s.Total))
		if now, err := p.Targets[i].Meter.Status(); err == nil {
			text += fmt.Sprintf("; %s are free now", size.Format(now.Free))
		}
		p.say("%s", text)
	}
	switch {
	case p.Copies > 1:
		p.say("give each more with fewer --copies, or --mem SIZE for each")
	case p.Bytes != 0 || p.Share != 0:
		p.say("give it more with --mem SIZE or --share FRACTION; without either it gets all that can be shared")
	default:
		p.say("it had all that can be shared: it needs a smaller problem, a larger GPU, or less beside it")
	}
}
