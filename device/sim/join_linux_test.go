//go:build linux

package sim_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/internal/test/devicetest"
)

var (
	kills    = flag.Int("kills", 60, "how many programs TestKill kills; 10000 for the long run")
	parallel = flag.Duration("parallel-for", 500*time.Millisecond, "how long the programs of BenchmarkPrograms run")
)

// childVar makes this test binary another program on a shared device: its value
// is what to do.
const childVar = "GPUMEM_SIM_CHILD"

func TestMain(m *testing.M) {
	if do := os.Getenv(childVar); do != "" {
		if err := child(do, os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// program is this binary, doing what childVar says on the file.
func program(do, file string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], append([]string{file}, args...)...)
	cmd.Env = append(os.Environ(), childVar+"="+do)
	cmd.Stderr = os.Stderr
	return cmd
}

func child(do, file string, args []string) error {
	d, err := sim.Join(file, 0, sim.Config{})
	if err != nil {
		return err
	}
	switch do {
	case "churn": // takes and gives in every way until it is killed, and says so on descriptor 3
		go func() { // a killed test must not leave it behind
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(1)
		}()
		if err := syscall.SetNonblock(3, true); err != nil {
			return err
		}
		for i := uint64(0); ; i++ {
			if err := churn(d, rand.New(rand.NewPCG(i, uint64(os.Getpid()))), 20); err != nil {
				return err
			}
			syscall.Write(3, []byte{0}) // where nobody reads, nothing is missed
		}
	case "hold": // takes so many bytes, says so, and waits for the end of its input
		n, err := strconv.ParseUint(args[0], 10, 64)
		if err != nil {
			return err
		}
		if _, err := d.Alloc(n); err != nil {
			return err
		}
		fmt.Println("ready")
		_, err = io.Copy(io.Discard, os.Stdin)
		return err
	case "threads": // eight threads take and give until the end of its input, and count
		fmt.Println("ready")
		if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
			return err
		}
		how, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		end := time.Now().Add(how)
		var mu sync.Mutex
		var total int
		var errs []error
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				n := 0
				for time.Now().Before(end) {
					for range 50 {
						r, err := d.Alloc(2 * mib)
						if err == nil {
							err = d.Free(r.Addr)
						}
						if err != nil {
							mu.Lock()
							errs = append(errs, err)
							mu.Unlock()
							return
						}
						n++
					}
				}
				mu.Lock()
				total += n
				mu.Unlock()
			})
		}
		wg.Wait()
		fmt.Println(total)
		return errors.Join(append(errs, d.Close())...)
	}
	return fmt.Errorf("cannot %q", do)
}

// churn makes about n random requests on d and gives most of it back. A refusal
// for want of memory is part of the game.
func churn(d *sim.Device, r *rand.Rand, n int) error {
	var grants []uint64
	var handles []device.Handle
	full := func(err error) (bool, error) {
		if errors.Is(err, device.ErrOutOfMemory) {
			return true, nil
		}
		return false, err
	}
	p, err := d.DefaultPool()
	if no, err := full(err); no || err != nil { // there is no room for the context yet
		return err
	}
	for range n {
		switch r.IntN(4) {
		case 0, 1:
			g, err := d.Alloc(1 + r.Uint64N(512*mib))
			if no, err := full(err); no || err != nil {
				if err != nil {
					return err
				}
				continue
			}
			grants = append(grants, g.Addr)
		case 2:
			h, err := d.MemCreate((1 + r.Uint64N(100)) * 2 * mib)
			if no, err := full(err); no || err != nil {
				if err != nil {
					return err
				}
				continue
			}
			handles = append(handles, h)
		case 3:
			g, err := d.AllocAsync(p, 1+r.Uint64N(64*mib), 0)
			if no, err := full(err); no || err != nil {
				if err != nil {
					return err
				}
				continue
			}
			if err := d.FreeAsync(g.Addr, 0); err != nil {
				return err
			}
		}
		if len(grants) > 3 {
			if err := d.Free(grants[0]); err != nil {
				return err
			}
			grants = grants[1:]
		}
	}
	for _, g := range grants {
		if err := d.Free(g); err != nil {
			return err
		}
	}
	for _, h := range handles {
		if err := d.MemRelease(h); err != nil {
			return err
		}
	}
	return d.Synchronize()
}

// file makes a file with one device for the test.
func file(t testing.TB, cfg sim.Config) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gpu")
	if err := sim.CreateFile(path, cfg); err != nil {
		t.Fatal(err)
	}
	return path
}

// look asserts that the books balance: free and used are the total, and used is
// what the listed programs hold and the others that were said to.
func look(t testing.TB, path string, others uint64) device.Status {
	t.Helper()
	list, err := sim.Look(path)
	if err != nil {
		t.Fatal(err)
	}
	s := list[0]
	sum := others
	for _, p := range s.Processes {
		sum += p.Used
	}
	if s.Free+s.Used != s.Total || sum != s.Used {
		t.Fatalf("free %d + used %d of %d; the programs hold %d: %+v", s.Free, s.Used, s.Total, sum, s.Processes)
	}
	return s
}

// TestHeldByAll: what all held at once, contexts among it, and not what one held after another.
func TestHeldByAll(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gpu")
	if err := sim.CreateFile(file, sim.Config{Total: gib, Context: 16 * mib}); err != nil {
		t.Fatal(err)
	}
	join := func() *sim.Device {
		d, err := sim.Join(file, 0, sim.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	hold := func(d *sim.Device, bytes uint64) {
		if _, err := d.Alloc(bytes); err != nil {
			t.Fatal(err)
		}
	}
	dead, first, second := join(), join(), join()
	hold(dead, 512*mib)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	first.CountAll()
	second.CountAll()
	hold(first, 100*mib)
	hold(second, 200*mib)
	hold(first, 2*mib)
	const both = 2 * 16 * mib
	if a, b, c := dead.HeldByAll(), first.HeldByAll(), second.HeldByAll(); a != 0 || b != 302*mib+both || c != 300*mib+both {
		t.Errorf("%d, %d and %d; want 0, %d and %d", a, b, c, 302*mib+both, 300*mib+both)
	}
}

// TestKill kills programs that allocate on one device, at any moment. At every
// look the books balance; a killed one's memory is back before anyone has waited
// for it; the others go on.
func TestKill(t *testing.T) {
	const others = 3 * gib
	path := file(t, sim.Config{Total: 8 * gib, Used: gib, Display: 2 * gib, Context: 64 * mib})
	type run struct {
		cmd  *exec.Cmd
		tick *os.File // one byte for each round that it has done
	}
	start := func() *run {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := program("churn", path)
		cmd.ExtraFiles = []*os.File{w}
		if _, err := cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		return &run{cmd, r}
	}
	// goesOn waits for a round that ends after now.
	goesOn := func(r *run) {
		t.Helper()
		buf := make([]byte, 1<<16)
		for err := error(nil); err == nil; {
			r.tick.SetReadDeadline(time.Now())
			_, err = r.tick.Read(buf)
		}
		// The first round may have begun before now, the second has not.
		for range 2 {
			r.tick.SetReadDeadline(time.Now().Add(30 * time.Second))
			if _, err := r.tick.Read(buf[:1]); err != nil {
				t.Fatalf("program %d does not go on: %v", r.cmd.Process.Pid, err)
			}
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	var runs []*run
	for range 6 {
		runs = append(runs, start())
	}
	goesOn(runs[0])
	for range *kills {
		i := random.IntN(len(runs))
		victim := runs[i]
		pid := victim.cmd.Process.Pid
		for range random.IntN(20_000) { // any moment
		}
		if err := victim.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		// Killed, but not waited for: what it held goes back all the same, once
		// the kernel has closed its files.
		deadline := time.Now().Add(30 * time.Second)
		for there := true; there; {
			there = false
			for _, p := range look(t, path, others).Processes {
				there = there || p.PID == pid
			}
			if there && time.Now().After(deadline) {
				t.Fatalf("program %d was killed and is still listed", pid)
			}
		}
		goesOn(runs[(i+1)%len(runs)])
		victim.cmd.Wait()
		victim.tick.Close()
		runs[i] = start()
	}
	for _, r := range runs[:len(runs)-1] {
		goesOn(r)
	}
	for _, r := range runs {
		r.cmd.Process.Kill()
	}
	for _, r := range runs {
		r.cmd.Wait()
		r.tick.Close()
	}
	if s := look(t, path, others); s.Used != others || len(s.Processes) != 0 {
		t.Errorf("at the end %d are used by %+v", s.Used-others, s.Processes)
	}
}

// TestPrograms: what separate programs see of each other.
func TestPrograms(t *testing.T) {
	path := file(t, sim.Config{Total: 24 * gib})
	d, err := sim.Join(path, 0, sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	free := func() uint64 {
		f, total, err := d.MemInfo()
		if err != nil || total != 24*gib {
			t.Fatal(total, err)
		}
		return f
	}
	if _, err := d.Alloc(4 * gib); err != nil {
		t.Fatal(err)
	}
	hold := program("hold", path, strconv.Itoa(18*gib))
	in, _ := hold.StdinPipe()
	out, _ := hold.StdoutPipe()
	if err := hold.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	if f := free(); f != 2*gib {
		t.Errorf("%d free with 4 and 18 GiB held of 24", f)
	}
	if _, err := d.Alloc(2*gib + 1); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("more than the other leaves: %v", err)
	}
	var errs bytes.Buffer
	third := program("hold", path, strconv.Itoa(3*gib))
	third.Stderr = &errs
	if err := third.Run(); err == nil || !strings.Contains(errs.String(), "cuMemAlloc of 3221225472 bytes on sim:24GiB: CUDA_ERROR_OUT_OF_MEMORY") {
		t.Errorf("a third program: %v, %s", err, errs.String())
	}
	s := look(t, path, 0)
	if len(s.Processes) != 2 || s.Processes[0].Used+s.Processes[1].Used != 22*gib {
		t.Errorf("listed: %+v", s.Processes)
	}
	for _, p := range s.Processes {
		want := device.Process{PID: p.PID, Start: p.Start, Name: filepath.Base(os.Args[0]), Kind: "compute", Used: 4 * gib, Known: true}
		want.Name = want.Name[:min(15, len(want.Name))]
		if p.PID == hold.Process.Pid {
			want.Used = 18 * gib
		}
		if p != want || p.Start == 0 {
			t.Errorf("listed %+v, want %+v", p, want)
		}
	}
	in.Close()
	if err := hold.Wait(); err != nil {
		t.Error(err)
	}
	if f := free(); f != 20*gib {
		t.Errorf("%d free after the other's end", f)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if s := look(t, path, 0); s.Free != 24*gib {
		t.Errorf("%d free after all have ended", s.Free)
	}
}

// threads starts 8 programs of 8 threads each on one device, lets them go at the
// same time, and is how many allocations they made, each with its free.
func threads(t testing.TB, how time.Duration) int {
	path := file(t, sim.Config{Total: 80 * gib})
	type run struct {
		cmd *exec.Cmd
		in  io.Writer
		out io.Reader
	}
	var runs []run
	for range 8 {
		cmd := program("threads", path, how.String())
		in, _ := cmd.StdinPipe()
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run{cmd, in, out})
	}
	for _, r := range runs {
		if _, err := io.ReadFull(r.out, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range runs {
		r.in.Write([]byte("!"))
	}
	sum := 0
	for _, r := range runs {
		b, err := io.ReadAll(r.out)
		n, convErr := strconv.Atoi(strings.TrimSpace(string(b)))
		if err := errors.Join(err, convErr, r.cmd.Wait()); err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	if s := look(t, path, 0); s.Free != s.Total {
		t.Errorf("%d bytes are left", s.Used)
	}
	return sum
}

// TestThreads: 64 threads in 8 programs on one device end, and leave nothing.
func TestThreads(t *testing.T) {
	if n := threads(t, 200*time.Millisecond); n == 0 {
		t.Error("no allocation was made")
	}
}

// BenchmarkPrograms is how many allocations a second (each with its free) 64
// threads in 8 programs make on one device.
func BenchmarkPrograms(b *testing.B) {
	n := threads(b, *parallel)
	b.ReportMetric(float64(n)/parallel.Seconds(), "allocs/s")
	b.ReportMetric(0, "ns/op")
}

// TestSharedReportsHazards: a program that wants hazards reported is refused nothing for one on
// a shared device, either.
func TestSharedReportsHazards(t *testing.T) {
	var found []*sim.Hazard
	d, err := sim.Join(file(t, sim.Config{Total: gib}), 0, sim.Config{Report: func(h *sim.Hazard) { found = append(found, h) }})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	p, err := d.DefaultPool()
	if err != nil {
		t.Fatal(err)
	}
	a, err := d.StreamCreate()
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.StreamCreate()
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.AllocAsync(p, mib, a)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.FillAsync(r.Addr, 512, 7, b); err != nil || len(found) != 1 {
		t.Errorf("%v, %v", err, found)
	}
}

// TestSharedManaged: the programs of a shared device have managed memory apart
// from each other, each up to what the device and the host have, and the device's
// is as free as before.
func TestSharedManaged(t *testing.T) {
	path := file(t, sim.Config{Total: gib, Host: gib})
	for range 2 {
		d, err := sim.Join(path, 0, sim.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		r, err := d.AllocManaged(2 * gib)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Fill(r.Addr, 2*gib, 1); err != nil {
			t.Error(err)
		}
		if _, err := d.AllocManaged(1); !errors.Is(err, device.ErrOutOfMemory) {
			t.Errorf("more than the device and the host have: %v", err)
		}
		if free, _, err := d.MemInfo(); free != gib || err != nil {
			t.Errorf("%d free, %v", free, err)
		}
	}
	if s := look(t, path, 0); len(s.Processes) != 0 {
		t.Errorf("held: %+v", s.Processes)
	}
	// Where a managed grant is as a plain one, all see it.
	path = file(t, sim.Config{Total: gib, CCMajor: 5})
	d, err := sim.Join(path, 0, sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.AllocManaged(100 * mib); err != nil {
		t.Fatal(err)
	}
	if s := look(t, path, 0); s.Used != 100*mib || s.Oversubscribes || !s.HasManaged {
		t.Errorf("%+v", s)
	}
}

// TestSharedConformance: a shared device does what every device does, alone and
// beside another program.
func TestSharedConformance(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  sim.Config
	}{
		{"plain", sim.Config{Total: gib}},
		{"others on it", sim.Config{Total: 4 * gib, Used: gib, Display: gib, Context: 100 * mib}},
		{"without pages and pools", sim.Config{Total: gib, Granularity: 512, NoPages: true, NoPools: true}},
		{"without managed memory", sim.Config{Total: gib, NoManaged: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := file(t, tc.cfg)
			devicetest.Run(t, devicetest.Config{Exact: true, Open: func(t *testing.T) device.GPU {
				d, err := sim.Join(path, 0, sim.Config{})
				if err != nil {
					t.Fatal(err)
				}
				return d
			}})
			if s := look(t, path, tc.cfg.Used+tc.cfg.Display); len(s.Processes) != 0 {
				t.Errorf("left: %+v", s.Processes)
			}
		})
	}
}
