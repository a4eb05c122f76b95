package gpumem_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/policy"
)

// What holds a Buffer in these tests is a slot of a slice on the heap. Functions
// that handle one are not inlined, so that nothing of it is left in the frame of
// a test that asks for a collection.

//go:noinline
func fill(t testing.TB, pool *gpumem.Pool, slot **gpumem.Buffer, bytes uint64) {
	b, err := pool.AllocBuffer(context.Background(), bytes)
	if err != nil {
		t.Error(err)
		return
	}
	*slot = b
}

//go:noinline
func drop(t testing.TB, pool *gpumem.Pool, bytes uint64) gpumem.Block {
	b, err := pool.AllocBuffer(context.Background(), bytes)
	if err != nil {
		t.Error(err)
		return gpumem.Block{}
	}
	return b.Block()
}

func gib(t testing.TB) *sim.Device {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// dropped are the options under which Buffers are looked after.
var dropped = []struct {
	name string
	opts []gpumem.Option
}{
	{"plain", nil},
	{"leaks", []gpumem.Option{gpumem.WithLeaks(func(gpumem.Leak) {})}},
	{"collect", []gpumem.Option{gpumem.WithCollect()}},
	{"both", []gpumem.Option{gpumem.WithLeaks(func(gpumem.Leak) {}), gpumem.WithCollect()}},
}

// TestBuffer: a Buffer is a block with a Free of its own, whatever the options.
func TestBuffer(t *testing.T) {
	for _, spec := range append(specs, "async", "vmm", "elastic") {
		for _, with := range dropped {
			t.Run(spec+" "+with.name, func(t *testing.T) {
				pool := newPool(t, gib(t), spec, append(with.opts, gpumem.WithRetry(0))...)
				b, err := pool.AllocBuffer(t.Context(), 5000)
				if err != nil {
					t.Fatal(err)
				}
				other, err := pool.RequestBuffer(t.Context(), gpumem.Request{Bytes: mib, Align: 1 << 16})
				if err != nil {
					t.Fatal(err)
				}
				if b.Addr() == 0 || b.Bytes() < 5000 || b.Block().Addr != b.Addr() || other.Addr()%(1<<16) != 0 {
					t.Errorf("%v and %v", b.Block(), other.Block())
				}
				if got := pool.Stats().BytesInUse; got != b.Bytes()+other.Bytes() {
					t.Errorf("%d bytes in use", got)
				}
				first := b.Free()
				if second := b.Free(); first != nil || !errors.Is(second, gpumem.ErrDoubleFree) {
					t.Errorf("Free, twice: %v; %v", first, second)
				}
				again, err := pool.AllocBuffer(t.Context(), 5000)
				if err != nil {
					t.Fatal(err)
				}
				if err := b.Free(); !errors.Is(err, gpumem.ErrDoubleFree) {
					t.Errorf("Free after another took the place: %v", err)
				}
				none, err := pool.AllocBuffer(t.Context(), 0)
				if err != nil || none.Addr() != 0 || none.Bytes() != 0 || none.Free() != nil || none.Free() != nil {
					t.Errorf("0 bytes: %v, %v", none, err)
				}
				for _, bytes := range []uint64{2 << 30, 1<<64 - 1} {
					if b, err := pool.AllocBuffer(t.Context(), bytes); b != nil || !errors.Is(err, gpumem.ErrOutOfMemory) {
						t.Errorf("%d bytes: %v, %v", bytes, b, err)
					}
				}
				if got := pool.Stats().BytesInUse; got != again.Bytes()+other.Bytes() {
					t.Errorf("%d bytes in use", got)
				}
				if n := pool.Collect(); n != 0 {
					t.Errorf("%d Buffers that are held were found", n)
				}
				if err := pool.Close(); err != nil {
					t.Fatal(err)
				}
				if _, err := pool.AllocBuffer(t.Context(), 1); !errors.Is(err, gpumem.ErrClosed) {
					t.Errorf("AllocBuffer after Close: %v", err)
				}
				if err := other.Free(); !errors.Is(err, gpumem.ErrClosed) {
					t.Errorf("Free after Close: %v", err)
				}
				runtime.KeepAlive(again)
				if n := pool.Collect(); n != 0 {
					t.Errorf("%d Buffers found after Close", n)
				}
			})
		}
	}
}

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
			// not yet dropped or put in place of an older one.
			most := 2 * (live + live/set*uint64(tc.goroutines-1))
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
					if err != nil || b.Free() != nil || pool.Live() == nil && !collect {
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
				if !strings.HasPrefix(l.Stack, "gpumem_test.drop (collect_test.go:") || !strings.Contains(l.Stack, "gpumem_test.forget (") {
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
	dev.FailCall(dev.Counters().Calls+1, device.ErrInvalidValue)
	if l := nextLeak(leaks); l.Block != block || !errors.Is(l.Err, device.ErrInvalidValue) || pool.Stats().BytesInUse == 0 {
		t.Errorf("%+v, %d bytes in use", l, pool.Stats().BytesInUse)
	}
	if err := pool.Free(block); err != nil {
		t.Error(err)
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
	pool, _ := gpumem.Open(dev, policy.Default(), gpumem.WithCollect())
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

// A program that wants to know where it forgets to free.
func ExampleWithLeaks() {
	dev, _ := sim.New(sim.Config{Total: 24 << 30})
	pool, _ := gpumem.Open(dev, policy.Default(), gpumem.WithLeaks(func(l gpumem.Leak) {
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

// BenchmarkBuffer is an allocation and its free, without an owner and with one.
func BenchmarkBuffer(b *testing.B) {
	b.Run("block", func(b *testing.B) {
		pool := newPool(b, gib(b), "jax")
		b.ReportAllocs()
		for b.Loop() {
			x, _ := pool.Alloc(context.Background(), mib)
			_ = pool.Free(x)
		}
	})
	for _, with := range dropped {
		b.Run(with.name, func(b *testing.B) {
			pool := newPool(b, gib(b), "jax", append(with.opts, gpumem.WithStacks(false))...)
			b.ReportAllocs()
			for b.Loop() {
				x, _ := pool.AllocBuffer(context.Background(), mib)
				_ = x.Free()
			}
		})
	}
	b.Run("dropped", func(b *testing.B) {
		pool := newPool(b, gib(b), "jax", gpumem.WithCollect())
		held := make([]*gpumem.Buffer, 256)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			held[i%len(held)], _ = pool.AllocBuffer(context.Background(), mib)
		}
	})
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
