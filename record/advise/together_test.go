package advise_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpumem/device/sim"
	"gpumem/node/runenv"
	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/record/advise"
	"gpumem/record/formats"
	"gpumem/record/trace"
)

// TestLeaseIsLeast: under the limit that gpumem run sets for a lease nothing is refused, and
// the leases are counted right. With 2 MiB less something is.
func TestLeaseIsLeast(t *testing.T) {
	for _, as := range []string{"jax", "jax@0.4.30", "tensorflow", "pytorch", "pytorch@2.3", "rmm", "none"} {
		for seed := range uint64(6) {
			rng := rand.New(rand.NewPCG(seed, 7))
			one, two := random(t, rng), random(t, rng)
			const total = 4_294_000_037 // of which a fraction of 53 bits is seldom exact
			cfg := advise.Config{Sim: sim.Config{Total: total}, Context: 1 + uint64(rng.IntN(30*mib)), As: as}
			rep, err := advise.RunTogether(context.Background(), []*trace.Trace{one, two}, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if sum := rep.Programs[0].Lease + rep.Programs[1].Lease; sum != rep.Leases || !rep.Fits || rep.Left != total-sum {
				t.Errorf("%s, seed %d: %+v", as, seed, rep)
			}
			for i, m := range rep.Programs {
				var mem, overhead uint64
				words := m.Run[strings.Index(m.Run, "--mem"):]
				if _, err := fmt.Sscanf(words, "--mem %dMiB --overhead %dMiB -- COMMAND", &mem, &overhead); err != nil || mem*mib != m.Lease {
					t.Fatal(m.Run, err)
				}
				for _, less := range []uint64{0, 2 * mib} {
					if m.Lease-less == overhead*mib {
						continue // no pool
					}
					p := inLease(t, m, as, m.Lease-less, overhead*mib, total)
					if fits(t, []*trace.Trace{one, two}[i], "", p, sim.Config{Total: m.Lease - less, Context: cfg.Context}) != (less == 0) {
						t.Errorf("%s, seed %d, program %d: %s, with %d bytes less: fits is %v", as, seed, i, m.Run, less, less != 0)
					}
				}
			}
			one.Close()
			two.Close()
		}
	}
}

// inLease returns the policy that a program has in a lease, from the environment that
// gpumem run gives it.
func inLease(t *testing.T, m *advise.Member, as string, lease, overhead, total uint64) policy.Policy {
	t.Helper()
	if m.Pool != "" { // the library counts
		p := parsed(t, m.Pool)
		p.Limit = lease - overhead
		return p
	}
	e, err := runenv.For(nil, []string{"true"}, runenv.Limits{
		Leases: []runenv.Lease{{Bytes: lease, Total: total, Simulated: true}}, Overhead: &overhead, Hook: "/hook",
	})
	if err != nil {
		t.Fatal(err)
	}
	release, err := frameworks.ParseRelease(as)
	if err != nil {
		t.Fatal(err)
	}
	f, v, err := release.Find()
	if err != nil {
		t.Fatal(err)
	}
	r, refused := f.Read(policy.Environ(e.Env), v)
	if refused != nil {
		t.Fatal(refused)
	}
	p, card := r.Policy, policy.Device{Total: total, Free: total}
	get := func(name string) string { // what the hook reads
		i := slices.IndexFunc(e.Env, func(line string) bool { return strings.HasPrefix(line, name+"=") })
		if i < 0 {
			t.Fatalf("%s is not set", name)
		}
		return strings.TrimPrefix(e.Env[i], name+"=")
	}
	switch f.Name {
	case "tensorflow":
		n, err := strconv.ParseUint(get("GPUMEM_TF_LIMIT_MIB"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		p.Limit = n * mib
		return p
	case "pytorch":
		if p.Fraction, err = strconv.ParseFloat(get("GPUMEM_TORCH_FRACTION"), 64); err != nil {
			t.Fatal(err)
		}
	}
	p.Limit = max(1, p.LimitBytes(card))
	return p
}

// TestLeaseNamesItsSettings: what JAX needs to take a card stands in the command.
func TestLeaseNamesItsSettings(t *testing.T) {
	one := read(t, "a 1 1000000\n")
	defer one.Close()
	for as, want := range map[string]string{"jax": "XLA_FLAGS=--xla_gpu_experimental_vmm_disabled=true gpumem run --mem ", "pytorch": "gpumem run --mem "} {
		rep, err := advise.RunTogether(context.Background(), []*trace.Trace{one, one}, advise.Config{Sim: card(t, "sim:1GiB,vmm=false"), As: as})
		if err != nil {
			t.Fatal(err)
		}
		if got := rep.Programs[1].Run; !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", as, got)
		}
	}
}

// timed is a recording with times of our own format: at 1, 2 and so on the blocks are
// allocated, those of 0 are frees of the block before.
func timed(t *testing.T, pool string, blocks ...uint64) *trace.Trace {
	t.Helper()
	var file bytes.Buffer
	w, err := trace.NewWriter(&file)
	for i, n := range blocks {
		c := trace.Call{Pool: pool, ID: uint64(i), Bytes: n * mib, Time: uint64(i + 1)}
		if n == 0 {
			c.ID--
			err = errors.Join(err, w.Free(c))
		} else {
			err = errors.Join(err, w.Alloc(c))
		}
	}
	if err := errors.Join(err, w.Flush()); err != nil {
		t.Fatal(err)
	}
	return read(t, file.String())
}

// TestTogether: elastic takes the place of a framework's pool where the leases would be too
// large, and peaks that do not meet are said.
func TestTogether(t *testing.T) {
	a := timed(t, "GPU_0_bfc", 100, 0, 300, 0, 10)
	b := timed(t, "GPU_0_bfc", 300, 0, 100, 0, 10)
	defer a.Close()
	defer b.Close()
	holes := read(t, "a 1 200000000\na 2 1000000\na 3 200000000\nf 1\nf 3\na 4 400000000\n")
	defer holes.Close()
	small := read(t, "a 1 100000000\na 2 1000000\na 3 100000000\nf 1\nf 3\na 4 200000000\n")
	defer small.Close()
	two := timed(t, "GPU_0_bfc", 1)
	defer two.Close()
	for _, tc := range []struct {
		name     string
		traces   []*trace.Trace
		card     string
		fits     bool
		pools    string
		together uint64 // MiB; 0: unknown
	}{
		{"their own pools", []*trace.Trace{a, b}, "sim:1GiB", true, " ", 400},
		{"too small", []*trace.Trace{a, b}, "sim:500MiB", false, " ", 400},
		{"elastic for the one that saves", []*trace.Trace{a, holes, b}, "sim:1200MiB", true, " elastic ", 0},
		{"elastic for the one that saves most", []*trace.Trace{small, holes}, "sim:900MiB", true, " elastic", 0},
		{"elastic for both", []*trace.Trace{small, holes}, "sim:700MiB", true, "elastic elastic", 0},
		{"others hold a part", []*trace.Trace{a, b}, "sim:1GiB,used=512MiB", false, " ", 400},
		{"three", []*trace.Trace{a, two, b}, "sim:1GiB", true, "  ", 401},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rep, err := advise.RunTogether(context.Background(), tc.traces, advise.Config{Sim: card(t, tc.card), Context: 20 * mib, As: "jax"})
			if err != nil {
				t.Fatal(err)
			}
			var pools []string
			for _, m := range rep.Programs {
				pools = append(pools, m.Pool)
			}
			if got := strings.Join(pools, " "); rep.Fits != tc.fits || got != tc.pools {
				t.Errorf("fits %v, %q, %d of %d MiB", rep.Fits, got, rep.Leases/mib, rep.DeviceBytes/mib)
			}
			switch p := rep.PeakTogether; {
			case p == nil && tc.together != 0, p != nil && *p != tc.together*mib:
				t.Errorf("together %v, want %d MiB", p, tc.together)
			}
		})
	}
}

// TestNeed: the reason why nothing fits counts all pools of a GPU, and what was refused apart.
func TestNeed(t *testing.T) {
	var file bytes.Buffer
	w, err := trace.NewWriter(&file)
	for i, pool := range []string{"GPU_0_bfc", "GPU_collectivememory_0_bfc"} {
		err = errors.Join(err, w.Alloc(trace.Call{Pool: pool, ID: uint64(i), Bytes: uint64(100+i) * mib, Time: 1}))
	}
	if err := errors.Join(err, w.Flush()); err != nil {
		t.Fatal(err)
	}
	two := read(t, file.String())
	defer two.Close()
	file.Reset()
	w, err = trace.NewWriter(&file)
	for i, pool := range []string{"GPU_0_bfc", "GPU_1_bfc", "GPU_2_bfc"} {
		err = errors.Join(err, w.Alloc(trace.Call{Pool: pool, ID: uint64(i), Bytes: []uint64{100, 200, 50}[i] * mib, Time: 1}))
	}
	if err := errors.Join(err, w.Flush()); err != nil {
		t.Fatal(err)
	}
	gpus := read(t, file.String())
	defer gpus.Close()
	refused, err := formats.Open(context.Background(), "../trace/testdata/memdebug.log", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer refused.Close()
	for _, tc := range []struct {
		name string
		of   *trace.Trace
		card string
		want *advise.Need
	}{
		{"constants", two, "sim:225MiB", &advise.Need{Live: 201 * mib, Wanted: 201 * mib, Pools: 2, Processes: 1, TooMuch: true}},
		{"two pools", two, "sim:210MiB", &advise.Need{Live: 201 * mib, Wanted: 201 * mib, Pools: 2, Processes: 1, TooMuch: true}},
		{"others hold a part", two, "sim:300MiB,used=100MiB", &advise.Need{Live: 201 * mib, Wanted: 201 * mib, Pools: 2, Processes: 1, TooMuch: true}},
		{"the second GPU has more", gpus, "sim:150MiB", &advise.Need{Live: 200 * mib, Wanted: 200 * mib, Pools: 1, Processes: 1, TooMuch: true}},
		{"a refused request", refused, "sim:1GiB", &advise.Need{Live: 5120, Wanted: 32<<30 + 1024, Pools: 1, Processes: 1, TooMuch: true}},
		{"it fits", two, "sim:1GiB", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rep, err := advise.Run(context.Background(), tc.of, advise.Config{Sim: card(t, tc.card), Context: 20 * mib, Constants: 5 * mib, As: "jax"})
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(rep.Need, tc.want) {
				t.Errorf("%+v, want %+v", rep.Need, tc.want)
			}
		})
	}
	rep, err := advise.RunTogether(context.Background(), []*trace.Trace{two, refused}, advise.Config{Sim: card(t, "sim:1GiB"), As: "jax"})
	if err != nil {
		t.Fatal(err)
	}
	if m := rep.Programs[0]; rep.PeakTogether != nil || len(m.Others) != 1 || m.Beside < 100*mib {
		t.Errorf("%v, %+v", rep.PeakTogether, m)
	}
}

// TestTogetherErrors: what cannot share one card, or any.
func TestTogetherErrors(t *testing.T) {
	one := read(t, "a 1 5\n")
	defer one.Close()
	two, err := formats.Open(context.Background(), "../trace/testdata/torch2026.pickle", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer two.Close()
	host, err := formats.Open(context.Background(), "../trace/testdata/tensorflow.memdump", trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	huge := read(t, "a 1 1099511627777\n")
	defer huge.Close()
	for _, tc := range []struct {
		other    *trace.Trace
		as, want string
	}{
		{two, "", "the recording is of 2 GPUs, and several programs share one; --pool NAME picks it"},
		{host, "", "the recording has no memory of a GPU: bfc_cpu_allocator_for_gpu is host memory"},
		{huge, "", "does not fit any GPU"},
		{one, "trch", "unknown framework"},
	} {
		_, err := advise.RunTogether(context.Background(), []*trace.Trace{one, tc.other}, advise.Config{Sim: card(t, "sim:1GiB"), As: tc.as})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want %q", err, tc.want)
		}
	}
}
