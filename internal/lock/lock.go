// Package lock has a mutex for short sections that many goroutines want at once.
//
// A [sync.Mutex] serves each goroutine in turn as soon as one has waited for a
// millisecond. Each turn then costs a switch of goroutines, and what the last one had in
// its cache has to be fetched: with 64 goroutines on two cores a section of 20 ns takes
// 130 to 650. [Mutex] lets the goroutine that runs take it again and again, and one other
// try for it for some microseconds, which then is given its turn. The rest sleep. So the
// sections run in batches on one core, and a goroutine waits longer, but for many sections
// at a time.
package lock

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Mutex is a mutual exclusion lock. The zero Mutex is unlocked. It must not be copied.
//
// One goroutine waits in front, the others behind it, in the order that a sync.Mutex
// gives them. The one in front tries for about 5 µs, in which it may be lucky at any
// time. Then it sleeps, and the next Unlock leaves the Mutex locked and hands it over. How
// long that takes is up to the holder: where more goroutines compute than there are
// processors, it may not be running.
type Mutex struct {
	state atomic.Uint32 // 0, held, or held|asleep
	front sync.Mutex    // held by the goroutine in front
	pass  chan struct{} // hands over to it; made when first needed, with front held
}

const (
	held   = 1
	asleep = 2 // the goroutine in front waits for pass
)

// The goroutine in front pauses between its tries, for steps of about 1.3 ns: first as
// long as two sections take, then twice as long each time. Chosen by BenchmarkThreads of
// package gpumem: with tries for 100 µs, 64 goroutines are no faster, and wait 20 times as
// long. It does not let others run meanwhile (runtime.Gosched): where many compute, it
// would have to wait for the turns of all of them.
const (
	firstPause = 64
	lastPause  = 2048
)

// Lock locks m. If it is locked already, Lock waits until it is not.
func (m *Mutex) Lock() {
	if !m.state.CompareAndSwap(0, held) {
		m.wait()
	}
}

// Unlock unlocks m. It panics if m is not locked. Another goroutine than the one that
// locked m may unlock it.
func (m *Mutex) Unlock() {
	if !m.state.CompareAndSwap(held, 0) {
		m.handOver()
	}
}

// handOver gives m, locked, to the goroutine that sleeps in front.
func (m *Mutex) handOver() {
	if m.state.Load() == 0 {
		panic("lock: Unlock of an unlocked Mutex")
	}
	m.state.Store(held) // nobody else changes it: the one in front sleeps
	m.pass <- struct{}{}
}

func (m *Mutex) wait() {
	m.front.Lock()
	defer m.front.Unlock()
	for steps := firstPause; steps <= lastPause; steps *= 2 {
		pause(steps)
		if m.state.CompareAndSwap(0, held) {
			return
		}
	}
	if m.pass == nil {
		m.pass = make(chan struct{}, 1) // Unlock does not wait
	}
	for !m.state.CompareAndSwap(0, held) {
		if m.state.CompareAndSwap(held, held|asleep) {
			<-m.pass
			return
		}
	}
}

// pause takes some time without touching memory.
func pause(steps int) {
	x := uint32(steps)
	for range steps {
		x = x*1664525 + 1013904223 // the next waits for this
	}
	runtime.KeepAlive(x) // or the compiler leaves the loop out
}
