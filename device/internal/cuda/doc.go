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
//     [Device.Close] from giving anything back while it runs.
//  3. The goroutine is locked to its thread, because a CUDA context belongs to
//     a thread. Where the device's primary context is not current there it is
//     pushed; where the call would spoil a graph that another thread captures,
//     the thread's capture mode is relaxed. The function is called at the
//     address that dlsym gave; mode and context are put back as they were; the
//     thread is let go.
//  4. A result other than success becomes a [device.CallError] with the
//     driver's own name of the call and a [Code]. Codes after which NVIDIA says
//     that the process must be restarted are remembered, and every later call
//     fails with them at once. So is a reset of the primary context by another
//     library, which is noticed before the call; see [Device.Close].
//
// Handles that the caller passes in (streams, events, pools, memory) are looked
// up in the device's tables first: the driver follows such a handle as a
// pointer and would take the process down.
//
// Calls that wait for the GPU ask it again and again and sleep in between
// (wait.go). They hold no thread, and Close ends them.
//
// [List] tells about all GPUs without using one: it makes no context.
//
// # Lock order
//
//	Device.alive        held for reading during every call; Close writes
//	Device.destroying   held for reading while all streams are waited for
//	Device.mu           the tables of handles; not held during a driver call
//
// NVML's lock stands alone.
package cuda

import "errors"

// ErrNoDriver: there is no NVIDIA driver, or none that works, or it has no GPU
// for this program. The error that wraps it says which, and what to do.
var ErrNoDriver = errors.New("no usable NVIDIA driver")

// ErrRunning is what Close wraps when the GPU does not end its work.
var ErrRunning = errors.New("work on the device is still running")
