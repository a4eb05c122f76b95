// Package cuda opens the GPUs of the NVIDIA driver, without cgo.
//
// The driver's libraries, libcuda.so.1 and libnvidia-ml.so.1, are loaded when they are first
// needed. With the build tag nodriver, and on systems other than Linux on amd64 and arm64,
// every call fails with an error that says so ([ErrNoDriver]). A program that imports this
// package is linked to the C library, except with nodriver.
package cuda

import (
	"gpumem/device"
	driver "gpumem/device/internal/cuda"
)

var (
	// ErrNoDriver is wrapped by the error of a call where there is no NVIDIA driver, or none
	// that works, or it has no GPU for this program. That error says which, and what to do.
	ErrNoDriver = driver.ErrNoDriver
	// ErrRunning is what Close wraps when the GPU does not end its work.
	ErrRunning = driver.ErrRunning
)

// Device is an open GPU: a [device.GPU] whose Close gives back what is still allocated, and
// whose Context is the primary context as the driver's handle. It is safe for concurrent use.
type Device = driver.Device

// Code is a result of a driver call other than success (CUresult). It is an error; errors.Is
// tells which error of package device it stands for, if any, and its method Name returns the
// driver's name for it.
type Code = driver.Code

// Available returns nil if a driver loads and has at least one GPU for this program, else why
// not. It is cheap after the first call of this package, which loads the driver.
func Available() error { return driver.Available() }

// Count returns how many GPUs the driver shows to this program: those that
// CUDA_VISIBLE_DEVICES lets through, MIG slices counted as such. It is at least 1, or an
// error says why there is none.
func Count() (int, error) { return driver.Count() }

// Open opens the GPU with the given number, counted from 0 as the driver does under
// CUDA_VISIBLE_DEVICES. It retains the device's primary context, which on the GPU takes some
// hundred MiB and a tenth of a second unless the process has it already. The caller closes
// the device.
func Open(ordinal int) (*Device, error) { return driver.Open(ordinal) }

// OpenLibrary is [Open] with the driver in the file path, for a library that itself has the
// name libcuda.so.1 in this process and would find itself by that name. NVML is not used. The
// file of the first call is the one of all later calls.
func OpenLibrary(path string, ordinal int) (*Device, error) {
	return driver.OpenLibrary(path, ordinal)
}

// List returns the status of every GPU that the driver shows to this program, and who uses
// it, without using one: it makes no context and takes no memory. What NVML does not say, or
// is not there to say, is zero with a line in Notes.
func List() ([]device.Status, error) { return driver.List() }
