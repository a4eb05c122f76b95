//go:build libgpumem && linux && (amd64 || arm64)

package guest

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	limitOfThreads = 6    // RLIMIT_NPROC, which package syscall lacks
	manyThreads    = 4096 // a program that may have more does not come near
	limitedProcs   = 4    // of the runtime, in a process with few threads

	// Threads beside those that run Go at a time: goroutines that wait in the kernel for
	// the ledger's lock, the driver, or a timer.
	waiting = 4

	futexWait, futexWake = 0 | 128, 1 | 128 // FUTEX_PRIVATE_FLAG
)

// settle has the runtime make now all threads that it will need, in a process that may not
// have many: one that cannot be made later is the end of the program. Threads that have
// nothing to do are kept.
func settle() {
	if !limited() {
		return
	}
	n := min(runtime.GOMAXPROCS(0), limitedProcs)
	runtime.GOMAXPROCS(n)
	n += waiting
	var inside atomic.Int32
	var open uint32 // the gate
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			inside.Add(1)
			for atomic.LoadUint32(&open) == 0 { // each call that waits keeps a thread
				_, _, _ = syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(&open)), futexWait, 0, 0, 0, 0)
			}
		})
	}
	for int(inside.Load()) < n {
		time.Sleep(50 * time.Microsecond)
	}
	atomic.StoreUint32(&open, 1)
	_, _, _ = syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(&open)), futexWake, uintptr(n), 0, 0, 0)
	all.Wait()
}

// limited reports whether this process may have few threads, or few addresses, of which each
// thread has some.
func limited() bool {
	var l syscall.Rlimit
	for _, kind := range []int{syscall.RLIMIT_AS, syscall.RLIMIT_DATA} {
		if syscall.Getrlimit(kind, &l) == nil && l.Cur != ^uint64(0) {
			return true
		}
	}
	return syscall.Getrlimit(limitOfThreads, &l) == nil && l.Cur <= manyThreads
}
