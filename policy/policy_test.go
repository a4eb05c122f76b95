// Tests of the struct and of the limit computed from it.
package policy_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"gpumem/policy"
	"gpumem/policy/frameworks"
)

// a100 is what an A100 of 80 GiB reports as its total memory, in bytes.
const a100 = 85045542912

func mustParse(t *testing.T, spec string) policy.Policy {
	t.Helper()
	p, err := frameworks.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestLimitBytes(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		name, spec  string
		total, free uint64
		want        uint64
	}{
		// The first two tell a 32-bit fraction from a double.
		{"jax before rounding", "jax@0.10.1:fraction=0.9", a100, a100, 76540986593},
		{"bfc in doubles", "bfc:fraction=0.9", a100, a100, 76540988620},
		{"jax rounded up to 2 MiB", "jax:fraction=0.9", a100, a100, 76541853696},
		{"first rounding release", "jax@0.10.2:fraction=0.9", a100, a100, 76541853696},
		{"jax of 80 GiB", "jax", 80 * gib, 0, 60 * gib},
		{"jax of an A100", "jax", a100, 0, 63784878080}, // 63784157184 rounded up; the number in XLA's own log
		{"jax before 0.10.2 of an A100", "jax@0.10.1", a100, 0, 63784157184},
		{"0.9 of free", "jax@0.4.0", 80 * gib, 40 * gib, 38654705664}, // a double before 0.4.30
		{"0.9 of total", "jax@0.4.1", 80 * gib, 40 * gib, 77309411328},
		{"a double before 0.4.30", "jax@0.4.29:fraction=0.9", a100, a100, 76540988620},
		{"32 bits from 0.4.30 on", "jax@0.4.30:fraction=0.9", a100, a100, 76540986593},
		{"of=free", "bfc:of=free", 80 * gib, 40 * gib, 30 * gib},
		{"fraction above 1", "bfc:fraction=1.5", 80 * gib, 0, 120 * gib},
		{"limit wins over fraction", "jax:limit=1000B,fraction=.5", 80 * gib, 0, 1000},
		{"limit above the device", "bfc:limit=1TiB", 80 * gib, 0, 1 << 40},
		{"no device", "jax", 0, 0, 0},
		{"platform", "platform", 80 * gib, 40 * gib, 80 * gib},
		{"address", "address", 80 * gib, 40 * gib, 80 * gib},
		{"async", "async", 80 * gib, 40 * gib, 60 * gib},
		{"vmm", "vmm", a100, 0, a100},
		{"vmm capped", "vmm:fraction=0.5", 80 * gib, 0, 40 * gib},
		{"elastic", "elastic", a100, 0, a100},
		{"elastic capped", "elastic:limit=3GiB", 80 * gib, 0, 3 * gib},
		{"elastic of what is free", "elastic:of=free", 80 * gib, 40 * gib, 40 * gib},
		{"product above 2^63", "bfc:fraction=1e300", 80 * gib, 0, 1 << 63},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := mustParse(t, tc.spec).LimitBytes(policy.Device{Total: tc.total, Free: tc.free}); got != tc.want {
				t.Errorf("%s on %d, %d free: %d, want %d", tc.spec, tc.total, tc.free, got, tc.want)
			}
		})
	}
}

// TestLimitBytesOddFractions: what an environment can say and a sane person does not.
func TestLimitBytesOddFractions(t *testing.T) {
	for _, tc := range []struct {
		name     string
		fraction float64
		round    uint64
		want     uint64
	}{
		{"zero", 0, 2 << 20, 0},
		{"negative", -0.5, 1, math.MaxUint64 - 499},
		{"NaN", math.NaN(), 2 << 20, 1 << 63},
		{"infinite", math.Inf(1), 2 << 20, 1 << 63},
		{"minus infinite", math.Inf(-1), 2 << 20, 1 << 63},
		{"less than a byte", 1e-12, 2 << 20, 0},
		{"one byte", 1e-3, 2 << 20, 2 << 20},
		{"one byte, not rounded", 1e-3, 1, 1},
		{"largest rounding", 1e-3, math.MaxUint64, math.MaxUint64},
		{"2^63 in threes", math.Inf(1), 3, 1<<63 + 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := policy.Policy{Kind: policy.BFC, Fraction: tc.fraction, RoundLimit: tc.round}
			if got := p.LimitBytes(policy.Device{Total: 1000}); got != tc.want {
				t.Errorf("LimitBytes = %d, want %d", got, tc.want)
			}
		})
	}
}

// TestLimitBytesProperties: a computed limit is a multiple of RoundLimit, less
// than one step above the exact product, and grows with the fraction.
func TestLimitBytesProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Uint64Range(0, 1<<50).Draw(t, "total")
		p := policy.Policy{
			Fraction:   rapid.Float64Range(0, 2).Draw(t, "fraction"),
			RoundLimit: rapid.Uint64Range(0, 1<<30).Draw(t, "round"),
		}
		n := p.LimitBytes(policy.Device{Total: total})
		step := max(p.RoundLimit, 1)
		if n%step != 0 {
			t.Fatalf("%d is no multiple of %d", n, step)
		}
		if exact := uint64(float64(total) * p.Fraction); n < exact || n-exact >= step {
			t.Fatalf("%d is not %d rounded up to %d", n, exact, step)
		}
		p.Fraction /= 2
		if less := p.LimitBytes(policy.Device{Total: total}); less > n {
			t.Fatalf("half the fraction gives %d, more than %d", less, n)
		}
	})
}

func TestNames(t *testing.T) {
	for k, want := range map[policy.Kind]string{
		policy.BFC: "bfc", policy.Platform: "platform", policy.Address: "address",
		policy.Async: "async", policy.VMM: "vmm", policy.Elastic: "elastic", 9: "Kind(9)",
	} {
		if got := k.String(); got != want {
			t.Errorf("Kind %d is %q, want %q", uint8(k), got, want)
		}
	}
	for b, want := range map[policy.Basis]string{policy.Total: "total", policy.Free: "free", 9: "Basis(9)"} {
		if got := b.String(); got != want {
			t.Errorf("Basis %d is %q, want %q", uint8(b), got, want)
		}
	}
}

// TestGrows: a pool grows only where each of its settings lets it, however they came into
// the struct; what it begins with is never above its limit.
func TestGrows(t *testing.T) {
	next := policy.Policy{Kind: policy.BFC, Preallocate: true, Spatial: true, TopDown: true, Fraction: .75, Cap: 1, RoundLimit: 2 << 20}
	for name, tc := range map[string]struct {
		change func(*policy.Policy)
		want   bool
	}{
		"as it is":             {func(*policy.Policy) {}, true},
		"no cap":               {func(p *policy.Policy) { p.Cap = 0 }, false},
		"no cap, and below 0":  {func(p *policy.Policy) { p.Cap, p.Fraction = 0, -1 }, false},
		"cap at the fraction":  {func(p *policy.Policy) { p.Cap = .75 }, false},
		"cap below it":         {func(p *policy.Policy) { p.Cap = .5 }, false},
		"another kind":         {func(p *policy.Policy) { p.Kind = policy.VMM }, false},
		"no preallocation":     {func(p *policy.Policy) { p.Preallocate = false }, false},
		"one end":              {func(p *policy.Policy) { p.TopDown = false }, false},
		"a limit in bytes":     {func(p *policy.Policy) { p.Limit = 1 << 30 }, false},
		"unified memory":       {func(p *policy.Policy) { p.Managed = true }, false},
		"a cap below the GPU":  {func(p *policy.Policy) { p.Cap = .8 }, true},
		"nearly no difference": {func(p *policy.Policy) { p.Cap = .75001 }, true},
	} {
		p := next
		tc.change(&p)
		if p.Grows() != tc.want {
			t.Errorf("%s: grows %v", name, p.Grows())
		}
		for _, total := range []uint64{1 << 10, 3 << 20, 24<<30 + 12345, 80 << 30} {
			d := policy.Device{Total: total, Free: total}
			limit, initial := p.LimitBytes(d), p.InitialBytes(d)
			isCap := limit <= total && limit%p.RoundLimit == 0
			if initial > limit || tc.want && !isCap || !tc.want && initial != limit {
				t.Errorf("%s of %d bytes: %d first, at most %d", name, total, initial, limit)
			}
		}
	}
}
