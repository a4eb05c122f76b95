// Package cuda is a real GPU: the NVIDIA driver behind the interfaces of
// package device, without cgo.
//
// It loads libcuda.so.1 and libnvidia-ml.so.1 at run time, if they are there,
// and calls them through purego. No other package imports purego, because a
// program that does is linked to the C library; with the build tag nodriver,
// and on systems other than Linux on amd64 and arm64, this package is a stub
// that says so ([ErrNoDriver]).
//
// One call, from top to bottom:
//
//  1. [Device.Alloc] takes a call from a pool: a block on the heap that holds
//     the arguments and what the driver writes back. Go does not move the heap,
//     so the driver may be given addresses in it, and nothing is allocated.
//  2. The call checks that the device is neither closed nor lost, and keeps
//     [Device.Close] out while it runs.
//  3. The goroutine is locked to its thread, because a CUDA context belongs to
//     a thread; the device's primary context is made current there; the
//     function is called at the address that dlsym gave; the thread is let go.
//     It keeps the context, which is what every other user of the primary
//     context wants as well.
//  4. A result other than success becomes a [device.CallError] with the
//     driver's own name of the call and a [Code]. Codes after which NVIDIA says
//     that the process must be restarted are remembered, and every later call
//     fails with them at once.
//
// Handles that the caller passes in (streams, events, pools, memory) are looked
// up in the device's tables first: the driver follows such a handle as a
// pointer and would take the process down.
//
// [List] tells about all GPUs without using one: it makes no context.
package cuda

import "errors"

// ErrNoDriver: there is no NVIDIA driver, or none that works, or it has no GPU
// for this program. The error that wraps it says which, and what to do.
var ErrNoDriver = errors.New("no usable NVIDIA driver")

// ErrRunning is what Close wraps when the GPU does not end its work.
var ErrRunning = errors.New("work on the device is still running")
