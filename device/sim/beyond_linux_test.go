package sim_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"gpumem/device"
	"gpumem/device/sim"
)

// TestBeyond: what Exceed lets pass is granted beyond the total, which programs go on to see, and
// no more than Beyond; without it nothing is.
func TestBeyond(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		name   string
		shared bool
	}{{"of one program", false}, {"of a file", true}} {
		t.Run(tc.name, func(t *testing.T) {
			var asked []uint64
			passes := false
			cfg := sim.Config{Total: 2 * gib, Beyond: 2 * gib, Context: gib / 2}
			own := sim.Config{Exceed: func(n uint64) bool { asked = append(asked, n); return passes }}
			var d, other *sim.Device
			var err error
			if tc.shared {
				path := filepath.Join(t.TempDir(), "gpus")
				if err := sim.CreateFile(path, cfg); err != nil {
					t.Fatal(err)
				}
				d, err = sim.Join(path, 0, own)
				if err == nil {
					other, err = sim.Join(path, 0, sim.Config{})
				}
			} else {
				cfg.Exceed = own.Exceed
				if d, err = sim.New(cfg); err == nil {
					cfg.Exceed = nil
					other, err = sim.New(cfg)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			defer other.Close()

			first, err := d.Alloc(gib)
			if err != nil || asked != nil {
				t.Fatalf("what is free: %v, asked for %v", err, asked)
			}
			if _, err := d.Alloc(gib); !errors.Is(err, device.ErrOutOfMemory) || !slices.Equal(asked, []uint64{gib}) {
				t.Fatalf("what is not let pass: %v, asked for %v", err, asked)
			}
			passes = true
			if _, err := d.Alloc(2 * gib); err != nil {
				t.Fatalf("what is: %v", err)
			}
			if free, total, err := d.MemInfo(); free != 0 || total != 2*gib || err != nil {
				t.Errorf("free %d of %d, %v; want 0 of 2 GiB", free, total, err)
			}
			if _, err := d.Alloc(gib); !errors.Is(err, device.ErrOutOfMemory) {
				t.Errorf("4.5 GiB on a device of 2 and 2 beyond: %v", err)
			}
			if tc.shared {
				if _, err := other.Alloc(2 << 20); !errors.Is(err, device.ErrOutOfMemory) {
					t.Errorf("another program without Exceed: %v", err)
				}
				d.SetUsed(gib) // is cut to what is free: nothing
			} else if _, err := other.Alloc(3 * gib); !errors.Is(err, device.ErrOutOfMemory) {
				t.Errorf("without Exceed: %v", err)
			}
			if err := d.Free(first.Addr); err != nil {
				t.Fatal(err)
			}
			if free, _, err := d.MemInfo(); free != 0 || err != nil {
				t.Errorf("free %d with 2.5 GiB held, %v; want 0", free, err)
			}
		})
	}
}
