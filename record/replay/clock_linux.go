package replay

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns the CPU time of the calling thread so far. A goroutine that compares two
// readings stays on its thread in between.
func cpuTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return wallTime()
	}
	return time.Duration(t.Nano())
}
