package ledger

import "golang.org/x/sys/unix"

// Now returns the moment that it is.
func Now() Moment {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // it cannot fail
	return Moment(t.Nano())
}
