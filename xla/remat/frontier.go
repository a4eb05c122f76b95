package remat

// What less and less memory costs: a plan for each of many limits.

import (
	"context"
	"slices"
	"time"
)

// frontierPatience is how many limits in a row may be missed before the frontier ends.
const frontierPatience = 4

// frontier sets plans for less and less memory. unplanned is the answer without a plan.
func (p *planner) frontier(ctx context.Context, a, unplanned *Answer) error {
	missed, least := 0, 0.0
	all := []*Answer{}
	var late <-chan time.Time // never, if there is no limit of time
	end := time.Now().Add(p.FrontierTime)
	if p.FrontierTime > 0 {
		late = time.After(p.FrontierTime)
	}

	for percent, down := 100, p.Frontier; percent >= p.Frontier; percent -= down {
		if err := ctx.Err(); err != nil {
			return err
		}
		if p.Progress != nil {
			p.Progress(float64(100-percent) / 100)
		}
		start := time.Now()
		k := *unplanned
		k.Limit, k.Warnings = k.Before/100*uint64(percent), nil
		planned := make(chan error, 1)
		go func() { planned <- p.planAt(&k) }()
		select {
		case err := <-planned:
			if err != nil {
				return err
			}
		case <-late: // the plan under way is dropped when it ends
			a.FrontierLeft += percent / p.Frontier
			a.setFrontier(all)
			return nil
		}

		if p.Limit == nil {
			a.warn(k.Warnings...)
		}
		k.Warnings = nil
		if len(all) > 0 { // a smaller limit costs no less than a larger one
			k.LowerPercent = max(k.LowerPercent, least)
		}
		least = k.LowerPercent
		all = withoutBeaten(all, &k)
		if k.Met {
			missed = 0
		} else if missed++; missed == frontierPatience {
			break
		}
		if p.FrontierTime > 0 {
			down = stride(percent, p.Frontier, time.Since(start), time.Until(end))
			a.FrontierLeft += min(down/p.Frontier, percent/p.Frontier) - 1
		}
	}

	a.setFrontier(all)
	return nil
}

// planAt makes a plan for the limit of an answer, and proves what none goes below.
func (p *planner) planAt(a *Answer) error {
	start := time.Now()
	made, warnings, err := p.planFor(a.Limit, false, 0)
	if err != nil {
		return err
	}
	a.Warnings = warnings
	a.setPlan(made, time.Since(start))
	return p.prove(a)
}

// withoutBeaten returns the plans of the frontier with the next one, which is for less memory, and
// without those that it beats: a later plan may be smaller and faster than those before.
func withoutBeaten(all []*Answer, next *Answer) []*Answer {
	for len(all) > 0 && next.After <= all[len(all)-1].After && next.Extra <= all[len(all)-1].Extra {
		all = all[:len(all)-1]
	}
	if len(all) == 0 || next.After < all[len(all)-1].After {
		next.Module = nil // only the figures are kept
		all = append(all, next)
	}
	return all
}

// stride returns by how many percent the next limit lies below the last one, in whole steps: so
// many that the time left is enough for the limits that follow, if each takes as long as the
// last one did.
func stride(percent, step int, took, left time.Duration) int {
	most := int(min(max(left, 0)/max(took, 1), 100))
	for down := step; ; down += step {
		if (percent-1)/down <= most || down+step >= percent {
			return down
		}
	}
}

// setFrontier sets the plans of the frontier, the answer's own among them if it has one, without
// those that this beats in both memory and time. If one of them beats it, it is left out.
func (a *Answer) setFrontier(all []*Answer) {
	if a.Frontier = all; a.Request.Limit == nil {
		return
	}
	if slices.ContainsFunc(all, func(k *Answer) bool {
		return k.After <= a.After && k.Extra <= a.Extra && (k.After < a.After || k.Extra < a.Extra)
	}) {
		return
	}

	all = slices.DeleteFunc(all, func(k *Answer) bool { return k.After >= a.After && k.Extra >= a.Extra })
	at := slices.IndexFunc(all, func(k *Answer) bool { return k.After < a.After })
	if at < 0 {
		at = len(all)
	}

	a.Frontier = slices.Insert(all, at, a)
}
