package preload

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpumem/node/ledger"
)

var kills = flag.Int("kills", 40, "how often TestKilled kills; 1000 for the long run")

// newLedger makes a lease's ledger.
func newLedger(t *testing.T, limit uint64) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "ledger")
	if err := ledger.Create(path, ledger.Header{Limit: limit, Total: 4 * limit}); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestLife: programs that fork, end threads, start others, close descriptors, load the
// library twice or not at all. Each mode of life.c writes what is wrong.
func TestLife(t *testing.T) {
	b := libraries(t)
	again := filepath.Join(t.TempDir(), "again")
	if err := os.CopyFS(again, os.DirFS(b.front)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		args []string
		env  string
	}{
		{name: "descriptors", args: []string{"descriptors"}},
		{name: "copies", args: []string{"copies", filepath.Join(again, "libcuda.so.1")}},
		{name: "unload", args: []string{"unload"}},
		{name: "spawn", args: []string{"spawn"}},
		{name: "threads", args: []string{"threads"}},
		{name: "fork", args: []string{"fork"}},
		{name: "fork with the pools off", args: []string{"fork"}, env: "GPUMEM_OFF=1"},
		// A driver that costs nothing: the figures are the library's alone.
		{name: "nothing", args: []string{"nothing"}, env: "GPUMEM_LIBCUDA=" + b.idleDriver()},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := newLedger(t, 512<<20)
			if out := run(t, b, []string{"GPUMEM_LEDGER=" + path, tc.env}, "life", tc.args...); out != "" {
				t.Error(out)
			}
			l, err := ledger.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if held := l.Held(); held != 0 {
				t.Errorf("after the end %d bytes are held", held)
			}
		})
	}
}

// TestPython: processes, signals and threads as Python makes them.
func TestPython(t *testing.T) {
	b := libraries(t)
	if err := exec.Command("python3", "-c", "import ctypes, multiprocessing").Run(); err != nil {
		t.Skip("no python3 with ctypes")
	}
	c := exec.Command("python3", "-X", "faulthandler", "testdata/life.py")
	c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+b.front, "GPUMEM_LIBCUDA="+filepath.Join(b.driver, "libcuda.so.1"), "GPUMEM_DEVICE=sim:1GiB", "GPUMEM_REPORT=0", "GPUMEM_LEDGER="+newLedger(t, 512<<20))
	if out, err := c.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

var seeds = flag.Int("seeds", 1, "random programs that TestRunPool runs under each pool")

// command builds the command, and makes a shared simulated GPU of 8 GiB. gpumem is the command
// with arguments, before its start.
func command(t *testing.T, b built) (gpumem func(args ...string) *exec.Cmd, device string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpumem-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the keepers still tidy up there for a moment
		for deadline := time.Now().Add(time.Minute); os.RemoveAll(dir) != nil && time.Now().Before(deadline); {
			runtime.Gosched()
		}
	})
	path := filepath.Join(dir, "gpumem")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "../cmd/gpumem").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	gpumem = func(args ...string) *exec.Cmd {
		c := exec.Command(path, args...)
		c.Env = append(os.Environ(), "GPUMEM_RUN_DIR="+filepath.Join(dir, "registry"), "GPUMEM_LIB="+b.front, "GPUMEM_LIBCUDA="+filepath.Join(b.driver, "libcuda.so.1"))
		return c
	}
	device = "sim@" + filepath.Join(dir, "gpu")
	if out, err := output(gpumem("devices", "--device", device+",total=8GiB,create")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return gpumem, device
}

func output(c *exec.Cmd) (string, error) {
	out, err := c.CombinedOutput()
	return string(out), err
}

// TestRunPool: a program under each pool that gpumem run offers, by the command itself; and a
// random one, which is another for each pool. The lease has room for all that 64 threads may
// hold at once: 32 MiB each in blocks, as much that is pending, and what the pool rounds up.
func TestRunPool(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: builds the command")
	}
	b := libraries(t)
	gpumem, device := command(t, b)
	for i, pool := range []string{
		"elastic", "vmm", "platform", "address", "async", "bfc", "jax", "jax@0.4.38", "tensorflow", "pytorch",
		"pytorch@2.1:expandable_segments:True",
	} {
		t.Run(pool, func(t *testing.T) {
			out, err := output(gpumem("run", "--device", device, "--mem", "6GiB", "--pool", pool, "--", filepath.Join(b.programs, "life"), "threads"))
			lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
			if err != nil || len(lines) != 2 || !isOfPool(lines[0], lines[1], pool) {
				t.Errorf("%v\n%s", err, out)
			}
			// Streams, captures and waits at random; a use of memory that is not ordered fails.
			for seed := i; seed < i+*seeds; seed++ {
				out, err := output(gpumem("run", "--device", device, "--mem", "6GiB", "--pool", pool, "--", filepath.Join(b.programs, "random"), fmt.Sprint(seed)))
				if err != nil || strings.Count(out, "\n") != 2 {
					t.Errorf("random %d: %v\n%s", seed, err, out)
				}
			}
		})
	}
}

// TestKilled kills processes of four programs of one lease, and whole programs, at
// random. Every process may hold its part of the limit, so none may be refused, what all
// hold is at most the limit, and nothing is counted for a process that has ended.
func TestKilled(t *testing.T) {
	b := libraries(t)
	const (
		programs  = 4
		processes = 4
		each      = 64 << 20 // 8 blocks of at most 4 MiB, in pages of 2 MiB, with what is pending
		limit     = programs * processes * each
	)
	path := newLedger(t, limit)
	l, err := ledger.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	me, err := l.Join()
	if err != nil {
		t.Fatal(err)
	}
	others := func() []ledger.Figures {
		return slices.DeleteFunc(l.Members(), func(m ledger.Figures) bool { return m.PID == os.Getpid() })
	}

	var first [programs]*exec.Cmd
	var out [programs]bytes.Buffer
	start := func(i int) {
		c := exec.Command(filepath.Join(b.programs, "life"), "churn", fmt.Sprint(processes))
		c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+b.front, "GPUMEM_LIBCUDA="+filepath.Join(b.driver, "libcuda.so.1"),
			"GPUMEM_DEVICE=sim:1GiB", "GPUMEM_REPORT=0", "GPUMEM_LEDGER="+path)
		c.Stdout, c.Stderr = &out[i], &out[i]
		c.WaitDelay = 5 * time.Second
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		first[i] = c
	}
	for i := range first {
		start(i)
	}
	defer func() {
		for _, c := range first {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}()

	// until waits for what the ledger shows. How long that takes is the machine's load: the limit
	// only ends a test that hangs.
	until := func(what string, ok func([]ledger.Figures) bool) (took time.Duration) {
		t.Helper()
		const late = 5 * time.Minute
		for begin := time.Now(); ; {
			list := others()
			// The refusal of a request is made under the ledger's lock, so what it says is
			// held is exact. The sum of Members is not: the list is read one by one.
			var full *ledger.FullError
			if err := me.Take(ledger.Held, limit+1); !errors.As(err, &full) || full.Held > limit {
				t.Fatalf("a request of one byte more than the limit of %d: %v", uint64(limit), err)
			}
			took = time.Since(begin)
			if ok(list) {
				return took
			}
			if took > late {
				t.Fatalf("%s: not after %v; members: %+v", what, took, list)
			}
			for i := range out {
				if out[i].Len() > 0 {
					t.Fatalf("program %d: %s", i, out[i].String())
				}
			}
		}
	}
	busy := func(list []ledger.Figures) bool {
		n := 0
		for _, m := range list {
			if m.Held > 0 {
				n++
			}
		}
		return n >= programs*processes-2 // the others are starting
	}
	latest := time.Duration(0)
	for n := range *kills {
		until("processes at work", busy)
		pid := 0
		if i := random.IntN(programs); random.IntN(10) == 0 {
			pid = first[i].Process.Pid
			if err := first[i].Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = first[i].Wait()
			start(i)
		} else if list := others(); len(list) > 0 {
			pid = list[random.IntN(len(list))].PID
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				continue // it has ended meanwhile, with its program
			}
		}
		took := until(fmt.Sprintf("kill %d: process %d is gone", n, pid), func(list []ledger.Figures) bool {
			for _, m := range list {
				if m.PID == pid {
					return false
				}
			}
			return true
		})
		latest = max(latest, took)
	}
	t.Logf("%d kills; a process that was killed was counted for %v more at most", *kills, latest)
}

// isOfPool reports whether two lines of a run say that a pool served it, and refused nothing.
func isOfPool(begin, end, pool string) bool {
	begun := strings.Contains(begin, "pool "+pool+" for 6 GiB on GPU 0")
	return begun && strings.Contains(end, "pool "+pool+": peak ") && strings.Contains(end, ", 0 refused")
}
