package gpumem_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
)

// TestAskedPoolDoesNotHoldUpAnother: a pool whose idle memory is still used by
// work releases it when that is done; the request of another pool does not wait
// for that unless it may.
func TestAskedPoolDoesNotHoldUpAnother(t *testing.T) {
	for _, spec := range []string{"elastic", "jax:limit=512MiB,preallocate=false,spatial=false", "platform", "vmm"} {
		t.Run(spec, func(t *testing.T) {
			dev := gib(t)
			g := gatedDevice{dev, make(chan struct{}), make(chan struct{}, 1)}
			a := newPool(t, g, "elastic", gpumem.WithRetry(0), gpumem.WithIdleTrim(0), gpumem.WithLowWater(0))
			x, err := a.Alloc(t.Context(), 900*mib)
			if err != nil {
				t.Fatal(err)
			}
			if err := dev.Work(0, time.Hour, nil, []device.Range{{Addr: x.Addr, Bytes: x.Size}}); err != nil {
				t.Fatal(err)
			}
			if err := a.Free(x); err != nil {
				t.Fatal(err)
			}
			b := newPool(t, g, spec, gpumem.WithRetry(0))
			if _, err := b.Alloc(t.Context(), 400*mib); !errors.Is(err, gpumem.ErrOutOfMemory) {
				t.Fatalf("400 of 1,024 MiB, of which work uses 900: %v", err)
			}
			close(g.gate)
			patient := newPool(t, g, spec, gpumem.WithRetry(time.Minute))
			if _, err := patient.Alloc(t.Context(), mib); err != nil {
				t.Fatal(err)
			}
			if _, err := patient.Alloc(t.Context(), 400*mib); err != nil {
				t.Errorf("when the work is done: %v", err)
			}
			for _, p := range []*gpumem.Pool{a, b, patient} {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestRefusedRequestWakesThoseThatWait: a request that is refused asks the device what is
// free. If that is more than before, the others that wait try again: they cannot see it any
// more.
func TestRefusedRequestWakesThoseThatWait(t *testing.T) {
	for _, spec := range []string{"elastic", "platform", "bfc:preallocate=false"} {
		t.Run(spec, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dev, err := sim.New(sim.Config{Total: 8 << 30})
				if err != nil {
					t.Fatal(err)
				}
				pool := newPool(t, dev, spec, gpumem.WithRetry(time.Hour))
				if _, err := pool.Alloc(t.Context(), 64*mib); err != nil {
					t.Fatal(err)
				}
				free, _, err := dev.MemInfo()
				if err != nil {
					t.Fatal(err)
				}
				dev.SetUsed(free - 100*mib) // others hold it
				served := false
				go func() {
					if _, err := pool.Alloc(t.Context(), 1<<30); err != nil {
						t.Error(err)
					}
					served = true
				}()
				synctest.Wait() // it waits now
				dev.SetUsed(3 << 30)
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if _, err := pool.Alloc(ctx, 6<<30); !errors.Is(err, gpumem.ErrOutOfMemory) {
					t.Errorf("6 GiB of 5: %v", err)
				}
				synctest.Wait()
				if !served {
					t.Error("1 GiB of 5 is not served")
				}
				time.Sleep(2 * time.Hour)
				if err := pool.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestTrimWaitsOnceInABusyPool: what others free while Trim waits is not waited
// for, too.
func TestTrimWaitsOnceInABusyPool(t *testing.T) {
	for _, spec := range []string{"vmm", "elastic", "async"} {
		t.Run(spec, func(t *testing.T) {
			dev := gib(t)
			pool := newPool(t, dev, spec, gpumem.WithRetry(0), gpumem.WithIdleTrim(0), gpumem.WithLowWater(0))
			defer pool.Close()
			churn := func() {
				b, err := pool.Alloc(t.Context(), 8*mib)
				if err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(dev.Work(0, time.Second, nil, []device.Range{{Addr: b.Addr, Bytes: b.Size}}), pool.Free(b)); err != nil {
					t.Error(err)
				}
			}
			churn()
			waits := 0
			dev.OnCall(func(_ uint64, name string, _ uint64) error {
				if name == "cuEventSynchronize" || name == "cuCtxSynchronize" {
					if waits++; waits < 100 {
						churn()
					}
				}
				return nil
			})
			if _, err := pool.Trim(); err != nil {
				t.Fatal(err)
			}
			dev.OnCall(nil)
			if waits > 2 {
				t.Errorf("Trim waited %d times", waits)
			}
		})
	}
}

// TestCollectedBlockIsFreedAgainAfterFailure: a call of the device that fails once
// does not lose a dropped Buffer's memory.
func TestCollectedBlockIsFreedAgainAfterFailure(t *testing.T) {
	dev, err := sim.New(sim.Config{Total: 96 * mib})
	if err != nil {
		t.Fatal(err)
	}
	pool := newPool(t, dev, "platform", gpumem.WithRetry(0), gpumem.WithCollect())
	drop(t, pool, 8*mib)
	failed := false
	dev.OnCall(func(_ uint64, name string, _ uint64) error {
		if name != "cuMemFree" || failed {
			return nil
		}
		failed = true
		return device.ErrInvalidValue
	})
	for deadline := time.Now().Add(time.Minute); pool.Stats().BytesInUse > 0; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are in use a minute after the device failed once", pool.Stats().BytesInUse)
		}
		runtime.Gosched()
	}
	if !failed {
		t.Error("the case is not the one meant: no call failed")
	}
}
