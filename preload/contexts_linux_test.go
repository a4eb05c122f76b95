package preload

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpumem/node/ledger"
)

var contexts = compiled("contexts")

// TestContextsAreWithinTheLease: threads of one process or two make contexts, end them, and
// retain, release and reset the primary one. What the GPU has granted is at most the lease at
// all times, also where the driver refuses in between, and equal to the books. Without, the
// room for a context was looked at in one step and counted in another: 1.5 GiB were used of a
// lease of 1.2.
func TestContextsAreWithinTheLease(t *testing.T) {
	b := libraries(t)
	program, err := contexts()
	if err != nil {
		t.Fatal(err)
	}
	const context, limit = 300 << 20, 1200 << 20
	for _, tc := range []struct {
		name, device string
		threads      string
		rounds       string
		processes    int
	}{
		{"one thread", "sim:2GiB", "1", "512", 1},
		{"threads", "sim:2GiB", "16", "512", 1},
		{"threads, a GPU with less than the lease", "sim:1GiB", "8", "512", 1},
		{"two processes", "sim@" + filepath.Join(t.TempDir(), "gpu") + ",total=2GiB,create", "4", "8", 2}, // a refusal waits for the other process for a second
	} {
		t.Run(tc.name, func(t *testing.T) {
			if testing.Short() && tc.processes > 1 {
				t.Skip("skipped: takes seconds")
			}
			path := filepath.Join(t.TempDir(), "ledger")
			must(t, ledger.Create(path, ledger.Header{Limit: limit, Total: 2 * limit}))
			env := append(os.Environ(), "LD_LIBRARY_PATH="+b.front, "GPUMEM_LIBCUDA="+filepath.Join(b.driver, "libcuda.so.1"),
				fmt.Sprint("GPUMEM_OUTSIDE=", context), fmt.Sprint("GPUMEM_CONTEXT=", context), "GPUMEM_REPORT=0", "GPUMEM_LEDGER="+path)
			type process struct {
				*exec.Cmd
				in  io.WriteCloser
				out *bufio.Reader
			}
			var all []process
			for seed := range tc.processes {
				args := []string{fmt.Sprint(seed + 1), tc.threads, tc.rounds, fmt.Sprint(limit)}
				if tc.processes == 1 {
					args = append(args, "alone")
				}
				p := process{Cmd: exec.Command(program, args...)}
				device := fmt.Sprintf("%s,context=%d", tc.device, context)
				if seed > 0 { // the first process has made it
					device, _, _ = strings.Cut(device, ",")
				}
				p.Env = append(env[:len(env):len(env)], "GPUMEM_DEVICE="+device)
				p.in, err = p.StdinPipe()
				must(t, err)
				out, err := p.StdoutPipe()
				must(t, err)
				p.out = bufio.NewReader(out)
				must(t, p.Start())
				timer := time.AfterFunc(time.Minute, func() { _ = p.Process.Kill() })
				t.Cleanup(func() { // also of a test that fails: it has files in the folders to be removed
					timer.Stop()
					_ = p.Process.Kill()
					_ = p.Wait()
				})
				if line, err := p.out.ReadString('\n'); line != "ready\n" {
					t.Fatalf("%q, %v", line, err)
				}
				all = append(all, p)
			}
			for _, p := range all {
				_, err := fmt.Fprintln(p.in)
				must(t, err)
			}
			for _, p := range all {
				faults, _ := io.ReadAll(p.out)
				if err := p.Wait(); err != nil || len(faults) > 0 {
					t.Errorf("%v\n%s", err, faults)
				}
			}
			l, err := ledger.Open(path)
			must(t, err)
			defer l.Close()
			if n := l.Held(); n != 0 {
				t.Errorf("%d bytes are counted in the end", n)
			}
		})
	}
}

// TestContextsCountFromTheirBeginning: a process that has a context and has taken no memory yet
// holds what lies outside of the pool, and is counted: it is refused where the lease has no room.
// The last context, whichever it is, ends with all of it. Without, ten such processes held ten
// contexts of a lease that has room for three.
func TestContextsCountFromTheirBeginning(t *testing.T) {
	const outside = "GPUMEM_OUTSIDE=20971520"
	path, l := newLease(t, 64)
	p := startIn(t, path, "elastic", outside, "GPUMEM_CONTEXT=20971520")
	for i, step := range []struct {
		order, code string
		outside     uint64
	}{
		{"end 0", "401", 20}, // it has a context by now
		{"context 0", "0", 40}, {"context 0", "0", 60}, {"context 0", "2", 60}, {"destroy 1", "0", 40},
		{"release 0", "0", 20}, {"destroy 2", "0", 0}, {"context 0", "0", 20}, {"alloc 1", "709", 20}, {"destroy 7", "0", 0},
	} {
		if code := p.do(step.order); code != step.code {
			t.Errorf("step %d: %s = %s, want %s", i, step.order, code, step.code)
		}
		if m := l.Members(); len(m) != 1 || m[0].Outside != step.outside<<20 {
			t.Errorf("step %d, %s: want %d MiB outside: %s", i, step.order, step.outside, strings.TrimSpace(fmt.Sprintf("%+v", m)))
		}
	}
	path, l = newLease(t, 64)
	for i, want := range []string{"401", "401", "401", "no context: 2", "no context: 2"} {
		p := startIn(t, path, "elastic", outside)
		_, _ = fmt.Fprintln(p.in, "end 0")
		if !p.out.Scan() || p.out.Text() != want {
			t.Errorf("process %d: %q, want %q", i, p.out.Text(), want)
		}
	}
	if n := l.Held(); n != 60<<20 {
		t.Errorf("%d bytes are counted for three processes", n)
	}
}

// TestOldNamesCount: a context that ends by cuCtxDetach, or by the functions of old releases, is
// counted as one that ends by cuCtxDestroy_v2, and memory by its old functions as by the new ones.
func TestOldNamesCount(t *testing.T) {
	path, l := newLease(t, 100)
	p := startIn(t, path, "elastic", "GPUMEM_OUTSIDE=20971520", "GPUMEM_CONTEXT=20971520", "GPUMEM_LIBCUDA="+otherDriver(t, "driver.c"))
	for i, step := range []struct {
		order, code string
		counted     uint64
	}{
		{"release 0", "0", 0}, {"context1 0", "0", 20}, {"destroy1 1", "0", 0},
		{"context 0", "0", 20}, {"detach 3", "0", 0}, {"detach 3", "201", 0},
		{"context1 0", "0", 20}, {"attach 6", "0", 20}, {"attach 6", "0", 20}, {"detach 6", "0", 20}, {"detach 6", "0", 20}, {"detach 6", "0", 0},
		{"reset 0", "0", 20}, {"alloc1 10", "0", 30}, {"pitch1 4", "0", 62}, {"alloc1 40", "2", 62}, {"free1 13", "0", 52}, {"free1 14", "0", 20},
		{"array1 8", "0", 28}, {"array1 80", "2", 28},
	} {
		if code := p.do(step.order); code != step.code {
			t.Errorf("step %d: %s = %s, want %s", i, step.order, code, step.code)
		}
		if n := l.Held(); n != step.counted<<20 {
			t.Errorf("step %d, %s: %d MiB are counted, want %d", i, step.order, n>>20, step.counted)
		}
	}
}

var pools = compiled("pools")

// TestPoolsOfThreads: threads make pools of the driver, take memory from them and end them,
// and the books are the GPU's whenever all rest.
func TestPoolsOfThreads(t *testing.T) {
	b := libraries(t)
	program, err := pools()
	must(t, err)
	path, _ := newLease(t, 400)
	if out := run(t, b, []string{"GPUMEM_LEDGER=" + path}, filepath.Base(program), "1", "8", "128"); out != "" {
		t.Error(out)
	}
}

// TestEndedPoolsCountNoLonger: a pool of the driver that keeps its memory counts until that is
// released, however many there are, and whatever wait of the program shows it. Without, the 257th
// and those whose end no cuCtxSynchronize followed stayed counted to the end of the process, and a
// lease of 1 GiB was full of nothing.
func TestEndedPoolsCountNoLonger(t *testing.T) {
	path, l := newLease(t, 700)
	p := startIn(t, path, "elastic")
	for i, step := range []struct {
		order, code string
		counted     uint64
	}{
		{"pools 300", "0", 0}, {"pools 300", "0", 0}, {"rounds 100", "0", 0},
		{"lost 3", "0", 32}, {"sync 0", "0", 32}, {"freeasync 3", "0", 32}, {"sync 0", "0", 0},
		{"lost 3", "0", 32}, {"freeasync 7", "0", 32}, {"query 0", "0", 32}, {"alloc 690", "0", 690}, {"free 10", "0", 690},
		{"current 3", "0", 32}, {"freeasync 12", "0", 32}, {"sync 0", "0", 0},
	} {
		if code := p.do(step.order); code != step.code {
			t.Errorf("step %d: %s = %s, want %s", i, step.order, code, step.code)
		}
		if n := l.Held(); n != step.counted<<20 {
			t.Errorf("step %d, %s: %d MiB are counted, want %d", i, step.order, n>>20, step.counted)
		}
	}
}
