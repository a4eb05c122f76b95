package gpumem_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gpumem"
	"gpumem/alloc"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/internal/invariants"
	"gpumem/policy"
	"gpumem/policy/frameworks"
)

const mib = 1 << 20

func device64(t testing.TB) *sim.Device {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: 64 * mib})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

func newPool(t testing.TB, dev device.GPU, spec string, opts ...gpumem.Option) *gpumem.Pool {
	t.Helper()
	p, err := frameworks.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := gpumem.Open(dev, p, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

// specs are the policies that every test of a pool's promises runs under.
var specs = []string{"jax", "jax:preallocate=false", "bfc:fraction=1", "bfc:fraction=1,preallocate=false,gc=true", "platform", "address", "pytorch"}

func TestNothingIsTakenBeforeTheFirstAllocation(t *testing.T) {
	for _, spec := range specs {
		t.Run(spec, func(t *testing.T) {
			dev := device64(t)
			pool := newPool(t, dev, spec)
			if _, err := pool.Alloc(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			if held, _ := dev.Held(); held != 0 || pool.Stats().PoolBytes != 0 {
				t.Fatalf("%d bytes held, %d in the pool", held, pool.Stats().PoolBytes)
			}
			if _, err := pool.Alloc(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			held, _ := dev.Held()
			if held == 0 || held != pool.Stats().PoolBytes {
				t.Fatalf("%d bytes held, %d in the pool", held, pool.Stats().PoolBytes)
			}
			if err := pool.Close(); err != nil {
				t.Fatal(err)
			}
			if held, _ := dev.Held(); held != 0 {
				t.Fatalf("%d bytes held after Close", held)
			}
		})
	}
}

// TestFirstRegion is rows P1, P2 and P5 of the page: what the first operation
// takes, by release and fraction. 24 GiB is 25,769,803,776 bytes.
func TestFirstRegion(t *testing.T) {
	for _, tc := range []struct {
		spec  string
		used  uint64 // by another program
		limit uint64 // of the pool
		taken uint64 // of the device, which rounds up to 2 MiB
	}{
		{"jax", 0, 18 << 30, 18 << 30},
		{"jax", 2 << 30, 18 << 30, 18 << 30}, // of the total, whoever else is there
		{"jax:fraction=.5", 0, 12 << 30, 12 << 30},
		{"jax:fraction=.9", 0, 23194501120, 23194501120},        // trunc(total x float32(.9)) = 23192822784, up to 2 MiB
		{"jax@0.10.1:fraction=.9", 0, 23192822784, 23192822784}, // not rounded before 0.10.2, whatever the driver does
		{"jax@0.4.1", 0, 23192823398, 23192823296},              // .9 of the total, in double precision, cut to 256
		{"jax@0.1.16", 4 << 30, 19327352832, 19327352832},       // .9 of what is free
		{"jax:preallocate=false", 0, 18 << 30, 2 << 20},         // growth: 2 MiB first
		{"jax:limit=1GiB", 0, 1 << 30, 1 << 30},                 // as it is
		{"bfc:fraction=.9", 0, 23192823398, 23194501120},        // all that the device grants
	} {
		t.Run(tc.spec, func(t *testing.T) {
			dev, err := sim.New(sim.Config{Total: 24 << 30, Used: tc.used})
			if err != nil {
				t.Fatal(err)
			}
			pool := newPool(t, dev, tc.spec)
			if _, err := pool.Alloc(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if s := pool.Stats(); s.BytesLimit != tc.limit || s.PoolBytes != tc.taken {
				t.Errorf("limit %d, taken %d; want %d, %d", s.BytesLimit, s.PoolBytes, tc.limit, tc.taken)
			}
		})
	}
}

// TestBackOff is row P3: a preallocation that the device refuses is asked for
// again at 0.9 of the size, and says so.
func TestBackOff(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 24 << 30, Used: 8 << 30})
	if err != nil {
		t.Fatal(err)
	}
	var log []string
	pool := newPool(t, dev, "jax", gpumem.WithLog(func(m gpumem.Message) {
		log = append(log, fmt.Sprintf("%c %s", m.Severity, m.Text))
	}))
	if _, err := pool.Alloc(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	// 18 GiB, 16.2 refused; 0.81 x 18 = 14.58 GiB fits into 16.
	if got := pool.Stats().PoolBytes >> 20; got != 14930 {
		t.Errorf("took %d MiB, want 14930", got)
	}
	want := []string{
		"E [0] Failed to allocate device memory of 18.00GiB (19327352832 bytes): CUDA_ERROR_OUT_OF_MEMORY: out of memory",
		"E [0] Failed to allocate device memory of 16.20GiB (17394616320 bytes): CUDA_ERROR_OUT_OF_MEMORY: out of memory",
		"I GPU_0_bfc backed off: refused 18.00GiB, it took 14.58GiB (refusals: 2, limit: 18.00GiB)",
	}
	if strings.Join(log, "\n") != strings.Join(want, "\n") {
		t.Errorf("log:\n%s\nwant:\n%s", strings.Join(log, "\n"), strings.Join(want, "\n"))
	}
}

// TestEnvWaitsAsJAX: the policy env has JAX's retry, unless the allocator is one that
// does not wait in XLA.
func TestEnvWaitsAsJAX(t *testing.T) {
	for _, tc := range []struct {
		env  []string
		want time.Duration
	}{
		{nil, gpumem.DefaultRetry},
		{[]string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform"}, gpumem.DefaultRetry},
		{[]string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"}, 0},
		{[]string{"XLA_PYTHON_CLIENT_ALLOCATOR=vmm"}, 0},
	} {
		t.Run(fmt.Sprint(tc.env), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, _, err := frameworks.FromEnv(policy.Environ(tc.env))
				if err != nil {
					t.Fatal(err)
				}
				pool, err := gpumem.Open(device64(t), p)
				if err != nil {
					t.Fatal(err)
				}
				defer pool.Close()
				if _, err := pool.Alloc(t.Context(), 40*mib); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				if _, err := pool.Alloc(t.Context(), 40*mib); !errors.Is(err, gpumem.ErrOutOfMemory) || time.Since(start) != tc.want {
					t.Errorf("%v after %v, want out of memory after %v", err, time.Since(start), tc.want)
				}
			})
		})
	}
}

// TestWait is the retry of the original: an allocation that does not fit waits
// for a free, at most ten seconds, no longer than its context, and not at all
// when nothing is live. Time is the test's own.
func TestWait(t *testing.T) {
	for _, spec := range []string{"bfc:limit=16MiB", "platform"} {
		block := uint64(12 * mib)
		if spec == "platform" {
			block = 48 * mib
		}
		t.Run(spec+" freed", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pool := newPool(t, device64(t), spec, gpumem.WithRetry(gpumem.DefaultRetry))
				first, err := pool.Alloc(t.Context(), block)
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan error)
				go func() {
					_, err := pool.Alloc(t.Context(), block)
					done <- err
				}()
				synctest.Wait() // it waits now
				time.Sleep(9 * time.Second)
				if err := pool.Free(first); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Fatalf("after a free: %v", err)
				}
			})
		})
		t.Run(spec+" ten seconds", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pool := newPool(t, device64(t), spec, gpumem.WithRetry(gpumem.DefaultRetry))
				if _, err := pool.Alloc(t.Context(), block); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				_, err := pool.Alloc(t.Context(), block)
				var oom *gpumem.OutOfMemoryError
				if !errors.As(err, &oom) || !errors.Is(err, gpumem.ErrOutOfMemory) {
					t.Fatalf("%v, want an OutOfMemoryError", err)
				}
				if took := time.Since(start); took != gpumem.DefaultRetry || oom.Waited != took {
					t.Errorf("gave up after %v, says %v; want 10s", took, oom.Waited)
				}
			})
		})
		t.Run(spec+" by default", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pool := newPool(t, device64(t), spec)
				if _, err := pool.Alloc(t.Context(), block); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				if _, err := pool.Alloc(t.Context(), block); !errors.Is(err, gpumem.ErrOutOfMemory) || time.Since(start) != 0 {
					t.Errorf("%v after %v; want out of memory at once", err, time.Since(start))
				}
			})
		})
		t.Run(spec+" context", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pool := newPool(t, device64(t), spec, gpumem.WithRetry(gpumem.DefaultRetry))
				if _, err := pool.Alloc(t.Context(), block); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				start := time.Now()
				_, err := pool.Alloc(ctx, block)
				if !errors.Is(err, gpumem.ErrOutOfMemory) || !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("%v, want both out of memory and the deadline", err)
				}
				if took := time.Since(start); took != 3*time.Second {
					t.Errorf("gave up after %v, want 3s", took)
				}
			})
		})
		t.Run(spec+" nothing to wait for", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dev := device64(t)
				dev.SetFaults(sim.Faults{RefuseAbove: 1 * mib})
				pool := newPool(t, dev, spec, gpumem.WithRetry(gpumem.DefaultRetry))
				start := time.Now()
				if _, err := pool.Alloc(t.Context(), block); !errors.Is(err, gpumem.ErrOutOfMemory) {
					t.Fatalf("%v, want out of memory", err)
				}
				if took := time.Since(start); took != 0 {
					t.Errorf("waited %v with nothing live", took)
				}
			})
		})
		t.Run(spec+" more than the limit", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pool := newPool(t, device64(t), spec, gpumem.WithRetry(gpumem.DefaultRetry))
				if _, err := pool.Alloc(t.Context(), block); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				for _, n := range []uint64{65 * mib, 1<<64 - 1} {
					if _, err := pool.Alloc(t.Context(), n); !errors.Is(err, gpumem.ErrOutOfMemory) {
						t.Fatalf("%v, want out of memory", err)
					}
				}
				if took := time.Since(start); took != 0 {
					t.Errorf("waited %v for what can never be", took)
				}
			})
		})
		t.Run(spec+" closed", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pool := newPool(t, device64(t), spec, gpumem.WithRetry(gpumem.DefaultRetry))
				if _, err := pool.Alloc(t.Context(), block); err != nil {
					t.Fatal(err)
				}
				done := make(chan error)
				go func() {
					_, err := pool.Alloc(t.Context(), block)
					done <- err
				}()
				synctest.Wait()
				if err := pool.Close(); err != nil {
					t.Fatal(err)
				}
				if err := <-done; !errors.Is(err, gpumem.ErrClosed) {
					t.Fatalf("%v, want ErrClosed", err)
				}
			})
		})
	}
}

func TestMisuse(t *testing.T) {
	for _, spec := range specs {
		t.Run(spec, func(t *testing.T) {
			pool := newPool(t, device64(t), spec, gpumem.WithRetry(0))
			b, err := pool.Alloc(t.Context(), 5000)
			if err != nil {
				t.Fatal(err)
			}
			other := newPool(t, device64(t), spec)
			foreign, err := other.Alloc(t.Context(), 5000)
			if err != nil {
				t.Fatal(err)
			}
			if err := pool.Free(b); err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				what string
				err  error
				want error
			}{
				{"double free", pool.Free(b), gpumem.ErrDoubleFree},
				{"free of nobody's address", pool.FreeAddr(0x1000), gpumem.ErrNotAllocated},
				{"batch of double frees", pool.FreeBatch([]gpumem.Block{b, b}), gpumem.ErrDoubleFree},
				{"another pool's block", pool.Free(foreign), nil},
			} {
				if c.want != nil && !errors.Is(c.err, c.want) || c.err == nil {
					t.Errorf("%s: %v, want %v", c.what, c.err, c.want)
				}
			}
			if err := pool.Close(); err != nil {
				t.Fatal(err)
			}
			_, err = pool.Alloc(t.Context(), 1)
			_, trim := pool.Trim()
			for what, err := range map[string]error{
				"Alloc": err, "Free": pool.Free(b), "FreeAddr": pool.FreeAddr(b.Addr), "Trim": trim, "Close": pool.Close(),
			} {
				if !errors.Is(err, gpumem.ErrClosed) {
					t.Errorf("%s after Close: %v", what, err)
				}
			}
			if s := pool.Stats(); s.BytesInUse != 0 {
				t.Errorf("statistics after Close: %+v", s)
			}
		})
	}
}

// TestPlatformNamesTheAllocation: under platform a refusal names who asked,
// with its stack, and everything alive by who asked for it.
func TestPlatformNamesTheAllocation(t *testing.T) {
	pool := newPool(t, device64(t), "platform", gpumem.WithRetry(0))
	for range 3 {
		weights(t, pool)
	}
	activations(t, pool)
	_, err := pool.Alloc(t.Context(), 40*mib)
	var oom *gpumem.OutOfMemoryError
	if !errors.As(err, &oom) {
		t.Fatalf("%v, want an OutOfMemoryError", err)
	}
	if !strings.HasPrefix(oom.Stack, "gpumem_test.TestPlatformNamesTheAllocation (gpumem_test.go:") {
		t.Errorf("stack of the request:\n%s", oom.Stack)
	}
	if len(oom.Live) != 2 || oom.Live[0].Bytes != 30*mib || oom.Live[0].Blocks != 3 || oom.Live[1].Bytes != 6*mib {
		t.Fatalf("alive: %+v", oom.Live)
	}
	report := oom.Report()
	for _, want := range []string{
		"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 40.00MiB with allocator platform on device 0.",
		"30 MiB (3 x), asked for by\n    gpumem_test.weights (gpumem_test.go:",
		"6 MiB (1 x), asked for by\n    gpumem_test.activations (gpumem_test.go:",
		"The device has 28 MiB free. Live are 36 MiB (blocks: 4), of which rounding wastes 4.00 MiB.",
		"Would a pool, in which blocks share grants, have served it: no.",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("report lacks %q:\n%s", want, report)
		}
	}
}

func weights(t *testing.T, p *gpumem.Pool) {
	if _, err := p.Alloc(t.Context(), 9*mib); err != nil {
		t.Fatal(err)
	}
}

func activations(t *testing.T, p *gpumem.Pool) {
	if _, err := p.Alloc(t.Context(), 5*mib+1); err != nil {
		t.Fatal(err)
	}
}

// TestWhy is the section of our own in a pool's report: the largest hole, the
// block that pins it, and what would have served the request.
func TestWhy(t *testing.T) {
	dev := device64(t)
	pool := newPool(t, dev, "bfc:limit=16MiB", gpumem.WithRetry(0))
	var blocks []gpumem.Block
	for range 16 {
		b, err := pool.Alloc(t.Context(), mib)
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, b)
	}
	for _, i := range []int{2, 3, 5, 6, 10} { // holes of 2, 2 and 1 MiB; block 4 lies between the first two
		if err := pool.Free(blocks[i]); err != nil {
			t.Fatal(err)
		}
	}
	_, err := pool.Alloc(t.Context(), 4*mib)
	var oom *gpumem.OutOfMemoryError
	if !errors.As(err, &oom) {
		t.Fatalf("%v, want an OutOfMemoryError", err)
	}
	c := oom.Cause
	if c.Hole != 2*mib || c.Stranded != 3*mib || c.Pin.Addr != blocks[4].Addr || c.PinHole != 5*mib {
		t.Errorf("cause: %+v", c)
	}
	if !c.Growth() || c.Splitting() || !c.Paged() {
		t.Errorf("growth %v, splitting %v, paged %v; want yes, no, yes", c.Growth(), c.Splitting(), c.Paged())
	}
	if !strings.Contains(oom.Report(), "One live block pins the memory: 1 MiB") {
		t.Error(oom.Report())
	}
	if !strings.HasPrefix(oom.Report(), "W Allocator (GPU_0_bfc) ran out of memory trying to allocate 4.00MiB (rounded to 4194304) from the lower end requested by op \n") {
		t.Error(oom.Report())
	}
}

func TestReportsAreLimited(t *testing.T) {
	pool := newPool(t, device64(t), "bfc:limit=16MiB", gpumem.WithRetry(0))
	full := 0
	for range 20 {
		_, err := pool.Alloc(t.Context(), 17*mib)
		var oom *gpumem.OutOfMemoryError
		if !errors.As(err, &oom) {
			t.Fatal(err)
		}
		if oom.Layout != nil {
			full++
		}
		if oom.Cause.Limit != 16*mib {
			t.Fatalf("cause %+v", oom.Cause)
		}
	}
	if full != 10 {
		t.Errorf("%d full reports, want 10", full)
	}
}

func TestBatch(t *testing.T) {
	pool := newPool(t, device64(t), "bfc:limit=16MiB")
	reqs := make([]gpumem.Request, 20)
	for i := range reqs {
		reqs[i].Bytes = mib
	}
	out := make([]gpumem.Block, len(reqs))
	n, err := pool.AllocBatch(reqs, out)
	if n != 16 || !errors.Is(err, gpumem.ErrOutOfMemory) {
		t.Fatalf("%d, %v; want 16 and out of memory", n, err)
	}
	if err := pool.FreeBatch(out[:n]); err != nil {
		t.Fatal(err)
	}
	if s := pool.Stats(); s.BytesInUse != 0 || s.NumAllocs != 16 {
		t.Errorf("%+v", s)
	}
}

// TestUnknownPolicies: what nobody builds is said, not replaced.
func TestUnknownPolicies(t *testing.T) {
	if _, err := gpumem.Open(device64(t), policy.Policy{Spec: "mine", Kind: 99}); !errors.Is(err, gpumem.ErrNoPolicy) || !strings.Contains(err.Error(), "policy mine") {
		t.Errorf("%v, want ErrNoPolicy and the policy's name", err)
	}
	// What the device cannot do is said with what it can.
	dev, err := sim.New(sim.Config{Total: 1 << 30, NoPages: true, NoPools: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range []string{"async", "vmm", "elastic"} {
		p, err := frameworks.Parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := gpumem.Open(dev, p); err == nil || !strings.Contains(err.Error(), "policy "+spec) || !strings.Contains(err.Error(), "platform") {
			t.Errorf("%s: %v; want the policy's name, and platform as a way out", spec, err)
		}
	}
}

// TestFaults opens, uses and closes a pool with the device failing at each call
// in turn. Nothing panics or hangs, and what the pool says it holds is what the
// device says.
func TestFaults(t *testing.T) {
	program := func(pool *gpumem.Pool) {
		var live []gpumem.Block
		for i := range 40 {
			b, err := pool.Alloc(context.Background(), uint64(i%5+1)*mib)
			if err == nil {
				live = append(live, b)
			}
			if i%3 == 2 && len(live) > 0 {
				if pool.Free(live[0]) == nil {
					live = live[1:]
				}
			}
		}
		_, _ = pool.Trim()
	}
	for _, spec := range specs {
		t.Run(spec, func(t *testing.T) {
			dev := device64(t)
			pool := newPool(t, dev, spec, gpumem.WithRetry(0))
			program(pool)
			if err := pool.Close(); err != nil {
				t.Fatal(err)
			}
			for n := range dev.Counters().Calls {
				for _, lose := range []bool{false, true} {
					dev := device64(t)
					if lose {
						dev.SetFaults(sim.Faults{LoseAt: n + 1})
					} else {
						dev.SetFaults(sim.Faults{FailAt: n + 1})
					}
					pool := newPool(t, dev, spec, gpumem.WithRetry(0))
					program(pool)
					held, _ := dev.Held()
					if s := pool.Stats(); s.PoolBytes != held {
						t.Fatalf("call %d (lost %v): pool says %d, device %d", n+1, lose, s.PoolBytes, held)
					}
					err := pool.Close()
					if held, _ := dev.Held(); err == nil && held != 0 {
						t.Fatalf("call %d (lost %v): %d bytes held after Close without an error", n+1, lose, held)
					}
				}
			}
		})
	}
}

// TestManyGoroutines hammers one pool from 64 goroutines. Each writes its own
// number beside the blocks it holds; two live blocks that overlap are found.
//
// Under platform each block takes 2 MiB of the device, so that some must wait for others.
// There is room for 64 times 3 and one more: not all can hold 3 and wait for the fourth.
func TestManyGoroutines(t *testing.T) {
	const total = (64*3 + 1) * 2 * mib
	for _, spec := range []string{"jax", "bfc:fraction=1,preallocate=false", "platform"} {
		t.Run(spec, func(t *testing.T) {
			dev, err := sim.New(sim.Config{Total: total})
			if err != nil {
				t.Fatal(err)
			}
			pool := newPool(t, dev, spec, gpumem.WithRetry(time.Minute), gpumem.WithStacks(false))
			var owner [total / 4096]atomic.Int32 // of each 4 KiB unit; addresses are reduced to the pool's span
			span := func(b gpumem.Block) (lo, hi uint64) { return b.Addr / 4096, (b.Addr + b.Size + 4095) / 4096 }
			check := spec == "jax" // one region: addresses map to units one to one
			var wg sync.WaitGroup
			for id := range 64 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(9, uint64(id)))
					var live []gpumem.Block
					for range 400 {
						if len(live) < 4 && r.IntN(2) == 0 {
							b, err := pool.Request(context.Background(), gpumem.Request{Bytes: uint64(r.IntN(200_000) + 1), Align: 4096})
							if err != nil {
								t.Error(err)
								return
							}
							if check {
								for u, hi := span(b); u < hi; u++ {
									if !owner[u%uint64(len(owner))].CompareAndSwap(0, int32(id+1)) {
										t.Errorf("goroutine %d: unit %d of %v belongs to another", id, u, b)
										return
									}
								}
							}
							live = append(live, b)
						} else if len(live) > 0 {
							k := r.IntN(len(live))
							b := live[k]
							live[k] = live[len(live)-1]
							live = live[:len(live)-1]
							if check {
								for u, hi := span(b); u < hi; u++ {
									owner[u%uint64(len(owner))].Store(0)
								}
							}
							var err error
							if r.IntN(2) == 0 {
								err = pool.Free(b)
							} else {
								err = pool.FreeAddr(b.Addr)
							}
							if err != nil {
								t.Error(err)
								return
							}
						}
						if r.IntN(50) == 0 {
							pool.Stats()
						}
					}
					for _, b := range live {
						for u, hi := span(b); check && u < hi; u++ {
							owner[u%uint64(len(owner))].Store(0)
						}
					}
					if err := pool.FreeBatch(live); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if s := pool.Stats(); s.BytesInUse != 0 {
				t.Errorf("%d bytes in use at the end", s.BytesInUse)
			}
			if err := pool.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestNoGarbage: an operation of a pool allocates nothing on the Go heap, by
// block and by address.
func TestNoGarbage(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the checks of an invariants build allocate")
	}
	pool := newPool(t, device64(t), "jax")
	turn := func() {
		a, _ := pool.Alloc(context.Background(), 1*mib)
		b, _ := pool.TryAlloc(300)
		_ = pool.FreeAddr(a.Addr)
		_ = pool.Free(b)
	}
	turn()
	if n := testing.AllocsPerRun(500, turn); n != 0 {
		t.Errorf("%v allocations on the Go heap for four operations", n)
	}
}

// TestJSONKeys: the statistics bear the keys of jax.Device.memory_stats().
func TestJSONKeys(t *testing.T) {
	b, err := json.Marshal(gpumem.Stats{NumAllocs: 1, BytesInUse: 2, PeakBytesInUse: 3, LargestAllocSize: 4, BytesLimit: 5, LargestFreeBlock: 8, PoolBytes: 9, PeakPoolBytes: 10})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"num_allocs":1,"bytes_in_use":2,"peak_bytes_in_use":3,"largest_alloc_size":4,"bytes_limit":5,` +
		`"bytes_reserved":0,"peak_bytes_reserved":0,"largest_free_block_bytes":8,"pool_bytes":9,"peak_pool_bytes":10}`
	if string(b) != want {
		t.Errorf("%s\nwant %s", b, want)
	}
}

// TestStacks: with stacks kept, Live names who holds the memory.
func TestStacks(t *testing.T) {
	pool := newPool(t, device64(t), "jax", gpumem.WithStacks(true))
	for range 4 {
		weights(t, pool)
	}
	live := pool.Live()
	if len(live) != 1 || live[0].Blocks != 4 || !strings.HasPrefix(live[0].Stack, "gpumem_test.weights (gpumem_test.go:") {
		t.Errorf("%+v", live)
	}
	var pieces int
	pool.Walk(func(c alloc.Chunk) bool { pieces++; return true })
	if pieces != 5 {
		t.Errorf("%d pieces, want 4 blocks and the rest", pieces)
	}
}

func Example() {
	dev, _ := sim.New(sim.Config{Total: 24 << 30})
	pool, err := gpumem.Open(dev, frameworks.Default())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("before:", pool.Stats().PoolBytes>>30, "GiB taken")
	block, err := pool.Alloc(context.Background(), 64<<20)
	if err != nil {
		fmt.Println(err)
		return
	}
	s := pool.Stats()
	fmt.Println("after:", s.PoolBytes>>30, "GiB taken,", s.BytesInUse>>20, "MiB in use")
	fmt.Println(pool.Free(block), pool.Close())
	// Output:
	// before: 0 GiB taken
	// after: 18 GiB taken, 64 MiB in use
	// <nil> <nil>
}

func BenchmarkPool(b *testing.B) {
	for _, spec := range []string{"jax", "jax:preallocate=false"} {
		b.Run(spec, func(b *testing.B) {
			dev, _ := sim.New(sim.Config{Total: 24 << 30})
			pool := newPool(b, dev, spec)
			b.ReportAllocs()
			for b.Loop() {
				x, err := pool.Alloc(context.Background(), 1<<20)
				if err != nil {
					b.Fatal(err)
				}
				if err := pool.Free(x); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
