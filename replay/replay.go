// Package replay runs a recorded program's allocations through a policy on a
// device, and says what it would have needed and where it would have broken.
//
// # How it measures
//
// The recording is read once (package trace) into events whose ids are already
// slot numbers. Each policy then gets passes over it, each on a device of its
// own:
//
//  1. one that looks after every event: what is held, whether the driver was
//     called, what was refused and why;
//  2. up to three that only run, for the time: the clock is read once for a
//     batch of events, never for one, and the best pass counts;
//  3. with Smallest, some more on smaller and larger devices, which end at the
//     first refusal.
//
// A refusal does not stop a replay: the request is tried once, its block is
// missing, and the free of it does nothing.
package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"gpumem"
	"gpumem/alloc"
	"gpumem/device"
	"gpumem/policy"
	"gpumem/trace"
)

// Config says what to run.
type Config struct {
	Policies []policy.Policy // at least one
	// Device makes a fresh device of total bytes. It is called for every pass.
	Device func(total uint64) (device.Device, error)
	Total  uint64 // of the device, in bytes
	Pool   string // only the recording's pool of this name; "" means all
	// Smallest looks for the smallest device, too.
	Smallest bool
	// Progress, if set, is told what is being done, and how far it is (0 to 1).
	// It is called a few times a second at most.
	Progress func(doing string, part float64)
}

// Report is what came out. Its JSON is the command line's.
type Report struct {
	Trace   TraceInfo `json:"trace"`
	Results []*Result `json:"results"`
}

// TraceInfo describes the recording.
type TraceInfo struct {
	Events    uint64   `json:"events"`          // allocations and frees
	Allocs    uint64   `json:"allocs"`          // allocations
	PeakLive  uint64   `json:"peak_live_bytes"` // most requested bytes live at once, refused ones included
	Source    string   `json:"source"`          // the file
	Format    string   `json:"format"`
	Notes     []string `json:"notes,omitempty"` // what the reader wants known
	PoolNames []string `json:"pools,omitempty"` // where there are several
}

// Result is one policy on one pool of the recording. Sizes are bytes.
type Result struct {
	Policy       string  `json:"policy"`
	Pool         string  `json:"pool"`
	DeviceBytes  uint64  `json:"device_bytes"`
	Fits         bool    `json:"fits"`                // nothing was refused
	Refused      uint64  `json:"refused"`             // allocations refused
	FirstRefused *uint64 `json:"first_refused_event"` // counted from 1; null if none

	HeldPeak   uint64  `json:"held_peak_bytes"`    // most device memory held at once
	HeldMean   float64 `json:"held_mean_bytes"`    // mean over events
	HeldIdle   uint64  `json:"held_idle_bytes"`    // after the last event and a trim
	LowerBound uint64  `json:"lower_bound_bytes"`  // what any allocator must hold at the peak
	LateAllocs uint64  `json:"late_driver_allocs"` // allocations after the first 1 % of events that called the driver

	Stats         alloc.Stats `json:"stats"` // after the last event
	Fragmentation float64     `json:"fragmentation"`
	Digest        string      `json:"placement_fnv1a64"`

	DriverCalls   uint64  `json:"driver_calls"`
	DriverSeconds float64 `json:"driver_seconds"` // modelled
	Seconds       float64 `json:"seconds"`        // real time inside the allocator, best pass

	Smallest *uint64 `json:"smallest_device_bytes,omitempty"` // with Config.Smallest: nothing is refused there, something is at 1 MiB less

	Failure *Failure `json:"first_refused,omitempty"` // the first refusal
	Notes   []string `json:"notes,omitempty"`         // what the policy did on the way, such as backing off

	events uint64
}

// EventNanos is the real time per event, in nanoseconds.
func (r *Result) EventNanos() float64 {
	if r.events == 0 {
		return 0
	}
	return r.Seconds * 1e9 / float64(r.events)
}

// Failure is the first refusal: what was asked, by whom, and why not.
type Failure struct {
	Event uint64      `json:"event"` // counted from 1
	Bytes uint64      `json:"bytes"`
	Hole  uint64      `json:"largest_hole_bytes"`
	Stack string      `json:"stack,omitempty"` // if the recording has it
	Cause alloc.Cause `json:"-"`
	Why   string      `json:"why"` // the cause in words
}

// page is what the proven bound counts in: 2 MiB.
const page = 2 << 20

// lowerBound is what any allocator must hold at the peak: a page that is held
// holds at most a page of live bytes, each block rounded to 256 bytes.
func lowerBound(peak256 uint64) uint64 { return (peak256 + page - 1) &^ (page - 1) }

// batch is how many events are decoded before they are run.
const batch = 4096

// shortPass is the length of a timed pass under which it is repeated.
const shortPass = time.Second

// Run replays t under every policy. ctx stops it between batches; then the
// error is the context's.
func Run(ctx context.Context, t *trace.Trace, cfg Config) (*Report, error) {
	if len(cfg.Policies) == 0 {
		return nil, fmt.Errorf("replay: no policy")
	}
	var pools []*trace.Pool
	rep := &Report{Trace: TraceInfo{
		Events: t.Events, Allocs: t.Allocs, PeakLive: t.PeakLive, Source: t.Source, Format: t.Format, Notes: t.Notes,
	}}
	for _, p := range t.Pools {
		if cfg.Pool == "" || p.Name == cfg.Pool {
			pools = append(pools, p)
		}
		if len(t.Pools) > 1 {
			rep.Trace.PoolNames = append(rep.Trace.PoolNames, p.Name)
		}
	}
	if len(pools) == 0 {
		return nil, fmt.Errorf("%s: no pool is named %q; it has %v", t.Source, cfg.Pool, names(t.Pools))
	}
	for _, pol := range cfg.Policies {
		for _, pool := range pools {
			r := &runner{cfg: &cfg, trace: t, pool: pool, policy: pol}
			res, err := r.run(ctx)
			if err != nil {
				return nil, err
			}
			rep.Results = append(rep.Results, res)
		}
	}
	return rep, nil
}

func names(pools []*trace.Pool) []string {
	var out []string
	for _, p := range pools {
		out = append(out, p.Name)
	}
	return out
}

// runner is one policy on one pool.
type runner struct {
	cfg    *Config
	trace  *trace.Trace
	pool   *trace.Pool
	policy policy.Policy
	last   time.Time // of the last word on progress
}

func (r *runner) run(ctx context.Context) (*Result, error) {
	res, err := r.observe(ctx)
	if err != nil {
		return nil, err
	}
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
	if r.cfg.Smallest {
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

// open makes the device and the policy's allocator on it.
func (r *runner) open(total uint64, log func(alloc.Message)) (device.Device, alloc.Allocator, error) {
	dev, err := r.cfg.Device(total)
	if err != nil {
		return nil, nil, err
	}
	a, err := gpumem.NewAllocator(dev, r.policy, log)
	return dev, a, err
}

// pass runs every event, batch by batch.
func (r *runner) pass(ctx context.Context, doing string, f func([]trace.Event) error) error {
	cur := r.pool.Cursor()
	defer cur.Close()
	buf := make([]trace.Event, batch)
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

// observe is the pass that looks.
func (r *runner) observe(ctx context.Context) (*Result, error) {
	notes := newNotes()
	dev, a, err := r.open(r.cfg.Total, notes.add)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	res := &Result{
		Policy: r.policy.Spec, Pool: r.pool.Name, DeviceBytes: r.cfg.Total,
		LowerBound: lowerBound(r.pool.PeakLive256), events: r.pool.Events,
	}
	info := dev.Info()
	blocks := make([]alloc.Block, r.pool.Slots)
	digest := newDigest()
	var n, held, calls uint64
	var ours device.Counters // what our own questions cost
	var heldSum float64
	early := r.pool.Events / 100 // late is after these
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
			} else {
				b, err := a.Alloc(request(e))
				switch {
				case errors.Is(err, alloc.ErrNoMemory):
					digest.add(math.MaxUint64)
					res.Refused++
					if res.Failure == nil {
						var free int64
						free, ours = deviceFree(dev)
						res.Failure = r.failure(a, free, e, n)
					}
				case err != nil:
					return fmt.Errorf("event %d: %w", n, err)
				default:
					digest.add(b.Addr - info.Base)
				}
				blocks[e.Slot] = b
			}
			if c := dev.Counters().Calls - ours.Calls; c != calls {
				calls = c
				held = a.Stats().PoolBytes
				if e.Op == trace.Alloc && n > early {
					res.LateAllocs++
				}
			}
			heldSum += float64(held)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	res.Fits = res.Refused == 0
	if res.Failure != nil {
		res.FirstRefused = &res.Failure.Event
	}
	res.Stats = a.Stats()
	res.HeldPeak = res.Stats.PeakPoolBytes
	res.HeldMean = heldSum / float64(max(n, 1))
	res.Fragmentation = res.Stats.Fragmentation()
	res.Digest = digest.String()
	count := dev.Counters()
	res.DriverCalls, res.DriverSeconds = count.Calls-ours.Calls, (count.Time - ours.Time).Seconds()
	if _, err := a.Trim(0); err != nil {
		return nil, err
	}
	res.HeldIdle = a.Stats().PoolBytes
	res.Notes = notes.list()
	return res, nil
}

// failure describes the first refusal while the allocator is as it was then.
func (r *runner) failure(a alloc.Allocator, free int64, e *trace.Event, event uint64) *Failure {
	f := &Failure{Event: event, Bytes: e.Bytes, Stack: r.trace.Site(e.Site), Cause: alloc.Explain(a, request(e), free)}
	f.Hole = f.Cause.Hole
	f.Why = f.Cause.Text(func(s alloc.Site) string { return r.trace.Site(uint32(s)) })
	return f
}

// deviceFree is what the device has free, -1 if it does not say. It is our
// question and not the policy's: the second result is what it cost, to be left
// out of the policy's account.
func deviceFree(dev device.Device) (int64, device.Counters) {
	before := dev.Counters()
	free, _, err := dev.MemInfo()
	after := dev.Counters()
	cost := device.Counters{Calls: after.Calls - before.Calls, Time: after.Time - before.Time}
	if err != nil {
		return -1, cost
	}
	return int64(min(free, math.MaxInt64)), cost
}

// timed is a pass that only runs, and says how long the allocator took.
func (r *runner) timed(ctx context.Context) (time.Duration, error) {
	_, a, err := r.open(r.cfg.Total, nil)
	if err != nil {
		return 0, err
	}
	defer a.Close()
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
			// A refusal gives the zero block, whose free does nothing.
			blocks[e.Slot], _ = a.Alloc(request(e))
		}
		took += time.Since(start)
		return nil
	})
	return took, err
}

// errRefused ends a pass at the first refusal.
var errRefused = errors.New("refused")

// fits says whether nothing is refused on a device of total bytes.
func (r *runner) fits(ctx context.Context, total uint64) (bool, error) {
	dev, err := r.cfg.Device(total)
	if err != nil {
		return false, nil // what others hold does not fit on so small a device
	}
	a, err := gpumem.NewAllocator(dev, r.policy, nil)
	if err != nil {
		return false, err
	}
	defer a.Close()
	blocks := make([]alloc.Block, r.pool.Slots)
	err = r.pass(ctx, fmt.Sprintf("trying a device of %d MiB", total>>20), func(events []trace.Event) error {
		for i := range events {
			e := &events[i]
			if e.Op == trace.Free {
				if err := a.Free(blocks[e.Slot]); err != nil {
					return err
				}
				continue
			}
			b, err := a.Alloc(request(e))
			if errors.Is(err, alloc.ErrNoMemory) {
				return errRefused
			}
			if err != nil {
				return err
			}
			blocks[e.Slot] = b
		}
		return nil
	})
	if errors.Is(err, errRefused) {
		return false, nil
	}
	return err == nil, err
}

// smallest is the smallest device by bisection, in bytes, a multiple of 1 MiB;
// nil if even 1 PiB is too small (the policy has a limit of its own).
func (r *runner) smallest(ctx context.Context) (*uint64, error) {
	const mib = 1 << 20
	lo, hi := uint64(0), max(r.cfg.Total/mib, 1) // in MiB; lo is refused
	for {
		ok, err := r.fits(ctx, hi*mib)
		if err != nil {
			return nil, err
		}
		if ok {
			break
		}
		lo = hi
		if hi *= 2; hi > 1<<30 {
			return nil, nil
		}
	}
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		ok, err := r.fits(ctx, mid*mib)
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

// digest is the fingerprint of all placements: FNV-1a over eight bytes for each
// allocation, low byte first, with the basis that the recorded results use
// (which is not the usual one).
type digest uint64

func newDigest() digest { return 1469598103934665603 }

func (d *digest) add(offset uint64) {
	h := uint64(*d)
	for range 8 {
		h = (h ^ offset&0xff) * 1099511628211
		offset >>= 8
	}
	*d = digest(h)
}

func (d digest) String() string { return fmt.Sprintf("%016x", uint64(d)) }

// notes keeps what an allocator says on the way: a few lines, each once.
type notes struct {
	refusals int // of the device
	lines    []string
	seen     map[string]bool
}

const maxNotes = 8

func newNotes() *notes { return &notes{seen: map[string]bool{}} }

func (n *notes) add(m alloc.Message) {
	if m.Severity == alloc.Error {
		n.refusals++
		return
	}
	if !n.seen[m.Text] && len(n.lines) < maxNotes {
		n.seen[m.Text] = true
		n.lines = append(n.lines, m.Text)
	}
}

func (n *notes) list() []string {
	if n.refusals == 0 {
		return n.lines
	}
	return append([]string{fmt.Sprintf("requests for a region that the device refused: %d", n.refusals)}, n.lines...)
}

// CheckPolicies says whether every policy can be opened on the device, so that
// a mistake is found before a long recording is read.
func CheckPolicies(cfg Config) error {
	for _, p := range cfg.Policies {
		dev, err := cfg.Device(cfg.Total)
		if err != nil {
			return err
		}
		a, err := gpumem.NewAllocator(dev, p, nil)
		if err != nil {
			return err
		}
		if err := a.Close(); err != nil {
			return err
		}
	}
	return nil
}
