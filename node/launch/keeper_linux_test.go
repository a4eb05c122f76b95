package launch

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpumem/internal/proc"
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

// kept starts "closes", or a mode that ends in it, in a lease with a keeper. It returns
// when the lease's descriptor is closed; the file is the program's standard input, and
// the program ends when it is closed.
func kept(t *testing.T, mode string, env ...string) (*exec.Cmd, *os.File) {
	t.Helper()
	cmd := launcher(t, os.Args[0], mode)
	cmd.Env = append(os.Environ(), "LAUNCH_KEEPER="+os.Args[0]+" keep", "XDG_CACHE_HOME="+t.TempDir())
	cmd.Env = append(cmd.Env, env...)
	in, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, said, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, said, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	said.Close()
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

// isKept reports whether a process keeps a lease of a registry.
func isKept(registry string) bool {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	return slices.ContainsFunc(names, func(name string) bool {
		text, _ := os.ReadFile(name)
		args := strings.Split(string(text), "\x00")
		return len(args) > 1 && args[1] == "keep" && strings.Contains(string(text), registry)
	})
}

// TestKeeperHoldsLeaseOfProgramThatClosedIt: sudo and daemons close every descriptor;
// their memory would be given to others.
func TestKeeperHoldsLeaseOfProgramThatClosedIt(t *testing.T) {
	cmd, in := kept(t, "closes")
	if !locked(t, cmd) { // also at the moment when the program has just closed it
		t.Error("the lease is not held")
	}
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

// TestKeeperOfProgramThatAdoptsOrphansIsNoChildOfIt refuses a start that leaves the keeper
// to the program, which knows nothing of it, and one that takes from the program what it
// was started with.
func TestKeeperOfProgramThatAdoptsOrphansIsNoChildOfIt(t *testing.T) {
	cmd, _ := kept(t, "closes", "LAUNCH_REAPER=1")
	keepers := keepersOf(cmd.Process.Pid)
	if len(keepers) != 1 {
		t.Fatalf("keepers %v", keepers)
	}
	if s, _ := proc.ReadStat(keepers[0]); s.Parent == cmd.Process.Pid {
		t.Error("the keeper is the program's child")
	}
	if !locked(t, cmd) {
		t.Error("the lease is not held")
	}
	cmd, _ = kept(t, "orphans", "LAUNCH_REAPER=1")
	eventually(t, "the program adopts an orphan", func() bool { return len(childrenOf(cmd.Process.Pid)) == 1 })
}

// TestKeeperHasNoneOfTheCallersDescriptors: who reads to the end of a pipe would wait
// for it.
func TestKeeperHasNoneOfTheCallersDescriptors(t *testing.T) {
	cmd, _ := kept(t, "closes")
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

// TestKeeperHoldsLeaseForWhatIsLeftBehind: it has lost its descriptors, its parents and
// perhaps its environment. The chain refuses a keeper that looks once: its processes end
// while the keeper goes by.
func TestKeeperHoldsLeaseForWhatIsLeftBehind(t *testing.T) {
	sh(t)
	for _, mode := range []string{"daemon", "stranger", "chain"} {
		t.Run(mode, func(t *testing.T) {
			cmd, in := kept(t, mode)
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			// The keeper has seen the end when it waits for another process.
			eventually(t, "the keeper waits for another process", func() bool {
				if !locked(t, cmd) {
					t.Fatal("the lease has ended before the family")
				}
				for _, keeper := range keepersOf(cmd.Process.Pid) {
					links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", keeper))
					for _, link := range links {
						info, _ := os.ReadFile(link)
						_, pid, found := strings.Cut(string(info), "Pid:")
						if line, _, _ := strings.Cut(pid, "\n"); found && strings.TrimSpace(line) != "-1" && strings.TrimSpace(line) != strconv.Itoa(cmd.Process.Pid) {
							return true
						}
					}
				}
				return false
			})
			in.Close()
			eventually(t, "the lease has ended", func() bool { return !locked(t, cmd) })
		})
	}
}

// TestLeaseEndsWithProgram refuses a keeper that finds itself.
func TestLeaseEndsWithProgram(t *testing.T) {
	cmd := launcher(t, "true")
	cmd.Env = append(os.Environ(), "LAUNCH_KEEPER="+os.Args[0]+" keep", "XDG_CACHE_HOME="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	eventually(t, "the lease has ended", func() bool { return !locked(t, cmd) })
}

func TestNewKeeper(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"12 345 prog 7 /run/a /run/b", ""},
		{"12 345 prog 0", ""},
		{"12 345 prog", "3 arguments"},
		{"12 345 prog x", `family is "x"`},
		{"x 345 prog 7", `process is "x"`},
		{"0 345 prog 7", `process is "0"`},
		{"12 -1 prog 7", `start of the keeper's process is "-1"`},
	} {
		if _, err := newKeeper(strings.Split(tc.args, " ")); tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%q: %v, want %q", tc.args, err, tc.want)
		}
	}
}
