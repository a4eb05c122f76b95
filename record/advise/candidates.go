package advise

// Candidates: sets of settings, with or without a limit that goes with the card.

import (
	"context"
	"fmt"

	"gpumem/device/sim"
	"gpumem/policy"
	"gpumem/policy/frameworks"
)

// A way is a policy with what sets it.
type way struct {
	policy    policy.Policy
	set, call []string
	brief     []string // for a table
	settings  []string // KEY:VALUE in PyTorch's list
	limits    *Range   // of the limit; nil without one
}

// options are the ways of a candidate, of which one is chosen for each card.
type options struct {
	plain *way // nil if there is always a limit
	// at returns the way with a limit of that percentage of a card; nil if there is none.
	// It is used where plain does not do.
	at func(percent int, total uint64) way
	// whole takes the most that leaves memory for what is beside the pool; otherwise the
	// least that is enough.
	whole bool
	rare  bool // shown only if it fits and nothing before it does
}

// fixed returns a candidate that is the same on every card.
func fixed(w way) *Candidate { return &Candidate{options: options{plain: &w}} }

// limited returns a candidate with a limit where plain, unless it is nil, does not do.
func limited(plain *way, at func(percent int, total uint64) way) *Candidate {
	return &Candidate{options: options{plain: plain, at: at}}
}

// named returns a policy by its name and keys, with what sets it.
func named(spec string, set ...string) way {
	p, err := frameworks.Parse(spec)
	if err != nil {
		panic(err) // no input can cause it, and tests try all settings
	}
	return way{policy: p, set: set, brief: set}
}

// percentText formats hundredths as a fraction: .92.
func percentText(percent int) string { return fmt.Sprintf(".%02d", percent) }

// serves reports whether a candidate serves everything on a card of total bytes with no
// other program: as it is, or with the most memory that the card leaves.
func (a *adviser) serves(ctx context.Context, c *Candidate, total uint64) (bool, error) {
	if c.plain != nil {
		if ok, err := a.fits(ctx, c.plain.policy, true, total); ok || err != nil || c.at == nil {
			return ok, err
		}
	}
	return a.fits(ctx, c.at(a.mostOf(total, true), total).policy, true, total)
}

// choose returns the way of a candidate on a card of total bytes: the plain one if that
// serves everything, or else the least limit that does.
func (a *adviser) choose(ctx context.Context, c *Candidate, alone bool, total uint64) (way, error) {
	if c.plain != nil {
		if c.at == nil {
			return *c.plain, nil
		}
		if ok, err := a.fits(ctx, c.plain.policy, alone, total); ok || err != nil {
			return *c.plain, err
		}
	}
	most := a.mostOf(total, alone)
	if c.whole {
		return c.at(most, total), nil
	}
	least, err := a.percent(ctx, c, alone, total, most)
	if err != nil {
		return way{}, err
	}
	w, top := c.at(least, total), c.at(most, total)
	if w.limits != nil {
		w.limits.Most, w.limits.Capped = w.limits.Least, most == mostPercent
		if least > 1 {
			w.limits.TooLittle = c.at(least-1, total).limits.Least
		}
		ok, err := a.fits(ctx, top.policy, alone, total)
		if err != nil {
			return way{}, err
		}
		if ok {
			w.limits.Most = top.limits.Least
		}
	}
	return w, nil
}

// candidates returns those of the framework, the cheapest for the user first. The last is
// elastic, which needs pages.
func (a *adviser) candidates() ([]*Candidate, error) {
	has, err := a.features()
	if err != nil {
		return nil, err
	}
	var list []*Candidate
	switch a.source.Name {
	case jax:
		list, err = a.jax(has)
	case tensorFlow:
		list = a.tensorFlow(has)
	case pyTorch:
		list = a.pyTorch(has)
	case rmm:
		list = a.rmm(has)
	default:
		list = a.policies(has)
	}
	if has.pages && err == nil {
		ours := fixed(named("elastic"))
		ours.Ours, ours.Run = true, "gpumem run --pool elastic -- COMMAND"
		list = append(list, ours)
	}
	return list, err
}

// features are those of a card that decide what can be tried.
type features struct{ pages, pools bool }

func (a *adviser) features() (has features, err error) {
	dev, err := sim.New(a.cfg.Sim)
	if err != nil {
		return has, err
	}
	info := dev.Info()
	return features{pages: info.HasPages, pools: info.HasPools}, dev.Close()
}

// read returns what the release of the framework makes of an environment. ok is false if
// it refuses a setting, or if the settings change nothing.
func (a *adviser) read(has features, set ...string) (p policy.Policy, ok bool) {
	f, v, err := a.source.release().Find()
	if err != nil {
		return p, false
	}
	read := func(lines []string) (policy.Policy, bool) {
		env := policy.Environ(lines)
		env.NoPages, env.NoPools = !has.pages, !has.pools
		r, refused := f.Read(env, v)
		return r.Policy, refused == nil
	}
	p, ok = read(set)
	if plain, is := read(nil); len(set) > 0 && is {
		ok = ok && p != plain
	}
	return p, ok
}
