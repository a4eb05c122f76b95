// Package compare explains the difference between two recordings of a program, such as
// one from before a change and one from after it: how far the peaks of live memory are
// apart, which stacks make up the difference, what is kept to the end, and what each
// policy holds for either.
//
// # One case
//
// Before the change a program has two blocks of 1 GiB from forward (model.py:10) at its
// peak. A line is added at the top of model.py and the batch is doubled, so that after it
// there are two blocks of 2 GiB from forward (model.py:11), and 1 GiB from a new function,
// mask (model.py:30). The peaks are 2 and 5 GiB, and the difference of 3 GiB has two rows:
//
//	+2 GiB  forward (model.py:11)  moved: the same stack but for its line numbers
//	+1 GiB  mask (model.py:30)     new: only the second recording has it
//
// The rows of a table always add up to the difference of the peaks, to the byte: what is
// beyond the limit of a table is summed in one last row.
//
// # Passes
//
// Each pool is read once (gather.go), in memory that goes with the blocks that are live
// at once and with the stacks, never with the events. Stacks are matched (match.go), and
// every place, which is a group of matched stacks or a size, becomes a row (rows.go). Then
// the policies run over both recordings (package replay), and the search for leaks
// (package leaks).
//
// Files: compare.go the configuration, the report and the pools that are compared,
// gather.go the pass over a pool, match.go stacks, rows.go tables of differences,
// summary.go the answer in sentences, text.go the report as text, page.go the page.
package compare

import (
	"context"
	"fmt"
	"math"
	"slices"

	"gpumem/internal/output"
	"gpumem/record/internal/stacks"
	"gpumem/record/leaks"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

// Config says what to compare.
type Config struct {
	// Replay has the policies, the device, and the pool: only pools of that name, ""
	// for all. A recording with one pool is compared as it is, whatever its name. Own
	// time is never measured.
	Replay replay.Config
	// KeepPaths leaves the directories of files in Where and Stack. Stacks are matched
	// without them in any case, because two versions of a program lie in two folders.
	KeepPaths bool
}

// A Report is the comparison of two recordings. Its JSON is that of gpumem replay with
// two recordings. Sizes are bytes, and requested ones where not said otherwise.
type Report struct {
	Before replay.TraceInfo `json:"before"`
	After  replay.TraceInfo `json:"after"`
	// SameFile reports whether both are one file.
	SameFile bool `json:"same_file,omitempty"`
	// Summary is the answer in sentences.
	Summary []string `json:"summary"`
	// Notes say how pools were matched where their names do not.
	Notes []string `json:"notes,omitempty"`
	// Pools has the pools with events, those of the first recording before those that
	// only the second has; never nil.
	Pools    []*poolReport `json:"pools"`
	Policies []policyRow   `json:"policies"`
	Leaks    leakReports   `json:"leaks"`
}

// A poolReport is the comparison of one pool. Before or After is nil if that recording does not
// have it.
type poolReport struct {
	Name           string `json:"pool"`
	Before         *side  `json:"before"`
	After          *side  `json:"after"`
	PeakDifference int64  `json:"peak_difference_bytes"`
	// Matched says how much of the live memory at the peaks was matched how.
	Matched []matchedBytes `json:"matched"`
	// AtPeak is what is live at the peaks. Its rows add up to PeakDifference.
	AtPeak diffTable `json:"at_peak"`
	// AtEnd is what differs in what is live at the end.
	AtEnd diffTable `json:"at_end"`
	// Allocs is what differs in the number of allocations over the run. It is empty if
	// either recording has no stacks and too many sizes to count, which Uncounted says.
	Allocs    diffTable `json:"allocations"`
	Uncounted bool      `json:"allocations_uncounted,omitempty"`
}

// A side is one recording's part of a pool. Events are counted from 1 within the pool,
// blocks older than the recording included, as in a replay; reports for people count
// without them.
type side struct {
	Pool        string  `json:"pool"` // the recording's name for it
	Events      uint64  `json:"events"`
	Seeds       uint64  `json:"seeds"`           // blocks older than the recording, which are its first events
	Allocs      uint64  `json:"allocs"`          // without the seeds
	Refused     uint64  `json:"refused"`         // when recorded
	Peak        uint64  `json:"peak_live_bytes"` // a refused request counts at its event
	PeakBlocks  uint64  `json:"peak_blocks"`
	PeakEvent   uint64  `json:"peak_event"`         // the first with that; 0 if no memory is ever live
	PeakTime    *uint64 `json:"peak_time_ns"`       // since the first event; null if the recording has no times
	PeakRefused uint64  `json:"peak_refused_bytes"` // of the peak, the request that was refused there
	End         uint64  `json:"end_live_bytes"`     // after the last event
	EndBlocks   uint64  `json:"end_blocks"`
	Stacks      bool    `json:"stacks"` // some blocks have a stack
	curve       curve   // of the live memory
}

// number returns an event as people count them, 0 for a block older than the recording.
func (s *side) number(event uint64) uint64 { return event - min(s.Seeds, event) }

// recorded returns the number of events that were recorded.
func (s *side) recorded() uint64 { return s.Events - s.Seeds }

// policyRow has the results of one policy on one pool, side by side. Before or After is nil
// if that recording does not have the pool.
type policyRow struct {
	Policy string         `json:"policy"`
	Pool   string         `json:"pool"`
	Before *replay.Result `json:"before"`
	After  *replay.Result `json:"after"`
}

// leakReports has what keeps growing in each recording.
type leakReports struct {
	Before *leaks.Report `json:"before"`
	After  *leaks.Report `json:"after"`
}

// maxPeak is the largest peak that can be compared, so that differences are exact in 64
// bits. More is a wrong length in the recording.
const maxPeak = math.MaxInt64

// Run compares two recordings. The end of ctx stops it between batches of events. Errors
// are those of [replay.Run], a pool that neither recording has, and a peak of 8 EiB or
// more.
func Run(ctx context.Context, before, after *trace.Trace, cfg Config) (*Report, error) {
	pairs, notes, err := pairPools(before, after, cfg.Replay.Pool)
	if err != nil {
		return nil, err
	}
	rep := &Report{
		Before: replay.Describe(before), After: replay.Describe(after), Notes: notes, Pools: []*poolReport{}, Policies: []policyRow{},
		SameFile: output.Same(before.Source, after.Source) && before.Source != "stdin",
	}
	c := &comparer{ctx: ctx, cfg: cfg, sides: [2]*recording{newRecording(before, cfg.KeepPaths), newRecording(after, cfg.KeepPaths)}}
	for _, pair := range pairs {
		p, err := c.pool(pair)
		if err != nil {
			return nil, err
		}
		rep.Pools = append(rep.Pools, p)
	}
	if err := c.replay(rep, pairs); err != nil {
		return nil, err
	}
	rep.Summary = summary(rep)
	return rep, nil
}

// Fits reports whether every policy serves the whole second recording.
func (rep *Report) Fits() bool {
	return !slices.ContainsFunc(rep.Policies, func(p policyRow) bool { return p.After != nil && !p.After.Fits })
}

// A pair is a pool in both recordings; nil where one does not have it.
type pair [2]*trace.Pool

func (p pair) name() string {
	if p[1] != nil {
		return p[1].Name
	}
	return p[0].Name
}

// pairPools matches the pools of two recordings that have events: by name, and whatever
// the names if each recording has one.
func pairPools(before, after *trace.Trace, name string) (pairs []pair, notes []string, err error) {
	var pools [2][]*trace.Pool
	var missing [2]error
	for i, t := range []*trace.Trace{before, after} {
		pools[i], missing[i] = t.Choose(name)
		if missing[i] != nil && len(t.Pools) == 1 {
			pools[i] = t.Pools
		}
	}
	for i := range missing {
		if missing[i] != nil && (pools[i] == nil || missing[1-i] != nil) {
			return nil, nil, missing[i]
		}
	}
	for i, t := range []*trace.Trace{before, after} {
		for _, p := range pools[i] {
			if p.PeakLive > maxPeak {
				return nil, nil, fmt.Errorf("%s: more than 8 EiB are live at the peak; sizes of the recording are wrong, and a difference says nothing", t.Source)
			}
		}
		pools[i] = slices.DeleteFunc(slices.Clone(pools[i]), func(p *trace.Pool) bool { return p.Events == 0 })
	}
	if len(pools[0]) == 1 && len(pools[1]) == 1 {
		a, b := pools[0][0], pools[1][0]
		if a.Name != b.Name {
			notes = append(notes, fmt.Sprintf("%s before is compared with %s after: each recording has one pool", poolName(a), poolName(b)))
		}
		return []pair{{a, b}}, notes, nil
	}
	for _, p := range pools[0] {
		k := slices.IndexFunc(pools[1], func(q *trace.Pool) bool { return q.Name == p.Name })
		if k < 0 {
			pairs = append(pairs, pair{p, nil})
			continue
		}
		pairs = append(pairs, pair{p, pools[1][k]})
		pools[1] = slices.Delete(pools[1], k, k+1)
	}
	for _, p := range pools[1] {
		pairs = append(pairs, pair{nil, p})
	}
	return pairs, nil, nil
}

func poolName(p *trace.Pool) string {
	if p.Name == "" {
		return "the pool without a name"
	}
	return "pool " + p.Name
}

// A comparer holds what all pools share.
type comparer struct {
	ctx   context.Context
	cfg   Config
	sides [2]*recording
}

// sideNames are the recordings' names in the progress report.
var sideNames = [2]string{"before", "after"}

// pool compares one pool.
func (c *comparer) pool(pr pair) (*poolReport, error) {
	var got [2]*gathered
	gather := func(bySize bool) error {
		for i, p := range pr {
			var err error
			if got[i], err = c.sides[i].gather(c.ctx, p, bySize, c.cfg.Replay.Step("comparing, "+sideNames[i])); err != nil {
				return err
			}
		}
		return nil
	}
	if err := gather(false); err != nil {
		return nil, err
	}
	a, b := got[0], got[1]
	if a.side != nil && b.side != nil && a.side.Stacks != b.side.Stacks {
		// Stacks of one have nothing to be matched with.
		if err := gather(true); err != nil {
			return nil, err
		}
		got[0].side.Stacks, got[1].side.Stacks = a.side.Stacks, b.side.Stacks
	}
	out := &poolReport{Name: pr.name(), Before: got[0].side, After: got[1].side}
	if out.Before != nil {
		out.PeakDifference -= int64(out.Before.Peak)
	}
	if out.After != nil {
		out.PeakDifference += int64(out.After.Peak)
	}
	c.tables(out, got)
	return out, nil
}

// replay runs the policies and the search for leaks over both recordings.
func (c *comparer) replay(rep *Report, pairs []pair) error {
	results := map[*trace.Pool][]*replay.Result{}
	found := []**leaks.Report{&rep.Leaks.Before, &rep.Leaks.After}
	for i, s := range c.sides {
		name := c.cfg.Replay.Pool
		k := slices.IndexFunc(pairs, func(p pair) bool { return p[i] != nil })
		if k < 0 { // nothing happens in the pool that was chosen
			*found[i] = &leaks.Report{Verdict: leaks.TooShort, Leaks: []leaks.Place{}, Grew: []leaks.Place{}}
			continue
		}
		if name != "" {
			name = pairs[k][i].Name // a recording with one pool may call it otherwise
		}
		pools, err := s.trace.Choose(name)
		if err != nil {
			return err
		}
		cfg := c.cfg.Replay
		cfg.Untimed, cfg.Pool = true, name
		if f := c.cfg.Replay.Progress; f != nil {
			cfg.Progress = func(p replay.Progress) {
				p.Doing = sideNames[i] + ": " + p.Doing
				f(p)
			}
		}
		got, err := replay.Run(c.ctx, s.trace, cfg)
		if err != nil {
			return err
		}
		for k, res := range got.Results {
			if res.Failure != nil && !c.cfg.KeepPaths {
				res.Failure.Stack = stacks.WithoutPaths(res.Failure.Stack)
			}
			pool := pools[k%len(pools)]
			results[pool] = append(results[pool], res)
		}
		*found[i], err = leaks.Find(c.ctx, s.trace, leaks.Config{
			Pool: name, KeepPaths: c.cfg.KeepPaths, Progress: c.cfg.Replay.Step("searching for leaks, " + sideNames[i]),
		})
		if err != nil {
			return err
		}
	}
	for k, pol := range c.cfg.Replay.Policies {
		for _, pr := range pairs {
			one := policyRow{Policy: pol.Spec, Pool: pr.name()}
			for i, to := range []**replay.Result{&one.Before, &one.After} {
				if pr[i] != nil {
					*to = results[pr[i]][k]
				}
			}
			rep.Policies = append(rep.Policies, one)
		}
	}
	return nil
}
