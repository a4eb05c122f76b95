// Tests of the environment: what JAX builds, refuses and silently does otherwise.
package frameworks_test

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
)

const (
	allocator   = "XLA_PYTHON_CLIENT_ALLOCATOR"
	fraction    = "XLA_CLIENT_MEM_FRACTION"
	oldFraction = "XLA_PYTHON_CLIENT_MEM_FRACTION"
	preallocate = "XLA_PYTHON_CLIENT_PREALLOCATE"
	collective  = "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB"
	abort       = "XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE"
	tfrt        = "XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT"
	tfAllocator = "TF_GPU_ALLOCATOR"
	tfPrealloc  = "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC"
)

type env map[string]string

func (e env) environment() policy.Environment {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(e)) {
		lines = append(lines, name+"="+e[name])
	}
	return policy.Environ(lines)
}

// newestJAX is what the newest JAX makes of e.
func newestJAX(t *testing.T, e env) explain.Answer {
	t.Helper()
	a, err := explain.Environment(e.environment(), frameworks.Release{Name: "jax"}, policy.Device{Total: 80 << 30, Free: 80 << 30})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestJAXEnvironment(t *testing.T) {
	type P = policy.Policy
	jax := frameworks.Default()
	with := func(p P, change func(*P)) P {
		change(&p)
		return p
	}
	growing := with(jax, func(p *P) { p.Preallocate, p.Spatial, p.TopDown, p.CollectiveAlign = false, false, false, 0 })
	async := P{Spec: "jax", Name: "jax", Kind: policy.Async, Preallocate: true, Fraction: 0.75}
	onDemand := with(async, func(p *P) { p.Preallocate = false })

	for _, tc := range []struct {
		name string
		env  env
		want P
		warn []string // "name: part of the text"
	}{
		{"nothing set", env{}, jax, nil},
		{"all empty", env{fraction: "", oldFraction: "", preallocate: "", collective: "", tfAllocator: "", tfPrealloc: ""}, jax, nil},

		{"fraction", env{fraction: ".5"}, with(jax, func(p *P) { p.Fraction = .5 }), nil},
		{"fraction through 32 bits", env{fraction: "0.9"}, with(jax, func(p *P) { p.Fraction = 0.8999999761581421 }), nil},
		{"old name", env{oldFraction: ".5"}, with(jax, func(p *P) { p.Fraction = .5 }), nil},
		{"new name empty", env{fraction: "", oldFraction: ".5"}, with(jax, func(p *P) { p.Fraction = .5 }), nil},
		{"old name empty", env{fraction: ".5", oldFraction: ""}, with(jax, func(p *P) { p.Fraction = .5 }), nil},
		{"fraction as Python reads it", env{fraction: " 0_0.5e0\t"}, with(jax, func(p *P) { p.Fraction = .5 }), nil},
		{"fraction 1", env{fraction: "1"}, with(jax, func(p *P) { p.Fraction = 1 }), nil},
		{"just above 1, but not in 32 bits", env{fraction: "1.00000001"}, with(jax, func(p *P) { p.Fraction = 1 }), nil},
		{"percent", env{fraction: "75"}, with(jax, func(p *P) { p.Fraction = 75 }), []string{fraction + ": a fraction, not a percentage: this asks for 75 times the GPU; for 75 % write .75"}},
		{"slightly too much", env{oldFraction: "1.1"}, with(jax, func(p *P) { p.Fraction = 1.100000023841858 }),
			[]string{oldFraction + ": asks for 1.1 times the GPU"}},
		{"zero", env{fraction: "0"}, with(jax, func(p *P) { p.Fraction = 0 }), []string{fraction + ": 0 leaves no memory"}},
		{"negative", env{fraction: "-.5"}, with(jax, func(p *P) { p.Fraction = -.5 }), []string{fraction + ": -.5 makes no sense"}},
		{"infinite", env{fraction: "1e400"}, with(jax, func(p *P) { p.Fraction = math.Inf(1) }), []string{fraction + ": asks for 1e400 times the GPU"}},
		{"nan", env{fraction: "nan"}, with(jax, func(p *P) { p.Fraction = math.NaN() }), []string{fraction + ": not a number"}},

		{"preallocate false", env{preallocate: "false"}, growing, nil},
		{"preallocate False", env{preallocate: "False"}, growing, nil},
		{"preallocate 0", env{preallocate: "0"}, growing, nil},
		{"preallocate true", env{preallocate: "true"}, jax, nil},
		{"preallocate 1", env{preallocate: "1"}, jax, nil},
		{"preallocate On", env{preallocate: "On"}, jax, nil},
		{"preallocate FALSE", env{preallocate: "FALSE"}, jax, []string{preallocate + ": 'FALSE' is not recognised, preallocation stays on"}},
		{"preallocate no", env{preallocate: "no"}, jax, []string{preallocate + ": 'no' is not recognised"}},
		{"preallocate off", env{preallocate: "off"}, jax, []string{preallocate + ": 'off' is not recognised"}},
		{"preallocate f", env{preallocate: "f"}, jax, []string{preallocate + ": 'f' is not recognised"}},
		{"preallocate n", env{preallocate: "n"}, jax, []string{preallocate + ": 'n' is not recognised"}},
		{"preallocate with a blank", env{preallocate: "false "}, jax, []string{preallocate + ": 'false ' is not recognised"}},

		{"bfc", env{allocator: "bfc"}, jax, nil},
		{"default, any case", env{allocator: "DeFault"}, jax, nil},
		{"platform", env{allocator: "Platform"}, P{Spec: "jax", Name: "jax", Kind: policy.Platform}, nil},
		{"address", env{allocator: "address"}, P{Spec: "jax", Name: "jax", Kind: policy.Address}, nil},
		{"platform ignores the rest", env{allocator: "platform", fraction: ".5", preallocate: "no", collective: "1"},
			P{Spec: "jax", Name: "jax", Kind: policy.Platform},
			[]string{fraction + ": ignored: the allocator platform", preallocate + ": ignored: the allocator platform", collective + ": ignored: the allocator platform"}},
		{"address ignores the rest", env{allocator: "address", oldFraction: "9", preallocate: "false"},
			P{Spec: "jax", Name: "jax", Kind: policy.Address},
			[]string{oldFraction + ": ignored: the allocator address", preallocate + ": ignored: the allocator address"}},
		{"vmm", env{allocator: "vmm", fraction: ".5"}, P{Spec: "jax", Name: "jax", Kind: policy.VMM, Fraction: .5}, nil},
		{"vmm ignores preallocation", env{allocator: "vmm", preallocate: "1", collective: "1"},
			P{Spec: "jax", Name: "jax", Kind: policy.VMM, Fraction: .75},
			[]string{preallocate + ": ignored: the allocator vmm", collective + ": ignored: the allocator vmm"}},

		{"collective, one pool", env{collective: "100"}, with(jax, func(p *P) { p.CollectiveBytes = 100 << 20 }),
			[]string{collective + ": ignored since JAX 0.11.0"}},
		{"collective, growing", env{collective: " 1_00 ", preallocate: "0"}, with(growing, func(p *P) { p.CollectiveBytes = 100 << 20 }), nil},
		{"collective 0", env{collective: "0"}, jax, nil},
		{"collective negative", env{collective: "-1", preallocate: "0"}, growing, []string{collective + ": -1 MiB makes no sense"}},
		{"collective, cuda_async", env{collective: "1", allocator: "cuda_async"}, with(async, func(p *P) { p.CollectiveBytes = 1 << 20 }), nil},
		{"other integers", env{abort: "1", tfrt: " 99999999999999999999 "}, jax, nil},

		{"cuda_async", env{allocator: "cuda_async"}, async, nil},
		{"cuda_async on demand", env{allocator: "cuda_async", preallocate: "0"}, onDemand, nil},
		{"cuda_async on demand with a fraction", env{allocator: "cuda_async", preallocate: "0", fraction: ".5"},
			with(onDemand, func(p *P) { p.Fraction = .5 }), []string{fraction + ": ignored: without preallocation"}},
		{"TensorFlow's allocator", env{tfAllocator: "cuda_malloc_async"}, jax, []string{tfAllocator + ": only TensorFlow reads it; in JAX write XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"}},
		{"TensorFlow's preallocation, bfc", env{tfPrealloc: "x"}, jax, []string{tfPrealloc + ": ignored: only"}},
		{"N while preallocating", env{allocator: "cuda_async", tfPrealloc: "1024"}, async, []string{tfPrealloc + ": ignored: preallocation is on"}},
		{"-1 while preallocating", env{allocator: "cuda_async", tfPrealloc: "-1"}, async, nil},
		{"0 while preallocating", env{allocator: "cuda_async", tfPrealloc: "0"}, async, nil},
		{"N on demand", env{allocator: "cuda_async", tfPrealloc: " +1024 ", preallocate: "0"},
			with(onDemand, func(p *P) { p.AsyncPrealloc = 1024 }), []string{tfPrealloc + ": JAX takes this many bytes once"}},
		{"-1 on demand", env{allocator: "cuda_async", tfPrealloc: "-1", preallocate: "0"}, onDemand, []string{tfPrealloc + ": reserves nothing"}},
		{"-2 on demand", env{allocator: "cuda_async", tfPrealloc: "-2", preallocate: "0"}, onDemand, []string{tfPrealloc + ": -2 is refused"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := newestJAX(t, tc.env)
			if len(a.Errors) > 0 {
				t.Fatal(a.Errors)
			}
			got, warnings := a.Policy, a.Warnings
			// NaN is not equal to itself.
			equalNaN := cmp.Comparer(func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) })
			if diff := cmp.Diff(tc.want, got, equalNaN); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
			if len(warnings) != len(tc.warn) {
				t.Fatalf("warnings %q, want %q", warnings, tc.warn)
			}
			for i, w := range warnings {
				if line := w.Name + ": " + w.Text; !strings.HasPrefix(line, tc.warn[i]) {
					t.Errorf("warning %q, want %q...", line, tc.warn[i])
				}
			}
		})
	}
}

func TestJAXSettingErrors(t *testing.T) {
	const (
		both   = "XLA_CLIENT_MEM_FRACTION is specified together with XLA_PYTHON_CLIENT_MEM_FRACTION. Remove the latter one, it is deprecated."
		oneOf  = `XLA_PYTHON_CLIENT_ALLOCATOR env var must be one of "default", "platform", "bfc", "cuda_async", "vmm", "address", got `
		number = "could not convert string to float: "
		digits = "invalid literal for int() with base 10: "
	)
	for _, tc := range []struct {
		name       string
		env        env
		from, text string
	}{
		{"both fractions", env{fraction: ".5", oldFraction: ".5"}, fraction, both},
		{"unknown allocator", env{allocator: "Malloc"}, allocator, oneOf + `"malloc"`},
		{"empty allocator", env{allocator: ""}, allocator, oneOf + `""`},
		{"allocator not stripped", env{allocator: " bfc"}, allocator, oneOf + `" bfc"`},
		{"our name for it", env{allocator: "async"}, allocator, oneOf + `"async"`},
		{"no number", env{fraction: "75%"}, fraction, number + `'75%'`},
		{"no number, old name", env{oldFraction: "it's"}, oldFraction, number + `"it's"`},
		{"blank fraction", env{fraction: " "}, fraction, number + `' '`},
		{"hex", env{fraction: "0x1"}, fraction, number + `'0x1'`},
		{"collective", env{collective: "1.5"}, collective, digits + `'1.5'`},
		{"collective, long", env{collective: strings.Repeat("é", 300)}, collective, digits + "'" + strings.Repeat("é", 199)},
		{"collective, too large", env{collective: "8796093022208"}, collective, "INVALID_ARGUMENT: Option passed to PJRT_Client_Create with name collective_memory_size has type index 4 but expected type index is 1"},
		{"abort, empty", env{abort: ""}, abort, digits + `''`},
		{"tfrt", env{tfrt: "true"}, tfrt, digits + `'true'`},
		{"preallocation of cuda_async", env{allocator: "cuda_async", tfPrealloc: "1G"}, tfPrealloc,
			"Failed to parse the env-var ${TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC} into int64: 1G. Use the default value: 0"},

		// Each has all errors that come after it.
		{"order: fractions", env{fraction: "x", oldFraction: "x", allocator: "x", collective: "x", abort: "x", tfrt: "x"}, fraction, both},
		{"order: allocator", env{fraction: "x", allocator: "x", collective: "x", abort: "x", tfrt: "x"}, allocator, oneOf + `"x"`},
		{"order: float", env{fraction: "x", collective: "x", abort: "x", tfrt: "x"}, fraction, number + `'x'`},
		{"order: collective", env{collective: "x", abort: "x", tfrt: "x"}, collective, digits + `'x'`},
		{"order: abort", env{abort: "x", tfrt: "x"}, abort, digits + `'x'`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := newestJAX(t, tc.env)
			if len(a.Errors) != 1 {
				t.Fatalf("errors %v, want one", a.Errors)
			}
			got := a.Errors[0]
			if got.Name != tc.from || got.Text != tc.text || got.Error() != tc.text {
				t.Errorf("%s: %s\nwant %s: %s", got.Name, got.Text, tc.from, tc.text)
			}
			if a.Policy != (policy.Policy{}) || a.Allocator != "" || a.First != 0 || a.Limit != nil {
				t.Errorf("%+v besides the error", a)
			}
		})
	}
}

func FuzzFromEnv(f *testing.F) {
	f.Add("cuda_async", ".5", "", "no", "1", "-1")
	f.Add("", "", "1e5", "0", "", "x")
	f.Add("VMM", "nan", "", "", "-9", "")
	f.Fuzz(func(t *testing.T, alloc, frac, old, pre, coll, tf string) {
		e := env{allocator: alloc, fraction: frac, oldFraction: old, preallocate: pre, collective: coll, tfPrealloc: tf}
		p, warnings, err := frameworks.FromEnv(e.environment())
		if err != nil {
			var setting *policy.SettingError
			if !errors.As(err, &setting) || e[setting.Name] == "" && setting.Name != allocator && setting.Name != tfPrealloc {
				t.Errorf("%q: error %#v", e, err)
			}
			return
		}
		if p.Spatial && !p.Preallocate || p.TopDown && !p.Spatial || p.AsyncPrealloc < -1 {
			t.Errorf("%q gives %+v", e, p)
		}
		for _, w := range warnings {
			if e[w.Name] == "" || strings.ContainsAny(w.Text, "\r\n") {
				t.Errorf("%q: warning %+v", e, w)
			}
		}
	})
}
