package runenv

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"gpumem/node/internal/hook"
)

// spawn starts this script again with another argument and waits for it, as
// multiprocessing's spawn, pytest -n or torchrun do.
const spawn = `
import os, subprocess, sys
def spawn(code, **env): subprocess.check_call([sys.executable, "-c", code], env=dict(os.environ, **env))
`

const standInBridge = `
def _init_backend(platform): return platform
def backends(): return _init_backend("cuda")
`

// TestSecondProcessOnAGPUSaysSo: each process may take the whole limit, so a second
// one doubles what is taken.
func TestSecondProcessOnAGPUSaysSo(t *testing.T) {
	one := Lease{ID: "abc", Bytes: 6 * gib, Total: 24 * gib, Simulated: true}
	part := func(of uint64) Lease { l := one; l.Bytes, l.Within = of*gib, l.Bytes; return l }
	named := func(name string) Lease { l := one; l.Visible = name; return l }
	modules := map[string]string{
		"torch.py":               standInTorch,
		"on_one.py":              "import torch, types; torch._C = types.SimpleNamespace(_cuda_getDevice=lambda: 1); torch.init()",
		"two.py":                 "import torch; torch.init()" + spawn + "spawn('import torch; torch.init()')",
		"tensorflow/__init__.py": "from . import config\nfrom .python.eager import context\n",
		"tensorflow/config.py":   standIn2, "tensorflow/python/__init__.py": "", "tensorflow/python/eager/__init__.py": "", "tensorflow/python/eager/context.py": standInContext,
		"later/jax/__init__.py": "", "later/jax/_src/__init__.py": "", "later/jax/_src/xla_bridge.py": "", "jax/__init__.py": "", "jax/_src/__init__.py": "", "jax/_src/xla_bridge.py": standInBridge, "jax/_src/lib/__init__.py": "", "jax/_src/lib/xla_bridge.py": standInBridge,
	}
	const torch, tensorflow, jax = "import torch; torch.init(); ", "import tensorflow as tf; tf.python.eager.context._the.ensure_initialized(); ", "from jax._src import xla_bridge as b; b.backends(); "
	for _, tc := range []struct {
		name string
		g    Limits
		code string
		want string // PID for the process; "": nothing is said
	}{
		{"PyTorch", Limits{Leases: []Lease{one}}, torch + "spawn('" + torch + "')", "process PID is number 2 on GPU 0 in a lease of 6 GiB, and may take all of it, more than the others leave; to divide it: gpumem run --procs 2"},
		{"JAX after TensorFlow", Limits{Leases: []Lease{one}}, tensorflow + "spawn('" + jax + "')", "process PID is number 2 on GPU 0"},
		{"JAX before 0.4.2", Limits{Leases: []Lease{one}}, torch + "spawn('from jax._src.lib import xla_bridge as b; b.backends()')", "process PID is number 2 on GPU 0"},
		{"a JAX that makes backends in another way", Limits{Leases: []Lease{one}}, "sys.path.insert(0, os.environ['PYTHONPATH'].split(':')[1] + '/later'); import jax._src.xla_bridge", "the processes of the lease are not counted in jax: AttributeError: _init_backend"},
		{"TensorFlow after JAX", Limits{Leases: []Lease{named("GPU-a")}}, jax + "spawn('" + tensorflow + "')", "process PID is number 2 on GPU GPU-a"},
		{"once for many", Limits{Leases: []Lease{one}}, torch + "spawn('import two')", "process PID is number 2"},
		{"as many as the limits are for", Limits{Leases: []Lease{one}, Procs: 2}, torch + "spawn('" + torch + "')", ""},
		{"one more than the limits are for", Limits{Leases: []Lease{one}, Procs: 2}, torch + "spawn('import two')", "process PID is number 3 on GPU 0 in a lease of 6 GiB, and may take 3 GiB of it, more than the others leave; to divide it: gpumem run --procs 3"},
		{"nested runs that fit", Limits{Leases: []Lease{part(2)}}, torch + "spawn('" + torch + "', GPUMEM_LEASE_PART='x 4294967296 6442450944')", ""},
		{"nested runs that do not", Limits{Leases: []Lease{part(4)}}, torch + "spawn('" + torch + "')", "process PID is number 2 on GPU 0 in a lease of 6 GiB, and may take 4 GiB of it, more than the others leave"},
		{"a nested run beside one without", Limits{Leases: []Lease{one}}, torch + "spawn('" + torch + "', GPUMEM_LEASE_PART='x 1073741824 6442450944', GPUMEM_PROCS='8')", "process PID is number 2 on GPU 0"},
		{"one after the other", Limits{Leases: []Lease{one}}, "spawn('" + torch + "'); spawn('" + torch + "')", ""},
		{"one that only imports it", Limits{Leases: []Lease{one}}, torch + "spawn('import torch')", ""},
		{"twice in one process", Limits{Leases: []Lease{one}}, torch + torch + jax + tensorflow, ""},
		{"a forked one that uses none", Limits{Leases: []Lease{one}}, torch + "\nif os.fork() == 0: os._exit(0)\nos.wait()", ""},
		{"each on its own GPU, as torchrun has them", Limits{Leases: []Lease{named("0"), named("1")}}, torch + "spawn('import on_one')", ""},
		{"each sees its own GPU", Limits{Leases: []Lease{named("0"), named("1")}}, torch + "spawn('" + torch + "', CUDA_VISIBLE_DEVICES='1')", ""},
		{"the same GPU by another number", Limits{Leases: []Lease{named("0"), named("1")}}, "import on_one; spawn('" + torch + "', CUDA_VISIBLE_DEVICES='1')", "process PID is number 2 on GPU 1"},
		{"JAX on the CPU", Limits{Leases: []Lease{one}}, torch + "spawn('from jax._src import xla_bridge as b; b._init_backend(\"cpu\")')", ""},
		{"in another lease", Limits{Leases: []Lease{one}}, torch + "spawn('" + torch + "', GPUMEM_LEASE_ID='def')", ""},
		{"one whose memory the driver library serves", Limits{Leases: []Lease{one}}, torch + "spawn('" + jax + "', GPUMEM_POOL='elastic')", ""},
		{"no lease", Limits{Leases: []Lease{simulated(gib)}}, torch + "spawn('" + torch + "')", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for i := range tc.g.Leases { // counted apart from the other tests
				if id := &tc.g.Leases[i].ID; *id != "" {
					*id = strings.NewReplacer(" ", "_", ",", "_").Replace(tc.name)
				}
			}
			_, stderr := script{grant: tc.g, modules: modules, code: strings.Replace(spawn, "\n", "", 1) + tc.code}.run(t)
			lines := strings.Count(stderr, "gpumem:")
			text := regexp.MustCompile(`process \d+`).ReplaceAllString(strings.TrimPrefix(stderr, "gpumem: "), "process PID")
			if tc.want == "" && stderr != "" || tc.want != "" && (lines != 1 || !strings.HasPrefix(text, tc.want)) {
				t.Errorf("stderr %q, want %q", stderr, tc.want)
			}
		})
	}
}

// TestProgramThatDiesOfLackOfMemoryIsToldItsLease: and one that lives, or dies of
// something else, is told nothing.
func TestProgramThatDiesOfLackOfMemoryIsToldItsLease(t *testing.T) {
	const torch = "import torch; torch.init()\n"
	const jax = "import jax._src.xla_bridge as b; b._init_backend('%s')\n"
	const full = "raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1GiB.')"
	one := Limits{Leases: []Lease{{ID: "abc", Bytes: 6 * gib, Total: 24 * gib, Simulated: true}}}
	third := one
	third.Procs = 3
	all := Limits{Leases: []Lease{{ID: "abc", Bytes: 24 * gib, Total: 24 * gib, Simulated: true}}}
	half := all
	half.Procs = 2
	const larger = "; run it with a larger gpumem run --mem, or give this output to gpumem doctor"
	two := Limits{Leases: []Lease{{ID: "abc", Bytes: 6 * gib, Total: 24 * gib, Visible: "GPU-a", Simulated: true}, {ID: "def", Bytes: 2 * gib, Total: 24 * gib, Visible: "GPU-b", Simulated: true}}}
	modules := map[string]string{"torch.py": standInTorch, "jax/__init__.py": "", "jax/_src/__init__.py": "", "jax/_src/xla_bridge.py": standInBridge,
		"cupy/__init__.py": "", "cupy/cuda.py": "class OutOfMemoryError(MemoryError): pass\n"}
	for _, tc := range []struct {
		name string
		g    Limits
		code string
		want string // what it had; "": nothing is said
	}{
		{"JAX", one, fmt.Sprintf(jax, "cuda") + full, "a lease of 6 GiB"},
		{"JAX on the CPU", one, fmt.Sprintf(jax, "cpu") + full, ""},
		{"no framework", one, full, ""},
		{"PyTorch", one, torch + "class OutOfMemoryError(RuntimeError): pass\nraise OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')", "a lease of 6 GiB"},
		{"the driver", one, torch + "raise OSError('CUDA_ERROR_OUT_OF_MEMORY: out of memory')", "a lease of 6 GiB"},
		{"CuPy", one, "import cupy.cuda\nraise cupy.cuda.OutOfMemoryError('Out of memory allocating 1,024 bytes')", "a lease of 6 GiB"},
		{"one of three processes", third, torch + "raise OSError('CUDA_ERROR_OUT_OF_MEMORY')", "2 GiB, 1/3 of a lease of 6 GiB"},
		{"all of the GPU", all, torch + "raise OSError('CUDA_ERROR_OUT_OF_MEMORY')", "all of a GPU of 24 GiB; give this output to gpumem doctor"},
		{"half of it", half, torch + "raise OSError('CUDA_ERROR_OUT_OF_MEMORY')", "12 GiB, 1/2 of a lease of 24 GiB"},
		{"on the second GPU", two, "import torch, types; torch._C = types.SimpleNamespace(_cuda_getDevice=lambda: 1); torch.init()\nraise OSError('CUDA_ERROR_OUT_OF_MEMORY')", "a lease of 2 GiB"},
		{"on both", two, fmt.Sprintf(jax, "cuda") + full, "a lease of 6 GiB on GPU GPU-a and a lease of 2 GiB on GPU GPU-b"},
		{"another server's quota", one, torch + "raise RuntimeError('429 RESOURCE_EXHAUSTED. Quota exceeded for requests per minute')", ""},
		{"only its name", one, torch + "raise ValueError('read the docs about OutOfMemoryError')", ""},
		{"something else", one, torch + "raise ValueError('no')", ""},
		{"handled", one, torch + "try: raise RuntimeError('CUDA out of memory')\nexcept RuntimeError: pass", ""},
		{"the end", one, torch, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for i := range tc.g.Leases { // counted apart from the other tests
				tc.g.Leases[i].ID = strings.ReplaceAll(t.Name(), " ", "_")
			}
			_, stderr := script{grant: tc.g, modules: modules, code: tc.code, ends: true}.run(t)
			lines := strings.Split(stderr, "\n")
			got := lines[len(lines)-1]
			want := "gpumem: out of GPU memory: this process had " + tc.want
			if tc.name != "all of the GPU" {
				want += larger
			}
			if tc.want != "" && got != want || tc.want == "" && strings.Contains(stderr, "gpumem") {
				t.Errorf("%s; want %s", stderr, want)
			}
		})
	}
}

// TestNestedRunIsCountedWithItsLease: a part keeps the name of the enclosing lease and
// multiplies the processes.
func TestNestedRunIsCountedWithItsLease(t *testing.T) {
	outer := must(t, nil, nil, Limits{Leases: []Lease{{ID: "abc", Bytes: 6 * gib, Total: 24 * gib, Simulated: true}}, Procs: 3, Hook: "/the/hook"})
	part := Shares(outer.Env)["abc"]
	if part != 2*gib {
		t.Fatalf("a part of %d bytes", part)
	}
	inner := must(t, outer.Env, nil, Limits{Leases: []Lease{{ID: "abc", Bytes: part, Within: 6 * gib, Total: 24 * gib, Simulated: true}}, Procs: 2, Hook: "/the/hook"})
	for name, want := range map[string]string{"GPUMEM_LEASE_ID": "abc", "GPUMEM_PROCS": "6", "GPUMEM_LEASE_PART": "abc 1073741824 6442450944", "GPUMEM_TF_LIMIT_MIB": "1024"} {
		if got := get(inner, name); got != want {
			t.Errorf("%s=%s, want %s", name, got, want)
		}
	}
}

func TestFoundReportsWhetherPythonFindsTheHook(t *testing.T) {
	path := hookFolder(t)
	for value, want := range map[string]bool{path: true, "/mine:" + path: true, "/mine": false, "": false, path + "/none": false} {
		if got := hook.Found([]string{"PYTHONPATH=" + value}); got != want {
			t.Errorf("PYTHONPATH=%s: %v", value, got)
		}
	}
	if hook.Found(nil) {
		t.Error("without PYTHONPATH")
	}
}

// TestProcsDivideEachLimit: the parts of all processes together are within the lease.
func TestProcsDivideEachLimit(t *testing.T) {
	g := Limits{Leases: []Lease{{ID: "abc", Bytes: 8 * gib, Total: 32 * gib, Simulated: true}}, Procs: 4, Hook: "/the/hook"}
	o := must(t, nil, nil, g)
	for name, want := range map[string]string{
		"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.0625", "GPUMEM_TF_LIMIT_MIB": "2048", "GPUMEM_TORCH_FRACTION": "0.0625", "CUPY_GPU_MEMORY_LIMIT": fmt.Sprint(2 * gib), "GPUMEM_PROCS": "4",
	} {
		if got := get(o, name); got != want {
			t.Errorf("%s=%s, want %s", name, got, want)
		}
	}
}
