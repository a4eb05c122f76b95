//go:build unix

package main

import (
	"context"
	"syscall"
	"testing"
)

// TestStoppable: Ctrl-C stops the program and no more, the next one ends the command; a SIGTERM does at once.
func TestStoppable(t *testing.T) {
	ctx, signalled := context.WithCancelCause(t.Context())
	run, stop := stoppable(ctx)
	signalled(caught{syscall.SIGINT})
	<-stop
	if run.Err() != nil {
		t.Error("the first one ended it")
	}
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-run.Done()

	ctx, signalled = context.WithCancelCause(t.Context())
	run, stop = stoppable(ctx)
	signalled(caught{syscall.SIGTERM})
	<-run.Done()
	select {
	case <-stop:
		t.Error("a SIGTERM is answered")
	default:
	}
}
