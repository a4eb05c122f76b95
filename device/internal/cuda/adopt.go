//go:build linux && (amd64 || arm64) && !nodriver

// Support for a library that stands in front of the driver in another program's
// program: a driver by its file, streams that the program made, waits for all of
// its work, access for a second GPU, and copies that go on meanwhile.

package cuda

import (
	"errors"
	"sync"
	"unsafe"

	"gpumem/device"
)

// OpenLibrary is [Open] with the driver in the file path, for a library that
// itself has the name libcuda.so.1 in this process and would find itself by that
// name. NVML is not used. The file of the first call is the one of all later
// calls.
func OpenLibrary(path string, ordinal int) (*Device, error) { return named(path).open(ordinal) }

var (
	namedOnce    sync.Once
	namedMachine *machine
)

// named is the machine whose driver is the file path.
func named(path string) *machine {
	namedOnce.Do(func() {
		find, err := open(path)
		namedMachine = newMachine(realHost, find, err, newNVML(nil, device.ErrNotSupported))
	})
	return namedMachine
}

// Context returns the driver's handle of the device's primary context.
func (d *Device) Context() uint64 { return uint64(d.ctx) }

// Adopt lets s, a stream that somebody else made in the device's primary context,
// be named in calls like one of StreamCreate. Its owner destroys it, after
// [Device.Disown].
func (d *Device) Adopt(s uint64) device.Stream {
	d.created(s)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.streams[s] = false
	return device.Stream(s)
}

// Disown forgets an adopted stream, whose owner is about to destroy it. Its work
// still counts as this device's: a wait for all work waits for it.
func (d *Device) Disown(s device.Stream) error {
	c := d.begin(cuStreamWaitEvent, 0)
	defer c.end()
	c.handle(d.streams, uint64(s))
	d.destroying.Lock()
	defer d.destroying.Unlock()
	c.handOver(uint64(s))
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.streams, uint64(s))
	delete(d.ids, uint64(s))
	return c.err
}

// SynchronizeContext waits for all work in the primary context, that of streams
// which this Device does not know included (cuCtxSynchronize). While a graph is
// being captured the driver refuses it.
func (d *Device) SynchronizeContext() error {
	c := d.begin(cuCtxSynchronize, 0)
	defer c.end()
	if c.block() {
		defer c.unblock()
		c.do()
	}
	return c.err
}

// Capturing reports whether a graph is being captured in a stream, which the driver's
// handle names and which need not be adopted. For the legacy stream that is true while a stream
// that waits for it is captured, which the driver answers with an error.
func (d *Device) Capturing(handle uint64) (bool, error) {
	c := d.begin(cuStreamIsCapturing, 0)
	defer c.end()
	c.status = captureNone
	err := c.arg(handle).ptr(unsafe.Pointer(&c.status)).do()
	if code := Code(0); errors.As(err, &code) && code == captureImplicit {
		return true, nil
	}
	return c.status != captureNone, err
}

// MemSetAccessFrom lets another device, with the driver's number peer, read and
// write a mapped range.
func (d *Device) MemSetAccessFrom(peer int, addr, bytes uint64) error {
	c := d.beginPages(cuMemSetAccess, bytes)
	defer c.end()
	return c.span(addr, bytes).accessible(int32(peer)).do()
}

// HostAlloc takes pinned memory of the host, which the GPU reaches by itself.
func (d *Device) HostAlloc(bytes uint64) ([]byte, error) {
	c := d.begin(cuMemHostAlloc, bytes)
	defer c.end()
	if err := c.returns(0).arg(bytes, 0).do(); err != nil {
		return nil, err
	}
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&c.out[0])), bytes), nil
}

// HostFree gives back memory of HostAlloc.
func (d *Device) HostFree(p []byte) error {
	c := d.begin(cuMemFreeHost, uint64(len(p)))
	defer c.end()
	return c.ptr(unsafe.Pointer(unsafe.SliceData(p))).do()
}

// WriteAsync and ReadAsync queue a copy in a stream, of memory of HostAlloc.
func (d *Device) WriteAsync(addr uint64, p []byte, s device.Stream) error {
	c := d.begin(cuMemcpyHtoD, uint64(len(p)))
	defer c.end()
	return c.arg(addr).ptr(unsafe.Pointer(unsafe.SliceData(p))).arg(uint64(len(p))).stream(s).unlessEmpty()
}

func (d *Device) ReadAsync(p []byte, addr uint64, s device.Stream) error {
	c := d.begin(cuMemcpyDtoH, uint64(len(p)))
	defer c.end()
	return c.ptr(unsafe.Pointer(unsafe.SliceData(p))).arg(addr, uint64(len(p))).stream(s).unlessEmpty()
}
