package advise

// Why nothing fits.

import (
	"errors"
	"io"
	"slices"

	"gpumem/internal/sum"
	"gpumem/trace"
)

// Need is what the recording needs at least on the GPU where that is most, without what
// lies outside the pools.
type Need struct {
	Live    uint64 `json:"live_peak_bytes"` // at the peak; of several pools the sum of the peaks
	Wanted  uint64 `json:"wanted_bytes"`    // the same with what the recorded run was refused
	Pools   int    `json:"pools"`           // on that GPU
	TooMuch bool   `json:"too_much"`        // Wanted, with what is outside, is more than the card; otherwise the pools have holes
}

// need returns what the recording needs.
func (a *adviser) need() (*Need, error) {
	var most *Need
	for _, g := range a.gpus {
		n := &Need{Pools: len(g.pools)}
		var live, wanted sum.Sum
		for _, name := range g.pools {
			p := a.trace.Pools[slices.IndexFunc(a.trace.Pools, func(p *trace.Pool) bool { return p.Name == name })]
			served, err := servedPeak(p)
			if err != nil {
				return nil, err
			}
			live.Add(served)
			wanted.Add(p.PeakLive)
		}
		n.Live, n.Wanted = live.Cap(), wanted.Cap()
		wanted.Add(a.cfg.Context)
		wanted.Add(a.cfg.Sim.Used)
		wanted.Add(a.cfg.Sim.Display)
		n.TooMuch = wanted.Cap() > a.cfg.Sim.Total
		if most == nil || n.Wanted > most.Wanted {
			most = n
		}
	}
	return most, nil
}

// servedPeak returns the most that was live at once, without what the recorded run was
// refused.
func servedPeak(p *trace.Pool) (uint64, error) {
	if p.Refused == 0 {
		return p.PeakLive, nil
	}
	w := newWalk(p)
	var live, peak sum.Sum
	for {
		if err := w.fill(); err != nil || len(w.events) == 0 {
			return peak.Cap(), err
		}
		w.step(&live)
		peak.Raise(live)
	}
}

// walk is the events of a pool, one after the other.
type walk struct {
	cursor *trace.Cursor
	buf    [1024]trace.Event
	events []trace.Event // not looked at
	live   []uint64      // bytes of the block in each slot
	done   bool
}

func newWalk(p *trace.Pool) *walk {
	return &walk{cursor: p.Cursor(), live: make([]uint64, p.Slots)}
}

func (w *walk) fill() error {
	if len(w.events) > 0 || w.done {
		return nil
	}
	n, err := w.cursor.Next(w.buf[:])
	w.events, w.done = w.buf[:n], n == 0
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// step counts the next event, unless it was refused: nothing frees that.
func (w *walk) step(live *sum.Sum) {
	e := &w.events[0]
	w.events = w.events[1:]
	switch {
	case e.Op == trace.Free:
		live.Sub(w.live[e.Slot])
	case !e.Refused:
		live.Add(e.Bytes)
		w.live[e.Slot] = e.Bytes
	}
}
