package advise_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/device"
	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/record/advise"
	"gpumem/record/formats"
	"gpumem/record/replay"
	"gpumem/record/trace"
	"gpumem/size"
)

var update = flag.Bool("update", false, "write testdata anew")

const mib = 1 << 20

// TestMain lets garbage pile up to eight times what is live: the tables of the many pools that
// are made for a moment.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

func read(t testing.TB, events string) *trace.Trace {
	t.Helper()
	tr, err := formats.Read(context.Background(), strings.NewReader(events), "run.txt", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func card(t testing.TB, words string) sim.Config {
	t.Helper()
	spec, err := open.Parse(words)
	if err != nil {
		t.Fatal(err)
	}
	return spec.Sim
}

// TestAdvice runs testdata/advice.txt: each line that begins with a recording is
// a case, and what follows it is the answer.
func TestAdvice(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: -short")
	}
	path := filepath.Join("testdata", "advice.txt")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") || line == "\n" {
			got.WriteString(line)
			continue
		}
		if !strings.HasPrefix(line, "advise ") {
			continue
		}
		words := strings.Fields(line)
		got.WriteString(line)
		tr, err := formats.Open(context.Background(), filepath.Join("..", "..", words[1]), trace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		beside, err := size.Parse(words[3])
		if err != nil {
			t.Fatal(err)
		}
		as := ""
		if len(words) > 4 {
			as = words[4]
		}
		rep, err := advise.Run(context.Background(), tr, advise.Config{Sim: card(t, words[2]), Context: beside, As: as})
		if err != nil {
			t.Fatal(err)
		}
		got.WriteString(show(rep))
	}
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(string(data), got.String()); diff != "" {
		t.Errorf("(-want +got; go test -update writes it)\n%s", diff)
	}
}

// show is a report in lines.
func show(rep *advise.Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  as %s@%s, %s\n", rep.Name, rep.Version, rep.Why)
	for _, l := range rep.LeftOut {
		fmt.Fprintf(&b, "  without %s, code %v, of %s\n", l.Pool, l.Code, size.Format(l.Peak))
	}
	showCandidates(&b, rep.Candidates)
	fmt.Fprintf(&b, "  -> %s; as it is %v; smallest card %s; left %s\n", policyOf(rep.Advice), rep.FitsAsItIs, maybe(rep.SmallestCard), size.Format(rep.Left))
	if s := rep.Second; s != nil {
		fmt.Fprintf(&b, "  second %s: %q, %q\n", size.Format(s.Bytes), strings.Join(append(s.First, s.FirstCall...), " "), strings.Join(append(s.Other, s.OtherCall...), " "))
	}
	for _, g := range rep.GPUs {
		fmt.Fprintf(&b, "  GPU %s %q, beside %s, live %s: -> %s; as it is %v; smallest card %s\n", g.Pool, g.Others, size.Format(g.Beside), size.Format(g.PeakLive),
			policyOf(g.Advice), g.FitsAsItIs, maybe(g.SmallestCard))
	}
	return b.String()
}

func policyOf(c *advise.Candidate) string {
	if c == nil {
		return "nothing"
	}
	return c.Policy
}

func maybe(n *uint64) string {
	if n == nil {
		return "none"
	}
	return size.Format(*n)
}

func showCandidates(b *strings.Builder, list []*advise.Candidate) {
	limits := func(r *advise.Range) string {
		if r == nil {
			return ""
		}
		if r.Capped {
			return fmt.Sprintf(" (%s to %s, the most that is advised)", r.Least, r.Most)
		}
		return fmt.Sprintf(" (%s to %s)", r.Least, r.Most)
	}
	for _, c := range list {
		fits := "fits"
		if !c.Fits {
			fits = fmt.Sprintf("refuses %d", c.Refused)
		}
		fmt.Fprintf(b, "  %s %q%s: %s, holds %s, leaves %s; device %s, card %s%s\n", c.Policy, strings.Join(append(c.Set, c.Call...), " "), limits(c.Range), fits,
			size.Format(c.HeldPeak), size.Format(c.Left), maybe(c.SmallestDevice), maybe(c.SmallestCard), limits(c.CardRange))
	}
}

// policyFor returns what a framework's release makes of the environment that a candidate
// sets, or the policy of its name where not all is set there.
func policyFor(t testing.TB, as string, c *advise.Candidate) policy.Policy {
	t.Helper()
	release, err := frameworks.ParseRelease(as)
	if err != nil || c.Ours || len(c.Set) == 0 || len(c.Call) > 0 {
		p, err := frameworks.Parse(c.Policy)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	f, v, err := release.Find()
	if err != nil {
		t.Fatal(err)
	}
	r, refused := f.Read(policy.Environ(c.Set), v)
	// The program of torch2026.pickle sets it without a limit, and what is advised keeps it.
	r.Warnings = slices.DeleteFunc(r.Warnings, func(w policy.Warning) bool {
		return strings.HasPrefix(w.Text, "garbage_collection_threshold does nothing unless")
	})
	if refused != nil || len(r.Warnings) > 0 {
		t.Fatal(as, c.Set, r.Warnings, refused)
	}
	return r.Policy
}

// fits replays a pool of tr under a policy, on a card with the context.
func fits(t testing.TB, tr *trace.Trace, pool string, p policy.Policy, cfg sim.Config) bool {
	t.Helper()
	if cfg.Total < cfg.Used+cfg.Context {
		return false // elastic would not even open
	}
	rep, err := replay.Run(context.Background(), tr, replay.Config{
		Policies: []policy.Policy{p}, Total: cfg.Total, Pool: pool, Untimed: true,
		Device: func(total uint64) (device.GPU, error) { c := cfg; c.Total = total; return sim.New(c) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return rep.Results[0].Fits
}

// parsed returns the policy of a name.
func parsed(t testing.TB, spec string) policy.Policy {
	t.Helper()
	p, err := frameworks.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// random returns a recording of a few dozen events.
func random(t testing.TB, rng *rand.Rand) *trace.Trace {
	var b strings.Builder
	live := []int{}
	for id := range 1 + rng.IntN(60) {
		if len(live) > 0 && rng.IntN(2) == 0 {
			i := rng.IntN(len(live))
			fmt.Fprintf(&b, "f %d\n", live[i])
			live = append(live[:i], live[i+1:]...)
			continue
		}
		fmt.Fprintf(&b, "a %d %d\n", id, 1+rng.IntN(40*mib))
		live = append(live, id)
	}
	return read(t, b.String())
}

// TestTrue: what is said of each candidate is so, by separate replays: it fits
// where it is said to, both ends of a limit do and one hundredth less of it does not, the
// smallest device holds and 1 MiB less does not.
func TestTrue(t *testing.T) {
	for _, as := range []string{"jax", "jax@0.4.30", "jax@0.3.25", "tensorflow", "tensorflow@2.3", "pytorch", "pytorch@2.8.0", "rmm", "none"} {
		t.Run(as, func(t *testing.T) {
			for seed := range uint64(8) {
				rng := rand.New(rand.NewPCG(seed, 3))
				tr := random(t, rng)
				defer tr.Close()
				testTrue(t, tr, "", advise.Config{
					Sim:     sim.Config{Total: uint64(64+rng.IntN(960)) * mib, Used: uint64(rng.IntN(32)) * mib},
					Context: uint64(rng.IntN(24)) * mib,
					As:      as,
				})
			}
		})
	}
}

// TestTrueOfRecordings: the same of recordings, whose framework is found.
func TestTrueOfRecordings(t *testing.T) {
	for _, tc := range []struct{ file, pool, as, card string }{
		{"torch201.pickle", "", "pytorch", "sim:6GiB"},
		{"torch280.pickle", "", "pytorch", "sim:5350MiB"},
		{"torch2023.pickle", "", "pytorch", "sim:90MiB"},
		{"torch2025.pickle", "", "pytorch", "sim:9GiB"},
		{"torch2026.pickle", "cuda:2", "pytorch", "sim:70MiB"},
		{"jax012.log.gz", "GPU_0_bfc", "jax", "sim:100MiB"},
		{"jax092.xplane.pb.gz", "GPU_0_bfc", "jax", "sim:80MiB"},
		{"jax092.memdump", "GPU_0_bfc", "jax", "sim:100MiB"},
		{"memdebug.log", "GPU_0_bfc", "tensorflow", "sim:34GiB"},
		{"rmm.csv", "", "rmm", "sim:5GiB"},
		{"minimalloc.csv", "", "none", "sim:70MiB"},
	} {
		t.Run(tc.file, func(t *testing.T) {
			tr, err := formats.Open(context.Background(), filepath.Join("..", "trace", "testdata", tc.file), trace.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			rep := testTrue(t, tr, tc.pool, advise.Config{Sim: card(t, tc.card), Context: 64 * mib, Pool: tc.pool})
			if rep.Name != tc.as || rep.Why == "" {
				t.Errorf("as %q, %q", rep.Name, rep.Why)
			}
		})
	}
}

func testTrue(t *testing.T, tr *trace.Trace, pool string, cfg advise.Config) *advise.Report {
	t.Helper()
	say := func(format string, args ...any) {
		t.Helper()
		t.Errorf(fmt.Sprintf("%s on %d MiB: ", cfg.As, cfg.Sim.Total/mib)+format, args...)
	}
	rep, err := advise.Run(context.Background(), tr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	as := cfg.As
	if as == "" {
		as = rep.Name
	}
	fits := func(p policy.Policy, on sim.Config) bool { t.Helper(); return fits(t, tr, pool, p, on) }
	here := cfg.Sim
	here.Context = cfg.Context
	alone := sim.Config{Context: cfg.Context}
	var first *advise.Candidate
	for _, c := range rep.Candidates {
		p := policyFor(t, as, c)
		if fits(p, here) != c.Fits {
			say("%s on %d MiB: said %v", c.Policy, cfg.Sim.Total/mib, c.Fits)
		}
		if c.Fits && c.HeldPeak+c.Left+rep.UsedBytes+cfg.Context != cfg.Sim.Total {
			say("%s: holds %d, leaves %d", c.Policy, c.HeldPeak, c.Left)
		}
		if c.Fits && first == nil {
			first = c
		}
		ends := func(spec string, r *advise.Range, on sim.Config) {
			if r == nil {
				return
			}
			with := func(text string) policy.Policy { return parsed(t, strings.Replace(spec, r.Least, text, 1)) }
			if r.TooLittle != "" && fits(with(r.TooLittle), on) {
				say("%s is not the least on %d MiB: %s fits", spec, on.Total/mib, r.TooLittle)
			}
			if !fits(with(r.Most), on) {
				say("%s on %d MiB: %s does not fit", spec, on.Total/mib, r.Most)
			}
		}
		if c.Range != nil && !c.Fits {
			say("%s does not fit, and has a range", c.Policy)
		}
		ends(c.Policy, c.Range, here)
		// Limits go with the size of the device, so only the others can be checked
		// with the same words.
		if s := c.SmallestDevice; s != nil && !strings.Contains(c.Policy, "fraction=") && (!strings.Contains(c.Policy, "limit=") || p.Kind == policy.Async) && !strings.Contains(c.Policy, "preallocate") {
			alone.Total = *s
			if !fits(p, alone) {
				say("%s does not fit %d MiB", c.Policy, *s/mib)
			}
			if alone.Total -= mib; alone.Total > 0 && fits(p, alone) {
				say("%s fits less than %d MiB", c.Policy, *s/mib)
			}
		}
		if c.SmallestCard != nil {
			on := &advise.Candidate{Policy: c.CardPolicy, Set: c.CardSet, Call: c.CardCall, Ours: c.Ours}
			alone.Total = advise.Usable(*c.SmallestCard)
			if !fits(policyFor(t, as, on), alone) {
				say("%v does not fit a card of %d GiB", c.CardSet, *c.SmallestCard>>30)
			}
			ends(c.CardPolicy, c.CardRange, alone)
		}
	}
	if rep.Advice != first {
		say("the advice is %v", rep.Advice)
	}
	if rep.Advice == nil && rep.Left != 0 {
		say("nothing fits, and %d is left", rep.Left)
	}
	testSecond(t, rep, as, cfg, fits)
	return rep
}

// testSecond: the first program fits with what is to be set in it, and the second's pool is
// at most what is left.
func testSecond(t *testing.T, rep *advise.Report, as string, cfg advise.Config, fits func(policy.Policy, sim.Config) bool) {
	t.Helper()
	s := rep.Second
	if s == nil {
		return
	}
	here := cfg.Sim
	here.Context = cfg.Context
	i := slices.IndexFunc(rep.Candidates, func(c *advise.Candidate) bool { return c.Policy == s.Policy })
	first := rep.Candidates[i]
	if first.HeldPeak+s.Bytes+2*cfg.Context+rep.UsedBytes > rep.DeviceBytes {
		t.Errorf("%s: %s holds %d, %d for a second program", as, s.Policy, first.HeldPeak, s.Bytes)
	}
	if c := (&advise.Candidate{Policy: s.Policy, Set: s.First, Call: s.FirstCall, Ours: s.Run != ""}); !fits(policyFor(t, as, c), here) {
		t.Errorf("%s: with %v the first program does not fit", as, s.First)
	}
	if len(s.Other) > 0 && len(s.OtherCall) == 0 {
		other := policyFor(t, as, &advise.Candidate{Set: s.Other})
		free := rep.DeviceBytes - rep.UsedBytes - 2*cfg.Context - first.HeldPeak
		if n := other.LimitBytes(policy.Device{Total: rep.DeviceBytes, Free: free}); n > s.Bytes {
			t.Errorf("%s: with %v the second takes %d of %d", as, s.Other, n, s.Bytes)
		}
	}
}

// TestWords: what is to be set in the environment is the policy that was replayed, in each
// release that changed something. The driver's pool is compared by what it keeps and takes.
func TestWords(t *testing.T) {
	tr := read(t, "a 1 1000000000\n")
	for _, f := range frameworks.All {
		if f.Name != "jax" && f.Name != "tensorflow" && f.Name != "pytorch" {
			continue
		}
		var releases []string
		for _, c := range f.Changes() {
			releases = append(releases, f.Name+"@"+c.Version)
		}
		for _, as := range append(releases, f.Name) {
			for _, on := range []string{"sim:24GiB", "sim:1GiB", "sim:1200MiB"} {
				if as != f.Name && on != "sim:24GiB" {
					break // the rest for the newest release
				}
				rep, err := advise.Run(context.Background(), tr, advise.Config{Sim: card(t, on), Context: 100 * mib, As: as})
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range rep.Candidates {
					p, env := parsed(t, c.Policy), policyFor(t, as, c)
					if p.Kind == policy.Async {
						d := policy.Device{Total: 24 << 30, Free: 24 << 30}
						keep, first := p.AsyncBytes(d)
						envKeep, envFirst := env.AsyncBytes(d)
						if f.Name == "tensorflow" { // keeps what it leaves to others, less
							envKeep = keep
						}
						if keep>>1 != envKeep>>1 || first != envFirst {
							t.Errorf("%s: %s keeps %d, takes %d; %v %d, %d", as, c.Policy, keep, first, c.Set, envKeep, envFirst)
						}
						continue
					}
					p.Spec, p.Name, p.Version, env.Spec, env.Name, env.Version = "", "", "", "", "", ""
					if p.Kind == policy.VMM {
						p.Fraction = float64(float32(p.Fraction)) // as jaxlib passes it on; of no account here
					}
					if p != env {
						t.Errorf("%s: %s: %+v\n%v: %+v", as, c.Policy, p, c.Set, env)
					}
				}
			}
		}
	}
}

// TestBesideMoreThanAnyCard: wrong lengths in two pools of a GPU, recorded faithfully.
func TestBesideMoreThanAnyCard(t *testing.T) {
	var file bytes.Buffer
	w, err := trace.NewWriter(&file)
	for _, pool := range []string{"GPU_0", "GPU_collectivememory_0_bfc", "vmm_0"} {
		err = errors.Join(err, w.Alloc(trace.Call{Pool: pool, ID: 1, Bytes: 1<<64 - 1}))
	}
	if err := errors.Join(err, w.Flush()); err != nil {
		t.Fatal(err)
	}
	tr := read(t, file.String())
	defer tr.Close()
	rep, err := advise.Run(context.Background(), tr, advise.Config{Sim: card(t, "sim:1GiB"), Context: 1<<62 - 1})
	if err != nil || rep.Advice != nil || rep.SmallestCard != nil || len(rep.GPUs) != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
}

// TestSecondOfATinyProgram: no limit above .95 of the card is advised, whatever is left.
func TestSecondOfATinyProgram(t *testing.T) {
	tr := read(t, "a 1 5\n")
	defer tr.Close()
	rep, err := advise.Run(context.Background(), tr, advise.Config{Sim: card(t, "sim:16GiB"), As: "jax"})
	if err != nil || rep.Second == nil || !slices.Equal(rep.Second.Other, []string{"XLA_CLIENT_MEM_FRACTION=.95"}) {
		t.Errorf("%+v, %v", rep.Second, err)
	}
}

// TestErrors: what cannot be.
func TestErrors(t *testing.T) {
	if err := advise.Check(advise.Config{}); err == nil {
		t.Error("a card of no bytes")
	}
	if err := advise.Check(advise.Config{Sim: sim.Config{Total: mib}, Constants: 1 << 63}); err == nil {
		t.Error("no error for constants of 8 EiB")
	}
	if err := advise.Check(advise.Config{Sim: sim.Config{Total: mib}, Context: 1 << 63}); err == nil {
		t.Error("a context of 8 EiB")
	}
	tr := read(t, "a 1 5\n")
	cfg := advise.Config{Sim: sim.Config{Total: 64 * mib}, Pool: "x"}
	if _, err := advise.Run(context.Background(), tr, cfg); err == nil || !strings.Contains(err.Error(), `no pool is named "x"`) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	cfg.Pool = ""
	if _, err := advise.Run(ctx, tr, cfg); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestContextLargerThanCard: nothing fits, and nothing breaks.
func TestContextLargerThanCard(t *testing.T) {
	tr := read(t, "a 1 5\n")
	rep, err := advise.Run(context.Background(), tr, advise.Config{Sim: sim.Config{Total: 64 * mib}, Context: 65 * mib})
	if err != nil || rep.Advice != nil || rep.Left != 0 || rep.Second != nil {
		t.Errorf("%+v, %v", rep, err)
	}
	if rep.SmallestCard == nil || *rep.SmallestCard != 4<<30 || advise.Usable(4<<30) == 0 || advise.Usable(1) != 0 {
		t.Errorf("%+v", rep.SmallestCard)
	}
}

// TestTorch: a snapshot's advice is in PyTorch's words.
func TestTorch(t *testing.T) {
	tr, err := formats.Open(context.Background(), filepath.Join("..", "trace", "testdata", "torch2026.pickle"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	rep, err := advise.Run(context.Background(), tr, advise.Config{Sim: sim.Config{Total: 24 << 30}, Context: advise.DefaultContext})
	if err != nil {
		t.Fatal(err)
	}
	if !rep.FitsAsItIs || rep.Candidates[2].Set[0] != "PYTORCH_ALLOC_CONF=garbage_collection_threshold:0.8,expandable_segments:True" {
		t.Errorf("%s", show(rep))
	}
	if s := rep.Second; s == nil || !strings.HasPrefix(s.First[0], "PYTORCH_ALLOC_CONF=garbage_collection_threshold:0.8,per_process_memory_fraction:0.") {
		t.Errorf("%+v", s)
	}
}

// TestMoreThanAnyDeviceHoldsHasNoSmallestDevice: a wrong length, recorded faithfully.
func TestMoreThanAnyDeviceHoldsHasNoSmallestDevice(t *testing.T) {
	for _, bytes := range []string{"1099511627777", "18446744073709551615"} {
		rep, err := advise.Run(context.Background(), read(t, "a 1 "+bytes+"\n"), advise.Config{Sim: card(t, "sim:24GiB"), Context: advise.DefaultContext})
		if err != nil {
			t.Fatal(err)
		}
		if rep.Advice != nil || rep.SmallestCard != nil || rep.Candidates[0].SmallestDevice != nil {
			t.Errorf("%s bytes: %+v", bytes, rep)
		}
	}
}

// TestRefusedWhenRecordedDoesNotFit: a request that the recorded run was refused is what
// does not fit, in the whole answer.
func TestRefusedWhenRecordedDoesNotFit(t *testing.T) {
	for _, name := range []string{"torch201.pickle", "torch280.pickle", "torch2150.pickle"} {
		tr, err := formats.Open(context.Background(), filepath.Join("..", "trace", "testdata", name), trace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		rep, err := advise.Run(context.Background(), tr, advise.Config{Sim: card(t, "sim:4GiB"), Context: advise.DefaultContext})
		if err != nil {
			t.Fatal(err)
		}
		if rep.FitsAsItIs || rep.Advice != nil || rep.Trace.Refused != 1 || rep.LowerBound < 5368709120 {
			t.Errorf("%s: as it is %v, bound %d", name, rep.FitsAsItIs, rep.LowerBound)
		}
		for _, c := range rep.Candidates {
			if c.Fits || c.Refused != 1 || c.RefusedBytes != 5368709120 || c.SmallestDevice == nil || *c.SmallestDevice < rep.LowerBound {
				t.Errorf("%s: %+v", name, c)
			}
		}
	}
}

// TestPoolsOfOneGPU: the largest pool of a GPU is replayed, the others are taken beside it,
// and pools of the host are left out.
func TestPoolsOfOneGPU(t *testing.T) {
	for _, tc := range []struct {
		name  string
		pools []string // 100 MiB in the first, 200 in the second and so on
		as    string
		gpus  string // the pool of each, with what is taken beside it
		left  int
	}{
		{"one", []string{"GPU_0"}, "none", "", 0},
		{"collective memory", []string{"GPU_collectivememory_0_bfc", "GPU_0_bfc", "GPU_1_bfc", "xla_gpu_host_bfc"}, "jax", "GPU_0_bfc+100 GPU_1_bfc+0", 1},
		{"three of one", []string{"vmm_0", "GPU_0_bfc", "GPU_collectivememory_0_bfc"}, "jax", "GPU_collectivememory_0_bfc+300", 0},
		{"a Go program", []string{"weights", "scratch", "weights on device 1"}, "none", "scratch+100 weights on device 1+0", 0},
		{"a saved snapshot", []string{"cuda:0", "cuda:1"}, "pytorch", "cuda:0+0 cuda:1+0", 0},
		{"a saved profile", []string{"cuda:0", "executable"}, "jax", "", 1},
		{"a saved profile of TPUs", []string{"0", "1"}, "none", "0+0 1+0", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var file bytes.Buffer
			w, err := trace.NewWriter(&file)
			if err != nil {
				t.Fatal(err)
			}
			for i, pool := range tc.pools {
				if err := w.Alloc(trace.Call{Pool: pool, ID: 1, Bytes: uint64(i+1) * 100 * mib}); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			tr := read(t, file.String())
			defer tr.Close()
			rep, err := advise.Run(context.Background(), tr, advise.Config{Sim: card(t, "sim:1GiB"), Context: 10 * mib})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, g := range rep.GPUs {
				got = append(got, fmt.Sprintf("%s+%d", g.Pool, g.Beside/mib))
			}
			if rep.Name != tc.as || strings.Join(got, " ") != tc.gpus || len(rep.LeftOut) != tc.left {
				t.Errorf("as %s, GPUs %v, left out %v", rep.Name, got, rep.LeftOut)
			}
			for i, c := range rep.Candidates {
				if c.Fits && c.HeldPeak+c.Left+10*mib > rep.DeviceBytes {
					t.Errorf("%s holds %d, leaves %d", c.Policy, c.HeldPeak, c.Left)
				}
				if c.Range != nil { // the limit is another one on each GPU
					continue
				}
				least := c.Left
				for k, g := range rep.GPUs {
					if one := g.Candidates[i].Left; k == 0 || one < least {
						least = one
					}
				}
				if c.Left != least {
					t.Errorf("%s leaves %d, and on one GPU %d", c.Policy, c.Left, least)
				}
			}
		})
	}
}
