package replay_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/internal/test/golden"
	"gpumem/policy"
	"gpumem/record/formats"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

// TestHang: the original asks a device that is full for ever for the last small
// region. Here the request is refused at once.
func TestHang(t *testing.T) {
	r := run(t, file(t, golden.Dir(), "peers", "hang.txt"),
		config(t, "sim:2MiB,granularity=1", "bfc:limit=4MiB,preallocate=false")).Results[0]
	if r.Refused != 1 || r.FirstRefused == nil || *r.FirstRefused != 2 {
		t.Errorf("refused %d, first %v; want 1, the second event", r.Refused, r.FirstRefused)
	}
}

// TestNear2to64: sizes that wrap when rounded are refused like any other.
func TestNear2to64(t *testing.T) {
	tr := text(t, "a 1 18446744073709551615\na 2 18446744073709551361\nf 1\na 3 512\nf 2\nf 3\n")
	for _, r := range run(t, tr, config(t, "sim:1GiB", "jax", "bfc:preallocate=false", "platform", "bfc:limit=8EiB")).Results {
		if r.Refused != 2 || *r.FirstRefused != 1 || r.Failure.Bytes != math.MaxUint64 || r.Stats.NumAllocs != 1 {
			t.Errorf("%s: refused %d, served %d", r.Policy, r.Refused, r.Stats.NumAllocs)
		}
		if r.LowerBound != math.MaxUint64 {
			t.Errorf("%s: lower bound %d", r.Policy, r.LowerBound)
		}
	}
}

// TestHeldGrowing: every figure of a growing pool, by hand.
func TestHeldGrowing(t *testing.T) {
	var b strings.Builder
	b.WriteString("a x 1048576\n") // event 1: a region of 2 MiB, early
	b.WriteString("f x\n")         // 2
	for range 97 {                 // 3 to 196: no driver call
		b.WriteString("a t 256\nf t\n") //
	} //
	b.WriteString("a y 3145728\n")        // 197: the next region has 4 MiB; late
	b.WriteString("a z 104857600\n")      // 198: 100 MiB, more than the limit; no call
	b.WriteString("f y\nf z\na last 0\n") // 199 to 201; of the last nothing is asked
	for _, c := range []struct {
		policy string
		idle   uint64
	}{
		{"bfc:limit=8MiB,preallocate=false", 6 * mib}, // a pool keeps what it has
		{"bfc:limit=8MiB,preallocate=false,gc=true", 0},
	} {
		r := one(t, b.String(), "sim:1GiB", c.policy)
		type figures struct {
			Peak, Idle, Bound, Late, Refused, First, Calls uint64
			Mean, Driver                                   float64
		}
		got := figures{r.HeldPeak, r.HeldIdle, r.LowerBound, r.LateAllocs, r.Refused, *r.FirstRefused, r.DriverCalls, r.HeldMean, r.DriverSeconds}
		want := figures{
			Peak: 6 * mib, Idle: c.idle,
			// At most 3 + 100 MiB were live, the refused ones included; in pages
			// of 2 MiB that is 104.
			Bound: 104 * mib,
			Late:  1, Refused: 1, First: 198,
			Calls: 2,
			// 196 events with 2 MiB, 5 with 6 MiB.
			Mean: float64(196*2+5*6) * mib / 201,
			// Two blocks opened at 160 us; 1 us for each MiB past the first two.
			// What the replay itself asks the device, to explain the refusal, is
			// not the policy's.
			Driver: 322e-6,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.policy, diff)
		}
		if r.EventNanos() != r.Seconds*1e9/201 {
			t.Errorf("%s: %v ns for each of 201 events in %v s", c.policy, r.EventNanos(), r.Seconds)
		}
	}
}

// TestHeldPlatform: the same of the passthrough.
func TestHeldPlatform(t *testing.T) {
	// Held after each event, in MiB: 2, 2+4, 4, 0. With fewer than 100 events
	// all are late.
	r := one(t, "a 1 1048576\na 2 3145728\nf 1\nf 2\n", "sim:1GiB", "platform")
	if r.HeldPeak != 6*mib || r.HeldMean != 3*mib || r.HeldIdle != 0 || r.LateAllocs != 2 || r.DriverCalls != 4 || r.LowerBound != 4*mib {
		t.Errorf("%+v", r)
	}
	// Of 200 events the first two are early.
	var b strings.Builder
	for i := range 100 {
		fmt.Fprintf(&b, "a %d 1\n", i)
	}
	for i := range 100 {
		fmt.Fprintf(&b, "f %d\n", i)
	}
	if r := one(t, b.String(), "sim:1GiB", "platform"); r.LateAllocs != 98 {
		t.Errorf("late %d, want 98", r.LateAllocs)
	}
	// Here the display has 2 MiB of 4, so the driver is asked and refuses: two
	// calls, 160 us and 5 us. The request that is larger than the device is
	// refused without asking. The replay's own question is left out.
	r = one(t, "a 1 2097152\na 2 1\na 3 9999999\n", "sim:4MiB,display=2MiB", "platform")
	if r.DriverCalls != 2 || r.DriverSeconds != 165e-6 || r.Refused != 2 || *r.FirstRefused != 2 || r.LateAllocs != 2 {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(r.Failure.Why, "The device has 0 B free. Live are 2 MiB (blocks: 1)") {
		t.Errorf("why:\n%s", r.Failure.Why)
	}
}

// TestLateOpening: what opening the pool asks the driver is a call, and no
// event's.
func TestLateOpening(t *testing.T) {
	r := one(t, "a 1 0\na 2 0\n", "sim:1GiB", "jax:of=free")
	if r.LateAllocs != 0 || r.DriverCalls != 1 {
		t.Errorf("late %d, want 0; calls %d, want 1", r.LateAllocs, r.DriverCalls)
	}
}

// TestZeroBytes: an empty request is served, is not refused, and has no place,
// which the digest counts as eight bytes 0xff.
func TestZeroBytes(t *testing.T) {
	d := golden.NewDigest()
	d.Add(golden.Refused)
	for _, p := range []string{"jax", "bfc:preallocate=false", "platform"} {
		r := one(t, "a 1 0\nf 1\n", "sim:1GiB", p)
		if !r.Fits || r.HeldPeak != 0 || r.DriverCalls != 0 || r.Stats.NumAllocs != 0 || r.Digest != d.String() {
			t.Errorf("%s: %+v", p, r)
		}
	}
}

// TestFreeOfRefused: it does nothing but counts, and the id may be used again.
func TestFreeOfRefused(t *testing.T) {
	tr := text(t, "# a comment\na big 2000000000\n\nf big\na big 256\nf big\n")
	rep := run(t, tr, config(t, "sim:1GiB", "jax"))
	if r := rep.Results[0]; rep.Trace.Events != 4 || rep.Trace.Allocs != 2 || rep.Trace.PeakLive != 2000000000 || r.Refused != 1 || r.Stats.NumAllocs != 1 {
		t.Errorf("%+v, %+v", rep.Trace, r)
	}
}

// TestUpperEnd: ids that begin with u lie at the upper end, with spatial only.
func TestUpperEnd(t *testing.T) {
	events := "a u1 1024\n"
	digest := func(offset uint64) string {
		d := golden.NewDigest()
		d.Add(offset)
		return d.String()
	}
	for p, offset := range map[string]uint64{
		"bfc:limit=1MiB,spatial=true": mib - 1024,
		"bfc:limit=1MiB":              0,
	} {
		if r := one(t, events, "sim:1MiB,granularity=1", p); r.Digest != digest(offset) {
			t.Errorf("%s: digest %s, want that of offset %d", p, r.Digest, offset)
		}
	}
}

// TestDigestCountsFromTheFirstAddress: wherever the device gave its first memory, by a grant, a
// reservation or its own pool, a block at the beginning of it has the offset 0.
func TestDigestCountsFromTheFirstAddress(t *testing.T) {
	d := golden.NewDigest()
	d.Add(0)
	for _, p := range []string{"bfc", "platform", "pytorch", "pytorch:expandable_segments=True", "async", "vmm"} {
		if r := one(t, "a 1 2097152\n", "sim:1GiB", p); r.Digest != d.String() {
			t.Errorf("%s: digest %s, want %s, that of offset 0", p, r.Digest, d)
		}
	}
}

// TestFailure: the first refusal says what, where, by whom and why.
func TestFailure(t *testing.T) {
	// Of 1 MiB two blocks of 256 KiB stay, and with them two holes.
	r := one(t, "a 1 262144\na 2 262144\na 3 262144\na 4 262144\nf 1\nf 3\na 5 524288\na 6 524288\n", "sim:1MiB,granularity=1", "bfc:limit=1MiB")
	f := r.Failure
	if f == nil || f.Event != 7 || f.Bytes != 524288 || f.Hole != 262144 || r.Refused != 2 || f.Stack != "" {
		t.Fatalf("%+v", f)
	}
	for _, want := range []string{
		"Why: 512 KiB was asked for",
		"The largest hole is 256 KiB at 0x7f0000000000",
		"One live block pins the memory: 256 KiB at 0x7f0000040000",
		"growth        no: the device has 0 B free",
		"splitting     no:",
		"paged memory  no:",
	} {
		if !strings.Contains(f.Why, want) {
			t.Errorf("no %q in\n%s", want, f.Why)
		}
	}
}

// TestFailureStack: a recording with stacks names who asked.
func TestFailureStack(t *testing.T) {
	tr := file(t, "..", "trace", "testdata", "torch2025.pickle")
	f := run(t, tr, config(t, "sim:2MiB", "jax")).Results[0].Failure
	if f == nil || f.Event != 6 || f.Bytes != 100 || f.Stack != "forward (model.py:12)\n<module> (train.py:40)" {
		t.Errorf("%+v", f)
	}
}

// TestPools: a result for each policy and pool, in that order.
func TestPools(t *testing.T) {
	tr := file(t, "..", "trace", "testdata", "torch2026.pickle")
	names := func(cfg replay.Config) (out []string) {
		for _, r := range run(t, tr, cfg).Results {
			out = append(out, r.Policy+" "+r.Pool)
		}
		return out
	}
	cfg := config(t, "sim:1GiB", "platform", "jax")
	if diff := cmp.Diff([]string{"platform cuda:0", "platform cuda:2", "jax cuda:0", "jax cuda:2"}, names(cfg)); diff != "" {
		t.Error(diff)
	}
	cfg.Pool = "cuda:2"
	if diff := cmp.Diff([]string{"platform cuda:2", "jax cuda:2"}, names(cfg)); diff != "" {
		t.Error(diff)
	}
	if got := run(t, tr, cfg).Trace.PoolNames; !cmp.Equal(got, []string{"cuda:0", "cuda:2"}) {
		t.Errorf("pools %q", got)
	}
}

func runErr(tr *trace.Trace, cfg replay.Config) error {
	rep, err := replay.Run(context.Background(), tr, cfg)
	if err != nil && rep != nil {
		return errors.New("a report beside the error")
	}
	return err
}

// fixed is a Config.Device that always makes d.
func fixed(d device.GPU) func(uint64) (device.GPU, error) {
	return func(uint64) (device.GPU, error) { return d, nil }
}

func TestErrors(t *testing.T) {
	tr := text(t, "a 1 100\nf 1\n")
	base := config(t, "sim:1GiB", "platform")
	with := func(change func(*replay.Config)) replay.Config {
		c := base
		change(&c)
		return c
	}
	lost, err := sim.New(sim.Config{Total: 4 * mib})
	if err != nil {
		t.Fatal(err)
	}
	lost.SetFaults(sim.Faults{LoseAt: 2})
	noDevice := errors.New("no such device")
	pools := file(t, "..", "trace", "testdata", "torch2026.pickle")
	closed, err := formats.Read(t.Context(), strings.NewReader("a 1 1\n"), "in", trace.Options{SpoolLimit: -1, TempDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for _, c := range []struct {
		name string
		run  func() error
		is   error
		want string
	}{
		{"no policy", func() error { return runErr(tr, with(func(c *replay.Config) { c.Policies = nil })) }, nil, "replay: no policy"},
		{"no device", func() error { return runErr(tr, with(func(c *replay.Config) { c.Device = nil })) }, nil, "replay: no device"},
		{"no pools", func() error { return runErr(tr, with(func(c *replay.Config) { c.Pool = "cuda:0" })) }, nil,
			`in: no pool is named "cuda:0"; the recording has one pool, without a name`},
		{"unknown pool", func() error { return runErr(pools, with(func(c *replay.Config) { c.Pool = "cuda: 1" })) }, nil,
			`../trace/testdata/torch2026.pickle: no pool is named "cuda: 1"; there are "cuda:0", "cuda:2"`},
		{"device", func() error {
			return runErr(tr, with(func(c *replay.Config) { c.Device = func(uint64) (device.GPU, error) { return nil, noDevice } }))
		}, noDevice, "in: policy platform: no such device"},
		{"lost device", func() error {
			return runErr(tr, with(func(c *replay.Config) { c.Device = fixed(lost) }))
		},
			device.ErrLost, "in: policy platform: event 2: cuMemFree on sim:4MiB: " + device.ErrLost.Error()},
		{"no such policy", func() error {
			return runErr(tr, with(func(c *replay.Config) { c.Policies = []policy.Policy{{Spec: "mine", Kind: 99}} }))
		}, gpumem.ErrNoPolicy, ""},
		{"closed trace", func() error { return runErr(closed, base) }, nil, "in: policy platform: trace: the trace is closed"},
		{"check", func() error {
			return replay.CheckPolicies(with(func(c *replay.Config) { c.Policies = append(c.Policies, policy.Policy{Spec: "mine", Kind: 99}) }))
		}, gpumem.ErrNoPolicy, ""},
		{"check device", func() error {
			return replay.CheckPolicies(with(func(c *replay.Config) { c.Device = func(uint64) (device.GPU, error) { return nil, noDevice } }))
		}, noDevice, "no such device"},
	} {
		err := c.run()
		if err == nil || c.want != "" && strings.ReplaceAll(err.Error(), `\`, "/") != c.want || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
	if err := replay.CheckPolicies(base); err != nil {
		t.Error(err)
	}
}

// TestMessagesOfTheOpeningAreNoNotes: vmm logs its budget when it is made, which is about the
// settings.
func TestMessagesOfTheOpeningAreNoNotes(t *testing.T) {
	if r := one(t, "a 1 1048576\n", "sim:1GiB", "vmm"); len(r.Notes) > 0 {
		t.Errorf("%q", r.Notes)
	}
}

// TestNotes: what a pool says on the way is in its result.
func TestNotes(t *testing.T) {
	// A device with 7 MiB takes three attempts to preallocate 8.
	r := one(t, "a 1 100\nf 1\n", "sim:8MiB,granularity=1,used=1MiB", "bfc:limit=8MiB")
	want := []string{
		"requests for a region that the device refused: 2",
		"GPU_0_bfc backed off: refused 8.00MiB, it took 6.48MiB (refusals: 2, limit: 8.00MiB)",
	}
	if diff := cmp.Diff(want, r.Notes); diff != "" {
		t.Error(diff)
	}
}
