package lk

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpumem/internal/lock"
)

type locker interface{ Lock(); Unlock() }

// wait times: n goroutines hammer, short sections
func TestTail(t *testing.T) {
	for _, procs := range []int{1, 2, 8} {
		for _, n := range []int{8, 100, 1000, 10000} {
			for _, which := range []string{"lock", "sync"} {
				runtime.GOMAXPROCS(procs)
				var m locker = new(lock.Mutex)
				if which == "sync" {
					m = new(sync.Mutex)
				}
				var worst atomic.Int64
				var ops atomic.Int64
				served := make([]int64, n)
				stop := atomic.Bool{}
				var wg sync.WaitGroup
				x := 0
				for g := range n {
					wg.Go(func() {
						for !stop.Load() {
							t0 := time.Now()
							m.Lock()
							x++
							m.Unlock()
							d := int64(time.Since(t0))
							served[g]++
							for {
								w := worst.Load()
								if d <= w || worst.CompareAndSwap(w, d) {
									break
								}
							}
						}
					})
				}
				time.Sleep(1500 * time.Millisecond)
				stop.Store(true)
				t1 := time.Now()
				wg.Wait()
				end := time.Since(t1)
				zero := 0
				for _, s := range served {
					ops.Add(s)
					if s == 0 {
						zero++
					}
				}
				if int64(x) != ops.Load() {
					t.Errorf("count %d %d", x, ops.Load())
				}
				fmt.Printf("procs %d n %5d %-4s ops %9d worst %v; never served in 1.5s: %d; drained in %v\n", procs, n, which, x, time.Duration(worst.Load()), zero, end)
			}
		}
	}
}

// One that wants it once among many that hammer; sections of 20us
func TestOne(t *testing.T) {
	for _, procs := range []int{1, 2, 8} {
		for _, which := range []string{"lock", "sync"} {
			runtime.GOMAXPROCS(procs)
			var m locker = new(lock.Mutex)
			if which == "sync" {
				m = new(sync.Mutex)
			}
			stop := atomic.Bool{}
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(func() {
					runtime.LockOSThread()
					for !stop.Load() {
						m.Lock()
						t0 := time.Now()
						for time.Since(t0) < 20*time.Microsecond {
						}
						m.Unlock()
					}
				})
			}
			var worst, sum time.Duration
			k := 0
			for t0 := time.Now(); time.Since(t0) < 2*time.Second; k++ {
				time.Sleep(time.Millisecond)
				t1 := time.Now()
				m.Lock()
				m.Unlock()
				d := time.Since(t1)
				worst = max(worst, d)
				sum += d
			}
			stop.Store(true)
			wg.Wait()
			fmt.Printf("procs %d %s: one among 16 (OS threads): mean %v worst %v of %d\n", procs, which, sum/time.Duration(k), worst, k)
		}
	}
}

// handover to another goroutine, random holds, timers, LockOSThread
func TestHand(t *testing.T) {
	for _, procs := range []int{1, 2, 8} {
		runtime.GOMAXPROCS(procs)
		var m lock.Mutex
		ch := make(chan int, 64)
		var wg, un sync.WaitGroup
		for range 4 {
			un.Go(func() {
				for k := range ch {
					if k%5 == 0 {
						time.Sleep(time.Duration(k%300) * time.Microsecond)
					}
					m.Unlock()
				}
			})
		}
		in := atomic.Int32{}
		c := 0
		for g := range 200 {
			wg.Go(func() {
				if g%3 == 0 {
					runtime.LockOSThread()
				}
				for i := range 300 {
					m.Lock()
					if in.Add(1) != 1 {
						t.Error("two")
					}
					c++
					in.Add(-1)
					if i%7 == 0 {
						ch <- i + g
					} else {
						if i%50 == 0 {
							time.Sleep(100 * time.Microsecond)
						}
						m.Unlock()
					}
				}
			})
		}
		wg.Wait()
		close(ch)
		un.Wait()
		fmt.Println("hand procs", procs, c)
	}
}
