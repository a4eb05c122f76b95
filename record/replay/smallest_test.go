package replay_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/device"
	"gpumem/record/formats"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

// sound checks what is promised of the smallest device: nothing is refused
// there, and something is at 1 MiB less. A device that cannot be made, for
// others hold more than that, refuses everything.
func sound(tr *trace.Trace, cfg replay.Config) error {
	cfg.Smallest = true
	rep, err := replay.Run(context.Background(), tr, cfg)
	if err != nil {
		return err
	}
	for i, r := range rep.Results {
		if r.Smallest == nil || *r.Smallest == 0 || *r.Smallest%mib != 0 {
			return fmt.Errorf("%s: %v is not a whole number of MiB", r.Policy, r.Smallest)
		}
		for total, want := range map[uint64]bool{*r.Smallest: true, *r.Smallest - mib: false} {
			fits := false
			if _, err := cfg.Device(total); err == nil {
				at := cfg
				at.Total, at.Smallest, at.Policies = total, false, cfg.Policies[i:i+1]
				rep, err := replay.Run(context.Background(), tr, at)
				if err != nil {
					return err
				}
				fits = rep.Results[0].Fits
			}
			if fits != want {
				return fmt.Errorf("%s: the smallest device is said to have %d MiB; on %d MiB fits is %v", r.Policy, *r.Smallest/mib, total/mib, fits)
			}
		}
	}
	return nil
}

// TestSmallest: on random recordings, for each kind of policy, from devices that
// are too small, too large and not whole MiB, shared and not.
func TestSmallest(t *testing.T) {
	devices := []string{
		"sim:64MiB", "sim:1KiB", "sim:3MiB", "sim:1GiB,used=300MiB", "sim:70001KiB,display=7MiB,used=1000B",
		"sim:8MiB,granularity=1", "sim:16MiB,granularity=65536,used=16MiB",
	}
	policies := []string{"bfc", "bfc:preallocate=false", "platform", "jax", "jax:of=free", "bfc:fraction=1,preallocate=false,gc=true"}
	rapid.Check(t, func(rt *rapid.T) {
		var b strings.Builder
		var live []int
		for i := range rapid.IntRange(1, 30).Draw(rt, "events") {
			if len(live) > 0 && rapid.Bool().Draw(rt, "free") {
				k := rapid.IntRange(0, len(live)-1).Draw(rt, "which")
				fmt.Fprintf(&b, "f %d\n", live[k])
				live = append(live[:k], live[k+1:]...)
				continue
			}
			// Evenly by the number of digits; 0 to 32 MiB.
			n := rapid.IntRange(0, 1<<rapid.IntRange(0, 25).Draw(rt, "bits")).Draw(rt, "bytes")
			fmt.Fprintf(&b, "a %d %d\n", i, n)
			live = append(live, i)
		}
		device := rapid.SampledFrom(devices).Draw(rt, "device")
		tr, err := formats.Read(context.Background(), strings.NewReader(b.String()), "in", trace.Options{})
		if err != nil {
			rt.Fatal(err)
		}
		defer tr.Close()
		if err := sound(tr, config(t, device, rapid.SampledFrom(policies).Draw(rt, "policy"))); err != nil {
			rt.Errorf("on %s: %v\n%s", device, err, b.String())
		}
	})
}

// TestSmallestKnown: cases that can be computed by hand.
func TestSmallestKnown(t *testing.T) {
	// No device is large enough where the policy's own limit is too small, or
	// the request is. A device that is known to fit is not needed to begin with.
	for _, c := range []struct {
		events, device, policy string
		want                   uint64 // MiB; 0: none
	}{
		{"a 1 5242880\n", "sim:1GiB", "bfc:limit=4MiB", 0},
		{"a 1 5242880\n", "sim:1GiB", "jax:limit=4MiB,preallocate=false", 0},
		{"a 1 18446744073709551615\n", "sim:1GiB", "platform", 0},
		{"a 1 1048576\na 2 9223372036854775808\n", "sim:80GiB", "elastic", 0},
		{"a 1 1048576\na 2 9223372036854775808\n", "sim:80GiB", "jax", 0},
		{"a 1 5242880\n", "sim:1GiB", "bfc:limit=5MiB", 6}, // in grants of 2 MiB
		{"a 1 5242880\n", "sim:1GiB,granularity=1", "bfc:limit=5MiB", 5},
		{"a 1 5242880\n", "sim:1KiB,granularity=1", "platform", 5},
		{"a 1 5242880\n", "sim:100GiB,granularity=1,used=3MiB,display=2MiB", "platform", 10},
		{"a 1 5242880\n", "sim:8MiB,granularity=1,used=8MiB", "platform", 13},
		{"a 1 3145728\n", "sim:1GiB,granularity=1", "bfc", 4}, // 75 % of it
		{"a 1 0\n", "sim:1GiB", "platform", 1},                // there is no device of 0 bytes
		{"a 1 0\n", "sim:1KiB", "jax", 1},
	} {
		cfg := config(t, c.device, c.policy)
		cfg.Smallest = true
		got := run(t, text(t, c.events), cfg).Results[0].Smallest
		switch {
		case got == nil && c.want == 0:
		case got == nil || *got != c.want*mib:
			t.Errorf("%s of %q on %s: %v, want %d MiB", c.policy, c.events, c.device, got, c.want)
		}
	}
	if r := one(t, "a 1 1\n", "sim:1GiB", "jax"); r.Smallest != nil {
		t.Errorf("nobody asked: %d", *r.Smallest)
	}
}

// TestSmallestTriesNoDeviceFarFromTheAnswer: a pool of pages takes time and memory for
// each page of the device that it maps.
func TestSmallestTriesNoDeviceFarFromTheAnswer(t *testing.T) {
	for _, c := range []struct {
		policy     string
		tries      int
		want, most uint64 // MiB
	}{
		{"elastic", 2, 4096, 4096},
		{"platform", 2, 4096, 4096},
		{"jax:fraction=.5,preallocate=false", 20, 8189, 12288},
	} {
		cfg := config(t, "sim:80GiB", c.policy)
		cfg.Smallest = true
		cfg.Untimed = true
		open := cfg.Device
		tries, most := 0, uint64(0)
		cfg.Device = func(total uint64) (device.GPU, error) {
			if total != cfg.Total {
				tries, most = tries+1, max(most, total)
			}
			return open(total)
		}
		r := run(t, text(t, "a 1 4294967296\nf 1\n"), cfg).Results[0]
		if *r.Smallest != c.want*mib || tries > c.tries || most > c.most*mib {
			t.Errorf("%s: %d MiB after %d devices, the largest of %d MiB; want %d after %d of at most %d", c.policy, *r.Smallest/mib, tries, most/mib, c.want, c.tries, c.most)
		}
	}
}

// TestSmallestTriesNoSizeThatIsDecided: a device below one that is refused, or above one that
// fits, is not tried, and none twice. Under this policy what fits a device fits a larger one.
func TestSmallestTriesNoSizeThatIsDecided(t *testing.T) {
	cfg := config(t, "sim:80GiB", "jax:fraction=.5,preallocate=false")
	cfg.Smallest, cfg.Untimed = true, true
	open := cfg.Device
	var tried []uint64
	cfg.Device = func(total uint64) (device.GPU, error) {
		if total != cfg.Total {
			tried = append(tried, total)
		}
		return open(total)
	}
	smallest := *run(t, text(t, "a 1 4294967296\nf 1\n"), cfg).Results[0].Smallest
	refused, fits := uint64(0), uint64(math.MaxUint64)
	for i, total := range tried {
		if total <= refused || total >= fits {
			t.Errorf("try %d of %d: a device of %d MiB, after %d MiB was refused and %d MiB fitted",
				i+1, len(tried), total/mib, refused/mib, fits/mib)
		}
		if total < smallest {
			refused = max(refused, total)
		} else {
			fits = min(fits, total)
		}
	}
	if refused != smallest-mib || fits != smallest {
		t.Errorf("the smallest has %d MiB; %d MiB was refused and %d MiB fitted", smallest/mib, refused/mib, fits/mib)
	}
}

// TestFits: Fits says what Run says, for each pool and policy together.
func TestFits(t *testing.T) {
	tr := text(t, "a 1 1000\na 2 3000000\n")
	for _, tc := range []struct {
		total    uint64
		policies []string
		want     bool
	}{
		{6 * mib, []string{"platform"}, true},
		{5 * mib, []string{"platform"}, false},
		{6 * mib, []string{"platform", "bfc:limit=1MiB"}, false},
	} {
		got, err := replay.Fits(t.Context(), tr, config(t, "sim:1GiB", tc.policies...), tc.total)
		if err != nil || got != tc.want {
			t.Errorf("%v on %d MiB: %v, %v", tc.policies, tc.total/mib, got, err)
		}
	}
	cfg := config(t, "sim:1GiB", "jax")
	cfg.Pool = "x"
	if _, err := replay.Fits(t.Context(), tr, cfg, mib); err == nil {
		t.Error("there is no such pool")
	}
	cfg.Pool, cfg.Untimed = "", true
	if r := run(t, tr, cfg).Results[0]; r.Seconds != 0 || !r.Fits {
		t.Errorf("untimed: %+v", r)
	}
}
