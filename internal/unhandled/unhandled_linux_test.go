//go:build amd64 || arm64

package unhandled

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

const modeVar = "GPUMEM_TEST_UNHANDLED"

// TestMain is also the process that sends itself a signal.
func TestMain(m *testing.M) {
	mode := os.Getenv(modeVar)
	if mode == "" {
		os.Exit(m.Run())
	}
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{})
	caught := make(chan os.Signal, 1)
	Take()
	if mode != "early" {
		signal.Notify(caught, syscall.SIGQUIT, syscall.SIGUSR1)
		Return()
	}
	if mode == "late" {
		Default(syscall.SIGQUIT, syscall.SIGUSR1)
		signal.Stop(caught)
	}
	s := syscall.SIGQUIT
	if len(os.Args) > 1 {
		s = syscall.SIGUSR1
	}
	_ = syscall.Kill(os.Getpid(), s)
	select {
	case <-caught:
		os.Exit(3)
	case <-time.After(10 * time.Second):
		os.Exit(4)
	}
}

// TestSignalEndsTheProcessWhileNothingHandlesIt: before os/signal is asked and after, a signal
// ends the process as one that catches none; in between it is handled. Without, Go's runtime
// ended it with status 2 and the stacks of all goroutines, or went on.
func TestSignalEndsTheProcessWhileNothingHandlesIt(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGUSR1} {
		for _, mode := range []string{"early", "handled", "late"} {
			cmd := exec.Command(os.Args[0])
			if s == syscall.SIGUSR1 {
				cmd.Args = append(cmd.Args, "USR1")
			}
			cmd.Env = append(os.Environ(), modeVar+"="+mode)
			out, err := cmd.CombinedOutput()
			status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
			ended := status.Signaled() && status.Signal() == s && len(out) == 0
			if mode == "handled" {
				ended = status.ExitStatus() == 3
			}
			if !ended {
				t.Errorf("%s, %v: %v\n%s", mode, s, err, out)
			}
		}
	}
}

// TestIgnoredSignalStaysIgnored: what the caller ignores the program ignores.
func TestIgnoredSignalStaysIgnored(t *testing.T) {
	signal.Ignore(syscall.SIGUSR2)
	defer signal.Reset(syscall.SIGUSR2)
	Default(syscall.SIGUSR2)
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
}
