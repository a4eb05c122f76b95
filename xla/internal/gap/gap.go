package gap

// The plan of a module: its entry, and the computations that it calls where these take too
// much. See planner.go for an overview.
//
// An entry with a limit of 6 GiB calls f at an instruction where 5 GiB of its own values are
// live, and f takes 3 GiB, 2 too many. The gaps of the entry come first. Say that they free
// 1 GiB there: then f may take 2 GiB, the limit less the entry's 4, and gap splitting plans
// f for that. f is measured again, and the entry planned anew from its beginning with f as it
// is now: with f at 2 GiB it may need fewer splits than the first time. A computation that is
// called twice gets the smaller of the two limits.

import (
	"math"
	"time"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
)

// Options are those of [Run]. The zero value is of no use, as Seconds has to be set; with a
// Limit of 0 the plan takes as little memory as gap splitting finds, whatever it costs.
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
// Instructions keep their order. A value is recomputed just before its next use, or earlier if
// what it reads is overwritten by then. Loops, conditionals, custom calls and what has a side
// effect never are, nor what calls them; collectives and random bits only with o.Collectives. The module must have passed xla/internal/verify. The error is that of
// [memory.Meter.Peak]; the module may be half changed.
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

// maxDepth is how deep calls are followed. Programs have some three levels: a loop in a
// function in a loop. It bounds the time for chains that were made to be deep.
const maxDepth = 32

// A modulePlan plans for the computations of a module, one after the other. Its meter looks at
// each computation once; a computation that build has changed is forgotten, and with it the
// peaks of all that call it.
type modulePlan struct {
	o     Options
	meter *memory.Meter
	rules *rules
	// deadlines are those of the module as it is now; nil if they have to be found again.
	deadlines *deadlines
	until     time.Time // when the search ends; zero: by rounds
	added     int       // instructions so far
	splits    int       // gaps split so far
	err       error     // the first of measuring
}

func newModulePlan(o Options) *modulePlan {
	return &modulePlan{o: o, meter: memory.NewMeter(memory.Options{HostFree: o.HostFree}), rules: newRules(o.Collectives)}
}

// called returns the bytes that the callees of an instruction take together: both of a while,
// all branches of a conditional. The first error stays in p.err, so that sums need no check.
func (p *modulePlan) called(i *hlo.Instruction) (sum int64) {
	for _, c := range memory.ControlFlow(i) {
		sum += p.peak(c)
	}
	return sum
}

// peak returns the bytes that a computation takes now, with what it calls. It is 0 after an
// error, which computation returns.
func (p *modulePlan) peak(c *hlo.Computation) int64 {
	x, err := p.meter.Peak(c)
	if err != nil && p.err == nil {
		p.err = err
	}
	return x.Bytes
}

// computation brings one computation below a limit: first by splits of gaps in it, and if
// that is not enough, with plans for what it calls. After such a plan it begins anew, as the
// splits may have been made for callees that are smaller now. At last comes the search. Only
// a plan with splits is written into the computation.
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
		p.meter.Forget(c)
		p.deadlines = nil
	}
	return p.err
}

// search plans for a computation. It returns nil if that fits as it is. The planner has the
// splits; the computation is not changed before build.
func (p *modulePlan) search(c *hlo.Computation, limit int64) (*planner, error) {
	g, err := p.newPlanner(c, limit)
	if err != nil || g.profile.total() == 0 {
		return nil, err
	}
	g.run()
	return g, g.fault
}

// callees plans for what the planner's computation calls where it is over its limit. It
// reports whether anything changed.
func (p *modulePlan) callees(g *planner, depth int) (changed bool) {
	list, allowed := p.allowances(g)
	// The time that is left is shared out evenly between the callees that are still to come
	// and the caller, whose own search is the last.
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

// allowances returns what the planner's computation calls where it is over its limit, and
// the bytes that each callee may take.
func (p *modulePlan) allowances(g *planner) (list []*hlo.Computation, allowed map[*hlo.Computation]int64) {
	allowed = map[*hlo.Computation]int64{}
	for slot, bytes := range g.profile.bytes() {
		k := slot / 2
		if slot%2 == 0 || bytes <= g.limit || g.called[k] == 0 {
			continue
		}
		// Each callee may take what the caller and the other callees leave: those of one
		// instruction count together. bytes is the caller's and all callees', so that the
		// caller alone has bytes less called. Where that is above the limit the callee is
		// planned for 0 bytes: it does what it can.
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
	return list, allowed
}
