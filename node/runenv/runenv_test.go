package runenv

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gpumem/node/internal/overhead"
	"gpumem/policy"
	"gpumem/size"
)

const (
	gib = 1 << 30
	mib = 1 << 20
)

// simulated is a lease on a GPU of 24 GiB that takes nothing outside of pools.
func simulated(bytes uint64) Lease {
	return Lease{Visible: "GPU-a", Bytes: bytes, Total: 24 * gib, CCMajor: 8, Simulated: true}
}

// must is For, where it may not fail.
func must(t testing.TB, env, command []string, g Limits) Environment {
	t.Helper()
	o, err := For(env, command, g)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// get is a variable as a program sees it.
func get(o Environment, name string) string {
	text, _ := policy.Environ(o.Env).Lookup(name)
	return text
}

// TestWithoutHookNothingIsRemarked: who asked for the hook has said that there is none.
func TestWithoutHookNothingIsRemarked(t *testing.T) {
	for _, c := range must(t, nil, nil, Limits{Leases: []Lease{simulated(gib)}}).Changes {
		if c.Remark {
			t.Errorf("%+v", c)
		}
	}
}

// TestFor: each case is an environment, and the variables that must come of it;
// "-" is one that must not be set. remark is part of what must be said.
func TestFor(t *testing.T) {
	six := Limits{Leases: []Lease{simulated(6 * gib)}}
	two := Limits{Leases: []Lease{
		{Visible: "1", Ordinal: 1, Bytes: 6 * gib, Total: 24 * gib, CCMajor: 8, Simulated: true},
		{Visible: "0", Ordinal: 0, Bytes: 8 * gib, Total: 16 * gib, CCMajor: 8, Simulated: true},
	}}
	with := func(change func(*Limits)) Limits { g := six; change(&g); return g }
	growth := with(func(g *Limits) { g.Growth = true })
	for _, tc := range []struct {
		name   string
		env    []string
		g      Limits
		want   []string
		remark string
	}{
		{"nothing set", nil, six, []string{
			"CUDA_VISIBLE_DEVICES=GPU-a", "XLA_PYTHON_CLIENT_MEM_FRACTION=0.25", "XLA_CLIENT_MEM_FRACTION=-", "XLA_PYTHON_CLIENT_PREALLOCATE=-",
			"TF_FORCE_GPU_ALLOW_GROWTH=true", "GPUMEM_TF_LIMIT_MIB=6144", "GPUMEM_TF_FRACTION=0.25", "GPUMEM_TORCH_FRACTION=0.25",
			"CUPY_GPU_MEMORY_LIMIT=6442450944", "GOMLX_BACKEND=-", "PYTHONPATH=-"}, ""},
		{"two GPUs", nil, two, []string{
			"CUDA_VISIBLE_DEVICES=1,0", "XLA_PYTHON_CLIENT_MEM_FRACTION=0.25", "GPUMEM_TF_LIMIT_MIB=6144,8192", "GPUMEM_TF_FRACTION=0.25",
			"GPUMEM_TORCH_FRACTION=0.25,0.5", "CUPY_GPU_MEMORY_LIMIT=6442450944"}, "GPU 1, which has the least of 2"},
		{"a GPU without a name", nil, Limits{Leases: []Lease{{Bytes: gib, Total: gib, Simulated: true}}}, []string{"CUDA_VISIBLE_DEVICES=-", "XLA_PYTHON_CLIENT_MEM_FRACTION=1"}, ""},
		{"the choice of one is not made again", []string{"CUDA_VISIBLE_DEVICES=1"}, Limits{Leases: []Lease{{Bytes: gib, Total: gib, Simulated: true}}}, []string{"CUDA_VISIBLE_DEVICES=-"}, ""},
		{"the first of a name counts", []string{"CUPY_GPU_MEMORY_LIMIT=5", "CUPY_GPU_MEMORY_LIMIT=9"}, six, []string{"CUPY_GPU_MEMORY_LIMIT=5"}, ""},

		{"a smaller fraction", []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=.1"}, six, []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=.1"}, "user's own"},
		{"a larger one", []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=.9"}, six, []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=0.25"}, ".9 would be outside"},
		{"a smaller one under the new name", []string{"XLA_CLIENT_MEM_FRACTION=.1"}, six, []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=.1", "XLA_CLIENT_MEM_FRACTION=-"}, ""},
		{"a larger one under the new name", []string{"XLA_CLIENT_MEM_FRACTION=75"}, six, []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=0.25", "XLA_CLIENT_MEM_FRACTION=-"}, ""},
		{"a negative one is an enormous limit", []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=-1"}, six, []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=0.25"}, ""},
		{"so is none", []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=nan"}, six, []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=0.25"}, ""},
		{"0 means unset in some releases", []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=0"}, six, []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=0.25"}, ""},
		{"both names", []string{"XLA_CLIENT_MEM_FRACTION=.1", "XLA_PYTHON_CLIENT_MEM_FRACTION=.9"}, six,
			[]string{"XLA_PYTHON_CLIENT_MEM_FRACTION=0.25", "XLA_CLIENT_MEM_FRACTION=.1"}, "specified together"},
		{"no number", []string{"XLA_CLIENT_MEM_FRACTION=75%"}, six, []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=75%", "XLA_CLIENT_MEM_FRACTION=-"}, "could not convert string to float: '75%'"},
		{"growth", nil, growth, []string{"XLA_PYTHON_CLIENT_PREALLOCATE=false"}, ""},
		{"growth that is refused", []string{"XLA_PYTHON_CLIENT_PREALLOCATE=true"}, growth, []string{"XLA_PYTHON_CLIENT_PREALLOCATE=false"}, ""},
		{"the user's preallocation", []string{"XLA_PYTHON_CLIENT_PREALLOCATE=false"}, six, []string{"XLA_PYTHON_CLIENT_PREALLOCATE=false"}, ""},
		{"an allocator", nil, with(func(g *Limits) { g.Allocator = "vmm" }), []string{"XLA_PYTHON_CLIENT_ALLOCATOR=vmm"}, ""},
		{"one without a limit", nil, with(func(g *Limits) { g.Allocator = "cuda_async" }), []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"}, "not enforced: JAX's allocator cuda_async"},
		{"the user's", []string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform"}, six, []string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform"}, "not enforced: JAX's allocator platform"},
		{"the user's, unknown", []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda"}, six, []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda"}, "JAX refuses it"},
		{"as an option", []string{"JAX_PJRT_CLIENT_CREATE_OPTIONS=allocator:cuda_async"}, six, []string{"JAX_PJRT_CLIENT_CREATE_OPTIONS=allocator:cuda_async"}, "not enforced: JAX's allocator cuda_async"},
		{"an option before the fraction", []string{"JAX_PJRT_CLIENT_CREATE_OPTIONS=memory_fraction_policy:0.75+"}, six, []string{"JAX_PJRT_CLIENT_CREATE_OPTIONS=-"}, "before the fraction"},
		{"and others", []string{"JAX_PJRT_CLIENT_CREATE_OPTIONS=allocator:bfc;memory_fraction_policy:0.75+"}, six, []string{"JAX_PJRT_CLIENT_CREATE_OPTIONS=allocator:bfc"}, ""},
		{"unified memory", []string{"TF_FORCE_UNIFIED_MEMORY=1"}, six, []string{"TF_FORCE_UNIFIED_MEMORY=-"}, "below 1 for 1"},

		{"GoMLX on the CPU", []string{"GOMLX_BACKEND=xla:cpu"}, with(func(g *Limits) { g.Allocator = "bfc" }), []string{"GOMLX_BACKEND=xla:cpu"}, ""},
		{"GoMLX", []string{"GOMLX_BACKEND=xla:cuda"}, six, []string{"GOMLX_BACKEND=xla:cuda,memory_fraction=0.25"}, ""},
		{"GoMLX, merged", []string{"GOMLX_BACKEND=xla:cuda,tf32,visible_devices=1;2,preallocate=true,memory_fraction=0.9"}, with(func(g *Limits) { g.Growth, g.Allocator = true, "bfc" }),
			[]string{"GOMLX_BACKEND=xla:cuda,tf32,memory_fraction=0.25,preallocate=false,allocator=bfc"}, ""},
		{"GoMLX, smaller", []string{"GOMLX_BACKEND=xla:cuda,memory_fraction=0.1"}, six, []string{"GOMLX_BACKEND=xla:cuda,memory_fraction=0.1"}, ""},
		{"GoMLX without a limit", []string{"GOMLX_BACKEND=xla:cuda,allocator=platform"}, six, []string{"GOMLX_BACKEND=xla:cuda,allocator=platform,memory_fraction=0.25"}, "not enforced: the allocator platform"},

		{"TensorFlow as the user has it", []string{"TF_FORCE_GPU_ALLOW_GROWTH=false"}, six, []string{"TF_FORCE_GPU_ALLOW_GROWTH=false"}, "as the user has it"},
		{"what defeats a session's fraction", []string{"TF_DEVICE_MIN_SYS_MEMORY_IN_MB=1000"}, six, []string{"TF_DEVICE_MIN_SYS_MEMORY_IN_MB=-"}, ""},
		{"TensorFlow without a limit", []string{"TF_GPU_ALLOCATOR=cuda_malloc_async"}, six, []string{"TF_GPU_ALLOCATOR=cuda_malloc_async"}, "TensorFlow's allocator cuda_malloc_async"},
		{"TensorFlow off the GPU", []string{"GPUMEM_TF_LIMIT_MIB=7"}, with(func(g *Limits) { g.CPUTensorFlow = true }), []string{"GPUMEM_TF_CPU=1", "GPUMEM_TF_LIMIT_MIB=-", "TF_FORCE_GPU_ALLOW_GROWTH=-"}, ""},
		{"within a lease of another", []string{"GPUMEM_TF_CPU=1", "GPUMEM_TORCH_FRACTION=1"}, six, []string{"GPUMEM_TF_CPU=-", "GPUMEM_TORCH_FRACTION=0.25"}, ""},

		{"PyTorch's smaller fraction", []string{"PYTORCH_ALLOC_CONF=expandable_segments:True,per_process_memory_fraction:0.1"}, two, []string{"GPUMEM_TORCH_FRACTION=0.1,0.1"}, ""},
		{"PyTorch's larger fraction", []string{"PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.4"}, two, []string{"GPUMEM_TORCH_FRACTION=0.25,0.4"}, ""},
		{"PyTorch without its pool", []string{"PYTORCH_NO_CUDA_MEMORY_CACHING=1"}, six, []string{"PYTORCH_NO_CUDA_MEMORY_CACHING=1"}, "without its pool"},

		{"CuPy, smaller", []string{"CUPY_GPU_MEMORY_LIMIT=10%"}, six, []string{"CUPY_GPU_MEMORY_LIMIT=10%"}, "user's own"},
		{"CuPy, larger", []string{"CUPY_GPU_MEMORY_LIMIT=50%"}, six, []string{"CUPY_GPU_MEMORY_LIMIT=6442450944"}, ""},
		{"CuPy, smaller on one of two", []string{"CUPY_GPU_MEMORY_LIMIT=30%"}, two, []string{"CUPY_GPU_MEMORY_LIMIT=6442450944"}, ""},
		{"CuPy, no limit", []string{"CUPY_GPU_MEMORY_LIMIT=0"}, six, []string{"CUPY_GPU_MEMORY_LIMIT=6442450944"}, ""},
		{"CuPy, no number", []string{"CUPY_GPU_MEMORY_LIMIT=8GiB"}, six, []string{"CUPY_GPU_MEMORY_LIMIT=8GiB"}, "left as it is"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := must(t, tc.env, []string{"prog"}, tc.g)
			env := policy.Environ(o.Env)
			for _, line := range tc.want {
				name, want, _ := strings.Cut(line, "=")
				if got, set := env.Lookup(name); set == (want == "-") || set && got != want {
					t.Errorf("%s is %q, set: %v; want %q", name, got, set, want)
				}
			}
			var said []string
			for _, c := range o.Changes {
				said = append(said, c.Why)
				if got, set := env.Lookup(c.Name); got != c.New || set != c.Set {
					t.Errorf("change %+v, but it is %q, set: %v", c, got, set)
				}
				if c.Why == "" || strings.Contains(c.Why, "\n") {
					t.Errorf("change %+v says %q", c, c.Why)
				}
			}
			if !strings.Contains(strings.Join(said, "\n"), tc.remark) {
				t.Errorf("nothing says %q:\n%s", tc.remark, strings.Join(said, "\n"))
			}
			_, both := env.Lookup("XLA_CLIENT_MEM_FRACTION")
			if both && tc.name != "both names" {
				t.Error("both names of the fraction are set")
			}
		})
	}
}

// TestRestStays: what is not ours keeps its value and place, odd lines too.
func TestRestStays(t *testing.T) {
	env := []string{"B=2", "A=1=1", "odd", "=C:=C:\\x", "E="}
	got := must(t, env, nil, Limits{Leases: []Lease{simulated(gib)}}).Env
	if !slices.Equal(got[:2], []string{"B=2", "A=1=1"}) || !slices.Contains(got, "odd") || !slices.Contains(got, "=C:=C:\\x") || !slices.Contains(got, "E=") {
		t.Errorf("got %q", got)
	}
}

// TestTwice: the environment of an environment is the same, and changes nothing.
func TestTwice(t *testing.T) {
	g := Limits{Leases: []Lease{simulated(6 * gib)}, Hook: "/the/hook", Growth: true}
	once := must(t, []string{"PYTHONPATH=/mine", "GOMLX_BACKEND=xla:cuda"}, nil, g)
	twice := must(t, once.Env, nil, g)
	if !slices.Equal(once.Env, twice.Env) {
		t.Errorf("got %q, then %q", once.Env, twice.Env)
	}
	for _, c := range twice.Changes {
		if !c.Kept {
			t.Errorf("changed again: %+v", c)
		}
	}
}

func TestRefusals(t *testing.T) {
	real := Lease{Visible: "GPU-a", Total: 80 * gib, CCMajor: 9}
	outside := overhead.Of("jax", real.gpu(), 1)
	real.Bytes = outside / 2
	for _, tc := range []struct {
		name string
		g    Limits
		want string
	}{
		{"no lease", Limits{}, "at least one"},
		{"of nothing", Limits{Leases: []Lease{simulated(0)}}, "a lease of 0 bytes"},
		{"of more than there is", Limits{Leases: []Lease{simulated(25 * gib)}}, "want from 1 to all of it"},
		{"two names in one", Limits{Leases: []Lease{{Visible: "0,1", Bytes: 1, Total: 1}}}, "is not one GPU"},
		{"one GPU twice", Limits{Leases: []Lease{simulated(gib), simulated(gib)}}, "two leases on GPU-a"},
		{"half named", Limits{Leases: []Lease{simulated(gib), {Bytes: gib, Total: gib}}}, "name all or none"},
		{"less than the context", Limits{Leases: []Lease{real}}, "is too small for jax, which needs at least " + size.Format(outside+2*mib) + ", " + size.Format(outside) + " of that outside of the pool (CUDA context, libraries); take a larger --mem, or set that part with --overhead"},
		{"less than the user says", Limits{Leases: []Lease{simulated(gib)}, Overhead: new(uint64(gib))}, "or a smaller --overhead"},
		{"less than one step", Limits{Leases: []Lease{{Bytes: 2*mib + 1, Total: 1 << 50, Simulated: true}}, Overhead: new(uint64(2))}, "is too small for"},
		{"an unknown allocator", Limits{Leases: []Lease{simulated(gib)}, Allocator: "elastic"}, `allocator "elastic": XLA_PYTHON_CLIENT_ALLOCATOR env var must be one of`},
		{"less than a process needs", Limits{Leases: []Lease{simulated(gib)}, Procs: 2, Overhead: new(uint64(600 * mib))}, "1/2 of the lease of 1 GiB, 512 MiB is too small for jax, which needs at least 602 MiB, 600 MiB of that outside"},
		{"too many processes", Limits{Leases: []Lease{simulated(gib)}, Procs: 1025}, "want from 1 to 1024"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := For(nil, nil, tc.g)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// TestOverheadOrder: what the user says goes before what was measured, and that
// before the table.
func TestOverheadOrder(t *testing.T) {
	l := Lease{Bytes: 6 * gib, Total: 24 * gib, CCMajor: 8}
	for _, tc := range []struct {
		g    Limits
		want uint64
	}{
		{Limits{}, 6*gib - overhead.Of("cupy", l.gpu(), 1)},
		{Limits{Measured: measured("cupy", gib)}, 5 * gib},
		{Limits{Measured: measured("jax", gib)}, 6*gib - overhead.Of("cupy", l.gpu(), 1)},
		{Limits{Measured: measured("cupy", gib), Overhead: new(uint64(2 * gib))}, 4 * gib},
		{Limits{Measured: measured("cupy", gib), Overhead: new(uint64(0))}, 6 * gib},
		{Limits{Overhead: new(uint64(0))}, 6 * gib},
	} {
		tc.g.Leases = []Lease{l}
		if got := get(must(t, nil, nil, tc.g), "CUPY_GPU_MEMORY_LIMIT"); got != fmt.Sprint(tc.want) {
			t.Errorf("%+v: %s, want %d", tc.g, got, tc.want)
		}
	}
}

func TestChangeString(t *testing.T) {
	for _, tc := range []struct {
		c    Change
		want string
	}{
		{Change{Name: "A", New: "1", Set: true}, "A=1"},
		{Change{Name: "A", Old: "1"}, "unset A"},
		{Change{Name: "A", Old: "1", New: "1", Set: true, Kept: true}, "# A=1"},
		{Change{Name: "A", Kept: true}, "# A"},
	} {
		if got := tc.c.String(); got != tc.want {
			t.Errorf("%+v: %q", tc.c, got)
		}
	}
}
