//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// ending are the signals that end a command, as they end programs that catch none. SIGHUP
// is not among them under nohup, which has it ignored.
var ending = func() []os.Signal {
	list := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGALRM, syscall.SIGUSR1, syscall.SIGUSR2}
	if !signal.Ignored(syscall.SIGHUP) {
		list = append(list, syscall.SIGHUP)
	}
	return list
}()
