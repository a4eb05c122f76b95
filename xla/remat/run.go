// Package remat plans how a module can compute with less memory. Values are recomputed, or
// wait in the host's memory, instead of staying on the device.
//
// [Run] plans for a [Request] and measures the result. xla/internal/plan chooses between the
// planners; xla/internal/gap also proves what no plan can go below, xla/internal/mark does
// what jax.checkpoint does, and xla/internal/advice says what to do by hand. xla/page writes an
// answer as HTML.
package remat

// The planner, which turns a request into its answer.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"gpumem/xla/internal/advice"
	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/gap"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/host"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/mark"
	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/plan"
	"gpumem/xla/internal/verify"
)

// ErrNoMatch is the error of Run for a pattern of Request.Marks that matches nothing.
var ErrNoMatch = errors.New("no instruction has it in its op_name or name")

// Run plans for a module, which is left as it is. The error is one of the request or the
// module, ErrNoMatch, or ctx's. When ctx is done Run returns at once: the plan under way is dropped when it ends.
func Run(ctx context.Context, m *hlo.Module, r Request) (*Answer, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	if err := verify.Module(m); err != nil { // the door: all that follows relies on it
		return nil, err
	}

	a := &Answer{Algorithm: r.Algorithm, Instructions: m.Instructions(), Request: &r, Regions: mark.Regions(m)}
	if e := memory.Estimate(m); e != "" {
		a.warn(e)
	}

	m = m.Clone()
	if m.Scheduled {
		hlo.RemoveBarriers(m)
	}

	planned := make(chan error, 1)
	go func() { planned <- answer(ctx, a, m) }()
	select {
	case err := <-planned:
		return a, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// answer fills an answer for a module, which it changes.
func answer(ctx context.Context, a *Answer, m *hlo.Module) (err error) {
	r := a.Request
	if r.Fuse {
		if a.Unfused, _, err = memory.TempPeak(m, r.Memory()); err != nil {
			return err
		}
		if a.Fused, err = hlo.Fuse(m); err != nil {
			return err
		}
	}

	p := &planner{Request: r, m: m, meter: memory.NewMeter(r.Memory()), open: plan.OpenLoops(m)}
	given, err := p.measure(a)
	if err != nil {
		return err
	}

	start := time.Now()
	a.Given = m
	if len(r.Marks) > 0 {
		if given, err = p.markModule(a); err != nil {
			return err
		}
	}

	a.Module = p.m
	if err := p.begin(given); err != nil {
		return err
	}

	unplanned := *a
	if r.Limit != nil {
		if err := p.planForLimit(a, start); err != nil {
			return err
		}
	}

	if r.Frontier > 0 {
		return p.frontier(ctx, a, &unplanned)
	}
	return nil
}

// A planner makes the plans for one request. It knows the module that they begin with, and what
// was found out about it: plans and proofs for many limits look at it once.
type planner struct {
	*Request
	m      *hlo.Module // marked if so requested
	meter  *memory.Meter
	open   []*hlo.Instruction // loops of m that may get another state
	plans  *plan.Planner
	prices *cost.Analysis // nil if nothing is proven
}

// options returns what plans may do.
func (p *planner) options() plan.Options {
	o := plan.Options{Rates: p.Rates, Collectives: p.Collectives}
	if p.HostSpeed > 0 {
		o.Host = &host.Memory{ToHost: float32(p.HostSpeed), FromHost: float32(p.HostSpeed)}
	}
	return o
}

// measure sets the limit of an answer and what is known before a plan is made. It returns the
// module as a plan that changes nothing.
func (p *planner) measure(a *Answer) (given *plan.Plan, err error) {
	if given, err = p.options().Measure(p.m, "off", 0); err != nil {
		return nil, err
	}

	a.Before, a.RunSeconds = given.Peak, given.Seconds

	// The heap takes longest, so that the rest is found beside it, unless the limit is for it.
	var beside sync.WaitGroup
	defer beside.Wait()
	var noHeap error
	if p.Limit != nil {
		beside.Go(func() { a.HeapBefore, noHeap = p.heapOf(given, a) })
		now := a.Before
		if p.Packed {
			beside.Wait()
			now = a.HeapBefore
		}
		a.Limit = p.Limit(now)
	}

	once := p.HostSpeed == 0 && len(p.Marks) == 0
	if a.LowerBound, err = gap.LeastMemory(p.m, p.meter, once, p.open...); err != nil {
		return nil, err
	}

	beside.Wait()
	return given, noHeap
}

// heapOf returns the heap of a plan as XLA packs it. If it cannot be packed, that is an error
// with Request.Packed, and otherwise a warning.
func (p *planner) heapOf(made *plan.Plan, a *Answer) (uint64, error) {
	heap, err := made.Heap()
	if err != nil && p.Packed {
		return 0, fmt.Errorf("packed: %w", err)
	}
	if err != nil {
		a.Warnings = append(a.Warnings, "no heap: "+err.Error())
	}
	return heap, nil
}

// markModule marks a copy of the module, with which the planner goes on, and returns that as a
// plan that changes nothing.
func (p *planner) markModule(a *Answer) (*plan.Plan, error) {
	save := p.Save
	if save == nil {
		save = mark.SaveNothing
	}

	p.m = p.m.Clone()
	for _, re := range p.Marks {
		before := p.m.Clone()
		done, err := mark.Mark(p.m, re, save)
		if err == nil && len(done) == 0 {
			err = ErrNoMatch
		}
		if err == nil {
			// What the user marks may be anything that is repeatable.
			err = legal.Options{Collectives: true, Loops: true}.Check(before, p.m)
		}
		if err != nil {
			return nil, fmt.Errorf("mark %s: %w", re, err)
		}
		a.Marked = append(a.Marked, done...)
		for _, d := range done {
			a.Recomputed += d.Recomputed
		}
	}

	p.meter, p.open = memory.NewMeter(p.Memory()), plan.OpenLoops(p.m)
	return p.options().Measure(p.m, "off", 0)
}

// begin prepares plans and proofs. Proofs are about plans that keep or recompute values, so that
// nothing is proven if values may move to the host, or if a loop may get another state.
func (p *planner) begin(given *plan.Plan) (err error) {
	if p.HostSpeed == 0 && len(p.open) == 0 {
		if p.prices, err = cost.New(p.m, p.Rates); err != nil {
			return err
		}
	}
	p.plans, err = plan.NewPlanner(p.m, given, p.options())
	return err
}

// planForLimit sets the plan for the limit, with its proof and its heap, and the advice.
func (p *planner) planForLimit(a *Answer, start time.Time) error {
	var beside sync.WaitGroup
	var unproven error
	if !p.Packed { // the proof is for what lives at once
		beside.Go(func() { unproven = p.prove(a) })
	}

	made, warnings, err := p.planFor(a.Limit, p.Packed, p.Search)
	beside.Wait()
	if err = cmp.Or(err, unproven); err != nil {
		return err
	}

	a.warn(warnings...)
	a.setPlan(made, time.Since(start))

	if a.HeapAfter, err = p.heapOf(made, a); err != nil {
		return err
	}
	if p.BestHeap && a.HeapAfter > 0 {
		if a.HeapBest, err = made.BestHeap(); err != nil {
			return err
		}
	}

	if p.Packed {
		a.Met = a.HeapAfter <= a.Limit
	}
	if !a.Met && p.Algorithm == "xla" {
		a.warn("XLA's pass misses the limit; algorithm gap goes further")
	}
	if p.Request.Advice && p.Algorithm == "gap" && a.Before > a.Limit {
		return p.advise(a)
	}
	return nil
}

// planFor returns the plan of the algorithm for a limit, after it has passed xla/internal/legal as it
// will be written, and what to warn of.
func (p *planner) planFor(limit uint64, packed bool, search time.Duration) (made *plan.Plan, warnings []string, err error) {
	switch {
	case p.Algorithm == "xla":
		return p.planAsXLA(limit, search)
	case p.Algorithm == "off":
		return p.plans.Given, nil, nil
	case packed:
		made, err = p.plans.Packed(limit, search)
	default:
		made, err = p.plans.Best(limit, search)
	}

	if err == nil && made.Dropped != nil {
		warnings = append(warnings, made.Dropped.Error())
	}
	return made, warnings, err
}

// planAsXLA is planFor for XLA's pass: its plan as it is, for all devices, or the next best if that
// is not legal.
func (p *planner) planAsXLA(limit uint64, search time.Duration) (made *plan.Plan, warnings []string, err error) {
	if made, err = p.plans.XLA(limit); err != nil {
		return nil, nil, err
	}
	if link := float64(made.Host.Bytes) / 2 / p.HostSpeed; p.HostSpeed > 0 && link > made.Seconds {
		warnings = append(warnings, fmt.Sprintf("XLA plans each copy as if it had the link to the host for itself: "+
			"one way they take %.3g s together, and a step %.3g s; gap lets them take turns", link, made.Seconds))
	}

	if fault := p.plans.Check(made, true); fault != nil {
		warnings = append(warnings, fmt.Sprintf("XLA's plan was dropped: %v; this is the next best", fault))
		made, err = p.plans.Best(limit, search)
	}
	return made, warnings, err
}

// setPlan sets the figures of a plan.
func (a *Answer) setPlan(p *plan.Plan, took time.Duration) {
	a.Module, a.By, a.Legal = p.Module, p.By, true
	a.After, a.Met = p.Peak, p.Peak <= a.Limit
	a.Recomputed += p.Added
	if a.Request.HostSpeed > 0 {
		a.HostValues, a.HostReloads, a.HostBytes = p.Host.Values, p.Host.Reloads, p.Host.Bytes
	}
	a.Seconds, a.Extra = took.Seconds(), plan.PercentMore(p.Seconds, a.RunSeconds)
}

// warn adds warnings, each once: plans of the frontier have the same faults.
func (a *Answer) warn(texts ...string) {
	for _, text := range texts {
		if !slices.Contains(a.Warnings, text) {
			a.Warnings = append(a.Warnings, text)
		}
	}
}

// prove sets the lower bounds of an answer for its limit.
func (p *planner) prove(a *Answer) error {
	if p.prices == nil {
		return nil
	}

	least, err := gap.LeastSeconds(p.m, p.meter, a.Limit, p.prices.Seconds)
	if err != nil {
		return err
	}
	if a.OutOfReach = math.IsInf(least, 1); !a.OutOfReach && a.RunSeconds > 0 {
		a.LowerPercent = math.Round(1e6*least/a.RunSeconds) / 1e4
	}
	return nil
}

// advise sets the advice of an answer that has its plan.
func (p *planner) advise(a *Answer) (err error) {
	program := advice.Program{Given: p.plans.Given, Module: p.m, Meter: p.meter, Rates: p.Rates,
		Seconds: a.RunSeconds, Limit: a.Limit, Peak: a.Before, Heap: a.HeapBefore}
	if !a.Met {
		program.Planned = a.Module
	}
	var warnings []string
	a.Advice, warnings, err = advice.Find(program)
	a.warn(warnings...)
	return err
}
