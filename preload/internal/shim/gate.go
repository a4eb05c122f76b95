package shim

import (
	"errors"
	"time"
)

// Gate is where calls of the program pass that submit work to the GPU, in a process that lends its
// memory or takes turns. The front makes it (preload/front/gate.h), and libgpumem hands it over.
//
// While it is closed no such call is under way, and none begins: those that come wait. Nothing
// here calls the pool, and the pool's own calls of the driver do not pass it.
type Gate interface {
	// Passed returns how many calls have passed and ended. It only grows. Of one that a signal's
	// handler makes in the middle of another it may know only that there was one.
	Passed() uint64
	// Close lets no call pass from then on, and waits until none is under way, at most for within.
	// With an error the gate is open: ErrGateBusy where a call did not end, and ErrGateUnseen where
	// the program has calls that the gate does not see, which stays so. One goroutine at a time may
	// call Close and Open.
	Close(within time.Duration) error
	Open()
	// Waiting returns how many threads stand at the closed gate. Where there is none it waits for
	// one, at most for within.
	Waiting(within time.Duration) int
	// Running asks all streams that the program has made, without waiting for them. It is called while
	// the gate is closed: a capture that begins between two questions would be spoilt. It returns nil
	// if their work is done, ErrRunning, ErrCapture where a graph is being captured in one, or
	// the driver's error. It does not see the legacy stream, the threads' own ones, and what is
	// left to do in streams that the program has destroyed: that takes a wait for the context.
	Running() error
}

// Errors of a Gate.
var (
	ErrGateBusy   = errors.New("a call that submits work has not returned")
	ErrGateUnseen = errors.New("the program makes calls that the gate does not see")
	ErrRunning    = errors.New("a stream of the program has work")
	ErrCapture    = errors.New("a graph is being captured")
)
