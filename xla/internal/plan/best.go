package plan

// The best of several plans for one limit.
//
// Say that a module takes 10 GiB, and the limit is 6 GiB. Its given order and XLA's best
// other order are two sources. XLA's pass plans from the first, gap splitting from each, at
// the same time. Plans that meet the limit beat those that do not, and of these the fastest
// wins. If none meets it, gap splitting tries larger and smaller limits too, as one of these
// plans may come nearer. With a host, values are moved there first. At last the search
// improves the best plan of gap splitting for as long as the caller allows.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/gap"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/host"
	"gpumem/xla/internal/pass"
)

// A Planner makes plans for one module, which it leaves as it is. What it finds out about the
// module serves all limits.
type Planner struct {
	Options
	m     *hlo.Module // as it was given
	Given *Plan       // the module as it is, which changes nothing

	prepared    bool
	sources     []*source // the given order, and another one if that helps
	rescheduled *Plan     // that order alone, nil if there is none
	stacks      *stacks   // of the given module's loops
}

// NewPlanner returns the planner of a verified module. given is what [Options.Measure] makes of it.
func NewPlanner(m *hlo.Module, given *Plan, o Options) (*Planner, error) {
	return &Planner{Options: o, m: m, Given: given}, given.check(m, o.Collectives)
}

// Check checks that a plan is a legal change of the module. Plans of [Planner.Best] are.
func (p *Planner) Check(made *Plan, collectives bool) error { return made.check(p.m, collectives) }

// prepare finds what plans for all limits begin with.
func (p *Planner) prepare() (err error) {
	if p.prepared {
		return nil
	}

	plain, err := p.newSource(p.Given.Module, "gap", 0)
	if err != nil {
		return err
	}

	p.sources = []*source{plain}

	other, err := p.Reorder(p.Given.Module, p.Given.Peak)
	if err != nil {
		return err
	}
	if other != nil {
		if p.rescheduled, err = p.Cost(other, "rescheduled", 0); err != nil {
			return err
		}
		reordered, err := p.newSource(other, "gap, rescheduled", 0)
		if err != nil {
			return err
		}
		p.sources = append(p.sources, reordered)
	}

	p.stacks, err = newStacks(p.Given.Module, p.Options)
	p.prepared = err == nil
	return err
}

// Best returns the best known plan for a limit in bytes: the module as given, XLA's own
// plan, or gap splitting in the order of the text or in another one. So it is never worse
// than XLA's, and its heap neither: see packed.go. Of a limit that is missed it is the
// fastest that takes little more than the least: see preferFaster. Plans are made at the same
// time, on two or three cores.
//
// search is how long to look for a better plan. The search ends late by one round, some
// milliseconds to a tenth of a second. How far it gets differs, so that the plan may be another
// each time, but none is worse than that without. Where the limit is missed, a plan that is
// faster and takes little more counts as better.
func (p *Planner) Best(limit uint64, search time.Duration) (*Plan, error) {
	if p.stacks != nil {
		clear(p.stacks.plans) // those for other limits
	}
	return p.best(limit, search)
}

func (p *Planner) best(limit uint64, search time.Duration) (_ *Plan, err error) {
	if p.Given.Meets(limit) {
		return p.Given, nil
	}
	if err := p.prepare(); err != nil {
		return nil, err
	}

	k := &candidates{Planner: p, limit: limit, best: p.Given, sources: slices.Clone(p.sources)}
	// XLA's pass runs at the same time as all that follows, on a copy.
	k.xla.Go(func() {
		c := p.Given.Module.Clone()
		var r *pass.Result
		if r, k.theirErr = pass.Run(c, pass.Options{Limit: limit}); k.theirErr == nil {
			if k.theirs, k.theirErr = p.Cost(c, "xla", r.Added); k.theirErr == nil {
				p.Check(k.theirs, p.Collectives) // known before it is needed
			}
		}
	})

	err = k.makePlans(search)
	k.xla.Wait()
	if err != nil {
		return nil, err
	}

	for {
		k.preferFaster()
		chosen, err := k.chooseByHeap()
		if err != nil {
			return nil, err
		}
		if chosen == p.Given {
			same := *chosen
			same.Dropped = k.dropped
			return &same, nil
		}
		best, err := p.Measure(chosen.Module, chosen.By, chosen.Added)
		if err != nil {
			return nil, err
		}
		if err := p.Check(best, p.Collectives); err != nil {
			k.dropPlan(chosen, err)
			continue
		}
		best.packed = chosen.packed // of the same text
		best.Dropped = k.dropped
		return best, nil
	}
}

// candidates are the plans made so far for one limit.
type candidates struct {
	*Planner
	limit uint64

	sources []*source
	best    *Plan
	made    []*Plan // all of them, without those that are not legal
	gap     *Plan   // the best of gap splitting
	from    *source // of gap

	dropped error // see Plan

	xla      sync.WaitGroup
	theirs   *Plan // by XLA's pass, when that is done
	theirErr error
}

// takePlan keeps a plan, as the best if it is. XLA's has to be legal; ours, which are, are checked
// when they are chosen.
func (k *candidates) takePlan(p *Plan) {
	if p.By == "xla" {
		if err := k.Check(p, k.Collectives); err != nil {
			if p.betterThan(k.best, k.limit) {
				k.dropPlan(p, err)
			}
			return
		}
	}

	if !slices.Contains(k.made, p) {
		k.made = append(k.made, p)
	}
	if p.betterThan(k.best, k.limit) {
		k.best = p
	}
}

// dropPlan forgets a plan that is not legal. The best is that of the others.
func (k *candidates) dropPlan(p *Plan, err error) {
	k.dropped = cmp.Or(k.dropped, fmt.Errorf("a better plan (%s) was dropped: %w", p.By, err))
	k.made = slices.DeleteFunc(k.made, func(q *Plan) bool { return q == p })
	k.best = slices.MinFunc(k.withGiven(), func(p, q *Plan) int { return p.Compare(q, k.limit) })
}

// withGiven returns the plans that were made, behind the module as given.
func (k *candidates) withGiven() []*Plan { return append([]*Plan{k.Given}, k.made...) }

// nearly is how much more than the least a plan may take that misses its limit, as a factor. The
// last percents cost most, and do not help a program that does not fit anyway.
const nearly = 1.02

// preferFaster takes, where the limit is missed, the fastest plan of those that take little more
// than the best, the given module among them, and of equally fast ones the smallest. None takes
// more than XLA's plan.
func (k *candidates) preferFaster() {
	if k.best.Meets(k.limit) {
		return
	}

	most := uint64(nearly * float64(k.best.Peak))
	if slices.Contains(k.made, k.theirs) {
		most = min(most, max(k.best.Peak, k.theirs.Peak))
	}

	few := slices.DeleteFunc(k.withGiven(), func(p *Plan) bool { return p.Peak > most || p.Seconds >= k.best.Seconds })
	if len(few) > 0 {
		k.best = slices.MinFunc(few, func(p, q *Plan) int {
			return cmp.Or(cmp.Compare(p.Seconds, q.Seconds), cmp.Compare(p.Peak, q.Peak))
		})
	}
}

// takeGap is takePlan for a plan that gap splitting made of a source.
func (k *candidates) takeGap(p *Plan, from *source) {
	if k.gap == nil || p.betterThan(k.gap, k.limit) {
		k.gap, k.from = p, from
	}
	k.takePlan(p)
}

// makePlans makes all plans but XLA's.
func (k *candidates) makePlans(search time.Duration) error {
	if k.rescheduled != nil { // another order alone may meet the limit
		k.takePlan(k.rescheduled)
	}
	if err := k.dropStacks(); err != nil {
		return err
	}
	if k.Host != nil {
		if done, err := k.moveToHost(); err != nil || done {
			return err
		}
	}

	if err := k.splitGaps(k.limit); err != nil {
		return err
	}

	// If the limit is missed, plans for other limits may come nearer.
	for _, part := range []float64{.9, 1.1, .8, 1.25, 1.5, 2} {
		if k.best.Meets(k.limit) {
			break
		}
		if err := k.splitGaps(uint64(part * float64(k.limit))); err != nil {
			return err
		}
	}

	return k.improve(search)
}

// dropStacks takes the plans that drop stacks of loops for the limit. Gap splitting goes on from
// there.
func (k *candidates) dropStacks() error {
	for _, p := range k.stacks.forLimit(k.limit) {
		if p.Peak >= k.Given.Peak {
			continue
		}
		if err := k.Check(p, k.Collectives); err != nil {
			k.dropPlan(p, err)
			continue
		}
		k.takePlan(p)
		s, err := k.newSource(p.Module, "gap, loops", p.Added)
		if err != nil {
			return err
		}
		k.sources = append(k.sources, s)
	}

	k.dropped = cmp.Or(k.dropped, k.stacks.fault)
	return nil
}

// splitGaps takes XLA's plan, and that of gap splitting for each source, made at the same time.
func (k *candidates) splitGaps(to uint64) error {
	made, errs := make([]*Plan, len(k.sources)), make([]error, len(k.sources))
	var all sync.WaitGroup
	for n, s := range k.sources {
		all.Go(func() { made[n], errs[n] = k.splitSource(s, to, 0) })
	}

	all.Wait()
	k.xla.Wait()
	if err := cmp.Or(k.theirErr, cmp.Or(errs...)); err != nil {
		return err
	}

	k.takePlan(k.theirs) // later calls change nothing
	for n, p := range made {
		k.takeGap(p, k.sources[n])
	}
	return nil
}

// improve looks for a better plan than the best of gap splitting.
func (k *candidates) improve(search time.Duration) error {
	// What takes no more time than the module as given is good enough.
	if search <= 0 || k.best.Meets(k.limit) && k.best.Seconds <= k.Given.Seconds {
		return nil
	}

	// If the limit is missed, search for a little less than was reached. With a limit far
	// below, most of the search would go into splits that do not lower the peak.
	to := k.limit
	if !k.gap.Meets(k.limit) {
		to = max(to, k.gap.Peak/100*98)
	}

	p, err := k.splitSource(k.from, to, search)
	if err != nil {
		return err
	}

	p.By = k.gap.By + ", searched"
	k.takePlan(p)
	return nil
}

// hostParts are limits, as factors on that of the plan, for which gap splitting goes first:
// what then remains moves to the host. With 0 all moves there. The link carries little, and
// serves best for the last bytes, which cost most to recompute. Each factor was the best
// for some limit, speed and real module.
var hostParts = []float64{0, 1.1, 1.2, 1.3, 1.5}

// moveToHost takes the plans that move values to the host: of each source, and of what gap
// splitting makes of it for larger limits. done is set if one meets the limit at no cost, as
// copies beside the computation have none: there is no better plan.
func (k *candidates) moveToHost() (done bool, err error) {
	for _, part := range hostParts {
		for _, s := range k.sources {
			if err := k.moveSource(s, part); err != nil {
				return false, err
			}
		}
		if k.best.Meets(k.limit) && k.best.Seconds <= k.Given.Seconds {
			return true, nil
		}
	}

	return false, nil
}

// moveSource takes the plan that moves values of a source to the host, after gap splitting for
// part times the limit, and before gap splitting for the limit if that is not met.
func (k *candidates) moveSource(s *source, part float64) error {
	c, added, by := s.m.Clone(), 0, strings.Replace(s.by, "gap", "host", 1)
	if part > 0 {
		p, err := k.splitSource(s, uint64(part*float64(k.limit)), 0)
		if err != nil {
			return err
		}
		c, added, by = p.Module.Clone(), p.Added, "gap, "+by
	}

	to, err := k.Host.For(c, k.Rates)
	if err != nil {
		return err
	}

	moved, err := host.Move(c, k.limit, to)
	if err != nil || !moved {
		return err
	}

	p, err := k.Cost(c, by, added)
	if err != nil {
		return err
	}

	k.takePlan(p)
	if p.Meets(k.limit) {
		return nil
	}

	again, err := k.newSource(c.Clone(), "gap, "+strings.TrimPrefix(by, "gap, "), added)
	if err != nil {
		return err
	}
	if p, err = k.splitSource(again, k.limit, 0); err == nil {
		k.takeGap(p, again)
	}
	return err
}

// A source is the module in one order, from which plans are made. It is not changed.
type source struct {
	m      *hlo.Module
	by     string // Plan.By of its plans
	added  int    // instructions that it has more than the given module
	prices *cost.Analysis
}

func (o Options) newSource(m *hlo.Module, by string, added int) (*source, error) {
	prices, err := cost.New(m, o.Rates)
	return &source{m, by, added, prices}, err
}

// splitSource returns the plan of gap splitting for a copy of a source, which has its IDs.
func (o Options) splitSource(s *source, limit uint64, search time.Duration) (*Plan, error) {
	c := s.m.Clone()
	added, err := gap.Run(c, gap.Options{
		Limit: limit, Seconds: s.prices.Seconds, Time: search, HostFree: o.Host != nil, Collectives: o.Collectives,
	})
	if err != nil {
		return nil, err
	}
	return o.Cost(c, s.by, s.added+added)
}

// XLA returns the plan of XLA's pass for a limit in bytes. With Options.Host the pass may move
// values to the host, too.
func (p *Planner) XLA(limit uint64) (_ *Plan, err error) {
	c := p.Given.Module.Clone()
	o := pass.Options{Limit: limit}
	if p.Host != nil {
		if o.Host, err = p.Host.For(c, p.Rates); err != nil {
			return nil, err
		}
	}

	r, err := pass.Run(c, o)
	if err != nil {
		return nil, err
	}
	return p.Measure(c, "xla", r.Added)
}
