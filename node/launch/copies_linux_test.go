package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
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
