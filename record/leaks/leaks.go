// Package leaks finds memory leaks in a recorded program: allocation sites whose
// memory grows with every step.
//
// # Method
//
// A leak is memory that is allocated again and again all through the run and is
// never freed. A place is a stack if the recording has stacks, else a requested size.
// Two things are examined for each place:
//
//  1. its survivors, the blocks that live at the end, by the event that allocated
//     them. Those of a leak come evenly from the whole middle of the run. Survivors
//     of a warm-up come from the beginning, those of a step that is running come
//     from the end, and those of a cache stop when it is full.
//  2. the least live memory of the place in each part of the run. It grows as the
//     survivors do. That of a cache with random eviction does not, though its
//     survivors are of all ages.
//
// The middle is from a quarter to nine tenths of the run, in events. If nothing
// is found, the same is tried with coarser places: the innermost line of the
// program's own files, or a size rounded down to a power of two.
//
// # One case
//
// A loop of 60 steps has three allocations in each: a batch that is freed, a mask that is
// kept by mistake, and a loss, of which the last ten are kept. With the frees that is a run
// of about 300 events; the middle is from event 75 to 270.
//
//   - The batch has no survivors.
//   - The loss has ten, all from the last 50 events. Most of the middle has none, so they
//     are what a step in progress or a ring holds.
//   - The mask has 60, and about 39 of them from the middle, one in every five events. The
//     least live memory of its place rises from each part of the middle to the next, by as
//     much as these survivors have. So it leaks.
//
// Each of the three allocates 60 times, so there are 60 steps, and the mask keeps its size
// in each.
//
// The number of steps is derived from how often each place allocates: most counts
// are multiples of it.
//
// # Limits
//
// A program that keeps something for each layer of a model, in one step, and a
// loop that keeps something in each step allocate alike. If much of what is
// allocated is kept at several places, the answer is [Growth] and not [Leak].
//
// Files: leaks.go the configuration and the report, curves.go the two passes over the
// recording, trend.go the decision, describe.go how a place is reported, steps.go the
// number of steps, passes.go the steps that stacks show, names.go the names of places,
// live.go what is live at the end, peak.go at the peak.
package leaks

import (
	"cmp"
	"context"
	"slices"

	"gpumem/record/internal/category"
	"gpumem/record/trace"
)

// A verdict is the outcome of a search.
type verdict string

// The verdicts, the gravest first.
const (
	// Leak: at least one place keeps memory in step after step.
	Leak verdict = "leak"
	// Growth: memory grows all through the recording, but it may be one step
	// that holds what it needs, or no place can be named.
	Growth verdict = "growth"
	// None: nothing grows.
	None verdict = "none"
	// TooShort: nothing grows, and too little repeats to be sure.
	TooShort verdict = "too_short"
)

// Config says what to search.
type Config struct {
	Pool      string // only the recording's pool of this name; "" means all
	KeepPaths bool   // leave the directories of files in Site and Stack
	// Progress, if set, is called a few times a second at most with how far a pass over
	// a pool is, from 0 to 1.
	Progress func(part float64)
}

// Report is the outcome of a search. Sizes are requested bytes. Events are counted
// from 1 within their pool, as in a replay.
type Report struct {
	// Steps is about the number of steps in the recording, nil if it is unknown.
	// With several pools it is that of the one with the most events.
	Steps   *uint64 `json:"steps"`
	Verdict verdict `json:"verdict"`
	// Leaks has the places that grow to the end, the fastest first; never nil.
	Leaks []Place `json:"leaks"`
	// Grew has the places that grew into the middle of the run and stopped, the
	// largest first; never nil. They are no leaks.
	Grew []Place `json:"grew"`
	// KeptPart is the part, from 0 to 1, of all allocations in the middle of the
	// run that Leaks keep. Near 1 the recording may be one step.
	KeptPart float64 `json:"kept_part"`
	// Unnamed is the growth of live memory from a quarter to nine tenths of the run,
	// in bytes, beyond that of Leaks. It is 0 if memory did not grow steadily.
	Unnamed uint64 `json:"unnamed_growth_bytes"`
	// Repeats reports, where there is such growth, that most of what is allocated in that part comes
	// from places that allocate all through it: it is of many steps.
	Repeats bool `json:"-"`
}

// Place is an allocation site, or a requested size, whose memory is kept.
type Place struct {
	// Site is the innermost frame of the program's own files, "requests of
	// 1 MiB" in a recording without stacks.
	Site string `json:"site"`
	// Stack is the whole stack that keeps the most, a frame a line, the
	// innermost first; "" in a recording without stacks.
	Stack string `json:"stack"`
	// BytesPerStep is nil if the number of steps is unknown.
	BytesPerStep *uint64 `json:"bytes_per_step"`
	// Bytes and Blocks are what is kept at the end, as far as it grew evenly.
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"`
	// FirstEvent and GrowsToEvent are the events that allocated the first and the last
	// of these blocks.
	FirstEvent   uint64 `json:"first_event"`
	GrowsToEvent uint64 `json:"grows_to_event"`
	// Regrows reports whether a block is replaced by a larger one again and again;
	// Blocks and the events are then those of the last.
	Regrows bool   `json:"regrows,omitempty"`
	Pool    string `json:"pool,omitempty"`
	// Keeper is the container of the program that keeps more than half of what grew evenly, nil
	// if there is none or if the recording does not have it.
	Keeper *trace.Keeper `json:"keeper,omitempty"`

	rate    float64                 // bytes an event
	even    uint64                  // bytes that grew evenly
	keepers map[trace.Keeper]uint64 // how many of these each keeps
}

// Find searches for leaks in t. The end of ctx stops it between batches of events; the
// error is then ctx.Err(). Other errors are a pool that t does not have, and a trace
// whose temporary file is gone, as after its Close. Several searches of one trace may
// run at once.
func Find(ctx context.Context, t *trace.Trace, cfg Config) (*Report, error) {
	rep := &Report{Verdict: TooShort, Leaks: []Place{}, Grew: []Place{}}
	pools, err := t.Choose(cfg.Pool)
	if err != nil {
		return nil, err
	}
	most, found := uint64(0), false
	for _, p := range pools {
		one, err := find(ctx, t, p, cfg)
		if err != nil {
			return nil, t.Failed(ctx, err)
		}
		if len(t.Pools) > 1 {
			for _, list := range [][]Place{one.Leaks, one.Grew} {
				for i := range list {
					list[i].Pool = p.Name
				}
			}
		}
		rep.Leaks = append(rep.Leaks, one.Leaks...)
		rep.Grew = append(rep.Grew, one.Grew...)
		rep.KeptPart = max(rep.KeptPart, one.KeptPart)
		rep.Unnamed, rep.Repeats = max(rep.Unnamed, one.Unnamed), rep.Repeats || one.Repeats
		if !found || p.Events > most {
			most, rep.Steps = p.Events, one.Steps
		}
		if !found || slices.Index(gravest, one.Verdict) < slices.Index(gravest, rep.Verdict) {
			rep.Verdict = one.Verdict
		}
		found = true
	}
	sortPlaces(rep)
	return rep, nil
}

// UnnamedPart is the part of a recording's events in which memory grew by Report.Unnamed: from the first part of the
// middle to the last.
const UnnamedPart = (9.0/10 - 1.0/4) * (parts - 1) / parts

var gravest = []verdict{Leak, Growth, None, TooShort}

func sortPlaces(rep *Report) {
	slices.SortStableFunc(rep.Leaks, func(a, b Place) int { return cmp.Compare(b.rate, a.rate) })
	slices.SortStableFunc(rep.Grew, func(a, b Place) int { return cmp.Compare(b.Bytes, a.Bytes) })
}

// find searches one pool: with exact places first, and with coarse ones if nothing is
// found.
func find(ctx context.Context, t *trace.Trace, pool *trace.Pool, cfg Config) (*Report, error) {
	names := newNames(t.FullSite, t.Sites(), cfg.KeepPaths)
	r, err := category.Read(ctx, t, pool)
	if err != nil {
		return nil, err
	}
	steps := stepsOf(r)
	exact, err := search(ctx, t, pool, cfg, names, steps, false)
	if err != nil || len(exact.Leaks) > 0 {
		return exact, err
	}
	coarse, err := search(ctx, t, pool, cfg, names, steps, true)
	if err != nil || len(coarse.Leaks) == 0 {
		return exact, err
	}
	coarse.Grew = exact.Grew // exact places show better what stopped
	return coarse, nil
}

// search searches one pool once.
func search(ctx context.Context, t *trace.Trace, pool *trace.Pool, cfg Config, names *names, steps *steps, coarse bool) (*Report, error) {
	g, err := gather(ctx, t, pool, cfg.Progress, names, coarse)
	if err != nil {
		return nil, err
	}
	rep := judge(g, names, steps)
	sortPlaces(rep)
	return rep, nil
}
