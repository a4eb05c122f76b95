package simulate_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/internal/test/standin"
	"gpumem/node/simulate"
)

// driver is a folder as an installation has it, with the simulated driver and, of the pool library,
// a file alone.
func driver(t *testing.T) func(string) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.Symlink(standin.Library(t), filepath.Join(folder, "sim")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "libcuda.so.1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return func(name string) string { return map[string]string{"GPUMEM_LIB": folder}[name] }
}

func TestMain(m *testing.M) {
	status := m.Run()
	standin.Remove()
	os.Exit(status)
}

func TestNewReadsWhatPeopleWrite(t *testing.T) {
	get := driver(t)
	t.Setenv("TMPDIR", t.TempDir())
	file := filepath.Join(t.TempDir(), "gpus")
	for _, tc := range []struct{ words, wrong string }{
		{words: "24GiB"},
		{words: "24GB,cc=8.0"},
		{words: "T4"},
		{words: "sim:T4*4"},
		{words: "sim@" + file + ",create,total=2GiB/2GiB"},
		{words: "sim@" + file + ",device=1"},
		{"24", "no unit"},
		{"T5000", "no card"},
		{"cuda:0", "want a size, a card or a file"},
		{"T4*0", "N from 1 to"},
		{"sim@/nowhere/gpus,create,total=2GiB", "no such file"},
	} {
		gpu, err := simulate.New(tc.words, get)
		if tc.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), tc.wrong) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: error %v; want one line with %q", tc.words, err, tc.wrong)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tc.words, err)
			continue
		}
		if err := gpu.Close(); err != nil {
			t.Errorf("%s: %v", tc.words, err)
		}
	}
	if left, _ := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := simulate.New("T4", func(string) string { return "" }); err == nil || !strings.Contains(err.Error(), "scripts/libgpumem") {
		t.Errorf("without the libraries: %v", err)
	}
}

// TestEnvironKeepsTheUsersSettings: what the user has in lists of folders and flags stays, behind or
// before ours.
func TestEnvironKeepsTheUsersSettings(t *testing.T) {
	gpu, err := simulate.New("T4", driver(t))
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	env := gpu.Environ([]string{"LD_LIBRARY_PATH=/mine", "PYTHONPATH=/code", "XLA_FLAGS=--mine", "GPUMEM_SIM_HAZARDS=refuse", "OTHER=x"})
	for _, want := range []string{"GPUMEM_SIM_HAZARDS=refuse", "XLA_FLAGS=--mine --xla_gpu_autotune_level=0", "OTHER=x", "GPUMEM_DEVICE=" + gpu.Words} {
		if !slices.Contains(env, want) {
			t.Errorf("%s is not in %v", want, env)
		}
	}
	for name, end := range map[string]string{"LD_LIBRARY_PATH": "/sim:/mine", "PYTHONPATH": ":/code"} {
		if !slices.ContainsFunc(env, func(line string) bool { return strings.HasPrefix(line, name+"=") && strings.HasSuffix(line, end) }) {
			t.Errorf("%s does not end in %s: %v", name, end, env)
		}
	}
}

// TestUsedIsWhatEachProcessHeld: to the byte, also of a process that was refused all that it asked for, and of one that did
// not end by exit.
func TestUsedIsWhatEachProcessHeld(t *testing.T) {
	get := driver(t)
	program := standin.Compile(t, "testdata/hold.c")
	gpu, err := simulate.New("4GiB*2", get)
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	if used, err := gpu.Used(); err != nil || len(used) > 0 {
		t.Errorf("before: %v, %v", used, err)
	}
	want := []simulate.Use{}
	for _, held := range []struct {
		device int
		bytes  []string
		peak   uint64
	}{
		{0, []string{"1073741824", "-1073741824", "536870912"}, 1 << 30},
		{1, []string{"8589934592"}, 0}, // refused
		{0, nil, 0},
		{0, []string{"1073741824", "_exit"}, 1 << 30},
	} {
		c := exec.Command(program, append([]string{[]string{"0", "1"}[held.device]}, held.bytes...)...)
		c.Env = gpu.Environ(os.Environ())
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		want = append(want, simulate.Use{PID: c.Process.Pid, Device: held.device, Peak: held.peak, Ended: !slices.Contains(held.bytes, "_exit")})
	}
	if used, err := gpu.Used(); err != nil || !slices.Equal(used, want) {
		t.Errorf("%v, %v; want %v", used, err, want)
	}
}

// TestModule: a framework that lacks what is prepared is left alone.
func TestModule(t *testing.T) {
	out := runModule(t, `import types
for name in s.FRAMEWORKS + (s.HARDWARE,):
    s.prepare(name, types.ModuleType(name))
m = types.ModuleType("m"); m.has_visible_nvidia_gpu = lambda: False
s.prepare(s.HARDWARE, m)
torch = types.ModuleType("torch"); torch.__version__ = "2.9.0+cpu"
torch.version = types.SimpleNamespace(cuda=None); torch.cuda = types.SimpleNamespace(is_available=lambda: False)
sys.modules["torch"] = torch
print(m.has_visible_nvidia_gpu(), list(s.on_cpu()))`)
	const want = "True ['PyTorch 2.9.0+cpu is built without CUDA: install a build with it (https://pytorch.org/get-started)']\n"
	if out != want {
		t.Errorf("%swant %s", out, want)
	}
}

// TestModuleOfAPackageWithItsOwnRuntimeIsRedirected: between its creation, which loads its libraries,
// and its execution, which calls them. A module in Python is left alone.
func TestModuleOfAPackageWithItsOwnRuntimeIsRedirected(t *testing.T) {
	out := runModule(t, `import os
import importlib.util, sysconfig
libraries = [f for f in sys.path + [sysconfig.get_config_var("DESTSHARED") or ""] if os.path.isdir(f) and any(n.startswith("_bisect.") and n.endswith(".so") for n in os.listdir(f))]
if not libraries:
    print("SKIPPED: no module in a library of its own"); sys.exit()
calls = []
s.redirect = lambda: calls.append("redirected")
finder = s.Finder()
print(finder.find_spec("cupy.json", [os.path.dirname(os.__file__)]), finder.find_spec("cupy._bisect", ["/nowhere"]), finder.find_spec("other._bisect", libraries))
spec = finder.find_spec("cupy._bisect", libraries)
module = importlib.util.module_from_spec(spec)
print(calls)
spec.loader.exec_module(module)
print(calls, hasattr(module, "insort_right"))`)
	if strings.HasPrefix(out, "SKIPPED") {
		t.Skip(out)
	}
	const want = "None None None\n['redirected']\n['redirected'] True\n"
	if out != want {
		t.Errorf("%swant %s", out, want)
	}
}

// TestGenerationEndsAtItsLength: nothing computes that the last token is there, so that is taken from
// the number of tokens; and only from it: without a greatest length generation goes on.
func TestGenerationEndsAtItsLength(t *testing.T) {
	out := runModule(t, `import types
class StoppingCriteriaList(list):
    max_length = 3
    def __call__(self, tokens, scores): return "never"
class GenerationMixin:
    def _has_unfinished_sequences(self, finished, device): return not finished
m = types.SimpleNamespace(StoppingCriteriaList=StoppingCriteriaList, GenerationMixin=GenerationMixin)
s.prepare(s.GENERATION, m)
def generate(stop=lambda n: False):
    n, criteria = 1, StoppingCriteriaList()
    while GenerationMixin()._has_unfinished_sequences(stop(n), device=0) and n < 9:
        n += 1
        assert criteria(types.SimpleNamespace(shape=(2, n)), None) == "never"
    return n
print(generate(), generate(), generate(lambda n: n == 2))
StoppingCriteriaList.max_length = None
print(generate())`)
	if want := "3 3 2\n9\n"; out != want {
		t.Errorf("%swant %s", out, want)
	}
}

// TestHint: of errors that have to do with the simulated GPU, and of no others.
func TestHint(t *testing.T) {
	out := runModule(t, `for e in (None, KeyError("x"), ValueError("out of memory"), ValueError("loc is not finite"), AssertionError(),
          RuntimeError("libdevice not found at ./libdevice.10.bc"), RuntimeError("cuDNN error: not supported on the simulated GPU. This")):
    print((s.hint(e) or "-").split(",")[0])`)
	const want = `-
-
-
kernels do nothing here
kernels do nothing here
XLA compiles kernels with CUDA's compiler
recurrent layers of cuDNN have no stand-in; torch.backends.cudnn.enabled = False takes PyTorch's own
`
	if out != want {
		t.Errorf("%swant %s", out, want)
	}
}

// runModule runs Python that has the module as s, and returns what it printed.
func runModule(t *testing.T, text string) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: no python3")
	}
	folder := t.TempDir()
	name, module := simulate.Module()
	if err := os.WriteFile(filepath.Join(folder, name), module, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(python, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import gpumem_simulate as s\n"+text, folder).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}
