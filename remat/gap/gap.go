package gap

// The plan of a module: its entry, and the computations that it calls, where those are too
// large.

import (
	"math"
	"time"

	"gpumem/hlo"
	"gpumem/hlo/memory"
)

// Options are those of [Run].
type Options struct {
	// Limit is the most that the entry may take in bytes, as [memory.TempPeak]
	// counts: without parameters and results.
	Limit uint64
	// Seconds is what running an instruction once takes. It must be 0 or more.
	Seconds func(*hlo.Instruction) float64
	// Time is for how long to search for better plans after the first one, and Rounds the
	// most rounds for each computation, of some milliseconds in a large module.
	// A round is not broken off. Time 0: only Rounds count; Rounds 0: only Time counts;
	// both 0: no search. With Time 0 the plan is the same each time.
	Time   time.Duration
	Rounds int
	// HostFree is that of memory.Options.
	HostFree bool
	// Collectives lets collectives without an effect, and random bits made from a state,
	// run again. All devices have to run the same plan then.
	Collectives bool
}

// A Result is what [Run] did.
type Result struct {
	Added  int // instructions, less those that went
	Splits int // gaps that were split
}

// Run changes the module so that it takes at most o.Limit, at as little extra
// time as it finds. It may fail, and has done what it could then. Instructions
// keep their order; what is computed again stands before its next use.
// Collectives and random bits are not computed again unless o.Collectives says so; loops,
// conditionals and what has an effect never.
func Run(m *hlo.Module, o Options) (*Result, error) {
	p := &modulePlan{o: o, peaks: memory.Options{HostFree: o.HostFree}.NewMeter(), rules: newRules(o.Collectives), result: &Result{}}
	if o.Time > 0 {
		p.until = time.Now().Add(o.Time)
		if o.Rounds == 0 {
			p.o.Rounds = math.MaxInt
		}
	}
	limit := int64(min(o.Limit, 1<<62))
	if err := p.computation(m.Entry, limit, 0); err != nil {
		return nil, err
	}
	return p.result, nil
}

// maxDepth is how deep calls are followed.
const maxDepth = 32

type modulePlan struct {
	o      Options
	peaks  *memory.Meter
	rules  *rules
	until  time.Time // when the search ends; zero: by rounds
	err    error
	result *Result
}

// called is what the callees of an instruction take together.
func (p *modulePlan) called(i *hlo.Instruction) int64 {
	var sum int64
	for _, c := range memory.ControlFlow(i) {
		sum += p.peak(c)
	}
	return sum
}

// peak is what a computation takes as it is now, with what it calls.
func (p *modulePlan) peak(c *hlo.Computation) int64 {
	x, err := p.peaks.Peak(c)
	if err != nil && p.err == nil {
		p.err = err
	}
	return x.Bytes
}

// computation brings one computation below a limit, first by itself, then with what it calls.
func (p *modulePlan) computation(c *hlo.Computation, limit int64, depth int) error {
	g, err := p.search(c, limit)
	if err != nil || g == nil {
		return err
	}
	if depth < maxDepth && p.callees(g, limit, depth) {
		if g, err = p.search(c, limit); err != nil || g == nil {
			return err
		}
	}
	if g.improve(p.o.Rounds, p.until); g.fault != nil {
		return g.fault
	}
	if g.splits > 0 {
		p.result.Added += g.build()
		p.result.Splits += g.splits
		p.peaks.Forget(c)
	}
	return p.err
}

// search plans a computation, nil where it fits as it is.
func (p *modulePlan) search(c *hlo.Computation, limit int64) (*planner, error) {
	g, err := newPlanner(c, limit, memory.Options{HostFree: p.o.HostFree}, p.o.Seconds, p.called, p.rules)
	if err == nil {
		err = p.err
	}
	if err != nil || g.over[g.profile.n] == 0 {
		return nil, err
	}
	g.run()
	return g, g.fault
}

// callees plans for what is called, if that is over the limit. It reports whether
// anything changed.
func (p *modulePlan) callees(g *planner, limit int64, depth int) (changed bool) {
	allowed := map[*hlo.Computation]int64{}
	var list []*hlo.Computation
	for slot, bytes := range g.profile.bytes {
		k := slot / 2
		if slot%2 == 0 || bytes <= limit || g.extra[k] == 0 {
			continue
		}
		// What a loop's condition takes is left to it.
		most := max(0, limit-(bytes-g.extra[k]))
		calls := memory.ControlFlow(g.c.Instructions[k])
		for _, c := range calls {
			n := most
			for _, other := range calls {
				if other != c {
					n = max(0, n-p.peak(other))
				}
			}
			if old, ok := allowed[c]; !ok {
				list = append(list, c)
				allowed[c] = n
			} else {
				allowed[c] = min(old, n)
			}
		}
	}
	before, until := p.result.Splits, p.until
	for n, c := range list {
		if left := time.Until(until); !until.IsZero() && left > 0 { // half of it is for them
			p.until = time.Now().Add(left / time.Duration(len(list)-n+1))
		}
		if err := p.computation(c, allowed[c], depth+1); err != nil && p.err == nil {
			p.err = err
		}
	}
	p.until = until
	return p.result.Splits > before
}
