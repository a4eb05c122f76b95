package replay

import (
	"runtime"
	"testing"
	"time"
)

// TestCPUTimeIsOfTheThread: what another thread computes does not count, and what this one
// does is counted.
func TestCPUTimeIsOfTheThread(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const long = 100 * time.Millisecond
	compute := func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for start := cpuTime(); cpuTime()-start < long; {
		}
	}
	before := cpuTime()
	done := make(chan bool)
	go func() {
		compute()
		close(done)
	}()
	<-done
	if took := cpuTime() - before; took > long/2 {
		t.Errorf("%v passed on this thread while another computed for %v", took, long)
	}
	before = cpuTime()
	compute()
	if took := cpuTime() - before; took < long {
		t.Errorf("%v passed on this thread, which computed for %v", took, long)
	}
}
