// Package remat plans how a module can compute with less memory. Values are recomputed, or
// wait in the host's memory, instead of staying on the device.
//
// [Run] plans for a [Request] and measures the result. It chooses between planners, which
// are packages by themselves: xla/internal/pass is XLA's pass, xla/internal/gap ours, which also proves what
// no plan can go below, and xla/internal/host moves values to the host. mark.go does by hand what
// jax.checkpoint does, best.go chooses the best plan, and packed.go plans for the packed
// heap. xla/page writes an answer as HTML.
package remat

// The request to the planners and its answer.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"sync"
	"time"

	"gpumem/internal/report"
	"gpumem/xla/cost"
	"gpumem/xla/hlo"
	"gpumem/xla/internal/advice"
	"gpumem/xla/internal/gap"
	"gpumem/xla/internal/host"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/mark"
	"gpumem/xla/internal/plan"
	"gpumem/xla/internal/verify"
	"gpumem/xla/memory"
)

// Algorithms are the names that Request.Algorithm takes.
var Algorithms = []string{"off", "xla", "gap"}

// A Request is what to plan for a module.
type Request struct {
	// Algorithm is one of [Algorithms]. off changes nothing, xla is XLA's pass, and gap is
	// our planner, which returns the best of several plans.
	Algorithm string
	// Limit returns the limit in bytes for what the module takes now: the peak of its
	// temporaries, or with Packed their heap. See [Bytes] and [Percent]. If it is nil, only
	// the frontier is planned. LimitFrom is where the limit comes from, as text for people.
	Limit     func(now uint64) uint64
	LimitFrom string
	// Packed applies the limit to the heap that temporaries are packed into. Only gap
	// plans for it.
	Packed bool
	// Advice finds the largest holders of memory at the peak and what jax.checkpoint would do,
	// with gap, if the module takes more than its limit.
	Advice bool
	// BestHeap searches for a better packing of the plan's heap than XLA's, for a second.
	BestHeap bool
	// Marks are regions to recompute before anything is planned, as jax.checkpoint does.
	// Save says which of their values are saved; nil: none.
	Marks []*regexp.Regexp
	Save  mark.SavePolicy
	// Fuse fuses chains of elementwise operations first.
	Fuse bool
	// Collectives lets gap recompute collectives and random bits. See gap.Options.
	Collectives bool
	// HostSpeed is the speed of the link to the host's memory in each direction, in bytes
	// per second; 0: no value moves there.
	HostSpeed float64
	Rates     cost.Rates
	// Search is how long gap searches for a better plan for the limit. Plans of the
	// frontier are made without search.
	Search time.Duration
	// Frontier is the distance between the limits of the frontier, in percent of the peak;
	// 0: no frontier. With FrontierTime it takes at most that long: limits are further apart
	// where plans take long, and a plan that is not ready in time is left out.
	Frontier     int
	FrontierTime time.Duration
	// Progress is called with the fraction of the frontier that is done, unless it is nil.
	// After Run's context is done it may be called once more.
	Progress func(done float64)
}

// FrontierStep is the usual Request.Frontier.
const FrontierStep = 5

// Bytes returns a Request.Limit of n bytes.
func Bytes(n uint64) func(uint64) uint64 { return func(uint64) uint64 { return n } }

// Percent returns a Request.Limit of p percent of what the module takes now.
func Percent(p float64) func(uint64) uint64 {
	return func(now uint64) uint64 { return uint64(float64(now) * p / 100) }
}

// An Answer is a plan and its costs. Scripts rely on its JSON. Memory is in bytes.
type Answer struct {
	Algorithm    string `json:"algorithm"`
	Instructions int    `json:"instructions"`                // of the module as given
	Unfused      uint64 `json:"temp_peak_unfused,omitempty"` // peak before Request.Fuse made
	Fused        int    `json:"fused,omitempty"`             // as many fusions as this
	Limit        uint64 `json:"limit_bytes"`
	Before       uint64 `json:"temp_peak_before"`
	After        uint64 `json:"temp_peak_after"`
	// The heap that temporaries are packed into, where results may take the place of
	// operands. With Request.Packed the limit is for it.
	HeapBefore uint64 `json:"heap_before_bytes,omitempty"`
	HeapAfter  uint64 `json:"heap_after_bytes,omitempty"`
	HeapBest   uint64 `json:"heap_after_best_bytes,omitempty"` // by a better packing than XLA's; with Request.BestHeap
	Met        bool   `json:"met"`
	Recomputed int    `json:"recomputed"` // instructions added
	// With Request.HostSpeed: the values that wait on the host, how often they are copied
	// back, and the bytes copied in both directions.
	HostValues  int     `json:"host_values,omitempty"`
	HostReloads int     `json:"host_reloads,omitempty"`
	HostBytes   uint64  `json:"host_bytes_copied,omitempty"`
	Extra       float64 `json:"extra_compute_percent"`
	LowerBound  uint64  `json:"lower_bound_bytes"` // no plan goes below, in any order
	// LowerPercent is a proven lower bound on the extra compute of plans for this limit that
	// run each instruction at its place in the text, and some again. Plans that move
	// instructions may do better. It is 0 if nothing is proven, or if no such plan exists.
	LowerPercent float64 `json:"lower_bound_percent"`
	OutOfReach   bool    `json:"out_of_reach_in_order"` // it is proven that no such plan exists
	Seconds      float64 `json:"seconds"`               // that planning took
	// Legal reports that the plan passed xla/internal/legal: always. Plans that do not are dropped.
	Legal bool `json:"legal"`

	Marked []mark.Marking `json:"marked,omitempty"`
	// With Request.Advice.
	Holders []advice.Holder `json:"holders,omitempty"`
	ByHand  []advice.ByHand `json:"by_hand,omitempty"`
	Loops   []advice.Loop   `json:"loops,omitempty"` // over layers, the largest first
	Holds   string          `json:"holds,omitempty"` // if the limit is missed: what holds the plan, as text for people

	Request *Request `json:"-"`
	// Given is the module that plans begin with, fused but not marked. Module is the
	// planned one; without Request.Limit it is Given with its marks.
	Given, Module *hlo.Module `json:"-"`
	RunSeconds    float64     `json:"-"` // of one run of Given
	// By is what made the plan: off, xla, gap, or host for moves to the host; "rescheduled"
	// if another order of instructions helped, "searched" if a search did.
	By       string        `json:"-"`
	Regions  []mark.Region `json:"-"` // that jax.checkpoint marked before
	Warnings []string      `json:"-"`
	// Frontier are plans for less and less memory, without those that others beat in both
	// memory and time; with Request.Frontier. The answer's own plan is one of them unless
	// another beats it. FrontierLeft is how many limits were left out for lack of
	// Request.FrontierTime.
	Frontier     []*Answer `json:"-"`
	FrontierLeft int       `json:"-"`
}

// Headline returns in one sentence what the plan reaches, for people.
func (a *Answer) Headline() string {
	now, then := a.Before, a.After
	if a.Request.Packed {
		now, then = a.HeapBefore, a.HeapAfter
	}
	name, more := a.Given.Name, report.Counted(uint64(a.Recomputed), "instruction")+" more, at "+report.MoreCompute(a.Extra)
	switch {
	case now <= a.Limit && a.Recomputed == 0:
		return name + " fits its limit as it is: nothing is recomputed."
	case a.Recomputed == 0 && a.Algorithm == "off":
		return name + " takes more than its limit, and nothing is recomputed."
	case len(a.Marked) > 0 && then >= now:
		return name + " takes no less with these marks: " + more + "."
	case then >= now && !a.Met:
		return name + " takes more than its limit, and recomputing does not help."
	case a.Met && a.Recomputed == 0 && a.HostValues > 0:
		return name + " meets its limit with " + report.Counted(uint64(a.HostValues), "value") + " on the host for a while; nothing is recomputed."
	case a.Met:
		return name + " meets its limit with " + more + "."
	}
	return name + " does not meet its limit, with " + more + "."
}

// Least returns LowerPercent as text for people, "-" if nothing is proven. It is the bound
// for the limit, while the plan may be below it.
func (a *Answer) Least() string {
	if a.OutOfReach || a.LowerPercent == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", a.LowerPercent)
}

// AdviceText returns what jax.checkpoint would do, as text for people.
func (a *Answer) AdviceText() []advice.AdviceSection {
	return advice.AdviceText(a.Loops, a.ByHand, a.Limit, max(a.HeapBefore, a.Before))
}

// Regions returns the regions of a module that jax.checkpoint marked, the largest first.
func Regions(m *hlo.Module) []mark.Region { return mark.Regions(m) }

// SavePolicyNamed returns the policy with a name of the command line: nothing, everything, dots,
// dots_no_batch, or names=PATTERN with a regular expression. The error quotes the word.
func SavePolicyNamed(word string) (mark.SavePolicy, error) { return mark.SavePolicyNamed(word) }

// ErrNoMatch is the error of Run for a pattern of Request.Marks that matches nothing.
var ErrNoMatch = errors.New("no instruction has it in its op_name or name")

// Run plans for a module, which is left as it is. The error is one of the module, ErrNoMatch,
// or ctx's. When ctx is done Run returns at once: the plan under way is dropped when it ends.
func Run(ctx context.Context, m *hlo.Module, r Request) (*Answer, error) {
	if !slices.Contains(Algorithms, r.Algorithm) {
		return nil, fmt.Errorf("remat: algorithm %q: want one of %q", r.Algorithm, Algorithms)
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
	go func() { planned <- a.plan(ctx, m) }()
	select {
	case err := <-planned:
		return a, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// plan fills the answer for a module, which it changes.
func (a *Answer) plan(ctx context.Context, m *hlo.Module) (err error) {
	r := a.Request
	if r.Fuse {
		if a.Unfused, _, err = memory.TempPeak(m, r.Memory()); err != nil {
			return err
		}
		if a.Fused, err = hlo.Fuse(m); err != nil {
			return err
		}
	}
	a.Given = m.Clone()
	meter := memory.NewMeter(r.Memory())
	peak, err := meter.Peak(m.Entry)
	if err != nil {
		return err
	}
	a.Before = uint64(peak.Bytes)
	// The heap takes longest of what is known before a plan is made, so that the rest is found
	// beside it, unless the limit is for it.
	var beside sync.WaitGroup
	defer beside.Wait()
	var heapErr error
	if r.Limit != nil {
		beside.Go(func() { heapErr = a.pack(&plan.Plan{Module: a.Given}, &a.HeapBefore, nil) })
		now := a.Before
		if r.Packed {
			beside.Wait()
			now = a.HeapBefore
		}
		a.Limit = r.Limit(now)
	}
	if a.LowerBound, err = gap.LeastMemory(m, meter, r.HostSpeed == 0 && len(r.Marks) == 0, plan.OpenLoops(m)...); err != nil {
		return err
	}
	if a.RunSeconds, err = plan.Seconds(m, r.Rates); err != nil {
		return err
	}
	beside.Wait()
	if heapErr != nil {
		return heapErr
	}
	start := time.Now()
	if len(r.Marks) > 0 {
		if err := a.mark(m); err != nil {
			return err
		}
		meter = memory.NewMeter(r.Memory())
	}
	a.Module = m
	p, err := newProver(m, meter, r)
	if err != nil {
		return err
	}
	marked := *a
	if r.Limit != nil {
		if err := a.one(p, start); err != nil {
			return err
		}
	}
	if r.Frontier > 0 {
		a.Frontier, err = marked.frontier(ctx, p)
		if a.FrontierLeft = marked.FrontierLeft; r.Limit == nil {
			a.Warnings = marked.Warnings
		} else if err == nil {
			a.Frontier = a.among(a.Frontier)
		}
	}
	return err
}

// mark applies the marks to a module.
func (a *Answer) mark(m *hlo.Module) error {
	save := a.Request.Save
	if save == nil {
		save = mark.SaveNothing
	}
	for _, re := range a.Request.Marks {
		before := m.Clone()
		done, err := mark.Mark(m, re, save)
		if err == nil && len(done) == 0 {
			err = ErrNoMatch
		}
		if err == nil {
			// What the user marks may be anything that is repeatable.
			err = legal.Options{Collectives: true, Loops: true}.Check(before, m)
		}
		if err != nil {
			return fmt.Errorf("mark %s: %w", re, err)
		}
		a.Marked = append(a.Marked, done...)
		for _, d := range done {
			a.Recomputed += d.Recomputed
		}
	}
	return nil
}

// one plans for the limit.
func (a *Answer) one(given *prover, start time.Time) error {
	var beside sync.WaitGroup
	var unproven error
	if !a.Request.Packed { // the proof is for what lives at once
		beside.Go(func() { unproven = a.prove(given) })
	}
	p, err := a.planFor(given.m, a.Limit, a.Request.Packed, a.Request.Search)
	beside.Wait()
	if err = cmp.Or(err, unproven); err != nil {
		return err
	}
	a.take(p, time.Since(start))
	best := &a.HeapBest
	if !a.Request.BestHeap {
		best = nil
	}
	if err := a.pack(p, &a.HeapAfter, best); err != nil {
		return err
	}
	if a.Request.Packed {
		a.Met = a.HeapAfter <= a.Limit
	}
	if !a.Met && a.Algorithm == "xla" {
		a.warn("XLA's pass misses the limit; algorithm gap goes further")
	}
	if a.Request.Advice && a.Algorithm == "gap" && a.Before > a.Limit {
		return a.advise(given)
	}
	return nil
}

// Memory returns how the memory of plans is counted.
func (r *Request) Memory() memory.Options { return memory.Options{HostFree: r.HostSpeed > 0} }

// planFor returns the plan of the algorithm for a limit, after it has passed xla/internal/legal as it
// will be written.
func (a *Answer) planFor(m *hlo.Module, limit uint64, packed bool, search time.Duration) (*plan.Plan, error) {
	p, o, err := a.algorithm(m, limit, packed, search)
	if err != nil {
		return nil, err
	}
	if err = o.Legal(m, p); err != nil && p.By == "xla" && a.Algorithm == "xla" {
		a.warn(fmt.Sprintf("XLA's plan was dropped: %v; this is the next best", err))
		o.Collectives = a.Request.Collectives
		if p, err = plan.BestFor(m, limit, o); err == nil {
			p.Dropped = nil // the same
			err = o.Legal(m, p)
		}
	}
	if err != nil {
		return nil, err
	}
	if p.Dropped != nil {
		a.warn(p.Dropped.Error())
	}
	return p, nil
}

// warn adds a warning, once: plans of the frontier have the same faults.
func (a *Answer) warn(text string) {
	if !slices.Contains(a.Warnings, text) {
		a.Warnings = append(a.Warnings, text)
	}
}

// algorithm returns the plan of the algorithm for a limit, and the options that it was made with.
func (a *Answer) algorithm(m *hlo.Module, limit uint64, packed bool, search time.Duration) (p *plan.Plan, o plan.Options, err error) {
	r := a.Request
	o = plan.Options{Rates: r.Rates, Search: search, Collectives: r.Collectives}
	if len(r.Marks) == 0 {
		o.Heap = a.HeapBefore
	}
	if r.HostSpeed > 0 {
		o.Host = &host.Memory{ToHost: float32(r.HostSpeed), FromHost: float32(r.HostSpeed)}
	}
	switch {
	case a.Algorithm == "gap" && packed:
		p, err = plan.BestPacked(m, limit, o)
	case a.Algorithm == "gap":
		p, err = plan.BestFor(m, limit, o)
	case a.Algorithm == "xla":
		o.Collectives = true // as it is, for all devices
		p, err = plan.XLA(m, limit, o)
		if err == nil && o.Host != nil {
			if link := float64(p.Host.Bytes) / 2 / r.HostSpeed; link > p.Seconds {
				a.Warnings = append(a.Warnings, fmt.Sprintf("XLA plans each copy as if it had the link to the host for itself: one way they take %.3g s together, and a step %.3g s; gap lets them take turns", link, p.Seconds))
			}
		}
	default:
		if p, err = o.Measured(m, "off", 0); err == nil {
			p.Packed = o.Heap
		}
	}
	return p, o, err
}

// take sets the figures of a plan.
func (a *Answer) take(p *plan.Plan, took time.Duration) {
	a.Module, a.By, a.Legal = p.Module, p.By, true
	a.After, a.Met = p.Peak, p.Peak <= a.Limit
	a.Recomputed += p.Added
	if a.Request.HostSpeed > 0 {
		a.HostValues, a.HostReloads, a.HostBytes = p.Host.Values, p.Host.Reloads, p.Host.Bytes
	}
	a.Seconds, a.Extra = took.Seconds(), a.percentMore(p.Seconds)
}

// packWork bounds the search for a better packing: a second at most.
const packWork = 8e8

// pack sets the heap of a plan's module as XLA packs it, and as it is packed better unless best is
// nil. If the heap cannot be packed, that is an error with Request.Packed, and otherwise a
// warning.
func (a *Answer) pack(p *plan.Plan, heap, best *uint64) error {
	packed, err := p.Heap()
	switch {
	case err == nil:
		*heap = packed
	case a.Request.Packed:
		return fmt.Errorf("packed: %w", err)
	default:
		a.Warnings = append(a.Warnings, "no heap: "+err.Error())
	}
	if err != nil || best == nil {
		return nil
	}
	x, err := p.Analysis()
	if err != nil {
		return err
	}
	s, err := x.AssignBest(packWork)
	if err == nil {
		*best = s.Temp
	}
	return err
}

// percentMore returns by how many percent a run takes longer than RunSeconds, 0 if that is 0.
// It is rounded, as sums in another order differ in their last digits.
func (a *Answer) percentMore(seconds float64) float64 {
	if !(a.RunSeconds > 0) {
		return 0
	}
	return math.Round(1e6*(seconds-a.RunSeconds)/a.RunSeconds)/1e4 + 0 // not -0
}

// A prover is the module that plans begin with, marked if so requested, with what is known
// about it: proofs for many limits look at it once.
type prover struct {
	m      *hlo.Module
	meter  *memory.Meter
	prices *cost.Analysis // nil if nothing is proven
}

// newProver returns the prover of a module. Proofs are about plans that keep or recompute
// values, so that nothing is proven if values may move to the host, or if a loop may get
// another state.
func newProver(m *hlo.Module, meter *memory.Meter, r *Request) (p *prover, err error) {
	p = &prover{m: m, meter: meter}
	if r.HostSpeed == 0 && len(plan.OpenLoops(m)) == 0 {
		p.prices, err = cost.New(m, r.Rates)
	}
	return p, err
}

// prove sets the lower bounds for the limit.
func (a *Answer) prove(given *prover) error {
	if given.prices == nil {
		return nil
	}
	least, err := gap.LeastSeconds(given.m, given.meter, a.Limit, given.prices.Seconds)
	if err != nil {
		return err
	}
	if a.OutOfReach = math.IsInf(least, 1); !a.OutOfReach && a.RunSeconds > 0 {
		a.LowerPercent = math.Round(1e6*least/a.RunSeconds) / 1e4
	}
	return nil
}

// The most entries of Answer.Holders and Answer.ByHand.
const (
	mostHolders = 5
	mostByHand  = 2
)

// advise sets the holders of a module's memory, and what marking layers by hand would do.
func (a *Answer) advise(given *prover) error {
	if !given.m.HasOpNames() {
		a.warn("no op_name in it: no advice on the lines of the program and on what to mark there")
	}
	heap := a.HeapBefore
	if heap == 0 { // it could not be packed
		heap = a.Before
	}
	found, parts, err := advice.Loops(given.m, heap, a.Request.Rates, a.RunSeconds)
	if err != nil {
		return err
	}
	a.Loops = found
	list, err := advice.Holders(given.m, given.meter, parts)
	if err != nil {
		return err
	}
	a.Holders = list[:min(len(list), mostHolders)]
	if !a.Met {
		if a.Holds, err = advice.Holds(a.Module, memory.NewMeter(a.Request.Memory())); err != nil {
			return err
		}
	}
	plans, err := advice.ByHandPlans(given.m, a.Limit, a.HeapBefore, plan.Options{Rates: a.Request.Rates})
	if err != nil { // the plan stands all the same
		a.warn("no advice on what to mark by hand: " + err.Error())
	}
	a.ByHand = plans[:min(len(plans), mostByHand)]
	for n := range a.ByHand {
		a.ByHand[n].Extra = a.percentMore(a.ByHand[n].Seconds)
	}
	return nil
}
