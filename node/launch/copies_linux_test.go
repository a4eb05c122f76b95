package launch

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"gpumem/node/share"
)

func copiesOf(n int, command ...string) *exec.Cmd {
	return exec.Command(os.Args[0], append([]string{"copies", fmt.Sprint(n)}, command...)...)
}

// TestCopiesEndWithFirstStatusThatIsNotZero: a signal is 128 and its number, and
// nothing is written about it.
func TestCopiesEndWithFirstStatusThatIsNotZero(t *testing.T) {
	shell := sh(t)
	for _, tc := range []struct {
		script string
		status int
	}{
		{"exit 0", 0},
		{"exit $COPY", 1},
		{"[ $COPY = 2 ] && exit 9; exit 0", 9},
		{"ulimit -c 0; [ $COPY = 1 ] && kill -ABRT $$; [ $COPY = 2 ] && exit 9; exit 0", 128 + 6},
		{"ulimit -c 0; kill -QUIT $$", 128 + 3},
		{"kill -KILL $$", 128 + 9},
	} {
		cmd := copiesOf(3, shell, "-c", tc.script)
		said, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) || cmd.ProcessState.ExitCode() != tc.status || len(said) > 0 {
			t.Errorf("%s: %v, said %q; want status %d", tc.script, cmd.ProcessState, said, tc.status)
		}
	}
}

// TestSignalArrivesOnceInEachCopy: sent to the parent alone, as docker stop does, or
// to the whole group, as timeout does.
func TestSignalArrivesOnceInEachCopy(t *testing.T) {
	for _, to := range []string{"process", "group"} {
		t.Run(to, func(t *testing.T) {
			cmd := copiesOf(2, os.Args[0], "signals")
			got := sendAll(t, cmd, to == "group", 2)
			checkSignals(t, got, to == "group", 2)
			if cmd.ProcessState.ExitCode() != 3 {
				t.Errorf("it ends with %v, want status 3", cmd.ProcessState)
			}
		})
	}
}

// TestStoppedWitnessHoldsNothingUp: a witness that is stopped before it is ready, or
// later, is killed. Its parent goes on, at the latest when the copies have ended.
func TestStoppedWitnessHoldsNothingUp(t *testing.T) {
	defer func(old time.Duration) { patience = old }(patience)
	shell := sh(t)
	for _, tc := range []struct {
		name     string
		patience time.Duration
		command  []string
	}{
		{"before it is ready", time.Millisecond, []string{shell, "-c", "kill -STOP $$"}},
		{"later", time.Minute, []string{os.Args[0]}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			patience = tc.patience
			w := make(chan *witness, 1)
			go func() {
				started, err := startWitness(tc.command)
				if err != nil {
					t.Error(err)
				}
				w <- started
			}()
			var started *witness
			select {
			case started = <-w:
			case <-time.After(20 * time.Second):
				t.Fatal("the start waits for a stopped witness")
			}
			_ = started.p.Signal(syscall.SIGSTOP) // it may have ended
			ended := make(chan bool)
			go func() { started.stop(); close(ended) }()
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				_ = started.p.Kill()
				t.Fatal("the end waits for a stopped witness")
			}
			if started.saw(syscall.SIGUSR1, time.Now()) {
				t.Error("it saw a signal that nobody sent")
			}
		})
	}
}

// TestWitnessSawSignalOfItsTimeOnly: another signal, or one of another time, is not
// the one that this process got.
func TestWitnessSawSignalOfItsTimeOnly(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		name string
		seen []sighting
		want bool
	}{
		{"none", nil, false},
		{"the signal", []sighting{{syscall.SIGUSR1, now}}, true},
		{"a moment later", []sighting{{syscall.SIGUSR1, now.Add(grace / 2)}}, true},
		{"another signal", []sighting{{syscall.SIGUSR2, now}}, false},
		{"long before", []sighting{{syscall.SIGUSR1, now.Add(-2 * grace)}}, false},
		{"long before, and now", []sighting{{syscall.SIGUSR1, now.Add(-2 * grace)}, {syscall.SIGUSR1, now}}, true},
	} {
		w := &witness{seen: make(chan sighting, len(tc.seen))}
		for _, s := range tc.seen {
			w.seen <- s
		}
		close(w.seen)
		if got := w.saw(syscall.SIGUSR1, now); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}

// TestCopyLeavesItsLeaseToWhatItLeavesBehind refuses a parent that ends the lease of a copy
// with the copy, and one that waits for what is left behind.
func TestCopyLeavesItsLeaseToWhatItLeavesBehind(t *testing.T) {
	dir := t.TempDir()
	// The keeper outlives the lease by a moment, in which it takes the registry's lock. A file
	// for that would be made again while the folder is being removed.
	defer eventually(t, "the keeper has ended", func() bool { return !isKept(dir) })
	cmd := exec.Command(os.Args[0], "leased", dir, os.Args[0], "daemon")
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+t.TempDir())
	in, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stderr = in, os.Stderr
	defer held.Close()
	err = cmd.Run()
	in.Close()
	if err != nil {
		t.Fatal(err)
	}
	registry, err := share.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	leases := func() []share.Entry {
		list, err := registry.List()
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	eventually(t, "the daemon has the lease", func() bool {
		list := leases()
		if len(list) != 1 {
			t.Fatal("the lease has ended before the family")
		}
		return !list[0].Ended // lists show the copy until the keeper has seen its end
	})
	held.Close()
	eventually(t, "the lease has ended", func() bool { return len(leases()) == 0 })
}

// TestFirstProcessReapsOrphans refuses a first process of a pid namespace that leaves them
// zombies, one that takes the status of a copy with them, and one that keeps signals.
func TestFirstProcessReapsOrphans(t *testing.T) {
	const script = `[ $COPY = 1 ] && exit 0; trap 'exit 9' TERM
for i in 1 2 3; do (read x <&3 &); done; echo ready; read x; exit 7`
	shell := sh(t)
	for _, tc := range []struct {
		copies string
		signal syscall.Signal
		status int
	}{{"1", 0, 7}, {"2", 0, 7}, {"1", syscall.SIGTERM, 9}, {"1", syscall.SIGUSR1, 128 + 10}} {
		t.Run(fmt.Sprintf("%s copies, %v", tc.copies, tc.signal), func(t *testing.T) {
			held, release, err := os.Pipe() // the orphans
			if err != nil {
				t.Fatal(err)
			}
			defer release.Close()
			cmd := exec.Command(os.Args[0], "copies", tc.copies, shell, "-c", script)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
			if os.Getuid() != 0 {
				cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			}
			cmd.ExtraFiles, cmd.Stderr = []*os.File{held}, os.Stderr
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			err = cmd.Start()
			held.Close()
			if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EACCES) {
				t.Skip("skipped: no pid namespace can be made here: ", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill() }()
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
				t.Fatalf("%q, %v", line, err)
			}
			// Of its children the copy and the witness stay. A second copy has ended.
			eventually(t, "it has adopted the orphans", func() bool { return len(childrenOf(cmd.Process.Pid)) == 2+3 })
			release.Close()
			eventually(t, "no orphan is left", func() bool { return len(childrenOf(cmd.Process.Pid)) == 2 })
			if tc.signal != 0 {
				_ = cmd.Process.Signal(tc.signal)
			} else {
				in.Close()
			}
			if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != tc.status {
				t.Errorf("it ends with %v, want status %d", cmd.ProcessState, tc.status)
			}
		})
	}
}
