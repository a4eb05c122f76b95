// Package replay runs a recorded program's allocations through a policy on a
// device, and reports the memory that they need and the requests that are refused.
//
// # Passes
//
// The recording is read once (package trace) into events whose ids are slot
// numbers. Each policy then gets passes over it, each on a new device:
//
//  1. one with hooks, which gathers the figures of the result: the memory held, the
//     driver calls, the placements, what was refused and why;
//  2. up to three without hooks, for the time: the clock is read once a batch of
//     events, never once an event, and the best pass counts. It is the CPU time of
//     the pass's thread on a simulated device, and real time on another;
//  3. with Smallest, some more on smaller and larger devices, which end at the
//     first refusal.
//
// Policies run one after the other, or several at once with Config.Workers; the passes of
// one do not overlap. All passes are one loop (loop.go). A caller can add hooks to the first with
// Config.Hooks, as package timeline does for the page of a replay.
//
// # One case
//
// A program allocates two blocks of 300 MiB, frees the first and allocates 400 MiB, on a
// device of 1 GiB. JAX's default takes a pool of 768 MiB at the start, so HeldPeak is that.
// The two blocks lie at its start, one behind the other. When the first is free the pool
// has 468 MiB, in one piece of 300 and one of 168, and the request of 400 is refused:
// Refused is 1, FirstRefused 4, and the Failure has the largest free chunk of 300 MiB. The
// policy platform, which has no pool, serves all, and holds 700 MiB at most.
//
// # Refusals
//
// A refusal does not stop a replay: the request is tried once, its block is
// missing, and its free does nothing. A request that the recorded program was
// refused is tried as any other. If it is served its block is freed at once, because
// it is unknown for how long the program would have kept it.
//
// Files: replay.go the configuration and the report, loop.go the event loop and its
// hooks, measure.go the passes and the figures, smallest.go the search for a device,
// parallel.go policies at once and the progress, places.go the comparison of placements, notes.go and digest.go parts of a result.
package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/device"
	"gpumem/policy"
	"gpumem/record/internal/kineto"
	"gpumem/record/internal/parallel"
	"gpumem/record/internal/torch"
	"gpumem/record/trace"
)

// Config says what to run, and on which device.
type Config struct {
	Policies []policy.Policy // at least one
	// Device opens the device with a total of that many bytes; required. It is
	// called for every pass, which closes it at its end.
	Device func(total uint64) (device.GPU, error)
	Total  uint64 // of the device, in bytes
	Pool   string // only the recording's pool of this name; "" means all
	// Smallest also searches for the smallest device.
	Smallest bool
	// At is an event, counted from 1 without the pool's seeds, after which PyTorch's allocator
	// is looked at for Result.At; 0 is none.
	At uint64
	// Untimed leaves the timed passes out: Result.Seconds stays 0.
	Untimed bool
	// MaxTimed leaves them out for pools of more events; 0 means no limit.
	MaxTimed uint64
	// Hooks are called for each result in turn, when its allocator is open, and
	// return a hook that observes its events. Timed passes and those of the search
	// for a device have none.
	Hooks []func(*Pass) Hook
	// Workers is how many policies run at once, each on one thread; 0 means 1. More than
	// one needs devices that know nothing of each other, and with Hooks there is one.
	// The results are the same, but for Result.Seconds: policies at once share caches.
	Workers int
	// Progress, if set, is called a few times a second at most for each policy that
	// runs, never twice at once.
	Progress func(Progress)
}

// Report has the results. Its JSON is that of gpumem replay.
type Report struct {
	Trace   TraceInfo `json:"trace"`
	Results []*Result `json:"results"`
}

// TraceInfo describes the recording.
type TraceInfo struct {
	Events    uint64   `json:"events"`                        // allocations and frees that were recorded
	Allocs    uint64   `json:"allocs"`                        // allocations among them
	Seeds     uint64   `json:"seeds,omitempty"`               // allocations before the first event, for blocks older than the recording
	Refused   uint64   `json:"refused"`                       // allocations that the recorded program was refused
	Placed    uint64   `json:"placements_recorded,omitempty"` // allocations whose address the recording has
	PeakLive  uint64   `json:"peak_live_bytes"`               // most requested bytes live at once, refused ones included
	Source    string   `json:"source"`                        // the file
	Format    string   `json:"format"`
	Notes     []string `json:"notes,omitempty"` // remarks of the reader
	PoolNames []string `json:"pools,omitempty"` // if there are several
	// AtPeak is what the memory is for at the peaks of pools, the highest first, see AddPeaks.
	AtPeak []*Peak `json:"at_peak,omitempty"`
	// Settings are those of the recorded program's allocator, if the recording has them.
	Settings string `json:"settings,omitempty"`
	// Waiting is the most that was freed and waited for a stream, of pools where something did.
	Waiting []*Waiting `json:"waiting,omitempty"`
}

// Result is the outcome of one policy on one pool of the recording. Sizes are bytes.
type Result struct {
	Policy       string  `json:"policy"`
	Pool         string  `json:"pool"`
	DeviceBytes  uint64  `json:"device_bytes"`
	Fits         bool    `json:"fits"`                // nothing was refused
	Refused      uint64  `json:"refused"`             // allocations refused
	FirstRefused *uint64 `json:"first_refused_event"` // counted from 1, the pool's seeds included; null if none

	HeldPeak   uint64  `json:"held_peak_bytes"`    // most device memory held at once
	HeldMean   float64 `json:"held_mean_bytes"`    // mean over events; whole bytes in JSON
	HeldIdle   uint64  `json:"held_idle_bytes"`    // after the last event and a trim
	LowerBound uint64  `json:"lower_bound_bytes"`  // what any allocator must hold at the peak, on pages of 2 MiB
	LateAllocs uint64  `json:"late_driver_allocs"` // allocations past the first Events/100 events that called the driver, refused ones included

	// Placed is the number of allocations with an address in the recording, and
	// AsRecorded the number of those at the same offset of the same region here.
	// Both are nil if there is nothing to compare: the recording has no addresses,
	// or the driver places the policy's blocks.
	Placed     *uint64 `json:"placements_recorded,omitempty"`
	AsRecorded *uint64 `json:"placements_matched,omitempty"`

	Stats         alloc.Stats `json:"stats"` // after the last event
	Fragmentation float64     `json:"fragmentation"`
	Digest        string      `json:"placement_fnv1a64"` // of all placements, as offsets from the first address that the device gave

	// ReservedPeak and Segments are of PyTorch's allocator, nil of others: the most bytes
	// in its segments, and the segments that it took from the driver.
	ReservedPeak *uint64 `json:"reserved_peak_bytes,omitempty"`
	// AllocatedPeak and ActivePeak are of it, too: the most in blocks, as it rounds them,
	// without and with those that are freed and wait for a stream.
	AllocatedPeak *uint64  `json:"allocated_peak_bytes,omitempty"`
	ActivePeak    *uint64  `json:"active_peak_bytes,omitempty"`
	At            *Instant `json:"at,omitempty"` // with Config.At
	Segments      *uint64  `json:"segments_made,omitempty"`

	DriverCalls   uint64  `json:"driver_calls"`
	DriverSeconds float64 `json:"driver_seconds"` // modelled
	// Seconds is the time inside the allocator, best pass: on a simulated device the CPU
	// time of its thread where that can be read (Linux), else real time.
	Seconds float64 `json:"seconds"`

	// Smallest is set with Config.Smallest: nothing is refused on a device of that
	// many bytes (a multiple of 1 MiB), something is on one of 1 MiB less. It is nil
	// if something is refused on every device, however large. JSON has it only with
	// Config.Smallest, null for nil.
	Smallest *uint64 `json:"smallest_device_bytes,omitempty"`

	Failure *Failure `json:"first_refused,omitempty"` // the first refusal
	Notes   []string `json:"notes,omitempty"`         // messages of the policy during the run, such as a back-off

	// Seeds are the pool's blocks that are older than the recording. Reports for people
	// count events without them.
	Seeds    uint64 `json:"seeds,omitempty"`
	Events   uint64 `json:"-"` // of the pool, its seeds included
	searched bool   // for Smallest
}

// MarshalJSON writes sizes as integers, and Smallest as null only if it was searched
// for and not found.
func (r *Result) MarshalJSON() ([]byte, error) {
	type fields Result // without this method
	out := struct {
		*fields
		// These hide the fields of the same name above.
		HeldMean uint64 `json:"held_mean_bytes"`
		Smallest any    `json:"smallest_device_bytes,omitempty"`
	}{fields: (*fields)(r), HeldMean: uint64(math.Round(r.HeldMean))}
	if r.searched {
		out.Smallest = r.Smallest
	}
	// The caller's encoder decides whether < is escaped.
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(out)
	return b.Bytes(), err
}

// OwnTime returns Seconds per event as text, "47 ns/event", or "-" if it was not
// measured.
func (r *Result) OwnTime() string {
	if r.Seconds == 0 && r.Events > 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f ns/event", r.EventNanos())
}

// EventNanos returns Seconds per event, in nanoseconds.
func (r *Result) EventNanos() float64 {
	if r.Events == 0 {
		return 0
	}
	return r.Seconds * 1e9 / float64(r.Events)
}

// Failure is the first refusal: the request, its stack, and the cause.
type Failure struct {
	Event uint64 `json:"event"` // counted from 1, the pool's seeds included
	Bytes uint64 `json:"bytes"`
	Hole  uint64 `json:"largest_hole_bytes"`
	Stack string `json:"stack,omitempty"` // if the recording has it
	Line  string `json:"line,omitempty"`  // the innermost frame of the program's own files
	// Recorded reports whether the recorded program was refused this request, too.
	Recorded bool        `json:"refused_when_recorded,omitempty"`
	Cause    alloc.Cause `json:"-"`
	Why      string      `json:"why"` // the cause as text
}

// Number returns the event as people count them: the first recorded one is 1, and 0 a block
// that is older than the recording.
func (r *Result) Number(event uint64) uint64 { return event - min(r.Seeds, event) }

// Run replays t under every policy, on every pool. Results are in the order of
// the policies, and for each in the order of the pools. The end of ctx stops it between
// batches of events; the error is then ctx.Err().
//
// Other errors are a Config without a policy or a device, or with a pool that t does not
// have; an unknown policy ([build.ErrNoPolicy]); a device that fails for a reason other
// than a lack of memory; and a trace whose temporary file is gone, as after its Close.
func Run(ctx context.Context, t *trace.Trace, cfg Config) (*Report, error) {
	if len(cfg.Policies) == 0 {
		return nil, errors.New("replay: no policy")
	}
	if cfg.Device == nil {
		return nil, errors.New("replay: no device")
	}
	rep := &Report{Trace: Describe(t)}
	pools, err := t.Choose(cfg.Pool)
	if err != nil {
		return nil, err
	}
	if err := checkAt(&cfg, t, pools); err != nil {
		return nil, err
	}
	for _, pool := range pools {
		w, err := waiting(ctx, t, pool)
		if err != nil {
			return nil, t.Failed(ctx, err)
		}
		if w != nil {
			rep.Trace.Waiting = append(rep.Trace.Waiting, w)
		}
	}
	var jobs []*runner
	total := uint64(0)
	for _, pol := range cfg.Policies {
		for _, pool := range pools {
			r := &runner{cfg: &cfg, trace: t, pool: pool, policy: pol, job: len(jobs)}
			jobs = append(jobs, r)
			total += pool.Events
			if r.isTimed() {
				total += pool.Events
			}
		}
	}
	if cfg.Smallest {
		total = 0
	}
	if len(cfg.Hooks) > 0 {
		cfg.Workers = 1
	}
	meter := newMeter(cfg.Progress, len(jobs), total)
	rep.Results = make([]*Result, len(jobs))
	err = parallel.Run(ctx, len(jobs), cfg.Workers, func(ctx context.Context, i int) (err error) {
		defer meter.begin(i, running{})
		jobs[i].meter = meter
		if rep.Results[i], err = jobs[i].run(ctx); err != nil {
			return fmt.Errorf("%s: policy %s: %w", t.Source, jobs[i].policy.Spec, err)
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return rep, nil
}

// Describe returns what a report has about the recording itself.
func Describe(t *trace.Trace) TraceInfo {
	info := TraceInfo{
		Events: t.Events - t.Seeds, Allocs: t.Allocs - t.Seeds, Seeds: t.Seeds, Refused: t.Refused, PeakLive: t.PeakLive, Source: t.Source, Format: t.Format, Notes: t.Notes,
		Settings: t.Settings,
	}
	for _, p := range t.Pools {
		info.Placed += p.Placed
		if len(t.Pools) > 1 {
			info.PoolNames = append(info.PoolNames, p.Name)
		}
	}
	return info
}

// DefaultPolicies returns the policies of a replay that names none: JAX's default, the
// one that its documentation describes ahead of the releases, its usual remedies, and those that use the driver's pool or map pages if the device can.
func DefaultPolicies(info device.Info) []string {
	list := []string{"jax"}
	if info.HasPages {
		list = append(list, "jax@next")
	}
	list = append(list, "jax:preallocate=false", "platform")
	if info.HasPools {
		list = append(list, "async")
	}
	if info.HasPages {
		list = append(list, "vmm", "elastic")
	}
	return list
}

// FrameworkPolicies returns the policies that a replay which names none runs besides those
// of DefaultPolicies: that of the framework which was recorded, if it is known.
func FrameworkPolicies(t *trace.Trace) []string {
	if !isOfPyTorch(t) {
		return nil
	}
	if p, ok := AsRecorded(t, ""); ok {
		return []string{p.Spec}
	}
	return []string{torchPolicy}
}

// torchPolicy is the name of PyTorch's policy.
const torchPolicy = "pytorch"

// isOfPyTorch reports whether a recording is of PyTorch's own recorders.
func isOfPyTorch(t *trace.Trace) bool {
	return t.Format == torch.Format.Name || t.Format == kineto.Format.Name || t.Format == kineto.Timeline.Name
}

// CheckPolicies returns an error unless every policy can be opened on the device, so
// that a mistake is found before a long recording is read.
func CheckPolicies(cfg Config) error {
	for _, p := range cfg.Policies {
		dev, err := cfg.Device(cfg.Total)
		if err != nil {
			return err
		}
		a, err := build.New(dev, p, build.Options{})
		if err == nil {
			err = a.Close()
		}
		if err := errors.Join(err, dev.Close()); err != nil {
			return err
		}
	}
	return nil
}
