package timeline_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/report"
	"gpumem/record/internal/test/replaytest"
	"gpumem/record/replay"
	"gpumem/record/timeline"
	"gpumem/record/trace"
)

var (
	config = replaytest.Config
	text   = replaytest.Text
	file   = replaytest.File
)

func run(t testing.TB, tr *trace.Trace, cfg replay.Config) *replay.Report {
	t.Helper()
	rep, err := replay.Run(context.Background(), tr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// runPage replays a recording with a page.
func runPage(t testing.TB, tr *trace.Trace, cfg replay.Config) (*replay.Report, *report.Page) {
	t.Helper()
	rep, page, err := timeline.Run(context.Background(), tr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return rep, page
}

// TestSummary: the line and the three sentences at the top of a page.
func TestSummary(t *testing.T) {
	const mib2 = " 2097152\n"
	holes := "a 1" + mib2 + "a 2" + mib2 + "a 3" + mib2 + "a 4" + mib2 + "a 5" + mib2 + "a 6" + mib2 + "f 1\nf 3\nf 5\na 7 5242880\n"
	for _, c := range []struct {
		name, events, device string
		policies             []string
		headline             string
		summary              []string
	}{
		{
			"one fits", "a 1 100\n", "sim:1GiB", []string{"jax"},
			"in fits 1 GiB under the policy",
			[]string{"The program requested at most 100 B at once, in 1 event.", "jax held 768 MiB of the device's 1 GiB at most.", "Nothing was refused."},
		},
		{
			"all fit", "a 1 100\n", "sim:1GiB", []string{"jax", "platform"},
			"in fits 1 GiB under all 2 policies",
			[]string{"The program requested at most 100 B at once, in 1 event.", "Of the policies platform held least, 2 MiB at most, and jax held most, 768 MiB of the device's 1 GiB.", "Nothing was refused."},
		},
		{
			"fragmentation", holes, "sim:1GiB", []string{"bfc:limit=16MiB", "elastic:limit=16MiB"},
			"in runs out of memory on 1 GiB under bfc:limit=16MiB alone",
			[]string{
				"Under bfc:limit=16MiB, event 10 of 10 requested 5 MiB and was refused.",
				"Of the pool's 16 MiB, 10 MiB was free, enough, but in pieces of which the largest was 4 MiB, and the device had 1008 MiB left.",
				"On the same device elastic:limit=16MiB served every request; it held 16 MiB at most.",
			},
		},
		{
			"the limit", "a 1 5242880\na 2 5242880\nf 1\na 3 6291456\n", "sim:1GiB", []string{"bfc:limit=8MiB"},
			"in runs out of memory on 1 GiB under bfc:limit=8MiB",
			[]string{
				"Under bfc:limit=8MiB, event 2 of 4 requested 5 MiB and was refused.",
				"Every byte of the pool's 8 MiB was taken, and the limit of 8 MiB kept it from taking more of the 1016 MiB that the device had left.",
				"None of the policies that were tried served it; any allocator must hold 12 MiB at the peak, and the device has 1 GiB.",
			},
		},
		{
			"more than the limit", "a 1 9000000\na 2 9000000\n", "sim:1GiB", []string{"bfc:limit=8MiB", "vmm:limit=8MiB"},
			"in runs out of memory on 1 GiB under every policy",
			[]string{
				"Under bfc:limit=8MiB, event 1 of 2 requested 8.58 MiB and was refused, the first of 2 refusals.",
				"That is more than the limit of 8 MiB, so nothing that is freed would have helped.",
				"None of the policies that were tried served it; any allocator must hold 18 MiB at the peak, and the device has 1 GiB.",
			},
		},
		{
			"no device large enough", "a 1 6291456\na 2 6291456\n", "sim:8MiB", []string{"platform", "elastic", "async"},
			"in runs out of memory on 8 MiB under every policy",
			[]string{
				"Under platform, event 2 of 2 requested 6 MiB and was refused.",
				"Every block is the device's own: 6 MiB was live, and the device had 2 MiB left.",
				"No policy can serve it on this device: any allocator must hold 12 MiB at the peak, and the device has 8 MiB.",
			},
		},
		{
			"pages", "a 1 6291456\na 2 6291456\n", "sim:8MiB", []string{"elastic"},
			"in runs out of memory on 8 MiB under elastic",
			[]string{
				"Under elastic, event 2 of 2 requested 6 MiB and was refused.",
				"It needs 3 pages of 2 MiB; of 4 that may be held, blocks hold 3 and 0 are idle; holes do not matter.",
				"No policy can serve it on this device: any allocator must hold 12 MiB at the peak, and the device has 8 MiB.",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config(t, c.device, c.policies...)
			_, p := runPage(t, text(t, c.events), cfg)
			if p.Headline != c.headline {
				t.Errorf("headline %q, want %q", p.Headline, c.headline)
			}
			if diff := cmp.Diff(c.summary, p.Summary); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestPage: with a page the report is the same, and each pool has a layer for each
// policy.
func TestPage(t *testing.T) {
	tr := file(t, "..", "trace", "testdata", "torch2026.pickle")
	cfg := config(t, "sim:1GiB", "jax", "platform", "elastic")
	cfg.Smallest = true
	plain := run(t, tr, cfg)
	rep, p := runPage(t, tr, cfg)
	if len(p.Pools) != len(tr.Pools) || len(p.Columns) != 10 {
		t.Fatalf("%d pools, %d columns", len(p.Pools), len(p.Columns))
	}
	for k, pool := range p.Pools {
		if pool.Events != tr.Pools[k].Events-tr.Pools[k].Seeds || pool.Peak != tr.Pools[k].PeakLive || len(pool.Layers) != 3 || len(pool.Allocations.Names) != len(pool.Allocations.From) {
			t.Errorf("%s: %d events, peak %d, %d layers", pool.Pool, pool.Events, pool.Peak, len(pool.Layers))
		}
		if len(pool.Times) != len(pool.Starts) || !tr.Timed || !slices.IsSorted(pool.Times) {
			t.Errorf("%s: times %d of %d events", pool.Pool, pool.Times, pool.Events)
		}
		for n, l := range pool.Layers {
			if l.Policy != cfg.Policies[n].Spec || len(l.Cells) != len(p.Columns) {
				t.Errorf("layer %d is %s with %d cells", n, l.Policy, len(l.Cells))
			}
		}
	}
	for _, r := range append(plain.Results, rep.Results...) {
		r.Seconds = 0 // the only thing that may differ
	}
	a, _ := json.Marshal(plain)
	b, _ := json.Marshal(rep)
	if diff := cmp.Diff(string(a), string(b)); diff != "" {
		t.Errorf("the report differs:\n%s", diff)
	}
}

// TestPageCancelled: the passes for a page stop with the context, too.
func TestPageCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	cfg := config(t, "sim:1GiB", "jax")
	if _, _, err := timeline.Run(ctx, text(t, strings.Repeat("a 1 1\nf 1\n", 5000)), cfg); err != context.Canceled {
		t.Errorf("%v", err)
	}
}

// TestPageEmptyPool: a pool in which nothing happens is not in the page.
func TestPageEmptyPool(t *testing.T) {
	tr := text(t, "a 1 1\n")
	tr.Pools = append([]*trace.Pool{{Name: "empty"}}, tr.Pools...)
	cfg := config(t, "sim:1GiB", "jax", "platform")
	cfg.Smallest = true
	_, p := runPage(t, tr, cfg)
	if len(p.Pools) != 1 || p.Pools[0].Pool != "" || len(p.Pools[0].Layers) != 2 || p.Pools[0].Layers[1].Policy != "platform" || len(p.Columns) != 10 {
		t.Errorf("%+v", p)
	}
	cfg.Pool = "empty"
	if _, p := runPage(t, tr, cfg); p != nil {
		t.Errorf("a page of nothing: %+v", p)
	}
}

// TestPlacementsAreAFindingOrNone: what nearly all blocks agree with is said, the nearest
// where none does, and what agrees by chance is not.
func TestPlacementsAreAFindingOrNone(t *testing.T) {
	n := func(x uint64) *uint64 { return &x }
	res := func(policy, pool string, matched, placed uint64) *replay.Result {
		return &replay.Result{Policy: policy, Pool: pool, Placed: n(placed), AsRecorded: n(matched)}
	}
	const not = "the recorded run is not placed as by "
	for _, c := range []struct {
		name    string
		pools   []string
		results []*replay.Result
		want    []string
	}{
		{"nothing to compare", nil, []*replay.Result{{Policy: "platform"}}, nil},
		{"a single block", nil, []*replay.Result{res("jax", "", 1, 1)}, nil},
		{"all", nil, []*replay.Result{res("jax", "", 2, 180), res("bfc", "", 180, 180), {Policy: "vmm"}},
			[]string{"the recorded run is placed as by bfc: 180 of 180"}},
		{"99 % of two policies", nil, []*replay.Result{res("jax", "", 1980, 2000), res("bfc", "", 2000, 2000), res("elastic", "", 1979, 2000)},
			[]string{"the recorded run is placed as by jax: 1,980 of 2,000, and as by bfc: 2,000 of 2,000"}},
		{"98 of 99", nil, []*replay.Result{res("jax", "", 98, 99)}, []string{not + "jax; the nearest is jax: 98 of 99"}},
		{"the nearest, half", nil, []*replay.Result{res("jax", "", 3, 24), res("bfc", "", 12, 24), res("elastic", "", 9, 24)},
			[]string{not + "jax, bfc, elastic; the nearest is bfc: 12 of 24"}},
		{"less than half", nil, []*replay.Result{res("jax", "", 11, 24)}, []string{not + "jax"}},
		{"two pools", []string{"a", "b"}, []*replay.Result{res("jax", "a", 9, 9), res("jax", "b", 2, 9), res("bfc", "a", 3, 9), res("bfc", "b", 8, 9)},
			[]string{"a of the recorded run is placed as by jax: 9 of 9", "b of the recorded run is not placed as by jax, bfc; the nearest is bfc: 8 of 9"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rep := &replay.Report{Results: c.results}
			rep.Trace.PoolNames = c.pools
			if d := cmp.Diff(c.want, timeline.Placements(rep)); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestSummaryOfARunThatDied: what the recorded run was refused comes first, and of policies
// the recorded framework's.
func TestSummaryOfARunThatDied(t *testing.T) {
	for _, c := range []struct {
		name, device string
		policies     []string
		headline     string
		first        string
	}{
		{"it fits here", "sim:80GiB", []string{"jax", "pytorch"}, "torch2150.pickle ran out of memory when it was recorded; it fits 80 GiB under all 2 policies",
			"The recorded run was refused 5 GiB, in make (torchrun.py:4), at event 41 of 45, with 22.89 MiB live."},
		{"its own policy serves it", "sim:6GiB", []string{"jax", "pytorch"}, "torch2150.pickle ran out of memory when it was recorded; it fits 6 GiB under pytorch, and runs out of memory under jax alone",
			"The recorded run was refused 5 GiB, in make (torchrun.py:4), at event 41 of 45, with 22.89 MiB live."},
		{"nothing serves it", "sim:1GiB", []string{"jax", "pytorch"}, "torch2150.pickle ran out of memory when it was recorded; it runs out of memory on 1 GiB under every policy",
			"The recorded run was refused 5 GiB, in make (torchrun.py:4), at event 41 of 45, with 22.89 MiB live."},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := file(t, "..", "trace", "testdata", "torch2150.pickle")
			_, p := runPage(t, tr, config(t, c.device, c.policies...))
			if p.Headline != c.headline || p.Summary[0] != c.first {
				t.Errorf("%q\n%q", p.Headline, p.Summary)
			}
			if r := p.Pools[0].Refused; len(r) != 1 || r[0].Event != 41 || r[0].Bytes != 5<<30 {
				t.Errorf("refused when recorded: %+v", r)
			}
		})
	}
}

// TestHostMemoryIsNotTheGPUs: pools of the host are on the page and not in its sentences.
func TestHostMemoryIsNotTheGPUs(t *testing.T) {
	tr := file(t, "..", "trace", "testdata", "jax012.log.gz")
	_, p := runPage(t, tr, config(t, "sim:8GiB", "jax", "elastic"))
	for _, tl := range p.Pools {
		if host := tl.Pool == "xla_gpu_host_bfc"; host != (tl.Kind == "the host's memory") {
			t.Errorf("%s is %q", tl.Pool, tl.Kind)
		}
	}
	if want := "The program requested at most 17.43 MiB at once, in "; !strings.HasPrefix(p.Summary[0], want) {
		t.Errorf("%q", p.Summary)
	}
}
