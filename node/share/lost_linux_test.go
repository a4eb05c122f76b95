package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gpumem/device"
	"gpumem/node/internal/lease"
	"gpumem/node/internal/registry"
)

// wipe removes all files of a registry, and the folder, as a clean-up does. Another
// process, or [Lease.Keep], may write a file there meanwhile: the folder is then not
// empty, which a clean-up tries again.
func wipe(t *testing.T, r *Registry) {
	t.Helper()
	err := os.RemoveAll(r.r.Dir())
	for errors.Is(err, syscall.ENOTEMPTY) {
		err = os.RemoveAll(r.r.Dir())
	}
	must(t, err)
}

// TestRemovedFilesFreeNothing: all files of the registry are removed while a
// program holds a lease, whose launcher is alive, or killed. The lease counts until
// the program has ended, and the refusal names the program.
func TestRemovedFilesFreeNothing(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("launcher killed %t", killed), func(t *testing.T) {
			r, gpu := newGPU(t)
			a := start(t, "launch", r.r.Dir(), gpu, 20, 1, "")
			program := pid(t, a.said(t, "started"))
			if killed {
				a.kill(t)
			}
			wipe(t, r)
			var no *InsufficientMemoryError
			if _, err := take(r, gpu, 5, 1); !errors.As(err, &no) || !strings.Contains(err.Error(), fmt.Sprint("process ", program)) {
				t.Fatalf("5 GiB of the 4 that are left: %v; want a refusal that names process %d", err, program)
			}
			rest, err := take(r, gpu, 4, 1)
			must(t, err)
			all, err := r.List()
			if err != nil || len(all) != 2 || all[0].Bytes+all[1].Bytes != 24*gib {
				t.Errorf("listed: %+v, %v", all, err)
			}
			must(t, syscall.Kill(program, syscall.SIGKILL))
			if !killed {
				a.kill(t)
			}
			again, err := r.Acquire(background, Request{Device: gpu, Meter: simulated(gpu), Bytes: 20 * gib, Wait: func(Position) {}})
			must(t, err)
			for _, l := range append(again, rest...) {
				must(t, l.Close())
			}
			if left := files(t, r); len(left) != 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// TestKeepMakesRemovedFilesAgain: with Keep a lease is listed again with its
// program, counts once, and ends when it is closed.
func TestKeepMakesRemovedFilesAgain(t *testing.T) {
	defer func(old time.Duration) { lease.KeepEvery = old }(lease.KeepEvery)
	lease.KeepEvery = 5 * time.Millisecond
	r, gpu := newGPU(t)
	l, err := take(r, gpu, 8, 1)
	must(t, err)
	must(t, l[0].Tell(os.Getppid()))
	ctx, cancel := context.WithCancel(t.Context())
	var keeping sync.WaitGroup
	keeping.Go(func() { l[0].Keep(ctx) })
	for _, remove := range []func(){
		func() { wipe(t, r) },
		func() { must(t, os.Remove(l[0].Path())) },
		func() { must(t, os.Remove(leaseGPU(r, l[0]).Path(l[0].ID(), registry.LockKind))) },
		func() { wipe(t, r) },
	} {
		remove()
		eventually(t, "the lease is listed again", func() bool {
			all, err := r.List(gpu)
			if errors.Is(err, os.ErrNotExist) {
				return false
			}
			must(t, err)
			return len(all) == 1 && all[0].ID == l[0].ID() && all[0].PID == os.Getppid() && all[0].Bytes == 8*gib
		})
		rest, err := take(r, gpu, 16, 1)
		must(t, err)
		if _, err := take(r, gpu, 1, 1); err == nil {
			t.Error("25 of 24 GiB")
		}
		must(t, rest[0].Close())
	}
	must(t, l[0].Close())
	keeping.Wait() // it ends by itself
	cancel()
	if left := files(t, r); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// TestInheritedFileCannotHarmTheLease: a program writes to the file that it has
// inherited, empties it and enlarges it.
func TestInheritedFileCannotHarmTheLease(t *testing.T) {
	r, gpu := newGPU(t)
	l, err := take(r, gpu, 20, 1)
	must(t, err)
	f := l[0].File()
	_, err = f.WriteString("+++++\n")
	must(t, errors.Join(err, f.Truncate(1<<20), f.Truncate(0)))
	all := listed(t, r)
	if len(all) != 1 || all[0].Bytes != 20*gib || all[0].PID != os.Getpid() {
		t.Errorf("listed: %+v", all)
	}
	if _, err := take(r, gpu, 5, 1); err == nil {
		t.Error("25 of 24 GiB")
	}
	must(t, l[0].Close())
	rest, err := take(r, gpu, 24, 1)
	must(t, err)
	must(t, rest[0].Close())
}

// TestLockFileRemovedUnderADecision: the GPU's lock file is removed, and another
// lock made, while one decides. Its lease is undone and decided anew, so that two
// deciders at once never give more than there is.
func TestLockFileRemovedUnderADecision(t *testing.T) {
	r, gpu := newGPU(t)
	asked := 0
	m := meterFunc(func() device.Status {
		if asked++; asked == 1 {
			must(t, os.Remove(lockFile(r, gpu)))
		}
		st, err := simulated(gpu).Status()
		must(t, err)
		return st
	})
	l, err := r.Acquire(t.Context(), Request{Device: gpu, Meter: m, Bytes: 20 * gib})
	must(t, err)
	if asked < 2 {
		t.Errorf("decided with %d looks; the lock of the first was worth nothing", asked)
	}
	if n := len(files(t, r)); n != 2 {
		t.Errorf("%d files, want the two of one lease", n)
	}
	must(t, l[0].Close())
}

// TestLeaseLivesInADaemon: a program ends and leaves a process with the lease. The
// refusal and the list name that process, and the memory is free with its end.
func TestLeaseLivesInADaemon(t *testing.T) {
	r, gpu := newGPU(t)
	l, err := take(r, gpu, 20, 1)
	must(t, err)
	program := start(t, "step", "nothing") // any process that ends
	must(t, l[0].Tell(program.Process.Pid))
	daemon := command("use", gpu, 20)
	daemon.ExtraFiles = []*os.File{l[0].File()}
	daemon.begin(t).said(t, "uses")
	program.kill(t)
	must(t, l[0].File().Close())
	var no *InsufficientMemoryError
	_, err = take(r, gpu, 5, 1)
	want := fmt.Sprintf("process %d (/proc/self/exe use %s", daemon.Process.Pid, gpu[:10])
	if !errors.As(err, &no) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), fmt.Sprintf("left by process %d that has ended", program.Process.Pid)) {
		t.Errorf("%v\nlacks %q", err, want)
	}
	all := listed(t, r)
	if len(all) != 1 || !all[0].Ended || len(all[0].HeldBy) != 1 || all[0].HeldBy[0].PID != daemon.Process.Pid {
		t.Errorf("listed: %+v", all)
	}
	daemon.kill(t)
	rest, err := take(r, gpu, 24, 1)
	must(t, err)
	must(t, rest[0].Close())
}

// TestNested: a program in a lease asks again. It gets parts of that lease, at once
// and without taking anything, or is refused at once, also with Wait; a GPU on which
// it has no lease is as ever.
func TestNested(t *testing.T) {
	r, gpu := newGPU(t)
	l, err := take(r, gpu, 20, 1)
	must(t, err)
	lease.Taken.Delete(l[0].ID()) // as in a program that it was taken for
	for _, program := range []int{os.Getpid(), os.Getppid()} {
		must(t, l[0].Tell(program))
		if e, ok, err := r.enclosing(gpu); err != nil || !ok || e.ID != l[0].ID() {
			t.Fatalf("inside of the lease of process %d: %+v, %t, %v", program, e, ok, err)
		}
	}
	if e, ok, err := r.enclosing("another GPU"); err != nil || ok {
		t.Errorf("enclosing on another GPU: %+v, %v", e, err)
	}
	for _, tc := range []struct {
		name string
		q    Request
		each uint64 // 0: refused
	}{
		{"a part", Request{Bytes: 5 * gib}, 5 * gib},
		{"all of it", Request{}, 20 * gib},
		{"by share", Request{Share: 1.0 / 3, Copies: 3}, uint64(20*gib) / 3},
		{"copies", Request{Bytes: 10 * gib, Copies: 2}, 10 * gib},
		{"more than it has", Request{Bytes: 21 * gib}, 0},
		{"more in copies", Request{Bytes: 11 * gib, Copies: 2}, 0},
		{"all of one process's part", Request{Parts: map[string]uint64{l[0].ID(): 5 * gib}}, 5 * gib},
		{"more than one process's part", Request{Bytes: 6 * gib, Parts: map[string]uint64{l[0].ID(): 5 * gib}}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := tc.q
			q.Device, q.Meter, q.Nested = gpu, simulated(gpu), true
			q.Wait = func(Position) { t.Error("it waits for its own ancestor") }
			parts, err := r.Acquire(t.Context(), q)
			var no *InsufficientMemoryError
			if tc.each == 0 {
				if !errors.As(err, &no) || no.Inside == nil || !strings.Contains(err.Error(), "runs inside the lease of 20 GiB") {
					t.Errorf("%v", err)
				}
				return
			}
			must(t, err)
			if len(parts) != max(1, q.Copies) || parts[0].Bytes() != tc.each || parts[0].Within() != 20*gib || parts[0].File() != nil || parts[0].Path() != l[0].Path() {
				t.Errorf("%d parts of %d bytes; want %d", len(parts), parts[0].Bytes(), tc.each)
			}
			for _, p := range parts {
				must(t, errors.Join(p.Tell(os.Getpid()), p.Close()))
			}
			if all := listed(t, r); len(all) != 1 {
				t.Errorf("listed: %+v", all)
			}
		})
	}
	// A lease that this process took is no enclosing one.
	lease.Taken.Store(l[0].ID(), true)
	if e, ok, _ := r.enclosing(gpu); ok {
		t.Errorf("this process is inside of its own lease %+v", e)
	}
	must(t, l[0].Close())
}

// TestEnclosingByInheritedLock: a process that its ancestors have lost, such as a
// daemon, is inside of the lease whose lock it has.
func TestEnclosingByInheritedLock(t *testing.T) {
	r, gpu := newGPU(t)
	l, err := take(r, gpu, 20, 1)
	must(t, err)
	stranger := start(t, "step", "nothing")
	must(t, l[0].Tell(stranger.Process.Pid))
	if e, ok, err := r.enclosing(gpu); err != nil || ok {
		t.Errorf("a lease that this process took: %+v, %v", e, err)
	}
	lease.Taken.Delete(l[0].ID())
	if e, ok, err := r.enclosing(gpu); err != nil || !ok || e.ID != l[0].ID() {
		t.Errorf("with the lock: %+v, %t, %v", e, ok, err)
	}
	must(t, l[0].Close())
	stranger.kill(t)
}

// TestNamedFiles: the same where the file system cannot make files without a name.
func TestNamedFiles(t *testing.T) {
	registry.NamedOnly = true
	defer func() { registry.NamedOnly = false }()
	r, gpu := newGPU(t)
	a, err := take(r, gpu, 8, 2)
	must(t, err)
	if _, err := take(r, gpu, 9, 1); err == nil {
		t.Error("25 of 24 GiB")
	}
	for _, l := range a {
		must(t, l.Close())
	}
	if left := files(t, r); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// TestReadLease: a program reads the record of its lease.
func TestReadLease(t *testing.T) {
	r, gpu := newGPU(t)
	l, err := take(r, gpu, 8, 1)
	must(t, err)
	if e, err := ReadLease(l[0].Path()); err != nil || e.Bytes != 8*gib || e.Device != gpu || e.ID != l[0].ID() {
		t.Errorf("%+v, %v", e, err)
	}
	must(t, os.WriteFile(l[0].Path(), []byte("x"), 0o644))
	if _, err := ReadLease(l[0].Path()); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), l[0].Path()) {
		t.Errorf("damaged: %v", err)
	}
	must(t, l[0].Close())
	if _, err := ReadLease(l[0].Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("gone: %v", err)
	}
}

// TestCloseDoesNotWaitForKeepOrTell: both wait for the GPU's lock, which a stopped
// process has. Close ends the lease all the same.
func TestCloseDoesNotWaitForKeepOrTell(t *testing.T) {
	defer func(old time.Duration) { registry.Patience = old }(registry.Patience)
	registry.Patience = time.Hour
	defer func(old time.Duration) { lease.KeepEvery = old }(lease.KeepEvery)
	lease.KeepEvery = time.Millisecond
	for name, wait := range map[string]func(*Lease){
		"keep": func(l *Lease) { l.Keep(background) },
		"tell": func(l *Lease) { _ = l.Tell(os.Getpid()) },
	} {
		t.Run(name, func(t *testing.T) {
			r, gpu := newGPU(t)
			l, err := take(r, gpu, 8, 1)
			must(t, err)
			g, err := r.r.GPU(gpu).Lock(t.Context(), nil)
			must(t, err)
			must(t, os.Remove(l[0].Path()))
			info, err := os.Stat(lockFile(r, gpu))
			must(t, err)
			var waits sync.WaitGroup
			waits.Go(func() { wait(l[0]) })
			eventually(t, "it waits for the lock", func() bool {
				table, err := os.ReadFile("/proc/locks")
				must(t, err)
				for line := range strings.Lines(string(table)) {
					if strings.Contains(line, "-> OFDLCK") && strings.Contains(line, fmt.Sprintf(":%d ", registry.IDOf(info).Inode)) {
						return true
					}
				}
				return false
			})
			closed := make(chan error)
			go func() { closed <- l[0].Close() }()
			select {
			case err := <-closed:
				must(t, err)
			case <-time.After(20 * time.Second):
				t.Fatal("Close waits for who waits for the GPU's lock")
			}
			if all := listed(t, r); len(all) != 0 {
				t.Errorf("listed: %+v; want that the lease has ended", all)
			}
			g.Unlock()
			waits.Wait() // they find it closed
			if all := listed(t, r); len(all) != 0 {
				t.Errorf("listed: %+v", all)
			}
		})
	}
}

// TestDroppedLeaseStays: a program that forgets its lease has it until it ends.
func TestDroppedLeaseStays(t *testing.T) {
	noMovement(t)
	r, gpu := newGPU(t)
	l, err := take(r, gpu, 24, 1)
	must(t, err)
	id := l[0].ID()
	l = nil
	for range 3 {
		runtime.GC()
		cleaned := make(chan bool)
		runtime.AddCleanup(new([16]byte), func(c chan bool) { close(c) }, cleaned)
		runtime.GC()
		<-cleaned // those of the lease's file ran before or run now
	}
	if all := listed(t, r); len(all) != 1 || all[0].ID != id {
		t.Fatalf("listed: %+v", all)
	}
	if _, err := take(r, gpu, 1, 1); err == nil {
		t.Error("its memory is given again")
	}
	kept, _ := lease.Taken.Load(id)
	must(t, kept.(*Lease).Close())
}
