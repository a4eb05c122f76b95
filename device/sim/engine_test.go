package sim_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gpumem/device/sim"
)

// TestEnginesAreOfAllProgramsOnADevice: of a private one those that Another opens, of a file those that join.
func TestEnginesAreOfAllProgramsOnADevice(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gpus")
	if err := sim.CreateFile(file, sim.Config{Total: 1 << 30}, sim.Config{Total: 1 << 30}); errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("SKIPPED: this system has no files that programs share: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	joined := func() *sim.Device {
		d, err := sim.Join(file, 1, sim.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	private, err := sim.New(sim.Config{Total: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	another, err := private.Another()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		a, b *sim.Device
	}{{"private", private, another.(*sim.Device)}, {"file", joined(), joined()}} {
		t.Run(tc.name, func(t *testing.T) {
			const s = time.Second
			tc.a.Occupy(sim.ToHost, s, s, s)
			if end := tc.b.Occupy(sim.ToHost, s, s, s); end != 3*s {
				t.Errorf("behind the other's work: %v", end)
			}
			if end := tc.b.Occupy(sim.ToDevice, s, s, s); end != 2*s {
				t.Errorf("another engine: %v", end)
			}
			if a, b := tc.a.Busy(sim.ToHost), tc.a.Busy(sim.Kernels); a != 2*s || b != 0 {
				t.Errorf("%v busy %v, %v busy %v", sim.ToHost, a, sim.Kernels, b)
			}
		})
	}
	busy, err := sim.LookBusy(file)
	want := [][sim.Engines]time.Duration{{}, {0, time.Second, 2 * time.Second}}
	if err != nil || !slices.Equal(busy, want) {
		t.Errorf("%v, %v", busy, err)
	}
}
