//go:build linux && (amd64 || arm64) && !nodriver

package cuda

import (
	"testing"

	"gpumem/device"
	"gpumem/internal/test/devicetest"
)

// TestConformance runs the suite of all devices over this package on a
// simulated GPU behind the driver's C interface.
func TestConformance(t *testing.T) {
	devicetest.Run(t, devicetest.Config{
		Open:  func(t *testing.T) device.GPU { return newFake(t).open() },
		Exact: true,
	})
}

// TestConformancePlain is the same on a GPU that has neither pools nor virtual
// memory nor managed.
func TestConformancePlain(t *testing.T) {
	devicetest.Run(t, devicetest.Config{
		Open: func(t *testing.T) device.GPU {
			f := newFake(t)
			f.gpus[0].attributes[attributePages] = 0
			f.gpus[0].attributes[attributePools] = 0
			f.gpus[0].attributes[attributeManaged] = 0
			return f.open()
		},
		Exact: true,
	})
}
