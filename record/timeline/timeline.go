// Package timeline collects what the page of a replay shows while the replay runs: what
// lives, in bands; the curves of used and held memory; the pool's map and its largest
// blocks at some hundred events; the refusals, and a summary in words. The page's types,
// and the functions that write and draw it, are those of package report.
//
// # One page
//
// Two passes over the recording, without an allocator, find the peak, the buckets of the
// curves, the events at which the pool is visited, and what weighs most (newOutline). Then
// the replay runs, and a sampler of each policy fills its curves and visits its pool. When
// the first refusals are known, a last pass fills what lives, with buckets of single events
// around them (outline.bands). A recording of 2 GB is never in memory: what is kept follows
// the live blocks and the numbers of buckets.
//
// Files: timeline.go the replay with its page and the table of results, outline.go the
// passes without an allocator, groups.go the bands of what lives, callers.go those by
// caller, sampler.go the hook that fills the curves of a policy, snapshot.go the visit of
// the whole pool, summary.go the sentences at the top of the page.
package timeline

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpumem/internal/report"
	"gpumem/record/advise"
	"gpumem/record/replay"
	"gpumem/record/trace"
	"gpumem/size"
)

// longPool is the number of events above which a pool is not timed when a page is made
// of it, because that would take further passes over it: 2 GB of an RMM log are 35
// million events. It is a variable for tests.
var longPool uint64 = 5_000_000

// Run replays t as [replay.Run] does and collects the page of the replay, which is nil if
// nothing happens in any pool. It costs two or three passes more over the recording,
// without an allocator, and some hundred snapshots of each policy's pool. Pools of more
// than five million events are then not timed.
func Run(ctx context.Context, t *trace.Trace, cfg replay.Config) (*replay.Report, *report.Page, error) {
	pools, err := t.Choose(cfg.Pool)
	if err != nil {
		return nil, nil, err
	}
	m := &pageMaker{trace: t, cfg: cfg, texts: newTexts(t), outlines: map[*trace.Pool]*outline{}}
	m.share = max(1, (len(pools)*len(cfg.Policies)+fullLayers-1)/fullLayers)
	if err := m.outline(ctx, pools); err != nil {
		return nil, nil, err
	}
	rep, err := m.replay(ctx)
	if err != nil || m.timelines == nil {
		return rep, nil, err
	}
	page, err := m.page(ctx, pools, rep)
	if err != nil {
		return nil, nil, err
	}
	return rep, page, nil
}

// A pageMaker makes the page of one replay.
type pageMaker struct {
	trace     *trace.Trace
	cfg       replay.Config
	share     int // of the layers, that share the buckets and snapshots of one
	texts     *textTable
	outlines  map[*trace.Pool]*outline
	timelines []*report.Timeline
	long      bool            // some pool is not timed
	layers    []*report.Layer // of the results, in order
	samplers  []*sampler
}

// outline goes over the pools without an allocator.
func (m *pageMaker) outline(ctx context.Context, pools []*trace.Pool) error {
	for _, pool := range pools {
		if pool.Events == 0 {
			continue
		}
		o, err := newOutline(ctx, m.trace, pool, m.texts, m.share, m.cfg.Step("finding peaks"))
		if err != nil {
			return err
		}
		m.outlines[pool] = o
		m.timelines = append(m.timelines, o.timeline)
		m.long = m.long || pool.Events > longPool
	}
	return nil
}

// replay runs the policies, each with a sampler.
func (m *pageMaker) replay(ctx context.Context) (*replay.Report, error) {
	cfg := m.cfg
	cfg.MaxTimed = longPool
	cfg.Hooks = append(slices.Clone(cfg.Hooks), func(p *replay.Pass) replay.Hook {
		o := m.outlines[p.Pool]
		if o == nil {
			m.layers = append(m.layers, nil)
			return replay.Hook{}
		}
		s := o.sample(p)
		m.layers, m.samplers = append(m.layers, s.layer), append(m.samplers, s)
		o.timeline.Layers = append(o.timeline.Layers, s.layer)
		return s.hook()
	})
	rep, err := replay.Run(ctx, m.trace, cfg)
	if err == nil && m.long {
		rep.Trace.Notes = append(slices.Clone(rep.Trace.Notes), "own time is not measured with a page of so long a recording; without one it is")
	}
	return rep, err
}

// bands fills in what lives in the timelines that are on the page.
func (m *pageMaker) bands(ctx context.Context, pools []*trace.Pool) error {
	refusals := map[*outline][]uint64{}
	for _, s := range m.samplers {
		if first := s.layer.First; first != nil {
			refusals[s.outline] = append(refusals[s.outline], first.Event)
		}
	}
	for _, pool := range pools {
		o := m.outlines[pool]
		if o == nil || !slices.Contains(m.timelines, o.timeline) {
			continue
		}
		if err := o.bands(ctx, refusals[o], m.share, m.cfg.Step("listing what lives")); err != nil {
			return err
		}
	}
	return nil
}

// page returns the page of a replay.
func (m *pageMaker) page(ctx context.Context, pools []*trace.Pool, rep *replay.Report) (*report.Page, error) {
	var more int
	m.timelines, more = largestPools(m.timelines)
	if err := m.bands(ctx, pools); err != nil {
		return nil, err
	}
	own := replay.FrameworkPolicies(m.trace)
	for _, tl := range m.timelines {
		tl.Look = lookAt(tl.Layers, own)
	}
	page := &report.Page{
		Title: filepath.Base(rep.Trace.Source), Notes: slices.Concat(rep.Trace.Notes, Placements(rep)), Pools: m.timelines,
		Device: m.cfg.Total, Columns: Columns(m.cfg.Smallest),
	}
	if more > 0 {
		page.Notes = append(page.Notes, fmt.Sprintf("%s with smaller peaks are not on the page; --pool NAME shows one", report.Counted(uint64(more), "pool")))
	}

	results := gpuMemory(m.trace, m.cfg.Pool, rep.Results, m.timelines)
	gpus := slices.DeleteFunc(slices.Clone(m.timelines), func(tl *report.Timeline) bool { return tl.Kind != "" })
	page.Headline, page.Summary = summary(rep, results, gpus, own, m.texts)
	page.Answers = append(page.Answers, report.Answer{Question: "At the peak", Text: m.atPeak(gpus)})
	for k, res := range rep.Results {
		if l := m.layers[k]; l != nil {
			l.Notes, l.Cells = res.Notes, Cells(res, m.cfg.Smallest)
			if res.Failure != nil {
				l.Why = strings.Split(strings.TrimSuffix(res.Failure.Why, "\n"), "\n")
			}
		}
	}
	for _, name := range m.texts.List {
		page.Names = append(page.Names, m.trace.Shown(name))
	}
	return page, nil
}

// maxPools is the most pools that are on a page: each has half a dozen drawings.
const maxPools = 24

// largestPools returns the timelines that are on the page, in their order, and how many are
// not.
func largestPools(list []*report.Timeline) (kept []*report.Timeline, more int) {
	if len(list) <= maxPools {
		return list, 0
	}
	kept = slices.Clone(list)
	slices.SortStableFunc(kept, func(a, b *report.Timeline) int { return cmp.Compare(b.Peak, a.Peak) })
	kept = kept[:maxPools]
	return slices.DeleteFunc(slices.Clone(list), func(tl *report.Timeline) bool { return !slices.Contains(kept, tl) }), len(list) - maxPools
}

// gpuMemory returns the results of GPUs' memory, and says of the other timelines what they
// are. If there is no GPU's memory, or if the pool was named, all counts.
func gpuMemory(t *trace.Trace, pool string, results []*replay.Result, timelines []*report.Timeline) []*replay.Result {
	left, err := advise.NotOnGPU(t, pool)
	if err != nil || len(left) == 0 {
		return results
	}
	kinds := map[string]string{}
	for _, l := range left {
		kinds[l.Pool] = "the host's memory"
		if l.Code {
			kinds[l.Pool] = "compiled code"
		}
	}
	for _, tl := range timelines {
		tl.Kind = kinds[tl.Pool]
	}
	return slices.DeleteFunc(slices.Clone(results), func(res *replay.Result) bool { return kinds[res.Pool] != "" })
}

// lookAt returns the index of the policy that is looked at first: the framework's that was
// recorded, else the first that refuses, else the first.
func lookAt(layers []*report.Layer, own []string) int {
	if i := slices.IndexFunc(layers, func(l *report.Layer) bool { return slices.Contains(own, l.Policy) }); i >= 0 {
		return i
	}
	return max(0, slices.IndexFunc(layers, func(l *report.Layer) bool { return l.First != nil }))
}

// WriteRecording writes a recording in a line, between two words: its file, its events and its
// peak. Below it stand its notes.
func WriteRecording(t *report.Text, before string, r replay.TraceInfo, after string) {
	allocs := report.Counted(r.Allocs, "allocation")
	if r.Refused > 0 {
		allocs += fmt.Sprintf(" (%s refused in the recorded run)", report.Count(r.Refused))
	}
	events, peak := report.Counted(r.Events, "event"), size.Format(r.PeakLive)
	t.Fact("%s%s: %s, %s, at most %s live%s", before, r.Source, events, allocs, peak, after)
	if r.Settings != "" {
		t.Fact("%srecorded with the settings %s", before, r.Settings)
	}
	for _, line := range append(r.PeakLines(), r.WaitingLines()...) {
		t.Fact("%s%s", before, line)
	}
	for _, n := range r.Notes {
		t.Line("  %s", n)
	}
}

// Columns returns the titles of a table of results, as [report.NewTable] takes them;
// smallest adds that of the smallest device.
func Columns(smallest bool) []string {
	titles := []string{"fits", ">refused", ">held peak", ">mean", ">idle", ">frag", ">driver calls", ">driver time", ">own time"}
	if smallest {
		titles = append(titles, ">smallest device")
	}
	return titles
}

// Cells returns a result's row under Columns.
func Cells(res *replay.Result, smallest bool) []string {
	cells := []string{
		"yes", report.Count(res.Refused), size.Format(res.HeldPeak), size.Format(uint64(res.HeldMean)), size.Format(res.HeldIdle),
		strconv.FormatFloat(res.Fragmentation, 'f', 2, 64), report.Count(res.DriverCalls), report.Seconds(res.DriverSeconds),
		res.OwnTime(),
	}
	if !res.Fits {
		cells[0] = "NO"
	}
	switch {
	case smallest && res.Smallest != nil:
		cells = append(cells, size.Format(*res.Smallest))
	case smallest:
		cells = append(cells, "none")
	}
	return cells
}

// Placements returns a line for each pool of the recording that names the policies
// under which the blocks are placed as in the recorded run. It is empty if there is
// nothing to compare. Agreement of 99 % is a match, of half or more makes the nearest
// policy, and less is chance: some blocks agree under any policy.
func Placements(rep *replay.Report) []string {
	var pools []string
	byPool := map[string][]*replay.Result{}
	for _, res := range rep.Results {
		// A single block is as recorded wherever it lies.
		if res.Placed == nil || *res.Placed < 2 {
			continue
		}
		if byPool[res.Pool] == nil {
			pools = append(pools, res.Pool)
		}
		byPool[res.Pool] = append(byPool[res.Pool], res)
	}
	var lines []string
	for _, pool := range pools {
		same := "the recorded run"
		if len(rep.Trace.PoolNames) > 1 {
			same = pool + " of the recorded run"
		}
		best := byPool[pool][0]
		var tried, agree []string
		for _, res := range byPool[pool] {
			tried = append(tried, res.Policy)
			if *res.AsRecorded > *best.AsRecorded {
				best = res
			}
			if *res.Placed-*res.AsRecorded <= *res.Placed/100 {
				agree = append(agree, agreement(res))
			}
		}
		if len(agree) > 0 {
			lines = append(lines, same+" is placed as by "+strings.Join(agree, ", and as by "))
			continue
		}
		line := same + " is not placed as by " + strings.Join(tried, ", ")
		if *best.AsRecorded >= *best.Placed-*best.AsRecorded {
			line += "; the nearest is " + agreement(best)
		}
		lines = append(lines, line)
	}
	return lines
}

// agreement returns, for example, "jax:preallocate=false: 180 of 180".
func agreement(r *replay.Result) string {
	return fmt.Sprintf("%s: %s of %s", r.Policy, report.Count(*r.AsRecorded), report.Count(*r.Placed))
}
