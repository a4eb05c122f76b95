// Package launch starts a program in its lease.
//
// # One program
//
// gpumem run takes the lease, makes the environment and then becomes the program
// (execve). No launcher stands between the caller and the program, so nothing has to be
// passed on and nothing can be passed on wrongly:
//
//   - signals, also those to the process group, a stop and a kill, reach the program
//     itself, once; its exit status or the signal that ends it reach the caller;
//   - its number is the one that the caller knows (systemd's LISTEN_PID and MAINPID,
//     a supervisor's pid file), and its parent, process group and terminal are the
//     caller's;
//   - it has the caller's descriptors under their numbers, and no process reads its
//     standard error, so what it leaves in the background can write there.
//
// What differs from a start without gpumem: the environment; one descriptor for each
// lease, from 1000 on, which is open on a file without content; and what Go's runtime
// does at its start: signals other than SIGHUP and SIGINT that the caller ignores are
// not ignored, those that end a process are not blocked (only the runtime knows the
// mask as it was), and a standard stream that is closed is open on /dev/null.
//
// The descriptor holds the lease: its description has the lock. The program's
// children inherit it, so the lease ends when the last of them has ended or has
// closed it.
//
// # The keeper
//
// A second process, in its own session and no child of the program, stays until the
// program and all that it leaves behind have ended, see keeper_linux.go. It holds the
// lease, too, so a program may close every descriptor that its own caller did not pass
// on, as sudo does. And it measures what the program holds outside of its framework's
// pool. The program does not need it.
//
// # Copies
//
// Several copies need a process that waits for all of them and returns one exit status,
// so run is their parent then, in the same process group.
package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// NotStarted is the error of a program that could not be started. Shells call
// that 127 where there is no such program, and 126 where it cannot be run.
type NotStarted struct {
	Command string
	Status  int
	Err     error
}

func (e *NotStarted) Error() string { return fmt.Sprintf("cannot start %s: %v", e.Command, e.Err) }

// Unwrap returns the system's error.
func (e *NotStarted) Unwrap() error { return e.Err }

func notStarted(command string, err error) *NotStarted {
	status := 126
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		status = 127
	}
	var e *exec.Error
	if errors.As(err, &e) { // which repeats the name
		err = e.Err
	}
	var p *os.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return &NotStarted{command, status, err}
}

// lookPath finds a program in PATH as a shell does, also in a relative folder, which
// package exec refuses.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", notStarted(name, err)
	}
	return path, nil
}
