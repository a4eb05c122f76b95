package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpumem/device"
	"gpumem/internal/ofd"
	"gpumem/node/internal/registry"
)

// listed is what the registry lists.
func listed(t reporter, r *Registry) []Entry {
	t.Helper()
	all, err := r.List()
	must(t, err)
	return all
}

// files are the names in the registry's folder but for the locks.
func files(t reporter, r *Registry) []string {
	t.Helper()
	all, err := os.ReadDir(r.r.Dir())
	must(t, err)
	var names []string
	for _, f := range all {
		if !strings.HasSuffix(f.Name(), ".lock") {
			names = append(names, f.Name())
		}
	}
	return names
}

func pid(t testing.TB, line string) int {
	t.Helper()
	n, err := strconv.Atoi(line[strings.LastIndexByte(line, ' ')+1:])
	must(t, err)
	return n
}

// TestTogether: two have room, a third has not and is told why; when the first
// ends it has.
func TestTogether(t *testing.T) {
	r, gpu := newGPU(t)
	a := start(t, "hold", r.r.Dir(), gpu, 5, 2, "")
	a.said(t, "have")
	b := start(t, "launch", r.r.Dir(), gpu, 8, 1, "")
	started := pid(t, b.said(t, "started"))
	c := start(t, "hold", r.r.Dir(), gpu, 7, 1, "")
	no := c.said(t, "no not enough free memory on "+gpu[:20])
	for _, want := range []string{"requested 7GiB, available 6GiB (of 24GiB shareable, 24GiB total)",
		fmt.Sprintf("leases: process %d (hold 8) 8GiB, process %d (hold 5) 5GiB, process %d (hold 5) 5GiB", started, a.Process.Pid, a.Process.Pid),
		"ask for at most 6GiB, wait for room, or end one of these programs"} {
		if !strings.Contains(strings.ReplaceAll(no, " GiB", "GiB"), want) {
			t.Errorf("%s\nlacks %q", no, want)
		}
	}
	c.end(t)
	all := listed(t, r)
	if len(all) != 3 || all[0].UID != os.Getuid() || all[0].State != Holds || all[0].Device != gpu || time.Since(all[0].Since) > time.Minute {
		t.Errorf("listed: %+v", all)
	}
	a.end(t)
	d := start(t, "hold", r.r.Dir(), gpu, 16, 1, "")
	d.said(t, "have")
	if e := start(t, "hold", r.r.Dir(), gpu, 25, 1, "wait"); !strings.Contains(e.said(t, "no"), "more than can ever be shared here") {
		t.Error("25 of 24 GiB and no word of that")
	}
	d.end(t)
	b.end(t)
	if all := files(t, r); len(all) != 0 {
		t.Errorf("left: %q", all)
	}
}

// TestInherited: the launcher is killed, its program goes on, and the lease with
// it. Memory of the program still counts for the lease.
func TestInherited(t *testing.T) {
	r, gpu := newGPU(t)
	a := start(t, "launch", r.r.Dir(), gpu, 10, 1, "")
	program := pid(t, a.said(t, "started"))
	a.kill(t)
	if all := listed(t, r); len(all) != 1 || all[0].PID != program {
		t.Fatalf("listed: %+v", all)
	}
	b := start(t, "hold", r.r.Dir(), gpu, 14, 1, "")
	b.said(t, "have")
	start(t, "hold", r.r.Dir(), gpu, 1, 1, "").said(t, "no")
	b.end(t)
	c := start(t, "hold", r.r.Dir(), gpu, 24, 1, "wait")
	c.said(t, "place 0")
	must(t, syscall.Kill(program, syscall.SIGKILL))
	c.said(t, "have")
	c.end(t)
}

// TestOrder: 20 wait, each for all there is, and get it in the order in which
// they came; three of them are killed meanwhile.
func TestOrder(t *testing.T) {
	r, gpu := newGPU(t)
	first := start(t, "hold", r.r.Dir(), gpu, 24, 1, "")
	first.said(t, "have")
	var queue []*child
	for i := range 20 {
		c := start(t, "hold", r.r.Dir(), gpu, 24, 1, "wait")
		c.said(t, fmt.Sprint("place ", i))
		queue = append(queue, c)
	}
	for i, e := range listed(t, r)[1:] {
		if e.State != Waits || e.Place != i || e.PID != queue[i].Process.Pid || e.Bytes != 24*gib || e.Stopped {
			t.Errorf("%d is listed as %+v", i, e)
		}
	}
	start(t, "hold", r.r.Dir(), gpu, 1, 1, "").said(t, "no")
	first.end(t)
	for i, c := range queue {
		if i == 5 || i == 6 || i == 19 {
			c.kill(t)
			continue
		}
		for line := c.line(); !strings.HasPrefix(line, "have"); line = c.line() {
			if !strings.HasPrefix(line, "place") {
				t.Fatalf("%d says %q; %s", i, line, &c.errs)
			}
		}
		for _, e := range listed(t, r) {
			if e.State == Holds && e.PID != c.Process.Pid {
				t.Fatalf("%d has it, and so has %+v", i, e)
			}
		}
		c.end(t)
	}
	eventually(t, "nothing is left", func() bool { return len(listed(t, r)) == 0 })
}

// TestStopped: a waiter that is stopped is passed over and named, and is first
// again once it goes on.
func TestStopped(t *testing.T) {
	t.Parallel()
	r, gpu := newGPU(t)
	holder := start(t, "hold", r.r.Dir(), gpu, 20, 1, "")
	holder.said(t, "have")
	stopped := start(t, "hold", r.r.Dir(), gpu, 24, 1, "wait")
	stopped.said(t, "place 0")
	behind := start(t, "hold", r.r.Dir(), gpu, 4, 1, "wait")
	behind.said(t, "place 1")
	for stoppedOutsideTheLock := false; !stoppedOutsideTheLock; {
		stopped.signal(t, syscall.SIGSTOP)
		ctx, cancel := context.WithTimeout(background, 200*time.Millisecond)
		g, err := r.r.GPU(gpu).Lock(ctx, nil)
		cancel()
		if stoppedOutsideTheLock = err == nil; err == nil {
			g.Unlock()
		} else {
			stopped.signal(t, syscall.SIGCONT)
		}
	}
	behind.said(t, "have")
	no := start(t, "hold", r.r.Dir(), gpu, 4, 1, "").said(t, "no")
	if want := fmt.Sprintf("process %d is stopped: continue it (kill -CONT %[1]d)", stopped.Process.Pid); !strings.Contains(no, want) {
		t.Errorf("%s\nlacks %q", no, want)
	}
	stopped.signal(t, syscall.SIGCONT)
	eventually(t, "it runs again", func() bool {
		for _, e := range listed(t, r) {
			if e.State == Waits && !e.Stopped {
				return true
			}
		}
		return false
	})
	holder.end(t)
	start(t, "hold", r.r.Dir(), gpu, 4, 1, "").said(t, "no") // it is the turn of the one that was stopped
	behind.end(t)
	stopped.said(t, "have")
}

// TestLockTaken: somebody is stopped under the GPU's lock. The others give up
// and name it.
func TestLockTaken(t *testing.T) {
	defer func(old time.Duration) { registry.Patience = old }(registry.Patience)
	registry.Patience = 20 * time.Millisecond
	r, gpu := newGPU(t)
	g, err := r.r.GPU(gpu).Lock(t.Context(), nil)
	must(t, err)
	q := Request{Device: gpu, Meter: simulated(gpu)}
	if _, err := r.Acquire(t.Context(), q); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint("kill -CONT ", os.Getpid())) {
		t.Errorf("the lock is taken: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Acquire(ctx, q); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	g.Unlock()
	leases, err := r.Acquire(t.Context(), q)
	must(t, err)
	must(t, leases[0].Close())
}

// TestCancel: one that waits is told to stop; it leaves the queue.
func TestCancel(t *testing.T) {
	r, gpu := newGPU(t)
	q := Request{Device: gpu, Meter: simulated(gpu)}
	leases, err := r.Acquire(t.Context(), q)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	q.Wait = func(p Position) {
		if p.Place != 0 || p.Missing != 24*gib || len(p.Why.Holders) != 1 {
			t.Errorf("%+v", p)
		}
		cancel()
	}
	_, err = r.Acquire(ctx, q)
	var no *InsufficientMemoryError
	if !errors.Is(err, context.Canceled) || !errors.As(err, &no) || no.Want != 24*gib || no.Free != 0 {
		t.Errorf("%v", err)
	}
	if all := listed(t, r); len(all) != 1 || all[0].ID != leases[0].ID() {
		t.Errorf("listed: %+v", all)
	}
	must(t, leases[0].Close())
	must(t, leases[0].Close())
	if err := leases[0].Tell(os.Getpid()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("tell after close: %v", err)
	}
}

// TestLease: what a lease tells, and who it is for.
func TestLease(t *testing.T) {
	r, gpu := newGPU(t)
	leases, err := r.Acquire(t.Context(), Request{Device: gpu, Meter: simulated(gpu), Share: 0.25, Copies: 3, Command: []string{"python", "a.py"}})
	must(t, err)
	for _, l := range leases {
		if l.Bytes() != 6*gib || l.Device() != gpu || len(l.ID()) != 16 || l.File() == nil {
			t.Errorf("%+v", l)
		}
	}
	must(t, leases[0].Tell(os.Getppid()))
	if err := leases[1].Tell(1 << 30); err == nil {
		t.Error("told of a process that is none")
	}
	n := 0
	for _, e := range listed(t, r) {
		if e.PID == os.Getppid() {
			n++
		}
		if strings.Join(e.Command, " ") != "python a.py" {
			t.Errorf("%+v", e)
		}
	}
	if n != 1 {
		t.Errorf("%d leases are for the parent", n)
	}
	for _, l := range leases {
		must(t, l.Close())
	}
	if all := files(t, r); len(all) != 0 {
		t.Errorf("left: %q", all)
	}
}

// TestSettling: memory of a program that was killed becomes free later. Who asks
// meanwhile is not refused, nor given what is not free yet.
func TestSettling(t *testing.T) {
	r, err := Open(t.TempDir())
	must(t, err)
	calls := 0
	m := meterFunc(func() device.Status {
		st := device.Status{Info: device.Info{Total: 100}, Free: 100}
		if calls++; calls > 1 && calls < 8 {
			st.Free = 20
		}
		st.Used = st.Total - st.Free
		return st
	})
	q := Request{Device: "x", Meter: m, Bytes: 60}
	a, err := r.Acquire(t.Context(), q)
	must(t, err)
	must(t, a[0].File().Close()) // as if killed
	b, err := r.Acquire(t.Context(), q)
	must(t, err)
	if calls != 9 {
		t.Errorf("given after %d questions; the eighth answer was the first with room", calls)
	}
	must(t, b[0].Close())
}

type meterFunc func() device.Status

func (f meterFunc) Status() (device.Status, error) { return f(), nil }

// TestRequests that make no sense, and meters that do not answer.
func TestRequests(t *testing.T) {
	r, err := Open(t.TempDir())
	must(t, err)
	m := meterFunc(func() device.Status { return device.Status{Info: device.Info{Total: 100}, Free: 100} })
	lost := errors.New("the GPU is lost")
	for _, tc := range []struct {
		name string
		q    Request
		want string
	}{
		{"no device", Request{Meter: m}, "key"},
		{"a long device", Request{Meter: m, Device: strings.Repeat("x", 513)}, "513 bytes"},
		{"a device that is no text", Request{Meter: m, Device: "\xff"}, "text"},
		{"no meter", Request{Device: "x"}, "no meter"},
		{"both", Request{Device: "x", Meter: m, Bytes: 1, Share: 1}, "one of them"},
		{"a large share", Request{Device: "x", Meter: m, Share: 1.5}, "share 1.5"},
		{"a negative share", Request{Device: "x", Meter: m, Share: -1}, "share -1"},
		{"negative copies", Request{Device: "x", Meter: m, Copies: -1}, "-1 copies"},
		{"many copies", Request{Device: "x", Meter: m, Copies: 1025}, "1025 copies"},
		{"far too much", Request{Device: "x", Meter: m, Bytes: 1 << 63, Copies: 2}, "ask for less"},
		{"all is reserved", Request{Device: "x", Meter: m, Reserve: 100, Wait: func(Position) {}}, "take a smaller --reserve"},
		{"a meter that fails", Request{Device: "x", Meter: failing{lost}}, "the GPU is lost"},
		{"one that knows nothing", Request{Device: "x", Meter: meterFunc(func() device.Status {
			return device.Status{Info: device.Info{Total: 100}, Notes: []string{"no NVML"}}
		})}, "no NVML"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := r.Acquire(t.Context(), tc.q); err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

type failing struct{ err error }

func (f failing) Status() (device.Status, error) { return device.Status{}, f.err }

// TestLedgerEndsWithItsLease: the file is listed with the lease and removed with it. One
// whose lease has lost its files is removed by the next request, unless a program of the
// lease lives.
func TestLedgerEndsWithItsLease(t *testing.T) {
	r, gpu := newGPU(t)
	request := Request{Device: gpu, Meter: simulated(gpu), Bytes: gib}
	take := func() *Lease {
		leases, err := r.Acquire(background, request)
		must(t, err)
		return leases[0]
	}
	l := take()
	if all := listed(t, r); len(all) != 1 || all[0].Ledger != "" {
		t.Errorf("without one: %+v", all)
	}
	must(t, os.WriteFile(l.Ledger(), nil, 0o600))
	if all := listed(t, r); len(all) != 1 || all[0].Ledger != l.Ledger() {
		t.Errorf("with one: %+v", all)
	}
	must(t, l.Close())
	for _, lives := range []bool{true, false} {
		orphan := leaseGPU(r, l).Path("00000000000000ab", registry.LedgerKind)
		f, err := os.Create(orphan)
		must(t, err)
		if lives {
			must(t, ofd.Lock{FD: f.Fd()}.Try(ofd.Write))
		} else {
			f.Close()
		}
		must(t, take().Close())
		if _, err := os.Lstat(orphan); (err == nil) != lives {
			t.Errorf("a program lives: %t, and %v", lives, err)
		}
		f.Close()
	}
	if all := files(t, r); len(all) != 0 {
		t.Errorf("left: %q", all)
	}
}

// TestNoRoomText: one line, whatever others call their programs.
func TestNoRoomText(t *testing.T) {
	e := &InsufficientMemoryError{Device: "GPU-1", Want: 12 * gib, Copies: 2, Total: 24 * gib, Shareable: 20 * gib, Free: 4 * gib, Display: gib, Reserve: 2 * gib,
		Ahead: []Entry{{PID: 5, State: Waits, Bytes: gib, Command: []string{"x"}}}, Foreign: []device.Process{{PID: 9, Name: "game", Known: true, Used: gib}, {PID: 8}}, Waited: context.DeadlineExceeded, After: 1010 * time.Millisecond}
	for i := range 10 {
		e.Holders = append(e.Holders, Entry{PID: 100 + i, Bytes: gib, Command: []string{"a\x1b[2J\nb", strings.Repeat("y", 100)}, Over: 2 * gib})
	}
	got := e.Error()
	for _, want := range []string{"requested 12GiB (2 x 6GiB), available 4GiB (of 20GiB shareable, 24GiB total; 1GiB for the display and 2GiB in reserve)",
		`process 100 ("a\x1b[2J\nb yyy`, "and 2 more", "waiting before: process 5 (x) 1GiB", "without a lease: process 9 (game) 1GiB, process 8 of unknown size", "wait for a turn", "gave up after 1s", "1GiB (and holds 2GiB more than it has)"} {
		if !strings.Contains(strings.ReplaceAll(got, " GiB", "GiB"), want) {
			t.Errorf("%s\nlacks %q", got, want)
		}
	}
	if strings.ContainsAny(got, "\n\x1b") || strings.Contains(got, "process 108") {
		t.Errorf("%q", got)
	}
}
