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

	"gpumem/xla/cost"
	"gpumem/xla/hlo"
	"gpumem/xla/internal/gap"
	"gpumem/xla/internal/host"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/pass"
	"gpumem/xla/internal/verify"
	"gpumem/xla/memory"
)

// A Plan is a changed module with its costs.
type Plan struct {
	Module *hlo.Module
	// Peak is that of temporaries in bytes, as memory.TempPeak counts, and Seconds what one
	// run takes by the cost model. Of the chosen plan both are measured on its text, read
	// again.
	Peak    uint64
	Seconds float64
	Added   int              // instructions, without those that only moved
	By      string           // what made it, as Answer.By
	values  *memory.Analysis // of Module, once it was asked for
	Packed  uint64           // see heap; 0: it was not asked for
	// Host is what waits on the host. In a plan that may not move values there, it is what
	// the given module has.
	Host host.Result
	// dropped says why the first better plan was dropped; nil if none was.
	Dropped error
	// checked says that illegal is what xla/internal/legal found.
	checked bool
	illegal error
}

// Options say what plans may do. The zero value recomputes and does not search.
type Options struct {
	Rates cost.Rates
	// Search is how long to look for a better plan. The search ends late by one round,
	// some milliseconds to a tenth of a second. How far it gets differs, so that the plan
	// may be another each time, but none is worse than that without. Where the limit is missed,
	// a plan that is faster and takes little more counts as better: see near.
	Search time.Duration
	// Host lets plans move values to the host's memory as [host.Move] does. What lies there
	// takes nothing, and there is room for all. Seconds nil is the cost model's.
	Host *host.Memory
	// Collectives is that of [gap.Options]. Without it a plan of XLA's pass that recomputes
	// some counts as one that is not legal: each device has to have the same plan then.
	Collectives bool
	// heap is what the temporaries of the given module are packed into; 0: not known.
	Heap uint64
	// stacks are those of the given module's loops; nil: not looked for yet.
	stacks *stacks
}

// memory is how plans are measured.
func (o Options) memory() memory.Options { return memory.Options{HostFree: o.Host != nil} }

// Analysis returns the values of the plan's module, as buffer assignment sees them.
func (p *Plan) Analysis() (_ *memory.Analysis, err error) {
	if p.values == nil {
		p.values, err = memory.AnalyzeModule(p.Module)
	}
	return p.values, err
}

// Heap returns the bytes of the heap that the temporaries of the plan are packed into.
func (p *Plan) Heap() (uint64, error) {
	if p.Packed > 0 {
		return p.Packed, nil
	}
	a, err := p.Analysis()
	if err != nil {
		return 0, err
	}
	s, err := a.Assign()
	if err != nil {
		return 0, err
	}
	p.Packed = s.Temp
	return s.Temp, nil
}

// Meets reports whether the plan's peak is at most limit bytes.
func (p *Plan) Meets(limit uint64) bool { return p.Peak <= limit }

// BetterThan reports whether p is the better of two plans for a limit: one that meets it
// before one that does not, then the faster, and of those that miss it the smaller.
func (p *Plan) BetterThan(q *Plan, limit uint64) bool {
	switch {
	case p.Meets(limit) != q.Meets(limit):
		return p.Meets(limit)
	case p.Meets(limit):
		return p.Seconds < q.Seconds || p.Seconds == q.Seconds && p.Peak < q.Peak
	}
	return p.Peak < q.Peak || p.Peak == q.Peak && p.Seconds < q.Seconds
}

// BestFor returns the best known plan for a limit in bytes: the module as given, XLA's own
// plan, or gap splitting in the order of the text or in another one. So it is never worse
// than XLA's, and its heap neither: see packed.go. Of a limit that is missed it is the
// fastest that takes little more than the least: see near. The module is left as it is. Plans
// are made at the same time, on two or three cores.
func BestFor(m *hlo.Module, limit uint64, o Options) (*Plan, error) {
	given, err := o.Measured(m, "off", 0)
	if err != nil {
		return nil, err
	}
	given.Packed = o.Heap
	return o.best(given, limit)
}

// best is BestFor for a module that was measured. It may be called again for other limits.
func (o Options) best(given *Plan, limit uint64) (_ *Plan, err error) {
	if given.Meets(limit) {
		return given, nil
	}
	k := &plans{o: o, limit: limit, given: given, best: given}
	// XLA's pass runs at the same time as all that follows, on a copy.
	k.xla.Go(func() {
		c := given.Module.Clone()
		var r *pass.Result
		if r, k.theirErr = pass.Run(c, pass.Options{Limit: limit}); k.theirErr == nil {
			if k.theirs, k.theirErr = o.Costs(c, "xla", r.Added); k.theirErr == nil {
				o.Legal(given.Module, k.theirs) // known before it is needed
			}
		}
	})
	err = k.make()
	k.xla.Wait()
	if err != nil {
		return nil, err
	}
	for {
		k.near()
		chosen, err := k.withHeap()
		if err != nil {
			return nil, err
		}
		if chosen == given {
			same := *given
			same.Dropped = k.dropped
			return &same, nil
		}
		best, err := o.Measured(chosen.Module, chosen.By, chosen.Added)
		if err != nil {
			return nil, err
		}
		if err := o.Legal(given.Module, best); err != nil {
			k.drop(chosen, err)
			continue
		}
		best.Packed = chosen.Packed // of the same text
		best.Dropped = k.dropped
		return best, nil
	}
}

// plans are those made so far for one limit.
type plans struct {
	o     Options
	limit uint64
	given *Plan

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

// take keeps a plan, as the best if it is. XLA's has to be legal; ours, which are, are checked
// when they are chosen.
func (k *plans) take(p *Plan) {
	if p.By == "xla" {
		if err := k.o.Legal(k.given.Module, p); err != nil {
			if p.BetterThan(k.best, k.limit) {
				k.drop(p, err)
			}
			return
		}
	}
	if !slices.Contains(k.made, p) {
		k.made = append(k.made, p)
	}
	if p.BetterThan(k.best, k.limit) {
		k.best = p
	}
}

// drop forgets a plan that is not legal. The best is that of the others.
func (k *plans) drop(p *Plan, err error) {
	k.dropped = cmp.Or(k.dropped, fmt.Errorf("a better plan (%s) was dropped: %w", p.By, err))
	k.made = slices.DeleteFunc(k.made, func(q *Plan) bool { return q == p })
	k.best = k.given
	for _, q := range k.made {
		if q.BetterThan(k.best, k.limit) {
			k.best = q
		}
	}
}

// nearly is how much more than the least a plan may take that misses its limit, as a factor. The
// last percents cost most, and do not help a program that does not fit anyway.
const nearly = 1.02

// near takes, where the limit is missed, the fastest plan of those that take little more than
// the best, the given module among them, and of equally fast ones the smallest. None takes more
// than XLA's plan.
func (k *plans) near() {
	if k.best.Meets(k.limit) {
		return
	}
	most := uint64(nearly * float64(k.best.Peak))
	if slices.Contains(k.made, k.theirs) {
		most = min(most, max(k.best.Peak, k.theirs.Peak))
	}
	list := append([]*Plan{k.given}, k.made...)
	slices.SortStableFunc(list, func(p, q *Plan) int {
		return cmp.Or(cmp.Compare(p.Seconds, q.Seconds), cmp.Compare(p.Peak, q.Peak))
	})
	for _, p := range list {
		if p.Seconds >= k.best.Seconds {
			return
		}
		if p.Peak <= most {
			k.best = p
			return
		}
	}
}

// Legal checks that a plan is a legal change of the module that it was made for, once.
func (o Options) Legal(given *hlo.Module, p *Plan) error {
	if !p.checked {
		// XLA's pass may compute loops again, and collectives if it is asked to.
		p.checked, p.illegal = true, legal.Options{Collectives: o.Collectives, Loops: p.By == "xla"}.Check(given, p.Module)
	}
	return p.illegal
}

// takeGap is take for a plan that gap splitting made of a source.
func (k *plans) takeGap(p *Plan, from *source) {
	if k.gap == nil || p.BetterThan(k.gap, k.limit) {
		k.gap, k.from = p, from
	}
	k.take(p)
}

// make makes all plans but XLA's.
func (k *plans) make() error {
	plain, err := newSource(k.given.Module, "gap", 0, k.o.Rates)
	if err != nil {
		return err
	}
	k.sources = []*source{plain}
	// Another order alone may meet the limit.
	if other, err := k.o.Reordered(k.given.Module, k.given.Peak); err != nil {
		return err
	} else if other != nil {
		p, err := k.o.Costs(other, "rescheduled", 0)
		if err != nil {
			return err
		}
		k.take(p)
		o, err := newSource(other, "gap, rescheduled", 0, k.o.Rates)
		if err != nil {
			return err
		}
		k.sources = append(k.sources, o)
	}
	if err := k.unstack(); err != nil {
		return err
	}
	if k.o.Host != nil {
		if done, err := k.toHost(); err != nil || done {
			return err
		}
	}
	if err := k.split(k.limit); err != nil {
		return err
	}
	// If the limit is missed, plans for other limits may come nearer.
	for _, part := range []float64{.9, 1.1, .8, 1.25, 1.5, 2} {
		if k.best.Meets(k.limit) {
			break
		}
		if err := k.split(uint64(part * float64(k.limit))); err != nil {
			return err
		}
	}
	return k.search()
}

// unstack takes the plan that drops stacks of loops for the limit. Gap splitting goes on from there.
func (k *plans) unstack() (err error) {
	if k.o.stacks == nil {
		if k.o.stacks, err = newStacks(k.given.Module, k.o); err != nil {
			return err
		}
	}
	for _, p := range k.o.stacks.forLimit(k.limit) {
		if p.Peak >= k.given.Peak {
			continue
		}
		if err := k.o.Legal(k.given.Module, p); err != nil {
			k.drop(p, err)
			continue
		}
		k.take(p)
		s, err := newSource(p.Module, "gap, loops", p.Added, k.o.Rates)
		if err != nil {
			return err
		}
		k.sources = append(k.sources, s)
	}
	k.dropped = cmp.Or(k.dropped, k.o.stacks.fault)
	return nil
}

// split takes XLA's plan, and that of gap splitting for each source, made at the same time.
func (k *plans) split(to uint64) error {
	made, errs := make([]*Plan, len(k.sources)), make([]error, len(k.sources))
	var all sync.WaitGroup
	for n, o := range k.sources {
		all.Go(func() { made[n], errs[n] = o.split(k.o, to, 0) })
	}
	all.Wait()
	k.xla.Wait()
	if err := cmp.Or(k.theirErr, cmp.Or(errs...)); err != nil {
		return err
	}
	k.take(k.theirs) // later calls change nothing
	for n, p := range made {
		k.takeGap(p, k.sources[n])
	}
	return nil
}

// search looks for a better plan than the best of gap splitting.
func (k *plans) search() error {
	// What takes no more time than the module as given is good enough.
	if k.o.Search <= 0 || k.best.Meets(k.limit) && k.best.Seconds <= k.given.Seconds {
		return nil
	}
	// If the limit is missed, search for a little less than was reached. With a limit far
	// below, most of the search would go into splits that do not lower the peak.
	to := k.limit
	if !k.gap.Meets(k.limit) {
		to = max(to, k.gap.Peak/100*98)
	}
	p, err := k.from.split(k.o, to, k.o.Search)
	if err != nil {
		return err
	}
	p.By = k.gap.By + ", searched"
	k.take(p)
	return nil
}

// hostParts are limits, as factors on that of the plan, for which gap splitting goes first:
// what then remains moves to the host. With 0 all moves there. The link carries little, and
// serves best for the last bytes, which cost most to recompute. Each factor was the best
// for some limit, speed and real module.
var hostParts = []float64{0, 1.1, 1.2, 1.3, 1.5}

// toHost takes the plans that move values to the host: of each source, and of what gap
// splitting makes of it for larger limits. done is set if one meets the limit at no cost, as
// copies beside the computation have none: there is no better plan.
func (k *plans) toHost() (done bool, err error) {
	for _, part := range hostParts {
		for _, s := range k.sources {
			if err := k.moved(s, part); err != nil {
				return false, err
			}
		}
		if k.best.Meets(k.limit) && k.best.Seconds <= k.given.Seconds {
			return true, nil
		}
	}
	return false, nil
}

// moved takes the plan that moves values of a source to the host, after gap splitting for
// part times the limit, and before gap splitting for the limit if that is not met.
func (k *plans) moved(s *source, part float64) error {
	c, added, by := s.m.Clone(), 0, strings.Replace(s.by, "gap", "host", 1)
	if part > 0 {
		p, err := s.split(k.o, uint64(part*float64(k.limit)), 0)
		if err != nil {
			return err
		}
		c, added, by = p.Module.Clone(), p.Added, "gap, "+by
	}
	to, err := k.o.Host.For(c, k.o.Rates)
	if err != nil {
		return err
	}
	moved, err := host.Move(c, k.limit, to)
	if err != nil || !moved {
		return err
	}
	p, err := k.o.Costs(c, by, added)
	if err != nil {
		return err
	}
	k.take(p)
	if p.Meets(k.limit) {
		return nil
	}
	again, err := newSource(c.Clone(), "gap, "+strings.TrimPrefix(by, "gap, "), added, k.o.Rates)
	if err != nil {
		return err
	}
	if p, err = again.split(k.o, k.limit, 0); err == nil {
		k.takeGap(p, again)
	}
	return err
}

// A source is the module in one order, from which plans are made. It is not changed.
type source struct {
	m      *hlo.Module
	by     string // plan.By of its plans
	added  int    // instructions that it has more than the given module
	prices *cost.Analysis
}

func newSource(m *hlo.Module, by string, added int, rates cost.Rates) (*source, error) {
	prices, err := cost.New(m, rates)
	return &source{m, by, added, prices}, err
}

// split returns the plan of gap splitting for a copy of the source, which has its IDs.
func (s *source) split(o Options, limit uint64, search time.Duration) (*Plan, error) {
	c := s.m.Clone()
	added, err := gap.Run(c, gap.Options{Limit: limit, Seconds: s.prices.Seconds, Time: search, HostFree: o.Host != nil, Collectives: o.Collectives})
	if err != nil {
		return nil, err
	}
	return o.Costs(c, s.by, s.added+added)
}

// XLA returns the plan of XLA's pass for a limit in bytes, made of a copy. With o.Host
// the pass may move values to the host, too.
func XLA(m *hlo.Module, limit uint64, o Options) (*Plan, error) {
	c, err := hlo.ParseString(m.String())
	h := o.Host
	if err == nil && h != nil {
		h, err = h.For(c, o.Rates)
	}
	if err != nil {
		return nil, err
	}
	r, err := pass.Run(c, pass.Options{Limit: limit, Host: h})
	if err != nil {
		return nil, err
	}
	return o.Measured(c, "xla", r.Added)
}

// Measured writes a module as text, reads that again, and returns it with its costs.
func (o Options) Measured(m *hlo.Module, by string, added int) (*Plan, error) {
	m, err := hlo.ParseString(m.String())
	if err != nil {
		return nil, err
	}
	return o.Costs(m, by, added)
}

// Costs verifies what a planner made and returns it as it is, with its costs. All plans come
// by here. Those that are returned are checked by xla/internal/legal, too.
func (o Options) Costs(m *hlo.Module, by string, added int) (p *Plan, err error) {
	if err := verify.Module(m); err != nil {
		return nil, err
	}
	p = &Plan{Module: m, By: by, Added: added, Host: host.Copies(m)}
	var failed error
	var beside sync.WaitGroup
	beside.Go(func() { p.Seconds, failed = Seconds(m, o.Rates) })
	p.Peak, _, err = memory.TempPeak(m, o.memory())
	beside.Wait()
	return p, cmp.Or(err, failed)
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

// Reordered returns a copy in that of XLA's orders whose temporaries take least, nil if none
// takes less than the module does now. A scheduled module stays as it is.
func (o Options) Reordered(m *hlo.Module, now uint64) (*hlo.Module, error) {
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
		peak, _, err := memory.TempPeak(c, o.memory())
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
