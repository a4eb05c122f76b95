package pytorch_test

import (
	"errors"
	"fmt"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/pytorch"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/device/sim"
)

// TestDeviceFailureLosesNothing fails each call of the device in turn: the pool stays
// whole, holds what the device holds, and gives all of it back.
func TestDeviceFailureLosesNothing(t *testing.T) {
	const mib = 1 << 20
	for name, cfg := range map[string]pytorch.Config{
		"default":            {},
		"2.12":               {Tie: pytorch.ByObject},
		"limited, collected": {Limit: 120 * mib, GC: 0.3, MaxSplit: 24 * mib},
		"expandable":         {Expandable: true},
		"small addresses":    {Expandable: true, Addresses: 40 * mib, MaxSplit: 24 * mib},
	} {
		for _, fault := range []error{device.ErrInvalidValue, device.ErrOutOfMemory} {
			t.Run(fmt.Sprint(name, ", ", fault), func(t *testing.T) {
				for n := uint64(1); failsAt(t, cfg, n, fault); n++ {
					if n > 2000 {
						t.Fatal("the program never ends without the fault")
					}
				}
			})
		}
	}
}

// failsAt runs a program in which the n-th call of the device fails, and reports
// whether the program made as many.
func failsAt(t *testing.T, cfg pytorch.Config, n uint64, fault error) bool {
	t.Helper()
	const mib = 1 << 20
	dev, err := sim.New(sim.Config{Total: 140 * mib})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Streams = streams.Creating(dev)
	a, err := pytorch.New(dev, cfg)
	if err != nil {
		t.Fatal(err)
	}
	reached := false
	calls := uint64(0)
	dev.OnCall(func(uint64, string, uint64) error {
		if calls++; calls != n {
			return nil
		}
		reached = true
		return fault
	})
	check := func(what string, err error) {
		t.Helper()
		if err != nil && !errors.Is(err, fault) && !errors.Is(err, alloc.ErrNoMemory) {
			t.Fatalf("call %d fails: %s: %v", n, what, err)
		}
		if err := a.Check(); err != nil {
			t.Fatalf("call %d fails: after %s: %v", n, what, err)
		}
		if held, _ := dev.Held(); held != a.Stats().PoolBytes {
			t.Fatalf("call %d fails: after %s: the device holds %d bytes, the pool %d", n, what, held, a.Stats().PoolBytes)
		}
	}
	var live []alloc.Block
	step := func(i int, bytes uint64) {
		stream := uint32(i % 2)
		b, err := a.Alloc(alloc.Request{Bytes: bytes, Stream: stream})
		check("an allocation", err)
		if err == nil {
			if i%4 == 3 {
				check("a use in another stream", a.Record(b, 1-stream))
			}
			live = append(live, b)
		}
		for len(live) > 2 && i%3 == 2 {
			// A free that fails leaves the block live.
			err := a.Free(live[0])
			check("a free", err)
			if err != nil {
				check("the live block", a.Live(live[0]))
				check("its second free", a.Free(live[0]))
			}
			live = live[1:]
		}
	}
	sizes := []uint64{3, 2, 6, 9, 1, 20, 7, 30, 4, 16, 40, 50, 8, 8, 60, 90, 25, 100}
	for i, size := range sizes {
		switch i {
		case 4:
			check("the begin of a private pool", a.BeginPool(7, nil))
		case 8:
			check("the end of the private pool", a.EndPool(7))
		case 12:
			check("the release of the private pool", a.ReleasePool(7))
		}
		step(i, size*mib)
		step(i+1, size*1000)
		if i%6 == 5 {
			_, err := a.Trim(uint64(i) * mib)
			check("Trim", err)
		}
	}
	err = a.Close()
	if held, _ := dev.Held(); held != a.Stats().PoolBytes || err == nil && held != 0 || err != nil && !errors.Is(err, fault) {
		t.Fatalf("call %d fails: Close: %v; the device holds %d bytes, the pool %d", n, err, held, a.Stats().PoolBytes)
	}
	return reached
}
