package advise

// This file is for the smallest of things: the least fraction that serves a
// run, and the smallest device.

import (
	"context"
	"sort"
)

// mostPercent is the largest fraction that is advised, in hundredths.
const mostPercent = 95

// percentOf is the largest fraction in hundredths that leaves room on a device
// for what others hold and the context.
func percentOf(total, taken uint64) int {
	if taken >= total {
		return 1 // which will not fit, and says so
	}
	part := float64(total-taken) / float64(total)
	return max(1, min(mostPercent, int(part*100)))
}

// percent is the least fraction in hundredths with which nothing is refused on
// the card, such that with one less something is; the largest that there is room
// for if none fits.
func (a *adviser) percent(ctx context.Context) (int, error) {
	card := a.cfg.Sim
	most := percentOf(card.Total, card.Used+card.Display+a.cfg.Context)
	var failed error
	least := 1 + sort.Search(most-1, func(i int) bool {
		if failed != nil {
			return true
		}
		ok, err := a.fits(ctx, a.fraction(i+1), false, card.Total)
		failed = err
		return ok
	})
	return least, failed
}

// longEvents is from where on a search that is exact takes minutes.
const longEvents = 1_000_000

// maxDevice is where the search for a device ends: 1 TiB, more than any GPU has.
const maxDevice = 1 << 40

// smallest is the smallest device on which nothing is refused, to 1 MiB, as
// replay's --smallest is, or to 1 % where the recording is long; the fraction,
// where there is one, goes with the size. nil: none up to 1 TiB.
func (a *adviser) smallest(ctx context.Context, c *Candidate) (*uint64, error) {
	fits := func(n uint64) (bool, error) {
		return a.fits(ctx, c.alone(n*mib).policy, true, n*mib)
	}
	if c.bound > maxDevice-min(maxDevice, a.cfg.Context) {
		return nil, nil
	}
	lo := (c.bound + a.cfg.Context) / mib
	if lo > 0 {
		lo-- // the bound itself may do
	}
	hi := max(lo+1, c.HeldPeak/mib)
	for {
		ok, err := fits(hi)
		if err != nil {
			return nil, err
		}
		if ok {
			break
		}
		lo = hi
		if hi *= 2; hi > maxDevice/mib {
			return nil, nil
		}
	}
	for hi-lo > 1 && (a.trace.Events <= longEvents || (hi-lo)*100 > hi) {
		mid := lo + (hi-lo)/2
		ok, err := fits(mid)
		if err != nil {
			return nil, err
		}
		if ok {
			hi = mid
		} else {
			lo = mid
		}
	}
	hi *= mib
	return &hi, nil
}
