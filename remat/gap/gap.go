package gap

// The plan of a module: its entry, and the computations that it calls where these take too
// much. See planner.go for an overview.

import (
	"math"
	"time"

	"gpumem/hlo"
	"gpumem/hlo/memory"
)

// Options are those of [Run].
type Options struct {
	// Limit is the most that the entry may take, in bytes as [memory.TempPeak] counts:
	// without parameters and results.
	Limit uint64
	// Seconds returns what running an instruction once takes, 0 or more.
	Seconds func(*hlo.Instruction) float64
	// Time is how long to search for better plans after the first one; 0: no search by
	// time. Rounds is the most rounds of the search for each computation, each of some
	// milliseconds in a large module; 0: no bound if Time is set, else no search. A round
	// is not broken off. With Rounds alone the plan is the same each time, as tests need it.
	Time   time.Duration
	Rounds int
	// HostFree is that of [memory.Options].
	HostFree bool
	// Collectives allows to recompute collectives without a side effect, and random bits
	// made from a state. All devices must then run the same plan.
	Collectives bool
}

// Run changes the module so that its entry takes at most o.Limit, at as little extra time
// as it finds, and returns how many instructions that added, those that went taken off.
// It may not reach the limit, and has then done what it could.
//
// Instructions keep their order. A value is recomputed just before its next use. Loops,
// conditionals and what has a side effect never are; collectives and random bits only with
// o.Collectives. The error is that of [memory.Analyze]; the module may be half changed.
func Run(m *hlo.Module, o Options) (added int, err error) {
	p := newModulePlan(o)
	if o.Time > 0 {
		p.until = time.Now().Add(o.Time)
		if o.Rounds == 0 {
			p.o.Rounds = math.MaxInt
		}
	}
	err = p.computation(m.Entry, int64(min(o.Limit, 1<<62)), 0)
	return p.added, err
}

// maxDepth is how deep calls are followed.
const maxDepth = 32

// A modulePlan plans for the computations of a module, one after the other.
type modulePlan struct {
	o      Options
	memory memory.Options
	peaks  *memory.Meter
	rules  *rules
	until  time.Time // when the search ends; zero: by rounds
	added  int       // instructions so far
	splits int       // gaps split so far
	err    error     // the first of measuring
}

func newModulePlan(o Options) *modulePlan {
	count := memory.Options{HostFree: o.HostFree}
	return &modulePlan{o: o, memory: count, peaks: count.NewMeter(), rules: newRules(o.Collectives)}
}

// called returns the bytes that the callees of an instruction take together.
func (p *modulePlan) called(i *hlo.Instruction) (sum int64) {
	for _, c := range memory.ControlFlow(i) {
		sum += p.peak(c)
	}
	return sum
}

// peak returns the bytes that a computation takes now, with what it calls.
func (p *modulePlan) peak(c *hlo.Computation) int64 {
	x, err := p.peaks.Peak(c)
	if err != nil && p.err == nil {
		p.err = err
	}
	return x.Bytes
}

// computation brings one computation below a limit: first by splits of its own gaps, and if
// that is not enough, with plans for what it calls.
func (p *modulePlan) computation(c *hlo.Computation, limit int64, depth int) error {
	g, err := p.search(c, limit)
	if err != nil || g == nil {
		return err
	}
	if depth < maxDepth && p.callees(g, depth) {
		if g, err = p.search(c, limit); err != nil || g == nil {
			return err
		}
	}
	if g.improve(p.o.Rounds, p.until); g.fault != nil {
		return g.fault
	}
	if g.splits > 0 {
		p.added += g.build()
		p.splits += g.splits
		p.peaks.Forget(c)
	}
	return p.err
}

// search plans for a computation. It returns nil if that fits as it is.
func (p *modulePlan) search(c *hlo.Computation, limit int64) (*planner, error) {
	g, err := p.newPlanner(c, limit)
	if err != nil || g.over[g.profile.n] == 0 {
		return nil, err
	}
	g.run()
	return g, g.fault
}

// callees plans for what the planner's computation calls where it is over its limit. It
// reports whether anything changed.
func (p *modulePlan) callees(g *planner, depth int) (changed bool) {
	allowed := map[*hlo.Computation]int64{}
	var list []*hlo.Computation
	for slot, bytes := range g.profile.bytes {
		k := slot / 2
		if slot%2 == 0 || bytes <= g.limit || g.called[k] == 0 {
			continue
		}
		// Each callee may take what the caller and the other callees leave: those of one
		// instruction count together.
		most := max(0, g.limit-(bytes-g.called[k]))
		for _, c := range memory.ControlFlow(g.c.Instructions[k]) {
			n := max(0, most-(g.called[k]-p.peak(c)))
			if old, ok := allowed[c]; !ok {
				list = append(list, c)
				allowed[c] = n
			} else {
				allowed[c] = min(old, n)
			}
		}
	}
	before, until := p.splits, p.until
	for n, c := range list {
		if left := time.Until(until); !until.IsZero() && left > 0 { // the caller's search gets as much as one of them
			p.until = time.Now().Add(left / time.Duration(len(list)-n+1))
		}
		if err := p.computation(c, allowed[c], depth+1); err != nil && p.err == nil {
			p.err = err
		}
	}
	p.until = until
	return p.splits > before
}
