package replay

// The passes that one policy on one pool gets, and the hook that makes their
// figures.

import (
	"context"
	"math"
	"time"

	"gpumem/alloc"
	"gpumem/device"
	"gpumem/policy"
	"gpumem/record/trace"
)

// shortPass is the length of a timed pass under which it is repeated.
const shortPass = time.Second

// page is the unit of the proven bound: 2 MiB, the page size of NVIDIA's GPUs.
const page = 2 << 20

// lowerBound returns what any allocator must hold at the peak, where peak256 is the
// most that is live with each block rounded up to 256 bytes: a held page holds at
// most a page of live bytes. It stops at the largest uint64.
func lowerBound(peak256 uint64) uint64 {
	if peak256 > math.MaxUint64-(page-1) {
		return math.MaxUint64
	}
	return (peak256 + page - 1) &^ (page - 1)
}

// runner is one policy on one pool.
type runner struct {
	cfg    *Config
	trace  *trace.Trace
	pool   *trace.Pool
	policy policy.Policy
	meter  *meter
	job    int // its number for the meter
}

// isTimed reports whether there are timed passes.
func (r *runner) isTimed() bool {
	return !r.cfg.Untimed && (r.cfg.MaxTimed == 0 || r.pool.Events <= r.cfg.MaxTimed)
}

func (r *runner) run(ctx context.Context) (*Result, error) {
	res, err := r.measure(ctx)
	if err != nil {
		return nil, err
	}
	if r.isTimed() {
		best, err := quickest(func(i int) (time.Duration, error) { return r.timed(ctx, i == 0) })
		if err != nil {
			return nil, err
		}
		res.Seconds = best.Seconds()
	}
	if r.cfg.Smallest {
		res.searched = true
		if res.Smallest, err = r.smallest(ctx); err != nil {
			return nil, err
		}
	}
	return res, nil
}

// quickest returns the least time of three passes, or of those up to the first that is not
// short.
func quickest(pass func(i int) (time.Duration, error)) (time.Duration, error) {
	best := time.Duration(math.MaxInt64)
	for i := range 3 {
		took, err := pass(i)
		if err != nil {
			return 0, err
		}
		best = min(best, took)
		if took > shortPass {
			break
		}
	}
	return best, nil
}

// progress returns the callback of a pass that does something special, or nothing with
// ""; nil if there is none.
func (r *runner) progress(doing string) func(part float64) {
	if doing != "" {
		doing = ": " + doing
	}
	return r.meter.pass(r.job, r.policy.Spec+doing, r.pool.Events)
}

// measure runs the pass with hooks: those of the result's figures and of the Config.
func (r *runner) measure(ctx context.Context) (*Result, error) {
	dev, rec, err := r.device(r.cfg.Total)
	if err != nil {
		return nil, err
	}
	places, from := r.places(), &origin{GPU: dev}
	// Messages of the opening are about the settings, not the run.
	notes, open := newNotes(), false
	p, err := r.newPass(places.watch(from), rec, func(m alloc.Message) {
		if open {
			notes.add(m)
		}
	})
	if err != nil {
		return nil, err
	}
	defer p.close()
	open = true
	res := &Result{
		Policy: r.policy.Spec, Pool: r.pool.Name, DeviceBytes: r.cfg.Total,
		LowerBound: lowerBound(r.pool.PeakLive256), Events: r.pool.Events, Seeds: r.pool.Seeds,
	}
	p.hooks = append(p.hooks, places.hook(res))
	for _, hook := range r.cfg.Hooks {
		p.hooks = append(p.hooks, hook(p))
	}
	p.hooks = append(p.hooks, r.count(p, res), figures(p, from, res))
	if _, err := p.run(ctx, r.progress("")); err != nil {
		return nil, err
	}
	res.Notes = notes.list()
	return res, nil
}

// figures returns the hook that fills in a result, and at its end trims the pool.
func figures(p *Pass, from *origin, res *Result) Hook {
	digest := newDigest()
	early := p.Pool.Events / 100 // events after these are late
	var heldSum float64
	return Hook{
		Event: func(e *trace.Event, b alloc.Block) error {
			heldSum += float64(p.Held)
			if e.Op == trace.Free {
				return nil
			}
			if p.Called && p.Event > early {
				res.LateAllocs++
			}
			if b.IsZero() {
				digest.add(nowhere)
			} else {
				digest.add(b.Addr - from.first)
			}
			return nil
		},
		Refused: func(e *trace.Event) error {
			if res.Failure == nil {
				p.ask(func() { res.Failure = failure(p, e) })
				res.FirstRefused = &res.Failure.Event
			}
			return nil
		},
		End: func() (err error) {
			res.Refused, res.Fits = p.Refused, p.Refused == 0
			res.Stats = p.Stats()
			res.HeldPeak = res.Stats.PeakPoolBytes
			res.HeldMean = heldSum / float64(max(p.Event, 1))
			res.Fragmentation = res.Stats.Fragmentation()
			res.Digest = digest.text()
			if a, ok := p.Allocator.(interface {
				Reserved() (peak uint64, segments uint64)
			}); ok && p.only != nil {
				peak, segments := a.Reserved()
				res.ReservedPeak, res.Segments = &peak, &segments
			}
			cost := p.driver()
			res.DriverCalls, res.DriverSeconds = cost.Calls, cost.Time.Seconds()
			res.HeldIdle, err = p.idle()
			return err
		},
	}
}

// idle trims the pools, and returns what they hold then.
func (p *Pass) idle() (uint64, error) {
	for _, a := range p.parts {
		if a.device == nil || a.ended {
			continue
		}
		if _, err := a.allocator.Trim(0); err != nil {
			return 0, err
		}
	}
	return p.Stats().PoolBytes, nil
}

// failure describes the first refusal while the allocator is as it was then.
func failure(p *Pass, e *trace.Event) *Failure {
	f := &Failure{Event: p.Event, Bytes: e.Bytes, Recorded: e.Refused, Stack: p.Trace.Site(e.Site), Line: p.Trace.Line(e.Site)}
	of := p.only
	if of == nil {
		of, _ = p.partOf(e) // the loop has met its error
	}
	if of.allocator == nil {
		f.Cause = p.noRoom(e.Bytes)
	} else {
		f.Cause = alloc.Explain(of.allocator, request(e, of.first), deviceFree(of.device))
	}
	f.Hole = f.Cause.Hole
	f.Why = f.Cause.Text(func(s alloc.Site) string { return p.Trace.Site(uint32(s)) })
	return f
}

// deviceFree returns the device's free bytes, -1 if they are unknown.
func deviceFree(dev device.Device) int64 {
	free, _, err := dev.MemInfo()
	if err != nil {
		return -1
	}
	return int64(min(free, math.MaxInt64))
}

// timed runs a pass without hooks and returns how long the allocator took. It follows
// measure, which has met every error that is not a refusal. Only the first counts for the
// progress: the others are short.
func (r *runner) timed(ctx context.Context, first bool) (time.Duration, error) {
	dev, rec, err := r.device(r.cfg.Total)
	if err != nil {
		return 0, err
	}
	p, err := r.newPass(dev, rec, nil)
	if err != nil {
		return 0, err
	}
	defer p.close()
	if !first {
		return p.run(ctx, nil)
	}
	return p.run(ctx, r.progress(""))
}
