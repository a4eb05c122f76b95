package gpumem_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpumem"
	"gpumem/device/sim"
	"gpumem/policy/frameworks"
)

// TestDroppedBuffers: 10,000 dropped Buffers never push the pool over two live
// sets, whether the live set stays or turns over, by one goroutine or several.
func TestDroppedBuffers(t *testing.T) {
	const set = 32 // the live set is 32 Buffers of 1 MiB
	for _, tc := range []struct {
		spec       string
		goroutines int
		turns      bool // each Buffer takes the place of an older one
		count      int
	}{
		{"jax", 1, false, 10_000},
		{"jax", 1, true, 10_000},
		{"jax", 4, false, 10_000},
		{"jax", 4, true, 10_000},
		{"platform", 1, true, 1000},
		{"elastic", 1, true, 1000},
		{"elastic", 4, true, 1000},
		{"vmm", 1, true, 1000},
		{"async", 1, true, 1000},
	} {
		t.Run(fmt.Sprintf("%s, %d goroutines, turns %v", tc.spec, tc.goroutines, tc.turns), func(t *testing.T) {
			pool := newPool(t, gib(t), tc.spec, gpumem.WithCollect(), gpumem.WithStacks(false))
			var wg sync.WaitGroup
			held := make([]*gpumem.Buffer, set)
			for i := range held {
				fill(t, pool, &held[i], mib)
			}
			live := pool.Stats().BytesInUse // platform's blocks and vmm's are of 2 MiB
			// Alive is also what the other goroutines have just been given, and have
			// not yet dropped or put in place of an older one; and the Buffer that the
			// runtime takes for alive, for one collection, because a word like its
			// address lies in the frame of a goroutine that it had to preempt.
			most := 2 * (live + live/set*uint64(tc.goroutines))
			before := forced()
			for g := range tc.goroutines {
				mine := held[g*set/tc.goroutines : (g+1)*set/tc.goroutines]
				wg.Go(func() {
					for i := range tc.count / tc.goroutines {
						if tc.turns {
							fill(t, pool, &mine[i%len(mine)], mib)
						} else {
							drop(t, pool, mib)
						}
						if n := pool.Stats().BytesInUse; n > most {
							t.Errorf("%d MiB are in use after %d Buffers; the live set is %d", n/mib, i, live/mib)
							return
						}
					}
				})
			}
			wg.Wait()
			// One collection serves a live set, or the half of one that others have
			// left; the first goroutines to need one may each begin one.
			if n := forced() - before; n > 2*tc.count/set+tc.goroutines {
				t.Errorf("%d collections for %d Buffers", n, tc.count)
			}
			pool.Collect()
			if n := pool.Stats().BytesInUse; n != live {
				t.Errorf("%d MiB are in use at the end, want %d", n/mib, live/mib)
			}
			runtime.KeepAlive(held)
			if err := pool.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// forced is how many collections were asked for in this program.
func forced() int {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.NumForcedGC)
}

// TestFreedByHand: a program that frees what it has never makes the pool
// collect, whatever the sizes, once the pool has seen them.
func TestFreedByHand(t *testing.T) {
	pool := newPool(t, gib(t), "jax", gpumem.WithCollect(), gpumem.WithLeaks(func(l gpumem.Leak) { t.Errorf("leak %v", l) }))
	var weights *gpumem.Buffer
	fill(t, pool, &weights, 10*mib)
	var before int
	for i := range 200 {
		if i == 1 {
			before = forced()
		}
		b, err := pool.AllocBuffer(t.Context(), 100*mib) // ten live sets
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Free(); err != nil {
			t.Fatal(err)
		}
	}
	if n := forced() - before; n != 0 {
		t.Errorf("%d collections in 199 steps that free everything", n)
	}
	if err := weights.Free(); err != nil {
		t.Error(err)
	}
}

// TestImpossibleRequests: what was asked for and refused moves no goal.
func TestImpossibleRequests(t *testing.T) {
	pool := newPool(t, gib(t), "jax", gpumem.WithCollect(), gpumem.WithRetry(0))
	held := make([]*gpumem.Buffer, 1)
	fill(t, pool, &held[0], 32*mib)
	for _, bytes := range []uint64{900 * mib, 2 << 30, 1<<64 - 1} {
		if _, err := pool.AllocBuffer(t.Context(), bytes); !errors.Is(err, gpumem.ErrOutOfMemory) {
			t.Errorf("%d bytes: %v", bytes, err)
		}
	}
	for i := range 200 {
		drop(t, pool, mib)
		if n := pool.Stats().BytesInUse; n > 66*mib { // one that the runtime takes for alive
			t.Fatalf("%d MiB are in use after %d Buffers; the live set is 32", n/mib, i)
		}
	}
	runtime.KeepAlive(held)
}

// TestRefusedRequestCollects: dropped Buffers are found before a request is
// refused, an owner's or not, even where they are not many.
func TestRefusedRequestCollects(t *testing.T) {
	for _, spec := range []string{"bfc:limit=48MiB", "platform", "elastic"} {
		for _, what := range []string{"block", "buffer"} {
			t.Run(spec+" "+what, func(t *testing.T) {
				dev, err := sim.New(sim.Config{Total: 48 * mib})
				if err != nil {
					t.Fatal(err)
				}
				pool := newPool(t, dev, spec, gpumem.WithRetry(0), gpumem.WithCollect())
				request := func(bytes uint64) error {
					if what == "block" {
						_, err := pool.Alloc(t.Context(), bytes)
						return err
					}
					var b *gpumem.Buffer
					b, err := pool.AllocBuffer(t.Context(), bytes)
					runtime.KeepAlive(b)
					return err
				}
				held := make([]*gpumem.Buffer, 1)
				fill(t, pool, &held[0], 16*mib)
				pool.Collect() // from here on Buffers may take 32 MiB
				drop(t, pool, 8*mib)
				if _, err := pool.Alloc(t.Context(), 20*mib); err != nil {
					t.Fatal(err)
				}
				before := forced()
				if err := request(6 * mib); err != nil {
					t.Errorf("with 8 MiB that nobody holds: %v", err)
				}
				if n := forced() - before; n != 1 {
					t.Errorf("%d collections", n)
				}
				if _, err := pool.TryAlloc(20 * mib); !errors.Is(err, gpumem.ErrOutOfMemory) || forced()-before != 1 {
					t.Errorf("TryAlloc: %v, after %d collections", err, forced()-before)
				}
				if err := request(40 * mib); !errors.Is(err, gpumem.ErrOutOfMemory) {
					t.Errorf("with nothing to be found: %v", err)
				}
				runtime.KeepAlive(held)
			})
		}
	}
}

// TestDroppedWhileWaiting: what is dropped while a request waits is found before
// it gives up.
func TestDroppedWhileWaiting(t *testing.T) {
	pool := newPool(t, device64(t), "bfc:limit=16MiB", gpumem.WithRetry(time.Hour), gpumem.WithCollect())
	var held sync.Map
	fillMap(t, pool, &held)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := pool.Alloc(ctx, 12*mib)
		done <- err
	}()
	held.Clear()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("with 12 MiB that nobody holds: %v", err)
	}
}

//go:noinline
func fillMap(t testing.TB, pool *gpumem.Pool, m *sync.Map) {
	b, err := pool.AllocBuffer(context.Background(), 12*mib)
	if err != nil {
		t.Fatal(err)
	}
	m.Store("b", b)
}

// TestBufferModel: random programs against a model, which is what each slot
// holds. After a collection exactly that is in use; before it, no more than twice
// the most that was, or the floor (and what jax's blocks are larger than asked).
func TestBufferModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dev, err := sim.New(sim.Config{Total: 1 << 30})
		if err != nil {
			rt.Fatal(err)
		}
		spec := rapid.SampledFrom([]string{"jax", "platform", "elastic"}).Draw(rt, "policy")
		pool := newPool(t, dev, spec, gpumem.WithCollect(), gpumem.WithStacks(false))
		defer pool.Close()
		slots := make([]*gpumem.Buffer, 8)
		sizes := make([]uint64, len(slots))
		var live, most uint64
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			i := rapid.IntRange(0, len(slots)-1).Draw(rt, "slot")
			switch rapid.SampledFrom([]string{"fill", "fill", "fill", "free", "drop", "collect"}).Draw(rt, "what") {
			case "fill": // and drop what was there
				// Whole units of platform and elastic, whose blocks are what was asked for.
				fill(t, pool, &slots[i], rapid.Uint64Range(1, 10).Draw(rt, "size")*2*mib)
				n := slots[i].Bytes()
				most = max(most, live+n)
				live += n - sizes[i]
				sizes[i] = n
			case "free":
				if slots[i] != nil {
					if err := slots[i].Free(); err != nil {
						rt.Fatal(err)
					}
				}
				live -= sizes[i]
				slots[i], sizes[i] = nil, 0
			case "drop":
				live -= sizes[i]
				slots[i], sizes[i] = nil, 0
			case "collect":
				pool.Collect()
				if n := pool.Stats().BytesInUse; n != live {
					rt.Fatalf("%d bytes are in use after a collection, %d are held", n, live)
				}
			}
			if n := pool.Stats().BytesInUse; n < live || n > max(2*most, 16*mib) && spec != "jax" {
				rt.Fatalf("%d bytes are in use; %d are held, at most %d were", n, live, most)
			}
		}
		runtime.KeepAlive(slots)
	})
}

// A program that drops its Buffers like Go memory.
func ExampleWithCollect() {
	dev, _ := sim.New(sim.Config{Total: 24 << 30})
	pool, _ := gpumem.Open(dev, frameworks.Default(), gpumem.WithCollect())
	defer pool.Close()
	weights, _ := pool.AllocBuffer(context.Background(), 512<<20)
	most := uint64(0)
	for range 1000 {
		if _, err := pool.AllocBuffer(context.Background(), 64<<20); err != nil {
			fmt.Println(err)
			return
		}
		most = max(most, pool.Stats().BytesInUse)
	}
	fmt.Println("1000 x 64 MiB were dropped; at most", most>>20, "MiB were in use")
	fmt.Println(weights.Free())
	// Output:
	// 1000 x 64 MiB were dropped; at most 1024 MiB were in use
	// <nil>
}

// BenchmarkCollect is a collection with so many Buffers held, of which none is
// found.
func BenchmarkCollect(b *testing.B) {
	for _, n := range []int{0, 1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			pool := newPool(b, gib(b), "jax", gpumem.WithCollect())
			defer pool.Close()
			held := make([]*gpumem.Buffer, n)
			for i := range held {
				fill(b, pool, &held[i], 4096)
			}
			for b.Loop() {
				pool.Collect()
			}
			runtime.KeepAlive(held)
		})
	}
}
