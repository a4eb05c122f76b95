package share

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpumem/device"
	"gpumem/internal/proc"
	"gpumem/node/internal/account"
	"gpumem/node/internal/queue"
	"gpumem/node/internal/registry"
)

// settled asks for a lease as the agent of a node does, which reads no GPU.
func settled(r *Registry, gibs, total uint64) (*Lease, error) {
	l, err := r.Acquire(background, Request{Device: "gpu", Settled: true, Total: total * gib, Bytes: gibs * gib, Command: []string{"team-a/claim"}})
	if err != nil {
		return nil, err
	}
	return l[0], nil
}

// TestSetOutside: lists have what the lease's processes hold outside of the pool, and what is set
// for other reasons leaves it.
func TestSetOutside(t *testing.T) {
	r, err := Open(t.TempDir())
	must(t, err)
	l, err := settled(r, 8, 24)
	must(t, err)
	for i, change := range []func() error{
		func() error { return l.SetOutside(300) },
		func() error { return l.Tell(os.Getppid()) },
		func() error { return l.SetUse(pod(1), "") },
		func() error { return errors.Join(os.Remove(l.Path()), l.Restore(background)) },
	} {
		must(t, change())
		if all := listed(t, r); len(all) != 1 || all[0].Outside != 300 || all[0].Bytes != 8*gib {
			t.Errorf("after change %d: %+v", i, all)
		}
	}
	must(t, l.Close())
	if err := l.SetOutside(1); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

// TestSetUse: lists have the containers and the ledger, and what is set later replaces
// both. Tell and a clean-up of the folder change neither.
func TestSetUse(t *testing.T) {
	r, err := Open(t.TempDir())
	must(t, err)
	l, err := settled(r, 8, 24)
	must(t, err)
	check := func(containers int, ledger string) {
		t.Helper()
		all := listed(t, r)
		if len(all) != 1 || len(all[0].Containers) != containers || all[0].Ledger != ledger || all[0].Bytes != 8*gib {
			t.Fatalf("listed: %+v, want %d containers and %q", all, containers, ledger)
		}
		one, err := ReadLease(l.Path())
		must(t, err)
		if len(one.Containers) != containers || one.Ledger != ledger {
			t.Fatalf("read: %+v", one)
		}
	}
	check(0, "")
	must(t, os.WriteFile(l.Ledger(), nil, 0o600))
	if all := listed(t, r); all[0].Ledger != l.Ledger() {
		t.Errorf("ledger %q, want the lease's own", all[0].Ledger)
	}
	must(t, l.SetUse(pod(2), "/run/gpumem/shares/1/ledger"))
	check(2, "/run/gpumem/shares/1/ledger")
	must(t, l.Tell(os.Getppid()))
	check(2, "/run/gpumem/shares/1/ledger")
	must(t, os.Remove(l.Path()))
	must(t, l.Restore(background))
	check(2, "/run/gpumem/shares/1/ledger")
	if l.SetUse([]Container{{ID: "x"}}, "") == nil {
		t.Error("an id of one letter is taken")
	}
	must(t, l.SetUse(pod(1), "/other"))
	check(1, "/other")
	for _, n := range []int{200, 1} {
		must(t, l.SetUse(pod(n), "/other"))
		if e := listed(t, r)[0]; len(e.Containers)+e.MoreContainers != n {
			t.Errorf("%d containers and %d more, want %d", len(e.Containers), e.MoreContainers, n)
		}
	}
	must(t, l.SetUse(nil, ""))
	must(t, os.Remove(l.Ledger()))
	check(0, "")
	must(t, l.Close())
	if err := l.SetUse(nil, ""); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// kinOf returns the ancestry for leases.
func kinOf(all []Entry) *account.Ancestry {
	var counted []account.Lease
	for _, e := range all {
		counted = append(counted, e.Counted())
	}
	return account.NewAncestry(proc.ReadStat, counted, registry.PIDNamespace())
}

// TestOwnersFindContainers: the memory of a process in a container is its lease's, of two
// that one process has.
func TestOwnersFindContainers(t *testing.T) {
	r, err := Open(t.TempDir())
	must(t, err)
	for i := range 2 {
		l, err := settled(r, 8, 24)
		must(t, err)
		defer l.Close()
		must(t, l.SetUse([]Container{{ID: digits(i), Namespace: "team-a", Pod: "trainer", Name: "main"}}, ""))
	}
	all := listed(t, r)
	kin := kinOf(all)
	kin.Cgroup = func(pid int) string { return "0::/kubepods/" + digits(pid-100) + "\n" }
	for _, e := range all {
		pid := 100
		if e.Containers[0].ID == digits(1) {
			pid = 101
		}
		if i, ok := kin.LeaseOf(device.Process{PID: pid}); !ok || all[i].ID != e.ID {
			t.Errorf("process %d is of lease %d, %t; want %+v", pid, i, ok, e)
		}
	}
	if _, err := settled(r, 9, 24); err == nil || !strings.Contains(err.Error(), "leases: container team-a/trainer/main 8 GiB, container team-a/trainer/main 8 GiB;") {
		t.Errorf("a refusal names the containers: %v", err)
	}
	if _, ok := kin.LeaseOf(device.Process{PID: 103}); ok {
		t.Error("a process of no container has a lease")
	}
	if i, ok := kin.LeaseOf(device.Process{PID: os.Getpid()}); !ok || all[i].PID != os.Getpid() {
		t.Errorf("this process is of lease %d, %t", i, ok)
	}
}

// TestRefusalSaysWhatContainersHoldBeyondTheirLease: an agent has one lease for a container,
// which holds 2 GiB too many, and one for itself, with 1 GiB too many.
func TestRefusalSaysWhatContainersHoldBeyondTheirLease(t *testing.T) {
	r, err := Open(t.TempDir())
	must(t, err)
	of, own := sample("gpu"), sample("gpu")
	of.ID, of.Containers = "a", []Container{{ID: digits(1)}}
	own.ID = "b"
	leases := []registry.Claim{{Record: of}, {Record: own}}
	b := &bid{gpu: r.r.GPU("gpu")}
	counts := b.accountsOf(leases)
	kin := account.NewAncestry(func(int) (proc.Stat, bool) { return proc.Stat{Start: own.Start}, true }, counts, 0)
	kin.Cgroup = func(pid int) string { return map[int]string{20: "0::/" + digits(1)}[pid] }
	st := device.Status{Info: device.Info{Total: 24 * gib}, Free: 19 * gib, Processes: []device.Process{process(20, 3*gib), process(own.PID, 2*gib)}}
	f, err := account.Count(st, counts, 0, kin)
	must(t, err)
	no := b.refusal(reading{Figures: f, leases: leases, counts: counts}, queue.Turn{})
	for _, e := range no.Holders {
		if want := map[string]uint64{"a": 2 * gib, "b": gib}[e.ID]; e.Over != want {
			t.Errorf("lease %s holds %d more than it has, want %d", e.ID, e.Over, want)
		}
	}
	if len(no.Holders) != 2 {
		t.Errorf("%d holders, want 2", len(no.Holders))
	}
}

// TestMemoryOfARealContainer: a process in a cgroup with a container's name holds 3 GiB of
// the GPU, which is within the lease of the container, and foreign without.
func TestMemoryOfARealContainer(t *testing.T) {
	id := fmt.Sprintf("%064x", time.Now().UnixNano())
	folder := filepath.Join("/sys/fs/cgroup", id)
	if _, err := os.Stat("/sys/fs/cgroup/pids"); err == nil { // cgroup 1
		folder = filepath.Join("/sys/fs/cgroup/pids", id)
	}
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Skip("no cgroup can be made here: ", err)
	}
	start := func() *exec.Cmd {
		c := exec.Command("cat")
		in, err := c.StdinPipe()
		must(t, err)
		must(t, c.Start())
		t.Cleanup(func() {
			in.Close()
			c.Wait()
			os.Remove(folder) // when nothing is in it
		})
		return c
	}
	agent, child := start(), start()
	if err := os.WriteFile(filepath.Join(folder, "cgroup.procs"), fmt.Append(nil, child.Process.Pid), 0); err != nil {
		t.Skip("no process can be moved into a cgroup here: ", err)
	}
	r, err := Open(t.TempDir())
	must(t, err)
	used := meterFunc(func() device.Status {
		return device.Status{Info: device.Info{Total: 24 * gib}, Free: 21 * gib, Used: 3 * gib, Processes: []device.Process{process(child.Process.Pid, 3*gib)}}
	})
	take := func(gibs uint64) error {
		l, err := r.Acquire(background, Request{Device: "gpu", Meter: used, Settled: true, Bytes: gibs * gib})
		if err == nil {
			must(t, l[0].Close())
		}
		return err
	}
	l, err := settled(r, 4, 24)
	must(t, err)
	defer l.Close()
	must(t, l.Tell(agent.Process.Pid)) // which is no ancestor
	must(t, l.SetUse([]Container{{ID: digits(1)}}, ""))
	if take(17) != nil || take(18) == nil {
		t.Error("without the container 3 of 24 GiB are foreign and 4 are leased: 17 are left")
	}
	must(t, l.SetUse([]Container{{ID: digits(1)}, {ID: id}}, ""))
	if take(20) != nil || take(21) == nil {
		t.Error("with the container 4 of 24 GiB are leased: 20 are left")
	}
	all := listed(t, r)
	if i, ok := kinOf(all).LeaseOf(device.Process{PID: child.Process.Pid}); !ok || all[i].ID != l.ID() {
		t.Errorf("the process is of lease %d, %t", i, ok)
	}
}

// TestSettledWithoutMeter: the sum of leases is all that counts, and the answer comes at
// once also right after the end of a lease.
func TestSettledWithoutMeter(t *testing.T) {
	r, err := Open(t.TempDir())
	must(t, err)
	one, err := settled(r, 16, 24)
	must(t, err)
	var no *InsufficientMemoryError
	if _, err := settled(r, 9, 24); !errors.As(err, &no) || no.Free != 8*gib || no.Total != 24*gib || !strings.Contains(err.Error(), "team-a/claim") {
		t.Errorf("9 of the 8 GiB that are left: %v", err)
	}
	two, err := settled(r, 8, 24)
	must(t, err)
	must(t, one.Close())
	three, err := settled(r, 16, 24)
	must(t, err)
	must(t, errors.Join(two.Close(), three.Close()))
	if _, err := settled(r, 25, 24); !errors.As(err, &no) || !no.Never {
		t.Errorf("25 of 24 GiB: %v", err)
	}
	for name, q := range map[string]Request{
		"not settled":  {Device: "gpu", Total: gib, Bytes: 1},
		"of no size":   {Device: "gpu", Settled: true, Bytes: 1},
		"neither here": {Device: "gpu", Bytes: 1},
	} {
		if _, err := r.Acquire(background, q); err == nil || !strings.Contains(err.Error(), "no meter") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSettledBelievesTheFirstReading: a GPU that never agrees with itself is read once.
func TestSettledBelievesTheFirstReading(t *testing.T) {
	r, err := Open(t.TempDir())
	must(t, err)
	for range 2 { // the second right after a lease was granted, which is a movement
		n := uint64(0)
		moving := meterFunc(func() device.Status {
			n++
			return device.Status{Info: device.Info{Total: 24 * gib}, Free: 24*gib - n*mib, Used: n * mib}
		})
		l, err := r.Acquire(background, Request{Device: "gpu", Meter: moving, Settled: true, Bytes: gib})
		must(t, err)
		defer l[0].Close()
		if n != 1 {
			t.Errorf("read %d times", n)
		}
	}
}
