//go:build !linux || (!amd64 && !arm64) || nodriver

// The stub: this package where there is no driver to bind.

package cuda

import (
	"fmt"
	"runtime"

	"gpumem/device"
)

// errNone says why.
var errNone = func() error {
	why := "was made with -tags nodriver"
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		why = "is for " + runtime.GOOS + "/" + runtime.GOARCH + ", and the driver is used on linux/amd64 and linux/arm64"
	}
	return fmt.Errorf("%w: this build has none: it %s; name a simulated GPU: gpumem devices --help shows how", ErrNoDriver, why)
}()

// Device is a GPU of the NVIDIA driver. In this build there is none: every call
// panics, but none can be made.
type Device struct{ device.GPU }

// Open fails with ErrNoDriver.
func Open(ordinal int) (*Device, error) { return nil, errNone }

// Available fails with ErrNoDriver.
func Available() error { return errNone }

// Count fails with ErrNoDriver.
func Count() (int, error) { return 0, errNone }

// List fails with ErrNoDriver.
func List() ([]device.Status, error) { return nil, errNone }

// OpenLibrary fails with ErrNoDriver.
func OpenLibrary(path string, ordinal int) (*Device, error) { return nil, errNone }

// Context, Adopt, Disown, SynchronizeContext, MemSetAccessFrom and the calls about the host's
// memory are there so that callers compile.
func (d *Device) Context() uint64 { panic(errNone) }

func (d *Device) Adopt(s uint64) device.Stream { panic(errNone) }

func (d *Device) Disown(s device.Stream) error { return errNone }

func (d *Device) SynchronizeContext() error { return errNone }

func (d *Device) MemSetAccessFrom(peer int, addr, bytes uint64) error { return errNone }

func (d *Device) HostAlloc(bytes uint64) ([]byte, error) { return nil, errNone }

func (d *Device) HostFree(p []byte) error { return errNone }

func (d *Device) WriteAsync(addr uint64, p []byte, s device.Stream) error { return errNone }

func (d *Device) ReadAsync(p []byte, addr uint64, s device.Stream) error { return errNone }
