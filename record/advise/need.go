package advise

// The reason why nothing fits.

import (
	"context"
	"slices"

	"gpumem/record/internal/sum"
	"gpumem/record/internal/tape"
	"gpumem/record/trace"
)

// Need is what the recording needs at least on the GPU where that is most, without what
// lies outside the pools.
type Need struct {
	Live   uint64 `json:"live_peak_bytes"` // at the peak; of several pools the sum of the peaks
	Wanted uint64 `json:"wanted_bytes"`    // the same with what the recorded run was refused
	Pools  int    `json:"pools"`           // on that GPU
	// Processes is the most that have the GPU at once, each with what lies outside its pool.
	Processes int  `json:"processes"`
	TooMuch   bool `json:"too_much"` // Wanted, with what is outside, is more than the card; otherwise the pools have holes
}

// need returns what the recording needs.
func (a *adviser) need(ctx context.Context) (*Need, error) {
	var most *Need
	for _, g := range a.gpus {
		n := &Need{Pools: len(g.pools), Processes: g.processes}
		var live, wanted sum.Sum
		for _, name := range g.pools {
			p := a.trace.Pools[slices.IndexFunc(a.trace.Pools, func(p *trace.Pool) bool { return p.Name == name })]
			served, err := servedPeak(ctx, p)
			if err != nil {
				return nil, err
			}
			live.Add(served)
			wanted.Add(p.PeakLive)
		}
		n.Live, n.Wanted = live.Cap(), wanted.Cap()
		wanted.Add(a.outside(1))
		if g.processes > 1 {
			var err error
			if wanted, err = a.atOnce(ctx, a.trace.Pools[slices.IndexFunc(a.trace.Pools, func(p *trace.Pool) bool { return p.Name == g.name })]); err != nil {
				return nil, err
			}
		}
		wanted.Add(a.cfg.Sim.Used)
		wanted.Add(a.cfg.Sim.Display)
		n.TooMuch = wanted.Cap() > a.cfg.Sim.Total
		if most == nil || n.Wanted > most.Wanted {
			most = n
		}
	}
	return most, nil
}

// atOnce returns the most that is live in the pool of several processes, with what lies outside
// the pools of those that there are at the time.
func (a *adviser) atOnce(ctx context.Context, p *trace.Pool) (most sum.Sum, err error) {
	acts, processes, done := tape.Acts(p), 0, uint64(0)
	w := p.Walk()
	raise := func() {
		for ; len(acts) > 0 && acts[0].Event <= done; acts = acts[1:] {
			switch acts[0].What {
			case tape.Begins:
				processes++
			case tape.Ends:
				processes--
			}
		}
		now := w.Bytes
		now.Add(a.outside(processes))
		most.Raise(now)
	}
	err = w.Each(ctx, nil, func(*trace.Event, *trace.Block) {
		done++
		raise()
	})
	return most, err
}

// servedPeak returns the most that was live at once, without what the recorded run was
// refused.
func servedPeak(ctx context.Context, p *trace.Pool) (uint64, error) {
	if p.Refused == 0 {
		return p.PeakLive, nil
	}
	w := p.Walk()
	var peak sum.Sum
	err := w.Each(ctx, nil, func(*trace.Event, *trace.Block) {
		kept, _ := w.Kept()
		peak.Raise(kept)
	})
	return peak.Cap(), err
}
