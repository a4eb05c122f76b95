package runenv

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpumem/node/internal/overhead"
	"gpumem/node/ledger"
	"gpumem/policy"
)

// measured is what earlier runs with a framework held outside, of a release that is unknown.
func measured(framework string, bytes uint64) []Measured {
	return []Measured{{Program: "x", Key: overhead.Key{Framework: framework}, Bytes: bytes}}
}

// pooled is a lease of 6 GiB with the pool library.
func pooled() Limits {
	l := simulated(6 * gib)
	l.ID, l.Path, l.Ledger = "0123456789abcdef", "/run/lease", "/run/ledger"
	return Limits{Leases: []Lease{l}, Pool: &Pool{Name: "elastic", Folder: "/lib/gpumem", Driver: "/usr/lib/libcuda.so.1", NVML: "/usr/lib/libnvidia-ml.so.1"}}
}

// TestPool: each case is the environment, the packages of the program's Python, and the
// variables that must come of it; "-" is one that must not be set.
func TestPool(t *testing.T) {
	with := func(change func(*Limits)) Limits { g := pooled(); change(&g); return g }
	real := with(func(g *Limits) { g.Leases[0].Simulated = false })
	for _, tc := range []struct {
		name     string
		env      []string
		packages []string
		g        Limits
		want     []string
		remark   string
	}{
		{"nothing set", nil, nil, pooled(), []string{
			"CUDA_VISIBLE_DEVICES=GPU-a", "LD_LIBRARY_PATH=/lib/gpumem", "GPUMEM_POOL=elastic", "GPUMEM_LIB=/lib/gpumem", "GPUMEM_LIBCUDA=/usr/lib/libcuda.so.1",
			"GPUMEM_LIBNVML=/usr/lib/libnvidia-ml.so.1", "GPUMEM_LEDGER=/run/ledger", "GPUMEM_OUTSIDE=0", "GPUMEM_LEASE=/run/lease", "GPUMEM_LEASE_ID=0123456789abcdef",
			"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE=false", "TF_GPU_ALLOCATOR=cuda_malloc_async", "TF_FORCE_GPU_ALLOW_GROWTH=true",
			"PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync", "PYTORCH_ALLOC_CONF=-", "XLA_PYTHON_CLIENT_MEM_FRACTION=-", "CUPY_GPU_MEMORY_LIMIT=-", "GPUMEM_TF_LIMIT_MIB=-",
			"GPUMEM_TORCH_FRACTION=-", "PYTHONPATH=-", "GPUMEM_LEASE_PART=-", "GPUMEM_PROCS=-", "GPUMEM_FREES=-", "GPUMEM_RECORD=-", "TF_BFC_MEMORY_DUMP=-"}, ""},
		{"no NVML", []string{"GPUMEM_LIBNVML=/old"}, nil, with(func(g *Limits) { g.Pool.NVML = "" }), []string{"GPUMEM_LIBNVML=-"}, ""},
		{"turns", nil, nil, with(func(g *Limits) { g.Pool.Lend, g.Pool.Turns, g.Pool.LendPinned = time.Second, ledger.AutoQuantum, true }),
			[]string{"GPUMEM_LEND=1000000000", "GPUMEM_TURNS=auto", "GPUMEM_LEND_PINNED=1"}, ""},
		{"no turns", nil, nil, pooled(), []string{"GPUMEM_LEND=-", "GPUMEM_TURNS=-", "GPUMEM_LEND_PINNED=-"}, ""},
		{"two GPUs", nil, nil, with(func(g *Limits) {
			second := g.Leases[0]
			second.Visible, second.Ledger = "GPU-b", "/run/other"
			g.Leases = append(g.Leases, second)
		}), []string{"CUDA_VISIBLE_DEVICES=GPU-a,GPU-b", "GPUMEM_LEDGER=/run/ledger:/run/other"}, ""},
		{"the user's search path", []string{"LD_LIBRARY_PATH=/a:/lib/gpumem:/b"}, nil, pooled(), []string{"LD_LIBRARY_PATH=/lib/gpumem:/a:/b"}, ""},
		{"the user's fraction", []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=.3", "CUPY_GPU_MEMORY_LIMIT=5"}, nil, pooled(), []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=.3", "CUPY_GPU_MEMORY_LIMIT=5"}, ""},

		{"outside, by the table", nil, nil, real, []string{"GPUMEM_OUTSIDE=" + bytesOf(overhead.Of("cuda", real.Leases[0].gpu(), 1))}, "estimated"},
		{"outside, of what is installed", nil, []string{"jax-0.12.0.1", "torch-2.15.0"}, real, []string{"GPUMEM_OUTSIDE=" + bytesOf(overhead.Of("pytorch", real.Leases[0].gpu(), 1))}, "estimated for jax, pytorch"},
		{"outside, as measured", nil, []string{"jax-0.12.0.1", "torch-2.15.0"}, with(func(g *Limits) { g.Measured = append(measured("jax", 7*mib), measured("cuda", 5)...) }), []string{"GPUMEM_OUTSIDE=7340032"}, "as measured"},
		{"outside, as measured with another release", nil, []string{"jax-0.12.0.1"}, with(func(g *Limits) {
			g.Measured = measured("jax", 7*mib)
			g.Measured[0].Release = "0.11.0"
		}), []string{"GPUMEM_OUTSIDE=0"}, "estimated for jax"},
		{"outside, as measured with this release and another", nil, []string{"jax-0.12.0.1"}, with(func(g *Limits) {
			g.Measured = append(measured("jax", 7*mib), measured("jax", 9*mib)...)
			g.Measured[0].Release, g.Measured[1].Release = "0.12.0.1", "0.11.0"
		}), []string{"GPUMEM_OUTSIDE=7340032"}, "as measured"},
		{"outside, as measured on another GPU", nil, nil, with(func(g *Limits) {
			g.Measured = measured("cuda", 7*mib)
			g.Measured[0].GPU = "another"
		}), []string{"GPUMEM_OUTSIDE=0"}, "estimated"},
		{"further contexts", nil, nil, real, []string{"GPUMEM_CONTEXT=" + bytesOf(overhead.Context(real.Leases[0].gpu()))}, "each further context"},
		{"outside, nothing as given", nil, nil, with(func(g *Limits) { g.Overhead, g.Measured = new(uint64(0)), measured("jax", 7*mib) }), []string{"GPUMEM_OUTSIDE=0"}, "as given"},
		{"outside, as given", nil, nil, with(func(g *Limits) { g.Overhead, g.Measured = new(uint64(9)), measured("jax", 7*mib) }), []string{"GPUMEM_OUTSIDE=9"}, "as given"},

		{"JAX alone", nil, []string{"jax-0.12.0.1"}, pooled(), []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "GPUMEM_FREES=-"}, ""},
		{"JAX alone, by cuMemFree", []string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform"}, []string{"jax-0.4.38"}, pooled(), []string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform", "GPUMEM_FREES=stream"}, "as the user has it: JAX's own pool"},
		{"JAX beside PyTorch, by cuMemFree", []string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform"}, []string{"jax-0.4.38", "torch-2.15.0"}, pooled(), []string{"GPUMEM_FREES=-"}, ""},
		{"the user's order of frees", []string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform", "GPUMEM_FREES=safe"}, []string{"jax-0.4.38"}, pooled(), []string{"GPUMEM_FREES=safe"}, ""},
		{"the user's allocator", []string{"XLA_PYTHON_CLIENT_ALLOCATOR=bfc"}, nil, pooled(), []string{"XLA_PYTHON_CLIENT_ALLOCATOR=bfc", "GPUMEM_FREES=-"}, "JAX's own pool"},
		{"the user's allocator as an option", []string{"JAX_PJRT_CLIENT_CREATE_OPTIONS=allocator:bfc"}, nil, pooled(), []string{"JAX_PJRT_CLIENT_CREATE_OPTIONS=allocator:bfc"}, "goes before"},
		{"the user's preallocation", []string{"XLA_PYTHON_CLIENT_PREALLOCATE=true"}, nil, pooled(), []string{"XLA_PYTHON_CLIENT_PREALLOCATE=true"}, "takes its fraction"},
		{"an unknown JAX", nil, []string{"jax-99.1"}, pooled(), []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"}, ""},
		{"GoMLX", []string{"GOMLX_BACKEND=xla:cuda,tf32"}, nil, pooled(), []string{"GOMLX_BACKEND=xla:cuda,tf32,allocator=cuda_async,preallocate=false"}, ""},
		{"GoMLX as the user has it", []string{"GOMLX_BACKEND=xla:cuda,preallocate=true"}, nil, pooled(), []string{"GOMLX_BACKEND=xla:cuda,preallocate=true,allocator=cuda_async"}, ""},
		{"GoMLX on the CPU", []string{"GOMLX_BACKEND=xla:cpu"}, nil, pooled(), []string{"GOMLX_BACKEND=xla:cpu"}, ""},

		{"TensorFlow", nil, []string{"tensorflow-2.21.0"}, pooled(), []string{"TF_GPU_ALLOCATOR=cuda_malloc_async"}, ""},
		{"an old TensorFlow", nil, []string{"tensorflow-2.2.0"}, pooled(), []string{"TF_GPU_ALLOCATOR=-", "TF_FORCE_GPU_ALLOW_GROWTH=true"}, ""},
		{"TensorFlow as the user has it", []string{"TF_GPU_ALLOCATOR=cuda_malloc", "TF_FORCE_GPU_ALLOW_GROWTH=false"}, nil, pooled(), []string{"TF_GPU_ALLOCATOR=cuda_malloc", "TF_FORCE_GPU_ALLOW_GROWTH=false"}, "TensorFlow's own pool"},
		{"TensorFlow off the GPU", nil, nil, with(func(g *Limits) { g.CPUTensorFlow, g.Hook = true, "/the/hook" }), []string{"GPUMEM_TF_CPU=1", "PYTHONPATH=/the/hook", "TF_GPU_ALLOCATOR=-"}, ""},

		{"PyTorch 2.15", nil, []string{"torch-2.15.0+cu132"}, pooled(), []string{"PYTORCH_ALLOC_CONF=backend:cudaMallocAsync", "PYTORCH_CUDA_ALLOC_CONF=-"}, ""},
		{"PyTorch 2.5", []string{"PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64"}, []string{"torch-2.5.0"}, pooled(), []string{"PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64,backend:cudaMallocAsync"}, ""},
		{"a PyTorch that does not know it", nil, []string{"torch-1.10.0"}, pooled(), []string{"PYTORCH_CUDA_ALLOC_CONF=-"}, "not every release that was found (1.10.0) takes backend:cudaMallocAsync"},
		{"the user's backend", []string{"PYTORCH_ALLOC_CONF=max_split_size_mb:64,backend:native"}, nil, pooled(), []string{"PYTORCH_ALLOC_CONF=max_split_size_mb:64,backend:native", "PYTORCH_CUDA_ALLOC_CONF=-"}, "PyTorch's own pool takes segments"},

		{"recorded", nil, nil, with(func(g *Limits) { g.Record = "/x/rec" }), []string{"GPUMEM_RECORD=/x/rec", "TF_BFC_MEMORY_DUMP=-"}, ""},
		{"everything forwarded", []string{"GPUMEM_OFF=1"}, nil, pooled(), []string{"GPUMEM_OFF=1"}, "forwards every call"},
		{"in another lease", []string{"GPUMEM_TORCH_FRACTION=1", "GPUMEM_LEASE_PART=x 1 1", "GPUMEM_PROCS=3", "GPUMEM_TF_CPU=1", "GPUMEM_RECORD=/old"}, nil, pooled(),
			[]string{"GPUMEM_TORCH_FRACTION=-", "GPUMEM_LEASE_PART=-", "GPUMEM_PROCS=-", "GPUMEM_TF_CPU=-", "GPUMEM_RECORD=-"}, ""},
		{"parts of other leases", []string{"GPUMEM_LEDGER_PARTS=a=5"}, nil, pooled(), []string{"GPUMEM_LEDGER_PARTS=-"}, ""},
		{"a part", nil, nil, with(func(g *Limits) { g.Leases[0].Within, g.Leases[0].Part = 7*gib, 0xab }), []string{"GPUMEM_LEDGER_PARTS=ab=" + bytesOf(6*gib)}, ""},
		{"a lease by turns", nil, nil, with(func(g *Limits) { g.Leases[0].TurnsPart = 0xc }), []string{"GPUMEM_LEDGER_PARTS=c=" + bytesOf(6*gib)}, ""},
		{"a part of a lease by turns, whose environment is lost", nil, nil,
			with(func(g *Limits) { g.Leases[0].Within, g.Leases[0].Part, g.Leases[0].TurnsPart = 7*gib, 0xab, 0xc }),
			[]string{"GPUMEM_LEDGER_PARTS=c=" + bytesOf(7*gib) + ",ab=" + bytesOf(6*gib)}, ""},
		{"a part in a part of this lease", []string{"GPUMEM_LEDGER=" + pooled().Leases[0].Ledger, "GPUMEM_LEDGER_PARTS=a=5"}, nil, with(func(g *Limits) { g.Leases[0].Within, g.Leases[0].Part = 7*gib, 0xab }),
			[]string{"GPUMEM_LEDGER_PARTS=a=5,ab=" + bytesOf(6*gib)}, ""},
		{"a part of a part", []string{"GPUMEM_LEASE_ID=0123456789abcdef.1"}, nil, with(func(g *Limits) { g.Leases[0].Within = 7 * gib }), []string{"GPUMEM_LEASE_ID=0123456789abcdef.1"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			files := map[string]string{"bin/python3": "->bin/python3.11", "bin/python3.11": "\x7fELF"}
			for _, p := range tc.packages {
				files["lib/python3.11/site-packages/"+p+".dist-info/METADATA"] = ""
			}
			o := must(t, tc.env, []string{tree(t, files) + "/bin/python3", "x.py"}, tc.g)
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
				if c.Why == "" || strings.Contains(c.Why, "\n") {
					t.Errorf("change %+v says %q", c, c.Why)
				}
			}
			if !strings.Contains(strings.Join(said, "\n"), tc.remark) {
				t.Errorf("nothing says %q:\n%s", tc.remark, strings.Join(said, "\n"))
			}
			again := must(t, o.Env, nil, tc.g)
			if tc.packages == nil && !slices.Equal(again.Env, o.Env) {
				t.Errorf("twice: %q, then %q", o.Env, again.Env)
			}
		})
	}
}

func bytesOf(n uint64) string { return strconv.FormatUint(n, 10) }

// TestPoolEndsInARunWithout: what was set for the library goes, and the rest stays.
func TestPoolEndsInARunWithout(t *testing.T) {
	once := must(t, []string{"LD_LIBRARY_PATH=/mine", "HOME=/h"}, nil, pooled())
	g := pooled()
	g.Pool = nil
	got := must(t, once.Env, nil, g)
	want := must(t, []string{"LD_LIBRARY_PATH=/mine", "HOME=/h"}, nil, g)
	for _, name := range []string{EnvPool, libraryVar, driverVar, nvmlVar, policyVar, ledgerVar, outsideVar, freesVar, searchVar, allocatorVar, tfAllocatorVar, torchLists[0], fractionVar} {
		if get(got, name) != get(want, name) {
			t.Errorf("%s is %q, want %q", name, get(got, name), get(want, name))
		}
	}
	for _, c := range got.Changes {
		if c.Remark {
			t.Errorf("%+v", c)
		}
	}
}

func TestPoolRefusals(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Limits)
		want   string
	}{
		{"a ledger with a colon", func(g *Limits) { g.Leases[0].Ledger = "/a:b" }, `ledger "/a:b": want an absolute path without ":"`},
		{"no ledger", func(g *Limits) { g.Leases[0].Ledger = "" }, "want an absolute path"},
		{"runs in runs", func(g *Limits) { g.Leases[0].Part = 9 }, "5 runs inside a lease"},
		{"no room", func(g *Limits) { g.Overhead = new(uint64(6 * gib)) }, "the lease of 6 GiB is too small for a pool, which needs at least 6.00 GiB, 6 GiB of that outside of it"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := pooled()
			tc.change(&g)
			env := []string{"GPUMEM_LEDGER=" + g.Leases[0].Ledger, "GPUMEM_LEDGER_PARTS=1=1,2=1,3=1,4=1"}
			if _, err := For(env, nil, g); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}
