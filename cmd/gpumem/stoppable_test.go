//go:build unix

package main

import (
	"context"
	"syscall"
	"testing"
)

// TestStoppable: Ctrl-C says that it was seen, stops the program and no more, the next one ends the command;
// a SIGTERM does at once.
func TestStoppable(t *testing.T) {
	said := 0
	say := func() { said++ }
	ctx, signalled := context.WithCancelCause(t.Context())
	run, stop := stoppable(ctx, say)
	signalled(caught{syscall.SIGINT})
	<-stop
	if said != 1 {
		t.Errorf("said %d times", said)
	}
	if run.Err() != nil {
		t.Error("the first one ended it")
	}
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-run.Done()

	ctx, signalled = context.WithCancelCause(t.Context())
	run, stop = stoppable(ctx, say)
	signalled(caught{syscall.SIGTERM})
	<-run.Done()
	select {
	case <-stop:
		t.Error("a SIGTERM is answered")
	default:
	}
	if said != 1 {
		t.Error("a SIGTERM is spoken of")
	}
}
