package bfc_test

import (
	"errors"
	"fmt"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/bfc"
	"gpumem/device"
	"gpumem/device/sim"
)

// touching is a device whose grants follow one another without a gap, but for
// one before the third.
type touching struct {
	device.Device
	grants, frees map[uint64]int
	fails         map[uint64]bool // frees that fail
	next          uint64
}

func (d *touching) Alloc(n uint64) (device.Range, error) {
	if len(d.grants) == 2 {
		d.next += 1 << 30
	}
	r := device.Range{Addr: d.next, Bytes: n}
	d.next += n
	d.grants[r.Addr]++
	return r, nil
}

func (d *touching) Free(addr uint64) error {
	if d.fails[addr] {
		return device.ErrInvalidValue
	}
	d.frees[addr]++
	return nil
}

// TestTrimWhoseFreeFailsKeepsEachGrant: a region of two grants becomes two
// regions when the device does not take them back, with another region behind.
func TestTrimWhoseFreeFailsKeepsEachGrant(t *testing.T) {
	const base = 1 << 40
	for _, tc := range []struct {
		name  string
		fails uint64
	}{{"first grant", base}, {"second grant", base + 8<<20}} {
		t.Run(tc.name, func(t *testing.T) {
			dev, err := sim.New(sim.Config{Total: 96 << 20})
			if err != nil {
				t.Fatal(err)
			}
			d := &touching{Device: dev, grants: map[uint64]int{}, frees: map[uint64]int{}, fails: map[uint64]bool{tc.fails: true}, next: base}
			a, err := bfc.New(d, bfc.Config{Limit: 64 << 20, Growth: true, GC: true, Coalesce: true})
			if err != nil {
				t.Fatal(err)
			}
			var blocks []alloc.Block
			for range 3 {
				blocks = append(blocks, take(t, a, alloc.Request{Bytes: 8 << 20}))
			}
			for _, b := range blocks[:2] {
				if err := a.Free(b); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := a.Trim(0); !errors.Is(err, device.ErrInvalidValue) {
				t.Errorf("Trim: %v, want the device's error", err)
			}
			if err := a.Check(); err != nil {
				t.Fatal(err)
			}
			clear(d.fails)
			if err := a.Free(blocks[2]); err != nil {
				t.Error(err)
			}
			take(t, a, alloc.Request{Bytes: 8 << 20})
			if err := a.Close(); err != nil {
				t.Error(err)
			}
			for addr := range d.grants {
				if d.frees[addr] != 1 {
					t.Errorf("grant at %#x: freed %d times, want once", addr, d.frees[addr])
				}
			}
		})
	}
}

// TestDeviceFailureLosesNoGrant fails each call of the device in turn: the pool
// stays whole, holds what the device holds, and gives all of it back.
func TestDeviceFailureLosesNoGrant(t *testing.T) {
	const mib = 1 << 20
	for name, cfg := range map[string]bfc.Config{
		"growth gc coalesce": {Limit: 64 * mib, Growth: true, GC: true, Coalesce: true},
		"growth gc":          {Limit: 64 * mib, Growth: true, GC: true},
		"growth gc in pages": {Limit: 64 * mib, Growth: true, GC: true, RegionUnit: 2 * mib},
		"partitioned gc":     {Limit: 80 * mib, Spatial: true, GC: true},
		"top down gc":        {Limit: 80 * mib, Spatial: true, TopDown: true, GC: true},
	} {
		for _, fault := range []error{device.ErrInvalidValue, device.ErrOutOfMemory} {
			t.Run(fmt.Sprint(name, ", ", fault), func(t *testing.T) {
				for n := uint64(1); failsAt(t, cfg, n, fault); n++ {
					if n > 1000 {
						t.Fatal("the program never ends without the fault")
					}
				}
			})
		}
	}
}

// failsAt runs a program in which the n-th call of the device fails, and
// reports whether the program made as many.
func failsAt(t *testing.T, cfg bfc.Config, n uint64, fault error) bool {
	t.Helper()
	const mib = 1 << 20
	dev, err := sim.New(sim.Config{Total: 64 * mib, Granularity: 2 * mib})
	if err != nil {
		t.Fatal(err)
	}
	a, err := bfc.New(dev, cfg)
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
	for i, size := range []uint64{3, 2, 6, 9, 1, 20, 7, 30, 4, 16, 40, 50, 8, 8, 60} {
		b, err := a.Alloc(alloc.Request{Bytes: size * mib, End: alloc.End(i % 2)})
		check("an allocation", err)
		if err == nil {
			live = append(live, b)
		}
		for len(live) > 0 && i%3 == 2 {
			check("a free", a.Free(live[0]))
			live = live[1:]
		}
		if i%6 == 5 {
			_, err := a.Trim(uint64(i) * mib)
			check("Trim", err)
		}
	}
	check("Close", a.Close())
	return reached
}
