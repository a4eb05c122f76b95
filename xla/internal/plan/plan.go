// Package plan makes plans of a module for a limit on its memory, and chooses the best.
//
// plan.go measures plans, best.go chooses among those for one limit, packed.go looks at the heap
// that they take, and stacks.go drops what loops stack up. The planners are packages by
// themselves: xla/internal/pass is XLA's pass, xla/internal/gap ours, xla/internal/unstack
// changes loops, and xla/internal/host moves values to the host.
package plan

import (
	"cmp"
	"math"
	"sync"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/host"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/verify"
)

// A Plan is a changed module with its costs.
type Plan struct {
	Module *hlo.Module
	// Peak is that of temporaries in bytes, as memory.TempPeak counts, and Seconds what one
	// run takes by the cost model. Of the chosen plan both are measured on its text, read
	// again.
	Peak    uint64
	Seconds float64
	Added   int    // instructions, without those that only moved
	By      string // what made it, as remat.Answer.By
	// Host is what waits on the host. In a plan that may not move values there, it is what
	// the given module has.
	Host host.Result
	// Dropped says why the first better plan was dropped; nil if none was.
	Dropped error

	values *memory.Analysis // of Module, once it was asked for
	packed uint64           // see Heap; 0: it was not asked for
	// checked says that illegal is what xla/internal/legal found.
	checked bool
	illegal error
}

// Options say what plans may do. The zero value recomputes.
type Options struct {
	Rates cost.Rates
	// Host lets plans move values to the host's memory as [host.Move] does. What lies there
	// takes nothing, and there is room for all. Seconds nil is the cost model's.
	Host *host.Memory
	// Collectives is that of [gap.Options]. Without it a plan of XLA's pass that recomputes
	// some counts as one that is not legal: each device has to have the same plan then.
	Collectives bool
}

// analysis returns the values of the plan's module, as buffer assignment sees them.
func (p *Plan) analysis() (_ *memory.Analysis, err error) {
	if p.values == nil {
		p.values, err = memory.AnalyzeModule(p.Module)
	}
	return p.values, err
}

// Heap returns the bytes of the heap that the temporaries of the plan are packed into.
func (p *Plan) Heap() (uint64, error) {
	if p.packed > 0 {
		return p.packed, nil
	}

	a, err := p.analysis()
	if err != nil {
		return 0, err
	}

	s, err := a.Assign()
	if err != nil {
		return 0, err
	}

	p.packed = s.Temp
	return s.Temp, nil
}

// packWork bounds the search for a better packing: a second at most.
const packWork = 8e8

// BestHeap returns the heap as it is packed better than XLA does.
func (p *Plan) BestHeap() (uint64, error) {
	a, err := p.analysis()
	if err != nil {
		return 0, err
	}
	s, err := a.AssignBest(packWork)
	if err != nil {
		return 0, err
	}
	return s.Temp, nil
}

// Meets reports whether the plan's peak is at most limit bytes.
func (p *Plan) Meets(limit uint64) bool { return p.Peak <= limit }

// Compare compares two plans for a limit, the better one first: one that meets it before one
// that does not, then the faster, and of those that miss it the smaller.
func (p *Plan) Compare(q *Plan, limit uint64) int {
	seconds, peak := cmp.Compare(p.Seconds, q.Seconds), cmp.Compare(p.Peak, q.Peak)
	switch {
	case p.Meets(limit) != q.Meets(limit):
		return peak
	case p.Meets(limit):
		return cmp.Or(seconds, peak)
	}
	return cmp.Or(peak, seconds)
}

// betterThan reports whether p is the better of two plans for a limit.
func (p *Plan) betterThan(q *Plan, limit uint64) bool { return p.Compare(q, limit) < 0 }

// Measure writes a module as text, reads that again, and returns it with its costs.
func (o Options) Measure(m *hlo.Module, by string, added int) (*Plan, error) {
	m, err := hlo.ParseString(m.String())
	if err != nil {
		return nil, err
	}
	return o.Cost(m, by, added)
}

// Cost verifies what a planner made and returns it as it is, with its costs. All plans come
// by here. Those that are returned are checked by xla/internal/legal, too.
func (o Options) Cost(m *hlo.Module, by string, added int) (p *Plan, err error) {
	if err := verify.Module(m); err != nil {
		return nil, err
	}

	p = &Plan{Module: m, By: by, Added: added, Host: host.Copies(m)}
	var failed error
	var beside sync.WaitGroup
	beside.Go(func() { p.Seconds, failed = Seconds(m, o.Rates) })
	p.Peak, err = o.peak(m)
	beside.Wait()
	return p, cmp.Or(err, failed)
}

// peak returns the peak of a module's temporaries, in bytes.
func (o Options) peak(m *hlo.Module) (uint64, error) {
	peak, _, err := memory.TempPeak(m, memory.Options{HostFree: o.Host != nil})
	return peak, err
}

// Seconds returns what one run of a verified module takes by the cost model, without
// instructions that nothing uses.
func Seconds(m *hlo.Module, rates cost.Rates) (float64, error) {
	lean := m.Clone()
	if _, err := hlo.RemoveDead(lean); err != nil {
		return 0, err
	}
	c, err := cost.New(lean, rates)
	if err != nil {
		return 0, err
	}
	return c.Computation(lean.Entry).Seconds, nil
}

// PercentMore returns by how many percent seconds are longer than those of a run, 0 if these are
// 0. It is rounded, as sums in another order differ in their last digits.
func PercentMore(seconds, run float64) float64 {
	if !(run > 0) {
		return 0
	}
	return math.Round(1e6*(seconds-run)/run)/1e4 + 0 // not -0
}

// Reorder returns a copy in that of XLA's orders whose temporaries take least, nil if none
// takes less than the module does now. A scheduled module stays as it is.
func (o Options) Reorder(m *hlo.Module, now uint64) (*hlo.Module, error) {
	if m.Scheduled {
		return nil, nil
	}

	c := m.Clone()
	orders, err := memory.Orders(c)
	if err != nil {
		return nil, err
	}

	best := -1
	for n := range orders {
		orders[n].Apply(c)
		peak, err := o.peak(c)
		if err != nil {
			return nil, err
		}
		if peak < now {
			now, best = peak, n
		}
	}

	if best < 0 {
		return nil, nil
	}

	orders[best].Apply(c)
	c.Scheduled = false // the compiler still has all of its passes to run
	return c.Clone(), nil
}

// check checks that a plan is a legal change of the given module, once. XLA's pass may compute
// loops again.
func (p *Plan) check(given *hlo.Module, collectives bool) error {
	if !p.checked {
		p.checked, p.illegal = true, legal.Options{Collectives: collectives, Loops: p.By == "xla"}.Check(given, p.Module)
	}
	return p.illegal
}
