// Tests of what is told to a person: the answer as a whole.
package explain_test

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
)

// answer is the answer for a GPU of 80 GiB, free as far as used says.
func answer(t *testing.T, as string, used uint64, env ...string) explain.Answer {
	t.Helper()
	f, err := frameworks.ParseRelease(as)
	if err != nil {
		t.Fatal(err)
	}
	a, err := explain.Environment(policy.Environ(env), f, policy.Device{Total: 80 << 30, Free: 80<<30 - used, CCMajor: 9})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestSummary(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		as   string
		used uint64
		env  []string
		want string
	}{
		{"jax", 0, nil, "Takes 60 GiB of the 80 GiB at the first operation, and keeps it."},
		{"jax", 40 * gib, nil, "Asks for 60 GiB of the 80 GiB at the first operation. Only 40 GiB are free: it backs off to 39.37 GiB, and keeps that."},
		{"jax", 80 * gib, nil, "Asks for 60 GiB of the 80 GiB at the first operation. Only 0 B are free: it gets nothing."},
		{"jax", 0, []string{"XLA_CLIENT_MEM_FRACTION=1"}, "Takes all of the 80 GiB at the first operation, and keeps it."},
		{"jax@next", 40 * gib, nil, "Asks for 60 GiB of the 80 GiB at the first operation. Only 40 GiB are free: it backs off to 39.37 GiB, and keeps that. It grows up to all of the 80 GiB where that is free."},
		{"jax", 0, []string{"XLA_CLIENT_MEM_FRACTION=2"}, "Asks for 160 GiB at the first operation, which is more than the GPU has. Only 80 GiB are free: it backs off to 76.53 GiB."},
		{"jax", 0, []string{"XLA_CLIENT_MEM_FRACTION=0"}, "Can take nothing: the limit is 0."},
		{"jax", 0, []string{"XLA_PYTHON_CLIENT_PREALLOCATE=false"}, "Takes memory as it is needed, up to 60 GiB of the 80 GiB, and keeps what it took."},
		{"jax", 0, []string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform"}, "Takes each allocation from the driver and releases it when it is freed: no limit, nothing kept, slow."},
		{"jax@0.10.1", 0, []string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform"}, "Takes memory as it is needed, up to all of the 80 GiB, and keeps what it took."},
		{"jax", 0, []string{"XLA_PYTHON_CLIENT_ALLOCATOR=vmm"}, "Maps memory as it is needed, up to 60 GiB of the 80 GiB, and keeps what it mapped."},
		{"jax", 0, []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"}, "Takes 60 GiB of the 80 GiB at once, from the driver's own pool, which keeps that much and may grow over it."},
		{"jax", 0, []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE=0"}, "Takes memory as it is needed, from the driver's own pool, which releases what is unused at each synchronisation."},
		{"jax", 0, []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE=0", "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=1073741824"},
			"Takes 1 GiB of the 80 GiB once, from the driver's own pool, which may release it at the next synchronisation."},
		{"jax", 0, []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE=0", "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=1099511627776"},
			"Takes memory as it is needed, from the driver's own pool, which releases what is unused at each synchronisation. " +
				"At the start it asks for 1 TiB (the GPU has 80 GiB), gets nothing, as only 80 GiB are free, and goes on."},
		{"jax", 40 * gib, []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"},
			"Takes memory as it is needed, from the driver's own pool, which keeps up to 60 GiB of the 80 GiB and may grow over it. " +
				"At the start it asks for 60 GiB of the 80 GiB, gets nothing, as only 40 GiB are free, and goes on."},
		{"jax@0.10.1", 0, []string{"TF_PER_DEVICE_MEMORY_LIMIT_MB=1024"}, "Asks for 60 GiB of the 80 GiB at the first operation. One grant may be 1 GiB at most: it backs off to 1009.04 MiB, and keeps that."},
		{"jax", 0, []string{"TF_FORCE_UNIFIED_MEMORY=1", "XLA_CLIENT_MEM_FRACTION=2"}, "Takes 160 GiB (the GPU has 80 GiB) at the first operation, and keeps it. It is unified memory: what the GPU has no room for lies in the host's."},
		{"jax", 0, []string{"CUDA_VISIBLE_DEVICES=-1"}, "Sees no GPU, and takes nothing."},
		{"jax", 0, []string{"XLA_PYTHON_CLIENT_ALLOCATOR="}, "XLA_PYTHON_CLIENT_ALLOCATOR is refused: JAX logs it as a plugin configuration error and goes on " +
			"without the GPU: the program runs on the CPU (with JAX_PLATFORMS=cuda it stops: the backend is not known)."},
		{"jax@0.4.13", 0, []string{"XLA_PYTHON_CLIENT_ALLOCATOR="}, "XLA_PYTHON_CLIENT_ALLOCATOR is refused: JAX says that it falls back to the CPU, and the program runs there " +
			"(with JAX_PLATFORMS=cuda it stops: Unable to initialize backend 'cuda')."},
		{"jax", 0, []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=x"}, "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC is refused: the process aborts when the GPU is first used."},
		{"tensorflow", 0, nil, "Takes 78.24 GiB of the 80 GiB at the first operation, and keeps it."},
		{"tensorflow", 0, []string{"TF_GPU_ALLOCATOR=cuda_malloc_async"}, "Takes memory as it is needed, from the driver's own pool, which keeps up to 78.24 GiB of the 80 GiB and may grow over it."},
		{"tensorflow", 0, []string{"TF_GPU_ALLOCATOR=cuda_malloc_async", "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=-1"},
			"Takes 78.24 GiB of the 80 GiB at once, from the driver's own pool, which keeps that much and may grow over it."},
		{"tensorflow", 0, []string{"TF_GPU_ALLOCATOR=cuda_malloc_async", "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=1073741824"},
			"Takes 1 GiB of the 80 GiB at once, from the driver's own pool, which keeps up to 78.24 GiB of the 80 GiB and may grow over it."},
		{"tensorflow", 0, []string{"TF_GPU_ALLOCATOR=cuda_malloc_async", "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=85899345921"},
			"Takes memory as it is needed, from the driver's own pool, which keeps up to 78.24 GiB of the 80 GiB and may grow over it. " +
				"At the start it asks for 80.00 GiB (the GPU has 80 GiB), gets nothing, as only 80 GiB are free, and goes on."},
		{"gpumem", 0, []string{"XLA_PYTHON_CLIENT_ALLOCATOR=?"}, "XLA_PYTHON_CLIENT_ALLOCATOR is refused: the pool is not opened."},
	} {
		t.Run(tc.as+" "+strings.Join(tc.env, " "), func(t *testing.T) {
			if got := answer(t, tc.as, tc.used, tc.env...).Summary(); got != tc.want {
				t.Errorf("%s\nwant %s", got, tc.want)
			}
		})
	}
}

// TestCollectiveEndByRelease: JAX 0.12 turned the ends of the pool round.
func TestCollectiveEndByRelease(t *testing.T) {
	for as, want := range map[string]string{
		"jax@0.11.0": "the upper end of the same pool", "jax@0.11.2": "the upper end of the same pool",
		"jax@0.12.0": "the lower end of the same pool", "jax@0.12.0.1": "the lower end of the same pool", "jax": "the lower end of the same pool",
	} {
		found := false
		for _, p := range answer(t, as, 0).Pools {
			if p.Space == "collective" {
				found = true
				if p.Text != want {
					t.Errorf("%s: %q, want %q", as, p.Text, want)
				}
			}
		}
		if !found {
			t.Errorf("%s: no pool for collective memory", as)
		}
	}
}

// TestCommand: the one line to write instead.
func TestCommand(t *testing.T) {
	for _, tc := range []struct {
		as   string
		env  []string
		want string
	}{
		{"jax", nil, ""},
		{"jax", []string{"XLA_CLIENT_MEM_FRACTION=.5"}, ""},
		{"jax", []string{"XLA_CLIENT_MEM_FRACTION=80"}, "env XLA_CLIENT_MEM_FRACTION=.8 run"},
		{"jax", []string{"XLA_CLIENT_MEM_FRACTION=62%"}, "env XLA_CLIENT_MEM_FRACTION=.62 run"},
		{"jax", []string{"XLA_CLIENT_MEM_FRACTION=half"}, "env -u XLA_CLIENT_MEM_FRACTION run"},
		{"jax", []string{"XLA_CLIENT_MEM_FRACTION=.5", "XLA_PYTHON_CLIENT_MEM_FRACTION=.5"}, "env -u XLA_PYTHON_CLIENT_MEM_FRACTION run"},
		{"jax", []string{"XLA_CLIENT_MEM_FRACTION=abc", "XLA_PYTHON_CLIENT_MEM_FRACTION=.5"}, "env -u XLA_PYTHON_CLIENT_MEM_FRACTION -u XLA_CLIENT_MEM_FRACTION run"},
		{"jax@0.4.30", []string{"XLA_CLIENT_MEM_FRACTION=.5"}, "env -u XLA_CLIENT_MEM_FRACTION XLA_PYTHON_CLIENT_MEM_FRACTION=.5 run"},
		{"jax", []string{"XLA_PYTHON_CLIENT_PREALLOCATE=off"}, "env XLA_PYTHON_CLIENT_PREALLOCATE=false run"},
		{"jax", []string{"XLA_PYTHON_CLIENT_ALLOCATOR=platfrom"}, "env XLA_PYTHON_CLIENT_ALLOCATOR=platform run"},
		{"jax", []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_malloc_async"}, "env XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async run"},
		{"jax", []string{"TF_GPU_ALLOCATOR=cuda_malloc_async"}, "env XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async run"},
		{"jax", []string{"JAX_PJRT_CLIENT_CREATE_OPTIONS=memory_fraction:.5"}, "env -u JAX_PJRT_CLIENT_CREATE_OPTIONS XLA_CLIENT_MEM_FRACTION=.5 run"},
		{"jax", []string{"JAX_CUDA_VISIBLE_DEVICES=1"}, "env -u JAX_CUDA_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES=1 run"},
		{"tensorflow", []string{"TF_GPU_ALLOCATOR=CUDA_MALLOC_ASYNC"}, "env TF_GPU_ALLOCATOR=cuda_malloc_async run"},
		{"tensorflow", []string{"TF_FORCE_GPU_ALLOW_GROWTH=1"}, "env TF_FORCE_GPU_ALLOW_GROWTH=true run"},
	} {
		t.Run(tc.as+" "+strings.Join(tc.env, " "), func(t *testing.T) {
			a := answer(t, tc.as, 0, tc.env...)
			if got := a.Command("run"); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// TestOneErrorAtATime: the framework raises the first; the others are warnings.
func TestOneErrorAtATime(t *testing.T) {
	a := answer(t, "jax", 0, "XLA_PYTHON_CLIENT_ALLOCATOR=?", "XLA_CLIENT_MEM_FRACTION=x", "XLA_PYTHON_CLIENT_MEM_FRACTION=y", "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB=z")
	var names []string
	for _, w := range a.Warnings {
		names = append(names, w.Name)
	}
	want := []string{"XLA_PYTHON_CLIENT_ALLOCATOR", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB"}
	if len(a.Errors) != 1 || a.Errors[0].Name != "XLA_CLIENT_MEM_FRACTION" || !slices.Equal(names, want) {
		t.Errorf("errors %v, warnings about %v", a.Errors, names)
	}
	if again := answer(t, "jax", 0, "XLA_PYTHON_CLIENT_MEM_FRACTION=.5"); len(again.Errors)+len(again.Warnings) > 0 {
		t.Errorf("a variable under its old name: %v %v", again.Errors, again.Warnings)
	}
}

// TestSpaces: what collective and host memory take besides.
func TestSpaces(t *testing.T) {
	for _, tc := range []struct {
		as   string
		env  []string
		want []string // "space name limit in MiB"
	}{
		{"jax", nil, []string{"device GPU_0_bfc", "collective GPU_0_bfc", "host xla_gpu_host_bfc"}},
		{"jax@0.10.2", nil, []string{"device GPU_0_bfc", "collective GPU_collectivememory_0_bfc", "host xla_gpu_host_bfc"}},
		{"jax@0.4.13", nil, []string{"device GPU_0_bfc", "host xla_gpu_host_bfc"}},
		{"jax", []string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform"}, []string{"device SE_0_space_0", "host xla_gpu_host_bfc"}},
		{"jax@0.10.1", []string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform"}, []string{"device XLA_backend_0_bfc", "host xla_gpu_host_bfc"}},
		{"jax", []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"}, []string{"device gpu_async_0", "collective GPU_collectivememory_0_bfc", "host xla_gpu_host_bfc"}},
		{"tensorflow", nil, []string{"device GPU_0_bfc", "host gpu_host_bfc"}},
		{"gpumem", nil, nil},
	} {
		var got []string
		for _, p := range answer(t, tc.as, 0, tc.env...).Pools {
			got = append(got, p.Space+" "+p.Name)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s %v: %q, want %q", tc.as, tc.env, got, tc.want)
		}
	}
}

// TestNewRelease: a release that is newer than all known is explained with a
// note, a text that is none is an error.
func TestNewRelease(t *testing.T) {
	if _, err := explain.Environment(policy.Environ(nil), frameworks.Release{Name: "jax", Version: "x"}, policy.Device{}); err == nil {
		t.Error("an unknown version is explained")
	}
	if a := answer(t, "jax@0.99", 0); !strings.Contains(a.Note, "0.99 is newer than any release known here") || answer(t, "jax", 0).Note != "" {
		t.Errorf("notes %q", a.Note)
	}
}

// TestAhead: of the newest release it is said that the documentation describes a pool
// that grows, wherever that would do so in the environment; of that pool, that no release
// has it; and nothing of others.
func TestAhead(t *testing.T) {
	for _, tc := range []struct {
		as, env string
		want    bool
	}{
		{"jax", "", true},
		{"jax@0.99.0", "", true},
		{"jax@0.12.0", "", false},
		{"jax@next", "", true},
		{"gpumem", "", false},
		{"tensorflow", "", false},
		{"jax", "XLA_CLIENT_MEM_FRACTION=.75", false},
		{"jax", "XLA_PYTHON_CLIENT_PREALLOCATE=false", false},
		{"jax", "XLA_PYTHON_CLIENT_ALLOCATOR=platform", false},
		{"jax", "TF_FORCE_UNIFIED_MEMORY=1", false},
	} {
		as, err := frameworks.ParseRelease(tc.as)
		if err != nil {
			t.Fatal(err)
		}
		a, err := explain.Environment(policy.Environ([]string{tc.env}), as, policy.Device{Total: 80 << 30, Free: 80 << 30})
		if err != nil || (a.Ahead != "") != tc.want || tc.want && tc.as != "jax@next" && !strings.Contains(a.Ahead, "up to all of the 80 GiB") {
			t.Errorf("%s with %q: %q, %v", tc.as, tc.env, a.Ahead, err)
		}
	}
}

// TestDeviceWithoutPools: the driver's pool is asked of a device that has none, and each
// framework that was asked aborts with this text; nothing else does.
func TestDeviceWithoutPools(t *testing.T) {
	const text = "TF_GPU_ALLOCATOR=cuda_malloc_async isn't currently supported on GPU id 0: Possible causes: " +
		"device not supported (request SM60+), driver too old,  OS not supported, CUDA version too old(request CUDA11.2+)."
	for _, tc := range []struct{ as, env, name string }{
		{"jax", "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "XLA_PYTHON_CLIENT_ALLOCATOR"},
		{"jax@0.4.36", "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "XLA_PYTHON_CLIENT_ALLOCATOR"},
		{"jax", "JAX_PJRT_CLIENT_CREATE_OPTIONS=allocator:cuda_async", "JAX_PJRT_CLIENT_CREATE_OPTIONS"},
		{"tensorflow", "TF_GPU_ALLOCATOR=cuda_malloc_async", "TF_GPU_ALLOCATOR"},
		{"tensorflow@2.18", "TF_GPU_ALLOCATOR=cuda_malloc_async", "TF_GPU_ALLOCATOR"},
		{"jax", "", ""},
		{"jax", "TF_GPU_ALLOCATOR=cuda_malloc_async", ""},
		{"tensorflow", "TF_GPU_ALLOCATOR=cuda_malloc", ""},
	} {
		as, err := frameworks.ParseRelease(tc.as)
		if err != nil {
			t.Fatal(err)
		}
		for _, without := range []bool{true, false} {
			d := policy.Device{Total: 24 << 30, Free: 24 << 30, NoPools: without}
			a, err := explain.Environment(policy.Environ([]string{tc.env}), as, d)
			if err != nil {
				t.Fatal(err)
			}
			if refused := without && tc.name != ""; (len(a.Errors) > 0) != refused || refused && (a.Errors[0].Name != tc.name || a.Errors[0].Text != text) {
				t.Errorf("%s with %q, no pools %t: %+v", tc.as, tc.env, without, a.Errors)
			}
		}
	}
}

// FuzzExplain: any environment gets an answer from every framework, in every
// release, that can be written as JSON and whose repairs raise nothing new.
func FuzzExplain(f *testing.F) {
	for _, seed := range []string{
		"XLA_CLIENT_MEM_FRACTION=nan\x00XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async\x00TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=-1",
		"TF_GPU_ALLOCATOR=cuda_malloc_async\x00TF_FORCE_GPU_ALLOW_GROWTH=True\x00TF_DEVICE_MIN_SYS_MEMORY_IN_MB=1e9",
		"JAX_PJRT_CLIENT_CREATE_OPTIONS=memory_fraction_policy:0.5-0.9;a:b\x00XLA_FLAGS=--xla_gpu_command_buffer_update_mode=SKIP_TEMP",
		"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:19\x00CUPY_GPU_MEMORY_LIMIT=50%\x00CUDA_VISIBLE_DEVICES=",
		"XLA_PYTHON_CLIENT_MEM_FRACTOIN=.3\x00=\x00A\x00XLA_FLAGS=\xff",
		"XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB=-9999999999999\x00XLA_PYTHON_CLIENT_PREALLOCATE=False\x00TF_FORCE_UNIFIED_MEMORY=1",
	} {
		f.Add(seed, uint64(80<<30), uint64(1<<30), uint8(9))
	}
	f.Fuzz(func(t *testing.T, lines string, total, free uint64, cc uint8) {
		env := policy.Environ(strings.Split(lines, "\x00"))
		d := policy.Device{Total: total % (1 << 60), Free: free % (1 << 60), CCMajor: int(cc)}
		for _, as := range []string{"jax", "jax@0.1.16", "jax@0.4.22", "jax@0.4.31", "jax@0.10.1", "tensorflow", "tensorflow@2.4", "pytorch", "pytorch@1.13", "pytorch@2.8", "cupy", "gpumem"} {
			fw, err := frameworks.ParseRelease(as)
			if err != nil {
				t.Fatal(err)
			}
			a, err := explain.Environment(env, fw, d)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := json.Marshal(a); err != nil {
				t.Errorf("%s: %v", as, err)
			}
			if s := a.Summary(); s == "" || a.Fraction != nil && math.IsNaN(*a.Fraction) {
				t.Errorf("%s: summary %q of %+v", as, s, a)
			}
			for _, w := range a.Warnings {
				if w.Text == "" || w.Name == "" {
					t.Errorf("%s: warning %+v", as, w)
				}
			}
		}
	})
}
