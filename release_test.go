package gpumem_test

import (
	"sync/atomic"
	"testing"
	"time"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
)

// waited is a device whose Synchronize asks the pool for its statistics, as another
// goroutine would while the GPU works, and which notes frees without that wait before.
type waited struct {
	device.GPU
	stats func()
	syncs *atomic.Int64
	bare  *atomic.Int64
}

func (d waited) Synchronize() error {
	d.syncs.Add(1)
	d.stats()
	return d.GPU.Synchronize()
}

func (d waited) Free(addr uint64) error {
	if d.syncs.Load() == 0 {
		d.bare.Add(1)
	}
	return d.GPU.Free(addr)
}

// TestRegionsAreReleasedAfterAWaitWithoutTheLock: TensorFlow's pool returns free regions
// to the driver, which waits for all work. The pool waits for that before, without
// its lock.
func TestRegionsAreReleasedAfterAWaitWithoutTheLock(t *testing.T) {
	for _, how := range []string{"Trim", "Alloc"} {
		t.Run(how, func(t *testing.T) {
			dev, err := sim.New(sim.Config{Total: 96 << 20})
			if err != nil {
				t.Fatal(err)
			}
			var pool *gpumem.Pool
			d := waited{GPU: dev, syncs: new(atomic.Int64), bare: new(atomic.Int64)}
			d.stats = func() {
				got := make(chan bool)
				go func() { pool.Stats(); close(got) }()
				select {
				case <-got:
				case <-time.After(20 * time.Second):
					t.Error("the pool's lock is held while the device is waited for")
				}
			}
			pool = newPool(t, d, "tensorflow:limit=64MiB,preallocate=false")
			var blocks []gpumem.Block
			for _, mibs := range []uint64{1, 20, 20} {
				b, err := pool.Alloc(t.Context(), mibs<<20)
				if err != nil {
					t.Fatal(err)
				}
				blocks = append(blocks, b)
			}
			for _, b := range blocks[1:] {
				if err := pool.Free(b); err != nil {
					t.Fatal(err)
				}
			}
			d.syncs.Store(0)
			if how == "Trim" {
				if n, err := pool.Trim(); n == 0 || err != nil {
					t.Errorf("released %d: %v", n, err)
				}
			} else if _, err := pool.Alloc(t.Context(), 55<<20); err != nil {
				t.Error(err)
			}
			if d.syncs.Load() != 1 || d.bare.Load() != 0 {
				t.Errorf("%d waits, %d frees without one", d.syncs.Load(), d.bare.Load())
			}
			if err := pool.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
