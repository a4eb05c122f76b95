package plan

// What loops stack up for the backward pass, computed again in the backward loop: the move of
// xla/internal/unstack as plans.
//
// Of a loop's stacks any set may be dropped whose values the backward loop can compute from what
// is kept. They are put into one order: first the one that costs least for its bytes, then the
// one that costs least beside that, and so on. Plans drop the first n of them, and of those for
// a limit some are kept again that turn out not to be needed. Where the loop hands values from
// round to round that are not stacked up, there is a second order, in which they may be.

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/unstack"
)

// stacks are the plans that drop stacks of one module, by what they drop.
type stacks struct {
	o      Options
	m      *hlo.Module
	orders [2][]dropped // the second with stacks of what is carried
	plans  map[string]*Plan
	fault  error // the first of a plan that could not be made; nil if there is none
}

// A dropped is a stack in the order of dropping.
type dropped struct {
	key     string
	seconds float64 // what the backward loop takes more when the ones before it are dropped, too
}

// newStacks finds the stacks of a verified module.
func newStacks(m *hlo.Module, o Options) (*stacks, error) {
	s := &stacks{o: o, m: m, plans: map[string]*Plan{}}
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

	carries := false
	for _, p := range pairs {
		s.orderStacks(p, 0, prices)
		carries = s.orderStacks(p, 1, prices) || carries
	}

	if !carries {
		s.orders[1] = nil
	}
	return s, nil
}

// orderStacks appends the stacks of a pair of loops that can be dropped to an order, and reports
// whether the pair has to stack up more for it. A forward loop with two backward loops is taken once.
func (s *stacks) orderStacks(p *unstack.Pair, order int, prices *cost.Analysis) bool {
	var drop []*unstack.Stack
	left, now, more := slices.Clone(p.Stacks), 0.0, uint64(0)
	for {
		best, seconds, added, price := -1, 0.0, uint64(0), 0.0
		for n, x := range left {
			list, add, ok := p.Needs(append(slices.Clip(drop), x), order == 1)
			if !ok || x.Bytes == 0 {
				continue
			}
			sum := 0.0
			for _, i := range list {
				sum += prices.Seconds(i) * float64(p.Trips)
			}
			gain := max(1, float64(x.Bytes)-float64(add-min(add, more)))
			if each := (sum - now) / gain; best < 0 || each < price {
				best, seconds, added, price = n, sum, add, each
			}
		}
		if best < 0 {
			return more > 0
		}

		key := p.Key(left[best])
		if !slices.ContainsFunc(s.orders[order], func(d dropped) bool { return d.key == key }) {
			s.orders[order] = append(s.orders[order], dropped{key, seconds - now})
		}
		drop, now, more = append(drop, left[best]), seconds, added
		left = slices.Delete(left, best, best+1)
	}
}

// planWithout returns the plan that drops some stacks of an order, nil if that cannot be done.
func (s *stacks) planWithout(drop []dropped, order int) *Plan {
	var keys []string
	for _, d := range drop {
		keys = append(keys, d.key)
	}

	slices.Sort(keys)
	name := strconv.Itoa(order) + strings.Join(keys, " ")
	if p, ok := s.plans[name]; ok {
		return p
	}

	s.plans[name] = nil
	c := s.m.Clone()
	added, err := unstack.Drop(c, keys, order == 1)
	if errors.Is(err, unstack.ErrCannot) {
		return nil
	}

	var p *Plan
	if err == nil {
		p, err = s.o.Cost(c.Clone(), "loops", added)
	}
	if err != nil { // there are other plans
		s.fault = cmp.Or(s.fault, fmt.Errorf("a plan that drops what loops stack up was dropped: %w", err))
		return nil
	}

	s.plans[name] = p
	return p
}

// forLimit returns the plans that meet a limit and drop least, or the ones that drop all: one of each
// order.
func (s *stacks) forLimit(limit uint64) (list []*Plan) {
	for order, all := range s.orders {
		if len(all) == 0 {
			continue
		}
		from, to := 1, len(all) // the fewest that meet it are among these
		for from < to {
			n := (from + to) / 2
			if p := s.planWithout(all[:n], order); p != nil && p.Meets(limit) {
				to = n
			} else {
				from = n + 1
			}
		}
		p := s.planWithout(all[:to], order)
		if p == nil {
			continue
		}
		if p.Meets(limit) {
			p = s.keepSome(p, all[:to], order, limit)
		}
		list = append(list, p)
	}

	return list
}

// tries is how many stacks are tried that may be kept.
const tries = 8

// keepSome returns a plan that drops less and is no worse than p, which meets the limit.
func (s *stacks) keepSome(p *Plan, drop []dropped, order int, limit uint64) *Plan {
	dear := slices.Clone(drop)
	slices.SortStableFunc(dear, func(a, b dropped) int { return cmp.Compare(b.seconds, a.seconds) })
	for _, d := range dear[:min(len(dear), tries)] {
		without := slices.DeleteFunc(slices.Clone(drop), func(x dropped) bool { return x.key == d.key })
		if len(without) == 0 {
			break
		}
		if q := s.planWithout(without, order); q != nil && q.betterThan(p, limit) {
			p, drop = q, without
		}
	}

	return p
}

// OpenLoops returns the loops of a module that may get another state because stacks are dropped.
func OpenLoops(m *hlo.Module) (list []*hlo.Instruction) {
	if !m.Scheduled {
		return nil
	}
	for _, p := range unstack.Find(m) {
		list = append(list, p.Forward, p.Backward)
	}
	return list
}
