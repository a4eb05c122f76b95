package shared

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gpumem/device"
	"gpumem/internal/crashpoint"
	"gpumem/internal/ofd"
)

// A scenario is one call that a process can be killed in. prepare runs before;
// what it opens stays open. call runs with the hook set.
type scenario struct {
	name    string
	prepare func(path string) (*File, error)
	call    func(f *File, path string) error
}

var scenarios = []scenario{
	{"open", nil, func(_ *File, path string) error { _, err := Open(path); return err }},
	{"open after a death", died, func(_ *File, path string) error { _, err := Open(path); return err }},
	{"take", attached, func(f *File, _ string) error { return f.Take(0, 300) }},
	{"take what the dead hold", died, func(f *File, _ string) error { return f.Take(0, 700) }},
	{"take after a killed take", diedInside, func(f *File, _ string) error { return f.Take(0, 300) }},
	{"take too much", attached, func(f *File, _ string) error {
		if err := f.Take(0, 801); err != device.ErrOutOfMemory {
			return fmt.Errorf("take too much: %v", err)
		}
		return nil
	}},
	{"give", attached, func(f *File, _ string) error { return f.Give(0, 30) }},
	{"give all", attached, func(f *File, _ string) error { return f.Give(0, 50) }},
	{"give after a killed take", diedInside, func(f *File, _ string) error { return f.Give(0, 30) }},
	{"free", attached, func(f *File, _ string) error { _, err := f.Free(0); return err }},
	{"free after a death", died, func(f *File, _ string) error { _, err := f.Free(0); return err }},
	{"free after a killed take", diedInside, func(f *File, _ string) error { _, err := f.Free(0); return err }},
	{"processes after a death", died, func(f *File, _ string) error { _, err := f.Processes(0); return err }},
	{"set used", died, func(f *File, _ string) error { return f.SetUsed(0, 77) }},
	{"close", attached, func(f *File, _ string) error { return f.Close() }},
	{"look", died, func(_ *File, path string) error { _, err := Look(path); return err }},
	{"create", nil, func(_ *File, path string) error { return Create(path+".new", []Descriptor{plain()}) }},
}

// attached holds 50 bytes.
func attached(path string) (*File, error) {
	f, err := Open(path)
	if err == nil {
		err = f.Take(0, 50)
	}
	return f, err
}

// died leaves a dead slot that holds 400 bytes.
func died(path string) (*File, error) {
	f, err := attached(path)
	if err != nil {
		return nil, err
	}
	g, err := Open(path)
	if err != nil {
		return nil, err
	}
	return f, errors.Join(g.Take(0, 400), g.Close())
}

// diedInside leaves a dead slot and a sum that does not count.
func diedInside(path string) (*File, error) {
	f, err := died(path)
	if err == nil {
		f.h.img.state.used[0].Store(pack(1))
		f.h.img.state.dirty.Store(1)
	}
	return f, err
}

// childStep PATH SCENARIO STEP SIGNAL: runs a scenario and sends itself the
// signal at that step, having written its name. At the end it writes "done" and
// how many steps there were. It lives until its input ends.
func childStep(args []string) error {
	path := args[0]
	number, _ := strconv.Atoi(args[1])
	last, _ := strconv.Atoi(args[2])
	signal, _ := strconv.Atoi(args[3])
	s := scenarios[number]
	var f *File
	if s.prepare != nil {
		var err error
		if f, err = s.prepare(path); err != nil {
			return err
		}
	}
	steps := 0
	crashpoint.Hook = func(step string) {
		if steps == last {
			fmt.Println(step)
			// A signal to the process may reach another thread, and this one
			// would go on for a moment: to the thread itself.
			runtime.LockOSThread()
			syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.Signal(signal))
			if syscall.Signal(signal) == syscall.SIGKILL {
				select {}
			}
		}
		steps++
	}
	if err := s.call(f, path); err != nil {
		return err
	}
	crashpoint.Hook = nil
	fmt.Println("done", steps)
	os.Stdin.Read(make([]byte, 1))
	return nil
}

// firsts are what a survivor does first after a death. All must see right
// numbers, whatever comes next.
var firsts = []struct {
	name string
	do   func(t *testing.T, f *File, path string)
}{
	{"take and give", func(t *testing.T, f *File, _ string) {
		// 41 to 900 - 100 are free, depending on the step and on whether the
		// dying is dead.
		must(t, f.Take(0, 40))
		must(t, f.Give(0, 40))
	}},
	{"free", func(t *testing.T, f *File, _ string) {
		_, err := f.Free(0)
		must(t, err)
	}},
	{"look", func(t *testing.T, _ *File, path string) { look(t, path) }},
	{"open", func(t *testing.T, _ *File, path string) {
		g := openFile(t, path)
		must(t, g.Take(0, 40))
		must(t, g.Close())
	}},
}

// TestCrashPoints kills a child at every step of every call, in turn. Before it
// is waited for, the survivor sees right numbers, gets all that the dead held,
// and goes on.
func TestCrashPoints(t *testing.T) {
	points := 0
	for i, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			for step := 0; ; step++ {
				ended := false
				for _, first := range firsts {
					path := makeFile(t)
					f := openFile(t, path)
					must(t, f.Take(0, 100))
					c := start(t, "step", path, i, step, int(syscall.SIGKILL))
					said := c.line()
					ended = said == fmt.Sprint("done ", step)
					if ended {
						// One more: killed after the call.
						look(t, path)
						must(t, c.Process.Kill())
					} else if said == "" {
						c.reap(t, true)
					}
					t.Run(fmt.Sprintf("%d %s/%s", step, said, first.name), func(t *testing.T) {
						first.do(t, f, path)
						survive(t, f, path)
					})
					if s.name == "create" {
						madeOrNot(t, path+".new", ended)
					}
					c.reap(t, true)
					f.Close()
				}
				points++
				if ended {
					break
				}
			}
		})
	}
	t.Logf("%d points, each with %d ways to go on", points, len(firsts))
}

// survive: with the child dead but not waited for, f alone holds 100 bytes.
func survive(t *testing.T, f *File, path string) {
	t.Helper()
	var free uint64
	eventually(t, "what the dead held is free", func() bool {
		s := look(t, path)[0]
		got, err := f.Free(0)
		must(t, err)
		free = 1000 - 60 - s.Device.Used - 100
		if got > free || s.Free > free {
			t.Fatalf("free %d, by Look %d: at most %d can be", got, s.Free, free)
		}
		return got == free
	})
	if s := look(t, path)[0]; s.Free != free || len(s.Processes) != 1 {
		t.Errorf("Look says %+v", s)
	}
	if used := look(t, path)[0].Device.Used; used != 40 && used != 77 {
		t.Errorf("others hold %d", used)
	}
	must(t, f.Take(0, free))
	if err := f.Take(0, 1); err != device.ErrOutOfMemory {
		t.Errorf("more than all: %v", err)
	}
	must(t, f.Give(0, free))
	g := openFile(t, path)
	must(t, g.Take(0, free))
	must(t, g.Close())
}

// madeOrNot: a file is there as a whole or not at all.
func madeOrNot(t *testing.T, path string, want bool) {
	t.Helper()
	f, err := Open(path)
	if errors.Is(err, os.ErrNotExist) && !want {
		must(t, Create(path, []Descriptor{plain()}))
		return
	}
	must(t, err)
	must(t, f.Take(0, 900))
	must(t, f.Close())
}

// TestStopped: a child stops under the lock. Who waits is told its pid, and goes
// on once it is continued or killed.
func TestStopped(t *testing.T) {
	defer func(old time.Duration) { patience = old }(patience)
	for _, tc := range []struct {
		name     string
		scenario string
		step     string
		then     syscall.Signal
		nameless bool
	}{
		{"continued", "take", "hold: held", syscall.SIGCONT, false},
		{"killed", "take", "hold: held", syscall.SIGKILL, false},
		{"one that looks, continued", "look", "look: locked", syscall.SIGCONT, true},
		{"one that looks, killed", "look", "look: locked", syscall.SIGKILL, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := makeFile(t)
			f := openFile(t, path)
			c, pid := stopAt(t, path, tc.scenario, tc.step)

			patience = 20 * time.Millisecond
			var errs [9]error
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() { errs[i] = f.Take(0, 1) })
			}
			_, errs[8] = Open(path)
			wg.Wait()
			want := fmt.Sprintf("process %d holds the lock; is it stopped? continue it (kill -CONT %d)", pid, pid)
			if tc.nameless {
				want = "a program that only looks"
			}
			if !tc.nameless {
				_, err := Look(path)
				errs[0] = err
			}
			for i, err := range errs {
				if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), want) {
					t.Errorf("call %d: %v, want %q", i, err, want)
				}
			}

			// Who has waited in this process already waits no longer.
			patience = time.Hour
			if err := f.h.lock(ofd.Write, time.Now().Add(-2*patience)); !errors.Is(err, ErrLocked) {
				t.Errorf("lock, having waited: %v", err)
			}
			must(t, syscall.Kill(pid, tc.then))
			must(t, f.Take(0, 40))
			if tc.then == syscall.SIGCONT {
				if said := c.line(); !strings.HasPrefix(said, "done ") {
					t.Errorf("continued, the child says %q", said)
				}
				look(t, path)
				must(t, c.in.Close())
			}
			must(t, f.Give(0, 40))
			c.reap(t, tc.then == syscall.SIGKILL)
			if n, err := f.Free(0); n != 900 || err != nil {
				t.Errorf("at the end free %d, %v", n, err)
			}
		})
	}
}

// stopAt starts a child that stops itself at the first step of that name.
func stopAt(t *testing.T, path, name, step string) (*child, int) {
	t.Helper()
	for i, s := range scenarios {
		for n := 0; s.name == name; n++ {
			c := start(t, "step", path, i, n, int(syscall.SIGSTOP))
			said := c.line()
			if strings.HasPrefix(said, "done") {
				t.Fatalf("%s has no step %q", name, step)
			}
			pid := c.Process.Pid
			var status syscall.WaitStatus
			if _, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
				t.Fatalf("the child did not stop: %v, %v", status, err)
			}
			if said == step {
				return c, pid
			}
			must(t, c.Process.Kill())
			c.reap(t, true)
		}
	}
	t.Fatalf("no scenario %q", name)
	return nil, 0
}
