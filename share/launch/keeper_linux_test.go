package launch

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// eventually waits until something holds, which is a matter of milliseconds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for begin := time.Now(); !holds(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("never: %s", what)
		}
	}
}

// kept starts "closes" in a lease with a keeper. The file is the program's standard
// input; the program ends when it is closed.
func kept(t *testing.T, env ...string) (*exec.Cmd, *os.File) {
	t.Helper()
	cmd := launcher(t, os.Args[0], "closes")
	cmd.Env = append(os.Environ(), "LAUNCH_KEEPER="+os.Args[0]+" keep", "XDG_CACHE_HOME="+t.TempDir())
	cmd.Env = append(cmd.Env, env...)
	in, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stderr = in, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	t.Cleanup(func() { held.Close(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "closed\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return cmd, held
}

// keepersOf returns the processes that keep a program.
func keepersOf(pid int) []int {
	var list []int
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		text, _ := os.ReadFile(name)
		if args := strings.Split(string(text), "\x00"); len(args) > 2 && args[1] == "keep" && args[2] == strconv.Itoa(pid) {
			keeper, _ := strconv.Atoi(strings.Split(name, "/")[2])
			list = append(list, keeper)
		}
	}
	return list
}

// TestKeeperHoldsLeaseOfProgramThatClosedIt: sudo and daemons close every descriptor;
// their memory would be given to others.
func TestKeeperHoldsLeaseOfProgramThatClosedIt(t *testing.T) {
	cmd, in := kept(t)
	eventually(t, "the lease is held", func() bool { return locked(t, cmd) })
	keepers := keepersOf(cmd.Process.Pid)
	if len(keepers) != 1 {
		t.Fatalf("keepers %v", keepers)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", keepers[0]))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if parent, session := fields[1], fields[3]; parent == strconv.Itoa(cmd.Process.Pid) || session == strconv.Itoa(syscall.Getpgrp()) {
		t.Errorf("the keeper's parent is %s, its session %s", parent, session)
	}
	if err := syscall.Kill(keepers[0], syscall.SIGTERM); err != nil { // as a service that is stopped
		t.Fatal(err)
	}
	in.Close()
	_ = cmd.Wait()
	eventually(t, "the lease has ended", func() bool { return !locked(t, cmd) })
	eventually(t, "the keeper has ended", func() bool { return len(keepersOf(cmd.Process.Pid)) == 0 })
}

// TestNoKeeperOfProgramThatAdoptsOrphans: the keeper would become its child, which
// it knows nothing of.
func TestNoKeeperOfProgramThatAdoptsOrphans(t *testing.T) {
	cmd, _ := kept(t, "LAUNCH_REAPER=1")
	if keepers := keepersOf(cmd.Process.Pid); len(keepers) > 0 {
		t.Errorf("keepers %v", keepers)
	}
}

// TestKeeperHasNoneOfTheCallersDescriptors: who reads to the end of a pipe would wait
// for it.
func TestKeeperHasNoneOfTheCallersDescriptors(t *testing.T) {
	cmd, _ := kept(t)
	keepers := keepersOf(cmd.Process.Pid)
	if len(keepers) != 1 {
		t.Fatalf("keepers %v", keepers)
	}
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", keepers[0]))
	for _, link := range links {
		if to, _ := os.Readlink(link); strings.HasPrefix(to, "pipe:") {
			t.Errorf("%s is %s", link, to)
		}
	}
}

// TestLeaseEndsWithProgram: the keeper has no part in it, so a command that follows
// finds the memory free.
func TestLeaseEndsWithProgram(t *testing.T) {
	for range 20 {
		cmd := launcher(t, "true")
		cmd.Env = append(os.Environ(), "LAUNCH_KEEPER="+os.Args[0]+" keep", "XDG_CACHE_HOME="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if locked(t, cmd) {
			t.Fatal("the lease is held after the end of its program")
		}
	}
}

func TestNewKeeper(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"12 345 prog 1+2 /run/a 0+0 /run/b", ""},
		{"12 345 prog", ""},
		{"12 345", "2 arguments"},
		{"12 345 prog 1+2", "4 arguments"},
		{"x 345 prog", `process is "x"`},
		{"0 345 prog", `process is "0"`},
		{"12 -1 prog", `start of the keeper's process is "-1"`},
		{"12 345 prog 1-2 /run/a", `lock is "1-2"`},
		{"12 345 prog -1+2 /run/a", `lock is "-1+2"`},
	} {
		if _, err := NewKeeper(strings.Split(tc.args, " ")); tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%q: %v, want %q", tc.args, err, tc.want)
		}
	}
}

// FuzzParseLock: what is read is a range that the kernel takes.
func FuzzParseLock(f *testing.F) {
	f.Add("4611686018427387904+6442450944")
	f.Add("0+0")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := parseLock(text)
		if err == nil && (l.Start < 0 || l.Len < 0 || l.Type != syscall.F_WRLCK) {
			t.Errorf("%q gives %+v", text, l)
		}
	})
}
