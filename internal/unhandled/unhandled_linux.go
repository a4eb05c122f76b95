//go:build amd64 || arm64

package unhandled

import (
	"syscall"
	"unsafe"
)

// An action is the kernel's struct sigaction.
type action struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

const byDefault, ignored = 0, 1 // SIG_DFL, SIG_IGN

// taken are the runtime's handlers that Take has taken away.
var taken = map[syscall.Signal]action{}

// Take has SIGQUIT, SIGUSR1, SIGUSR2 and SIGALRM do by default what they do, until Return.
func Take() {
	for _, s := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM} {
		if a, ok := setDefault(s); ok {
			taken[s] = a
		}
	}
}

// Return has the runtime handle them again.
func Return() {
	for s, a := range taken {
		exchange(s, &a, nil)
	}
	clear(taken)
}

// Default has signals do by default what they do, but those that are ignored: as execve
// leaves them. The process handles them no more.
func Default(signals ...syscall.Signal) {
	for _, s := range signals {
		setDefault(s)
	}
}

// setDefault returns the action that there was; ok is false if it is left.
func setDefault(s syscall.Signal) (old action, ok bool) {
	if !exchange(s, nil, &old) || old.handler == byDefault || old.handler == ignored {
		return old, false
	}
	return old, exchange(s, &action{handler: byDefault}, nil)
}

func exchange(s syscall.Signal, a, old *action) bool {
	_, _, e := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(old)), unsafe.Sizeof(old.mask), 0, 0)
	return e == 0
}
