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
