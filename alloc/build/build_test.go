package build_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/policy"
	"gpumem/policy/frameworks"
)

func Example() {
	dev, _ := sim.New(sim.Config{Total: 24 << 30})
	p, _ := frameworks.Parse("jax:fraction=.5")
	a, err := build.New(dev, p, build.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	b, _ := a.Alloc(alloc.Request{Bytes: 1 << 20})
	fmt.Println(b.Size, a.Stats().BytesLimit>>30, a.Close())
	// Output: 1048576 12 <nil>
}

func parse(t *testing.T, spec string) policy.Policy {
	t.Helper()
	p, err := frameworks.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestEveryKindIsBuilt: each kind of policy gives its allocator, which hands out and
// takes back a block.
func TestEveryKindIsBuilt(t *testing.T) {
	for _, spec := range []string{"jax", "jax@next", "jax:preallocate=false", "tensorflow", "platform", "address", "async", "vmm", "elastic", "pytorch", "pytorch@2.8:expandable_segments=True"} {
		t.Run(spec, func(t *testing.T) {
			dev, err := sim.New(sim.Config{Total: 1 << 30})
			if err != nil {
				t.Fatal(err)
			}
			a, err := build.New(dev, parse(t, spec), build.Options{Deterministic: true})
			if err != nil {
				t.Fatal(err)
			}
			b, err := a.Alloc(alloc.Request{Bytes: 3 << 20})
			if err != nil || b.Size < 3<<20 || a.Free(b) != nil || a.Close() != nil {
				t.Errorf("%v, %v", b, err)
			}
			if free, total, err := dev.MemInfo(); err != nil || free != total {
				t.Errorf("%d of %d free after Close, %v", free, total, err)
			}
		})
	}
}

// TestFirstRequestTakesWhatIsSaid: after a first request of one byte the device has granted
// what Granted says, and the driver's pool a block for the request where that is nothing.
func TestFirstRequestTakesWhatIsSaid(t *testing.T) {
	const mib = 1 << 20
	r := rand.New(rand.NewPCG(39, 2))
	specs := []string{"jax", "jax@next", "jax@next:fraction=0.9+", "jax:fraction=.95", "jax@0.10.1", "jax:preallocate=false", "tensorflow", "tensorflow:preallocate=false", "bfc:fraction=1.5",
		"async", "async:preallocate=true", "async:preallocate=true,fraction=1", "async:async_prealloc=-1", "async:async_prealloc=700MiB", "async:async_prealloc=2GiB"}
	refused := 0
	for range 40 {
		for _, spec := range specs {
			used := uint64(r.IntN(900 * mib))
			dev, err := sim.New(sim.Config{Total: 1024 * mib, Used: used})
			if err != nil {
				t.Fatal(err)
			}
			p := parse(t, spec)
			free := 1024*mib - used
			want := p.Granted(policy.Device{Total: 1024 * mib, Free: free, CCMajor: 9})
			a, err := build.New(dev, p, build.Options{Deterministic: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.Alloc(alloc.Request{Bytes: 1}); err != nil && !errors.Is(err, alloc.ErrNoMemory) {
				t.Fatal(err)
			}
			held, _ := dev.Held()
			if p.Kind == policy.Async && want == 0 {
				refused++
				want = min(32*mib, free/(2*mib)*2*mib)
			}
			// The device grants whole units.
			if held < want || held-want >= 2*mib && (p.Kind != policy.Async || held-want >= 32*mib) {
				t.Errorf("%s, %d bytes used: %d are held, want %d", spec, used, held, want)
			}
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if refused < 40 {
		t.Errorf("the driver's pool got nothing in %d cases", refused)
	}
}

// TestWhatCannotBeBuilt: the error names the policy, and no allocator comes with it,
// not even a nil pointer in an interface.
func TestWhatCannotBeBuilt(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 1 << 30, NoManaged: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		dev  device.GPU
		p    policy.Policy
		want error
	}{
		{"no device", nil, frameworks.Default(), build.ErrNoDevice},
		{"empty policy", dev, policy.Policy{}, build.ErrNoPolicy},
		{"unknown kind", dev, policy.Policy{Spec: "x", Kind: 99}, build.ErrNoPolicy},
		{"explained only", dev, policy.Policy{Spec: "cupy", Name: "cupy", Kind: policy.Caching}, build.ErrNoPolicy},
		{"no unified memory", dev, policy.Policy{Spec: "x", Kind: policy.BFC, Fraction: .5, Managed: true}, device.ErrNotSupported},
		{"a grown pool with two ends", dev, policy.Policy{Spec: "x", Kind: policy.BFC, Fraction: .5, Spatial: true}, alloc.ErrBadRequest},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, err := build.New(tc.dev, tc.p, build.Options{})
			if a != nil || !errors.Is(err, tc.want) {
				t.Errorf("%v, %v; want %v", a, err, tc.want)
			}
		})
	}
}

// TestNextGrowsToItsCap: what a policy of a pool that grows says is what the allocator
// does: it begins with one part and serves up to the other.
func TestNextGrowsToItsCap(t *testing.T) {
	const mib = 1 << 20
	for spec, want := range map[string][2]uint64{"jax@next": {768, 1024}, "jax@next:fraction=0.25-0.5": {256, 512}, "jax@next:fraction=.5": {512, 512}} {
		dev, err := sim.New(sim.Config{Total: 1024 * mib})
		if err != nil {
			t.Fatal(err)
		}
		a, err := build.New(dev, parse(t, spec), build.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var first uint64
		served := uint64(0)
		for ; ; served++ {
			if _, err := a.Alloc(alloc.Request{Bytes: mib}); errors.Is(err, alloc.ErrNoMemory) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			if served == 0 {
				first = a.Stats().PoolBytes / mib
			}
		}
		if s := a.Stats(); first != want[0] || served != want[1] || s.BytesLimit != want[1]*mib || s.PoolBytes != want[1]*mib {
			t.Errorf("%s: begins with %d MiB, serves %d, limit %d, holds %d; want %v", spec, first, served, s.BytesLimit/mib, s.PoolBytes/mib, want)
		}
	}
}
