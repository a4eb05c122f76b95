package lock_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"gpumem/internal/lock"
)

// TestExcludes has goroutines count with the Mutex held, on one processor, on those of
// the machine and on more. Some hold it long, so that the one in front falls asleep and
// is handed the Mutex.
func TestExcludes(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, procs := range []int{1, runtime.NumCPU(), 8} {
		for _, long := range []int{0, 1000, 10} { // every how many a section is long
			t.Run(fmt.Sprintf("procs=%d/long=%d", procs, long), func(t *testing.T) {
				runtime.GOMAXPROCS(procs)
				const goroutines, each = 16, 2000
				var m lock.Mutex
				var wg sync.WaitGroup
				inside, count := 0, 0
				for range goroutines {
					wg.Go(func() {
						for i := range each {
							m.Lock()
							if inside++; inside != 1 {
								t.Error("two goroutines hold the Mutex")
							}
							if long != 0 && i%long == 0 {
								for range 20 {
									runtime.Gosched()
								}
							}
							count++
							inside--
							m.Unlock()
						}
					})
				}
				wg.Wait()
				if count != goroutines*each {
					t.Errorf("counted %d, want %d", count, goroutines*each)
				}
			})
		}
	}
}

// TestHandOver checks that a goroutine gets the Mutex although another takes it again
// each time at once: it gives up only when all others have had their turn.
func TestHandOver(t *testing.T) {
	var m lock.Mutex
	const others = 3
	var wg sync.WaitGroup
	served, all := 0, false
	m.Lock()
	for range others {
		wg.Go(func() {
			m.Lock()
			served++
			all = served == others
			m.Unlock()
		})
	}
	for !all {
		m.Unlock()
		m.Lock()
	}
	m.Unlock()
	wg.Wait()
}

// TestSleeps checks that whoever sleeps in front is woken, when the Mutex is held for
// long and unlocked by another goroutine than the one that locked it.
func TestSleeps(t *testing.T) {
	var m lock.Mutex
	for range 100 {
		m.Lock()
		got := make(chan bool)
		go func() {
			m.Lock()
			defer m.Unlock()
			close(got)
		}()
		for !m.Asleep() {
			runtime.Gosched()
		}
		go m.Unlock()
		<-got
	}
}

// TestUnlockBeforeSleep unlocks the Mutex at moments all through a wait, on two processors:
// also between the last try and the sleep, where nobody would wake the goroutine in front.
func TestUnlockBeforeSleep(t *testing.T) {
	for i := range 50_000 {
		var m lock.Mutex
		m.Lock()
		waits, got := make(chan bool), make(chan bool)
		go func() {
			waits <- true
			m.Lock()
			defer m.Unlock()
			close(got)
		}()
		<-waits
		for x := 0; x < i%1000*20; {
			x++ // up to 6 us, in which the other tries and falls asleep
		}
		m.Unlock()
		<-got
	}
}

func TestUnlocked(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Unlock of an unlocked Mutex does not panic")
		}
	}()
	new(lock.Mutex).Unlock()
}

func Example() {
	var m lock.Mutex
	var wg sync.WaitGroup
	sum := 0
	for i := range 10 {
		wg.Go(func() {
			m.Lock()
			sum += i
			m.Unlock()
		})
	}
	wg.Wait()
	fmt.Println(sum)
	// Output: 45
}

// Benchmark is a section of one addition, by how many goroutines want it, with sync.Mutex
// beside it.
func Benchmark(b *testing.B) {
	for _, impl := range []struct {
		name string
		make func() sync.Locker
	}{
		{"lock", func() sync.Locker { return new(lock.Mutex) }},
		{"sync", func() sync.Locker { return new(sync.Mutex) }},
	} {
		for _, n := range []int{1, 2, 8, 64} {
			b.Run(fmt.Sprintf("%s/%d", impl.name, n), func(b *testing.B) {
				m := impl.make()
				done := 0
				var wg sync.WaitGroup
				for g := range n {
					wg.Go(func() {
						for i := g; i < b.N; i += n {
							m.Lock()
							done++
							m.Unlock()
						}
					})
				}
				wg.Wait()
			})
		}
	}
}
