package remat

// The best of several plans for one limit.

import (
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
// left as it is.
func Best(m *hlo.Module, limit uint64, rates cost.Rates) (*Plan, error) {
	return BestFor(m, limit, rates, 0)
}

// BestFor is [Best] and then a search for a better plan, for so long; 0 or less: none. It
// starts from the better plan of gap splitting, and ends late by one round, some
// milliseconds to a tenth of a second. The plan is no worse than that of Best, and may be
// another each time: how far a search gets in a time differs.
func BestFor(m *hlo.Module, limit uint64, rates cost.Rates, search time.Duration) (*Plan, error) {
	text := m.String()
	given, err := measured(text, "off", 0, rates)
	if err != nil || given.meets(limit) {
		return given, err
	}
	best := given
	// Another order alone may do.
	texts := map[string]string{"gap": text}
	if other, err := reordered(text, best.Peak); err != nil {
		return nil, err
	} else if other != "" {
		texts["gap, rescheduled"] = other
		p, err := measured(other, "rescheduled", 0, rates)
		if err != nil {
			return nil, err
		}
		if p.betterThan(best, limit) {
			best = p
		}
	}
	var gap *Plan   // the best of gap splitting
	var from string // what it was made of
	split := func(text, by string, to uint64, search time.Duration) error {
		c, err := hlo.ParseString(text)
		if err != nil {
			return err
		}
		prices, err := cost.New(c, rates)
		if err != nil {
			return err
		}
		r, err := Gap(c, GapOptions{Limit: to, Seconds: func(i *hlo.Instruction) float64 { return prices.Of(i).Seconds }, Time: search})
		if err != nil {
			return err
		}
		p, err := measured(c.String(), by, r.Added, rates)
		if err != nil {
			return err
		}
		if gap == nil || p.betterThan(gap, limit) {
			gap, from = p, text
		}
		if p.betterThan(best, limit) {
			best = p
		}
		return nil
	}
	theirs, _, err := XLAPlan(m, limit, rates)
	if err == nil && theirs.betterThan(best, limit) {
		best = theirs
	}
	for _, by := range []string{"gap", "gap, rescheduled"} {
		if err == nil && texts[by] != "" {
			err = split(texts[by], by, limit, 0)
		}
	}
	// Where the limit is out of reach, plans for others may come nearer.
	for _, part := range []float64{.9, 1.1, .8, 1.25, 1.5, 2} {
		if err != nil || best.meets(limit) {
			break
		}
		for _, by := range []string{"gap", "gap, rescheduled"} {
			if err == nil && texts[by] != "" {
				err = split(texts[by], by, uint64(part*float64(limit)), 0)
			}
		}
	}
	// What takes no more time than the module as given is good enough.
	if err == nil && search > 0 && (!best.meets(limit) || best.Seconds > given.Seconds) {
		// Where the limit is out of reach, for a little less than was reached: who is asked for
		// far more spends much on what does not lower the peak.
		to := limit
		if !gap.meets(limit) {
			to = max(to, gap.Peak/100*98)
		}
		err = split(from, gap.By+", searched", to, search)
	}
	if err != nil {
		return nil, err
	}
	return best, nil
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
	result, err := memory.ResultBytes(c, nil)
	if err != nil {
		return nil, nil, err
	}
	r, err := XLA(c, Options{Limit: limit + uint64(result)})
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

// measured reads a module's text and says what it takes.
func measured(text, by string, added int, rates cost.Rates) (*Plan, error) {
	m, err := hlo.ParseString(text)
	if err == nil {
		err = m.Verify()
	}
	if err != nil {
		return nil, err
	}
	p := &Plan{Module: m, By: by, Added: added}
	if p.Peak, _, err = memory.TempPeak(m, memory.Options{}); err != nil {
		return nil, err
	}
	p.Seconds, err = Seconds(m, rates)
	return p, err
}

// Seconds is what one run of a module takes by the cost model, without what
// nothing uses.
func Seconds(m *hlo.Module, rates cost.Rates) (float64, error) {
	lean, err := hlo.ParseString(m.String())
	if err != nil {
		return 0, err
	}
	if _, err := RemoveDead(lean); err != nil {
		return 0, err
	}
	c, err := cost.New(lean, rates)
	if err != nil {
		return 0, err
	}
	return c.Computation(lean.Entry).Seconds, nil
}

// reordered is the text in that of XLA's orders whose temporaries take least,
// empty where none takes less than it does now. A scheduled module stays as it is.
func reordered(text string, now uint64) (string, error) {
	m, err := hlo.ParseString(text)
	if err != nil || m.Scheduled {
		return "", err
	}
	orders, err := memory.Orders(m)
	if err != nil {
		return "", err
	}
	best := ""
	for _, o := range orders {
		c, err := hlo.ParseString(text)
		if err != nil {
			return "", err
		}
		again, err := memory.Orders(c)
		if err != nil {
			return "", err
		}
		for _, k := range again {
			if k.Name == o.Name {
				k.Apply(c)
			}
		}
		peak, _, err := memory.TempPeak(c, memory.Options{})
		if err != nil {
			return "", err
		}
		if peak < now {
			now, best = peak, c.String()
		}
	}
	return best, nil
}
