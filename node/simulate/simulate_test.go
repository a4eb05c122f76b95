package simulate_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/internal/test/standin"
	"gpumem/node/simulate"
	"gpumem/policy"
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
	t.Chdir(filepath.Dir(file))
	const gib = 1 << 30
	for _, tc := range []struct {
		words string
		gpus  []uint64 // the total of each
		of    uint64   // its context
		name  string   // its name; "": as given
		wrong string
	}{
		{words: "24GiB", gpus: []uint64{24 * gib}, of: sim.UsualContext},
		{words: "24GB,cc=8.0", gpus: []uint64{24 * gib}, of: sim.UsualContext},
		{words: "T4,context=400MiB", gpus: []uint64{15628312248}, of: 400 << 20, name: "Tesla T4"},
		{words: "a100-80gb,name=mine", gpus: []uint64{84970559242}, of: sim.UsualContext, name: "mine"},
		{words: "sim:T4*4", gpus: slices.Repeat([]uint64{15628312248}, 4), of: sim.UsualContext, name: "Tesla T4"},
		{words: "1GiB,context=0", gpus: []uint64{gib}},
		{words: "sim@" + file + ",create,total=2GiB/3GiB", gpus: []uint64{2 * gib, 3 * gib}},
		{words: "sim@" + file + ",device=1", gpus: []uint64{3 * gib}},
		{words: "sim@" + file + ",device=0", gpus: []uint64{2 * gib}},
		{words: "sim@gpus", gpus: []uint64{2 * gib, 3 * gib}},
		{words: "1GiB", wrong: "the context of a process takes 1.50 GiB, as gpumem fit counts it, and leaves nothing of this GPU; with ,context=0"},
		{words: "4GiB,used=2.5GiB", wrong: "leaves nothing"},
		{words: "24", wrong: "no unit"},
		{words: "T5000", wrong: "no card"},
		{words: "cuda:0", wrong: "want a size, a card or a file"},
		{words: "T4*0", wrong: "N from 1 to"},
		{words: "sim@/nowhere/gpus,create,total=2GiB", wrong: "no such file"},
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
		t.Chdir("/") // as a program may
		spec, err := open.Parse(gpu.Words)
		if err != nil {
			t.Fatal(err)
		}
		list, err := spec.Status()
		if err != nil || len(list) != len(tc.gpus) {
			t.Errorf("%s is %s: %v, %v", tc.words, gpu.Words, list, err)
		}
		for i, d := range list {
			if d.Total != tc.gpus[i] || d.Context != tc.of || d.Name != tc.name && (tc.name != "" || !strings.HasPrefix(d.Name, "sim:")) {
				t.Errorf("%s: GPU %d, %s, has %d bytes, its context %d; want %s, %d and %d", tc.words, i, d.Name, d.Total, d.Context, tc.name, tc.gpus[i], tc.of)
			}
		}
		if err := gpu.Close(); err != nil {
			t.Errorf("%s: %v", tc.words, err)
		}
		t.Chdir(filepath.Dir(file))
	}
	if left, _ := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	for _, mark := range []string{",", ":"} { // which end a word in lists of folders and of a device
		odd := filepath.Join(t.TempDir(), "a"+mark+"b")
		if err := os.Mkdir(odd, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("TMPDIR", odd)
		if _, err := simulate.New("T4", get); err == nil || !strings.Contains(err.Error(), "set TMPDIR") {
			t.Errorf("%s: %v", odd, err)
		}
		if left, _ := os.ReadDir(odd); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	if _, err := simulate.New("T4", func(string) string { return "" }); err == nil || !strings.Contains(err.Error(), "scripts/libgpumem") {
		t.Errorf("without the libraries: %v", err)
	}
}

// TestEnviron: of an environment that has none of the settings, and of one that has all. What the user has in lists
// of folders and flags stays, behind or before ours.
func TestEnviron(t *testing.T) {
	get := driver(t)
	t.Setenv("TMPDIR", t.TempDir())
	gpu, err := simulate.New("T4", get)
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	folder, sim := filepath.Dir(strings.TrimPrefix(gpu.Words, "sim@")), filepath.Join(get("GPUMEM_LIB"), "sim")
	for _, tc := range []struct{ name, bare, mine, both string }{
		{"LD_LIBRARY_PATH", sim, "/mine", sim + ":/mine"},
		{"GPUMEM_LIBCUDA", sim + "/libcuda.so.1", "/mine", sim + "/libcuda.so.1"},
		{"GPUMEM_LIBNVML", sim + "/libnvidia-ml.so.1", "/mine", sim + "/libnvidia-ml.so.1"},
		{"GPUMEM_SIM_FOLDER", sim, "/mine", sim},
		{"GPUMEM_SIM_HAZARDS", "report", "refuse", "refuse"},
		{"JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1", "0", "1"},
		{"TF_CPP_MIN_LOG_LEVEL", "", "0", "0"}, // XLA says what it would on a GPU, its pool's report among it
		{"TORCHINDUCTOR_COMPILE_THREADS", "1", "8", "8"},
		{"XLA_FLAGS", "--xla_gpu_autotune_level=0", "--mine", "--mine --xla_gpu_autotune_level=0"},
		{"PYTHONPATH", folder, "/code", folder + ":/code"},
		{"GPUMEM_DEVICE", "sim@" + folder + "/gpus", "cuda:0", "sim@" + folder + "/gpus"},
		{"GPUMEM_SIM_PEAKS", folder + "/peaks", "/mine", folder + "/peaks"},
		{"OTHER", "", "x", "x"},
	} {
		if got := policy.Environ(gpu.Environ(nil)).Get(tc.name); got != tc.bare {
			t.Errorf("%s=%s, want %s", tc.name, got, tc.bare)
		}
		if got := policy.Environ(gpu.Environ([]string{tc.name + "=" + tc.mine})).Get(tc.name); got != tc.both {
			t.Errorf("%s=%s beside %s, want %s", tc.name, got, tc.mine, tc.both)
		}
	}
	if n := len(gpu.Settings()); n != 11 {
		t.Errorf("%d settings, and 11 in the table here", n)
	}
	for _, s := range gpu.Settings() {
		if s.Why == "" {
			t.Errorf("%s has no reason", s.Name)
		}
	}
}

// TestFolderStaysWithItsLastProcess: one that has the lock open, and one that has closed it and names the folder in
// its environment. The next run removes it when they have ended.
func TestFolderStaysWithItsLastProcess(t *testing.T) {
	get := driver(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	older := filepath.Join(temp, "gpumem-sim-of-another-release")
	if err := os.Mkdir(older, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, inherits := range []bool{true, false} {
		gpu, err := simulate.New("4GiB", get)
		if err != nil {
			t.Fatal(err)
		}
		file := strings.TrimPrefix(gpu.Words, "sim@")
		c := exec.Command("cat")
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if c.Env = []string{"PATH=" + os.Getenv("PATH")}; inherits {
			c.ExtraFiles = []*os.File{gpu.Lock()}
		} else {
			c.Env = gpu.Environ(c.Env)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		next := func() {
			if other, err := simulate.New("4GiB", get); err != nil || other.Close() != nil {
				t.Error(err)
			}
		}
		if err := gpu.Close(); err != nil {
			t.Error(err)
		}
		next()
		if _, err := os.Stat(file); err != nil {
			t.Errorf("inherits %v: a process runs on: %v", inherits, err)
		}
		in.Close()
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
		next()
		if _, err := os.Stat(file); err == nil {
			t.Errorf("inherits %v: left behind: %s", inherits, file)
		}
	}
	if _, err := os.Stat(older); err != nil {
		t.Errorf("a folder without a lock: %v", err)
	}
}

// TestUsedIsWhatEachProcessHeld: to the byte, with its context, also of a process that was refused all that it asked
// for, and of one that did not end by exit. The dead hold nothing of what all held at once.
func TestUsedIsWhatEachProcessHeld(t *testing.T) {
	get := driver(t)
	program := standin.Compile(t, "testdata/hold.c")
	gpu, err := simulate.New("4GiB*2,context=256MiB", get)
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	if used, err := gpu.Used(); err != nil || len(used.List) > 0 {
		t.Errorf("before: %v, %v", used, err)
	}
	const context = 256 << 20
	want := []simulate.Use{}
	for _, held := range []struct {
		device int
		bytes  []string
		peak   uint64
	}{
		{0, []string{"1073741824", "-1073741824", "536870912"}, 1<<30 + context},
		{0, []string{"1073741824", "_exit"}, 1<<30 + context},
		{1, []string{"8589934592"}, context}, // refused
		{0, nil, context},
	} {
		c := exec.Command(program, append([]string{[]string{"0", "1"}[held.device]}, held.bytes...)...)
		c.Env = gpu.Environ(os.Environ())
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		want = append(want, simulate.Use{PID: c.Process.Pid, Device: held.device, Peak: held.peak, All: held.peak, Ended: !slices.Contains(held.bytes, "_exit")})
	}
	used, err := gpu.Used()
	if err != nil || !slices.Equal(used.List, want) || len(used.Unprepared) > 0 || used.Unread > 0 {
		t.Errorf("%v, %v; want %v", used, err, want)
	}
	if all := used.All(0); all != 1<<30+context {
		t.Errorf("all held %d at once, want what one did: they came one after the other", all)
	}
}

// TestUsedIsTheMostOfAllLines: the lines of several processes and GPUs stand in any order, and the last of a
// full disk is cut.
func TestUsedIsTheMostOfAllLines(t *testing.T) {
	gpu, err := simulate.New("4GiB", driver(t))
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	lines := "7 0 100 100\n8 0 300 350\n9 python\n7 1 50 50\n7 0 200 500\n7 0 150 150 end\n8 0 30"
	at := slices.IndexFunc(gpu.Settings(), func(s simulate.Setting) bool { return s.Name == simulate.EnvPeaks })
	if err := os.WriteFile(gpu.Settings()[at].Value, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	used, err := gpu.Used()
	if err != nil {
		t.Fatal(err)
	}
	want := []simulate.Use{{PID: 8, Peak: 300, All: 350}, {PID: 7, Peak: 200, All: 500, Ended: true}, {PID: 7, Device: 1, Peak: 50, All: 50}}
	if !slices.Equal(used.List, want) || !slices.Equal(used.Unprepared, []int{9}) || used.Unread != 1 {
		t.Errorf("%+v, want %+v", used, want)
	}
	if used.All(0) != 500 || used.All(1) != 50 || used.All(2) != 0 {
		t.Errorf("of all: %d, %d, %d", used.All(0), used.All(1), used.All(2))
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
