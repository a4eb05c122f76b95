package runenv

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The part of PyTorch 2.1 and later that records. A snapshot is what was asked
// for, and how often memory ran out.
const standInRecording = standInTorch + `
asked, observers = [], []
Tensor = type("Tensor", (), {})
nn, optim = types.SimpleNamespace(Module=type("Module", (), {})), types.SimpleNamespace(Optimizer=type("Optimizer", (), {}))
def _record_memory_history(enabled="all", *args, **kwargs):
    if isinstance(enabled, bool) and "max_entries" in kwargs or not isinstance(enabled, bool) and "trace_alloc_max_entries" in kwargs:
        raise TypeError("unexpected keyword argument")
    asked.append([enabled, sorted(kwargs.items())])
def _dump_snapshot(filename="dump_snapshot.pickle"):
    with open(filename, "w") as f: f.write(repr(asked))
cuda.memory._record_memory_history, cuda.memory._dump_snapshot = _record_memory_history, _dump_snapshot
_C = types.SimpleNamespace(_cuda_attach_out_of_memory_observer=observers.append)
def oom():
    asked.append("oom")
    for o in observers: o(0, 1, 2, 3)
`

// Tensors as the search for what keeps them sees them.
const standInTensors = `
class Tensor:
    __slots__ = ("is_leaf", "requires_grad", "grad", "grad_fn", "untyped_storage")
    def __init__(self, address):
        self.is_leaf, self.requires_grad, self.grad, self.grad_fn = True, False, None, None
        device = types.SimpleNamespace(type="cuda", index=0)
        self.untyped_storage = lambda: types.SimpleNamespace(data_ptr=lambda: address, nbytes=lambda: 512, device=device)
cuda.memory._snapshot = lambda: {"segments": []}
`

func TestRecordTorch(t *testing.T) {
	const want = "[['all', [('max_entries', 1000000), ('stacks', 'python')]]"
	read := "\ndef read():\n    import os; name = os.environ['GPUMEM_RECORD']\n    return open(name).read() if os.path.exists(name) else None\n"
	pickled, err := exec.Command(python(t), "-c", "import pickle, sys; sys.stdout.buffer.write(pickle.dumps([(True, 1000000, True)]))").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, module, code string
		stdout, stderr     string            // what the program says
		files              map[string]string // what there is in the end, FILE for its name
	}{
		{"at the end", "", "import torch; torch.init(); print(torch.asked != [], torch.calls, read())", "True [(0, 0.25), (1, 0.25), (2, 0.25)] None", "", map[string]string{"FILE": want + "]"}},
		{"no GPU is used", "", "import torch; print(torch.asked)", "[]", "", nil},
		{"no PyTorch", "", "print(1)", "1", "", nil},
		{"out of memory, which is written at once, and once", "", "import torch; torch.init(); torch.oom(); print(read()); torch.oom(); print(read())",
			want + ", 'oom']\n" + want + ", 'oom']", "", map[string]string{"FILE": want + ", 'oom', 'oom']"}},
		{"what keeps tensors", standInTensors, "import os, torch, pickle; torch.init(); hist = [torch.Tensor(i) for i in range(1, 11)]; torch.oom()\n" +
			"print(pickle.load(open(os.environ['GPUMEM_RECORD'], 'rb'))); hist.clear()",
			"{'segments': [], 'gpumem_keepers': [{'container': 'list `hist`', 'line': '', 'device': 0, 'blocks': [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 'bytes': 5120}]}",
			"", map[string]string{"FILE": want + ", 'oom']"}},
		{"Ctrl-C in the search for what keeps tensors", "", "import torch; torch.init()\ndef no(): raise KeyboardInterrupt\ntorch.observers[0].__self__.keepers = no", "",
			"E", map[string]string{"FILE": want + "]"}},
		{"killed after that", "", "import torch, os; torch.init(); torch.oom(); torch.oom(); os._exit(0)", "", "", map[string]string{"FILE": want + ", 'oom']"}},
		{"an error of the program", "", "import torch, sys; torch.init()\ntry: sys.exit(3)\nexcept SystemExit: print('3')", "3", "", map[string]string{"FILE": want + "]"}},
		{"forked", "", "import torch, os, sys; torch.init()\nif os.fork() == 0: sys.exit()\nos.wait(); print(read())", "None", "", map[string]string{"FILE": want + "]"}},
		{"another process", "", "import torch, subprocess, sys; torch.init(); torch.oom(); subprocess.check_call([sys.executable, '-c', 'import torch; torch.init()'])",
			"", "", map[string]string{"FILE": want + ", 'oom']", "FILE.PID": want + "]"}},
		{"PyTorch 2.0", "def _record_memory_history(enabled, trace_alloc_max_entries=1, trace_alloc_record_context=False): asked.append((enabled, trace_alloc_max_entries, trace_alloc_record_context))\n" +
			"cuda.memory._record_memory_history, cuda.memory._snapshot = _record_memory_history, lambda: asked\ndel cuda.memory._dump_snapshot\n_C = types.SimpleNamespace()\n",
			"import torch; torch.init()", "", "", map[string]string{"FILE": string(pickled)}},
		{"older", "del cuda.memory._record_memory_history\n", "import torch; torch.init(); print(1)", "1", "gpumem: nothing is recorded in torch: AttributeError", nil},
		{"older still", "del cuda._lazy_call\n", "import torch; print(1)", "1", "gpumem: the lease is not enforced in torch: AttributeError: LINE gpumem: nothing is recorded in torch: AttributeError", nil},
		{"refused", "def no(*a, **k): raise RuntimeError('not with\\nthis allocator')\ncuda.memory._record_memory_history = no\n", "import torch; torch.init(); print(1)", "1",
			"gpumem: nothing is recorded in torch: RuntimeError: not with this allocator", nil},
		{"a full disk", "def no(name): open(name, 'w').close(); raise OSError(28, 'No space left on device')\ncuda.memory._dump_snapshot = no\n", "import torch; torch.init(); print(1)", "1",
			"gpumem: nothing is recorded in torch: OSError: [Errno 28] No space left on device", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			g := Limits{Record: filepath.Join(dir, "x.pickle")}
			stdout, stderr := script{grant: g, modules: map[string]string{"torch.py": standInRecording + tc.module}, code: read + tc.code}.run(t)
			stderr = regexp.MustCompile(`: [^\n:]*\n`).ReplaceAllString(stderr, ": LINE ")
			if stdout != tc.stdout || !strings.HasPrefix(stderr, tc.stderr) || tc.stderr == "" && stderr != "" {
				t.Errorf("stdout %q, want %q; stderr %q, want %q", stdout, tc.stdout, stderr, tc.stderr)
			}
			got := map[string]string{}
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				text, _ := os.ReadFile(filepath.Join(dir, e.Name()))
				name := strings.Replace(e.Name(), "x.pickle", "FILE", 1)
				got[regexp.MustCompile(`\.[0-9]+$`).ReplaceAllString(name, ".PID")] = string(text)
			}
			if tc.files == nil {
				tc.files = map[string]string{}
			}
			if fmt.Sprint(got) != fmt.Sprint(tc.files) {
				t.Errorf("files %v, want %v", got, tc.files)
			}
		})
	}
}

func TestRecord(t *testing.T) {
	dir := t.TempDir()
	g := Limits{Leases: []Lease{simulated(6 * gib)}, Record: "/tmp/x.pickle", Hook: dir}
	without := g
	without.Record = ""
	hookless := g
	hookless.Hook = ""
	for _, tc := range []struct {
		name   string
		env    []string
		g      Limits
		want   []string // "-" is one that must not be set
		remark string
	}{
		{"nothing set", nil, g, []string{"TF_BFC_MEMORY_DUMP=/tmp/x.pickle", "GPUMEM_RECORD=/tmp/x.pickle"}, ""},
		{"the user's own dumps", []string{"TF_BFC_MEMORY_DUMP=/tmp/mine"}, g, []string{"TF_BFC_MEMORY_DUMP=/tmp/mine", "GPUMEM_RECORD=/tmp/x.pickle"}, "as the user has it"},
		{"set to nothing", []string{"TF_BFC_MEMORY_DUMP="}, g, []string{"TF_BFC_MEMORY_DUMP=/tmp/x.pickle"}, ""},
		{"a recording around this one", []string{"GPUMEM_RECORD=/tmp/outer"}, g, []string{"GPUMEM_RECORD=/tmp/x.pickle"}, ""},
		{"which is not of this program", []string{"GPUMEM_RECORD=/tmp/outer"}, without, []string{"GPUMEM_RECORD=-", "TF_BFC_MEMORY_DUMP=-"}, ""},
		{"no hook", nil, hookless, []string{"GPUMEM_RECORD=-", "TF_BFC_MEMORY_DUMP=/tmp/x.pickle"}, "PyTorch is not recorded"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := must(t, tc.env, nil, tc.g)
			for _, w := range tc.want {
				name, value, _ := strings.Cut(w, "=")
				if value == "-" {
					value = ""
				}
				if got := get(o, name); got != value {
					t.Errorf("%s=%s, want %s", name, got, value)
				}
			}
			var said []string
			for _, c := range o.Changes {
				if c.Kept {
					said = append(said, c.Why)
				}
			}
			if !strings.Contains(strings.Join(said, "\n"), tc.remark) || tc.remark == "" && len(said) > 0 {
				t.Errorf("said %q, want %q", said, tc.remark)
			}
		})
	}
	deaf := must(t, nil, []string{filepath.Join(tree(t, map[string]string{"python3": ""}), "python3"), "-I"}, g).Changes
	if why := deaf[len(deaf)-1].Why; !strings.Contains(why, "PyTorch is not recorded") {
		t.Errorf("python3 -I: %s", why)
	}
	g.Record = "x.pickle"
	if _, err := For(nil, nil, g); err == nil || !strings.Contains(err.Error(), "want an absolute path") {
		t.Errorf("a relative path: %v", err)
	}
}

// TestRecordTorchKeepsTheStatusOfCtrlC: Python ends itself by SIGINT, so that a shell's loop ends, too, unless
// something that is run at its end has it forget why it ends.
func TestRecordTorchKeepsTheStatusOfCtrlC(t *testing.T) {
	g := Limits{Record: filepath.Join(t.TempDir(), "x.pickle")}
	const ended = "import signal, subprocess, sys; p = subprocess.run([sys.executable, 'program.py'], stderr=subprocess.DEVNULL); print(p.returncode == -signal.SIGINT)"
	const program = "import os, torch; torch.init(); hist = [torch.Tensor(i) for i in range(1, 11)]; raise KeyboardInterrupt"
	stdout, stderr := script{grant: g, modules: map[string]string{"torch.py": standInRecording + standInTensors},
		code: "open('program.py', 'w').write(" + strconv.Quote(program) + ")\n" + ended, dir: t.TempDir()}.run(t)
	if stdout != "True" || stderr != "" {
		t.Errorf("stdout %q, want True; stderr %q", stdout, stderr)
	}
	if data, err := os.ReadFile(g.Record); err != nil || !bytes.Contains(data, []byte("list `hist`")) {
		t.Errorf("the recording: %q, %v", data, err)
	}
}

// TestRecordSaysThatTheSearchFailed: the recording is whole without the containers, and it is said.
func TestRecordSaysThatTheSearchFailed(t *testing.T) {
	g := Limits{Record: filepath.Join(t.TempDir(), "x.pickle")}
	_, stderr := script{grant: g, modules: map[string]string{"torch.py": standInRecording + "del Tensor\n"}, code: "import torch; torch.init()"}.run(t)
	if !strings.HasPrefix(stderr, "gpumem: no container is named in torch: AttributeError: ") {
		t.Errorf("said %q", stderr)
	}
	if data, err := os.ReadFile(g.Record); err != nil || len(data) == 0 {
		t.Errorf("the recording: %q, %v", data, err)
	}
}

// TestRecordSaysWhyThereIsNone of a framework that keeps no record of its own.
func TestRecordSaysWhyThereIsNone(t *testing.T) {
	modules := map[string]string{"torch.py": standInRecording, "jax/__init__.py": "", "jax/_src/__init__.py": "", "jax/_src/xla_bridge.py": standInBridge}
	const jax = "from jax._src import xla_bridge as b; b._init_backend('%s'); "
	const want = "gpumem: nothing is recorded to FILE: JAX keeps no record of its own, and no pool was out of memory; " +
		"gpumem run --pool elastic --record FILE records every allocation, and in the program gpumem.record(FILE, \"jax\") has the profiler's events"
	one := Lease{ID: "abc", Bytes: 6 * gib, Total: 24 * gib, Simulated: true}
	for _, tc := range []struct{ name, code, want string }{
		{"JAX", fmt.Sprintf(jax, "cuda"), want},
		{"JAX without a GPU", fmt.Sprintf(jax, "cpu"), ""},
		{"JAX, whose pool was out of memory", fmt.Sprintf(jax, "cuda") + "import os; open(os.environ['GPUMEM_RECORD'] + '_GPU_0_bfc.1', 'w')", ""},
		{"JAX beside PyTorch", "import torch; torch.init(); " + fmt.Sprintf(jax, "cuda"), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := Limits{Leases: []Lease{one}, Record: filepath.Join(t.TempDir(), "x.pickle")}
			_, stderr := script{grant: g, modules: modules, code: tc.code}.run(t)
			if got := strings.Replace(stderr, g.Record, "FILE", 1); got != tc.want {
				t.Errorf("said %q, want %q", got, tc.want)
			}
		})
	}
}

// TestRecordTorchBeforeMainReturns: what the variables of main keep is looked at before they are
// gone, and counts as long as nothing is allocated since.
func TestRecordTorchBeforeMainReturns(t *testing.T) {
	if exec.Command(python(t), "-c", "import sys; sys.monitoring").Run() != nil {
		t.Skip("skipped: python3 is not Python 3.12 or later, which say when a function returns")
	}
	const program = `import os, torch, pickle
made = [10]
torch.cuda.memory_stats, torch.cuda.device_count = (lambda i: {"allocation.all.allocated": made[0]}), (lambda: 1)
def kept():
    torch.observers[0].__self__.write()
    with open(os.environ["GPUMEM_RECORD"], "rb") as f: data = f.read()
    return [(k["container"], len(k["blocks"])) for k in pickle.loads(data)["gpumem_keepers"]] if b"gpumem_keepers" in data else []
def main():
    torch.init()
    hist = [torch.Tensor(i) for i in range(1, 11)]
`
	for _, tc := range []struct{ name, code, want string }{
		{"nothing allocated since", "main(); print(kept())", "[('list `hist`, a local of main', 10)]"},
		{"something allocated since", "main(); made[0] += 1; print(kept())", "[]"},
		{"within another function of the program", "def outer(): main(); return kept()\nprint(outer())", "[]"},
		{"in a thread", "import threading; t = threading.Thread(target=main); t.start(); t.join(); print(kept())", "[('list `hist`, a local of main', 10)]"},
		{"still there at the end", "hist = [torch.Tensor(i) for i in range(11, 21)]; main(); print(kept())", "[('list `hist`', 10), ('list `hist`, a local of main', 10)]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := Limits{Record: filepath.Join(t.TempDir(), "x.pickle")}
			stdout, stderr := script{grant: g, modules: map[string]string{"torch.py": standInRecording + standInTensors}, code: program + tc.code}.run(t)
			if stdout != tc.want || stderr != "" {
				t.Errorf("stdout %q, want %q; stderr %q", stdout, tc.want, stderr)
			}
		})
	}
}
