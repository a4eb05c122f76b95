package remat

// What loops stack up for the backward pass, computed again in the backward loop: the move of
// remat/unstack as plans.
//
// Of a loop's stacks any set may be dropped whose values the backward loop can compute from what
// is kept. They are put into one order: first the one that costs least for its bytes, then the
// one that costs least beside that, and so on. Plans drop the first n of them, and of those for
// a limit some are kept again that turn out not to be needed.

import (
	"slices"
	"strings"

	"gpumem/hlo"
	"gpumem/hlo/cost"
	"gpumem/remat/unstack"
)

// stacks are the plans that drop stacks of one module, by what they drop.
type stacks struct {
	o     options
	m     *hlo.Module
	order []dropped
	plans map[string]*plan
}

// A dropped is a stack in the order of dropping.
type dropped struct {
	key     string
	seconds float64 // what the backward loop takes more when the ones before it are dropped, too
}

// newStacks finds the stacks of a verified module.
func newStacks(m *hlo.Module, o options) (*stacks, error) {
	s := &stacks{o: o, m: m, plans: map[string]*plan{}}
	if !m.Scheduled {
		return s, nil // a compiler would still change the loops
	}
	pairs := unstack.Find(m)
	if len(pairs) == 0 {
		return s, nil
	}
	prices, err := cost.New(m, o.Rates)
	if err != nil {
		return nil, err
	}
	for _, p := range pairs {
		s.sort(p, prices)
	}
	return s, nil
}

// sort appends the stacks of a pair of loops that can be dropped. A forward loop with two backward
// loops is taken once.
func (s *stacks) sort(p *unstack.Pair, prices *cost.Analysis) {
	var drop []*unstack.Stack
	left, now := slices.Clone(p.Stacks), 0.0
	for len(left) > 0 {
		best, least := -1, 0.0
		for n, x := range left {
			list, ok := p.Needs(append(drop[:len(drop):len(drop)], x))
			if !ok || x.Bytes == 0 {
				continue
			}
			sum := 0.0
			for _, i := range list {
				sum += prices.Seconds(i) * float64(p.Trips)
			}
			if best < 0 || (sum-now)/float64(x.Bytes) < (least-now)/float64(left[best].Bytes) {
				best, least = n, sum
			}
		}
		if best < 0 {
			return
		}
		key := p.Key(left[best])
		if !slices.ContainsFunc(s.order, func(d dropped) bool { return d.key == key }) {
			s.order = append(s.order, dropped{key, least - now})
		}
		drop, now = append(drop, left[best]), least
		left = slices.Delete(left, best, best+1)
	}
}

// plan returns the plan that drops some stacks, nil if that cannot be done.
func (s *stacks) plan(drop []dropped) (*plan, error) {
	var keys []string
	for _, d := range drop {
		keys = append(keys, d.key)
	}
	slices.Sort(keys)
	name := strings.Join(keys, " ")
	if p, ok := s.plans[name]; ok {
		return p, nil
	}
	s.plans[name] = nil
	c := s.m.Clone()
	added, err := unstack.Drop(c, keys)
	if err != nil {
		return nil, nil
	}
	p, err := s.o.measured(c, "loops", added)
	if err != nil {
		return nil, err
	}
	s.plans[name] = p
	return p, nil
}

// forLimit returns the plan that drops least and meets a limit, or the one that drops all; nil if
// there is nothing to drop.
func (s *stacks) forLimit(limit uint64) (*plan, error) {
	from, to := 1, len(s.order) // the fewest that meet it are among these
	for from < to {
		n := (from + to) / 2
		p, err := s.plan(s.order[:n])
		if err != nil {
			return nil, err
		}
		if p != nil && p.meets(limit) {
			to = n
		} else {
			from = n + 1
		}
	}
	if len(s.order) == 0 {
		return nil, nil
	}
	drop := slices.Clone(s.order[:to])
	best, err := s.plan(drop)
	if err != nil || best == nil || !best.meets(limit) {
		return best, err
	}
	// The dearest first: it may be kept.
	dear := slices.Clone(drop)
	slices.SortStableFunc(dear, func(a, b dropped) int {
		switch {
		case a.seconds > b.seconds:
			return -1
		case a.seconds < b.seconds:
			return 1
		}
		return 0
	})
	for _, d := range dear[:min(len(dear), 8)] {
		without := slices.DeleteFunc(slices.Clone(drop), func(x dropped) bool { return x.key == d.key })
		if len(without) == 0 {
			break
		}
		p, err := s.plan(without)
		if err != nil {
			return nil, err
		}
		if p != nil && p.betterThan(best, limit) {
			best, drop = p, without
		}
	}
	return best, nil
}
