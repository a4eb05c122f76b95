package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	gpu "gpumem/device"
	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/internal/proc"
	"gpumem/share"
)

// psDo makes this test binary another program on a shared GPU:
//
//	hold FILE BYTES [LIBRARY...]    take memory, map libraries, and wait
//	leave FILE BYTES [LIBRARY...]   start one that holds, and wait
//	ready                           wait until one holds
//	stop                            end the one that holds
//
// They meet at the pipes ready and stop in their folder.
const psDo = "GPUMEM_PS_TEST"

func init() {
	do := os.Getenv(psDo)
	if do == "" {
		return
	}
	// A test that has failed leaves nobody behind.
	time.AfterFunc(time.Minute, func() { os.Exit(1) })
	if err := psChild(do, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func psChild(do string, args []string) error {
	// Opening a pipe waits for the other end.
	meet := func(name string, flag int) error {
		if err := syscall.Mkfifo(name, 0o600); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		f, err := os.OpenFile(name, flag, 0)
		if err != nil {
			return err
		}
		return f.Close()
	}
	switch do {
	case "ready":
		return meet("ready", os.O_RDONLY)
	case "stop":
		return meet("stop", os.O_WRONLY)
	case "leave":
		// A session of its own, as a terminal's is.
		_, _ = syscall.Setsid()
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Args[0] = os.Args[0]
		// Its output is not ours: who waits for ours to end must not wait for it.
		cmd.Env = append(os.Environ(), psDo+"=hold")
		return cmd.Run()
	}
	d, err := sim.Join(args[0], 0, sim.Config{})
	if err != nil {
		return err
	}
	bytes, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	if _, err := d.Alloc(bytes); err != nil {
		return err
	}
	for _, library := range args[2:] {
		f, err := os.Open(library)
		if err != nil {
			return err
		}
		if _, err := syscall.Mmap(int(f.Fd()), 0, 1, syscall.PROT_READ, syscall.MAP_PRIVATE); err != nil {
			return err
		}
	}
	if err := meet("ready", os.O_WRONLY); err != nil {
		return err
	}
	return meet("stop", os.O_RDONLY)
}

// hold starts a program that holds memory of a new shared GPU, until the test
// ends.
func hold(t testing.TB) (file string, pid int) {
	t.Helper()
	dir := t.TempDir()
	file = filepath.Join(dir, "gpu")
	spec, err := open.Parse("sim@" + file + ",total=24GiB,create")
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Make(); err != nil {
		t.Fatal(err)
	}
	return file, another(t, dir, file)
}

func another(t testing.TB, dir, file string, libraries ...string) int {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(do string, args ...string) *exec.Cmd {
		cmd := exec.Command(self, args...)
		cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), psDo+"="+do), os.Stderr
		return cmd
	}
	cmd := run("hold", append([]string{file, "1048576"}, libraries...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if err := run("ready").Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// TestPsLeases: a program is under its own lease or that of one it descends
// from; leases without memory, and those who wait, are shown.
func TestPsLeases(t *testing.T) {
	file, pid := hold(t)
	defer func(f func([]string) ([]share.Entry, error)) { psLeases = f }(psLeases)
	key := deviceKey(meterOf(t, file).listed(t))
	look, err := psLooker([]string{"sim@" + file})
	if err != nil {
		t.Fatal(err)
	}
	of := func(pid int, bytes uint64) share.Entry {
		e := entryOf(t, pid)
		e.Device, e.Bytes = key, bytes
		return e
	}
	for _, tc := range []struct {
		name   string
		leases []share.Entry
		lease  uint64 // of the program
		others int    // rows
		waits  int
	}{
		{"none", nil, 0, 0, 0},
		{"its own", []share.Entry{of(pid, 5)}, 5, 0, 0},
		{"two", []share.Entry{of(pid, 5), of(pid, 6)}, 11, 0, 0},
		{"its parent's", []share.Entry{of(os.Getpid(), 7)}, 7, 0, 0},
		{"of another device", []share.Entry{{Device: "GPU-1", PID: pid, Bytes: 5}}, 0, 0, 0},
		{"one that had its number before", []share.Entry{{Device: key, PID: pid, Start: 1, Namespace: of(pid, 5).Namespace, Bytes: 5}}, 0, 1, 0},
		{"one with its number in a container", []share.Entry{{Device: key, PID: pid, Start: of(pid, 5).Start, Namespace: 1, Elsewhere: true, Bytes: 5}}, 0, 1, 0},
		{"left to it by one that has ended", []share.Entry{{Device: key, PID: 1 << 30, Ended: true, Bytes: 5, HeldBy: []share.Holder{{PID: pid}}}}, 5, 0, 0},
		{"one that holds nothing yet", []share.Entry{of(pid, 5), {Device: key, PID: 1 << 30, Bytes: 8}, {Device: key, Bytes: 9}, {Device: key, Bytes: 9}}, 5, 3, 0},
		{"those who wait", []share.Entry{{Device: key, PID: pid, Bytes: 5, State: share.Waits}, {Device: key, PID: 9, Bytes: 5, State: share.Waits, Place: 1}}, 0, 0, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			psLeases = func([]string) ([]share.Entry, error) { return tc.leases, nil }
			state, err := look()
			if err != nil {
				t.Fatal(err)
			}
			d := state.devices[0]
			if len(d.programs) != 1+tc.others || len(d.waiting) != tc.waits {
				t.Fatalf("%+v", d)
			}
			got := uint64(0)
			if l := d.programs[0].lease; l != nil {
				got = l.Bytes
			}
			if d.programs[0].PID != pid || d.programs[0].info == nil || got != tc.lease {
				t.Errorf("%+v", d.programs[0])
			}
		})
	}
	psLeases = func([]string) ([]share.Entry, error) { return nil, errors.New("damaged") }
	if state, err := look(); err != nil || len(state.notes) != 1 || len(state.devices[0].programs) != 1 {
		t.Errorf("%+v, %v", state, err)
	}
}

// entryOf is a lease of a process, as the registry has it.
func entryOf(t *testing.T, pid int) share.Entry {
	t.Helper()
	r, err := share.Open(filepath.Join(t.TempDir(), "registry"))
	if err != nil {
		t.Fatal(err)
	}
	leases, err := r.Acquire(t.Context(), share.Request{Device: "x", Meter: psFree{}, Bytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer leases[0].Close()
	if err := leases[0].Tell(pid); err != nil {
		t.Fatal(err)
	}
	list, err := r.List()
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	return list[0]
}

// psFree is a GPU that nobody uses.
type psFree struct{}

func (psFree) Status() (gpu.Status, error) {
	return gpu.Status{Info: gpu.Info{Total: 100}, Free: 100}, nil
}

// TestPsSharedLease: several programs use a GPU under one lease, which is said.
func TestPsSharedLease(t *testing.T) {
	file, pid := hold(t)
	second := another(t, filepath.Dir(file), file)
	defer func(f func([]string) ([]share.Entry, error)) { psLeases = f }(psLeases)
	e := entryOf(t, os.Getpid())
	e.Device, e.Bytes = deviceKey(meterOf(t, file).listed(t)), 1<<20
	psLeases = func([]string) ([]share.Entry, error) { return []share.Entry{e}, nil }
	look, err := psLooker([]string{"sim@" + file})
	if err != nil {
		t.Fatal(err)
	}
	state, err := look()
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("  the lease of process %d: 2 programs under it hold 4 MiB together, 3 MiB more than its 1 MiB; gpumem run --procs 2 divides it\n", os.Getpid())
	if text := psText(state, 0); strings.Count(text, want) != 1 {
		t.Errorf("%s\nlacks %q once; the programs are %d and %d", text, want, pid, second)
	}
	var b strings.Builder
	if err := writePsJSON(&b, state); err != nil || strings.Count(b.String(), `"lease_programs": 2`) != 2 {
		t.Errorf("%v: %s", err, &b)
	}
}

// TestPsRegistry: the leases are those of the machine's registry.
func TestPsRegistry(t *testing.T) {
	file, pid := hold(t)
	t.Setenv(share.EnvDir, filepath.Join(t.TempDir(), "run"))
	r, err := share.Open("")
	if err != nil {
		t.Fatal(err)
	}
	m := meterOf(t, file)
	leases, err := r.Acquire(t.Context(), share.Request{Device: deviceKey(m.listed(t)), Meter: m, Bytes: 3 << 30, Command: []string{"mine"}})
	if err != nil {
		t.Fatal(err)
	}
	defer leases[0].Close()
	if err := leases[0].Tell(pid); err != nil {
		t.Fatal(err)
	}
	look, err := psLooker([]string{"sim@" + file})
	if err != nil {
		t.Fatal(err)
	}
	state, err := look()
	if err != nil || len(state.notes) > 0 {
		t.Fatal(err, state)
	}
	d := state.devices[0]
	if len(d.programs) != 1 || d.programs[0].PID != pid || d.programs[0].lease == nil || d.programs[0].lease.Bytes != 3<<30 || d.leased != 3<<30 {
		t.Errorf("%+v", d)
	}
}

// psMeter is a shared GPU.
type psMeter struct{ spec open.Spec }

func meterOf(t testing.TB, file string) psMeter {
	t.Helper()
	spec, err := open.Parse("sim@" + file)
	if err != nil {
		t.Fatal(err)
	}
	return psMeter{spec}
}

func (m psMeter) listed(t testing.TB) open.Listed {
	t.Helper()
	list, err := m.spec.Status()
	if err != nil {
		t.Fatal(err)
	}
	return list[0]
}

func (m psMeter) Status() (gpu.Status, error) {
	list, err := m.spec.Status()
	if err != nil {
		return gpu.Status{}, err
	}
	return list[0].Status, nil
}

// TestPsNotTold: a number that is another program's here is no program of the
// GPU's.
func TestPsNotTold(t *testing.T) {
	self, err := proc.Look(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name      string
		process   gpu.Process
		simulated bool
		why       string
	}{
		{"it", gpu.Process{PID: self.PID, Name: self.Name}, true, ""},
		{"no name", gpu.Process{PID: self.PID}, true, ""},
		{"another name", gpu.Process{PID: self.PID, Name: "python3"}, true, "its number is another one's here"},
		{"ended", gpu.Process{PID: 1 << 30, Name: self.Name}, true, "there is no such process"},
		{"a GPU's driver, which this program does not use", gpu.Process{PID: self.PID, Name: self.Name}, false, "no GPU open"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !tc.simulated && proc.HostPIDs() {
				t.Skip("numbers are the machine's here")
			}
			s := &psState{}
			s.fill([]open.Listed{{Status: gpu.Status{Info: gpu.Info{Simulated: tc.simulated}, Processes: []gpu.Process{tc.process}}}}, nil)
			p := s.devices[0].programs[0]
			if (p.info == nil) != (tc.why != "") || !strings.Contains(p.why, tc.why) || p.PID != tc.process.PID {
				t.Errorf("%+v", p)
			}
		})
	}
}

// BenchmarkPs is ps with 100 programs.
func BenchmarkPs(b *testing.B) {
	file, _ := hold(b)
	for range 99 {
		another(b, filepath.Dir(file), file)
	}
	b.Setenv(share.EnvDir, b.TempDir())
	look, err := psLooker([]string{"sim@" + file})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		state, err := look()
		if err != nil || len(state.devices[0].programs) != 100 {
			b.Fatal(state, err)
		}
		if _, err := io.WriteString(io.Discard, psText(state, 0)); err != nil {
			b.Fatal(err)
		}
	}
}

// TestPsHook: of the programs of a lease those are named whose environment lacks the
// Python hook, such as one with a PYTHONPATH that replaces that of gpumem run.
func TestPsHook(t *testing.T) {
	hook := t.TempDir()
	if err := os.WriteFile(filepath.Join(hook, "gpumem_hook.py"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	defer func(f func([]string) ([]share.Entry, error)) { psLeases = f }(psLeases)
	for _, tc := range []struct {
		name, path string
		leased     bool
		named      bool
		json       string // "": none
	}{
		{"with the hook", "/x:" + hook, true, false, `"hooked": true`},
		{"another path", "/x", true, true, `"hooked": false`},
		{"another path and no lease", "/x", false, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("PYTHONPATH", tc.path)
			file, pid := hold(t)
			psLeases = func([]string) ([]share.Entry, error) {
				if !tc.leased {
					return nil, nil
				}
				e := entryOf(t, pid)
				e.Device, e.Bytes = deviceKey(meterOf(t, file).listed(t)), 1<<20
				return []share.Entry{e}, nil
			}
			look, err := psLooker([]string{"sim@" + file})
			if err != nil {
				t.Fatal(err)
			}
			state, err := look()
			if err != nil {
				t.Fatal(err)
			}
			if state.devices[0].programs[0].info.Container != "" {
				t.Skip("skipped: in a container the hook's folder is not told")
			}
			line := fmt.Sprintf("process %d: its environment lacks the Python hook", pid)
			if text := psText(state, 0); strings.Contains(text, line) != tc.named {
				t.Errorf("%s\nhas %q: %t, want %t", text, line, !tc.named, tc.named)
			}
			var b strings.Builder
			err = writePsJSON(&b, state)
			if tc.json == "" && strings.Contains(b.String(), `"hooked"`) || !strings.Contains(b.String(), tc.json) || err != nil {
				t.Errorf("%v: %s\nlacks %q", err, &b, tc.json)
			}
		})
	}
}
