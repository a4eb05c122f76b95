// Package leaks finds what a recorded program keeps more and more of: growth by
// the place that allocates, over the steps of the run.
//
// # How it finds
//
// A leak is memory that is allocated again and again all through the run and is
// never freed. So two things are looked at for each place, which is a stack
// where the recording has stacks, and a requested size where it has none:
//
//  1. its survivors, the blocks that live at the end, by when they were
//     allocated. Those of a leak come from the whole middle of the run, evenly.
//     What a warm-up keeps comes from the beginning, what a step holds while it
//     runs comes from the end, and a cache stops when it is full.
//  2. the least that lives of it in each part of the run. It grows as the
//     survivors say. That of a cache which drops at random what it has does
//     not, though its survivors are of all ages.
//
// The middle is from a quarter to nine tenths of the run, in events. If nothing
// is found, the same is tried with coarser places: the innermost line of the
// program's own files, or a size to the power of two below it.
//
// The number of steps is told from how often each place allocates: most counts
// are multiples of it.
//
// # What it cannot know
//
// A program that keeps something for each layer of a model, in one step, and a
// loop that keeps something in each step allocate alike. Where much of what is
// allocated is kept at several places, the answer is [Growth] and not [Leak].
//
// Files: leaks.go what goes in and comes out, gather.go the two passes over the
// recording, judge.go what is a leak, describe.go how it is reported, steps.go
// the count of steps, site.go stacks in words.
package leaks

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"gpumem/trace"
)

// A Verdict is the answer in a word.
type Verdict string

// The verdicts, from the gravest.
const (
	// Leak: at least one place keeps memory in step after step.
	Leak Verdict = "leak"
	// Growth: memory grows all through the recording, but it may be one step
	// that holds what it needs, or no place can be named.
	Growth Verdict = "growth"
	// None: nothing grows.
	None Verdict = "none"
	// TooShort: nothing grows, and too little repeats to be sure.
	TooShort Verdict = "too_short"
)

// Config says what to look at.
type Config struct {
	Pool      string // only the recording's pool of this name; "" means all
	KeepPaths bool   // leave the directories of files in Site and Stack
	// Progress, if set, is told how far a pool is, from 0 to 1, now and then.
	Progress func(part float64)
}

// Report is what was found. Sizes are bytes of requests; events are counted
// from 1 within their pool, as in a replay.
type Report struct {
	// Steps is about how many steps the recording has; nil if that cannot be
	// told. With several pools it is of the one with the most events.
	Steps   *uint64 `json:"steps"`
	Verdict Verdict `json:"verdict"`
	// Leaks has the places that grow to the end, the fastest first; never nil.
	Leaks []Place `json:"leaks"`
	// Grew has those that grew into the middle of the run and stopped, the
	// largest first; never nil. They are no leaks.
	Grew []Place `json:"grew"`
	// KeptPart is the part, from 0 to 1, of all allocations in the middle of the
	// run that Leaks keep. Near 1 the recording may be one step.
	KeptPart float64 `json:"kept_part"`
	// Unnamed is how much live memory grew from a quarter to nine tenths of the
	// run beyond what Leaks explain, if it grew steadily; else 0.
	Unnamed uint64 `json:"unnamed_growth_bytes"`
}

// Place is where memory is kept.
type Place struct {
	// Site is the innermost frame of the program's own files, "requests of
	// 1 MiB" in a recording without stacks.
	Site string `json:"site"`
	// Stack is the whole stack that keeps the most, a frame a line, the
	// innermost first; "" in a recording without stacks.
	Stack string `json:"stack"`
	// BytesPerStep is nil if the steps cannot be told.
	BytesPerStep *uint64 `json:"bytes_per_step"`
	// Bytes and Blocks are what is kept at the end, as far as it grew evenly.
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"`
	// FirstEvent and GrowsToEvent are the first and the last of them.
	FirstEvent   uint64 `json:"first_event"`
	GrowsToEvent uint64 `json:"grows_to_event"`
	// Regrows: a block is replaced by a larger one again and again; Blocks and
	// the events are those of the last.
	Regrows bool   `json:"regrows,omitempty"`
	Pool    string `json:"pool,omitempty"`

	rate float64 // bytes an event
}

// Find looks for leaks in t. ctx stops it between batches of events; then the
// error is the context's. Other errors: a pool that t does not have; a trace
// whose temporary file is gone, as after its Close.
func Find(ctx context.Context, t *trace.Trace, cfg Config) (*Report, error) {
	rep := &Report{Verdict: TooShort, Leaks: []Place{}, Grew: []Place{}}
	pools, err := t.Choose(cfg.Pool)
	if err != nil {
		return nil, err
	}
	most, found := uint64(0), false
	for _, p := range pools {
		one, err := find(ctx, recording{
			seeds: p.Seeds, slots: p.Slots, sites: t.Sites(), site: t.Site,
			events: func(f func([]trace.Event)) error {
				return p.Batches(ctx, cfg.Progress, func(events []trace.Event) error { f(events); return nil })
			},
		}, cfg.KeepPaths)
		if err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, fmt.Errorf("%s: %w", t.Source, err)
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
		rep.Unnamed = max(rep.Unnamed, one.Unnamed)
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

var gravest = []Verdict{Leak, Growth, None, TooShort}

func sortPlaces(rep *Report) {
	slices.SortStableFunc(rep.Leaks, func(a, b Place) int { return cmp.Compare(b.rate, a.rate) })
	slices.SortStableFunc(rep.Grew, func(a, b Place) int { return cmp.Compare(b.Bytes, a.Bytes) })
}

// recording is what is looked at: the events of one pool, as often as needed.
type recording struct {
	seeds  uint64 // events at the front that stand for blocks older than the recording
	slots  uint32
	sites  uint32
	site   func(uint32) string
	events func(func([]trace.Event)) error
}

// find looks at one pool: with exact places first, and with coarse ones if that
// tells nothing.
func find(ctx context.Context, r recording, keepPaths bool) (*Report, error) {
	names := newNames(r.site, r.sites, keepPaths)
	var first *Report
	for _, coarse := range []bool{false, true} {
		g, err := gather(r, names, coarse)
		if err != nil {
			return nil, err
		}
		rep := judge(g, names)
		sortPlaces(rep)
		switch {
		case len(rep.Leaks) > 0:
			if first != nil { // the finer places tell the steps better
				rep.Grew = first.Grew
			}
			return rep, nil
		case coarse:
			return first, nil
		}
		first = rep
	}
	return first, ctx.Err()
}
