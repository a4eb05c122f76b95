package advise

// Several programs on one card, each in a lease of its size.

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gpumem/device"
	"gpumem/policy"
	"gpumem/record/internal/bisect"
	"gpumem/record/internal/sum"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

// Together reports whether several programs share a card, and with which leases. Sizes are
// bytes. Its JSON is that of gpumem advise of several recordings.
type Together struct {
	DeviceBytes  uint64    `json:"device_bytes"`
	UsedBytes    uint64    `json:"used_bytes"`    // by others
	ContextBytes uint64    `json:"context_bytes"` // assumed beside the pool of each program
	Fits         bool      `json:"fits"`          // the leases fit what others leave of the card
	Leases       uint64    `json:"leases_bytes"`  // all together: each program at its peak at the same time
	Left         uint64    `json:"left_bytes"`    // 0 if they do not fit
	Programs     []*Member `json:"programs"`
	// PeakTogether is the most that is live at once if all recordings begin at the same
	// time, without what the recorded runs were refused; nil if one has no times, or several
	// pools on its GPU.
	PeakTogether *uint64 `json:"peak_live_if_started_together_bytes"`
}

// Member is one of several programs.
type Member struct {
	Trace replay.TraceInfo `json:"trace"` // of the GPU's pools
	Source
	Instant  bool      `json:"one_instant,omitempty"` // as in Report, like the next two
	LeftOut  []LeftOut `json:"left_out,omitempty"`
	PoolNote string    `json:"pool_note,omitempty"`
	Others   []string  `json:"others,omitempty"`       // as in GPU, like the next one
	Beside   uint64    `json:"others_bytes,omitempty"` // is in the lease
	// Lease is the least memory, in steps of 2 MiB, in which nothing is refused: that of
	// the pool, which Policy limits, and that outside of it.
	Lease  uint64 `json:"lease_bytes"`
	Policy string `json:"policy"`
	Pool   string `json:"pool,omitempty"` // for gpumem run --pool; "" if the framework has its own pool
	// OwnLease is the lease with the framework's own pool, if Pool takes its place because
	// the leases were too large together.
	OwnLease uint64   `json:"own_pool_lease_bytes,omitempty"`
	Set      []string `json:"set,omitempty"` // NAME=VALUE without which the framework refuses the card; in Run
	Run      string   `json:"run"`           // the command that starts the program in the lease

	ours *Member // with this project's pool, if Pool is ""
}

// page is the step in which a lease is searched for.
const page = 2 * mib

// RunTogether finds the leases for several programs on one card: with each framework's own
// pool and, where those are too large together, with elastic in place of the one that
// saves most. Errors are those of Run, and a recording of several GPUs.
func RunTogether(ctx context.Context, traces []*trace.Trace, cfg Config) (*Together, error) {
	rep := &Together{DeviceBytes: cfg.Sim.Total, UsedBytes: cfg.Sim.Used + cfg.Sim.Display, ContextBytes: cfg.Context}
	var gpus []gpu
	for _, t := range traces {
		m, g, err := leaseFor(ctx, t, cfg)
		if err != nil {
			return nil, err
		}
		rep.Programs, gpus = append(rep.Programs, m), append(gpus, g)
	}
	free := rep.DeviceBytes - min(rep.DeviceBytes, rep.UsedBytes)
	for {
		rep.Leases = 0
		best, saved := -1, uint64(0)
		for i, m := range rep.Programs {
			rep.Leases += m.Lease
			if m.ours != nil && m.ours.Lease < m.Lease && m.Lease-m.ours.Lease > saved {
				best, saved = i, m.Lease-m.ours.Lease
			}
		}
		if rep.Fits = rep.Leases <= free; rep.Fits || best < 0 {
			break
		}
		own := rep.Programs[best]
		own.ours.OwnLease = own.Lease
		rep.Programs[best] = own.ours
	}
	if rep.Fits {
		rep.Left = free - rep.Leases
	}
	var err error
	rep.PeakTogether, err = peakTogether(ctx, traces, gpus)
	return rep, err
}

// leaseFor returns a program with its lease: with the framework's own pool, where that can
// be limited from outside, and with this project's.
func leaseFor(ctx context.Context, t *trace.Trace, cfg Config) (*Member, gpu, error) {
	source, err := sourceOf(t, cfg.As)
	if err != nil {
		return nil, gpu{}, err
	}
	gpus, left, err := onlyGPU(t, cfg.Pool)
	if err != nil {
		return nil, gpu{}, err
	}
	a := &adviser{cfg: cfg, trace: t, source: source, gpus: gpus}
	has, err := a.features()
	if err != nil {
		return nil, gpu{}, err
	}
	var set []string
	if _, ok := a.read(has); !ok && source.Name == jax {
		set = []string{jaxNoPages}
		if _, ok := a.read(has, set...); !ok {
			return nil, gpu{}, a.refusesCard()
		}
	}
	with := func(p policy.Policy, pool string) (*Member, error) {
		m := &Member{
			Trace: describe(t, gpus), Source: source, Instant: ofInstant(t), LeftOut: left, PoolNote: elsewhere(t, gpus),
			Others: gpus[0].others(), Beside: gpus[0].beside, Policy: p.Spec, Pool: pool, Set: set,
		}
		option := ""
		if pool != "" {
			option = "--pool " + pool + " "
		}
		m.Lease, err = a.lease(ctx, p)
		for _, s := range set {
			m.Run += s + " "
		}
		m.Run += fmt.Sprintf("gpumem run %s--mem %dMiB --overhead %dMiB -- COMMAND", option, m.Lease/mib, a.leaseOf(0)/mib)
		return m, err
	}
	unchanged := "elastic"
	if !has.pages {
		unchanged = "platform"
	}
	ours, err := with(named(unchanged).policy, unchanged)
	if err != nil || source.Name == none || source.Name == rmm {
		return ours, gpus[0], err
	}
	spec := source.release().String()
	if source.Name == tensorFlow {
		spec += ":preallocate=false" // as gpumem run sets it
	}
	own, err := with(named(spec).policy, "")
	if err == nil {
		own.ours = ours
	}
	return own, gpus[0], err
}

// onlyGPU returns the one GPU of a recording, and what is left out. The pool that is named may be
// another recording's.
func onlyGPU(t *trace.Trace, pool string) (gpus []gpu, left []LeftOut, err error) {
	own := pool
	if !slices.ContainsFunc(t.Pools, func(p *trace.Pool) bool { return p.Name == pool }) {
		own = ""
	}
	gpus, left, err = split(t, own)
	if err != nil || len(gpus) == 1 {
		return gpus, left, err
	}
	way := "--pool NAME picks it, in all recordings"
	if pool != "" {
		way = fmt.Sprintf("--pool %s, which holds for all recordings, names none of its pools; --pool %s is one", pool, gpus[0].name)
	}
	return nil, nil, &trace.Error{File: t.Source, Msg: fmt.Sprintf("the recording is of %d GPUs, and several programs share one; %s", len(gpus), way)}
}

// lease returns the least memory in which a policy serves the recording, with what is
// beside its pool; in steps of 2 MiB.
func (a *adviser) lease(ctx context.Context, p policy.Policy) (uint64, error) {
	g := a.gpus[0]
	fits := func(pages uint64) (bool, error) {
		p.Limit = a.limitOf(p, pages*page)
		ok, err := replay.Fits(ctx, a.trace, a.replay(g, p, true), a.leaseOf(pages))
		if errors.Is(err, device.ErrOutOfMemory) {
			return false, nil
		}
		return ok, err
	}
	first := g.peak/page + 1
	step := max(first/64, 1)
	pages, ok, err := bisect.Search{Hi: first, Enough: fits, Grow: func(hi uint64) uint64 {
		if hi > maxDevice/page {
			return 0
		}
		hi += step
		step *= 2
		return hi
	}}.Least()
	if err == nil && !ok {
		err = &trace.Error{File: a.trace.Source, Msg: fmt.Sprintf("the recording does not fit any GPU under the policy %s", p.Spec)}
	}
	if err != nil {
		return 0, err
	}
	return a.leaseOf(pages), nil
}

// limitOf returns the limit of a pool to which gpumem run gives that many bytes. It sets a
// fraction for JAX and PyTorch, which may lose some.
func (a *adviser) limitOf(p policy.Policy, bytes uint64) uint64 {
	if p.Name != jax && p.Name != pyTorch {
		return bytes
	}
	card := policy.Device{Total: a.cfg.Sim.Total, Free: a.cfg.Sim.Total}
	p.Limit, p.Fraction = 0, policy.FractionFor(bytes, policy.Policy{RoundLimit: p.RoundLimit}, card)
	return max(1, p.LimitBytes(card)) // rounded as the release does it
}

// leaseOf returns the lease for a pool of n pages.
func (a *adviser) leaseOf(n uint64) uint64 {
	return n*page + (a.taken(true)+page-1)/page*page
}

// peakTogether returns the most that is live at once in recordings that begin at the same
// time, without what the recorded runs were refused; nil if one has no times, or several
// pools on its GPU.
func peakTogether(ctx context.Context, traces []*trace.Trace, gpus []gpu) (*uint64, error) {
	var walks []*trace.Walk
	var next []*trace.Event // of each walk; nil at its end
	for i, t := range traces {
		if !t.Timed || len(gpus[i].pools) > 1 {
			return nil, nil
		}
		pools, err := t.Choose(gpus[i].name)
		if err != nil {
			return nil, err
		}
		w := pools[0].Walk()
		e, err := w.Next(ctx)
		if err != nil {
			return nil, err
		}
		walks, next = append(walks, w), append(next, e)
	}
	var live, peak sum.Sum
	for {
		first := -1
		for i, e := range next {
			if e != nil && (first < 0 || e.Time < next[first].Time) {
				first = i
			}
		}
		if first < 0 {
			n := peak.Cap()
			return &n, nil
		}
		switch e := next[first]; {
		case e.Op == trace.Free:
			live.Sub(e.Bytes)
		case !e.Refused:
			live.Add(e.Bytes)
			peak.Raise(live)
		}
		var err error
		if next[first], err = walks[first].Next(ctx); err != nil {
			return nil, err
		}
	}
}
