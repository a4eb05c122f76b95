// Tests of the options for PJRT clients.
package policy_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpumem/policy"
	"gpumem/policy/frameworks"
)

func TestClientOptions(t *testing.T) {
	d := policy.Device{Total: 80 << 30, Free: 20 << 30}
	for _, tc := range []struct {
		spec    string
		devices []int
		want    map[string]any
		text    string
	}{
		{"jax", nil, map[string]any{"allocator": "bfc", "memory_fraction": float32(.75), "preallocate": true},
			"xla:cuda,allocator=bfc,memory_fraction=0.75,preallocate=true"},
		{"jax:preallocate=false,fraction=.4", []int{0, 1},
			map[string]any{"allocator": "bfc", "memory_fraction": float32(.4), "preallocate": false, "visible_devices": []int64{0, 1}},
			"xla:cuda,allocator=bfc,memory_fraction=0.4,preallocate=false,visible_devices=0;1"},
		{"jax:limit=40GiB", []int{3}, map[string]any{"allocator": "bfc", "memory_fraction": float32(.5), "preallocate": true, "visible_devices": []int64{3}},
			"xla:cuda,allocator=bfc,memory_fraction=0.5,preallocate=true,visible_devices=3"},
		{"bfc:of=free,fraction=1", nil, map[string]any{"allocator": "bfc", "memory_fraction": float32(.25), "preallocate": true},
			"xla:cuda,allocator=bfc,memory_fraction=0.25,preallocate=true"},
		{"platform", nil, map[string]any{"allocator": "platform"}, "xla:cuda,allocator=platform"},
		{"address", nil, map[string]any{"allocator": "address"}, "xla:cuda,allocator=address"},
		{"vmm:fraction=.5", nil, map[string]any{"allocator": "vmm", "memory_fraction": float32(.5)}, "xla:cuda,allocator=vmm,memory_fraction=0.5"},
		{"async:preallocate=true", nil, map[string]any{"allocator": "cuda_async", "memory_fraction": float32(.75), "preallocate": true},
			"xla:cuda,allocator=cuda_async,memory_fraction=0.75,preallocate=true"},
	} {
		t.Run(tc.spec, func(t *testing.T) {
			p := mustParse(t, tc.spec)
			got, err := p.ClientOptions(d, tc.devices...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
			if text, err := p.GoMLX(d, tc.devices...); text != tc.text || err != nil {
				t.Errorf("%q, %v; want %q", text, err, tc.text)
			}
		})
	}
	for spec, want := range map[string]string{
		"elastic":                 "XLA has no allocator elastic",
		"bfc:gc=true":             "XLA's client has no option for gc",
		"bfc:align=512":           "XLA's client has no option for gc, coalesce, fragmentation or align",
		"async:async_prealloc=-1": "set TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=-1 in the environment",
	} {
		if _, err := mustParse(t, spec).GoMLX(d); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), spec) {
			t.Errorf("%s: %v, want %s", spec, err, want)
		}
	}
	if _, err := mustParse(t, "jax:limit=1GiB").ClientOptions(policy.Device{}); err == nil || !strings.Contains(err.Error(), "is not known") {
		t.Error(err)
	}
	p := policy.Policy{Spec: "env", Kind: policy.BFC, Managed: true}
	if _, err := p.ClientOptions(d); err == nil || !strings.Contains(err.Error(), "TF_FORCE_UNIFIED_MEMORY=true") {
		t.Error(err)
	}
}

// A plan of 40 GiB on GPU 0, as GoMLX takes it.
func ExamplePolicy_GoMLX() {
	p, err := frameworks.Parse("jax:limit=40GiB")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.GoMLX(policy.Device{Total: 80 << 30}, 0))
	// Output: xla:cuda,allocator=bfc,memory_fraction=0.5,preallocate=true,visible_devices=0 <nil>
}

// TestFractionFor: it never takes more, and the next 32-bit float would.
func TestFractionFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := policy.Device{Total: rapid.Uint64Range(1<<20, 1<<48).Draw(t, "total")}
		d.Free = rapid.Uint64Range(1, d.Total).Draw(t, "free")
		p := policy.Policy{
			RoundLimit: rapid.SampledFrom([]uint64{0, 2 << 20}).Draw(t, "round"),
			Of:         rapid.SampledFrom([]policy.Basis{policy.Total, policy.Free}).Draw(t, "of"),
		}
		limit := rapid.Uint64Range(0, d.Total).Draw(t, "limit")
		p.Fraction = policy.FractionFor(limit, p, d)
		if got := p.LimitBytes(d); got > limit {
			t.Fatalf("fraction %v takes %d of %d", p.Fraction, got, limit)
		}
		p.Fraction = float64(math.Nextafter32(float32(p.Fraction), math.MaxFloat32))
		if got := p.LimitBytes(d); got <= limit {
			t.Fatalf("fraction %v would take %d of %d", p.Fraction, got, limit)
		}
	})
}
