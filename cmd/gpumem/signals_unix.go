//go:build unix

package main

import (
	"os"
	"syscall"
)

// ending are the signals that end a command, as they end programs that catch none.
// SIGHUP is left to Go's runtime, which heeds nohup.
var ending = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGALRM, syscall.SIGUSR1, syscall.SIGUSR2}
