package gpumem_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/policy/frameworks"
)

// nextLeak is a report; it may take the runtime some collections to find it.
func nextLeak(leaks chan gpumem.Leak) gpumem.Leak {
	for {
		select {
		case l := <-leaks:
			return l
		default:
			runtime.GC()
		}
	}
}

// forget drops one Buffer, for its stack.
//
//go:noinline
func forget(t testing.TB, pool *gpumem.Pool) gpumem.Block { return drop(t, pool, 5000) }

// TestLeaks: a dropped Buffer is reported once, with who asked for it; its memory
// stays unless the pool collects. The report may use the pool.
func TestLeaks(t *testing.T) {
	for _, collect := range []bool{false, true} {
		for _, by := range []string{"Collect", "the runtime"} {
			t.Run(fmt.Sprintf("collect %v, found by %s", collect, by), func(t *testing.T) {
				leaks := make(chan gpumem.Leak, 10)
				var pool *gpumem.Pool
				opts := []gpumem.Option{gpumem.WithLeaks(func(l gpumem.Leak) {
					b, err := pool.AllocBuffer(context.Background(), 300)
					if err != nil || b.Free() != nil || len(pool.Live()) > 2 { // two were forgotten at most
						t.Errorf("in the report: %v", err)
					}
					pool.Collect()
					leaks <- l
				})}
				if collect {
					opts = append(opts, gpumem.WithCollect())
				}
				pool = newPool(t, gib(t), "jax", opts...)
				block := forget(t, pool)
				if by == "Collect" {
					if n := pool.Collect(); n > 1 {
						t.Errorf("%d found", n)
					}
				}
				l := nextLeak(leaks)
				if l.Block != block || l.Bytes != 5000 || l.Err != nil {
					t.Errorf("%+v, want %v of 5000 bytes", l, block)
				}
				if !strings.HasPrefix(l.Stack, "gpumem_test.drop (buffer_test.go:") || !strings.Contains(l.Stack, "gpumem_test.forget (") {
					t.Errorf("its stack is\n%s", l.Stack)
				}
				if n := pool.Stats().BytesInUse; n == 0 != collect {
					t.Errorf("%d bytes are in use after the report", n)
				}
				// Armed again, and not told twice.
				second := forget(t, pool)
				if l := nextLeak(leaks); l.Block != second {
					t.Errorf("then %+v, want %v", l, second)
				}
				if n := pool.Collect(); n != 0 || len(leaks) != 0 {
					t.Errorf("%d found once more", n)
				}
				if err := pool.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestLeakThatCannotBeFreed: the report says why, and the memory is as it was.
func TestLeakThatCannotBeFreed(t *testing.T) {
	dev := gib(t)
	leaks := make(chan gpumem.Leak, 1)
	pool := newPool(t, dev, "platform", gpumem.WithCollect(), gpumem.WithLeaks(func(l gpumem.Leak) { leaks <- l }))
	block := drop(t, pool, mib)
	var works atomic.Bool
	dev.OnCall(func(_ uint64, name string, _ uint64) error {
		if name != "cuMemFree" || works.Load() {
			return nil
		}
		return device.ErrInvalidValue
	})
	if l := nextLeak(leaks); l.Block != block || !errors.Is(l.Err, device.ErrInvalidValue) || pool.Stats().BytesInUse == 0 {
		t.Errorf("%+v, %d bytes in use", l, pool.Stats().BytesInUse)
	}
	works.Store(true)
	pool.Collect() // tries again, if the runtime's last collection did not
	if n := pool.Stats().BytesInUse; n != 0 {
		t.Errorf("%d bytes in use after the free worked", n)
	}
}

// TestFinalizerFrees: who has set a finalizer that frees is no leak, and harms no
// other Buffer.
func TestFinalizerFrees(t *testing.T) {
	pool := newPool(t, gib(t), "jax", gpumem.WithCollect())
	held := make([]*gpumem.Buffer, 100)
	done := make(chan error, len(held))
	for i := range held {
		fill(t, pool, &held[i], 5000)
		runtime.SetFinalizer(held[i], func(b *gpumem.Buffer) { done <- b.Free() })
	}
	clear(held)
	for i := range held { // they take the entries of those
		pool.Collect()
		fill(t, pool, &held[i], 5000)
	}
	for range held {
		if err := <-done; err != nil && !errors.Is(err, gpumem.ErrDoubleFree) {
			t.Error(err)
		}
	}
	pool.Collect()
	for i, b := range held {
		if err := b.Free(); err != nil {
			t.Errorf("Buffer %d: %v", i, err)
		}
	}
	if n := pool.Stats().BytesInUse; n != 0 {
		t.Errorf("%d bytes are in use", n)
	}
}

// TestFreeDuringSweep: goroutines free, drop and ask while collections run. Each
// dropped Buffer is reported, none that was freed, and nothing is left.
func TestFreeDuringSweep(t *testing.T) {
	const goroutines, steps = 8, 300
	var mu sync.Mutex
	reported := map[gpumem.Block]int{}
	pool := newPool(t, gib(t), "jax", gpumem.WithCollect(), gpumem.WithStacks(false), gpumem.WithLeaks(func(l gpumem.Leak) {
		mu.Lock()
		defer mu.Unlock()
		reported[l.Block]++
		if l.Err != nil {
			t.Error(l.Err)
		}
	}))
	var forgotten sync.Map
	var workers, collectors sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		collectors.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					pool.Collect()
				}
			}
		})
	}
	for id := range goroutines {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(4, uint64(id)))
			for range steps {
				switch bytes := r.Uint64N(500_000) + 1; r.IntN(3) {
				case 0:
					forgotten.Store(drop(t, pool, bytes), true)
				case 1:
					b, err := pool.AllocBuffer(context.Background(), bytes)
					if err != nil {
						t.Error(err)
						return
					}
					runtime.Gosched()
					if err := b.Free(); err != nil { // its last use
						t.Error(err)
					}
				default: // two at once: one frees it
					b, err := pool.AllocBuffer(context.Background(), bytes)
					if err != nil {
						t.Error(err)
						return
					}
					other := make(chan error)
					go func() { other <- b.Free() }()
					one, two := b.Free(), <-other
					if (one == nil) == (two == nil) || !errors.Is(errors.Join(one, two), gpumem.ErrDoubleFree) {
						t.Errorf("two goroutines free: %v; %v", one, two)
					}
				}
			}
		})
	}
	workers.Wait()
	close(stop)
	collectors.Wait()
	pool.Collect()
	if n := pool.Stats().BytesInUse; n != 0 {
		t.Errorf("%d bytes are in use", n)
	}
	want := 0
	forgotten.Range(func(b, _ any) bool {
		want++
		for { // one that the runtime found may still be on its way
			mu.Lock()
			n := reported[b.(gpumem.Block)]
			mu.Unlock()
			if n == 1 {
				return true
			}
			runtime.Gosched()
		}
	})
	if len(reported) != want {
		t.Errorf("%d Buffers were reported, %d dropped", len(reported), want)
	}
}

// A program that wants to know where it forgets to free.
func ExampleWithLeaks() {
	dev, _ := sim.New(sim.Config{Total: 24 << 30})
	pool, _ := gpumem.Open(dev, frameworks.Default(), gpumem.WithLeaks(func(l gpumem.Leak) {
		who, _, _ := strings.Cut(l.Stack, " ")
		fmt.Println(l.Bytes>>20, "MiB were never freed, asked for by", who)
	}))
	pool.AllocBuffer(context.Background(), 64<<20)
	pool.Collect() // or sooner or later by itself
	fmt.Println(pool.Close())
	// Output:
	// 64 MiB were never freed, asked for by gpumem_test.ExampleWithLeaks
	// <nil>
}
