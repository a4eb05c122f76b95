package remat

// What less and less memory costs: a plan for each of many limits.

import (
	"context"
	"slices"
	"time"
)

// frontierPatience is how many limits in a row may be missed before the frontier ends.
const frontierPatience = 4

// frontier returns plans for less and less memory. The answer itself has no plan yet.
func (a *Answer) frontier(ctx context.Context, given *prover) ([]*Answer, error) {
	r := a.Request
	missed, least, step := 0, 0.0, r.Frontier
	all := []*Answer{}
	var late <-chan time.Time // never, if there is no limit of time
	end := time.Now().Add(r.FrontierTime)
	if r.FrontierTime > 0 {
		late = time.After(r.FrontierTime)
	}
	for percent, down := 100, step; percent >= step; percent -= down {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if r.Progress != nil {
			r.Progress(float64(100-percent) / 100)
		}
		start := time.Now()
		k := *a
		k.Limit, k.Warnings = a.Before/100*uint64(percent), nil
		planned := make(chan error, 1)
		go func() { planned <- k.planAt(given, start) }()
		select {
		case err := <-planned:
			if err != nil {
				return nil, err
			}
		case <-late: // the plan under way is dropped when it ends
			a.FrontierLeft += percent / step
			return all, nil
		}
		for _, w := range k.Warnings {
			a.warn(w)
		}
		k.Warnings = nil
		if len(all) > 0 { // a smaller limit costs no less than a larger one
			k.LowerPercent = max(k.LowerPercent, least)
		}
		least = k.LowerPercent
		// A later plan may be smaller and faster than those before.
		for len(all) > 0 && k.After <= all[len(all)-1].After && k.Extra <= all[len(all)-1].Extra {
			all = all[:len(all)-1]
		}
		if len(all) == 0 || k.After < all[len(all)-1].After {
			k.Module = nil // only the figures are kept
			all = append(all, &k)
		}
		if k.Met {
			missed = 0
		} else if missed++; missed == frontierPatience {
			break
		}
		if r.FrontierTime > 0 {
			down = stride(percent, step, time.Since(start), time.Until(end))
			a.FrontierLeft += min(down/step, percent/step) - 1
		}
	}
	return all, nil
}

// planAt makes a plan for the answer's limit, and proves what none goes below.
func (a *Answer) planAt(given *prover, start time.Time) error {
	p, err := a.planFor(given.m, a.Limit, false, 0)
	if err != nil {
		return err
	}
	a.take(p, time.Since(start))
	return a.prove(given)
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

// among returns the frontier with the answer's own plan, without those that it beats in both
// memory and time. If one of them beats it, it is left out.
func (a *Answer) among(all []*Answer) []*Answer {
	if slices.ContainsFunc(all, func(k *Answer) bool {
		return k.After <= a.After && k.Extra <= a.Extra && (k.After < a.After || k.Extra < a.Extra)
	}) {
		return all
	}
	all = slices.DeleteFunc(all, func(k *Answer) bool { return k.After >= a.After && k.Extra >= a.Extra })
	at := slices.IndexFunc(all, func(k *Answer) bool { return k.After < a.After })
	if at < 0 {
		at = len(all)
	}
	return slices.Insert(all, at, a)
}
