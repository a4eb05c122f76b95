package alloctest_test

import (
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/async"
	"gpumem/alloc/internal/bfc"
	"gpumem/alloc/internal/direct"
	"gpumem/alloc/internal/elastic"
	"gpumem/alloc/internal/pytorch"
	"gpumem/alloc/internal/test/alloctest"
	"gpumem/alloc/internal/vmm"
	"gpumem/device"
	"gpumem/device/sim"
)

var everyFault = flag.Bool("every-fault", false, "on shared devices, too, have each call fail in every way")

// TestMain lets garbage pile up to eight times what is live: the tables of an allocator that
// lives for some milliseconds are the most of it.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

// makers are every allocator in every way it can be configured.
func makers() []alloctest.Maker {
	const mib = 1 << 20
	pool := func(cfg bfc.Config) func(device.GPU) (alloc.Allocator, error) {
		return func(dev device.GPU) (alloc.Allocator, error) { return bfc.New(dev, cfg) }
	}
	return []alloctest.Maker{
		{Name: "bfc", Device: 64 * mib, New: pool(bfc.Config{Limit: 64 * mib})},
		{Name: "bfc backs off", Device: 64 * mib, New: pool(bfc.Config{Limit: 80 * mib})},
		{Name: "bfc spatial", Device: 64 * mib, New: pool(bfc.Config{Limit: 64 * mib, Spatial: true})},
		{Name: "bfc spatial backs off", Device: 64 * mib, New: pool(bfc.Config{Limit: 80 * mib, Spatial: true})},
		{Name: "bfc top down", Device: 64 * mib, New: pool(bfc.Config{Limit: 64 * mib, Spatial: true, TopDown: true})},
		{Name: "bfc top down backs off", Device: 64 * mib, New: pool(bfc.Config{Limit: 80 * mib, Spatial: true, TopDown: true})},
		{Name: "bfc grows in reserved addresses", Device: 64 * mib, Virtual: true, New: pool(bfc.Config{Limit: 64 * mib, Initial: 16 * mib, Spatial: true, TopDown: true})},
		{Name: "bfc grows in reserved addresses, backs off", Device: 64 * mib, Virtual: true, New: pool(bfc.Config{Limit: 128 * mib, Initial: 80 * mib, Spatial: true, TopDown: true})},
		{Name: "bfc growth", Device: 64 * mib, New: pool(bfc.Config{Limit: 64 * mib, Growth: true})},
		{Name: "bfc growth gc", Device: 64 * mib, New: pool(bfc.Config{Limit: 64 * mib, Growth: true, GC: true})},
		{Name: "bfc growth gc coalesce", Device: 64 * mib, New: pool(bfc.Config{Limit: 64 * mib, Growth: true, GC: true, Coalesce: true})},
		{Name: "bfc odd device", Device: 64*mib - 12345, Granularity: 1, New: pool(bfc.Config{Limit: 64*mib - 12345})},
		{Name: "bfc exact split", Device: 64 * mib, New: pool(bfc.Config{Limit: 64 * mib, Fragmentation: 1e-9})},
		{Name: "direct", Device: 64 * mib, Granularity: 512, New: func(dev device.GPU) (alloc.Allocator, error) {
			return direct.New(dev, 0), nil
		}},
		{Name: "direct by pages", Device: 512 * mib, New: func(dev device.GPU) (alloc.Allocator, error) {
			return direct.New(dev, 0), nil
		}},
		{Name: "direct limited", Device: 512 * mib, New: func(dev device.GPU) (alloc.Allocator, error) {
			return direct.New(dev, 300*mib), nil
		}},
		{Name: "vmm", Device: 512 * mib, Virtual: true, New: func(dev device.GPU) (alloc.Allocator, error) {
			return vmm.New(dev, vmm.Config{})
		}},
		{Name: "vmm with a budget", Device: 512 * mib, Virtual: true, New: func(dev device.GPU) (alloc.Allocator, error) {
			return vmm.New(dev, vmm.Config{Budget: 301*mib + 1})
		}},
		{Name: "async", Device: 64 * mib, Garbage: true, Asks: true, New: func(dev device.GPU) (alloc.Allocator, error) {
			return async.New(dev, async.Config{})
		}},
		{Name: "async that keeps", Device: 64 * mib, Garbage: true, Asks: true, New: func(dev device.GPU) (alloc.Allocator, error) {
			return async.New(dev, async.Config{Reserve: 48 * mib, Preallocate: 48 * mib, Deterministic: true})
		}},
		{Name: "pytorch", Device: 96 * mib, New: func(dev device.GPU) (alloc.Allocator, error) {
			return pytorch.New(dev, pytorch.Config{})
		}},
		{Name: "pytorch 2.12 limited, collected", Device: 512 * mib, New: func(dev device.GPU) (alloc.Allocator, error) {
			return pytorch.New(dev, pytorch.Config{Limit: 400 * mib, MaxSplit: 32 * mib, GC: 0.5, Tie: pytorch.ByObject})
		}},
		{Name: "pytorch rounded", Device: 96 * mib, New: func(dev device.GPU) (alloc.Allocator, error) {
			return pytorch.New(dev, pytorch.Config{Divisions: [16]uint64{4, 8, 16}, Tie: pytorch.ByAddress})
		}},
		{Name: "pytorch expandable", Device: 128 * mib, New: func(dev device.GPU) (alloc.Allocator, error) {
			return pytorch.New(dev, pytorch.Config{Expandable: true, MaxSplit: 32 * mib})
		}},
		{Name: "elastic", Device: 64 * mib, Virtual: true, New: func(dev device.GPU) (alloc.Allocator, error) {
			return elastic.New(dev, elastic.Config{})
		}},
		{Name: "elastic limited", Device: 64 * mib, Virtual: true, New: func(dev device.GPU) (alloc.Allocator, error) {
			return elastic.New(dev, elastic.Config{Limit: 48*mib + 1, Reserve: 7 * mib, Deterministic: true})
		}},
		{Name: "elastic eager", Device: 64 * mib, Virtual: true, Garbage: true, New: func(dev device.GPU) (alloc.Allocator, error) {
			return elastic.New(dev, elastic.Config{Eager: true})
		}},
	}
}

// TestAll runs the suite over every allocator on a private device.
func TestAll(t *testing.T) {
	for _, m := range makers() {
		t.Run(m.Name, func(t *testing.T) {
			alloctest.Run(t, m)
		})
	}
}

// TestAllShared runs it on a device that other programs could share: of the faults and the
// random programs a third, or all with -every-fault. What is left out TestAll has, and the
// tests of device/internal/shared try each of the file's calls.
func TestAllShared(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("a shared simulated GPU is for Linux")
	}
	dir, made := t.TempDir(), 0
	for _, m := range makers() {
		m.Third = !*everyFault
		m.Open = func(t testing.TB, cfg sim.Config) (*sim.Device, error) {
			made++
			path := filepath.Join(dir, strconv.Itoa(made))
			if err := sim.CreateFile(path, cfg); err != nil {
				return nil, err
			}
			dev, err := sim.Join(path, 0, sim.Config{})
			if err == nil {
				t.Cleanup(func() { _ = dev.Close() })
			}
			return dev, err
		}
		t.Run(m.Name, func(t *testing.T) {
			alloctest.Run(t, m)
		})
	}
}
