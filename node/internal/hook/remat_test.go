package hook

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// planner is a command in the place of gpumem: it notes its arguments, prints $ANSWER and
// writes a module.
const planner = `#!/bin/sh
echo "$@" >>"$RUNS"
case $ANSWER in
fail) echo 'gpumem: -: a damaged module' >&2; exit 2 ;;
hang) exec sleep 60 ;;
nonsense) echo nonsense; exit 0 ;;
esac
cat >/dev/null
for out; do :; done
printf '\n\010jit_stepplanned' >"$out"
echo "$ANSWER"
case $ANSWER in *'"met":false'*) exit 1 ;; esac
`

// Transform is what XLA calls: a module is changed if the plan is better, and else stays as it
// is, whatever goes wrong.
func TestTransform(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: no python3")
	}
	dir := t.TempDir()
	command := filepath.Join(dir, "planner")
	if err := os.WriteFile(command, []byte(planner), 0o700); err != nil {
		t.Fatal(err)
	}
	answer := func(before, after, limit uint64, met bool) string {
		b, _ := json.Marshal(map[string]any{"heap_before_bytes": before, "heap_after_bytes": after, "limit_bytes": limit, "met": met, "recomputed": 3, "extra_compute_percent": 7.25})
		return string(b)
	}
	const mib = 1 << 20
	for _, tc := range []struct {
		name, answer string
		size         int
		returned     string
		said         string // how it begins; "" for nothing
		runs         int
	}{
		{"less", answer(100*mib, 60*mib, 60*mib, true), 5000, "\bjit_stepplanned", "jit_step: 60 MiB of temporaries instead of 100 MiB, for 7.2 % more compute", 1},
		{"less, and more than the limit", answer(100*mib, 80*mib, 60*mib, false), 5000, "\bjit_stepplanned", "jit_step: 80 MiB of temporaries instead of 100 MiB (limit 60 MiB), for 7.2 % more compute", 1},
		{"no less", answer(100*mib, 100*mib, 60*mib, false), 5000, "None", "jit_step: 100 MiB of temporaries, limit 60 MiB: nothing found that takes less", 1},
		{"more", answer(100*mib, 101*mib, 60*mib, false), 5000, "None", "jit_step: 100 MiB of temporaries, limit 60 MiB: nothing found that takes less", 1},
		{"fits", answer(100*mib, 100*mib, 200*mib, true), 5000, "None", "", 1},
		{"not worth it", answer(mib, mib/2, mib/2, true), 5000, "None", "", 1},
		{"small module", "fail", 4000, "None", "", 0},
		{"refused", "fail", 5000, "None", "jit_step: compiled as it is: gpumem: -: a damaged module", 1},
		{"too slow", "hang", 5000, "None", "jit_step: compiled as it is: planning took more than 0.2 s; seconds= of gpumem.jax.remat sets it", 1},
		{"no answer", "nonsense", 5000, "None", "jit_step: compiled as it is: JSONDecodeError", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			runs := filepath.Join(t.TempDir(), "runs")
			const program = `
import sys
sys.path.insert(0, sys.argv[1])
import gpumem_remat
module = (b"\n\x08jit_step" + b"x" * int(sys.argv[3]))[:int(sys.argv[3])]
seconds = .2 if sys.argv[4] == "hang" else 60
for _ in range(2):
    result = gpumem_remat._transform(module, "60%", sys.argv[2], seconds, gpumem_remat.say)
print(result and result.decode())
`
			cmd := exec.Command(python, "-B", "-c", program, ".", command, jsonOf(tc.size), tc.answer)
			cmd.Env = append(os.Environ(), "ANSWER="+tc.answer, "RUNS="+runs, "XDG_CACHE_HOME="+t.TempDir())
			var said strings.Builder
			cmd.Stderr = &said
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, said.String())
			}
			line := strings.TrimPrefix(said.String(), "gpumem: ")
			if got := strings.TrimSpace(string(out)); got != tc.returned || !strings.HasPrefix(line, tc.said) || tc.said == "" && line != "" {
				t.Errorf("%s, %q; want %s, %q", got, line, tc.returned, tc.said)
			}
			list, _ := os.ReadFile(runs)
			want := tc.runs
			if strings.Contains(tc.said, "compiled as it is") {
				want *= 2 // what failed is not kept
			}
			if n := strings.Count(string(list), "\n"); n != want {
				t.Errorf("%d runs of the command: %s; want %d", n, list, want)
			}
			if want > 0 && !strings.HasPrefix(string(list), "remat - --algorithm gap --packed --time 0s --json --advice=false --limit 60% --out ") {
				t.Errorf("the command has %s", list)
			}
		})
	}
}

func jsonOf(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// A cache that another user could write to is not read.
func TestCacheOfOthers(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: no python3")
	}
	for _, tc := range []struct {
		name string
		make func(t *testing.T, folder string)
		want string
	}{
		{"own", func(*testing.T, string) {}, "True"},
		{"for all", func(t *testing.T, folder string) {
			if err := os.MkdirAll(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(folder, 0o777); err != nil {
				t.Fatal(err)
			}
		}, "False"},
		{"for a group", func(t *testing.T, folder string) {
			if err := os.MkdirAll(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(folder, 0o770); err != nil {
				t.Fatal(err)
			}
		}, "False"},
		{"a link", func(t *testing.T, folder string) {
			if err := os.MkdirAll(filepath.Dir(folder), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(t.TempDir(), folder); err != nil {
				t.Fatal(err)
			}
		}, "False"},
		{"a file", func(t *testing.T, folder string) {
			if err := os.MkdirAll(filepath.Dir(folder), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(folder, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "False"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			tc.make(t, filepath.Join(dir, "gpumem", "remat"))
			cmd := exec.Command(python, "-B", "-c", "import sys; sys.path.insert(0, '.'); import gpumem_remat; print(gpumem_remat._cache() is not None)")
			cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+dir)
			out, err := cmd.CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != tc.want {
				t.Errorf("%s, %v; want %s", got, err, tc.want)
			}
		})
	}
}

// standInJAX is as much of JAX as install meets: backends that are made at the first call, and
// what takes transformations; it prints each that it gets.
var standInJAX = map[string]string{
	"jax/__init__.py":       "__version__ = '9.9'\nfrom jax._src import xla_bridge\n",
	"jax/_src/__init__.py":  "",
	"jax/_src/cache_key.py": "def custom_hook():\n    return 'user'\n",
	"jax/_src/xla_bridge.py": `
made = False
def backends():
    global made
    made = True
    return {}
def backends_are_initialized():
    return made
`,
	"jax/_src/compilation_cache.py": "def put_executable_and_time(*a):\n    print('kept', *a)\n",
	"jax/extend/__init__.py":        "",
	"jax/extend/xla.py": `
import enum
from jax._src import xla_bridge
class PipelineStage(enum.Enum):
    POST_SCHEDULER = 1
def register_hlo_module_transformation(callback, name, stage):
    xla_bridge.backends()
    print("registered", name, stage.name, callback(b"small"))
def clear_hlo_module_transformation(name, stage):
    print("cleared", name)
`,
}

// TestInstall: gpumem run --remat has JAX take the plans when its backends are made and not
// before; a JAX that cannot is told in a line, and so is a limit that is none.
func TestInstall(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: no python3")
	}
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, limit, without, out, said string }{
		{"a JAX that can", "60%", "", "imported\nregistered gpumem_remat POST_SCHEDULER None\nmade\nTrue\n", ""},
		{"one that cannot", "60%", "jax/extend/xla.py", "imported\nmade\nFalse\n", "gpumem: --remat: functions are compiled as they are: JAX 9.9 cannot change what XLA compiles: 0.10.2 and later can (jax.extend.xla)\n"},
		{"no limit", "lots", "", "imported\nmade\nFalse\n", "gpumem: --remat: functions are compiled as they are: limit='lots': want bytes such as '12GiB', '60%' of what each function takes, or 'auto'\n"},
		{"not asked for", "", "", "imported\nmade\nFalse\n", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			files := maps.Clone(standInJAX)
			delete(files, tc.without)
			writeFiles(t, dir, files)
			const program = `
import jax
print("imported")
jax._src.xla_bridge.backends()
print("made")
jax._src.xla_bridge.backends()
from jax._src import cache_key
print(cache_key.custom_hook() != "user")
`
			cmd := exec.Command(python, "-B", "-c", program)
			cmd.Env = append(os.Environ(), "PYTHONPATH="+here+separator+dir, "GPUMEM_REMAT="+tc.limit, "GPUMEM_COMMAND="+python)
			var said strings.Builder
			cmd.Stderr = &said
			out, err := cmd.Output()
			if err != nil || string(out) != tc.out || said.String() != tc.said {
				t.Errorf("%v, %q, %q; want %q, %q", err, out, said.String(), tc.out, tc.said)
			}
		})
	}
}

// TestAutoWithoutLimit: where JAX reports no limit, auto does nothing and says so, once.
func TestAutoWithoutLimit(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: no python3")
	}
	for _, tc := range []struct{ name, stats, flags string }{
		{"no statistics", "1 None", "None None 1"},
		{"no limit", "1 {'bytes_in_use':5}", "None None 1"},
		{"a limit", "1 {'bytes_limit':100,'bytes_in_use':7}", "['--total', '100', '--in-use', '7'] ['--total', '100', '--in-use', '7'] 0"},
		{"two devices", "1 {'bytes_limit':100,'bytes_in_use':7} {'bytes_limit':90,'bytes_in_use':9}", "['--total', '90', '--in-use', '9'] ['--total', '90', '--in-use', '9'] 0"},
		{"several processes", "2 {'bytes_limit':100,'bytes_in_use':7}", "['--total', '100', '--in-use', '0'] ['--total', '100', '--in-use', '0'] 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			const program = `
import sys, types
sys.path.insert(0, ".")
import gpumem_remat
processes, *stats = sys.argv[1].split()
devices = [types.SimpleNamespace(memory_stats=lambda s=s: eval(s)) for s in stats]
sys.modules["jax"] = types.SimpleNamespace(local_devices=lambda: devices, process_count=lambda: int(processes))
said = []
gpumem_remat._limit_flags("auto")  # for JAX's key, which says nothing
print(gpumem_remat._limit_flags("auto", said.append), gpumem_remat._limit_flags("auto", said.append), len(said))
`
			out, err := exec.Command(python, "-B", "-c", program, tc.stats).CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != tc.flags {
				t.Errorf("%s, %v; want %s", got, err, tc.flags)
			}
		})
	}
}

// TestPlansAreKept: a plan is made once for a function, a limit and a command, whatever number
// the module has in its process, and again if what is kept is damaged.
func TestPlansAreKept(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: no python3")
	}
	dir := t.TempDir()
	command, runs, cache := filepath.Join(dir, "planner"), filepath.Join(dir, "runs"), filepath.Join(dir, "cache")
	if err := os.WriteFile(command, []byte(planner), 0o700); err != nil {
		t.Fatal(err)
	}
	const program = `
import glob, os, sys
sys.path.insert(0, sys.argv[1])
import gpumem_remat as r

command, runs, cache = sys.argv[2:]

def plan(what, number, limit="60%", body=b"x"):
    module = b"\n\x08jit_step" + b"\x1a\x90\x4e" + 10000 * body + bytes([40, number])
    before = len(open(runs).readlines()) if os.path.exists(runs) else 0
    got = r._transform(module, limit, command, 60, lambda text: None)
    print(what, got, len(open(runs).readlines()) - before)

plan("first", 7)
plan("again", 7)
plan("another number", 9)
plan("another function", 7, body=b"y")
plan("another limit", 7, "30%")
for path in glob.glob(cache + "/gpumem/remat/*.pb"):
    open(path, "wb").write(b"plan")
plan("cut", 7)
plan("mended", 7)
folder = cache + "/gpumem/remat/"
plan("mended", 7, body=b"y")
plan("mended", 7, "30%")
names = sorted({name.split(".")[0] for name in os.listdir(folder)})
for end in ".pb", ".json":
    contents = [open(folder + name + end, "rb").read() for name in names]
    for name, content in zip(names, contents[1:] + contents[:1]):
        open(folder + name + end, "wb").write(content)
plan("exchanged", 7)
plan("exchanged", 7, body=b"y")
plan("exchanged", 7, "30%")
for path in glob.glob(folder + "*.pb"):
    os.unlink(path)
    os.mkfifo(path)
plan("a FIFO", 7)
for path in glob.glob(folder + "*.pb"):
    os.unlink(path)
for path in glob.glob(cache + "/gpumem/remat/*.json"):
    open(path, "wb").write(b"{}")
plan("no answer", 7)
os.utime(command, (1, 1))
plan("another command", 7)
for n in range(2 * r.KEPT):
    open("%s/gpumem/remat/%d" % (cache, n), "w").close()
plan("many", 7, "20%")
print(len(os.listdir(cache + "/gpumem/remat")))
`
	const answer = `{"heap_before_bytes":104857600,"heap_after_bytes":62914560,"limit_bytes":1,"met":false,"extra_compute_percent":1}`
	// The planner's module is no message of protobuf: it stands for one without a number, which
	// the module's own follows.
	want := `first b'\n\x08jit_stepplanned(\x07' 1
again b'\n\x08jit_stepplanned(\x07' 0
another number b'\n\x08jit_stepplanned(\t' 0
another function b'\n\x08jit_stepplanned(\x07' 1
another limit b'\n\x08jit_stepplanned(\x07' 1
cut b'\n\x08jit_stepplanned(\x07' 1
mended b'\n\x08jit_stepplanned(\x07' 0
mended b'\n\x08jit_stepplanned(\x07' 1
mended b'\n\x08jit_stepplanned(\x07' 1
exchanged b'\n\x08jit_stepplanned(\x07' 1
exchanged b'\n\x08jit_stepplanned(\x07' 1
exchanged b'\n\x08jit_stepplanned(\x07' 1
a FIFO b'\n\x08jit_stepplanned(\x07' 1
no answer b'\n\x08jit_stepplanned(\x07' 1
another command b'\n\x08jit_stepplanned(\x07' 1
many b'\n\x08jit_stepplanned(\x07' 1
400
`
	cmd := exec.Command(python, "-B", "-c", program, ".", command, runs, cache)
	cmd.Env = append(os.Environ(), "ANSWER="+answer, "RUNS="+runs, "XDG_CACHE_HOME="+cache)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
}

// TestLimits: the hook reads limits as gpumem run --remat does.
func TestLimits(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: no python3")
	}
	const program = `
import sys
sys.path.insert(0, ".")
import gpumem_remat

def checked(limit):
    try:
        return gpumem_remat.check(limit)
    except ValueError:
        return ""

for line in open("testdata/limits.txt"):
    text, found, want = line.rstrip("\n").partition("|")
    if found and not line.startswith("#") and checked(text) != want:
        print(repr(text), checked(text), want)
for limit, want in (60, ""), (1024, "1024B"), (12 << 30, "12884901888B"), (0, ""), (-1, ""), (True, ""), (.6, ""), (60., ""), (None, ""), (b"60%", ""):
    if checked(limit) != want:
        print(repr(limit), checked(limit), want)
`
	if out, err := exec.Command(python, "-B", "-c", program).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestRemove: what install did is undone, before the backends are made and after, and a second
// install takes the place of the first.
func TestRemove(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: no python3")
	}
	dir := t.TempDir()
	writeFiles(t, dir, standInJAX)
	const program = `
import os, sys
sys.path.insert(0, sys.argv[1])
import gpumem_remat as r
from jax._src import cache_key, compilation_cache, xla_bridge
from jax.extend import xla

plain = xla_bridge.backends
key = lambda: cache_key.custom_hook().replace(r._version(sys.executable), "V")
r.install("60%", sys.executable)
print("wait", xla_bridge.made, key())
r.remove()
print("removed", xla_bridge.made, xla_bridge.backends is plain, key())
r.install("60%", sys.executable)
r.install("30%", sys.executable)
print("wait", xla_bridge.made, key())
xla_bridge.backends()
print("made", xla_bridge.backends is plain, key())
r._transform(b"x" * 5000, "60%", "/nonexistent", 60, lambda text: print("failed"))
compilation_cache.put_executable_and_time(1)
compilation_cache.put_executable_and_time(2)
r.remove()
print("removed", key())
r.install("auto", sys.executable)
print("no figures:", key())
`
	const want = `wait False user gpumem remat ['--limit', '60%'] V
removed False True user
wait False user gpumem remat ['--limit', '30%'] V
registered gpumem_remat POST_SCHEDULER None
made True user gpumem remat ['--limit', '30%'] V
failed
kept 2
removed user
no figures: user gpumem remat module 'jax' has no attribute 'local_devices' V
`
	cmd := exec.Command(python, "-B", "-c", program, ".")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
}

// writeFiles writes files with their folders.
func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
