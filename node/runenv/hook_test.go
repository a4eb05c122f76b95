package runenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/node/internal/hook"
)

// TestMain gives the tests a folder of caches, so that they leave the user's alone.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "runenv")
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_CACHE_HOME", dir)
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// python is a Python 3, or the test is skipped.
func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("skipped: there is no python3 on PATH")
	}
	return path
}

// hookFolder is the folder of the hook.
func hookFolder(t testing.TB) string {
	t.Helper()
	path, err := hook.Install()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A script is run in a lease, with a folder of stand-in modules.
type script struct {
	grant   Limits
	modules map[string]string // files of the stand-ins
	env     []string          // besides PATH and HOME
	code    string
	ends    bool // by an exception, or not
	dir     string
}

// run is what the script says on stdout and on stderr, one after the other.
func (s script) run(t *testing.T) (stdout, stderr string) {
	t.Helper()
	exe, site := python(t), t.TempDir()
	for name, text := range s.modules {
		path := filepath.Join(site, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if s.grant.Hook == "" {
		s.grant.Hook = hookFolder(t)
	}
	if s.grant.Leases == nil {
		s.grant.Leases = []Lease{simulated(6 * gib)}
	}
	path := site
	if inherited := os.Getenv("PYTHONPATH"); inherited != "" {
		path += listSeparator + inherited
	}
	env := append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "PYTHONPATH=" + path}, s.env...)
	cmd := exec.Command(exe, "-c", s.code)
	cmd.Dir = s.dir
	cmd.Env = must(t, env, []string{exe}, s.grant).Env
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && !s.ends {
		t.Fatalf("%v: %s%s", err, out.String(), errs.String())
	}
	return strings.TrimSpace(out.String()), strings.TrimSpace(errs.String())
}

// The API of TensorFlow 2 as far as the hook knows it, with what TensorFlow says
// when it is called at the wrong moment. show() makes the devices.
const standIn2 = `
import types
LogicalDeviceConfiguration = types.SimpleNamespace
class _State: limits, growth, visible, made = {}, {}, ["a", "b"], False
def list_physical_devices(kind): return ["a", "b"]
def get_logical_device_configuration(d): return _State.limits.get(d)
def set_logical_device_configuration(d, l):
    if _State.made: raise RuntimeError("Virtual devices cannot be modified after being initialized")
    _State.limits[d] = l
def set_visible_devices(l, kind): _State.visible = l
def get_memory_growth(d): return _State.growth.get(d)
def set_memory_growth(d, on):
    if d not in ("a", "b"): raise ValueError("Unrecognized device")
    if d in _State.limits: raise ValueError("Cannot set memory growth on device when virtual devices configured")
    if _State.growth.get(d) == on: return
    if _State.made: raise RuntimeError("Physical devices cannot be modified after being initialized")
    _State.growth[d] = on
experimental = types.SimpleNamespace(set_memory_growth=set_memory_growth)
`

// The module that makes the devices.
const standInContext = `
from tensorflow import config
class Context:
    _context_handle = None
    config = None
    def ensure_initialized(self):
        if self._context_handle is None: self._context_handle = config._State.made = True
    def get_memory_growth(self, dev): return config.get_memory_growth(dev)
    def set_memory_growth(self, dev, enable): config.set_memory_growth(dev, enable)
_the = Context()
def context(): return _the
`

// The API of TensorFlow 1.
const standIn1 = `
import types
class GPUOptions:
    per_process_gpu_memory_fraction, allow_growth = 0.0, False
class ConfigProto:
    def __init__(self): self.gpu_options, self.device_count = GPUOptions(), {}
    def CopyFrom(self, other):
        self.device_count = dict(other.device_count)
        self.gpu_options.__dict__.update(other.gpu_options.__dict__)
class Session:
    def __init__(self, target="", graph=None, config=None):
        self.target, self.config = target, config
class InteractiveSession(Session): pass
`

func TestTensorFlow(t *testing.T) {
	two := map[string]string{"tensorflow/__init__.py": "from . import config\n", "tensorflow/config.py": standIn2}
	context := map[string]string{"tensorflow/__init__.py": "from . import config\nfrom .python.eager import context\n",
		"tensorflow/config.py": standIn2, "tensorflow/python/__init__.py": "", "tensorflow/python/eager/__init__.py": "", "tensorflow/python/eager/context.py": standInContext}
	one := map[string]string{"tensorflow/__init__.py": standIn1}
	gpus := Limits{Leases: []Lease{{Visible: "0", Bytes: 6 * gib, Total: 24 * gib, Simulated: true}, {Visible: "1", Bytes: 8 * gib, Total: 24 * gib, Simulated: true}}}
	cpu := gpus
	cpu.CPUTensorFlow = true
	const begin = "import tensorflow as tf\nc = tf.config; s = c._State\ndef mib(): return [l[0].memory_limit for l in s.limits.values()]\n"
	const contextBegin = begin + "x = tf.python.eager.context._the\n"
	for _, tc := range []struct {
		name    string
		modules map[string]string
		g       Limits
		code    string
		want    string
		stderr  string
	}{
		{"2: at once where nothing tells when", two, gpus, begin + "print(mib())", "[6144, 8192]", ""},
		{"2: growth after that is accepted", two, gpus, begin + "c.experimental.set_memory_growth('a', True); print(mib())", "[6144, 8192]", ""},
		{"2: but not of what is no GPU", two, gpus, begin + "try: c.experimental.set_memory_growth('x', True)\nexcept ValueError as e: print(e)", "Unrecognized device", ""},
		{"2: off the GPU", two, cpu, begin + "print(s.visible, mib())", "[] []", ""},
		{"2: an API that raises", map[string]string{"tensorflow/__init__.py": "from . import config\n", "tensorflow/config.py": standIn2 + "\ndef list_physical_devices(kind): raise OSError('no\\ndriver')\n"},
			gpus, begin + "print(mib())", "[]", "gpumem: the lease is not enforced in tensorflow: OSError: no driver"},
		{"2: without what is needed", map[string]string{"tensorflow/__init__.py": "import types\nconfig = types.SimpleNamespace()\n"}, gpus, "import tensorflow; print(1)", "1",
			"gpumem: the lease is not enforced in tensorflow: AttributeError"},
		{"2: not before the devices are made", context, gpus, contextBegin + "print(mib()); x.ensure_initialized(); print(mib())", "[]\n[6144, 8192]", ""},
		{"2: which is looked at once", context, gpus, contextBegin + "x.ensure_initialized(); print(type(x).ensure_initialized.__qualname__)", "Context.ensure_initialized", ""},
		{"2: the program's limit wins", context, gpus, contextBegin + "c.set_logical_device_configuration('a', [c.LogicalDeviceConfiguration(memory_limit=5)]); x.ensure_initialized(); print(mib())", "[5, 8192]", ""},
		{"2: growth before", context, gpus, contextBegin + "x.set_memory_growth('a', True); x.ensure_initialized(); x.set_memory_growth('a', True); print(mib())", "[6144, 8192]", ""},
		{"2: growth too late, as without us", context, gpus, contextBegin + "x.ensure_initialized()\ntry: x.set_memory_growth('a', True)\nexcept RuntimeError as e: print(e)", "Physical devices cannot be modified after being initialized", ""},
		{"2: limits too late, as without us", context, gpus, contextBegin + "x.ensure_initialized()\ntry: c.set_logical_device_configuration('a', [])\nexcept RuntimeError as e: print(e)", "Virtual devices cannot be modified after being initialized", ""},
		{"2: off the GPU, later", context, cpu, contextBegin + "print(s.visible); x.ensure_initialized(); print(s.visible)", "['a', 'b']\n[]", ""},
		{"1: no config", one, gpus, "import tensorflow as tf; c = tf.Session().config.gpu_options; print(c.per_process_gpu_memory_fraction, c.allow_growth)", "0.25 True", ""},
		{"1: a larger fraction, in a copy", one, gpus, "import tensorflow as tf; c = tf.ConfigProto(); c.gpu_options.per_process_gpu_memory_fraction = .9\nd = tf.InteractiveSession('', None, c).config; print(d.gpu_options.per_process_gpu_memory_fraction, c.gpu_options.per_process_gpu_memory_fraction)", "0.25 0.9", ""},
		{"1: a smaller one", one, gpus, "import tensorflow as tf; c = tf.ConfigProto(); c.gpu_options.per_process_gpu_memory_fraction = .1\nprint(tf.Session(config=c).config.gpu_options.per_process_gpu_memory_fraction)", "0.1", ""},
		{"1: elsewhere", one, gpus, "import tensorflow as tf; print(tf.Session('grpc://host').config)", "None", ""},
		{"1: what is no config", one, gpus, "import tensorflow as tf; print(tf.Session(config=3).config)", "3", ""},
		{"1: off the GPU", one, cpu, "import tensorflow as tf; print(tf.Session().config.device_count)", "{'GPU': 0}", ""},
		{"an import that fails", map[string]string{"tensorflow/__init__.py": "raise ImportError('no such library')"}, gpus, "try: import tensorflow\nexcept ImportError as e: print(e)", "no such library", ""},
		{"only looked for", one, gpus, "import importlib.util as u; print(u.find_spec('tensorflow').name)\nimport tensorflow as tf; print(tf.Session().config is None)", "tensorflow\nFalse", ""},
		{"the loader is left as it was", one, gpus, "import tensorflow as tf, sys; print('exec_module' in vars(tf.__spec__.loader), tf.__loader__ is tf.__spec__.loader)", "False True", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			stdout, stderr := script{grant: tc.g, modules: tc.modules, code: tc.code}.run(t)
			if stdout != tc.want || !strings.HasPrefix(stderr, tc.stderr) || tc.stderr == "" && stderr != "" || strings.Contains(stderr, "\n") {
				t.Errorf("stdout %q, want %q; stderr %q, want %q", stdout, tc.want, stderr, tc.stderr)
			}
		})
	}
}

const standInTorch = `
import types
calls, queue = [], []
def _cap(fraction, device=None): calls.append((device, fraction))
cuda = types.SimpleNamespace(_lazy_call=queue.append, device_count=lambda: 3, set_per_process_memory_fraction=_cap)
cuda.memory = types.SimpleNamespace(set_per_process_memory_fraction=_cap)
def init(): [f() for f in queue]
`

func TestTorch(t *testing.T) {
	gpus := Limits{Leases: []Lease{{Visible: "0", Bytes: 6 * gib, Total: 24 * gib, Simulated: true}, {Visible: "1", Bytes: 12 * gib, Total: 24 * gib, Simulated: true}}}
	for _, tc := range []struct{ name, module, code, want, stderr string }{
		{"not before CUDA is started", standInTorch, "import torch; print(torch.calls); torch.init(); print(torch.calls)", "[]\n[(0, 0.25), (1, 0.5), (2, 0.25)]", ""},
		{"the program's larger fraction", standInTorch, "import torch; torch.cuda.set_per_process_memory_fraction(.9, 1); torch.cuda.memory.set_per_process_memory_fraction(.9); print(torch.calls)", "[(1, 0.25), (None, 0.25)]", ""},
		{"its smaller one, and what is none", standInTorch, "import torch; torch.cuda.set_per_process_memory_fraction(.1); torch.cuda.set_per_process_memory_fraction('x'); print(torch.calls)", "[(None, 0.1), (None, 'x')]", ""},
		{"too old", "import types\ncuda = types.SimpleNamespace()\n", "import torch; print(1)", "1", "gpumem: the lease is not enforced in torch: AttributeError"},
		{"no GPU", standInTorch + "\ndef no(): raise RuntimeError('no driver')\ncuda.device_count = no\n", "import torch; torch.init(); print(1)", "1", "gpumem: the lease is not enforced in torch: RuntimeError: no driver"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			stdout, stderr := script{grant: gpus, modules: map[string]string{"torch.py": tc.module}, code: tc.code}.run(t)
			if stdout != tc.want || !strings.HasPrefix(stderr, tc.stderr) || tc.stderr == "" && stderr != "" {
				t.Errorf("stdout %q, want %q; stderr %q, want %q", stdout, tc.want, stderr, tc.stderr)
			}
		})
	}
}

// TestSiteCustomize: the user's own runs, and without one nothing of ours is seen.
func TestSiteCustomize(t *testing.T) {
	for _, tc := range []struct {
		name, module, code, want, stderr string
	}{
		{"none", "", "import sys; print('sitecustomize' in sys.modules, [p for p in sys.path if 'hook-' in p])\ntry: import sitecustomize\nexcept ImportError as e: print(e.name)", "False []\nsitecustomize", ""},
		{"the user's", "import os\nos.environ['MINE'] = __file__\nx = 5\n", "import os, sys, sitecustomize as s; print(s.x, s.__name__, os.environ['MINE'] == s.__file__, sys.modules['sitecustomize'] is s)", "5 sitecustomize True True", ""},
		{"the user's, with an error", "raise ValueError('mine')", "print(1)", "1", "Error in sitecustomize; set PYTHONVERBOSE for traceback:\nValueError: mine"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			modules := map[string]string{}
			if tc.module != "" {
				modules["sitecustomize.py"] = tc.module
			} else if out, _ := exec.Command(python(t), "-c", "import sitecustomize").CombinedOutput(); !strings.Contains(string(out), "No module") {
				t.Skip("skipped: this Python has a sitecustomize of its own")
			}
			stdout, stderr := script{modules: modules, code: tc.code}.run(t)
			if stdout != tc.want || stderr != tc.stderr {
				t.Errorf("stdout %q, want %q; stderr %q, want %q", stdout, tc.want, stderr, tc.stderr)
			}
		})
	}
}

// TestQuiet: a program that uses no framework sees no difference, and a child of
// it that does is capped as well.
func TestQuiet(t *testing.T) {
	stdout, stderr := script{code: "import json, sys; print(type(sys.meta_path[0]).__name__)"}.run(t)
	if stdout != "Finder" || stderr != "" {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
	stdout, stderr = script{modules: map[string]string{"tensorflow/__init__.py": standIn1},
		code: "import subprocess, sys; subprocess.check_call([sys.executable, '-c', 'import tensorflow as tf; print(tf.Session().config.gpu_options.allow_growth)'])"}.run(t)
	if stdout != "True" || stderr != "" {
		t.Errorf("in a child: stdout %q, stderr %q", stdout, stderr)
	}
	stdout, stderr = script{env: []string{"GPUMEM_TORCH_FRACTION="}, modules: map[string]string{"torch.py": standInTorch}, code: "import torch; print(len(torch.queue))"}.run(t)
	if stdout != "1" || stderr != "" {
		t.Errorf("an empty variable before: stdout %q, stderr %q", stdout, stderr)
	}
}

// BenchmarkStart is a Python that does nothing, with the hook and without.
func BenchmarkStart(b *testing.B) {
	exe, err := exec.LookPath("python3")
	if err != nil {
		b.Skip("skipped: there is no python3 on PATH")
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	hooked := must(b, env, nil, Limits{Leases: []Lease{simulated(gib)}, Hook: hookFolder(b)}).Env
	for name, env := range map[string][]string{"without": env, "with": hooked} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				cmd := exec.Command(exe, "-c", "pass")
				cmd.Env = env
				if err := cmd.Run(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
