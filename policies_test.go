package gpumem_test

import (
	"fmt"
	"strings"
	"testing"

	"gpumem"
	"gpumem/device/sim"
	"gpumem/policy"
	"gpumem/policy/frameworks"
)

// TestFrameworkPools: the limit and the first region of the policies that a
// framework's name opens, on a device of 24 GiB. The figures are those that the
// frameworks' own tables in package policy check.
func TestFrameworkPools(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		spec    string
		cc      int
		used    uint64
		env     []string // for the policy env
		limit   uint64
		taken   uint64
		refused string
	}{
		{spec: "tensorflow", cc: 9, limit: 24*gib - 1800<<20, taken: 24*gib - 1800<<20},
		{spec: "tensorflow", cc: 8, limit: 24*gib - 1536<<20, taken: 24*gib - 1536<<20},
		{spec: "tensorflow", cc: 7, limit: 24*gib - 1050<<20, taken: 24*gib - 1050<<20},
		{spec: "tensorflow", cc: 6, limit: 24*gib - 500<<20, taken: 24*gib - 500<<20},
		{spec: "tensorflow", cc: 9, used: 20 * gib, limit: 4*gib - 1800<<20, taken: 4*gib - 1800<<20},
		{spec: "tensorflow", cc: 9, used: 23 * gib, limit: 1*gib - 225<<20, taken: 1*gib - 225<<20},
		{spec: "tensorflow@2.12", cc: 9, limit: 24*gib - 1536<<20, taken: 24*gib - 1536<<20},
		{spec: "tensorflow@2.4", cc: 9, limit: 24223615550, taken: 24223615488},
		{spec: "tensorflow:fraction=.5", cc: 9, limit: 12 * gib, taken: 12 * gib},
		{spec: "tensorflow:fraction=.5,preallocate=false", cc: 9, limit: 12 * gib, taken: 2 << 20},
		{spec: "tensorflow@2.4:preallocate=false", cc: 9, limit: 24223615550, taken: 1 << 20}, // of which the driver may make two: the pool uses one
		{spec: "tensorflow:limit=1GiB", cc: 9, limit: gib, taken: gib},
		{spec: "tensorflow:fraction=1.5", cc: 9, limit: 36 * gib, taken: 36 * gib},
		{spec: "tensorflow:fraction=1.5", cc: 5, refused: "pre-Pascal"},
		{spec: "jax@0.4.0", cc: 9, used: 4 * gib, limit: 19327352832, taken: 19327352832},
		{spec: "env", cc: 9, env: []string{"TF_FORCE_UNIFIED_MEMORY=1", "XLA_CLIENT_MEM_FRACTION=4"}, limit: 96 * gib, taken: 96 * gib},
		{spec: "env", cc: 9, env: []string{"TF_FORCE_UNIFIED_MEMORY=1", "XLA_CLIENT_MEM_FRACTION=.5"}, limit: 24 * gib, taken: 24 * gib},
		{spec: "env", cc: 9, env: []string{"XLA_CLIENT_MEM_FRACTION=nan"}, limit: 1 << 63, taken: 25599934464},
	} {
		name := fmt.Sprintf("%s %s cc %d, %d GiB used", tc.spec, strings.Join(tc.env, " "), tc.cc, tc.used/gib)
		t.Run(name, func(t *testing.T) {
			p, err := frameworks.Parse(tc.spec)
			if tc.spec == "env" {
				p, _, err = frameworks.FromEnv(policy.Environ(tc.env))
			}
			if err != nil {
				t.Fatal(err)
			}
			dev, err := sim.New(sim.Config{Total: 24 * gib, Used: tc.used, CCMajor: tc.cc})
			if err != nil {
				t.Fatal(err)
			}
			pool, err := gpumem.Open(dev, p)
			if tc.refused != "" {
				if err == nil || !strings.Contains(err.Error(), tc.refused) || !strings.Contains(err.Error(), tc.spec) {
					t.Fatalf("error %v, want one with %q", err, tc.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := pool.Alloc(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if s := pool.Stats(); s.BytesLimit != tc.limit || s.PoolBytes != tc.taken {
				t.Errorf("limit %d, taken %d; want %d, %d", s.BytesLimit, s.PoolBytes, tc.limit, tc.taken)
			}
			if err := pool.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestGrantLimit: TF_PER_DEVICE_MEMORY_LIMIT_MB bounds single requests of the
// driver, not their sum.
func TestGrantLimit(t *testing.T) {
	p, _, err := frameworks.FromEnv(policy.Environ([]string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform", "TF_PER_DEVICE_MEMORY_LIMIT_MB=100"}))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := sim.New(sim.Config{Total: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := gpumem.Open(dev, p, gpumem.WithRetry(0))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := pool.Alloc(t.Context(), 100<<20); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pool.Alloc(t.Context(), 100<<20+1); err == nil {
		t.Error("a request above the limit was served")
	}
}
