package given

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"
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
		g    Grant
		code string
		want string // PID for the process; "": nothing is said
	}{
		{"PyTorch", Grant{Leases: []Lease{one}}, torch + "spawn('" + torch + "')", "process PID is number 2 on GPU 0 in a lease of 6 GiB of 24 GiB, and each may take all of it; to divide it: gpumem run --procs N"},
		{"JAX after TensorFlow", Grant{Leases: []Lease{one}}, tensorflow + "spawn('" + jax + "')", "process PID is number 2 on GPU 0"},
		{"JAX before 0.4.2", Grant{Leases: []Lease{one}}, torch + "spawn('from jax._src.lib import xla_bridge as b; b.backends()')", "process PID is number 2 on GPU 0"},
		{"a JAX that makes backends in another way", Grant{Leases: []Lease{one}}, "sys.path.insert(0, os.environ['PYTHONPATH'].split(':')[1] + '/later'); import jax._src.xla_bridge", "the processes of the lease are not counted in jax: AttributeError: _init_backend"},
		{"TensorFlow after JAX", Grant{Leases: []Lease{named("GPU-a")}}, jax + "spawn('" + tensorflow + "')", "process PID is number 2 on GPU GPU-a"},
		{"once for many", Grant{Leases: []Lease{one}}, torch + "spawn('import two')", "process PID is number 2"},
		{"as many as the limits are for", Grant{Leases: []Lease{one}, Procs: 2}, torch + "spawn('" + torch + "')", ""},
		{"one more than the limits are for", Grant{Leases: []Lease{one}, Procs: 2}, torch + "spawn('import two')", "process PID is number 3 on GPU 0 in a lease of 6 GiB of 24 GiB, and each may take 1/2"},
		{"one after the other", Grant{Leases: []Lease{one}}, "spawn('" + torch + "'); spawn('" + torch + "')", ""},
		{"one that only imports it", Grant{Leases: []Lease{one}}, torch + "spawn('import torch')", ""},
		{"twice in one process", Grant{Leases: []Lease{one}}, torch + torch + jax + tensorflow, ""},
		{"a forked one that uses none", Grant{Leases: []Lease{one}}, torch + "\nif os.fork() == 0: os._exit(0)\nos.wait()", ""},
		{"each on its own GPU, as torchrun has them", Grant{Leases: []Lease{named("0"), named("1")}}, torch + "spawn('import on_one')", ""},
		{"each sees its own GPU", Grant{Leases: []Lease{named("0"), named("1")}}, torch + "spawn('" + torch + "', CUDA_VISIBLE_DEVICES='1')", ""},
		{"the same GPU by another number", Grant{Leases: []Lease{named("0"), named("1")}}, "import on_one; spawn('" + torch + "', CUDA_VISIBLE_DEVICES='1')", "process PID is number 2 on GPU 1"},
		{"JAX on the CPU", Grant{Leases: []Lease{one}}, torch + "spawn('from jax._src import xla_bridge as b; b._init_backend(\"cpu\")')", ""},
		{"in another lease", Grant{Leases: []Lease{one}}, torch + "spawn('" + torch + "', GPUMEM_LEASE_ID='def')", ""},
		{"no lease", Grant{Leases: []Lease{simulated(gib)}}, torch + "spawn('" + torch + "')", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for i := range tc.g.Leases { // counted apart from the other tests
				if id := &tc.g.Leases[i].ID; *id != "" {
					*id = tc.name
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
	l := Lease{ID: "abc", Bytes: 2 * gib, Total: 24 * gib, Simulated: true}
	g := Grant{Leases: []Lease{l}}
	for _, tc := range []struct {
		name, code string
		want       bool
	}{
		{"JAX", "raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1GiB.')", true},
		{"PyTorch", "class OutOfMemoryError(RuntimeError): pass\nraise OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')", true},
		{"the driver", "raise OSError('CUDA_ERROR_OUT_OF_MEMORY: out of memory')", true},
		{"something else", "raise ValueError('no')", false},
		{"handled", "try: raise RuntimeError('RESOURCE_EXHAUSTED')\nexcept RuntimeError: pass", false},
		{"the end", "pass", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			exe := python(t)
			g := g
			g.Hook = hook(t)
			cmd := exec.Command(exe, "-c", tc.code)
			cmd.Env = must(t, []string{"PATH=/usr/bin:/bin"}, []string{exe}, g).Env
			said, _ := cmd.CombinedOutput()
			lines := strings.Split(strings.TrimSpace(string(said)), "\n")
			last := lines[len(lines)-1]
			if got := strings.HasPrefix(last, "gpumem: out of GPU memory in a lease of 2 GiB of 24 GiB; "); got != tc.want {
				t.Errorf("%s", said)
			}
		})
	}
}

func TestHookedReportsWhetherPythonFindsTheHook(t *testing.T) {
	path := hook(t)
	for value, want := range map[string]bool{path: true, "/mine:" + path: true, "/mine": false, "": false, path + "/none": false} {
		if got := Hooked([]string{"PYTHONPATH=" + value}); got != want {
			t.Errorf("PYTHONPATH=%s: %v", value, got)
		}
	}
	if Hooked(nil) {
		t.Error("without PYTHONPATH")
	}
}

// TestProcsDivideEachLimit: the parts of all processes together are within the lease.
func TestProcsDivideEachLimit(t *testing.T) {
	g := Grant{Leases: []Lease{{ID: "abc", Bytes: 8 * gib, Total: 32 * gib, Simulated: true}}, Procs: 4, Hook: "/the/hook"}
	o := must(t, nil, nil, g)
	for name, want := range map[string]string{
		"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.0625", "GPUMEM_TF_LIMIT_MIB": "2048", "GPUMEM_TORCH_FRACTION": "0.0625", "CUPY_GPU_MEMORY_LIMIT": fmt.Sprint(2 * gib), "GPUMEM_PROCS": "4",
	} {
		if got := get(o, name); got != want {
			t.Errorf("%s=%s, want %s", name, got, want)
		}
	}
}
