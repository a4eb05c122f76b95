package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
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
