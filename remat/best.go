package remat

// The best of several plans for one limit.

import (
	"strings"
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
	By      string // what made it: off, xla, gap, or gap on another order of instructions; host, if values were moved there before; searched, if a search did better
	// Host is what is on the host for a while; in a plan that may not move values there,
	// what the module as given has.
	Host HostResult
}

// BestOptions say what plans may do. The zero value recomputes, and does not search.
type BestOptions struct {
	// Search is how long to look for a better plan. The search ends late by one round,
	// some milliseconds to a tenth of a second. How far it gets differs, so that the
	// plan may be another each time, but none is worse than that without.
	Search time.Duration
	// Host is the host's memory: with it plans may move values there as [MoveToHost]
	// does, and what lies there takes nothing. Host.Seconds nil is the cost model's; the
	// host is taken to have room.
	Host *HostMemory
}

// memory is how plans are measured.
func (o BestOptions) memory() memory.Options { return memory.Options{HostFree: o.Host != nil} }

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
	return BestFor(m, limit, rates, BestOptions{})
}

// BestFor is [Best] with options. A search starts from the better plan of gap splitting.
func BestFor(m *hlo.Module, limit uint64, rates cost.Rates, o BestOptions) (*Plan, error) {
	text := m.String()
	given, err := o.measured(text, "off", 0, rates)
	if err != nil || given.meets(limit) {
		return given, err
	}
	k := &plans{o: o, limit: limit, rates: rates, best: given}
	k.starts = []start{{"gap", text, 0}}
	// Another order alone may do.
	if other, err := o.reordered(text, given.Peak); err != nil {
		return nil, err
	} else if other != "" {
		k.starts = append(k.starts, start{"gap, rescheduled", other, 0})
		if _, err := k.take(other, "rescheduled", 0); err != nil {
			return nil, err
		}
	}
	theirs, _, err := XLAPlan(m, limit, rates, nil)
	if err == nil && o.Host != nil { // count as the others do
		theirs, err = o.measured(theirs.Module.String(), theirs.By, theirs.Added, rates)
	}
	if err != nil {
		return nil, err
	}
	if theirs.betterThan(k.best, limit) {
		k.best = theirs
	}
	if o.Host != nil {
		if err := k.toHost(); err != nil {
			return nil, err
		}
		if k.best.meets(limit) && k.best.Seconds <= given.Seconds {
			return k.best, nil
		}
	}
	// Where the limit is out of reach, plans for others may come nearer.
	for _, part := range []float64{1, .9, 1.1, .8, 1.25, 1.5, 2} {
		if part != 1 && k.best.meets(limit) {
			break
		}
		for _, s := range k.starts {
			if err := k.split(s, uint64(part*float64(limit)), 0); err != nil {
				return nil, err
			}
		}
	}
	// What takes no more time than the module as given is good enough.
	if o.Search > 0 && (!k.best.meets(limit) || k.best.Seconds > given.Seconds) {
		// Where the limit is out of reach, for a little less than was reached: who is asked for
		// far more spends much on what does not lower the peak.
		to := limit
		if !k.gap.meets(limit) {
			to = max(to, k.gap.Peak/100*98)
		}
		if err := k.split(start{k.gap.By + ", searched", k.from.text, k.from.added}, to, o.Search); err != nil {
			return nil, err
		}
	}
	return k.best, nil
}

// A start is a text that plans are made of, and what they are called.
type start struct {
	by, text string
	added    int // instructions that were computed again in it
}

// plans is the best of those made so far.
type plans struct {
	o      BestOptions
	limit  uint64
	rates  cost.Rates
	starts []start
	best   *Plan
	gap    *Plan // the best of gap splitting
	from   start // what it was made of
}

// take measures a plan, and keeps it if it is the best.
func (k *plans) take(text, by string, added int) (*Plan, error) {
	p, err := k.o.measured(text, by, added, k.rates)
	if err == nil && p.betterThan(k.best, k.limit) {
		k.best = p
	}
	return p, err
}

// gapped is what gap splitting makes of a text, and how many instructions that adds.
func (k *plans) gapped(text string, limit uint64, search time.Duration) (string, int, error) {
	m, err := hlo.ParseString(text)
	if err != nil {
		return "", 0, err
	}
	prices, err := cost.New(m, k.rates)
	if err != nil {
		return "", 0, err
	}
	r, err := Gap(m, GapOptions{Limit: limit, Seconds: func(i *hlo.Instruction) float64 { return prices.Of(i).Seconds }, Time: search, HostFree: k.o.Host != nil})
	if err != nil {
		return "", 0, err
	}
	return m.String(), r.Added, nil
}

// split makes a plan of gap splitting.
func (k *plans) split(s start, limit uint64, search time.Duration) error {
	text, added, err := k.gapped(s.text, limit, search)
	if err != nil {
		return err
	}
	p, err := k.take(text, s.by, s.added+added)
	if err == nil && (k.gap == nil || p.betterThan(k.gap, k.limit)) {
		k.gap, k.from = p, s
	}
	return err
}

// hostParts are the limits, as parts of that of the plan, to which values are computed
// again before others move to the host; 0: none are. The link carries little, and serves
// best where the last bytes cost most to compute again. Which part is best differs: of
// real modules each was for some limit and speed.
var hostParts = []float64{0, 1.1, 1.2, 1.3, 1.5}

// toHost moves values to the host: of each start, and of what gap splitting makes of it
// for larger limits. Copies cost no time. Where they do not do, gap splitting goes on.
func (k *plans) toHost() error {
	for _, s := range k.starts {
		for _, part := range hostParts {
			text, added := s.text, 0
			if part > 0 {
				var err error
				if text, added, err = k.gapped(text, uint64(part*float64(k.limit)), 0); err != nil {
					return err
				}
			}
			m, err := hlo.ParseString(text)
			if err != nil {
				return err
			}
			host, err := k.o.Host.of(m, k.rates)
			if err != nil {
				return err
			}
			r, err := MoveToHost(m, k.limit, host)
			if err != nil {
				return err
			}
			if r.Values == 0 {
				continue
			}
			by := strings.Replace(s.by, "gap", "host", 1)
			if part > 0 {
				by = "gap, " + by
			}
			text = m.String()
			p, err := k.take(text, by, added)
			if err != nil {
				return err
			}
			if !p.meets(k.limit) {
				err = k.split(start{"gap, " + strings.TrimPrefix(by, "gap, "), text, added}, k.limit, 0)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// AsGiven is the module as it is.
func AsGiven(m *hlo.Module, rates cost.Rates) (*Plan, error) {
	return BestOptions{}.measured(m.String(), "off", 0, rates)
}

// XLAPlan is what XLA's pass makes of a copy of the module for a limit in bytes, as
// memory.TempPeak counts, and what it warns of besides that the limit is not met. With host
// it may move values there, and what lies there takes nothing; host.Seconds nil is the
// cost model's.
func XLAPlan(m *hlo.Module, limit uint64, rates cost.Rates, host *HostMemory) (*Plan, []string, error) {
	c, err := hlo.ParseString(m.String())
	if err != nil {
		return nil, nil, err
	}
	result, err := memory.ResultBytes(c, nil)
	if err != nil {
		return nil, nil, err
	}
	o := Options{Limit: limit + uint64(result)}
	if host != nil {
		o.Strategies = Recompute | Offload
		if o.Host, err = host.of(c, rates); err != nil {
			return nil, nil, err
		}
	}
	r, err := XLA(c, o)
	if err != nil {
		return nil, nil, err
	}
	var warnings []string
	for _, w := range r.Warnings {
		if w.Kind != OverLimit {
			warnings = append(warnings, w.Text)
		}
	}
	p, err := BestOptions{Host: host}.measured(c.String(), "xla", r.Added, rates)
	return p, warnings, err
}

// measured reads a module's text and says what it takes.
func (o BestOptions) measured(text, by string, added int, rates cost.Rates) (*Plan, error) {
	m, err := hlo.ParseString(text)
	if err == nil {
		err = m.Verify()
	}
	if err != nil {
		return nil, err
	}
	p := &Plan{Module: m, By: by, Added: added, Host: onHost(m)}
	if p.Peak, _, err = memory.TempPeak(m, o.memory()); err != nil {
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
func (o BestOptions) reordered(text string, now uint64) (string, error) {
	m, err := hlo.ParseString(text)
	if err != nil || m.Scheduled {
		return "", err
	}
	orders, err := memory.Orders(m)
	if err != nil {
		return "", err
	}
	best := ""
	for _, order := range orders {
		c, err := hlo.ParseString(text)
		if err != nil {
			return "", err
		}
		again, err := memory.Orders(c)
		if err != nil {
			return "", err
		}
		for _, k := range again {
			if k.Name == order.Name {
				k.Apply(c)
			}
		}
		peak, _, err := memory.TempPeak(c, o.memory())
		if err != nil {
			return "", err
		}
		if peak < now {
			now, best = peak, c.String()
		}
	}
	return best, nil
}
