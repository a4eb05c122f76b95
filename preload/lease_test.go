//go:build linux

package preload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gpumem/node/ledger"
	"gpumem/policy/frameworks"
)

// compiled returns a function that builds a program of testdata, once.
func compiled(name string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		b, err := build()
		if err != nil {
			return "", err
		}
		path := filepath.Join(b.programs, name)
		out, err := exec.Command("gcc", "-O1", "-Wall", "-o", path, "testdata/"+name+".c", "-ldl", "-lpthread").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("gcc: %w\n%s", err, out)
		}
		return path, err
	})
}

// orders is the program of orders.c.
var orders = compiled("orders")

// program is a process in a lease that does what it is ordered to.
type program struct {
	t   testing.TB
	pid int
	in  io.WriteCloser
	out *bufio.Scanner
}

// newLease makes a ledger of so many MiB.
func newLease(t *testing.T, mib uint64) (path string, l *ledger.Ledger) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "lease.ledger")
	if err := ledger.Create(path, ledger.Header{Limit: mib << 20, Total: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return path, l
}

func startIn(t *testing.T, ledgerPath, policy string, env ...string) *program {
	t.Helper()
	b := libraries(t)
	path, err := orders()
	if err != nil {
		t.Fatal(err)
	}
	kind, err := frameworks.Parse(policy)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(kind)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	cmd.Env = append(append(os.Environ(), "LD_LIBRARY_PATH="+b.front, "GPUMEM_LIBCUDA="+filepath.Join(b.driver, "libcuda.so.1"), "GPUMEM_DEVICE=sim:1GiB", "GPUMEM_REPORT=0",
		"GPUMEM_LEDGER="+ledgerPath, "GPUMEM_POLICY="+string(text)), env...)
	if testing.Verbose() {
		cmd.Stderr = os.Stderr
	}
	p := &program{t: t}
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.pid = cmd.Process.Pid
	t.Cleanup(func() {
		_ = p.in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// do gives orders, and returns the driver's codes.
func (p *program) do(lines ...string) string {
	p.t.Helper()
	var codes []string
	for _, line := range lines {
		if _, err := fmt.Fprintln(p.in, line); err != nil {
			p.t.Fatal(err)
		}
		if !p.out.Scan() {
			p.t.Fatalf("%s: the program has ended", line)
		}
		codes = append(codes, p.out.Text())
	}
	return strings.Join(codes, " ")
}

// TestIdleMemoryPassesToAnotherProcess: of two processes in a lease of 256 MiB one has
// freed what it took, and its pool keeps it. The other asks for more than is left, and gets
// it. Without, it was refused where the first had freed by cuMemFree, or where the memory
// was not its pool's but the driver's.
func TestIdleMemoryPassesToAnotherProcess(t *testing.T) {
	for _, tc := range []struct {
		name, policy string
		first        []string
		second       string
	}{
		{"freed in a stream", "elastic", []string{"async 200", "freeasync 0"}, "async 200"},
		{"pending", "elastic", []string{"alloc 100", "alloc 30", "free 1"}, "alloc 150"},
		{"all pending", "elastic", []string{"alloc 30", "free 0"}, "alloc 250"},
		{"for managed memory", "elastic", []string{"alloc 30", "free 0", "async 200", "freeasync 2"}, "managed 250"},
		{"of vmm", "vmm", []string{"async 200", "freeasync 0"}, "async 200"},
		{"of the driver's pool", "async", []string{"async 200", "freeasync 0"}, "async 200"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path, l := newLease(t, 256)
			a, b := startIn(t, path, tc.policy), startIn(t, path, tc.policy)
			for _, code := range strings.Fields(a.do(tc.first...)) {
				if code != "0" {
					t.Fatalf("the first process: code %s", code)
				}
			}
			if code := b.do(tc.second); code != "0" {
				t.Errorf("%s = %s beside idle memory", tc.second, code)
				for _, m := range l.Members() {
					t.Logf("%+v", m)
				}
			}
			if held := l.Held(); held > 256<<20 {
				t.Errorf("%d bytes are held in a lease of 256 MiB", held)
			}
		})
	}
}

// TestRefusalIsSeenInTheLedger: by the time the program knows of it.
func TestRefusalIsSeenInTheLedger(t *testing.T) {
	path, l := newLease(t, 64)
	p := startIn(t, path, "elastic")
	if codes := p.do("alloc 40", "alloc 40"); codes != "0 2" {
		t.Fatalf("codes %s, want 0 2", codes)
	}
	if m := l.Members(); len(m) != 1 || m[0].Refused != 1 || m[0].InUse != 40<<20 {
		t.Errorf("ledger: %+v", m)
	}
}

// TestResetCountsWhatIsOutside: a second primary context counts as the first did.
func TestResetCountsWhatIsOutside(t *testing.T) {
	path, l := newLease(t, 64)
	p := startIn(t, path, "elastic", "GPUMEM_OUTSIDE=20971520")
	for range 3 {
		if codes := p.do("alloc 40", "alloc 10"); codes != "0 2" {
			t.Fatalf("codes %s, want 0 2", codes)
		}
		if m := l.Members(); len(m) != 1 || m[0].Outside != 20<<20 || m[0].InUse != 40<<20 {
			t.Errorf("ledger: %+v", m)
		}
		if code := p.do("reset 0"); code != "0" {
			t.Fatalf("reset = %s", code)
		}
	}
}

// TestPartOfALease: the processes of a run inside a lease have its limit together, and the
// rest is the others'.
func TestPartOfALease(t *testing.T) {
	path, _ := newLease(t, 256)
	const part = "GPUMEM_LEDGER_PARTS=7=104857600"
	a, b, c := startIn(t, path, "elastic", part), startIn(t, path, "elastic", part), startIn(t, path, "elastic")
	for _, step := range []struct {
		p            *program
		order, codes string
	}{{a, "alloc 120", "2"}, {a, "alloc 60", "0"}, {b, "alloc 60", "2"}, {b, "alloc 20", "0"}, {c, "alloc 150", "0"}} {
		if got := step.p.do(step.order); got != step.codes {
			t.Errorf("%s = %s, want %s", step.order, got, step.codes)
		}
	}
}

// TestResetEndsCharges: what a program took past the pool ends with the context, also where
// there was no pool yet.
func TestResetEndsCharges(t *testing.T) {
	for _, orders := range []string{"managed 40, reset 0, managed 40", "alloc 1, managed 40, reset 0, managed 40, alloc 1"} {
		path, _ := newLease(t, 64)
		if codes := startIn(t, path, "elastic").do(strings.Split(orders, ", ")...); strings.Trim(codes, "0 ") != "" {
			t.Errorf("%s\ncodes %s", orders, codes)
		}
	}
}

// otherDriver is the driver of a file of testdata, before the simulated one.
func otherDriver(t *testing.T, source string) (path string) {
	t.Helper()
	b := libraries(t)
	if *builtIn != "" {
		t.Skip("skipped: compiles programs")
	}
	dir := t.TempDir()
	data, err := os.ReadFile(filepath.Join(b.driver, "libcuda.so.1"))
	must(t, err)
	// Under its own name the linker would take the library in front for it.
	must(t, os.WriteFile(filepath.Join(dir, "libcudb.so.1"), bytes.ReplaceAll(data, []byte("libcuda.so.1\x00"), []byte("libcudb.so.1\x00")), 0o755))
	path = filepath.Join(dir, "libcuda.so.1")
	args := []string{"-shared", "-fPIC", "-o", path, "testdata/" + source, "-Wl,--no-as-needed", filepath.Join(dir, "libcudb.so.1"), "-ldl", "-lpthread", "-Wl,-rpath," + dir}
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return path
}

// TestEndOfAPoolCountsWhatIsLeftOfIt: what lives in a pool that ends is counted, whatever other
// threads do as it ends. Without, one that asked how much the pool has found that it has none.
func TestEndOfAPoolCountsWhatIsLeftOfIt(t *testing.T) {
	path, l := newLease(t, 64)
	if code := startIn(t, path, "elastic", "GPUMEM_LIBCUDA="+otherDriver(t, "driver.c")).do("lost 3"); code != "0" {
		t.Fatalf("code %s", code)
	}
	if m := l.Members(); len(m) != 1 || m[0].Charged != 32<<20 {
		t.Errorf("want 32 MiB charged: %+v", m)
	}
}

// TestPitchedMemoryCountsByTheDriversRows: they may be longer than those of all GPUs so far. Then
// a request for which the lease has no room is refused, and its memory released. Without, 8 MiB
// counted as one.
func TestPitchedMemoryCountsByTheDriversRows(t *testing.T) {
	usual, long := filepath.Join(libraries(t).driver, "libcuda.so.1"), otherDriver(t, "driver.c")
	for _, tc := range []struct {
		driver, orders, codes string
		charged               uint64
	}{
		{usual, "pitch 4, pitch 4, pitch 40, pitch 0", "0 0 0 2", 48},
		{long, "pitch 4, pitch 4", "0 2", 32},
		{long, "pitch 4, free 0, pitch 4, pitch 2, pitch 1", "0 0 0 0 0", 56},
		{long, "pitch 4, pitch 2, pitch 2, free 1, pitch 2", "0 0 2 0 0", 48},
	} {
		path, l := newLease(t, 60)
		if codes := startIn(t, path, "elastic", "GPUMEM_LIBCUDA="+tc.driver).do(strings.Split(tc.orders, ", ")...); codes != tc.codes {
			t.Errorf("%s\ncodes %s, want %s", tc.orders, codes, tc.codes)
		}
		if m := l.Members(); len(m) != 1 || m[0].Charged != tc.charged<<20 {
			t.Errorf("%s: want %d MiB charged: %+v", tc.orders, tc.charged, m)
		}
	}
}

// TestCaptureIsNotSpoilt: while a graph is captured in a stream whose memory is idle, a
// request that would need that memory is refused, one that need not is served, and what is
// freed by cuMemFree waits. A driver's error ends the capture with anything else.
func TestCaptureIsNotSpoilt(t *testing.T) {
	for _, tc := range []struct{ name, orders, codes string }{
		{"memory of the stream is short", "async 100, freeasync 0, begin 0, other 150, end 0, other 150", "0 0 0 2 0 0"},
		{"there is other memory", "async 100, freeasync 0, begin 0, other 50, other 20, end 0", "0 0 0 0 0 0"},
		{"much is freed", "async 1, begin 0, alloc 40, free 2, alloc 40, free 4, end 0, alloc 150", "0 0 0 0 0 0 0 0"},
		{"what is freed is short", "async 1, other 1, begin 0, alloc 140, free 3, alloc 140, end 0, alloc 140", "0 0 0 0 0 2 0 0"},
		{"freed there before it ends", "async 1, other 100, begin 0, freeasync 0, end 0, freeasync 0", "0 0 0 1 0 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path, _ := newLease(t, 200)
			if codes := startIn(t, path, "elastic").do(strings.Split(tc.orders, ", ")...); codes != tc.codes {
				t.Errorf("%s\ncodes %s, want %s", tc.orders, codes, tc.codes)
			}
		})
	}
}

// TestBooksAreTheGPUs: a program takes pitched memory, arrays, managed memory, handles, plain
// memory and memory of pools in three contexts, and after each step the lease has left what
// the GPU has granted of it. Without, pitched memory and that of other contexts counted as it
// was asked for, pools of the program by their blocks, and further contexts not at all.
func TestBooksAreTheGPUs(t *testing.T) {
	b := libraries(t)
	program, err := compiled("books")()
	if err != nil {
		t.Fatal(err)
	}
	const context = 20 << 20
	for _, policy := range []string{"elastic", "vmm", "platform", "async", "bfc", "pytorch", "pytorch:expandable_segments=True", "jax", "address", "tensorflow", "elastic with graphs", "async with graphs"} {
		t.Run(policy, func(t *testing.T) {
			var graphs []string
			if name, with, _ := strings.Cut(policy, " with "); with != "" {
				policy, graphs = name, []string{with}
			}
			kind, err := frameworks.Parse(policy)
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(kind)
			if err != nil {
				t.Fatal(err)
			}
			path, l := newLease(t, 200)
			out := run(t, b, []string{fmt.Sprintf("GPUMEM_DEVICE=sim:1GiB,context=%d", context), fmt.Sprint("GPUMEM_OUTSIDE=", context), fmt.Sprint("GPUMEM_CONTEXT=", context),
				"GPUMEM_LEDGER=" + path, "GPUMEM_POLICY=" + string(text)}, filepath.Base(program), append([]string{"1", "600"}, graphs...)...)
			for line := range strings.Lines(out) {
				if !strings.HasPrefix(line, "gpumem: ") {
					t.Error(line)
				}
			}
			if n, _ := l.Refusals(); n == 0 {
				t.Error("nothing was refused: the lease was never full")
			}
		})
	}
}
