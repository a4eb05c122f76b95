package gpumem_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
)

// gatedSync holds waits for all work up until the gate is opened.
type gatedSync struct {
	*sim.Device
	gate, entered chan struct{}
}

func (g gatedSync) Synchronize() error {
	select {
	case g.entered <- struct{}{}:
	default:
	}
	<-g.gate
	return g.Device.Synchronize()
}

// TestGivenUpBlockWakesWaiter: a request that has its block and waits for the device is
// given up; one that was refused meanwhile gets the memory at once.
func TestGivenUpBlockWakesWaiter(t *testing.T) {
	for _, spec := range []string{"jax:limit=60MiB", "elastic", "vmm"} {
		t.Run(spec, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dev, err := sim.New(sim.Config{Total: 66 * mib})
				must := func(errs ...error) {
					t.Helper()
					if err := errors.Join(errs...); err != nil {
						t.Fatal(err)
					}
				}
				must(err)
				g := gatedSync{dev, make(chan struct{}), make(chan struct{}, 1)}
				pool := newPool(t, g, spec, gpumem.WithRetry(time.Hour), gpumem.WithIdleTrim(0), gpumem.WithLowWater(0))
				lost, err1 := dev.StreamCreate()
				other, err2 := dev.StreamCreate()
				must(err1, err2)
				n := pool.Stream(other)
				_, err = pool.Request(t.Context(), gpumem.Request{Bytes: mib, Stream: n})
				must(err)
				b, err := pool.Request(t.Context(), gpumem.Request{Bytes: 44 * mib, Stream: pool.Stream(lost)})
				must(err)
				must(dev.Work(lost, time.Hour, nil, []device.Range{{Addr: b.Addr, Bytes: b.Size}}), dev.StreamDestroy(lost), pool.Free(b))

				request := func(ctx context.Context) chan error {
					done := make(chan error, 1)
					go func() {
						_, err := pool.Request(ctx, gpumem.Request{Bytes: 44 * mib, Stream: n})
						done <- err
					}()
					synctest.Wait()
					return done
				}
				ctx, cancel := context.WithCancel(t.Context())
				first := request(ctx) // has the block, and waits for the destroyed stream's work
				<-g.entered
				second := request(t.Context())
				start := time.Now()
				cancel()
				if err := <-first; !errors.Is(err, context.Canceled) {
					t.Errorf("the first: %v", err)
				}
				close(g.gate)
				if err := <-second; err != nil || time.Since(start) > time.Minute {
					t.Errorf("the second waited %v: %v", time.Since(start), err)
				}
				must(pool.Close())
			})
		})
	}
}

// TestContextEndsLastAttempt: the last attempt of a request that was refused waits for
// the device no longer than its context.
func TestContextEndsLastAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev, err := sim.New(sim.Config{Total: 96 * mib})
		if err != nil {
			t.Fatal(err)
		}
		g := gatedDevice{dev, make(chan struct{}), make(chan struct{}, 1)}
		pool := newPool(t, g, "elastic:eager=true", gpumem.WithRetry(time.Second), gpumem.WithIdleTrim(0), gpumem.WithLowWater(0))
		b, err := pool.Alloc(t.Context(), 80*mib)
		if err != nil {
			t.Fatal(err)
		}
		keep, err := pool.Alloc(t.Context(), mib)
		if err != nil {
			t.Fatal(err)
		}
		if err := dev.Work(0, time.Hour, nil, []device.Range{{Addr: b.Addr, Bytes: b.Size}}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := pool.Request(ctx, gpumem.Request{Bytes: 90 * mib, OneHandle: true})
			ended <- err
		}()
		synctest.Wait()
		freed := make(chan error, 1)
		go func() { freed <- pool.Free(b) }() // waits for the work, as eager says
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, gpumem.ErrOutOfMemory) {
				t.Errorf("%v; want out of memory and the deadline", err)
			}
		case <-time.After(time.Minute):
			t.Error("the request goes on a minute after its context has ended")
		}
		close(g.gate)
		if err := errors.Join(<-freed, pool.Free(keep), pool.Close()); err != nil {
			t.Error(err)
		}
	})
}
