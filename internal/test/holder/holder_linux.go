// Package holder makes a test binary hold memory of a shared simulated GPU as another
// program would.
package holder

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"gpumem/device/open"
	"gpumem/device/sim"
)

// envDo makes this test binary another program on a shared GPU:
//
//	hold FILE BYTES [LIBRARY...]    take memory, map libraries, and wait
//	leave FILE BYTES [LIBRARY...]   start one that holds, and wait
//	ready                           wait until one holds
//	stop                            end the one that holds
//
// They meet at the pipes ready and stop in their folder.
const envDo = "GPUMEM_PS_TEST"

func init() {
	do := os.Getenv(envDo)
	if do == "" {
		return
	}
	// A test that has failed leaves no process behind.
	time.AfterFunc(time.Minute, func() { os.Exit(1) })
	if err := child(do, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func child(do string, args []string) error {
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
		// A separate session, as a terminal's is.
		_, _ = syscall.Setsid()
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Args[0] = os.Args[0]
		// Its output is not ours: who waits for ours to end must not wait for it.
		cmd.Env = append(os.Environ(), envDo+"=hold")
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

// Start starts a program that holds 2 MiB of a new shared GPU of 24 GiB, until the test
// ends.
func Start(t testing.TB) (file string, pid int) {
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
	return file, Another(t, dir, file)
}

// Another starts one more on the GPU of file. dir is the folder where it runs, and
// libraries in it are mapped.
func Another(t testing.TB, dir, file string, libraries ...string) int {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(do string, args ...string) *exec.Cmd {
		cmd := exec.Command(self, args...)
		cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), envDo+"="+do), os.Stderr
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
