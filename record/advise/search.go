package advise

// The search for the least fraction that serves a run, and for the smallest device.

import (
	"context"
	"sort"

	"gpumem/policy"
	"gpumem/record/internal/bisect"
	"gpumem/record/replay"
)

// mostPercent is the largest fraction that is advised, in hundredths.
const mostPercent = 95

// percentOf returns the largest fraction in hundredths that leaves memory on a device
// for what others hold and the context.
func percentOf(total, taken uint64) int {
	if taken >= total {
		return 1 // which does not fit
	}
	part := float64(total-taken) / float64(total)
	return max(1, min(mostPercent, int(part*100)))
}

// mostOf returns the largest limit in hundredths that leaves memory on a device for what
// is beside the pool.
func (a *adviser) mostOf(total uint64, alone bool) int {
	if a.ofFree {
		return mostPercent
	}
	return percentOf(total, a.taken(alone))
}

// percent returns the least limit in hundredths with which nothing is refused on the
// card, such that with one less something is; most if none up to that does.
func (a *adviser) percent(ctx context.Context, c *Candidate, alone bool, total uint64, most int) (int, error) {
	var failed error
	least := 1 + sort.Search(most-1, func(i int) bool {
		if failed != nil {
			return true
		}
		ok, err := a.fits(ctx, c.at(i+1, total).policy, alone, total)
		failed = err
		return ok
	})
	return least, failed
}

// longEvents is the number of events above which an exact search takes minutes. Tests
// change it.
var longEvents uint64 = 1_000_000

// maxDevice is the largest device that is tried: 1 TiB, more than any GPU has.
const maxDevice = 1 << 40

// smallest returns the smallest device on which nothing is refused: to 1 MiB, as
// replay's --smallest, or to 1 % if the recording is long. A fraction goes with the
// size. It is nil if there is none up to 1 TiB.
func (a *adviser) smallest(ctx context.Context, c *Candidate) (*uint64, error) {
	n, err := a.smallestInOrder(ctx, c)
	if n == nil || err != nil {
		return nil, err
	}
	floor, err := a.inAnyOrder(ctx, c)
	return new(max(*n, floor)), err
}

// inAnyOrder returns the least device for processes that have a GPU at once, whichever asks for memory first; 0
// for others. A pool of PyTorch releases what it keeps where it is refused itself, and not where another process
// is. Who comes to the limit first differs from run to run, so on a device where one has to release something the
// recorded order proves nothing.
func (a *adviser) inAnyOrder(ctx context.Context, c *Candidate) (floor uint64, err error) {
	if c.ran.Kind != policy.Caching {
		return 0, nil
	}
	for _, g := range a.gpus {
		if g.processes < 2 {
			continue
		}
		cfg := a.replay(g, c.ran, true)
		cfg.Total = maxDevice
		ran, err := replay.Run(ctx, a.trace, cfg)
		if err != nil {
			return 0, err
		}
		floor = max(floor, (ran.Results[0].HeldPeak+a.outside(g.processes)+g.beside+mib-1)/mib*mib)
	}
	return floor, nil
}

// smallestInOrder is smallest for the order in which the recorded run asked for memory.
func (a *adviser) smallestInOrder(ctx context.Context, c *Candidate) (*uint64, error) {
	if c.bound > maxDevice-min(maxDevice, a.taken(true)) {
		return nil, nil
	}
	lo := (c.bound + a.taken(true)) / mib
	if lo > 0 {
		lo-- // the bound itself may do
	}
	// The card at hand is tried before larger devices: a pool may fit it and none of those
	// around it.
	here := a.cfg.Sim.Total / mib
	if !c.Fits || here <= lo {
		here = maxDevice
	}
	// before is hi, or the card if that lies before hi.
	before := func(lo, hi uint64) uint64 {
		if lo < here && hi > here {
			return here
		}
		return hi
	}
	n, ok, err := bisect.Search{
		Lo: lo, Hi: before(lo, max(lo+1, c.HeldPeak/mib)),
		Enough: func(n uint64) (bool, error) { return a.serves(ctx, c, n*mib) },
		Grow: func(hi uint64) uint64 {
			if 2*hi > maxDevice/mib {
				return 0
			}
			return before(hi, 2*hi)
		},
		Near: func(lo, hi uint64) bool { return a.trace.Events > longEvents && (hi-lo)*100 <= hi },
	}.Least()
	if n *= mib; !ok || err != nil {
		return nil, err
	}
	return &n, nil
}
