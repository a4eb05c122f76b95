package fit_test

import (
	"fmt"
	"strings"
	"testing"

	"gpumem/device/sim"
	"gpumem/record/fit"
)

// TestNamesOfProcesses: each process of a program is listed with what tells it from the others.
func TestNamesOfProcesses(t *testing.T) {
	python, env := python(t)
	const script = `import multiprocessing, os, runpy, sys
def work(rank):
    if rank is not None:
        os.environ["RANK"] = str(rank)
    sys.argv = ["testdata/driver.py", "jax", "200", "end"]
    runpy.run_path(sys.argv[0], run_name="__main__")
    os._exit(0)
if __name__ == "__main__":
    for name, rank in ("reader", None), ("MainProcess", 3):
        p = multiprocessing.get_context("fork").Process(target=work, args=(rank,), name=name)
        p.start(); p.join()`
	r, err := fit.Run(t.Context(), fit.Config{Command: []string{python, "-c", script}, Env: env, Sim: sim.Config{Total: 4 << 30, Name: "sim:L4"}})
	if err != nil {
		t.Fatal(err)
	}
	all := fmt.Sprint(r.Program.Shares)
	if len(r.Program.Shares) != 2 || !strings.Contains(all, " (reader) ") || !strings.Contains(all, " (rank 3) ") {
		t.Error(all)
	}
}

// TestTitleOverEnvironment: a process that writes its title over the arguments and the environment that it was started with, as
// setproctitle does in engines that serve models, is recorded as any other.
func TestTitleOverEnvironment(t *testing.T) {
	python, env := python(t)
	const script = `import ctypes, os, runpy, sys
for name, value in list(os.environ.items()):
    os.environ[name] = value + " "
    os.environ[name] = value  # a copy
with open("/proc/self/stat") as file:
    begin, end = map(int, file.read().rsplit(")", 1)[1].split()[47:49])  # env_start, env_end: proc(5)
ctypes.memset(begin, ord("x"), end - begin)
sys.argv = ["testdata/driver.py", "jax", "200", "end"]
runpy.run_path(sys.argv[0], run_name="__main__")`
	r, err := fit.Run(t.Context(), fit.Config{Command: []string{python, "-c", script}, Env: env, Sim: sim.Config{Total: 4 << 30, Name: "sim:L4"}})
	if err != nil {
		t.Fatal(err)
	}
	if want := uint64(200 << 20); r.PeakBytes != want {
		t.Errorf("peak %d, want %d", r.PeakBytes, want)
	}
}
