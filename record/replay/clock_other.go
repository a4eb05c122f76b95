//go:build !linux

package replay

import "time"

// cpuTime is wallTime, where the CPU time of a thread is not read.
func cpuTime() time.Duration { return wallTime() }
