package gpumem_test

import (
	"testing"
	"testing/synctest"
	"time"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
)

// TestIdleTrim: what nobody has used for the idle time goes back, and not before.
func TestIdleTrim(t *testing.T) {
	for _, tc := range []struct {
		name string
		spec string
		opts []gpumem.Option
		kept uint64 // at the end
	}{
		{"the default", "elastic", nil, 0},
		{"another time", "elastic", []gpumem.Option{gpumem.WithIdleTrim(10 * time.Second), gpumem.WithLowWater(0)}, 0},
		{"a reserve", "elastic:reserve=32MiB", nil, 32 * mib},
		{"never", "elastic", []gpumem.Option{gpumem.WithIdleTrim(0)}, 100 * mib},
		{"never anything", "elastic", []gpumem.Option{gpumem.WithIdleTrim(0), gpumem.WithLowWater(0)}, 100 * mib},
		{"a pool that keeps what it has", "jax:limit=100MiB", nil, 100 * mib},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dev, err := sim.New(sim.Config{Total: 1 << 30})
				if err != nil {
					t.Fatal(err)
				}
				pool := newPool(t, dev, tc.spec, tc.opts...)
				held := func() uint64 { synctest.Wait(); now, _ := dev.Held(); return now }
				one, err := pool.Alloc(t.Context(), 50*mib)
				if err != nil {
					t.Fatal(err)
				}
				two, err := pool.Alloc(t.Context(), 50*mib)
				if err != nil {
					t.Fatal(err)
				}
				// A program at work keeps its memory.
				for range 30 {
					time.Sleep(time.Second)
					if err := pool.Free(one); err != nil {
						t.Fatal(err)
					}
					if one, err = pool.Alloc(t.Context(), 50*mib); err != nil {
						t.Fatal(err)
					}
				}
				if held() != 100*mib {
					t.Errorf("%d bytes are held by a program at work", held())
				}
				if err := pool.Free(one); err != nil {
					t.Fatal(err)
				}
				time.Sleep(9 * time.Second)
				if held() != 100*mib {
					t.Errorf("%d bytes are held nine seconds after the free", held())
				}
				time.Sleep(4 * time.Second)
				if want := min(tc.kept+50*mib, 100*mib); held() != want {
					t.Errorf("%d bytes are held thirteen seconds after the free, want %d", held(), want)
				}
				if err := pool.Free(two); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				if held() != tc.kept {
					t.Errorf("%d bytes are held a minute after the last free, want %d", held(), tc.kept)
				}
				if _, err := pool.Alloc(t.Context(), 200*mib); err != nil && tc.spec == "elastic" {
					t.Errorf("after all has gone back: %v", err)
				}
				if err := pool.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestLowWater: when others take the rest of the device, a pool leaves them what
// it does not use, at once.
func TestLowWater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev, err := sim.New(sim.Config{Total: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		pool := newPool(t, dev, "elastic", gpumem.WithIdleTrim(0), gpumem.WithLowWater(100*mib))
		var blocks []gpumem.Block
		for range 10 {
			b, err := pool.Alloc(t.Context(), 50*mib)
			if err != nil {
				t.Fatal(err)
			}
			blocks = append(blocks, b)
		}
		if err := pool.FreeBatch(blocks[2:]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if now, _ := dev.Held(); now != 500*mib {
			t.Errorf("%d bytes are held while nobody wants them", now)
		}
		dev.SetUsed(500 * mib) // 24 MiB are free
		time.Sleep(2 * time.Second)
		synctest.Wait()
		free, _, _ := dev.MemInfo()
		if free < 100*mib || free > 110*mib {
			t.Errorf("%d bytes are free for others, want 100 MiB", free)
		}
		for range 5 { // others take what they are left, again and again
			dev.SetUsed(1 << 30)
			time.Sleep(2 * time.Second)
			synctest.Wait()
		}
		if now, _ := dev.Held(); now != 100*mib {
			t.Errorf("%d bytes are held with nothing left for others; 100 MiB live", now)
		}
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestIdleDevice: a device that fails in the background is no crash, and is met
// by the next request.
func TestIdleDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev, err := sim.New(sim.Config{Total: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		pool := newPool(t, dev, "elastic")
		b, err := pool.Alloc(t.Context(), 50*mib)
		if err != nil {
			t.Fatal(err)
		}
		if err := pool.Free(b); err != nil {
			t.Fatal(err)
		}
		dev.SetFaults(sim.Faults{FailAt: dev.Counters().Calls + 1, Err: device.ErrInvalidValue})
		time.Sleep(time.Minute)
		synctest.Wait()
		if now, _ := dev.Held(); now != 0 {
			t.Errorf("%d bytes are held: one failure was one too many", now)
		}
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
}
