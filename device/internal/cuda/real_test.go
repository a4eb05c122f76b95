//go:build linux && (amd64 || arm64) && !nodriver

// Tests on a real GPU. Without one they are skipped, and say why.

package cuda

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"gpumem/device"
	"gpumem/internal/test/devicetest"
)

var (
	costsFile   = flag.String("costs", "", "on a real GPU, measure the driver's calls and write the table to this `file`")
	costsRounds = flag.Int("costs-rounds", 100, "with -costs: how often a call is measured")
	costsWaits  = flag.Bool("costs-waits", true, "with -costs: what waits for work under way, too; false for a simulated GPU, whose work the host does")
	costsMost   = flag.Uint64("costs-most", 64<<30, "with -costs: the largest amount of memory to take at once, in bytes")
)

// childVar makes the test binary a program that uses the GPU beside the test:
// "hold BYTES" takes memory until its input ends, "round" measures, "reset"
// resets the GPU.
const childVar = "GPUMEM_CUDA_TEST_CHILD"

func TestMain(m *testing.M) {
	if task := os.Getenv(childVar); task != "" {
		if err := child(task); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	os.Exit(m.Run())
}

// realGPU opens GPU 0, or skips the test.
func realGPU(t *testing.T) *Device {
	t.Helper()
	if err := Available(); err != nil {
		t.Skipf("no GPU to test on: %v", err)
	}
	d, err := Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return d
}

func TestRealConformance(t *testing.T) {
	realGPU(t)
	devicetest.Run(t, devicetest.Config{Open: func(t *testing.T) device.GPU { return realGPU(t) }})
}

// TestRealSizes: the slices of memory that NVML and the driver tell of agree.
func TestRealSizes(t *testing.T) {
	d := realGPU(t)
	free, total, err := d.MemInfo()
	if err != nil {
		t.Fatal(err)
	}
	all, err := List()
	if err != nil {
		t.Fatal(err)
	}
	s := all[0]
	t.Logf("%+v", s)
	t.Logf("free %d of %d", free, total)
	if s.Info != d.Info() || s.Total != total {
		t.Errorf("List tells of %+v, Open of %+v with %d bytes", s.Info, d.Info(), total)
	}
	if s.Used == 0 && len(s.Notes) == 0 {
		t.Error("this program's context takes nothing")
	}
	// In a container the number may be of another namespace.
	if !slices.ContainsFunc(s.Processes, func(p device.Process) bool { return p.PID == os.Getpid() }) {
		t.Logf("process %d is not among %+v", os.Getpid(), s.Processes)
	}
}

func TestRealThreads(t *testing.T) {
	d := realGPU(t)
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			for range 25 {
				r, err := d.Alloc(1 << 20)
				if err == nil {
					err = d.Fill(r.Addr, r.Bytes, byte(g))
				}
				if err == nil {
					err = d.Free(r.Addr)
				}
				if err != nil {
					t.Errorf("goroutine %d: %v", g, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestRealRefusals asks the driver what this package would not let through.
func TestRealRefusals(t *testing.T) {
	d := realGPU(t)
	keep(d, d.grants, 0x1234500, byAlloc)
	err := d.Free(0x1234500)
	delete(d.grants, 0x1234500)
	if !errors.Is(err, device.ErrInvalidValue) {
		t.Errorf("freeing an address that is nobody's: %v", err)
	}
	if err := d.Write(0x1234500, []byte{1}); !errors.Is(err, device.ErrInvalidValue) {
		t.Errorf("writing there: %v", err)
	}
	free, _, err := d.MemInfo()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Alloc(free + 1<<30); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("more than is free: %v", err)
	}
}

// start runs a child; out is what it prints. Closing in makes one that holds
// memory end.
func start(t *testing.T, task string) (cmd *exec.Cmd, in io.Closer, out *bufio.Reader) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVar+"="+task)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, stdin, bufio.NewReader(stdout)
}

// child is what a child does.
func child(task string) error {
	d, err := Open(0)
	if err != nil {
		return err
	}
	var bytes uint64
	if n, _ := fmt.Sscanf(task, "hold %d", &bytes); n == 1 {
		if _, err := d.Alloc(bytes); err != nil {
			return err
		}
		fmt.Println("held")
		_, err = io.Copy(io.Discard, os.Stdin)
		return err
	}
	if task == "reset" {
		return reset(d)
	}
	fmt.Println("ready")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil { // all begin at once
		return err
	}
	var ts times
	b := &bench{d: d, w: os.Stdout, n: 300}
	if err := b.round(&ts); err != nil {
		return err
	}
	b.row("in one process of several", ts)
	return nil
}

// reset resets the GPU as another library would, twice, and finds d lost.
func reset(d *Device) error {
	find, err := open("libcuda.so.1", "libcuda.so")
	if err != nil {
		return err
	}
	lib := bind([]function{{symbol: "cuDevicePrimaryCtxReset_v2"}, {symbol: "cuDevicePrimaryCtxRetain"}}, find)
	for _, again := range []bool{false, true} {
		s, err := d.StreamCreate()
		if err != nil {
			return err
		}
		if code := lib.ask(0, uintptr(d.id)); code != 0 {
			return Code(code)
		}
		if again { // and another library sets the context up again
			ctx := new(uintptr)
			if code := lib.ask(1, uintptr(unsafe.Pointer(ctx)), uintptr(d.id)); code != 0 {
				return Code(code)
			}
		}
		if _, err := d.StreamQuery(s); !errors.Is(err, contextDestroyed) {
			return fmt.Errorf("a stream of a context that was reset (set up again: %v): %w", again, err)
		}
		if err := d.Close(); err != nil {
			return fmt.Errorf("closing it: %w", err)
		}
		if d, err = Open(0); err != nil {
			return fmt.Errorf("opening it again: %w", err)
		}
		if _, err := d.Alloc(1 << 20); err != nil {
			return fmt.Errorf("opened again: %w", err)
		}
	}
	return d.Close()
}

// TestRealReset: in a process of its own, which may crash.
func TestRealReset(t *testing.T) {
	realGPU(t)
	cmd, _, out := start(t, "reset")
	said, err := io.ReadAll(out)
	if err := errors.Join(err, cmd.Wait()); err != nil || len(said) != 0 {
		t.Errorf("the child says %q and ends with %v", said, err)
	}
}

// TestRealCapture: while a graph is captured in a stream of another library
// every call works, and the capture stays whole.
func TestRealCapture(t *testing.T) {
	d := realGPU(t)
	find, err := open("libcuda.so.1", "libcuda.so")
	if err != nil {
		t.Fatal(err)
	}
	lib := bind([]function{
		{symbol: "cuStreamCreate"}, {symbol: "cuStreamBeginCapture_v2"}, {symbol: "cuStreamEndCapture"}, {symbol: "cuStreamDestroy_v2"},
		{symbol: "cuCtxPushCurrent_v2"}, {symbol: "cuCtxPopCurrent_v2"},
	}, find)
	runtime.LockOSThread() // a capture ends where it began
	defer runtime.UnlockOSThread()
	call := func(f int, args ...uintptr) {
		t.Helper()
		if code := lib.ask(f, args...); code != 0 {
			t.Fatalf("%s: %v", lib.functions[f].symbol, Code(code))
		}
	}
	stream, graph, ctx := new(uintptr), new(uintptr), new(uintptr)
	call(4, d.ctx)
	call(0, uintptr(unsafe.Pointer(stream)), 0) // a blocking one, the harder case
	call(1, *stream, 0)                         // global
	errs := make(chan error)
	go func() {
		errs <- func() error {
			r, err := d.Alloc(4 << 20)
			if err != nil {
				return err
			}
			e, err := d.EventCreate()
			if err != nil {
				return err
			}
			got := make([]byte, 5)
			err = errors.Join(d.Fill(r.Addr, 4<<20, 1), d.Write(r.Addr, []byte("hello")), d.Read(r.Addr, got),
				d.EventRecord(e, 0), d.EventSynchronize(e), d.StreamSynchronize(0), d.Synchronize(), d.EventDestroy(e), d.Free(r.Addr))
			if string(got) != "hello" {
				err = errors.Join(err, fmt.Errorf("read %q", got))
			}
			return err
		}()
	}()
	if err := <-errs; err != nil {
		t.Error(err)
	}
	call(2, *stream, uintptr(unsafe.Pointer(graph)))
	call(3, *stream)
	call(5, uintptr(unsafe.Pointer(ctx)))
}

// TestRealProcesses: what another process takes is gone here, and back when it
// is killed.
func TestRealProcesses(t *testing.T) {
	d := realGPU(t)
	free := func() uint64 {
		n, _, err := d.MemInfo()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := free()
	const held = 1 << 30
	cmd, _, out := start(t, fmt.Sprintf("hold %d", held))
	if line, err := out.ReadString('\n'); line != "held\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	during := free()
	t.Logf("a child with %d bytes takes %d, its context included", held, before-during)
	if during > before-held {
		t.Errorf("%d free, of %d before a child took %d", during, before, held)
	}
	if all, err := List(); err == nil {
		t.Logf("processes: %+v", all[0].Processes)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for deadline := time.Now().Add(time.Minute); free() < before-64*mib; {
		if time.Now().After(deadline) {
			t.Fatalf("%d free a minute after the child's end, %d before it", free(), before)
		}
	}
}

// TestRealCosts measures, with -costs, for about two minutes.
func TestRealCosts(t *testing.T) {
	if *costsFile == "" {
		t.Skip("measures only with -costs FILE")
	}
	d := realGPU(t)
	free, _, err := d.MemInfo()
	if err != nil {
		t.Fatal(err)
	}
	b, out := newTableBench(t, d, *costsFile)
	b.n, b.most, b.waiting = *costsRounds, min(free/2, *costsMost), *costsWaits
	b.all()
	b.heading("The same round in several processes at once")
	for _, n := range []int{1, 2, 4} {
		var ins []io.Closer
		var outs []*bufio.Reader
		for range n {
			_, in, o := start(t, "round")
			if line, err := o.ReadString('\n'); line != "ready\n" {
				t.Fatalf("a child says %q, %v", line, err)
			}
			ins, outs = append(ins, in), append(outs, o)
		}
		for _, in := range ins {
			b.must(in.Close())
		}
		for _, o := range outs {
			rows, err := io.ReadAll(o)
			b.must(err)
			fmt.Fprint(b.w, strings.ReplaceAll(string(rows), "several", fmt.Sprint(n)))
		}
	}
	t.Log(out.String())
}
