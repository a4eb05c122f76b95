package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/device"
	"gpumem/policy"
	"gpumem/report"
	"gpumem/trace"
)

// page is what the proven bound counts in: 2 MiB, what NVIDIA's GPUs map by.
const page = 2 << 20

// lowerBound is what any allocator must hold at the peak, where peak256 is the
// most that is live with each block rounded up to 256 bytes: a page that is held
// holds at most a page of live bytes. It stops at the largest uint64.
func lowerBound(peak256 uint64) uint64 {
	if peak256 > math.MaxUint64-(page-1) {
		return math.MaxUint64
	}
	return (peak256 + page - 1) &^ (page - 1)
}

// batch is how many events are decoded before they are run.
const batch = 4096

// shortPass is the length of a timed pass under which it is repeated.
const shortPass = time.Second

// longPicture is how many events a recording may have to be timed as well when a page is
// made of it: who wants to look does not want to wait twice. 2 GB of an RMM log are 35
// million.
var longPicture uint64 = 5_000_000

// runner is one policy on one pool.
type runner struct {
	cfg    *Config
	trace  *trace.Trace
	pool   *trace.Pool
	policy policy.Policy
	last   time.Time // of the last word on progress
	// With Config.Picture: what the pool's policies share, and the texts.
	shape *shape
	names *names
}

func (r *runner) run(ctx context.Context) (*Result, error) {
	res, err := r.observe(ctx)
	if err != nil {
		return nil, err
	}
	if !r.cfg.Untimed && !(r.cfg.Picture && r.pool.Events > longPicture) {
		best := time.Duration(math.MaxInt64)
		for range 3 {
			took, err := r.timed(ctx)
			if err != nil {
				return nil, err
			}
			best = min(best, took)
			if took > shortPass {
				break
			}
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

func (r *runner) progress(doing string, done uint64) {
	if r.cfg.Progress == nil {
		return
	}
	if now := time.Now(); now.Sub(r.last) > 200*time.Millisecond {
		r.last = now
		r.cfg.Progress(r.policy.Spec+": "+doing, float64(done)/float64(max(r.pool.Events, 1)))
	}
}

// open opens the device and the policy's allocator on it; close ends both.
// watch, if not nil, is put around the device.
func (r *runner) open(total uint64, watch func(device.GPU) device.GPU, log func(alloc.Message)) (dev device.GPU, a alloc.Allocator, close func(), err error) {
	dev, err = r.cfg.Device(total)
	if err != nil {
		return nil, nil, nil, err
	}
	if watch != nil {
		dev = watch(dev)
	}
	a, err = build.New(dev, r.policy, build.Options{Log: log})
	if err != nil {
		_ = dev.Close()
		return nil, nil, nil, err
	}
	// What closing meets does not change what was found.
	return dev, a, func() { _ = a.Close(); _ = dev.Close() }, nil
}

// pass runs every event, batch by batch.
func (r *runner) pass(ctx context.Context, doing string, f func([]trace.Event) error) error {
	cur := r.pool.Cursor()
	defer cur.Close()
	buf := make([]trace.Event, max(1, min(batch, r.pool.Events)))
	var done uint64
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := cur.Next(buf)
		if n > 0 {
			if err := f(buf[:n]); err != nil {
				return err
			}
			done += uint64(n)
			r.progress(doing, done)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// request is an event's allocation.
func request(e *trace.Event) alloc.Request {
	req := alloc.Request{Bytes: e.Bytes, Stream: e.Stream, Site: alloc.Site(e.Site)}
	if e.Upper {
		req.End = alloc.Upper
	}
	return req
}

// observe is the pass that looks. What is held changes only when the driver is
// called, so the statistics are read after those events alone.
func (r *runner) observe(ctx context.Context) (*Result, error) {
	// What is said when the allocator is made is about its settings, not the run.
	notes, begun := newNotes(), false
	places := r.places()
	dev, a, done, err := r.open(r.cfg.Total, places.watch(), func(m alloc.Message) {
		if begun {
			notes.add(m)
		}
	})
	if err != nil {
		return nil, err
	}
	defer done()
	begun = true
	res := &Result{
		Policy: r.policy.Spec, Pool: r.pool.Name, DeviceBytes: r.cfg.Total,
		LowerBound: lowerBound(r.pool.PeakLive256), events: r.pool.Events,
	}
	info := dev.Info()
	blocks := make([]alloc.Block, r.pool.Slots)
	digest := newDigest()
	var n, held uint64
	calls := dev.Counters().Calls // opening may have asked what is free
	// ask asks a question of our own, which may cost driver calls that are not
	// the policy's.
	var ours device.Counters
	ask := func(f func()) {
		before := dev.Counters()
		f()
		after := dev.Counters()
		ours.Calls += after.Calls - before.Calls
		ours.Time += after.Time - before.Time
	}
	stats := func() (s alloc.Stats) { ask(func() { s = a.Stats() }); return s }
	var heldSum float64
	early := r.pool.Events / 100 // late is after these
	pic := r.picture(a, stats, func() uint64 { return dev.Counters().Calls - ours.Calls })
	var used uint64
	var live int
	err = r.pass(ctx, "running", func(events []trace.Event) error {
		for i := range events {
			e := &events[i]
			n++
			if e.Op == trace.Free {
				b := blocks[e.Slot]
				blocks[e.Slot] = alloc.Block{}
				if err := a.Free(b); err != nil {
					return fmt.Errorf("event %d: %w", n, err)
				}
				if used -= b.Size; !b.IsZero() {
					live--
				}
			} else {
				b, err := a.Alloc(request(e))
				switch {
				case errors.Is(err, alloc.ErrNoMemory):
					digest.add(nowhere)
					res.Refused++
					if res.Failure == nil {
						ask(func() { res.Failure = r.failure(a, deviceFree(dev), e, n) })
					}
					if pic != nil {
						pic.refuse(n, e)
					}
				case err != nil:
					return fmt.Errorf("event %d: %w", n, err)
				case b.IsZero(): // of 0 bytes: served, and it lies nowhere
					digest.add(nowhere)
				default:
					digest.add(b.Addr - info.Base)
					live++
				}
				if err := places.compare(e, b); err != nil {
					return err
				}
				used += b.Size
				blocks[e.Slot] = b
			}
			if c := dev.Counters().Calls - ours.Calls; c != calls {
				calls = c
				held = stats().PoolBytes
				if e.Op == trace.Alloc && n > early {
					res.LateAllocs++
				}
			}
			heldSum += float64(held)
			if pic != nil {
				pic.after(n, used, held, res.Refused, live)
			}
			if b := blocks[e.Slot]; e.Refused && !b.IsZero() {
				blocks[e.Slot] = alloc.Block{}
				if err := a.Free(b); err != nil {
					return fmt.Errorf("event %d: %w", n, err)
				}
				used -= b.Size
				live--
				if c := dev.Counters().Calls - ours.Calls; c != calls {
					calls = c
					held = stats().PoolBytes
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	places.result(res)
	res.Fits = res.Refused == 0
	if res.Failure != nil {
		res.FirstRefused = &res.Failure.Event
	}
	res.Stats = stats()
	res.HeldPeak = res.Stats.PeakPoolBytes
	res.HeldMean = heldSum / float64(max(n, 1))
	res.Fragmentation = res.Stats.Fragmentation()
	res.Digest = digest.String()
	count := dev.Counters()
	res.DriverCalls, res.DriverSeconds = count.Calls-ours.Calls, (count.Time - ours.Time).Seconds()
	if _, err := a.Trim(0); err != nil {
		return nil, err
	}
	res.HeldIdle = stats().PoolBytes
	res.Notes = notes.list()
	if pic != nil {
		res.picture = pic.layer
	}
	return res, nil
}

// picture is what the pass that looks gathers for a page; nil if nobody asked.
func (r *runner) picture(a alloc.Allocator, stats func() alloc.Stats, calls func() uint64) *picture {
	if r.shape == nil {
		return nil
	}
	p := &picture{
		layer: &report.Layer{Policy: r.policy.Spec}, trace: r.trace, names: r.names, shape: r.shape,
		used: bucket{ends: r.shape.timeline.Ends}, sites: map[alloc.Site][2]int{}, a: a, stats: stats, calls: calls,
	}
	if t := r.shape.timeline; uint64(len(t.Ends)) < t.Events {
		p.ring = make([][2]uint64, peakWindow)
	}
	return p
}

// failure describes the first refusal while the allocator is as it was then.
func (r *runner) failure(a alloc.Allocator, free int64, e *trace.Event, event uint64) *Failure {
	f := &Failure{Event: event, Bytes: e.Bytes, Recorded: e.Refused, Stack: r.trace.Site(e.Site), Cause: alloc.Explain(a, request(e), free)}
	f.Hole = f.Cause.Hole
	f.Why = f.Cause.Text(func(s alloc.Site) string { return r.trace.Site(uint32(s)) })
	return f
}

// deviceFree is what the device has free, -1 if it does not say.
func deviceFree(dev device.Device) int64 {
	free, _, err := dev.MemInfo()
	if err != nil {
		return -1
	}
	return int64(min(free, math.MaxInt64))
}

// timed is a pass that only runs, and says how long the allocator took. It
// follows observe, which has met every error that is not a refusal.
func (r *runner) timed(ctx context.Context) (time.Duration, error) {
	_, a, done, err := r.open(r.cfg.Total, nil, nil)
	if err != nil {
		return 0, err
	}
	defer done()
	blocks := make([]alloc.Block, r.pool.Slots)
	var took time.Duration
	err = r.pass(ctx, "timing", func(events []trace.Event) error {
		start := time.Now()
		for i := range events {
			e := &events[i]
			if e.Op == trace.Free {
				if err := a.Free(blocks[e.Slot]); err != nil {
					return err
				}
				continue
			}
			b, err := a.Alloc(request(e))
			// The comparison first, for a refusal is part of what is timed.
			if err != nil && err != alloc.ErrNoMemory && !errors.Is(err, alloc.ErrNoMemory) {
				return err
			}
			if e.Refused {
				if err := a.Free(b); err != nil {
					return err
				}
				continue
			}
			blocks[e.Slot] = b // after a refusal the zero block, whose free does nothing
		}
		took += time.Since(start)
		return nil
	})
	return took, err
}
