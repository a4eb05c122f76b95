package remat

// The best of several plans for one limit.

import (
	"cmp"
	"strings"
	"sync"
	"time"

	"gpumem/hlo"
	"gpumem/hlo/cost"
	"gpumem/hlo/memory"
	"gpumem/hlo/passes"
	"gpumem/hlo/verify"
	"gpumem/remat/gap"
	"gpumem/remat/host"
	"gpumem/remat/xla"
)

// A plan is a module that was changed, and what it takes.
type plan struct {
	Module *hlo.Module
	// Peak is that of temporaries in bytes, as memory.TempPeak counts, and
	// Seconds what one run takes by the cost model. Both are measured on the module's text,
	// read again.
	Peak    uint64
	Seconds float64
	Added   int    // instructions, those that only moved left out
	By      string // what made it: off, xla, gap, or gap on another order of instructions; host, if values were moved there before; searched, if a search did better
	// Host is what is on the host for a while; in a plan that may not move values there,
	// what the module as given has.
	Host host.Result
}

// options say what plans may do. The zero value recomputes, and does not search.
type options struct {
	// Search is how long to look for a better plan. The search ends late by one round,
	// some milliseconds to a tenth of a second. How far it gets differs, so that the
	// plan may be another each time, but none is worse than that without.
	Search time.Duration
	// Host is the host's memory: with it plans may move values there as [host.Move]
	// does, and what lies there takes nothing. Host.Seconds nil is the cost model's; the
	// host is taken to have room.
	Host *host.Memory
	// Collectives is that of [gap.Options]. XLA's own plan may run collectives again in any case.
	Collectives bool
}

// memory is how plans are measured.
func (o options) memory() memory.Options { return memory.Options{HostFree: o.Host != nil} }

// meets reports whether the plan's peak is at most limit bytes.
func (p *plan) meets(limit uint64) bool { return p.Peak <= limit }

// betterThan reports whether p is the better of two plans for a limit: one that meets it
// before one that does not, then the faster, and of those that miss it the smaller.
func (p *plan) betterThan(q *plan, limit uint64) bool {
	switch {
	case p.meets(limit) != q.meets(limit):
		return p.meets(limit)
	case p.meets(limit):
		return p.Seconds < q.Seconds || p.Seconds == q.Seconds && p.Peak < q.Peak
	}
	return p.Peak < q.Peak || p.Peak == q.Peak && p.Seconds < q.Seconds
}

// bestFor makes the best plan that is known here for a limit in bytes, as
// memory.TempPeak counts: the module as given, XLA's own plan, or gap splitting in the order
// of the text or in another one. So it is never worse than XLA's, and better if another
// meets the limit at less cost or comes nearer. A search starts from the better plan of gap
// splitting. The module is left as it is. Plans are made at once, on two or three cores.
func bestFor(m *hlo.Module, limit uint64, rates cost.Rates, o options) (*plan, error) {
	given, err := o.measured(m.String(), "off", 0, rates)
	if err != nil || given.meets(limit) {
		return given, err
	}
	k := &plans{o: o, limit: limit, rates: rates, given: given, best: given}
	// XLA's pass runs beside all that follows, on a copy.
	k.xla.Go(func() {
		c := given.Module.Clone()
		var r *xla.Result
		if r, k.theirErr = xla.Run(c, xla.Options{Limit: limit}); k.theirErr == nil {
			k.theirs, k.theirErr = o.taking(c, "xla", r.Added, rates)
		}
	})
	err = k.make()
	k.xla.Wait()
	if err != nil {
		return nil, err
	}
	if k.best == given {
		return given, nil
	}
	return o.measured(k.best.Module.String(), k.best.By, k.best.Added, rates)
}

// plans is the best of those made so far.
type plans struct {
	o     options
	limit uint64
	rates cost.Rates
	given *plan

	sources []*source
	best    *plan
	gap     *plan   // the best of gap splitting
	from    *source // what it was made of

	xla      sync.WaitGroup
	theirs   *plan // by XLA's pass, when that is done
	theirErr error
}

// take keeps a plan if it is the best.
func (k *plans) take(p *plan) {
	if p.betterThan(k.best, k.limit) {
		k.best = p
	}
}

// takeGap is take for what gap splitting made of a source.
func (k *plans) takeGap(p *plan, from *source) {
	if k.gap == nil || p.betterThan(k.gap, k.limit) {
		k.gap, k.from = p, from
	}
	k.take(p)
}

// make makes all plans but XLA's.
func (k *plans) make() error {
	plain, err := newSource(k.given.Module, "gap", 0, k.rates)
	if err != nil {
		return err
	}
	k.sources = []*source{plain}
	// Another order alone may do.
	if other, err := k.o.reordered(k.given.Module, k.given.Peak); err != nil {
		return err
	} else if other != nil {
		p, err := k.o.taking(other, "rescheduled", 0, k.rates)
		if err != nil {
			return err
		}
		k.take(p)
		o, err := newSource(other, "gap, rescheduled", 0, k.rates)
		if err != nil {
			return err
		}
		k.sources = append(k.sources, o)
	}
	if k.o.Host != nil {
		if done, err := k.toHost(); err != nil || done {
			return err
		}
	}
	if err := k.split(k.limit); err != nil {
		return err
	}
	// Where the limit is out of reach, plans for others may come nearer.
	for _, part := range []float64{.9, 1.1, .8, 1.25, 1.5, 2} {
		if k.best.meets(k.limit) {
			break
		}
		if err := k.split(uint64(part * float64(k.limit))); err != nil {
			return err
		}
	}
	return k.search()
}

// split takes XLA's plan, and what gap splitting makes of each source, all at once.
func (k *plans) split(to uint64) error {
	made, errs := make([]*plan, len(k.sources)), make([]error, len(k.sources))
	var all sync.WaitGroup
	for n, o := range k.sources {
		all.Go(func() { made[n], errs[n] = o.split(k.o, to, 0, k.rates) })
	}
	all.Wait()
	k.xla.Wait()
	if err := cmp.Or(k.theirErr, cmp.Or(errs...)); err != nil {
		return err
	}
	k.take(k.theirs) // later calls change nothing here
	for n, p := range made {
		k.takeGap(p, k.sources[n])
	}
	return nil
}

// search looks for a better plan than the best of gap splitting.
func (k *plans) search() error {
	// What takes no more time than the module as given is good enough.
	if k.o.Search <= 0 || k.best.meets(k.limit) && k.best.Seconds <= k.given.Seconds {
		return nil
	}
	// Where the limit is out of reach, search for a little less than was reached: with a
	// limit far below, much would be spent on what does not lower the peak.
	to := k.limit
	if !k.gap.meets(k.limit) {
		to = max(to, k.gap.Peak/100*98)
	}
	p, err := k.from.split(k.o, to, k.o.Search, k.rates)
	if err != nil {
		return err
	}
	p.By = k.gap.By + ", searched"
	k.take(p)
	return nil
}

// hostParts are the limits, as parts of that of the plan, to which values are computed
// again before others move to the host; 0: none are. The link carries little, and serves
// best where the last bytes cost most to compute again. Which part is best differs: of
// real modules each was for some limit and speed.
var hostParts = []float64{0, 1.1, 1.2, 1.3, 1.5}

// toHost moves values to the host: of each source, and of what gap splitting makes of it
// for larger limits. Copies cost no time. Where they do not do, gap splitting goes on.
// done: there is no better plan, as it meets the limit at no cost.
func (k *plans) toHost() (done bool, err error) {
	for _, part := range hostParts {
		for _, s := range k.sources {
			if err := k.moved(s, part); err != nil {
				return false, err
			}
		}
		if k.best.meets(k.limit) && k.best.Seconds <= k.given.Seconds {
			return true, nil
		}
	}
	return false, nil
}

// moved takes what moving values of a source makes, after gap splitting for a part of
// the limit, and before it for the limit if that is not met.
func (k *plans) moved(s *source, part float64) error {
	c, added, by := s.m.Clone(), 0, strings.Replace(s.by, "gap", "host", 1)
	if part > 0 {
		p, err := s.split(k.o, uint64(part*float64(k.limit)), 0, k.rates)
		if err != nil {
			return err
		}
		c, added, by = p.Module.Clone(), p.Added, "gap, "+by
	}
	to, err := k.o.Host.For(c, k.rates)
	if err != nil {
		return err
	}
	r, err := host.Move(c, k.limit, to)
	if err != nil || r.Values == 0 {
		return err
	}
	p, err := k.o.taking(c, by, added, k.rates)
	if err != nil {
		return err
	}
	k.take(p)
	if p.meets(k.limit) {
		return nil
	}
	again, err := newSource(c.Clone(), "gap, "+strings.TrimPrefix(by, "gap, "), added, k.rates)
	if err != nil {
		return err
	}
	if p, err = again.split(k.o, k.limit, 0, k.rates); err == nil {
		k.takeGap(p, again)
	}
	return err
}

// A source is the module in an order, of which plans are made. It is not changed.
type source struct {
	m      *hlo.Module
	by     string // what its plans are called
	added  int    // instructions that were computed again in it
	prices *cost.Analysis
}

func newSource(m *hlo.Module, by string, added int, rates cost.Rates) (*source, error) {
	prices, err := cost.New(m, rates)
	return &source{m, by, added, prices}, err
}

// split is what gap splitting makes of a copy, which has the source's IDs.
func (s *source) split(o options, limit uint64, search time.Duration, rates cost.Rates) (*plan, error) {
	c := s.m.Clone()
	added, err := gap.Run(c, gap.Options{Limit: limit, Seconds: func(i *hlo.Instruction) float64 { return s.prices.Of(i).Seconds }, Time: search, HostFree: o.Host != nil, Collectives: o.Collectives})
	if err != nil {
		return nil, err
	}
	return o.taking(c, s.by, s.added+added, rates)
}

// asGiven is the module as it is.
func asGiven(m *hlo.Module, rates cost.Rates) (*plan, error) {
	return options{}.measured(m.String(), "off", 0, rates)
}

// xlaPlan is what XLA's pass makes of a copy of the module for a limit in bytes, as
// memory.TempPeak counts. With h it may move values there, and what lies there takes
// nothing; h.Seconds nil is the cost model's.
func xlaPlan(m *hlo.Module, limit uint64, rates cost.Rates, h *host.Memory) (*plan, error) {
	c, err := hlo.ParseString(m.String())
	if err == nil && h != nil {
		h, err = h.For(c, rates)
	}
	if err != nil {
		return nil, err
	}
	r, err := xla.Run(c, xla.Options{Limit: limit, Host: h})
	if err != nil {
		return nil, err
	}
	return options{Host: h}.measured(c.String(), "xla", r.Added, rates)
}

// measured reads a module's text and says what it takes.
func (o options) measured(text, by string, added int, rates cost.Rates) (*plan, error) {
	m, err := hlo.ParseString(text)
	if err == nil {
		err = verify.Module(m)
	}
	if err != nil {
		return nil, err
	}
	return o.taking(m, by, added, rates)
}

// taking says what a module takes as it is.
func (o options) taking(m *hlo.Module, by string, added int, rates cost.Rates) (p *plan, err error) {
	p = &plan{Module: m, By: by, Added: added, Host: host.Copies(m)}
	var failed error
	var beside sync.WaitGroup
	beside.Go(func() { p.Seconds, failed = seconds(m, rates) })
	p.Peak, _, err = memory.TempPeak(m, o.memory())
	beside.Wait()
	if err == nil {
		err = failed
	}
	return p, err
}

// seconds is what one run of a verified module takes by the cost model, without what
// nothing uses.
func seconds(m *hlo.Module, rates cost.Rates) (float64, error) {
	lean := m.Clone()
	if _, err := passes.RemoveDead(lean); err != nil {
		return 0, err
	}
	c, err := cost.New(lean, rates)
	if err != nil {
		return 0, err
	}
	return c.Computation(lean.Entry).Seconds, nil
}

// reordered is a copy in that of XLA's orders whose temporaries take least, nil where
// none takes less than it does now. A scheduled module stays as it is.
func (o options) reordered(m *hlo.Module, now uint64) (*hlo.Module, error) {
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
	return c.Clone(), nil
}
