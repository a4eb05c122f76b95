// Package device says what a GPU is to an allocator: so much memory, granted
// in ranges at addresses, by calls that cost time.
//
// Device memory is addresses, never Go pointers: an address here is a uint64
// that this process cannot read through. Everything above this package keeps
// its bookkeeping apart from the memory that it describes.
//
// Two packages implement [Device]: sim, a simulated GPU that needs no
// hardware, and (in a later version) cuda, the NVIDIA driver. Package open
// makes one from the words of the command line.
package device

import (
	"errors"
	"fmt"
	"time"
)

// Errors that a driver call returns, wrapped in a [CallError]. They carry the
// driver's own names so that a reader finds them in its manual.
var (
	// ErrOutOfMemory: the device has not that many bytes left.
	ErrOutOfMemory = errors.New("CUDA_ERROR_OUT_OF_MEMORY: out of memory")
	// ErrInvalidValue: an argument that makes no sense, such as freeing an
	// address that was never granted.
	ErrInvalidValue = errors.New("CUDA_ERROR_INVALID_VALUE: invalid argument")
	// ErrLost: the device fell off the bus or was reset. Every later call
	// fails the same way.
	ErrLost = errors.New("CUDA_ERROR_DEVICE_UNAVAILABLE: the device is lost; restart the program")
)

// CallError is a refused driver call: which call, on which device, why.
type CallError struct {
	Call   string // the call as the driver names it, such as "cuMemAlloc"
	Device string // the device's name
	Bytes  uint64 // bytes asked for; 0 where the call asks for none
	Err    error  // one of the errors above
}

func (e *CallError) Error() string {
	if e.Bytes != 0 {
		return fmt.Sprintf("%s of %d bytes on %s: %v", e.Call, e.Bytes, e.Device, e.Err)
	}
	return fmt.Sprintf("%s on %s: %v", e.Call, e.Device, e.Err)
}

// Unwrap makes errors.Is(err, ErrOutOfMemory) work.
func (e *CallError) Unwrap() error { return e.Err }

// Info is what does not change while a program runs.
type Info struct {
	Name        string // as people know it: "sim:80GiB", "NVIDIA H200"
	Ordinal     int    // number of the device, from 0
	Total       uint64 // bytes that the driver reports as the total
	Granularity uint64 // a plain grant is rounded up to a multiple of this, in bytes; at least 1
	CCMajor     int    // compute capability, such as 9 of 9.0
	CCMinor     int    // and 0 of 9.0
	Display     bool   // a display is drawn by this GPU
	Simulated   bool   // no hardware behind it
	Base        uint64 // where the first grant lies, if that is known beforehand; placements are told relative to it
}

// Range is granted memory: Bytes at Addr. Bytes is what the device gave, which
// may be more than was asked for.
type Range struct {
	Addr  uint64
	Bytes uint64
}

// Counters say what the driver was asked and what that cost so far.
type Counters struct {
	Calls uint64        // driver calls of every kind, refused ones included
	Time  time.Duration // modelled time in them (simulated), or measured (real)
}

// Device is one GPU as one program sees it. Implementations are safe for use
// by several goroutines.
type Device interface {
	// Info never fails and makes no driver call.
	Info() Info
	// MemInfo is what the driver reports as free and total, in bytes. Free
	// takes account of everyone who uses the device.
	MemInfo() (free, total uint64, err error)
	// Alloc grants bytes (at least 1), rounded up to the granularity. A device
	// that has not that much left answers ErrOutOfMemory.
	Alloc(bytes uint64) (Range, error)
	// Free gives a granted range back; addr is its start.
	Free(addr uint64) error
	// Counters may be read at any time.
	Counters() Counters
}
