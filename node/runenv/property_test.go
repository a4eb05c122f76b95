package runenv

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
)

// releases are all releases of JAX that did something new.
func releases(t *testing.T) []string {
	const oldest = "0.1.16"
	list := []string{oldest}
	for _, c := range frameworks.Changes(frameworks.Release{Name: "jax", Version: oldest}, frameworks.Release{Name: "jax"}) {
		list = append(list, c.Version)
	}
	if len(list) < 15 {
		t.Fatalf("only %d releases: %v", len(list), list)
	}
	return append(list, "0.4.29", "0.9.0.1", "0.12.0.1", "99.0")
}

// TestJAXStaysWithin: whatever the user set, no release of JAX takes more than
// the lease less what is held outside of the pool; and with nothing set it takes
// all of that, but for the step of a float and 2 MiB.
func TestJAXStaysWithin(t *testing.T) {
	versions := releases(t)
	rapid.Check(t, func(t *rapid.T) {
		g := Limits{Growth: rapid.Bool().Draw(t, "growth")}
		for i := range rapid.IntRange(1, 3).Draw(t, "gpus") {
			total := rapid.Uint64Range(64*mib, 1<<48).Draw(t, "total")
			if rapid.Bool().Draw(t, "even") {
				total &^= 2*mib - 1
			}
			g.Leases = append(g.Leases, Lease{Visible: strconv.Itoa(i), Ordinal: i, Total: total, Simulated: true,
				Bytes: rapid.Uint64Range(1, total).Draw(t, "lease"), Context: rapid.Uint64Range(0, 600*mib).Draw(t, "context")})
		}
		env := draw(t, map[string][]string{
			"XLA_PYTHON_CLIENT_MEM_FRACTION": {".1", "0.75", "75", "-1", "nan", "inf", "0", "1e-3", "0.300000001", ""},
			"XLA_CLIENT_MEM_FRACTION":        {".1", "0.75", "1e400", "-0", ""},
			"XLA_PYTHON_CLIENT_PREALLOCATE":  {"true", "false", "no"},
			"XLA_PYTHON_CLIENT_ALLOCATOR":    {"default", "BFC", "vmm", "platform"},
			"TF_FORCE_UNIFIED_MEMORY":        {"1", "true", "0"},
			"JAX_PJRT_CLIENT_CREATE_OPTIONS": {"memory_fraction_policy:0.9+", "memory_fraction_policy:0.9;allocator:bfc"},
		})
		o, err := For(env, nil, g)
		if err != nil {
			return // too small a lease: TestRefusals
		}
		for _, v := range versions {
			for _, l := range g.Leases {
				d := policy.Device{Ordinal: l.Ordinal, Total: l.Total, Free: rapid.Uint64Range(0, l.Total).Draw(t, "free"), CCMajor: 8}
				a, err := explain.Environment(policy.Environ(o.Env), frameworks.Release{Name: "jax", Version: v}, d)
				if err != nil {
					t.Fatal(err)
				}
				if len(a.Errors) > 0 || a.Limit == nil || strings.Contains(strings.Join(o.Env, " "), "ALLOCATOR=platform") {
					continue // JAX refuses it, or it was told that nothing is enforced
				}
				if most := l.Bytes - l.Context; *a.Limit > most || a.First > most {
					t.Fatalf("JAX %s takes %d, first %d, of a lease with %d for its pool: %q", v, *a.Limit, a.First, most, o.Env)
				}
			}
		}
		if len(g.Leases) == 1 && len(env) == 0 {
			l := g.Leases[0]
			a, _ := explain.Environment(policy.Environ(o.Env), frameworks.Release{Name: "jax"}, policy.Device{Total: l.Total, Free: l.Total})
			if least := l.Bytes - l.Context; *a.Limit+2*mib+l.Total>>23 < least {
				t.Fatalf("JAX takes only %d of %d", *a.Limit, least)
			}
		}
	})
}

// draw sets some of the variables.
func draw(t *rapid.T, choices map[string][]string) []string {
	var env []string
	for _, name := range []string{"XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE",
		"XLA_PYTHON_CLIENT_ALLOCATOR", "TF_FORCE_UNIFIED_MEMORY", "JAX_PJRT_CLIENT_CREATE_OPTIONS"} {
		if rapid.Bool().Draw(t, "set "+name) {
			env = append(env, name+"="+rapid.SampledFrom(choices[name]).Draw(t, name))
		}
	}
	return env
}

// TestFractionText: the text reads as one float, in 64 bits and in 32.
func TestFractionText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Uint64Range(64*mib, 1<<48).Draw(t, "total")
		l := Lease{Bytes: rapid.Uint64Range(1, total).Draw(t, "lease"), Total: total, Simulated: true}
		o, err := For(nil, nil, Limits{Leases: []Lease{l}})
		if err != nil {
			return
		}
		text := get(o, fractionVar)
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || f != float64(float32(f)) || !(f > 0 && f <= 1) {
			t.Fatalf("%q is %v, %v", text, f, err)
		}
	})
}

// TestOthersStayWithin: the limits of the other frameworks, by their own
// arithmetic.
func TestOthersStayWithin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Uint64Range(64*mib, 1<<48).Draw(t, "total")
		l := Lease{Bytes: rapid.Uint64Range(1, total).Draw(t, "lease"), Total: total, Simulated: true}
		var env []string
		if rapid.Bool().Draw(t, "cupy") {
			env = []string{"CUPY_GPU_MEMORY_LIMIT=" + rapid.SampledFrom([]string{"0", "50%", "100%", "1000000000", "0%", " 12.5 %"}).Draw(t, "limit")}
		}
		o, err := For(env, nil, Limits{Leases: []Lease{l}})
		if err != nil {
			return
		}
		var limit uint64
		var fraction, torch float64
		fmt.Sscan(get(o, hookLimitVar), &limit)
		fmt.Sscan(get(o, hookFractionVar), &fraction)
		fmt.Sscan(get(o, hookTorchVar), &torch)
		cupy, ok := cupyLimit(get(o, cupyVar), total)
		if limit<<20 > l.Bytes || uint64(fraction*float64(total)) > l.Bytes || uint64(torch*float64(total)) > l.Bytes || !ok || cupy == 0 || cupy > l.Bytes {
			t.Fatalf("a lease of %d of %d: %d MiB, %v, %v, %d", l.Bytes, total, limit, fraction, torch, cupy)
		}
	})
}
