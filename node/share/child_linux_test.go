package share

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
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
	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/node/internal/registry"
)

// Tests with several processes run this binary again as a child: with asChild
// in its environment, the arguments are the role and what it wants.
const asChild = "GPUMEM_SHARE_CHILD"

var roles map[string]func(args []string) error

func init() {
	roles = map[string]func(args []string) error{
		"hold":   childHold,
		"launch": childLaunch,
		"use":    childUse,
		"step":   childStep,
		"turns":  childTurns,
	}
}

// TestMain lets parallel tests run eight at once, whatever the processors: they wait, for a GPU
// to settle or for a process that is stopped to count as such.
func TestMain(m *testing.M) {
	if os.Getenv(asChild) == "" {
		flag.Parse()
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
		os.Exit(m.Run())
	}
	if err := roles[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is a running child. It is killed and waited for when the test ends.
type child struct {
	*exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	errs strings.Builder
	done bool
}

func command(role string, args ...any) *child {
	c := &child{Cmd: exec.Command("/proc/self/exe", role)}
	for _, a := range args {
		c.Args = append(c.Args, fmt.Sprint(a))
	}
	// The race detector otherwise lets every program end a second late.
	c.Env = append(os.Environ(), asChild+"=1", "GORACE=atexit_sleep_ms=0")
	c.Stderr = &c.errs
	return c
}

// starting is locked while a child is started. Until it runs its program it has the files of
// this process, and Close finds that another process holds the lease.
var starting sync.RWMutex

func (c *child) begin(t testing.TB) *child {
	t.Helper()
	in, err := c.StdinPipe()
	must(t, err)
	out, err := c.StdoutPipe()
	must(t, err)
	c.in, c.out = in, bufio.NewReader(out)
	starting.Lock()
	err = c.Start()
	starting.Unlock()
	must(t, err)
	t.Cleanup(func() {
		if !c.done {
			c.Process.Kill()
			c.Wait()
		}
	})
	return c
}

func start(t testing.TB, role string, args ...any) *child {
	t.Helper()
	return command(role, args...).begin(t)
}

// line reads what the child says next; "" when it has ended.
func (c *child) line() string {
	s, _ := c.out.ReadString('\n')
	return strings.TrimSuffix(s, "\n")
}

// said fails unless the child says that next.
func (c *child) said(t testing.TB, want string) string {
	t.Helper()
	got := c.line()
	if !strings.HasPrefix(got, want) {
		t.Fatalf("child %v says %q, want %q; %s", c.Args[1:], got, want, &c.errs)
	}
	return got
}

// end lets the child end by itself, and kill kills it; both wait for it.
func (c *child) end(t testing.TB) {
	t.Helper()
	c.in.Close()
	io.Copy(io.Discard, c.out)
	c.done = true
	must(t, c.Wait())
}

func (c *child) kill(t testing.TB) {
	t.Helper()
	must(t, c.Process.Kill())
	c.reap()
}

func (c *child) reap() {
	io.Copy(io.Discard, c.out)
	c.done = true
	c.Wait()
}

// signal stops or continues the child, and waits until it is so.
func (c *child) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	must(t, c.Process.Signal(s))
	eventually(t, "the child has the signal", func() bool {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
		must(t, err)
		_, after, _ := strings.Cut(string(data), ") ")
		return (after[0] == 'T') == (s == syscall.SIGSTOP)
	})
}

const (
	mib = 1 << 20
	gib = 1 << 30
)

// digits is the ID of a container.
func digits(n int) string { return fmt.Sprintf("%064x", n) }

// pod returns n containers with names.
func pod(n int) (all []Container) {
	for i := range n {
		all = append(all, Container{ID: digits(i), Namespace: "team-a", Pod: fmt.Sprintf("trainer-%d", i), Name: "main"})
	}
	return all
}

// sample is a file's record.
func sample(device string) registry.Record {
	return registry.Record{Kind: registry.LeaseKind, ID: "0123456789abcdef", Device: device, Bytes: gib, PID: 1, Start: 1, Since: 1}
}

// lockFile is the name of the file with the lock of a GPU.
func lockFile(r *Registry, gpu string) string {
	return filepath.Join(r.r.Dir(), registry.KeyOf(gpu)+".lock")
}

// leaseGPU is the part of the registry that a lease is in.
func leaseGPU(r *Registry, l *Lease) registry.GPU { return r.r.GPU(l.Device()) }

// holdersOf returns the processes that hold a lease, as lists name them where they do not
// know its program.
func holdersOf(t testing.TB, r *Registry, id string) (pids []int) {
	for _, e := range listed(t, r) {
		if e.ID == id {
			e.PID = 0
			entries := []Entry{e}
			registry.FindHolders(entries)
			for _, h := range entries[0].HeldBy {
				pids = append(pids, h.PID)
			}
		}
	}
	return pids
}

func process(pid int, used uint64) device.Process {
	return device.Process{PID: pid, Name: "python", Kind: "compute", Used: used, Known: true}
}

type reporter interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func must(t reporter, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition.
func eventually(t reporter, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after a minute still not: %s", what)
		}
	}
}

// simulated is the first GPU of a shared file.
type simulated string

func (m simulated) Status() (device.Status, error) {
	spec, err := open.Parse("sim@" + string(m))
	if err != nil {
		return device.Status{}, err
	}
	list, err := spec.Status()
	if err != nil {
		return device.Status{}, err
	}
	return list[0].Status, nil
}

// newGPU makes a folder with a registry and a simulated GPU of 24 GiB.
func newGPU(t testing.TB) (r *Registry, gpu string) {
	t.Helper()
	dir := t.TempDir()
	gpu = filepath.Join(dir, "gpu")
	must(t, sim.CreateFile(gpu, sim.Config{Total: 24 << 30}))
	r, err := Open(filepath.Join(dir, "registry"))
	must(t, err)
	return r, gpu
}

// childHold DIR GPU GIB COPIES WAIT: takes leases and says "have" with their
// files, holds them until its input ends, and says "gone". Otherwise it says
// "no" or "error", and with WAIT "place N" as it changes.
func childHold(args []string) error {
	r, err := Open(args[0])
	if err != nil {
		return err
	}
	leases, err := acquire(r, args)
	var no *InsufficientMemoryError
	if errors.As(err, &no) {
		fmt.Println("no", err)
		return nil
	}
	if err != nil {
		return err
	}
	var ids []string
	for _, l := range leases {
		ids = append(ids, l.ID())
	}
	fmt.Println("have", strings.Join(ids, " "))
	os.Stdin.Read(make([]byte, 1))
	for _, l := range leases {
		err = errors.Join(err, l.Close())
	}
	fmt.Println("gone")
	return err
}

func acquire(r *Registry, args []string) ([]*Lease, error) {
	n, _ := strconv.ParseUint(args[2], 10, 64)
	copies, _ := strconv.Atoi(args[3])
	q := Request{Device: args[1], Meter: simulated(args[1]), Bytes: n * gib, Copies: copies, Command: []string{"hold", args[2]}}
	if args[4] == "wait" {
		last := -1
		q.Wait = func(p Position) {
			if p.Place != last {
				fmt.Println("place", p.Place)
			}
			last = p.Place
		}
	}
	return r.Acquire(context.Background(), q)
}

// childLaunch DIR GPU GIB COPIES WAIT: takes a lease, starts a program
// with it that takes 1 GiB less, and says "started PID". When its input ends it
// ends the program, and itself.
func childLaunch(args []string) error {
	r, err := Open(args[0])
	if err != nil {
		return err
	}
	leases, err := acquire(r, args)
	if err != nil {
		return err
	}
	c := exec.Command("/proc/self/exe", "use", args[1], args[2])
	c.Env = os.Environ() // no stderr: whoever waits for this launcher must not wait for an orphan
	c.ExtraFiles = []*os.File{leases[0].File()}
	out, err := c.StdoutPipe()
	if err := errors.Join(err, c.Start()); err != nil {
		return err
	}
	if err := leases[0].Tell(c.Process.Pid); err != nil {
		return err
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "uses\n" {
		return fmt.Errorf("the program says %q", line)
	}
	fmt.Println("started", c.Process.Pid)
	os.Stdin.Read(make([]byte, 1))
	err = c.Process.Kill()
	c.Wait()
	return errors.Join(err, leases[0].Close())
}

// childUse GPU GIB: takes 1 GiB less from the GPU and lease.KeepEvery it, until there is a
// file GPU.stop or the test is over.
func childUse(args []string) error {
	n, _ := strconv.ParseUint(args[1], 10, 64)
	d, err := sim.Join(args[0], 0, sim.Config{})
	if err != nil {
		return err
	}
	if _, err := d.Alloc((n - 1) * gib); err != nil {
		return err
	}
	fmt.Println("uses")
	for err == nil {
		time.Sleep(100 * time.Millisecond)
		if _, err = os.Stat(args[0]); err == nil {
			if _, stop := os.Stat(args[0] + ".stop"); stop == nil {
				break
			}
		}
	}
	return nil
}
