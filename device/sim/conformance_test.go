package sim_test

import (
	"testing"

	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/internal/test/devicetest"
)

func TestConformance(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  sim.Config
	}{
		{"plain", sim.Config{Total: 1 * gib}},
		{"others on it", sim.Config{Total: 4 * gib, Used: gib, Display: gib}},
		{"a byte at a time", sim.Config{Total: gib, Granularity: 1}},
		{"large pages", sim.Config{Total: 2 * gib, Granularity: 4 * mib}},
		{"with a context", sim.Config{Total: 2 * gib, Context: 500 * mib}},
		{"without pages", sim.Config{Total: gib, NoPages: true}},
		{"without pools", sim.Config{Total: gib, NoPools: true}},
		{"without managed memory", sim.Config{Total: gib, NoManaged: true}},
		{"before compute capability 6.0", sim.Config{Total: gib, CCMajor: 5, CCMinor: 2, Context: 10 * mib}},
		{"memory of the host", sim.Config{Total: gib, Unified: true, NoPools: true}},
		{"a small host", sim.Config{Total: gib, Host: 300*mib + 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			devicetest.Run(t, devicetest.Config{Exact: true, Open: func(t *testing.T) device.GPU {
				d := newDevice(t, tc.cfg)
				t.Cleanup(func() {
					if found := d.Hazards(); len(found) != 0 {
						t.Errorf("hazards: %v", found)
					}
				})
				return d
			}})
		})
	}
}
