// Tests of --policy.
package frameworks_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/policy"
	"gpumem/policy/frameworks"
)

func parsed(t *testing.T, spec string) policy.Policy {
	t.Helper()
	p, err := frameworks.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestParse(t *testing.T) {
	jax := frameworks.Default()
	bfc := policy.Policy{Name: "bfc", Kind: policy.BFC, Preallocate: true, Fraction: 0.75}
	async := policy.Policy{Name: "async", Kind: policy.Async, AsyncKeep: true, Fraction: 0.75}
	elastic := policy.Policy{Name: "elastic", Kind: policy.Elastic, Fraction: 1}
	with := func(p policy.Policy, change func(*policy.Policy)) policy.Policy {
		change(&p)
		return p
	}
	type P = policy.Policy

	for _, tc := range []struct {
		spec string
		want policy.Policy // but for Spec
	}{
		{"jax", jax},
		{"bfc", bfc},
		{"platform", P{Name: "platform", Kind: policy.Platform}},
		{"address", P{Name: "address", Kind: policy.Address}},
		{"async", async},
		{"vmm", P{Name: "vmm", Kind: policy.VMM, Fraction: 1}},
		{"elastic", elastic},
		{"pytorch", P{Name: "pytorch", Kind: policy.Caching}},
		{"pytorch@2.8", P{Name: "pytorch", Version: "2.8", Kind: policy.Caching, Torch: policy.Torch{TorchRules: policy.TorchRules{Order: policy.LowestAddress, PoolCaptures: true, FloorLimit: true}}}},
		{"pytorch:fraction=0.5", P{Name: "pytorch", Kind: policy.Caching, Fraction: 0.5}},
		{"pytorch:fraction=1", P{Name: "pytorch", Kind: policy.Caching}},
		{"pytorch@2.9:fraction=1", P{Name: "pytorch", Version: "2.9", Kind: policy.Caching, Fraction: 1, Torch: policy.Torch{TorchRules: policy.TorchRules{Order: policy.LowestAddress, PoolCaptures: true, FloorLimit: true}}}},
		{"pytorch:per_process_memory_fraction=0.5", P{Name: "pytorch", Kind: policy.Caching, Fraction: 0.5}},
		{"pytorch:max_split_size_mb=64,roundup_power2_divisions=[1:2,>:4]", P{Name: "pytorch", Kind: policy.Caching,
			Torch: policy.Torch{MaxSplit: 64 << 20, Divisions: [16]uint64{2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}}}},
		{"pytorch:expandable_segments:True,garbage_collection_threshold:0.6", P{Name: "pytorch", Kind: policy.Caching, Torch: policy.Torch{Expandable: true, GC: 0.6}}},
		{"pytorch:conf=expandable_segments:True;garbage_collection_threshold:0.6,fraction=.5", P{Name: "pytorch", Kind: policy.Caching, Fraction: 0.5, Torch: policy.Torch{Expandable: true, GC: 0.6}}},
		{"pytorch:conf=roundup_power2_divisions:[1:2;>:4];max_split_size_mb:64", P{Name: "pytorch", Kind: policy.Caching,
			Torch: policy.Torch{MaxSplit: 64 << 20, Divisions: [16]uint64{2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}}}},
		{"pytorch:conf=roundup_power2_divisions:[1:2,>:4];max_split_size_mb:64", P{Name: "pytorch", Kind: policy.Caching,
			Torch: policy.Torch{MaxSplit: 64 << 20, Divisions: [16]uint64{2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}}}},
		{"pytorch:backend=cudaMallocAsync", P{Name: "pytorch", Kind: policy.Async, Fraction: 1, AsyncKeep: true}},

		{"jax:preallocate=false", with(jax, func(p *P) { p.Preallocate, p.Spatial, p.TopDown, p.CollectiveAlign = false, false, false, 0 })},
		{"jax:preallocate=true", jax},
		{"jax:spatial=false", with(jax, func(p *P) { p.Spatial, p.TopDown, p.CollectiveAlign = false, false, 0 })},
		{"jax:topdown=false", with(jax, func(p *P) { p.TopDown = false })},
		{"bfc:topdown=yes,spatial=yes", with(bfc, func(p *P) { p.Spatial, p.TopDown = true, true })},
		{"jax:preallocate=false,spatial=false", with(jax, func(p *P) { p.Preallocate, p.Spatial, p.TopDown, p.CollectiveAlign = false, false, false, 0 })},
		{"jax:fraction=.9", with(jax, func(p *P) { p.Fraction = 0.8999999761581421 })},
		{"bfc:fraction=.9", with(bfc, func(p *P) { p.Fraction = 0.9 })},
		{"bfc:of=free", with(bfc, func(p *P) { p.Of = policy.Free })},
		{"jax@0.4.0:of=total", P{Name: "jax", Version: "0.4.0", Preallocate: true, Fraction: 0.9, RegionUnit: 256, IgnoreAlign: true}},
		{"bfc:limit=10GiB", with(bfc, func(p *P) { p.Limit = 10 << 30 })},
		{"bfc:limit=80 g", with(bfc, func(p *P) { p.Limit = 80 << 30 })},
		{"bfc:limit=8EiB", with(bfc, func(p *P) { p.Limit = 1 << 63 })},
		{"bfc:spatial=yes", with(bfc, func(p *P) { p.Spatial = true })},
		{"bfc:gc=1,coalesce=yes", with(bfc, func(p *P) { p.GC, p.Coalesce = true, true })},
		{"bfc:gc=0,coalesce=no", bfc},
		{"bfc:fragmentation=0.25", with(bfc, func(p *P) { p.Fragmentation = 0.25 })},
		{"bfc:fragmentation=1", with(bfc, func(p *P) { p.Fragmentation = 1 })},
		{"bfc:align=2MiB", with(bfc, func(p *P) { p.Align = 2 << 20 })},
		{"bfc:align=1", with(bfc, func(p *P) { p.Align = 1 })},
		{"async:async_prealloc=-1", with(async, func(p *P) { p.AsyncPrealloc = -1 })},
		{"async:async_prealloc=4GiB", with(async, func(p *P) { p.AsyncPrealloc = 4 << 30 })},
		{"async:async_prealloc=0", async},
		{"async:preallocate=true", with(async, func(p *P) { p.Preallocate = true })},
		{"elastic:reserve=256MiB,eager=true", with(elastic, func(p *P) { p.Reserve, p.Eager = 256<<20, true })},
		{"vmm:limit=1GiB", P{Name: "vmm", Kind: policy.VMM, Fraction: 1, Limit: 1 << 30}},
	} {
		t.Run(tc.spec, func(t *testing.T) {
			tc.want.Spec = tc.spec
			if diff := cmp.Diff(tc.want, parsed(t, tc.spec)); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
			// The pool library is given the policy in JSON.
			var again policy.Policy
			text, err := json.Marshal(tc.want)
			if err == nil {
				err = json.Unmarshal(text, &again)
			}
			if diff := cmp.Diff(tc.want, again); diff != "" || err != nil {
				t.Errorf("through JSON %s: %v\n%s", text, err, diff)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	for _, tc := range []struct{ spec, want string }{
		{"", `policy "": unknown policy ""; want one of jax, tensorflow, pytorch, bfc, platform, address, async, vmm, elastic, env`},
		{"jaxx", `unknown policy "jaxx" (did you mean "jax"?); want one of`},
		{"BFC", `did you mean "bfc"?`},
		{"elastc", `did you mean "elastic"?`},
		{"a", `unknown policy "a"; want`},
		{"cuda_async", `unknown policy "cuda_async"; want`},
		{"tensorflow@2.1", "TensorFlow 2.1 is not known; the oldest known release is 2.2.0"},
		{"tensorflow@two", `"two" is not a TensorFlow release; want one such as 2.15`},
		{"bfc@1", "bfc has no versions; only jax, tensorflow and pytorch take one"},
		{"env@1", "env has no versions"},
		{"pytorch@", `no version after @; want one such as jax@0.4.30, or pytorch alone for the newest`},
		{"pytorch@x", `"x" is not a PyTorch release`},
		{"pytorch@1.0", "PyTorch 1.0 is not known; the oldest known release is 1.13.0"},
		{"pytorch:", `"" is not key=value`},
		{"pytorch:expandable_segments", `"expandable_segments" is not key=value, with a key of PYTORCH_ALLOC_CONF`},
		{"pytorch:expandable_segment=True", "PyTorch 2.15.0 does not know expandable_segment (did you mean"},
		{"pytorch@2.0:expandable_segments=True", "PyTorch 2.0.0 does not know expandable_segments, only 2.1.0 and later do"},
		{"pytorch:expandable_segments=true", "Expected 'True' or 'False'"},
		{"pytorch:max_split_size_mb=19", "max_split_size_mb too small, must be >= 20"},
		{"pytorch@2.9:max_split_size_mb=20", "max_split_size_mb too small, must be > 20"},
		{"pytorch:max_split_size_mb=64,max_split_size_mb=65", `key "max_split_size_mb" is given twice`},
		{"pytorch:fraction=1.5", `key "fraction": got "1.5", want a number above 0 and up to 1`},
		{"pytorch:conf=roundup_power2_divisions:[1:2;2:4", "Expected closing bracket ']' in ConfigTokenizer"},
		{"pytorch:conf=", `"" is not key=value`},
		{"pytorch:conf=max_split_size_mb:64;max_split_size_mb:65", `key "max_split_size_mb" is given twice`},
		{"pytorch:fraction=0", `want a number above 0`},
		{"pytorch:expandable_segments_reserve_by_class=[large:0.5]", "is not modelled"},
		{"jax@", "no version after @"},
		{"jax@0.1.0", `policy "jax@0.1.0": JAX 0.1.0 is not known`},
		{"jax@x:gc=true", `"x" is not a JAX release`},
		{"env:gc=true", "env takes no keys"},

		{"jax:", `"" is not key=value; jax takes preallocate, fraction, of, limit, spatial, topdown, gc, coalesce, fragmentation, align`},
		{"jax:gc", `"gc" is not key=value`},
		{"jax:gc=true,", `"" is not key=value`},
		{"bfc:fracton=1", `unknown key "fracton" (did you mean "fraction"?); bfc takes`},
		{"bfc:xyz=1", `unknown key "xyz"; bfc takes`},
		{"platform:xyz=1", `unknown key "xyz"; platform takes no keys`},
		{"platform:gc=true", `key "gc" does not apply; platform takes no keys`},
		{"address:fraction=1", `key "fraction" does not apply`},
		{"bfc:eager=true", `key "eager" does not apply`},
		{"jax:async_prealloc=-1", `key "async_prealloc" does not apply`},
		{"vmm:preallocate=true", `key "preallocate" does not apply; vmm takes fraction, of, limit`},
		{"elastic:gc=true", `key "gc" does not apply; elastic takes fraction, of, limit, reserve, eager`},
		{"bfc:gc=true,gc=true", `key "gc" is given twice`},

		{"bfc:gc=maybe", `key "gc": got "maybe", want true or false`},
		{"bfc:gc=", `key "gc": got "", want true or false`},
		{"bfc:fraction=0", `key "fraction": got "0", want a number above 0`},
		{"bfc:fraction=-1", `want a number above 0`},
		{"bfc:fraction=nan", `want a number above 0`},
		{"bfc:fraction=inf", `want a number above 0`},
		{"bfc:fraction=75%", `want a number above 0`},
		{"elastic:fraction=80", `key "fraction": got "80", want a number above 0 (vmm and elastic: up to 1)`},
		{"vmm:fraction=1.01", `want a number above 0 (vmm and elastic: up to 1)`},
		{"jax:fraction=1e39", `want a number above 0`},  // infinite as a 32-bit float
		{"jax:fraction=1e-60", `want a number above 0`}, // 0 as a 32-bit float
		{"bfc:of=used", `want total or free`},
		{"bfc:limit=0", `want a size above 0`},
		{"bfc:limit=-1", `want a size above 0`},
		{"bfc:limit=9EiB", `want a size above 0`},
		{"bfc:fragmentation=1.1", `want a number from 0 to 1`},
		{"bfc:fragmentation=nan", `want a number from 0 to 1`},
		{"bfc:align=0", `want a power of two`},
		{"bfc:align=768", `want a power of two`},
		{"async:async_prealloc=-2", `want a size with its unit, such as 4GiB, or -1`},
		{"async:async_prealloc=8EiB", `want a size with its unit, such as 4GiB, or -1`},
		{"elastic:reserve=x", `want a size with its unit, such as 256MiB`},
		{"jax:spatial=true,preallocate=false", `key "spatial": true needs preallocate=true`},
		{"jax:preallocate=false,spatial=true", `key "spatial": true needs preallocate=true`},
		{"bfc:topdown=true", `key "topdown": true needs spatial=true`},
		{"jax:topdown=true,preallocate=false", `key "topdown": true needs spatial=true`},
		{"bfc:preallocate=false,spatial=true", `key "spatial": true needs preallocate=true`},
	} {
		t.Run(tc.spec, func(t *testing.T) {
			p, err := frameworks.Parse(tc.spec)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want one with %q", err, tc.want)
			}
			if p != (policy.Policy{}) {
				t.Errorf("a policy besides the error: %+v", p)
			}
		})
	}
}

// clearEnv makes this process's environment one with nothing set.
func clearEnv(t *testing.T, set map[string]string) {
	for _, name := range []string{
		"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE",
		"XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB",
	} {
		t.Setenv(name, "") // the same as unset
	}
	t.Setenv("XLA_PYTHON_CLIENT_ALLOCATOR", "default")
	t.Setenv("XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE", "0")
	t.Setenv("XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT", "0")
	for name, value := range set {
		t.Setenv(name, value)
	}
}

func TestParseEnv(t *testing.T) {
	clearEnv(t, map[string]string{"XLA_PYTHON_CLIENT_PREALLOCATE": "0"})
	p := parsed(t, "env")
	if p.Spec != "env" || p.Name != "env" || p.Preallocate {
		t.Errorf("env did not read the environment: %+v", p)
	}
	if p := parsed(t, "jax"); !p.Preallocate {
		t.Error("jax read the environment")
	}
}

func TestParseEnvError(t *testing.T) {
	clearEnv(t, map[string]string{"XLA_CLIENT_MEM_FRACTION": "75%"})
	_, err := frameworks.Parse("env")
	var setting *policy.SettingError
	if !errors.As(err, &setting) || setting.Name != "XLA_CLIENT_MEM_FRACTION" {
		t.Fatalf("error %v, want a SettingError", err)
	}
	want := `policy "env": XLA_CLIENT_MEM_FRACTION: could not convert string to float: '75%'`
	if err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"jax", "jax@0.4.0:preallocate=false", "bfc:limit=10GiB,gc=true,align=512,fragmentation=0.1",
		"async:async_prealloc=-1", "elastic:reserve=1G,eager=yes", "vmm:fraction=.5,of=free", "platform:", "x@y:z=\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		p, err := frameworks.Parse(spec)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf("error of more than one line: %q", err)
			}
			return
		}
		if p.Spec != spec {
			t.Errorf("Spec %q, want %q", p.Spec, spec)
		}
		if p.Spatial && !p.Preallocate {
			t.Errorf("%q: spatial without preallocation", spec)
		}
		if p.TopDown && !p.Spatial {
			t.Errorf("%q: topdown without spatial", spec)
		}
		if p.Align&(p.Align-1) != 0 || p.AsyncPrealloc < -1 || !(p.Fragmentation >= 0 && p.Fragmentation <= 1) {
			t.Errorf("%q: out of range: %+v", spec, p)
		}
		if n := p.LimitBytes(policy.Device{Total: 80 << 30, Free: 40 << 30}); n > 1<<63 {
			t.Errorf("%q: limit %d", spec, n)
		}
	})
}
