package remat

// The best of several plans for one limit.

import (
	"cmp"
	"sync"
	"time"

	"gpumem/hlo"
	"gpumem/hlo/cost"
	"gpumem/hlo/memory"
)

// A Plan is a module that was changed, and what it takes.
type Plan struct {
	Module *hlo.Module
	// Peak is that of temporaries in bytes, as memory.TempPeak counts, and
	// Seconds what one run takes by the cost model. Both are measured on the module's text,
	// read again.
	Peak    uint64
	Seconds float64
	Added   int    // instructions, those that only moved left out
	By      string // what made it: off, xla, gap, or gap on another order of instructions; searched, if a search did better
}

// meets says whether the plan takes no more than so many bytes.
func (p *Plan) meets(limit uint64) bool { return p.Peak <= limit }

// betterThan says which of two plans for a limit to take: one that meets it, then the
// faster; else the smaller.
func (p *Plan) betterThan(q *Plan, limit uint64) bool {
	switch {
	case p.meets(limit) != q.meets(limit):
		return p.meets(limit)
	case p.meets(limit):
		return p.Seconds < q.Seconds || p.Seconds == q.Seconds && p.Peak < q.Peak
	}
	return p.Peak < q.Peak || p.Peak == q.Peak && p.Seconds < q.Seconds
}

// Best makes the best plan that is known here for a limit in bytes, as
// memory.TempPeak counts. It is what was given, XLA's own, gap splitting in the order
// of the text, or in another one; so it is never worse than XLA's, which
// other does where it meets the limit at less cost or comes nearer. The module is
// left as it is. Plans are made at once, on two or three cores.
func Best(m *hlo.Module, limit uint64, rates cost.Rates) (*Plan, error) {
	return BestFor(m, limit, rates, 0)
}

// BestFor is [Best] and then a search for a better plan, for so long; 0 or less: none. It
// starts from the better plan of gap splitting, and ends late by one round, some
// milliseconds to a tenth of a second. The plan is no worse than that of Best, and may be
// another each time: how far a search gets in a time differs.
func BestFor(m *hlo.Module, limit uint64, rates cost.Rates, search time.Duration) (*Plan, error) {
	given, err := measured(m.String(), "off", 0, rates)
	if err != nil || given.meets(limit) {
		return given, err
	}
	best := given
	// XLA's pass runs beside all that follows, on a copy.
	var theirs *Plan
	var theirErr error
	var xla sync.WaitGroup
	xla.Go(func() {
		c := given.Module.Clone()
		var r *Result
		if r, theirErr = xlaFor(c, limit); theirErr == nil {
			theirs, theirErr = taking(c, "xla", r.Added, rates)
		}
	})
	defer xla.Wait()
	plain, err := newSource(given.Module, "gap", rates)
	if err != nil {
		return nil, err
	}
	sources := []*source{plain}
	// Another order alone may do.
	if other, err := reordered(given.Module, best.Peak); err != nil {
		return nil, err
	} else if other != nil {
		p, err := taking(other, "rescheduled", 0, rates)
		if err != nil {
			return nil, err
		}
		if p.betterThan(best, limit) {
			best = p
		}
		o, err := newSource(other, "gap, rescheduled", rates)
		if err != nil {
			return nil, err
		}
		sources = append(sources, o)
	}
	var gap *Plan    // the best of gap splitting
	var from *source // what it was made of
	// split takes XLA's plan, and what gap splitting makes of each source, all at once.
	split := func(to uint64) error {
		plans, errs := make([]*Plan, len(sources)), make([]error, len(sources))
		var all sync.WaitGroup
		for n, o := range sources {
			all.Go(func() { plans[n], errs[n] = o.split(to, 0, rates) })
		}
		all.Wait()
		xla.Wait()
		if err := cmp.Or(theirErr, cmp.Or(errs...)); err != nil {
			return err
		}
		if theirs.betterThan(best, limit) { // later calls change nothing here
			best = theirs
		}
		for n, p := range plans {
			if gap == nil || p.betterThan(gap, limit) {
				gap, from = p, sources[n]
			}
			if p.betterThan(best, limit) {
				best = p
			}
		}
		return nil
	}
	if err := split(limit); err != nil {
		return nil, err
	}
	// Where the limit is out of reach, plans for others may come nearer.
	for _, part := range []float64{.9, 1.1, .8, 1.25, 1.5, 2} {
		if best.meets(limit) {
			break
		}
		if err := split(uint64(part * float64(limit))); err != nil {
			return nil, err
		}
	}
	// What takes no more time than the module as given is good enough.
	if search > 0 && (!best.meets(limit) || best.Seconds > given.Seconds) {
		// Where the limit is out of reach, for a little less than was reached: who is asked for
		// far more spends much on what does not lower the peak.
		to := limit
		if !gap.meets(limit) {
			to = max(to, gap.Peak/100*98)
		}
		p, err := from.split(to, search, rates)
		if err != nil {
			return nil, err
		}
		p.By = gap.By + ", searched"
		if p.betterThan(best, limit) {
			best = p
		}
	}
	if best == given {
		return given, nil
	}
	return measured(best.Module.String(), best.By, best.Added, rates)
}

// A source is the module in an order, of which plans are made. It is not changed.
type source struct {
	m      *hlo.Module
	by     string // what its plans are called
	prices *cost.Analysis
}

func newSource(m *hlo.Module, by string, rates cost.Rates) (*source, error) {
	prices, err := cost.New(m, rates)
	return &source{m, by, prices}, err
}

// split is what gap splitting makes of a copy, which has the source's IDs.
func (o *source) split(limit uint64, search time.Duration, rates cost.Rates) (*Plan, error) {
	c := o.m.Clone()
	r, err := Gap(c, GapOptions{Limit: limit, Seconds: func(i *hlo.Instruction) float64 { return o.prices.Of(i).Seconds }, Time: search})
	if err != nil {
		return nil, err
	}
	return taking(c, o.by, r.Added, rates)
}

// AsGiven is the module as it is.
func AsGiven(m *hlo.Module, rates cost.Rates) (*Plan, error) {
	return measured(m.String(), "off", 0, rates)
}

// XLAPlan is what XLA's pass makes of a copy of the module for a limit in bytes, as
// memory.TempPeak counts, and what it warns of besides that the limit is not met.
func XLAPlan(m *hlo.Module, limit uint64, rates cost.Rates) (*Plan, []string, error) {
	c, err := hlo.ParseString(m.String())
	if err != nil {
		return nil, nil, err
	}
	r, err := xlaFor(c, limit)
	if err != nil {
		return nil, nil, err
	}
	var warnings []string
	for _, w := range r.Warnings {
		if w.Kind != OverLimit {
			warnings = append(warnings, w.Text)
		}
	}
	p, err := measured(c.String(), "xla", r.Added, rates)
	return p, warnings, err
}

// xlaFor is XLA for a limit as memory.TempPeak counts.
func xlaFor(m *hlo.Module, limit uint64) (*Result, error) {
	result, err := memory.ResultBytes(m, nil)
	if err != nil {
		return nil, err
	}
	return XLA(m, Options{Limit: limit + uint64(result)})
}

// measured reads a module's text and says what it takes.
func measured(text, by string, added int, rates cost.Rates) (*Plan, error) {
	m, err := hlo.ParseString(text)
	if err == nil {
		err = m.Verify()
	}
	if err != nil {
		return nil, err
	}
	return taking(m, by, added, rates)
}

// taking says what a module takes as it is.
func taking(m *hlo.Module, by string, added int, rates cost.Rates) (p *Plan, err error) {
	p = &Plan{Module: m, By: by, Added: added}
	var failed error
	var beside sync.WaitGroup
	beside.Go(func() { p.Seconds, failed = seconds(m, rates) })
	p.Peak, _, err = memory.TempPeak(m, memory.Options{})
	beside.Wait()
	if err == nil {
		err = failed
	}
	return p, err
}

// Seconds is what one run of a module takes by the cost model, without what
// nothing uses.
func Seconds(m *hlo.Module, rates cost.Rates) (float64, error) {
	if err := m.Verify(); err != nil {
		return 0, err
	}
	return seconds(m, rates)
}

// seconds is Seconds of a module that was verified, or made of one.
func seconds(m *hlo.Module, rates cost.Rates) (float64, error) {
	lean := m.Clone()
	if _, err := RemoveDead(lean); err != nil {
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
func reordered(m *hlo.Module, now uint64) (*hlo.Module, error) {
	if m.Scheduled {
		return nil, nil
	}
	c := m.Clone()
	orders, err := memory.OrdersAlone(c)
	if err != nil {
		return nil, err
	}
	best := -1
	for n := range orders {
		orders[n].Apply(c)
		peak, _, err := memory.TempPeak(c, memory.Options{})
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
